//! Twill beside something else that does the same work without RAID: the same load from outside, the two taking turns,
//! medians of several runs.

pub mod files;
mod fio;
pub mod nbd;

use std::fmt::Write as _;
use std::io;

use serde::Serialize;

use crate::Error;
use crate::machine::Machine;
use crate::table::Spread;

/// The two beside each other.
#[derive(Clone, Debug, Serialize)]
pub struct Beside {
    /// The machine.
    pub machine: Machine,
    /// What was done, in words.
    pub method: String,
    /// What Twill is compared with.
    pub other: String,
    /// One comparison for each work.
    pub pairs: Vec<Pair>,
}

/// One work by both.
#[derive(Clone, Debug, Serialize)]
pub struct Pair {
    /// What was done.
    pub work: String,
    /// By Twill.
    pub twill: Side,
    /// By the other.
    pub other: Side,
    /// Median operations a second by those of the other.
    pub ratio: f64,
    /// Twill's operations for each second of processor time by the other's; steadier on a busy machine.
    pub cpu_ratio: Option<f64>,
    /// Operations a second that members allow, for files.
    pub ceiling_iops: Option<f64>,
}

/// One of the two.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    /// Operations a second.
    pub iops: Spread,
    /// Processor time of an operation in microseconds, where it is known.
    pub cpu_us_per_op: Option<Spread>,
}

/// One run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    iops: f64,
    cpu_us_per_op: Option<f64>,
    ceiling_iops: Option<f64>,
}

/// A program that is needed could not be started.
fn not_started(name: &'static str, error: &io::Error) -> Error {
    let reason = match error.kind() {
        io::ErrorKind::NotFound => {
            format!("it is not installed; on Debian and Ubuntu: apt-get install {name}")
        }
        _ => error.to_string(),
    };
    Error::Program { name, reason }
}

/// Lets both do the same work in turns; they take turns in going first, too.
fn take_turns(
    work: String,
    rounds: usize,
    mut twill: impl FnMut() -> Result<Run, Error>,
    mut other: impl FnMut() -> Result<Run, Error>,
) -> Result<Pair, Error> {
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for round in 0..rounds.max(1) {
        if round % 2 == 0 {
            ours.push(twill()?);
            theirs.push(other()?);
        } else {
            theirs.push(other()?);
            ours.push(twill()?);
        }
    }
    let ceilings: Option<Vec<f64>> = ours.iter().map(|run| run.ceiling_iops).collect();
    let (twill, other) = (Side::of(&ours), Side::of(&theirs));
    let cpu = (twill.cpu_us_per_op, other.cpu_us_per_op);
    Ok(Pair {
        work,
        ratio: twill.iops.median / other.iops.median.max(1e-9),
        cpu_ratio: cpu.0.zip(cpu.1).map(|(twill, other)| other.median / twill.median.max(1e-9)),
        ceiling_iops: ceilings.map(|ceilings| Spread::of(ceilings).median),
        twill,
        other,
    })
}

impl Side {
    fn of(runs: &[Run]) -> Self {
        let cpu: Option<Vec<f64>> = runs.iter().map(|run| run.cpu_us_per_op).collect();
        Side {
            iops: Spread::of(runs.iter().map(|run| run.iops).collect()),
            cpu_us_per_op: cpu.map(Spread::of),
        }
    }
}

impl Beside {
    /// A table in Markdown.
    pub fn words(&self) -> String {
        let mut text = String::new();
        let Machine { cpu, cores, kernel, load_before, .. } = &self.machine;
        let (method, other) = (&self.method, &self.other);
        let _infallible = writeln!(
            text,
            "{cpu}, {cores} cores, Linux {kernel}, load {load_before}; {method}\n\n| work | Twill, kIOPS (least to \
             greatest) | {other} | ratio | CPU us/op | {other} | ratio | members allow, kIOPS |\n\
             |---|---|---|---|---|---|---|---|"
        );
        let iops = |side: &Side| {
            let Spread { median, least, greatest } = side.iops;
            format!("{:.1} ({:.1} to {:.1})", median / 1e3, least / 1e3, greatest / 1e3)
        };
        let cpu =
            |side: &Side| side.cpu_us_per_op.map_or_else(|| "-".into(), |cpu| format!("{:.1}", cpu.median));
        let or_none = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.2}"));
        for pair in &self.pairs {
            let _infallible = writeln!(
                text,
                "| {} | {} | {} | {:.2} | {} | {} | {} | {} |",
                pair.work,
                iops(&pair.twill),
                iops(&pair.other),
                pair.ratio,
                cpu(&pair.twill),
                cpu(&pair.other),
                or_none(pair.cpu_ratio),
                or_none(pair.ceiling_iops.map(|iops| iops / 1e3)),
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_take_turns_and_medians_are_compared() {
        let turns = std::cell::RefCell::new(String::new());
        let run = |name: char, iops: f64| {
            turns.borrow_mut().push(name);
            Ok(Run { iops, cpu_us_per_op: Some(1e6 / iops), ceiling_iops: None })
        };
        let pair = take_turns("w".into(), 3, || run('t', 90.0), || run('o', 100.0)).expect("both run");
        assert_eq!(*turns.borrow(), "tootto");
        assert!((pair.ratio - 0.9).abs() < 1e-9 && (pair.cpu_ratio.expect("known") - 0.9).abs() < 1e-9);
        let machine = Machine::now();
        let all = Beside { machine, method: "m".into(), other: "peer".into(), pairs: vec![pair] };
        assert!(
            all.words().contains("| w | 0.1 (0.1 to 0.1) | 0.1 (0.1 to 0.1) | 0.90 |"),
            "{}",
            all.words()
        );
    }
}
