//! What a scrub finds: rows that do not agree, the block that is wrong, and what was done about it.

use serde::{Deserialize, Serialize};

use crate::error::VolumeError;
use crate::limits::BLOCK_BYTES;

/// What is done about blocks that do not agree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubMode {
    /// Write what is right. Otherwise nothing is written.
    pub repair: bool,
    /// RAID-6 rows in which nobody can say who is wrong get new parity, as RAID-5 rows always do. Otherwise they are left
    /// as they are, for a person may know better.
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
    /// They do not agree, and nobody can say who is wrong.
    Unknown,
    /// It cannot be read, and the others cannot make it.
    Unreadable,
}

/// What became of it.
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
    /// It was to be repaired and could not be: a write failed, or what was read back is not what was written.
    NotRepaired,
}

/// A block of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockPlace {
    /// Slot of the member.
    pub member: u32,
    /// Where on its device, in bytes.
    pub offset_bytes: u64,
}

/// Rows that do not agree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// The stripe; of a mirror the region of 256 KiB.
    pub stripe: u64,
    /// Where in the stripe's chunks, or in the region, it begins, in bytes.
    pub row_bytes: u64,
    /// How long it is, in bytes.
    pub bytes: u64,
    /// Who is wrong.
    pub wrong: Wrong,
    /// The block that is wrong, or the copies that differ. Empty if it may be any of the stripe.
    pub blocks: Vec<BlockPlace>,
    /// Where in the array the wrong data is, in bytes; none for parity and where nobody knows.
    pub array_offset_bytes: Option<u64>,
    /// What was done.
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

impl Checked {
    /// A block that nobody can read or make is something found, and no reason to end.
    pub(crate) fn or_unreadable(result: Result<Self, VolumeError>, stripe: u64) -> Result<Self, VolumeError> {
        let Err(VolumeError::Unreadable { member, offset_bytes }) = result else { return result };
        let found = Mismatch {
            stripe,
            row_bytes: 0,
            bytes: BLOCK_BYTES as u64,
            wrong: Wrong::Unreadable,
            blocks: vec![BlockPlace { member, offset_bytes }],
            array_offset_bytes: None,
            outcome: Outcome::Found,
        };
        Ok(Checked { skipped: true, found: vec![found] })
    }

    /// Adds rows, to those before them if they belong together.
    pub(crate) fn found_in(&mut self, new: Option<Mismatch>) {
        let Some(new) = new else { return };
        if let Some(last) = self.found.last_mut()
            && last.continued_by(&new)
        {
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
        (self.stripe, self.wrong, self.outcome) == (next.stripe, next.wrong, next.outcome)
            && self.row_bytes + self.bytes == next.row_bytes
            && self.blocks.len() == next.blocks.len()
            && self.blocks.iter().zip(&next.blocks).all(|(place, next)| follows(place, next))
    }
}
