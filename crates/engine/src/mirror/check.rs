//! Scrub of a mirror's region: do the copies agree, and if not, which are outvoted?

use smallvec::SmallVec;

use super::engine::MirrorEngine;
use super::region::{OwnedRegion, Region, Run, runs_of};
use super::salvage::salvage_owned;
use crate::buffer::Slice;
use crate::code::locate::outvoted;
use crate::device::Device;
use crate::error::VolumeError;
use crate::limits::BLOCK_BYTES;
use crate::members::port::{MemberError, MemberRead};
use crate::mismatch::{Checked, Mismatch, Outcome, ScrubMode, Unit, Wrong};

use layout::geometry::CopyPlace;
use layout::units::ArrayOffset;

/// The same bytes of the array on every member that holds them.
struct Compared {
    region: Region,
    /// From the start of the array.
    offset: ArrayOffset,
    places: SmallVec<[CopyPlace; 4]>,
    copies: Vec<Slice>,
}

/// Checks one region of a mirror, and repairs it if `mode` says so.
///
/// # Errors
/// A member could not be read, and the array cannot do without it.
pub(crate) async fn check_region<D: Device>(
    engine: &MirrorEngine<D>,
    region: Region,
    mode: ScrubMode,
) -> Result<Checked, VolumeError> {
    let claim = engine.claim_in_turn(region).await;
    check_owned(engine, &claim, mode).await
}

async fn check_owned<D: Device>(
    engine: &MirrorEngine<D>,
    owned: &OwnedRegion,
    mode: ScrubMode,
) -> Result<Checked, VolumeError> {
    let (geometry, region) = (&engine.shared.geometry, owned.region());
    let mut checked = Checked::default();
    let region_start = region.bytes(geometry.array_bytes()).start;
    for run in runs_of(owned, geometry) {
        match check_copies(engine, owned, &run, mode, &mut checked).await {
            // One block of them cannot be read from any copy: which, and do the others agree?
            Err(VolumeError::Unreadable { .. }) => {
                for block in run.blocks() {
                    let block = run.part(block.start as usize, block.bytes());
                    match check_copies(engine, owned, &block, mode, &mut checked).await {
                        Err(VolumeError::Unreadable { .. }) => {
                            checked.skipped = true;
                            checked.found_in(Some(unreadable(engine, region, region_start, &block)));
                        }
                        result => result?,
                    }
                }
            }
            result => result?,
        }
    }
    Ok(checked)
}

async fn check_copies<D: Device>(
    engine: &MirrorEngine<D>,
    owned: &OwnedRegion,
    run: &Run,
    mode: ScrubMode,
    checked: &mut Checked,
) -> Result<(), VolumeError> {
    let (region, bytes) = (owned.region(), engine.shared.geometry.array_bytes());
    match read_all_copies(engine, owned, run).await? {
        Some(copies) if !engine.shared.consistency.is_suspect(region) => {
            let run = Compared { region, offset: run.offset, places: run.places.clone(), copies };
            check_run(engine, &run, region.bytes(bytes).start, mode, checked).await
        }
        _ => {
            checked.skipped = true;
            Ok(())
        }
    }
}

/// A block of which no copy can be read.
fn unreadable<D: Device>(
    engine: &MirrorEngine<D>,
    region: Region,
    region_start: ArrayOffset,
    block: &Run,
) -> Mismatch {
    let places = block.places.iter();
    Mismatch {
        unit: Unit::Region(region.0),
        row_bytes: block.offset - region_start,
        bytes: block.bytes as u64,
        wrong: Wrong::Unreadable,
        blocks: places.map(|place| engine.port.block_place(place.member, place.member_offset)).collect(),
        array_offset_bytes: Some(block.offset),
        outcome: Outcome::Found,
    }
}

/// Reads every copy of a run. None if one is missing.
async fn read_all_copies<D: Device>(
    engine: &MirrorEngine<D>,
    owned: &OwnedRegion,
    run: &Run,
) -> Result<Option<Vec<Slice>>, VolumeError> {
    if !run.places.iter().all(|place| engine.in_sync(place)) {
        return Ok(None);
    }
    let reads: SmallVec<[MemberRead; 4]> = run.places.iter().map(|place| run.read_of(place)).collect();
    let mut copies = Vec::new();
    for (read, result) in reads.iter().zip(engine.port.read(&reads).await) {
        match result {
            Ok(buffer) => copies.push(buffer.freeze()),
            // The salvage rewrites the copy from another one.
            Err(MemberError::Unreadable) => copies.push(salvage_owned(engine, owned, run, read.slot).await?),
            Err(MemberError::Request(error)) => return Err(error),
            Err(MemberError::Gone) => return Ok(None),
        }
    }
    Ok(Some(copies))
}

async fn check_run<D: Device>(
    engine: &MirrorEngine<D>,
    run: &Compared,
    region_start: ArrayOffset,
    mode: ScrubMode,
    checked: &mut Checked,
) -> Result<(), VolumeError> {
    let bytes = run.copies[0].len();
    for start in (0..bytes).step_by(BLOCK_BYTES) {
        let block = start..(start + BLOCK_BYTES).min(bytes);
        let copies: SmallVec<[&[u8]; 4]> =
            run.copies.iter().map(|copy| &copy.bytes()[block.clone()]).collect();
        if copies.iter().all(|copy| *copy == copies[0]) {
            continue;
        }
        let (outvoted, wrong) = match outvoted(&copies) {
            Some(outvoted) => (outvoted, Wrong::Copy),
            None => ((0..copies.len()).collect(), Wrong::Unknown),
        };
        // Without a majority the first copy counts as right, as in md.
        let right = (0..copies.len()).find(|place| wrong == Wrong::Unknown || !outvoted.contains(place));
        let right = Slice::from_bytes(copies[right.expect("a copy")]);
        let places: SmallVec<[CopyPlace; 4]> = outvoted.iter().map(|&place| run.places[place]).collect();
        let at = |place: &CopyPlace| place.member_offset + start as u64;
        let outcome = match mode.repair {
            false => Outcome::Found,
            true => {
                let mut done = true;
                for place in &places {
                    done &= engine.port.write_and_read_back(place.member, at(place), &right).await?;
                }
                match (done, wrong) {
                    (false, _) => Outcome::NotRepaired,
                    (true, Wrong::Unknown) => Outcome::CopiesRewritten,
                    (true, _) => Outcome::BlockRewritten,
                }
            }
        };
        let offset = run.offset + start as u64;
        checked.found_in(Some(Mismatch {
            unit: Unit::Region(run.region.0),
            row_bytes: offset - region_start,
            bytes: block.len() as u64,
            wrong,
            blocks: places.iter().map(|place| engine.port.block_place(place.member, at(place))).collect(),
            array_offset_bytes: Some(offset),
            outcome,
        }));
    }
    Ok(())
}
