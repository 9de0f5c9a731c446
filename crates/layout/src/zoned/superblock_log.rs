//! The superblock log: zones 0 and 1 of a member, which take turns. Pure rules; the caller reads and writes.
//!
//! Superblocks are written one behind the other, each durable before the next. When one zone is full, the other is begun anew:
//! emptied, and its first block durable before the full one may be emptied (Z-I11). So at every moment one of both has the
//! newest superblock; the last block of a zone may be torn, and then the one before it counts.

use super::error::ZonedError;
use super::shape::Access;
use super::superblock::{LogPlace, MemberZones, Superblock};

/// Zones of the superblock log.
pub const LOG_ZONES: u32 = 2;
/// Blocks of a zone that the log of a `placed` member uses: it has no write pointer, so that a reader looks at all of them,
/// in one read.
pub const PLACED_LOG_BLOCKS: u32 = 256;
/// Blocks below the write pointer that a reader looks at: the last may be torn, and some more may be bad.
pub const LOG_TAIL_BLOCKS: u32 = 9;

/// What was read of one zone of the log.
#[derive(Clone, Debug, Default)]
pub struct LogZone {
    /// Blocks up to the write pointer; of a `placed` member 0.
    pub written_blocks: u32,
    /// What was read, by block.
    pub blocks: Vec<(u32, Result<Superblock, ZonedError>)>,
}

/// Where the next superblock goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogStep {
    /// Behind the last one.
    Append(LogPlace),
    /// The zone is full. Reset the other one (a `placed` member is not reset: its old blocks stay until they are overwritten,
    /// and their lower sequences tell them), and begin it.
    Change(LogPlace),
}

/// Where the log of a member stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogCursor {
    zone: u32,
    next_block: u32,
    blocks: u32,
}

impl LogCursor {
    /// The start of a new member's log, both zones empty.
    #[must_use]
    pub fn new(zones: &MemberZones) -> LogCursor {
        LogCursor { zone: 0, next_block: 0, blocks: log_blocks(zones) }
    }

    /// Where the next superblock goes. Call [`LogCursor::wrote`] once it is there.
    #[must_use]
    pub fn next(&self) -> LogStep {
        if self.next_block < self.blocks {
            LogStep::Append(LogPlace { zone: self.zone, block: self.next_block })
        } else {
            LogStep::Change(LogPlace { zone: 1 - self.zone, block: 0 })
        }
    }

    /// The block before that: of the newest superblock, or of a torn one behind it. `None` while the log is empty.
    #[must_use]
    pub fn last(&self) -> Option<LogPlace> {
        Some(LogPlace { zone: self.zone, block: self.next_block.checked_sub(1)? })
    }

    /// The block at `place` was written, or its write ended in an error and the block is taken all the same.
    ///
    /// # Panics
    /// If that is not the place that [`LogCursor::next`] named.
    pub fn wrote(&mut self, place: LogPlace) {
        let (LogStep::Append(due) | LogStep::Change(due)) = self.next();
        assert_eq!(place, due, "superblocks are written in order");
        self.zone = place.zone;
        self.next_block = place.block + 1;
    }
}

/// Blocks of each zone that the log uses.
#[must_use]
pub fn log_blocks(zones: &MemberZones) -> u32 {
    match zones.access {
        Access::Placed => zones.capacity_blocks.min(PLACED_LOG_BLOCKS),
        Access::Append | Access::Sequential => zones.capacity_blocks,
    }
}

/// The blocks of a log zone to read: those below the write pointer, at most [`LOG_TAIL_BLOCKS`]; of a `placed` member, which
/// has none, all that the log may use.
#[must_use]
pub fn blocks_to_read(written_blocks: Option<u32>) -> std::ops::Range<u32> {
    match written_blocks {
        Some(end) => end.saturating_sub(LOG_TAIL_BLOCKS)..end,
        None => 0..PLACED_LOG_BLOCKS,
    }
}

/// Of what was read of both zones the superblock that counts, and where the log goes on. `None` if no block is valid.
///
/// The highest sequence counts. Creation empties both zones (of a `placed` member it overwrites the log's blocks with zeroes),
/// so that no superblock of an earlier array is among them.
#[must_use]
pub fn newest(zones: [LogZone; 2]) -> Option<(Superblock, LogCursor)> {
    let written = [zones[0].written_blocks, zones[1].written_blocks];
    let valid = (0..).zip(zones).flat_map(|(zone, read): (u32, LogZone)| {
        read.blocks.into_iter().filter_map(move |(block, read)| Some((read.ok()?, zone, block)))
    });
    let (superblock, zone, block) = valid.max_by_key(|(superblock, ..)| superblock.sequence)?;
    let next_block = written[zone as usize].max(block + 1);
    let cursor = LogCursor { zone, next_block, blocks: log_blocks(&superblock.zones) };
    Some((superblock, cursor))
}
