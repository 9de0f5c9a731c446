//! Queues and cells under loom, built from its atomics and no stronger than those of the product: a lock would order what a
//! lock-free queue does not order, and hide a lost wake.

use std::collections::VecDeque;
use std::sync::Mutex;

use loom::sync::atomic::AtomicUsize;
use loom::sync::atomic::Ordering::{AcqRel, Acquire};

pub use loom::sync::atomic;
/// Like `std::thread_local`, for keys with a constant first value.
macro_rules! thread_local_of_loom {
    ($(#[$attribute:meta])* static $name:ident: $kind:ty = const { $first:expr };) => {
        loom::thread_local! { $(#[$attribute])* static $name: $kind = $first; }
    };
}
pub(crate) use thread_local_of_loom as thread_local;

/// Like `crossbeam::queue::SegQueue`: a push is one change of the tail; whether it is empty is two loads.
#[derive(Debug)]
pub struct SegQueue<T> {
    head: AtomicUsize,
    tail: AtomicUsize,
    /// The values that were pushed. The lock is not loom's: for the model it orders nothing.
    values: Mutex<VecDeque<T>>,
}

impl<T> SegQueue<T> {
    /// An empty queue.
    pub fn new() -> Self {
        let zero = || AtomicUsize::new(0);
        SegQueue { head: zero(), tail: zero(), values: Mutex::new(VecDeque::new()) }
    }

    /// Adds a value at the end.
    pub fn push(&self, value: T) {
        self.values.lock().expect("no panic while locked").push_back(value);
        self.tail.fetch_add(1, AcqRel);
    }

    /// Takes the value at the front.
    pub fn pop(&self) -> Option<T> {
        loop {
            let head = self.head.load(Acquire);
            if head >= self.tail.load(Acquire) {
                return None;
            }
            if self.head.compare_exchange(head, head + 1, AcqRel, Acquire).is_ok() {
                return self.values.lock().expect("no panic while locked").pop_front();
            }
        }
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of values in the queue.
    pub fn len(&self) -> usize {
        let head = self.head.load(Acquire);
        self.tail.load(Acquire).saturating_sub(head)
    }
}

impl<T> Default for SegQueue<T> {
    fn default() -> Self {
        SegQueue::new()
    }
}

/// Like `std::sync::OnceLock`, for values that are cloned out.
#[derive(Debug)]
pub struct OnceLock<T> {
    is_set: atomic::AtomicBool,
    value: std::sync::OnceLock<T>,
}

impl<T> OnceLock<T> {
    /// A cell without a value.
    pub fn new() -> Self {
        OnceLock { is_set: atomic::AtomicBool::new(false), value: std::sync::OnceLock::new() }
    }

    /// The value, if there is one.
    pub fn get(&self) -> Option<&T> {
        if self.is_set.load(Acquire) { self.value.get() } else { None }
    }

    /// The value; `make` makes it if there is none.
    pub fn get_or_init(&self, make: impl FnOnce() -> T) -> &T {
        let value = self.value.get_or_init(make);
        self.is_set.store(true, atomic::Ordering::Release);
        value
    }
}

impl<T> Default for OnceLock<T> {
    fn default() -> Self {
        OnceLock::new()
    }
}
