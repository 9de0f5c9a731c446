//! Copies from and to memory devices, which the reap step makes.
//!
//! Invariant: on one shard a memory device is sequential. Writes are copied in the order of their submission, and so are
//! reads. The two take turns of [`ROUND_BYTES`] each, so that neither keeps the other waiting.

use std::collections::VecDeque;

use super::op::Op;
use super::slots::Slots;

/// Bytes that one round copies, at least one operation. What was read is then used while it is in the processor's own
/// cache: 32 random 64 KiB writes have 4 MiB of old contents in flight, twice the second cache.
///
/// As many waiting bytes of both kinds end a turn of the shard's tasks, so that what a task has just used is copied before
/// the next one pushes it out: whole stripes of 320 KiB, 32 in flight, take a fifth less time for it, and wait less.
const ROUND_BYTES: usize = 128 << 10;

/// How many copies ahead memory is fetched.
const COPIES_AHEAD: usize = 3;

/// Operations on memory devices that wait for their copy.
#[derive(Default)]
pub(super) struct Copies {
    reads: Queue,
    /// Writes, and whatever else changes a memory device.
    writes: Queue,
}

/// What is left of a round.
pub(super) struct Round {
    bytes: usize,
}

impl Copies {
    /// Queues the copy of an operation.
    #[inline]
    pub fn push(&mut self, slot: u32, op: &Op) {
        match op {
            Op::MemoryRead { buffer, .. } => self.reads.push(slot, buffer.len()),
            Op::MemoryWrite { data, .. } => self.writes.push(slot, data.len()),
            Op::ZoneCopy(copy) if copy.is_read() => self.reads.push(slot, copy.bytes as usize),
            Op::ZoneCopy(copy) => self.writes.push(slot, copy.bytes_moved()),
            _ => self.writes.push(slot, 0),
        }
    }

    /// Whether enough bytes wait for a round.
    #[inline]
    pub fn has_round(&self) -> bool {
        self.reads.bytes + self.writes.bytes >= ROUND_BYTES
    }

    pub fn is_empty(&self) -> bool {
        self.writes.slots.is_empty() && self.reads.slots.is_empty()
    }

    /// Makes the next copy in a round of writes and returns its slot, or None when the round is over.
    #[inline]
    pub fn write_next(&mut self, slots: &mut Slots, round: &mut Round) -> Option<u32> {
        let slot = self.writes.pop_in(round)?;
        match &mut slots.get(slot).op {
            Op::MemoryWrite { region, data, offset } => region.write(*offset, data.slices()),
            Op::MemoryClear { region, offset, bytes, clearing } => {
                region.clear(*offset, *bytes, *clearing);
            }
            Op::MemoryFlush { region } => region.count_other(),
            Op::ZoneCopy(copy) => copy.make(),
            _ => unreachable!("reads have a queue of their own"),
        }
        Some(slot)
    }

    /// Makes the next copy in a round of reads and returns its slot, or None when the round is over.
    #[inline]
    pub fn read_next(&mut self, slots: &mut Slots, round: &mut Round) -> Option<u32> {
        let slot = self.reads.pop_in(round)?;
        if let Some(&(later, _)) = self.reads.slots.get(COPIES_AHEAD - 1)
            && let Op::MemoryRead { region, offset, .. } = &slots.get(later).op
        {
            region.prefetch(*offset);
        }
        match &mut slots.get(slot).op {
            Op::MemoryRead { region, buffer, offset } => region.read(*offset, buffer.bytes_mut()),
            Op::ZoneCopy(copy) => copy.make(),
            _ => unreachable!("writes have a queue of their own"),
        }
        Some(slot)
    }
}

impl Round {
    pub fn new() -> Self {
        Round { bytes: ROUND_BYTES }
    }
}

/// Slots and lengths of one kind, in the order of submission.
#[derive(Default)]
struct Queue {
    slots: VecDeque<(u32, usize)>,
    /// The sum of the lengths.
    bytes: usize,
}

impl Queue {
    #[inline]
    fn push(&mut self, slot: u32, bytes: usize) {
        self.slots.push_back((slot, bytes));
        self.bytes += bytes;
    }

    /// Takes the next slot if the round has bytes left.
    #[inline]
    fn pop_in(&mut self, round: &mut Round) -> Option<u32> {
        if round.bytes == 0 {
            return None;
        }
        let (slot, bytes) = self.slots.pop_front()?;
        self.bytes -= bytes;
        round.bytes = round.bytes.saturating_sub(bytes);
        Some(slot)
    }
}
