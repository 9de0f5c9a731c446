//! Which requests are under way, in memory that the frontend keeps while no server is there: the next server carries out again
//! what a killed one had begun and not answered (`VHOST_USER_PROTOCOL_F_INFLIGHT_SHMFD`, split rings; QEMU's `vhost-user.rst`,
//! "In-flight I/O tracking").
//!
//! The memory is an array of regions, one for each ring, each of `16 + 16 × entries` bytes rounded up to 64, in the byte order of
//! the host:
//!
//! | Bytes | Of a region |
//! |---|---|
//! | 0..8 | features, 0 |
//! | 8..10 | version: 1; 0 before the first server |
//! | 10..12 | entries |
//! | 12..14 | head that was last put into the used ring |
//! | 14..16 | index of the used ring after that |
//! | 16 + 16 × head | 1: under way; 5 bytes of padding; next (2 bytes, batches only); order of begin (8 bytes) |
//!
//! Heads are put into the used ring one at a time. Between that and the note here a server may be killed: then the index of the used
//! ring is one ahead of the one here, and the head that is named was answered.

use std::fs::File;
use std::io;
use std::num::Wrapping;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::vhost_user::message::VhostUserInflight;
use vm_memory::{FileOffset, MmapRegion, VolatileMemory as _};

const ALIGNMENT: usize = 64;
const HEAD_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;
const VERSION: u16 = 1;
const VERSION_AT: usize = 8;
const ENTRIES_AT: usize = 10;
const LAST_HEAD_AT: usize = 12;
const USED_AT: usize = 14;
/// In an entry.
const ORDER_AT: usize = 8;

/// The memory of all rings.
#[derive(Debug)]
pub(super) struct InFlightMemory {
    map: MmapRegion,
    rings: u16,
    entries: u16,
}

impl InFlightMemory {
    /// Memory for a frontend that has none yet, and its description for the frontend.
    pub fn new(rings: u16, entries: u16) -> io::Result<(Self, File, VhostUserInflight)> {
        let bytes = usize::from(rings) * region_bytes(entries);
        let file = File::from(memfd_create("vhost-user-inflight", MemfdFlags::CLOEXEC)?);
        ftruncate(&file, bytes as u64)?;
        let area = VhostUserInflight::new(bytes as u64, 0, rings, entries);
        Ok((Self::open(&area, file.try_clone()?)?, file, area))
    }

    /// Memory that a frontend has kept.
    ///
    /// # Errors
    /// It is too small for as many rings.
    pub fn open(area: &VhostUserInflight, file: File) -> io::Result<Self> {
        let (rings, entries) = (area.num_queues, area.queue_size);
        let bytes = usize::from(rings) * region_bytes(entries);
        let end = area.mmap_offset.checked_add(bytes as u64);
        if bytes == 0 || area.mmap_size < bytes as u64 || end.is_none_or(|end| end > file_bytes(&file)) {
            let sizes = format!("{rings} rings of {entries} entries in {} bytes", area.mmap_size);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, sizes));
        }
        let map = MmapRegion::from_file(FileOffset::new(file, area.mmap_offset), bytes);
        Ok(InFlightMemory { map: map.map_err(io::Error::other)?, rings, entries })
    }

    /// The region of a ring, if there is one for a ring of as many entries.
    pub fn ring(self: &Arc<Self>, index: u16, entries: u16) -> Option<InFlight> {
        let start = usize::from(index) * region_bytes(self.entries);
        (index < self.rings && entries <= self.entries).then(|| InFlight {
            memory: Arc::clone(self),
            start,
            entries,
            next_order: 0,
        })
    }
}

fn file_bytes(file: &File) -> u64 {
    file.metadata().map_or(0, |metadata| metadata.len())
}

fn region_bytes(entries: u16) -> usize {
    (HEAD_BYTES + ENTRY_BYTES * usize::from(entries)).next_multiple_of(ALIGNMENT)
}

/// The requests of one ring that are under way.
pub(super) struct InFlight {
    memory: Arc<InFlightMemory>,
    /// Of its region.
    start: usize,
    entries: u16,
    next_order: u64,
}

impl InFlight {
    /// Takes over what the server before has left. `used` is the index of the used ring. The heads that are to be carried out
    /// again, in the order in which they were begun.
    pub fn take_over(&mut self, used: Wrapping<u16>) -> Vec<u16> {
        if self.u16_at(VERSION_AT).swap(VERSION, SeqCst) == 0 {
            self.u16_at(ENTRIES_AT).store(self.entries, SeqCst);
        }
        if self.u16_at(USED_AT).swap(used.0, SeqCst) != used.0 {
            let answered = self.u16_at(LAST_HEAD_AT).load(SeqCst);
            if answered < self.entries {
                self.mark(answered).store(0, SeqCst);
            }
        }
        let is_under_way = |head: &u16| self.mark(*head).load(SeqCst) != 0;
        let mut left: Vec<(u64, u16)> = (0..self.entries)
            .filter(is_under_way)
            .map(|head| (self.order(head).load(SeqCst), head))
            .collect();
        left.sort_unstable();
        self.next_order = left.last().map_or(0, |(order, _)| order.wrapping_add(1));
        left.into_iter().map(|(_, head)| head).collect()
    }

    /// A request is about to be begun.
    pub fn begin(&mut self, head: u16) {
        if head < self.entries {
            self.order(head).store(self.next_order, SeqCst);
            self.next_order = self.next_order.wrapping_add(1);
            self.mark(head).store(1, SeqCst);
        }
    }

    /// A request is about to be put into the used ring.
    pub fn answering(&self, head: u16) {
        self.u16_at(LAST_HEAD_AT).store(head, SeqCst);
    }

    /// It is there, and the index of that is `used` now.
    pub fn answered(&self, head: u16, used: u16) {
        if head < self.entries {
            self.mark(head).store(0, SeqCst);
        }
        self.u16_at(USED_AT).store(used, SeqCst);
    }

    fn entry(&self, head: u16) -> usize {
        self.start + HEAD_BYTES + ENTRY_BYTES * usize::from(head)
    }

    fn u16_at(&self, offset: usize) -> &AtomicU16 {
        self.memory.map.get_atomic_ref(self.start + offset).expect("inside the memory, and aligned")
    }

    fn mark(&self, head: u16) -> &AtomicU8 {
        self.memory.map.get_atomic_ref(self.entry(head)).expect("inside the memory")
    }

    fn order(&self, head: u16) -> &AtomicU64 {
        let offset = self.entry(head) + ORDER_AT;
        self.memory.map.get_atomic_ref(offset).expect("inside the memory, and aligned")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> (Arc<InFlightMemory>, Arc<InFlightMemory>) {
        let (memory, file, area) = InFlightMemory::new(2, 4).expect("a memfd");
        assert_eq!((area.mmap_size, area.num_queues, area.queue_size), (2 * 128, 2, 4));
        let next = InFlightMemory::open(&area, file).expect("the same");
        (Arc::new(memory), Arc::new(next))
    }

    #[test]
    fn the_next_server_finds_what_was_begun_in_its_order() {
        let (memory, next) = kept();
        let mut ring = memory.ring(1, 4).expect("a ring");
        assert!(ring.take_over(Wrapping(7)).is_empty());
        for head in [3, 0, 2] {
            ring.begin(head);
        }
        ring.answering(0);
        ring.answered(0, 8);
        let mut again = next.ring(1, 4).expect("a ring");
        assert_eq!(again.take_over(Wrapping(8)), [3, 2]);
        again.begin(1);
        assert_eq!(memory.ring(1, 4).expect("a ring").take_over(Wrapping(8)), [3, 2, 1]);
        assert!(next.ring(0, 4).expect("a ring").take_over(Wrapping(0)).is_empty(), "of the other ring");
        assert!(memory.ring(2, 4).is_none() && memory.ring(0, 5).is_none());
    }

    #[test]
    fn one_that_was_answered_and_not_noted_is_not_carried_out_again() {
        let (memory, next) = kept();
        let mut ring = memory.ring(0, 4).expect("a ring");
        ring.take_over(Wrapping(u16::MAX));
        ring.begin(0);
        ring.begin(1);
        ring.answering(1);
        assert_eq!(
            next.ring(0, 4).expect("a ring").take_over(Wrapping(0)),
            [0],
            "killed after it was put there"
        );
        let (memory, next) = kept();
        let mut ring = memory.ring(0, 4).expect("a ring");
        ring.take_over(Wrapping(5));
        ring.begin(1);
        ring.answering(1);
        assert_eq!(next.ring(0, 4).expect("a ring").take_over(Wrapping(5)), [1], "killed before");
    }

    #[test]
    fn memory_that_is_too_small_is_refused() {
        let (_, file, area) = InFlightMemory::new(2, 4).expect("a memfd");
        let sizes =
            [(area.mmap_size, 0, 3, 4), (area.mmap_size, 1, 2, 4), (0, 0, 2, 4), (1 << 40, 0, 2, 1024)];
        for (bytes, offset, rings, entries) in sizes {
            let area = VhostUserInflight::new(bytes, offset, rings, entries);
            let file = file.try_clone().expect("a copy");
            assert!(InFlightMemory::open(&area, file).is_err(), "{bytes} {offset} {rings} {entries}");
        }
    }
}
