//! Resync and recovery of a whole array: which stripes, in which order, how many at once, how far.
//!
//! Progress is a cursor in bytes of the members' data area. It only says what is done in order, so that a later run
//! may go on from it. Work is done in batches of a few stripes: the foreground meets an owned stripe now and then,
//! and waits for one batch at most.

use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::device::Device;
use crate::executor::{join_all, yield_now};
use crate::members::MemberState;
use crate::stripe::mirror::REGION_BYTES;
use crate::stripe::{Shared, StripeSet};
use crate::volume::VolumeError;

/// Member bytes in one batch: enough to keep a member busy, little enough to wait for.
pub(super) const BATCH_MEMBER_BYTES: u64 = 1 << 20;
/// Stripes owned by one batch at the most: a small part of the stripe table.
pub(super) const BATCH_STRIPES_MAX: u64 = 64;

/// How far a resync or recovery is. Shared with whoever shows or stops it.
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
    /// Set to end the work after the current batch.
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

/// No speed is told before so many nanoseconds: it would be that of the first batch.
const MEASURED_NS_MIN: u64 = 500_000_000;

/// Decides when the next batch may start; the owner has the clock.
pub trait Pace {
    /// Called after each batch with the member bytes it covered.
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
    /// It was told to stop; the progress says how far it came.
    Stopped,
    /// It cannot go on.
    Failed(VolumeError),
}

/// Makes parity agree with data, or copies with each other, from `from_bytes` on.
pub async fn resync<D: Device>(
    set: &Rc<StripeSet<D>>,
    from_bytes: u64,
    progress: &Progress,
    pace: &impl Pace,
) -> Ended {
    match set.shared.geometry.parity_chunks() {
        0 => {
            let next = |at, end| set.shared.intent.next_to_resync(at, end);
            copy_regions(set, None, progress, pace, next).await
        }
        _ => {
            // Only what a bitmap marks; all of it without one.
            let next = |at, end| set.shared.intent.next_to_resync(at, end);
            let batch = async |first: u64, end: u64| {
                let chunk_bytes = u64::from(set.shared.geometry.chunk_bytes());
                let is_wanted =
                    |stripe: &u64| next(stripe * chunk_bytes, (stripe + 1) * chunk_bytes).is_some();
                let start = |stripe| {
                    let set = Rc::clone(set);
                    set.executor.clone().spawn_with_result(async move { set.resync_stripe(stripe).await })
                };
                let results = join_all((first..end).filter(is_wanted).map(start)).await;
                results.into_iter().collect::<Result<(), VolumeError>>()?;
                let is_end = end == set.shared.geometry.stripes();
                set.shared.intent.resynced(first * chunk_bytes..end * chunk_bytes, is_end);
                Ok(end - first)
            };
            stripes(set, from_bytes, progress, pace, next, batch).await
        }
    }
}

/// Fills the member in `slot` with what it should hold, from its cursor on; one that was away for a while with what the
/// bitmap marks. Bits stay while a member is not in sync, so what is marked now is all that was written since.
pub async fn recover<D: Device>(
    set: &Rc<StripeSet<D>>,
    slot: u32,
    progress: &Progress,
    pace: &impl Pace,
) -> Ended {
    let members = &set.shared.members;
    let ended = match set.shared.geometry.parity_chunks() {
        0 => {
            let next = |at, end| match members.lacks_only_marked(slot) {
                true => set.shared.intent.next_marked(at, end),
                false => Some(at),
            };
            copy_regions(set, Some(slot), progress, pace, next).await
        }
        _ => {
            let batch = async |first: u64, end: u64| set.recover_stripes(first, end, slot).await;
            let all = |at, _| Some(at);
            stripes(set, members.recovered_bytes(slot), progress, pace, all, batch).await
        }
    };
    match ended {
        Ended::Finished if members.state(slot) == MemberState::Recovering => {
            // What the member was sent must be durable before any superblock calls it in sync.
            // Records from a time when fewer copies were enough are done with before more are counted on.
            let durable = match set.flush_volume().await {
                Ok(()) => set.empty_redo_log().await,
                Err(error) => Err(error),
            };
            match durable {
                Ok(()) if members.finish_recovery(slot) => Ended::Finished,
                Ok(()) => gone(slot),
                Err(error) => Ended::Failed(error),
            }
        }
        Ended::Finished => gone(slot),
        other => other,
    }
}

fn gone(slot: u32) -> Ended {
    Ended::Failed(VolumeError::Io { reason: format!("member {slot} failed while it was rebuilt") })
}

/// Works on batches of stripes, each from the next byte that needs it (`next`) on. A batch says how many it worked on.
async fn stripes<D: Device>(
    set: &Rc<StripeSet<D>>,
    from_bytes: u64,
    progress: &Progress,
    pace: &impl Pace,
    next: impl Fn(u64, u64) -> Option<u64>,
    batch: impl AsyncFn(u64, u64) -> Result<u64, VolumeError>,
) -> Ended {
    let geometry = set.shared.geometry;
    let chunk_bytes = u64::from(geometry.chunk_bytes());
    let at_once = (BATCH_MEMBER_BYTES / chunk_bytes).clamp(1, BATCH_STRIPES_MAX);
    let mut first = from_bytes / chunk_bytes;
    progress.begin(&set.shared, first * chunk_bytes, geometry.stripes() * chunk_bytes);
    while first < geometry.stripes() {
        if progress.stop.load(Relaxed) {
            return Ended::Stopped;
        }
        let total_bytes = geometry.stripes() * chunk_bytes;
        let Some(wanted_bytes) = next(first * chunk_bytes, total_bytes) else {
            progress.done_bytes.store(total_bytes, Relaxed);
            break;
        };
        first = wanted_bytes / chunk_bytes;
        let end = (first + at_once).min(geometry.stripes());
        let worked = match batch(first, end).await {
            Ok(worked) => worked,
            Err(error) => return Ended::Failed(error),
        };
        progress.done_bytes.store(end * chunk_bytes, Relaxed);
        match worked {
            0 => yield_now().await, // nothing to wait for: others have their turn all the same
            worked => pace.after(worked * chunk_bytes).await,
        }
        first = end;
    }
    Ended::Finished
}

/// Regions of a mirror at a time.
pub(super) const REGIONS_AT_ONCE: u64 = 8;

async fn copy_regions<D: Device>(
    set: &Rc<StripeSet<D>>,
    slot: Option<u32>,
    progress: &Progress,
    pace: &impl Pace,
    next: impl Fn(u64, u64) -> Option<u64>,
) -> Ended {
    let regions = if set.shared.geometry.losses_survived() == 0 { 0 } else { set.regions() };
    let array_bytes = set.shared.geometry.array_bytes();
    progress.begin(&set.shared, 0, array_bytes);
    let mut first = 0;
    while first < regions {
        if progress.stop.load(Relaxed) {
            return Ended::Stopped;
        }
        let Some(wanted_bytes) = next(first * REGION_BYTES, array_bytes) else { break };
        first = wanted_bytes / REGION_BYTES;
        let end = (first + REGIONS_AT_ONCE).min(regions);
        let start = |region| {
            let set = Rc::clone(set);
            set.executor.clone().spawn_with_result(async move { set.copy_region(region, slot).await })
        };
        let is_wanted = |region: &u64| next(region * REGION_BYTES, (region + 1) * REGION_BYTES).is_some();
        let results = join_all((first..end).filter(is_wanted).map(start)).await;
        if let Err(error) = results.into_iter().collect::<Result<(), VolumeError>>() {
            return Ended::Failed(error);
        }
        if slot.is_none() {
            let range = first * REGION_BYTES..(end * REGION_BYTES).min(array_bytes);
            set.shared.intent.resynced(range, end == regions);
        }
        let done = array_bytes / regions * end;
        progress.done_bytes.store(done, Relaxed);
        pace.after(array_bytes / regions * (end - first)).await;
        first = end;
    }
    progress.done_bytes.store(array_bytes, Relaxed);
    Ended::Finished
}
