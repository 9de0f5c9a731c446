//! What is due when. Entries of the same moment come in the order in which they were added.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Default)]
pub(crate) struct Agenda {
    due: RefCell<BinaryHeap<Reverse<Due>>>,
    added: Cell<u64>,
    /// Entries that are not looks.
    work: Cell<usize>,
}

/// Whether the world goes on for the sake of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// Something has been asked for and will happen.
    Work,
    /// A task looks now and then whether there is something to do.
    Look,
}

pub(crate) struct Due {
    pub(crate) at: u64,
    added: u64,
    pub(crate) kind: Kind,
    pub(crate) action: Box<dyn FnOnce()>,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.added == other.added
    }
}
impl Eq for Due {}
impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Due {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (self.at, self.added).cmp(&(other.at, other.added))
    }
}

impl Agenda {
    pub(crate) fn add(&self, at: u64, kind: Kind, action: impl FnOnce() + 'static) {
        let added = self.added.replace(self.added.get() + 1);
        self.work.set(self.work.get() + usize::from(kind == Kind::Work));
        self.due.borrow_mut().push(Reverse(Due { at, added, kind, action: Box::new(action) }));
    }

    pub(crate) fn next(&self) -> Option<Due> {
        let Reverse(due) = self.due.borrow_mut().pop()?;
        self.work.set(self.work.get() - usize::from(due.kind == Kind::Work));
        Some(due)
    }

    /// Whether nothing but looks is due.
    pub(crate) fn only_looks(&self) -> bool {
        self.work.get() == 0
    }

    /// Nothing of it happens any more.
    pub(crate) fn clear(&self) {
        let dropped = std::mem::take(&mut *self.due.borrow_mut());
        self.work.set(0);
        drop(dropped); // may drop wakers and buffers: no borrow is held
    }
}
