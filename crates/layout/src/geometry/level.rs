//! RAID levels and layouts, with md's numbers and mdadm's words for them. The way back from numbers and words:
//! [`super::names`].

use std::fmt;

/// A RAID level that has a geometry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Level {
    /// Striping, no redundancy.
    Raid0,
    /// Mirroring: every member holds everything.
    Raid1,
    /// Striping with all parity on the last member.
    Raid4,
    /// Striping with one parity chunk a stripe, normally rotating.
    Raid5,
    /// Striping with two parity chunks (P and Q) a stripe.
    Raid6,
    /// Striping over mirrored chunks.
    Raid10,
}

impl Level {
    /// Every level, in md's numeric order.
    pub const ALL: [Self; 6] =
        [Self::Raid0, Self::Raid1, Self::Raid4, Self::Raid5, Self::Raid6, Self::Raid10];

    /// md's number for the level, as in the superblock.
    #[must_use]
    pub const fn md_number(self) -> i32 {
        match self {
            Self::Raid0 => 0,
            Self::Raid1 => 1,
            Self::Raid4 => 4,
            Self::Raid5 => 5,
            Self::Raid6 => 6,
            Self::Raid10 => 10,
        }
    }

    /// Parity chunks in every stripe: 0, 1 or 2.
    #[must_use]
    pub const fn parity_chunks(self) -> u32 {
        match self {
            Self::Raid0 | Self::Raid1 | Self::Raid10 => 0,
            Self::Raid4 | Self::Raid5 => 1,
            Self::Raid6 => 2,
        }
    }

    /// Whether a chunk is on one member only, with or without parity beside it (RAID-0, 4, 5, 6).
    #[must_use]
    pub const fn is_striped(self) -> bool {
        !matches!(self, Self::Raid1 | Self::Raid10)
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Raid0 => "raid0",
            Self::Raid1 => "raid1",
            Self::Raid4 => "raid4",
            Self::Raid5 => "raid5",
            Self::Raid6 => "raid6",
            Self::Raid10 => "raid10",
        })
    }
}

/// Where a level puts its chunks, copies and parity. Named as mdadm names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The level has one layout only: RAID-1, RAID-0 with equal members, RAID-4.
    Unset,
    /// RAID-0 with unequal members, as kernels before 3.14 placed the later zones.
    Raid0Original,
    /// RAID-0 with unequal members, as kernels from 3.14 on place the later zones.
    Raid0Alternate,
    /// Parity moves from the last member to the first; data in member order.
    LeftAsymmetric,
    /// Parity moves from the first member to the last; data in member order.
    RightAsymmetric,
    /// Parity moves from the last member to the first; data begins after it.
    LeftSymmetric,
    /// Parity moves from the first member to the last; data begins after it.
    RightSymmetric,
    /// Parity always on the first member (RAID-6: the first two).
    ParityFirst,
    /// Parity always on the last member (RAID-6: the last two).
    ParityLast,
    /// RAID-6 as DDF has it: as right-asymmetric, Q counted by member.
    DdfZeroRestart,
    /// RAID-6 as DDF has it: as left-asymmetric one stripe on, Q counted by member.
    DdfNRestart,
    /// RAID-6 as DDF has it: as left-symmetric with Q before P, Q counted by member.
    DdfNContinue,
    /// RAID-5 left-asymmetric on all but the last member, Q on the last.
    LeftAsymmetric6,
    /// RAID-5 right-asymmetric on all but the last member, Q on the last.
    RightAsymmetric6,
    /// RAID-5 left-symmetric on all but the last member, Q on the last.
    LeftSymmetric6,
    /// RAID-5 right-symmetric on all but the last member, Q on the last.
    RightSymmetric6,
    /// P on the first member, Q on the last.
    ParityFirst6,
    /// RAID-10's near, far and offset copies.
    Raid10(Raid10Layout),
}

/// The parity layouts with md's numbers and mdadm's long and short names.
pub(super) const PARITY_LAYOUTS: [(Layout, u32, &str, &str); 14] = [
    (Layout::LeftAsymmetric, 0, "left-asymmetric", "la"),
    (Layout::RightAsymmetric, 1, "right-asymmetric", "ra"),
    (Layout::LeftSymmetric, 2, "left-symmetric", "ls"),
    (Layout::RightSymmetric, 3, "right-symmetric", "rs"),
    (Layout::ParityFirst, 4, "parity-first", "parity-first"),
    (Layout::ParityLast, 5, "parity-last", "parity-last"),
    (Layout::DdfZeroRestart, 8, "ddf-zero-restart", "ddf-zero-restart"),
    (Layout::DdfNRestart, 9, "ddf-N-restart", "ddf-N-restart"),
    (Layout::DdfNContinue, 10, "ddf-N-continue", "ddf-N-continue"),
    (Layout::LeftAsymmetric6, 16, "left-asymmetric-6", "left-asymmetric-6"),
    (Layout::RightAsymmetric6, 17, "right-asymmetric-6", "right-asymmetric-6"),
    (Layout::LeftSymmetric6, 18, "left-symmetric-6", "left-symmetric-6"),
    (Layout::RightSymmetric6, 19, "right-symmetric-6", "right-symmetric-6"),
    (Layout::ParityFirst6, 20, "parity-first-6", "parity-first-6"),
];

impl Layout {
    /// What mdadm chooses when no layout is named: left-symmetric, near=2.
    #[must_use]
    pub const fn default_for(level: Level) -> Self {
        match level {
            Level::Raid0 | Level::Raid1 | Level::Raid4 => Self::Unset,
            Level::Raid5 | Level::Raid6 => Self::LeftSymmetric,
            Level::Raid10 => Self::near(2),
        }
    }

    /// RAID-10 with `copies` near copies.
    #[must_use]
    pub const fn near(copies: u8) -> Self {
        Self::Raid10(Raid10Layout { near: copies, far: 1, offset: false, far_sets: FarSets::None })
    }

    /// RAID-10 with `copies` far copies.
    #[must_use]
    pub const fn far(copies: u8) -> Self {
        Self::Raid10(Raid10Layout { near: 1, far: copies, offset: false, far_sets: FarSets::None })
    }

    /// RAID-10 with `copies` offset copies.
    #[must_use]
    pub const fn offset(copies: u8) -> Self {
        Self::Raid10(Raid10Layout { near: 1, far: copies, offset: true, far_sets: FarSets::None })
    }

    /// md's word for the layout, as in the superblock. mdadm writes 0 where the level has one layout only.
    #[must_use]
    pub fn md_word(self) -> u32 {
        match self {
            Self::Unset => 0,
            Self::Raid0Original => 1,
            Self::Raid0Alternate => 2,
            Self::Raid10(raid10) => raid10.md_word(),
            parity => parity_row(parity).1,
        }
    }

    /// Whether the level can have this layout.
    #[must_use]
    pub fn fits(self, level: Level) -> bool {
        match self {
            Self::Unset => matches!(level, Level::Raid0 | Level::Raid1 | Level::Raid4),
            Self::Raid0Original | Self::Raid0Alternate => level == Level::Raid0,
            Self::Raid10(_) => level == Level::Raid10,
            parity => level == Level::Raid6 || (level == Level::Raid5 && parity_row(parity).1 <= 5),
        }
    }

    /// Every parity layout of the level, in md's numeric order; empty for levels without a choice of parity.
    pub fn parity_layouts(level: Level) -> impl Iterator<Item = Self> {
        PARITY_LAYOUTS.into_iter().map(|(layout, ..)| layout).filter(move |layout| layout.fits(level))
    }
}

fn parity_row(layout: Layout) -> (Layout, u32, &'static str, &'static str) {
    *PARITY_LAYOUTS.iter().find(|row| row.0 == layout).expect("every parity layout has a row")
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unset => f.pad("default"),
            Self::Raid0Original => f.pad("original"),
            Self::Raid0Alternate => f.pad("alternate"),
            Self::Raid10(raid10) => raid10.fmt(f),
            parity => f.pad(parity_row(*parity).2),
        }
    }
}

/// How RAID-10 spreads the far copies over groups of members. mdadm makes only [`FarSets::None`]; dm-raid the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FarSets {
    /// Far copies rotate over all members.
    None,
    /// Bit 17: groups of members / far members. The kernel calls it buggy and keeps it for old arrays.
    Old,
    /// Bit 18: groups of far * near members.
    Fixed,
}

/// RAID-10's layout word, taken apart. Copies in all: `near * far`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Raid10Layout {
    /// Copies beside each other in the same row of chunks.
    pub near: u8,
    /// Copies further down the members.
    pub far: u8,
    /// Far copies are in the next row (`offset`) and not in the next section of the member (`far`).
    pub offset: bool,
    /// The members that the far copies rotate over.
    pub far_sets: FarSets,
}

impl Raid10Layout {
    /// Takes md's word apart; `None` if bits are set that md does not know or there are no copies.
    #[must_use]
    pub const fn from_md_word(word: u32) -> Option<Self> {
        let near = (word & 0xff) as u8;
        let far = ((word >> 8) & 0xff) as u8;
        let far_sets = match word >> 17 {
            0 => FarSets::None,
            1 => FarSets::Old,
            2 => FarSets::Fixed,
            _ => return None,
        };
        if near == 0 || far == 0 {
            return None;
        }
        Some(Self { near, far, offset: word & (1 << 16) != 0, far_sets })
    }

    /// md's word: near in bits 0 to 7, far in 8 to 15, offset in 16, far sets in 17 and 18.
    #[must_use]
    pub const fn md_word(self) -> u32 {
        let far_sets = match self.far_sets {
            FarSets::None => 0,
            FarSets::Old => 1,
            FarSets::Fixed => 2,
        };
        self.near as u32 | (self.far as u32) << 8 | (self.offset as u32) << 16 | far_sets << 17
    }

    /// Copies of every chunk.
    #[must_use]
    pub const fn copies(self) -> u32 {
        self.near as u32 * self.far as u32
    }
}

impl fmt::Display for Raid10Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let far_kind = if self.offset { "offset" } else { "far" };
        let text = match (self.near, self.far) {
            (near, 1) => format!("near={near}"),
            (1, far) => format!("{far_kind}={far}"),
            (near, far) => format!("near={near}, {far_kind}={far}"),
        };
        match self.far_sets {
            FarSets::None => f.pad(&text),
            FarSets::Old => f.pad(&format!("{text}, far sets (old)")),
            FarSets::Fixed => f.pad(&format!("{text}, far sets")),
        }
    }
}
