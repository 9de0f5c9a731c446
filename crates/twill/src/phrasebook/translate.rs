//! How Twill says what a line of mdadm's says.

use super::mdadm::{Item, Line, Mode, is_md_device};
use crate::quoted::quoted;

/// Why `serve` appears where mdadm assembles.
const SERVE_NOTE: &str = "serving as a block device needs root and the module ublk_drv; without --ublk the array is served over NBD";
const DEGRADED_NOTE: &str = "a degraded array starts by itself; --no-degraded refuses";
const RESHAPE_NOTE: &str = "Twill does not reshape; the members have md's format, so stop the array, let md do it, and serve it again";
const SHARED_FORMAT_NOTE: &str =
    "the members have md's format, so mdadm itself may do it while the array is stopped";

/// The answer to a line of mdadm's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Phrase {
    /// What was said, in short.
    pub said: String,
    /// What to type instead, line by line. Empty where Twill has no such thing.
    pub lines: Vec<String>,
    /// What differs.
    pub notes: Vec<String>,
}

impl Phrase {
    fn line(&mut self, words: &[&str]) {
        self.lines.push(words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" "));
    }

    fn note(&mut self, note: impl Into<String>) {
        let note = note.into();
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// What to type instead of this line, of which `said` is the first word.
pub fn phrase(said: &str, line: &Line) -> Phrase {
    let mut phrase = Phrase { said: said.to_owned(), lines: Vec::new(), notes: Vec::new() };
    if line.help {
        phrase.line(&["twill", "help", command_of(line)]);
        return phrase;
    }
    match line.mode {
        Mode::Create => create(line, &mut phrase),
        Mode::Assemble => assemble(line, &mut phrase),
        Mode::Incremental if line.has("fail") => {
            line.places().for_each(|place| phrase.line(&["twill", "fail", place]));
        }
        Mode::Incremental => {
            phrase.line(&["twill", "serve", "--daemon", "--ublk", "--scan"]);
            phrase.note("an array is served once its members are there: docs/boot.md says how at boot");
        }
        Mode::Build => {
            phrase.line(&["twill", "help", "create"]);
            phrase.note("Twill has no arrays without superblocks: `create` makes one with them");
        }
        Mode::Monitor => monitor(line, &mut phrase),
        Mode::Grow => grow(line, &mut phrase),
        Mode::Manage => manage(line, &mut phrase),
        Mode::Misc(option) => misc(option, line, &mut phrase),
    }
    if line.json {
        phrase
            .lines
            .iter_mut()
            .filter(|line| line.starts_with("twill "))
            .for_each(|line| line.push_str(" --json"));
    }
    if !line.unknown.is_empty() {
        phrase.note(format!("left out, because mdadm does not know it either: {}", line.unknown.join(" ")));
    }
    phrase
}

fn command_of(line: &Line) -> &'static str {
    match line.mode {
        Mode::Create | Mode::Build => "create",
        Mode::Assemble | Mode::Incremental => "serve",
        Mode::Monitor => "events",
        Mode::Grow if !reshapes(line) => "grow",
        Mode::Grow | Mode::Manage => "add",
        Mode::Misc("stop") => "stop",
        Mode::Misc("zero-superblock") => "zero-superblock",
        Mode::Misc("examine" | "examine-bitmap" | "examine-badblocks" | "query") => "examine",
        Mode::Misc("wait") => "status",
        Mode::Misc("check" | "action") => "check",
        Mode::Misc(_) => "detail",
    }
}

/// What Twill calls the array with this device of md's: `/dev/md0` is `md0`, `/dev/md/home` is `home`.
fn array_name(device: &str) -> &str {
    if !is_md_device(device) {
        return device;
    }
    let name = device.strip_prefix("/dev/").unwrap_or(device);
    name.strip_prefix("md/").unwrap_or(name)
}

fn name_note(phrase: &mut Phrase, device: &str) {
    if is_md_device(device) {
        phrase
            .note(format!("an array has a name and no {device}; `twill list` says which arrays are served"));
    }
}

/// mdadm's number of KiB, with the unit that Twill wants.
fn sized(value: &str) -> String {
    let is_number = |text: &str| !text.is_empty() && text.chars().all(|letter| letter.is_ascii_digit());
    match value.strip_suffix('s').filter(|sectors| is_number(sectors)) {
        Some(sectors) => format!("{}B", sectors.parse::<u64>().unwrap_or(0).saturating_mul(512)),
        None if is_number(value) && value != "0" => format!("{value}K"),
        None => value.to_owned(),
    }
}

fn create(line: &Line, phrase: &mut Phrase) {
    let mut words: Vec<String> = vec!["twill".into(), "create".into()];
    let mut places = line.places();
    let device = places.next();
    let members: Vec<&str> = places.collect();
    if let (Some(device), None) = (device, line.value("name")) {
        words.extend(["--name".into(), array_name(device).to_owned()]);
    }
    for item in &line.items {
        let Item::Option(option, value) = item else { continue };
        let value = value.as_deref().unwrap_or_default();
        let mut with = |value: &str| words.extend([format!("--{option}"), value.to_owned()]);
        match *option {
            "level" | "raid-devices" | "spare-devices" | "layout" | "metadata" | "name" => with(value),
            "chunk" | "bitmap-chunk" => with(&sized(value)),
            "size" if value != "max" => with(&sized(value)),
            "data-offset" if value != "variable" => with(&sized(value)),
            "bitmap" if ["internal", "none"].contains(&value) => with(value),
            "bitmap" => phrase.note("the bitmap is internal or none"),
            "consistency-policy" if ["bitmap", "resync", "none"].contains(&value) => with(value),
            "consistency-policy" | "write-journal" => {
                phrase.note(
                    "no journal and no PPL: the redo log closes the write hole without a device of its own",
                );
            }
            "assume-clean" | "force" => words.push(format!("--{option}")),
            _ => {}
        }
    }
    words.extend(members.iter().map(|member| (*member).to_owned()));
    phrase.line(&words.iter().map(String::as_str).collect::<Vec<_>>());
    phrase.note("the array is not running yet: `create` prints the line that serves it");
}

fn assemble(line: &Line, phrase: &mut Phrase) {
    let mut places = line.places();
    let device = places.next();
    let members: Vec<&str> = places.collect();
    match line.value("update") {
        Some("name") => {
            let new = line.value("name").or(device.map(array_name)).unwrap_or("NAME");
            phrase.line(&[&["twill", "rename", new][..], &members].concat());
        }
        Some("devicesize") => phrase.line(&[&["twill", "correct-size"][..], &members].concat()),
        Some(other) => phrase.note(format!("--update={other}: {SHARED_FORMAT_NOTE}")),
        None => {}
    }
    let is_one =
        device.is_some() || ["uuid", "name", "update"].iter().any(|option| line.value(option).is_some());
    // What gives something up is decided for one array.
    let are_all = line.has("scan") && !is_one && !line.has("force");
    let mut words = match are_all {
        true => vec!["twill", "serve", "--all", "--daemon", "--ublk"],
        false => vec!["twill", "serve", "--daemon", "--ublk"],
    };
    for (option, own) in [("force", "--force"), ("readonly", "--read-only"), ("no-degraded", "--no-degraded")]
    {
        words.extend(line.has(option).then_some(own));
    }
    if let Some(uuid) = line.value("uuid") {
        words.extend(["--uuid", uuid]);
    }
    if members.is_empty() && !are_all {
        words.push("--scan");
        let name = line.value("name").or(device.map(array_name)).filter(|_| line.value("uuid").is_none());
        words.extend(name.into_iter().flat_map(|name| ["--name", name]));
    }
    words.extend(&members);
    phrase.line(&words);
    phrase.note(SERVE_NOTE);
    if line.has("run") {
        phrase.note(DEGRADED_NOTE);
    }
    phrase
        .note("`twill assemble` with the same members says what would start, and why not; it starts nothing");
}

fn monitor(line: &Line, phrase: &mut Phrase) {
    let mut words = vec!["twill".to_owned(), "monitor".to_owned()];
    for (theirs, ours) in [("mail", "--mail"), ("program", "--program")] {
        words.extend(line.value(theirs).into_iter().flat_map(|value| [ours.to_owned(), value.to_owned()]));
    }
    words
        .extend(line.value("delay").into_iter().flat_map(|delay| ["--interval".into(), format!("{delay}s")]));
    match (line.has("test"), line.has("oneshot")) {
        (true, _) => words.push("--test".into()), // mdadm's goes on for ever where it is not to look once
        (false, true) => words.push("--once".into()),
        (false, false) => {}
    }
    phrase.line(&words.iter().map(String::as_str).collect::<Vec<_>>());
    phrase.note("it tells of all arrays of this machine, in the foreground; twill-monitor.service runs it from boot on");
}

/// Whether a line of `--grow` asks for more than a bitmap.
pub fn reshapes(line: &Line) -> bool {
    let is_known =
        |option: &str| ["grow", "bitmap", "bitmap-chunk", "scan", "uuid", "name", "force"].contains(&option);
    line.items.iter().any(|item| matches!(item, Item::Option(option, _) if !is_known(option)))
}

fn grow(line: &Line, phrase: &mut Phrase) {
    let mut places = line.places();
    let device = places.next().unwrap_or("/dev/md0");
    let name = array_name(device);
    if line.has("add") && !line.has("raid-devices") {
        places.for_each(|place| phrase.line(&["twill", "add", "--array", name, place]));
        return;
    }
    if let Some(bitmap) = line.value("bitmap").filter(|_| !reshapes(line)) {
        grow_bitmap(bitmap, line, name, phrase);
        return;
    }
    phrase.line(&["twill", "stop", name]);
    let mut words = vec!["mdadm".to_owned(), "--grow".to_owned(), device.to_owned()];
    for item in &line.items {
        match item {
            Item::Option("grow", _) => {}
            Item::Option(option, Some(value)) => words.push(format!("--{option}={value}")),
            Item::Option(option, None) => words.push(format!("--{option}")),
            Item::Place(place) if place != device => words.push(place.clone()),
            Item::Place(_) => {}
        }
    }
    phrase.line(&["mdadm", "--assemble", device, "--uuid", "UUID"]);
    phrase.line(&words.iter().map(String::as_str).collect::<Vec<_>>());
    phrase.line(&["mdadm", "--wait", device]);
    phrase.line(&["mdadm", "--stop", device]);
    phrase.line(&["twill", "serve", "--daemon", "--ublk", "--scan", "--name", name]);
    phrase.note(RESHAPE_NOTE);
}

fn grow_bitmap(bitmap: &str, line: &Line, name: &str, phrase: &mut Phrase) {
    if !["internal", "none"].contains(&bitmap) {
        phrase.note("the bitmap is internal or none");
        return;
    }
    let chunk = line.value("bitmap-chunk").map(sized);
    let chunk: Vec<&str> = chunk.iter().flat_map(|chunk| ["--bitmap-chunk", chunk]).collect();
    phrase.line(&["twill", "stop", name]);
    phrase.line(&[&["twill", "grow", "--bitmap", bitmap][..], &chunk, &["--scan", "--name", name]].concat());
    phrase.line(&["twill", "serve", "--daemon", "--ublk", "--scan", "--name", name]);
    phrase.note("the bitmap comes and goes while the array is stopped, and clean");
}

fn manage(line: &Line, phrase: &mut Phrase) {
    let mut places = line.places();
    let device = places.next().unwrap_or("/dev/md0");
    let name = array_name(device);
    let (mut command, mut replaced) = ("", None);
    // The device may stand before the first option or after it.
    let mut is_device_to_come = true;
    let force: &[&str] = if line.has("force") { &["--force"] } else { &[] };
    for item in &line.items {
        match item {
            Item::Place(place) if is_device_to_come && place == device => is_device_to_come = false,
            Item::Place(place) => {
                let place = if place == "faulty" { "failed" } else { place };
                match command {
                    "" => {}
                    "replace" => {
                        phrase.lines.extend(replaced.take());
                        replaced = Some(format!("twill replace --array {} {}", quoted(name), quoted(place)));
                    }
                    "with" => {
                        let replace = replaced
                            .take()
                            .unwrap_or_else(|| format!("twill replace --array {}", quoted(name)));
                        phrase.lines.push(format!("{replace} --with {}", quoted(place)));
                    }
                    "add" => phrase.line(&[&["twill", "add", "--array", name][..], force, &[place]].concat()),
                    command => phrase.line(&["twill", command, "--array", name, place]),
                }
            }
            Item::Option("add" | "add-spare", _) => command = "add",
            Item::Option(option @ ("re-add" | "fail" | "remove" | "replace" | "with"), _) => command = option,
            Item::Option("add-journal", _) => {
                command = "";
                phrase.note("no journal device: the redo log on the members closes the write hole");
            }
            Item::Option("write-mostly" | "failfast", _) => {
                phrase.note("Twill keeps md's flags write-mostly and failfast, and does not set them");
            }
            Item::Option(..) => {}
        }
    }
    phrase.lines.extend(replaced);
    if phrase.lines.is_empty() && phrase.notes.is_empty() {
        phrase.line(&["twill", "detail", name]);
    }
    name_note(phrase, device);
    phrase.note("--array is not needed where just one array is served");
}

fn misc(option: &str, line: &Line, phrase: &mut Phrase) {
    let places: Vec<&str> = line.places().collect();
    let names: Vec<&str> = places.iter().map(|place| array_name(place)).collect();
    let first: &[&str] = names.get(..1).unwrap_or_default();
    let of_members = |command: &'static str| [&["twill", command][..], &places].concat();
    match option {
        "examine" if line.has("scan") => {
            phrase.line(&[&["twill", "list", "--scan"][..], &places].concat());
        }
        "examine" | "examine-bitmap" | "examine-badblocks" => phrase.line(&of_members("examine")),
        "query" if places.iter().any(|place| !is_md_device(place)) => phrase.line(&of_members("examine")),
        "zero-superblock" => {
            let force: &[&str] = if line.has("force") { &["--force"] } else { &[] };
            phrase.line(&[&["twill", "zero-superblock"][..], force, &places].concat());
        }
        "detail" if line.has("scan") && places.is_empty() => phrase.line(&["twill", "list"]),
        "detail" if line.has("test") => of_arrays(&["twill", "status", "--test"], &names, phrase),
        "test" => of_arrays(&["twill", "status", "--test"], &names, phrase),
        "detail" | "query" => of_arrays(&["twill", "detail"], &names, phrase),
        "stop" if line.has("scan") => {
            phrase.line(&["twill", "stop"]);
            phrase.note("one array at a time: `twill list` names them");
        }
        "stop" => of_arrays(&["twill", "stop"], &names, phrase),
        "wait" => of_arrays(&["twill", "status", "--wait"], &names, phrase),
        "wait-clean" => {
            of_arrays(&["twill", "status"], &names, phrase);
            phrase.note("`twill stop` leaves the array clean on its members");
        }
        "check" => of_arrays(&["twill", "check"], &names, phrase),
        "action" => action(line.value("action").unwrap_or_default(), first, phrase),
        "run" => {
            phrase.line(&[&["twill", "serve", "--daemon", "--ublk", "--scan"][..], &named(first)].concat());
            phrase.note(DEGRADED_NOTE);
        }
        "readonly" | "readwrite" => {
            let how: &[&str] = if option == "readonly" { &["--read-only"] } else { &[] };
            phrase.line(&[&["twill", "stop"][..], first].concat());
            phrase.line(
                &[&["twill", "serve", "--daemon", "--ublk"][..], how, &["--scan"], &named(first)].concat(),
            );
        }
        _ => {
            phrase.note(format!("Twill has no --{option}; {SHARED_FORMAT_NOTE}"));
            return;
        }
    }
    places.iter().take(1).for_each(|place| name_note(phrase, place));
}

fn named<'a>(first: &[&'a str]) -> Vec<&'a str> {
    first.iter().flat_map(|name| ["--name", name]).collect()
}

fn of_arrays(words: &[&str], names: &[&str], phrase: &mut Phrase) {
    if names.is_empty() {
        phrase.line(words);
    }
    names.iter().for_each(|name| phrase.line(&[words, &[name]].concat()));
}

/// What is written to `sync_action`.
fn action(action: &str, first: &[&str], phrase: &mut Phrase) {
    let words: &[&str] = match action {
        "check" => &["twill", "check", "--no-wait"],
        "repair" => &["twill", "repair", "--no-wait"],
        "idle" => &["twill", "scrub", "cancel"],
        "frozen" => &["twill", "scrub", "pause"],
        _ => {
            phrase.note("a resync, recovery or replacement begins by itself where it is needed");
            &["twill", "status"]
        }
    };
    phrase.line(&[words, first].concat());
}
