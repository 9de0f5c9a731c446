//! Intents: what is durable before a stripe may become inconsistent on the members (invariant 2).
//!
//! The policy here is md's `resync`: one flag for the whole array. Before the first write the superblocks say that
//! the array is dirty; after a quiet time without writes they say clean. A write pays one counter of its own shard
//! and one load. The bitmap, the journal and PPL are other ways to make [`Intent::mark`] true.

use crossbeam::utils::CachePadded;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::task::{Poll, Waker};

use crate::members::{Members, MetadataLost};

/// The superblocks say clean; a write has to wait.
const CLEAN: u8 = 0;
/// A write waits for the superblocks to say dirty.
const WANTED: u8 = 1;
/// The superblocks say dirty; writes go ahead.
const DIRTY: u8 = 2;
/// The keeper is about to write clean; a write has to wait.
const CLOSING: u8 = 3;
/// The array has no use for intents (RAID-0): writes go ahead.
const UNUSED: u8 = 4;
/// The superblocks cannot be written.
const LOST: u8 = 5;

/// The intents of one array, shared by all shards.
pub struct Intent {
    state: AtomicU8,
    writing: Box<[CachePadded<AtomicU64>]>,
    waiting: Mutex<Vec<Waker>>,
}

/// While it lives the stripes of a write may be inconsistent.
pub(crate) struct Marked<'a> {
    writing: &'a AtomicU64,
}

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        self.writing.fetch_sub(1, SeqCst);
    }
}

impl Intent {
    /// Intents of an array written by `shards` shards. `dirty`: the superblocks say so already.
    pub fn new(shards: usize, used: bool, dirty: bool) -> Self {
        let state = match (used, dirty) {
            (false, _) => UNUSED,
            (true, true) => DIRTY,
            (true, false) => CLEAN,
        };
        let writing = (0..shards).map(|_| CachePadded::new(AtomicU64::new(0))).collect();
        Intent { state: AtomicU8::new(state), writing, waiting: Mutex::new(Vec::new()) }
    }

    /// Returns once the intent of a write is durable.
    pub(crate) async fn mark(&self, shard: usize, members: &Members) -> Result<Marked<'_>, MetadataLost> {
        let writing = &*self.writing[shard];
        loop {
            // Counted before the look at the state; the keeper looks at the counters after it closed the state.
            writing.fetch_add(1, SeqCst);
            let marked = Marked { writing };
            match self.state.load(SeqCst) {
                DIRTY | UNUSED => return Ok(marked),
                LOST => return Err(MetadataLost),
                _ => drop(marked),
            }
            self.wait_for_dirty(members).await;
        }
    }

    async fn wait_for_dirty(&self, members: &Members) {
        let mut waited = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut waited, true) {
                return Poll::Ready(());
            }
            let mut waiting = self.waiting.lock();
            let wanted = self.state.compare_exchange(CLEAN, WANTED, SeqCst, SeqCst).is_ok();
            if matches!(self.state.load(SeqCst), DIRTY | LOST) {
                return Poll::Ready(());
            }
            waiting.push(context.waker().clone());
            drop(waiting);
            if wanted {
                members.want_metadata();
            }
            Poll::Pending
        })
        .await;
    }

    /// Whether the superblocks have to say dirty.
    pub fn wants_dirty(&self) -> bool {
        matches!(self.state.load(SeqCst), WANTED | DIRTY)
    }

    /// Whether the superblocks say dirty, so that a quiet array may be closed.
    pub fn is_open(&self) -> bool {
        self.state.load(SeqCst) == DIRTY
    }

    /// The superblocks say dirty: writes go ahead.
    pub fn dirty_written(&self) {
        let _ = self.state.compare_exchange(WANTED, DIRTY, SeqCst, SeqCst);
        self.wake();
    }

    /// Closes the gate if no write is on its way. After true the keeper writes clean superblocks and calls
    /// [`Intent::clean_written`].
    pub fn try_close(&self) -> bool {
        if self.state.compare_exchange(DIRTY, CLOSING, SeqCst, SeqCst).is_err() {
            return false;
        }
        if self.writing.iter().any(|writing| writing.load(SeqCst) > 0) {
            self.reopen();
            return false;
        }
        true
    }

    /// Undoes [`Intent::try_close`].
    pub fn reopen(&self) {
        let _ = self.state.compare_exchange(CLOSING, DIRTY, SeqCst, SeqCst);
        self.wake();
    }

    /// The superblocks say clean. Writes that came meanwhile ask for dirty again.
    pub fn clean_written(&self) {
        let _ = self.state.compare_exchange(CLOSING, CLEAN, SeqCst, SeqCst);
        self.wake();
    }

    /// The superblocks cannot be written any more: writes fail.
    pub fn lost(&self) {
        self.state.store(LOST, SeqCst);
        self.wake();
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }
}
