//! Units, and what numbers name, each as a type of its own, so that the compiler notices when one is taken for another. The
//! geometry counts in bytes, md's formats in 512-byte sectors; [`Sectors`] converts between the two.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// Bytes in a sector, md's unit on disk. It does not depend on the device's logical block size.
pub const SECTOR_BYTES: u64 = 512;

/// Bytes in a block, the unit of the engine's I/O.
pub const BLOCK_BYTES: u64 = 4096;

/// A count or an address in 512-byte sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Sectors(pub u64);

impl Sectors {
    /// The whole sectors in `bytes`. A partial sector at the end is dropped.
    #[must_use]
    pub const fn from_bytes_floor(bytes: u64) -> Self {
        Self(bytes / SECTOR_BYTES)
    }

    /// The same in bytes, or `None` if that does not fit in 64 bits.
    #[must_use]
    pub const fn checked_bytes(self) -> Option<u64> {
        self.0.checked_mul(SECTOR_BYTES)
    }

    /// The same in bytes.
    ///
    /// # Panics
    /// If the result does not fit in 64 bits. Sectors from a parsed superblock always fit.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        self.checked_bytes().expect("a sector count beyond 2^55 is refused where it is read")
    }
}

impl fmt::Display for Sectors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} sectors", self.0)
    }
}

/// A place of a member in an array, from 0. md calls it the role of an active device. It is neither md's device number, which
/// belongs to a device for good, nor the index of a chunk in a stripe.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
#[repr(transparent)]
pub struct Slot(u32);

impl Slot {
    /// The first slot.
    pub const FIRST: Slot = Slot(0);

    /// The slot with this number.
    #[must_use]
    pub const fn new(number: u32) -> Self {
        Self(number)
    }

    /// Its number, as formats have it.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }

    /// Its index in a list that has an entry for every slot.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The slot whose entry in such a list has this index.
    ///
    /// # Panics
    /// If the index is beyond what a list of members can have.
    #[must_use]
    pub fn of_index(index: usize) -> Self {
        Self(u32::try_from(index).expect("few members"))
    }

    /// The first `count` slots: all of an array with so many.
    pub fn first(count: u32) -> impl DoubleEndedIterator<Item = Slot> + ExactSizeIterator + Clone {
        (0..count).map(Slot)
    }

    /// All slots without end, to number the entries of a list that has one for every slot.
    pub fn all() -> impl Iterator<Item = Slot> + Clone {
        (0..=u32::MAX).map(Slot)
    }
}

/// As operators write it: its number.
impl FromStr for Slot {
    type Err = ParseIntError;

    fn from_str(number: &str) -> Result<Self, Self::Err> {
        number.parse().map(Slot)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
