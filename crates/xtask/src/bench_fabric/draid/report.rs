//! What was measured, and its tables beside what the paper says.

use serde::{Deserialize, Serialize};

use super::experiments::{EXPERIMENTS, Experiment};
use crate::figures::{median, with_range};

/// One run of clients; further rounds are further points of the same names.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    pub experiment: String,
    /// The level.
    pub panel: String,
    /// Where parity is made, and the state of the array.
    pub series: String,
    pub x: String,
    pub bytes_per_s: f64,
    pub latency_us: f64,
    /// Bytes at the host's interface for each byte of the clients, Ethernet headers and acknowledgements included.
    pub sent: f64,
    pub received: f64,
    /// Of the host's link; 0 is no limit.
    pub rate_mbit: u32,
    pub seconds: u32,
}

impl Point {
    /// For those who watch.
    pub fn line(&self) -> String {
        let Point { panel, series, x, bytes_per_s, latency_us, sent, received, .. } = self;
        let (rate, wait_ms) = (bytes_per_s / 1e6, latency_us / 1e3);
        format!(
            "{panel}, {series}, {x}: {rate:.1} MB/s, {wait_ms:.1} ms, {sent:.2} sent, {received:.2} received"
        )
    }
}

/// All points of one experiment.
struct Found<'a> {
    experiment: &'static Experiment,
    points: Vec<&'a Point>,
}

/// The tables, in Markdown.
pub fn text(points: &[Point]) -> String {
    let of = |experiment: &'static Experiment| Found {
        experiment,
        points: points.iter().filter(|point| point.experiment == experiment.name).collect(),
    };
    let all: Vec<Found<'_>> = EXPERIMENTS.iter().map(of).filter(|found| !found.points.is_empty()).collect();
    let mut text =
        "| figures | | the paper | here: medians along the x axis |\n|---|---|---|---|\n".to_owned();
    for found in &all {
        let Experiment { figures, title, claim, .. } = found.experiment;
        text += &format!("| {figures} | {title} | {claim} | {} |\n", found.summary());
    }
    all.iter().fold(text, |text, found| text + &found.table())
}

impl<'a> Found<'a> {
    /// The least and the greatest of each ratio, by panel.
    fn summary(&self) -> String {
        let mut parts = Vec::new();
        for panel in self.names(|point| &point.panel) {
            for (above, below) in self.experiment.ratios {
                let places = self.names(|point| &point.x);
                let medians = places.iter().map(|x| median(self.ratios(panel, x, above, below).into_iter()));
                let mut medians: Vec<f64> = medians.filter(|ratio| !ratio.is_nan()).collect();
                medians.sort_by(f64::total_cmp);
                if let (Some(least), Some(most)) = (medians.first(), medians.last()) {
                    parts.push(format!("{panel}: {} {least:.2} to {most:.2}", ratio_name(above, below)));
                }
            }
            if self.experiment.linear {
                parts.push(format!("{panel}: peer in a line, r² {:.3}", self.linearity(panel)));
            }
        }
        parts.join("; ")
    }

    /// How near peer's throughput is to a line along x.
    fn linearity(&self, panel: &str) -> f64 {
        let along = self.names(|point| &point.x).into_iter();
        let middle = |x: &str| median(self.of(panel, x, "peer").map(|point| point.bytes_per_s));
        let places: Vec<(f64, f64)> = along.filter_map(|x| Some((x.parse().ok()?, middle(x)))).collect();
        r_squared(&places)
    }

    fn table(&self) -> String {
        let series = self.names(|point| &point.series);
        let mut header = String::from("| level, x |");
        series.iter().for_each(|name| header += &format!(" {name} |"));
        for (above, below) in self.experiment.ratios {
            header += &format!(" {} (range) |", ratio_name(above, below));
        }
        let rule = "|---".repeat(1 + series.len() + self.experiment.ratios.len());
        let mut text = format!("\n{}\n\n{header}\n{rule}|\n", self.heading());
        for panel in self.names(|point| &point.panel) {
            for x in self.names(|point| &point.x) {
                text += &format!("| {panel}, {x} |");
                series.iter().for_each(|name| text += &format!(" {} |", self.cell(panel, x, name)));
                for (above, below) in self.experiment.ratios {
                    text += &format!(" {} |", with_range(self.ratios(panel, x, above, below)));
                }
                text += "\n";
            }
        }
        text
    }

    fn heading(&self) -> String {
        let Experiment { name, figures, title, here, narrower, .. } = self.experiment;
        let Some(Point { rate_mbit, seconds, .. }) = self.points.first() else { return String::new() };
        let links = match (rate_mbit, narrower) {
            (0, _) => "links without a limit".to_owned(),
            (rate, 1) => format!("links of {rate} Mbit/s each way"),
            (rate, part) => {
                format!("the host's link of {rate} Mbit/s each way, the targets' of {}", rate / part)
            }
        };
        let runs = match self.rounds() {
            1 => "one run".to_owned(),
            rounds => format!("medians of {rounds} runs"),
        };
        let word = if figures.contains(',') { "Figures" } else { "Figure" };
        let here = if here.is_empty() { String::new() } else { format!(" Here: {here}.") };
        format!("#### {word} {figures}: {title}\n\n`--only {name}`; {links}; {runs} of {seconds} s.{here}")
    }

    /// Runs of each point: of most, if a run broke off.
    fn rounds(&self) -> usize {
        let first = self.points.first().map(|first| (&first.panel, &first.series, &first.x));
        self.points.iter().filter(|point| Some((&point.panel, &point.series, &point.x)) == first).count()
    }

    /// MB/s, and bytes that the host sent and received for each byte.
    fn cell(&self, panel: &str, x: &str, series: &str) -> String {
        let middle = |what: fn(&Point) -> f64| median(self.of(panel, x, series).map(what));
        let rate = middle(|point| point.bytes_per_s / 1e6);
        if rate.is_nan() {
            return "-".to_owned();
        }
        format!("{rate:.1} ({:.2} / {:.2})", middle(|point| point.sent), middle(|point| point.received))
    }

    /// Of each round.
    fn ratios(&self, panel: &str, x: &str, above: &str, below: &str) -> Vec<f64> {
        let pairs = self.of(panel, x, above).zip(self.of(panel, x, below));
        pairs.map(|(above, below)| above.bytes_per_s / below.bytes_per_s).collect()
    }

    fn of<'b>(&'b self, panel: &'b str, x: &'b str, series: &'b str) -> impl Iterator<Item = &'b Point> {
        let wanted = move |point: &&&Point| point.panel == panel && point.x == x && point.series == series;
        self.points.iter().filter(wanted).copied()
    }

    /// Each once, in the order in which they were measured.
    fn names(&self, name: fn(&'a Point) -> &'a str) -> Vec<&'a str> {
        let mut names = Vec::new();
        for point in &self.points {
            if !names.contains(&name(point)) {
                names.push(name(point));
            }
        }
        names
    }
}

/// The part of y's variance that a line along x explains.
fn r_squared(places: &[(f64, f64)]) -> f64 {
    let count = places.len() as f64;
    let mean_x = places.iter().map(|place| place.0).sum::<f64>() / count;
    let mean_y = places.iter().map(|place| place.1).sum::<f64>() / count;
    let sum = |of: fn(f64, f64) -> f64| places.iter().map(|(x, y)| of(x - mean_x, y - mean_y)).sum::<f64>();
    sum(|x, y| x * y).powi(2) / (sum(|x, _| x * x) * sum(|_, y| y * y))
}

fn ratio_name(above: &str, below: &str) -> String {
    format!("{above} / {below}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(series: &str, x: &str, bytes_per_s: f64) -> Point {
        Point {
            experiment: "fig13".to_owned(),
            panel: "RAID-5".to_owned(),
            series: series.to_owned(),
            x: x.to_owned(),
            bytes_per_s,
            latency_us: 1.0,
            sent: 2.0,
            received: 0.5,
            rate_mbit: 200,
            seconds: 2,
        }
    }

    #[test]
    fn ratios_are_of_the_same_round_and_a_place_without_a_partner_has_none() {
        let points = [
            point("host", "0 %", 10e6),
            point("peer", "0 %", 20e6),
            point("host", "100 %", 20e6),
            point("host", "0 %", 20e6),
            point("peer", "0 %", 30e6),
        ];
        let text = text(&points);
        assert!(
            text.contains("| RAID-5, 0 % | 20.0 (2.00 / 0.50) | 30.0 (2.00 / 0.50) | 2.00 (1.50 to 2.00) |"),
            "{text}"
        );
        assert!(text.contains("| RAID-5, 100 % | 20.0 (2.00 / 0.50) | - | - |"), "{text}");
        assert!(text.contains("RAID-5: peer / host 2.00 to 2.00 |"), "{text}");
        assert!(text.contains("medians of 2 runs of 2 s"), "{text}");
    }

    #[test]
    fn a_line_explains_all_of_a_line_and_less_of_a_bend() {
        assert_eq!(r_squared(&[(4.0, 10.0), (6.0, 15.0), (8.0, 20.0)]), 1.0);
        let bent = r_squared(&[(4.0, 10.0), (6.0, 10.0), (8.0, 20.0)]);
        assert!((0.74..0.76).contains(&bent), "{bent}");
    }
}
