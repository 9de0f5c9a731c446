//! Resync and recovery of a whole array: which stripes, in which order, how many at once, how far.
//!
//! Progress is a cursor in bytes of the members' data area. It only says what is done in order, so that a later run
//! may go on from it. Work is done in batches of a few stripes: the foreground meets an owned stripe now and then,
//! and waits for one batch at most.

use std::future::Future;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::device::Device;
use crate::executor::join_all;
use crate::members::MemberState;
use crate::stripe::StripeSet;
use crate::volume::VolumeError;

/// Member bytes in one batch: enough to keep a member busy, little enough to wait for.
const BATCH_MEMBER_BYTES: u64 = 1 << 20;
/// Stripes owned by one batch at the most: a small part of the stripe table.
const BATCH_STRIPES_MAX: u64 = 64;

/// How far a resync or recovery is. Shared with whoever shows or stops it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes of the data area that are done.
    pub done_bytes: AtomicU64,
    /// Bytes of the data area in all.
    pub total_bytes: AtomicU64,
    /// Set to end the work after the current batch.
    pub stop: AtomicBool,
}

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
        0 => copy_regions(set, None, progress, pace).await,
        _ => {
            let batch = async |first: u64, end: u64| {
                let start = |stripe| {
                    let set = Rc::clone(set);
                    set.executor.clone().spawn_with_result(async move { set.resync_stripe(stripe).await })
                };
                join_all((first..end).map(start)).await.into_iter().collect()
            };
            stripes(set, from_bytes, progress, pace, batch).await
        }
    }
}

/// Fills the member in `slot` with what it should hold, from its cursor on.
pub async fn recover<D: Device>(
    set: &Rc<StripeSet<D>>,
    slot: u32,
    progress: &Progress,
    pace: &impl Pace,
) -> Ended {
    let members = &set.shared.members;
    let ended = match set.shared.geometry.parity_chunks() {
        0 => copy_regions(set, Some(slot), progress, pace).await,
        _ => {
            let batch = async |first: u64, end: u64| set.recover_stripes(first, end, slot).await;
            stripes(set, members.recovered_bytes(slot), progress, pace, batch).await
        }
    };
    match ended {
        Ended::Finished if members.state(slot) == MemberState::Recovering => {
            // What the member was sent must be durable before any superblock calls it in sync.
            match set.flush_volume().await {
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

async fn stripes<D: Device>(
    set: &Rc<StripeSet<D>>,
    from_bytes: u64,
    progress: &Progress,
    pace: &impl Pace,
    batch: impl AsyncFn(u64, u64) -> Result<(), VolumeError>,
) -> Ended {
    let geometry = set.shared.geometry;
    let chunk_bytes = u64::from(geometry.chunk_bytes());
    let at_once = (BATCH_MEMBER_BYTES / chunk_bytes).clamp(1, BATCH_STRIPES_MAX);
    progress.total_bytes.store(geometry.stripes() * chunk_bytes, Relaxed);
    let mut first = from_bytes / chunk_bytes;
    progress.done_bytes.store(first * chunk_bytes, Relaxed);
    while first < geometry.stripes() {
        if progress.stop.load(Relaxed) {
            return Ended::Stopped;
        }
        let end = (first + at_once).min(geometry.stripes());
        if let Err(error) = batch(first, end).await {
            return Ended::Failed(error);
        }
        progress.done_bytes.store(end * chunk_bytes, Relaxed);
        pace.after((end - first) * chunk_bytes).await;
        first = end;
    }
    Ended::Finished
}

/// Regions of a mirror at a time.
const REGIONS_AT_ONCE: u64 = 8;

async fn copy_regions<D: Device>(
    set: &Rc<StripeSet<D>>,
    slot: Option<u32>,
    progress: &Progress,
    pace: &impl Pace,
) -> Ended {
    let regions = if set.shared.geometry.losses_survived() == 0 { 0 } else { set.regions() };
    let array_bytes = set.shared.geometry.array_bytes();
    progress.total_bytes.store(array_bytes, Relaxed);
    progress.done_bytes.store(0, Relaxed);
    let mut first = 0;
    while first < regions {
        if progress.stop.load(Relaxed) {
            return Ended::Stopped;
        }
        let end = (first + REGIONS_AT_ONCE).min(regions);
        let start = |region| {
            let set = Rc::clone(set);
            set.executor.clone().spawn_with_result(async move { set.copy_region(region, slot).await })
        };
        let results = join_all((first..end).map(start)).await;
        if let Err(error) = results.into_iter().collect::<Result<(), VolumeError>>() {
            return Ended::Failed(error);
        }
        let done = array_bytes / regions * end;
        pace.after(done - progress.done_bytes.swap(done, Relaxed)).await;
        first = end;
    }
    progress.done_bytes.store(array_bytes, Relaxed);
    Ended::Finished
}
