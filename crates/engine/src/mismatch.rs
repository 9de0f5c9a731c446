//! What a scrub finds: rows that do not agree, which block is wrong, and what the scrub did about it.

use layout::units::ArrayOffset;
use layout::units::DeviceOffset;
use layout::units::{Slot, Stripe};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a scrub does about blocks that do not agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubMode {
    /// Write what is right. Otherwise nothing is written.
    pub repair: bool,
    /// A repair writes new parity in RAID-6 rows whose wrong block cannot be located, as it always does for RAID-5.
    /// Otherwise it leaves such rows as they are: an operator may know better.
    pub trust_data: bool,
}

/// What kind of block is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wrong {
    /// Data, located by P and Q.
    Data,
    /// P: data and Q agree.
    P,
    /// Q: data and P agree.
    Q,
    /// A copy that the others outvote.
    Copy,
    /// The blocks do not agree, and the wrong one cannot be located.
    Unknown,
    /// A block can be neither read nor reconstructed.
    Unreadable,
}

/// What a scrub did about a mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// Nothing was written.
    Found,
    /// The wrong block was rewritten from the others and read back.
    BlockRewritten,
    /// Data was taken for right and parity made from it, as md does.
    ParityRewritten,
    /// The first copy was taken for right and written over the others, as md does.
    CopiesRewritten,
    /// Of a zoned array: what counts of its segment was made again elsewhere, and its zones were reset.
    Moved,
    /// The repair failed: a write failed, or a read returned something else than was written.
    NotRepaired,
}

/// What is checked as a whole: a stripe at the parity levels, a region of a mirror, a segment of a zoned array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Unit {
    /// A stripe, by its number.
    Stripe(Stripe),
    /// A region of 256 KiB of the array, by its number.
    Region(u64),
    /// A segment of a zoned array, by its number.
    Segment(u64),
}

impl Unit {
    /// Its number.
    pub fn number(self) -> u64 {
        match self {
            Unit::Stripe(stripe) => stripe.get(),
            Unit::Region(number) | Unit::Segment(number) => number,
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unit::Stripe(stripe) => write!(f, "stripe {stripe}"),
            Unit::Region(number) => write!(f, "region {number}"),
            Unit::Segment(number) => write!(f, "segment {number}"),
        }
    }
}

/// A block of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockPlace {
    /// Slot of the member.
    pub member: Slot,
    /// Where on its device.
    pub offset_bytes: DeviceOffset,
}

/// Rows that do not agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// The stripe, region or segment.
    #[serde(flatten)]
    pub unit: Unit,
    /// Where in the stripe's chunks, or in the region, it begins, in bytes.
    pub row_bytes: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
    /// Which kind of block is wrong.
    pub wrong: Wrong,
    /// The block that is wrong, or the copies that differ. Empty if it may be any of the stripe or region.
    pub blocks: Vec<BlockPlace>,
    /// Where in the array the wrong data is, in bytes; none for parity and for a block that was not located.
    pub array_offset_bytes: Option<ArrayOffset>,
    /// What the scrub did.
    pub outcome: Outcome,
}

/// What a check of a stripe, or of a mirror's region, found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// A chunk or copy is missing, or the last write failed half way: there is nothing to compare with.
    pub skipped: bool,
    /// Rows that do not agree, neighbours merged.
    pub found: Vec<Mismatch>,
}

/// Places of one row at the most that a place of the next one may continue.
const NEIGHBOURS_MAX: usize = 256;

impl Checked {
    /// Adds a mismatch, merged with one that it continues.
    pub(crate) fn found_in(&mut self, new: Option<Mismatch>) {
        let Some(new) = new else { return };
        // Places of several members may take turns.
        let mut lasts = self.found.iter_mut().rev().take(NEIGHBOURS_MAX);
        if let Some(last) = lasts.find(|last| last.continued_by(&new)) {
            last.bytes += new.bytes;
            return;
        }
        self.found.push(new);
    }
}

impl Mismatch {
    fn continued_by(&self, next: &Mismatch) -> bool {
        let follows = |place: &BlockPlace, next: &BlockPlace| {
            place.member == next.member && place.offset_bytes + self.bytes == next.offset_bytes
        };
        (self.unit, self.wrong, self.outcome) == (next.unit, next.wrong, next.outcome)
            && self.row_bytes + self.bytes == next.row_bytes
            && self.blocks.len() == next.blocks.len()
            && self.blocks.iter().zip(&next.blocks).all(|(place, next)| follows(place, next))
    }
}
