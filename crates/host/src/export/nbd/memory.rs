//! The memory that the requests of all connections hold together.
//!
//! A connection has a share of its own, [`SHARE_BYTES`], so that it is served whatever others do. Beyond it requests take from a
//! pool for all: first come, first served, but no connection holds more of the pool than it leaves for the others. So clients that
//! send much and read nothing cannot take all of it, however many they are, and one client alone gets half.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What a connection may hold in any case.
pub(super) const SHARE_BYTES: usize = 1 << 20;

/// What a request needs in the engine for each of its bytes: what is read before a write, and new parity.
const NEEDED_FOR_EACH_BYTE: usize = 4;

/// What must be left beside that where an allocation can fail: for requests that other shards begin at the same time.
const LEFT_BYTES: usize = 16 << 20;

/// The pool. Shards share it, and so may the servers of one process.
pub struct Memory {
    bytes: usize,
    held: AtomicUsize,
    /// Allocations can fail here, and are tried before a request may begin.
    tries: bool,
}

impl Memory {
    pub(super) fn new(bytes: usize, tries: bool) -> Self {
        Memory { bytes, held: AtomicUsize::new(0), tries }
    }

    /// Whether a connection with nothing in flight may ever hold this much.
    pub(super) fn can_hold(&self, bytes: usize) -> bool {
        from_pool(bytes) <= self.bytes / 2
    }

    /// Lets a connection that holds `held` bytes hold `more` bytes more; false if others have to give back first.
    pub(super) fn take(&self, held: usize, more: usize) -> bool {
        let (before, after) = (from_pool(held), from_pool(held + more));
        if self.tries && more > 0 && !can_be_had(more * NEEDED_FOR_EACH_BYTE + LEFT_BYTES) {
            return false;
        }
        if after == before {
            return true;
        }
        let grown = |all: usize| {
            let all = all + (after - before);
            (after <= self.bytes.saturating_sub(all)).then_some(all)
        };
        self.held.fetch_update(Relaxed, Relaxed, grown).is_ok()
    }

    /// A connection that holds `held` bytes gives back `less` of them.
    pub(super) fn give_back(&self, held: usize, less: usize) {
        let given = from_pool(held) - from_pool(held - less);
        if given > 0 {
            let before = self.held.fetch_sub(given, Relaxed);
            assert!(before >= given, "only what was taken is given back");
        }
    }
}

fn from_pool(held: usize) -> usize {
    held.saturating_sub(SHARE_BYTES)
}

/// Whether the system would grant an allocation now. Nothing is written to it.
fn can_be_had(bytes: usize) -> bool {
    Vec::<u8>::new().try_reserve_exact(bytes).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn no_connection_holds_more_of_the_pool_than_it_leaves() {
        let memory = Memory::new(64 * MIB, false);
        // Each silent client takes as much as it gets, MiB by MiB.
        let greedy = || {
            let mut held = 0;
            while memory.take(held, MIB) {
                held += MIB;
            }
            held
        };
        let held: Vec<usize> = (0..100).map(|_| greedy()).collect();
        assert_eq!(held[..4], [33 * MIB, 17 * MIB, 9 * MIB, 5 * MIB], "a share, and half of what is left");
        assert!(held.iter().all(|held| *held >= MIB), "each has its share");
        assert!(memory.held.load(Relaxed) < 64 * MIB);
        for held in held {
            memory.give_back(held, held);
        }
        assert_eq!(memory.held.load(Relaxed), 0);
    }

    #[test]
    fn what_can_never_be_held_is_known() {
        let memory = Memory::new(16 * MIB, false);
        assert!(memory.can_hold(9 * MIB) && memory.take(0, 9 * MIB));
        assert!(!memory.can_hold(9 * MIB + 1));
        assert!(Memory::new(0, false).take(0, MIB), "the share is always there");
    }

    #[test]
    fn an_allocation_that_would_fail_is_not_begun() {
        let memory = Memory::new(usize::MAX, true);
        assert!(memory.take(0, MIB));
        assert!(!memory.take(0, 1 << 60), "more than any address space has");
        assert_eq!(memory.held.load(Relaxed), 0);
    }
}
