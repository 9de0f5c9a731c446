//! How an array starts: one sequence, in the only order that is safe.
//!
//! Each step consumes the one before, so another order does not compile:
//!
//! | step | what has happened | what a crash right after it leaves |
//! |---|---|---|
//! | [`Assembled`] | superblocks, bad-block logs, bitmaps and redo logs are read, all is decided | nothing was written |
//! | [`Prepared`] | the array's shared memory is made of that; shards may be given their views of it | nothing was written |
//! | `Replayed` | what the redo log asks for is made again, on disk; the rest is in doubt. Or what the former host had under way agrees, on disk | the same log, which may be replayed again. The ledgers have ended, and a resync is due |
//! | `Kept` | the superblock writer exists, and a redo log is kept or voided | as before: no superblock was written |
//! | [`Running`] | superblocks, bitmap and manager are at work; clients may come | what their own orders promise |
//!
//! - The replay comes before any superblock: a superblock that the log does not name makes the log old (invariant 8),
//!   and its writes would be lost.
//! - A log that was in force and is not kept is voided: superblocks that it does not name are on disk before a client's
//!   write is acknowledged. Else the next start replays its records over what was written since.
//! - A read-only start writes nothing, ever.

mod assembled;
mod inspect;
mod prepared;

use std::rc::Rc;

use super::platform::Platform;
use super::running::Running;
use super::scrub::ScrubState;
use crate::device::Device;
use crate::error::VolumeError;
use crate::in_place::InPlace;

pub use assembled::{Assembled, Consistency, NotAssembled, Policy};
pub use inspect::{FoundRedo, Inspection, MemberProblem, MemberProblemKind};
pub use prepared::Prepared;

/// Starts an array on the shard of `set`, which every shard has a view of already. `device` is the shard's way to a
/// candidate that is a spare or a replacement; `None` leaves that candidate out. `scrub` is one that an earlier run did
/// not end.
///
/// # Errors
/// A member that the array needs did not take a write that the redo log asks for.
pub async fn start<D: Device, P: Platform<D>>(
    prepared: Prepared,
    set: Rc<InPlace<D>>,
    platform: P,
    device: impl Fn(usize) -> Option<Rc<D>>,
    scrub: Option<ScrubState>,
) -> Result<Running<D, P>, VolumeError> {
    let platform = Rc::new(platform);
    let Policy { force, read_only, .. } = prepared.assembled.policy;
    let replayed = prepared.replay(Rc::clone(&set)).await?;
    let kept = replayed.keep(&platform, &device);
    let running = kept.run(platform, &device, scrub);
    if force && !read_only {
        // What force chose is on the members before the start is over: a crash right after it is one of the array that it made
        // (invariant 8). Where no superblock can be written, writes say so.
        let _ = set.shared.members.settled().await;
    }
    Ok(running)
}
