//! Chains of descriptors, and how those of requests that a former server has begun are found.

use std::path::Path;
use std::sync::Arc;

use virtio_queue::{DescriptorChain, Queue, QueueOwnedT as _, QueueT as _};
use vm_memory::{Address as _, Bytes as _, GuestAddress, GuestMemoryBackend as _, GuestMemoryMmap};
use vm_memory::{GuestMemoryRegion as _, GuestRegionMmap};

const PAGE_BYTES: u64 = 4096;

/// The guest's memory, as it was when a request came.
pub(super) type Memory = Arc<GuestMemoryMmap>;

/// The descriptors of a request.
pub(super) type Chain = DescriptorChain<Memory>;

/// The chains of some heads. `virtio-queue` walks only what stands in an available ring, and these stood there long ago: the guest's
/// memory gets a page more for these chains, behind all of its own, with such a ring.
pub(super) fn chains_again(memory: &Memory, queue: &Queue, heads: &[u16], path: &Path) -> Vec<Chain> {
    if heads.is_empty() {
        return Vec::new();
    }
    match with_ring_of(memory, queue, heads) {
        Some((memory, mut queue)) => queue.iter(memory).map(Iterator::collect).unwrap_or_default(),
        None => {
            tracing::warn!(path = %path.display(), "requests that a former server has begun cannot be found in the guest's memory");
            Vec::new()
        }
    }
}

fn with_ring_of(memory: &Memory, queue: &Queue, heads: &[u16]) -> Option<(Memory, Queue)> {
    let ends = memory.iter().map(|region| region.last_addr().raw_value());
    let start = GuestAddress(ends.max()?.checked_next_multiple_of(PAGE_BYTES)?.checked_add(PAGE_BYTES)?);
    // Flags, index, a head for each entry, and the event index.
    let bytes = (6 + 2 * u64::from(queue.size())).next_multiple_of(PAGE_BYTES);
    let region = GuestRegionMmap::from_range(start, usize::try_from(bytes).ok()?, None).ok()?;
    let memory: GuestMemoryMmap = memory.insert_region(Arc::new(region)).ok()?;
    let ring = [0, u16::try_from(heads.len()).ok()?].into_iter().chain(heads.iter().copied());
    let ring: Vec<u8> = ring.flat_map(u16::to_le_bytes).collect();
    memory.write_slice(&ring, start).ok()?;
    let mut found = Queue::new(queue.max_size()).ok()?;
    found.try_set_size(queue.size()).ok()?;
    found.try_set_desc_table_address(GuestAddress(queue.desc_table())).ok()?;
    found.try_set_avail_ring_address(start).ok()?;
    found.try_set_used_ring_address(GuestAddress(queue.used_ring())).ok()?;
    found.set_ready(true);
    Some((Arc::new(memory), found))
}
