//! Scrub of a mirror's region: do the copies agree, and if not, which are outvoted?

use smallvec::SmallVec;

use super::engine::MirrorEngine;
use super::region::{Run, region_bytes};
use super::salvage::salvage_owned;
use crate::buffer::Slice;
use crate::code::locate::outvoted;
use crate::device::Device;
use crate::error::VolumeError;
use crate::limits::BLOCK_BYTES;
use crate::members::port::{MemberError, MemberRead};
use crate::mismatch::{Checked, Mismatch, Outcome, ScrubMode, Wrong};
use crate::stripe::stripe_table::Claim;
use layout::geometry::CopyPlace;

/// The same bytes of the array on every member that holds them.
struct Compared {
    region: u64,
    /// From the start of the array.
    offset_bytes: u64,
    places: SmallVec<[CopyPlace; 4]>,
    copies: Vec<Slice>,
}

/// Checks one region of a mirror, and repairs it if `mode` says so.
///
/// # Errors
/// A member could not be read, and the array cannot do without it.
pub(crate) async fn check_region<D: Device>(
    engine: &MirrorEngine<D>,
    region: u64,
    mode: ScrubMode,
) -> Result<Checked, VolumeError> {
    let claim = engine.claim_in_turn(region).await;
    let result = check_owned(engine, &claim, mode).await;
    Checked::or_unreadable(result, region)
}

async fn check_owned<D: Device>(
    engine: &MirrorEngine<D>,
    owned: &Claim,
    mode: ScrubMode,
) -> Result<Checked, VolumeError> {
    let (geometry, region) = (&engine.shared.geometry, owned.stripe());
    let mut checked = Checked::default();
    let range = region_bytes(region, geometry.array_bytes());
    let mut at = range.start;
    while at < range.end {
        let copies = geometry.copies(at, range.end - at);
        let bytes = usize::try_from(copies.len).expect("less than a region");
        let places: SmallVec<[CopyPlace; 4]> = copies.places.into_iter().collect();
        match read_all_copies(engine, owned, &Run { offset_bytes: at, places: places.clone(), bytes }).await?
        {
            Some(copies) if !engine.shared.consistency.is_suspect(region) => {
                let run = Compared { region, offset_bytes: at, places, copies };
                check_run(engine, &run, range.start, mode, &mut checked).await?;
            }
            _ => checked.skipped = true,
        }
        at += bytes as u64;
    }
    Ok(checked)
}

/// None if a copy is not there.
async fn read_all_copies<D: Device>(
    engine: &MirrorEngine<D>,
    owned: &Claim,
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
            // It becomes what another copy holds.
            Err(MemberError::Unreadable) => {
                copies.push(salvage_owned(engine, std::slice::from_ref(owned), run, read.slot).await?);
            }
            Err(MemberError::Request(error)) => return Err(error),
            Err(MemberError::Gone) => return Ok(None),
        }
    }
    Ok(Some(copies))
}

async fn check_run<D: Device>(
    engine: &MirrorEngine<D>,
    run: &Compared,
    region_start: u64,
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
        // Without a majority the first copy counts, as for md.
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
        let offset_bytes = run.offset_bytes + start as u64;
        checked.found_in(Some(Mismatch {
            stripe: run.region,
            row_bytes: offset_bytes - region_start,
            bytes: block.len() as u64,
            wrong,
            blocks: places.iter().map(|place| engine.port.block_place(place.member, at(place))).collect(),
            array_offset_bytes: Some(offset_bytes),
            outcome,
        }));
    }
    Ok(())
}
