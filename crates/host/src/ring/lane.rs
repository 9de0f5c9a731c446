//! The operations of one file that a ring has sent, and those that wait for room.
//!
//! A device that does not answer must not hold up other devices. An operation for which a device has no room, and every flush,
//! occupies a thread of the kernel until it is done, and the number of these threads is limited. So a file has at most
//! [`WIDTH`] operations and one flush sent; of a zone that is written in order, one. Operations that come meanwhile wait here, in order; flushes that come meanwhile
//! share the next one.
//!
//! Invariants:
//! - An operation that waits was not sent. It may end before its turn, and is passed over then.
//! - While an operation waits, as many are sent as may be; while a flush waits, one flush is. Therefore
//!   [`Lane::next_operation`] and [`Lane::next_flush`] follow the end of each.
//! - A flush shares the result of one that was sent after it came, which covers every write that was complete by then.

use std::collections::VecDeque;

/// Most operations of one file that a ring sends: more than keep a device busy from one core.
pub(super) const WIDTH: usize = 128;

/// A slot and its generation: a slot of another generation has another operation.
pub(super) type Waiting = (u32, u32);

/// The lane of one file.
#[derive(Debug)]
pub(crate) struct Lane {
    width: usize,
    under_way: usize,
    waiting: VecDeque<Waiting>,
    is_flushing: bool,
    /// They share the result of the flush that was sent.
    sharing: Vec<Waiting>,
    /// They came after that flush was sent.
    flushes: Vec<Waiting>,
}

impl Default for Lane {
    fn default() -> Self {
        Lane::new(WIDTH)
    }
}

impl Lane {
    /// A lane in which at most `width` operations are sent. In one of width 1 they are made in order.
    pub(super) fn new(width: usize) -> Self {
        Lane {
            width,
            under_way: 0,
            waiting: VecDeque::new(),
            is_flushing: false,
            sharing: Vec::new(),
            flushes: Vec::new(),
        }
    }

    /// Whether this operation may be sent now. Otherwise it waits.
    #[inline]
    pub(super) fn enter(&mut self, operation: Waiting) -> bool {
        let is_free = self.under_way < self.width;
        if is_free {
            self.under_way += 1;
        } else {
            self.waiting.push_back(operation);
        }
        is_free
    }

    /// As [`Lane::enter`], for a flush.
    pub(super) fn enter_flush(&mut self, flush: Waiting) -> bool {
        let is_free = !self.is_flushing;
        if is_free {
            self.is_flushing = true;
        } else {
            self.flushes.push(flush);
        }
        is_free
    }

    /// An operation that was sent has ended.
    #[inline]
    pub(super) fn leave(&mut self) {
        assert!(self.under_way > 0, "an operation leaves the lane once");
        self.under_way -= 1;
    }

    /// A flush that was sent has ended. Returns those that share its result.
    pub(super) fn leave_flush(&mut self) -> Vec<Waiting> {
        assert!(self.is_flushing, "a flush leaves the lane once");
        self.is_flushing = false;
        std::mem::take(&mut self.sharing)
    }

    /// The operation to send now, if there is one.
    #[inline]
    pub(super) fn next_operation(&mut self, mut waits: impl FnMut(Waiting) -> bool) -> Option<u32> {
        while self.under_way < self.width {
            let operation = self.waiting.pop_front()?;
            if waits(operation) {
                self.under_way += 1;
                return Some(operation.0);
            }
        }
        None
    }

    /// The flush to send now, if there is one. The others that wait share it.
    #[inline]
    pub(super) fn next_flush(&mut self, mut waits: impl FnMut(Waiting) -> bool) -> Option<u32> {
        if self.is_flushing {
            return None;
        }
        let mut flushes = std::mem::take(&mut self.flushes).into_iter();
        let (first, _) = flushes.find(|flush| waits(*flush))?;
        (self.is_flushing, self.sharing) = (true, flushes.collect());
        Some(first)
    }

    /// Takes everything that waits out of the lane.
    #[cold]
    pub(super) fn take_waiting(&mut self) -> impl Iterator<Item = Waiting> {
        let operations = std::mem::take(&mut self.waiting);
        operations.into_iter().chain(std::mem::take(&mut self.flushes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_take_turns_and_those_that_have_ended_are_passed_over() {
        let mut lane = Lane::default();
        let width = u32::try_from(WIDTH).expect("a small number");
        for slot in 0..width + 4 {
            assert_eq!(lane.enter((slot, 0)), slot < width);
        }
        assert_eq!(lane.next_operation(|_| true), None, "the lane is full");
        lane.leave();
        assert_eq!(lane.next_operation(|(slot, _)| slot > width), Some(width + 1));
        assert_eq!(lane.next_operation(|_| true), None);
        for _ in 0..2 {
            lane.leave();
        }
        assert_eq!(lane.next_operation(|_| true), Some(width + 2));
        assert_eq!(lane.next_operation(|_| true), Some(width + 3));
        assert_eq!(lane.next_operation(|_| true), None, "nothing waits");
        lane.leave();
        assert!(lane.enter((9, 9)), "there is room again");
    }

    #[test]
    fn flushes_share_one_that_was_sent_after_they_came() {
        let mut lane = Lane::default();
        assert!(lane.enter_flush((0, 0)));
        for slot in 1..5 {
            assert!(!lane.enter_flush((slot, 0)));
        }
        assert_eq!(lane.next_flush(|_| true), None, "one was sent");
        assert_eq!(lane.leave_flush(), [], "they came after it was sent");
        assert_eq!(lane.next_flush(|(slot, _)| slot > 1), Some(2));
        assert!(!lane.enter_flush((5, 0)));
        assert_eq!(lane.leave_flush(), [(3, 0), (4, 0)]);
        assert_eq!(lane.next_flush(|_| true), Some(5));
        assert_eq!((lane.leave_flush(), lane.next_flush(|_| true)), (vec![], None));
        assert!(lane.enter_flush((6, 0)));
    }
}
