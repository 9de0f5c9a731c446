//! Writes of a block that are in flight, and the highest sequence that was applied of them: a completion that comes late
//! never overwrites a newer one (Z-I3). Only blocks with writes in flight are kept, and ranges of zeroes in flight as one
//! each, however long.
//!
//! A write is registered *before* it takes its sequence. So when a write of a higher sequence is applied, every write of a
//! lower one is either registered here, and will see it, or has ended.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

use crate::log::sequence::Sequence;
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicUsize, Ordering::SeqCst};

/// The blocks of one group that have writes in flight. The group's lock is held.
#[derive(Debug, Default)]
pub(super) struct PendingBlocks(SmallVec<[PendingBlock; 2]>);

#[derive(Debug)]
struct PendingBlock {
    block: u64,
    writes: u32,
    applied: Sequence,
    /// None of its writes has a lower sequence.
    floor: Sequence,
}

impl PendingBlock {
    fn apply(&mut self, sequence: Sequence) -> bool {
        let is_newest = self.applied <= sequence;
        if is_newest {
            self.applied = sequence;
        }
        is_newest
    }
}

impl PendingBlocks {
    /// A write of a block begins, whose sequence will be `floor` or a higher one.
    pub(super) fn begin(&mut self, block: u64, floor: Sequence) {
        match self.0.iter_mut().find(|pending| pending.block == block) {
            Some(pending) => pending.writes += 1,
            None => self.0.push(PendingBlock { block, writes: 1, applied: Sequence::default(), floor }),
        }
    }

    /// No write in flight has a lower sequence. None: there is none.
    pub(super) fn floor(&self) -> Option<Sequence> {
        self.0.iter().map(|pending| pending.floor).min()
    }

    /// Whether a range of zeroes is the newest so far of what is in flight to a block of it. If so, it counts as applied.
    pub(super) fn apply(&mut self, block: u64, sequence: Sequence) -> bool {
        self.0.iter_mut().find(|pending| pending.block == block).is_none_or(|own| own.apply(sequence))
    }

    /// The same of a write, which ends with it: those that are in flight still will see it.
    pub(super) fn apply_and_end(&mut self, block: u64, sequence: Sequence) -> bool {
        let at = self.position(block);
        let is_newest = self.0[at].apply(sequence);
        self.end(at);
        is_newest
    }

    /// A write ends, and was not applied.
    pub(super) fn abandon(&mut self, block: u64) {
        self.end(self.position(block));
    }

    fn position(&self, block: u64) -> usize {
        self.0.iter().position(|pending| pending.block == block).expect("a write ends that began")
    }

    fn end(&mut self, at: usize) {
        self.0[at].writes -= 1;
        if self.0[at].writes == 0 {
            self.0.swap_remove(at);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// Zeroes of a range that are in flight.
#[derive(Debug)]
struct PendingRange {
    id: u64,
    blocks: Range<u64>,
    /// Its sequence is this one or a higher one.
    floor: Sequence,
    /// Blocks of the range that were applied meanwhile, each with the highest sequence.
    applied: BTreeMap<u64, Sequence>,
}

/// All ranges of zeroes in flight.
#[derive(Default)]
pub(super) struct PendingRanges {
    count: AtomicUsize,
    ranges: Mutex<(u64, Vec<PendingRange>)>,
}

impl PendingRanges {
    /// Registers a range, before it takes its sequence, which will be `floor` or a higher one.
    pub(super) fn begin(&self, blocks: Range<u64>, floor: Sequence) -> u64 {
        let mut ranges = self.ranges.lock();
        self.count.fetch_add(1, SeqCst);
        ranges.0 += 1;
        let id = ranges.0;
        ranges.1.push(PendingRange { id, blocks, floor, applied: BTreeMap::new() });
        id
    }

    /// Whether any is in flight.
    pub(super) fn any(&self) -> bool {
        self.count.load(SeqCst) > 0
    }

    /// No range in flight that overlaps with this one has a lower sequence. None: there is none.
    pub(super) fn floor(&self, blocks: &Range<u64>) -> Option<Sequence> {
        if !self.any() {
            return None;
        }
        let ranges = self.ranges.lock();
        let overlap = |own: &&PendingRange| own.blocks.start < blocks.end && blocks.start < own.blocks.end;
        ranges.1.iter().filter(overlap).map(|own| own.floor).min()
    }

    /// A write of a block was applied: a range in flight that is older must not overwrite it.
    pub(super) fn note(&self, block: u64, sequence: Sequence) {
        if self.count.load(SeqCst) == 0 {
            return; // a range that begins later takes a higher sequence
        }
        for range in &mut self.ranges.lock().1 {
            if range.blocks.contains(&block) {
                let applied = range.applied.entry(block).or_default();
                *applied = sequence.max(*applied);
            }
        }
    }

    /// Blocks of a part of a range in flight that hold something newer than `sequence`.
    pub(super) fn newer(&self, id: u64, part: &Range<u64>, sequence: Sequence) -> Vec<u64> {
        let ranges = self.ranges.lock();
        let range = ranges.1.iter().find(|range| range.id == id).expect("a range in flight");
        let newer = range.applied.range(part.clone()).filter(|(_, applied)| **applied > sequence);
        newer.map(|(block, _)| *block).collect()
    }

    pub(super) fn end(&self, id: u64) {
        let mut ranges = self.ranges.lock();
        let before = ranges.1.len();
        ranges.1.retain(|range| range.id != id);
        assert_eq!(ranges.1.len() + 1, before, "a range ends once");
        self.count.fetch_sub(1, SeqCst);
    }
}
