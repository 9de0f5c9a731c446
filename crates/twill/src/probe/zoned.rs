//! What a zoned member says of itself: its superblock log, and what its zones hold. Contents alone are looked at, not write
//! pointers, so that an image of a drive is read as the drive is.

use std::io;

use layout::zoned::superblock_log::{self, LogCursor, LogZone, PLACED_LOG_BLOCKS};
use layout::zoned::{
    Access, BLOCK_BYTES, Carrier, DataOffset, FooterBlock, LogPlace, RecordDescriptor, SegmentHeader,
    Superblock, ZonePlace, ZonedError,
};

use super::member_file::MemberFile;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// Zones before the first segment: those of the superblock log.
const LOG_ZONES: u32 = superblock_log::LOG_ZONES;
/// Distances of zones that are tried where no superblock tells them: powers of two from 16 KiB to 16 GiB.
const DISTANCE_BITS: std::ops::RangeInclusive<u32> = 2..=22;
/// Zones whose headers vote for a distance.
const VOTERS: u32 = 64;

/// The superblock of a member.
#[derive(Debug)]
pub struct FoundLog {
    /// The newest superblock.
    pub superblock: Superblock,
    /// Where it is.
    pub place: LogPlace,
    /// Blocks of the log that were read and are damaged: a torn last one is normal.
    pub damaged_blocks: usize,
}

/// How far the records of a zone go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filled {
    /// The footer is there; of a segment that was closed early, it names fewer blocks than the data region has.
    Sealed {
        /// Blocks of the data region that it names.
        data_blocks: u32,
    },
    /// Right records from the start of the data region on, and no footer.
    Open {
        /// How many.
        records: u32,
        /// Blocks of the data region that they take.
        data_blocks: u32,
    },
    /// There is no footer, and the records' metadata is out of band, where an image has nothing.
    Unknown,
}

/// What a zone holds.
#[derive(Debug)]
pub enum ZoneContents {
    /// No segment header.
    Free,
    /// A column of a segment.
    Segment {
        /// Its header.
        header: Box<SegmentHeader>,
        /// How far it is filled.
        filled: Filled,
    },
    /// A header that is not usable, and why.
    Damaged(ZonedError),
}

/// How a member is cut into zones, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Zones {
    /// The array.
    pub set_uuid: [u8; 16],
    /// The member.
    pub device_uuid: [u8; 16],
    /// Blocks from one zone to the next.
    pub zone_blocks: u64,
    /// Zones that the device has room for.
    pub zones: u32,
}

impl FoundLog {
    /// How the member is cut into zones.
    pub fn zones(&self) -> Zones {
        let Superblock { set_uuid, device_uuid, zones, .. } = self.superblock;
        Zones { set_uuid, device_uuid, zone_blocks: zones.zone_blocks.into(), zones: zones.zones }
    }
}

/// The newest superblock of a zoned member; `None` if there is none.
///
/// # Errors
/// What the system says.
pub fn superblock_of(member: &MemberFile) -> io::Result<Option<FoundLog>> {
    let mut first = read_log(member, LogPlace { zone: 0, block: 0 }, 0)?;
    let Some(zone_blocks) = distance_of(&first) else { return superblock_of_zone_1(member) };
    read_on(member, &mut first, 0, 0)?;
    let mut second = read_log(member, LogPlace { zone: 1, block: 0 }, zone_blocks)?;
    read_on(member, &mut second, 1, zone_blocks)?;
    Ok(found([first, second]))
}

/// Zone 0 of the log is empty or damaged: zone 1 is at a distance that its own superblocks confirm.
fn superblock_of_zone_1(member: &MemberFile) -> io::Result<Option<FoundLog>> {
    for bits in DISTANCE_BITS {
        let start = 1 << bits;
        if start * BLOCK >= member.device_bytes {
            break;
        }
        let mut second = read_log(member, LogPlace { zone: 1, block: 0 }, start)?;
        if distance_of(&second) == Some(start) {
            read_on(member, &mut second, 1, start)?;
            return Ok(found([LogZone::default(), second]));
        }
    }
    Ok(None)
}

fn distance_of(zone: &LogZone) -> Option<u64> {
    superblocks(zone).next().map(|superblock| superblock.zones.zone_blocks.into())
}

fn superblocks(zone: &LogZone) -> impl Iterator<Item = &Superblock> {
    zone.blocks.iter().filter_map(|(_, read)| read.as_ref().ok())
}

fn found(zones: [LogZone; 2]) -> Option<FoundLog> {
    let is_damaged = |(_, read): &&(u32, Result<Superblock, ZonedError>)| {
        !matches!(read, Ok(_) | Err(ZonedError::Absent { .. } | ZonedError::Truncated { .. }))
    };
    let damaged_blocks = zones.iter().flat_map(|zone| &zone.blocks).filter(is_damaged).count();
    let (superblock, cursor): (Superblock, LogCursor) = superblock_log::newest(zones)?;
    Some(FoundLog { superblock, place: cursor.last()?, damaged_blocks })
}

/// Reads a piece of a zone of the log, from `from` on; the zone begins at block `start` of the device.
fn read_log(member: &MemberFile, from: LogPlace, start: u64) -> io::Result<LogZone> {
    let bytes =
        member.read((start + u64::from(from.block)) * BLOCK, PLACED_LOG_BLOCKS as usize * BLOCK_BYTES)?;
    let parse =
        |(block, bytes): (u32, &[u8])| (block, Superblock::parse(bytes, LogPlace { zone: from.zone, block }));
    let blocks = (from.block..).zip(bytes.chunks_exact(BLOCK_BYTES)).map(parse).collect();
    Ok(LogZone { written_blocks: 0, blocks })
}

/// Adds the piece with the end of the log in a zone of a drive, which is filled to its capacity: sequences rise, so the end
/// is found by halving.
fn read_on(member: &MemberFile, zone: &mut LogZone, number: u32, start: u64) -> io::Result<()> {
    let Some(first) = superblocks(zone).next().cloned() else { return Ok(()) };
    if first.zones.access == Access::Placed {
        return Ok(());
    }
    let pieces = first.zones.capacity_blocks.div_ceil(PLACED_LOG_BLOCKS);
    let (mut low, mut high) = (0, pieces);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        let place = LogPlace { zone: number, block: middle * PLACED_LOG_BLOCKS };
        let piece = read_log(member, place, start)?;
        if superblocks(&piece).any(|superblock| superblock.sequence >= first.sequence) {
            low = middle;
            zone.blocks.extend(piece.blocks);
        } else {
            high = middle;
        }
    }
    Ok(())
}

/// How a member is cut, by the headers of its segments: where the whole superblock log is damaged. The distance at which most
/// zones have a header of their own number counts; `None` if there is none.
///
/// # Errors
/// What the system says.
pub fn zones_by_headers(member: &MemberFile) -> io::Result<Option<Zones>> {
    let mut best: Option<(u32, Zones)> = None;
    for bits in DISTANCE_BITS {
        let zone_blocks = 1u64 << bits;
        let zones = u32::try_from(member.device_bytes / (zone_blocks * BLOCK)).unwrap_or(u32::MAX);
        let (mut votes, mut own) = (0, None);
        for zone in LOG_ZONES..zones.min(LOG_ZONES + VOTERS) {
            let bytes = member.read(u64::from(zone) * zone_blocks * BLOCK, BLOCK_BYTES)?;
            if let Ok((_, place)) = SegmentHeader::parse_anywhere(&bytes)
                && place.zone == zone
            {
                votes += 1;
                own = Some(place);
            }
        }
        if let Some(ZonePlace { set_uuid, device_uuid, .. }) = own
            && best.is_none_or(|(most, _)| votes > most)
        {
            best = Some((votes, Zones { set_uuid, device_uuid, zone_blocks, zones }));
        }
    }
    Ok(best.map(|(_, zones)| zones))
}

/// What each zone behind the superblock log holds, by its number.
pub fn contents<'a>(
    member: &'a MemberFile,
    zones: &'a Zones,
) -> impl Iterator<Item = io::Result<(u32, ZoneContents)>> + 'a {
    (LOG_ZONES..zones.zones).map(|zone| Ok((zone, contents_of(member, zones, zone)?)))
}

fn contents_of(member: &MemberFile, zones: &Zones, zone: u32) -> io::Result<ZoneContents> {
    let Zones { set_uuid, device_uuid, zone_blocks, .. } = *zones;
    let start = u64::from(zone) * zone_blocks;
    let bytes = member.read(start * BLOCK, BLOCK_BYTES)?;
    match SegmentHeader::parse(&bytes, ZonePlace { set_uuid, device_uuid, zone }) {
        Ok(header) => {
            let filled = filled(member, &header, start)?;
            Ok(ZoneContents::Segment { header: Box::new(header), filled })
        }
        Err(ZonedError::Absent { .. } | ZonedError::Truncated { .. }) => Ok(ZoneContents::Free),
        Err(error) => Ok(ZoneContents::Damaged(error)),
    }
}

/// Looks for the footer where that of a full segment is, and else follows the records from the first one on.
fn filled(member: &MemberFile, header: &SegmentHeader, start: u64) -> io::Result<Filled> {
    let footer_at = |block: u32| {
        let bytes = member.read((start + u64::from(block)) * BLOCK, BLOCK_BYTES)?;
        Ok::<_, io::Error>(FooterBlock::parse(&bytes, header, block).ok())
    };
    if let Some(footer) = footer_at(header.shape.footer_start())? {
        return Ok(Filled::Sealed { data_blocks: footer.data_blocks });
    }
    if header.shape.plan().carrier == Carrier::Oob {
        return Ok(Filled::Unknown);
    }
    let (mut records, mut offset) = (0, DataOffset(0));
    let longest = layout::zoned::DESCRIPTOR_BLOCKS_MAX as usize * BLOCK_BYTES;
    while offset.0 < header.shape.data_blocks() {
        let block = offset.zone_block();
        let bytes = member.read((start + u64::from(block)) * BLOCK, longest)?;
        let Ok(record) = RecordDescriptor::parse(&bytes, header, block) else { break };
        records += 1;
        offset.0 += record.record_blocks(header);
    }
    match footer_at(offset.zone_block())? {
        Some(footer) => Ok(Filled::Sealed { data_blocks: footer.data_blocks }),
        None => Ok(Filled::Open { records, data_blocks: offset.0 }),
    }
}
