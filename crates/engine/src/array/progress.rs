//! How far work on a whole array is, how fast it may go, and how it ended.

use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::error::VolumeError;
use crate::stripe::Shared;

/// How far a resync or recovery is. Shared with the tasks that show or stop it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of the data area that are done.
    pub done_bytes: AtomicU64,
    /// Bytes of the data area in all.
    pub total_bytes: AtomicU64,
    /// Where it began in this run.
    pub from_bytes: AtomicU64,
    /// When it began in this run, by the array's clock; 0 if that has none.
    pub since_ns: AtomicU64,
    /// Set to end the work when what is on its way has ended.
    pub stop: AtomicBool,
}

impl Progress {
    /// Work begins at `from_bytes` of `total_bytes`.
    pub(super) fn begin(&self, shared: &Shared, from_bytes: u64, total_bytes: u64) {
        self.since_ns.store(shared.loads.now_ns(), Relaxed);
        self.from_bytes.store(from_bytes, Relaxed);
        self.total_bytes.store(total_bytes, Relaxed);
        self.done_bytes.store(from_bytes, Relaxed);
    }

    /// Mean speed of this run at `now_ns`, in bytes a second; 0 while it is not known.
    pub fn bytes_per_s(&self, now_ns: u64) -> u64 {
        let ns = now_ns.saturating_sub(self.since_ns.load(Relaxed));
        if ns < MEASURED_NS_MIN {
            return 0;
        }
        let bytes = self.done_bytes.load(Relaxed).saturating_sub(self.from_bytes.load(Relaxed));
        u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(ns)).unwrap_or(u64::MAX)
    }
}

/// Time before which no speed is shown: it would be that of the first pieces.
const MEASURED_NS_MIN: u64 = 500_000_000;

/// Decides when more may be begun; the owner has the clock.
pub trait Pace {
    /// Called after each piece of work with the member bytes it covered, or after several with those of all.
    fn after(&self, bytes: u64) -> impl Future<Output = ()>;
}

/// As fast as it goes.
pub struct FullSpeed;

impl Pace for FullSpeed {
    async fn after(&self, _bytes: u64) {}
}

/// How a resync or recovery ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// All is done.
    Finished,
    /// It was stopped; the progress says how far it came.
    Stopped,
    /// It cannot go on.
    Failed(VolumeError),
}
