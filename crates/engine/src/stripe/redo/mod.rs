//! The redo log of an array with members missing: the writes of a stripe are durable in the log before the first of
//! them goes out, so that after a crash they are made again and no missing chunk is lost with them (invariants 2, 6
//! and 10). A healthy array never comes here: the write path asks [`Members::plain`] and goes on.
//!
//! - **Who is logged.** From the moment a member fails, writes wait at a gate before they touch their stripe
//!   ([`Redo::admit`]). Stripe writes that were on their way unlogged end first, all is flushed, and then a header on
//!   the members says that the log is in force ([`tend()`]). From there on every stripe in flight has a record, so a
//!   stripe without one is consistent. When the array is whole again the gate closes once more, until a header says
//!   that the log is over. Before an operator takes a member out of use the same is done, if there is time.
//! - **What is logged.** Data and parity as they are to be; where no other member may fail and the missing chunk is
//!   written, its contents alone ([`cut`](mod@cut)). After a crash parity is made of them.
//! - **Order.** Record durable, then the stripe's writes ([`write`](mod@write)). A slot is used again only after those
//!   writes are durable and a header says that records below a number are done with ([`slots`]): an old record is
//!   never redone over newer contents. Records of one stripe are in the order of its owners.
//! - **Whose log.** The header names the superblock beside it by its digest, the old and the new one while superblocks
//!   are written ([`announce`]). Whoever else runs the array changes the superblock, and the log is old.
//!
//! [`Members::plain`]: crate::members::Members::plain

mod again;
mod announce;
mod cut;
mod slots;
mod tend;
mod write;

use parking_lot::Mutex;
use std::collections::HashSet;
use std::ops::Range;
use std::task::{Context, Poll, Waker};

use super::doubts::Doubts;
use crate::members::{Members, MetadataLost};
use layout::redo_log::{RedoArea, SlotPlan};
use slots::Slots;

pub(super) use cut::StripeWrites;
pub(crate) use tend::tend;
pub(super) use write::Queue;

/// Where the log of a member is, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedoMember {
    /// Room on the device.
    pub area: RedoArea,
    /// The array.
    pub set_uuid: [u8; 16],
    /// The member.
    pub device_uuid: [u8; 16],
    /// [`layout::md_superblock::Superblock::digest`] of its superblock on disk.
    pub digest: u32,
}

/// What an earlier run left: this run's numbers are higher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedoStart {
    /// Highest generation of a header.
    pub generation: u64,
    /// Highest epoch.
    pub epoch: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No log is kept, whatever happens to the members.
    Unused,
    /// Not in force. While members are missing or about to be, writes wait.
    Off,
    /// Every write is logged.
    InForce,
    /// It is about to be over; writes wait.
    Closing,
    /// Members are missing and there is no room: writes go on, and a crash leaves stripes in doubt.
    NoRoom,
    /// The superblocks cannot be written: writes fail.
    Lost,
}

/// The log of an array, shared by all shards.
pub struct Redo {
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    members: Vec<Option<RedoMember>>,
    /// Digests that are about to be on disk, by slot.
    next_digests: Vec<u32>,
    events: u64,
    generation: u64,
    epoch: u64,
    next_sequence: u64,
    retired_below: u64,
    plan: Option<SlotPlan>,
    /// Slots of the array whose members have the log.
    logs: Vec<u32>,
    slots: Slots,
    /// Stripe writes that were admitted and are not done.
    active: u64,
    /// Stripes whose owners wait at the gate: nothing of theirs is on its way.
    parked: HashSet<u64>,
    announcing: bool,
    retiring: bool,
    stopped: bool,
    /// Members' metadata version at which the last opening or closing failed.
    gave_up_at: Option<u64>,
    waiting: Vec<Waker>,
}

/// How a write may touch its stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admitted {
    /// After its record is durable.
    Logged,
    /// At once.
    Unlogged,
}

impl Redo {
    pub(super) fn new(slots: u32) -> Self {
        let slots = slots as usize;
        Redo {
            state: Mutex::new(State {
                phase: Phase::Unused,
                members: vec![None; slots],
                next_digests: vec![0; slots],
                events: 0,
                generation: 0,
                epoch: 0,
                next_sequence: 1,
                retired_below: 0,
                plan: None,
                logs: Vec::new(),
                slots: Slots::default(),
                active: 0,
                parked: HashSet::new(),
                announcing: false,
                retiring: false,
                stopped: false,
                gave_up_at: None,
                waiting: Vec::new(),
            }),
        }
    }

    /// From here on a log is kept while members are missing. Whoever calls this keeps the superblocks; `events` is theirs.
    pub(crate) fn begin(&self, start: RedoStart, events: u64) {
        let mut state = self.state.lock();
        state.phase = Phase::Off;
        state.events = events;
        state.generation = state.generation.max(start.generation);
        state.epoch = state.epoch.max(start.epoch);
    }

    /// The member in `slot` has room for a log, or not.
    pub(crate) fn set_member(&self, slot: u32, member: Option<RedoMember>) {
        let mut state = self.state.lock();
        state.members[slot as usize] = member;
        // The slots were laid out for the member that was here.
        state.logs.retain(|other| *other != slot);
    }

    /// The member in `slot` is about to go, and its log with it: returns when enough others have the log, or none will be put
    /// on others. Without any header that goes with the superblocks a crash would leave every stripe in doubt.
    pub(crate) async fn ready_without(&self, slot: u32, members: &Members) {
        self.when(|state| {
            let is_announced = matches!(state.phase, Phase::InForce | Phase::Closing) && !state.stopped;
            let others = state.logs_in_use(members).filter(|other| *other != slot).count();
            let is_enough = state.phase == Phase::InForce && others >= members.copies_wanted() as usize;
            let gave_up = state.gave_up_at == Some(members.metadata_version());
            let is_coming = state.phase == Phase::Closing
                || state.candidates(members).any(|other| other != slot && !state.logs.contains(&other));
            (!is_announced || is_enough || gave_up || !is_coming).then_some(())
        })
        .await;
    }

    /// The log of the member in a slot, if it has room for one.
    pub(crate) fn member(&self, slot: u32) -> Option<RedoMember> {
        self.state.lock().members[slot as usize]
    }

    /// Whether every write is logged before it touches its stripe.
    pub fn in_force(&self) -> bool {
        self.state.lock().phase == Phase::InForce
    }

    /// Whether headers on the members say that it is in force.
    pub fn is_announced(&self) -> bool {
        matches!(self.state.lock().phase, Phase::InForce | Phase::Closing)
    }

    /// Whether members are missing and there is no room for a log.
    pub fn has_no_room(&self) -> bool {
        self.state.lock().phase == Phase::NoRoom
    }

    /// Whether a log is kept when members are missing.
    pub fn is_used(&self) -> bool {
        self.state.lock().phase != Phase::Unused
    }

    /// The superblocks cannot be written any more: writes fail.
    pub(crate) fn lost(&self) {
        let mut state = self.state.lock();
        if state.phase != Phase::Unused {
            state.phase = Phase::Lost;
        }
        wake_all(state);
    }

    /// Waits until a member may be taken out of use: writes are logged, or will not be.
    pub(crate) async fn ready_for_failure(&self, members: &Members) {
        self.when(|state| {
            let is_late = state.gave_up_at == Some(members.metadata_version());
            let is_coming = matches!(state.phase, Phase::Off | Phase::Closing) && !state.stopped;
            (!is_coming || is_late).then_some(())
        })
        .await;
    }

    /// Something changed that [`tend()`] may have to act on.
    pub(crate) fn poke(&self) {
        wake_all(self.state.lock());
    }

    /// [`tend()`] ends.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        wake_all(state);
    }

    /// Waits until the owner of these stripes may touch them. After `Logged` it calls [`Redo::done`] when its writes
    /// returned.
    pub(super) async fn admit(
        &self,
        members: &Members,
        stripes: Range<u64>,
    ) -> Result<Admitted, MetadataLost> {
        let mut parked = false;
        std::future::poll_fn(|context| {
            let mut state = self.state.lock();
            let admitted = match state.phase {
                Phase::Unused | Phase::NoRoom => Some(Ok(Admitted::Unlogged)),
                Phase::Off if !members.want_log() => Some(Ok(Admitted::Unlogged)),
                Phase::InForce => Some(Ok(Admitted::Logged)),
                Phase::Lost => Some(Err(MetadataLost)),
                Phase::Off | Phase::Closing => None,
            };
            let Some(admitted) = admitted else {
                let first = !std::mem::replace(&mut parked, true);
                state.parked.extend(stripes.clone());
                if first {
                    state.wake(); // who drains may go on
                }
                state.waiting.push(context.waker().clone());
                return Poll::Pending;
            };
            if parked {
                state.parked.retain(|stripe| !stripes.contains(stripe));
            }
            state.active += u64::from(admitted == Ok(Admitted::Logged));
            Poll::Ready(admitted)
        })
        .await
    }

    /// Too few members took a record: returns when that is different, or [`tend()`] has begun to put the log on others.
    /// The owner asks to be admitted again.
    async fn another_log(&self, members: &Members) {
        self.poke();
        self.when(|state| (state.phase != Phase::InForce || state.has_enough_logs(members)).then_some(()))
            .await;
    }

    /// The writes of an admitted owner have returned.
    pub(super) fn done(&self) {
        let mut state = self.state.lock();
        state.active -= 1;
        if state.active == 0 {
            wake_all(state);
        }
    }

    /// Waits until `ready` gives something.
    async fn when<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> T {
        std::future::poll_fn(|context| self.poll_when(context, &mut ready)).await
    }

    fn poll_when<T>(
        &self,
        context: &mut Context<'_>,
        ready: impl FnOnce(&mut State) -> Option<T>,
    ) -> Poll<T> {
        let mut state = self.state.lock();
        match ready(&mut state) {
            Some(value) => Poll::Ready(value),
            None => {
                state.waiting.push(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl std::fmt::Debug for Redo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        f.debug_struct("Redo")
            .field("phase", &state.phase)
            .field("epoch", &state.epoch)
            .field("next_sequence", &state.next_sequence)
            .field("retired_below", &state.retired_below)
            .field("logs", &state.logs)
            .field("active", &state.active)
            .field("parked", &state.parked)
            .field("announcing", &state.announcing)
            .field("retiring", &state.retiring)
            .field("gave_up_at", &state.gave_up_at)
            .finish_non_exhaustive()
    }
}

impl State {
    /// Wakes whoever waits, with the lock held: for wakers that only queue a task.
    fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }

    /// The stripes in doubt as the header has room for them.
    fn doubts(doubts: &Doubts) -> Vec<layout::redo_log::StripeRange> {
        doubts.ranges(layout::redo_log::DOUBTS_MAX)
    }
}

fn wake_all(mut state: parking_lot::MutexGuard<'_, State>) {
    let waiting = std::mem::take(&mut state.waiting);
    drop(state);
    waiting.into_iter().for_each(Waker::wake);
}
