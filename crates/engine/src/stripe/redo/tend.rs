//! Puts the log in force when members are missing or about to be, and ends it when the array is whole.

use std::rc::Rc;
use std::task::Poll;

use super::slots::Slots;
use super::{Phase, Redo, State};
use crate::device::Device;
use crate::events::Event;
use crate::members::{MemberState, Members};
use crate::stripe::StripeSet;
use crate::stripe::stripe_table::Owner;
use crate::volume::VolumeError;
use layout::redo_log::SlotPlan;

enum Due {
    Open,
    Close,
    Stop,
}

/// Looks after the log until [`Redo::stop`]. Runs beside the keeper of the superblocks.
pub(crate) async fn tend<D: Device>(set: Rc<StripeSet<D>>) {
    let (redo, members) = (&set.shared.redo, &set.shared.members);
    loop {
        let due = redo.when(|state| state.due(members)).await;
        let version = members.metadata_version();
        let result = match due {
            Due::Open => set.open_when_drained().await,
            Due::Close => set.close().await,
            Due::Stop => return,
        };
        if result.is_err() {
            redo.state.lock().gave_up_at = Some(version);
        }
    }
}

impl State {
    fn due(&mut self, members: &Members) -> Option<Due> {
        if self.stopped || self.phase == Phase::Lost {
            return Some(Due::Stop);
        }
        if self.gave_up_at == Some(members.metadata_version()) {
            return None;
        }
        let wanted = members.want_log();
        match self.phase {
            Phase::Off if wanted => Some(Due::Open),
            Phase::NoRoom if !wanted => {
                self.phase = Phase::Off;
                None
            }
            Phase::InForce if !wanted || !self.has_enough_logs(members) => Some(Due::Close),
            // A member that was rebuilt can take part of the log: it starts anew.
            Phase::InForce if self.candidates(members).any(|slot| !self.logs.contains(&slot)) => {
                Some(Due::Close)
            }
            _ => None,
        }
    }

    /// Whether a record gets as many copies as it needs.
    pub(super) fn has_enough_logs(&self, members: &Members) -> bool {
        self.logs_in_use(members).count() >= members.copies_wanted() as usize
    }

    /// Members that have the log.
    pub(super) fn logs_in_use(&self, members: &Members) -> impl Iterator<Item = u32> {
        self.logs.iter().copied().filter(|slot| members.state(*slot) == MemberState::InSync)
    }

    /// Members that can have the log.
    pub(super) fn candidates(&self, members: &Members) -> impl Iterator<Item = u32> {
        let slots = 0..u32::try_from(self.members.len()).expect("few members");
        slots.filter(|&slot| {
            self.members[slot as usize].is_some() && members.state(slot) == MemberState::InSync
        })
    }
}

impl<D: Device> StripeSet<D> {
    /// Puts the log in force when no unlogged write is on its way any more and all is durable.
    async fn open_when_drained(&self) -> Result<(), VolumeError> {
        let shared = &*self.shared;
        // The failure itself is on disk first: see `write_logged`.
        self.settle().await?;
        self.drained().await;
        if shared.redo.is_announced() {
            return Ok(());
        }
        // A member that fails now may have lost what was written before the log: that is told, too, before it is in force.
        let flushed = self.flush_volume().await;
        let _announcing = shared.redo.announce().await;
        match flushed {
            Ok(()) => self.open_redo(false).await,
            Err(error) => self.no_room(&error.to_string()),
        }
        Ok(())
    }

    /// Waits until everyone who owns a stripe now has released it, or waits at the gate. A claim that comes later sees that
    /// writes want to be logged. Nobody is waited for when somebody else has put the log in force: stripes change hands
    /// then, and their owners may wait for another log.
    async fn drained(&self) {
        let table = &self.shared.table;
        let mut stripes: Vec<(u64, Option<Owner>)> =
            table.owned().into_iter().map(|stripe| (stripe, None)).collect();
        std::future::poll_fn(|context| {
            let mut state = self.shared.redo.state.lock();
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
    pub(crate) async fn open_redo(&self, is_announced: bool) {
        let shared = &*self.shared;
        self.doubt_suspects();
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
                let _ = self.write_headers(false).await;
                shared.members.set_logged(false);
            }
            return self.no_room("there is too little room before the members' data");
        }
        if let Err(error) = self.write_headers(true).await {
            return self.no_room(&error.to_string());
        }
        // Before the gate opens: whoever comes through it is logged.
        shared.members.set_logged(true);
        let mut state = shared.redo.state.lock();
        if state.phase == Phase::Off {
            state.phase = Phase::InForce;
        }
        super::wake_all(state);
        shared.members.report(Event::RedoLogInForce {});
    }

    /// Stripes whose last write failed half way are in doubt.
    pub(crate) fn doubt_suspects(&self) {
        self.shared.suspect_stripes().into_iter().for_each(|stripe| self.shared.doubt(stripe));
    }

    fn no_room(&self, reason: &str) {
        let mut state = self.shared.redo.state.lock();
        if state.phase == Phase::Off {
            state.phase = Phase::NoRoom;
        }
        super::wake_all(state);
        self.shared.members.report(Event::RedoLogAbsent { reason: reason.to_string() });
    }

    /// Ends the log: what it asked for is durable, and a header says so before the first write goes unlogged.
    async fn close(&self) -> Result<(), VolumeError> {
        let redo = &self.shared.redo;
        {
            let mut state = redo.state.lock();
            if state.phase != Phase::InForce {
                return Ok(());
            }
            state.phase = Phase::Closing;
        }
        let result = self.empty_and_end().await;
        let mut state = redo.state.lock();
        if state.phase == Phase::Closing {
            state.phase = if result.is_ok() { Phase::Off } else { Phase::InForce };
        }
        super::wake_all(state);
        result
    }

    async fn empty_and_end(&self) -> Result<(), VolumeError> {
        let redo = &self.shared.redo;
        redo.when(|state| (state.active == 0).then_some(())).await;
        self.flush_volume().await?;
        let _announcing = redo.announce().await;
        let wanted = self.shared.members.want_log();
        {
            let mut state = redo.state.lock();
            state.retired_below = state.next_sequence;
            if wanted {
                // It starts anew at once, on other members. The old headers hold until the new ones are there.
                state.phase = Phase::Off;
            }
        }
        if wanted {
            self.open_redo(true).await;
            return Ok(());
        }
        self.write_headers(false).await?;
        self.shared.members.set_logged(false);
        self.shared.members.report(Event::RedoLogOver {});
        Ok(())
    }
}

impl Redo {
    /// Whether the log has to be opened before the first write after a quiet time.
    pub(crate) fn wants_opening(&self, members: &Members) -> bool {
        self.state.lock().phase == Phase::Off && members.want_log()
    }
}
