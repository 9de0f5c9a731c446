//! Options that would change nothing in a run are refused: a figure measured with one of them would be taken for
//! something that it is not.

use bench::setting::{Consistency, Work};

use super::arguments::RunArguments;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// An option that was given, where it means something, and the words for that.
type Rule = (bool, &'static str, bool, &'static str);

/// Refuses what means nothing here, all of it at once.
///
/// # Errors
/// Which options, and where they would mean something.
pub fn check(arguments: &RunArguments) -> Result<(), Failure> {
    let wrong = rules(arguments).into_iter().filter(|(given, _, means, _)| *given && !means);
    let wrong: Vec<String> = wrong.map(|(_, option, _, place)| format!("{option} is for {place}")).collect();
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Failure::new(ExitKind::Usage, wrong.join("; ")).help("leave them out, or change the rest to match"))
}

fn rules(arguments: &RunArguments) -> Vec<Rule> {
    let a = arguments;
    let rw = a.rw.unwrap_or(Work::RandWrite);
    let drawn = a.trace.is_none();
    let number = a.level.strip_prefix("raid").unwrap_or(&a.level);
    let parity = matches!(number, "4" | "5" | "6");
    let writes = parity && (a.trace.is_some() || !matches!(rw, Work::Read | Work::RandRead));
    let copies = parity || matches!(number, "1" | "10");
    let has_bitmap = a.consistency == Some(Consistency::Bitmap);
    const PLACES: &str = "requests that are made, not those of a --trace";
    const PARITY_WRITES: &str = "writes to levels with parity: 4, 5, 6";
    vec![
        (a.rw.is_some(), "--rw", drawn, PLACES),
        (a.bs.is_some(), "--bs", drawn, PLACES),
        (a.skew.is_some(), "--skew", drawn && rw.is_random(), "random requests that are made"),
        (a.numjobs.is_some(), "--numjobs", drawn && !rw.is_random(), "sequential requests that are made"),
        (
            a.rwmixread.is_some(),
            "--rwmixread",
            drawn && matches!(rw, Work::Rw | Work::RandRw),
            "--rw rw and randrw",
        ),
        (
            a.iodepth.is_some(),
            "--iodepth",
            !a.trace_time,
            "requests as fast as possible, not in a trace's time",
        ),
        (a.ramp.is_some(), "--ramp", !a.trace_time, "requests as fast as possible, not in a trace's time"),
        (a.parity_cache.is_some(), "--parity-cache", writes, PARITY_WRITES),
        (a.two_phase.is_some(), "--two-phase", writes, PARITY_WRITES),
        (a.update_policy.is_some(), "--update-policy", writes, PARITY_WRITES),
        (a.consistency.is_some(), "--consistency", copies, "levels with redundancy"),
        (a.bitmap_locks.is_some(), "--bitmap-locks", copies && has_bitmap, "--consistency bitmap"),
        (
            a.bitmap_mapping.is_some(),
            "--bitmap-mapping",
            parity && has_bitmap,
            "--consistency bitmap of levels with parity: 4, 5, 6",
        ),
        (a.member_read_us > 0, "--member-read-us", is_memory(&a.members), "members of memory"),
        (a.member_rate > 0, "--member-rate", is_memory(&a.members), "members of memory"),
    ]
}

fn is_memory(members: &[String]) -> bool {
    members.iter().all(|member| member.starts_with("memory:"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::bench::BenchArguments;
    use clap::{Args, FromArgMatches};

    fn parse(words: &str) -> RunArguments {
        let command = BenchArguments::augment_args(clap::Command::new("bench"));
        let matches = command.try_get_matches_from(["bench"].into_iter().chain(words.split_whitespace()));
        let matches = matches.unwrap_or_else(|error| panic!("{words}: {error}"));
        BenchArguments::from_arg_matches(&matches).expect("arguments").run
    }

    #[test]
    fn what_means_nothing_is_refused_by_name() {
        let cases = [
            ("", ""),
            ("--rw randrw --rwmixread 70 --skew zipf:0.9 --two-phase off --parity-cache 0", ""),
            ("--rw write --numjobs 2 --consistency resync --update-policy adaptive", ""),
            ("--trace t.csv --iodepth 8 --ramp 1 --parity-cache 1M", ""),
            ("--trace t.csv --trace-time --runtime 5", ""),
            ("--level 1 --rw read --consistency resync", ""),
            ("--member-read-us 20 --members memory:3x1G", ""),
            ("--consistency bitmap --bitmap-locks orig", ""),
            ("--bitmap-locks scala", "--bitmap-locks"),
            ("--consistency bitmap --bitmap-mapping dblock", ""),
            ("--level 10 --consistency bitmap --bitmap-mapping dblock", "--bitmap-mapping"),
            ("--consistency resync --bitmap-locks hemi", "--bitmap-locks"),
            ("--rw write --skew zipf:0.9", "--skew"),
            ("--numjobs 2", "--numjobs"),
            ("--rw randread --rwmixread 70", "--rwmixread"),
            ("--rw read --two-phase off", "--two-phase"),
            ("--level 0 --parity-cache 1M", "--parity-cache"),
            ("--level 10 --update-policy adaptive", "--update-policy"),
            ("--level raid0 --consistency resync", "--consistency"),
            ("--trace t.csv --rw write --bs 8K", "--rw --bs"),
            ("--trace t.csv --skew uniform --numjobs 1 --rwmixread 1", "--skew --numjobs --rwmixread"),
            ("--trace t.csv --trace-time --iodepth 4 --ramp 0", "--iodepth --ramp"),
            ("--member-read-us 20 --members memory:3x1G,file", "--member-read-us"),
        ];
        for (words, refused) in cases {
            let result = check(&parse(words));
            if refused.is_empty() {
                assert_eq!(result, Ok(()), "{words}");
                continue;
            }
            let message = result.expect_err(words).to_string();
            for option in refused.split(' ') {
                assert!(message.contains(&format!("{option} is for ")), "{words}: {message}");
            }
            assert_eq!(message.matches(" is for ").count(), refused.split(' ').count(), "{words}: {message}");
        }
    }
}
