//! The host's part: numbers for ops, and what the answers of an op's participants mean.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};

use super::credit::{Costs, Credit, Credits, order_bytes_max};
use super::order::{Answer, Base, Ending, Op, PEERS_MAX, PeerIndex, Stamp};
use super::reducer_choice::ReducerChoice;

/// Most ops between the lowest that is not retired and the newest. One that waits for a member to answer holds the others' memory
/// at the targets; beyond this many stripes are written host-centric until it has ended.
pub const OPS_WINDOW: u64 = 1024;

/// Further numbers for what is sent again, which an op that is stuck must not keep from being mended.
pub const MENDING_WINDOW: u64 = 1024;

/// Most ops at a time: as many commands as a queue between two targets has. A contribution that waits for a sum keeps its command,
/// and two full queues would wait for each other (F-I10). What is sent again does not wait for sums, and has no part in this.
pub const OPS_OPEN_MAX: usize = 120;

const _: () = assert!((OPS_OPEN_MAX as u64) < OPS_WINDOW);
const _: () = assert!(OPS_WINDOW + MENDING_WINDOW <= u16::MAX as u64);

/// The time that a host has an array's targets work together, from one attach to the next.
#[derive(Debug)]
pub struct Attach {
    /// No other attach of this process has it.
    pub serial: u64,
    ops: Mutex<Ops>,
    /// Which peers each one reaches, as sets.
    reaches: [AtomicU32; PEERS_MAX],
    /// Bytes that each one gives, as `ops` has it: for those that only want to know whether to begin at all.
    given: [AtomicU64; PEERS_MAX],
    /// How fast each puts lost chunks together.
    pub reducers: ReducerChoice,
}

#[derive(Debug)]
struct Ops {
    next: u64,
    /// Numbers of open ops, those under which parts are sent again, too.
    open: BTreeSet<u64>,
    open_ops: usize,
    credits: Credits,
    /// By the last number of an op. What an op has taken is had back when that is retired at all targets: when no lower one is open.
    taken: BTreeMap<u64, Costs>,
}

impl Attach {
    /// An attach for which no target has yet reported a connection to a peer.
    #[must_use]
    pub fn new(serial: u64) -> Self {
        let ops = Ops {
            next: 1,
            open: BTreeSet::new(),
            open_ops: 0,
            credits: Credits::default(),
            taken: BTreeMap::new(),
        };
        Attach {
            serial,
            ops: Mutex::new(ops),
            reaches: std::array::from_fn(|_| AtomicU32::new(0)),
            given: std::array::from_fn(|_| AtomicU64::new(0)),
            reducers: ReducerChoice::default(),
        }
    }

    /// Begins an op that takes so much at its participants. None: too many are open, or a participant's target has not
    /// that much memory left for this host. It is not waited for: the host writes the stripe itself then.
    pub fn begin(self: &Arc<Self>, costs: Costs) -> Option<OpenOp> {
        let mut ops = self.ops.lock();
        if ops.open_ops >= OPS_OPEN_MAX || !ops.has_number(OPS_WINDOW) || !ops.credits.take(&costs) {
            return None;
        }
        let stamp = ops.number();
        ops.taken.insert(stamp.op.0, costs);
        ops.open_ops += 1;
        Some(OpenOp { attach: Arc::clone(self), numbers: smallvec![stamp.op.0], stamp })
    }

    /// Records how many bytes a peer's target gives.
    pub fn set_given(&self, peer: PeerIndex, bytes: u64) {
        self.ops.lock().credits.set_given(peer, bytes);
        self.given[usize::from(peer)].store(bytes, Ordering::Release);
    }

    /// What a peer's target gives, and what of it is taken.
    #[must_use]
    pub fn credit(&self, peer: PeerIndex) -> Credit {
        self.ops.lock().credits.of(peer)
    }

    /// Most bytes of an order's rows for which a peer's target gives enough.
    pub fn order_bytes_max(&self, peer: PeerIndex) -> u64 {
        order_bytes_max(self.given[usize::from(peer)].load(Ordering::Acquire))
    }

    /// Records which other peers a peer reports that it reaches.
    pub fn set_reaches(&self, from: PeerIndex, peers: u32) {
        self.reaches[usize::from(from)].store(peers, Ordering::Release);
    }

    /// Whether one target reaches another.
    pub fn reaches(&self, from: PeerIndex, to: PeerIndex) -> bool {
        from == to || self.reaches[usize::from(from)].load(Ordering::Acquire) >> to & 1 == 1
    }
}

impl Ops {
    fn lowest(&self) -> u64 {
        self.open.first().copied().unwrap_or(self.next)
    }

    fn has_number(&self, window: u64) -> bool {
        self.next - self.lowest() < window
    }

    fn number(&mut self) -> Stamp {
        let (op, lowest) = (self.next, self.lowest());
        self.next += 1;
        self.open.insert(op);
        Stamp { op: Op(op), lowest: Op(lowest) }
    }

    /// Has back what ops below the lowest that is open have taken: the next message to each target says that they are retired, before
    /// it brings anything.
    fn give_back(&mut self) {
        let lowest = self.lowest();
        while let Some(entry) = self.taken.first_entry()
            && *entry.key() < lowest
        {
            let costs = entry.remove();
            self.credits.give_back(&costs);
        }
    }
}

/// An op that is not retired. F-I3: it is retired when this is dropped, after all its participants are final and what they left
/// behind is mended.
#[derive(Debug)]
pub struct OpenOp {
    attach: Arc<Attach>,
    /// All its numbers, the last one last.
    numbers: SmallVec<[u64; 1]>,
    stamp: Stamp,
}

impl OpenOp {
    /// Its number, and what is retired.
    #[must_use]
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Parts of it are sent again, under a new number. They take nothing that it has not taken already: all participants are final
    /// (F-I4), and what they keep was in its count. False: an older op has been stuck for too long.
    pub fn send_again(&mut self) -> bool {
        let mut ops = self.attach.ops.lock();
        if !ops.has_number(OPS_WINDOW + MENDING_WINDOW) {
            return false;
        }
        let costs = ops.taken.remove(&self.stamp.op.0).expect("an open op has its credit");
        self.stamp = ops.number();
        ops.taken.insert(self.stamp.op.0, costs);
        self.numbers.push(self.stamp.op.0);
        true
    }
}

impl Drop for OpenOp {
    fn drop(&mut self) {
        let mut ops = self.attach.ops.lock();
        for number in &self.numbers {
            ops.open.remove(number);
        }
        ops.open_ops -= 1;
        ops.give_back();
    }
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

/// What a participant was to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// To contribute, and to write if so.
    Contribute {
        /// It writes new contents.
        writes: bool,
    },
    /// To add up and write.
    Reduce,
}

/// What is to be done about a step, once all participants of its op are final (F-I4). The first that fits, in this order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mend {
    /// Nothing: all was done.
    Nothing,
    /// The host makes the step itself: data and parity agree, whether nothing was done or a member was lost after all was.
    Again,
    /// The host writes the data that is not written: all parity tells of it.
    Data,
    /// What was contributed goes to the reducers that can still take it, under a new op; what did not begin is ordered anew.
    Resend,
    /// The host makes parity from all data.
    Reconstruct,
}

/// What is to be done about a step of which each participant was to do a part.
#[must_use]
pub fn mend(base: Base, finals: &[(Part, Final)]) -> Mend {
    let answered = || finals.iter().filter_map(|(part, one)| Some((*part, one.answer()?)));
    let failed = |of: fn(&Part) -> bool| finals.iter().any(|(part, one)| of(part) && *one == Final::Failed);
    let is_contributor = |part: &Part| matches!(part, Part::Contribute { .. });
    if finals.iter().any(|(_, one)| *one == Final::Forgot) {
        return Mend::Reconstruct;
    }
    if !answered().any(|(_, answer)| answer.outcome.write_begun) {
        return Mend::Again;
    }
    let all_applied = answered().all(|(part, answer)| part != Part::Reduce || answer.outcome.applied);
    let all_written =
        answered().all(|(part, answer)| part != Part::Contribute { writes: true } || answer.outcome.written);
    match (all_applied, all_written) {
        (true, true) if failed(|_| true) => return Mend::Again,
        (true, true) => return Mend::Nothing,
        (true, false) if !failed(is_contributor) => return Mend::Data,
        _ => {}
    }
    // A write that cannot read what it replaces is left out, and made once parity agrees without it. So is one of a member that
    // failed, but not where one parity already has it: the other would have what that member held before.
    let any_applied = answered().any(|(part, answer)| part == Part::Reduce && answer.outcome.applied);
    let can_leave_out = !failed(is_contributor) || !any_applied;
    let may_contribute = |(part, answer): (Part, Answer)| {
        let outcome = answer.outcome;
        part == Part::Reduce || !outcome.write_begun || outcome.written && outcome.retained
    };
    let any_takes = finals.iter().any(|(part, one)| *part == Part::Reduce && one.takes_contributions());
    if base == Base::Old && can_leave_out && any_takes && answered().all(may_contribute) {
        return Mend::Resend;
    }
    Mend::Reconstruct
}

impl Final {
    /// What it answered, if it is there and remembers the op.
    #[must_use]
    pub fn answer(&self) -> Option<Answer> {
        if let Final::Answered(answer) = self { Some(*answer) } else { None }
    }

    /// Of a reducer: what it adds to is there as it was, and it may be sent the contributions again.
    #[must_use]
    pub fn takes_contributions(&self) -> bool {
        let is_as_it_was = |answer: Answer| !answer.outcome.applied && !answer.outcome.write_begun;
        self.answer().is_some_and(is_as_it_was) && !self.cannot_read()
    }

    /// Of a contributor: it has no part in what is sent again.
    #[must_use]
    pub fn is_left_out(&self) -> bool {
        *self == Final::Failed || self.cannot_read()
    }

    /// Its drive cannot read what the op starts from.
    #[must_use]
    pub fn cannot_read(&self) -> bool {
        self.answer().is_some_and(|answer| answer.ending == Ending::ReadFailed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::order::Outcome;

    /// Ops that take nothing.
    fn begin(attach: &Arc<Attach>) -> Option<OpenOp> {
        attach.begin(Costs::new())
    }

    #[test]
    fn ops_grow_and_the_window_ends_at_the_lowest_that_is_open() {
        let attach = Arc::new(Attach::new(1));
        let mut first = begin(&attach).expect("the first");
        let stamps: Vec<Stamp> = (0..3).map(|_| begin(&attach).expect("room").stamp()).collect();
        assert!(stamps.iter().all(|stamp| stamp.lowest == first.stamp().op && stamp.op > stamp.lowest));
        let (lowest, mut last) = (first.stamp().op, first.stamp().op);
        while let Some(op) = begin(&attach) {
            assert!(op.stamp().op > last);
            last = op.stamp().op;
        }
        assert_eq!(last.0 - lowest.0, OPS_WINDOW - 1);
        // What is sent again has numbers of its own.
        let mut again = 0;
        while first.send_again() {
            assert!(first.stamp().op > last && first.stamp().lowest == lowest);
            last = first.stamp().op;
            again += 1;
        }
        assert_eq!(again, MENDING_WINDOW);
        drop(first);
        let next = begin(&attach).expect("the window is open again").stamp();
        assert_eq!((next.op.0, next.lowest), (last.0 + 1, next.op));
        let open: Vec<OpenOp> = std::iter::from_fn(|| begin(&attach)).collect();
        assert_eq!(open.len(), OPS_OPEN_MAX);
    }

    #[test]
    fn credit_is_had_back_when_an_op_is_retired_and_not_when_it_has_ended() {
        let attach = Arc::new(Attach::new(1));
        let begin = |bytes| attach.begin(smallvec![(3, bytes)]);
        assert!(begin(1).is_none(), "a target that has not told gives nothing");
        attach.set_given(3, 100);
        assert_eq!(attach.order_bytes_max(3), 25);
        let mut stuck = begin(10).expect("room");
        let other = begin(60).expect("room");
        assert!(begin(31).is_none());
        drop(other);
        assert!(begin(31).is_none(), "its target has not heard that it is retired");
        assert!(stuck.send_again(), "mending takes nothing");
        assert_eq!(attach.credit(3).taken(), 70);
        let later = begin(30).expect("what is left");
        drop(stuck);
        // All numbers of both are below the one that is open.
        assert_eq!(attach.credit(3).taken(), 30);
        let last = begin(70).expect("all there is");
        assert!(begin(1).is_none());
        drop(last);
        assert_eq!(attach.credit(3).taken(), 100, "a lower one is open");
        drop(later);
        assert_eq!(attach.credit(3).taken(), 0);
    }

    #[test]
    fn what_is_done_about_a_step() {
        let outcome = |begun, done, retained| Outcome {
            write_begun: begun,
            written: done,
            applied: done,
            retained,
            ..Outcome::default()
        };
        let answered = |ending, outcome| Final::Answered(Answer { ending, outcome });
        let done = answered(Ending::Done, outcome(true, true, true));
        let untouched = answered(Ending::Aborted, outcome(false, false, false));
        let unreadable = answered(Ending::ReadFailed, outcome(false, false, false));
        let torn = answered(Ending::Aborted, outcome(true, false, false));
        let (failed, forgot) = (Final::Failed, Final::Forgot);
        // base; contributors that write; reducers
        type Case<'a> = (Base, &'a [Final], &'a [Final], Mend);
        let cases: &[Case<'_>] = &[
            (Base::Old, &[done], &[done], Mend::Nothing),
            (Base::Old, &[untouched], &[untouched], Mend::Again),
            (Base::Old, &[failed], &[untouched], Mend::Again),
            // The write began at a member that is lost since; parity has it.
            (Base::Old, &[failed], &[done, done], Mend::Again),
            (Base::Old, &[done], &[failed, done], Mend::Again),
            (Base::Old, &[done], &[untouched], Mend::Resend),
            (Base::Old, &[done, untouched], &[untouched], Mend::Resend),
            (Base::Old, &[done], &[done, untouched], Mend::Resend),
            (Base::Old, &[done], &[failed, untouched], Mend::Resend),
            (Base::Old, &[done, failed], &[untouched], Mend::Resend),
            (Base::Old, &[done, failed], &[torn, untouched], Mend::Resend),
            (Base::Old, &[done, failed], &[done, untouched], Mend::Reconstruct),
            (Base::Old, &[done], &[torn], Mend::Reconstruct),
            (Base::Old, &[done], &[unreadable], Mend::Reconstruct),
            (Base::Old, &[done, unreadable], &[untouched], Mend::Resend),
            (Base::Old, &[done], &[unreadable, untouched], Mend::Resend),
            (Base::Old, &[done], &[torn, untouched], Mend::Resend),
            (Base::Old, &[done], &[unreadable, done], Mend::Reconstruct),
            (Base::Old, &[done], &[forgot], Mend::Reconstruct),
            (Base::Zero, &[untouched, done], &[done], Mend::Data),
            (Base::Zero, &[untouched], &[done], Mend::Data),
            (Base::Zero, &[untouched], &[done, untouched], Mend::Reconstruct),
            (Base::Zero, &[failed, untouched], &[done], Mend::Reconstruct),
        ];
        for (base, contributors, reducers, expected) in cases {
            let contributors = contributors.iter().map(|one| (Part::Contribute { writes: true }, *one));
            let reducers = reducers.iter().map(|one| (Part::Reduce, *one));
            let finals: Vec<_> = contributors.chain(reducers).collect();
            assert_eq!(mend(*base, &finals), *expected, "{base:?} {finals:?}");
        }
        let reads_only = [(Part::Contribute { writes: false }, untouched), (Part::Reduce, done)];
        assert_eq!(mend(Base::Zero, &reads_only), Mend::Nothing, "its part is in the sum");
    }
}
