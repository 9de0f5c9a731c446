//! Retires records, which frees their slots: their writes are durable, and a header says that replay skips them.

use super::headers::{flush_volume, write_headers};
use super::log::RedoLog;
use super::state::{LogPhase, State, wake_all};
use crate::device::Device;
use crate::error::VolumeError;
use layout::units::Stripe;

/// Retires the record of a stripe whose last write failed or was refused, before anything is made from the stripe: replayed
/// later, the record would change data under the parity of a newer record. The stripe stays in doubt until parity agrees.
pub(in crate::stripe) async fn retire_incomplete_records<D: Device>(
    log: &RedoLog<D>,
    stripe: Stripe,
) -> Result<(), VolumeError> {
    match !log.shared.members.plain() && log.shared.redo.has_incomplete(stripe) {
        true => Box::pin(outlive_records(log)).await,
        false => Ok(()),
    }
}

/// Returns when all records that were begun before this call are retired, if the log is in force.
pub(crate) async fn outlive_records<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    let redo = &log.shared.redo;
    let begun = redo.state.lock().next_sequence;
    let written = |state: &mut State| {
        let over =
            state.phase != LogPhase::InForce || state.slots.written_below(state.next_sequence) >= begun;
        over.then_some(())
    };
    redo.when(written).await;
    empty(log).await
}

/// Frees every slot whose writes have been made, if the log is in force.
pub(crate) async fn empty<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    let in_force = log.shared.redo.when(|state| {
        if state.phase != LogPhase::InForce {
            return Some(false);
        }
        let free = !state.retiring;
        state.retiring = true;
        free.then_some(true)
    });
    if in_force.await { retire_exclusively(log).await } else { Ok(()) }
}

/// Retires records; the caller has set `retiring`, so that no other task does.
pub(super) async fn retire_exclusively<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    let result = retire(log).await;
    let mut state = log.shared.redo.state.lock();
    state.retiring = false;
    wake_all(state);
    result
}

/// Flushes the writes of finished records, raises the retired sequence number in the headers, and frees the slots.
async fn retire<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    let redo = &log.shared.redo;
    let below = {
        let state = redo.state.lock();
        state.slots.written_below(state.next_sequence)
    };
    // Invariant 8: the superblocks record a member that failed since these records, or fails in this flush, before the
    // records that could make up for it are gone.
    flush_volume(log).await?;
    let _announcing = redo.announce().await;
    {
        // The superblock writer may have retired more records since, when it wrote clean (`Redo::all_durable`).
        let retired_below = &mut redo.state.lock().retired_below;
        *retired_below = below.max(*retired_below);
    }
    write_headers(log, true).await?;
    {
        let state = &mut *redo.state.lock();
        state.slots.retire(below);
        state.kept.retire(below);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::slots::Next;
    use super::super::state::Redo;
    use super::empty;
    use crate::stripe::fake::World;
    use layout::geometry::Level;
    use std::rc::Rc;

    /// Seed 611977: records were being retired while superblocks were written as clean, and the next header brought back
    /// records that those had retired.
    #[test]
    fn what_was_done_with_when_superblocks_said_clean_stays_so() {
        let world = World::logging(Level::Raid5, 3);
        let (redo, members) = (&world.set.shared.redo, &world.set.shared.members);
        members.metadata_written(members.metadata_version());
        let Some(Next::Taken(taken)) = Redo::take(&mut redo.state.lock()) else { panic!("a free slot") };
        let (set, retiring) = (Rc::clone(&world.set), Rc::clone(&world.set));
        world.run(async move {
            let redo = &set.shared.redo;
            let announcing = redo.announce().await;
            let retired = set.executor.spawn_with_result(async move { empty(retiring.redo_log()).await });
            for _ in 0..20 {
                crate::executor::yield_now().await; // it waits for the headers, and knows of an open record
            }
            redo.written(taken);
            redo.all_durable();
            drop(announcing);
            retired.await.expect("headers are written");
        });
        let state = redo.state.lock();
        assert_eq!(state.retired_below, state.next_sequence);
    }
}
