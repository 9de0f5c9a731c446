//! Epochs and sequence numbers: in which run of the array something was written, and in which order.

use std::fmt;

use byte_struct::byte_struct;
use zerocopy::little_endian::U32;

/// Bits of a sequence number that count within an epoch number.
const COUNTER_BITS: u32 = 40;

/// Name, offset and size of each field of an epoch, for the check of `docs/formats.md`.
pub const EPOCH_FIELDS: &[(&str, usize, usize)] = RawEpoch::FIELDS;

byte_struct! {
    /// An epoch on disk.
    pub(super) struct RawEpoch, 8 bytes {
        0  4  number: U32,
        4  4  random: U32,
    }
}

/// One run of the array. Two sides that ran apart may have the same number; the random half tells them apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Epoch {
    /// Counts up with every start, and whenever the sequence numbers of one are used up. At most [`Epoch::NUMBER_MAX`].
    pub number: u32,
    /// Drawn at each start.
    pub random: u32,
}

impl Epoch {
    /// The highest number: it is the upper part of a sequence number.
    pub const NUMBER_MAX: u32 = (1 << (64 - COUNTER_BITS)) - 1;

    /// The sequence numbers of this epoch begin after this one, which is never handed out.
    ///
    /// # Panics
    /// If the number is above [`Epoch::NUMBER_MAX`].
    #[must_use]
    pub fn first_sequence(self) -> Sequence {
        assert!(self.number <= Self::NUMBER_MAX, "epoch {self}");
        Sequence(u64::from(self.number) << COUNTER_BITS)
    }

    pub(super) fn to_raw(self) -> RawEpoch {
        RawEpoch { number: self.number.into(), random: self.random.into() }
    }

    pub(super) fn of_raw(raw: RawEpoch) -> Epoch {
        Epoch { number: raw.number.get(), random: raw.random.get() }
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:08x}", self.number, self.random)
    }
}

/// The array-wide number of a write (Z-I16: it never comes twice): the epoch's number in the upper 24 bits, a counter in
/// the lower 40.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Sequence(pub u64);

impl Sequence {
    /// The number of the epoch that it was handed out in.
    #[must_use]
    pub fn epoch_number(self) -> u32 {
        (self.0 >> COUNTER_BITS) as u32
    }

    /// Its place within the epoch.
    #[must_use]
    pub fn counter(self) -> u64 {
        self.0 & ((1 << COUNTER_BITS) - 1)
    }

    /// The next one, or `None` at the end of the epoch's numbers: a new number has to be begun.
    #[must_use]
    pub fn next(self) -> Option<Sequence> {
        let next = Sequence(self.0.checked_add(1)?);
        (next.epoch_number() == self.epoch_number()).then_some(next)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.epoch_number(), self.counter())
    }
}
