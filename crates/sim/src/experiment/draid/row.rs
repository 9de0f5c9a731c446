//! What came of the points, as lines of a table.

use serde::Serialize;

use super::point::Point;

/// Bytes at the host's network card for each byte of its clients.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Spent {
    /// Sent.
    pub sent: f64,
    /// Received.
    pub received: f64,
}

/// What came of a point.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Measured {
    /// Bytes of clients, 10^6 a second.
    pub mb_per_s: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// At the host's card.
    pub host: Spent,
}

/// A point, its place in its figure, and what came of it.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// What of the figure: its level.
    pub panel: &'static str,
    /// Line of the figure.
    pub series: String,
    /// Place on the line.
    pub x: String,
    /// The point.
    pub point: Point,
    /// What came of it.
    pub measured: Measured,
}

/// The heading of the lines of [`Row::words`].
pub fn heading() -> String {
    format!(
        "{:<12}{:<8}{:<20}{:>6}{:>10}{:>10}{:>10}{:>8}{:>10}",
        "figure", "level", "", "at", "MB/s", "mean us", "p99 us", "sent", "received"
    )
}

impl Row {
    /// A line of the table; bytes at the host's card are for each byte of its clients.
    pub fn words(&self) -> String {
        let Measured { mb_per_s, mean_us, p99_us, host } = self.measured;
        format!(
            "{:<12}{:<8}{:<20}{:>6}{:>10.0}{:>10.0}{:>10.0}{:>8.2}{:>10.2}",
            self.experiment,
            self.panel,
            self.series,
            self.x,
            mb_per_s,
            mean_us,
            p99_us,
            host.sent,
            host.received
        )
    }
}
