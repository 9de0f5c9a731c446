//! Where parity, or the copies of a mirror, may not agree: one state for stripes that are suspect, in doubt or unsynced.
//!
//! - **Suspect**: the last write of the stripe, or of a mirror's region, failed half way in this run. The next write makes
//!   parity agree first; nothing builds on the parity before that (invariant 9).
//! - **In doubt**: the write hole. A crash may have left parity that does not agree with data, and members are missing:
//!   what parity reconstructs of their chunks may be wrong (invariant 10). Reads of those chunks fail; the rest of the
//!   array works. A stripe leaves doubt when its missing chunks are overwritten whole or its parity is made to agree.
//! - **Unsynced**: a resync has yet to reach the stripe. With all members present reads do not need its parity, but RAID-6 looks
//!   whether P and Q would tell the same once the member is gone ([`read`](super::read)); once one has failed the stripe is in doubt.
//!
//! What a member that is away holds in such stripes is another question: [`absences`](super::absences).
//!
//! # What ends a doubt
//!
//! A stripe leaves doubt as a whole, so each of these makes parity of *all* its rows from data that is known:
//!
//! | where | why all rows agree |
//! |---|---|
//! | [`agree`](super::agree), [`run`](super::run): `make_parity_agree`, a resync | every data chunk is read from its member, none is missing, and every parity chunk that is there is written whole |
//! | [`runner`](super::runner): `remove_doubt` | every step of the write made parity from all data, and the write covers every lost chunk from the first row to the last: so there is a step for each row. With no data lost it covers all data |
//! | [`runner`](super::runner): `half_written` | the stripe was sound before this write, and the rows of the write are made again from all data |
//! | [`zero`](super::zero) | every member that is there holds zeroes, and the parity of zeroes is zero |
//! | [`recovery`](super::recovery): `recover_stripe` | one data chunk is missing, and in every row P and Q make the same of it |
//! | `array::doubt` | an operator says so; what members that are away hold there does not count from then on |
//! | `array::superblock_writer`: `set_resync(None)` | a resync has done all that was marked, and is flushed |
//! | `array::redo` | at a start: the log in force lists every stripe in doubt; what it has a record of is made again |
//!
//! A write of a part of a lost chunk ends no doubt, whatever rows it makes agree: those are `made` in the absences. Nor does a
//! member that returns: the resync that is due does.
//!
//! New parity of a whole stripe is in no redo record. Headers list the stripe until a flush has made that durable
//! ([`Consistency::begin_flush`]); before that a power cut could take the parity and leave the word for it.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, OnceLock};

use super::ranges::{Ranges, at_most, common, join};
use super::unit_number::UnitNumber;
use crate::error::VolumeError;
use crate::fabric::epochs::{Entered, Epochs};
use layout::redo_log::StripeRange;
use layout::units::Stripe;

/// Most ranges beyond the resync's cursor that are remembered as consistent: 32 MiB of memory. Stripes over the limit wait
/// for the resync.
const AGREED_MAX: usize = 1 << 20;

/// Where parity or copies of one array may not agree, shared by all shards.
#[derive(Default)]
pub struct Consistency {
    suspects: Mutex<BTreeSet<UnitNumber>>,
    suspect_count: AtomicUsize,
    any_doubt: AtomicBool,
    doubts: Mutex<Ranges>,
    /// Stripes that came into doubt, or became suspect, in this run.
    entered: Mutex<Ranges>,
    /// Stripes that left doubt, by parity that may be in the members' caches only: headers list them until a flush.
    ended: Mutex<Ended>,
    any_ended: AtomicBool,
    /// The resync's cursor: the first stripe that it has yet to reach, plus one; 0 if no resync is due.
    unsynced: AtomicU64,
    /// Stripes beyond the cursor that agree already: a write overwrote them whole, or made their parity agree before it
    /// built on it.
    agreed: Mutex<Ranges>,
    /// The stripes that a bitmap marks: a resync skips all others. None without a bitmap.
    marked: Option<Box<[StripeRange]>>,
    /// How many stripes have left doubt in this run.
    removals: AtomicU64,
    /// How many of those are durable, or need no flush.
    durable: AtomicU64,
    /// How many of those the headers on the members record: a crash puts the rest in doubt again.
    persisted: AtomicU64,
    /// The writes that are under way, where members' targets record them.
    epochs: OnceLock<Arc<Epochs>>,
}

/// Stripes that left doubt, by the flush that will make their parity durable.
#[derive(Default)]
struct Ended {
    /// The next flush to begin.
    next_flush: u64,
    by_flush: BTreeMap<u64, Ranges>,
}

/// A flush of all members that has begun.
pub(crate) struct FlushBegun {
    flush: u64,
    removals: u64,
}

impl Consistency {
    /// The last write of a stripe failed half way. False if it was suspect already.
    pub(crate) fn suspect(&self, stripe: Stripe) -> bool {
        self.entered.lock().add(StripeRange::of(stripe));
        self.suspect_unit(stripe.into())
    }

    /// The last write of a mirror's region failed half way. False if it was suspect already.
    pub(crate) fn suspect_region(&self, region: impl Into<UnitNumber>) -> bool {
        self.suspect_unit(region.into())
    }

    fn suspect_unit(&self, unit: UnitNumber) -> bool {
        let mut suspects = self.suspects.lock();
        let is_new = suspects.insert(unit);
        self.suspect_count.store(suspects.len(), SeqCst);
        // F-I14: the suspect is entered first. A host that releases the epochs looks for suspects afterwards: it finds this one, or
        // the epochs are held again.
        if let Some(epochs) = self.epochs.get() {
            epochs.hold();
        }
        is_new
    }

    /// Members' targets may record from here on what is under way. Before the first write.
    pub fn keep_epochs(&self) -> &Arc<Epochs> {
        self.epochs.get_or_init(Arc::default)
    }

    /// The writes that are under way, if targets may record them.
    pub fn epochs(&self) -> Option<&Arc<Epochs>> {
        self.epochs.get()
    }

    /// A write begins, and has ended when what is returned is dropped.
    #[inline]
    pub(crate) fn enter(&self) -> Option<Entered<'_>> {
        self.epochs.get().map(|epochs| epochs.enter())
    }

    /// Whether nothing awaits a resync or is in doubt. Suspects are not looked at.
    pub fn is_settled(&self) -> bool {
        self.unsynced.load(SeqCst) == 0 && !self.any_doubt.load(SeqCst)
    }

    /// Whether the last write of a stripe, or of a mirror's region, failed half way.
    #[inline]
    pub fn is_suspect(&self, unit: impl Into<UnitNumber>) -> bool {
        self.suspect_count.load(SeqCst) > 0 && self.suspects.lock().contains(&unit.into())
    }

    /// How many stripes are suspect. The superblocks may not say clean before there are none.
    pub fn suspects(&self) -> usize {
        self.suspect_count.load(SeqCst)
    }

    /// The suspect stripes, or regions of a mirror, ascending.
    pub(crate) fn suspect_units(&self) -> Vec<UnitNumber> {
        self.suspects.lock().iter().copied().collect()
    }

    /// A stripe's parity agrees: it is neither suspect nor in doubt any more.
    pub(crate) fn trust(&self, stripe: Stripe) {
        self.trust_unit(stripe.into());
        self.end_doubt(stripe);
    }

    /// The copies of a mirror's region agree.
    pub(crate) fn trust_region(&self, region: impl Into<UnitNumber>) {
        self.trust_unit(region.into());
    }

    fn trust_unit(&self, unit: UnitNumber) {
        let mut suspects = self.suspects.lock();
        suspects.remove(&unit);
        self.suspect_count.store(suspects.len(), SeqCst);
    }

    /// Puts one stripe in doubt: its missing chunks are not reconstructed, in this run or a later one.
    pub(crate) fn doubt_stripe(&self, stripe: Stripe) {
        self.entered.lock().add(StripeRange::of(stripe));
        self.doubt(StripeRange::of(stripe));
    }

    /// Whether a stripe came into doubt, or became suspect, in this run.
    pub(crate) fn has_entered(&self, stripe: Stripe) -> bool {
        self.entered.lock().contains(stripe.get())
    }

    /// Whether nothing speaks against the parity of a stripe.
    #[inline]
    pub(crate) fn is_sound(&self, stripe: Stripe) -> bool {
        !self.is_suspect(stripe) && !self.is_in_doubt(stripe)
    }

    /// Whether a write of a stripe needs no care: it is sound, also on record.
    #[inline]
    pub(crate) fn is_plain(&self, stripe: Stripe) -> bool {
        !self.is_suspect(stripe) && !self.is_on_record(stripe)
    }

    /// Why the missing chunks of this stripe must not be reconstructed, if so (invariant 10).
    pub(crate) fn unrecoverable(&self, stripe: Stripe) -> Option<VolumeError> {
        let reason = if self.is_suspect(stripe) {
            "its last write failed half way, so lost data cannot be recovered"
        } else if self.is_in_doubt(stripe) {
            "it is in doubt: a crash may have left parity that does not agree with its data, so lost data cannot be \
             recovered"
        } else {
            return None;
        };
        Some(VolumeError::Io { reason: format!("stripe {stripe}: {reason}") })
    }

    /// Limits resyncs to these stripes: ascending ranges that do not touch.
    pub fn limit_resync_to(&mut self, marked: Vec<StripeRange>) {
        self.marked = Some(marked.into());
    }

    /// Checks that counts and flags match the sets they stand for.
    ///
    /// # Panics
    /// If one does not.
    pub fn self_check(&self) {
        let suspects = self.suspects.lock();
        assert_eq!(self.suspect_count.load(SeqCst), suspects.len(), "suspects are counted");
        drop(suspects);
        let doubts = self.doubts.lock();
        assert_eq!(
            self.any_doubt.load(SeqCst),
            !doubts.0.is_empty(),
            "the flag says whether stripes are in doubt"
        );
        doubts.self_check();
        drop(doubts);
        self.agreed.lock().self_check();
    }

    /// Puts stripes in doubt.
    pub fn doubt(&self, range: StripeRange) {
        if range.first >= range.end {
            return;
        }
        self.doubts.lock().add(range);
        self.any_doubt.store(true, SeqCst);
    }

    /// A stripe leaves doubt.
    pub(crate) fn end_doubt(&self, stripe: Stripe) {
        let mut was_in = false;
        if self.is_unsynced(stripe) {
            let mut agreed = self.agreed.lock();
            if agreed.0.len() < AGREED_MAX {
                agreed.add(StripeRange::of(stripe));
                was_in = true;
            }
        }
        if self.any_doubt.load(SeqCst) {
            let mut ranges = self.doubts.lock();
            was_in |= ranges.remove(stripe.get());
            self.any_doubt.store(!ranges.0.is_empty(), SeqCst);
        }
        if was_in {
            let ended = &mut *self.ended.lock();
            ended.by_flush.entry(ended.next_flush).or_default().add(StripeRange::of(stripe));
            self.any_ended.store(true, SeqCst);
            self.removals.fetch_add(1, SeqCst);
        }
    }

    /// A flush of all members begins: what left doubt until now leaves the headers once [`Consistency::ends_durable`] says so.
    pub(crate) fn begin_flush(&self) -> FlushBegun {
        let removals = self.removals.load(SeqCst);
        let ended = &mut *self.ended.lock();
        ended.next_flush += 1;
        FlushBegun { flush: ended.next_flush - 1, removals }
    }

    /// The flush has ended well.
    pub(crate) fn ends_durable(&self, begun: &FlushBegun) {
        let ended = &mut *self.ended.lock();
        ended.by_flush = ended.by_flush.split_off(&(begun.flush + 1));
        self.any_ended.store(!ended.by_flush.is_empty(), SeqCst);
        self.durable.fetch_max(begun.removals, SeqCst);
    }

    /// Whether headers call a stripe in doubt: also one whose new parity may not be durable.
    #[inline]
    pub(crate) fn is_on_record(&self, stripe: Stripe) -> bool {
        self.is_in_doubt(stripe)
            || self.any_ended.load(SeqCst)
                && self.ended.lock().by_flush.values().any(|ended| ended.contains(stripe.get()))
    }

    /// How many removals the next headers record.
    pub(crate) fn durable_removals(&self) -> u64 {
        self.durable.load(SeqCst)
    }

    /// The stripes that headers call in doubt: also those whose new parity may not be durable yet (invariant 2).
    pub(crate) fn doubts_on_record(&self, most: usize) -> Vec<StripeRange> {
        let mut all = self.doubt_ranges(usize::MAX);
        if self.any_ended.load(SeqCst) {
            for ended in self.ended.lock().by_flush.values() {
                all.extend(ended.0.iter().map(|(&first, &end)| StripeRange { first, end }));
            }
            all.sort_by_key(|range| range.first);
            all = join(all);
        }
        at_most(all, most)
    }

    /// The stripes in doubt on record that were so before this run wrote to them.
    pub(crate) fn doubts_from_before(&self) -> Vec<StripeRange> {
        let mut all = Ranges::default();
        self.doubts_on_record(usize::MAX).into_iter().for_each(|range| all.add(range));
        self.entered.lock().0.iter().for_each(|(&first, &end)| all.remove_all(first..end));
        all.0.into_iter().map(|(first, end)| StripeRange { first, end }).collect()
    }

    /// Takes stripes out of doubt although nothing made their parity agree: it counts as right from here on. Suspect ones stay
    /// suspect. Returns how many they were.
    pub(crate) fn accept(&self, range: StripeRange) -> u64 {
        let count = |doubts: &[StripeRange]| -> u64 {
            common(doubts, &[range]).iter().map(|part| part.end - part.first).sum()
        };
        let before = count(&self.doubt_ranges(usize::MAX));
        let unsynced = common(&self.unsynced(), &[range]);
        let mut agreed = self.agreed.lock();
        for part in unsynced {
            if agreed.0.len() < AGREED_MAX {
                agreed.add(part);
            }
        }
        drop(agreed);
        let mut doubts = self.doubts.lock();
        doubts.remove_all(range);
        self.any_doubt.store(!doubts.0.is_empty(), SeqCst);
        drop(doubts);
        let accepted = before.saturating_sub(count(&self.doubt_ranges(usize::MAX)));
        self.removals.fetch_add(accepted, SeqCst);
        accepted
    }

    /// The value for [`Consistency::set_persisted`] once headers that are made after this call are on the members. None if
    /// the members record every removal already.
    pub fn unpersisted(&self) -> Option<u64> {
        let removals = self.removals.load(SeqCst);
        (removals != self.persisted.load(SeqCst)).then_some(removals)
    }

    /// The members record this many removals.
    pub(crate) fn set_persisted(&self, removals: u64) {
        self.persisted.fetch_max(removals, SeqCst);
    }

    /// Takes every stripe out of doubt: a resync has made all parity agree.
    pub fn clear_doubts(&self) {
        self.doubts.lock().0.clear();
        self.any_doubt.store(false, SeqCst);
    }

    /// Moves the resync's cursor; None: no resync is due. A cursor that moves up keeps what is known to agree beyond it;
    /// one that moves back starts another resync, which trusts nothing beyond it.
    pub fn set_unsynced(&self, from_stripe: Option<Stripe>) {
        let (new, mut agreed) = (from_stripe.map_or(0, |stripe| stripe.get() + 1), self.agreed.lock());
        let old = self.unsynced.swap(new, SeqCst);
        agreed.0 = match from_stripe {
            Some(from) if old != 0 && old <= new => agreed.from(from.get()),
            _ => BTreeMap::new(),
        };
    }

    /// Whether lost chunks of this stripe must not be reconstructed.
    pub fn is_in_doubt(&self, stripe: Stripe) -> bool {
        self.is_unsynced(stripe) || self.any_doubt.load(SeqCst) && self.doubts.lock().contains(stripe.get())
    }

    /// Whether a resync has yet to reach this stripe: its parity may not agree.
    #[inline]
    pub fn is_unsynced(&self, stripe: Stripe) -> bool {
        let unsynced = self.unsynced.load(SeqCst);
        unsynced != 0
            && stripe.get() + 1 >= unsynced
            && self.is_marked(stripe)
            && !self.agreed.lock().contains(stripe.get())
    }

    fn is_marked(&self, stripe: Stripe) -> bool {
        self.marked.as_ref().is_none_or(|marked| {
            let after = marked.partition_point(|range| range.first <= stripe.get());
            after > 0 && stripe.get() < marked[after - 1].end
        })
    }

    /// The stripes that a resync has yet to reach, ascending.
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
    pub fn stripes_in_doubt(&self, stripes: u64) -> u64 {
        self.doubt_ranges(usize::MAX)
            .iter()
            .map(|range| range.end.min(stripes) - range.first.min(stripes))
            .sum()
    }

    /// The stripes in doubt as at most `most` ascending ranges, those that a resync has yet to reach included: where there
    /// are more ranges, those with the smallest gaps are joined. There may be a million, and the list is made again for
    /// every header that records a removal: hence a selection rather than a sort.
    pub fn doubt_ranges(&self, most: usize) -> Vec<StripeRange> {
        let mut all = self.unsynced();
        all.extend(self.doubts.lock().0.iter().map(|(&first, &end)| StripeRange { first, end }));
        all.sort_by_key(|range| range.first); // of two ascending lists, which a stable sort merges
        at_most(join(all), most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cmp::Reverse;
    use std::collections::BTreeSet;

    /// F-I14: what a write has left half done stays listed when the write ends.
    #[test]
    fn a_suspect_holds_the_epochs_before_its_write_ends() {
        let consistency = Consistency::default();
        let epochs = Arc::clone(consistency.keep_epochs());
        let write = consistency.enter();
        let before = epochs.stamp();
        assert!(consistency.suspect(Stripe::new(3)));
        drop(write);
        assert_eq!((epochs.stamp().lowest, epochs.is_held()), (before.lowest, true));
    }

    /// Stripes that agree by a write are left out, wherever they are, and no range is empty.
    #[test]
    fn what_a_resync_has_yet_to_reach_has_no_empty_range() {
        let doubts = Consistency::default();
        doubts.set_unsynced(Some(Stripe::new(5)));
        for (agrees, expected) in [(5, vec![(6, u64::MAX)]), (7, vec![(6, 7), (8, u64::MAX)])] {
            doubts.end_doubt(Stripe::new(agrees));
            let found: Vec<_> = doubts.doubt_ranges(9).iter().map(|range| (range.first, range.end)).collect();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn ranges_are_a_set_of_stripes() {
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        let (doubts, mut oracle) = (Consistency::default(), BTreeSet::new());
        for _ in 0..3000 {
            let first = random(60);
            match random(6) {
                0..4 => {
                    doubts.end_doubt(Stripe::new(first));
                    oracle.remove(&first);
                }
                4 => {
                    let end = first + random(6);
                    let before = oracle.len();
                    oracle.retain(|stripe| !(first..end).contains(stripe));
                    assert_eq!(doubts.accept(StripeRange { first, end }), (before - oracle.len()) as u64);
                }
                _ => {
                    let end = first + random(9);
                    doubts.doubt(StripeRange { first, end });
                    oracle.extend(first..end);
                }
            }
            doubts.self_check();
            assert!(
                Stripe::first(70).all(|stripe| doubts.is_in_doubt(stripe) == oracle.contains(&stripe.get()))
            );
            let ranges = doubts.doubt_ranges(usize::MAX);
            assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].first), "{ranges:?}");
            assert_eq!(doubts.stripes_in_doubt(70), oracle.len() as u64);
            let coarse = doubts.doubt_ranges(3);
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

    /// A quarter of a million ranges, listed for every header: the work was quadratic once.
    #[test]
    fn many_ranges_are_listed_in_time() {
        let mut doubts = Consistency::default();
        let pairs = |from: u64| (from..from + 250_000).map(|i| StripeRange { first: 4 * i, end: 4 * i + 2 });
        doubts.limit_resync_to(pairs(0).collect());
        doubts.set_unsynced(Some(Stripe::new(0)));
        pairs(0).for_each(|range| doubts.end_doubt(Stripe::new(range.first)));
        pairs(500_000).for_each(|range| doubts.doubt(range));
        assert_eq!(doubts.stripes_in_doubt(u64::MAX), 250_000 + 500_000);
        let listed = doubts.doubt_ranges(240);
        assert_eq!((listed.len(), listed[0].first, listed[239].end), (240, 1, 3_000_000 - 2));
    }

    /// Headers list a stripe until its new parity is durable: a power cut in between puts it in doubt again.
    #[test]
    fn what_left_doubt_is_on_record_until_a_flush_has_ended() {
        let (doubts, range) = (Consistency::default(), |first, end| StripeRange { first, end });
        doubts.doubt(range(3, 6));
        doubts.end_doubt(Stripe::new(3));
        assert_eq!(doubts.doubt_ranges(9), [range(4, 6)]);
        assert_eq!(doubts.doubts_on_record(9), [range(3, 6)]);
        let begun = doubts.begin_flush();
        doubts.end_doubt(Stripe::new(4));
        assert_eq!((doubts.doubts_on_record(9), doubts.durable_removals()), (vec![range(3, 6)], 0));
        doubts.ends_durable(&begun);
        assert_eq!((doubts.doubts_on_record(9), doubts.durable_removals()), (vec![range(4, 6)], 1));
        assert_eq!(doubts.unpersisted(), Some(2), "the second one waits for another flush");
        doubts.doubt_stripe(Stripe::new(9));
        assert_eq!(doubts.doubts_from_before(), [range(4, 6)], "writes of 9 before that were not followed");
    }

    #[test]
    fn what_a_resync_has_not_reached_is_in_doubt() {
        let doubts = Consistency::default();
        doubts.doubt(StripeRange { first: 3, end: 5 });
        doubts.set_unsynced(Some(Stripe::new(4)));
        assert!(
            !doubts.is_in_doubt(Stripe::new(2))
                && doubts.is_in_doubt(Stripe::new(3))
                && doubts.is_in_doubt(Stripe::new(1_000_000))
        );
        assert_eq!(doubts.doubt_ranges(9), [StripeRange { first: 3, end: u64::MAX }]);
        doubts.set_unsynced(None);
        assert!(!doubts.is_in_doubt(Stripe::new(6)));
        doubts.clear_doubts();
        assert!(!doubts.is_in_doubt(Stripe::new(3)));
    }

    #[test]
    fn what_was_made_to_agree_since_is_not() {
        let range = |first, end| StripeRange { first, end };
        for marked in [None, Some(vec![range(0, 12)])] {
            let mut doubts = Consistency::default();
            let end = marked.as_ref().map_or(u64::MAX, |_| 12);
            marked.into_iter().for_each(|marked| doubts.limit_resync_to(marked));
            doubts.end_doubt(Stripe::new(8));
            doubts.set_unsynced(Some(Stripe::new(4)));
            assert!(
                doubts.is_unsynced(Stripe::new(8)) && doubts.unpersisted().is_none(),
                "nothing was due before"
            );
            [6, 8, 2].map(Stripe::new).into_iter().for_each(|stripe| doubts.end_doubt(stripe));
            assert_eq!(doubts.doubt_ranges(9), [range(4, 6), range(7, 8), range(9, end)]);
            assert!(
                !doubts.is_in_doubt(Stripe::new(8))
                    && doubts.is_in_doubt(Stripe::new(7))
                    && doubts.unpersisted().is_some()
            );
            doubts.set_unsynced(Some(Stripe::new(7))); // a checkpoint
            assert_eq!(doubts.doubt_ranges(9), [range(7, 8), range(9, end)]);
            doubts.set_unsynced(Some(Stripe::new(0))); // another resync
            assert!(doubts.is_in_doubt(Stripe::new(8)));
            doubts.end_doubt(Stripe::new(8));
            doubts.set_unsynced(None);
            doubts.set_unsynced(Some(Stripe::new(7)));
            assert!(doubts.is_in_doubt(Stripe::new(8)));
            assert_eq!((doubts.accept(range(3, 9)), doubts.accept(range(3, 9))), (2, 0));
            assert!(!doubts.is_in_doubt(Stripe::new(8)) && doubts.is_in_doubt(Stripe::new(9)));
        }
    }

    #[test]
    fn only_what_a_bitmap_marks_waits_for_a_resync() {
        let mut doubts = Consistency::default();
        let range = |first, end| StripeRange { first, end };
        doubts.limit_resync_to(vec![range(2, 4), range(8, 12)]);
        assert!(!doubts.is_in_doubt(Stripe::new(3)));
        doubts.set_unsynced(Some(Stripe::new(3)));
        let expected = [3, 8, 9, 10, 11];
        assert!(
            Stripe::first(20).all(|stripe| doubts.is_in_doubt(stripe) == expected.contains(&stripe.get()))
        );
        doubts.doubt(range(4, 6));
        assert_eq!(doubts.doubt_ranges(9), [range(3, 6), range(8, 12)]);
        assert_eq!(doubts.stripes_in_doubt(10), 5);
    }
}
