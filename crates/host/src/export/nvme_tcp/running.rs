//! Which commands of a queue are at work on a namespace: what a change of reservations waits for.
//!
//! F-I6: a command first enters itself here with the epoch that it knows, and then looks at what it may do. A change of
//! reservations first counts the epoch up, and then looks here. Both in the one order of all threads: so a command either sees
//! the change, or is seen.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Bits of a namespace's number in an entry.
const NAMESPACE_BITS: u32 = 16;
const NONE: u64 = 0;

const _: () = assert!(nvme_tcp::subsystem::NAMESPACE_ID_MAX < 1 << NAMESPACE_BITS);

/// The commands of one queue, by slot: epoch and namespace, or none.
pub(super) struct Running {
    slots: Box<[AtomicU64]>,
}

impl Running {
    pub fn new(commands: usize) -> Arc<Self> {
        Arc::new(Running { slots: (0..commands).map(|_| AtomicU64::new(NONE)).collect() })
    }

    /// A command begins; it is at work until the ticket is dropped.
    pub fn enter(self: &Arc<Self>, slot: usize, epoch: u64, namespace: u32) -> Ticket {
        let entry = (epoch + 1) << NAMESPACE_BITS | u64::from(namespace);
        let former = self.slots[slot].swap(entry, Ordering::SeqCst);
        debug_assert_eq!(former, NONE, "a slot has one command");
        Ticket { running: Arc::clone(self), slot }
    }

    /// Whether no command is at work.
    pub fn is_idle(&self) -> bool {
        self.slots.iter().all(|slot| slot.load(Ordering::SeqCst) == NONE)
    }

    fn has_before(&self, namespace: u32, epoch: u64) -> bool {
        self.slots.iter().map(|slot| slot.load(Ordering::SeqCst)).any(|entry| {
            let (since, of) = (entry >> NAMESPACE_BITS, entry & ((1 << NAMESPACE_BITS) - 1));
            entry != NONE && of == u64::from(namespace) && since <= epoch
        })
    }
}

/// A command is at work.
pub(super) struct Ticket {
    running: Arc<Running>,
    slot: usize,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.running.slots[self.slot].store(NONE, Ordering::SeqCst);
    }
}

/// All queues of a subsystem. A queue whose connection has ended stays as long as a command of it is at work.
#[derive(Default)]
pub(super) struct Queues {
    queues: Mutex<Vec<Weak<Running>>>,
}

impl Queues {
    pub fn enter(&self, running: &Arc<Running>) {
        let mut queues = self.queues.lock();
        queues.retain(|queue| queue.strong_count() > 0);
        queues.push(Arc::downgrade(running));
    }

    /// Whether no command is at work, of queues that are connected or gone.
    pub fn is_idle(&self) -> bool {
        self.queues.lock().iter().filter_map(Weak::upgrade).all(|queue| queue.is_idle())
    }

    /// Whether a command is at work on `namespace` that began before `epoch`.
    pub fn has_before(&self, namespace: u32, epoch: u64) -> bool {
        self.queues.lock().iter().filter_map(Weak::upgrade).any(|queue| queue.has_before(namespace, epoch))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_before_an_epoch_are_seen_until_they_end_and_later_ones_are_not() {
        let (queues, queue) = (Queues::default(), Running::new(4));
        queues.enter(&queue);
        let early = queue.enter(0, 0, 1);
        let late = queue.enter(1, 1, 1);
        let other = queue.enter(2, 0, 2);
        drop(queue);
        assert!(queues.has_before(1, 1), "its connection is gone, the command is not");
        drop(early);
        assert!(!queues.has_before(1, 1));
        assert!(queues.has_before(1, 2) && queues.has_before(2, 1) && !queues.is_idle());
        drop((late, other));
        assert!(!queues.has_before(1, 9) && !queues.has_before(2, 9) && queues.is_idle());
    }
}
