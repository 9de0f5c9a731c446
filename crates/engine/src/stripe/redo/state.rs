//! The state of the redo log that all shards share: its phase, its gate, its slots, and the contents of its headers.

use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::str::FromStr;
use std::task::{Context, Poll, Waker};

use super::super::consistency::Consistency;
use super::kept::{Kept, KeptStripe};
use super::slots::{LogSlot, LogSlots, Next, Taken};
use crate::error::MetadataLost;
use crate::members::health::{MemberState, Members};
use crate::members::port::MemberWrite;
use layout::redo_log::{RedoArea, SlotPlan};
use layout::units::{DeviceOffset, Slot, Stripe};

/// Where a member's part of the log lies, and the identity that its headers carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedoMember {
    /// The log's area on the device.
    pub area: RedoArea,
    /// UUID of the array.
    pub set_uuid: [u8; 16],
    /// UUID of the member.
    pub device_uuid: [u8; 16],
    /// [`layout::md_superblock::Superblock::digest`] of its superblock on disk.
    pub digest: u32,
}

/// What records hold of writes where no other member may fail.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedoContents {
    /// What tells the missing chunk: a replay reads the other members.
    #[default]
    Lean,
    /// The contents of all writes but beside a missing chunk that is written: a replay reads little.
    Full,
}

impl RedoContents {
    /// All of them.
    pub const ALL: [RedoContents; 2] = [RedoContents::Lean, RedoContents::Full];

    fn name(self) -> &'static str {
        match self {
            RedoContents::Lean => "lean",
            RedoContents::Full => "full",
        }
    }
}

impl fmt::Display for RedoContents {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for RedoContents {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = RedoContents::ALL.into_iter().find(|contents| contents.name() == text);
        found.ok_or_else(|| format!("{text} is nothing that the redo log may hold: lean or full"))
    }
}

/// The highest numbers of earlier runs: this run's are higher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedoStart {
    /// Highest generation of a header.
    pub generation: u64,
    /// Highest epoch.
    pub epoch: u64,
}

/// Whether the log is in force, and what that means for a write at the gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogPhase {
    /// The array keeps no log, whatever happens to its members.
    Unused,
    /// Not in force. Writes wait while members are missing or about to be, else they go ahead unlogged.
    Off,
    /// Every write is logged.
    InForce,
    /// Being ended or moved to other members; writes wait.
    Closing,
    /// Members are missing and no area is large enough: writes go ahead unlogged, and a crash leaves stripes in doubt.
    NoRoom,
    /// The superblocks cannot be written: writes fail.
    Lost,
}

/// The log of an array, shared by all shards.
pub struct Redo {
    pub(super) state: Mutex<State>,
}

pub(super) struct State {
    pub(super) phase: LogPhase,
    pub(super) members: Vec<Option<RedoMember>>,
    /// Digests of the superblocks that are written next, by slot.
    pub(super) next_digests: Vec<u32>,
    pub(super) events: u64,
    pub(super) generation: u64,
    pub(super) epoch: u64,
    pub(super) next_sequence: u64,
    pub(super) retired_below: u64,
    pub(super) plan: Option<SlotPlan>,
    /// From where on a resync is due, for the next headers.
    pub(super) resync_from: Option<Stripe>,
    /// Slots of the array whose members hold the log.
    pub(super) logs: Vec<Slot>,
    pub(super) slots: LogSlots,
    pub(super) contents: RedoContents,
    pub(super) kept: Kept,
    /// Logged stripe writes that were admitted and have not returned.
    pub(super) active: u64,
    /// Stripes whose owners wait at the gate: they have no member write in flight.
    pub(super) parked: HashSet<Stripe>,
    pub(super) announcing: bool,
    pub(super) retiring: bool,
    pub(super) stopped: bool,
    /// Members' metadata version at which the last opening or closing failed.
    pub(super) gave_up_at: Option<u64>,
    pub(super) waiting: Vec<Waker>,
}

/// When an admitted write may touch its stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::stripe) enum Admitted {
    /// After its record is durable.
    Logged,
    /// At once.
    Unlogged,
}

impl Redo {
    pub(in crate::stripe) fn new(slots: u32) -> Self {
        let slots = slots as usize;
        Redo {
            state: Mutex::new(State {
                phase: LogPhase::Unused,
                members: vec![None; slots],
                next_digests: vec![0; slots],
                events: 0,
                generation: 0,
                epoch: 0,
                next_sequence: 1,
                retired_below: 0,
                plan: None,
                resync_from: None,
                logs: Vec::new(),
                slots: LogSlots::default(),
                contents: RedoContents::default(),
                kept: Kept::default(),
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

    /// From here on a log is kept while members are missing. The superblock writer calls this; `events` is the event count
    /// of its superblocks.
    pub(crate) fn begin(&self, start: RedoStart, events: u64) {
        let mut state = self.state.lock();
        state.phase = LogPhase::Off;
        state.events = events;
        state.generation = state.generation.max(start.generation);
        state.epoch = state.epoch.max(start.epoch);
    }

    /// From here on headers say that a resync is due from this stripe on, or none. The superblock writer calls this.
    pub(crate) fn set_resync_from(&self, from: Option<Stripe>) {
        self.state.lock().resync_from = from;
    }

    /// From here on records hold this.
    pub(crate) fn set_contents(&self, contents: RedoContents) {
        self.state.lock().contents = contents;
    }

    /// Sets the log area of the member in `slot`; None: the member has no room for a log.
    pub(crate) fn set_member(&self, slot: Slot, member: Option<RedoMember>) {
        let mut state = self.state.lock();
        state.members[slot.index()] = member;
        // The log's slots were laid out for the area of the former member.
        state.logs.retain(|other| *other != slot);
    }

    /// Called before the member in `slot`, and its log with it, is taken out of use. Returns when enough other members hold
    /// the log, or no more will: with no header that matches a superblock a crash would leave every stripe in doubt.
    pub(crate) async fn ready_without(&self, slot: Slot, members: &Members) {
        self.when(|state| {
            let is_announced = matches!(state.phase, LogPhase::InForce | LogPhase::Closing) && !state.stopped;
            let others = state.logs_in_use(members).filter(|other| *other != slot).count();
            let is_enough = state.phase == LogPhase::InForce && others >= members.copies_wanted() as usize;
            let gave_up = state.gave_up_at == Some(members.metadata_version());
            let is_coming = state.phase == LogPhase::Closing
                || state.candidates(members).any(|other| other != slot && !state.logs.contains(&other));
            (!is_announced || is_enough || gave_up || !is_coming).then_some(())
        })
        .await;
    }

    /// The log area of the member in a slot, if it has one.
    pub(crate) fn member(&self, slot: Slot) -> Option<RedoMember> {
        self.state.lock().members[slot.index()]
    }

    /// Whether every write is logged before it touches its stripe.
    pub fn in_force(&self) -> bool {
        self.state.lock().phase == LogPhase::InForce
    }

    /// Whether headers on the members say that the log is in force.
    pub fn is_announced(&self) -> bool {
        matches!(self.state.lock().phase, LogPhase::InForce | LogPhase::Closing)
    }

    /// Whether members are missing and there is no room for a log.
    pub fn has_no_room(&self) -> bool {
        self.state.lock().phase == LogPhase::NoRoom
    }

    /// Whether a log is kept when members are missing.
    pub fn is_used(&self) -> bool {
        self.state.lock().phase != LogPhase::Unused
    }

    /// The superblocks cannot be written any more: writes fail.
    pub(crate) fn lost(&self) {
        let mut state = self.state.lock();
        if state.phase != LogPhase::Unused {
            state.phase = LogPhase::Lost;
        }
        wake_all(state);
    }

    /// Waits until a member may be taken out of use: the log is in force, or will not be.
    pub(crate) async fn ready_for_failure(&self, members: &Members) {
        self.when(|state| {
            let is_late = state.gave_up_at == Some(members.metadata_version());
            let is_coming = matches!(state.phase, LogPhase::Off | LogPhase::Closing) && !state.stopped;
            (!is_coming || is_late).then_some(())
        })
        .await;
    }

    /// Wakes `tend`: a member's state or log area has changed.
    pub(crate) fn poke(&self) {
        wake_all(self.state.lock());
    }

    /// Ends `tend`.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        wake_all(state);
    }

    /// The gate: returns when the owner of these stripes may touch them. After `Logged` the owner calls [`Redo::done`] when
    /// its writes have returned.
    pub(in crate::stripe) async fn admit(
        &self,
        members: &Members,
        stripes: Range<Stripe>,
    ) -> Result<Admitted, MetadataLost> {
        let mut parked = false;
        std::future::poll_fn(|context| {
            let mut state = self.state.lock();
            let admitted = match state.phase {
                LogPhase::Unused | LogPhase::NoRoom => Some(Ok(Admitted::Unlogged)),
                LogPhase::Off if !members.want_log() => Some(Ok(Admitted::Unlogged)),
                LogPhase::InForce => Some(Ok(Admitted::Logged)),
                LogPhase::Lost => Some(Err(MetadataLost)),
                LogPhase::Off | LogPhase::Closing => None,
            };
            let Some(admitted) = admitted else {
                let first = !std::mem::replace(&mut parked, true);
                state.parked.extend(Stripe::each(stripes.clone()));
                if first {
                    state.wake(); // the drain need not wait for this owner
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

    /// Called when too few members took a record. Returns when enough members hold the log, or `tend` has begun to move it
    /// to others; the owner then asks to be admitted again.
    pub(super) async fn logs_changed(&self, members: &Members) {
        self.poke();
        self.when(|state| (state.phase != LogPhase::InForce || state.has_enough_logs(members)).then_some(()))
            .await;
    }

    /// The writes of an owner that was admitted as `Logged` have returned.
    pub(in crate::stripe) fn done(&self) {
        let mut state = self.state.lock();
        state.active -= 1;
        if state.active == 0 {
            wake_all(state);
        }
    }

    /// Waits until `ready` returns a value.
    pub(super) async fn when<T>(&self, mut ready: impl FnMut(&mut State) -> Option<T>) -> T {
        std::future::poll_fn(|context| self.poll_when(context, &mut ready)).await
    }

    pub(super) fn poll_when<T>(
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

/// The log's slots and headers.
impl Redo {
    /// Waits for the exclusive right to write headers and superblocks.
    pub(crate) async fn announce(&self) -> Announcing<'_> {
        self.when(|state| {
            let free = !state.announcing;
            state.announcing = true;
            free.then_some(())
        })
        .await;
        Announcing(self)
    }

    /// Superblocks with these digests, by slot, are written next; `events` is their event count.
    pub(crate) fn superblocks_to_come(&self, digests: &[(Slot, u32)], events: u64) {
        let mut state = self.state.lock();
        state.events = events;
        for slot in 0..state.members.len() {
            state.next_digests[slot] = state.members[slot].map_or(0, |member| member.digest);
        }
        for &(slot, digest) in digests {
            state.next_digests[slot.index()] = digest;
        }
    }

    /// The superblock of this slot is on disk.
    pub(crate) fn superblock_written(&self, slot: Slot) {
        let state = &mut *self.state.lock();
        if let Some(member) = &mut state.members[slot.index()] {
            member.digest = state.next_digests[slot.index()];
        }
    }

    /// Every write is durable. If none is in flight, no record is needed any more.
    pub(crate) fn all_durable(&self) {
        let mut state = self.state.lock();
        if state.active == 0 {
            state.retired_below = state.next_sequence;
        }
    }

    /// Gives the slot to a record of `writers` writers, which write these stripes.
    pub(super) fn assign(&self, taken: Taken, writers: usize, stripes: Vec<Range<Stripe>>) {
        let slot = &mut self.state.lock().slots.slots[taken.slot as usize];
        (slot.open, slot.stripes) = (writers, stripes);
    }

    /// Frees a slot for which no record was written.
    pub(super) fn give_back(&self, taken: Taken) {
        let mut state = self.state.lock();
        state.slots.slots[taken.slot as usize] = LogSlot::default();
        wake_all(state);
    }

    /// Whether replay would redo a record of this stripe.
    pub(crate) fn has_record(&self, stripe: Stripe) -> bool {
        let state = self.state.lock();
        state.slots.slots.iter().any(|slot| slot.stripes.iter().any(|stripes| stripes.contains(&stripe)))
    }

    /// In these stripes the record's writes were not all made, or were not made at all while some member may hold the
    /// record.
    pub(super) fn mark_incomplete(&self, taken: Taken, stripes: Range<Stripe>) {
        self.state.lock().slots.slots[taken.slot as usize].incomplete.push(stripes);
    }

    /// Whether replay would redo a record whose writes were not all made in this stripe.
    pub(super) fn has_incomplete(&self, stripe: Stripe) -> bool {
        let state = self.state.lock();
        state.slots.slots.iter().any(|slot| slot.incomplete.iter().any(|stripes| stripes.contains(&stripe)))
    }

    /// Whether records tell partial parity where they can.
    pub(super) fn keeps_partial(&self) -> bool {
        self.state.lock().contents == RedoContents::Lean
    }

    /// What records that are not retired told of a stripe, which the caller owns.
    pub(super) fn kept_of(&self, stripe: Stripe) -> KeptStripe {
        self.state.lock().kept.of(stripe)
    }

    /// Whether something is kept of a stripe.
    pub(super) fn keeps_something_of(&self, stripe: Stripe) -> bool {
        self.state.lock().kept.has(stripe)
    }

    /// Whether so much is kept that records are to be retired.
    pub(super) fn keeps_too_much(&self) -> bool {
        self.state.lock().kept.is_full()
    }

    /// A durable record tells of these writes of a stripe, which the caller owns: contents of its missing chunk, and data.
    pub(super) fn keep<'a>(
        &self,
        taken: Taken,
        stripe: Stripe,
        missing: &[MemberWrite],
        data: impl Iterator<Item = &'a MemberWrite>,
    ) {
        self.state.lock().kept.put(stripe, taken.sequence, missing, data);
    }

    /// The stripes are zero, on record.
    pub(super) fn keeps_no_more_of(&self, stripes: &Range<Stripe>) {
        self.state.lock().kept.forget(stripes);
    }

    /// Array slots whose members hold the log.
    pub(super) fn logs(&self) -> SmallVec<[Slot; 8]> {
        SmallVec::from_slice(&self.state.lock().logs)
    }

    /// Where a slot of the log lies on a member's device.
    pub(super) fn slot_place(&self, member: Slot, record_slot: u32) -> Option<(DeviceOffset, RedoMember)> {
        let state = self.state.lock();
        let member = state.members[member.index()]?;
        Some((state.plan?.slot_offset(member.area, record_slot), member))
    }

    /// The stripe writes of one of the record's writers have returned, or will not be made.
    pub(super) fn written(&self, taken: Taken) {
        let mut state = self.state.lock();
        let slot = &mut state.slots.slots[taken.slot as usize];
        assert_eq!(slot.sequence, taken.sequence, "an open slot keeps its record");
        slot.open -= 1;
        if slot.open == 0 {
            wake_all(state);
        }
    }

    /// Takes a free slot, or the task of freeing some. None: wait.
    pub(super) fn take(state: &mut State) -> Option<Next> {
        if let Some(slot) = state.slots.free() {
            let sequence = state.next_sequence;
            state.next_sequence += 1;
            state.slots.slots[slot] = LogSlot { sequence, open: 1, ..LogSlot::default() };
            let slot = u32::try_from(slot).expect("few slots");
            return Some(Next::Taken(Taken { slot, sequence, epoch: state.epoch }));
        }
        if state.retiring || !state.slots.any_to_retire(state.next_sequence) {
            return None;
        }
        state.retiring = true;
        Some(Next::Retire)
    }

    /// Whether the log has to come into force before the next write.
    pub(crate) fn wants_opening(&self, members: &Members) -> bool {
        self.state.lock().phase == LogPhase::Off && members.want_log()
    }

    /// Bytes of contents that one record has room for.
    pub(super) fn payload_bytes(&self) -> usize {
        self.state.lock().plan.expect("a log in force has slots").payload_bytes()
    }
}

/// While it lives no other task writes headers or superblocks.
pub(crate) struct Announcing<'a>(&'a Redo);

impl Drop for Announcing<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.announcing = false;
        wake_all(state);
    }
}

/// What `tend` does next.
pub(super) enum Due {
    Open,
    Close,
    Stop,
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
    /// Wakes every waiting task with the lock held, which the executor's wakers allow: they only queue the task.
    fn wake(&mut self) {
        self.waiting.drain(..).for_each(Waker::wake);
    }

    /// The stripes in doubt, in as many ranges as a header has room for.
    pub(super) fn doubts(consistency: &Consistency) -> Vec<layout::redo_log::StripeRange> {
        consistency.doubts_on_record(layout::redo_log::DOUBTS_MAX)
    }

    pub(super) fn due(&mut self, members: &Members) -> Option<Due> {
        if self.stopped || self.phase == LogPhase::Lost {
            return Some(Due::Stop);
        }
        if self.gave_up_at == Some(members.metadata_version()) {
            return None;
        }
        let wanted = members.want_log();
        match self.phase {
            LogPhase::Off if wanted => Some(Due::Open),
            LogPhase::NoRoom if !wanted => {
                self.phase = LogPhase::Off;
                None
            }
            LogPhase::InForce if !wanted || !self.has_enough_logs(members) => Some(Due::Close),
            // A rebuilt member can hold the log too: end the log and put it in force again on more members.
            LogPhase::InForce if self.candidates(members).any(|slot| !self.logs.contains(&slot)) => {
                Some(Due::Close)
            }
            _ => None,
        }
    }

    /// Whether enough working members hold the log for each record to get its copies.
    pub(super) fn has_enough_logs(&self, members: &Members) -> bool {
        self.logs_in_use(members).count() >= members.copies_wanted() as usize
    }

    /// Working members that hold the log.
    pub(super) fn logs_in_use(&self, members: &Members) -> impl Iterator<Item = Slot> {
        self.logs.iter().copied().filter(|slot| members.state(*slot) == MemberState::InSync)
    }

    /// Working members that have room for the log.
    pub(super) fn candidates(&self, members: &Members) -> impl Iterator<Item = Slot> {
        let has_log = |(slot, log): (Slot, &Option<RedoMember>)| log.as_ref().map(|_| slot);
        let slots = Slot::all().zip(&self.members).filter_map(has_log);
        slots.filter(|&slot| members.state(slot) == MemberState::InSync)
    }
}

pub(super) fn wake_all(mut state: parking_lot::MutexGuard<'_, State>) {
    let waiting = std::mem::take(&mut state.waiting);
    drop(state);
    waiting.into_iter().for_each(Waker::wake);
}
