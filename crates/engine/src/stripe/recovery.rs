//! Recovery: reconstructs the contents of a member that is being rebuilt, and writes them. The caller owns the stripes
//! until the member's cursor has moved over them. Adjacent stripes with nothing out of the ordinary are done at once
//! ([`run`](super::run)), others one by one in windows that fit in the cache. `array/` decides which stripes, and how fast.

use smallvec::SmallVec;
use std::ops::Range;

use super::absences::Teller;
use super::engine::{Owned, ParityEngine};
use super::fetch::{may_compare_parities, read_owned};
use super::peers::{left_by_peers, recover_by_peers};
use super::run::contents_of_run;
use super::shared::Shared;
use super::stripe_table::Claim;
use crate::buffer::Gather;
use crate::code::chunk_set::{Chunk, P, Q, data_chunk};
use crate::code::parity_step::encode_one;
use crate::code::rows::{Fragment, Rows, cut_at_blocks, windows};
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::bad_place;
use crate::members::health::MemberState;
use crate::members::port::{MemberError, MemberPort, MemberWrite};
use layout::units::{MemberOffset, Slot, Stripe};

/// Rebuilds a run of stripes of the member in `slot`.
pub(crate) async fn recover_run<D: Device>(
    engine: &ParityEngine<D>,
    run: &[Claim],
    slot: Slot,
) -> Result<(), VolumeError> {
    let left = left_by_peers(engine, run, |owned| recover_by_peers(owned, slot)).await?;
    if left.len() == run.len()
        && let Some(contents) = contents_of_run(engine, run, slot).await?
    {
        let offset = engine.shared.geometry.member_offset(run[0].stripe());
        return write_recovered(&engine.port, slot, offset, contents).await;
    }
    for claim in left {
        recover_stripe(engine.owned(claim), slot).await?;
    }
    Ok(())
}

/// Those of the given stripes that a recovering member may lack, as runs.
pub(crate) fn lacking(shared: &Shared, slot: Slot, stripes: Range<Stripe>) -> SmallVec<[Range<Stripe>; 4]> {
    let mut runs = SmallVec::<[Range<Stripe>; 4]>::new();
    for stripe in Stripe::each(stripes).filter(|&stripe| lacks(shared, slot, stripe)) {
        match runs.last_mut() {
            Some(run) if run.end == stripe => run.end = stripe.next(),
            _ => runs.push(stripe..stripe.next()),
        }
    }
    runs
}

fn lacks(shared: &Shared, slot: Slot, stripe: Stripe) -> bool {
    let (start, chunk_bytes) =
        (shared.geometry.member_offset(stripe).get(), u64::from(shared.geometry.chunk_bytes()));
    !shared.members.lacks_only_marked(slot) || shared.intent.next_marked(start, start + chunk_bytes).is_some()
}

async fn recover_stripe<D: Device>(owned: Owned<'_, D>, slot: Slot) -> Result<(), VolumeError> {
    let geometry = owned.geometry();
    let needs_parity = owned.is_suspect() || !owned.lost().is_empty();
    let doubt = owned.unrecoverable().filter(|_| needs_parity);
    let is_data = !matches!(owned.chunk_on(slot), P | Q);
    if doubt.is_some() && is_data && owned.shared().absences.tells_in_doubt(slot) {
        return recover_told(owned, slot).await;
    }
    if let Some(error) = doubt.clone().filter(|_| !may_compare_parities(owned)) {
        return match is_data {
            true => Err(error),
            false => recover_parity_told(owned, slot, error).await,
        };
    }
    let mut all_agree = true;
    for rows in windows(geometry.chunk_bytes()) {
        match contents_of(owned, slot, rows).await {
            Ok(contents) => {
                let offset = owned.offset() + u64::from(rows.start);
                write_recovered(owned.port(), slot, offset, contents).await?;
            }
            Err(VolumeError::Unreadable { .. }) => {
                all_agree = false;
                recover_blocks(owned, slot, rows).await?;
            }
            Err(error) => return Err(error),
        }
    }
    if doubt.is_some() && all_agree {
        owned.trust(); // P and Q agree with the data in every row
    }
    Ok(())
}

/// Recovers the data chunk of a member that is back, in a stripe in doubt: what the member holds counts as it is, what was
/// written since it left is made from parity (invariant 11). The resync that is due makes parity of the rest agree once all
/// members are in sync; until then the stripe stays in doubt.
async fn recover_told<D: Device>(owned: Owned<'_, D>, slot: Slot) -> Result<(), VolumeError> {
    let base = owned.offset();
    let row = |offset: MemberOffset| u32::try_from(offset - base).expect("a chunk is small");
    for window in windows(owned.geometry().chunk_bytes()) {
        let window = base + u64::from(window.start)..base + u64::from(window.end);
        for (bytes, teller) in owned.shared().absences.tellers(slot, &window) {
            if teller == Teller::Member {
                continue;
            }
            // What nothing tells, P and Q may: else the read refuses it.
            let rows = Rows { start: row(bytes.start), end: row(bytes.end) };
            match contents_of(owned, slot, rows).await {
                Ok(contents) => write_recovered(owned.port(), slot, bytes.start, contents).await?,
                Err(VolumeError::Unreadable { .. }) => recover_blocks(owned, slot, rows).await?,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Recovers the parity chunk of a member in a RAID-6 stripe in doubt. The lost data comes from its own member, if that is back and
/// holds it, or from the other parity. Otherwise two members that return together would wait for each other's data (invariant 11).
/// The stripe stays in doubt, because the other parity may be torn.
///
/// # Errors
/// `error` if neither has some of the lost data; what the members say.
async fn recover_parity_told<D: Device>(
    owned: Owned<'_, D>,
    slot: Slot,
    error: VolumeError,
) -> Result<(), VolumeError> {
    let lost: SmallVec<[Chunk; 2]> = owned.lost().iter().collect();
    let ([lost], false) = (&lost[..], owned.is_suspect()) else { return Err(error) };
    let (of_lost, parity, base) = (owned.slot_of(*lost), owned.chunk_on(slot), owned.offset());
    let row = |offset: MemberOffset| u32::try_from(offset - base).expect("a chunk is small");
    for window in windows(owned.geometry().chunk_bytes()) {
        let window = base + u64::from(window.start)..base + u64::from(window.end);
        for (bytes, teller) in owned.shared().absences.tellers(of_lost, &window) {
            let rows = Rows { start: row(bytes.start), end: row(bytes.end) };
            let wanted = Fragment { chunk: *lost, rows };
            let contents_of_lost = match teller {
                Teller::Nothing => return Err(error),
                Teller::Parity => read_owned(owned, &[wanted]).await?.remove(0),
                Teller::Member => match owned.port().read_quietly(&owned.read_of(&wanted)).await {
                    Ok(contents) => contents,
                    Err(MemberError::Gone | MemberError::Unreadable) => return Err(error),
                    Err(MemberError::Request(error)) => return Err(error),
                },
            };
            let others = (0..owned.geometry().data_chunks()).map(data_chunk).filter(|chunk| chunk != lost);
            let others: SmallVec<[Fragment; 16]> = others.map(|chunk| Fragment { chunk, rows }).collect();
            let contents = read_owned(owned, &others).await?;
            let at = |chunk: Chunk| others.iter().position(|other| other.chunk == chunk);
            let of = |chunk: Chunk| at(chunk).map_or(&contents_of_lost, |at| &contents[at]).bytes();
            let new = encode_one(owned.geometry(), owned.stripe(), parity, rows, of, owned.pool());
            write_recovered(owned.port(), slot, bytes.start, Gather::from(new)).await?;
        }
    }
    Ok(())
}

/// Rebuilds rows of the member in `slot` block by block. A block that cannot be reconstructed is recorded as bad.
async fn recover_blocks<D: Device>(owned: Owned<'_, D>, slot: Slot, rows: Rows) -> Result<(), VolumeError> {
    let base = owned.offset();
    for rows in cut_at_blocks(rows) {
        let offset = base + u64::from(rows.start);
        match contents_of(owned, slot, rows).await {
            Ok(contents) => write_recovered(owned.port(), slot, offset, contents).await?,
            Err(error @ VolumeError::Unreadable { .. }) => {
                if !bad_place::record_bad(owned.port(), slot, offset, rows.bytes() as u64) {
                    return Err(error);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// What a member should hold in some rows of a stripe.
async fn contents_of<D: Device>(owned: Owned<'_, D>, slot: Slot, rows: Rows) -> Result<Gather, VolumeError> {
    match owned.chunk_on(slot) {
        parity @ (P | Q) => recovered_parity(owned, parity, rows).await,
        chunk => {
            let mut slices = read_owned(owned, &[Fragment { chunk, rows }]).await?;
            Ok(Gather::from(slices.remove(0)))
        }
    }
}

/// P or Q of a stripe, from its data; lost data is reconstructed first.
async fn recovered_parity<D: Device>(
    owned: Owned<'_, D>,
    chunk: Chunk,
    rows: Rows,
) -> Result<Gather, VolumeError> {
    let geometry = owned.geometry();
    let data = (0..geometry.data_chunks()).map(|index| Fragment { chunk: data_chunk(index), rows });
    let data: SmallVec<[Fragment; 16]> = data.collect();
    let contents = read_owned(owned, &data).await?;
    let bytes = |chunk: Chunk| contents[usize::from(chunk)].bytes();
    Ok(Gather::from(encode_one(geometry, owned.stripe(), chunk, rows, bytes, owned.pool())))
}

/// Writes reconstructed contents to a recovering member.
async fn write_recovered<D: Device>(
    port: &MemberPort<D>,
    slot: Slot,
    offset: MemberOffset,
    data: Gather,
) -> Result<(), VolumeError> {
    let gone = || VolumeError::Io { reason: format!("member {slot} failed while it was rebuilt") };
    if port.members.state(slot) != MemberState::Recovering {
        return Err(gone());
    }
    match port.write(&[MemberWrite { slot, offset, data }], false).await.remove(0) {
        Ok(()) => Ok(()),
        Err(MemberError::Gone | MemberError::Unreadable) => Err(gone()),
        Err(MemberError::Request(error)) => Err(error),
    }
}
