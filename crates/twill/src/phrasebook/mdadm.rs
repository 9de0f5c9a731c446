//! What a line of mdadm's says: its mode, its options by their long names, and devices, in their order.

/// What mdadm is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// `--create`.
    Create,
    /// `--assemble`.
    Assemble,
    /// `--build`: an array without superblocks.
    Build,
    /// `--monitor`.
    Monitor,
    /// `--grow`.
    Grow,
    /// `--incremental`, `--auto-detect`.
    Incremental,
    /// `/dev/md0 --add …`.
    Manage,
    /// The others, by the name of their option.
    Misc(&'static str),
}

/// An option or a place, in their order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// An option by its long name, with its value.
    Option(&'static str, Option<String>),
    /// What stands without an option: devices, `failed`, `missing`.
    Place(String),
}

/// A line of mdadm's.
#[derive(Clone, Debug)]
pub struct Line {
    /// What it asks for.
    pub mode: Mode,
    /// Everything else, in order.
    pub items: Vec<Item>,
    /// Options that mdadm does not know.
    pub unknown: Vec<String>,
    /// `--json` of Twill, or mdadm's `--export`.
    pub json: bool,
    /// Help is asked for.
    pub help: bool,
}

/// mdadm's options: the long name, other long names of it, and whether a value follows.
const OPTIONS: [(&str, &[&str], bool); 74] = [
    ("create", &[], false),
    ("assemble", &[], false),
    ("build", &[], false),
    ("monitor", &["follow"], false),
    ("grow", &[], false),
    ("incremental", &[], false),
    ("auto-detect", &[], false),
    ("manage", &[], false),
    ("misc", &[], false),
    ("add", &[], false),
    ("add-spare", &[], false),
    ("add-journal", &[], false),
    ("re-add", &[], false),
    ("fail", &["set-faulty"], false),
    ("remove", &[], false),
    ("replace", &[], false),
    ("with", &[], false),
    ("query", &[], false),
    ("detail", &[], false),
    ("detail-platform", &[], false),
    ("examine", &[], false),
    ("examine-bitmap", &[], false),
    ("examine-badblocks", &[], false),
    ("stop", &[], false),
    ("run", &[], false),
    ("readonly", &["read-only"], false),
    ("readwrite", &[], false),
    ("zero-superblock", &[], false),
    ("wait", &[], false),
    ("wait-clean", &[], false),
    ("check", &[], false),
    ("action", &[], true),
    ("test", &[], false),
    ("kill-subarray", &[], true),
    ("update-subarray", &[], true),
    ("dump", &[], true),
    ("restore", &[], true),
    ("scan", &[], false),
    ("brief", &[], false),
    ("export", &[], false),
    ("force", &[], false),
    ("assume-clean", &[], false),
    ("no-degraded", &[], false),
    ("oneshot", &[], false),
    ("syslog", &[], false),
    ("daemonise", &["daemonize"], false),
    ("write-mostly", &[], false),
    ("failfast", &[], false),
    ("symlinks", &[], true),
    ("level", &[], true),
    ("raid-devices", &["raid-disks"], true),
    ("spare-devices", &["spare-disks"], true),
    ("chunk", &["rounding"], true),
    ("layout", &["parity"], true),
    ("metadata", &[], true),
    ("size", &[], true),
    ("name", &[], true),
    ("bitmap", &[], true),
    ("bitmap-chunk", &[], true),
    ("consistency-policy", &[], true),
    ("data-offset", &[], true),
    ("homehost", &[], true),
    ("uuid", &[], true),
    ("super-minor", &[], true),
    ("config", &[], true),
    ("update", &[], true),
    ("auto", &[], true),
    ("write-journal", &[], true),
    ("backup-file", &[], true),
    ("array-size", &[], true),
    ("mail", &[], true),
    ("program", &["alert"], true),
    ("delay", &[], true),
    ("increment", &["pid-file"], true),
];

/// Options that decide the mode, wherever they stand.
fn mode_of(option: &'static str) -> Option<Mode> {
    Some(match option {
        "create" => Mode::Create,
        "assemble" => Mode::Assemble,
        "build" => Mode::Build,
        "monitor" => Mode::Monitor,
        "grow" => Mode::Grow,
        "incremental" | "auto-detect" => Mode::Incremental,
        "manage" | "add" | "add-spare" | "add-journal" | "re-add" | "fail" | "remove" | "replace" => {
            Mode::Manage
        }
        "query" | "detail" | "detail-platform" | "examine" | "examine-bitmap" | "examine-badblocks"
        | "stop" | "run" | "readonly" | "readwrite" | "zero-superblock" | "wait" | "wait-clean" | "check"
        | "action" | "test" | "kill-subarray" | "update-subarray" | "dump" | "restore" => Mode::Misc(option),
        _ => return None,
    })
}

/// The long name of a letter; some letters mean another thing in each mode.
fn long_of(letter: char, mode: Option<Mode>) -> Option<&'static str> {
    let manages = matches!(mode, None | Some(Mode::Manage));
    let makes = matches!(mode, Some(Mode::Create | Mode::Build | Mode::Grow));
    Some(match letter {
        'C' => "create",
        'A' => "assemble",
        'B' => "build",
        'F' => "monitor",
        'G' => "grow",
        'I' => "incremental",
        'Q' => "query",
        'D' => "detail",
        'E' => "examine",
        'X' => "examine-bitmap",
        'S' => "stop",
        'R' => "run",
        'o' => "readonly",
        'w' => "readwrite",
        'W' if mode.is_none() => "wait",
        'W' => "write-mostly",
        't' => "test",
        'a' if manages => "add",
        'a' if mode == Some(Mode::Grow) => "add",
        'a' => "auto",
        'f' if mode == Some(Mode::Monitor) => "daemonise",
        'f' if manages || mode == Some(Mode::Incremental) => "fail",
        'f' => "force",
        'r' if manages => "remove",
        's' => "scan",
        'b' if makes || mode == Some(Mode::Assemble) => "bitmap",
        'b' => "brief",
        'Y' => "export",
        'l' => "level",
        'n' => "raid-devices",
        'x' => "spare-devices",
        'c' if makes => "chunk",
        'c' => "config",
        'p' if mode == Some(Mode::Monitor) => "program",
        'p' => "layout",
        'e' => "metadata",
        'z' => "size",
        'Z' => "array-size",
        'N' => "name",
        'k' => "consistency-policy",
        'u' => "uuid",
        'm' if mode == Some(Mode::Monitor) => "mail",
        'm' => "super-minor",
        'd' => "delay",
        'i' => "increment",
        'y' => "syslog",
        '1' => "oneshot",
        'U' => "update",
        _ => return None,
    })
}

/// The option with this long name, or with an unambiguous beginning of it, as getopt takes them.
fn option_of(name: &str) -> Option<(&'static str, bool)> {
    let names = |row: &(&'static str, &[&'static str], bool)| {
        let (long, others, takes) = *row;
        std::iter::once(long)
            .chain(others.iter().copied())
            .map(move |other| (other, long, takes))
            .collect::<Vec<_>>()
    };
    let all: Vec<_> = OPTIONS.iter().flat_map(names).collect();
    if let Some((_, long, takes)) = all.iter().find(|(other, ..)| *other == name) {
        return Some((long, *takes));
    }
    let mut begin = all.iter().filter(|(other, ..)| name.len() >= 3 && other.starts_with(name));
    let (_, long, takes) = begin.next()?;
    begin.all(|(_, other, _)| other == long).then_some((*long, *takes))
}

/// Whether the path is where md makes its devices.
pub fn is_md_device(path: &str) -> bool {
    let Some(rest) = path.strip_prefix("/dev/md") else { return false };
    let number = rest.strip_prefix("_d").unwrap_or(rest);
    rest.strip_prefix('/').is_some_and(|name| !name.is_empty() && !name.contains('/'))
        || !number.is_empty() && number.chars().all(|letter| letter.is_ascii_digit())
}

impl Line {
    /// Reads a line, without the program's name. None if it has no mode of mdadm's.
    pub fn parse(words: &[String]) -> Option<Self> {
        let mut line =
            Line { mode: Mode::Manage, items: Vec::new(), unknown: Vec::new(), json: false, help: false };
        let mut mode = None;
        let mut words = words.iter().map(String::as_str);
        while let Some(word) = words.next() {
            if let Some(long) = word.strip_prefix("--").filter(|long| !long.is_empty()) {
                let (name, value) =
                    long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
                line.long(name, value, &mut mode, &mut words);
            } else if let Some(letters) = word.strip_prefix('-').filter(|letters| !letters.is_empty()) {
                line.letters(letters, &mut mode, &mut words);
            } else if word != "--" {
                line.items.push(Item::Place(word.to_owned()));
            }
        }
        let begins_with_device =
            matches!(line.items.first(), Some(Item::Place(path)) if path.starts_with("/dev/"));
        // A device alone is a question about it.
        line.mode = mode.or_else(|| begins_with_device.then_some(Mode::Misc("query")))?;
        Some(line)
    }

    fn long<'a>(
        &mut self,
        name: &str,
        value: Option<&str>,
        mode: &mut Option<Mode>,
        rest: &mut impl Iterator<Item = &'a str>,
    ) {
        match name {
            "json" => self.json = true,
            "help" | "help-options" => self.help = true,
            "verbose" | "quiet" | "prefer" | "offroot" => {}
            _ => match option_of(name) {
                Some((long, takes)) => {
                    let value = value
                        .map(str::to_owned)
                        .or_else(|| if takes { rest.next().map(str::to_owned) } else { None });
                    self.option(long, value, mode);
                }
                None => self.unknown.push(format!("--{name}")),
            },
        }
    }

    /// `-Cv`, `-l5`, `-l 5`.
    fn letters<'a>(
        &mut self,
        letters: &str,
        mode: &mut Option<Mode>,
        rest: &mut impl Iterator<Item = &'a str>,
    ) {
        let mut letters = letters.chars();
        while let Some(letter) = letters.next() {
            match letter {
                'v' | 'q' => {}
                'h' => self.help = true,
                _ => match long_of(letter, *mode) {
                    Some(long) => {
                        let takes = option_of(long).is_some_and(|(_, takes)| takes);
                        let value = takes.then(|| match letters.as_str() {
                            "" => rest.next().map(str::to_owned),
                            own => Some(own.trim_start_matches('=').to_owned()),
                        });
                        self.option(long, value.flatten(), mode);
                        if takes {
                            return;
                        }
                    }
                    None => self.unknown.push(format!("-{letter}")),
                },
            }
        }
    }

    fn option(&mut self, long: &'static str, value: Option<String>, mode: &mut Option<Mode>) {
        // The first decides; but --add and the like give way: `/dev/md0 --add … --grow` grows.
        let found = mode_of(long);
        if mode.is_none() || *mode == Some(Mode::Manage) && long != "run" {
            *mode = found.or(*mode);
        }
        self.json |= long == "export";
        self.items.push(Item::Option(long, value));
    }

    /// The first word that is no option.
    pub fn first_place(&self) -> Option<&str> {
        self.places().next()
    }

    /// Every word that is no option.
    pub fn places(&self) -> impl Iterator<Item = &str> {
        self.items.iter().filter_map(|item| match item {
            Item::Place(place) => Some(place.as_str()),
            Item::Option(..) => None,
        })
    }

    /// Whether the option is there.
    pub fn has(&self, option: &str) -> bool {
        self.items.iter().any(|item| matches!(item, Item::Option(name, _) if *name == option))
    }

    /// The value of the option.
    pub fn value(&self, option: &str) -> Option<&str> {
        self.items.iter().find_map(|item| match item {
            Item::Option(name, value) if *name == option => value.as_deref(),
            _ => None,
        })
    }
}
