//! What comes of a point.

use serde::Serialize;

use crate::experiment::paper::{self, View};

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

impl paper::Measured for Measured {
    const HEADS: &'static [&'static str] = &["MB/s", "mean us", "p99 us", "bytes sent", "received"];
    const VIEWS: &'static [View<Self>] =
        &[("throughput", "MB/s", |one| one.mb_per_s), ("mean latency", "us", |one| one.mean_us)];

    /// Bytes at the host's card are for each byte of its clients.
    fn cells(&self) -> Vec<String> {
        let Measured { mb_per_s, mean_us, p99_us, host: Spent { sent, received } } = self;
        vec![
            format!("{mb_per_s:.0}"),
            format!("{mean_us:.0}"),
            format!("{p99_us:.0}"),
            format!("{sent:.2}"),
            format!("{received:.2}"),
        ]
    }
}
