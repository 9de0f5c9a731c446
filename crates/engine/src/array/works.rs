//! The background work of an array that is under way.

use std::cell::RefCell;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Poll, Waker};

use super::progress::Progress;
use layout::units::Slot;

/// A background work of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Parity or copies are made to agree.
    Resync,
    /// The member in this slot is rebuilt.
    Recovery(Slot),
    /// The member in this slot is copied to its replacement.
    Replacement(Slot),
    /// Data is compared with parity, or copies with each other.
    Scrub,
}

/// What is under way, and the tasks that wait for its end.
#[derive(Default)]
pub(super) struct Works {
    running: RefCell<Vec<(Work, Arc<Progress>)>>,
    idle: RefCell<Vec<Waker>>,
}

impl Works {
    /// Some work begins.
    pub(super) fn begin(&self, work: Work) -> Arc<Progress> {
        let progress = Arc::<Progress>::default();
        self.running.borrow_mut().push((work, Arc::clone(&progress)));
        progress
    }

    /// It has ended.
    pub(super) fn end(&self, work: Work) {
        self.running.borrow_mut().retain(|(running, _)| *running != work);
        self.wake();
    }

    /// Wakes the tasks in [`Works::none_while`]: something has ended.
    pub(super) fn wake(&self) {
        self.idle.take().into_iter().for_each(Waker::wake);
    }

    pub(super) fn is_running(&self, work: Work) -> bool {
        self.running.borrow().iter().any(|(running, _)| *running == work)
    }

    /// What is under way, and how far.
    pub(super) fn all(&self) -> Vec<(Work, Arc<Progress>)> {
        self.running.borrow().clone()
    }

    /// Ends what is under way after its current step.
    pub(super) fn stop(&self) {
        self.running.borrow().iter().for_each(|(_, progress)| progress.stop.store(true, Relaxed));
    }

    /// Returns when no work is under way and `is_busy` says no.
    pub(super) async fn none_while(&self, is_busy: impl Fn() -> bool) {
        poll_fn(|context| {
            if self.running.borrow().is_empty() && !is_busy() {
                return Poll::Ready(());
            }
            self.idle.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}
