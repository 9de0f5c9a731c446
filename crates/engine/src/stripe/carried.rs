//! Where P and Q of a stripe in doubt prove nothing.
//!
//! Where both make the same of a lost chunk, that is what it holds: a torn write leaves them in disagreement about every chunk but
//! the one that it wrote, and of that one they agree on what it held before. But a read-modify-write in such a stripe carries the
//! difference into both of them. From then on they agree on a chunk that was written, and not on what was written (invariant 10).
//! So these places are kept, by the slot of the member that was written, until the stripe leaves doubt; also on disk, in the
//! record of [`absences`](super::absences).

use std::collections::BTreeMap;
use std::ops::Range;

use super::ranges::{Ranges, at_most};
use layout::absences::{Carried as Place, SectorRange};
use layout::redo_log::StripeRange;
use layout::units::Slot;

/// Sectors of members, by slot; without one, those of all.
#[derive(Default)]
pub(super) struct Carried(BTreeMap<Option<Slot>, Ranges>);

impl Carried {
    pub(super) fn of_list(list: &[Place]) -> Carried {
        let mut carried = Carried::default();
        for place in list {
            carried.0.entry(place.slot).or_default().add(place.range.first..place.range.end);
        }
        carried
    }

    pub(super) fn as_list(&self) -> Vec<Place> {
        let places = self.0.iter().flat_map(|(&slot, ranges)| {
            ranges.0.iter().map(move |(&first, &end)| Place { slot, range: SectorRange { first, end } })
        });
        places.collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A member was, or is about to be, written there. False if that is known.
    pub(super) fn add(&mut self, slot: Slot, sectors: Range<u64>) -> bool {
        let ranges = self.0.entry(Some(slot)).or_default();
        let is_new = ranges.within(&sectors) != [sectors.clone()];
        ranges.add(sectors);
        is_new
    }

    /// Whether any of these sectors of a member is one.
    pub(super) fn meets(&self, slot: Slot, sectors: &Range<u64>) -> bool {
        let of = |slot| self.0.get(&slot).is_some_and(|ranges: &Ranges| !ranges.within(sectors).is_empty());
        of(Some(slot)) || of(None)
    }

    /// Forgets what is outside of these sectors, which are in doubt. Whether there was anything.
    pub(super) fn keep_within(&mut self, in_doubt: &[Range<u64>]) -> bool {
        let before = self.len();
        for ranges in self.0.values_mut() {
            let mut kept = Ranges::default();
            let parts = in_doubt.iter().flat_map(|range| ranges.within(range));
            parts.for_each(|part| kept.add(part));
            *ranges = kept;
        }
        self.0.retain(|_, ranges| !ranges.0.is_empty());
        self.len() != before
    }

    /// Joins ranges until there are at most `most`: what lies between proves nothing from then on, either.
    pub(super) fn coarsen_to(&mut self, most: usize) {
        if self.ranges() <= most {
            return;
        }
        if self.0.len() > most {
            let mut all = Ranges::default();
            let ranges = self.0.values().flat_map(|ranges| &ranges.0);
            ranges.for_each(|(&first, &end)| all.add(first..end));
            self.0 = BTreeMap::from([(None, all)]);
        }
        let each = (most / self.0.len()).max(1);
        for ranges in self.0.values_mut() {
            let list = ranges.0.iter().map(|(&first, &end)| StripeRange { first, end }).collect();
            ranges.0 = at_most(list, each).into_iter().map(|range| (range.first, range.end)).collect();
        }
    }

    /// How many places the list has.
    pub(super) fn ranges(&self) -> usize {
        self.0.values().map(|ranges| ranges.0.len()).sum()
    }

    fn len(&self) -> u64 {
        self.0.values().map(Ranges::len).sum()
    }

    pub(super) fn self_check(&self) {
        for ranges in self.0.values() {
            assert!(!ranges.0.is_empty(), "a slot without a carried place");
            ranges.self_check();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_known_by_its_member_until_it_is_out_of_doubt() {
        let mut carried = Carried::default();
        assert!(
            carried.add(Slot::new(2), 8..16)
                && !carried.add(Slot::new(2), 8..16)
                && carried.add(Slot::new(2), 12..24)
        );
        assert!(
            carried.meets(Slot::new(2), &(23..30))
                && !carried.meets(Slot::new(2), &(24..30))
                && !carried.meets(Slot::new(1), &(8..16))
        );
        assert!(!carried.keep_within(std::slice::from_ref(&(0..24))), "all of it is in doubt");
        assert!(carried.keep_within(&[0..10, 20..22]));
        assert!(
            carried.meets(Slot::new(2), &(8..9))
                && !carried.meets(Slot::new(2), &(10..20))
                && carried.meets(Slot::new(2), &(21..22))
        );
        let again = Carried::of_list(&carried.as_list());
        assert_eq!(again.as_list(), carried.as_list());
        assert!(carried.keep_within(&[]) && carried.is_empty());
        carried.self_check();
    }

    /// What a record has no room for is joined with its neighbours, never forgotten.
    #[test]
    fn a_place_stays_known_however_many_there_are() {
        for (slots, most) in [(1, 5), (4, 9), (40, 9)] {
            let mut carried = Carried::default();
            for i in 0..30 {
                Slot::first(slots).for_each(|slot| _ = carried.add(slot, 100 * i + 7..100 * i + 9));
            }
            carried.coarsen_to(most);
            assert!(carried.as_list().len() <= most);
            carried.self_check();
            for i in 0..30 {
                assert!(Slot::first(slots).all(|slot| carried.meets(slot, &(100 * i + 7..100 * i + 9))));
            }
        }
    }
}
