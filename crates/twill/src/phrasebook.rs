//! mdadm's lines, as operators type them by habit after `twill`, and the line to type instead.
//!
//! A decision on words, without I/O: what an mdadm line means ([`mdadm`]), and how Twill says it ([`translate`]).

mod mdadm;

mod translate;

use mdadm::{Line, Mode};
pub use translate::Phrase;

/// mdadm's commands that Twill has under the same name, without dashes: with an md device behind them they are mdadm's.
const SHARED: [&str; 14] = [
    "create",
    "assemble",
    "stop",
    "detail",
    "examine",
    "status",
    "fail",
    "remove",
    "add",
    "re-add",
    "replace",
    "zero-superblock",
    "check",
    "grow",
];

/// Words that begin a line of mdadm's, dashes left out, and that Twill has not.
const MDADM_ONLY: [&str; 6] = ["follow", "manage", "incremental", "build", "query", "wait"];

/// What to type instead of these words, which follow the program's name. None if they are not mdadm's. `is_there` says whether a
/// path exists: an md device that does may be a member.
pub fn answer(words: &[String], is_there: impl Fn(&str) -> bool) -> Option<Phrase> {
    let first = words.iter().position(|word| !is_neutral(word))?;
    let word = words[first].as_str();
    let with_dashes = |word: &str| {
        let mut dashed = words.to_vec();
        dashed[first] = format!("--{word}");
        dashed
    };
    if MDADM_ONLY.contains(&word) {
        return Line::parse(&with_dashes(word)).map(|line| translate::phrase(word, &line));
    }
    if word == "grow" {
        // Twill's own `grow` knows a bitmap, and what is added to an array that it serves; mdadm names its device first.
        let adds =
            words.iter().any(|word| matches!(word.as_str(), "-a" | "--add") || word.starts_with("--add="));
        let is_own = |line: &Line| adds && !line.first_place().is_some_and(mdadm::is_md_device);
        let line = Line::parse(&with_dashes(word)).filter(|line| translate::reshapes(line) && !is_own(line));
        if let Some(line) = line {
            return Some(translate::phrase(word, &line));
        }
    }
    if SHARED.contains(&word) {
        let line = Line::parse(&with_dashes(if word == "status" { "detail" } else { word }))?;
        let names_array = ["stop", "detail", "status", "check"].contains(&word);
        let array = line.first_place()?;
        let is_md = mdadm::is_md_device(array) && (names_array || !is_there(array));
        return (is_md && line.unknown.is_empty()).then(|| translate::phrase(word, &line));
    }
    if word.starts_with('-') || word.starts_with("/dev/") {
        let line = Line::parse(words)?;
        let said = if line.mode == Mode::Manage && word.starts_with('/') { "a device first" } else { word };
        return Some(translate::phrase(said.split('=').next().unwrap_or(said), &line));
    }
    None
}

/// Options that may stand before any command, of Twill or of mdadm.
fn is_neutral(word: &str) -> bool {
    matches!(word, "--json" | "--verbose" | "--quiet" | "-q")
        || word.starts_with("-v")
        || word.starts_with("--log-format=")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Arguments;

    /// Lines of mdadm's, `mdadm` left out, and what to type; the lines that an operator types first.
    const BOOK: [(&str, &[&str]); 74] = [
        (
            "--create /dev/md0 --level=5 --raid-devices=3 /dev/sda /dev/sdb /dev/sdc",
            &["twill create --name md0 --level 5 --raid-devices 3 /dev/sda /dev/sdb /dev/sdc"],
        ),
        (
            "-C /dev/md0 -l5 -n3 -x1 /dev/sda /dev/sdb /dev/sdc /dev/sdd",
            &[
                "twill create --name md0 --level 5 --raid-devices 3 --spare-devices 1 /dev/sda /dev/sdb /dev/sdc /dev/sdd",
            ],
        ),
        (
            "--create --verbose /dev/md/home --level=raid10 --layout=f2 --chunk=512 -n 4 /dev/sda /dev/sdb /dev/sdc missing",
            &[
                "twill create --name home --level raid10 --layout f2 --chunk 512K --raid-devices 4 /dev/sda /dev/sdb /dev/sdc missing",
            ],
        ),
        (
            "-Cv /dev/md0 --level 1 -n 2 --assume-clean -b internal --bitmap-chunk=65536 -N data -e 1.0 /dev/sda /dev/sdb",
            &[
                "twill create --level 1 --raid-devices 2 --assume-clean --bitmap internal --bitmap-chunk 65536K --name data --metadata 1.0 /dev/sda /dev/sdb",
            ],
        ),
        (
            "--create /dev/md0 -l 6 -n 4 -z 102400 --data-offset=2048 --run --homehost=any -k ppl /dev/sda /dev/sdb /dev/sdc /dev/sdd",
            &[
                "twill create --name md0 --level 6 --raid-devices 4 --size 102400K --data-offset 2048K /dev/sda /dev/sdb /dev/sdc /dev/sdd",
            ],
        ),
        (
            "create /dev/md0 --level=5 --raid-devices=2 /dev/sda /dev/sdb",
            &["twill create --name md0 --level 5 --raid-devices 2 /dev/sda /dev/sdb"],
        ),
        ("--create --help", &["twill help create"]),
        ("--build /dev/md0 --level=0 --raid-devices=2 /dev/sda /dev/sdb", &["twill help create"]),
        ("--assemble --scan", &["twill serve --all --daemon --ublk"]),
        ("-As", &["twill serve --all --daemon --ublk"]),
        ("--assemble --scan --force", &["twill serve --daemon --ublk --force --scan"]),
        ("--assemble /dev/md0 /dev/sda /dev/sdb", &["twill serve --daemon --ublk /dev/sda /dev/sdb"]),
        (
            "-A /dev/md0 --force --run /dev/sda /dev/sdb",
            &["twill serve --daemon --ublk --force /dev/sda /dev/sdb"],
        ),
        ("--assemble /dev/md0 --uuid=0123:4567", &["twill serve --daemon --ublk --uuid 0123:4567 --scan"]),
        ("-A --scan /dev/md/home", &["twill serve --daemon --ublk --scan --name home"]),
        (
            "--assemble /dev/md0 --update=name --name=new /dev/sda /dev/sdb",
            &["twill rename new /dev/sda /dev/sdb", "twill serve --daemon --ublk /dev/sda /dev/sdb"],
        ),
        (
            "-A /dev/md0 --update=devicesize /dev/sda",
            &["twill correct-size /dev/sda", "twill serve --daemon --ublk /dev/sda"],
        ),
        ("assemble /dev/md0 /dev/sda", &["twill serve --daemon --ublk /dev/sda"]),
        ("--incremental /dev/sda", &["twill serve --daemon --ublk --scan"]),
        ("-I --fail /dev/sda", &["twill fail /dev/sda"]),
        ("--auto-detect", &["twill serve --daemon --ublk --scan"]),
        ("--run /dev/md0", &["twill serve --daemon --ublk --scan --name md0"]),
        ("--detail /dev/md0", &["twill detail md0"]),
        ("-D /dev/md/home", &["twill detail home"]),
        ("--detail --scan", &["twill list"]),
        ("-Ds", &["twill list"]),
        ("--detail --export /dev/md0", &["twill detail md0 --json"]),
        ("--detail --test /dev/md0", &["twill status --test md0"]),
        ("-vD /dev/md0", &["twill detail md0"]),
        ("detail /dev/md0", &["twill detail md0"]),
        ("status /dev/md0", &["twill detail md0"]),
        ("-Q /dev/md0", &["twill detail md0"]),
        ("--query /dev/sda", &["twill examine /dev/sda"]),
        ("/dev/md0", &["twill detail md0"]),
        ("-E /dev/sda1", &["twill examine /dev/sda1"]),
        ("--examine /dev/sda1 /dev/sdb1", &["twill examine /dev/sda1 /dev/sdb1"]),
        ("--examine --scan", &["twill list --scan"]),
        ("-Es", &["twill list --scan"]),
        ("-Esv /dev/sda", &["twill list --scan /dev/sda"]),
        ("--examine --brief /dev/sda", &["twill examine /dev/sda"]),
        ("-X /dev/sda1", &["twill examine /dev/sda1"]),
        ("--examine-badblocks /dev/sda", &["twill examine /dev/sda"]),
        ("--stop /dev/md0", &["twill stop md0"]),
        ("-S /dev/md0 /dev/md1", &["twill stop md0", "twill stop md1"]),
        ("--stop --scan", &["twill stop"]),
        ("stop /dev/md/home", &["twill stop home"]),
        ("/dev/md0 --add /dev/sdd", &["twill add --array md0 /dev/sdd"]),
        (
            "/dev/md0 -a /dev/sdd /dev/sde",
            &["twill add --array md0 /dev/sdd", "twill add --array md0 /dev/sde"],
        ),
        ("--manage /dev/md0 --add-spare /dev/sdd", &["twill add --array md0 /dev/sdd"]),
        ("--add /dev/md0 /dev/sdd", &["twill add --array md0 /dev/sdd"]),
        ("/dev/md0 --re-add /dev/sdd", &["twill re-add --array md0 /dev/sdd"]),
        (
            "/dev/md0 --fail /dev/sda --remove /dev/sda --add /dev/sdd",
            &[
                "twill fail --array md0 /dev/sda",
                "twill remove --array md0 /dev/sda",
                "twill add --array md0 /dev/sdd",
            ],
        ),
        ("--fail /dev/md0 /dev/sda", &["twill fail --array md0 /dev/sda"]),
        ("/dev/md0 --set-faulty /dev/sda", &["twill fail --array md0 /dev/sda"]),
        (
            "/dev/md0 -f /dev/sda -r /dev/sda",
            &["twill fail --array md0 /dev/sda", "twill remove --array md0 /dev/sda"],
        ),
        ("/dev/md0 --remove failed", &["twill remove --array md0 failed"]),
        ("fail /dev/md0 /dev/sda", &["twill fail --array md0 /dev/sda"]),
        (
            "/dev/md0 --replace /dev/sda --with /dev/sdd",
            &["twill replace --array md0 /dev/sda --with /dev/sdd"],
        ),
        ("/dev/md0 --replace /dev/sda", &["twill replace --array md0 /dev/sda"]),
        ("--grow /dev/md0 --add /dev/sdd", &["twill add --array md0 /dev/sdd"]),
        (
            "--grow /dev/md0 --bitmap=internal",
            &[
                "twill stop md0",
                "twill grow --bitmap internal --scan --name md0",
                "twill serve --daemon --ublk --scan --name md0",
            ],
        ),
        (
            "-G -b none /dev/md/home",
            &[
                "twill stop home",
                "twill grow --bitmap none --scan --name home",
                "twill serve --daemon --ublk --scan --name home",
            ],
        ),
        (
            "grow /dev/md0 --bitmap internal --bitmap-chunk=128M",
            &[
                "twill stop md0",
                "twill grow --bitmap internal --bitmap-chunk 128M --scan --name md0",
                "twill serve --daemon --ublk --scan --name md0",
            ],
        ),
        (
            "-G /dev/md0 --bitmap-chunk 65536 -binternal",
            &[
                "twill stop md0",
                "twill grow --bitmap internal --bitmap-chunk 65536K --scan --name md0",
                "twill serve --daemon --ublk --scan --name md0",
            ],
        ),
        ("--monitor --scan --daemonise --mail=root", &["twill monitor --mail root"]),
        ("-F --delay=60 /dev/md0", &["twill monitor --interval 60s"]),
        ("--follow --oneshot --test --scan --alert=/bin/tell", &["twill monitor --program /bin/tell --test"]),
        ("--monitor --scan --oneshot", &["twill monitor --once"]),
        ("--wait /dev/md0", &["twill status --wait md0"]),
        ("-W /dev/md0", &["twill status --wait md0"]),
        ("--action=check /dev/md0", &["twill check --no-wait md0"]),
        ("--action=idle /dev/md0", &["twill scrub cancel md0"]),
        ("--zero-superblock /dev/sda /dev/sdb", &["twill zero-superblock /dev/sda /dev/sdb"]),
        (
            "--readonly /dev/md0",
            &["twill stop md0", "twill serve --daemon --ublk --read-only --scan --name md0"],
        ),
    ];

    fn words(line: &str) -> Vec<String> {
        line.split(' ').map(str::to_owned).collect()
    }

    fn said(line: &str) -> Option<Phrase> {
        answer(&words(line), |_| false)
    }

    #[test]
    fn what_an_operator_types_first_is_answered_by_the_line_to_type() {
        for (line, wanted) in BOOK {
            let phrase = said(line).unwrap_or_else(|| panic!("no answer: {line}"));
            assert_eq!(phrase.lines, wanted, "{line}");
        }
    }

    /// An answer that is refused would be worse than none.
    #[test]
    fn what_the_book_says_can_be_typed() {
        for (line, _) in BOOK {
            for typed in said(line).unwrap().lines.iter().filter(|typed| typed.starts_with("twill ")) {
                if let Err(error) = Arguments::read_from(words(typed)) {
                    assert!(!error.use_stderr(), "{line}: {typed}: {error}");
                }
            }
        }
    }

    #[test]
    fn a_reshape_is_left_to_md_step_by_step() {
        let phrase = said("--grow /dev/md0 --raid-devices=4 --backup-file=/var/b").unwrap();
        assert_eq!(phrase.lines[0], "twill stop md0");
        assert!(
            phrase.lines.contains(&"mdadm --grow /dev/md0 --raid-devices=4 --backup-file=/var/b".to_owned())
        );
        assert!(phrase.notes.iter().any(|note| note.contains("does not reshape")));
        // Without dashes too, also where an array is named as Twill does it.
        for line in ["grow /dev/md0 -n 4", "grow store --raid-devices=4", "grow store --size max"] {
            let phrase = said(line).unwrap_or_else(|| panic!("no answer: {line}"));
            assert!(phrase.lines.iter().any(|line| line.starts_with("mdadm --grow")), "{phrase:?}");
        }
    }

    #[test]
    fn what_twill_has_not_is_said_without_a_line() {
        for line in [
            "--grow /dev/md0 --bitmap=/var/bits",
            "-G /dev/md0 -b clustered",
            "--detail-platform",
            "--kill-subarray=1 /dev/md0",
            "--dump=dir /dev/sda",
        ] {
            let phrase = said(line).unwrap();
            assert!(phrase.lines.is_empty() && !phrase.notes.is_empty(), "{line}: {phrase:?}");
        }
    }

    #[test]
    fn lines_of_twills_own_are_left_alone() {
        for line in [
            "create --level 5 /dev/sda /dev/sdb",
            "--json status",
            "-v serve --scan",
            "--help",
            "--version",
            "-V",
            "",
            "stop store",
            "detail store",
            "fail /dev/nvme0n1",
            "fail --array store 3",
            "grow --bitmap internal --scan --name store",
            "grow --bitmap none --uuid 12 /dev/sda /dev/sdb",
            "grow --bitmap internal --bitmap-chunk 64M /dev/sda",
            "grow --help",
            "grow /dev/sda",
            "examine /dev/sda",
            "list --scan",
            "--frobnicate",
            "frobnicate",
            "set --rate 200M",
            "--log-format json status",
        ] {
            assert_eq!(said(line), None, "{line}");
        }
        // An md device that is there may be a member of a nested array.
        assert_eq!(answer(&words("create --level 1 /dev/md0 /dev/md1"), |_| true), None);
    }

    #[test]
    fn a_word_is_quoted_where_a_shell_needs_it() {
        let phrase = answer(&["-E".to_owned(), "/dev/disk/my drive".to_owned()], |_| false).unwrap();
        assert_eq!(phrase.lines, ["twill examine '/dev/disk/my drive'"]);
    }
}
