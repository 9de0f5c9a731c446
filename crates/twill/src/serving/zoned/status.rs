//! Everything that `status` and `detail` print of a zoned array.

use std::path::Path;

use engine::counters::CounterTotals;
use engine::limits::BLOCK_BYTES;
use engine::log::reclaim::{lacking, narrow};
use engine::log::space::Activity;
use engine::members::MemberState;
use layout::md_superblock::display_uuid;
use layout::units::Slot;
use layout::zoned::{Access, Carrier, Superblock};

use super::super::deleted::Deleted;
use super::super::exports::Exports;
use super::ManagedZones;
use crate::status::{ArrayStatus, MemberHealth, MemberStatus, ScrubSummary, ZonedStatus, counters_by_name};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What `status` and `detail` print of a zoned array and its exports, without the fields that only its server knows.
pub fn gather(managed: &ManagedZones, exports: &Exports) -> ArrayStatus {
    let asked =
        managed.array.ask(|running| async move { (running.said().superblock(), running.check_state()) });
    let (said, check) = asked.map_or((None, None), |(said, check)| (Some(said), check));
    let shared = &managed.array.shared;
    let config = &shared.config;
    let text = |of: &dyn Fn(&Superblock) -> String| said.as_ref().map(of).unwrap_or_default();
    let unit = exports.status();
    ArrayStatus {
        name: text(&|superblock| superblock.set_name.clone()),
        uuid: display_uuid(&config.set_uuid),
        metadata: "zoned".to_owned(),
        level: config.level.to_string(),
        layout: "default".to_owned(),
        chunk_bytes: u32::from(config.record_blocks[1]) * BLOCK_BYTES as u32,
        logical_block_bytes: BLOCK_BYTES as u32,
        size_bytes: config.logical_blocks * BLOCK,
        member_bytes: u64::from(config.zones) * u64::from(config.capacity_blocks) * BLOCK,
        raid_devices: u32::try_from(shared.members.width()).unwrap_or(u32::MAX),
        created_unix_s: said.as_ref().map_or(0, |superblock| superblock.ctime_s),
        updated_unix_s: said.as_ref().map_or(0, |superblock| superblock.utime_s),
        events: said.as_ref().map_or(0, |superblock| superblock.sequence),
        // No stripe of it can be torn: whatever is in flight, data and parity agree.
        clean: !shared.members.is_read_only(),
        read_only: shared.members.is_read_only(),
        members: members(managed, said.as_ref()),
        exports: unit,
        block_device: exports.device_status(),
        counters: counters_by_name(&CounterTotals::of(&shared.counters)),
        shards: managed.shards.count(),
        pid: std::process::id(),
        scrub: check.as_ref().map(ScrubSummary::from),
        zoned: Some(zoned(managed, said.as_ref())),
        ..ArrayStatus::default()
    }
}

fn members(managed: &ManagedZones, said: Option<&Superblock>) -> Vec<MemberStatus> {
    let shared = &managed.array.shared;
    let known = managed.known.lock();
    let deleted = Deleted::look();
    let (zones, capacity) = (u64::from(shared.config.zones), u64::from(shared.config.capacity_blocks));
    let member = |(slot, state): (usize, MemberState)| {
        let path = known.paths.get(slot).and_then(Option::as_ref).map(|path| path.display().to_string());
        let state = match MemberHealth::from(state) {
            MemberHealth::Failed if path.is_none() => MemberHealth::Missing,
            other => other,
        };
        MemberStatus {
            slot: Some(Slot::of_index(slot)),
            errors: shared.members.errors(slot),
            device_uuid: said.map(|_| display_uuid(&shared.members.uuid(slot))),
            device_bytes: if path.is_some() { zones * capacity * BLOCK } else { 0 },
            deleted: path.as_ref().is_some_and(|path| deleted.has(Path::new(path))),
            path,
            state,
            ..MemberStatus::default()
        }
    };
    shared.members.shown().into_iter().enumerate().map(member).collect()
}

fn zoned(managed: &ManagedZones, said: Option<&Superblock>) -> ZonedStatus {
    let shared = &managed.array.shared;
    let (config, table) = (&shared.config, &shared.table);
    let width = shared.members.width();
    ZonedStatus {
        access: match config.access {
            Access::Append => "append",
            Access::Sequential => "sequential",
            Access::Placed => "placed",
        }
        .to_owned(),
        carrier: match config.carrier {
            Carrier::Oob => "oob",
            Carrier::Inband => "inband",
        }
        .to_owned(),
        zone_bytes: said.map_or(0, |superblock| u64::from(superblock.zones.zone_blocks) * BLOCK),
        zones: config.zones,
        free_zones: table.free_zones().into_iter().take(width).min().unwrap_or(0) as u64,
        open_zones: (0..width).map(|slot| table.active_zones(slot)).max().unwrap_or(0),
        segments: table.all().len() as u64,
        live_bytes: table.mapped_blocks() * BLOCK,
        map_bytes: shared.map.groups() * BLOCK,
        map_in_memory_bytes: shared.map.in_memory() as u64 * BLOCK,
        map_memory_bytes: shared.memory.limit().map(|groups| groups as u64 * BLOCK),
        map_blocks_read: shared.memory.read(),
        map_blocks_written: shared.memory.written(),
        map_changed_bytes: shared.map.changed() as u64 * BLOCK,
        checkpoint: shared.checkpoints.said().map(|said| said.sequence.to_string()),
        checkpoints_written: shared.checkpoints.written(),
        reserve_bytes: said.map_or(0, |superblock| superblock.plan.reserve_blocks * BLOCK),
        epoch: shared.epoch.to_string(),
        write_amplification_percent: shared
            .space
            .totals()
            .write_amplification_percent(shared.memory.written()),
        client_blocks: shared.space.totals().user_blocks,
        moved_blocks: shared.space.totals().moved_blocks,
        emptied_segments: shared.space.totals().emptied_segments,
        reclaiming: match shared.space.activity() {
            Activity::None => "nothing",
            Activity::ForWriters => "for writers",
            Activity::WhileIdle => "while idle",
        }
        .to_owned(),
        reclaim_policy: config.reclaim.policy.to_string(),
        idle_moved_bytes: shared.space.totals().idle_moved_blocks * BLOCK,
        degraded_segments: lacking(shared).len() as u64,
        narrow_segments: narrow(shared).len() as u64,
        growing: shared.members.is_growing(),
        next_size_bytes: said
            .map(|superblock| superblock.plan.logical_blocks)
            .filter(|blocks| *blocks != config.logical_blocks)
            .map(|blocks| blocks * BLOCK),
        columns_left_out: shared.members.left_out() as u64,
        reads_verified: config.map.checksum_bits() > 0,
    }
}
