//! `sim experiment adaptive`: what the adaptive choice of the update routine and the avoidance of slow members do to
//! latencies, with the engine as it is and members that only take time. Virtual time, so a seed gives the same figures
//! on any machine. What came out is in `docs/adaptive.md`.

mod conditions;
pub mod draid;
mod member;
pub mod paper;
mod traffic;
pub mod zoned;

use layout::geometry::Level;
use serde::Serialize;

pub use conditions::{Policy, Troubles, Writes};
use traffic::{Outcome, Run};

/// How much is run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Requests of each run; the first twentieth is not counted.
    pub requests: u64,
    /// Runs of each row, with seeds from 1 on.
    pub seeds: u64,
    /// Load in percent of what the members could do.
    pub load_percent: u64,
    /// Shards of the array, on one thread.
    pub shards: usize,
}

/// A figure over all seeds: mean, least and greatest.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
}

impl Spread {
    fn of(figures: impl Iterator<Item = f64>) -> Self {
        let figures: Vec<f64> = figures.collect();
        Spread {
            mean: figures.iter().sum::<f64>() / figures.len() as f64,
            min: figures.iter().copied().fold(f64::INFINITY, f64::min),
            max: figures.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// Figures of one way to run one array.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Level: 5+1 or 4+2.
    pub level: String,
    /// What the writes are.
    pub writes: Writes,
    /// What the members suffer from.
    pub troubles: Troubles,
    /// How the array behaves.
    pub policy: Policy,
    /// Latency in microseconds, all requests.
    pub mean_us: Spread,
    /// 99th percentile in microseconds, all requests.
    pub p99_us: Spread,
    /// 99.9th percentile in microseconds, all requests.
    pub p999_us: Spread,
    /// 99.9th percentile in microseconds, reads.
    pub read_p999_us: Spread,
    /// 99.9th percentile in microseconds, writes.
    pub write_p999_us: Spread,
    /// Reads at members for each request.
    pub member_reads: Spread,
    /// Updates by another routine than the one with fewest reads, in percent.
    pub adjusted_percent: Spread,
    /// Reads that were reconstructed instead, in percent.
    pub avoided_percent: Spread,
    /// Change of the mean against fewest-reads with the same seed, in percent.
    pub mean_change: Spread,
    /// Change of the 99.9th percentile against fewest-reads with the same seed, in percent.
    pub p999_change: Spread,
}

struct Figures {
    mean: f64,
    p99: f64,
    p999: f64,
    read_p999: f64,
    write_p999: f64,
    member_reads: f64,
    adjusted: f64,
    avoided: f64,
}

/// Runs all; `progress` hears of each row.
pub fn adaptive(plan: &Plan, progress: &mut dyn FnMut(&Row)) -> Vec<Row> {
    let mut rows = Vec::new();
    for level in [Level::Raid5, Level::Raid6] {
        for writes in [Writes::Small, Writes::Mixed] {
            for troubles in [Troubles::None, Troubles::Pauses, Troubles::Others] {
                let mut base: Vec<Figures> = Vec::new();
                for policy in Policy::ALL {
                    let of_seed = |seed| {
                        let (requests, load_percent, shards) =
                            (plan.requests, plan.load_percent, plan.shards);
                        let run =
                            Run { level, writes, troubles, policy, requests, load_percent, shards, seed };
                        Figures::of(&traffic::run(run))
                    };
                    let figures: Vec<Figures> = (1..=plan.seeds).map(of_seed).collect();
                    let against = if base.is_empty() { &figures } else { &base };
                    let row = row((level, writes, troubles, policy), &figures, against);
                    progress(&row);
                    rows.push(row);
                    if base.is_empty() {
                        base = figures;
                    }
                }
            }
        }
    }
    rows
}

fn row(
    (level, writes, troubles, policy): (Level, Writes, Troubles, Policy),
    figures: &[Figures],
    base: &[Figures],
) -> Row {
    let spread = |of: fn(&Figures) -> f64| Spread::of(figures.iter().map(of));
    let change = |of: fn(&Figures) -> f64| {
        Spread::of(figures.iter().zip(base).map(|(own, base)| 100.0 * (of(own) / of(base) - 1.0)))
    };
    Row {
        level: if level == Level::Raid5 { "5+1" } else { "4+2" }.to_string(),
        writes,
        troubles,
        policy,
        mean_us: spread(|f| f.mean),
        p99_us: spread(|f| f.p99),
        p999_us: spread(|f| f.p999),
        read_p999_us: spread(|f| f.read_p999),
        write_p999_us: spread(|f| f.write_p999),
        member_reads: spread(|f| f.member_reads),
        adjusted_percent: spread(|f| f.adjusted),
        avoided_percent: spread(|f| f.avoided),
        mean_change: change(|f| f.mean),
        p999_change: change(|f| f.p999),
    }
}

impl Figures {
    fn of(outcome: &Outcome) -> Self {
        let mut all_ns = [&outcome.reads_ns[..], &outcome.writes_ns[..]].concat();
        all_ns.sort_unstable();
        let totals = &outcome.totals;
        let percent = |part: u64, of: u64| 100.0 * part as f64 / of.max(1) as f64;
        Figures {
            mean: all_ns.iter().sum::<u64>() as f64 / all_ns.len() as f64 / 1e3,
            p99: quantile_us(&all_ns, 0.99),
            p999: quantile_us(&all_ns, 0.999),
            read_p999: quantile_us(&outcome.reads_ns, 0.999),
            write_p999: quantile_us(&outcome.writes_ns, 0.999),
            member_reads: totals.member_reads as f64 / (totals.reads + totals.writes) as f64,
            adjusted: percent(totals.adjusted_updates, totals.rmw + totals.rcw),
            avoided: percent(totals.avoided_reads, totals.reads),
        }
    }
}

/// NaN where there is nothing.
fn quantile_us(ascending_ns: &[u64], share: f64) -> f64 {
    let index = (ascending_ns.len() as f64 * share) as usize;
    let found = ascending_ns.get(index).or(ascending_ns.last());
    found.map_or(f64::NAN, |ns| *ns as f64 / 1e3)
}

/// The heading of the lines of [`Row::words`].
pub fn heading() -> String {
    format!(
        "{:<4}{:<6}{:<7}{:<23}{:>8}{:>8}{:>8}{:>7}{:>7}{:>7}{:>25}{:>25}",
        "",
        "write",
        "trouble",
        " policy",
        "mean us",
        "p99",
        "p99.9",
        "reads",
        "adj %",
        "avd %",
        "mean, % (spread)",
        "p99.9, % (spread)"
    )
}

impl Row {
    /// A line of the table.
    pub fn words(&self) -> String {
        let policy =
            format!(" {}{}", self.policy.update, if self.policy.avoid_slow { ", avoid" } else { "" });
        let change = |s: &Spread| format!("{:+.1} ({:+.1} to {:+.1})", s.mean, s.min, s.max);
        format!(
            "{:<4}{:<6}{:<7}{:<23}{:>8.1}{:>8.0}{:>8.0}{:>7.2}{:>7.1}{:>7.2}{:>25}{:>25}",
            self.level,
            self.writes.word(),
            self.troubles.word(),
            policy,
            self.mean_us.mean,
            self.p99_us.mean,
            self.p999_us.mean,
            self.member_reads.mean,
            self.adjusted_percent.mean,
            self.avoided_percent.mean,
            change(&self.mean_change),
            change(&self.p999_change),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small enough for a test: every row is there, a seed means the same, and a shared member is unloaded.
    #[test]
    fn two_tiny_runs_are_equal() {
        let plan = Plan { requests: 2000, seeds: 1, load_percent: 40, shards: 2 };
        let mut heard = 0;
        let rows = adaptive(&plan, &mut |_| heard += 1);
        assert_eq!((rows.len(), heard), (48, 48));
        let words = |rows: &[Row]| rows.iter().map(Row::words).collect::<Vec<_>>();
        assert_eq!(words(&rows), words(&adaptive(&plan, &mut |_| {})));
        let adaptive_only = |row: &&Row| row.policy == Policy::ALL[1] && row.troubles == Troubles::Others;
        assert!(rows.iter().filter(adaptive_only).all(|row| row.mean_change.mean < 0.0));
    }
}
