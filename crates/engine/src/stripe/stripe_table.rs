//! The stripe state table (StRAID 4.2): which stripes have owners, shared by all shards.
//!
//! Invariant 4: a stripe has one owner at a time; a waiter is never lost; no task waits for a stripe whose owner is
//! gone.
//!
//! The owners are kept in [`Words`] that are changed by CAS, or, in the other systems of ScalaRAID's comparison, in
//! [`Segments`] with a lock each ([`Locks`]). Either gives an owned stripe a place, which it keeps until the release.
//!
//! Each place has a batch (StRAID 4.3): the writes that join while the owner reads. Freeze, join and release happen under
//! the batch's own lock, so no write slips in between the freeze and the pick-up, and no waker comes after the last
//! wake-up.

mod attempt;
mod segments;
mod turns;
mod words;

use smallvec::SmallVec;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::locks::Locks;
use super::unit_number::UnitNumber;
use crate::code::union::StripeWrite;
use crate::error::VolumeError;
use crate::limits::STRIPE_TABLE_ENTRIES;
use crate::stages::{Lock, Unwatched, Watch};
use crate::sync::sequential::atomic::{AtomicUsize, Ordering::SeqCst};
use crate::sync::sequential::{Mutex, SegQueue, spin_loop};
use attempt::Attempt;
use layout::units::Stripe;
use segments::Segments;
use turns::Turns;
use words::Words;

/// The unit of a batch that has no owner.
const NO_OWNER: UnitNumber = UnitNumber::new(u64::MAX);

/// The table. Its size does not depend on the capacity of the array.
pub struct StripeTable {
    owners: Owners,
    batches: Box<[Mutex<Batch>]>,
    /// Claims that found no place.
    overflow: SegQueue<Waker>,
    overflowed: AtomicUsize,
}

/// Which stripes have owners, and where.
enum Owners {
    Words(Words),
    Segments(Segments),
}

/// The memory that a table takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TableBytes {
    /// The entries themselves.
    pub entries: usize,
    /// The entries with the padding that keeps buckets on cache lines of their own; or segments, free places and chains.
    pub entries_padded: usize,
    /// The batches, without the writes that join.
    pub batches: usize,
}

/// Identifies one owner of a stripe among those before and after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    place: usize,
    number: u64,
}

/// The state that goes with a place while it has an owner.
struct Batch {
    unit: UnitNumber,
    open: bool,
    joined: Vec<Joined>,
    waiting: Vec<Waker>,
    turns: Turns,
    /// Counts the owners at this place.
    owner: u64,
}

struct Joined {
    write: StripeWrite,
    outcome: Arc<Mutex<Outcome>>,
}

#[derive(Default)]
struct Outcome {
    result: Option<Result<(), VolumeError>>,
    waker: Option<Waker>,
}

/// The answer to a write that wants its stripe.
pub(crate) enum Entry {
    /// The caller owns the stripe; its write comes back to it.
    Owned(Claim, StripeWrite),
    /// The owner makes the caller's write too.
    Joined(JoinedWrite),
}

/// The result of a write that another task makes.
pub(crate) struct JoinedWrite(Arc<Mutex<Outcome>>);

impl Future for JoinedWrite {
    type Output = Result<(), VolumeError>;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut outcome = self.0.lock();
        match outcome.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                outcome.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl StripeTable {
    /// An empty table.
    pub fn new(locks: Locks) -> Arc<Self> {
        Self::with_entries(STRIPE_TABLE_ENTRIES, locks)
    }

    /// An empty table of this many entries, a multiple of eight and a power of two from 16 on. For tests that want
    /// the table full: [`StripeTable::new`] knows the right number.
    pub fn with_entries(entries: usize, locks: Locks) -> Arc<Self> {
        let batch = |_| {
            let (joined, waiting, turns) = (Vec::new(), Vec::new(), Turns::default());
            Mutex::new(Batch { unit: NO_OWNER, open: false, joined, waiting, turns, owner: 0 })
        };
        let owners = match locks.of_stripes() {
            Some(locks) => Owners::Segments(Segments::new(entries, locks)),
            None => Owners::Words(Words::new(entries)),
        };
        Arc::new(StripeTable {
            owners,
            batches: (0..entries).map(batch).collect(),
            overflow: SegQueue::new(),
            overflowed: AtomicUsize::new(0),
        })
    }

    /// The memory that the table takes, the same for every array.
    pub fn bytes(&self) -> TableBytes {
        TableBytes {
            entries: self.batches.len() * size_of::<u64>(),
            entries_padded: match &self.owners {
                Owners::Words(words) => words.bytes(),
                Owners::Segments(segments) => segments.bytes(),
            },
            batches: size_of_val(&*self.batches),
        }
    }

    /// Becomes the owner of a stripe if it has none. While the batch is open, writes may join.
    #[inline]
    pub(crate) fn claim_now(
        self: &Arc<Self>,
        stripe: Stripe,
        watch: impl Watch,
        open: bool,
    ) -> Option<Claim> {
        let unit = UnitNumber::from(stripe);
        match self.try_claim(unit, watch) {
            Attempt::Claimed(place) => Some(self.begin(place, unit, open)),
            Attempt::Held(_) | Attempt::Full => None,
        }
    }

    /// Becomes the owner of a stripe, or joins the owner's batch while that is open, or waits.
    pub(crate) async fn claim_or_join(
        self: &Arc<Self>,
        stripe: Stripe,
        watch: impl Watch,
        write: StripeWrite,
    ) -> Entry {
        let (unit, mut write) = (UnitNumber::from(stripe), Some(write));
        loop {
            match self.try_claim(unit, watch) {
                Attempt::Claimed(place) => {
                    let write = write.take().expect("the write has not joined");
                    return Entry::Owned(self.begin(place, unit, true), write);
                }
                Attempt::Held(place) => match self.join_or_wait(place, unit, &mut write) {
                    Some(joined) => return Entry::Joined(joined),
                    None => self.released(place, unit).await,
                },
                Attempt::Full => self.room(unit).await,
            }
        }
    }

    /// Becomes the owner of a stripe or region alone: no write joins.
    pub(crate) async fn claim(self: &Arc<Self>, unit: impl Into<UnitNumber>, shard: usize) -> Claim {
        self.claim_watched(unit, Unwatched(shard)).await
    }

    /// As [`StripeTable::claim`], in its turn: the owner hands the stripe over to this claim before any that comes later.
    /// For work that passes over the array once: clients that took turns would starve each other's writes.
    pub(crate) async fn claim_in_turn(self: &Arc<Self>, unit: impl Into<UnitNumber>, shard: usize) -> Claim {
        let unit = unit.into();
        loop {
            match self.try_claim(unit, Unwatched(shard)) {
                Attempt::Claimed(place) => return self.begin(place, unit, false),
                Attempt::Held(place) => {
                    if let Some(claim) = Turn::new(self, place, unit).await {
                        return claim;
                    }
                }
                Attempt::Full => self.room(unit).await,
            }
        }
    }

    /// As [`StripeTable::claim`], for a write whose stages `watch` measures.
    pub(crate) async fn claim_watched(
        self: &Arc<Self>,
        unit: impl Into<UnitNumber>,
        watch: impl Watch,
    ) -> Claim {
        let unit = unit.into();
        loop {
            match self.try_claim(unit, watch) {
                Attempt::Claimed(place) => return self.begin(place, unit, false),
                Attempt::Held(place) => self.released(place, unit).await,
                Attempt::Full => self.room(unit).await,
            }
        }
    }

    /// Becomes the owner of the first stripes of a run, in ascending order, of as many as are free, at least one. It waits for
    /// the first stripe only: a task that owns a stripe must not wait for another owner or for room, since other owners may
    /// wait for it.
    pub(crate) async fn claim_run(
        self: &Arc<Self>,
        run: Range<Stripe>,
        shard: usize,
    ) -> SmallVec<[Claim; 2]> {
        let claim = self.claim(run.start, shard).await;
        self.with_free_run(claim, run, shard)
    }

    /// As [`StripeTable::claim_run`], in its turn: see [`StripeTable::claim_in_turn`].
    pub(crate) async fn claim_run_in_turn(
        self: &Arc<Self>,
        run: Range<Stripe>,
        shard: usize,
    ) -> SmallVec<[Claim; 2]> {
        let claim = self.claim_in_turn(run.start, shard).await;
        self.with_free_run(claim, run, shard)
    }

    fn with_free_run(
        self: &Arc<Self>,
        claim: Claim,
        run: Range<Stripe>,
        shard: usize,
    ) -> SmallVec<[Claim; 2]> {
        [claim].into_iter().chain(self.claim_free_run(run.start.next()..run.end, shard)).collect()
    }

    /// As [`StripeTable::claim_run`], without a wait: for a task that owns stripes already. Empty if the first is not free.
    pub(crate) fn claim_free_run(self: &Arc<Self>, run: Range<Stripe>, shard: usize) -> SmallVec<[Claim; 2]> {
        Stripe::each(run).map_while(|stripe| self.claim_if_free(stripe, shard)).collect()
    }

    /// Becomes the owner of all regions of a run, of fewer if the table has no room. It waits for their
    /// owners in ascending order, so that no circle of waits forms. For mirrors only: at the parity levels the drain before
    /// the redo log is in force waits for every owner, so an owner there must not wait for another.
    pub(crate) async fn claim_whole_run(
        self: &Arc<Self>,
        regions: impl Iterator<Item = UnitNumber>,
        shard: usize,
    ) -> SmallVec<[Claim; 2]> {
        let mut claims = SmallVec::new();
        for unit in regions {
            claims.push(loop {
                match self.try_claim(unit, Unwatched(shard)) {
                    Attempt::Claimed(place) => break self.begin(place, unit, false),
                    Attempt::Held(place) => self.released(place, unit).await,
                    Attempt::Full if claims.is_empty() => self.room(unit).await,
                    Attempt::Full => return claims,
                }
            });
        }
        claims
    }

    /// Becomes the owner of a stripe alone, if it has none.
    pub(crate) fn claim_if_free(self: &Arc<Self>, stripe: Stripe, shard: usize) -> Option<Claim> {
        self.claim_now(stripe, Unwatched(shard), false)
    }

    /// Stripes that have an owner now.
    pub fn active(&self) -> usize {
        self.owned().len()
    }

    /// Checks the table while no claim is being made or released: no stripe has two owners (invariant 4), each owned stripe
    /// has a batch of its own, and no other batch has an owner.
    ///
    /// # Panics
    /// If one of these does not hold.
    pub fn self_check(&self) {
        let mut owned = self.owned();
        owned.sort_unstable();
        assert!(
            owned.windows(2).all(|two| two[0] != two[1]),
            "invariant 4: a stripe has two owners: {owned:?}"
        );
        let batches = self.batches.iter().map(|batch| batch.lock());
        let mut of_batches: Vec<UnitNumber> =
            batches.map(|batch| batch.unit).filter(|unit| *unit != NO_OWNER).collect();
        of_batches.sort_unstable();
        assert_eq!(owned, of_batches, "the stripes that are owned, and those that batches are for");
    }

    /// The stripes or regions that have an owner now.
    pub(crate) fn owned(&self) -> Vec<UnitNumber> {
        match &self.owners {
            Owners::Words(words) => words.owned(),
            Owners::Segments(segments) => segments.owned(),
        }
    }

    /// Whether the owner that it had at the first call is gone; `seen` keeps that owner between calls. If not,
    /// `waker` is woken when the owner goes, or earlier.
    pub(crate) fn wake_at_release(&self, unit: UnitNumber, seen: &mut Option<Owner>, waker: &Waker) -> bool {
        let places: SmallVec<[usize; 2]> = match &self.owners {
            Owners::Words(words) => words.holding(unit).collect(),
            Owners::Segments(segments) => segments.find(unit).into_iter().collect(),
        };
        let mut is_beginning = false;
        for place in places {
            let mut batch = self.batches[place].lock();
            if batch.unit == unit {
                let now = Owner { place, number: batch.owner };
                if *seen.get_or_insert(now) == now {
                    batch.waiting.push(waker.clone());
                    return false;
                }
                return true;
            }
            is_beginning |= self.owners.holds(place, unit);
        }
        // A claim between `try_claim` and `begin` is no owner that an earlier call saw. At the first call it may become the
        // one to wait for, or withdraw: look again.
        if is_beginning && seen.is_none() {
            waker.wake_by_ref();
            return false;
        }
        true
    }

    #[inline]
    fn try_claim(&self, unit: UnitNumber, watch: impl Watch) -> Attempt {
        match &self.owners {
            Owners::Words(words) => {
                watch.without(Lock::Stripes, || words.try_claim(unit, watch.shard(), || self.wake_overflow()))
            }
            Owners::Segments(segments) => segments.try_claim(unit, watch),
        }
    }

    fn begin(self: &Arc<Self>, place: usize, unit: UnitNumber, open: bool) -> Claim {
        let mut batch = self.batches[place].lock();
        assert!(batch.unit == NO_OWNER && batch.joined.is_empty(), "the last owner left the batch empty");
        (batch.unit, batch.open, batch.owner) = (unit, open, batch.owner + 1);
        drop(batch);
        Claim { table: Arc::clone(self), place, unit, joined: Vec::new(), open }
    }

    /// Adds the write to the owner's batch. None if the batch is closed or the owner has changed.
    fn join_or_wait(
        &self,
        place: usize,
        unit: UnitNumber,
        write: &mut Option<StripeWrite>,
    ) -> Option<JoinedWrite> {
        if matches!(&self.owners, Owners::Words(words) if words.is_frozen(place)) {
            return None;
        }
        let mut batch = self.batches[place].lock();
        if batch.unit != unit || !batch.open {
            return None;
        }
        let outcome = Arc::new(Mutex::new(Outcome::default()));
        let write = write.take().expect("a write joins once");
        batch.joined.push(Joined { write, outcome: Arc::clone(&outcome) });
        Some(JoinedWrite(outcome))
    }

    /// Waits until the owner at `place` releases it. Returns at once if it has.
    async fn released(&self, place: usize, unit: UnitNumber) {
        let mut waited = false;
        std::future::poll_fn(|context| {
            let mut batch = self.batches[place].lock();
            if batch.unit != unit || waited {
                drop(batch);
                spin_loop(); // an owner between its claim and `begin` needs a moment
                return Poll::Ready(());
            }
            waited = true;
            batch.waiting.push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Waits until some entry is released, after a claim found no place.
    async fn room(&self, unit: UnitNumber) {
        let mut waited = false;
        std::future::poll_fn(|context| {
            if waited {
                return Poll::Ready(());
            }
            waited = true;
            // Counted before the push: a release wakes as many as are counted, so every waker in the queue must be.
            self.overflowed.fetch_add(1, SeqCst);
            self.overflow.push(context.waker().clone());
            // A release between the failed claim and the push woke no one: look once more.
            if self.owners.has_room(unit) {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }

    fn wake_overflow(&self) {
        // All that are counted now, since the first waker may be one whose claim has gone on by itself. Not those that
        // queue again meanwhile: on another core they may do so as fast as this loop wakes them.
        for _ in 0..self.overflowed.load(SeqCst) {
            let Some(waker) = self.overflow.pop() else { return };
            self.overflowed.fetch_sub(1, SeqCst);
            waker.wake();
        }
    }
}

impl Owners {
    fn holds(&self, place: usize, unit: UnitNumber) -> bool {
        match self {
            Owners::Words(words) => words.holds(place, unit),
            Owners::Segments(segments) => segments.find(unit) == Some(place),
        }
    }

    fn has_room(&self, unit: UnitNumber) -> bool {
        match self {
            Owners::Words(words) => words.has_room(unit),
            Owners::Segments(segments) => segments.has_room(unit),
        }
    }

    #[inline]
    fn release(&self, place: usize, unit: UnitNumber, watch: impl Watch) {
        match self {
            Owners::Words(words) => watch.without(Lock::Stripes, || words.release(place)),
            Owners::Segments(segments) => segments.release(unit, watch),
        }
    }
}

/// Ownership of a stripe. Dropping it releases the stripe and fails the writes that joined.
pub(crate) struct Claim {
    table: Arc<StripeTable>,
    place: usize,
    unit: UnitNumber,
    joined: Vec<Joined>,
    open: bool,
}

impl Claim {
    /// The stripe or region.
    pub(crate) fn unit(&self) -> UnitNumber {
        self.unit
    }

    /// The stripe, at a parity level.
    pub(crate) fn stripe(&self) -> Stripe {
        self.unit.stripe()
    }

    /// Picks up what has joined so far; the batch stays open.
    pub(crate) fn gather(&mut self) -> usize {
        let mut batch = self.table.batches[self.place].lock();
        self.joined.append(&mut batch.joined);
        self.joined.len()
    }

    /// Closes the batch and picks up the writes that joined last. Returns how many since the last [`Claim::gather`].
    pub(crate) fn freeze(&mut self) -> usize {
        let before = self.joined.len();
        let mut batch = self.table.batches[self.place].lock();
        assert_eq!(batch.unit, self.unit, "invariant 4: the batch is the owner's");
        (batch.open, self.open) = (false, false);
        self.joined.append(&mut batch.joined);
        if let Owners::Words(words) = &self.table.owners {
            words.freeze(self.place);
        }
        self.joined.len() - before
    }

    /// Whether no write has joined so far.
    pub(crate) fn is_alone(&self) -> bool {
        self.joined.is_empty()
    }

    /// Whether writes may still join.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// The writes that joined, in order.
    pub(crate) fn joined(&self) -> impl Iterator<Item = &StripeWrite> {
        self.joined.iter().map(|joined| &joined.write)
    }

    /// Releases the stripe and gives `result` to every write that joined. A claim that no write can join is just dropped.
    pub(crate) fn release(mut self, result: &Result<(), VolumeError>, watch: impl Watch) {
        self.finish(result, watch);
    }

    fn finish(&mut self, result: &Result<(), VolumeError>, watch: impl Watch) {
        let mut batch = self.table.batches[self.place].lock();
        assert_eq!(batch.unit, self.unit, "invariant 4: an owner releases the stripe that it claimed");
        self.joined.append(&mut batch.joined);
        let waiting = std::mem::take(&mut batch.waiting);
        batch.open = false;
        if let Some(next) = batch.turns.give() {
            batch.owner += 1; // the next owner keeps the place
            drop(batch);
            next.wake();
        } else {
            let unit = std::mem::replace(&mut batch.unit, NO_OWNER);
            // Under the lock: the next task to lock the batch sees both that the place is free and that the owner is gone.
            self.table.owners.release(self.place, unit, watch);
            drop(batch);
            self.table.wake_overflow();
        }
        waiting.into_iter().for_each(Waker::wake);
        for joined in self.joined.drain(..) {
            let mut outcome = joined.outcome.lock();
            outcome.result = Some(result.clone());
            let waker = outcome.waker.take();
            drop(outcome);
            if let Some(waker) = waker {
                waker.wake();
            }
        }
        self.place = usize::MAX;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.place != usize::MAX {
            self.finish(&Err(VolumeError::Stopping), Unwatched(0));
        }
    }
}

/// A wait for the owner at a place to hand its stripe over. None: the owner is gone; claim again.
struct Turn<'a> {
    table: &'a Arc<StripeTable>,
    place: usize,
    unit: UnitNumber,
    /// The number under which it waits in the batch's [`Turns`].
    number: Option<u64>,
}

impl<'a> Turn<'a> {
    fn new(table: &'a Arc<StripeTable>, place: usize, unit: UnitNumber) -> Self {
        Turn { table, place, unit, number: None }
    }

    fn claim(&self) -> Claim {
        Claim {
            table: Arc::clone(self.table),
            place: self.place,
            unit: self.unit,
            joined: Vec::new(),
            open: false,
        }
    }
}

impl Future for Turn<'_> {
    type Output = Option<Claim>;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut batch = this.table.batches[this.place].lock();
        let Some(number) = this.number else {
            if batch.unit != this.unit {
                drop(batch);
                spin_loop(); // an owner between its claim and `begin` needs a moment
                return Poll::Ready(None);
            }
            this.number = Some(batch.turns.join(context.waker()));
            return Poll::Pending;
        };
        if batch.turns.take(number) {
            this.number = None;
            return Poll::Ready(Some(this.claim()));
        }
        batch.turns.wake_by(number, context.waker());
        Poll::Pending
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        let mut batch = self.table.batches[self.place].lock();
        if batch.turns.take(number) {
            drop(batch);
            drop(self.claim()); // the next one's
        } else {
            batch.turns.leave(number);
        }
    }
}

#[cfg(all(test, feature = "model"))]
mod model;

#[cfg(test)]
mod tests;
