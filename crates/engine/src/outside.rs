//! Memory of a request that lies outside of this process: a device can fill it, and nobody here can look at it. A read
//! that goes there is copied once less.
//!
//! Invariant: memory that was lent is answered for only after [`Lender::returned`]. Whoever drops the future of a read
//! leaves the read on its way, and it may still fill the memory.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// The memory of one request, for as long as something may fill it. Clones are the same memory.
pub struct Outside {
    /// Which memory, in the table of whoever made the [`Lender`].
    place: u16,
    offset_bytes: u64,
    loan: Rc<Loan>,
}

/// Lends out the memory of a request, and knows when nobody has it any more.
pub struct Lender {
    place: u16,
    loan: Rc<Loan>,
}

#[derive(Default)]
struct Loan {
    lent: Cell<usize>,
    waiting: RefCell<Option<Waker>>,
}

impl Lender {
    /// For the memory that has this place in a table of its ring.
    pub fn new(place: u16) -> Self {
        Lender { place, loan: Rc::default() }
    }

    /// The place.
    pub fn place(&self) -> u16 {
        self.place
    }

    /// The memory, from its first byte on.
    pub fn lend(&self) -> Outside {
        Outside::lent(self.place, 0, &self.loan)
    }

    /// Waits until everything that was lent is gone.
    pub fn returned(&self) -> impl Future<Output = ()> + use<> {
        let loan = Rc::clone(&self.loan);
        std::future::poll_fn(move |context| {
            if loan.lent.get() == 0 {
                return Poll::Ready(());
            }
            loan.waiting.replace(Some(context.waker().clone()));
            Poll::Pending
        })
    }
}

impl Outside {
    /// Which memory.
    pub fn place(&self) -> u16 {
        self.place
    }

    /// Where in it.
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// The same memory, `bytes` further on.
    pub fn from(&self, bytes: u64) -> Outside {
        Outside::lent(self.place, self.offset_bytes + bytes, &self.loan)
    }

    /// Every part there is was made here, and counted.
    fn lent(place: u16, offset_bytes: u64, loan: &Rc<Loan>) -> Outside {
        loan.lent.set(loan.lent.get() + 1);
        Outside { place, offset_bytes, loan: Rc::clone(loan) }
    }
}

impl Clone for Outside {
    fn clone(&self) -> Self {
        Outside::lent(self.place, self.offset_bytes, &self.loan)
    }
}

impl Drop for Outside {
    fn drop(&mut self) {
        let left = self.loan.lent.get() - 1;
        self.loan.lent.set(left);
        if left == 0
            && let Some(waker) = self.loan.waiting.take()
        {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{Executor, yield_now};

    #[test]
    fn memory_is_returned_when_its_last_part_is_gone() {
        let (executor, lender) = (Executor::new(Box::new(|| {})), Rc::new(Lender::new(7)));
        let whole = lender.lend();
        let part = whole.from(4096).from(512);
        assert_eq!((part.place(), part.offset_bytes(), whole.offset_bytes()), (7, 4608, 0));
        let returned = Rc::new(Cell::new(false));
        let (waits, seen) = (Rc::clone(&lender), Rc::clone(&returned));
        executor.spawn(async move {
            waits.returned().await;
            seen.set(true);
        });
        let seen = Rc::clone(&returned);
        executor.spawn(async move {
            drop(whole);
            yield_now().await;
            assert!(!seen.get(), "a part of it is out");
            drop(part);
        });
        executor.run_ready(100);
        assert!(returned.get());
        // Lent again, and returned before anyone asks.
        drop(lender.lend());
        executor.spawn(async move { lender.returned().await });
        executor.run_ready(100);
    }
}
