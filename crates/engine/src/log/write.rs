//! A write: into the open stripe of its class, out to all columns of a segment, into the map, acknowledged. Nothing is read
//! first. Entry point first, helpers in call order.

use std::cell::Cell;
use std::rc::Rc;

use layout::zoned::{BlockEntry, BlockName, BlockPlace, Class, MapEntry, ZeroesEntry};
use smallvec::SmallVec;

use super::append::{block_at, reserve, returned, write_stripe};
use super::batch::{Batch, Outcome};
use super::config::RESERVED_SEGMENTS;
use super::dispatch::{Due, OpenStripe};
use super::encode::StripeBlock;
use super::map::WrittenBlock;
use super::open::{OpenSegments, Stream, refused};
use super::paging::begin;
use super::port::{Blame, LogPort};
use super::reclaim::throttle::Slope;
use super::shard::LogEngine;
use super::shared::LogShared;
use crate::buffer::{Gather, Slice};
use crate::error::VolumeError;
use crate::limits::BLOCK_BYTES;
use crate::zone_device::ZoneDevice;

/// Segments that a stripe is tried in before its writes fail.
const TRIES_MAX: usize = 8;

/// Writes whole blocks. With `fua` they are durable on return, their segment's headers included (Z-I7).
///
/// The blocks are registered in the map before they take their sequence (Z-I3), and take it before they wait for anything
/// that reclaim must give: a write that has a sequence waits for neither reclaim nor recovery (Z-I10).
pub async fn write_blocks<D: ZoneDevice>(
    engine: &Rc<LogEngine<D>>,
    offset_bytes: u64,
    data: Gather,
    fua: bool,
) -> Result<(), VolumeError> {
    let shared = &engine.port.shared;
    if shared.members.is_read_only() {
        return Err(VolumeError::ReadOnly);
    }
    let (first, count) = (offset_bytes / BLOCK_BYTES as u64, data.len() / BLOCK_BYTES);
    admit(engine, count as u64).await;
    let slices: SmallVec<[Slice; 1]> = (0..count).map(|block| engine.block_of(&data, block)).collect();
    let lbas = first..first + count as u64;
    begin(&engine.port, lbas.clone()).await?;
    let Some(sequence) = shared.sequences.take() else {
        lbas.for_each(|lba| shared.map.abandon(lba));
        return Err(used_up());
    };
    let class = engine.class_of(count);
    let blocks = lbas.zip(slices).map(|(lba, data)| StripeBlock::new(BlockName::User(lba), sequence, data));
    let outcomes = fill(engine, class, blocks, fua);
    let mut result = Ok(());
    for outcome in outcomes {
        result = result.and(outcome.ended().await); // all of them, so that none is in flight on return
    }
    result?;
    // Z-I2: mapped, and the health that the stripe relied on is in the superblocks.
    Ok(shared.members.settled().await?)
}

/// Holds a write back while segments are few: before it takes a sequence, so that what has one waits as little as may be.
pub(super) async fn admit<D: ZoneDevice>(engine: &LogEngine<D>, blocks: u64) {
    let (shared, platform) = (&engine.port.shared, &engine.port.platform);
    let free = shared.table.free_least();
    let low = shared.config.low_segments();
    shared.space.clients_write();
    if free > low {
        return; // without a look at the clock, which costs a tenth of a small write
    }
    let own = engine.open.room_left(Stream::Clients(engine.class_of(blocks as usize)));
    let open = own + shared.space.ahead();
    let slope = Slope::of((free, RESERVED_SEGMENTS, low), engine.segment_blocks(), open);
    let now_ns = platform.now_ns();
    let at_ns = shared.space.admit_at(now_ns, blocks, slope);
    if at_ns > now_ns {
        platform.sleep_until(at_ns).await;
    }
}

/// Sequence numbers of an epoch are used up after 12 days at a million a second.
pub(super) fn used_up() -> VolumeError {
    let reason = "the sequence numbers of this epoch are used up: stop the array and start it again";
    VolumeError::Io { reason: reason.to_owned() }
}

/// Puts blocks into the open batch of their class, and sends every batch that is full or due. Returns how the batches end.
pub(super) fn fill<D: ZoneDevice>(
    engine: &Rc<LogEngine<D>>,
    class: Class,
    blocks: impl Iterator<Item = StripeBlock>,
    fua: bool,
) -> SmallVec<[Rc<Outcome>; 1]> {
    let batches = engine.batches(class);
    let room = engine.stripe_blocks(class);
    let mut outcomes: SmallVec<[Rc<Outcome>; 1]> = SmallVec::new();
    for block in blocks {
        let mut open = batches.open.borrow_mut();
        let batch = open.get_or_insert_with(|| Batch::new(engine.port.platform.now_ns(), room));
        batch.blocks.push(block);
        batch.fua |= fua;
        if outcomes.last().is_none_or(|last| !Rc::ptr_eq(last, &batch.outcome)) {
            outcomes.push(Rc::clone(&batch.outcome));
        }
        let is_full = batch.blocks.len() >= room;
        drop(open);
        if is_full {
            send_open(engine, class);
        }
    }
    send_if_due(engine, class);
    outcomes
}

/// Sends the open batch if it is due now, else sees to it that it is looked at again: once, however many writes join it.
fn send_if_due<D: ZoneDevice>(engine: &Rc<LogEngine<D>>, class: Class) {
    let (batches, platform) = (engine.batches(class), &engine.port.platform);
    let due = match &mut *batches.open.borrow_mut() {
        None => return,
        // Nothing but its time, or the return of those in flight, makes it due.
        Some(batch) if batch.is_watched && batches.in_flight.get() > 0 => return,
        Some(batch) => {
            let data = engine.data_columns();
            let padding = batch.blocks.len().next_multiple_of(data) - batch.blocks.len();
            let padding = match engine.pads_to_whole(class) {
                true => engine.stripe_blocks(class) - batch.blocks.len(),
                false => padding,
            };
            let in_flight = batches.in_flight.get();
            let is_full = batch.blocks.len() >= engine.stripe_blocks(class);
            let padding_blocks = if is_full { 0 } else { padding.max(1) as u64 };
            let stripe = OpenStripe { since_ns: batch.since_ns, padding_blocks, in_flight };
            let due = batches.dispatch.borrow_mut().due(platform.now_ns(), &stripe);
            let was_watched = std::mem::replace(&mut batch.is_watched, true);
            (due, was_watched, Rc::clone(&batch.outcome))
        }
    };
    match due {
        (Due::Now, ..) => send_open(engine, class),
        (_, true, _) => {}
        (Due::WhenNoneIsInFlight { at_ns } | Due::At { at_ns }, false, of) => {
            let engine = Rc::clone(engine);
            let sleep = platform.sleep_until(at_ns);
            engine.port.executor.clone().spawn(async move {
                sleep.await;
                let open = &engine.batches(class).open;
                let is_still_open =
                    open.borrow().as_ref().is_some_and(|batch| Rc::ptr_eq(&batch.outcome, &of));
                if is_still_open {
                    send_open(&engine, class);
                }
            });
        }
    }
}

/// Sends the open batch, as a task of its own: its writers may be many.
fn send_open<D: ZoneDevice>(engine: &Rc<LogEngine<D>>, class: Class) {
    let batches = engine.batches(class);
    let Some(batch) = batches.open.take() else { return };
    let data = engine.data_columns();
    let padding = batch.blocks.len().next_multiple_of(data) - batch.blocks.len();
    let now_ns = engine.port.platform.now_ns();
    batches.dispatch.borrow_mut().sent(now_ns, batch.blocks.len() as u64, padding as u64);
    batches.in_flight.set(batches.in_flight.get() + 1);
    let engine = Rc::clone(engine);
    engine.port.executor.clone().spawn(async move {
        let Batch { blocks, fua, outcome, .. } = batch;
        let (result, mapped) = send_blocks(&engine, class, &blocks, fua).await;
        let shared = &engine.port.shared;
        let (mapped, failed) = blocks.split_at(mapped);
        user_lbas(failed).for_each(|lba| shared.map.abandon(lba));
        let least = if engine.pads_to_whole(class) { engine.stripe_blocks(class) } else { data };
        shared.space.wrote(user_lbas(mapped).count() as u64, mapped.len().next_multiple_of(least) as u64);
        let batches = engine.batches(class);
        batches.in_flight.set(batches.in_flight.get() - 1);
        outcome.set(result);
        send_if_due(&engine, class); // group commit: the last that returns sends what has gathered
    });
}

fn user_lbas(blocks: &[StripeBlock]) -> impl Iterator<Item = u64> {
    blocks.iter().filter_map(|block| user_lba(&block.entry))
}

fn user_lba(entry: &BlockEntry) -> Option<u64> {
    if let BlockName::User(lba) = entry.name { Some(lba) } else { None }
}

/// Writes blocks as stripes, mostly one, and maps them. Also returns how many were mapped: all but the last ones.
async fn send_blocks<D: ZoneDevice>(
    engine: &Rc<LogEngine<D>>,
    class: Class,
    blocks: &[StripeBlock],
    fua: bool,
) -> (Result<(), VolumeError>, usize) {
    let (shared, mapped) = (&engine.port.shared, Cell::new(0));
    let map = |first: usize, places: &[BlockPlace]| {
        mapped.set(first + places.len());
        map_blocks(shared, &blocks[first..mapped.get()], places);
    };
    let result = write_stripes(&engine.port, &engine.open, Stream::Clients(class), blocks, fua, map).await;
    (result, mapped.get())
}

/// Writes blocks as stripes. When a stripe has returned whole, passes the index of its first block and the places of all to `map`, one
/// stripe after the other. One that a zone or member refused goes to another segment, from the buffers that it is still in.
pub(super) async fn write_stripes<D: ZoneDevice>(
    port: &Rc<LogPort<D>>,
    open: &OpenSegments,
    stream: Stream,
    blocks: &[StripeBlock],
    fua: bool,
    map: impl Fn(usize, &[BlockPlace]),
) -> Result<(), VolumeError> {
    let (mut rest, mut tries) = (blocks, 0);
    while !rest.is_empty() {
        let segment = open.current(port, stream).await?;
        let Some((reserved, count)) = reserve(&segment, rest.len()).await else {
            segment.close(); // it is full: the next look opens another
            continue;
        };
        let (now, later) = rest.split_at(count);
        let written = write_stripe(port, &segment, reserved, now, fua).await;
        let note = match written {
            Ok(written) => {
                // Z-I1: every record of the stripe has returned on all columns of its segment.
                let first = blocks.len() - rest.len();
                let places = (0..now.len()).map(|at| block_at(&segment, &written, at));
                map(first, &places.collect::<SmallVec<[BlockPlace; 16]>>());
                rest = later;
                Some(written.note)
            }
            Err(blame) => {
                tries += 1;
                if blame == Blame::Array || tries == TRIES_MAX {
                    returned(&segment, reserved, None);
                    return Err(refused(blame, tries));
                }
                None
            }
        };
        returned(&segment, reserved, note);
    }
    Ok(())
}

/// Maps the blocks of a stripe. Zeroes are mapped by the request that wrote them; until reclaim finds that they do not stand
/// any more, their segment keeps them (Z-I13).
fn map_blocks(shared: &LogShared, blocks: &[StripeBlock], places: &[BlockPlace]) {
    let shape = shared.map.shape();
    let mut written: SmallVec<[WrittenBlock; 16]> = SmallVec::new();
    for (StripeBlock { entry, data }, &place) in blocks.iter().zip(places) {
        if let Some(block) = user_lba(entry) {
            let mapped = MapEntry::At { place, checksum: shape.checksum_of(entry.checksum) };
            written.push(WrittenBlock { block, sequence: entry.sequence, entry: mapped });
        } else {
            shared.table.add_list(place.slot);
            let ranges = ZeroesEntry::parse_all(data.bytes(), entry).unwrap_or_default();
            for range in ranges {
                shared.zeroed.add(range.lba..range.lba + u64::from(range.blocks), range.sequence);
            }
        }
    }
    let Some(place) = places.first() else { return };
    let newest = blocks.iter().map(|block| block.entry.sequence).max().unwrap_or_default();
    shared.table.note_sequence(place.slot, newest);
    shared.map.apply(&written, |changes| shared.count(changes));
    if shared.checkpoints.is_due(shared.map.changed()) {
        shared.space.want();
    }
}
