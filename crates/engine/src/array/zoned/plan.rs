//! What is chosen when a zoned array is created, and what a start takes from there: arithmetic over the members' zones.

use layout::zoned::{
    Access, ArrayPlan, Carrier, Class, Columns, Epoch, GROUP_BLOCKS_MAX, MEMBERS_MAX, MapEntryBytes,
    MapShape, Member, MemberState, MemberZones, OOB_BYTES, Superblock,
};

use crate::limits::BLOCK_BYTES;
use crate::log::config::{
    LogConfig, MapLimits, OpenCounts, RESERVED_SEGMENTS, ReclaimOptions, SUPERBLOCK_ZONES, kept_free,
};
use crate::log::dispatch::FillWait;
use crate::log::segment::rows_of;
use crate::log::zone_budget::{self, LimitTooLow};
use crate::zone_device::{ZoneAccess, ZonedInfo};

/// Blocks of a small and of a large record, as far as the members take them (the paper's Cs and Cl).
const RECORD_BLOCKS: [u16; 2] = [8, 32];
/// Records of a group of an append segment (the paper's G).
const GROUP: u16 = 256;
/// Groups of a zone, at least, where the zone has room for them: what is left behind the last whole group is lost.
const GROUPS_LEAST: u32 = 4;
/// Large records of a band.
const BAND_RECORDS: u16 = 16;
/// Room for what is overwritten, in hundredths of what clients see.
pub const RESERVE_PERCENT: u32 = 25;
/// Segments of which one may be open for user writes: more shards than that leave too little for data.
const SEGMENTS_PER_OPEN: u32 = 8;
/// Numbers of segments that a start reserves.
pub const NUMBERS_PER_START: u64 = crate::log::segment_table::NUMBERS_RESERVED;

/// What an operator asks for; None takes what suits the members.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Level and width.
    pub columns: Columns,
    /// Blocks of a small record.
    pub small_blocks: Option<u16>,
    /// Blocks of a large record.
    pub large_blocks: Option<u16>,
    /// Records of a group.
    pub group: Option<u16>,
    /// Segments that each shard has open.
    pub open: OpenCounts,
    /// Room for what is overwritten, in hundredths of what clients see.
    pub reserve_percent: u32,
    /// Bytes of an entry of the map.
    pub map_entry: MapEntryBytes,
    /// Where metadata lies.
    pub carrier: Option<Carrier>,
}

/// What a device says of its zones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceZones {
    /// Its name in refusals.
    pub name: String,
    /// Its unit of addressing in bytes.
    pub logical_block_bytes: u32,
    /// Its zones.
    pub zoned: ZonedInfo,
}

/// Why no array can be made of these devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanRefusal {
    /// The devices are cut differently.
    #[error(
        "{name} has {found}, and {first} has {expected}: the zones of all members have one size and are written one way"
    )]
    Differs {
        /// The device.
        name: String,
        /// How it is.
        found: String,
        /// The first one.
        first: String,
        /// How that is.
        expected: String,
    },
    /// A zone is not a number of blocks that the format holds.
    #[error(
        "{name} has zones of {zone_bytes} bytes, of which {capacity_bytes} can be written: both are a multiple of 4 KiB, and fewer than 2^32 blocks"
    )]
    ZoneSize {
        /// The device.
        name: String,
        /// From one zone to the next.
        zone_bytes: u64,
        /// What can be written.
        capacity_bytes: u64,
    },
    /// A drive keeps too few zones open.
    #[error("{name}: {too_low}")]
    Limit {
        /// The device.
        name: String,
        /// By how much.
        too_low: LimitTooLow,
    },
    /// Metadata out of band needs drives that have it.
    #[error(
        "{name} has no {OOB_BYTES} bytes of metadata beside blocks of 4 KiB that are written by appends: leave out --carrier oob"
    )]
    NoMetadata {
        /// The device.
        name: String,
    },
    /// Too few zones.
    #[error(
        "{name} has {zones} zones; {least} are needed: two for superblocks, {RESERVED_SEGMENTS} in reserve, those that are open, and the rest for data"
    )]
    TooFewZones {
        /// The device.
        name: String,
        /// Its zones.
        zones: u32,
        /// Least that are needed.
        least: u32,
    },
    /// A record is longer than a drive's longest command.
    #[error(
        "a record of {blocks} blocks of 4 KiB is longer than one command of {name}, which has {most} at most"
    )]
    RecordTooLong {
        /// What was asked for.
        blocks: u16,
        /// The device.
        name: String,
        /// What it takes.
        most: u32,
    },
    /// The map has too few columns.
    #[error(
        "the map of the array names places over {most} members at most, twice what it was created with; one with 4-byte entries \
         does not grow"
    )]
    TooManyMembers {
        /// Most members.
        most: usize,
    },
    /// Mirrors grow by pairs.
    #[error("mirrors have an even number of members, at most 64: add two at once")]
    NoPair,
    /// The chosen sizes do not fit each other or a zone.
    #[error("{0}")]
    Shape(String),
}

/// Slots that an array has, and may grow to: as many as its map has columns.
fn member_slots(plan: &ArrayPlan) -> usize {
    usize::from(plan.map_columns.max(plan.columns.width())).min(MEMBERS_MAX)
}

/// Plans an array over `devices`, one for each column.
///
/// # Errors
/// Why they make none.
pub fn plan(wanted: &Wanted, devices: &[DeviceZones]) -> Result<(ArrayPlan, MemberZones), PlanRefusal> {
    let zones = member_zones(devices)?;
    let carrier = carrier(wanted, devices)?;
    for DeviceZones { name, zoned, .. } in devices {
        let limit = zone_budget::limit(zoned.open_max, zoned.active_max);
        zone_budget::check(wanted.open.total(), limit)
            .map_err(|too_low| PlanRefusal::Limit { name: name.clone(), too_low })?;
    }
    let [small_blocks, large_blocks] = records(wanted, devices, carrier, &zones)?;
    let width = wanted.columns.width();
    let mut plan = ArrayPlan {
        columns: wanted.columns,
        carrier,
        logical_blocks: 0,
        reserve_blocks: 0,
        small_blocks,
        large_blocks,
        group: group(wanted, &zones, large_blocks),
        band_blocks: large_blocks.saturating_mul(BAND_RECORDS),
        open_small: wanted.open.small,
        open_large: wanted.open.large,
        map_entry: wanted.map_entry,
        map_columns: width.saturating_mul(2),
    };
    let config = config_of(&plan, &zones, [0; 16], vec![[0; 16]; width.into()])?;
    let slots = config.slots();
    let kept = kept_segments(&config);
    if slots <= kept {
        let least = SUPERBLOCK_ZONES + kept + 1;
        let shortest = devices.iter().min_by_key(|device| device.zoned.zones).expect("columns");
        let (name, zones) = (shortest.name.clone(), shortest.zoned.zones);
        return Err(PlanRefusal::TooFewZones { name, zones, least });
    }
    let room = room(&config, wanted.columns)?;
    plan.logical_blocks = (room * 100 / (100 + u64::from(wanted.reserve_percent))).max(1);
    plan.reserve_blocks = room - plan.logical_blocks;
    if slots > config.map.slots_max() {
        let most = config.map.slots_max();
        let what = format!(
            "a map of 4-byte entries names {most} segments, and the members have {slots}: take --map-entry 8"
        );
        return Err(PlanRefusal::Shape(what));
    }
    Ok((plan, zones))
}

/// Segments that no client's data is counted on: in reserve, open, and those that reclaim keeps free.
fn kept_segments(config: &LogConfig) -> u32 {
    RESERVED_SEGMENTS as u32 + config.open.total() + kept_free(config.slots())
}

/// Data blocks that segments over `columns` have room for, but for those that are kept.
fn room(config: &LogConfig, columns: Columns) -> Result<u64, PlanRefusal> {
    let mut segment_blocks = u64::MAX;
    for class in [Class::Small, Class::Large] {
        let shape = config.shape(class, columns.width());
        let rows = shape.map_err(|fault| PlanRefusal::Shape(fault.to_string()))?.rows();
        segment_blocks = segment_blocks.min(u64::from(rows) * u64::from(columns.data()));
    }
    Ok(u64::from(config.slots().saturating_sub(kept_segments(config))) * segment_blocks)
}

/// The plan of an array whose superblock lists `width` members, more than it had: its size is what it was until every segment is
/// over all of them ([`grown`]).
///
/// # Errors
/// Why it cannot have that many.
pub fn widened(superblock: &Superblock, width: usize) -> Result<ArrayPlan, PlanRefusal> {
    let plan = &superblock.plan;
    let level = plan.columns.level();
    let slots = member_slots(plan);
    if width > slots {
        return Err(PlanRefusal::TooManyMembers { most: slots });
    }
    let columns = u8::try_from(width).ok().and_then(|width| Columns::new(level, width));
    let Some(columns) = columns else { return Err(PlanRefusal::NoPair) };
    let record = |blocks: u16| whole_record(plan.carrier, blocks.into(), columns);
    let (small_blocks, large_blocks) = (record(plan.small_blocks)?, record(plan.large_blocks)?);
    let plan = ArrayPlan { columns, small_blocks, large_blocks, ..plan.clone() };
    room(&config_of(&plan, &superblock.zones, superblock.set_uuid, vec![[0; 16]; width])?, columns)?;
    Ok(plan)
}

/// The plan of an array of which every segment is over all members: of the room that there is now, clients get the part that they
/// had before.
///
/// # Errors
/// The superblock's sizes do not fit each other.
pub fn grown(superblock: &Superblock) -> Result<ArrayPlan, PlanRefusal> {
    let plan = &superblock.plan;
    let room = room(&config(superblock)?, plan.columns)?;
    let (logical, all) = (plan.logical_blocks, plan.logical_blocks + plan.reserve_blocks);
    let part = u128::from(room) * u128::from(logical) / u128::from(all);
    let logical_blocks = u64::try_from(part).unwrap_or(u64::MAX).max(logical);
    Ok(ArrayPlan { logical_blocks, reserve_blocks: room.saturating_sub(logical_blocks), ..plan.clone() })
}

fn member_zones(devices: &[DeviceZones]) -> Result<MemberZones, PlanRefusal> {
    let first = &devices[0];
    for device in devices {
        if how(device) != how(first) {
            return Err(PlanRefusal::Differs {
                name: device.name.clone(),
                found: how(device),
                first: first.name.clone(),
                expected: how(first),
            });
        }
    }
    let block = BLOCK_BYTES as u64;
    let capacity_bytes = devices.iter().map(|device| device.zoned.capacity_bytes).min().expect("columns");
    let zone_bytes = first.zoned.zone_bytes;
    let blocks = |bytes: u64| u32::try_from(bytes / block).ok().filter(|_| bytes.is_multiple_of(block));
    let (Some(zone_blocks), Some(capacity_blocks)) = (blocks(zone_bytes), blocks(capacity_bytes)) else {
        return Err(PlanRefusal::ZoneSize { name: first.name.clone(), zone_bytes, capacity_bytes });
    };
    let zones = devices.iter().map(|device| device.zoned.zones).min().expect("columns");
    Ok(MemberZones { access: access_of(first.zoned.access), zone_blocks, capacity_blocks, zones })
}

fn how(DeviceZones { zoned, .. }: &DeviceZones) -> String {
    let written = match zoned.access {
        ZoneAccess::Append => "written by appends",
        ZoneAccess::Sequential => "written in order",
        ZoneAccess::Placed => "of software",
    };
    format!("zones of {} KiB, {written}", zoned.zone_bytes / 1024)
}

/// The format's word for how zones are written.
pub fn access_of(access: ZoneAccess) -> Access {
    match access {
        ZoneAccess::Append => Access::Append,
        ZoneAccess::Sequential => Access::Sequential,
        ZoneAccess::Placed => Access::Placed,
    }
}

fn carrier(wanted: &Wanted, devices: &[DeviceZones]) -> Result<Carrier, PlanRefusal> {
    let has_none = |device: &&DeviceZones| {
        device.zoned.access != ZoneAccess::Append
            || device.zoned.metadata_bytes as usize != OOB_BYTES
            || device.logical_block_bytes as usize != BLOCK_BYTES
    };
    match (wanted.carrier, devices.iter().find(has_none)) {
        (Some(Carrier::Inband), _) | (None, Some(_)) => Ok(Carrier::Inband),
        (_, None) => Ok(Carrier::Oob),
        (Some(Carrier::Oob), Some(device)) => Err(PlanRefusal::NoMetadata { name: device.name.clone() }),
    }
}

/// Blocks of a small and of a large record.
fn records(
    wanted: &Wanted,
    devices: &[DeviceZones],
    carrier: Carrier,
    zones: &MemberZones,
) -> Result<[u16; 2], PlanRefusal> {
    let least = devices.iter().min_by_key(|device| device.zoned.record_bytes_max).expect("columns");
    let most = least.zoned.record_bytes_max / BLOCK_BYTES as u32;
    // A zone has room for its header, some records and a footer.
    let in_zone = (zones.capacity_blocks / 4).max(2);
    let mut records = RECORD_BLOCKS;
    for (record, asked) in records.iter_mut().zip([wanted.small_blocks, wanted.large_blocks]) {
        if let Some(blocks) = asked.filter(|blocks| u32::from(*blocks) > most) {
            return Err(PlanRefusal::RecordTooLong { blocks, name: least.name.clone(), most });
        }
        let blocks = asked.map_or(u32::from(*record).min(most).min(in_zone), u32::from);
        let whole = rows_of(carrier, blocks, blocks);
        if asked.is_some() && whole != blocks {
            return Err(PlanRefusal::Shape(format!(
                "the metadata of a record of {blocks} blocks is not whole sectors of 512 bytes: 1 to 8 blocks are possible, and multiples of 8"
            )));
        }
        let blocks = whole;
        *record = whole_record(carrier, blocks, wanted.columns)?;
    }
    let [small, large] = records;
    if small > large {
        let what = format!("small records of {small} blocks are longer than large ones of {large}");
        return Err(PlanRefusal::Shape(what));
    }
    Ok(records)
}

/// The longest record of at most `blocks` blocks of which each is in use.
fn whole_record(carrier: Carrier, blocks: u32, columns: Columns) -> Result<u16, PlanRefusal> {
    let whole = carrier.whole_record(blocks, columns.data());
    whole.and_then(|whole| u16::try_from(whole).ok()).ok_or_else(|| {
        PlanRefusal::Shape(format!(
            "a record of {blocks} blocks has no room for a row beside its descriptor over {} members",
            columns.width()
        ))
    })
}

fn group(wanted: &Wanted, zones: &MemberZones, large_blocks: u16) -> u16 {
    let in_zone = zones.capacity_blocks / GROUPS_LEAST / u32::from(large_blocks);
    let most = in_zone.min(GROUP_BLOCKS_MAX / u32::from(large_blocks)).max(1);
    wanted.group.unwrap_or_else(|| GROUP.min(u16::try_from(most).unwrap_or(u16::MAX)))
}

/// How many shards can serve an array, of `wanted`, over members with this many zones and these limits of them: each has `open`
/// segments (Z-I9), and on small members segments are few. At least one; [`check_shards`] refuses.
pub fn shards(
    wanted: usize,
    open: OpenCounts,
    zones: u32,
    limits: impl IntoIterator<Item = Option<u32>>,
) -> usize {
    let (open, limit) = (open.total(), limits.into_iter().flatten().min());
    let by_zones = (zones.saturating_sub(SUPERBLOCK_ZONES) / SEGMENTS_PER_OPEN / open).max(1);
    let fits = |shards: &usize| {
        let shards = u32::try_from(*shards).unwrap_or(u32::MAX);
        shards <= by_zones && zone_budget::check(open.saturating_mul(shards), limit).is_ok()
    };
    (1..=wanted).rev().find(fits).unwrap_or(1)
}

/// Whether this number of shards can have their segments open.
///
/// # Errors
/// A drive allows fewer zones.
pub fn check_shards(shards: usize, config: &LogConfig) -> Result<(), LimitTooLow> {
    let open = config.open.total().saturating_mul(u32::try_from(shards).unwrap_or(u32::MAX));
    zone_budget::check(open, config.zone_limits.iter().flatten().min().copied())
}

/// What is fixed while the array of this superblock runs. The limits of its members come from the devices.
///
/// # Errors
/// The superblock's sizes do not fit each other.
pub fn config(superblock: &Superblock) -> Result<LogConfig, PlanRefusal> {
    let mut devices = vec![[0; 16]; member_slots(&superblock.plan)];
    for member in &superblock.members {
        if let Some(device) = member.slot.and_then(|slot| devices.get_mut(usize::from(slot))) {
            *device = member.device_uuid;
        }
    }
    let config = config_of(&superblock.plan, &superblock.zones, superblock.set_uuid, devices)?;
    for class in [Class::Small, Class::Large] {
        let shape = config.shape(class, superblock.plan.columns.width());
        shape.map_err(|fault| PlanRefusal::Shape(fault.to_string()))?;
    }
    Ok(config)
}

/// The segments that each shard has open.
pub fn open_of(plan: &ArrayPlan) -> OpenCounts {
    OpenCounts { small: plan.open_small, large: plan.open_large, ..OpenCounts::ONE }
}

fn config_of(
    plan: &ArrayPlan,
    zones: &MemberZones,
    set_uuid: [u8; 16],
    devices: Vec<[u8; 16]>,
) -> Result<LogConfig, PlanRefusal> {
    let map = MapShape::new(plan.map_entry, plan.map_columns, zones.capacity_blocks);
    let map = map.ok_or_else(|| PlanRefusal::Shape("a zone has no block beside its header".to_owned()))?;
    Ok(LogConfig {
        set_uuid,
        zone_limits: vec![None; devices.len()],
        devices,
        level: plan.columns.level(),
        access: zones.access,
        carrier: plan.carrier,
        zones: zones.zones,
        capacity_blocks: zones.capacity_blocks,
        record_blocks: [plan.small_blocks, plan.large_blocks],
        group: plan.group,
        open: open_of(plan),
        band_blocks: plan.band_blocks.into(),
        map,
        logical_blocks: plan.logical_blocks,
        fill_wait: FillWait::Auto,
        record_bytes_max: u32::from(plan.large_blocks) * BLOCK_BYTES as u32,
        map_limits: MapLimits::default(),
        reclaim: ReclaimOptions::default(),
    })
}

/// A new array.
#[derive(Clone, Debug)]
pub struct NewZonedArray {
    /// Its identity.
    pub set_uuid: [u8; 16],
    /// Its name.
    pub name: String,
    /// The device of each slot.
    pub devices: Vec<[u8; 16]>,
    /// What was chosen.
    pub plan: ArrayPlan,
    /// How each member is cut.
    pub zones: MemberZones,
    /// When, in seconds since 1970.
    pub now_unix_s: u64,
    /// A random number: segment numbers begin there, so that none of an earlier array is taken for one of this (Z-I16).
    pub random: u64,
}

impl NewZonedArray {
    /// The first superblock of the member in a slot.
    pub fn superblock(&self, slot: usize) -> Superblock {
        let epoch = Epoch { number: 1, random: (self.random >> 32) as u32 | 1 };
        let member = |(slot, device_uuid): (u16, &[u8; 16])| Member {
            device_uuid: *device_uuid,
            state: MemberState::InSync,
            slot: Some(slot),
            retired_zones: 0,
            events: 1,
            epoch: None,
        };
        Superblock {
            set_uuid: self.set_uuid,
            device_uuid: self.devices[slot],
            set_name: self.name.clone(),
            sequence: 1,
            epoch,
            served: None,
            ctime_s: self.now_unix_s,
            utime_s: self.now_unix_s,
            growing: false,
            ro_compat: 0,
            compat: 0,
            plan: self.plan.clone(),
            zones: self.zones,
            slot: u16::try_from(slot).expect("few members"),
            clean: true,
            checkpoint: None,
            segments_below: (self.random & 0xffff_ffff).max(1),
            members: (0..).zip(&self.devices).map(member).collect(),
            epochs: vec![epoch],
        }
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
