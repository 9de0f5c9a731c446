//! A check of what the members hold: every header, record and footer of the segments that take no more stripes. Footers name
//! what a column's records are, records name their own blocks; where footers are missing the other columns say which stripes
//! there are. What is wrong is named by member and byte, at every level. Nothing is changed.

use std::collections::BTreeMap;
use std::rc::Rc;

use layout::units::Slot;
use layout::zoned::{DataOffset, FooterBlock, SegmentHeader, ZonePlace};

use super::port::LogPort;
use super::recover::decide::is_void;
use super::recover::scan::{
    ColumnFound, HeaderFound, RecordFound, ZoneFound, read_footer, scan_column, scan_zone,
};
use super::segment::{Segment, SegmentState};
use crate::events::Event;
use crate::limits::BLOCK_BYTES;
use crate::members::MemberState;
use crate::zone_device::ZoneDevice;

/// A block that is not what was written there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The member's slot.
    pub slot: usize,
    /// The zone.
    pub zone: u32,
    /// The block of the zone.
    pub block: u32,
    /// What is wrong there.
    pub what: &'static str,
}

/// Checks every segment, and reports each damage.
pub async fn check<D: ZoneDevice>(port: &LogPort<D>) -> Vec<Damage> {
    let mut all = Vec::new();
    for segment in port.shared.table.all() {
        if matches!(segment.state(), SegmentState::Sealed | SegmentState::Short) {
            all.extend(check_segment(port, &segment).await);
        }
    }
    all.iter().for_each(|damage| report(port, damage));
    all
}

/// Reports damage as an event.
pub fn report<D: ZoneDevice>(port: &LogPort<D>, damage: &Damage) {
    let Some(device) = port.device(damage.slot) else { return };
    let in_zone = u64::from(damage.block) * BLOCK_BYTES as u64;
    port.shared.members.report(Event::LogDamaged {
        member: Slot::of_index(damage.slot),
        offset_bytes: device.zoned().offset_bytes(damage.zone, in_zone),
        what: damage.what,
    });
}

async fn check_segment<D: ZoneDevice>(port: &LogPort<D>, segment: &Segment) -> Vec<Damage> {
    let mut damages = Vec::new();
    let mut columns: Vec<(&SegmentHeader, ZoneFound, ColumnFound)> = Vec::new();
    for (column, slot, zone) in segment.zones() {
        let (Some(zone), Some(device)) = (zone, port.device(slot)) else { continue };
        if port.shared.members.state(slot) != MemberState::InSync {
            continue;
        }
        let header = &segment.headers[usize::from(column)];
        let config = &port.shared.config;
        let place =
            ZonePlace { set_uuid: config.set_uuid, device_uuid: port.shared.members.uuid(slot), zone };
        let Some(found) = scan_zone(&device, &port.pool, place, slot).await else {
            damages.push(Damage { slot, zone, block: 0, what: "the zone cannot be read" });
            continue;
        };
        let is_own = |there: &SegmentHeader| (there.segment, there.tag) == (header.segment, header.tag);
        if !matches!(&found.header, HeaderFound::Right(there) if is_own(there)) {
            damages.push(Damage { slot, zone, block: 0, what: "the segment's header is not right" });
        }
        let held = column_of(port, &device, &found, header).await;
        columns.push((header, found, held));
    }
    let is_sealed = segment.state() == SegmentState::Sealed;
    let footer_at = columns.iter().find_map(|(_, _, held)| footer_block(held));
    let newest = columns.iter().map(|(_, _, held)| epoch_of(held)).max().flatten();
    for (header, zone, held) in &columns {
        let mut damage = |block, what| damages.push(Damage { slot: zone.slot, zone: zone.zone, block, what });
        match (&held.footer, footer_at) {
            (Some(footer), _) => unnamed(header, held, footer, &mut damage),
            (None, Some(block)) => damage(block, "there is no right footer, which other columns have"),
            (None, None) if is_sealed => damage(end_of(header, held), "there is no right footer"),
            (None, None) => {}
        }
        if held.footer.is_none() || epoch_of(held) < newest {
            remains(port, header, zone, held, &mut damage).await;
        }
        if held.footer.is_none() {
            missing(header, held, columns.iter().map(|(header, _, held)| (*header, held)), &mut damage);
        }
    }
    damages
}

async fn column_of<D: ZoneDevice>(
    port: &LogPort<D>,
    device: &Rc<D>,
    zone: &ZoneFound,
    header: &SegmentHeader,
) -> ColumnFound {
    let footer = read_footer(&**device, &port.pool, zone, header).await;
    let mut held = scan_column(&**device, &port.pool, zone, header).await;
    held.footer = footer.or(held.footer);
    held
}

/// The block at which a column's footer begins.
fn footer_block(held: &ColumnFound) -> Option<u32> {
    let first: &FooterBlock = held.footer.as_ref()?.first()?;
    Some(DataOffset(first.data_blocks).zone_block())
}

/// The number of the epoch of a column's footer. One of an earlier epoch than the other columns' may be what is found where a newer
/// one is damaged.
fn epoch_of(held: &ColumnFound) -> Option<u32> {
    Some(held.footer.as_ref()?.first()?.epoch.number)
}

/// The block behind a column's last record.
fn end_of(header: &SegmentHeader, held: &ColumnFound) -> u32 {
    let ends = held.records.iter().map(|record| record.block + record.descriptor.record_blocks(header));
    ends.max().unwrap_or(DataOffset(0).zone_block())
}

/// Blocks of which no other column tells: what is left of a descriptor or a footer of this segment that is not right.
async fn remains<D: ZoneDevice>(
    port: &LogPort<D>,
    header: &SegmentHeader,
    zone: &ZoneFound,
    held: &ColumnFound,
    damage: &mut impl FnMut(u32, &'static str),
) {
    let end = end_of(header, held);
    for block in DataOffset(0).zone_block()..held.end_block {
        let is_covered = held.records.iter().any(|record| {
            (record.block..record.block + record.descriptor.record_blocks(header)).contains(&block)
        });
        if is_covered {
            continue;
        }
        let Some(read) = port.read(zone.slot, zone.zone, block, 1) else { return };
        let (bytes, result) = read.await;
        if FooterBlock::parse(bytes.bytes(), header, block).is_ok() {
            continue;
        }
        if result.is_ok() && looks_like_structure(bytes.bytes(), header) {
            damage(block, "a descriptor or a footer of the segment is not right");
        } else if block < end {
            damage(block, "nothing tells what the block was");
        }
    }
}

/// Whether magic and tag are those of this segment's descriptor or footer, but for one byte.
fn looks_like_structure(bytes: &[u8], header: &SegmentHeader) -> bool {
    let tag = header.tag.to_le_bytes();
    let differ = |magic: &[u8], tag_at: usize| {
        let pairs = bytes.iter().zip(magic).chain(bytes[tag_at..].iter().zip(&tag));
        pairs.filter(|(own, expected)| own != expected).count()
    };
    differ(b"TwRc", 44) <= 1 || differ(b"TwZonFt\0", 32) <= 1
}

/// What a column's footer names, and no right record covers.
fn unnamed(
    header: &SegmentHeader,
    held: &ColumnFound,
    footer: &[FooterBlock],
    damage: &mut impl FnMut(u32, &'static str),
) {
    let mut covered = vec![false; footer.first().map_or(0, |first| first.data_blocks as usize)];
    for record in held.records.iter().filter(|record| record.is_whole) {
        let start = record.block - DataOffset(0).zone_block();
        let blocks = record.descriptor.record_blocks(header);
        covered.iter_mut().skip(start as usize).take(blocks as usize).for_each(|covered| *covered = true);
    }
    let entries = footer.iter().flat_map(|block| &block.entries);
    for ((offset, entry), is_covered) in (0u32..).zip(entries).zip(covered) {
        if !is_covered && !is_void(header, DataOffset(offset), entry) {
            damage(DataOffset(offset).zone_block(), "the record is not what the footer names");
        }
    }
}

/// Without a footer: stripes of which another column has a record, and this one has no right one.
fn missing<'a>(
    header: &SegmentHeader,
    held: &ColumnFound,
    all: impl Iterator<Item = (&'a SegmentHeader, &'a ColumnFound)>,
    damage: &mut impl FnMut(u32, &'static str),
) {
    let is_append = header.shape.is_append();
    let key = |record: &RecordFound| match DataOffset::of_zone_block(record.block) {
        Some(offset) if is_append => (header.shape.group_of(offset), record.descriptor.stripe.stripe),
        offset => (offset.map_or(0, |offset| offset.0), 0),
    };
    let own: BTreeMap<(u32, u32), &RecordFound> =
        held.records.iter().map(|record| (key(record), record)).collect();
    let mut stripes = BTreeMap::new();
    for (_, column) in all {
        stripes.extend(column.records.iter().map(|record| (key(record), record.block)));
    }
    for (stripe, block) in stripes {
        match own.get(&stripe) {
            Some(record) if record.is_whole => {}
            Some(record) => damage(record.block, "the record's blocks are not those that it names"),
            None => damage(block, "there is no record of a stripe that other columns have"),
        }
    }
}
