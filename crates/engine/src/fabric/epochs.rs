//! Which writes are under way, in epochs that every change of a member names: what lets a target forget what it has recorded for the
//! next host ([`super::ledger`]).
//!
//! A write enters the newest epoch before it changes any member, and leaves when its stripes are consistent. The members' devices
//! send each change with the epoch that is the newest by then, which is the write's own or a later one. As long as the write is
//! under way the lowest epoch is not above its own: so what a ledger lists of epochs from the lowest on is all that may be half
//! done (F-I14).
//!
//! Each write has an epoch of its own as long as no more than [`WINDOW`] are under way; beyond that the newest is shared. Entering
//! costs two steps on one word of all shards: too much for local members at millions of writes a second, and little beside a
//! network. An array whose members keep no ledgers has no epochs.

use crate::sync::sequential::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Epochs between the lowest and the newest.
pub const WINDOW: u64 = if cfg!(feature = "model") { 3 } else { 1024 };

/// The epoch in which a change is sent, and the lowest one in which a write may still be under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EpochStamp {
    /// The newest epoch.
    pub epoch: u64,
    /// At most [`WINDOW`] below.
    pub lowest: u64,
}

/// The writes of an array that are under way, shared by all shards.
#[derive(Debug)]
pub struct Epochs {
    newest: AtomicU64,
    lowest: AtomicU64,
    /// Writes under way, by epoch modulo [`WINDOW`].
    open: Box<[AtomicU64]>,
    /// What a write has left half done is not listed by its epoch any more, once it has ended: nothing is forgotten.
    is_held: AtomicBool,
    /// The members' ledgers are complete.
    is_recorded: AtomicBool,
}

/// A write that is under way until this is dropped.
#[derive(Debug)]
pub(crate) struct Entered<'a> {
    epochs: &'a Epochs,
    epoch: u64,
}

impl Default for Epochs {
    fn default() -> Self {
        Epochs {
            newest: AtomicU64::new(1),
            lowest: AtomicU64::new(1),
            open: (0..WINDOW).map(|_| AtomicU64::new(0)).collect(),
            is_held: AtomicBool::new(false),
            is_recorded: AtomicBool::new(false),
        }
    }
}

impl Epochs {
    /// A write begins: before it changes any member.
    pub(crate) fn enter(&self) -> Entered<'_> {
        loop {
            let epoch = self.newest.load(SeqCst);
            self.open(epoch).fetch_add(1, SeqCst);
            // Counted before this load, as `retire` looks at the newest epoch before it looks at the count.
            if self.newest.load(SeqCst) == epoch {
                self.advance(epoch);
                return Entered { epochs: self, epoch };
            }
            self.open(epoch).fetch_sub(1, SeqCst);
        }
    }

    /// What a change that is sent now says.
    pub fn stamp(&self) -> EpochStamp {
        self.retire();
        // In this order: the lowest one may only be taken for lower than it is.
        let epoch = self.newest.load(SeqCst);
        EpochStamp { epoch, lowest: self.lowest.load(SeqCst).min(epoch) }
    }

    /// A write fails half way and leaves something that does not agree: before it ends. From here on nothing is forgotten, until
    /// [`Self::release`].
    pub(crate) fn hold(&self) {
        self.is_held.store(true, SeqCst);
    }

    /// What is half done from here on is held anew. The caller looks afterwards whether anything was before.
    pub fn release(&self) {
        self.is_held.store(false, SeqCst);
    }

    /// Whether something was left half done since [`Self::release`].
    pub fn is_held(&self) -> bool {
        self.is_held.load(SeqCst)
    }

    /// Says whether all members' ledgers are complete.
    pub fn set_recorded(&self, is_recorded: bool) {
        self.is_recorded.store(is_recorded, SeqCst);
    }

    /// Whether the next host can tell from the members' targets what is under way.
    pub fn is_recorded(&self) -> bool {
        self.is_recorded.load(SeqCst)
    }

    /// An epoch in which no write that has begun before this call is.
    pub fn mark(&self) -> u64 {
        self.newest.load(SeqCst) + 1
    }

    /// Whether all writes that began before this [`Self::mark`] have ended.
    pub fn is_past(&self, mark: u64) -> bool {
        self.advance(mark - 1);
        self.retire();
        self.lowest.load(SeqCst) >= mark
    }

    fn open(&self, epoch: u64) -> &AtomicU64 {
        &self.open[(epoch % WINDOW) as usize]
    }

    /// Writes that come from here on have the next epoch, if the window has room. Its count is 0: it was last used by one that is
    /// retired.
    fn advance(&self, epoch: u64) {
        if epoch + 1 - self.lowest.load(SeqCst).min(epoch) < WINDOW {
            let _other_was_faster = self.newest.compare_exchange(epoch, epoch + 1, SeqCst, SeqCst);
        }
    }

    /// Takes the lowest epoch as far as no write is under way.
    fn retire(&self) {
        loop {
            let lowest = self.lowest.load(SeqCst);
            let is_over = lowest < self.newest.load(SeqCst) && self.open(lowest).load(SeqCst) == 0;
            // Looked at last: what has left after it was held is seen as held.
            if !is_over || self.is_held() {
                return;
            }
            let _other_was_faster = self.lowest.compare_exchange(lowest, lowest + 1, SeqCst, SeqCst);
        }
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.epochs.open(self.epoch).fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_keeps_its_epoch_and_all_later_ones() {
        let epochs = Epochs::default();
        let first = epochs.enter();
        let second = epochs.enter();
        let stamp = epochs.stamp();
        assert!(first.epoch < second.epoch && second.epoch < stamp.epoch);
        drop(second);
        assert_eq!(epochs.stamp().lowest, first.epoch, "the first is still under way");
        drop(first);
        assert_eq!(epochs.stamp().lowest, epochs.stamp().epoch);
    }

    #[test]
    fn a_full_window_is_shared() {
        let epochs = Epochs::default();
        let mut writes: Vec<_> = (0..3 * WINDOW).map(|_| epochs.enter()).collect();
        let stamp = epochs.stamp();
        assert!(stamp.epoch - stamp.lowest < WINDOW);
        let kept = writes.split_off(2 * WINDOW as usize);
        drop(writes);
        let stamp = epochs.stamp();
        assert_eq!(stamp.lowest, kept[0].epoch, "those that came last share one epoch");
        drop(kept);
        let next = epochs.enter();
        assert_eq!(epochs.stamp().lowest, next.epoch);
    }

    #[test]
    fn what_is_half_done_holds_all() {
        let epochs = Epochs::default();
        let write = epochs.enter();
        let before = epochs.stamp();
        epochs.hold();
        drop(write);
        drop(epochs.enter());
        assert_eq!(epochs.stamp().lowest, before.lowest);
        epochs.release();
        assert!(epochs.stamp().lowest > before.lowest);
    }

    #[test]
    fn a_mark_is_past_when_what_began_before_has_ended() {
        let epochs = Epochs::default();
        assert!(epochs.is_past(epochs.mark()), "also of an array at rest");
        let write = epochs.enter();
        let mark = epochs.mark();
        let later = epochs.enter();
        assert!(!epochs.is_past(mark));
        drop(write);
        assert!(!epochs.is_past(mark), "its epoch had begun before");
        drop(later);
        assert!(epochs.is_past(mark));
    }
}

/// Threads stand for shards; shuttle chooses which one runs.
#[cfg(all(test, feature = "model"))]
mod model {
    use super::*;
    use crate::sync::models::{self, threads};
    use std::sync::{Arc, Mutex};

    /// The second write of the first shard.
    const HALF_DONE: usize = 1;

    /// A target's list of changes, by the epochs that they were sent in.
    #[derive(Default)]
    struct Listed(Mutex<Vec<(u64, usize)>>);

    impl Listed {
        fn note(&self, stamp: EpochStamp, write: usize) {
            let mut listed = self.0.lock().expect("no thread panics with it");
            listed.retain(|(epoch, _)| *epoch >= stamp.lowest);
            listed.push((stamp.epoch, write));
        }

        fn has(&self, write: usize) -> bool {
            self.0.lock().expect("no thread panics with it").iter().any(|(_, listed)| *listed == write)
        }
    }

    /// F-I14: while a write is under way, and for ever once it was left half done, its changes are listed, whatever others send.
    #[test]
    fn what_is_under_way_is_listed() {
        models::check(|| {
            let (epochs, listed) = (Arc::new(Epochs::default()), Arc::new(Listed::default()));
            threads(3, move |shard| {
                for round in 0..3 {
                    let write = shard * 10 + round;
                    let entered = epochs.enter();
                    listed.note(epochs.stamp(), write);
                    shuttle::thread::yield_now();
                    assert!(listed.has(write), "it is under way");
                    if write == HALF_DONE {
                        epochs.hold();
                    }
                    drop(entered);
                    shuttle::thread::yield_now();
                    assert!(write != HALF_DONE || listed.has(write), "it was left half done");
                }
            });
        });
    }

    /// A write enters while another shard's writes come and go: its epoch is not over.
    #[test]
    fn no_write_enters_an_epoch_that_is_over() {
        models::check(|| {
            let epochs = Arc::new(Epochs::default());
            threads(2, move |shard| {
                for _ in 0..if shard == 0 { 1 } else { 3 } {
                    let entered = epochs.enter();
                    let lowest = epochs.stamp().lowest;
                    assert!(lowest <= entered.epoch, "{lowest} is above a write of {}", entered.epoch);
                }
            });
        });
    }
}
