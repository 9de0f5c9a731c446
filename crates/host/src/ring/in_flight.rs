//! An operation in flight as its future holds it: the ring and a slot. And the end of a ring.
//!
//! Cancellation:
//! - Dropping an [`InFlight`] leaves a device operation running, its result is thrown away. A socket operation is cancelled.
//! - Dropping the last handle to a ring, futures included, drains it: what may wait for ever is cancelled, everything else
//!   is waited for. An operation of a device that hangs does not hold up the end for ever: after the drain limit the ring
//!   is left as it is, with all memory that operations still name, until the process ends.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use super::backend::Backend;
use super::core::Core;
use super::fallback::Fallback;
use super::helper::Helpers;
use super::op::Op;
use super::slots::SlotState;
use super::wake::WakeUp;

/// A ring, as its handles and its futures share it.
pub(super) struct Inner {
    pub core: RefCell<Core>,
    pub wake: Arc<WakeUp>,
    pub helpers: Helpers,
    /// How long the end waits for operations that do not end.
    pub drain_limit: Duration,
}

/// An operation in flight.
pub(crate) struct InFlight {
    ring: Rc<Inner>,
    slot: u32,
}

/// The slot of a future that has returned.
const TAKEN: u32 = u32::MAX;

/// How the wait for an operation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// It completed: [`InFlight::take`] has the result.
    Finished,
    /// It is beyond its time limit and still runs: [`InFlight::let_go`] leaves it to the ring.
    Expired,
}

impl InFlight {
    #[inline]
    pub(super) fn new(ring: &Rc<Inner>, slot: u32) -> Self {
        InFlight { ring: Rc::clone(ring), slot }
    }

    pub(super) fn slot(&self) -> u32 {
        self.slot
    }

    #[inline]
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Ended> {
        assert_ne!(self.slot, TAKEN, "a future is not polled after it has returned");
        let core = &mut *self.ring.core.borrow_mut();
        let slot = core.slots.get(self.slot);
        match slot.state {
            SlotState::Finished => Poll::Ready(Ended::Finished),
            SlotState::Expired => Poll::Ready(Ended::Expired),
            SlotState::Running => {
                slot.await_with(context.waker());
                Poll::Pending
            }
            SlotState::Vacant | SlotState::Orphaned => unreachable!("a future has a slot of its own"),
        }
    }

    /// Hands what a finished operation owned, and its result, to `take`, in place: only the parts that it moves are copied.
    #[inline]
    pub(crate) fn take<T>(&mut self, take: impl FnOnce(Op, i32) -> T) -> T {
        let core = &mut *self.ring.core.borrow_mut();
        let result = core.slots.get(self.slot).result;
        let op = core.slots.remove(self.slot);
        self.slot = TAKEN;
        take(op, result)
    }

    /// Leaves an expired operation to the ring. Returns its name, offset and length.
    pub(crate) fn let_go(&mut self) -> (&'static str, u64, u64) {
        let core = &mut *self.ring.core.borrow_mut();
        let about = core.slots.get(self.slot).op.describe();
        core.orphan(self.slot);
        self.slot = TAKEN;
        about
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        if self.slot != TAKEN {
            self.ring.core.borrow_mut().orphan(self.slot);
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        /// Memory must not be freed under operations that still run: a drain that panics ends the process.
        struct Abort;
        impl Drop for Abort {
            fn drop(&mut self) {
                std::process::abort();
            }
        }
        let abort = Abort;
        let core = self.core.get_mut();
        if !core.drain(self.drain_limit) {
            let in_flight = core.backend.in_flight();
            tracing::error!(
                in_flight,
                "operations of devices that do not answer are left running until the process ends"
            );
            let nothing = Core::new(Backend::Fallback(Box::new(Fallback::new(Arc::clone(&self.wake)))));
            std::mem::forget(std::mem::replace(core, nothing));
        }
        std::mem::forget(abort);
    }
}
