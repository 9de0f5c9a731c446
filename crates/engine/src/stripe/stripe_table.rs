//! The stripe state table (StRAID 4.2): who works on which stripe, shared by all shards.
//!
//! Invariant 4: one owner of a stripe at a time; a waiter is never lost; nobody waits for a stripe whose owner is
//! gone.
//!
//! A stripe hashes to two buckets of eight words (a cuckoo table of two choices). One word is one entry:
//!
//! ```text
//! bit 63 LOCKED | 62 TENTATIVE | 61 FROZEN | 60..48 owner's shard | 47..0 stripe + 1        0 = free
//! ```
//!
//! Words change by CAS only. An entry never moves, because its place names its batch; where a cuckoo table would
//! kick entries out, a claim that finds both buckets full waits for a release (with two choices of eight ways that
//! takes thousands of stripes in flight).
//!
//! *Two shards that claim one stripe at once* may put it into two places. So a claim is first TENTATIVE, then looks
//! at both buckets again: a locked twin wins; of two tentative ones the lower place stays and the higher withdraws.
//! The lower waits the few instructions until the higher has decided, since that one may have looked before the
//! lower was there, and then it is the owner.
//!
//! Beside each word stands a batch (StRAID 4.3): the writes that joined while the owner reads. Whether a batch is
//! open is decided under its own lock, as is the release, so no write slips in between the freeze and the pick-up,
//! and no waker comes after the last wake-up.

use crossbeam::utils::CachePadded;
use smallvec::SmallVec;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::union::StripeWrite;
use crate::limits::{STRIPE_TABLE_ENTRIES, STRIPE_TABLE_WAYS};
use crate::sync::sequential::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use crate::sync::sequential::{Mutex, SegQueue, spin_loop};
use crate::volume::VolumeError;

const LOCKED: u64 = 1 << 63;
const TENTATIVE: u64 = 1 << 62;
const FROZEN: u64 = 1 << 61;
const STRIPE_MASK: u64 = (1 << 48) - 1;
/// No stripe: what a batch says between two owners.
const NO_STRIPE: u64 = u64::MAX;

type Bucket = CachePadded<[AtomicU64; STRIPE_TABLE_WAYS]>;

/// The table. Its size does not depend on the capacity of the array.
pub struct StripeTable {
    buckets: Box<[Bucket]>,
    batches: Box<[Mutex<Batch>]>,
    /// Claims that found both buckets full.
    overflow: SegQueue<Waker>,
    overflowed: AtomicUsize,
}

/// What a table takes in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct TableBytes {
    /// The entries themselves.
    pub entries: usize,
    /// With what keeps buckets on cache lines of their own.
    pub entries_padded: usize,
    /// The batches beside them, without the writes that join.
    pub batches: usize,
}

/// What goes with an entry while it is owned.
struct Batch {
    stripe: u64,
    open: bool,
    joined: Vec<Joined>,
    waiting: Vec<Waker>,
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

enum Found {
    Claimed(usize),
    Held(usize),
    Full,
}

impl StripeTable {
    /// An empty table.
    pub fn new() -> Arc<Self> {
        Self::with_entries(STRIPE_TABLE_ENTRIES)
    }

    /// An empty table of this many entries, a multiple of eight and a power of two from 16 on. For tests that want
    /// the table full: [`StripeTable::new`] knows the right number.
    pub fn with_entries(entries: usize) -> Arc<Self> {
        let bucket = |_| CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let batch =
            |_| Mutex::new(Batch { stripe: NO_STRIPE, open: false, joined: Vec::new(), waiting: Vec::new() });
        Arc::new(StripeTable {
            buckets: (0..entries / STRIPE_TABLE_WAYS).map(bucket).collect(),
            batches: (0..entries).map(batch).collect(),
            overflow: SegQueue::new(),
            overflowed: AtomicUsize::new(0),
        })
    }

    /// What the table takes in memory, the same for every array.
    pub fn bytes(&self) -> TableBytes {
        TableBytes {
            entries: self.batches.len() * size_of::<u64>(),
            entries_padded: size_of_val(&*self.buckets),
            batches: size_of_val(&*self.batches),
        }
    }

    /// Becomes the owner of `stripe`, or joins the owner's batch while that is open, or waits.
    pub(crate) async fn claim_or_join(
        self: &Arc<Self>,
        stripe: u64,
        shard: usize,
        write: StripeWrite,
    ) -> Entry {
        let mut write = Some(write);
        loop {
            match self.try_claim(stripe, shard) {
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
        loop {
            match self.try_claim(stripe, shard) {
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
        let mut claims = SmallVec::new();
        claims.push(self.claim(first, shard).await);
        for stripe in first + 1..end {
            match self.claim_if_free(stripe, shard) {
                Some(claim) => claims.push(claim),
                None => break,
            }
        }
        claims
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
                match self.try_claim(stripe, shard) {
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
        match self.try_claim(stripe, shard) {
            Found::Claimed(place) => Some(self.begin(place, stripe, false)),
            Found::Held(_) | Found::Full => None,
        }
    }

    /// Stripes that have an owner now.
    pub fn active(&self) -> usize {
        self.buckets.iter().flat_map(|bucket| bucket.iter()).filter(|word| word.load(SeqCst) != 0).count()
    }

    /// The stripes that have an owner now.
    pub(crate) fn owned(&self) -> Vec<u64> {
        let words = self.buckets.iter().flat_map(|bucket| bucket.iter()).map(|word| word.load(SeqCst));
        words.filter(|word| *word != 0).map(|word| (word & STRIPE_MASK) - 1).collect()
    }

    /// True if `stripe` has no owner now; else `waker` is called when it is released, or before.
    pub(crate) fn wake_at_release(&self, stripe: u64, waker: &Waker) -> bool {
        for place in self.places(stripe).into_iter().flat_map(|first| first..first + STRIPE_TABLE_WAYS) {
            if self.word(place).load(SeqCst) & STRIPE_MASK != stripe + 1 {
                continue;
            }
            let mut batch = self.batches[place].lock();
            if batch.stripe == stripe {
                batch.waiting.push(waker.clone());
            } else if self.word(place).load(SeqCst) & STRIPE_MASK == stripe + 1 {
                waker.wake_by_ref(); // just about to begin: look again
            } else {
                continue;
            }
            return false;
        }
        true
    }

    fn places(&self, stripe: u64) -> [usize; 2] {
        let mask = self.buckets.len() - 1;
        let hash = stripe.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (first, second) = ((hash >> 32) as usize & mask, (hash >> 48) as usize & mask);
        // Two different buckets, in ascending order: "lower place" is the same for everybody.
        let second = if first == second { (second + 1) & mask } else { second };
        [first.min(second) * STRIPE_TABLE_WAYS, first.max(second) * STRIPE_TABLE_WAYS]
    }

    fn word(&self, place: usize) -> &AtomicU64 {
        &self.buckets[place / STRIPE_TABLE_WAYS][place % STRIPE_TABLE_WAYS]
    }

    fn try_claim(&self, stripe: u64, shard: usize) -> Found {
        assert!(stripe < STRIPE_MASK, "a stripe number has 48 bits");
        let buckets = self.places(stripe);
        let word = (stripe + 1) | (shard as u64 & 0xfff) << 48;
        'again: loop {
            let mut free = None;
            for first in buckets {
                for (way, word) in self.buckets[first / STRIPE_TABLE_WAYS].iter().enumerate() {
                    let seen = word.load(SeqCst);
                    if seen == 0 {
                        free = free.or(Some(first + way));
                    } else if seen & STRIPE_MASK == stripe + 1 {
                        if seen & TENTATIVE == 0 {
                            return Found::Held(first + way);
                        }
                        spin_loop();
                        continue 'again;
                    }
                }
            }
            let Some(mine) = free else { return Found::Full };
            if self.word(mine).compare_exchange(0, word | TENTATIVE, SeqCst, SeqCst).is_err() {
                continue;
            }
            match self.settle(mine, stripe, buckets) {
                Settled::Won => {
                    self.word(mine).store(word | LOCKED, SeqCst);
                    return Found::Claimed(mine);
                }
                Settled::Held(place) => {
                    self.word(mine).store(0, SeqCst);
                    self.wake_overflow();
                    return Found::Held(place);
                }
                Settled::Lost => {
                    self.word(mine).store(0, SeqCst);
                    self.wake_overflow();
                    spin_loop();
                }
            }
        }
    }

    /// Looks for a twin of the tentative claim at `mine`.
    fn settle(&self, mine: usize, stripe: u64, buckets: [usize; 2]) -> Settled {
        for first in buckets {
            for (way, word) in self.buckets[first / STRIPE_TABLE_WAYS].iter().enumerate() {
                let place = first + way;
                let twin = |seen: u64| seen & STRIPE_MASK == stripe + 1 && place != mine;
                let mut seen = word.load(SeqCst);
                while twin(seen) {
                    if seen & TENTATIVE == 0 {
                        return Settled::Held(place);
                    }
                    if place < mine {
                        return Settled::Lost;
                    }
                    spin_loop();
                    seen = word.load(SeqCst);
                }
            }
        }
        Settled::Won
    }

    fn begin(self: &Arc<Self>, place: usize, stripe: u64, open: bool) -> Claim {
        let mut batch = self.batches[place].lock();
        assert!(batch.stripe == NO_STRIPE && batch.joined.is_empty(), "the last owner left the batch empty");
        (batch.stripe, batch.open) = (stripe, open);
        drop(batch);
        Claim { table: Arc::clone(self), place, joined: Vec::new(), open }
    }

    /// Adds the write to the owner's batch. None if the batch is closed or the owner has changed.
    fn join_or_wait(
        &self,
        place: usize,
        stripe: u64,
        write: &mut Option<StripeWrite>,
    ) -> Option<JoinedWrite> {
        if self.word(place).load(SeqCst) & FROZEN != 0 {
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

    /// Waits until some entry was released after both buckets of `stripe` were full.
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
            let full = self.places(stripe).into_iter().flat_map(|first| first..first + STRIPE_TABLE_WAYS);
            if full.into_iter().any(|place| self.word(place).load(SeqCst) == 0) {
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

enum Settled {
    Won,
    Held(usize),
    Lost,
}

/// Ownership of a stripe. Dropping it releases the stripe and fails the writes that joined.
pub(crate) struct Claim {
    table: Arc<StripeTable>,
    place: usize,
    joined: Vec<Joined>,
    open: bool,
}

impl Claim {
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
        (batch.open, self.open) = (false, false);
        self.joined.append(&mut batch.joined);
        self.table.word(self.place).fetch_or(FROZEN, SeqCst);
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

    /// Releases the stripe and tells every joined write its result.
    pub(crate) fn release(mut self, result: &Result<(), VolumeError>) {
        self.finish(result);
    }

    fn finish(&mut self, result: &Result<(), VolumeError>) {
        let mut batch = self.table.batches[self.place].lock();
        self.joined.append(&mut batch.joined);
        let waiting = std::mem::take(&mut batch.waiting);
        (batch.stripe, batch.open) = (NO_STRIPE, false);
        // Under the lock: whoever locks the batch next sees both the free word and that the owner has gone.
        self.table.word(self.place).store(0, SeqCst);
        drop(batch);
        self.table.wake_overflow();
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
            self.finish(&Err(VolumeError::Stopping));
        }
    }
}

#[cfg(all(test, feature = "model"))]
mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::{Executor, yield_now};
    use std::sync::atomic::AtomicBool;

    fn write() -> StripeWrite {
        StripeWrite { parts: SmallVec::new(), fua: false, in_stream: false }
    }

    fn run(executor: &Executor) {
        executor.run_ready(usize::MAX);
    }

    #[test]
    fn writes_join_until_the_freeze_and_wait_after_it() {
        let executor = Executor::new(Box::new(|| {}));
        let table = StripeTable::new();
        let owner = {
            let table = Arc::clone(&table);
            executor.spawn_with_result(async move {
                let Entry::Owned(claim, _) = table.claim_or_join(7, 0, write()).await else { panic!("free") };
                claim
            })
        };
        run(&executor);
        let mut claim = owner.try_take().expect("claimed");
        let start = || {
            let table = Arc::clone(&table);
            executor.spawn_with_result(async move {
                match table.claim_or_join(7, 0, write()).await {
                    Entry::Joined(joined) => (true, joined.await.is_ok()),
                    Entry::Owned(claim, _) => {
                        claim.release(&Ok(()));
                        (false, true)
                    }
                }
            })
        };
        let early = start();
        run(&executor);
        assert_eq!(claim.freeze(), 1);
        let late = start();
        run(&executor);
        assert!(early.try_take().is_none() && late.try_take().is_none());
        claim.release(&Ok(()));
        run(&executor);
        assert_eq!((early.try_take(), late.try_take()), (Some((true, true)), Some((false, true))));
        assert_eq!(table.active(), 0);
    }

    #[test]
    fn an_owner_that_is_gone_fails_its_batch_and_frees_the_stripe() {
        let executor = Executor::new(Box::new(|| {}));
        let table = StripeTable::new();
        let (one, two) = (Arc::clone(&table), Arc::clone(&table));
        let owner = executor.spawn_with_result(async move { one.claim_or_join(7, 0, write()).await });
        run(&executor);
        let joined = executor.spawn_with_result(async move {
            let Entry::Joined(joined) = two.claim_or_join(7, 0, write()).await else { panic!("owned") };
            joined.await
        });
        run(&executor);
        drop(owner.try_take());
        run(&executor);
        assert_eq!(joined.try_take(), Some(Err(VolumeError::Stopping)));
        assert_eq!(table.active(), 0);
    }

    /// Threads hammer few stripes in a tiny table: ownership excludes, nobody is lost, overflow drains.
    #[test]
    fn claims_exclude_each_other_across_threads() {
        let table = StripeTable::with_entries(2 * STRIPE_TABLE_WAYS);
        let stripes = 40;
        let busy: Arc<Vec<AtomicBool>> = Arc::new((0..stripes).map(|_| AtomicBool::new(false)).collect());
        let threads: Vec<_> = (0..4)
            .map(|shard| {
                let (table, busy) = (Arc::clone(&table), Arc::clone(&busy));
                std::thread::spawn(move || {
                    let parker = std::thread::current();
                    let executor = Executor::new(Box::new(move || parker.unpark()));
                    for task in 0..8u64 {
                        let (table, busy) = (Arc::clone(&table), Arc::clone(&busy));
                        executor.spawn(async move {
                            for round in 0..300u64 {
                                let stripe = (round * 7 + task * 13 + shard as u64) % stripes;
                                match table.claim_or_join(stripe, shard, write()).await {
                                    Entry::Joined(joined) => joined.await.expect("owner finishes"),
                                    Entry::Owned(mut claim, _) => {
                                        let flag = &busy[usize::try_from(stripe).unwrap()];
                                        assert!(!flag.swap(true, SeqCst), "one owner at a time");
                                        yield_now().await;
                                        claim.freeze();
                                        yield_now().await;
                                        assert!(flag.swap(false, SeqCst));
                                        claim.release(&Ok(()));
                                    }
                                }
                            }
                        });
                    }
                    while executor.tasks_alive() > 0 {
                        executor.run_ready(16);
                        if executor.tasks_alive() > 0 && executor.prepare_to_sleep() {
                            std::thread::park_timeout(std::time::Duration::from_secs(60));
                            executor.awake();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(table.active(), 0);
    }
}
