//! The host's part: numbers for ops, the ability of a member to take orders, and what the answers of an op's participants mean.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use super::order::{Answer, Ending, Op, Order, PEERS_MAX, PeerIndex, Settle, Stamp};
use crate::buffer::Gather;
use crate::device::DeviceError;

/// Most ops between the lowest that is not retired and the newest. One that waits for a member to answer holds the others' memory
/// at the targets; beyond this many stripes are written host-centric until it has ended.
pub const OPS_WINDOW: u64 = 1024;

/// The time that a host has an array's targets work together, from one attach to the next.
#[derive(Debug)]
pub struct Attach {
    /// No other attach of this process has it.
    pub serial: u64,
    ops: Mutex<Ops>,
    /// Which peers each one reaches, as sets.
    reaches: [AtomicU32; PEERS_MAX],
}

#[derive(Debug)]
struct Ops {
    next: u64,
    open: BTreeSet<u64>,
}

impl Attach {
    /// An attach whose targets reach nobody yet.
    #[must_use]
    pub fn new(serial: u64) -> Self {
        let reaches = std::array::from_fn(|_| AtomicU32::new(0));
        Attach { serial, ops: Mutex::new(Ops { next: 1, open: BTreeSet::new() }), reaches }
    }

    /// Begins an op. None: too many are open.
    pub fn begin(self: &Arc<Self>) -> Option<OpenOp> {
        let mut ops = self.ops.lock();
        let op = ops.next;
        let lowest = ops.open.first().copied().unwrap_or(op);
        if op - lowest >= OPS_WINDOW {
            return None;
        }
        ops.next += 1;
        ops.open.insert(op);
        Some(OpenOp { attach: Arc::clone(self), stamp: Stamp { op: Op(op), lowest: Op(lowest) } })
    }

    /// What a peer was told of those that it reaches.
    pub fn set_reaches(&self, from: PeerIndex, peers: u32) {
        self.reaches[usize::from(from)].store(peers, Ordering::Release);
    }

    /// Whether one target reaches another.
    pub fn reaches(&self, from: PeerIndex, to: PeerIndex) -> bool {
        from == to || self.reaches[usize::from(from)].load(Ordering::Acquire) >> to & 1 == 1
    }
}

/// An op that is not retired. F-I3: it is retired when this is dropped, after all its participants are final and what they left
/// behind is mended.
#[derive(Debug)]
pub struct OpenOp {
    attach: Arc<Attach>,
    stamp: Stamp,
}

impl OpenOp {
    /// Its number, and what is retired.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }
}

impl Drop for OpenOp {
    fn drop(&mut self) {
        self.attach.ops.lock().open.remove(&self.stamp.op.0);
    }
}

/// Why a target gave no answer.
#[derive(Clone, Debug)]
pub enum NoAnswer {
    /// The connection was lost on the way: the order may have been carried out, in part or not at all.
    Away,
    /// The member cannot be asked, or refused by what it is.
    Device(DeviceError),
}

/// An order or a question on its way.
pub type Answering = Pin<Box<dyn Future<Output = Result<Answered, NoAnswer>>>>;

/// What a target answered.
#[derive(Clone, Debug)]
pub struct Answered {
    /// How it ended.
    pub answer: Answer,
    /// What a reduction to the host came to; else empty.
    pub data: Gather,
}

/// A member's place among the targets of an attach.
#[derive(Clone, Debug)]
pub struct Place {
    /// The attach.
    pub attach: Arc<Attach>,
    /// The member's number in it.
    pub index: PeerIndex,
}

/// The ability of a member's device to take orders.
pub trait PeerMember {
    /// Its place, while its target is attached.
    fn place(&self) -> Option<Place>;

    /// Has an order carried out. It is sent once: after [`NoAnswer::Away`] the caller settles.
    fn order(&self, order: Order, data: Gather) -> Answering;

    /// Asks what became of an op, connecting again if need be.
    fn settle(&self, stamp: Stamp, how: Settle) -> Answering;
}

/// What a participant of an op came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Final {
    /// It answered.
    Answered(Answer),
    /// It failed as a member, and the array goes on without it.
    Failed,
    /// It has forgotten the op: its target was restarted.
    Forgot,
}

/// What an op came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Everything was done.
    Done,
    /// Nothing was changed.
    Untouched,
    /// Something was changed and something not: parity is to be made from all data.
    Disturbed,
}

/// Judges what all participants of an op came to (F-I4: all of them are final).
#[must_use]
pub fn judge(finals: &[Final]) -> Verdict {
    let is_done = |one: &Final| matches!(one, Final::Answered(answer) if answer.ending == Ending::Done);
    let is_untouched = |one: &Final| match one {
        Final::Answered(Answer { outcome, .. }) => !outcome.write_begun && !outcome.applied,
        // What it holds does not count any more.
        Final::Failed => true,
        Final::Forgot => false,
    };
    if finals.iter().all(is_done) {
        Verdict::Done
    } else if finals.iter().all(is_untouched) {
        Verdict::Untouched
    } else {
        Verdict::Disturbed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::order::Outcome;

    #[test]
    fn ops_grow_and_the_window_ends_at_the_lowest_that_is_open() {
        let attach = Arc::new(Attach::new(1));
        let first = attach.begin().expect("the first");
        let stamps: Vec<Stamp> = (0..3).map(|_| attach.begin().expect("room").stamp()).collect();
        assert!(stamps.iter().all(|stamp| stamp.lowest == first.stamp().op && stamp.op > stamp.lowest));
        let mut last = first.stamp().op;
        while let Some(op) = attach.begin() {
            assert!(op.stamp().op > last);
            last = op.stamp().op;
        }
        assert_eq!(last.0 - first.stamp().op.0, OPS_WINDOW - 1);
        drop(first);
        let next = attach.begin().expect("the window is open again").stamp();
        assert_eq!((next.op.0, next.lowest), (last.0 + 1, next.op));
    }

    #[test]
    fn an_op_is_done_untouched_or_disturbed() {
        let done = Outcome { read: true, write_begun: true, written: true, ..Outcome::default() };
        let answered = |ending, outcome| Final::Answered(Answer { ending, outcome });
        let good = answered(Ending::Done, done);
        let aborted = answered(Ending::Aborted, Outcome::default());
        let torn = answered(Ending::WriteFailed, Outcome { written: false, ..done });
        for (finals, verdict) in [
            (vec![good, good], Verdict::Done),
            (vec![aborted, aborted], Verdict::Untouched),
            (vec![aborted, Final::Failed], Verdict::Untouched),
            (vec![good, aborted], Verdict::Disturbed),
            (vec![good, Final::Failed], Verdict::Disturbed),
            (vec![aborted, torn], Verdict::Disturbed),
            (vec![aborted, Final::Forgot], Verdict::Disturbed),
        ] {
            assert_eq!(judge(&finals), verdict, "{finals:?}");
        }
    }
}
