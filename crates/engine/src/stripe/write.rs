//! The life of a stripe write, from the claim to the acknowledgement (StRAID 4.1 and 4.3, Algorithm 1).

use smallvec::SmallVec;
use std::ops::Range;
use std::rc::Rc;

use super::agree::make_parity_agree;
use super::engine::{Owned, ParityEngine};
use super::fast_path::FastPath;
use super::fetch::fetch;
use super::gather::gather_stream;
use super::peers::update_by_peers;
use super::redo::headers::{is_settled, settle};
use super::redo::retire::retire_incomplete_records;
use super::runner::{Method, overwrites, plan_write};
use super::small::write_small;
use super::stripe_table::{Claim, Entry};
use super::update::update;
use super::whole::write_whole;
use crate::buffer::Gather;
use crate::code::image::Image;
use crate::code::rows::{first_piece, pieces};
use crate::code::union::{NewData, StripeWrite, Union};
use crate::device::Device;
use crate::error::VolumeError;
use crate::executor::{join_all, others_ready, yield_now};
use crate::stages::{Stage, Unwatched, Watch};
use layout::units::{ArrayOffset, Stripe};

/// Writes a range of a parity array: one task for each stripe that the range touches. `OBSERVED`: the array's observer measures
/// the writes.
pub(crate) async fn write_stripes<D: Device, const OBSERVED: bool>(
    engine: &Rc<ParityEngine<D>>,
    offset: ArrayOffset,
    data: Gather,
    fua: bool,
) -> Result<(), VolumeError> {
    let end = offset + data.len() as u64;
    let stripe_bytes = engine.shared.geometry.stripe_bytes();
    let stripe_of = |at: u64| Stripe::new(at / stripe_bytes);
    let (first, last) = (stripe_of(offset.get()), stripe_of(end.get() - 1));
    let in_stream = engine.in_flight.streams.note(offset.get(), end.get());
    if first == last {
        let write = stripe_write(engine, offset, &data, fua, in_stream);
        if !OBSERVED && !engine.shared.peers.is_tried() {
            return write_watched(engine, first, write, Unwatched(engine.shard)).await;
        }
        return Box::pin(write_stripe::<D, OBSERVED>(engine, first, write)).await;
    }
    let start = |stripe: Stripe| {
        let begins = |stripe: Stripe| ArrayOffset::new(stripe.get() * stripe_bytes);
        let (from, to) = (begins(stripe).max(offset), begins(stripe.next()).min(end));
        let part = data.part(to_usize(from - offset), to_usize(to - from));
        let write = stripe_write(engine, from, &part, fua, in_stream);
        let own = Rc::clone(engine);
        engine
            .executor
            .spawn_with_result(async move { write_stripe::<D, OBSERVED>(&own, stripe, write).await })
    };
    let results = join_all(Stripe::each(first..last.next()).map(start)).await;
    results.into_iter().collect()
}

/// The request's part in one stripe, cut at chunks and at the slices of its data.
fn stripe_write<D: Device>(
    engine: &ParityEngine<D>,
    offset: ArrayOffset,
    data: &Gather,
    fua: bool,
    in_stream: bool,
) -> StripeWrite {
    let mut parts = SmallVec::new();
    let first = first_piece(&engine.shared.geometry, offset, data.len() as u64);
    if let [slice] = data.slices()
        && first.fragment.rows.bytes() == slice.len()
    {
        parts.push(NewData { fragment: first.fragment, data: slice.clone() });
        return StripeWrite { parts, fua, in_stream };
    }
    let mut at = offset;
    for slice in data.slices() {
        let mut done = 0;
        for piece in pieces(&engine.shared.geometry, at, slice.len() as u64) {
            let bytes = piece.fragment.rows.bytes();
            parts.push(NewData { fragment: piece.fragment, data: slice.part(done, bytes) });
            done += bytes;
        }
        at += slice.len() as u64;
    }
    StripeWrite { parts, fua, in_stream }
}

/// Writes one request's part in one stripe and returns when it is on the members.
async fn write_stripe<D: Device, const OBSERVED: bool>(
    engine: &ParityEngine<D>,
    stripe: Stripe,
    write: StripeWrite,
) -> Result<(), VolumeError> {
    let peers = &engine.shared.peers;
    let bytes =
        peers.is_tried().then(|| write.parts.iter().map(|part| part.fragment.rows.bytes() as u64).sum());
    let result = match OBSERVED {
        false => write_watched(engine, stripe, write, Unwatched(engine.shard)).await,
        true => write_watched(engine, stripe, write, &engine.stopwatch()).await,
    };
    if let Some(bytes) = bytes {
        peers.wrote(bytes, engine.port.loads.now_ns());
    }
    result
}

async fn write_watched<D: Device>(
    engine: &ParityEngine<D>,
    stripe: Stripe,
    write: StripeWrite,
    watch: impl Watch,
) -> Result<(), VolumeError> {
    let shared = &*engine.shared;
    // What mostly need not be waited for is on the heap: the future of an ordinary write carries nothing of it.
    let range = written_range(engine, stripe, &write);
    let marked = match shared.intent.mark_now(watch, &range) {
        Some(marked) => marked,
        None => Box::pin(shared.intent.mark(watch, &shared.members, range)).await?,
    };
    let _under_way = shared.consistency.enter(); // F-I14

    // Invariant 4: a stripe has one owner; a write that finds one joins its batch, or waits for the release.
    let two_phase = engine.two_phase();
    let entry = match shared.table.claim_now(stripe, watch, two_phase) {
        Some(claim) => Entry::Owned(claim, write),
        None if two_phase => Box::pin(shared.table.claim_or_join(stripe, watch, write)).await,
        None => Entry::Owned(Box::pin(shared.table.claim_watched(stripe, watch)).await, write),
    };
    watch.enter(Stage::Wait);
    let (mut claim, own) = match entry {
        Entry::Owned(claim, own) => (claim, own),
        Entry::Joined(done) => {
            engine.port.counters().joined_writes.add(1);
            engine.in_flight.joined();
            let result = done.await;
            marked.end(watch);
            return result;
        }
    };

    // First phase: while the old contents are read, more writes may join.
    let in_flight = engine.in_flight.begin();
    let by_peers = engine.by_peers();
    if two_phase && (own.in_stream || own.fills_a_chunk(&shared.geometry) || by_peers) {
        if others_ready() {
            // The rest of the stripe, if it has already arrived, joins before the first read; with peers, before the orders.
            yield_now().await;
        }
        claim.gather();
        if own.in_stream {
            Box::pin(gather_stream(engine, &own, &mut claim)).await;
        }
    }
    watch.enter(Stage::PreRead);
    let mut image = Image::default();
    let mut fast_path = write_whole(engine, &own, &mut claim, watch).await;
    // Where targets make the parity the host reads nothing before.
    if matches!(fast_path, FastPath::Declined) && two_phase && !by_peers {
        fast_path = write_small(engine, &own, &mut claim, &mut image, watch).await;
    }
    // Second phase, from the freeze on: the batch is closed, and the owner writes the union of its writes.
    let mut result = match fast_path {
        FastPath::Done(result) => result,
        FastPath::Declined | FastPath::Interrupted => {
            Box::pin(write_union(engine, &own, &mut claim, image, by_peers, watch)).await
        }
    };
    watch.enter(Stage::Complete);
    if result.is_ok() && !is_settled(&engine.redo) {
        // Invariants 1 and 8: the superblocks record a member that missed this write before the write is acknowledged.
        result = Box::pin(settle(&engine.redo)).await;
    }
    engine.port.counters().stripe_writes.add(1);
    claim.release(&result, watch);
    marked.end(watch);
    drop(in_flight);
    result
}

/// The bytes of the members' data area that a write changes: parity changes in the same rows as data.
fn written_range<D: Device>(engine: &ParityEngine<D>, stripe: Stripe, write: &StripeWrite) -> Range<u64> {
    let rows = write.parts.iter().map(|part| part.fragment.rows);
    let (start, end) =
        rows.fold((u32::MAX, 0), |(start, end), rows| (start.min(rows.start), end.max(rows.end)));
    let base = engine.shared.geometry.member_offset(stripe).get();
    base + u64::from(start)..base + u64::from(end)
}

/// The general path: pre-reads for the writes that have joined, closes the batch, plans again and updates the stripe.
async fn write_union<D: Device>(
    engine: &ParityEngine<D>,
    own: &StripeWrite,
    claim: &mut Claim,
    mut image: Image,
    by_peers: bool,
    watch: impl Watch,
) -> Result<(), VolumeError> {
    let owned = engine.owned(claim);
    let mut union = Union::of([own].into_iter().chain(claim.joined()));
    let mut result = ensure_consistent(owned, &union).await;
    if result.is_ok() {
        if !by_peers {
            take_cached_parity(owned, &union, &mut image);
        }
        if claim.is_open() && !by_peers {
            result = pre_read(owned, &union, &mut image).await;
            if let Err(VolumeError::Unreadable { .. }) = result {
                result = Ok(()); // a write that joins may overwrite the block
            }
        }
    }
    let joined = claim.freeze();
    let owned = engine.owned(claim);
    if joined > 0 {
        union = Union::of([own].into_iter().chain(claim.joined()));
        if !by_peers {
            take_cached_parity(owned, &union, &mut image);
        }
    }
    let fua = own.fua || claim.joined().any(|write| write.fua);
    result?;
    if by_peers {
        if let Some(result) = Box::pin(update_by_peers(owned, &union, fua, watch)).await {
            return result;
        }
        take_cached_parity(owned, &union, &mut image);
    }
    update(owned, &union, image, fua, watch).await
}

/// Makes parity agree before a write builds on it, where the stripe's last write failed, or a resync has yet to reach it
/// (invariants 1 and 9): what the write acknowledges can be recovered from then on. A stripe with data missing cannot be
/// made to agree: it is in doubt.
async fn ensure_consistent<D: Device>(owned: Owned<'_, D>, union: &Union) -> Result<(), VolumeError> {
    retire_incomplete_records(owned.redo(), owned.stripe()).await?;
    let is_suspect = owned.is_suspect();
    if !owned.lost().is_empty() {
        if is_suspect {
            owned.doubt(); // as a crash at this point would have left it
        }
        return Ok(());
    }
    if is_suspect {
        return make_parity_agree(owned).await;
    }
    if owned.is_in_doubt() && !overwrites(owned, union, owned.data()) {
        // If this fails the stripe stays unsynced, and the write goes ahead as it would on a stripe in doubt.
        let _ = Box::pin(make_parity_agree(owned)).await;
    }
    Ok(())
}

fn take_cached_parity<D: Device>(owned: Owned<'_, D>, union: &Union, image: &mut Image) {
    owned.shared().cache.take(owned.stripe(), union.span(), image);
}

/// One round of reads for the writes that have joined so far. The second plan meets a member that fails here again.
async fn pre_read<D: Device>(
    owned: Owned<'_, D>,
    union: &Union,
    image: &mut Image,
) -> Result<(), VolumeError> {
    let plan = plan_write(owned, Method::Best, union, image)?;
    fetch(owned, &plan.reads, image).await
}

fn to_usize(bytes: u64) -> usize {
    usize::try_from(bytes).expect("a request fits in memory")
}
