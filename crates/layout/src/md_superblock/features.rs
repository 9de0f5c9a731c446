//! The superblock's feature bits.

use std::fmt;

/// A set of feature bits, known or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(pub u32);

/// Bit, name, and whether Twill runs an array that has it.
const KNOWN: [(Features, &str, bool); 13] = [
    (Features::BITMAP_OFFSET, "BITMAP_OFFSET", true),
    (Features::RECOVERY_OFFSET, "RECOVERY_OFFSET", true),
    (Features::RESHAPE_ACTIVE, "RESHAPE_ACTIVE", false),
    (Features::BAD_BLOCKS, "BAD_BLOCKS", true),
    (Features::REPLACEMENT, "REPLACEMENT", true),
    (Features::RESHAPE_BACKWARDS, "RESHAPE_BACKWARDS", false),
    (Features::NEW_OFFSET, "NEW_OFFSET", false),
    (Features::RECOVERY_BITMAP, "RECOVERY_BITMAP", true),
    (Features::CLUSTERED, "CLUSTERED", false),
    (Features::JOURNAL, "JOURNAL", false),
    (Features::PPL, "PPL", false),
    (Features::MULTIPLE_PPLS, "MULTIPLE_PPLS", false),
    (Features::RAID0_LAYOUT, "RAID0_LAYOUT", true),
];

impl Features {
    /// `bitmap_offset` holds: there is an internal bitmap.
    pub const BITMAP_OFFSET: Self = Self(1);
    /// `recovery_offset` holds: the member is current only below it.
    pub const RECOVERY_OFFSET: Self = Self(2);
    /// The array is between two geometries.
    pub const RESHAPE_ACTIVE: Self = Self(4);
    /// The bad-block log is not empty.
    pub const BAD_BLOCKS: Self = Self(8);
    /// The member is being made the copy of another one that is still active.
    pub const REPLACEMENT: Self = Self(16);
    /// The reshape goes from the end to the start.
    pub const RESHAPE_BACKWARDS: Self = Self(32);
    /// `new_offset` holds: the data moves on the member.
    pub const NEW_OFFSET: Self = Self(64);
    /// The recovery is of what the bitmap marks only. To rebuild all of the member is correct too.
    pub const RECOVERY_BITMAP: Self = Self(128);
    /// The bitmap has one copy for every node of a cluster (md calls the bit BITMAP_VERSIONED).
    pub const CLUSTERED: Self = Self(256);
    /// The array has a write journal.
    pub const JOURNAL: Self = Self(512);
    /// `bitmap_offset` is that of the partial parity log.
    pub const PPL: Self = Self(1024);
    /// As [`Self::PPL`], with a ring of logs.
    pub const MULTIPLE_PPLS: Self = Self(2048);
    /// `layout` holds for RAID-0.
    pub const RAID0_LAYOUT: Self = Self(4096);

    /// Whether all bits of `other` are set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// This set with the bits of `other` set or cleared.
    #[must_use]
    pub const fn with(self, other: Self, set: bool) -> Self {
        if set { Self(self.0 | other.0) } else { Self(self.0 & !other.0) }
    }

    /// Names of the set bits that Twill cannot run with; bits that it does not know by number.
    #[must_use]
    pub fn unsupported(self) -> Vec<String> {
        self.names(|supported| !supported)
    }

    fn names(self, wanted: impl Fn(bool) -> bool) -> Vec<String> {
        (0..u32::BITS)
            .map(|bit| Self(1 << bit))
            .filter(|bit| self.contains(*bit))
            .filter_map(|bit| match KNOWN.iter().find(|(known, ..)| *known == bit) {
                Some((_, name, supported)) => wanted(*supported).then(|| (*name).to_string()),
                None => wanted(false).then(|| format!("unknown feature {:#x}", bit.0)),
            })
            .collect()
    }
}

impl fmt::Display for Features {
    /// Names of all set bits, or `none`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.names(|_| true);
        f.pad(&if names.is_empty() { "none".into() } else { names.join(", ") })
    }
}
