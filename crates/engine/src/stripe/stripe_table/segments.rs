//! Stripe owners kept as md keeps them: a fixed number of places, a list of the free ones, and hash chains to find a
//! stripe, in segments with a lock each. Stripe `n` belongs to segment `n & (segments - 1)` (ScalaRAID 3.1). A segment
//! whose places are all taken has no room, even if others do.

use crossbeam::utils::CachePadded;

use super::super::unit_number::UnitNumber;
use super::attempt::Attempt;
use crate::stages::{Lock, Watch};
use crate::sync::sequential::Mutex;

/// Least places of a segment: fewer are not worth a lock.
const SEGMENT_PLACES_MIN: usize = 16;

/// All places.
pub(super) struct Segments {
    segments: Box<[CachePadded<Mutex<Segment>>]>,
    /// Chains of each segment, a power of two.
    chains: usize,
}

/// The part of the places that one lock covers.
struct Segment {
    chains: Box<[Vec<Held>]>,
    free: Vec<usize>,
}

struct Held {
    unit: UnitNumber,
    place: usize,
}

impl Segment {
    fn find(&self, chain: usize, unit: UnitNumber) -> Option<usize> {
        self.chains[chain].iter().find(|held| held.unit == unit).map(|held| held.place)
    }
}

impl Segments {
    /// `entries` places, a power of two, under `locks` locks, or fewer if their segments would be too small.
    pub(super) fn new(entries: usize, locks: usize) -> Self {
        let count = locks.min(entries / SEGMENT_PLACES_MIN).max(1);
        let places = entries / count;
        let segment = |number: usize| {
            let chains = (0..places).map(|_| Vec::new()).collect();
            let free = (number * places..(number + 1) * places).rev().collect();
            CachePadded::new(Mutex::new(Segment { chains, free }))
        };
        Segments { segments: (0..count).map(segment).collect(), chains: places }
    }

    /// Becomes the owner of a stripe, or finds its owner.
    pub(super) fn try_claim(&self, unit: UnitNumber, watch: impl Watch) -> Attempt {
        let (lock, chain) = self.of(unit);
        watch.hold(Lock::Stripes, lock, |segment| {
            if let Some(place) = segment.find(chain, unit) {
                return Attempt::Held(place);
            }
            let Some(place) = segment.free.pop() else { return Attempt::Full };
            segment.chains[chain].push(Held { unit, place });
            Attempt::Claimed(place)
        })
    }

    /// Releases a stripe.
    pub(super) fn release(&self, unit: UnitNumber, watch: impl Watch) {
        let (lock, chain) = self.of(unit);
        watch.hold(Lock::Stripes, lock, |segment| {
            let at = segment.chains[chain].iter().position(|held| held.unit == unit);
            let held = segment.chains[chain].swap_remove(at.expect("an owner's stripe is in its chain"));
            segment.free.push(held.place);
        });
    }

    /// Whether a claim of this stripe would find a place.
    pub(super) fn has_room(&self, unit: UnitNumber) -> bool {
        !self.of(unit).0.lock().free.is_empty()
    }

    /// The place of a stripe's owner.
    pub(super) fn find(&self, unit: UnitNumber) -> Option<usize> {
        let (lock, chain) = self.of(unit);
        lock.lock().find(chain, unit)
    }

    /// The stripes that have an owner now.
    pub(super) fn owned(&self) -> Vec<UnitNumber> {
        let of_segment = |segment: &CachePadded<Mutex<Segment>>| -> Vec<UnitNumber> {
            segment.lock().chains.iter().flatten().map(|held| held.unit).collect()
        };
        self.segments.iter().flat_map(of_segment).collect()
    }

    /// Bytes of memory, without the entries of the chains.
    pub(super) fn bytes(&self) -> usize {
        let places = self.segments.len() * self.chains;
        size_of_val(&*self.segments) + places * (size_of::<Vec<Held>>() + size_of::<usize>())
    }

    /// The lock of a stripe, and its chain there.
    fn of(&self, unit: UnitNumber) -> (&Mutex<Segment>, usize) {
        let (number, count) = (unit.get(), self.segments.len() as u64);
        let index = |number: u64| usize::try_from(number).expect("below the number of places");
        (&self.segments[index(number & (count - 1))], index((number / count) & (self.chains as u64 - 1)))
    }
}
