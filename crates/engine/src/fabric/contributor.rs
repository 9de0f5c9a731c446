//! The part of a target that contributes to other targets' reductions, and writes its own new contents beside or after that.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::credit::{contribution_bytes, product_bytes};
use super::effect::{Effect, Effects};
use super::order::{Answer, Contribution, Destination, Ending, How, Outcome, PeerIndex, Settle, Stamp};
use crate::buffer::{Buffer, Gather, Pool, Slice};

/// What is ordered.
pub(super) struct Contribute {
    pub stamp: Stamp,
    pub how: How,
    pub own: Range<u64>,
    pub rows: Range<u64>,
    pub to: SmallVec<[Destination; 2]>,
    pub new: Gather,
    pub fua: bool,
    /// This target's number among its peers.
    pub me: PeerIndex,
}

/// A contributor of one op.
pub(super) struct Contributor<T> {
    order: Contribute,
    token: Option<T>,
    settlers: SmallVec<[T; 1]>,
    /// What the reducers said, by destination.
    taken: SmallVec<[Option<Ending>; 2]>,
    stage: Stage,
    /// The drive has yet to answer the write.
    is_writing: bool,
    /// The drive has failed once at what it does now.
    has_failed: bool,
    /// F-I1: kept until the op is retired, since parity that was not applied can be made of nothing else where other data of the
    /// stripe is lost meanwhile.
    delta: Option<Slice>,
    outcome: Outcome,
    failure: Option<Ending>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Reading,
    /// The contribution is on its way; for a delta the write is, too.
    Forwarding,
    Final,
}

impl<T> Contributor<T> {
    pub fn begin(order: Contribute, token: T, pool: &Arc<Pool>, effects: &mut Effects<T>) -> Self {
        let taken = order.to.iter().map(|_| None).collect();
        let mut this = Contributor {
            order,
            token: Some(token),
            settlers: SmallVec::new(),
            taken,
            stage: Stage::Reading,
            is_writing: false,
            has_failed: false,
            delta: None,
            outcome: Outcome::default(),
            failure: None,
        };
        let Contribute { stamp, how, own, rows, .. } = &this.order;
        if how.reads(own, rows) {
            effects.push(Effect::Read { op: stamp.op, rows: rows.clone() });
        } else {
            this.contribute(None, pool, effects);
        }
        this
    }

    pub fn was_read(&mut self, read: Result<Buffer, ()>, pool: &Arc<Pool>, effects: &mut Effects<T>) {
        if self.stage != Stage::Reading {
            return; // it was aborted meanwhile
        }
        match read {
            Ok(old) => {
                self.outcome.read = true;
                self.contribute(Some(old), pool, effects);
            }
            // The error may pass, as it may where the host reads itself.
            Err(()) if !std::mem::replace(&mut self.has_failed, true) => {
                let Contribute { stamp, rows, .. } = &self.order;
                effects.push(Effect::Read { op: stamp.op, rows: rows.clone() });
            }
            Err(()) => {
                self.failure = Some(Ending::ReadFailed);
                self.end(effects);
            }
        }
    }

    /// F-I1: the contribution is made of what was read before the own write begins.
    fn contribute(&mut self, old: Option<Buffer>, pool: &Arc<Pool>, effects: &mut Effects<T>) {
        (self.stage, self.has_failed) = (Stage::Forwarding, false);
        let Contribute { stamp, how, own, rows, to, new, me, .. } = &self.order;
        let part = contribution(*how, old, own, rows, new, pool);
        for (at, destination) in to.iter().enumerate() {
            effects.push(Effect::Forward {
                destination: at,
                to: destination.peer,
                contribution: Contribution {
                    stamp: *stamp,
                    from: *me,
                    rows: rows.clone(),
                    when_complete: *how == How::Overlay,
                },
                data: times(&part, destination.coefficient, pool),
            });
        }
        if *how == How::Delta {
            (self.delta, self.outcome.retained) = (Some(part), true);
        }
        if self.order.how == How::Delta || self.order.to.is_empty() {
            self.write(effects);
        }
        self.end_if_over(effects);
    }

    pub fn was_forwarded(&mut self, destination: usize, ending: Ending, effects: &mut Effects<T>) {
        if self.stage != Stage::Forwarding {
            return;
        }
        self.taken[destination] = Some(ending);
        match ending {
            Ending::Done => self.outcome.forwarded[destination] = true,
            Ending::Aborted | Ending::TimeOver | Ending::Retired => _ = self.failure.get_or_insert(ending),
            _ => _ = self.failure.get_or_insert(Ending::PeerUnreachable),
        }
        // F-I1: all reducers have their new contents whole before the first old chunk is overwritten.
        if self.order.how == How::Overlay && self.all_taken() && self.failure.is_none() {
            self.write(effects);
        }
        self.end_if_over(effects);
    }

    fn write(&mut self, effects: &mut Effects<T>) {
        let Contribute { stamp, own, new, fua, .. } = &self.order;
        if own.is_empty() {
            return;
        }
        assert!(!self.is_writing, "one write at a time");
        (self.outcome.write_begun, self.is_writing) = (true, true);
        effects.push(Effect::Write { op: stamp.op, start: own.start, data: new.clone(), fua: *fua });
    }

    pub fn was_written(&mut self, written: Result<(), Ending>, effects: &mut Effects<T>) {
        assert!(self.is_writing, "the drive answers a write that began");
        self.is_writing = false;
        match written {
            Ok(()) => self.outcome.written = true,
            // The error may pass, as it may where the host writes itself. A drive without space has said its word.
            Err(Ending::WriteFailed) if !std::mem::replace(&mut self.has_failed, true) => {
                return self.write(effects);
            }
            Err(ending) => self.failure = Some(ending),
        }
        self.end_if_over(effects);
    }

    fn all_taken(&self) -> bool {
        self.taken.iter().all(Option::is_some)
    }

    fn end_if_over(&mut self, effects: &mut Effects<T>) {
        if self.stage == Stage::Forwarding && self.all_taken() && !self.is_writing {
            self.end(effects);
        }
    }

    fn end(&mut self, effects: &mut Effects<T>) {
        self.stage = Stage::Final;
        self.order.new = Gather::new();
        let answer = self.answer();
        for token in self.token.take().into_iter().chain(self.settlers.drain(..)) {
            effects.push(Effect::Answer { token, answer, data: Gather::new() });
        }
    }

    fn answer(&self) -> Answer {
        Answer { ending: self.failure.unwrap_or(Ending::Done), outcome: self.outcome }
    }

    /// A host settles: what has not begun is not begun any more, a write that began is waited for.
    pub fn settle(&mut self, how: Settle, token: T, effects: &mut Effects<T>) {
        self.settlers.push(token);
        if self.stage == Stage::Final {
            self.end(effects);
        } else if how == Settle::Abort {
            self.abort(effects);
        }
    }

    /// Cancels the steps that have not begun.
    pub fn abort(&mut self, effects: &mut Effects<T>) {
        if self.stage == Stage::Final {
            return;
        }
        self.failure.get_or_insert(Ending::Aborted);
        self.stage = Stage::Forwarding;
        // What reducers still have to say does not matter: the host settles them, too.
        for taken in &mut self.taken {
            taken.get_or_insert(Ending::Aborted);
        }
        self.end_if_over(effects);
    }

    /// What goes to a reducer again, and where in this target's namespace it belongs.
    pub fn again(&self, to: PeerIndex, pool: &Arc<Pool>) -> Option<(Range<u64>, Slice)> {
        let delta = self.delta.as_ref()?;
        let destination = self.order.to.iter().find(|destination| destination.peer == to)?;
        Some((self.order.rows.clone(), times(delta, destination.coefficient, pool)))
    }

    /// Bytes that [`Self::again`] takes on the way.
    pub fn again_bytes(&self, to: PeerIndex) -> u64 {
        let destination = self.order.to.iter().find(|destination| destination.peer == to);
        destination.map_or(0, |to| product_bytes(to.coefficient, &self.order.rows))
    }

    pub fn is_final(&self) -> bool {
        self.stage == Stage::Final && !self.is_writing
    }

    /// What it takes of the credit of its host: when it is final, what it keeps.
    pub fn bytes(&self) -> u64 {
        let Contribute { rows, to, new, .. } = &self.order;
        match self.is_final() {
            true => self.delta.as_ref().map_or(0, |delta| delta.len() as u64),
            false => contribution_bytes(new.len() as u64, rows, to),
        }
    }
}

/// What a target contributes, before a coefficient.
fn contribution(
    how: How,
    old: Option<Buffer>,
    own: &Range<u64>,
    rows: &Range<u64>,
    new: &Gather,
    pool: &Arc<Pool>,
) -> Slice {
    let bytes = usize::try_from(rows.end - rows.start).expect("an order fits in memory");
    let mut whole = old.unwrap_or_else(|| pool.take(bytes));
    assert_eq!(whole.len(), bytes, "as much was read as is contributed");
    let mut at = usize::try_from(own.start.saturating_sub(rows.start)).expect("within the rows");
    for slice in new.slices() {
        let part = &mut whole.bytes_mut()[at..at + slice.len()];
        match how {
            How::Delta => parity::xor_into(slice.bytes(), part),
            How::Overlay => part.copy_from_slice(slice.bytes()),
            How::Old => unreachable!("an order that contributes old contents brings no new ones"),
        }
        at += slice.len();
    }
    whole.freeze()
}

fn times(part: &Slice, coefficient: u8, pool: &Arc<Pool>) -> Slice {
    if coefficient == 1 {
        return part.clone();
    }
    let mut product = pool.take(part.len());
    product.bytes_mut().fill(0);
    parity::add_product(coefficient, part.bytes(), product.bytes_mut());
    product.freeze()
}
