//! Scrub of one stripe: do data and parity agree, and if not, which block on which member is wrong? A repair writes
//! contents that are known to be right, never parity that was made from a block located as wrong (invariant 9).
//!
//! The check owns its stripe, so no write comes between two of its reads. A repair needs no write intent: the rows did not
//! agree before it, and if a crash cuts it short they still do not.

use smallvec::SmallVec;

use super::engine::{Owned, ParityEngine};
use super::fetch::fetch;
use super::peers::agree_by_peers;
use crate::buffer::{Buffer, Slice};
use crate::code::chunk_set::{Chunk, ChunkSet, P, Q, data_chunk};
use crate::code::image::Image;
use crate::code::locate::{Located, locate};
use crate::code::parity_step;
use crate::code::rows::{Fragment, Rows, cut_at_blocks, windows};
use crate::device::Device;
use crate::error::VolumeError;
use crate::mismatch::{Checked, Mismatch, Outcome, ScrubMode, Unit, Wrong};
use layout::units::Stripe;

/// New contents for a row of some chunks.
type Repair = SmallVec<[(Chunk, Slice); 2]>;

/// A block of every chunk of a stripe, and its syndromes: stored parity XOR parity made from data.
struct Row<'a> {
    rows: Rows,
    image: &'a Image,
    s_p: &'a [u8],
    s_q: Option<&'a [u8]>,
}

impl<'a> Row<'a> {
    fn new(rows: Rows, window: Rows, image: &'a Image, syndromes: &'a [Buffer]) -> Self {
        let start = (rows.start - window.start) as usize;
        let part = |syndrome: &'a Buffer| &syndrome.bytes()[start..start + rows.bytes()];
        Row { rows, image, s_p: part(&syndromes[0]), s_q: syndromes.get(1).map(part) }
    }
}

/// Checks one stripe of a parity level, and repairs it if `mode` says so.
///
/// # Errors
/// A member could not be read, and the array cannot do without it.
pub(crate) async fn check_stripe<D: Device>(
    engine: &ParityEngine<D>,
    stripe: Stripe,
    mode: ScrubMode,
) -> Result<Checked, VolumeError> {
    let claim = engine.claim_in_turn(stripe).await;
    check_owned(engine.owned(&claim), mode).await
}

async fn check_owned<D: Device>(owned: Owned<'_, D>, mode: ScrubMode) -> Result<Checked, VolumeError> {
    let mut checked = Checked::default();
    for rows in windows(owned.geometry().chunk_bytes()) {
        match check_rows(owned, rows, mode, &mut checked).await {
            // One block of them can be neither read nor reconstructed: which, and are the others right?
            Err(VolumeError::Unreadable { .. }) => {
                for block in cut_at_blocks(rows) {
                    check_block(owned, block, mode, &mut checked).await?;
                }
            }
            result => result?,
        }
    }
    Ok(checked)
}

async fn check_rows<D: Device>(
    owned: Owned<'_, D>,
    rows: Rows,
    mode: ScrubMode,
    checked: &mut Checked,
) -> Result<(), VolumeError> {
    let is_sound = owned.missing().is_empty() && !owned.is_suspect();
    if is_sound && owned.shared().peers.are_up() && Box::pin(agree_by_peers(owned, rows)).await? {
        owned.port().counters().peer_upkeep.add(1);
        return Ok(());
    }
    let all = all_chunks(owned);
    let fragments: SmallVec<[Fragment; 16]> = all.iter().map(|chunk| Fragment { chunk, rows }).collect();
    let mut image = Image::default();
    if owned.missing().is_empty() && !owned.is_suspect() {
        fetch(owned, &fragments, &mut image).await?;
    }
    // A chunk is missing, or its member failed just now.
    if !all.iter().all(|chunk| image.get(chunk, rows).is_some()) {
        checked.skipped = true;
        return Ok(());
    }
    let syndromes = syndromes(owned, rows, &image);
    for block in cut_at_blocks(rows) {
        let row = Row::new(block, rows, &image, &syndromes);
        checked.found_in(check_row(owned, &row, mode).await?);
    }
    Ok(())
}

/// Checks the rows of one block, and names every chunk of it that can be neither read nor reconstructed.
async fn check_block<D: Device>(
    owned: Owned<'_, D>,
    rows: Rows,
    mode: ScrubMode,
    checked: &mut Checked,
) -> Result<(), VolumeError> {
    let is_readable = match check_rows(owned, rows, mode, checked).await {
        Err(VolumeError::Unreadable { .. }) => false,
        result => result.map(|()| true)?,
    };
    if is_readable {
        return Ok(());
    }
    checked.skipped = true;
    for chunk in all_chunks(owned).iter() {
        match fetch(owned, &[Fragment { chunk, rows }], &mut Image::default()).await {
            Err(VolumeError::Unreadable { .. }) => checked.found_in(Some(unreadable(owned, chunk, rows))),
            result => result?,
        }
    }
    Ok(())
}

fn unreadable<D: Device>(owned: Owned<'_, D>, chunk: Chunk, rows: Rows) -> Mismatch {
    let offset = owned.offset() + u64::from(rows.start);
    let is_data = !matches!(chunk, P | Q);
    Mismatch {
        unit: Unit::Stripe(owned.stripe()),
        row_bytes: u64::from(rows.start),
        bytes: rows.bytes() as u64,
        wrong: Wrong::Unreadable,
        blocks: vec![owned.port().block_place(owned.slot_of(chunk), offset)],
        array_offset_bytes: is_data
            .then(|| owned.geometry().array_offset(owned.stripe(), u32::from(chunk), rows.start)),
        outcome: Outcome::Found,
    }
}

fn all_chunks<D: Device>(owned: Owned<'_, D>) -> ChunkSet {
    let geometry = owned.geometry();
    let parity: ChunkSet = [P, Q].into_iter().take(geometry.parity_chunks() as usize).collect();
    ChunkSet::first(geometry.data_chunks()).or(parity)
}

/// The syndromes of P, and in RAID-6 of Q: stored parity XOR parity made from data.
fn syndromes<D: Device>(owned: Owned<'_, D>, rows: Rows, image: &Image) -> SmallVec<[Buffer; 2]> {
    let geometry = owned.geometry();
    let mut made: SmallVec<[Buffer; 2]> =
        (0..geometry.parity_chunks()).map(|_| owned.pool().take(rows.bytes())).collect();
    let contents = |chunk: Chunk| image.expect(chunk, rows);
    let mut outputs = made.iter_mut().map(Buffer::bytes_mut);
    let (p, q) = (outputs.next(), outputs.next());
    parity_step::encode(geometry, owned.stripe(), contents, rows, p, q);
    for (chunk, syndrome) in [P, Q].into_iter().zip(&mut made) {
        parity::xor_into(image.expect(chunk, rows), syndrome.bytes_mut());
    }
    made
}

async fn check_row<D: Device>(
    owned: Owned<'_, D>,
    row: &Row<'_>,
    mode: ScrubMode,
) -> Result<Option<Mismatch>, VolumeError> {
    let geometry = owned.geometry();
    let exponents = (0..geometry.data_chunks())
        .map(|index| (data_chunk(index), geometry.syndrome_index(owned.stripe(), index) as usize));
    let located = locate(row.s_p, row.s_q, exponents);
    if located == Located::Agrees {
        return Ok(None);
    }
    let repair = right_contents(owned, located, row, mode);
    let outcome = match located {
        _ if repair.is_empty() => Outcome::Found,
        _ if !rewrite(owned, row, &repair).await? => Outcome::NotRepaired,
        Located::Chunk(_) => Outcome::BlockRewritten,
        Located::Agrees | Located::Unknown => Outcome::ParityRewritten,
    };
    Ok(Some(mismatch(owned, row, located, outcome)))
}

/// The right contents of the chunks to rewrite; empty if there is nothing to write.
fn right_contents<D: Device>(
    owned: Owned<'_, D>,
    located: Located,
    row: &Row<'_>,
    mode: ScrubMode,
) -> Repair {
    let corrected = |chunk: Chunk, syndrome: &[u8]| {
        let mut right = owned.pool().take(row.rows.bytes());
        right.bytes_mut().copy_from_slice(row.image.expect(chunk, row.rows));
        parity::xor_into(syndrome, right.bytes_mut());
        (chunk, right.freeze())
    };
    match (located, row.s_q) {
        _ if !mode.repair => Repair::new(),
        (Located::Agrees, _) => Repair::new(),
        (Located::Chunk(Q), s_q) => s_q.into_iter().map(|s_q| corrected(Q, s_q)).collect(),
        // P's syndrome is the error of the one wrong data block.
        (Located::Chunk(chunk), _) => [corrected(chunk, row.s_p)].into_iter().collect(),
        (Located::Unknown, None) => [corrected(P, row.s_p)].into_iter().collect(),
        (Located::Unknown, Some(_)) if !mode.trust_data => Repair::new(),
        (Located::Unknown, Some(s_q)) => [corrected(P, row.s_p), corrected(Q, s_q)].into_iter().collect(),
    }
}

/// Writes rows and reads them back. False if a write failed, or a read returned something else.
async fn rewrite<D: Device>(
    owned: Owned<'_, D>,
    row: &Row<'_>,
    repair: &Repair,
) -> Result<bool, VolumeError> {
    owned.forget_parity(); // invariant 5
    let offset = owned.offset() + u64::from(row.rows.start);
    for (chunk, right) in repair {
        let slot = owned.slot_of(*chunk);
        if !owned.port().write_and_read_back(slot, offset, right).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn mismatch<D: Device>(owned: Owned<'_, D>, row: &Row<'_>, located: Located, outcome: Outcome) -> Mismatch {
    let (geometry, rows) = (owned.geometry(), row.rows);
    let (wrong, chunk) = match located {
        Located::Chunk(P) => (Wrong::P, Some(P)),
        Located::Chunk(Q) => (Wrong::Q, Some(Q)),
        Located::Chunk(data) => (Wrong::Data, Some(data)),
        Located::Agrees | Located::Unknown => (Wrong::Unknown, None),
    };
    let offset = owned.offset() + u64::from(rows.start);
    let data = chunk.filter(|_| wrong == Wrong::Data);
    Mismatch {
        unit: Unit::Stripe(owned.stripe()),
        row_bytes: u64::from(rows.start),
        bytes: rows.bytes() as u64,
        wrong,
        blocks: chunk
            .into_iter()
            .map(|chunk| owned.port().block_place(owned.slot_of(chunk), offset))
            .collect(),
        array_offset_bytes: data
            .map(|chunk| geometry.array_offset(owned.stripe(), u32::from(chunk), rows.start)),
        outcome,
    }
}
