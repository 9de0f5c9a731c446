//! The part of a target that adds contributions up.
//!
//! Contributions may come before the order that says what they are for (non-blocking reduction, dRAID 5.1): they are added at
//! once, and the reduction is complete when the order and all that it waits for have come, in whatever order.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::credit::reduction_bytes;
use super::effect::{Effect, Effects};
use super::order::{Answer, Base, Contribution, Ending, Op, Outcome, PEERS_MAX, Settle, Sink};
use crate::buffer::{Buffer, Gather, Pool};

/// What is ordered.
pub(super) struct Reduce {
    pub base: Base,
    pub rows: Range<u64>,
    pub contributions: u8,
    pub sink: Sink,
    pub fua: bool,
}

/// A reduction.
pub(super) struct Reducer<T> {
    op: Op,
    sum: Sum,
    /// Whose contributions were added, a bit each: F-I2.
    added: u32,
    /// Contributions that are answered when the sum is complete.
    waiting: SmallVec<[T; 4]>,
    order: Option<Reduce>,
    token: Option<T>,
    settlers: SmallVec<[T; 1]>,
    /// What the drive held, if it is to be compared.
    old: Option<Buffer>,
    base_is_in: bool,
    /// What is being written, for a second attempt.
    whole: Gather,
    /// The drive has failed once at what it does now.
    has_failed: bool,
    stage: Stage,
    outcome: Outcome,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Gathering,
    Writing,
    Final(Ending),
}

/// Bytes from the first row of a sum to its last. Contributions that are further apart belong to no one order, and would take
/// memory for all between them.
const SPAN_BYTES_MAX: u64 = 4 << 20;

const _: () = assert!(PEERS_MAX <= u32::BITS as usize);

impl<T> Reducer<T> {
    /// A reduction of which something came first.
    pub fn new(op: Op, effects: &mut Effects<T>) -> Self {
        effects.push(Effect::Limit { op });
        Reducer {
            op,
            sum: Sum::default(),
            added: 0,
            waiting: SmallVec::new(),
            order: None,
            token: None,
            settlers: SmallVec::new(),
            old: None,
            base_is_in: false,
            whole: Gather::new(),
            has_failed: false,
            stage: Stage::Gathering,
            outcome: Outcome::default(),
        }
    }

    /// Its order has come. One that is there already is another's: nothing changes.
    pub fn order(&mut self, order: Reduce, token: T, pool: &Arc<Pool>, effects: &mut Effects<T>) {
        if let Stage::Final(ending) = self.stage {
            return answer(token, Answer { ending, outcome: self.outcome }, effects);
        }
        if self.order.is_some() {
            return answer(token, Answer::nothing(Ending::Invalid), effects);
        }
        self.token = Some(token);
        let fits = self.sum.lies_within(&order.rows);
        let (reads, rows) = (order.base.reads(order.sink), order.rows.clone());
        self.order = Some(order);
        if !fits {
            return self.end(Ending::ContributionRefused, Gather::new(), effects);
        }
        if reads {
            effects.push(Effect::Read { op: self.op, rows });
        } else {
            self.base_is_in = true;
            self.complete_if_all_is_in(pool, effects);
        }
    }

    pub fn contribution(
        &mut self,
        part: &Contribution,
        data: &Gather,
        token: T,
        pool: &Arc<Pool>,
        effects: &mut Effects<T>,
    ) {
        let bit = 1u32 << part.from;
        let refusal = match self.stage {
            Stage::Final(ending @ (Ending::Aborted | Ending::TimeOver)) => Some(ending),
            Stage::Final(_) | Stage::Writing => Some(Ending::ContributionRefused),
            Stage::Gathering if self.added & bit != 0 => Some(Ending::ContributionRefused),
            Stage::Gathering => None,
        };
        let is_outside = self
            .order
            .as_ref()
            .is_some_and(|order| part.rows.start < order.rows.start || part.rows.end > order.rows.end)
            || self.sum.span_with(&part.rows) > SPAN_BYTES_MAX;
        if let Some(ending) = refusal.or(is_outside.then_some(Ending::ContributionRefused)) {
            return answer(token, Answer::nothing(ending), effects);
        }
        // F-I2: once for each member, and whole.
        self.added |= bit;
        self.sum.add(1, part.rows.clone(), data, pool);
        match part.when_complete {
            true => self.waiting.push(token),
            false => answer(token, Answer::nothing(Ending::Done), effects),
        }
        self.complete_if_all_is_in(pool, effects);
    }

    pub fn was_read(&mut self, read: Result<Buffer, ()>, pool: &Arc<Pool>, effects: &mut Effects<T>) {
        if self.stage != Stage::Gathering {
            return; // it was aborted meanwhile
        }
        let Some(order) = &self.order else { return };
        let old = match read {
            Ok(old) => old,
            // The error may pass, as it may where the host reads itself.
            Err(()) if !std::mem::replace(&mut self.has_failed, true) => {
                let (op, rows) = (self.op, order.rows.clone());
                return effects.push(Effect::Read { op, rows });
            }
            Err(()) => return self.end(Ending::ReadFailed, Gather::new(), effects),
        };
        self.has_failed = false;
        self.outcome.read = true;
        self.base_is_in = true;
        let rows = order.rows.clone();
        match (order.base, order.sink) {
            (Base::Own(coefficient), _) => self.sum.add(coefficient, rows, &old.freeze().into(), pool),
            (_, Sink::Compare) => self.old = Some(old),
            _ => self.sum.add(1, rows, &old.freeze().into(), pool),
        }
        self.complete_if_all_is_in(pool, effects);
    }

    /// Complete is as good as written: from here on nothing aborts it, since contributors overwrite on that word.
    fn complete_if_all_is_in(&mut self, pool: &Arc<Pool>, effects: &mut Effects<T>) {
        let Some(order) = &self.order else { return };
        let all = self.added.count_ones() == u32::from(order.contributions);
        if self.stage != Stage::Gathering || !all || !self.base_is_in {
            return;
        }
        let sum = self.sum.take(&order.rows, pool);
        for token in self.waiting.drain(..) {
            answer(token, Answer::nothing(Ending::Done), effects);
        }
        match order.sink {
            Sink::Drive => {
                self.stage = Stage::Writing;
                self.outcome.write_begun = true;
                self.whole = sum.freeze().into();
                self.write(effects);
            }
            Sink::Host => {
                self.outcome.applied = true;
                self.end(Ending::Done, sum.freeze().into(), effects);
            }
            Sink::Compare => {
                let old = self.old.take().expect("what is compared was read");
                self.outcome.equal = old.bytes() == sum.bytes();
                self.end(Ending::Done, Gather::new(), effects);
            }
        }
    }

    fn write(&self, effects: &mut Effects<T>) {
        let order = self.order.as_ref().expect("it is complete");
        let (op, start, fua) = (self.op, order.rows.start, order.fua);
        effects.push(Effect::Write { op, start, data: self.whole.clone(), fua });
    }

    pub fn was_written(&mut self, written: Result<(), Ending>, effects: &mut Effects<T>) {
        assert!(self.stage == Stage::Writing, "the drive answers a write that began");
        // The error may pass, as it may where the host writes itself. A drive without space has said its word.
        if written == Err(Ending::WriteFailed) && !std::mem::replace(&mut self.has_failed, true) {
            return self.write(effects);
        }
        // F-I2: applied when the drive has answered, and not before.
        self.outcome.applied = written.is_ok();
        let ending = written.err().unwrap_or(Ending::Done);
        self.end(ending, Gather::new(), effects);
    }

    /// What was to come has not come in time.
    pub fn limit(&mut self, effects: &mut Effects<T>) {
        if self.stage == Stage::Gathering {
            self.end(Ending::TimeOver, Gather::new(), effects);
        }
    }

    pub fn settle(&mut self, how: Settle, token: T, effects: &mut Effects<T>) {
        match self.stage {
            Stage::Final(ending) => answer(token, Answer { ending, outcome: self.outcome }, effects),
            Stage::Gathering if how == Settle::Abort => {
                self.settlers.push(token);
                self.abort(effects);
            }
            Stage::Gathering | Stage::Writing => self.settlers.push(token),
        }
    }

    /// What is not complete never will be.
    pub fn abort(&mut self, effects: &mut Effects<T>) {
        if self.stage == Stage::Gathering {
            self.end(Ending::Aborted, Gather::new(), effects);
        }
    }

    fn end(&mut self, ending: Ending, data: Gather, effects: &mut Effects<T>) {
        self.stage = Stage::Final(ending);
        self.sum = Sum::default();
        self.old = None;
        self.whole = Gather::new();
        // Nothing overwrites on a sum that is not there.
        for token in self.waiting.drain(..) {
            answer(token, Answer::nothing(Ending::Aborted), effects);
        }
        let whole = Answer { ending, outcome: self.outcome };
        if let Some(token) = self.token.take() {
            effects.push(Effect::Answer { token, answer: whole, data });
        }
        for token in self.settlers.drain(..) {
            answer(token, whole, effects);
        }
    }

    pub fn is_final(&self) -> bool {
        matches!(self.stage, Stage::Final(_))
    }

    /// Only contributions have come so far.
    pub fn awaits_order(&self) -> bool {
        self.order.is_none() && !self.is_final()
    }

    /// What it takes of the credit of its host.
    pub fn bytes(&self) -> u64 {
        match &self.order {
            _ if self.is_final() => 0,
            Some(order) => reduction_bytes(order.base, &order.rows, order.sink),
            None => self.sum.bytes(),
        }
    }

    /// What it would take with a contribution of these rows.
    pub fn bytes_with(&self, rows: &Range<u64>) -> u64 {
        let span = self.sum.span_with(rows);
        if self.is_final() || self.order.is_some() || span > SPAN_BYTES_MAX { self.bytes() } else { span }
    }
}

fn answer<T>(token: T, answer: Answer, effects: &mut Effects<T>) {
    effects.push(Effect::Answer { token, answer, data: Gather::new() });
}

/// What was added up, from the first row to the last so far.
#[derive(Default)]
struct Sum {
    start: u64,
    buffer: Option<Buffer>,
}

impl Sum {
    fn bytes(&self) -> u64 {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len() as u64)
    }

    fn rows(&self) -> Range<u64> {
        self.start..self.start + self.bytes()
    }

    fn span_with(&self, rows: &Range<u64>) -> u64 {
        let now = if self.buffer.is_some() { self.rows() } else { rows.clone() };
        now.end.max(rows.end) - now.start.min(rows.start)
    }

    fn lies_within(&self, rows: &Range<u64>) -> bool {
        self.buffer.is_none() || (rows.start <= self.start && self.rows().end <= rows.end)
    }

    fn add(&mut self, coefficient: u8, rows: Range<u64>, data: &Gather, pool: &Arc<Pool>) {
        self.cover(&rows, pool);
        let sum = self.buffer.as_mut().expect("it covers the rows").bytes_mut();
        let mut at = to_usize(rows.start - self.start);
        for slice in data.slices() {
            let part = &mut sum[at..at + slice.len()];
            match coefficient {
                1 => parity::xor_into(slice.bytes(), part),
                other => parity::add_product(other, slice.bytes(), part),
            }
            at += slice.len();
        }
        assert_eq!(at as u64, rows.end - self.start, "a contribution has the length of its rows");
    }

    /// Grows to these rows, too.
    fn cover(&mut self, rows: &Range<u64>, pool: &Arc<Pool>) {
        let now = self.rows();
        if self.buffer.is_some() && self.start <= rows.start && rows.end <= now.end {
            return;
        }
        let (start, end) = match self.buffer {
            Some(_) => (now.start.min(rows.start), now.end.max(rows.end)),
            None => (rows.start, rows.end),
        };
        let mut grown = pool.take(to_usize(end - start));
        grown.bytes_mut().fill(0);
        if let Some(buffer) = &self.buffer {
            let at = to_usize(now.start - start);
            grown.bytes_mut()[at..at + buffer.len()].copy_from_slice(buffer.bytes());
        }
        (self.start, self.buffer) = (start, Some(grown));
    }

    fn take(&mut self, rows: &Range<u64>, pool: &Arc<Pool>) -> Buffer {
        self.cover(rows, pool);
        self.buffer.take().expect("it covers the rows")
    }
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("an order fits in memory")
}
