//! Which checkpoint superblocks name, what it needs, and when the next one is due.

use layout::zoned::Checkpoint;

use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// The newest checkpoint of an array, and when the next one is due.
pub struct Checkpoints {
    /// Changed groups from which on one is due. None: there are no checkpoints, and a start reads every footer.
    due: Option<usize>,
    newest: Mutex<Newest>,
    written: AtomicU64,
    /// The last attempt failed, or space was too short for one, and no segment was opened since.
    is_postponed: AtomicBool,
}

#[derive(Default)]
struct Newest {
    /// What superblocks name, or are about to.
    said: Option<Checkpoint>,
    /// The segment of each block that it needs.
    pinned: Vec<u32>,
}

impl Checkpoints {
    /// None was found or written yet. `due`: changed groups from which on one is due; None: there are no checkpoints.
    pub fn new(due: Option<usize>) -> Self {
        Checkpoints {
            due,
            newest: Mutex::default(),
            written: AtomicU64::new(0),
            is_postponed: AtomicBool::new(false),
        }
    }

    /// What superblocks are to name.
    pub fn said(&self) -> Option<Checkpoint> {
        self.newest.lock().said
    }

    /// At a start: the one that superblocks name, with the segment of each block that it needs, all of them pinned by now.
    pub fn found(&self, said: Checkpoint, pinned: Vec<u32>) {
        *self.newest.lock() = Newest { said: Some(said), pinned };
    }

    /// At a start: a block of the one that was found has been moved to a segment, pinned by now.
    pub fn moved(&self, slot: u32) {
        self.newest.lock().pinned.push(slot);
    }

    /// Superblocks are to name this one, with the segment of each block that it needs. Returns those that others need, which
    /// superblocks name until they have followed.
    pub fn say(&self, said: Checkpoint, mut pinned: Vec<u32>) -> Vec<u32> {
        let mut newest = self.newest.lock();
        newest.said = Some(said);
        let before = newest.pinned.clone();
        newest.pinned.append(&mut pinned);
        before
    }

    /// All superblocks name the newest one: the first `blocks` pinned blocks, those of older ones, are needed no more.
    pub fn forget(&self, blocks: usize) {
        self.newest.lock().pinned.drain(..blocks);
        self.written.fetch_add(1, SeqCst);
    }

    /// Whether so much has changed since the newest one that another should be written.
    pub fn is_wanted(&self, changed: usize) -> bool {
        self.due.is_some_and(|due| changed >= due)
    }

    /// Whether one is wanted, and may be tried now.
    pub fn is_due(&self, changed: usize) -> bool {
        self.is_wanted(changed) && !self.is_postponed.load(SeqCst)
    }

    /// One that is wanted cannot be written now: it is not due before the next segment is opened. Each stripe would wake reclaim for it.
    pub fn postpone(&self) {
        self.is_postponed.store(true, SeqCst);
    }

    /// A segment was opened.
    pub fn try_again(&self) {
        self.is_postponed.store(false, SeqCst);
    }

    /// Whether there are any.
    pub fn are_on(&self) -> bool {
        self.due.is_some()
    }

    /// Checkpoints since the start.
    pub fn written(&self) -> u64 {
        self.written.load(SeqCst)
    }
}
