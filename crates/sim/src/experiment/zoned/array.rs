//! The array of a point: its shape, and the engine's configuration for it.

use engine::log::config::{LogConfig, MapLimits, OpenCounts, ReclaimOptions};
use engine::log::dispatch::{FILL_WAIT_NS, FillWait};
use layout::geometry::Level;
use layout::zoned::{Access, Carrier, Class, Columns, MapEntryBytes, MapShape};

use super::speed::{BLOCK_KIB, Mode};

/// Most bytes of one write to a drive.
const RECORD_BYTES_MAX: u32 = 128 << 10;
/// Blocks after which parity moves on.
const BAND_BLOCKS: u32 = 256;

/// Its shape.
#[derive(Clone, Copy)]
pub(super) struct Array {
    pub(super) level: Level,
    pub(super) members: u8,
    pub(super) mode: Mode,
    /// How zones are written, but for what a mode writes in order.
    pub(super) access: Access,
    /// Where metadata lies.
    pub(super) carrier: Carrier,
    /// Open segments with small and with large chunks.
    pub(super) open: [u8; 2],
    /// Blocks of a small chunk, and of a large one.
    pub(super) chunk_blocks: [u16; 2],
    /// Stripes of a group.
    pub(super) group: u16,
    /// Zones of a drive, and blocks of each.
    pub(super) zones: u32,
    pub(super) zone_blocks: u32,
}

impl Array {
    /// A RAID-5 of four members of which one small segment takes chunks of one length.
    pub(super) fn of_one_segment(mode: Mode, chunk_kib: u16, (zones, zone_blocks): (u32, u32)) -> Array {
        Array {
            level: Level::Raid5,
            members: 4,
            mode,
            access: mode.access(),
            carrier: Carrier::Oob,
            open: [1, 0],
            chunk_blocks: [chunk_kib / BLOCK_KIB; 2],
            group: group_within(256, chunk_kib, zone_blocks),
            zones,
            zone_blocks,
        }
    }

    pub(super) fn config(&self, logical_blocks: u64) -> LogConfig {
        LogConfig {
            set_uuid: [7; 16],
            devices: (1..=self.members).map(|member| [member; 16]).collect(),
            level: self.level,
            access: self.access,
            carrier: self.carrier,
            zones: self.zones,
            capacity_blocks: self.zone_blocks,
            record_blocks: self.chunk_blocks,
            group: if self.mode == Mode::ZoneWrite { 0 } else { self.group },
            open: OpenCounts { small: self.open[0], large: self.open[1], appends: self.mode.appends() },
            band_blocks: BAND_BLOCKS,
            map: MapShape::new(MapEntryBytes::Eight, 2 * self.members, self.zone_blocks).expect("a shape"),
            logical_blocks,
            fill_wait: match self.mode {
                Mode::Twill => FillWait::Auto,
                Mode::ZoneWrite | Mode::Append { .. } => FillWait::Fixed(FILL_WAIT_NS),
            },
            zone_limits: vec![None; self.members.into()],
            record_bytes_max: RECORD_BYTES_MAX,
            map_limits: MapLimits { groups: None, changed: None },
            reclaim: ReclaimOptions::default(),
        }
    }

    /// Blocks that clients see with so much room in reserve, as `create` has it.
    pub(super) fn logical_blocks(&self, reserve_percent: u64) -> u64 {
        let config = self.config(1 << 20);
        let segment = |class| {
            let shape = config.shape(class, self.members).expect("a shape");
            u64::from(shape.rows()) * u64::from(shape.plan().columns.data())
        };
        let slots = u64::from(config.slots()) - config.low_segments() as u64 - 2;
        slots * segment(Class::Small).min(segment(Class::Large)) * 100 / (100 + reserve_percent)
    }

    /// Data chunks of a stripe.
    pub(super) fn data_chunks(&self) -> u8 {
        Columns::new(self.level, self.members).expect("a level has columns for it").data()
    }
}

/// Stripes of a group: `group`, or as many as a quarter of a zone has room for.
pub(super) fn group_within(group: u16, chunk_kib: u16, zone_blocks: u32) -> u16 {
    let chunk_blocks = u32::from(chunk_kib / super::speed::BLOCK_KIB);
    u16::try_from(zone_blocks / 4 / chunk_blocks).unwrap_or(u16::MAX).min(group)
}
