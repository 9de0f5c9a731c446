//! Which bit of a bitmap stands for which bytes.
//!
//! - *Contiguous*, as in md: bit `n` for the chunk `n`.
//! - *Spread* (D-Block, ScalaRAID 3.2): a unit is one stripe's chunk, and unit `u` belongs to bit `u` modulo the number
//!   of bits. Neighbouring stripes thus have different bits, while each bit stands for as many bytes as in a contiguous
//!   bitmap with the same number of bits.

use std::ops::Range;

/// A mapping of units to bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mapping {
    unit_shift: u32,
    /// Bits and units, if it is spread.
    spread: Option<Spread>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Spread {
    bits: u64,
    units: u64,
}

impl Mapping {
    /// A bit for each chunk.
    ///
    /// # Panics
    /// If the chunk is no power of two.
    #[must_use]
    pub fn contiguous(chunk_bytes: u32) -> Self {
        assert!(chunk_bytes.is_power_of_two(), "a bitmap chunk of {chunk_bytes} bytes");
        Mapping { unit_shift: chunk_bytes.trailing_zeros(), spread: None }
    }

    /// Spreads `size_bytes` in units of `unit_bytes` over as many bits as a contiguous mapping with chunks of
    /// `chunk_bytes` has.
    ///
    /// # Panics
    /// If unit or chunk is not a power of two, the unit is larger than the chunk, or `size_bytes` is 0.
    #[must_use]
    pub fn spread(unit_bytes: u32, chunk_bytes: u32, size_bytes: u64) -> Self {
        assert!(unit_bytes.is_power_of_two() && chunk_bytes.is_power_of_two() && unit_bytes <= chunk_bytes);
        let (bits, units) = (size_bytes.div_ceil(chunk_bytes.into()), size_bytes.div_ceil(unit_bytes.into()));
        assert!(bits > 0, "nothing to map");
        Mapping { unit_shift: unit_bytes.trailing_zeros(), spread: Some(Spread { bits, units }) }
    }

    /// log2 of a unit's bytes.
    #[must_use]
    pub fn unit_shift(&self) -> u32 {
        self.unit_shift
    }

    /// Whether the bits are spread, which md does not know.
    #[must_use]
    pub fn is_spread(&self) -> bool {
        self.spread.is_some()
    }

    /// The bit of a unit.
    #[inline]
    #[must_use]
    pub fn bit(&self, unit: u64) -> u64 {
        match self.spread {
            None => unit,
            Some(Spread { bits, .. }) => unit % bits,
        }
    }

    /// The bits of consecutive units, in the order of the units: one range, or two where the bits wrap around to 0. If
    /// there are more units than bits, each bit is in there once.
    #[must_use]
    pub fn bits(&self, units: Range<u64>) -> [Range<u64>; 2] {
        let Some(Spread { bits, .. }) = self.spread else { return [units, 0..0] };
        let first = units.start % bits;
        let end = first + units.end.saturating_sub(units.start).min(bits);
        [first..end.min(bits), 0..end.saturating_sub(bits)]
    }

    /// Which of these consecutive units are the last of their bits.
    #[must_use]
    pub fn last_of(&self, units: Range<u64>) -> Range<u64> {
        let Some(spread) = self.spread else { return units };
        units.start.max(spread.units - spread.bits)..units.end.min(spread.units)
    }

    /// From the first unit of a bit to the unit after its last.
    #[must_use]
    pub fn units_of(&self, bit: u64) -> Range<u64> {
        let Some(Spread { bits, units }) = self.spread else { return bit..bit + 1 };
        if bit >= units {
            return units..units;
        }
        bit..bit + (units - 1 - bit) / bits * bits + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_have_bits_of_their_own_and_each_unit_has_one() {
        let mapping = Mapping::spread(4096, 16384, 41 * 4096);
        let bits: Vec<u64> = (0..41).map(|unit| mapping.bit(unit)).collect();
        assert_eq!(
            bits[..13],
            [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0, 1],
            "eleven bits, as 41 units of 4 to a bit need"
        );
        for from in 0..41 {
            for end in from..=41 {
                let all: Vec<u64> = mapping.bits(from..end).into_iter().flatten().collect();
                let wanted: Vec<u64> = (from..end).take(11).map(|unit| mapping.bit(unit)).collect();
                assert_eq!(all, wanted, "{from}..{end}");
            }
        }
    }

    #[test]
    fn the_last_unit_of_each_bit_is_known() {
        for units in [1u64, 4, 5, 40, 41, 44] {
            let mapping = Mapping::spread(4096, 16384, units * 4096);
            let count = units.div_ceil(4);
            for bit in 0..count {
                let of_bit: Vec<u64> = (0..units).filter(|unit| mapping.bit(*unit) == bit).collect();
                let found = mapping.units_of(bit);
                assert_eq!(
                    (found.start, found.end - 1),
                    (of_bit[0], *of_bit.last().unwrap()),
                    "{units} {bit}"
                );
                assert!(mapping.last_of(0..units).contains(&(found.end - 1)));
            }
            assert_eq!(mapping.last_of(0..units).count() as u64, count, "one of each bit");
            assert!(mapping.last_of(0..units - count).is_empty());
        }
    }

    #[test]
    fn a_contiguous_one_is_the_identity() {
        let mapping = Mapping::contiguous(1 << 20);
        assert_eq!((mapping.bit(7), mapping.bits(3..9), mapping.last_of(3..9)), (7, [3..9, 0..0], 3..9));
        assert_eq!((mapping.units_of(5), mapping.unit_shift()), (5..6, 20));
    }
}
