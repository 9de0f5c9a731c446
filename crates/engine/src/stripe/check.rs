//! Scrub of one stripe: do data and parity agree, and if not, which block on which member is wrong? A repair writes what
//! is known to be right, never parity over a block that was located (invariant 9).
//!
//! A stripe that is checked is owned: a write comes before or after, never between two reads. A repair needs no intent:
//! it changes rows that did not agree before, and cut short it leaves rows that do not agree.

use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

use super::chunk_set::{Chunk, ChunkSet, P, Q};
use super::image::Image;
use super::locate::{Liar, locate};
use super::member_io::{MemberRead, MemberWrite, Undone};
use super::parity_step;
use super::plan::{Fragment, Rows};
use super::resync::windows;
use super::{StripeSet, data_chunk};
use crate::buffer::{Buffer, Gather, Slice};
use crate::device::Device;
use crate::limits::BLOCK_BYTES;
use crate::volume::VolumeError;

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
    pub(super) fn or_unreadable(result: Result<Self, VolumeError>, stripe: u64) -> Result<Self, VolumeError> {
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
    pub(super) fn found_in(&mut self, new: Option<Mismatch>) {
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

/// New contents for a row of some chunks.
type Repair = SmallVec<[(Chunk, Slice); 2]>;

/// A block of every chunk of a stripe, and what made and stored parity differ by.
struct Row<'a> {
    stripe: u64,
    rows: Rows,
    image: &'a Image,
    s_p: &'a [u8],
    s_q: Option<&'a [u8]>,
}

impl<'a> Row<'a> {
    fn new(stripe: u64, rows: Rows, window: Rows, image: &'a Image, syndromes: &'a [Buffer]) -> Self {
        let start = (rows.start - window.start) as usize;
        let part = |syndrome: &'a Buffer| &syndrome.bytes()[start..start + rows.bytes()];
        Row { stripe, rows, image, s_p: part(&syndromes[0]), s_q: syndromes.get(1).map(part) }
    }
}

impl<D: Device> StripeSet<D> {
    /// Checks one stripe of a parity level, and repairs it if `mode` says so.
    ///
    /// # Errors
    /// A member could not be read, and the array cannot do without it.
    pub async fn check_stripe(&self, stripe: u64, mode: ScrubMode) -> Result<Checked, VolumeError> {
        let claim = self.shared.table.claim_in_turn(stripe, self.shard).await;
        let result = self.check_as_owner(stripe, mode).await;
        claim.release(&Ok(()));
        Checked::or_unreadable(result, stripe)
    }

    async fn check_as_owner(&self, stripe: u64, mode: ScrubMode) -> Result<Checked, VolumeError> {
        let mut checked = Checked::default();
        for rows in windows(self.shared.geometry.chunk_bytes()) {
            let all = self.all_chunks();
            let fragments: SmallVec<[Fragment; 16]> =
                all.iter().map(|chunk| Fragment { chunk, rows }).collect();
            let mut image = Image::default();
            if self.shared.missing(stripe).is_empty() && !self.shared.is_suspect(stripe) {
                self.fetch(stripe, &fragments, &mut image).await?;
            }
            // Not there, or failed just now.
            if !all.iter().all(|chunk| image.get(chunk, rows).is_some()) {
                checked.skipped = true;
                return Ok(checked);
            }
            let syndromes = self.syndromes(stripe, rows, &image);
            for block in blocks(rows) {
                let row = Row::new(stripe, block, rows, &image, &syndromes);
                checked.found_in(self.check_row(&row, mode).await?);
            }
        }
        Ok(checked)
    }

    fn all_chunks(&self) -> ChunkSet {
        let geometry = &self.shared.geometry;
        let parity: ChunkSet = [P, Q].into_iter().take(geometry.parity_chunks() as usize).collect();
        ChunkSet::first(geometry.data_chunks()).or(parity)
    }

    /// What parity made from the data differs by from the parity that is stored: P, and Q in RAID-6.
    fn syndromes(&self, stripe: u64, rows: Rows, image: &Image) -> SmallVec<[Buffer; 2]> {
        let geometry = &self.shared.geometry;
        let mut made: SmallVec<[Buffer; 2]> =
            (0..geometry.parity_chunks()).map(|_| self.pool.take(rows.bytes())).collect();
        let contents = |chunk: Chunk| image.expect(chunk, rows);
        let mut outputs = made.iter_mut().map(Buffer::bytes_mut);
        let (p, q) = (outputs.next(), outputs.next());
        parity_step::encode(geometry, stripe, contents, rows, p, q);
        for (chunk, syndrome) in [P, Q].into_iter().zip(&mut made) {
            parity::xor_into(image.expect(chunk, rows), syndrome.bytes_mut());
        }
        made
    }

    async fn check_row(&self, row: &Row<'_>, mode: ScrubMode) -> Result<Option<Mismatch>, VolumeError> {
        let geometry = &self.shared.geometry;
        let exponents = (0..geometry.data_chunks())
            .map(|index| (data_chunk(index), geometry.syndrome_index(row.stripe, index) as usize));
        let liar = locate(row.s_p, row.s_q, exponents);
        if liar == Liar::Nobody {
            return Ok(None);
        }
        let repair = self.right_contents(liar, row, mode);
        let outcome = match liar {
            _ if repair.is_empty() => Outcome::Found,
            _ if !self.rewrite(row, &repair).await? => Outcome::NotRepaired,
            Liar::Chunk(_) => Outcome::BlockRewritten,
            Liar::Nobody | Liar::Unknown => Outcome::ParityRewritten,
        };
        Ok(Some(self.mismatch(row, liar, outcome)))
    }

    /// What to write where, if anything is to be written.
    fn right_contents(&self, liar: Liar, row: &Row<'_>, mode: ScrubMode) -> Repair {
        let corrected = |chunk: Chunk, syndrome: &[u8]| {
            let mut right = self.pool.take(row.rows.bytes());
            right.bytes_mut().copy_from_slice(row.image.expect(chunk, row.rows));
            parity::xor_into(syndrome, right.bytes_mut());
            (chunk, right.freeze())
        };
        match (liar, row.s_q) {
            _ if !mode.repair => Repair::new(),
            (Liar::Nobody, _) => Repair::new(),
            (Liar::Chunk(Q), s_q) => s_q.into_iter().map(|s_q| corrected(Q, s_q)).collect(),
            // A data block is wrong by just what P is off by.
            (Liar::Chunk(chunk), _) => [corrected(chunk, row.s_p)].into_iter().collect(),
            (Liar::Unknown, None) => [corrected(P, row.s_p)].into_iter().collect(),
            (Liar::Unknown, Some(_)) if !mode.trust_data => Repair::new(),
            (Liar::Unknown, Some(s_q)) => [corrected(P, row.s_p), corrected(Q, s_q)].into_iter().collect(),
        }
    }

    /// Writes rows and reads them back. False if that did not work. The caller owns the stripe.
    async fn rewrite(&self, row: &Row<'_>, repair: &Repair) -> Result<bool, VolumeError> {
        self.shared.cache.forget(row.stripe); // invariant 5
        let offset = self.shared.geometry.member_offset(row.stripe) + u64::from(row.rows.start);
        for (chunk, right) in repair {
            let slot = self.shared.member_of(row.stripe, *chunk);
            if !self.write_and_read_back(slot, offset, right).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the member now holds `right` at `offset` of its data area.
    pub(super) async fn write_and_read_back(
        &self,
        slot: u32,
        offset: u64,
        right: &Slice,
    ) -> Result<bool, VolumeError> {
        let write = MemberWrite { slot, offset, data: Gather::from(right.clone()) };
        let read = MemberRead { slot, offset, bytes: right.len() };
        match self.write_members(&[write], false).await.remove(0) {
            Ok(()) => {}
            Err(Undone::Request(error)) => return Err(error),
            Err(_) => return Ok(false),
        }
        match self.read_members(&[read]).await.remove(0) {
            Ok(found) => Ok(found.bytes() == right.bytes()),
            Err(Undone::Request(error)) => Err(error),
            Err(_) => Ok(false),
        }
    }

    fn mismatch(&self, row: &Row<'_>, liar: Liar, outcome: Outcome) -> Mismatch {
        let (geometry, stripe, rows) = (&self.shared.geometry, row.stripe, row.rows);
        let (wrong, chunk) = match liar {
            Liar::Chunk(P) => (Wrong::P, Some(P)),
            Liar::Chunk(Q) => (Wrong::Q, Some(Q)),
            Liar::Chunk(data) => (Wrong::Data, Some(data)),
            Liar::Nobody | Liar::Unknown => (Wrong::Unknown, None),
        };
        let offset = geometry.member_offset(stripe) + u64::from(rows.start);
        let data = chunk.filter(|_| wrong == Wrong::Data);
        Mismatch {
            stripe,
            row_bytes: u64::from(rows.start),
            bytes: rows.bytes() as u64,
            wrong,
            blocks: chunk
                .into_iter()
                .map(|chunk| self.block_place(self.shared.member_of(stripe, chunk), offset))
                .collect(),
            array_offset_bytes: data.map(|chunk| geometry.array_offset(stripe, u32::from(chunk), rows.start)),
            outcome,
        }
    }

    /// A place in a member's data area as a place on its device.
    pub(super) fn block_place(&self, slot: u32, offset: u64) -> BlockPlace {
        let start = self.attached(slot).map_or(0, |member| member.data_offset_bytes);
        BlockPlace { member: slot, offset_bytes: start + offset }
    }
}

/// Rows cut into blocks.
fn blocks(rows: Rows) -> impl Iterator<Item = Rows> {
    let step = BLOCK_BYTES as u32;
    (rows.start..rows.end)
        .step_by(BLOCK_BYTES)
        .map(move |start| Rows { start, end: start.saturating_add(step).min(rows.end) })
}
