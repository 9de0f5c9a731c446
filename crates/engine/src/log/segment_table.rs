//! The segments of an array by their slot in the map, how many live blocks each holds, and the zones that are free.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Poll, Waker};

use super::segment::{Segment, SegmentState};
use super::sequence::Sequence;
use super::zone_budget::{Purpose, ZoneBudget};
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// Numbers that the superblocks reserve at a time.
pub const NUMBERS_RESERVED: u64 = 1024;

/// On cache lines of its own: the open segments of the shards have neighbouring slots, and each write counts.
#[derive(Default)]
#[repr(align(128))]
struct Slot {
    segment: Mutex<Option<Arc<Segment>>>,
    /// Blocks that the map names, and how many of them the checkpoint that is being written does not count: see [`Live`].
    live: AtomicU64,
    /// Blocks that are lists of zeroes or of emptied segments.
    lists: AtomicU64,
    /// Mapping blocks that are the newest of their groups.
    mapping: AtomicU64,
    /// Blocks that a checkpoint needs: its root, its table, and the mapping blocks that the root names.
    pinned: AtomicU64,
    /// The highest sequence of anything that it holds.
    last: AtomicU64,
}

/// Live blocks of a segment, in one word: a checkpoint reads both numbers at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Live {
    /// Blocks that the map names.
    now: u32,
    /// How many more these are than the groups of the checkpoint name, as it has them: changes that came after each.
    late: i32,
}

impl Live {
    /// What is added to the word of a slot for one more block.
    fn one(is_late: bool) -> u64 {
        (1 << 32) + u64::from(is_late)
    }

    fn of(word: u64) -> Live {
        let late = word as u32 as i32;
        Live { now: (word.wrapping_sub(i64::from(late) as u64) >> 32) as u32, late }
    }
}

struct Free {
    /// Free zones of each member, in the order in which they became free: even wear.
    zones: Vec<VecDeque<u32>>,
    slots: FreeSlots,
    budget: ZoneBudget,
    /// Members that the next segment has zones of.
    used: Vec<usize>,
    /// Counts changes.
    version: u64,
    waiting: Vec<Waker>,
}

/// Free slots, in the order in which they became free. A start takes them in any order.
struct FreeSlots {
    queue: VecDeque<u32>,
    is_free: Vec<bool>,
    /// Of each slot, how many of its entries in the queue do not count, since it was taken out of turn.
    stale: Vec<u32>,
    count: usize,
}

impl FreeSlots {
    fn all(slots: u32) -> Self {
        let count = slots as usize;
        FreeSlots { queue: (0..slots).collect(), is_free: vec![true; count], stale: vec![0; count], count }
    }

    fn next(&mut self) -> Option<u32> {
        loop {
            let slot = self.queue.pop_front()?;
            if self.stale[slot as usize] == 0 {
                self.is_free[slot as usize] = false;
                self.count -= 1;
                return Some(slot);
            }
            self.stale[slot as usize] -= 1;
        }
    }

    /// Takes one out of turn. False: it is not free.
    fn take(&mut self, slot: u32) -> bool {
        let at = slot as usize;
        let is_taken = self.is_free.get_mut(at).is_some_and(std::mem::take);
        if is_taken {
            self.stale[at] += 1;
            self.count -= 1;
        }
        is_taken
    }

    fn give_back(&mut self, slot: u32) {
        self.is_free[slot as usize] = true;
        self.queue.push_back(slot);
        self.count += 1;
    }
}

impl Free {
    /// Free zones of the member in use that has the fewest, and no more than there are free slots.
    fn least(&self) -> usize {
        let zones = self.used.iter().map(|member| self.zones[*member].len()).min();
        zones.unwrap_or(0).min(self.slots.count)
    }
}

/// What a new segment gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The map's slot.
    pub slot: u32,
    /// A zone of each member, in the order that was asked for.
    pub zones: Vec<u32>,
}

/// Why a new segment gets nothing now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// A member has no free zone but the reserved ones, or the map no free slot.
    Full {
        /// The member with the fewest.
        member: usize,
    },
    /// Too many zones are active: one that is closed must be finished first (Z-I9).
    Busy,
}

/// All segments.
pub struct SegmentTable {
    slots: Box<[Slot]>,
    /// A bit for each slot that has a segment.
    there: Box<[AtomicU64]>,
    free: Mutex<Free>,
    /// Free zones of the member that has the fewest, of those in use.
    free_least: AtomicUsize,
    next_number: AtomicU64,
    /// Numbers below are reserved in the superblocks (Z-I16).
    numbers_reserved: AtomicU64,
    /// What the next superblocks should reserve.
    numbers_wanted: AtomicU64,
    /// What the start wrote to, and left open.
    handed_over: Mutex<Option<Arc<Segment>>>,
}

impl SegmentTable {
    /// No segments; `zones` are the free ones of each member, and segments are made of the members in `used`. Numbers from `number` on were never used, and none of them is
    /// reserved.
    pub fn new(
        slots: u32,
        zones: Vec<VecDeque<u32>>,
        used: Vec<usize>,
        budget: ZoneBudget,
        number: u64,
    ) -> Self {
        let free =
            Free { zones, slots: FreeSlots::all(slots), budget, used, version: 0, waiting: Vec::new() };
        SegmentTable {
            slots: (0..slots).map(|_| Slot::default()).collect(),
            there: (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            free_least: AtomicUsize::new(free.least()),
            free: Mutex::new(free),
            next_number: AtomicU64::new(number),
            numbers_reserved: AtomicU64::new(number),
            numbers_wanted: AtomicU64::new(number + NUMBERS_RESERVED),
            handed_over: Mutex::new(None),
        }
    }

    /// A start leaves open what it wrote to: reclaim goes on there. Closed, it would cost each start a segment, and after a few starts that
    /// were cut short reclaim would find no segment to begin with (Z-I10).
    pub fn hand_over(&self, segment: Arc<Segment>) {
        *self.handed_over.lock() = Some(segment);
    }

    /// What the start left open, once.
    pub fn take_over(&self) -> Option<Arc<Segment>> {
        self.handed_over.lock().take()
    }

    /// The segment in a slot.
    pub fn get(&self, slot: u32) -> Option<Arc<Segment>> {
        self.slots.get(slot as usize)?.segment.lock().clone()
    }

    /// Whether a segment is in a slot: as [`SegmentTable::get`], without its lock, for each entry of a group of the map.
    pub fn is_there(&self, slot: u32) -> bool {
        let word = self.there.get(slot as usize / 64);
        word.is_some_and(|word| word.load(SeqCst) & 1 << (slot % 64) != 0)
    }

    /// All segments.
    pub fn all(&self) -> Vec<Arc<Segment>> {
        self.slots.iter().filter_map(|slot| slot.segment.lock().clone()).collect()
    }

    /// Segments that take stripes, or have some in flight: what a flush makes durable a part of.
    pub fn unsealed(&self) -> Vec<Arc<Segment>> {
        let is_unsealed =
            |segment: &Arc<Segment>| matches!(segment.state(), SegmentState::Open | SegmentState::Closing);
        self.all().into_iter().filter(is_unsealed).collect()
    }

    /// Puts a segment into its slot, which [`SegmentTable::take`] or [`SegmentTable::take_found`] gave.
    pub fn insert(&self, segment: Arc<Segment>) {
        let number = segment.slot();
        let slot = &self.slots[number as usize].segment;
        let before = slot.lock().replace(segment);
        assert!(before.is_none(), "a slot holds one segment");
        self.there[number as usize / 64].fetch_or(1 << (number % 64), SeqCst);
    }

    /// Blocks of a segment that keep it from being reset: those that the map names, mapping blocks, and what a checkpoint needs.
    pub fn live(&self, slot: u32) -> u64 {
        let slot = &self.slots[slot as usize];
        let mapped = u64::from(Live::of(slot.live.load(SeqCst)).now);
        mapped + slot.mapping.load(SeqCst) + slot.pinned.load(SeqCst)
    }

    /// Blocks of a segment that the map names.
    pub fn mapped(&self, slot: u32) -> u32 {
        Live::of(self.slots[slot as usize].live.load(SeqCst)).now
    }

    /// Blocks that the map names.
    pub fn mapped_blocks(&self) -> u64 {
        (0..self.slots.len()).map(|slot| u64::from(self.mapped(slot as u32))).sum()
    }

    /// Live blocks of all segments.
    pub fn live_blocks(&self) -> u64 {
        (0..self.slots.len()).map(|slot| self.live(slot as u32)).sum()
    }

    /// Blocks of a segment are mapped.
    pub fn add_live(&self, slot: u32, blocks: u64, is_late: bool) {
        self.slots[slot as usize].live.fetch_add(Live::one(is_late).wrapping_mul(blocks), SeqCst);
    }

    /// A block of a segment is not mapped any more.
    pub fn remove_live(&self, slot: u32, is_late: bool) {
        let before = self.slots[slot as usize].live.fetch_sub(Live::one(is_late), SeqCst);
        assert!(Live::of(before).now > 0, "a block dies once");
    }

    /// A checkpoint begins: from here on changes count as late once it has their group.
    pub fn begin_checkpoint(&self) {
        for slot in &self.slots {
            let late = Live::of(slot.live.load(SeqCst)).late;
            slot.live.fetch_sub(i64::from(late) as u64, SeqCst);
        }
    }

    /// Blocks of a segment that the groups of the checkpoint name, as it has them.
    pub fn live_in_checkpoint(&self, slot: u32) -> u32 {
        let Live { now, late } = Live::of(self.slots[slot as usize].live.load(SeqCst));
        now.wrapping_sub(late as u32)
    }

    /// A mapping block in a segment is the newest of its group.
    pub fn add_mapping(&self, slot: u32) {
        self.slots[slot as usize].mapping.fetch_add(1, SeqCst);
    }

    /// Whether a mapping block in a segment is the newest of its group.
    pub fn has_mapping(&self, slot: u32) -> bool {
        self.slots[slot as usize].mapping.load(SeqCst) > 0
    }

    /// A mapping block in a segment is not the newest of its group any more.
    pub fn remove_mapping(&self, slot: u32) {
        let before = self.slots[slot as usize].mapping.fetch_sub(1, SeqCst);
        assert!(before > 0, "a mapping block is superseded once");
    }

    /// A checkpoint needs a block of a segment, whose zones are not reset before it has been superseded.
    pub fn pin(&self, slot: u32) {
        self.slots[slot as usize].pinned.fetch_add(1, SeqCst);
    }

    /// A checkpoint was superseded that needed a block of a segment.
    pub fn unpin(&self, slot: u32) {
        let before = self.slots[slot as usize].pinned.fetch_sub(1, SeqCst);
        assert!(before > 0, "a block is unpinned that was pinned");
    }

    /// Whether the newest checkpoint needs a block of a segment.
    pub fn is_pinned(&self, slot: u32) -> bool {
        self.slots[slot as usize].pinned.load(SeqCst) > 0
    }

    /// A segment holds something of this sequence.
    pub fn note_sequence(&self, slot: u32, sequence: Sequence) {
        self.slots[slot as usize].last.fetch_max(sequence.0, SeqCst);
    }

    /// The highest sequence of anything that a segment holds.
    pub fn last_sequence(&self, slot: u32) -> Sequence {
        Sequence(self.slots[slot as usize].last.load(SeqCst))
    }

    /// Lists that a segment holds. They count until it is emptied.
    pub fn lists(&self, slot: u32) -> u64 {
        self.slots[slot as usize].lists.load(SeqCst)
    }

    /// A list of zeroes or of emptied segments is in a segment.
    pub fn add_list(&self, slot: u32) {
        self.add_lists(slot, 1);
    }

    /// `lists` more of them are.
    pub fn add_lists(&self, slot: u32, lists: u64) {
        self.slots[slot as usize].lists.fetch_add(lists, SeqCst);
    }

    /// Takes a zone of each of `members`, and a slot. User writes leave `kept` zones of each member free (Z-I10).
    ///
    /// # Errors
    /// There are none, or too many are active (Z-I9).
    pub fn take(&self, members: &[usize], kept: usize, purpose: Purpose) -> Result<Taken, NotTaken> {
        let mut free = self.free.lock();
        let least = members.iter().copied().min_by_key(|&member| free.zones[member].len());
        let member = least.expect("a segment has columns");
        if free.zones[member].len() <= kept || free.slots.count == 0 {
            return Err(NotTaken::Full { member });
        }
        if !free.budget.take(members, purpose) {
            return Err(NotTaken::Busy);
        }
        let slot = free.slots.next().expect("not empty");
        let mut zone = |member: &usize| free.zones[*member].pop_front().expect("not empty");
        let zones = members.iter().map(&mut zone).collect();
        self.free_least.store(free.least(), SeqCst);
        Ok(Taken { slot, zones })
    }

    /// Free zones of the member that has the fewest, of those that segments are made of now.
    pub fn free_least(&self) -> usize {
        self.free_least.load(SeqCst)
    }

    /// The member with the fewest free zones, of those that segments are made of now.
    pub fn scarce(&self) -> usize {
        let free = self.free.lock();
        free.used.iter().copied().min_by_key(|member| free.zones[*member].len()).unwrap_or(0)
    }

    /// Wakes those who wait for zones, so that they look again.
    pub fn nudge(&self) {
        Self::wake(self.free.lock());
    }

    /// Whether one more zone of each of `members` may be active now.
    pub fn may_take(&self, members: &[usize]) -> bool {
        self.free.lock().budget.may_take(members, Purpose::Recovery)
    }

    /// Takes the slot that a segment found at a start names. False if another has it.
    pub fn take_found(&self, slot: u32) -> bool {
        self.free.lock().slots.take(slot)
    }

    /// The next segment has zones of these members: what is free is counted over them.
    pub fn use_members(&self, members: &[usize]) {
        let mut free = self.free.lock();
        if free.used != members {
            free.used = members.to_vec();
            self.free_least.store(free.least(), SeqCst);
        }
    }

    /// Another device has the slot of a member that is out of use: these of its zones are free, and none is active.
    pub fn exchange(&self, member: usize, zones: VecDeque<u32>, limit: Option<u32>) {
        let mut free = self.free.lock();
        free.zones[member] = zones;
        free.budget.exchange(member, limit);
        self.free_least.store(free.least(), SeqCst);
        Self::wake(free);
    }

    /// For [`SegmentTable::changed`]: asked before whatever the decision to wait depends on.
    pub fn seen(&self) -> u64 {
        self.free.lock().version
    }

    /// Waits until zones, or the members that have them, have changed since [`SegmentTable::seen`].
    pub async fn changed(&self, seen: u64) {
        std::future::poll_fn(|context| {
            let mut free = self.free.lock();
            if free.version != seen {
                return Poll::Ready(());
            }
            free.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// A zone of a member is full, or set aside, and not active any more.
    pub fn finished(&self, member: usize) {
        let mut free = self.free.lock();
        free.budget.give_back(member);
        Self::wake(free);
    }

    /// A zone of a member is empty.
    pub fn freed(&self, member: usize, zone: u32) {
        let mut free = self.free.lock();
        assert!(!free.zones[member].contains(&zone), "zone {zone} is free once");
        free.zones[member].push_back(zone);
        self.free_least.store(free.least(), SeqCst);
        Self::wake(free);
    }

    /// A slot that was taken is free again: no segment came to be in it.
    pub fn give_back_slot(&self, slot: u32) {
        let mut free = self.free.lock();
        free.slots.give_back(slot);
        self.free_least.store(free.least(), SeqCst);
        Self::wake(free);
    }

    /// A slot is free: all zones of its segment are empty or set aside.
    pub fn remove(&self, slot: u32) {
        assert_eq!(
            self.live(slot),
            0,
            "nothing maps to a segment that goes (Z-I4), no checkpoint needs it (Z-I17)"
        );
        let own = &self.slots[slot as usize];
        [&own.lists, &own.live, &own.last].into_iter().for_each(|count| count.store(0, SeqCst));
        self.there[slot as usize / 64].fetch_and(!(1 << (slot % 64)), SeqCst);
        *own.segment.lock() = None;
        let mut free = self.free.lock();
        free.slots.give_back(slot);
        self.free_least.store(free.least(), SeqCst);
        Self::wake(free);
    }

    fn wake(mut free: impl std::ops::DerefMut<Target = Free>) {
        free.version += 1;
        let waiting = std::mem::take(&mut free.waiting);
        drop(free);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Free zones of each member.
    pub fn free_zones(&self) -> Vec<usize> {
        self.free.lock().zones.iter().map(VecDeque::len).collect()
    }

    /// Active zones of a member.
    pub fn active_zones(&self, member: usize) -> u32 {
        self.free.lock().budget.active(member)
    }

    /// The next segment number, if the superblocks reserve it (Z-I16). None: they are to be written first.
    pub fn take_number(&self) -> Option<u64> {
        let mut next = self.next_number.load(SeqCst);
        while next < self.numbers_reserved.load(SeqCst) {
            match self.next_number.compare_exchange(next, next + 1, SeqCst, SeqCst) {
                Ok(number) => return Some(number),
                Err(now) => next = now,
            }
        }
        self.numbers_wanted.fetch_max(next + NUMBERS_RESERVED, SeqCst);
        None
    }

    /// What superblocks that are written now reserve.
    pub fn numbers_to_reserve(&self) -> u64 {
        self.numbers_wanted.load(SeqCst)
    }

    /// Superblocks that reserve numbers below `number` are durable on all members.
    pub fn numbers_are_reserved(&self, number: u64) {
        self.numbers_reserved.fetch_max(number, SeqCst);
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn slots_are_taken_once_in_whatever_order() {
        let mut slots = FreeSlots::all(4);
        assert_eq!([2, 0, 2, 9].map(|slot| slots.take(slot)), [true, true, false, false]);
        assert_eq!((slots.count, slots.next()), (2, Some(1)));
        slots.give_back(2);
        slots.give_back(0);
        assert!(slots.take(2));
        slots.give_back(2);
        let rest: Vec<u32> = std::iter::from_fn(|| slots.next()).collect();
        assert_eq!((rest, slots.count), (vec![3, 0, 2], 0));
    }
}
