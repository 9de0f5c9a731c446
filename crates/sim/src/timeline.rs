//! Virtual time of the experiments, in nanoseconds.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use engine::members::load::Clock;

use crate::agenda::{Agenda, Kind};

/// Virtual time, and what happens when.
pub(crate) struct Timeline {
    pub(crate) now: Arc<Now>,
    agenda: Agenda,
}

/// The present as the engine sees it.
#[derive(Default)]
pub(crate) struct Now(AtomicU64);

impl Clock for Now {
    fn now_ns(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

impl Timeline {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Timeline { now: Arc::default(), agenda: Agenda::default() })
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.now.now_ns()
    }

    pub(crate) fn at(&self, at_ns: u64, action: impl FnOnce() + 'static) {
        self.agenda.add(at_ns.max(self.now_ns()), Kind::Work, action);
    }

    pub(crate) fn after(&self, ns: u64, action: impl FnOnce() + 'static) {
        self.at(self.now_ns() + ns, action);
    }

    /// Nothing of what was to happen happens any more.
    pub(crate) fn clear(&self) {
        self.agenda.clear();
    }

    /// Goes to the next moment and hands out what happens then.
    pub(crate) fn next(&self) -> Option<Box<dyn FnOnce()>> {
        let due = self.agenda.next()?;
        self.now.0.store(due.at, Relaxed);
        Some(due.action)
    }
}
