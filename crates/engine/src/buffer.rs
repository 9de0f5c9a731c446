//! Aligned memory for I/O: buffers with one owner, shared slices, and the pool that both return to.
//!
//! Invariants:
//! - A [`Buffer`] has one owner; its address does not change while it lives. A read takes the buffer and gives it back with
//!   the result, so no I/O outlives its memory.
//! - A [`Slice`] is shared and never written again: several members may read it at the same time.
//! - Memory returns to the pool that it came from, last in first out: the next user finds it in the cache.
//! - Memory from a pool is not cleared: its owner fills a buffer before it reads or shares it.

use parking_lot::Mutex;
use smallvec::SmallVec;
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::limits::{BLOCK_BYTES, POOL_CLASS_BLOCKS_MAX};

/// The unit of allocation: a page, aligned to itself, which suits every device with logical blocks up to 4 KiB.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C, align(4096))]
struct Block([u8; BLOCK_BYTES]);

/// Memory, and its index in the ring's table of registered buffers, if it has one.
#[derive(Default)]
struct Memory {
    blocks: Box<[Block]>,
    fixed: Option<u16>,
}

impl Memory {
    fn allocate(blocks: usize) -> Self {
        Self::try_allocate(blocks).expect("allocation of an I/O buffer")
    }

    fn try_allocate(blocks: usize) -> Option<Self> {
        let blocks = <[Block]>::new_box_zeroed_with_elems(blocks).ok()?;
        Some(Memory { blocks, fixed: None })
    }
}

/// Free memory by size class (1, 2, 4, … [`POOL_CLASS_BLOCKS_MAX`] blocks). A pool belongs to one shard; a buffer that is
/// dropped on another shard returns to it, too.
pub struct Pool {
    classes: Vec<Mutex<Vec<Memory>>>,
    /// Most bytes of free buffers in a class. Beyond them memory goes back to the allocator.
    keep_bytes: usize,
}

/// One registered buffer: index in the ring's table, address, length in bytes.
#[derive(Clone, Copy, Debug)]
pub struct FixedRegion {
    /// Index in the ring's table of registered buffers.
    pub index: u16,
    /// First byte; stable for the life of the pool and of every buffer taken from it.
    pub address: usize,
    /// Length in bytes.
    pub bytes: usize,
}

impl Pool {
    /// A pool that keeps at most `keep_bytes` of free memory in each size class.
    pub fn new(keep_bytes: usize) -> Arc<Self> {
        let classes = (0..=POOL_CLASS_BLOCKS_MAX.trailing_zeros()).map(|_| Mutex::new(Vec::new())).collect();
        Arc::new(Pool { classes, keep_bytes })
    }

    /// Takes a buffer of `bytes` bytes. Its contents are unspecified.
    ///
    /// # Panics
    /// There is no memory. Exports therefore try with [`Pool::try_take`] and more, before a request begins.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Buffer {
        self.try_take(bytes).expect("allocation of an I/O buffer")
    }

    /// Takes a buffer of `bytes` bytes, if there is memory for it. Its contents are unspecified.
    pub fn try_take(self: &Arc<Self>, bytes: usize) -> Option<Buffer> {
        let blocks = bytes.div_ceil(BLOCK_BYTES).max(1).next_power_of_two();
        if blocks > POOL_CLASS_BLOCKS_MAX {
            let memory = self.allocate(bytes.div_ceil(BLOCK_BYTES))?;
            return Some(Buffer { memory, bytes, home: None });
        }
        let free = self.classes[blocks.trailing_zeros() as usize].lock().pop();
        let memory = free.map_or_else(|| self.allocate(blocks), Some)?;
        Some(Buffer { memory, bytes, home: Some(Arc::clone(self)) })
    }

    /// Fresh memory. Where none is left, free buffers of all sizes go back to the allocator first.
    fn allocate(&self, blocks: usize) -> Option<Memory> {
        Memory::try_allocate(blocks).or_else(|| {
            self.classes.iter().for_each(|class| class.lock().retain(|memory| memory.fixed.is_some()));
            Memory::try_allocate(blocks)
        })
    }

    /// Allocates `count` buffers of `bytes` bytes for registration with a ring and returns their regions. To be called once for
    /// each size before the pool is used; the indices count up from `first_index`.
    pub fn prefill_fixed(&self, bytes: usize, count: u16, first_index: u16) -> Vec<FixedRegion> {
        let blocks = bytes.div_ceil(BLOCK_BYTES).max(1).next_power_of_two();
        assert!(blocks <= POOL_CLASS_BLOCKS_MAX, "a registered buffer belongs to a size class");
        let mut class = self.classes[blocks.trailing_zeros() as usize].lock();
        (first_index..first_index + count)
            .map(|index| {
                let mut memory = Memory::allocate(blocks);
                memory.fixed = Some(index);
                let address = memory.blocks.as_ptr() as usize;
                class.push(memory);
                FixedRegion { index, address, bytes: blocks * BLOCK_BYTES }
            })
            .collect()
    }

    fn give_back(&self, memory: Memory) {
        let blocks = memory.blocks.len();
        let mut class = self.classes[blocks.trailing_zeros() as usize].lock();
        if memory.fixed.is_some() || (class.len() + 1) * blocks * BLOCK_BYTES <= self.keep_bytes {
            class.push(memory);
        }
    }
}

/// Memory with one owner, aligned to 4 KiB.
pub struct Buffer {
    memory: Memory,
    bytes: usize,
    home: Option<Arc<Pool>>,
}

impl Buffer {
    /// Fresh zeroed memory that belongs to no pool.
    pub fn new(bytes: usize) -> Self {
        Buffer { memory: Memory::allocate(bytes.div_ceil(BLOCK_BYTES)), bytes, home: None }
    }

    /// A buffer with these contents.
    pub fn from_bytes(contents: &[u8]) -> Self {
        let mut buffer = Buffer::new(contents.len());
        buffer.bytes_mut().copy_from_slice(contents);
        buffer
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the buffer has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The contents.
    pub fn bytes(&self) -> &[u8] {
        &self.memory.blocks.as_bytes()[..self.bytes]
    }

    /// The contents, for writing.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.blocks.as_mut_bytes()[..self.bytes]
    }

    /// Index among the buffers registered with the ring that owns `pool`.
    pub fn fixed_index(&self, pool: &Arc<Pool>) -> Option<u16> {
        let home = self.home.as_ref()?;
        if Arc::ptr_eq(home, pool) { self.memory.fixed } else { None }
    }

    /// Ends writing: from here on the contents may be shared.
    #[inline]
    pub fn freeze(self) -> Slice {
        let bytes = self.bytes;
        Slice { buffer: Arc::new(self), start: 0, bytes }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(home) = self.home.take() {
            home.give_back(std::mem::take(&mut self.memory));
        }
    }
}

impl std::fmt::Debug for Buffer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Buffer({} bytes)", self.bytes)
    }
}

/// A shared, read-only part of a buffer.
#[derive(Clone, Debug)]
pub struct Slice {
    buffer: Arc<Buffer>,
    start: usize,
    bytes: usize,
}

impl Slice {
    /// A slice with these contents.
    pub fn from_bytes(contents: &[u8]) -> Self {
        Buffer::from_bytes(contents).freeze()
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether the slice has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    /// The contents.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer.bytes()[self.start..self.start + self.bytes]
    }

    /// The part that starts at `start` and has `bytes` bytes.
    pub fn part(&self, start: usize, bytes: usize) -> Slice {
        assert!(start + bytes <= self.bytes, "part of a slice lies inside it");
        Slice { buffer: Arc::clone(&self.buffer), start: self.start + start, bytes }
    }

    /// The buffer, for writing again, if this slice is all of it and its only user; otherwise the slice.
    pub fn thaw(self) -> Result<Buffer, Slice> {
        if self.bytes != self.buffer.bytes {
            return Err(self);
        }
        let Slice { buffer, start, bytes } = self;
        Arc::try_unwrap(buffer).map_err(|buffer| Slice { buffer, start, bytes })
    }

    /// Index of the whole buffer among those registered with the ring that owns `pool`.
    pub fn fixed_index(&self, pool: &Arc<Pool>) -> Option<u16> {
        self.buffer.fixed_index(pool)
    }

    /// The slice that covers `self` and `next`, if `next` follows `self` in the same buffer.
    pub fn join(&self, next: &Slice) -> Option<Slice> {
        let adjacent = Arc::ptr_eq(&self.buffer, &next.buffer) && self.start + self.bytes == next.start;
        adjacent.then(|| Slice {
            buffer: Arc::clone(&self.buffer),
            start: self.start,
            bytes: self.bytes + next.bytes,
        })
    }
}

/// Bytes in order from several slices: the data of one write to a member.
#[derive(Clone, Debug, Default)]
pub struct Gather(SmallVec<[Slice; 2]>);

impl Gather {
    /// No bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds `slice` at the end, merged with the last one where both lie side by side in memory.
    pub fn push(&mut self, slice: Slice) {
        if slice.is_empty() {
            return;
        }
        if let Some(last) = self.0.last_mut()
            && let Some(joined) = last.join(&slice)
        {
            *last = joined;
            return;
        }
        self.0.push(slice);
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.0.iter().map(Slice::len).sum()
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The slices in order.
    pub fn slices(&self) -> &[Slice] {
        &self.0
    }

    /// Copies the bytes into `target`, which has just their length.
    pub fn copy_to(&self, target: &mut [u8]) {
        let mut at = 0;
        for slice in &self.0 {
            target[at..at + slice.len()].copy_from_slice(slice.bytes());
            at += slice.len();
        }
        assert_eq!(at, target.len(), "the target has the gathered length");
    }

    /// The bytes as one slice, copied unless they are one.
    #[must_use]
    pub fn to_slice(&self, pool: &Arc<Pool>) -> Slice {
        if let [slice] = self.slices() {
            return slice.clone();
        }
        let mut buffer = pool.take(self.len());
        self.copy_to(buffer.bytes_mut());
        buffer.freeze()
    }

    /// The part that starts at `start` and has `bytes` bytes, without a copy.
    pub fn part(&self, start: usize, bytes: usize) -> Gather {
        assert!(start + bytes <= self.len(), "part of a gather lies inside it");
        let (mut skip, mut left, mut part) = (start, bytes, Gather::new());
        for slice in &self.0 {
            if skip >= slice.len() {
                skip -= slice.len();
                continue;
            }
            let take = left.min(slice.len() - skip);
            part.push(slice.part(skip, take));
            (skip, left) = (0, left - take);
            if left == 0 {
                break;
            }
        }
        part
    }
}

impl From<Slice> for Gather {
    #[inline]
    fn from(slice: Slice) -> Self {
        let mut gather = Gather::new();
        if !slice.is_empty() {
            gather.0.push(slice);
        }
        gather
    }
}

impl FromIterator<Slice> for Gather {
    fn from_iter<T: IntoIterator<Item = Slice>>(slices: T) -> Self {
        let mut gather = Gather::new();
        slices.into_iter().for_each(|slice| gather.push(slice));
        gather
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_home_and_is_used_last_in_first_out() {
        let pool = Pool::new(1 << 20);
        let (first, second) = (pool.take(4096), pool.take(4096));
        let address = first.bytes().as_ptr() as usize;
        assert_eq!(address % 4096, 0);
        drop(second);
        let slice = first.freeze();
        let part = slice.part(512, 512);
        drop(slice);
        drop(part);
        assert_eq!(pool.take(100).bytes().as_ptr() as usize, address);
    }

    #[test]
    fn gather_merges_neighbours_and_cuts() {
        let whole = Slice::from_bytes(&(0..=255u8).cycle().take(4096).collect::<Vec<_>>());
        let mut gather = Gather::new();
        gather.push(whole.part(0, 100));
        gather.push(whole.part(100, 50));
        gather.push(whole.part(1000, 10));
        assert_eq!((gather.slices().len(), gather.len()), (2, 160));
        let mut bytes = vec![0; 20];
        gather.part(140, 20).copy_to(&mut bytes);
        assert_eq!(bytes[..10], whole.bytes()[140..150]);
        assert_eq!(bytes[10..], whole.bytes()[1000..1010]);
    }

    #[test]
    fn registered_memory_keeps_its_index_at_home_only() {
        let (pool, other) = (Pool::new(0), Pool::new(0));
        let regions = pool.prefill_fixed(8192, 2, 5);
        let buffer = pool.take(8192);
        assert_eq!(buffer.fixed_index(&pool), Some(6));
        assert_eq!(buffer.fixed_index(&other), None);
        assert_eq!(buffer.bytes().as_ptr() as usize, regions[1].address);
    }
}
