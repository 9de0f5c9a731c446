//! The one source of chance of a history: xoshiro256**, written out so that a seed means the same for ever.

use std::cell::Cell;

use layout::geometry::Geometry;
use layout::units::Slot;

pub(crate) struct Random(Cell<[u64; 4]>);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut at = seed;
        let mut split = || {
            at = at.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut word = at;
            word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ (word >> 31)
        };
        Random(Cell::new(std::array::from_fn(|_| split())))
    }

    pub(crate) fn next(&self) -> u64 {
        let mut state = self.0.get();
        let result = state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        self.0.set(state);
        result
    }

    /// 0 to `n` - 1.
    pub(crate) fn below(&self, n: u64) -> u64 {
        assert!(n > 0, "a choice among nothing");
        ((u128::from(self.next()) * u128::from(n)) >> 64) as u64
    }

    /// Any slot of an array.
    pub(crate) fn slot(&self, geometry: &Geometry) -> Slot {
        Slot::new(self.below(u64::from(geometry.members())) as u32)
    }

    /// `first` to `last`, both included.
    pub(crate) fn between(&self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    pub(crate) fn one_in(&self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn percent(&self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Published seeds rely on these numbers.
    #[test]
    fn a_seed_means_the_same_for_ever() {
        let random = Random::new(1);
        let first: Vec<u64> = (0..3).map(|_| random.next()).collect();
        assert_eq!(
            first,
            [12_966_619_160_104_079_557, 9_600_361_134_598_540_522, 10_590_380_919_521_690_900]
        );
    }
}
