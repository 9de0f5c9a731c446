//! The records of a stripe go to all columns of a segment.

use std::sync::Arc;

use layout::units::Slot;
use layout::zoned::{BlockPlace, DataOffset};
use smallvec::SmallVec;

use super::append_table::WrongPlace;
use super::encode::{Encoded, StripeBlock, StripePlace, encode, position};
use super::port::{Blame, LogPort, Writing};
use super::segment::{Room, Segment, StripeNote};
use super::stripe_group::GroupStripe;
use crate::device::DeviceErrorKind;
use crate::events::Event;
use crate::executor::join_all;
use crate::limits::BLOCK_BYTES;
use crate::zone_device::ZoneDevice;

/// A stripe that was written whole.
pub struct Written {
    /// What the footer will say.
    pub note: StripeNote,
    /// The descriptor blocks of each record.
    pub descriptor_blocks: u32,
}

/// Where a stripe was reserved.
#[derive(Clone, Copy, Debug)]
pub enum Reserved {
    /// The engine chose the place.
    Room(Room),
    /// The drives choose.
    Group(GroupStripe),
}

/// Reserves room in a segment, and says how many of the blocks fit there. None: it is full or closed.
pub(super) async fn reserve(segment: &Segment, blocks: usize) -> Option<(Reserved, usize)> {
    let data = segment.data_columns();
    match &segment.groups {
        Some(groups) => {
            let stripe = groups.reserve().await?;
            let room = segment.shape().rows_max() as usize * data;
            Some((Reserved::Group(stripe), blocks.min(room)))
        }
        None => {
            let room = segment.reserve(blocks)?;
            Some((Reserved::Room(room), blocks.min(usize::from(room.rows) * data)))
        }
    }
}

/// All records of a stripe have returned; with a note it was written whole.
pub(super) fn returned(segment: &Segment, reserved: Reserved, note: Option<StripeNote>) {
    match reserved {
        Reserved::Room(room) => segment.returned(room.offset, note),
        Reserved::Group(stripe) => {
            segment.appended(stripe.group, note);
            segment.groups.as_ref().expect("an append segment").returned(stripe);
        }
    }
}

/// Encodes a stripe and starts its records on all columns, before anything is awaited: in a zone that is written in order
/// the records start in the order in which their room was reserved. Returns when all have returned. `blocks` fit.
pub fn write_stripe<'a, D: ZoneDevice>(
    port: &'a LogPort<D>,
    segment: &'a Arc<Segment>,
    reserved: Reserved,
    blocks: &[StripeBlock],
    fua: bool,
) -> impl Future<Output = Result<Written, Blame>> + use<'a, D> {
    let started = start(port, segment, reserved, blocks, fua);
    async move { finish(port, segment, reserved, started?).await }
}

struct Started<D: ZoneDevice> {
    encoded: Encoded,
    rows: u8,
    /// Column, slot, and how often the slot's device had been exchanged.
    columns: SmallVec<[(u8, usize, u64); 8]>,
    writing: SmallVec<[Writing<D>; 8]>,
}

fn start<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    reserved: Reserved,
    blocks: &[StripeBlock],
    fua: bool,
) -> Result<Started<D>, Blame> {
    let sequence = port.shared.sequences.take().ok_or(Blame::Array)?;
    let shape = segment.shape();
    let (offset, id, rows) = match reserved {
        Reserved::Room(room) => (room.offset, None, room.rows),
        Reserved::Group(stripe) => {
            let offset = DataOffset(stripe.group * shape.group_blocks());
            (offset, Some(stripe.id), shape.rows_max() as u8)
        }
    };
    let epoch = port.shared.epoch.random;
    let place = StripePlace { offset, id, rows, epoch, sequence, durable_block: segment.durable_block() };
    let encoded = encode(&segment.headers, &place, blocks, &port.zeroes, &port.pool);
    port.counters().stripe_writes.add(1);
    let mut started = Started { encoded, rows, columns: SmallVec::new(), writing: SmallVec::new() };
    for (column, slot, zone) in segment.zones() {
        let Some(zone) = zone else { continue }; // left out
        let block = id.is_none().then_some(offset.zone_block());
        let record = std::mem::take(&mut started.encoded.records[usize::from(column)]);
        if let Some(writing) = port.write(slot, zone, block, record, fua) {
            started.columns.push((column, slot, port.shared.members.exchanges(slot)));
            started.writing.push(writing);
        } else {
            // The records that were started still land: the stripe is void, and the segment is closed.
            segment.damage(column);
        }
    }
    Ok(started)
}

async fn finish<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    reserved: Reserved,
    started: Started<D>,
) -> Result<Written, Blame> {
    let shape = segment.shape();
    let width = usize::from(shape.plan().columns.width());
    let fixed = match reserved {
        Reserved::Room(room) => room.offset.0,
        Reserved::Group(_) => 0,
    };
    let mut starts: SmallVec<[u32; 8]> = smallvec::smallvec![fixed; width];
    let mut worst = segment.is_damaged().then_some(Blame::Zone);
    for ((column, slot, exchanges), result) in
        started.columns.into_iter().zip(join_all(started.writing).await)
    {
        let placed = match (result, reserved) {
            (Ok(Some(at_bytes)), Reserved::Group(stripe)) => {
                believe(port, segment, (column, slot), stripe, at_bytes)
            }
            (Ok(_), _) => Ok(fixed),
            (Err(error), _) => {
                // The column gets no footer; its zone is not written again before its report was read (Z-I8).
                segment.damage(column);
                Err(port.judge_since(slot, exchanges, &error))
            }
        };
        match placed {
            Ok(start) => starts[usize::from(column)] = start,
            Err(blame) if worst.is_none_or(|worst| worst != Blame::Array) => worst = Some(blame),
            Err(_) => {}
        }
    }
    if let Some(blame) = worst {
        segment.close();
        return Err(blame);
    }
    if let Reserved::Group(stripe) = reserved {
        place_left_out(segment, stripe, &mut starts);
    }
    let Encoded { entries, descriptors, .. } = started.encoded;
    let id = if let Reserved::Group(stripe) = reserved { stripe.id } else { 0 };
    let descriptor_blocks = (descriptors.len() / segment.data_columns()) as u32;
    Ok(Written {
        note: StripeNote { starts, id, rows: started.rows, descriptors, entries },
        descriptor_blocks,
    })
}

/// No drive chooses a place for the records of a column that is left out. They get those of their ids, by which the map names
/// what is made from the other columns.
fn place_left_out(segment: &Segment, stripe: GroupStripe, starts: &mut [u32]) {
    let (shape, places) = (segment.shape(), segment.places_in_memory());
    let places = places.expect("memory has the places of a segment that takes records");
    for (column, _, zone) in segment.zones() {
        if zone.is_none() {
            let record_blocks = u32::from(shape.plan().record_blocks);
            let start = stripe.group * shape.group_blocks() + u32::from(stripe.id) * record_blocks;
            places
                .table
                .place(column, stripe.group, stripe.id, start)
                .expect("each id has a place of its own");
            starts[usize::from(column)] = start;
        }
    }
}

/// Z-I14: the place that an append returned, if it can be there.
fn believe<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    (column, slot): (u8, usize),
    stripe: GroupStripe,
    at_bytes: u64,
) -> Result<u32, Blame> {
    let places = segment.places_in_memory();
    let places = places.expect("memory has the places of a segment that takes records");
    let block = u32::try_from(at_bytes / BLOCK_BYTES as u64)
        .ok()
        .filter(|_| at_bytes.is_multiple_of(BLOCK_BYTES as u64));
    let offset = block.and_then(DataOffset::of_zone_block);
    let refused = match offset {
        None => WrongPlace::OffBlock { at_bytes },
        Some(offset) => match places.table.place(column, stripe.group, stripe.id, offset.0) {
            Ok(()) => return Ok(offset.0),
            Err(wrong) => wrong,
        },
    };
    segment.damage(column);
    let reason = format!("an append returned a place that cannot be: {refused}");
    if !matches!(refused, WrongPlace::Taken { .. }) {
        // An append that failed may have moved the pointer by a part of its length, and its answer may come later than this.
        let member = Slot::of_index(slot);
        port.shared.members.report(Event::MemberError {
            member,
            kind: DeviceErrorKind::NotAtPointer,
            error: reason,
        });
        return Err(Blame::Zone);
    }
    // What the drive wrote where is not known: of this member nothing more is believed.
    Err(port.fail(slot, &reason))
}

/// Where a block of a stripe is.
pub(super) fn block_at(segment: &Segment, written: &Written, block: usize) -> BlockPlace {
    let (index, row) = position(block, written.note.rows);
    let shape = segment.shape();
    // Of an append segment the band is that of the group, which any of its blocks tells.
    let column = shape.data_column(index, DataOffset(written.note.starts[0]));
    let start = DataOffset(written.note.starts[usize::from(column)]).zone_block();
    BlockPlace { slot: segment.slot(), column, block: start + written.descriptor_blocks + u32::from(row) }
}
