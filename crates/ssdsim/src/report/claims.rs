//! The paper's claims beside the same quantities from our runs.

use super::collect::{Data, Group};
use crate::outcome::Outcome;

/// One claim.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// What is claimed, and where.
    pub what: &'static str,
    /// The paper's number.
    pub paper: String,
    /// Ours.
    pub ours: String,
}

/// Position of each policy in a [`Group`].
const BASELINE: usize = 0;
const BPU: usize = 1;
const ADAPTIVE: usize = 2;
const ORACLE: usize = 3;

/// Compares all claims.
pub fn compare(data: &Data) -> Vec<Claim> {
    let mut claims = Vec::new();
    let mut add = |what, paper: &str, ours| claims.push(Claim { what, paper: paper.to_string(), ours });
    let mean: Metric = |o| o.all.mean_ns;
    let p999: Metric = |o| o.all.p999_ns as f64;
    let cv: Metric = |o| o.cv;
    add(
        "overall I/O time, Adaptive against Baseline, mean of all (IV-B2)",
        "-13.5 %",
        average(data, mean, BASELINE),
    );
    add(
        "overall I/O time, Adaptive against BPU, mean of all",
        "(part of the same -13.5 %)",
        average(data, mean, BPU),
    );
    add("overall I/O time, Adaptive against BPU, best (IV-B2)", "-29.8 %", best(data, mean, BPU));
    add("p99.9, Adaptive against Baseline, mean of all (IV-B3)", "-14.6 %", average(data, p999, BASELINE));
    add("p99.9, Adaptive against BPU, mean of all (IV-B3)", "-12.9 %", average(data, p999, BPU));
    add("p99.9, Adaptive, best (abstract)", "-24.8 %", best(data, p999, BASELINE));
    add(
        "cv of blocked requests, Adaptive against BPU, mean of all (IV-B1)",
        "-12.1 %",
        average(data, cv, BPU),
    );
    add("cv of blocked requests, Adaptive against Baseline", "lower (Fig. 7)", average(data, cv, BASELINE));
    add(
        "adjusted updates, Adaptive against BPU (IV-B1)",
        "+56.2 %",
        average(data, |o| o.choices.adjusted as f64, BPU),
    );
    add("order of mean I/O time Adaptive < BPU < Baseline (Fig. 8, 9)", "all 12 cases", ordered(data));
    add("the limit: overall I/O time, Oracle against Baseline", "none given", limit(data));
    add("blocked requests uneven at P < 0.001 (Table A2)", "62 of 62", uneven(data, |_| true));
    add("the same, traces of 10,000 requests or more", "62 of 62", uneven(data, |o| o.requests >= 10_000));
    add("cv of LUN traces under Baseline (Fig. 2)", "0.24 to 1.18", lun_cv(data));
    claims
}

type Metric = fn(&Outcome) -> f64;

/// Change of Adaptive against policy `other`, for each group that has a value.
fn changes(groups: &[Group], metric: Metric, other: usize) -> Vec<(&Group, f64)> {
    let change = |outcomes: &[Outcome]| metric(&outcomes[ADAPTIVE]) / metric(&outcomes[other]) - 1.0;
    let changes = groups.iter().map(|group| (group, change(&group.outcomes)));
    changes.filter(|(_, change)| change.is_finite()).collect()
}

/// Mean change over the traces and both stripes, its range over the seeds, and the mean for each stripe.
fn average(data: &Data, metric: Metric, other: usize) -> String {
    let mean = |groups: &[Group], chunks: usize| {
        let changes = changes(groups, metric, other);
        let of: Vec<f64> =
            changes.iter().filter(|(group, _)| group.data == chunks).map(|(_, c)| *c).collect();
        of.iter().sum::<f64>() / of.len().max(1) as f64 * 100.0
    };
    let by_seed: Vec<[f64; 2]> = data.seeds().map(|groups| [mean(groups, 5), mean(groups, 7)]).collect();
    let over_seeds =
        |value: fn(&[f64; 2]) -> f64| by_seed.iter().map(value).sum::<f64>() / by_seed.len() as f64;
    let both: Vec<f64> = by_seed.iter().map(|[five, seven]| f64::midpoint(*five, *seven)).collect();
    let least = both.iter().copied().fold(f64::INFINITY, f64::min);
    let most = both.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let range = if both.len() > 1 { format!(", seeds {least:+.1} to {most:+.1}") } else { String::new() };
    let (five, seven) = (over_seeds(|means| means[0]), over_seeds(|means| means[1]));
    format!("{:+.1} % (5+1 {five:+.1}, 7+1 {seven:+.1}{range})", f64::midpoint(five, seven))
}

fn best(data: &Data, metric: Metric, other: usize) -> String {
    let changes = changes(&data.main, metric, other);
    match changes.iter().min_by(|a, b| a.1.total_cmp(&b.1)) {
        Some((group, change)) => format!("{:+.1} % ({} at {}+1)", change * 100.0, group.trace, group.data),
        None => "none".to_string(),
    }
}

fn ordered(data: &Data) -> String {
    let mean = |group: &Group, policy: usize| group.outcomes[policy].all.mean_ns;
    let groups: Vec<&Group> = data.seeds().flatten().collect();
    let count = |holds: &dyn Fn(&Group) -> bool| groups.iter().filter(|group| holds(group)).count();
    let all = count(&|g| mean(g, ADAPTIVE) < mean(g, BPU) && mean(g, BPU) < mean(g, BASELINE));
    let first = |g: &Group| mean(g, ADAPTIVE) < mean(g, BPU).min(mean(g, BASELINE));
    let mut others = std::collections::BTreeMap::new();
    for group in groups.iter().filter(|group| !first(group)) {
        *others.entry(format!("{} at {}+1", group.trace, group.data)).or_insert(0) += 1;
    }
    let others: Vec<String> = others.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let others = if others.is_empty() { String::new() } else { format!(", not in {}", others.join(", ")) };
    format!("{all} of {}; Adaptive first in {}{others}", groups.len(), count(&first))
}

fn limit(data: &Data) -> String {
    let change =
        |group: &Group| group.outcomes[ORACLE].all.mean_ns / group.outcomes[BASELINE].all.mean_ns - 1.0;
    let groups: Vec<&Group> = data.seeds().flatten().collect();
    let mean = groups.iter().map(|group| change(group)).sum::<f64>() / groups.len() as f64;
    format!("{:+.1} %", mean * 100.0)
}

fn uneven(data: &Data, counts: fn(&Outcome) -> bool) -> String {
    let counted: Vec<&Outcome> = data.balance.iter().filter(|outcome| counts(outcome)).collect();
    let uneven = counted.iter().filter(|outcome| outcome.chi_square_p < 0.001).count();
    format!("{uneven} of {}", counted.len())
}

fn lun_cv(data: &Data) -> String {
    let lun = data.balance.iter().filter(|o| o.trace.starts_with("lun") || o.trace.contains("systor"));
    let cv: Vec<f64> = lun.map(|outcome| outcome.cv).collect();
    let least = cv.iter().copied().fold(f64::INFINITY, f64::min);
    let most = cv.iter().copied().fold(0.0, f64::max);
    format!("{least:.2} to {most:.2} (2 genuine excerpts where present, the rest stand-ins)")
}
