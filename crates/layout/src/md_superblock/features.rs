//! The superblock's feature bits.

use std::fmt;

/// A set of feature bits, known or not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Features(pub u32);

/// Declares the bits that md knows, each with whether Twill runs an array that has it.
macro_rules! known {
    ($( $(#[$doc:meta])* $name:ident = $bit:literal, runs: $runs:literal; )*) => {
        impl Features {
            $( $(#[$doc])* pub const $name: Self = Self($bit); )*
        }

        /// Bit, name, and whether Twill runs an array that has it.
        const KNOWN: &[(Features, &str, bool)] = &[$( (Features::$name, stringify!($name), $runs) ),*];
    };
}

known! {
    /// `bitmap_offset` holds: there is an internal bitmap.
    BITMAP_OFFSET = 1, runs: true;
    /// `recovery_offset` holds: the member is current only below it.
    RECOVERY_OFFSET = 2, runs: true;
    /// The array is between two geometries.
    RESHAPE_ACTIVE = 4, runs: false;
    /// The bad-block log is not empty.
    BAD_BLOCKS = 8, runs: true;
    /// The device is being made a copy of a member that is still active.
    REPLACEMENT = 16, runs: true;
    /// The reshape runs from the end to the start.
    RESHAPE_BACKWARDS = 32, runs: false;
    /// `new_offset` holds: the data moves on the member.
    NEW_OFFSET = 64, runs: false;
    /// The member needs only what the bitmap marks. Rebuilding all of it is correct too.
    RECOVERY_BITMAP = 128, runs: true;
    /// There is a bitmap for every node of a cluster (md calls the bit BITMAP_VERSIONED).
    CLUSTERED = 256, runs: false;
    /// The array has a write journal.
    JOURNAL = 512, runs: false;
    /// `bitmap_offset` is that of the partial parity log.
    PPL = 1024, runs: false;
    /// As [`Self::PPL`], with a ring of logs.
    MULTIPLE_PPLS = 2048, runs: false;
    /// `layout` holds for RAID-0.
    RAID0_LAYOUT = 4096, runs: true;
}

impl Features {
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

    /// The names of the set bits that Twill does not support; unknown bits are named by their number.
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
