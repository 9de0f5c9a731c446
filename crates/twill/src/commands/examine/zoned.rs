//! What a zoned member's superblock and segments say, in plain numbers and words.

use std::io;

use layout::md_superblock::display_uuid;
use layout::zoned::{
    Access, BLOCK_BYTES, Carrier, Class, MapEntryBytes, Member, MemberState, SegmentHeader, Superblock,
};
use serde::Serialize;

use crate::bytes;
use crate::counted::counted;
use crate::probe::member_file::MemberFile;
use crate::probe::zoned::{self, Filled, FoundLog, ZoneContents, Zones};
use crate::words;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// A superblock of a zoned member.
#[derive(Debug, Serialize)]
pub struct Description {
    superblock_zone: u32,
    superblock_block: u32,
    /// Blocks of the superblock log that are damaged; a torn last one is normal.
    damaged_superblocks: usize,
    array_uuid: String,
    name: String,
    creation_unix_s: u64,
    update_unix_s: u64,
    events: u64,
    epoch: String,
    served_epoch: Option<String>,
    level: String,
    raid_devices: u8,
    parity_columns: u8,
    array_bytes: u64,
    reserve_bytes: u64,
    metadata: &'static str,
    small_record_blocks: u16,
    large_record_blocks: u16,
    group: u16,
    band_blocks: u16,
    open_small: u8,
    open_large: u8,
    map_entry_bytes: u8,
    map_columns: u8,
    access: &'static str,
    zones: u32,
    zone_bytes: u64,
    zone_capacity_bytes: u64,
    clean: bool,
    /// Members were added, and segments over fewer of them may be there.
    growing: bool,
    /// A feature that a program must know to write, by its bit.
    read_only_feature: Option<u32>,
    checkpoint_segment: Option<u64>,
    checkpoint_sequence: Option<u64>,
    segments_below: u64,
    device_uuid: String,
    slot: Option<u16>,
    members: Vec<DescribedMember>,
}

/// A row of the superblock's table of members.
#[derive(Debug, Serialize)]
struct DescribedMember {
    device_uuid: String,
    state: &'static str,
    slot: Option<u16>,
    retired_zones: u32,
    events: u64,
    served_epoch: Option<String>,
}

/// What the zones of a member hold.
#[derive(Debug, Serialize)]
pub struct DescribedZones {
    array_uuid: String,
    device_uuid: String,
    zone_bytes: u64,
    free: u32,
    segments: Vec<DescribedSegment>,
    damaged: Vec<DamagedZone>,
}

/// A column of a segment.
#[derive(Debug, Serialize)]
struct DescribedSegment {
    zone: u32,
    segment: u64,
    class: &'static str,
    level: String,
    columns: u8,
    column: u8,
    generation: u32,
    map_slot: u32,
    epoch: String,
    first_sequence: String,
    access: &'static str,
    metadata: &'static str,
    record_blocks: u16,
    data_blocks: u32,
    /// sealed, closed-early, open, or unknown where an image has no metadata out of band.
    state: &'static str,
    /// Blocks of the data region that the footer names or right records take.
    written_blocks: Option<u32>,
    /// Right records, of a segment without a footer.
    records: Option<u32>,
}

/// A zone whose header is not usable.
#[derive(Debug, Serialize)]
struct DamagedZone {
    zone: u32,
    problem: String,
}

impl Description {
    /// Describes what the log says.
    pub fn of(log: &FoundLog) -> Description {
        let Superblock { plan, zones, checkpoint, .. } = &log.superblock;
        let of = &log.superblock;
        Description {
            superblock_zone: log.place.zone,
            superblock_block: log.place.block,
            damaged_superblocks: log.damaged_blocks,
            array_uuid: display_uuid(&of.set_uuid),
            name: of.set_name.clone(),
            creation_unix_s: of.ctime_s,
            update_unix_s: of.utime_s,
            events: of.sequence,
            epoch: of.epoch.to_string(),
            served_epoch: of.served.map(|epoch| epoch.to_string()),
            level: plan.columns.level().to_string(),
            raid_devices: plan.columns.width(),
            parity_columns: plan.columns.parity(),
            array_bytes: plan.logical_blocks * BLOCK,
            reserve_bytes: plan.reserve_blocks.saturating_mul(BLOCK),
            metadata: carrier_word(plan.carrier),
            small_record_blocks: plan.small_blocks,
            large_record_blocks: plan.large_blocks,
            group: plan.group,
            band_blocks: plan.band_blocks,
            open_small: plan.open_small,
            open_large: plan.open_large,
            map_entry_bytes: match plan.map_entry {
                MapEntryBytes::Four => 4,
                MapEntryBytes::Eight => 8,
            },
            map_columns: plan.map_columns,
            access: access_word(zones.access),
            zones: zones.zones,
            zone_bytes: u64::from(zones.zone_blocks) * BLOCK,
            zone_capacity_bytes: u64::from(zones.capacity_blocks) * BLOCK,
            clean: of.clean,
            growing: of.growing,
            read_only_feature: of.read_only_feature(),
            checkpoint_segment: checkpoint.map(|checkpoint| checkpoint.segment),
            checkpoint_sequence: checkpoint.map(|checkpoint| checkpoint.sequence.0),
            segments_below: of.segments_below,
            device_uuid: display_uuid(&of.device_uuid),
            slot: of.own_member().slot,
            members: of.members.iter().map(member).collect(),
        }
    }

    /// Keys and values, for people.
    pub fn rows(&self) -> Vec<(String, String)> {
        let mut rows = Vec::new();
        let mut add = |key: &str, value: String| rows.push((key.to_owned(), value));
        let blocks = |blocks: u16| format!("{blocks} blocks ({})", bytes::short(u64::from(blocks) * BLOCK));
        add("Magic", "TwZonSb".into());
        add("Version", format!("{} (zoned)", layout::zoned::VERSION));
        if let Some(bit) = self.read_only_feature {
            add("Read Only", format!("feature {bit} has to be known to write, and Twill does not know it"));
        }
        add("Array UUID", self.array_uuid.clone());
        add("Name", self.name.clone());
        add("Creation Time", words::time::seconds(self.creation_unix_s));
        add("Raid Level", self.level.clone());
        add("Raid Devices", self.raid_devices.to_string());
        add("Array Size", format!("{} KiB ({})", self.array_bytes / 1024, bytes::mdadm(self.array_bytes)));
        add("Reserve", bytes::human(self.reserve_bytes));
        let (zone, capacity) = (bytes::human(self.zone_bytes), bytes::human(self.zone_capacity_bytes));
        add("Zones", format!("{} of {zone}, of which {capacity} can be written", self.zones));
        add("Zone Access", self.access.into());
        add("Metadata", self.metadata.into());
        add("Small Record", blocks(self.small_record_blocks));
        add("Large Record", blocks(self.large_record_blocks));
        add("Group", counted(self.group, "record"));
        add("Open Segments", format!("{} small, {} large", self.open_small, self.open_large));
        add("Map", format!("entries of {} bytes, {} columns", self.map_entry_bytes, self.map_columns));
        let state = if self.clean { "clean" } else { "active" };
        add("State", if self.growing { format!("{state}, growing") } else { state.into() });
        add("Device UUID", self.device_uuid.clone());
        add("Update Time", words::time::seconds(self.update_unix_s));
        add("Events", self.events.to_string());
        add(
            "Epoch",
            format!("{}, last served {}", self.epoch, self.served_epoch.as_deref().unwrap_or("none")),
        );
        let checkpoint = self.checkpoint_segment.zip(self.checkpoint_sequence);
        let none = || "none: a start reads every footer".into();
        let segment = |(segment, sequence)| format!("from segment {segment} on, as of write {sequence}");
        add("Checkpoint", checkpoint.map_or_else(none, segment));
        add("Segment Numbers", format!("in use below {}", self.segments_below));
        add("Superblock", format!("block {} of zone {}", self.superblock_block, self.superblock_zone));
        if self.damaged_superblocks > 0 {
            let damaged = counted(self.damaged_superblocks as u64, "damaged block");
            add("Superblock Log", format!("{damaged}; after a power cut one is normal"));
        }
        add("Device Slot", self.slot.map_or("none, a spare".into(), |slot| slot.to_string()));
        for member in &self.members {
            let key = member.slot.map_or("Spare".into(), |slot| format!("Slot {slot}"));
            let mut value = format!("{} {}", member.device_uuid, member.state);
            if member.retired_zones > 0 {
                value += &format!(", {} retired", counted(member.retired_zones, "zone"));
            }
            add(&key, value);
        }
        rows
    }
}

impl DescribedZones {
    /// Reads the zones of a member.
    ///
    /// # Errors
    /// What the system says.
    pub fn read(member: &MemberFile, zones: &Zones) -> io::Result<DescribedZones> {
        let mut described = DescribedZones {
            array_uuid: display_uuid(&zones.set_uuid),
            device_uuid: display_uuid(&zones.device_uuid),
            zone_bytes: zones.zone_blocks * BLOCK,
            free: 0,
            segments: Vec::new(),
            damaged: Vec::new(),
        };
        for held in zoned::contents(member, zones) {
            let (zone, held) = held?;
            match held {
                ZoneContents::Free => described.free += 1,
                ZoneContents::Segment { header, filled } => {
                    described.segments.push(segment(zone, &header, filled));
                }
                ZoneContents::Damaged(error) => {
                    described.damaged.push(DamagedZone { zone, problem: error.to_string() });
                }
            }
        }
        Ok(described)
    }

    /// Keys and values, for people.
    pub fn rows(&self) -> Vec<(String, String)> {
        let mut zones: Vec<(u32, String)> =
            self.segments.iter().map(|segment| (segment.zone, segment.words())).collect();
        zones.extend(self.damaged.iter().map(|zone| (zone.zone, format!("not usable: {}", zone.problem))));
        zones.sort_by_key(|(zone, _)| *zone);
        let free = ("Free Zones".into(), self.free.to_string());
        let zone = |(zone, held)| (format!("Zone {zone}"), held);
        [free].into_iter().chain(zones.into_iter().map(zone)).collect()
    }
}

impl DescribedSegment {
    fn words(&self) -> String {
        let DescribedSegment { segment, class, level, columns, column, .. } = self;
        let mut text = format!("segment {segment}, {class}, {level} of {columns}, column {column}");
        if self.generation > 0 {
            text += &format!(", rebuilt {}", counted(self.generation, "time"));
        }
        let of = |written: u32| format!("{written} of {} blocks", self.data_blocks);
        match (self.state, self.written_blocks, self.records) {
            ("open", Some(written), Some(records)) => {
                text += &format!(", open, {} in {}", counted(records, "record"), of(written));
            }
            ("closed-early", Some(written), _) => text += &format!(", sealed early after {}", of(written)),
            (state, ..) => text += &format!(", {state}"),
        }
        text
    }
}

fn member(member: &Member) -> DescribedMember {
    DescribedMember {
        device_uuid: display_uuid(&member.device_uuid),
        state: match member.state {
            MemberState::InSync => "in-sync",
            MemberState::Recovering => "recovering",
            MemberState::Failed => "failed",
            MemberState::Spare => "spare",
        },
        slot: member.slot,
        retired_zones: member.retired_zones,
        events: member.events,
        served_epoch: member.epoch.map(|epoch| epoch.to_string()),
    }
}

fn segment(zone: u32, header: &SegmentHeader, filled: Filled) -> DescribedSegment {
    let plan = header.shape.plan();
    let data_blocks = header.shape.data_blocks();
    let (state, written_blocks, records) = match filled {
        Filled::Sealed { data_blocks: named } if named < data_blocks => ("closed-early", Some(named), None),
        Filled::Sealed { data_blocks } => ("sealed", Some(data_blocks), None),
        Filled::Open { records, data_blocks } => ("open", Some(data_blocks), Some(records)),
        Filled::Unknown => ("unknown", None, None),
    };
    DescribedSegment {
        zone,
        segment: header.segment,
        class: match header.class {
            Class::Small => "small",
            Class::Large => "large",
            Class::Reclaim => "reclaim",
            Class::Recovery => "recovery",
        },
        level: plan.columns.level().to_string(),
        columns: plan.columns.width(),
        column: header.column,
        generation: header.generation,
        map_slot: header.slot,
        epoch: header.epoch.to_string(),
        first_sequence: header.first_sequence.to_string(),
        access: access_word(plan.access),
        metadata: carrier_word(plan.carrier),
        record_blocks: plan.record_blocks,
        data_blocks,
        state,
        written_blocks,
        records,
    }
}

fn access_word(access: Access) -> &'static str {
    match access {
        Access::Append => "append",
        Access::Sequential => "sequential",
        Access::Placed => "placed",
    }
}

fn carrier_word(carrier: Carrier) -> &'static str {
    match carrier {
        Carrier::Oob => "oob",
        Carrier::Inband => "inband",
    }
}
