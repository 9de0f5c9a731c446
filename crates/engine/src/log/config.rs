//! What is fixed while a zoned array runs: its identity, its shape, and how the map writes a place.

use layout::geometry::Level;
use layout::zoned::{Access, Carrier, Class, Columns, MapShape, SegmentPlan, SegmentShape, ShapeFault};

use super::dispatch::FillWait;
use super::reclaim::choose::ReclaimPolicy;
use crate::limits::BLOCK_BYTES;

/// Zones at the start of a member that hold its superblock log.
pub const SUPERBLOCK_ZONES: u32 = 2;
/// Segments that user writes leave free, so that reclaim and recovery always have a place to write to (Z-I10): two for
/// reclaim, two for recovery.
pub const RESERVED_SEGMENTS: usize = 4;
/// Of these two are left for recovery, which reclaim does not take either: a recovery that is cut short uses up one.
pub const RECOVERY_SEGMENTS: usize = 2;
/// Records that a zone has room for at least, where drives choose places: what reclaim moves and the two lists that it writes, each a
/// whole stripe there, have to fit into the two segments that are reserved for it.
const RECORDS_LEAST: u32 = 2;
/// Segments of which reclaim keeps one free beside the reserved ones.
const SEGMENTS_PER_FREE: u32 = 50;
/// Of an array of few segments it keeps this many. While a batch is moved up to two segments' room is in reclaim's hands, half copied:
/// with fewer free ones writers would wait for the end of a batch each time they need a segment.
const FREE_LEAST: u32 = 5;
/// But never more than one in twelve: the rest of a tiny array is for data.
const SEGMENTS_PER_FREE_LEAST: u32 = 12;
/// While clients rest, reclaim goes on until another sixteenth (6 %) of all segments is free.
const SEGMENTS_PER_IDLE: u32 = 16;

/// How many segments each shard has open for client writes (the paper's Ns and Nl), one of them at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenCounts {
    /// With small records. None: small writes go to large segments.
    pub small: u8,
    /// With large records. None: large writes go to small segments.
    pub large: u8,
    /// Which of them are appended to, where drives choose places.
    pub appends: Appends,
}

/// Which segments are appended to where drives choose places, and when (hybrid data management, Z8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appends {
    /// All, always: the paper's ZoneAppend-Only.
    Only,
    /// The first small one, by stripes that find none of the other small segments idle: the paper's rule.
    UnlessIdle,
    /// A small one that is the only one. Drives take appends more slowly than writes: beside a few zones that are written in
    /// order, which keep a drive busy by themselves, appends cost up to a quarter of the throughput (experiment 7).
    IfAlone,
}

impl OpenCounts {
    /// One of each.
    pub const ONE: OpenCounts = OpenCounts { small: 1, large: 1, appends: Appends::IfAlone };

    /// Segments of both kinds.
    pub fn total(&self) -> u32 {
        u32::from(self.small) + u32::from(self.large)
    }

    /// Of a class.
    pub fn of(&self, class: Class) -> u8 {
        match class {
            Class::Small => self.small,
            Class::Large => self.large,
            Class::Reclaim | Class::Recovery => 1,
        }
    }
}

/// What is fixed while an array runs.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// The array.
    pub set_uuid: [u8; 16],
    /// The member of each slot at the start, and zeroes for each that the array may grow to. `LogMembers` knows those of now.
    pub devices: Vec<[u8; 16]>,
    /// Its level.
    pub level: Level,
    /// How zones are written: `Append` only where all members can.
    pub access: Access,
    /// Where metadata lies.
    pub carrier: Carrier,
    /// Zones of a member.
    pub zones: u32,
    /// Blocks of a zone.
    pub capacity_blocks: u32,
    /// Blocks of the longest record of a small segment, and of a large one.
    pub record_blocks: [u16; 2],
    /// Longest records in a group of an append segment.
    pub group: u16,
    /// Segments that each shard has open for client writes.
    pub open: OpenCounts,
    /// Blocks after which parity moves on, before it is made whole groups.
    pub band_blocks: u32,
    /// How the map numbers places.
    pub map: MapShape,
    /// Blocks of the array.
    pub logical_blocks: u64,
    /// When an open stripe is due.
    pub fill_wait: FillWait,
    /// The smallest limit of open and active zones of each member.
    pub zone_limits: Vec<Option<u32>>,
    /// Most bytes of one write to a member.
    pub record_bytes_max: u32,
    /// What the map may take.
    pub map_limits: MapLimits,
    /// How reclaim works.
    pub reclaim: ReclaimOptions,
}

/// How reclaim works.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReclaimOptions {
    /// Which segments are emptied first.
    pub policy: ReclaimPolicy,
    /// Reclaim goes on when clients have written nothing for so long. None: it works for writers only.
    pub idle_ns: Option<u64>,
}

impl ReclaimOptions {
    /// Long enough that a client which writes now and then is not taken for one that rests.
    pub const IDLE_NS: u64 = 2_000_000_000;
}

/// How many segments reclaim keeps free, beside the reserved ones, in an array that has `slots` of them.
pub fn kept_free(slots: u32) -> u32 {
    slots.div_ceil(SEGMENTS_PER_FREE).max(FREE_LEAST.min(slots / SEGMENTS_PER_FREE_LEAST))
}

/// What the map may take: of memory, and of a start's time. A group is 4 KiB, the entries of 512 blocks or 1024.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLimits {
    /// Groups that memory has room for. None: for all.
    pub groups: Option<usize>,
    /// Groups that have changed when a checkpoint is due. None: there are no checkpoints.
    pub changed: Option<usize>,
}

impl MapLimits {
    /// Less makes no sense: a request may need two groups at once.
    pub const GROUPS_LEAST: usize = 4;

    /// Memory, and what may change before a checkpoint is due, in bytes of the map.
    pub fn of_bytes(memory: Option<u64>, changed: Option<u64>) -> Self {
        let groups = |bytes: u64| usize::try_from(bytes / BLOCK_BYTES as u64).unwrap_or(usize::MAX);
        MapLimits {
            groups: memory.map(|bytes| groups(bytes).max(MapLimits::GROUPS_LEAST)),
            changed: changed.map(|bytes| groups(bytes).max(1)),
        }
    }

    /// Whether a map of so many groups is larger than its memory.
    pub fn is_exceeded_by(&self, groups: u64) -> bool {
        self.groups.is_some_and(|limit| (limit as u64) < groups)
    }

    /// Memory, in bytes of the map.
    pub fn memory_bytes(&self) -> Option<u64> {
        self.groups.map(|groups| groups as u64 * BLOCK_BYTES as u64)
    }

    /// What may change before a checkpoint is due, in bytes of the map.
    pub fn changed_bytes(&self) -> Option<u64> {
        self.changed.map(|groups| groups as u64 * BLOCK_BYTES as u64)
    }
}

impl Default for MapLimits {
    /// 2 GiB of memory; a checkpoint after 256 MiB of changed groups.
    fn default() -> Self {
        MapLimits { groups: Some(2 << 18), changed: Some(1 << 16) }
    }
}

impl LogConfig {
    /// Slots of the map: segments that can be there at once.
    pub fn slots(&self) -> u32 {
        self.zones - SUPERBLOCK_ZONES
    }

    /// Reclaim works while no more segments than these are free: the reserved ones and a fiftieth of all (2 %), or five.
    pub fn low_segments(&self) -> usize {
        RESERVED_SEGMENTS + kept_free(self.slots()) as usize
    }

    /// While clients rest, reclaim works until more segments than these are free.
    pub fn idle_segments(&self) -> usize {
        self.low_segments() + (self.slots() / SEGMENTS_PER_IDLE) as usize
    }

    /// How the zones of a segment are written, the `index`th of its class that a shard has open.
    ///
    /// Where drives choose places, appends keep many small records in flight at one zone. Long records do as well in order, one
    /// at a time, and need no groups, no table of places and no padding to whole records; so does what reclaim moves.
    pub fn access_of(&self, class: Class, index: usize) -> Access {
        let is_first = class == Class::Small && index == 0;
        let is_appended = match self.open.appends {
            Appends::Only => true,
            Appends::UnlessIdle => is_first,
            Appends::IfAlone => is_first && self.open.small == 1,
        };
        match self.access {
            Access::Append if !is_appended => Access::Sequential,
            access => access,
        }
    }

    /// Slots that the array has, and may grow to.
    pub fn member_slots(&self) -> usize {
        self.devices.len()
    }

    /// How the zones of the first segment of a class over `members` members are divided.
    ///
    /// # Errors
    /// A value is out of bounds for this width.
    pub fn shape(&self, class: Class, members: u8) -> Result<SegmentShape, ShapeFault> {
        self.shape_of(class, self.access_of(class, 0), members)
    }

    /// How the zones of a segment over `members` members that is written in one way are divided.
    ///
    /// # Errors
    /// A value is out of bounds for this width.
    pub fn shape_of(&self, class: Class, access: Access, members: u8) -> Result<SegmentShape, ShapeFault> {
        let columns = Columns::new(self.level, members).ok_or_else(|| ShapeFault {
            field: "width",
            found: format!("{members} columns"),
            expected: "columns for data, and whole pairs for mirrors".to_owned(),
        })?;
        let blocks = self.record_blocks[usize::from(class != Class::Small)];
        let blocks = self.carrier.whole_record(blocks.into(), columns.data()).unwrap_or(blocks.into());
        let record_blocks = blocks as u16;
        let group = if access == Access::Append { self.group } else { 0 };
        let unit = if group > 0 { u32::from(group) * blocks } else { blocks };
        let band_blocks = match group {
            0 => self.band_blocks.max(unit),
            _ => self.band_blocks.div_ceil(unit).max(1) * unit,
        };
        let plan = SegmentPlan { columns, access, carrier: self.carrier, record_blocks, group, band_blocks };
        let shape = SegmentShape::new(plan, self.capacity_blocks)?;
        let records = shape.data_blocks() / blocks;
        if group > 0 && records < RECORDS_LEAST {
            return Err(ShapeFault {
                field: "record_blocks",
                found: format!(
                    "{blocks} blocks, and a zone of {} has room for {records}",
                    self.capacity_blocks
                ),
                expected: format!("room for {RECORDS_LEAST} at least"),
            });
        }
        Ok(shape)
    }

    /// Members that may be lost.
    pub fn losses_survived(&self) -> usize {
        losses_survived(self.level)
    }
}

/// Members that an array of this level may lose: of mirrors one, since pairs differ from segment to segment.
pub fn losses_survived(level: Level) -> usize {
    match level {
        Level::Raid10 => 1,
        level => level.parity_chunks() as usize,
    }
}
