//! The health of a zoned array's members, shared by all shards. A failure is durable in the superblocks of the others before
//! any acknowledgement relies on it (invariant 8, Z-I2): hence [`LogMembers::settled`] before every acknowledgement.

use crate::device::DeviceError;
use crate::error::MetadataLost;
use crate::events::{Event, EventSink};
use crate::members::metadata::Metadata;
use crate::members::{Failing, MemberState};
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use layout::units::Slot;

/// A slot of the array, or one that it may grow to.
#[derive(Clone, Copy)]
struct Seat {
    /// Never `Recovering`: a member that is behind takes new stripes, and gives the columns that it has.
    state: MemberState,
    /// Segments that were written before it came still lack its column: the array can lose so much less.
    is_behind: bool,
    uuid: [u8; 16],
}

impl Seat {
    const VACANT: Seat = Seat { state: MemberState::Missing, is_behind: false, uuid: [0; 16] };

    fn is_whole(&self) -> bool {
        self.state == MemberState::InSync && !self.is_behind
    }
}

/// All members of a zoned array.
pub struct LogMembers {
    seats: Mutex<Vec<Seat>>,
    losses_survived: usize,
    /// Errors of each member since the start.
    errors: Vec<AtomicU64>,
    /// Slots that segments have columns of: the members of the array.
    width: AtomicUsize,
    /// Slots that superblocks list: more than the width while members are added.
    listed: AtomicUsize,
    /// Members were added, and segments over fewer of them may be there.
    is_growing: AtomicBool,
    /// How often the device of each slot was exchanged: what an operation came to that began before says nothing of the
    /// member that is there now.
    exchanges: Vec<AtomicU64>,
    /// Columns of the newest segment, and how many more are left out of it.
    columns: Mutex<(usize, usize)>,
    /// Counts changes of a state: the write path compares one number.
    changes: AtomicU64,
    metadata: Metadata,
    /// Whether the start is over: until then no superblock calls a member failed, and nothing waits for one.
    serving: AtomicBool,
    /// A member that the array needs failed to flush, or segment numbers have run out.
    read_only: AtomicBool,
    events: EventSink,
}

impl LogMembers {
    /// Members in these states, each with its identity, of an array that may grow to `slots` of them. Those that recover are behind.
    pub fn new(
        members: Vec<(MemberState, [u8; 16])>,
        slots: usize,
        losses_survived: usize,
        events: EventSink,
    ) -> Self {
        let width = members.len();
        let count = slots.max(width);
        let seat = |(state, uuid)| match state {
            MemberState::Recovering => Seat { state: MemberState::InSync, is_behind: true, uuid },
            state => Seat { state, is_behind: false, uuid },
        };
        LogMembers {
            columns: Mutex::new((width, 0)),
            width: AtomicUsize::new(width),
            listed: AtomicUsize::new(width),
            is_growing: AtomicBool::new(false),
            errors: (0..count).map(|_| AtomicU64::new(0)).collect(),
            exchanges: (0..count).map(|_| AtomicU64::new(0)).collect(),
            seats: Mutex::new(
                members.into_iter().map(seat).chain(std::iter::repeat(Seat::VACANT)).take(count).collect(),
            ),
            losses_survived,
            changes: AtomicU64::new(0),
            metadata: Metadata::new(),
            serving: AtomicBool::new(false),
            read_only: AtomicBool::new(false),
            events,
        }
    }

    /// State of a slot. A member that is behind is in sync: it takes part in everything.
    pub fn state(&self, slot: usize) -> MemberState {
        self.seats.lock()[slot].state
    }

    /// Slots that segments have columns of: as many as the array has members.
    pub fn width(&self) -> usize {
        self.width.load(SeqCst)
    }

    /// Slots that the array may grow to without a new map.
    pub fn slots(&self) -> usize {
        self.errors.len()
    }

    /// Whether all members are in sync.
    pub fn are_all_in_sync(&self) -> bool {
        self.in_sync().len() == self.width()
    }

    /// Whether all members are in sync, and none is behind.
    pub fn are_all_whole(&self) -> bool {
        self.seats.lock()[..self.width()].iter().all(Seat::is_whole)
    }

    /// States of all members.
    pub fn states(&self) -> Vec<MemberState> {
        self.seats.lock()[..self.width()].iter().map(|seat| seat.state).collect()
    }

    /// States of all slots that superblocks list, as these and operators are to see them: a member that is behind recovers.
    pub fn shown(&self) -> Vec<MemberState> {
        let shown = |seat: &Seat| if seat.is_behind { MemberState::Recovering } else { seat.state };
        self.seats.lock()[..self.listed.load(SeqCst)].iter().map(shown).collect()
    }

    /// The identity of the member in a slot.
    pub fn uuid(&self, slot: usize) -> [u8; 16] {
        self.seats.lock()[slot].uuid
    }

    /// Slots whose members are in sync (Z-I15: new stripes go to these only).
    pub fn in_sync(&self) -> Vec<usize> {
        let seats = self.seats.lock();
        (0..self.width()).filter(|&slot| seats[slot].state == MemberState::InSync).collect()
    }

    /// Members that are in sync and lack columns of older segments.
    pub fn behind(&self) -> Vec<usize> {
        let seats = self.seats.lock();
        (0..self.width()).filter(|&slot| seats[slot].is_behind).collect()
    }

    /// Counts changes of states.
    pub fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// How often the device of a slot was exchanged.
    pub fn exchanges(&self, slot: usize) -> u64 {
        self.exchanges[slot].load(SeqCst)
    }

    /// Another device has the slot of a member that is out of use, or the same one with other contents. It is out of use
    /// until [`LogMembers::join`].
    ///
    /// # Panics
    /// If the member is in use.
    pub fn exchange(&self, slot: usize, uuid: [u8; 16]) {
        let mut seats = self.seats.lock();
        assert!(seats[slot].state != MemberState::InSync, "a member in use is not exchanged");
        seats[slot] = Seat { state: MemberState::Failed, is_behind: false, uuid };
        self.exchanges[slot].fetch_add(1, SeqCst);
    }

    /// A member takes part from now on, and is behind until [`LogMembers::caught_up`].
    pub fn join(&self, slot: usize) {
        // Counted as not on disk before any shard sees it: nothing that only this member holds is acknowledged too early.
        self.metadata.change();
        let mut seats = self.seats.lock();
        seats[slot].state = MemberState::InSync;
        seats[slot].is_behind = true;
        drop(seats);
        self.changes.fetch_add(1, SeqCst);
        self.metadata.wake_writer();
        self.report(Event::RecoveryStarted { member: Slot::of_index(slot), from_bytes: 0 });
    }

    /// No segment lacks a column of this member any more.
    pub fn caught_up(&self, slot: usize) {
        self.metadata.change();
        let was_behind = std::mem::take(&mut self.seats.lock()[slot].is_behind);
        self.metadata.wake_writer();
        if was_behind {
            self.report(Event::RecoveryFinished { member: Slot::of_index(slot) });
        }
    }

    /// The next superblocks list the first `count` slots, of which those beyond the width have got their devices
    /// ([`LogMembers::exchange`]). No segment has a column of them before [`LogMembers::widen`].
    ///
    /// # Panics
    /// If `count` is more than the slots, or less than the width.
    pub fn list(&self, count: usize) {
        assert!((self.width()..=self.slots()).contains(&count), "{count} of {} slots", self.slots());
        self.metadata.change();
        let mut seats = self.seats.lock();
        seats[self.width()..count].iter_mut().for_each(|seat| seat.state = MemberState::InSync);
        self.listed.store(count, SeqCst);
        drop(seats);
        self.metadata.wake_writer();
    }

    /// Slots that superblocks list, or will.
    pub fn listed(&self) -> usize {
        self.listed.load(SeqCst)
    }

    /// Those that were to be added are not: the next superblocks do not list them.
    pub(super) fn unlist(&self) {
        self.metadata.change();
        let mut seats = self.seats.lock();
        seats[self.width()..].fill(Seat::VACANT);
        self.listed.store(self.width(), SeqCst);
        drop(seats);
        self.metadata.wake_writer();
    }

    /// New segments have columns of all members that superblocks list, durably. False: one of those to be added failed meanwhile.
    pub fn widen(&self, count: usize) -> bool {
        let seats = self.seats.lock();
        if self.listed() != count {
            return false;
        }
        self.is_growing.store(true, SeqCst);
        let before = self.width.swap(count, SeqCst);
        drop(seats);
        self.changes.fetch_add(1, SeqCst);
        self.report(Event::GrowthStarted { from: number(before), to: number(count) });
        true
    }

    /// A start found that the array was growing.
    pub fn go_on_growing(&self) {
        self.is_growing.store(true, SeqCst);
    }

    /// Whether members were added, and segments over fewer of them may be there.
    pub fn is_growing(&self) -> bool {
        self.is_growing.load(SeqCst)
    }

    /// No segment is narrower than the array any more: the next superblocks give it the size that it has room for.
    pub fn has_grown(&self) {
        self.metadata.change();
        self.is_growing.store(false, SeqCst);
        self.metadata.wake_writer();
    }

    /// Takes a member out of use, if the array can do without it: see [`super::shared::LogShared::fail`].
    pub(super) fn fail(&self, slot: usize, reason: &str) -> Failing {
        let mut seats = self.seats.lock();
        if seats[slot].state != MemberState::InSync {
            return Failing::Failed;
        }
        let width = self.width();
        if slot >= width {
            drop(seats);
            self.unlist(); // nothing is on it yet
            return Failing::Failed;
        }
        let others = seats[..width].iter().enumerate().filter(|(other, _)| *other != slot);
        let out = others.filter(|(_, seat)| !seat.is_whole()).count();
        let member = Slot::of_index(slot);
        if out >= self.losses_survived {
            drop(seats);
            self.report(Event::MemberKept { member, reason: reason.to_owned() });
            return Failing::Needed;
        }
        // Counted as not on disk before any shard sees it: no write that relies on it is acknowledged too early.
        self.metadata.change();
        (seats[slot].state, seats[slot].is_behind) = (MemberState::Failed, false);
        self.changes.fetch_add(1, SeqCst);
        let working = seats[..width].iter().filter(|seat| seat.state == MemberState::InSync).count();
        drop(seats);
        self.metadata.wake_writer();
        let working = number(working);
        self.report(Event::MemberFailed { member, reason: reason.to_owned(), working });
        Failing::Failed
    }

    /// Reports an error of a member.
    pub fn note_error(&self, slot: usize, error: &DeviceError) {
        self.errors[slot].fetch_add(1, SeqCst);
        self.report(Event::MemberError {
            member: Slot::of_index(slot),
            kind: error.kind,
            error: error.to_string(),
        });
    }

    /// New segments have `columns` columns, without the `left_out` ones of missing members. Reports a change.
    pub fn note_columns(&self, columns: usize, left_out: usize) {
        if std::mem::replace(&mut *self.columns.lock(), (columns, left_out)) != (columns, left_out) {
            self.report(Event::SegmentsChanged { columns: number(columns), left_out: number(left_out) });
        }
    }

    /// Columns that are left out of the newest segment: the redundancy of what is written is smaller by their number.
    pub fn left_out(&self) -> usize {
        self.columns.lock().1
    }

    /// Errors of a member since the start.
    pub fn errors(&self, slot: usize) -> u64 {
        self.errors[slot].load(SeqCst)
    }

    /// Passes an event to the sink.
    pub fn report(&self, event: Event) {
        (self.events)(event);
    }

    /// The start is over, and the superblocks say that the epoch serves: from here on acknowledgements wait for them.
    pub fn serve(&self) {
        self.serving.store(true, SeqCst);
    }

    /// Waits until every change so far is in the superblocks. A member that fails in a recovery is called failed by the
    /// superblocks that say *served*, before the first request: nothing writes others before.
    ///
    /// # Errors
    /// They cannot be written any more.
    pub async fn settled(&self) -> Result<(), MetadataLost> {
        if self.metadata.is_settled() || !self.serving.load(SeqCst) {
            return Ok(());
        }
        self.metadata.settled().await
    }

    /// Asks for superblocks, and counts what they will say as not on disk until then.
    pub fn want_metadata(&self) {
        self.metadata.change();
        self.metadata.wake_writer();
    }

    /// For the superblock writer: waits until there is a change to write, and returns its version.
    pub async fn metadata_wanted(&self) -> u64 {
        std::future::poll_fn(|context| self.metadata.poll_wanted(context)).await
    }

    /// The superblocks of `version` are on disk.
    pub fn metadata_written(&self, version: u64) {
        self.metadata.written(version);
    }

    /// The superblocks can no longer be written: requests that wait for them fail.
    pub fn metadata_lost(&self) {
        self.metadata.lost();
    }

    /// Refuses writes from now on.
    pub fn set_read_only(&self) {
        self.read_only.store(true, SeqCst);
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(SeqCst)
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).expect("few members")
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    /// A member fails in a recovery: the start goes on, and its superblocks will say so.
    #[test]
    fn nothing_waits_for_superblocks_before_the_array_serves() {
        let members = LogMembers::new(vec![(MemberState::InSync, [1; 16]); 3], 3, 1, Box::new(|_| {}));
        let poll = || pin!(members.settled()).poll(&mut Context::from_waker(Waker::noop()));
        assert_eq!(members.fail(0, "lost"), Failing::Failed);
        assert_eq!(poll(), Poll::Ready(Ok(())));
        members.serve();
        assert_eq!(poll(), Poll::Pending, "from here on a writer is there");
    }

    /// What was written before a member came lacks its columns: the array can lose so much less until they are made.
    #[test]
    fn an_array_does_not_do_without_another_member_while_one_is_behind() {
        let states = [MemberState::InSync, MemberState::Recovering, MemberState::InSync, MemberState::Failed];
        let members = |count: usize| states[..count].iter().map(|state| (*state, [1; 16])).collect();
        let raid5 = LogMembers::new(members(3), 3, 1, Box::new(|_| {}));
        assert_eq!((raid5.state(1), raid5.shown()[1]), (MemberState::InSync, MemberState::Recovering));
        assert_eq!(raid5.fail(0, "lost"), Failing::Needed);
        raid5.caught_up(1);
        assert_eq!(raid5.fail(0, "lost"), Failing::Failed);
        // One that is behind may go itself, and comes back behind.
        let raid6 = LogMembers::new(members(4), 4, 2, Box::new(|_| {}));
        assert_eq!((raid6.fail(0, "lost"), raid6.fail(1, "lost")), (Failing::Needed, Failing::Failed));
        raid6.exchange(1, [2; 16]);
        assert_eq!(raid6.state(1), MemberState::Failed, "until it joins");
        raid6.join(1);
        assert_eq!((raid6.behind(), raid6.uuid(1), raid6.exchanges(1)), (vec![1], [2; 16], 1));
        assert_eq!(raid6.fail(2, "lost"), Failing::Needed);
    }
    /// Superblocks list those that are added before any segment has a column of them, and what fails until then is not missed.
    #[test]
    fn members_are_listed_before_they_are_used() {
        let members = LogMembers::new(vec![(MemberState::InSync, [1; 16]); 3], 6, 1, Box::new(|_| {}));
        members.exchange(3, [4; 16]);
        members.list(4);
        assert_eq!((members.shown().len(), members.in_sync(), members.width()), (4, vec![0, 1, 2], 3));
        assert_eq!(members.fail(3, "lost"), Failing::Failed);
        assert_eq!((members.shown().len(), members.widen(4), members.is_growing()), (3, false, false));
        members.exchange(3, [5; 16]);
        members.list(4);
        assert!(members.widen(4) && members.is_growing());
        assert_eq!((members.in_sync(), members.shown().len()), (vec![0, 1, 2, 3], 4));
        assert_eq!(members.fail(3, "lost"), Failing::Failed);
        assert_eq!(members.fail(0, "lost"), Failing::Needed, "one loss is what the level survives");
    }
}
