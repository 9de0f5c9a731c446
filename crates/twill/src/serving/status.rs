//! Everything that `status` and `detail` print, gathered from the shards, the manager and the exports.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use engine::array::bitmap::Bitmaps;
use engine::array::progress::Progress;
use engine::array::scrub::{Phase, ScrubState};
use engine::array::superblocks::Spare;
use engine::array::works::Work;
use engine::counters::CounterTotals;
use host::device::HostDevice;
use layout::md_superblock::{Superblock, display_uuid};
use layout::units::Slot;

use super::deleted::Deleted;
use super::doubt;
use super::exports::Exports;
use super::managed::ManagedArray;
use super::manager::HostManager;
use crate::status::{
    ArrayStatus, BitmapStatus, MemberHealth, MemberStatus, RebuildKind, RebuildStatus, ScrubSummary,
    counters_by_name,
};

/// What only shard 0 knows.
#[derive(Default)]
struct Kept {
    superblocks: Vec<Option<Superblock>>,
    spares: Vec<(Superblock, String, u64)>,
    /// Superblocks of the devices that are to replace members, by slot.
    coming: Vec<Option<Superblock>>,
    events: u64,
    works: Vec<(Work, Arc<Progress>)>,
    /// Work that the manager begins next.
    upcoming: Option<Work>,
    scrub: Option<ScrubState>,
    resync_from_bytes: Option<u64>,
    bitmap: Option<BitmapStatus>,
}

/// What `status` and `detail` print of an array and its exports, without the fields that only its server knows.
pub(super) fn gather(array: &ManagedArray, exports: &Exports) -> ArrayStatus {
    let memory_bytes = array.host.shared.intent.bitmap_memory_bytes();
    let kept = array.ask(move |manager| kept(&manager, memory_bytes)).unwrap_or_default();
    let (exported, block_device) = (exports.status(), exports.device_status());
    ArrayStatus { exports: exported, block_device, ..Gathered { array, kept }.status() }
}

/// An array, and the facts that its shard 0 gave.
struct Gathered<'a> {
    array: &'a ManagedArray,
    kept: Kept,
}

impl Gathered<'_> {
    fn status(&self) -> ArrayStatus {
        let (ManagedArray { shards, known, read_only, .. }, kept) = (self.array, &self.kept);
        let (shared, superblock) = (&self.array.host.shared, kept.superblocks.iter().flatten().next());
        let geometry = &shared.geometry;
        let limits = known.lock().speed.limits();
        let created_unix_s = known.lock().created_unix_s; // released at once: the members are asked below
        let text = |of: &dyn Fn(&Superblock) -> String| superblock.map(of).unwrap_or_default();
        ArrayStatus {
            name: text(&|superblock| {
                superblock.set_name().rsplit(':').next().unwrap_or_default().to_string()
            }),
            uuid: text(&|superblock| display_uuid(&superblock.set_uuid())),
            metadata: text(&|superblock| superblock.minor_version().to_string()),
            level: geometry.level().to_string(),
            layout: geometry.layout().to_string(),
            chunk_bytes: geometry.chunk_bytes(),
            logical_block_bytes: self.array.host.logical_block_bytes,
            size_bytes: geometry.array_bytes(),
            member_bytes: geometry.member_bytes(),
            raid_devices: geometry.members(),
            created_unix_s,
            updated_unix_s: kept.superblocks.iter().flatten().map(Superblock::utime_s).max().unwrap_or(0),
            events: kept.events,
            clean: shared.members.serving()
                && !shared.intent.wants_dirty()
                && kept.resync_from_bytes.is_none(),
            read_only: *read_only,
            failed: !shared.members.serving(),
            members: self.member_status(),
            rebuild: self.rebuild_status(),
            works: kept.works.iter().map(|(work, progress)| self.work_status(*work, progress)).collect(),
            scrub: kept.scrub.as_ref().map(ScrubSummary::from),
            counters: self.counters(),
            consistency_policy: self.consistency_policy().to_string(),
            bitmap: kept.bitmap.clone(),
            update_policy: shared.loads.policy().to_string(),
            avoid_slow: shared.loads.avoid_slow(),
            redo_log: self.redo_log().to_string(),
            fabric: shared.peers.policy().to_owned(),
            parity_at_targets: shared.peers.by_peers(),
            writes_recorded: shared.consistency.epochs().is_some_and(|epochs| epochs.is_recorded()),
            absence_record: shared.absences.has_room(),
            stripes_in_doubt: doubt::stripes(self.array),
            doubts: doubt::ranges(self.array),
            rate_max: limits.rate_max,
            rate_min: limits.rate_min,
            p99_budget_ns: limits.p99_budget_ns,
            shards: shards.count(),
            pid: std::process::id(),
            ..ArrayStatus::default()
        }
    }

    fn redo_log(&self) -> &'static str {
        let (redo, geometry) = (&self.array.host.shared.redo, &self.array.host.shared.geometry);
        match () {
            () if redo.in_force() => "in-force",
            () if redo.has_no_room() => "absent",
            () if geometry.parity_chunks() > 0 && !self.array.read_only && !redo.is_used() => "unused",
            () => "off",
        }
    }

    fn consistency_policy(&self) -> &'static str {
        let intent = &self.array.host.shared.intent;
        match (intent.has_bitmap(), intent.is_used()) {
            (true, _) => "bitmap",
            (false, true) => "resync",
            (false, false) => "none",
        }
    }

    fn member_status(&self) -> Vec<MemberStatus> {
        let (members, known) = (&self.array.host.shared.members, self.array.known.lock());
        let slot_status = |slot: Slot| {
            let path = known.paths[slot.index()].as_ref();
            let superblock = self.kept.superblocks.get(slot.index()).and_then(Option::as_ref);
            let loads = &self.array.host.shared.loads;
            let (latency, (read_bytes, write_bytes)) = (loads.latency(slot), loads.transferred(slot));
            MemberStatus {
                slot: Some(slot),
                path: path.map(|path| path.display().to_string()),
                state: MemberHealth::from(members.state(slot)),
                errors: members.errors(slot),
                corrected_reads: members.corrected_reads(slot),
                bad_block_bytes: members.bad_blocks(slot).0.bytes(),
                recovered_bytes: members.recovered_bytes(slot),
                device_uuid: superblock.map(|superblock| display_uuid(&superblock.device_uuid())),
                device_bytes: path.map_or(0, |path| known.bytes_of(path)),
                read_latency_ns: latency.read_ns,
                write_latency_ns: latency.write_ns,
                read_bytes,
                write_bytes,
                deleted: false,
                write_mostly: superblock.is_some_and(Superblock::is_write_mostly),
                failfast: superblock.is_some_and(Superblock::is_failfast),
                remote: None,
            }
        };
        let spare_status = |(superblock, name, bytes): &(Superblock, String, u64)| MemberStatus {
            slot: None,
            path: Some(name.clone()),
            state: MemberHealth::Spare,
            device_uuid: Some(display_uuid(&superblock.device_uuid())),
            device_bytes: *bytes,
            ..MemberStatus::default()
        };
        let replacement_status = |slot: Slot| {
            let path = known.coming[slot.index()].as_ref()?;
            let superblock = self.kept.coming.get(slot.index()).and_then(Option::as_ref);
            Some(MemberStatus {
                slot: Some(slot),
                path: Some(path.display().to_string()),
                state: MemberHealth::Replacing,
                recovered_bytes: members.copied_bytes(slot),
                device_uuid: superblock.map(|superblock| display_uuid(&superblock.device_uuid())),
                device_bytes: known.bytes_of(path),
                ..MemberStatus::default()
            })
        };
        let faulty_status = |path: &PathBuf| MemberStatus {
            path: Some(path.display().to_string()),
            state: MemberHealth::Failed,
            device_bytes: known.bytes_of(path),
            ..MemberStatus::default()
        };
        let with_remote = |member: MemberStatus| MemberStatus {
            remote: member.path.as_ref().and_then(|path| known.remote(path)),
            ..member
        };
        let slots = self.array.host.shared.geometry.slots();
        let replacements = slots.clone().filter_map(replacement_status);
        let spares = self.kept.spares.iter().map(spare_status);
        let faulty = known.faulty.iter().map(faulty_status);
        let all = slots.map(slot_status).chain(replacements).chain(spares).chain(faulty);
        let mut all: Vec<MemberStatus> = all.map(with_remote).collect();
        // Shards wait for the lock: they do not wait for a file system, too.
        drop(known);
        let deleted = Deleted::look();
        for member in &mut all {
            member.deleted = member.path.as_ref().is_some_and(|path| deleted.has(Path::new(path)));
        }
        all
    }

    fn rebuild_status(&self) -> Option<RebuildStatus> {
        if let Some((work, progress)) = self.kept.works.first() {
            return Some(self.work_status(*work, progress));
        }
        let total_bytes = self.array.host.shared.geometry.member_bytes();
        if let Some(work) = self.kept.upcoming {
            return Some(RebuildStatus { total_bytes, ..self.work_status(work, &Progress::default()) });
        }
        let pending = self.array.read_only || !self.array.host.shared.members.all_in_sync();
        let waits = |kind, done_bytes| {
            Some(RebuildStatus { kind, slot: None, done_bytes, total_bytes, bytes_per_s: 0, pending })
        };
        // It waits: for the manager to begin it, or for missing members.
        match (self.kept.resync_from_bytes, &self.kept.scrub) {
            (Some(from_bytes), _) => waits(RebuildKind::Resync, from_bytes),
            (None, Some(scrub)) if scrub.phase == Phase::Running => waits(scrub_kind(scrub), 0),
            _ => None,
        }
    }

    fn work_status(&self, work: Work, progress: &Progress) -> RebuildStatus {
        let (kind, slot) = match work {
            Work::Resync => (RebuildKind::Resync, None),
            Work::Recovery(slot) => (RebuildKind::Recovery, Some(slot)),
            Work::Replacement(slot) => (RebuildKind::Replacement, Some(slot)),
            Work::Scrub => (self.kept.scrub.as_ref().map_or(RebuildKind::Check, scrub_kind), None),
        };
        RebuildStatus {
            kind,
            slot,
            done_bytes: progress.done_bytes.load(Relaxed),
            total_bytes: progress.total_bytes.load(Relaxed),
            bytes_per_s: progress.bytes_per_s(self.array.host.shared.loads.now_ns()),
            pending: false,
        }
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let mut counters = counters_by_name(&CounterTotals::of(&self.array.host.shared.counters));
        let cache = self.array.host.shared.cache.counters();
        counters.insert("parity_cache_hits".into(), cache.hits);
        counters.insert("parity_cache_misses".into(), cache.misses);
        counters.insert("parity_cache_evictions".into(), cache.evictions);
        counters
    }
}

fn scrub_kind(scrub: &ScrubState) -> RebuildKind {
    if scrub.mode.repair { RebuildKind::Repair } else { RebuildKind::Check }
}

fn bitmap_status(bitmap: &Bitmaps<HostDevice>, memory_bytes: u64) -> BitmapStatus {
    let (superblock, (bits_set, bits)) = (bitmap.superblock(), bitmap.bits());
    let (chunk_bytes, events_cleared) = (superblock.chunk_bytes(), superblock.events_cleared());
    BitmapStatus { chunk_bytes, bits, bits_set, events_cleared, memory_bytes }
}

fn kept(manager: &HostManager, memory_bytes: u64) -> Kept {
    let writer = manager.writer();
    let info = |spare: &Spare<HostDevice>| {
        let info = engine::device::Device::info(&*spare.device);
        (spare.superblock.clone(), info.name.clone(), info.size_bytes)
    };
    Kept {
        superblocks: Slot::all().map_while(|slot| writer.superblocks().try_superblock(slot)).collect(),
        spares: writer.superblocks().spares().borrow().iter().map(info).collect(),
        coming: manager.slots().map(|slot| writer.superblocks().incoming(slot)).collect(),
        events: writer.superblocks().events(),
        works: manager.works(),
        upcoming: manager.upcoming(),
        scrub: manager.scrub(),
        resync_from_bytes: writer.resync_from_bytes(),
        bitmap: writer.bitmap().map(|bitmap| bitmap_status(&bitmap, memory_bytes)),
    }
}
