//! A point of a figure, and what comes of it.

use serde::Serialize;

use super::aged::Aged;
use super::model;
use super::raizn;
use super::reads::{self, Reads};
use super::recovery::{self, Recovery};
use super::replay::{self, Replay};
use super::speed::{BLOCK_KIB, Speed};
use super::writes::{self, Writes};
use crate::experiment::paper::{self, View};

/// Requests of a point that writes to a new array.
const WRITES: u64 = 20_000;
/// Requests of a point that reads.
const READS: u64 = 4_000;
/// How many times an aged array is written over before it is measured.
const AGED_TIMES: u64 = 3;
/// What an engine has to reach of the drives' own times.
pub(super) const WANTED: f64 = 0.95;

/// A point of a figure.
#[derive(Clone, Debug, Serialize)]
pub struct Point {
    #[serde(skip)]
    pub(super) panel: String,
    #[serde(skip)]
    pub(super) series: String,
    /// What is done.
    #[serde(flatten)]
    pub work: Work,
}

/// What is done to an array.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Work {
    /// Writes to a new one.
    Writes(Writes),
    /// The same, as RAIZN would make them: see [`super::raizn`].
    Raizn(Writes),
    /// Reads.
    Reads(Reads),
    /// It is recovered.
    Recovery(Recovery),
    /// Writes to one that was written over and over.
    Aged(Aged),
    /// What an application asks for.
    Replay(Replay),
}

/// What comes of a point.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Measured {
    /// How fast requests were.
    pub speed: Option<Speed>,
    /// How fast the drives' times alone would let them be, by an event simulation of the drives.
    pub model: Option<Speed>,
    /// Blocks written for each that clients wrote, parity and mapping blocks apart.
    pub write_amplification: Option<f64>,
    /// How long a recovery took.
    pub seconds: Option<f64>,
}

const NONE: Measured = Measured { speed: None, model: None, write_amplification: None, seconds: None };

impl Measured {
    /// The part that the engine reaches of what the drives' times allow.
    pub fn share(&self) -> Option<f64> {
        Some(self.speed?.mib_per_s / self.model?.mib_per_s)
    }
}

impl paper::Measured for Measured {
    const HEADS: &'static [&'static str] =
        &["MiB/s", "median us", "p95 us", "of the drives' times", "write amplification", "seconds"];
    const VIEWS: &'static [View<Self>] = &[
        ("throughput", "MiB/s", |one| one.speed.map_or(f64::NAN, |speed| speed.mib_per_s)),
        ("median latency", "us", |one| one.speed.map_or(f64::NAN, |speed| speed.median_us)),
        ("95th percentile of the latency", "us", |one| one.speed.map_or(f64::NAN, |speed| speed.p95_us)),
        ("write amplification", "", |one| one.write_amplification.unwrap_or(f64::NAN)),
        ("time", "s", |one| one.seconds.unwrap_or(f64::NAN)),
    ];

    fn cells(&self) -> Vec<String> {
        let words = |figure: Option<f64>, digits: usize| {
            figure.map_or_else(String::new, |figure| format!("{figure:.digits$}"))
        };
        vec![
            words(self.speed.map(|speed| speed.mib_per_s), 1),
            words(self.speed.map(|speed| speed.median_us), 1),
            words(self.speed.map(|speed| speed.p95_us), 1),
            words(self.share(), 3),
            words(self.write_amplification, 2),
            words(self.seconds, 3),
        ]
    }
}

impl paper::Point for Point {
    type Measured = Measured;

    fn panel(&self) -> String {
        self.panel.clone()
    }

    fn series(&self) -> String {
        self.series.clone()
    }

    fn measure(&self) -> Measured {
        match &self.work {
            Work::Writes(writes) => measure_writes(writes, WRITES),
            Work::Raizn(writes) => Measured { speed: Some(raizn::run(writes, WRITES)), ..NONE },
            Work::Reads(reads) => Measured { speed: Some(reads::run(reads, READS)), ..NONE },
            Work::Recovery(recovery) => Measured { seconds: Some(recovery::run(recovery)), ..NONE },
            Work::Aged(aged) => {
                let blocks = aged.logical_blocks();
                let whole = blocks / u64::from(aged.request_kib / BLOCK_KIB);
                let outcome = aged.run(true, AGED_TIMES * whole, whole);
                let write_amplification = Some(outcome.write_amplification);
                Measured { speed: Some(Speed::of(&outcome.ended)), write_amplification, ..NONE }
            }
            Work::Replay(replay) => Measured { speed: Some(replay::run(replay)), ..NONE },
        }
    }
}

pub(super) fn measure_writes(point: &Writes, requests: u64) -> Measured {
    let (engine, model) = (writes::run(point, requests), model::run(point, requests));
    Measured { speed: Some(engine), model: Some(model), ..NONE }
}
