//! Locks and queues under shuttle.

use std::collections::VecDeque;
use std::sync::PoisonError;

pub use shuttle::hint::spin_loop;
pub use shuttle::sync::MutexGuard;
pub use shuttle::sync::atomic;

/// Like `parking_lot::Mutex`.
#[derive(Debug, Default)]
pub struct Mutex<T>(shuttle::sync::Mutex<T>);

impl<T> Mutex<T> {
    /// An unlocked mutex.
    pub const fn new(value: T) -> Self {
        Mutex(shuttle::sync::Mutex::new(value))
    }

    /// Waits for the lock.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Like `crossbeam::queue::SegQueue`, whose operations are atomic as seen from outside.
#[derive(Debug)]
pub struct SegQueue<T>(Mutex<VecDeque<T>>);

impl<T> SegQueue<T> {
    /// An empty queue.
    pub const fn new() -> Self {
        SegQueue(Mutex::new(VecDeque::new()))
    }

    /// Adds a value at the end.
    pub fn push(&self, value: T) {
        self.0.lock().push_back(value);
    }

    /// Takes the value at the front.
    pub fn pop(&self) -> Option<T> {
        self.0.lock().pop_front()
    }
}

impl<T> Default for SegQueue<T> {
    fn default() -> Self {
        SegQueue::new()
    }
}
