//! Runs the plan of a stripe write: reads what it lacks, makes parity, writes, and judges what came of the writes. This is
//! one way to run a plan, with everything passing through this host; a plan that targets run among themselves is run elsewhere,
//! and planned by the same code.

use smallvec::SmallVec;

use super::agree::make_rows_agree;
use super::avoid::stripe_load;
use super::engine::Owned;
use super::fetch::fetch;
use super::redo::cut::StripeWrites;
use super::redo::retire::without_unmade_records;
use super::redo::write::write_degraded;
use crate::buffer::Gather;
use crate::code::chunk_set::{ChunkSet, P, Q};
use crate::code::image::Image;
use crate::code::parity_step::{self, NewParity};
use crate::code::plan::{self, Plan, Routine, plan_reconstruct};
use crate::code::rows::{Fragment, Rows};
use crate::code::union::Union;
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::port::{MemberError, MemberWrite};
use crate::stages::{Stage, Watch};

/// How a stripe is updated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// As is best.
    Best,
    /// Without old contents of what is written, and without old parity.
    Reconstruct,
}

/// Plans until nothing is left to read, then makes parity and writes.
pub(super) async fn update_by<D: Device>(
    owned: Owned<'_, D>,
    way: Way,
    union: &Union,
    mut image: Image,
    fua: bool,
    watch: &mut Watch<'_>,
) -> Result<(), VolumeError> {
    let (plan, missing) = loop {
        let missing = owned.missing();
        let way = if makes_good(owned, union) { Way::Reconstruct } else { way };
        let plan = plan_write(owned, way, union, &image)?;
        if plan.reads.is_empty() && owned.missing() == missing {
            break (plan, missing);
        }
        fetch(owned, &plan.reads, &mut image).await?;
    };
    watch.enter(Stage::Parity);
    count(owned, &plan);
    let parity = parity_step::compute(
        owned.geometry(),
        owned.stripe(),
        &plan,
        union,
        &mut image,
        owned.pool(),
        missing,
    );
    watch.enter(Stage::Write);
    store(owned, &plan, union, &parity, fua).await?;
    // Where the stripe was in doubt it was planned so.
    if plan.is_from_all_data() {
        remove_doubt(owned, union, missing);
    }
    Ok(())
}

/// Whether a stripe whose parity may not agree gets new parity from all data, since what is lost of it is overwritten whole.
fn makes_good<D: Device>(owned: Owned<'_, D>, union: &Union) -> bool {
    let is_doubtful = owned.is_suspect() || owned.is_in_doubt();
    let lost = if is_doubtful { owned.lost() } else { ChunkSet::EMPTY };
    !lost.is_empty() && overwrites(owned, union, lost)
}

pub(super) fn plan_write<D: Device>(
    owned: Owned<'_, D>,
    way: Way,
    union: &Union,
    image: &Image,
) -> Result<Plan, VolumeError> {
    let (shape, missing) = (owned.shape(), owned.missing());
    let load = stripe_load(owned.engine(), owned.stripe());
    let (written, held) = (union.fragments(), image.fragments());
    let planned = match way {
        Way::Best => plan::plan(shape, missing, &written, &held, load.as_ref()),
        Way::Reconstruct => plan_reconstruct(shape, missing, &written, &held),
    };
    let plan = planned.map_err(|_| owned.too_many_missing(missing))?;
    let is_there = |fragment: &Fragment| !missing.contains(fragment.chunk);
    assert!(plan.reads.iter().chain(&plan.writes).all(is_there), "a plan leaves missing chunks alone");
    if load.is_some() {
        let adjusted = plan.steps.iter().filter(|step| step.adjusted).count();
        owned.port().counters().adjusted_updates.add(adjusted as u64);
    }
    Ok(plan)
}

/// Writes what the plan says to every member that is there, all at once.
pub(super) async fn store<D: Device>(
    owned: Owned<'_, D>,
    plan: &Plan,
    union: &Union,
    parity: &[NewParity],
    fua: bool,
) -> Result<(), VolumeError> {
    let contents = |fragment: &Fragment| match fragment.chunk {
        P | Q => {
            let is_it = |new: &&NewParity| (new.chunk, new.start) == (fragment.chunk, fragment.rows.start);
            let new = parity.iter().find(is_it).expect("the steps made what the plan writes");
            assert_eq!(new.slice.len(), fragment.rows.bytes(), "parity of the rows that the plan writes");
            Gather::from(new.slice.clone())
        }
        chunk => union.gather(chunk, fragment.rows),
    };
    let write = |fragment: &Fragment| owned.write_of(fragment.chunk, fragment.rows.start, contents(fragment));
    let writes: SmallVec<[MemberWrite; 4]> = plan.writes.iter().map(write).collect();
    let results = match owned.shared().members.plain() {
        true => owned.port().write(&writes, fua).await,
        // Invariants 2 and 10: what a crash may not damage is durable before the stripe is touched.
        false => {
            let unplaced: SmallVec<[MemberWrite; 1]> = plan.unplaced.iter().map(write).collect();
            let missing = if owned.shape().parity == 1 { &unplaced[..] } else { &[] };
            let writes = StripeWrites { stripe: owned.stripe(), made: &writes, missing };
            write_degraded(owned.redo(), writes, !parity.is_empty(), fua).await?
        }
    };
    judge(owned, union.span(), parity, results).await
}

/// Judges what the writes of a stripe's data and parity in these rows came to, and keeps the new parity if all members have
/// it. Every write of a stripe ends here.
pub(super) async fn judge<D: Device>(
    owned: Owned<'_, D>,
    rows: Rows,
    parity: &[NewParity],
    results: impl IntoIterator<Item = Result<(), MemberError>>,
) -> Result<(), VolumeError> {
    let mut all_written = true;
    for result in results {
        match result {
            Ok(()) => {}
            // The others got data and parity of this write: the stripe is as good as a degraded one can be.
            Err(MemberError::Gone | MemberError::Unreadable) => all_written = false,
            Err(MemberError::Request(error)) => {
                return Err(Box::pin(half_written(owned, rows, error)).await);
            }
        }
    }
    survived(owned)?;
    if all_written {
        // Invariant 5: the members have it, and this task owns the stripe until after this.
        parity
            .iter()
            .for_each(|new| owned.shared().cache.put(owned.stripe(), new.chunk, new.start, &new.slice));
    }
    Ok(())
}

/// Some members took a write of these rows, and one that stays did not. For want of room below a member the parity is made
/// again at once: it has its blocks by now. Else one member that fails later would take data with it that nobody wrote.
async fn half_written<D: Device>(owned: Owned<'_, D>, rows: Rows, error: VolumeError) -> VolumeError {
    // Then these rows are all that may not agree.
    let was_sound = !owned.is_suspect() && !owned.is_in_doubt();
    owned.suspect(&error.to_string());
    if was_sound
        && matches!(error, VolumeError::NoSpace { .. })
        && owned.lost().is_empty()
        && without_unmade_records(owned.redo(), owned.stripe()).await.is_ok()
        && make_rows_agree(owned, rows).await.is_ok()
    {
        owned.trust();
    }
    error
}

/// A stripe whose missing data was overwritten whole is in doubt no more, if its parity was made from all data.
fn remove_doubt<D: Device>(owned: Owned<'_, D>, union: &Union, missing: ChunkSet) {
    if !owned.is_in_doubt() && !owned.is_suspect() {
        return;
    }
    let data = owned.data();
    let lost = missing.and(data);
    let overwritten = if lost.is_empty() { data } else { lost };
    if overwrites(owned, union, overwritten) {
        owned.trust();
    }
}

/// After a write that not all members took: an error if too many are missing now.
fn survived<D: Device>(owned: Owned<'_, D>) -> Result<(), VolumeError> {
    let missing = owned.missing();
    if missing.len() <= owned.shape().parity {
        return Ok(());
    }
    let error = owned.too_many_missing(missing);
    owned.suspect(&error.to_string());
    Err(error)
}

fn count<D: Device>(owned: Owned<'_, D>, plan: &Plan) {
    let counters = owned.port().counters();
    let all = owned.data();
    if plan.steps.iter().all(|step| step.written == all) {
        counters.full_stripe_writes.add(1);
    }
    for step in &plan.steps {
        match step.routine {
            Routine::Rmw => counters.rmw.add(1),
            Routine::Rcw => counters.rcw.add(1),
            Routine::Recover => counters.recovered_writes.add(1),
            Routine::DataOnly => {}
        }
    }
}

/// Whether these chunks are written whole.
pub(super) fn overwrites<D: Device>(owned: Owned<'_, D>, union: &Union, chunks: ChunkSet) -> bool {
    chunks.iter().all(|chunk| union.covers(chunk, owned.all_rows()))
}
