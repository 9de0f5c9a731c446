//! Resync and recovery of a run of adjacent stripes at once: each member gets one read for the whole run, and a member that
//! is being rebuilt gets one write. The functions here decline where anything is out of the ordinary (a block that cannot
//! be read, a member that fails, a stripe in doubt); the caller then does the stripes one by one.

use smallvec::SmallVec;

use super::agree::write_parity;
use super::engine::ParityEngine;
use super::stripe_table::Claim;
use crate::buffer::{Gather, Slice};
use crate::code::chunk_set::{Chunk, ChunkSet, P, Q, data_chunk};
use crate::code::image::{Held, Image};
use crate::code::parity_step::{encode_all, encode_one};
use crate::code::plan::plan_read;
use crate::code::recover::extract;
use crate::code::rows::{Fragment, Rows};
use crate::device::Device;
use crate::error::VolumeError;
use crate::limits::CHUNK_WINDOW_BYTES;
use crate::members::port::{MemberError, MemberRead, MemberWrite};
use layout::geometry::Geometry;
use layout::units::Slot;

/// The chunks read of one stripe.
struct StripeRead {
    stripe: u64,
    /// Chunks that were missing when the read was planned.
    missing: ChunkSet,
    image: Image,
}

/// A chunk of a stripe, and the slot of the member that holds it.
struct ChunkPlace {
    slot: Slot,
    stripe: u64,
    chunk: Chunk,
}

/// What the member in `slot` should hold of a run of stripes. None: the caller recovers stripe by stripe.
pub(super) async fn contents_of_run<D: Device>(
    engine: &ParityEngine<D>,
    run: &[Claim],
    slot: Slot,
) -> Result<Option<Gather>, VolumeError> {
    let wanted = |stripe| match engine.shared.chunk_on(stripe, slot) {
        P | Q => all_data(&engine.shared.geometry),
        chunk => [whole(&engine.shared.geometry, chunk)].into_iter().collect(),
    };
    let Some(mut reads) = read_run(engine, run, wanted).await? else { return Ok(None) };
    Ok(Some(reads.iter_mut().map(|read| contents_from(engine, read, slot)).collect()))
}

fn contents_from<D: Device>(engine: &ParityEngine<D>, read: &mut StripeRead, slot: Slot) -> Slice {
    let chunk = engine.shared.chunk_on(read.stripe, slot);
    if !matches!(chunk, P | Q) {
        return extract(
            &engine.shared.geometry,
            read.stripe,
            read.missing,
            &whole(&engine.shared.geometry, chunk),
            &mut read.image,
            &engine.port.pool,
        );
    }
    let data: SmallVec<[Slice; 16]> = (all_data(&engine.shared.geometry).iter())
        .map(|fragment| {
            extract(
                &engine.shared.geometry,
                read.stripe,
                read.missing,
                fragment,
                &mut read.image,
                &engine.port.pool,
            )
        })
        .collect();
    let rows = whole(&engine.shared.geometry, chunk).rows;
    let contents = |chunk: Chunk| data[usize::from(chunk)].bytes();
    encode_one(&engine.shared.geometry, read.stripe, chunk, rows, contents, &engine.port.pool)
}

/// Writes new parity made from all data of a run of stripes. False: nothing was written; the caller does stripe by stripe.
pub(super) async fn make_parity_of_run_agree<D: Device>(
    engine: &ParityEngine<D>,
    run: &[Claim],
) -> Result<bool, VolumeError> {
    run.iter().for_each(|claim| engine.shared.cache.forget(claim.stripe())); // invariant 5
    let Some(reads) = read_run(engine, run, |_| all_data(&engine.shared.geometry)).await? else {
        return Ok(false);
    };
    let data = ChunkSet::first(engine.shared.geometry.data_chunks());
    // Parity is the only record of missing data: parity made from data that parity reconstructed would prove nothing.
    if reads.iter().any(|read| !read.missing.and(data).is_empty()) {
        return Ok(false);
    }
    let mut writes = SmallVec::<[MemberWrite; 8]>::new();
    for read in &reads {
        let rows = Rows::all(&engine.shared.geometry);
        let contents = |chunk: Chunk| read.image.expect(chunk, rows);
        let geometry = &engine.shared.geometry;
        for new in encode_all(geometry, read.stripe, rows, read.missing, contents, &engine.port.pool) {
            writes.push(MemberWrite {
                slot: engine.shared.slot_of(read.stripe, new.chunk),
                offset: geometry.member_offset(read.stripe),
                data: Gather::from(new.slice),
            });
        }
    }
    write_parity(&engine.port, &writes).await?;
    run.iter().for_each(|claim| engine.shared.consistency.trust(claim.stripe()));
    Ok(true)
}

/// Reads the fragments that `wanted` names of each stripe, or the chunks that reconstruct them. None if anything is out of
/// the ordinary.
async fn read_run<D: Device>(
    engine: &ParityEngine<D>,
    run: &[Claim],
    wanted: impl Fn(u64) -> SmallVec<[Fragment; 16]>,
) -> Result<Option<Vec<StripeRead>>, VolumeError> {
    let (shared, chunk_bytes) = (&*engine.shared, engine.shared.geometry.chunk_bytes());
    let (mut stripes, mut places) = (Vec::new(), Vec::new());
    for stripe in run.iter().map(Claim::stripe) {
        let missing = shared.missing(stripe);
        let planned = plan_read(shared.shape(), missing, &wanted(stripe));
        let (None, Ok(fragments), true) =
            (shared.consistency.unrecoverable(stripe), planned, chunk_bytes <= CHUNK_WINDOW_BYTES)
        else {
            return Ok(None);
        };
        let place = |chunk| ChunkPlace { slot: shared.slot_of(stripe, chunk), stripe, chunk };
        places.extend(fragments.iter().map(|fragment| place(fragment.chunk)));
        stripes.push(StripeRead { stripe, missing, image: Image::default() });
    }
    places.sort_unstable_by_key(|place| (place.slot, place.stripe));
    let parts: SmallVec<[&[ChunkPlace]; 16]> =
        places.chunk_by(|a, b| a.slot == b.slot && a.stripe + 1 == b.stripe).collect();
    let bytes = chunk_bytes as usize;
    let read = |part: &&[ChunkPlace]| MemberRead {
        slot: part[0].slot,
        offset: shared.geometry.member_offset(part[0].stripe),
        bytes: part.len() * bytes,
    };
    let reads: SmallVec<[MemberRead; 16]> = parts.iter().map(read).collect();
    for (part, result) in parts.iter().zip(engine.port.read(&reads).await) {
        let contents = match result {
            Ok(buffer) => buffer.freeze(),
            Err(MemberError::Gone | MemberError::Unreadable) => return Ok(None),
            Err(MemberError::Request(error)) => return Err(error),
        };
        for (index, place) in part.iter().enumerate() {
            let held = Held::Shared(contents.part(index * bytes, bytes));
            let read = &mut stripes[(place.stripe - run[0].stripe()) as usize];
            read.image.insert(whole(&engine.shared.geometry, place.chunk), held);
        }
    }
    // Invariant 8: a member that failed during the reads is planned around, stripe by stripe.
    let is_unchanged = |read: &StripeRead| shared.missing(read.stripe) == read.missing;
    Ok(stripes.iter().all(is_unchanged).then_some(stripes))
}

fn whole(geometry: &Geometry, chunk: Chunk) -> Fragment {
    Fragment { chunk, rows: Rows::all(geometry) }
}

fn all_data(geometry: &Geometry) -> SmallVec<[Fragment; 16]> {
    (0..geometry.data_chunks()).map(|index| whole(geometry, data_chunk(index))).collect()
}
