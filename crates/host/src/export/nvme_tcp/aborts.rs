//! Abort of a command that is on another queue, and so on another shard.
//!
//! A command ends early only while it waits for memory: nothing of it has begun, and its host has not been asked for data, which
//! would still come. Any other runs to its end, and the host is told so.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Weak;

/// The commands of a queue.
pub(super) trait Abortable {
    /// Ends a command as aborted, if it is one that may still end early. Returns whether it is.
    fn abort(&self, cid: u16) -> bool;
}

thread_local! {
    /// The I/O queues of this shard, by the serial number of their association and their own.
    static QUEUES: RefCell<BTreeMap<(u64, u16), Weak<dyn Abortable>>> = const { RefCell::new(BTreeMap::new()) };
}

/// A queue of this shard may be asked from now on, as long as it lives.
pub(super) fn enter(association: u64, queue: u16, commands: Weak<dyn Abortable>) {
    QUEUES.with_borrow_mut(|queues| {
        queues.retain(|_, one| one.strong_count() > 0);
        queues.insert((association, queue), commands);
    });
}

/// Ends a command of a queue of this shard as aborted, if it may still end early.
pub(super) fn abort(association: u64, queue: u16, cid: u16) -> bool {
    let commands = QUEUES.with_borrow(|queues| queues.get(&(association, queue)).and_then(Weak::upgrade));
    commands.is_some_and(|commands| commands.abort(cid))
}
