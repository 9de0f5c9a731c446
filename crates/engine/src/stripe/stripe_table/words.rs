//! Stripe owners in words changed by CAS: a stripe hashes to two buckets of eight words (a cuckoo table of two choices).
//! One word is one entry:
//!
//! ```text
//! bit 63 LOCKED | 62 TENTATIVE | 61 FROZEN | 60..48 shard that claimed it | 47..0 stripe + 1        0 = free
//! ```
//!
//! An entry never moves, because its place names its batch. Where a cuckoo table would evict an entry, a claim that finds
//! both buckets full waits for a release; with two choices of eight ways that takes thousands of stripes in flight.
//!
//! *Two shards that claim one stripe at once* may put it into two places. So a claim is first TENTATIVE, then looks
//! at both buckets again: a LOCKED twin wins; of two TENTATIVE twins the one at the lower place stays and the other
//! withdraws. The lower one waits the few instructions until the higher has decided: the higher may have looked before the
//! lower was there, and is the owner then.

use crossbeam::utils::CachePadded;

use super::super::unit_number::UnitNumber;
use super::attempt::Attempt;
use crate::limits::STRIPE_TABLE_WAYS;
use crate::sync::sequential::atomic::{AtomicU64, Ordering::SeqCst};
use crate::sync::sequential::spin_loop;

const LOCKED: u64 = 1 << 63;
const TENTATIVE: u64 = 1 << 62;
const FROZEN: u64 = 1 << 61;
const UNIT_MASK: u64 = (1 << 48) - 1;

type Bucket = CachePadded<[AtomicU64; STRIPE_TABLE_WAYS]>;

/// The words of all places.
pub(super) struct Words {
    buckets: Box<[Bucket]>,
}

enum Settled {
    Won,
    Held(usize),
    Lost,
}

impl Words {
    pub(super) fn new(entries: usize) -> Self {
        let bucket = |_| CachePadded::new(std::array::from_fn(|_| AtomicU64::new(0)));
        Words { buckets: (0..entries / STRIPE_TABLE_WAYS).map(bucket).collect() }
    }

    /// Becomes the owner of a stripe, or finds its owner. Calls `withdrawn` when it has freed a place that it took for a
    /// moment.
    #[inline]
    pub(super) fn try_claim(&self, unit: UnitNumber, shard: usize, withdrawn: impl Fn()) -> Attempt {
        assert!(unit.get() < UNIT_MASK, "a number has 48 bits");
        let buckets = self.places(unit);
        let word = (unit.get() + 1) | (shard as u64 & 0xfff) << 48;
        'again: loop {
            let mut free = None;
            for first in buckets {
                for (way, word) in self.buckets[first / STRIPE_TABLE_WAYS].iter().enumerate() {
                    let seen = word.load(SeqCst);
                    if seen == 0 {
                        free = free.or(Some(first + way));
                    } else if seen & UNIT_MASK == unit.get() + 1 {
                        if seen & TENTATIVE == 0 {
                            return Attempt::Held(first + way);
                        }
                        spin_loop();
                        continue 'again;
                    }
                }
            }
            let Some(mine) = free else { return Attempt::Full };
            if self.word(mine).compare_exchange(0, word | TENTATIVE, SeqCst, SeqCst).is_err() {
                continue;
            }
            match self.settle(mine, unit, buckets) {
                Settled::Won => {
                    self.word(mine).store(word | LOCKED, SeqCst);
                    return Attempt::Claimed(mine);
                }
                Settled::Held(place) => {
                    self.word(mine).store(0, SeqCst);
                    withdrawn();
                    return Attempt::Held(place);
                }
                Settled::Lost => {
                    self.word(mine).store(0, SeqCst);
                    withdrawn();
                    spin_loop();
                }
            }
        }
    }

    /// Decides between the tentative claim at `mine` and a twin of it, if there is one.
    fn settle(&self, mine: usize, unit: UnitNumber, buckets: [usize; 2]) -> Settled {
        if self.words_of(unit, buckets) == 1 {
            return Settled::Won; // its own
        }
        for first in buckets {
            for (way, word) in self.buckets[first / STRIPE_TABLE_WAYS].iter().enumerate() {
                let place = first + way;
                let twin = |seen: u64| seen & UNIT_MASK == unit.get() + 1 && place != mine;
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

    /// How many words of a stripe its buckets hold. Without a branch for each word: most claims have no twin.
    #[inline]
    fn words_of(&self, unit: UnitNumber, buckets: [usize; 2]) -> u64 {
        let words = buckets.iter().flat_map(|first| self.buckets[first / STRIPE_TABLE_WAYS].iter());
        words.map(|word| u64::from(word.load(SeqCst) & UNIT_MASK == unit.get() + 1)).sum()
    }

    /// The batch at `place` is closed: a write that sees this need not take the batch's lock.
    pub(super) fn freeze(&self, place: usize) {
        self.word(place).fetch_or(FROZEN, SeqCst);
    }

    pub(super) fn is_frozen(&self, place: usize) -> bool {
        self.word(place).load(SeqCst) & FROZEN != 0
    }

    /// Releases the stripe at `place`.
    pub(super) fn release(&self, place: usize) {
        self.word(place).store(0, SeqCst);
    }

    /// Whether a claim of this stripe would find a place.
    pub(super) fn has_room(&self, unit: UnitNumber) -> bool {
        self.all_places(unit).any(|place| self.word(place).load(SeqCst) == 0)
    }

    /// The places that hold a word of this stripe.
    pub(super) fn holding(&self, unit: UnitNumber) -> impl Iterator<Item = usize> {
        self.all_places(unit).filter(move |place| self.holds(*place, unit))
    }

    pub(super) fn holds(&self, place: usize, unit: UnitNumber) -> bool {
        self.word(place).load(SeqCst) & UNIT_MASK == unit.get() + 1
    }

    /// The stripes that have an owner now.
    pub(super) fn owned(&self) -> Vec<UnitNumber> {
        let words = self.buckets.iter().flat_map(|bucket| bucket.iter()).map(|word| word.load(SeqCst));
        words.filter(|word| *word != 0).map(|word| UnitNumber::new((word & UNIT_MASK) - 1)).collect()
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    fn places(&self, unit: UnitNumber) -> [usize; 2] {
        let mask = self.buckets.len() - 1;
        let hash = unit.get().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (first, second) = ((hash >> 32) as usize & mask, (hash >> 48) as usize & mask);
        // Two different buckets, in ascending order, so that all claims agree which place is lower.
        let second = if first == second { (second + 1) & mask } else { second };
        [first.min(second) * STRIPE_TABLE_WAYS, first.max(second) * STRIPE_TABLE_WAYS]
    }

    fn all_places(&self, unit: UnitNumber) -> impl Iterator<Item = usize> + use<> {
        self.places(unit).into_iter().flat_map(|first| first..first + STRIPE_TABLE_WAYS)
    }

    fn word(&self, place: usize) -> &AtomicU64 {
        &self.buckets[place / STRIPE_TABLE_WAYS][place % STRIPE_TABLE_WAYS]
    }
}
