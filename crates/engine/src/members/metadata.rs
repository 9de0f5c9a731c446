//! Which changes of the members are on disk. A change is counted here before any shard can act on it, and the superblock
//! writer says when the superblocks contain it.

use std::task::{Context, Poll, Waker};

use crate::error::MetadataLost;
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

/// Versions of the members' metadata: the newest, and the one on disk.
pub(crate) struct Metadata {
    wanted: AtomicU64,
    written: AtomicU64,
    /// The metadata could not be written to enough members: no more requests are acknowledged.
    lost: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
    writer: Mutex<Option<Waker>>,
}

impl Metadata {
    pub(crate) fn new() -> Self {
        Metadata {
            wanted: AtomicU64::new(0),
            written: AtomicU64::new(0),
            lost: AtomicBool::new(false),
            waiting: Mutex::new(Vec::new()),
            writer: Mutex::new(None),
        }
    }

    /// Counts a change that is not on disk yet.
    pub(crate) fn change(&self) {
        self.wanted.fetch_add(1, SeqCst);
    }

    pub(crate) fn wake_writer(&self) {
        let writer = self.writer.lock().take();
        if let Some(writer) = writer {
            writer.wake();
        }
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.written.load(SeqCst) == self.wanted.load(SeqCst)
    }

    /// Waits until every change so far is on disk.
    pub(crate) async fn settled(&self) -> Result<(), MetadataLost> {
        let wanted = self.wanted.load(SeqCst);
        std::future::poll_fn(|context| {
            let reached = || self.written.load(SeqCst) >= wanted;
            if reached() {
                return Poll::Ready(Ok(()));
            }
            let mut waiting = self.waiting.lock();
            if reached() {
                return Poll::Ready(Ok(()));
            }
            if self.lost.load(SeqCst) {
                return Poll::Ready(Err(MetadataLost));
            }
            waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// The version to write, once there is one. Called with `Members::changing` locked.
    pub(crate) fn poll_wanted(&self, context: &Context<'_>) -> Poll<u64> {
        let mut writer = self.writer.lock();
        let wanted = self.wanted.load(SeqCst);
        if wanted != self.written.load(SeqCst) {
            return Poll::Ready(wanted);
        }
        *writer = Some(context.waker().clone());
        Poll::Pending
    }

    pub(crate) fn version(&self) -> u64 {
        self.wanted.load(SeqCst)
    }

    pub(crate) fn written(&self, version: u64) {
        self.written.fetch_max(version, SeqCst);
        self.wake_waiting();
    }

    pub(crate) fn lost(&self) {
        self.lost.store(true, SeqCst);
        self.wake_waiting();
    }

    fn wake_waiting(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }
}
