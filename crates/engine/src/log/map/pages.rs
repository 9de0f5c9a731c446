//! Groups of the map between memory and the log: which task reads one, when one is written or let go, what a checkpoint takes.

use std::task::{Context, Poll};

use layout::zoned::{BlockPlace, MappingBlock};

use super::group::{Entries, Group, NO_PLACE};
use super::groups::ROOT_BLOCK_GROUPS;
use super::{Map, OutOfMemory};
use crate::log::sequence::Sequence;
use crate::sync::sequential::atomic::Ordering::SeqCst;

/// What a task that needs a group finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// It is in memory.
    There,
    /// Another task reads it: wait with [`Map::read_by_another`].
    Taken,
    /// This task reads it, from the place of this word, and calls [`Map::loaded`] or [`Map::not_loaded`].
    Read(u64),
}

/// What a checkpoint takes of a group.
#[derive(Debug)]
pub struct Snapshot {
    /// Every write up to this one is in it; none that is in flight, or begins later, is among these.
    pub as_of: Sequence,
    /// A block to be written: then [`Map::written`] or [`Map::not_written`] follows. None: what is in the log is right.
    pub block: Option<Vec<u8>>,
    /// The word of the place in the log, if there is no block to be written. None: all zeroes.
    pub place: Option<u64>,
    /// A mapping block that is none any more: the group is all zeroes.
    pub released: Option<u64>,
}

/// What becomes of a group that memory is wanted of.
#[derive(Debug, PartialEq, Eq)]
pub enum Evicted {
    /// It stays: it takes none, or is in use.
    No,
    /// Its memory is free.
    Yes,
    /// It is to be written first: then [`Map::written`] or [`Map::not_written`] follows, and [`Map::let_go`].
    Write(Vec<u8>),
}

/// What is to be written of a group.
#[derive(Debug, PartialEq, Eq)]
pub enum Taken {
    /// It is being written already.
    Busy,
    /// It is all zeroes and needs no mapping block; the word is that of the place of the former one.
    Zeroes(Option<u64>),
    /// Its mapping block: then [`Map::written`] or [`Map::not_written`] follows.
    Block(Vec<u8>),
}

impl Map {
    fn at(&self, group: u64) -> &crate::sync::sequential::Mutex<Group> {
        self.groups.get(group).expect("a group with a mapping block is there")
    }

    /// At a start: a group is what its mapping block says, at the place of this word.
    pub fn put_out(&self, group: u64, place: u64) {
        let mut own = self.groups.made(group).lock();
        (own.entries, own.place) = (Entries::Out, place);
    }

    /// The word of the place of a group's newest mapping block.
    pub fn place_of(&self, group: u64) -> Option<u64> {
        Some(self.groups.get(group)?.lock().place).filter(|place| *place != NO_PLACE)
    }

    /// Whether all groups of a range take memory already.
    pub fn are_in_memory(&self, blocks: std::ops::Range<u64>) -> bool {
        let is_in_memory =
            |group| self.groups.get(group).is_some_and(|own| own.lock().entries.is_in_memory());
        self.parts(blocks).all(|part| is_in_memory(self.group_of(part.start)))
    }

    /// A task needs a group in memory. The caller has pinned what the place is in.
    pub fn claim(&self, group: u64) -> Claim {
        let Some(own) = self.groups.get(group) else { return Claim::There };
        let mut own = own.lock();
        match own.entries {
            Entries::Out if own.is_loading => Claim::Taken,
            Entries::Out => {
                own.is_loading = true;
                Claim::Read(own.place)
            }
            _ => Claim::There,
        }
    }

    /// A group was read.
    pub fn loaded(&self, group: u64, block: &MappingBlock) {
        let mut own = self.at(group).lock();
        assert!(own.is_loading && matches!(own.entries, Entries::Out), "a group is read by one task");
        own.entries = Entries::of(&self.shape, block.words());
        (own.is_loading, own.was_used) = (false, true);
        drop(own);
        self.in_memory.fetch_add(1, SeqCst);
        self.wake(group);
    }

    /// A group could not be read.
    pub fn not_loaded(&self, group: u64) {
        self.at(group).lock().is_loading = false;
        self.wake(group);
    }

    /// Waits until no other task reads a group.
    pub async fn read_by_another(&self, group: u64) {
        std::future::poll_fn(|context| self.poll_until(group, |own| !own.is_loading, context)).await;
    }

    /// Waits until no other task writes the mapping block of a group.
    pub async fn written_by_another(&self, group: u64) {
        std::future::poll_fn(|context| self.poll_until(group, |own| !own.is_writing, context)).await;
    }

    fn poll_until(&self, group: u64, is_over: fn(&Group) -> bool, context: &Context<'_>) -> Poll<()> {
        // Under the lock that the other takes before it wakes this one.
        let own = self.at(group).lock();
        if is_over(&own) {
            return Poll::Ready(());
        }
        self.waiting.lock().push((group, context.waker().clone()));
        Poll::Pending
    }

    fn wake(&self, group: u64) {
        let mut waiting = self.waiting.lock();
        let (now, later) = std::mem::take(&mut *waiting).into_iter().partition(|(of, _)| *of == group);
        *waiting = later;
        drop(waiting);
        let now: Vec<(u64, std::task::Waker)> = now;
        now.into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// Groups that take memory.
    pub fn in_memory(&self) -> usize {
        self.in_memory.load(SeqCst)
    }

    /// Groups that were changed since the last checkpoint that has them.
    pub fn changed(&self) -> usize {
        self.changed.load(SeqCst)
    }

    /// A checkpoint begins: no group is in it yet. On return no task changes an entry that has not seen it. `counted` is called
    /// before any change can come that the checkpoint does not have. Returns its number, and the blocks of the root that it has: the
    /// groups of all others are zeroes.
    pub fn begin_checkpoint(&self, counted: impl FnOnce()) -> (u32, Vec<u64>) {
        self.groups.begin_checkpoint(counted)
    }

    /// The groups of a block of the root.
    pub fn groups_of_root(&self, block: u64) -> std::ops::Range<u64> {
        block * ROOT_BLOCK_GROUPS..((block + 1) * ROOT_BLOCK_GROUPS).min(self.groups())
    }

    /// Blocks of the root, whether or not any of their groups was written.
    pub fn root_blocks(&self) -> u64 {
        self.groups.root_blocks()
    }

    /// The next group after this one that may be in memory, around the end.
    pub fn next_there(&self, group: u64) -> u64 {
        self.groups.next(group + 1)
    }

    /// Passes every place that a group names to `named`, under its lock: whatever changes comes before or after.
    ///
    /// # Errors
    /// It is to be read first.
    pub fn look(&self, group: u64, named: impl FnMut(BlockPlace)) -> Result<(), OutOfMemory> {
        let Some(own) = self.groups.get(group) else { return Ok(()) };
        let own = own.lock();
        let entries = 0..self.shape.entries_per_block() as usize;
        match own.entries {
            Entries::Zeroes => {}
            Entries::Out => return Err(OutOfMemory { group }),
            _ => entries.filter_map(|at| own.entries.get(&self.shape, at)?.place()).for_each(named),
        }
        Ok(())
    }

    /// Takes a group into a checkpoint. None: it is being written already, or `take` has no more sequences.
    ///
    /// What it is as of is a lower bound: where writes are in flight, later ones may be in it, too. A group that waited for a moment
    /// without any might wait for ever, and a write that waits for space would wait for the checkpoint.
    pub fn snapshot(
        &self,
        group: u64,
        cycle: u32,
        take: impl FnOnce() -> Option<Sequence>,
    ) -> Option<Snapshot> {
        let blocks = self.blocks_of(group);
        let mut own = self.at(group).lock();
        if own.is_writing {
            return None;
        }
        // Before the look at what is in flight: whatever begins after it has a higher one.
        let now = take()?;
        let floors = own.pending.floor().into_iter().chain(self.ranges.floor(&blocks));
        let as_of = floors.min().map_or(now, |floor| now.min(Sequence(floor.0.saturating_sub(1))));
        own.cycle = cycle;
        own.was_changed = std::mem::take(&mut own.is_changed);
        if own.was_changed {
            self.changed.fetch_sub(1, SeqCst);
        }
        let mut snapshot = Snapshot { as_of, block: None, place: None, released: None };
        if own.is_dirty {
            match self.take_of(&mut own) {
                Taken::Block(bytes) => snapshot.block = Some(bytes),
                Taken::Zeroes(old) => snapshot.released = old,
                Taken::Busy => unreachable!("it is not being written"),
            }
        } else {
            snapshot.place = Some(own.place).filter(|place| *place != NO_PLACE);
        }
        Some(snapshot)
    }

    /// The mapping block of a group is at the place of this word. Returns the word of the former one.
    pub fn written(&self, group: u64, place: u64) -> Option<u64> {
        let mut own = self.at(group).lock();
        own.is_writing = false;
        let old = std::mem::replace(&mut own.place, place);
        drop(own);
        self.wake(group);
        Some(old).filter(|old| *old != NO_PLACE)
    }

    /// The mapping block of a group could not be written.
    pub fn not_written(&self, group: u64) {
        let mut own = self.at(group).lock();
        (own.is_writing, own.is_dirty) = (false, true);
        self.note_changed(&mut own);
        drop(own);
        self.wake(group);
    }

    /// A group's mapping block is to be written, whether or not the one that it has is right.
    ///
    /// # Errors
    /// It is to be read first.
    pub fn take(&self, group: u64) -> Result<Taken, OutOfMemory> {
        let Some(own) = self.groups.get(group) else { return Ok(Taken::Zeroes(None)) };
        let mut own = own.lock();
        if matches!(own.entries, Entries::Out) {
            return Err(OutOfMemory { group });
        }
        Ok(self.take_of(&mut own))
    }

    fn take_of(&self, own: &mut Group) -> Taken {
        if own.is_writing {
            return Taken::Busy;
        }
        own.is_dirty = false;
        if own.entries.is_in_memory() {
            own.is_writing = true;
            return Taken::Block(own.block(&self.shape));
        }
        Taken::Zeroes(Some(std::mem::replace(&mut own.place, NO_PLACE)).filter(|old| *old != NO_PLACE))
    }

    /// Takes a group out of memory, if it was not used since the hand passed (CLOCK), and need not be written or may be.
    pub fn evict(&self, group: u64, may_write: bool) -> Evicted {
        let Some(own) = self.groups.get(group) else { return Evicted::No };
        let mut own = own.lock();
        if !own.is_idle() || own.is_dirty && !may_write || std::mem::take(&mut own.was_used) {
            return Evicted::No;
        }
        if own.is_dirty {
            let Taken::Block(bytes) = self.take_of(&mut own) else { unreachable!("it takes memory") };
            return Evicted::Write(bytes);
        }
        self.put_away(&mut own);
        Evicted::Yes
    }

    /// A group that was to be let go has been written: if nothing came meanwhile, its memory is free.
    pub fn let_go(&self, group: u64) {
        let mut own = self.at(group).lock();
        if own.is_idle() && !own.is_dirty && !own.was_used {
            self.put_away(&mut own);
        }
    }

    fn put_away(&self, own: &mut Group) {
        own.entries = Entries::Out;
        self.in_memory.fetch_sub(1, SeqCst);
    }

    /// The checkpoint that began last failed: what it took is changed as before.
    pub fn give_up_checkpoint(&self) {
        let cycle = self.groups.cycle();
        for group in self.groups.there().flat_map(|(_, groups)| groups) {
            let mut own = group.lock();
            if own.cycle == cycle && own.was_changed {
                self.note_changed(&mut own);
            }
        }
    }
}
