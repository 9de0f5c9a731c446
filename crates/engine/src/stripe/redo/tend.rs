//! The task that puts the log in force when members are missing or about to be, and ends it when the array is whole.

use std::rc::Rc;
use std::task::Poll;

use super::headers::{flush_volume, settle, write_headers};
use super::kept::Kept;
use super::log::RedoLog;
use super::slots::LogSlots;
#[cfg(doc)]
use super::state::Redo;
use super::state::{Due, LogPhase, wake_all};
use crate::device::Device;
use crate::error::VolumeError;
use crate::events::Event;
use crate::stripe::stripe_table::Owner;
use crate::stripe::unit_number::UnitNumber;
use layout::redo_log::SlotPlan;
use layout::units::Slot;

/// Opens and closes the log as members come and go, until [`Redo::stop`]. The superblock writer runs it beside itself.
pub(crate) async fn tend<D: Device>(log: Rc<RedoLog<D>>) {
    let (redo, members) = (&log.shared.redo, &log.shared.members);
    loop {
        let due = redo.when(|state| state.due(members)).await;
        let version = members.metadata_version();
        let result = match due {
            Due::Open => open_when_drained(&log).await,
            Due::Close => close(&log).await,
            Due::Stop => return,
        };
        if result.is_err() {
            redo.state.lock().gave_up_at = Some(version);
        }
    }
}

/// Puts the log in force once no unlogged write is in flight and everything written is durable.
async fn open_when_drained<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    let shared = &*log.shared;
    // The superblocks record the member's failure first: see `write_logged`.
    settle(log).await?;
    drained(log).await;
    if shared.redo.is_announced() {
        return Ok(());
    }
    // A member that fails in this flush may have lost unlogged writes: the superblocks record that too before the log is in
    // force.
    let flushed = flush_volume(log).await;
    let _announcing = shared.redo.announce().await;
    match flushed {
        Ok(()) => open(log, false).await,
        Err(error) => no_room(log, &error.to_string()),
    }
    Ok(())
}

/// Waits until every present owner of a stripe has released it or waits at the gate: later owners see that writes are to be
/// logged. Ends at once when another task has put the log in force: owners then write behind the gate, and may themselves
/// wait for the log to move.
async fn drained<D: Device>(log: &RedoLog<D>) {
    let table = &log.shared.table;
    let mut stripes: Vec<(UnitNumber, Option<Owner>)> =
        table.owned().into_iter().map(|unit| (unit, None)).collect();
    std::future::poll_fn(|context| {
        let mut state = log.shared.redo.state.lock();
        stripes.retain_mut(|(unit, owner)| {
            !state.parked.contains(&unit.stripe()) && !table.wake_at_release(*unit, owner, context.waker())
        });
        if stripes.is_empty() || state.phase != LogPhase::Off {
            return Poll::Ready(());
        }
        state.waiting.push(context.waker().clone());
        Poll::Pending
    })
    .await;
}

/// Puts the log in force. The caller holds [`Redo::announce`]; no unlogged write is in flight, and everything written is
/// durable. Without room writes go ahead unlogged. `is_announced`: headers say that a log is in force; without room they
/// first say that it is over.
pub(crate) async fn open<D: Device>(log: &RedoLog<D>, is_announced: bool) {
    let shared = &*log.shared;
    doubt_suspects(log);
    let has_room = {
        let mut state = shared.redo.state.lock();
        if state.phase != LogPhase::Off || !shared.members.want_log() {
            return;
        }
        let logs: Vec<Slot> = state.candidates(&shared.members).collect();
        let areas = logs.iter().filter_map(|slot| Some(state.members[slot.index()]?.area.bytes));
        let plan = areas.min().and_then(|bytes| SlotPlan::new(shared.geometry.members(), bytes));
        let plan = plan.filter(|_| logs.len() >= shared.members.copies_wanted() as usize);
        if let Some(plan) = plan {
            state.slots = LogSlots::new(plan.slots);
            state.plan = Some(plan);
            state.logs = logs;
            state.epoch = state.epoch.max(state.events) + 1;
            state.retired_below = state.next_sequence;
            state.kept = Kept::default();
        }
        plan.is_some()
    };
    if !has_room {
        if is_announced {
            // An error is safe to ignore: a member that does not take the header fails, and the superblocks that record the
            // failure, before any write is acknowledged, match no header.
            let _ = write_headers(log, false).await;
            shared.members.set_logged(false);
        }
        return no_room(log, "there is too little room before the members' data");
    }
    if let Err(error) = write_headers(log, true).await {
        return no_room(log, &error.to_string());
    }
    // Before the gate opens: every write that passes it must be logged.
    shared.members.set_logged(true);
    let mut state = shared.redo.state.lock();
    if state.phase == LogPhase::Off {
        state.phase = LogPhase::InForce;
    }
    wake_all(state);
    shared.members.report(Event::RedoLogInForce {});
}

/// Puts suspect stripes in doubt: a header records doubt, not suspicion.
pub(crate) fn doubt_suspects<D: Device>(log: &RedoLog<D>) {
    log.shared
        .consistency
        .suspect_units()
        .into_iter()
        .for_each(|unit| log.shared.consistency.doubt_stripe(unit.stripe()));
}

fn no_room<D: Device>(log: &RedoLog<D>, reason: &str) {
    let mut state = log.shared.redo.state.lock();
    if state.phase == LogPhase::Off {
        state.phase = LogPhase::NoRoom;
    }
    wake_all(state);
    log.shared.members.report(Event::RedoLogAbsent { reason: reason.to_string() });
}

/// Ends the log: its writes are durable, and a header says that it is over before the first write goes unlogged.
async fn close<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    let redo = &log.shared.redo;
    {
        let mut state = redo.state.lock();
        if state.phase != LogPhase::InForce {
            return Ok(());
        }
        state.phase = LogPhase::Closing;
    }
    let result = empty_and_end(log).await;
    let mut state = redo.state.lock();
    if state.phase == LogPhase::Closing {
        state.phase = if result.is_ok() { LogPhase::Off } else { LogPhase::InForce };
    }
    wake_all(state);
    result
}

async fn empty_and_end<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    let redo = &log.shared.redo;
    redo.when(|state| (state.active == 0).then_some(())).await;
    flush_volume(log).await?;
    let _announcing = redo.announce().await;
    let wanted = log.shared.members.want_log();
    {
        let mut state = redo.state.lock();
        state.retired_below = state.next_sequence;
        if wanted {
            // The log comes into force again at once, on other members. The old headers count until the new ones are
            // written.
            state.phase = LogPhase::Off;
        }
    }
    if wanted {
        open(log, true).await;
        return Ok(());
    }
    write_headers(log, false).await?;
    log.shared.members.set_logged(false);
    log.shared.members.report(Event::RedoLogOver {});
    Ok(())
}
