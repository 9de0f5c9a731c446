//! Units, and what numbers name, each as a type of its own, so that the compiler notices when one is taken for another. The
//! geometry counts in bytes, md's formats in 512-byte sectors; [`Sectors`] converts between the two.

use std::fmt;
use std::num::ParseIntError;
use std::ops::{Add, AddAssign, Range, Sub};
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

/// A stripe of an array, by its number, from 0. At RAID-1 and 10 a stripe is one chunk with its copies.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
#[repr(transparent)]
pub struct Stripe(u64);

impl Stripe {
    /// The first stripe.
    pub const FIRST: Stripe = Stripe(0);

    /// The stripe with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number, as formats have it.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The stripe after it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }

    /// The first `count` stripes: all of an array with so many.
    pub fn first(count: u64) -> impl DoubleEndedIterator<Item = Stripe> + Clone {
        Self::each(Self::FIRST..Self(count))
    }

    /// The stripes of a run, in order.
    pub fn each(run: Range<Stripe>) -> impl DoubleEndedIterator<Item = Stripe> + Clone {
        (run.start.0..run.end.0).map(Stripe)
    }
}

/// The stripe so many further on.
impl Add<u64> for Stripe {
    type Output = Stripe;

    fn add(self, stripes: u64) -> Stripe {
        Stripe(self.0 + stripes)
    }
}

/// How many stripes lie between two: those of a run.
impl Sub for Stripe {
    type Output = u64;

    fn sub(self, first: Stripe) -> u64 {
        self.0 - first.0
    }
}

impl fmt::Display for Stripe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Stripe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A type for the offsets of one space. They all know the same few operations, and none of them takes another's offset.
macro_rules! offset {
    ($(#[$about:meta])* $name:ident) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// The first byte.
            pub const START: Self = Self(0);

            /// The byte with this number, from 0.
            #[inline]
            #[must_use]
            pub const fn new(bytes: u64) -> Self {
                Self(bytes)
            }

            /// How many bytes lie before it: its number, as formats and system calls have it.
            #[inline]
            #[must_use]
            pub const fn get(self) -> u64 {
                self.0
            }

            /// Whether it is the start of a unit of this many bytes.
            #[inline]
            #[must_use]
            pub const fn is_aligned(self, unit_bytes: u64) -> bool {
                self.0.is_multiple_of(unit_bytes)
            }

            /// The start of the unit of this many bytes that it lies in.
            #[inline]
            #[must_use]
            pub const fn aligned_down(self, unit_bytes: u64) -> Self {
                Self(self.0 / unit_bytes * unit_bytes)
            }
        }

        /// The offset so many bytes further on.
        impl Add<u64> for $name {
            type Output = Self;

            #[inline]
            fn add(self, bytes: u64) -> Self {
                Self(self.0 + bytes)
            }
        }

        /// Moves so many bytes further on.
        impl AddAssign<u64> for $name {
            #[inline]
            fn add_assign(&mut self, bytes: u64) {
                self.0 += bytes;
            }
        }

        /// How many bytes lie between two.
        impl Sub for $name {
            type Output = u64;

            #[inline]
            fn sub(self, first: Self) -> u64 {
                self.0 - first.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

offset! {
    /// A byte of the array, as a client counts.
    ArrayOffset
}

offset! {
    /// A byte of a member's data area, from the start of that area: what the geometry computes, and what engines read and write.
    MemberOffset
}

impl MemberOffset {
    /// The same byte as a place on the member's device, whose data area starts at `data_offset`.
    #[inline]
    #[must_use]
    pub const fn on_device(self, data_offset: DeviceOffset) -> DeviceOffset {
        DeviceOffset(data_offset.0 + self.0)
    }
}

offset! {
    /// A byte of a device, from its start. Superblocks, bitmaps and logs have their places in these, and a member's device is
    /// read and written at them.
    DeviceOffset
}

impl DeviceOffset {
    /// The first byte of a sector: where a superblock says that something is.
    ///
    /// # Panics
    /// If the result does not fit in 64 bits. Sectors from a parsed superblock always fit.
    #[must_use]
    pub const fn of_sector(sector: Sectors) -> Self {
        Self(sector.bytes())
    }
}
