//! The check of a zoned array beside its clients: every record of every stripe that counts is on every column that is in sync,
//! and each of its blocks has the checksum that its descriptor names. So a bad block is named by member and byte at every
//! level, RAID-0 too, and parity that was written wrong is found by what was written beside it.
//!
//! A repair has reclaim empty the segments in which something is wrong; one that takes records still is left as it is.
//!
//! The footers of a segment say which stripes count; of one that is open, or was cut short, the engine has noted it. A column that
//! never got a footer is not damaged: a drive may finish a zone by itself, and a start ends one with a fence.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use layout::units::Slot;
use layout::zoned::{
    BlockName, Carrier, Checksum, ColumnRole, DataOffset, Epoch, FooterBlock, FooterPart, SegmentHeader,
    ZonePlace, ZonedError,
};

use super::superblock_log::damaged_superblocks;
use crate::array::scrub::{Phase, ScrubState};
use crate::buffer::Buffer;
use crate::events::Event;
use crate::limits::BLOCK_BYTES;
use crate::log::port::LogPort;
use crate::log::read_places::places_of;
use crate::log::recover::decide::is_void;
use crate::log::recover::scan::{
    ColumnFound, HeaderFound, RecordFound, ZoneFound, read_blocks, read_footer, scan_column,
};
use crate::log::segment::{Segment, SegmentState, StripeKey, StripePlace};
use crate::members::MemberState;
use crate::mismatch::{BlockPlace, Checked, Mismatch, Outcome, Unit, Wrong};
use crate::zone_device::{ZoneDevice, ZoneState};
use layout::units::DeviceOffset;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks that are read at once where a footer may be.
const RUN_BLOCKS: usize = 64;

/// Checks superblock logs and segments from `state.next_stripe` on, a segment number, until `state` is no longer running.
pub async fn check<D: ZoneDevice>(port: Rc<LogPort<D>>, state: Rc<RefCell<Option<ScrubState>>>) {
    let is_running = || state.borrow().as_ref().is_some_and(|state| state.phase == Phase::Running);
    let from = state.borrow().as_ref().map_or(0, |state| state.next_stripe);
    let repairs = state.borrow().as_ref().is_some_and(|state| state.mode.repair);
    if from == 0 {
        let checked = check_superblocks(&port).await;
        add(&port, &state, checked, 1);
    }
    let mut numbers: Vec<(u64, u32)> =
        port.shared.table.all().iter().map(|segment| (segment.number(), segment.slot())).collect();
    numbers.sort_unstable();
    for (number, slot) in numbers.into_iter().filter(|(number, _)| *number >= from) {
        if !is_running() {
            return;
        }
        // What was emptied meanwhile has nothing to be checked.
        let there = port.shared.table.get(slot).filter(|segment| segment.number() == number);
        let checked = match there {
            Some(segment) => {
                let checked = check_segment(&port, &segment).await;
                if repairs && !checked.found.is_empty() {
                    mend(&port, &segment, checked).await
                } else {
                    checked
                }
            }
            None => Checked::default(),
        };
        add(&port, &state, checked, number + 1);
    }
    let mut state = state.borrow_mut();
    if let Some(state) = state.as_mut().filter(|state| state.phase == Phase::Running) {
        state.phase = Phase::Finished;
        let report = &state.report;
        port.shared.members.report(Event::ScrubFinished {
            repair: repairs,
            mismatch_sectors: report.mismatch_sectors,
            repaired: report.repaired,
            left: report.left,
        });
    }
}

fn add<D>(port: &LogPort<D>, state: &RefCell<Option<ScrubState>>, checked: Checked, next: u64) {
    let mut state = state.borrow_mut();
    let Some(state) = state.as_mut() else { return };
    state.next_stripe = next;
    for mismatch in state.report.add(checked, state.mode) {
        port.shared.members.report(Event::Mismatch(mismatch));
    }
}

/// Nothing is rewritten in place: what counts of the segment is made from its right columns, elsewhere.
async fn mend<D: ZoneDevice>(port: &LogPort<D>, segment: &Segment, mut checked: Checked) -> Checked {
    let is_emptied = port.shared.space.mended(segment.key()).await;
    let outcome = if is_emptied { Outcome::Moved } else { Outcome::NotRepaired };
    checked.found.iter_mut().for_each(|mismatch| mismatch.outcome = outcome);
    checked
}

async fn check_superblocks<D: ZoneDevice>(port: &LogPort<D>) -> Checked {
    let mut checked = Checked::default();
    for slot in port.shared.members.in_sync() {
        let Some(device) = port.device(slot) else { continue };
        let damaged = damaged_superblocks(&*device, &port.pool).await.unwrap_or_default();
        for place in damaged {
            let at = device.zoned().offset_bytes(place.zone, u64::from(place.block) * BLOCK);
            checked.found.push(mismatch(0, Wrong::Data, (slot, at), u64::from(place.block) * BLOCK));
        }
    }
    checked
}

/// A column of a segment, as far as it can be read.
struct Column {
    header: SegmentHeader,
    slot: usize,
    zone: u32,
    found: ColumnFound,
    /// Its footer is of the newest epoch that any column has one of. An older one may name what did not count in the end.
    has_newest: bool,
}

impl Column {
    fn footer(&self) -> impl Iterator<Item = &FooterBlock> {
        self.found.footer.iter().flatten().filter(|_| self.has_newest)
    }

    fn epoch(&self) -> Option<Epoch> {
        Some(self.found.footer.as_ref()?.first()?.epoch)
    }
}

async fn check_segment<D: ZoneDevice>(port: &LogPort<D>, segment: &Segment) -> Checked {
    // Z-I4: its zones are not reset meanwhile.
    let _pin = port.shared.pins.enter(port.shard);
    let mut checked = Checked::default();
    if port.shared.space.is_mending(segment.key()) || is_emptied(port, segment) {
        checked.skipped = true;
        return checked;
    }
    let counted = segment.counted();
    let mut columns = Vec::new();
    for (column, slot, zone) in segment.zones() {
        let (Some(zone), Some(device)) = (zone, port.device(slot)) else { continue };
        // What a column lacks since its member was away is no damage: reclaim makes it again elsewhere.
        let lacks = segment.readable_zone_of(column).is_none();
        if port.shared.members.state(slot) != MemberState::InSync || lacks {
            continue;
        }
        let header = segment.headers[usize::from(column)].clone();
        if !header_is_right(port, &*device, &header, (slot, zone)).await {
            let at = device.zoned().offset_bytes(zone, 0);
            checked.found.push(mismatch(segment.number(), Wrong::Data, (slot, at), 0));
        }
        let end = counted.as_ref().and_then(|(_, end)| *end);
        let found = scan(port, &*device, &header, (slot, zone), end).await;
        columns.push(Column { header, slot, zone, found, has_newest: false });
    }
    let newest = columns.iter().filter_map(Column::epoch).max_by_key(|epoch| epoch.number);
    columns.iter_mut().for_each(|column| column.has_newest = newest.is_some() && column.epoch() == newest);
    for column in &columns {
        check_footer(port, segment, column, &columns, &mut checked).await;
    }
    let Some(keys) = keys(segment, counted.map(|(places, _)| places), &columns) else {
        checked.skipped = true;
        return checked;
    };
    for column in &columns {
        let mut known = Vec::new();
        for (key, (start, blocks)) in &keys {
            known.push(check_record(port, segment, column, (*key, *start, *blocks), &mut checked).await);
        }
        check_rest(port, segment, column, &known, &mut checked).await;
    }
    checked
}

/// Nothing of a segment counts any more, and its zones are to be reset: a cut during that may have taken some of them back to any
/// moment of their lives.
fn is_emptied<D>(port: &LogPort<D>, segment: &Segment) -> bool {
    port.shared.table.live(segment.slot()) == 0 && port.shared.space.needs_entry(segment.key())
}

async fn header_is_right<D: ZoneDevice>(
    port: &LogPort<D>,
    device: &D,
    header: &SegmentHeader,
    (slot, zone): (usize, u32),
) -> bool {
    let config = &port.shared.config;
    let place = ZonePlace { set_uuid: config.set_uuid, device_uuid: port.shared.members.uuid(slot), zone };
    let (buffer, result) =
        device.read(device.zoned().offset_bytes(zone, 0), port.pool.take(BLOCK_BYTES)).await;
    let read: Result<SegmentHeader, ZonedError> = SegmentHeader::parse(buffer.bytes(), place);
    result.is_ok()
        && read.is_ok_and(|read| {
            (read.segment, read.tag, read.column) == (header.segment, header.tag, header.column)
        })
}

/// Reads a column: all of it, or up to a block of the data region.
async fn scan<D: ZoneDevice>(
    port: &LogPort<D>,
    device: &D,
    header: &SegmentHeader,
    (slot, zone): (usize, u32),
    length: Option<u32>,
) -> ColumnFound {
    let capacity = port.shared.config.capacity_blocks;
    let end_block = length.map_or(capacity, |length| DataOffset(length).zone_block());
    let found = HeaderFound::Right(Arc::new(header.clone()));
    let zone = ZoneFound {
        slot,
        zone,
        state: ZoneState::NoPointer,
        end_block,
        torn_bytes: 0,
        header: found,
        is_ended: false,
    };
    let footer = read_footer(device, &port.pool, &zone, header).await;
    let scanned = scan_column(device, &port.pool, &zone, header).await;
    ColumnFound { footer: footer.or(scanned.footer), ..scanned }
}

/// The stripes that count, each with the place of its record where columns have it at the same one, and its length. None:
/// nothing tells.
fn keys(
    segment: &Segment,
    counted: Option<Vec<StripePlace>>,
    columns: &[Column],
) -> Option<BTreeMap<StripeKey, (u32, u32)>> {
    let shape = segment.shape();
    if let Some(counted) = counted {
        let key = |place: StripePlace| (place.key(shape), (place.start, place.blocks));
        return Some(counted.into_iter().map(key).collect());
    }
    let mut keys = BTreeMap::new();
    if columns.iter().all(|column| column.found.footer.is_none()) {
        // All footers are gone: what has a descriptor was written, and the segment was not sealed before all of it was whole.
        let records =
            columns.iter().flat_map(|column| column.found.records.iter().map(move |own| (column, own)));
        let key = |(column, own): (&Column, &RecordFound)| {
            (own.key(&column.header), (own.start().0, own.blocks(&column.header)))
        };
        return (segment.state() == SegmentState::Sealed).then(|| records.map(key).collect());
    }
    for column in columns {
        match shape.plan().carrier {
            Carrier::Inband => keys.extend(named_records(column)),
            // Out of band a footer names rows only: what it names of a record that some column has counts.
            Carrier::Oob => {
                for record in &column.found.records {
                    let (start, blocks) = (record.start().0, record.blocks(&column.header));
                    let key = record.key(&column.header);
                    if columns.iter().any(|named| names(named, key, blocks)) {
                        keys.insert(key, (start, blocks));
                    }
                }
            }
        }
    }
    Some(keys)
}

/// The records whose descriptors a column's footer names. What it does not name is void.
fn named_records(column: &Column) -> Vec<(StripeKey, (u32, u32))> {
    let shape = &column.header.shape;
    let (mut records, mut next) = (Vec::new(), 0);
    let entries = column.footer().flat_map(|block| &block.entries);
    for (offset, entry) in (0u32..).zip(entries) {
        let FooterPart::Named(named) = entry.part else { continue };
        let BlockName::Descriptor(rows) = named.name else { continue };
        let rows = u32::try_from(rows).unwrap_or(u32::MAX);
        let blocks = shape.plan().carrier.record_blocks(rows, shape.plan().columns.data());
        let (Some(blocks), true) = (blocks, offset >= next) else { continue };
        let key = StripeKey::new(shape, DataOffset(offset), entry.stripe.into());
        records.push((key, (offset, blocks)));
        next = offset + blocks;
    }
    records
}

/// Whether the footer of a column names a block of a stripe as something other than padding.
fn names(column: &Column, key: StripeKey, blocks: u32) -> bool {
    let start = match key {
        StripeKey::At(start) => start,
        StripeKey::Appended { .. } => {
            let own = column.found.records.iter().find(|record| record.key(&column.header) == key);
            let Some(own) = own else { return false };
            own.start()
        }
    };
    let entries = column.footer().flat_map(|block| &block.entries);
    entries.skip(start.0 as usize).take(blocks as usize).any(|entry| match entry.part {
        FooterPart::Named(named) => !matches!(named.name, BlockName::Padding | BlockName::Descriptor(_)),
        FooterPart::Coded(_) => false,
    })
}

/// A column has its footer, whole. Where the segment is sealed each had one; else only what is left of it tells.
async fn check_footer<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    column: &Column,
    columns: &[Column],
    checked: &mut Checked,
) {
    let is_sealed = segment.state() == SegmentState::Sealed;
    if column.has_newest || matches!(segment.state(), SegmentState::Open | SegmentState::Closing) {
        return;
    }
    let whole = column.found.records.iter().filter(|record| record.is_whole);
    let whole: Vec<Range<u32>> = whole.map(|own| own.block..own.block + own.blocks(&column.header)).collect();
    let end_block = whole.iter().map(|own| own.end).max().unwrap_or(DataOffset(0).zone_block());
    let others = columns.iter().filter_map(|other| other.footer().next());
    let length = others.map(|footer| footer.data_blocks).max();
    let first = length.map_or(end_block, |length| DataOffset(length).zone_block());
    let length = length.unwrap_or(end_block - DataOffset(0).zone_block());
    let expected = first..first + column.header.shape.footer_blocks_of(length);
    let is_wrong = |block: u32, bytes: Option<&[u8]>| match bytes {
        None => is_sealed && expected.contains(&block),
        Some(bytes) if is_sealed && expected.contains(&block) => {
            FooterBlock::parse(bytes, &column.header, block).is_err()
        }
        Some(bytes) => FooterBlock::is_one_bit_off(bytes, &column.header, block),
    };
    let Some(device) = port.device(column.slot) else { return };
    let capacity = port.shared.config.capacity_blocks;
    // Behind a footer may stand records that a power cut left and that do not count: all of the zone is looked at. But a block of a
    // record whose checksums were right is no part of a footer, unless it stands where the footer should.
    let mut is_record = vec![false; capacity as usize];
    whole.iter().for_each(|own| is_record[own.start as usize..own.end as usize].fill(true));
    let is_left = |block: &u32| !is_record[*block as usize] || is_sealed && expected.contains(block);
    let left: Vec<u32> = (DataOffset(0).zone_block()..capacity).filter(is_left).collect();
    let runs = left.chunk_by(|block, next| block + 1 == *next);
    for run in runs.flat_map(|run| run.chunks(RUN_BLOCKS)) {
        let (first, run) = (run[0], run[0]..run[0] + run.len() as u32);
        let mut wrong: Vec<u32> = Vec::new();
        match read_blocks(&*device, &port.pool, column.zone, first, run.len() as u32).await {
            Some(read) => {
                let blocks = run.zip(read.bytes().chunks_exact(BLOCK_BYTES));
                wrong.extend(
                    blocks.filter(|(block, bytes)| is_wrong(*block, Some(bytes))).map(|(block, _)| block),
                );
            }
            None => {
                for block in run {
                    let read = read_blocks(&*device, &port.pool, column.zone, block, 1).await;
                    wrong.extend(is_wrong(block, read.as_ref().map(Buffer::bytes)).then_some(block));
                }
            }
        }
        for block in wrong {
            checked.found_in(Some(at(port, segment, column, block, Wrong::Data)));
        }
    }
}

/// The record of a stripe is in its column, and all of its blocks are right. The blocks at which it is, or should be.
async fn check_record<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    column: &Column,
    (key, start, blocks): (StripeKey, u32, u32),
    checked: &mut Checked,
) -> Range<u32> {
    let own = column.found.records.iter().find(|record| record.key(&column.header) == key);
    let Some(record) = own else {
        let start = match (places_of(port, segment).await.ok().flatten(), key) {
            (Some(places), StripeKey::Appended { group, id }) => {
                places.table.find(column.header.column, group, id as u16)
            }
            _ => Some(start),
        };
        let block = DataOffset(start.unwrap_or(0)).zone_block();
        let wrong = kind(column, block);
        checked.found.push(at(port, segment, column, block, wrong));
        return block..block + blocks;
    };
    let of_record = record.block..record.block + blocks;
    if record.is_whole {
        return of_record;
    }
    // In band the descriptor comes first. Out of band each block has its own sum beside it, up to the first whose metadata is wrong.
    let first = match record.parts.is_empty() {
        true => of_record.end - record.descriptor.checksums.len() as u32,
        false => of_record.start,
    };
    let known = record.descriptor.checksums.iter().copied().map(Some);
    for (block, checksum) in (first..of_record.end).zip(known.chain(std::iter::repeat(None))) {
        check_block(port, segment, column, (block, checksum), checked).await;
    }
    of_record
}

/// What the column's footer names beside these records: of descriptors that are damaged no other column may tell.
async fn check_rest<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    column: &Column,
    known: &[Range<u32>],
    checked: &mut Checked,
) {
    let whole = column.found.records.iter().filter(|record| record.is_whole);
    let whole: Vec<Range<u32>> = whole.map(|own| own.block..own.block + own.blocks(&column.header)).collect();
    let is_known = |block| known.iter().chain(&whole).any(|known| known.contains(&block));
    let entries = column.footer().flat_map(|block| &block.entries);
    let is_oob = segment.shape().plan().carrier == Carrier::Oob;
    let mut before = None;
    for (offset, entry) in (0u32..).map(DataOffset).zip(entries) {
        let block = offset.zone_block();
        if is_void(&column.header, offset, entry) || is_known(block) {
            continue;
        }
        let begins = before.replace(block) != block.checked_sub(1);
        match entry.part {
            // A record begins here, and what says so is not right. What is coded has no sum of its own.
            FooterPart::Named(_) if begins && is_oob => {
                check_block(port, segment, column, (block, None), checked).await;
            }
            FooterPart::Coded(_) if begins => {
                check_block(port, segment, column, (block, None), checked).await;
            }
            FooterPart::Named(named) => {
                check_block(port, segment, column, (block, Some(named.checksum)), checked).await;
            }
            FooterPart::Coded(_) => {}
        }
    }
}

/// A block has this checksum. None: nothing tells that it is right.
async fn check_block<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    column: &Column,
    (block, checksum): (u32, Option<u32>),
    checked: &mut Checked,
) {
    let Some(device) = port.device(column.slot) else { return };
    let place = device.zoned().offset_bytes(column.zone, u64::from(block) * BLOCK);
    let (buffer, result) = device.read(place, port.pool.take(BLOCK_BYTES)).await;
    if result.is_err() || checksum.is_none_or(|checksum| Checksum::of(buffer.bytes()) != checksum) {
        checked.found_in(Some(at(port, segment, column, block, kind(column, block))));
    }
}

fn kind(column: &Column, block: u32) -> Wrong {
    let Some(offset) = DataOffset::of_zone_block(block) else { return Wrong::Data };
    match column.header.shape.role(column.header.column, offset) {
        ColumnRole::Data(_) => Wrong::Data,
        ColumnRole::Copy(_) => Wrong::Copy,
        ColumnRole::P => Wrong::P,
        ColumnRole::Q => Wrong::Q,
    }
}

fn at<D: ZoneDevice>(
    port: &LogPort<D>,
    segment: &Segment,
    column: &Column,
    block: u32,
    wrong: Wrong,
) -> Mismatch {
    let in_zone = u64::from(block) * BLOCK;
    let offset_bytes = port
        .device(column.slot)
        .map_or(DeviceOffset::START, |device| device.zoned().offset_bytes(column.zone, in_zone));
    mismatch(segment.number(), wrong, (column.slot, offset_bytes), in_zone)
}

fn mismatch(
    segment: u64,
    wrong: Wrong,
    (slot, offset_bytes): (usize, DeviceOffset),
    row_bytes: u64,
) -> Mismatch {
    let member = Slot::of_index(slot);
    Mismatch {
        unit: Unit::Segment(segment),
        row_bytes,
        bytes: BLOCK,
        wrong,
        blocks: vec![BlockPlace { member, offset_bytes }],
        array_offset_bytes: None,
        outcome: Outcome::Found,
    }
}
