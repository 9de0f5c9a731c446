//! Stripes in doubt: a crash may have left parity there that does not agree with data, and members are missing, so
//! that nobody can tell what their chunks held (invariant 10). Only reads of those chunks fail; the rest of the array
//! works, and a stripe leaves the set when its missing chunks are overwritten whole or its parity is made to agree.

use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use layout::redo_log::StripeRange;

/// Ranges of stripes beyond the resync's cursor that are remembered as made to agree since: 32 MiB of memory. What is more
/// waits for the resync.
const AGREED_MAX: usize = 1 << 20;

/// The stripes in doubt of one array, shared by all shards.
#[derive(Default)]
pub struct Doubts {
    any: AtomicBool,
    ranges: Mutex<Ranges>,
    /// A resync has not come to this stripe and what follows, plus one; 0 if none is due. While all members are there
    /// that is no doubt; from the failure of one on it is.
    unsynced: AtomicU64,
    /// Those of them that were overwritten whole, or whose parity was made to agree, since: a write builds on no other
    /// parity.
    agreed: Mutex<Ranges>,
    /// What a bitmap marks: other stripes agree, whatever is due to a resync. None without a bitmap.
    marked: Option<Box<[StripeRange]>>,
    /// How often stripes were taken out, and how often when the members were last told: until then a crash would put the
    /// others in doubt again.
    removals: AtomicU64,
    told: AtomicU64,
}

impl Doubts {
    /// A resync is due only to these stripes: ascending ranges that do not touch.
    pub fn limit_resync_to(&mut self, marked: Vec<StripeRange>) {
        self.marked = Some(marked.into());
    }

    /// Adds stripes.
    pub fn add(&self, range: StripeRange) {
        if range.first >= range.end {
            return;
        }
        self.ranges.lock().add(range);
        self.any.store(true, SeqCst);
    }

    /// Takes a stripe out.
    pub fn remove(&self, stripe: u64) {
        let mut was_in = false;
        if self.is_unsynced(stripe) {
            let mut agreed = self.agreed.lock();
            if agreed.0.len() < AGREED_MAX {
                agreed.add(StripeRange { first: stripe, end: stripe + 1 });
                was_in = true;
            }
        }
        if self.any.load(SeqCst) {
            let mut ranges = self.ranges.lock();
            was_in |= ranges.remove(stripe);
            self.any.store(!ranges.0.is_empty(), SeqCst);
        }
        if was_in {
            self.removals.fetch_add(1, SeqCst);
        }
    }

    /// What [`Doubts::told`] gets when all that was taken out until now is on the members. None: it is.
    pub fn untold(&self) -> Option<u64> {
        let removals = self.removals.load(SeqCst);
        (removals != self.told.load(SeqCst)).then_some(removals)
    }

    /// The members know of so many removals.
    pub(crate) fn told(&self, removals: u64) {
        self.told.fetch_max(removals, SeqCst);
    }

    /// Takes all out: everything agrees.
    pub fn clear(&self) {
        self.ranges.lock().0.clear();
        self.any.store(false, SeqCst);
    }

    /// Says from which stripe on a resync is due. One that goes on is due to less than before; one that begins anew is due
    /// to all that follows.
    pub fn set_unsynced(&self, from_stripe: Option<u64>) {
        let (new, mut agreed) = (from_stripe.map_or(0, |stripe| stripe + 1), self.agreed.lock());
        let old = self.unsynced.swap(new, SeqCst);
        agreed.0 = match from_stripe {
            Some(from) if old != 0 && old <= new => agreed.from(from),
            _ => BTreeMap::new(),
        };
    }

    /// Whether lost chunks of this stripe must not be reconstructed.
    pub fn contains(&self, stripe: u64) -> bool {
        self.is_unsynced(stripe) || self.any.load(SeqCst) && self.ranges.lock().contains(stripe)
    }

    /// Whether a resync is due to this stripe: its parity may not agree.
    #[inline]
    pub fn is_unsynced(&self, stripe: u64) -> bool {
        let unsynced = self.unsynced.load(SeqCst);
        unsynced != 0
            && stripe + 1 >= unsynced
            && self.is_marked(stripe)
            && !self.agreed.lock().contains(stripe)
    }

    fn is_marked(&self, stripe: u64) -> bool {
        self.marked.as_ref().is_none_or(|marked| {
            let after = marked.partition_point(|range| range.first <= stripe);
            after > 0 && stripe < marked[after - 1].end
        })
    }

    /// What is due to a resync, ascending.
    fn unsynced(&self) -> Vec<StripeRange> {
        let Some(first) = self.unsynced.load(SeqCst).checked_sub(1) else { return Vec::new() };
        let (mut due, mut at) = (Vec::new(), first);
        for (&agreed_first, &agreed_end) in &self.agreed.lock().0 {
            if at < agreed_first {
                due.push(StripeRange { first: at, end: agreed_first });
            }
            at = agreed_end.max(at);
        }
        due.push(StripeRange { first: at, end: u64::MAX });
        match &self.marked {
            None => due,
            Some(marked) => common(marked, &due),
        }
    }

    /// How many stripes are in doubt, up to `stripes`.
    pub fn count(&self, stripes: u64) -> u64 {
        self.ranges(usize::MAX).iter().map(|range| range.end.min(stripes) - range.first.min(stripes)).sum()
    }

    /// The ranges, ascending, of which neighbours are joined until there are at most `most`: those nearest to each other. What
    /// is due to a resync is among them. There may be a million, and each write that takes one out has them written.
    pub fn ranges(&self, most: usize) -> Vec<StripeRange> {
        let mut all = self.unsynced();
        all.extend(self.ranges.lock().0.iter().map(|(&first, &end)| StripeRange { first, end }));
        all.sort_by_key(|range| range.first); // of two ascending lists, which a stable sort merges
        let list = join(all);
        if list.len() <= most.max(1) {
            return list;
        }
        let gap = |at: usize| list[at + 1].first - list[at].end;
        let mut before_gaps: Vec<usize> = (0..list.len() - 1).collect();
        before_gaps.select_nth_unstable_by_key(most.max(1) - 1, |&at| Reverse(gap(at)));
        before_gaps.truncate(most.max(1) - 1);
        before_gaps.sort_unstable();
        let lasts = before_gaps.into_iter().chain([list.len() - 1]);
        let mut first = 0;
        let joined = lasts.map(|last| StripeRange {
            first: list[std::mem::replace(&mut first, last + 1)].first,
            end: list[last].end,
        });
        joined.collect()
    }
}

/// A set of stripes: the first stripe of each range, and the first after it. Disjoint, and no two touch.
#[derive(Default)]
struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    fn add(&mut self, range: StripeRange) {
        let StripeRange { mut first, mut end } = range;
        let touching: Vec<u64> =
            self.0.range(..=end).rev().take_while(|&(_, &other)| other >= first).map(|(&at, _)| at).collect();
        for at in touching {
            first = first.min(at);
            end = end.max(self.0.remove(&at).expect("it was there"));
        }
        self.0.insert(first, end);
    }

    /// Takes a stripe out. False if it was not in.
    fn remove(&mut self, stripe: u64) -> bool {
        let Some((first, end)) = self.around(stripe) else { return false };
        self.0.remove(&first);
        if first < stripe {
            self.0.insert(first, stripe);
        }
        if stripe + 1 < end {
            self.0.insert(stripe + 1, end);
        }
        true
    }

    fn contains(&self, stripe: u64) -> bool {
        self.around(stripe).is_some()
    }

    fn around(&self, stripe: u64) -> Option<(u64, u64)> {
        let (&first, &end) = self.0.range(..=stripe).next_back()?;
        (stripe < end).then_some((first, end))
    }

    /// What is left from this stripe on.
    fn from(&self, stripe: u64) -> BTreeMap<u64, u64> {
        let cut = |(&first, &end): (&u64, &u64)| (first.max(stripe), end);
        self.0.iter().filter(|(_, end)| **end > stripe).map(cut).collect()
    }
}

/// Ranges by their first stripe, of which those that touch are one.
pub(crate) fn join(ranges: impl IntoIterator<Item = StripeRange>) -> Vec<StripeRange> {
    let mut joined: Vec<StripeRange> = Vec::new();
    for range in ranges {
        match joined.last_mut().filter(|last| last.end >= range.first) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    joined
}

/// What two lists have in common. Each is ascending, and its ranges are apart.
pub(crate) fn common(some: &[StripeRange], others: &[StripeRange]) -> Vec<StripeRange> {
    let (mut common, mut at, mut other_at) = (Vec::new(), 0, 0);
    while let (Some(one), Some(other)) = (some.get(at), others.get(other_at)) {
        let (first, end) = (one.first.max(other.first), one.end.min(other.end));
        if first < end {
            common.push(StripeRange { first, end });
        }
        match one.end < other.end {
            true => at += 1,
            false => other_at += 1,
        }
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn ranges_are_a_set_of_stripes() {
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let (doubts, mut oracle) = (Doubts::default(), BTreeSet::new());
        for _ in 0..3000 {
            if random(3) > 0 {
                let stripe = random(60);
                doubts.remove(stripe);
                oracle.remove(&stripe);
            } else {
                let first = random(60);
                let end = first + random(6);
                doubts.add(StripeRange { first, end });
                oracle.extend(first..end);
            }
            assert!((0..70).all(|stripe| doubts.contains(stripe) == oracle.contains(&stripe)));
            let ranges = doubts.ranges(usize::MAX);
            assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].first), "{ranges:?}");
            assert_eq!(doubts.count(70), oracle.len() as u64);
            let coarse = doubts.ranges(3);
            assert_eq!(coarse.len(), ranges.len().min(3));
            assert!(oracle.iter().all(|stripe| coarse.iter().any(|r| (r.first..r.end).contains(stripe))));
            let gaps = |list: &[StripeRange]| -> Vec<u64> {
                let mut gaps: Vec<u64> = list.windows(2).map(|pair| pair[1].first - pair[0].end).collect();
                gaps.sort_unstable_by_key(|gap| Reverse(*gap));
                gaps
            };
            assert!(
                gaps(&ranges).starts_with(&gaps(&coarse)),
                "the largest gaps stay: {ranges:?} {coarse:?}"
            );
        }
    }

    /// A quarter of a million ranges, told again and again: the work was their square.
    #[test]
    fn many_ranges_are_told_in_time() {
        let mut doubts = Doubts::default();
        let pairs = |from: u64| (from..from + 250_000).map(|i| StripeRange { first: 4 * i, end: 4 * i + 2 });
        doubts.limit_resync_to(pairs(0).collect());
        doubts.set_unsynced(Some(0));
        pairs(0).for_each(|range| doubts.remove(range.first));
        pairs(500_000).for_each(|range| doubts.add(range));
        assert_eq!(doubts.count(u64::MAX), 250_000 + 500_000);
        let told = doubts.ranges(240);
        assert_eq!((told.len(), told[0].first, told[239].end), (240, 1, 3_000_000 - 2));
    }

    #[test]
    fn what_a_resync_has_not_reached_is_in_doubt() {
        let doubts = Doubts::default();
        doubts.add(StripeRange { first: 3, end: 5 });
        doubts.set_unsynced(Some(4));
        assert!(!doubts.contains(2) && doubts.contains(3) && doubts.contains(1_000_000));
        assert_eq!(doubts.ranges(9), [StripeRange { first: 3, end: u64::MAX }]);
        doubts.set_unsynced(None);
        assert!(!doubts.contains(6));
        doubts.clear();
        assert!(!doubts.contains(3));
    }

    #[test]
    fn what_was_made_to_agree_since_is_not() {
        let range = |first, end| StripeRange { first, end };
        for marked in [None, Some(vec![range(0, 12)])] {
            let mut doubts = Doubts::default();
            let end = marked.as_ref().map_or(u64::MAX, |_| 12);
            marked.into_iter().for_each(|marked| doubts.limit_resync_to(marked));
            doubts.remove(8);
            doubts.set_unsynced(Some(4));
            assert!(doubts.is_unsynced(8) && doubts.untold().is_none(), "nothing was due before");
            [6, 8, 2].into_iter().for_each(|stripe| doubts.remove(stripe));
            assert_eq!(doubts.ranges(9), [range(4, 6), range(7, 8), range(9, end)]);
            assert!(!doubts.contains(8) && doubts.contains(7) && doubts.untold().is_some());
            doubts.set_unsynced(Some(7)); // a checkpoint
            assert_eq!(doubts.ranges(9), [range(7, 8), range(9, end)]);
            doubts.set_unsynced(Some(0)); // another resync
            assert!(doubts.contains(8));
            doubts.remove(8);
            doubts.set_unsynced(None);
            doubts.set_unsynced(Some(7));
            assert!(doubts.contains(8));
        }
    }

    #[test]
    fn only_what_a_bitmap_marks_waits_for_a_resync() {
        let mut doubts = Doubts::default();
        let range = |first, end| StripeRange { first, end };
        doubts.limit_resync_to(vec![range(2, 4), range(8, 12)]);
        assert!(!doubts.contains(3));
        doubts.set_unsynced(Some(3));
        let expected = [3, 8, 9, 10, 11];
        assert!((0..20).all(|stripe| doubts.contains(stripe) == expected.contains(&stripe)));
        doubts.add(range(4, 6));
        assert_eq!(doubts.ranges(9), [range(3, 6), range(8, 12)]);
        assert_eq!(doubts.count(10), 5);
    }
}
