//! How much memory the map may take, and the tasks that wait for some.

use std::task::{Poll, Waker};

use super::map::Map;
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// A round lets go of a sixteenth of the groups that memory has room for.
const ROUND_PART: usize = 16;

/// How much memory the map may take, and the tasks that wait for some.
pub struct MapMemory {
    /// Groups.
    limit: usize,
    wanted: AtomicBool,
    is_running: AtomicBool,
    is_stopping: AtomicBool,
    /// Rounds that have ended.
    rounds: AtomicU64,
    /// Mapping blocks that were written.
    written: AtomicU64,
    /// Groups that were read.
    read: AtomicU64,
    waiting: Mutex<Vec<Waker>>,
}

impl MapMemory {
    /// Memory for `limit` groups. None: for all.
    pub fn new(limit: Option<usize>) -> Self {
        MapMemory {
            limit: limit.unwrap_or(usize::MAX),
            wanted: AtomicBool::new(false),
            is_running: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            rounds: AtomicU64::new(0),
            written: AtomicU64::new(0),
            read: AtomicU64::new(0),
            waiting: Mutex::new(Vec::new()),
        }
    }

    /// Mapping blocks that were written since the start, for checkpoints and to let go of them.
    pub fn written(&self) -> u64 {
        self.written.load(SeqCst)
    }

    /// Groups that were read since the start.
    pub fn read(&self) -> u64 {
        self.read.load(SeqCst)
    }

    /// Groups that it has room for. None: as many as there are.
    pub fn limit(&self) -> Option<usize> {
        Some(self.limit).filter(|limit| *limit != usize::MAX)
    }

    /// Groups that a round lets go of.
    pub fn round(&self) -> usize {
        (self.limit / ROUND_PART).max(1)
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Waits until `is_over`. Whoever changes what that depends on calls `wake` afterwards.
    async fn until(&self, is_over: impl Fn() -> bool) {
        std::future::poll_fn(|context| {
            self.waiting.lock().push(context.waker().clone());
            if is_over() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Whether the map takes all the memory that it may, and something can be done about it.
    pub fn is_full(&self, map: &Map) -> bool {
        map.in_memory() >= self.limit && self.is_running.load(SeqCst)
    }

    /// Asks for a round if the map takes all the memory that it may, and does not wait: also what reclaim brings in is let go again.
    /// Whether there will be one.
    pub fn ask(&self, map: &Map) -> bool {
        let is_full = self.is_full(map);
        if is_full {
            self.wanted.store(true, SeqCst);
            self.wake();
        }
        is_full
    }

    /// Where the map takes all the memory that it may: waits for a round of the task that lets go of groups. Whether that gained
    /// anything or not, the caller goes on: memory may be exceeded by as many groups as there are requests, and no request waits
    /// for space of the log here.
    pub async fn make_room(&self, map: &Map) {
        let before = self.rounds.load(SeqCst);
        if !self.ask(map) {
            return;
        }
        self.until(|| self.rounds.load(SeqCst) != before || !self.is_running.load(SeqCst)).await;
    }

    /// A task lets go of groups from here on, or does not any more.
    pub fn set_running(&self, is_running: bool) {
        self.is_running.store(is_running, SeqCst);
        self.wake();
    }

    /// For that task: waits until memory is wanted. False: the array stops.
    pub async fn wanted(&self) -> bool {
        self.until(|| self.wanted.load(SeqCst) || self.is_stopping.load(SeqCst)).await;
        self.wanted.store(false, SeqCst);
        !self.is_stopping.load(SeqCst)
    }

    /// For that task: it let go of what it could.
    pub fn round_ended(&self) {
        self.rounds.fetch_add(1, SeqCst);
        self.wake();
    }

    /// A group was read.
    pub fn note_read(&self) {
        self.read.fetch_add(1, SeqCst);
    }

    /// Mapping blocks were written.
    pub fn note_written(&self, blocks: usize) {
        self.written.fetch_add(blocks as u64, SeqCst);
    }

    /// Whether that task is to end.
    pub fn is_stopping(&self) -> bool {
        self.is_stopping.load(SeqCst)
    }

    /// Ends the task that lets go of groups.
    pub async fn stopped(&self) {
        self.is_stopping.store(true, SeqCst);
        self.wake();
        self.until(|| !self.is_running.load(SeqCst)).await;
    }
}
