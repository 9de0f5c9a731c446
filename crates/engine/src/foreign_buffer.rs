//! A buffer outside of this process: the memory of a request that a driver has registered with the ring. A device fills
//! it, this process never sees its bytes. A read that goes there is copied once less.
//!
//! Invariant: the request is answered, or its buffer reused, only after [`ForeignBuffer::returned`]. A read whose future was
//! dropped is still running, and may still fill the buffer: the operation keeps its [`Lease`] until it completes.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The buffer of one request, in the hands of the task that answers the request.
pub struct ForeignBuffer {
    index: u16,
    leases: Rc<Leases>,
}

/// A part of a foreign buffer, in the hands of an operation that may fill it. A clone is another lease of the same part.
pub struct Lease {
    index: u16,
    offset_bytes: u64,
    leases: Rc<Leases>,
}

#[derive(Default)]
struct Leases {
    count: Cell<usize>,
    /// The task that waits for the last one to be dropped.
    owner: RefCell<Option<Waker>>,
}

impl ForeignBuffer {
    /// The buffer with this index in the ring's table of registered buffers.
    pub fn new(index: u16) -> Self {
        ForeignBuffer { index, leases: Rc::default() }
    }

    /// Index in the ring's table of registered buffers.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Leases the buffer from its first byte on.
    pub fn lease(&self) -> Lease {
        Lease::new(self.index, 0, &self.leases)
    }

    /// Waits until every lease has been dropped.
    pub fn returned(&self) -> impl Future<Output = ()> + use<> {
        let leases = Rc::clone(&self.leases);
        std::future::poll_fn(move |context| {
            if leases.count.get() == 0 {
                return Poll::Ready(());
            }
            leases.owner.replace(Some(context.waker().clone()));
            Poll::Pending
        })
    }
}

impl Lease {
    /// Index in the ring's table of registered buffers.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// Where in the buffer the part starts.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// A lease of the same buffer that starts `bytes` further on.
    pub fn skip(&self, bytes: u64) -> Lease {
        Lease::new(self.index, self.offset_bytes + bytes, &self.leases)
    }

    /// The only place that makes a lease, so that each is counted.
    fn new(index: u16, offset_bytes: u64, leases: &Rc<Leases>) -> Lease {
        leases.count.set(leases.count.get() + 1);
        Lease { index, offset_bytes, leases: Rc::clone(leases) }
    }
}

impl Clone for Lease {
    fn clone(&self) -> Self {
        Lease::new(self.index, self.offset_bytes, &self.leases)
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let left = self.leases.count.get().checked_sub(1).expect("a lease is dropped once");
        self.leases.count.set(left);
        if left == 0
            && let Some(owner) = self.leases.owner.take()
        {
            owner.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{Executor, yield_now};

    #[test]
    fn a_buffer_is_returned_when_its_last_lease_is_dropped() {
        let (executor, buffer) = (Executor::new(Box::new(|| {})), Rc::new(ForeignBuffer::new(7)));
        let whole = buffer.lease();
        let part = whole.skip(4096).skip(512);
        assert_eq!((part.index(), part.offset_bytes(), whole.offset_bytes()), (7, 4608, 0));
        let returned = Rc::new(Cell::new(false));
        let (waits, seen) = (Rc::clone(&buffer), Rc::clone(&returned));
        executor.spawn(async move {
            waits.returned().await;
            seen.set(true);
        });
        let seen = Rc::clone(&returned);
        executor.spawn(async move {
            drop(whole);
            yield_now().await;
            assert!(!seen.get(), "a part of it is still leased");
            drop(part);
        });
        executor.run_ready(100);
        assert!(returned.get());
        // A lease that is dropped before the owner waits.
        drop(buffer.lease());
        executor.spawn(async move { buffer.returned().await });
        executor.run_ready(100);
    }
}
