//! The stripe state table (StRAID 4.2): who works on which stripe, shared by all shards.
//!
//! Invariant 4: one owner of a stripe at a time; a waiter is never lost; nobody waits for a stripe whose owner is
//! gone.
//!
//! Who owns which stripe is kept in [`Words`] that are changed by CAS, or, in the other systems of ScalaRAID's
//! comparison, in [`Segments`] with a lock each ([`Locks`]). Either gives an owned stripe a place that stays its own.
//!
//! Each place has a batch (StRAID 4.3): the writes that joined while the owner reads. Whether a batch is
//! open is decided under its own lock, as is the release, so no write slips in between the freeze and the pick-up,
//! and no waker comes after the last wake-up.

mod found;
mod segments;
mod turns;
mod words;

use smallvec::SmallVec;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::locks::Locks;
use crate::code::union::StripeWrite;
use crate::error::VolumeError;
use crate::limits::STRIPE_TABLE_ENTRIES;
use crate::stages::{Lock, Watch};
use crate::sync::sequential::atomic::{AtomicUsize, Ordering::SeqCst};
use crate::sync::sequential::{Mutex, SegQueue, spin_loop};
use found::Found;
use segments::Segments;
use turns::Turns;
use words::Words;

/// No stripe: what a batch says between two owners.
const NO_STRIPE: u64 = u64::MAX;

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

/// What a table takes in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TableBytes {
    /// The entries themselves.
    pub entries: usize,
    /// With what keeps buckets on cache lines of their own; or segments, free places and chains.
    pub entries_padded: usize,
    /// The batches beside them, without the writes that join.
    pub batches: usize,
}

/// One owner of a stripe among those before and after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Owner {
    place: usize,
    number: u64,
}

/// What goes with an entry while it is owned.
struct Batch {
    stripe: u64,
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
    /// The owner does the caller's write too.
    Joined(JoinedWrite),
}

/// The result of a write that another task does.
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
            Mutex::new(Batch { stripe: NO_STRIPE, open: false, joined, waiting, turns, owner: 0 })
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

    /// What the table takes in memory, the same for every array.
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

    /// Becomes the owner of `stripe`, or joins the owner's batch while that is open, or waits.
    pub(crate) async fn claim_or_join(
        self: &Arc<Self>,
        stripe: u64,
        watch: &Watch<'_>,
        write: StripeWrite,
    ) -> Entry {
        let mut write = Some(write);
        loop {
            match self.try_claim(stripe, watch) {
                Found::Claimed(place) => {
                    let write = write.take().expect("the write has not joined");
                    return Entry::Owned(self.begin(place, stripe, true), write);
                }
                Found::Held(place) => match self.join_or_wait(place, stripe, &mut write) {
                    Some(joined) => return Entry::Joined(joined),
                    None => self.released(place, stripe).await,
                },
                Found::Full => self.room(stripe).await,
            }
        }
    }

    /// Becomes the owner of `stripe` alone: no write joins.
    pub(crate) async fn claim(self: &Arc<Self>, stripe: u64, shard: usize) -> Claim {
        self.claim_watched(stripe, &Watch::off(shard)).await
    }

    /// The same in its turn: the owner hands the stripe on, before any claim that comes later. For work that goes over the
    /// array and does not come back: turns of clients would keep each other, and writes, waiting.
    pub(crate) async fn claim_in_turn(self: &Arc<Self>, stripe: u64, shard: usize) -> Claim {
        loop {
            match self.try_claim(stripe, &Watch::off(shard)) {
                Found::Claimed(place) => return self.begin(place, stripe, false),
                Found::Held(place) => {
                    if let Some(claim) = Turn::new(self, place, stripe).await {
                        return claim;
                    }
                }
                Found::Full => self.room(stripe).await,
            }
        }
    }

    /// The same as [`StripeTable::claim`] for a write whose times are told.
    pub(crate) async fn claim_watched(self: &Arc<Self>, stripe: u64, watch: &Watch<'_>) -> Claim {
        loop {
            match self.try_claim(stripe, watch) {
                Found::Claimed(place) => return self.begin(place, stripe, false),
                Found::Held(place) => self.released(place, stripe).await,
                Found::Full => self.room(stripe).await,
            }
        }
    }

    /// Becomes the owner of the stripes from `first` on, in ascending order, up to `end` - 1 or as many as are free,
    /// at least one. Who owns a stripe never waits for room or for another owner: those may wait for it.
    pub(crate) async fn claim_run(
        self: &Arc<Self>,
        first: u64,
        end: u64,
        shard: usize,
    ) -> SmallVec<[Claim; 2]> {
        let claim = self.claim(first, shard).await;
        self.with_free_run(claim, first + 1, end, shard)
    }

    /// The same in its turn: see [`StripeTable::claim_in_turn`].
    pub(crate) async fn claim_run_in_turn(
        self: &Arc<Self>,
        first: u64,
        end: u64,
        shard: usize,
    ) -> SmallVec<[Claim; 2]> {
        let claim = self.claim_in_turn(first, shard).await;
        self.with_free_run(claim, first + 1, end, shard)
    }

    fn with_free_run(
        self: &Arc<Self>,
        claim: Claim,
        next: u64,
        end: u64,
        shard: usize,
    ) -> SmallVec<[Claim; 2]> {
        [claim].into_iter().chain(self.claim_free_run(next, end, shard)).collect()
    }

    /// The same without a wait, for whoever owns stripes already: none if the first one is not free.
    pub(crate) fn claim_free_run(
        self: &Arc<Self>,
        first: u64,
        end: u64,
        shard: usize,
    ) -> SmallVec<[Claim; 2]> {
        (first..end).map_while(|stripe| self.claim_if_free(stripe, shard)).collect()
    }

    /// Becomes the owner of the stripes from `first` to `end` - 1 and waits for their owners, in ascending order, so that
    /// nobody waits in a circle; fewer if the table has no room. For levels without parity only: the drain before the
    /// redo log is in force waits for every owner, who must wait for nobody.
    pub(crate) async fn claim_whole_run(
        self: &Arc<Self>,
        first: u64,
        end: u64,
        shard: usize,
    ) -> SmallVec<[Claim; 2]> {
        let mut claims = SmallVec::new();
        claims.push(self.claim(first, shard).await);
        for stripe in first + 1..end {
            claims.push(loop {
                match self.try_claim(stripe, &Watch::off(shard)) {
                    Found::Claimed(place) => break self.begin(place, stripe, false),
                    Found::Held(place) => self.released(place, stripe).await,
                    Found::Full => return claims,
                }
            });
        }
        claims
    }

    /// Becomes the owner of `stripe` alone, if it has none.
    pub(crate) fn claim_if_free(self: &Arc<Self>, stripe: u64, shard: usize) -> Option<Claim> {
        match self.try_claim(stripe, &Watch::off(shard)) {
            Found::Claimed(place) => Some(self.begin(place, stripe, false)),
            Found::Held(_) | Found::Full => None,
        }
    }

    /// Stripes that have an owner now.
    pub fn active(&self) -> usize {
        self.owned().len()
    }

    /// Checks what the table says of itself, while no claim is being made or released: no stripe has two owners
    /// (invariant 4), each owned stripe has a batch of its own, and no other batch has an owner.
    ///
    /// # Panics
    /// If it contradicts itself.
    pub fn self_check(&self) {
        let mut owned = self.owned();
        owned.sort_unstable();
        assert!(
            owned.windows(2).all(|two| two[0] != two[1]),
            "invariant 4: a stripe has two owners: {owned:?}"
        );
        let batches = self.batches.iter().map(|batch| batch.lock());
        let mut of_batches: Vec<u64> =
            batches.map(|batch| batch.stripe).filter(|stripe| *stripe != NO_STRIPE).collect();
        of_batches.sort_unstable();
        assert_eq!(owned, of_batches, "the stripes that are owned, and those that batches are for");
    }

    /// The stripes that have an owner now.
    pub(crate) fn owned(&self) -> Vec<u64> {
        match &self.owners {
            Owners::Words(words) => words.owned(),
            Owners::Segments(segments) => segments.owned(),
        }
    }

    /// True if the owner that `stripe` had when `seen` was empty has gone; else `waker` is called when it goes, or before.
    pub(crate) fn wake_at_release(&self, stripe: u64, seen: &mut Option<Owner>, waker: &Waker) -> bool {
        let places: SmallVec<[usize; 2]> = match &self.owners {
            Owners::Words(words) => words.holding(stripe).collect(),
            Owners::Segments(segments) => segments.find(stripe).into_iter().collect(),
        };
        let mut is_beginning = false;
        for place in places {
            let mut batch = self.batches[place].lock();
            if batch.stripe == stripe {
                let now = Owner { place, number: batch.owner };
                if *seen.get_or_insert(now) == now {
                    batch.waiting.push(waker.clone());
                    return false;
                }
                return true;
            }
            is_beginning |= self.owners.holds(place, stripe);
        }
        // Who is just about to begin, or may withdraw still, is none of those that were seen. Else it is worth another look.
        if is_beginning && seen.is_none() {
            waker.wake_by_ref();
            return false;
        }
        true
    }

    #[inline]
    fn try_claim(&self, stripe: u64, watch: &Watch<'_>) -> Found {
        match &self.owners {
            Owners::Words(words) => watch
                .without(Lock::Stripes, || words.try_claim(stripe, watch.shard(), || self.wake_overflow())),
            Owners::Segments(segments) => segments.try_claim(stripe, watch),
        }
    }

    fn begin(self: &Arc<Self>, place: usize, stripe: u64, open: bool) -> Claim {
        let mut batch = self.batches[place].lock();
        assert!(batch.stripe == NO_STRIPE && batch.joined.is_empty(), "the last owner left the batch empty");
        (batch.stripe, batch.open, batch.owner) = (stripe, open, batch.owner + 1);
        drop(batch);
        Claim { table: Arc::clone(self), place, stripe, joined: Vec::new(), open }
    }

    /// Adds the write to the owner's batch. None if the batch is closed or the owner has changed.
    fn join_or_wait(
        &self,
        place: usize,
        stripe: u64,
        write: &mut Option<StripeWrite>,
    ) -> Option<JoinedWrite> {
        if matches!(&self.owners, Owners::Words(words) if words.is_frozen(place)) {
            return None;
        }
        let mut batch = self.batches[place].lock();
        if batch.stripe != stripe || !batch.open {
            return None;
        }
        let outcome = Arc::new(Mutex::new(Outcome::default()));
        let write = write.take().expect("a write joins once");
        batch.joined.push(Joined { write, outcome: Arc::clone(&outcome) });
        Some(JoinedWrite(outcome))
    }

    /// Waits until the owner at `place` releases `stripe`. Returns at once if it has.
    async fn released(&self, place: usize, stripe: u64) {
        let mut waited = false;
        std::future::poll_fn(|context| {
            let mut batch = self.batches[place].lock();
            if batch.stripe != stripe || waited {
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

    /// Waits until some entry was released after `stripe` found no place.
    async fn room(&self, stripe: u64) {
        let mut waited = false;
        std::future::poll_fn(|context| {
            if waited {
                return Poll::Ready(());
            }
            waited = true;
            // Counted first: a release wakes as many as it counts, and all that stand in the queue are counted.
            self.overflowed.fetch_add(1, SeqCst);
            self.overflow.push(context.waker().clone());
            // A release between the failed claim and the push woke nobody: look once more.
            if self.owners.has_room(stripe) {
                return Poll::Ready(());
            }
            Poll::Pending
        })
        .await;
    }

    fn wake_overflow(&self) {
        // All of them: the waker of a claim that went on by itself may stand first. Not those that come back meanwhile
        // for want of room: on another core they may do so as fast as they are woken.
        for _ in 0..self.overflowed.load(SeqCst) {
            let Some(waker) = self.overflow.pop() else { return };
            self.overflowed.fetch_sub(1, SeqCst);
            waker.wake();
        }
    }
}

impl Owners {
    fn holds(&self, place: usize, stripe: u64) -> bool {
        match self {
            Owners::Words(words) => words.holds(place, stripe),
            Owners::Segments(segments) => segments.find(stripe) == Some(place),
        }
    }

    fn has_room(&self, stripe: u64) -> bool {
        match self {
            Owners::Words(words) => words.has_room(stripe),
            Owners::Segments(segments) => segments.has_room(stripe),
        }
    }

    #[inline]
    fn release(&self, place: usize, stripe: u64, watch: &Watch<'_>) {
        match self {
            Owners::Words(words) => watch.without(Lock::Stripes, || words.release(place)),
            Owners::Segments(segments) => segments.release(stripe, watch),
        }
    }
}

/// Ownership of a stripe. Dropping it releases the stripe and fails the writes that joined.
pub(crate) struct Claim {
    table: Arc<StripeTable>,
    place: usize,
    stripe: u64,
    joined: Vec<Joined>,
    open: bool,
}

impl Claim {
    /// The stripe that is owned; of a mirror the region.
    pub(crate) fn stripe(&self) -> u64 {
        self.stripe
    }

    /// Picks up what has joined so far; the batch stays open.
    pub(crate) fn gather(&mut self) -> usize {
        let mut batch = self.table.batches[self.place].lock();
        self.joined.append(&mut batch.joined);
        self.joined.len()
    }

    /// Closes the batch and picks up the last ones. Returns how many came since the last [`Claim::gather`].
    pub(crate) fn freeze(&mut self) -> usize {
        let before = self.joined.len();
        let mut batch = self.table.batches[self.place].lock();
        assert_eq!(batch.stripe, self.stripe, "invariant 4: the batch is the owner's");
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

    /// Whether writes may join still.
    pub(crate) fn is_open(&self) -> bool {
        self.open
    }

    /// The writes that joined, in order.
    pub(crate) fn joined(&self) -> impl Iterator<Item = &StripeWrite> {
        self.joined.iter().map(|joined| &joined.write)
    }

    /// Releases the stripe and gives every write that joined its result. Without one a claim is just dropped.
    pub(crate) fn release(mut self, result: &Result<(), VolumeError>, watch: &Watch<'_>) {
        self.finish(result, watch);
    }

    fn finish(&mut self, result: &Result<(), VolumeError>, watch: &Watch<'_>) {
        let mut batch = self.table.batches[self.place].lock();
        assert_eq!(batch.stripe, self.stripe, "invariant 4: an owner releases the stripe that it claimed");
        self.joined.append(&mut batch.joined);
        let waiting = std::mem::take(&mut batch.waiting);
        batch.open = false;
        if let Some(next) = batch.turns.give() {
            batch.owner += 1; // the place stays taken
            drop(batch);
            next.wake();
        } else {
            let stripe = std::mem::replace(&mut batch.stripe, NO_STRIPE);
            // Under the lock: whoever locks the batch next sees both the free place and that the owner has gone.
            self.table.owners.release(self.place, stripe, watch);
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
            self.finish(&Err(VolumeError::Stopping), &Watch::off(0));
        }
    }
}

/// Waits until the owner at a place hands its stripe on. None if it has gone: claim again.
struct Turn<'a> {
    table: &'a Arc<StripeTable>,
    place: usize,
    stripe: u64,
    number: Option<u64>,
}

impl<'a> Turn<'a> {
    fn new(table: &'a Arc<StripeTable>, place: usize, stripe: u64) -> Self {
        Turn { table, place, stripe, number: None }
    }

    fn claim(&self) -> Claim {
        Claim {
            table: Arc::clone(self.table),
            place: self.place,
            stripe: self.stripe,
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
            if batch.stripe != this.stripe {
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
