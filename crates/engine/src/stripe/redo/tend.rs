//! Puts the log in force when members are missing or about to be, and ends it when the array is whole.

use std::rc::Rc;
use std::task::Poll;

use super::headers::{flush_volume, settle, write_headers};
use super::log::RedoLog;
use super::slots::Slots;
#[cfg(doc)]
use super::state::Redo;
use super::state::{Due, Phase, wake_all};
use crate::device::Device;
use crate::error::VolumeError;
use crate::events::Event;
use crate::stripe::stripe_table::Owner;
use layout::redo_log::SlotPlan;

/// Looks after the log until [`Redo::stop`]. Runs beside the superblock writer.
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

/// Puts the log in force when no unlogged write is on its way any more and all is durable.
async fn open_when_drained<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    let shared = &*log.shared;
    // The failure itself is on disk first: see `write_logged`.
    settle(log).await?;
    drained(log).await;
    if shared.redo.is_announced() {
        return Ok(());
    }
    // A member that fails now may have lost what was written before the log: that is told, too, before it is in force.
    let flushed = flush_volume(log).await;
    let _announcing = shared.redo.announce().await;
    match flushed {
        Ok(()) => open(log, false).await,
        Err(error) => no_room(log, &error.to_string()),
    }
    Ok(())
}

/// Waits until everyone who owns a stripe now has released it, or waits at the gate. A claim that comes later sees that
/// writes want to be logged. Nobody is waited for when somebody else has put the log in force: stripes change hands
/// then, and their owners may wait for another log.
async fn drained<D: Device>(log: &RedoLog<D>) {
    let table = &log.shared.table;
    let mut stripes: Vec<(u64, Option<Owner>)> =
        table.owned().into_iter().map(|stripe| (stripe, None)).collect();
    std::future::poll_fn(|context| {
        let mut state = log.shared.redo.state.lock();
        stripes.retain_mut(|(stripe, owner)| {
            !state.parked.contains(stripe) && !table.wake_at_release(*stripe, owner, context.waker())
        });
        if stripes.is_empty() || state.phase != Phase::Off {
            return Poll::Ready(());
        }
        state.waiting.push(context.waker().clone());
        Poll::Pending
    })
    .await;
}

/// Puts the log in force. Nothing unlogged is on its way, all is durable, and the caller holds
/// [`Redo::announce`]. Without room writes go on unlogged; if headers say that another log is in force, they say that it
/// is over before.
pub(crate) async fn open<D: Device>(log: &RedoLog<D>, is_announced: bool) {
    let shared = &*log.shared;
    doubt_suspects(log);
    let has_room = {
        let mut state = shared.redo.state.lock();
        if state.phase != Phase::Off || !shared.members.want_log() {
            return;
        }
        let logs: Vec<u32> = state.candidates(&shared.members).collect();
        let areas = logs.iter().filter_map(|slot| Some(state.members[*slot as usize]?.area.bytes));
        let plan = areas.min().and_then(|bytes| SlotPlan::new(shared.geometry.members(), bytes));
        let plan = plan.filter(|_| logs.len() >= shared.members.copies_wanted() as usize);
        if let Some(plan) = plan {
            state.slots = Slots::new(plan.slots);
            state.plan = Some(plan);
            state.logs = logs;
            state.epoch = state.epoch.max(state.events) + 1;
            state.retired_below = state.next_sequence;
        }
        plan.is_some()
    };
    if !has_room {
        if is_announced {
            // Who does not take it fails, and no write is acknowledged before superblocks that go with no header.
            let _ = write_headers(log, false).await;
            shared.members.set_logged(false);
        }
        return no_room(log, "there is too little room before the members' data");
    }
    if let Err(error) = write_headers(log, true).await {
        return no_room(log, &error.to_string());
    }
    // Before the gate opens: whoever comes through it is logged.
    shared.members.set_logged(true);
    let mut state = shared.redo.state.lock();
    if state.phase == Phase::Off {
        state.phase = Phase::InForce;
    }
    wake_all(state);
    shared.members.report(Event::RedoLogInForce {});
}

/// Stripes whose last write failed half way are in doubt.
pub(crate) fn doubt_suspects<D: Device>(log: &RedoLog<D>) {
    log.shared
        .consistency
        .suspect_stripes()
        .into_iter()
        .for_each(|stripe| log.shared.consistency.doubt_stripe(stripe));
}

fn no_room<D: Device>(log: &RedoLog<D>, reason: &str) {
    let mut state = log.shared.redo.state.lock();
    if state.phase == Phase::Off {
        state.phase = Phase::NoRoom;
    }
    wake_all(state);
    log.shared.members.report(Event::RedoLogAbsent { reason: reason.to_string() });
}

/// Ends the log: what it asked for is durable, and a header says so before the first write goes unlogged.
async fn close<D: Device>(log: &RedoLog<D>) -> Result<(), VolumeError> {
    let redo = &log.shared.redo;
    {
        let mut state = redo.state.lock();
        if state.phase != Phase::InForce {
            return Ok(());
        }
        state.phase = Phase::Closing;
    }
    let result = empty_and_end(log).await;
    let mut state = redo.state.lock();
    if state.phase == Phase::Closing {
        state.phase = if result.is_ok() { Phase::Off } else { Phase::InForce };
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
            // It starts anew at once, on other members. The old headers hold until the new ones are there.
            state.phase = Phase::Off;
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
