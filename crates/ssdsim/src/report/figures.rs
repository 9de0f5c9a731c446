//! The paper's figures from the collected runs.

use std::path::Path;

use charts::{Axis, Bar, Labels, Line, Series, bars, distributions, stacked};

use super::collect::{Data, Group};
use crate::{Error, metrics::Latency, outcome::Outcome, policy::Policy};

/// The tail of response times.
const TAIL: Axis<'_> = Axis { name: "response time, ms", log: false, shares_from: 0.99 };

/// A figure that was drawn.
#[derive(Clone, Debug)]
pub struct Figure {
    /// File in the report's folder.
    pub file: String,
    /// What it shows, with the paper's number.
    pub caption: String,
}

/// Draws all figures into `out`.
pub fn draw_all(data: &Data, out: &Path) -> Result<Vec<Figure>, Error> {
    let mut pen = Pen { out, figures: Vec::new() };
    figure_2(data, &mut pen)?;
    figure_3(data, &mut pen)?;
    for (part, chunks) in [("a", 5), ("b", 7)] {
        figure_6(data, chunks, part, &mut pen)?;
    }
    for (part, chunks) in [("a", 5), ("b", 7)] {
        let caption = format!("Fig. 7({part}): cv of blocked requests over the channels, {chunks}+1");
        pen.bars(&format!("fig07{part}"), &caption, "cv", data, chunks, |o, _| plain(o.cv))?;
    }
    for (figure, chunks) in [("08", 5), ("09", 7)] {
        let number = figure.trim_start_matches('0');
        let caption = format!("Fig. {number}(a): mean write response against Baseline, {chunks}+1");
        pen.bars(&format!("fig{figure}a"), &caption, "of Baseline", data, chunks, |o, base| {
            plain(o.write.mean_ns / base.write.mean_ns)
        })?;
        let caption = format!("Fig. {number}(b): mean response of all I/O against Baseline, {chunks}+1");
        pen.bars(&format!("fig{figure}b"), &caption, "of Baseline", data, chunks, |o, base| {
            plain(o.all.mean_ns / base.all.mean_ns)
        })?;
    }
    for (figure, chunks) in [("10", 5), ("11", 7)] {
        figure_tails(data, figure, chunks, &mut pen)?;
    }
    for (figure, chunks) in [("12", 5), ("13", 7)] {
        let caption = format!("Fig. {figure}: p99.9 on the channels against Baseline's mean, {chunks}+1");
        pen.bars(&format!("fig{figure}"), &caption, "of Baseline", data, chunks, channel_tails)?;
    }
    Ok(pen.figures)
}

/// Draws into a folder and remembers what it drew.
struct Pen<'a> {
    out: &'a Path,
    figures: Vec<Figure>,
}

impl Pen<'_> {
    fn note(&mut self, name: &str, caption: String) -> std::path::PathBuf {
        let file = format!("{name}.svg");
        let path = self.out.join(&file);
        self.figures.push(Figure { file, caption });
        path
    }

    /// A bar for each policy on each trace; `value` is given the outcome and Baseline's.
    fn bars(
        &mut self,
        name: &str,
        caption: &str,
        unit: &str,
        data: &Data,
        chunks: usize,
        value: fn(&Outcome, &Outcome) -> Bar,
    ) -> Result<(), Error> {
        let groups = of_stripe(data, chunks);
        let names: Vec<String> = groups.iter().map(|group| group.trace.clone()).collect();
        let series: Vec<Series> = (0..Policy::ALL.len())
            .map(|policy| {
                let bar = |group: &&Group| value(&group.outcomes[policy], &group.outcomes[0]);
                (Policy::ALL[policy].name().to_string(), groups.iter().map(bar).collect())
            })
            .collect();
        let path = self.note(name, caption.to_string());
        Ok(bars(&path, Labels { title: caption, places: "", unit }, &names, &series)?)
    }
}

fn of_stripe(data: &Data, chunks: usize) -> Vec<&Group> {
    data.main.iter().filter(|group| group.data == chunks).collect()
}

fn plain(value: f64) -> Bar {
    Bar { value, range: None }
}

/// Mean, least and greatest p99.9 over the channels, against Baseline's mean.
fn channel_tails(outcome: &Outcome, baseline: &Outcome) -> Bar {
    let p999 = |o: &Outcome| -> Vec<f64> { o.channels.iter().map(|c| c.latency.p999_ns as f64).collect() };
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let base = mean(&p999(baseline));
    let own: Vec<f64> = p999(outcome).iter().map(|p999| p999 / base).collect();
    let least = own.iter().copied().fold(f64::INFINITY, f64::min);
    let most = own.iter().copied().fold(0.0, f64::max);
    Bar { value: mean(&own), range: Some((least, most)) }
}

fn figure_2(data: &Data, pen: &mut Pen<'_>) -> Result<(), Error> {
    let groups: Vec<String> = (1..=data.balance.len()).map(|i| i.to_string()).collect();
    let values = data.balance.iter().map(|outcome| plain(outcome.cv)).collect();
    let caption = "Fig. 2: cv of blocked requests, Baseline, 5+1 (numbers as in Table A2 below)".to_string();
    let path = pen.note("fig02", caption.clone());
    Ok(bars(
        &path,
        Labels { title: &caption, places: "trace", unit: "cv" },
        &groups,
        &[("cv".to_string(), values)],
    )?)
}

/// Latency on the most congested channel and on each other one.
fn figure_3(data: &Data, pen: &mut Pen<'_>) -> Result<(), Error> {
    for (part, trace) in [("a", "lun1"), ("b", "lun2")] {
        let Some(group) = of_stripe(data, 5).into_iter().find(|group| group.trace == trace) else { continue };
        let mut channels: Vec<_> = group.outcomes[0].channels.iter().enumerate().collect();
        channels.sort_by_key(|(_, channel)| std::cmp::Reverse(channel.blocked));
        let lines: Vec<Line> = channels
            .iter()
            .map(|(i, channel)| {
                (format!("channel {i}, {:.2} blocked", channel.blocked_mean), points(&channel.latency))
            })
            .collect();
        let caption =
            format!("Fig. 3({part}): tail on each channel, most congested first, {trace}, Baseline, 5+1");
        let path = pen.note(&format!("fig03{part}"), caption.clone());
        distributions(&path, &caption, TAIL, &lines)?;
    }
    Ok(())
}

fn figure_6(data: &Data, chunks: usize, part: &str, pen: &mut Pen<'_>) -> Result<(), Error> {
    let mut names = Vec::new();
    let mut parts = ["RMW", "RCW", "Adjusted"].map(|name| (name.to_string(), Vec::new()));
    for group in of_stripe(data, chunks) {
        for outcome in &group.outcomes[..3] {
            names.push(format!("{} {}", group.trace, &outcome.policy.name()[..2]));
            let choices = &outcome.choices;
            let all = choices.updates().max(1) as f64;
            for (place, count) in [choices.rmw, choices.rcw, choices.adjusted].into_iter().enumerate() {
                parts[place].1.push(count as f64 / all);
            }
        }
    }
    let caption = format!(
        "Fig. 6({part}): how parity was updated by Baseline (Ba), BPU (BP), Adaptive (Ad), {chunks}+1"
    );
    let path = pen.note(&format!("fig06{part}"), caption.clone());
    Ok(stacked(
        &path,
        Labels { title: &caption, places: "", unit: "share of parity updates" },
        &names,
        &parts,
    )?)
}

fn figure_tails(data: &Data, figure: &str, chunks: usize, pen: &mut Pen<'_>) -> Result<(), Error> {
    for (part, group) in ["a", "b", "c", "d", "e", "f"].into_iter().zip(of_stripe(data, chunks)) {
        let lines: Vec<Line> =
            group.outcomes.iter().map(|o| (o.policy.name().to_string(), points(&o.all))).collect();
        let caption = format!("Fig. {figure}({part}): tail of response times, {}, {chunks}+1", group.trace);
        let path = pen.note(&format!("fig{figure}{part}"), caption.clone());
        distributions(&path, &caption, TAIL, &lines)?;
    }
    Ok(())
}

/// Points of a tail. The largest value, the point at 1, would stretch the axis for one request: it is left out.
fn points(latency: &Latency) -> Vec<(f64, f64)> {
    let shares = (0..20).map(|i| 0.99 + f64::from(i) * 0.0005);
    let mut points: Vec<(f64, f64)> =
        latency.tail_ns.iter().zip(shares).map(|(&ns, share)| (ns as f64 / 1e6, share)).collect();
    points.push((latency.p9999_ns as f64 / 1e6, 0.9999));
    points
}
