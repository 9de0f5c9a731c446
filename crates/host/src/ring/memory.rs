//! The memory of a memory device, and the copies that the reap step makes from and to it.
//!
//! Invariants:
//! - The mapping lives as long as any shard's region, and every operation keeps its region.
//! - The device's memory is reached by address only, never by reference. Shards may copy to and from one place at once;
//!   then, as on a real device, each gets a mixture. The copies are made outside of what Rust reasons about (see
//!   `copy`), so such a race has no other consequence.
//! - A shard's counters are written by that shard alone; a reader adds them up.

use engine::buffer::Slice;
use engine::device::DeviceInfo;
use parking_lot::Mutex;
use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::cost::Cost;

/// Unit of addressing of a memory device: the smallest that members have.
const LOGICAL_BLOCK_BYTES: u32 = 512;

/// Discards of whole pieces of this size give memory back; smaller ones would break huge pages up.
const UNMAP_BYTES: u64 = 2 << 20;

/// Cache lines fetched ahead of a read: from 8 to 16 is best where it was measured (AVX-512 Xeon, cold memory).
#[cfg(target_arch = "x86_64")]
const PREFETCH_LINES: usize = 8;

/// Writes from this size on to pieces that were not read recently bypass the caches: cold 64 KiB writes took half the time, but
/// twice the time where the piece was in a cache. A read-modify-write has just read its piece.
const STREAM_BYTES: usize = 16 << 10;

/// Smaller devices may stay in the last cache: their writes never bypass it.
const STREAM_DEVICE_BYTES: usize = 256 << 20;

/// Pieces of 64 KiB that are remembered as recently read: 64 MiB at most, which is below the last cache of servers.
const RECENT_PIECES: usize = 1024;

/// What a memory device has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryCounters {
    /// Reads completed.
    pub reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Writes completed.
    pub writes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Flushes, discards and zeroed ranges completed.
    pub others: u64,
}

/// How a memory device clears a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clearing {
    Discard,
    WriteZeroes { may_unmap: bool },
}

impl Clearing {
    /// Whether the range's memory may go back to the system.
    pub fn may_unmap(self) -> bool {
        match self {
            Clearing::Discard => true,
            Clearing::WriteZeroes { may_unmap } => may_unmap,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Clearing::Discard => "discard",
            Clearing::WriteZeroes { .. } => "write zeroes",
        }
    }
}

/// The memory of one device, shared by all shards.
pub struct Memory {
    base: *mut u8,
    bytes: usize,
    info: DeviceInfo,
    counters: Mutex<Vec<Arc<Counters>>>,
    cost: Cost,
    kind: Kind,
}

/// What a memory device does with its memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// It behaves as a drive that gives discarded space back.
    Ordinary,
    /// Discarded ranges keep their pages, and what they hold.
    KeepsDiscarded,
    /// It copies nothing: its memory is address space that is never touched.
    StoresNothing,
}

// SAFETY: the pointer is to a mapping of this struct's own; any thread may copy to and from it (second invariant).
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

#[derive(Default)]
struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    others: AtomicU64,
}

impl Counters {
    fn add_to(&self, sum: &mut MemoryCounters) {
        sum.reads += self.reads.load(Ordering::Relaxed);
        sum.read_bytes += self.read_bytes.load(Ordering::Relaxed);
        sum.writes += self.writes.load(Ordering::Relaxed);
        sum.write_bytes += self.write_bytes.load(Ordering::Relaxed);
        sum.others += self.others.load(Ordering::Relaxed);
    }
}

impl Memory {
    /// Maps zeroed memory of `bytes` bytes, rounded down to logical blocks. It is taken from the system page by page
    /// when it is written: a device may be larger than the machine's memory. Devices that fit use huge pages.
    ///
    /// # Errors
    /// No address space of this size, or less than a logical block.
    pub fn new(bytes: u64, name: String) -> io::Result<Arc<Self>> {
        Self::map(bytes, name, Kind::Ordinary)
    }

    /// As [`Memory::new`], of a device that takes discards for a hint and does nothing: then no write pays for taking pages
    /// from the system again, which drives know nothing of.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn that_keeps_discarded(bytes: u64, name: String) -> io::Result<Arc<Self>> {
        Self::map(bytes, name, Kind::KeepsDiscarded)
    }

    /// As [`Memory::new`], of a device that completes operations like any other and makes no copy: what is written is thrown
    /// away, and a read leaves in its buffer what the buffer held. For benchmarks of what is around the copies.
    ///
    /// # Errors
    /// As [`Memory::new`].
    pub fn that_stores_nothing(bytes: u64, name: String) -> io::Result<Arc<Self>> {
        Self::map(bytes, name, Kind::StoresNothing)
    }

    fn map(bytes: u64, name: String, kind: Kind) -> io::Result<Arc<Self>> {
        let size_bytes = bytes - bytes % u64::from(LOGICAL_BLOCK_BYTES);
        let length = usize::try_from(size_bytes).ok().filter(|length| *length > 0);
        let length = length.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        let base = map(length)?;
        let info = DeviceInfo {
            size_bytes,
            logical_block_bytes: LOGICAL_BLOCK_BYTES,
            discard_zeroes: kind == Kind::Ordinary,
            name,
        };
        Ok(Arc::new(Memory {
            base,
            bytes: length,
            info,
            counters: Mutex::new(Vec::new()),
            cost: Cost::none(),
            kind,
        }))
    }

    /// Takes all of the memory from the system now, so that no later write does.
    ///
    /// # Errors
    /// Not enough memory, or a kernel before 5.14.
    pub fn populate(&self) -> io::Result<()> {
        // SAFETY: the range is this struct's own mapping.
        match unsafe { libc::madvise(self.base.cast(), self.bytes, libc::MADV_POPULATE_WRITE) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Size and abilities.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Whether what is written can be read again.
    pub fn stores(&self) -> bool {
        self.kind != Kind::StoresNothing
    }

    /// What all shards have done so far.
    pub fn counters(&self) -> MemoryCounters {
        let mut sum = MemoryCounters::default();
        self.counters.lock().iter().for_each(|shard| shard.add_to(&mut sum));
        sum
    }

    /// Copies to another device directly, without ring and counters: the cost of plain copies of memory.
    ///
    /// # Panics
    /// If a range is not inside its device, or both are the same device.
    pub fn copy_to(&self, offset: u64, to: &Memory, to_offset: u64, bytes: usize) {
        assert_ne!(self.base, to.base, "two devices");
        let (from, to) = (self.at(offset, bytes as u64), to.at(to_offset, bytes as u64));
        // SAFETY: `at` checked both ranges, which lie in different mappings.
        unsafe { copy(from, to, bytes) };
    }

    /// The address of a range, which lies inside the device.
    #[inline]
    fn at(&self, offset: u64, bytes: u64) -> *mut u8 {
        let end = offset.checked_add(bytes);
        assert!(end.is_some_and(|end| end <= self.bytes as u64), "a range inside the device");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.base.add(offset as usize) }
    }

    /// From the next `Memory::shard_region` on, each read occupies the device for `cost`, one read after the other. Zero: only
    /// for its copy.
    pub fn set_read_cost(&self, cost: Duration) {
        self.cost.set_read(cost);
    }

    /// From the next `Memory::shard_region` on, reads and writes together move no more bytes in a second. Zero: no limit.
    pub fn set_speed(&self, bytes_per_s: u64) {
        self.cost.set_speed(bytes_per_s);
    }

    /// A way to the device without the ring, by the same copies: the floor that benchmarks compare with.
    pub fn copier(self: &Arc<Self>) -> Copier {
        Copier(self.region(Arc::default()))
    }

    /// What a shard needs to copy, with counters of its own.
    pub(crate) fn shard_region(self: &Arc<Self>) -> Region {
        let counters = Arc::<Counters>::default();
        self.counters.lock().push(Arc::clone(&counters));
        self.region(counters)
    }

    fn region(self: &Arc<Self>, counters: Arc<Counters>) -> Region {
        Region {
            base: self.base,
            bytes: self.bytes as u64,
            recent: Recent::new(),
            is_large: self.bytes >= STREAM_DEVICE_BYTES,
            stores: self.stores(),
            reads_cost: self.cost.has_reads(),
            writes_cost: self.cost.has_writes(),
            counters,
            memory: Arc::clone(self),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping is this struct's own, and regions keep the struct alive (first invariant).
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Memory({})", self.info.name)
    }
}

/// Copies from and to a memory device directly, as the reap step does.
pub struct Copier(Region);

impl Copier {
    /// Copies from the device.
    ///
    /// # Panics
    /// If the range is not inside the device.
    #[inline]
    pub fn read(&self, offset: u64, target: &mut [u8]) {
        self.0.read(offset, target);
    }

    /// Copies to the device.
    ///
    /// # Panics
    /// If the range is not inside the device.
    #[inline]
    pub fn write(&self, offset: u64, data: &[u8]) {
        self.write_part(offset, data, data.len());
    }

    /// As [`Copier::write`], of a part of a write of `total` bytes, whose length decides how it is copied.
    ///
    /// # Panics
    /// If the range is not inside the device.
    #[inline]
    pub fn write_part(&self, offset: u64, data: &[u8], total: usize) {
        self.0.write_piece(offset, data, total);
        self.0.count_write(data.len() as u64);
    }

    /// What has been copied.
    pub fn counters(&self) -> MemoryCounters {
        let mut sum = MemoryCounters::default();
        self.0.counters.add_to(&mut sum);
        sum
    }
}

/// What the reap step of one shard needs to copy.
pub(crate) struct Region {
    base: *mut u8,
    bytes: u64,
    recent: Recent,
    /// Larger than a share of the last cache: written data leaves the caches before it is read again.
    is_large: bool,
    stores: bool,
    reads_cost: bool,
    writes_cost: bool,
    counters: Arc<Counters>,
    memory: Arc<Memory>,
}

impl Region {
    #[inline]
    pub(crate) fn read(&self, offset: u64, target: &mut [u8]) {
        let bytes = target.len();
        let from = self.at(offset, bytes as u64);
        if self.stores {
            // SAFETY: `at` checked the range; the target is another allocation than the mapping.
            unsafe { copy(from, target.as_mut_ptr(), bytes) };
            if self.is_large {
                self.recent.mark(offset);
            }
        }
        count(&self.counters.reads, 1);
        count(&self.counters.read_bytes, bytes as u64);
    }

    /// Lets the processor fetch the beginning of a later read while other work goes on; the rest arrives in time once the copy
    /// runs. Cold 4 KiB reads take a tenth less time. For writes it was slower.
    #[inline]
    pub(crate) fn prefetch(&self, offset: u64) {
        if !self.stores {
            return;
        }
        #[cfg(target_arch = "x86_64")]
        for line in 0..PREFETCH_LINES {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let at = self.base.wrapping_add(offset as usize + line * 64);
            // SAFETY: a prefetch has no effect but on caches, whatever the address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = offset;
    }

    #[inline]
    pub(crate) fn write(&self, offset: u64, data: &[Slice]) {
        let total: usize = data.iter().map(Slice::len).sum();
        let mut at = offset;
        for slice in data {
            self.write_piece(at, slice.bytes(), total);
            at += slice.len() as u64;
        }
        self.count_write(at - offset);
    }

    /// Copies a piece of a write of `total` bytes.
    #[inline]
    fn write_piece(&self, at: u64, bytes: &[u8], total: usize) {
        let to = self.at(at, bytes.len() as u64);
        if !self.stores {
            return;
        }
        let is_cold = self.is_large && total >= STREAM_BYTES && !self.recent.has(at);
        // SAFETY: `at` checked the range; the data is another allocation than the mapping.
        unsafe {
            match is_cold {
                true => copy_past_caches(bytes.as_ptr(), to, bytes.len()),
                false => copy(bytes.as_ptr(), to, bytes.len()),
            }
        }
    }

    #[inline]
    fn count_write(&self, bytes: u64) {
        count(&self.counters.writes, 1);
        count(&self.counters.write_bytes, bytes);
    }

    /// Size and abilities of the device.
    #[inline]
    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.memory.info
    }

    /// Whether reads have a cost beyond their copy.
    #[inline]
    pub(crate) fn reads_cost(&self) -> bool {
        self.reads_cost
    }

    /// Whether writes have a cost beyond their copy.
    #[inline]
    pub(crate) fn writes_cost(&self) -> bool {
        self.writes_cost
    }

    /// When a read or write of `bytes` bytes that comes now is ready.
    pub(crate) fn ready_at(&self, is_read: bool, bytes: usize) -> Instant {
        self.memory.cost.ready_at(Instant::now(), is_read, bytes)
    }

    /// Makes a range zero, by giving whole pieces back to the system where that is wanted.
    pub(crate) fn clear(&self, offset: u64, bytes: u64, clearing: Clearing) {
        let keeps_discarded = self.memory.kind == Kind::KeepsDiscarded;
        if !self.stores || (clearing == Clearing::Discard && keeps_discarded) {
            return self.count_other();
        }
        let unmap = clearing.may_unmap();
        let end = offset + bytes;
        let (first, last) = (offset.next_multiple_of(UNMAP_BYTES).min(end), end - end % UNMAP_BYTES);
        if unmap && first < last {
            self.zero(offset, first - offset);
            // SAFETY: the range is inside the mapping, and its pages are private anonymous memory: zero when next read.
            let given = unsafe {
                libc::madvise(
                    self.at(first, last - first).cast(),
                    (last - first) as usize,
                    libc::MADV_DONTNEED,
                )
            };
            if given != 0 {
                self.zero(first, last - first);
            }
            self.zero(last, end - last);
        } else {
            self.zero(offset, bytes);
        }
        self.count_other();
    }

    pub(crate) fn count_other(&self) {
        count(&self.counters.others, 1);
    }

    fn zero(&self, offset: u64, bytes: u64) {
        let length = usize::try_from(bytes).expect("a mapped range");
        // SAFETY: `at` checked the range; plain bytes without references to them (second invariant).
        unsafe { std::ptr::write_bytes(self.at(offset, bytes), 0, length) };
    }

    /// The address of a range of the device, which lies inside it.
    #[inline]
    fn at(&self, offset: u64, bytes: u64) -> *mut u8 {
        assert!(offset.checked_add(bytes).is_some_and(|end| end <= self.bytes), "a range inside the device");
        // SAFETY: inside the mapping, as just checked.
        unsafe { self.base.add(offset as usize) }
    }
}

/// Adds to a counter that only this thread writes: no locked instruction.
#[inline]
fn count(counter: &AtomicU64, add: u64) {
    counter.store(counter.load(Ordering::Relaxed) + add, Ordering::Relaxed);
}

/// Copies bytes that other threads may write at the same time.
///
/// # Safety
/// Both ranges are mapped and do not overlap.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: handed on to the caller.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}

/// As [`copy`], but the target's cache lines are written to memory without being fetched first.
///
/// # Safety
/// As for [`copy`].
#[cfg(target_arch = "x86_64")]
unsafe fn copy_past_caches(from: *const u8, to: *mut u8, bytes: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    if !(to as usize).is_multiple_of(64) || !bytes.is_multiple_of(64) {
        // SAFETY: handed on to the caller.
        return unsafe { copy(from, to, bytes) };
    }
    for line in 0..bytes / 64 {
        let (from, to) =
            (from.wrapping_add(line * 64).cast::<__m128i>(), to.wrapping_add(line * 64).cast::<__m128i>());
        // SAFETY: inside the ranges of the caller, and the target is aligned as just checked.
        unsafe {
            let quarters: [__m128i; 4] = std::array::from_fn(|i| _mm_loadu_si128(from.wrapping_add(i)));
            for (i, quarter) in quarters.into_iter().enumerate() {
                _mm_stream_si128(to.wrapping_add(i), quarter);
            }
        }
    }
    // SAFETY: no preconditions. Orders these stores before the completion that others see.
    unsafe { _mm_sfence() };
}

/// As [`copy`]: on this architecture there is no stable way to bypass the caches.
///
/// # Safety
/// As for [`copy`].
#[cfg(not(target_arch = "x86_64"))]
unsafe fn copy_past_caches(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: handed on to the caller.
    unsafe { copy(from, to, bytes) };
}

/// Where this shard has read recently: pieces that are still in a cache.
struct Recent([Cell<u32>; RECENT_PIECES]);

impl Recent {
    fn new() -> Self {
        Recent(std::array::from_fn(|_| Cell::new(u32::MAX)))
    }

    #[inline]
    fn mark(&self, offset: u64) {
        let piece = piece_of(offset);
        self.0[piece as usize % RECENT_PIECES].set(piece);
    }

    #[inline]
    fn has(&self, offset: u64) -> bool {
        let piece = piece_of(offset);
        self.0[piece as usize % RECENT_PIECES].get() == piece
    }
}

/// Number of a piece of 64 KiB, wrapped at 256 TiB: the address space ends before.
fn piece_of(offset: u64) -> u32 {
    (offset >> 16) as u32
}

/// Maps `bytes` bytes of zeroed memory, not reserved; on huge pages if they fit in half of the machine's memory, so
/// that sparse giants do not take 2 MiB for each block.
fn map(bytes: usize) -> io::Result<*mut u8> {
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new anonymous mapping at an address of the system's choice.
    let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    if bytes as u64 <= crate::machine::memory_bytes() / 2 {
        // SAFETY: the range was just mapped. Refusal (no such pages configured) costs speed only.
        let advised = unsafe { libc::madvise(base, bytes, libc::MADV_HUGEPAGE) };
        if advised != 0 {
            tracing::info!(error = %io::Error::last_os_error(), "a memory device without huge pages");
        }
    }
    Ok(base.cast())
}
