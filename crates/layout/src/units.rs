//! Units. The geometry counts in bytes, md's formats in 512-byte sectors; [`Sectors`] converts between the two, so that
//! the compiler notices when one is taken for the other.

use std::fmt;

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
