// The page of `twill serve --metrics`: asks for overview.json once a second and shows it. Rates and percentiles are differences of
// two answers. Elements stay where they are, and only what has changed is written, so that focus and scrolling stay, too. Whoever
// types the token of `--metrics-token` may change the array; the token is kept in this tab only.

const EVERY_MS = 1000;
const KEPT = 120; // points of the curves

const views = new Map(); // by UUID
const arrays = document.getElementById("arrays");
const link = document.getElementById("link");
const mode = document.getElementById("mode");
const unlock = document.getElementById("unlock");
const locked = document.getElementById("locked");
const sure = document.getElementById("sure");
const READ_ONLY = mode.textContent;
let token = null;
let answered = 0;

/** An element with properties and children. */
function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") node.className = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function paint(node, classes) {
  if (node.className !== classes) node.className = classes;
}

export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${unit === 0 || count >= 100 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
}

export function duration(ns) {
  if (!(ns > 0)) return "–";
  for (const [unit, size] of [["s", 1e9], ["ms", 1e6], ["µs", 1e3]]) {
    if (ns >= size) return `${(ns / size).toFixed(ns >= 100 * size ? 0 : ns >= 10 * size ? 1 : 2)} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

function span(seconds) {
  const parts = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = parts.findIndex(([, size]) => seconds >= size);
  if (first < 0) return "0 s";
  return parts.slice(first, first + 2).map(([unit, size], at, two) => {
    const rest = at === 0 ? seconds : seconds % two[0][1];
    return `${Math.floor(rest / size)} ${unit}`;
  }).join(" ");
}

/** The latency below which a share of the requests between two answers stayed, in ns. */
export function percentile(before, now, share) {
  const old = new Map(before);
  const counts = now.map(([bound, count]) => [bound, count - (old.get(bound) ?? 0)]).filter(([, count]) => count > 0);
  const all = counts.reduce((sum, [, count]) => sum + count, 0);
  let left = share * all;
  for (const [bound, count] of counts.sort((a, b) => a[0] - b[0])) {
    left -= count;
    if (left <= 0) return bound;
  }
  return 0;
}

/** Asks the server for what only the token's owner may have; its words, if it refuses. */
async function withToken(body) {
  const request = body === undefined ? {} : { method: "POST", body: JSON.stringify(body) };
  const response = await fetch("changes", { ...request, cache: "no-store",
    headers: { Authorization: `Bearer ${token}`, "Content-Type": "application/json" } });
  if (response.status === 401) lock("That is not the token.");
  if (response.status === 202 || !response.ok) throw new Error((await response.text()).trim() || `status ${response.status}`);
  return response.json();
}

function lock(words) {
  token = null;
  paint(document.body, "");
  write(locked, words);
  unlock.hidden = false;
}

unlock.addEventListener("submit", async (event) => {
  event.preventDefault();
  const typed = document.getElementById("token");
  token = typed.value.trim();
  typed.value = "";
  try {
    await withToken();
    paint(document.body, "may-change");
    unlock.hidden = true;
    write(locked, "Changes are allowed in this tab, until it is closed or loaded again.");
  } catch (error) {
    lock(error.message);
  }
});

/** Whether a person wants this indeed. */
function asked(words, act) {
  const [yes, no] = ["sure-yes", "sure-no"].map((id) => document.getElementById(id));
  write(document.getElementById("sure-words"), words);
  write(yes, act);
  return new Promise((done) => {
    let agreed = false;
    yes.onclick = () => { agreed = true; sure.close(); };
    no.onclick = () => sure.close();
    sure.onclose = () => done(agreed); // Escape closes it, too
    sure.showModal();
    no.focus();
  });
}

const health = {
  "in-sync": ["good", "in sync"], recovering: ["warn", "being rebuilt"], replacing: ["warn", "replacement, being copied"],
  spare: ["plain", "spare"], failed: ["bad", "failed"], missing: ["bad", "empty"],
};
const urgency = { failed: "bad", degraded: "warn", notice: "plain" };

/** What is shown of one array. */
class View {
  constructor(uuid) {
    const id = `array-${uuid.replaceAll(/[^0-9a-f]/g, "")}`;
    this.points = [];
    this.shown = {};
    this.name = el("h2", { id });
    this.state = el("p");
    this.kind = el("p");
    this.advice = el("ol", { class: "advice" });
    this.figures = {};
    const figures = el("dl", { class: "figures" });
    for (const [key, words, kind] of [["read", "Read", "read"], ["write", "Written", "write"], ["reads", "Reads", "read"],
      ["writes", "Writes", "write"], ["p50", "Half within", ""], ["p99", "99 % within", ""]]) {
      this.figures[key] = el("dd", {}, "–");
      figures.append(el("div", { class: kind }, el("dt", {}, words), this.figures[key]));
    }
    this.lines = [svg("polyline", { class: "read" }), svg("polyline", { class: "write" })];
    this.curve = svg("svg", { viewBox: `0 0 ${KEPT - 1} 100`, preserveAspectRatio: "none", role: "img" });
    this.curve.append(...this.lines);
    this.caption = el("figcaption", {}, "reads (solid) and writes (dashed) of the last two minutes");
    this.members = el("ol", { class: "members" });
    this.works = el("ul", { class: "works" });
    this.events = el("tbody");
    this.facts = el("dl", { class: "facts" });
    this.uuid = uuid;
    this.checks = el("p", { class: "buttons" });
    this.said = el("p", { class: "said", role: "status" });
    const part = (words, ...content) => el("section", {}, el("h3", {}, words), ...content);
    const table = el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "When"), el("th", { scope: "col" }, "What"))), this.events);
    this.root = el("article", { class: "array", "aria-labelledby": id },
      el("div", { class: "head" }, this.name, this.state, this.kind),
      part("What to do next", this.advice),
      part("Members", this.members),
      part("Clients", figures, el("figure", {}, this.curve, this.caption)),
      part("Under way", this.works),
      this.changes(id),
      part("Events", el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Newest events" }, table)),
      part("Facts", this.facts));
  }

  /** What may be changed with the token. */
  changes(id) {
    const path = el("input", { id: `${id}-add`, required: "", placeholder: "/dev/disk/by-id/…", autocomplete: "off", spellcheck: "false" });
    const add = el("form", {}, el("label", { for: path.id }, "Device to add"), path, el("button", {}, "Add"));
    add.addEventListener("submit", async (event) => {
      event.preventDefault();
      const device = path.value.trim();
      const words = `Give ${device} to ${this.name.textContent}? It becomes a spare, or is rebuilt where a member is missing. What it holds is lost.`;
      if (await asked(words, "Add")) await this.change("add", { path: device }, `${device} was added`);
    });
    return el("section", { class: "changes" }, el("h3", {}, "Changes"), this.checks, add, this.said);
  }

  async change(method, params, done) {
    write(this.said, "…");
    paint(this.said, "said");
    try {
      await withToken({ uuid: this.uuid, method, params });
      write(this.said, `${done}.`);
    } catch (error) {
      write(this.said, error.message);
      paint(this.said, "said bad");
    }
  }

  /** A button for a change, which asks first where there are words for that. */
  button(label, [method, params], done, { words, of = "" } = {}) {
    const button = el("button", { type: "button", ...(of ? { "aria-label": `${label} ${of}` } : {}) }, label);
    button.addEventListener("click", async () => {
      if (words === undefined || await asked(words, label)) await this.change(method, params, done);
    });
    return button;
  }

  showChecks(status) {
    const phase = status.scrub?.phase ?? "none";
    const wish = (label, wish, done) => this.button(label, ["scrub-wish", { wish }], done);
    const cancel = () => wish("Cancel the check", "cancel", "The check was cancelled");
    this.list("checks", phase, () => {
      if (phase === "running") return [wish("Pause the check", "pause", "The check is paused"), cancel()];
      if (phase === "paused") return [wish("Resume the check", "resume", "The check goes on"), cancel()];
      return [this.button("Check parity or copies", ["scrub", {}], "The check was started")];
    });
  }

  /** What may be done with a member. */
  memberButtons({ slot, path, state }) {
    if (!path) return [];
    const array = this.name.textContent;
    const button = (label, method, done, words) => this.button(label, [method, { member: path }], `${path} ${done}`, { words, of: path });
    const remove = () => button("Remove", "remove", "was removed", `Take ${path} out of ${array}? If it is given back, it is rebuilt, in part or whole.`);
    if (slot === null || state === "failed") return [remove()];
    if (state !== "in-sync") return [];
    return [
      button("Replace", "replace", "is being copied", `Copy ${path} to a spare, which then takes its place in ${array}?`),
      button("Fail", "fail", "is not used any more", `Stop using ${path} in ${array}? The array goes on with less redundancy.`),
    ];
  }

  /** Makes the children of a list anew, if what they are made of has changed. */
  list(key, data, make) {
    const text = JSON.stringify(data);
    if (this.shown[key] === text) return;
    this.shown[key] = text;
    this[key].replaceChildren(...make());
  }

  show(now) {
    const { status } = now;
    const before = this.before && this.before.status.started_unix_s === status.started_unix_s && now.unix_ms > this.before.unix_ms
      ? this.before : null;
    const per = before ? 1000 / (now.unix_ms - before.unix_ms) : 0;
    const rate = (name) => before ? Math.max(0, (status.counters[name] ?? 0) - (before.status.counters[name] ?? 0)) * per : 0;
    write(this.name, status.name);
    write(this.state, status.state);
    paint(this.state, `state ${status.failed || status.failing ? "bad" : status.degraded ? "warn" : "good"}`);
    write(this.kind, `${status.level}, ${bytes(status.size_bytes)}, ${status.raid_devices} members`);
    this.showClients(now, before, rate);
    this.showMembers(status, before, per);
    this.showWorks(status);
    this.showChecks(status);
    this.list("advice", now.advice, () => now.advice.length === 0 ? [el("li", { class: "good" }, el("p", {}, "Nothing: all is well."))]
      : now.advice.map(({ urgency: soon, text, command }) => el("li", { class: urgency[soon] ?? "plain" },
        el("p", {}, text), ...(command ? [el("code", {}, command)] : []))));
    this.list("events", now.events, () => now.events.length === 0 ? [el("tr", {}, el("td", {}, "–"), el("td", {}, "Nothing has happened yet."))]
      : now.events.map((event) => el("tr", {}, el("td", {}, el("time", { datetime: new Date(event.unix_ms).toISOString() },
        new Date(event.unix_ms).toLocaleString())), el("td", {}, event.text ?? event.event))));
    this.showFacts(status);
    this.before = now;
  }

  showClients(now, before, rate) {
    const flow = { read: rate("read_bytes"), write: rate("write_bytes"), reads: rate("reads"), writes: rate("writes") };
    if (before) {
      write(this.figures.read, `${bytes(flow.read)}/s`);
      write(this.figures.write, `${bytes(flow.write)}/s`);
      write(this.figures.reads, `${Math.round(flow.reads)}/s`);
      write(this.figures.writes, `${Math.round(flow.writes)}/s`);
      write(this.figures.p50, duration(percentile(before.latencies, now.latencies, 0.5)));
      write(this.figures.p99, duration(percentile(before.latencies, now.latencies, 0.99)));
      this.points.push([flow.read, flow.write]);
    }
    if (this.points.length > KEPT) this.points.shift();
    const most = Math.max(1, ...this.points.flat());
    const from = KEPT - this.points.length;
    for (const [which, line] of this.lines.entries()) {
      line.setAttribute("points", this.points.map((point, at) => `${from + at},${98 - 96 * point[which] / most}`).join(" "));
    }
    this.curve.setAttribute("aria-label", `Read ${bytes(flow.read)} and written ${bytes(flow.write)} a second now; at most ${bytes(most)} in the last two minutes`);
    write(this.caption, `reads (solid) and writes (dashed) of the last two minutes, at most ${bytes(most)}/s`);
  }

  showMembers(status, before, per) {
    const key = ({ slot, path, state }) => [slot, path, state];
    this.list("members", status.members.map(key), () => {
      this.cards = status.members.map(({ slot, path, state }) => {
        const [kind, words] = health[state] ?? ["plain", state];
        const card = { read: el("p", { class: "faint" }), write: el("p", { class: "faint" }), trouble: el("p", { class: "faint" }) };
        card.root = el("li", { class: `member ${kind}` },
          el("p", { class: "faint" }, slot === null ? "no slot" : `slot ${slot}`), el("p", {}, path ?? "no device"),
          el("p", { class: `state ${kind}` }, words), card.read, card.write, card.trouble,
          el("div", { class: "buttons" }, ...this.memberButtons({ slot, path, state })));
        return card;
      });
      return this.cards.map((card) => card.root);
    });
    for (const [at, member] of status.members.entries()) {
      const card = this.cards[at];
      const old = before?.status.members.find(({ slot, path, state }) => slot === member.slot && path === member.path && state === member.state);
      const moved = (name) => old ? Math.max(0, (member[name] ?? 0) - (old[name] ?? 0)) * per : 0;
      // Of a zoned array this is not measured.
      const works = member.slot !== null && !status.zoned && ["in-sync", "recovering"].includes(member.state);
      for (const which of ["read", "write"]) {
        const latency = member[`${which}_latency_ns`] ? `, ${duration(member[`${which}_latency_ns`])}` : "";
        write(card[which], works ? `${which}s ${bytes(moved(`${which}_bytes`))}/s${latency}` : "");
      }
      const trouble = [[member.errors, "errors"], [member.corrected_reads, "reads corrected"], [member.bad_block_bytes, "bytes bad"]];
      write(card.trouble, trouble.filter(([count]) => count > 0).map(([count, words]) => `${count} ${words}`).join(", "));
    }
  }

  showWorks(status) {
    const works = status.works?.length ? status.works : status.rebuild ? [status.rebuild] : [];
    this.list("works", works.map(({ kind, slot, pending }) => [kind, slot, pending]), () => {
      this.bars = works.map(({ kind, slot }, at) => {
        const id = `${this.name.id}-work-${at}`;
        const bar = { words: el("span", { id }, slot === null ? kind : `${kind} of slot ${slot}`), share: el("span"), line: el("progress", { "aria-labelledby": id, max: "1" }) };
        bar.root = el("li", {}, el("p", {}, bar.words, bar.share), bar.line);
        return bar;
      });
      return this.bars.length ? this.bars.map((bar) => bar.root) : [el("li", { class: "faint" }, "No resync, rebuild or check.")];
    });
    for (const [at, work] of works.entries()) {
      const share = work.total_bytes ? work.done_bytes / work.total_bytes : 1;
      const left = work.bytes_per_s ? (work.total_bytes - work.done_bytes) / work.bytes_per_s : null;
      this.bars[at].line.value = share;
      write(this.bars[at].share, work.pending ? "waits"
        : `${(share * 100).toFixed(1)} % of ${bytes(work.total_bytes)}${left === null ? "" : `, ${bytes(work.bytes_per_s)}/s, ${span(left)} left`}`);
    }
  }

  showFacts(status) {
    const clients = status.exports.map(({ uri, connections }) => `${uri} (${connections} connected)`);
    if (status.block_device) clients.unshift(status.block_device.path);
    const scrub = status.scrub ? `${status.scrub.repair ? "repair" : "check"} ${status.scrub.phase}, ${status.scrub.mismatch_sectors} sectors do not agree` : "never";
    const facts = [["Clients at", clients.join(", ") || "none"], ["UUID", status.uuid], ["Metadata", status.metadata],
      ["Layout", status.layout || "–"], ["Chunk", status.chunk_bytes ? bytes(status.chunk_bytes) : "–"],
      ["After a crash", status.consistency_policy], ["Redo log", status.redo_log], ["Last check", scrub],
      ["Served since", new Date(status.started_unix_s * 1000).toLocaleString()], ["Process", String(status.pid)]];
    this.list("facts", facts, () => facts.map(([words, value]) => el("div", {}, el("dt", {}, words), el("dd", {}, value))));
  }
}

function show(answer) {
  write(mode, answer.may_change ? "Commands change everything (twill help); with the token of --metrics-token this page changes some of it, too." : READ_ONLY);
  unlock.hidden = !answer.may_change || token !== null;
  const there = new Set(answer.arrays.map(({ status }) => status.uuid));
  for (const [uuid, view] of views) {
    if (!there.has(uuid)) { view.root.remove(); views.delete(uuid); }
  }
  for (const overview of answer.arrays) {
    const { uuid } = overview.status;
    if (!views.has(uuid)) {
      const view = new View(uuid);
      views.set(uuid, view);
      arrays.append(view.root);
    }
    views.get(uuid).show(overview);
  }
  const worst = answer.arrays.find(({ status }) => status.failed || status.failing) ?? answer.arrays.find(({ status }) => status.degraded);
  const title = worst ? `${worst.status.state}: ${worst.status.name}` : "Twill";
  if (document.title !== title) document.title = title;
}

async function ask() {
  const late = new AbortController();
  const timer = setTimeout(() => late.abort(), 5 * EVERY_MS);
  try {
    const response = await fetch("overview.json", { signal: late.signal, cache: "no-store" });
    if (!response.ok) throw new Error((await response.text()).trim() || `status ${response.status}`);
    show(await response.json());
    answered = Date.now();
    write(link, "live");
    paint(link, "");
  } catch (error) {
    const since = answered ? `, shown as of ${new Date(answered).toLocaleTimeString()}` : "";
    write(link, `no answer (${error.name === "AbortError" ? "too slow" : error.message})${since}`);
    paint(link, "lost");
  } finally {
    clearTimeout(timer);
  }
  setTimeout(ask, EVERY_MS);
}

ask();
