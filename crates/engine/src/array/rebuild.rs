//! Resync and recovery of a whole array: which stripes, and how far. In which order and how many at once is the
//! [window](super::window)'s.
//!
//! Progress is a cursor in bytes of the members' data area. It only says what is done in order, so that a later run
//! may go on from it. The foreground meets an owned stripe now and then, and waits for the few pieces that were begun
//! before.

use std::ops::Range;
use std::rc::Rc;

use super::progress::{Ended, Pace, Progress};
use super::window::{Cut, Piece, Sweep, slide};
use crate::device::Device;
use crate::error::VolumeError;
use crate::in_place::InPlace;
use crate::limits::REGION_BYTES;
use crate::members::MemberState;
use layout::units::{Slot, Stripe};

/// Makes parity agree with data, or copies with each other, from `from_bytes` on. With a bitmap only what that marks.
pub async fn resync<D: Device>(
    set: &Rc<InPlace<D>>,
    from_bytes: u64,
    progress: &Progress,
    pace: &impl Pace,
) -> Ended {
    let shared = &set.shared;
    match shared.geometry.parity_chunks() {
        0 => slide(shared, &Copies { set, slot: None }, regions(set), 0, progress, pace).await,
        _ => {
            let first = from_bytes / u64::from(shared.geometry.chunk_bytes());
            slide(shared, &Resync { set }, stripes(set), first, progress, pace).await
        }
    }
}

/// Fills the member in `slot` with what it should hold, from its cursor on; one that was away for a while with what the
/// bitmap marks. Bits stay while a member is not in sync, so what is marked now is all that was written since.
pub async fn recover<D: Device>(
    set: &Rc<InPlace<D>>,
    slot: Slot,
    progress: &Progress,
    pace: &impl Pace,
) -> Ended {
    let (shared, members) = (&set.shared, &set.shared.members);
    let ended = match shared.geometry.parity_chunks() {
        0 => slide(shared, &Copies { set, slot: Some(slot) }, regions(set), 0, progress, pace).await,
        _ => {
            let first = members.recovered_bytes(slot) / u64::from(shared.geometry.chunk_bytes());
            slide(shared, &Recovery { set, slot }, stripes(set), first, progress, pace).await
        }
    };
    match ended {
        Ended::Finished if members.state(slot) == MemberState::Recovering => {
            // Records from a time when fewer copies were enough are done with before more are counted on. Those that are begun
            // meanwhile have as many as are wanted then.
            members.set_nearly_in_sync(slot, true);
            let ended = match keep_rebuilt(set).await {
                Ok(()) if members.finish_recovery(slot) => Ended::Finished,
                Ok(()) => gone(slot),
                Err(error) => Ended::Failed(error),
            };
            members.set_nearly_in_sync(slot, false);
            ended
        }
        Ended::Finished => gone(slot),
        other => other,
    }
}

/// Makes durable what a member was sent while it is rebuilt, before any superblock calls that in sync. Records from before
/// are done with, too: they have too few copies for an array that is not degraded, and one that is lost then would go unnoticed.
///
/// # Errors
/// It is not durable, or superblocks do not tell of a member that failed.
pub(super) async fn keep_rebuilt<D: Device>(set: &Rc<InPlace<D>>) -> Result<(), VolumeError> {
    set.flush().await?;
    set.outlive_redo_records().await
}

fn gone(slot: Slot) -> Ended {
    Ended::Failed(VolumeError::Io { reason: format!("member {slot} failed while it was rebuilt") })
}

pub(super) fn stripes<D: Device>(set: &InPlace<D>) -> Cut {
    let geometry = &set.shared.geometry;
    let chunk_bytes = u64::from(geometry.chunk_bytes());
    Cut::new(geometry.stripes(), chunk_bytes, geometry.stripes() * chunk_bytes)
}

/// The stripes that a sweep counts by number.
pub(super) fn run_of(range: &Range<u64>) -> Range<Stripe> {
    Stripe::new(range.start)..Stripe::new(range.end)
}

/// Regions of a mirror on their way at the most: 4 MiB of a RAID-1's member.
const REGIONS_MAX: usize = 16;

pub(super) fn regions<D: Device>(set: &InPlace<D>) -> Cut {
    let geometry = &set.shared.geometry;
    let count = if geometry.losses_survived() == 0 { 0 } else { set.regions() };
    Cut { pieces_max: REGIONS_MAX, ..Cut::new(count, REGION_BYTES, geometry.array_bytes()) }
}

/// The member in a slot gets what it should hold of every stripe, or of those that it lacks.
///
/// A stripe is owned until the cursor has moved over it: a write that comes later finds the member in sync there, and none
/// can come between (it would go past the member and leave it stale). So a stripe that is not marked is owned too: a write
/// marks before it owns.
struct Recovery<'a, D> {
    set: &'a Rc<InPlace<D>>,
    slot: Slot,
}

impl<D: Device> Sweep for Recovery<'_, D> {
    fn next(&self, from: u64) -> Option<u64> {
        Some(from)
    }

    async fn begin(&self, range: Range<u64>, may_wait: bool) -> Option<Piece> {
        let (table, shard) = (&self.set.shared.table, self.set.shard);
        let claims = match may_wait {
            true => table.claim_run_in_turn(run_of(&range), shard).await,
            false => table.claim_free_run(run_of(&range), shard),
        };
        let range = range.start..range.start + claims.len() as u64;
        if range.is_empty() {
            return None;
        }
        let lacking = self.set.lacking(self.slot, run_of(&range));
        let worked = lacking.iter().map(|run| run.end - run.start).sum();
        let (set, slot, claims) = (Rc::clone(self.set), self.slot, Rc::new(claims));
        let owned = Rc::clone(&claims);
        let job = async move {
            for run in lacking {
                let at = |stripe: Stripe| (stripe - owned[0].stripe()) as usize;
                set.recover_run(&owned[at(run.start)..at(run.end)], slot).await?;
            }
            Ok(())
        };
        let job = (worked > 0).then(|| self.set.executor.spawn_with_result(job));
        Some(Piece { range, worked, claims, job })
    }

    fn passed(&self, range: Range<u64>) {
        let geometry = &self.set.shared.geometry;
        self.set.shared.members.recovered_to(self.slot, geometry.member_offset(run_of(&range).end));
    }
}

/// Parity is made to agree. Each stripe is owned by itself while that is done.
struct Resync<'a, D> {
    set: &'a Rc<InPlace<D>>,
}

impl<D: Device> Resync<'_, D> {
    fn bytes(&self, range: Range<u64>) -> Range<u64> {
        let chunk_bytes = u64::from(self.set.shared.geometry.chunk_bytes());
        range.start * chunk_bytes..range.end * chunk_bytes
    }
}

impl<D: Device> Sweep for Resync<'_, D> {
    fn next(&self, from: u64) -> Option<u64> {
        let Range { start, end } = self.bytes(from..self.set.shared.geometry.stripes());
        let next = self.set.shared.intent.next_to_resync(start, end)?;
        Some(next / u64::from(self.set.shared.geometry.chunk_bytes()))
    }

    async fn begin(&self, range: Range<u64>, _: bool) -> Option<Piece> {
        let wanted = range.clone().take_while(|&number| self.next(number) == Some(number)).count() as u64;
        let range = range.start..range.start + wanted.max(1);
        let (set, run) = (Rc::clone(self.set), run_of(&range));
        let job = self.set.executor.spawn_with_result(async move { set.resync_run(run).await });
        Some(Piece { worked: range.end - range.start, range, claims: Rc::default(), job: Some(job) })
    }

    fn passed(&self, range: Range<u64>) {
        let is_end = range.end == self.set.shared.geometry.stripes();
        self.set.shared.intent.resynced(self.bytes(range), is_end);
    }
}

/// Copies are made to agree, or the member in a slot gets its own. Such a member gets every write, so its regions need
/// not be owned in the order of a cursor: each is owned by itself.
struct Copies<'a, D> {
    set: &'a Rc<InPlace<D>>,
    slot: Option<Slot>,
}

impl<D: Device> Copies<'_, D> {
    fn bytes(&self, range: Range<u64>) -> Range<u64> {
        range.start * REGION_BYTES..(range.end * REGION_BYTES).min(self.set.shared.geometry.array_bytes())
    }
}

impl<D: Device> Sweep for Copies<'_, D> {
    fn next(&self, from: u64) -> Option<u64> {
        let Range { start, end } = self.bytes(from..self.set.regions());
        let shared = &self.set.shared;
        let next = match self.slot {
            None => shared.intent.next_to_resync(start, end)?,
            Some(slot) if shared.members.lacks_only_marked(slot) => shared.intent.next_marked(start, end)?,
            Some(_) => start,
        };
        Some(next / REGION_BYTES)
    }

    async fn begin(&self, range: Range<u64>, _: bool) -> Option<Piece> {
        let (set, slot, region) = (Rc::clone(self.set), self.slot, range.start);
        let job = self.set.executor.spawn_with_result(async move { set.copy_region(region, slot).await });
        let range = region..region + 1;
        Some(Piece { range, worked: 1, claims: Rc::default(), job: Some(job) })
    }

    fn passed(&self, range: Range<u64>) {
        if self.slot.is_none() {
            let is_end = range.end == self.set.regions();
            self.set.shared.intent.resynced(self.bytes(range), is_end);
        }
    }
}
