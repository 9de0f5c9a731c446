// page.mjs URL FOLDER [AXE]: drives headless Chromium through its DevTools to the page of `serve --metrics`, for page.sh. Prints one JSON
// object: what the page says, its figures, which elements Tab reaches, how much the layout shifted, what axe-core finds (AXE: its
// file). Writes light.png, dark.png and narrow.png into FOLDER. With TOKEN it types that and presses the buttons that PRESS lists
// by their accessible names, one a line, each with what it asks; `said` has the words after each.
import { spawn } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";

const [url, folder, axe] = process.argv.slice(2);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

// Over a pipe, which needs no port and no WebSocket: messages end with a zero byte.
const browser = spawn("chromium", ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
  `--user-data-dir=${folder}/profile`], { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
const [to, from] = [browser.stdio[3], browser.stdio[4]];
const waiting = new Map();
let calls = 0;
let session;
let received = Buffer.alloc(0);
from.on("data", (data) => {
  received = Buffer.concat([received, data]);
  for (let end = received.indexOf(0); end >= 0; end = received.indexOf(0)) {
    const { id, result, error } = JSON.parse(received.subarray(0, end));
    received = received.subarray(end + 1);
    waiting.get(id)?.(error ? Promise.reject(new Error(JSON.stringify(error))) : result);
  }
});

function call(method, params = {}) {
  return new Promise((done) => {
    calls += 1;
    waiting.set(calls, done);
    to.write(`${JSON.stringify({ id: calls, method, params, sessionId: session })}\0`);
  });
}

try {
  const { targetId } = await call("Target.createTarget", { url: "about:blank" });
  session = (await call("Target.attachToTarget", { targetId, flatten: true })).sessionId;
  console.log(JSON.stringify(await drive()));
} finally {
  browser.kill("SIGKILL");
}
process.exit(0);

async function drive() {
  const run = async (expression) => {
    const { result, exceptionDetails } = await call("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(JSON.stringify(exceptionDetails));
    return result.value;
  };
  const size = (width, height) => call("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false });
  const scheme = (value) => call("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value }] });
  const picture = async (name) => {
    const { data } = await call("Page.captureScreenshot", { format: "png" });
    writeFileSync(`${folder}/${name}.png`, Buffer.from(data, "base64"));
  };
  await call("Page.enable");
  // Counted from the first content on: what moves under a reader's eyes.
  await call("Page.addScriptToEvaluateOnNewDocument", { source: `globalThis.shifted = 0; new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) globalThis.shifted += entry.value; }).observe({ type: "layout-shift", buffered: true });` });
  await size(1100, 1150);
  await scheme("light");
  await call("Page.navigate", { url });
  await pause(6000);
  const answer = { title: await run("document.title"), text: await run("document.body.innerText"), shifted: await run("shifted") };
  if (process.env.TOKEN !== undefined) answer.said = await changes(run);
  await picture("light");
  await scheme("dark");
  await pause(300);
  await picture("dark");
  const findings = async () => axe === undefined ? null : run(`(async () => { ${readFileSync(axe, "utf8")};
    const { violations, passes } = await axe.run(); return { passes: passes.length, violations: violations.map(({ id, impact, nodes }) =>
    ({ id, impact, nodes: nodes.map(({ html }) => html.slice(0, 120)) })) }; })()`);
  answer.axe_dark = await findings();
  await scheme("light");
  answer.axe_light = await findings();
  await run("document.activeElement.blur()");
  answer.reached = [];
  for (let tab = 0; tab < 3; tab += 1) {
    await call("Input.dispatchKeyEvent", { type: "keyDown", key: "Tab", code: "Tab", windowsVirtualKeyCode: 9 });
    await call("Input.dispatchKeyEvent", { type: "keyUp", key: "Tab", code: "Tab", windowsVirtualKeyCode: 9 });
    answer.reached.push(await run("document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent"));
  }
  await size(340, 1600);
  await pause(1200);
  answer.wider_than_narrow = await run("document.documentElement.scrollWidth - document.documentElement.clientWidth");
  await picture("narrow");
  return answer;
}

/** Types the token, and presses buttons; a person's answer to what they ask is yes. */
async function changes(run) {
  const type = (selector, text) => run(`{ const field = document.querySelector(${JSON.stringify(selector)}); field.focus(); field.value = ${JSON.stringify(text)}; }`);
  const press = (name) => run(`{ const all = [...document.querySelectorAll("button")].filter((button) => button.checkVisibility());
    const found = all.find((button) => (button.getAttribute("aria-label") ?? button.textContent) === ${JSON.stringify(name)});
    if (!found) throw new Error("no button " + ${JSON.stringify(name)} + " among " + all.map((button) => button.textContent)); found.click(); }`);
  const said = { hidden: await run("[...document.querySelectorAll('.changes button, .member button')].some((button) => button.checkVisibility())") };
  await type("#token", "not the token, which is longer");
  await press("Allow changes");
  await pause(1500);
  said.wrong = await run("document.getElementById('locked').textContent");
  await type("#token", process.env.TOKEN);
  await press("Allow changes");
  await pause(500);
  for (const name of (process.env.PRESS ?? "").split("\n").filter(Boolean)) {
    await press(name);
    await pause(300);
    const question = await run("document.getElementById('sure').open ? document.getElementById('sure-words').textContent : ''");
    if (question) await run("document.getElementById('sure-yes').click()");
    await pause(1500);
    said[name] = { question, words: await run("document.querySelector('.said').textContent") };
  }
  return said;
}
