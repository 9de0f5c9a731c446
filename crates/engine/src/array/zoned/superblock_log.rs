//! The superblock log of one member: read by its write pointers, written block by block, each durable before the next. Where
//! the next block goes is [`LogCursor`]'s rule; this file does the I/O.
//!
//! Z-I11: of both zones one has the newest superblock at every moment. The full zone is emptied only when its turn comes again,
//! and by then the other one's blocks are durable.

use std::sync::Arc;

use layout::zoned::superblock_log::{
    LOG_ZONES, LogCursor, LogStep, LogZone, PLACED_LOG_BLOCKS, blocks_to_read, newest,
};
use layout::zoned::{Access, LogPlace, MemberZones, Superblock, ZonedError};

use crate::buffer::{Buffer, Pool};
use crate::device::{DeviceError, DeviceErrorKind};
use crate::limits::BLOCK_BYTES;
use crate::zone_device::{Zone, ZoneAccess, ZoneDevice, ZoneOffset, ZoneState};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Where a member's log stands.
#[derive(Clone, Debug)]
pub struct MemberLog {
    cursor: LogCursor,
    /// A zone whose pointer stands inside of a block, where a power cut left it, and that pointer in bytes.
    torn: Option<(u32, u64)>,
}

impl MemberLog {
    /// The log of a new member, whose first two zones are [emptied](empty_log).
    pub fn new(zones: &MemberZones) -> Self {
        MemberLog { cursor: LogCursor::new(zones), torn: None }
    }

    /// Reads both zones. None: no superblock is there.
    ///
    /// # Errors
    /// The member cannot be read.
    pub async fn read<D: ZoneDevice>(
        device: &D,
        pool: &Arc<Pool>,
    ) -> Result<Option<(Superblock, MemberLog)>, DeviceError> {
        let mut torn = None;
        let mut read = [LogZone::default(), LogZone::default()];
        for zone in device.report(0..LOG_ZONES).await? {
            if let Some(pointer) = zone.pointer_bytes.filter(|pointer| !pointer.is_multiple_of(BLOCK)) {
                torn = Some((zone.number, pointer));
            }
            read[zone.number as usize] = read_zone(device, pool, &zone).await?;
        }
        let found = newest(read);
        Ok(found.map(|(superblock, cursor)| (superblock, MemberLog { cursor, torn })))
    }

    /// Writes the next superblock, durably.
    ///
    /// # Errors
    /// It could not be written, at the next place either.
    pub async fn write<D: ZoneDevice>(
        &mut self,
        device: &D,
        pool: &Arc<Pool>,
        superblock: &Superblock,
    ) -> Result<(), DeviceError> {
        let Err(error) = self.write_next(device, pool, superblock).await else { return Ok(()) };
        if matches!(error.kind, DeviceErrorKind::Timeout | DeviceErrorKind::Gone) {
            return Err(error); // it may still happen
        }
        // A write that failed may have moved the pointer, by any part of its length: only the drive knows.
        match (device.zoned().access, Self::read(device, pool).await?) {
            (ZoneAccess::Placed, _) | (_, None) => self.pass_over(),
            (_, Some((_, log))) => *self = log,
        }
        self.write_next(device, pool, superblock).await
    }

    /// Goes on behind a block that could not be written.
    fn pass_over(&mut self) {
        let (LogStep::Append(place) | LogStep::Change(place)) = self.cursor.next();
        self.cursor.wrote(place);
    }

    async fn write_next<D: ZoneDevice>(
        &mut self,
        device: &D,
        pool: &Arc<Pool>,
        superblock: &Superblock,
    ) -> Result<(), DeviceError> {
        let place = match self.cursor.next() {
            LogStep::Append(place) => place,
            LogStep::Change(place) => {
                // Older blocks of a placed log stay until they are overwritten: their sequences tell them.
                if device.zoned().access != ZoneAccess::Placed {
                    device.reset(place.zone).await?;
                }
                self.torn = self.torn.filter(|(zone, _)| *zone != place.zone);
                place
            }
        };
        if let Some((zone, pointer)) = self.torn.filter(|(zone, _)| *zone == place.zone) {
            let rest = pool.take((BLOCK - pointer % BLOCK) as usize);
            device
                .write_at(ZoneOffset::new(zone, pointer), zeroed(rest).freeze().into(), None, false)
                .await?;
            self.torn = None;
        }
        let mut block = pool.take(BLOCK_BYTES);
        block.bytes_mut().copy_from_slice(&superblock.encode(place));
        let at = u64::from(place.block) * BLOCK;
        device.write_at(ZoneOffset::new(place.zone, at), block.freeze().into(), None, true).await?;
        self.cursor.wrote(place);
        Ok(())
    }
}

/// Empties the log of a device that is to be a member: nothing of an earlier array is left in it, durably.
///
/// # Errors
/// The device cannot be written.
pub async fn empty_log<D: ZoneDevice>(
    device: &D,
    pool: &Arc<Pool>,
    zones: &MemberZones,
) -> Result<(), DeviceError> {
    for zone in 0..LOG_ZONES {
        if zones.access != Access::Placed {
            device.reset(zone).await?;
            continue;
        }
        let blocks = zones.capacity_blocks.min(PLACED_LOG_BLOCKS) as usize;
        let zeroes = zeroed(pool.take(blocks * BLOCK_BYTES)).freeze();
        device.write_at(ZoneOffset::new(zone, 0), zeroes.into(), None, true).await?;
    }
    device.flush().await
}

/// Blocks of the log that hold neither a superblock nor nothing. After a power cut one is normal, until it is written over.
///
/// # Errors
/// The member cannot be read.
pub async fn damaged_superblocks<D: ZoneDevice>(
    device: &D,
    pool: &Arc<Pool>,
) -> Result<Vec<LogPlace>, DeviceError> {
    let mut damaged = Vec::new();
    for zone in device.report(0..LOG_ZONES).await? {
        let number = zone.number;
        let blocks = read_zone(device, pool, &zone).await?.blocks.into_iter();
        let is_damaged = |read: &Result<Superblock, ZonedError>| {
            !matches!(read, Ok(_) | Err(ZonedError::Absent { .. } | ZonedError::Truncated { .. }))
        };
        let bad = blocks.filter(|(_, read)| is_damaged(read));
        damaged.extend(bad.map(|(block, _)| LogPlace { zone: number, block }));
    }
    Ok(damaged)
}

fn zeroed(mut buffer: Buffer) -> Buffer {
    buffer.bytes_mut().fill(0);
    buffer
}

/// Reads what a zone of the log may hold: its pointer says how far, on a drive; contents beyond it are never looked at.
async fn read_zone<D: ZoneDevice>(device: &D, pool: &Arc<Pool>, zone: &Zone) -> Result<LogZone, DeviceError> {
    let capacity = u32::try_from(zone.capacity_bytes / BLOCK).unwrap_or(u32::MAX);
    let (written, range) = match zone.state {
        ZoneState::Offline => return Ok(LogZone::default()),
        ZoneState::NoPointer => (0, 0..blocks_to_read(None).end.min(capacity)),
        // It has no pointer, and may have been full or not.
        ZoneState::ReadOnly => (capacity, 0..capacity),
        ZoneState::Full => (capacity, blocks_to_read(Some(capacity))),
        _ => {
            let pointer = zone.pointer_bytes.unwrap_or(0).div_ceil(BLOCK);
            let end = u32::try_from(pointer).unwrap_or(capacity).min(capacity);
            (end, blocks_to_read(Some(end)))
        }
    };
    let mut read = LogZone { written_blocks: written, blocks: Vec::new() };
    let mut first = range.start;
    while first < range.end {
        let count = (range.end - first).min(PLACED_LOG_BLOCKS);
        let at = device.zoned().offset_bytes(zone.number, u64::from(first) * BLOCK);
        let (buffer, result) = device.read(at, pool.take(count as usize * BLOCK_BYTES)).await;
        result?;
        let blocks = (first..).zip(buffer.bytes().chunks_exact(BLOCK_BYTES));
        let parse = |(block, bytes)| (block, Superblock::parse(bytes, LogPlace { zone: zone.number, block }));
        let before = read.blocks.len();
        read.blocks.extend(blocks.map(parse));
        let is_over = read.blocks[before..].iter().all(|(_, parsed)| parsed.is_err());
        if zone.state == ZoneState::ReadOnly && is_over {
            break; // superblocks stand one behind the other
        }
        first += count;
    }
    Ok(read)
}

#[cfg(test)]
#[path = "superblock_log_tests.rs"]
mod tests;
