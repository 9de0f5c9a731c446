//! What an operator asks of a served array: status, fail, remove, add. The manager and the keeper live on shard 0;
//! other threads send it closures.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::Sender;
use std::time::Duration;

use engine::array::bitmap::Bitmaps;
use engine::array::keeper::{Keeper, Spare};
use engine::array::rebuild::Progress;
use engine::array::redo::{replay, take_doubts};
use engine::array::scrub::{Phase, Refused, ScrubState, Wish};
use engine::array::start_bitmap::StartBitmap;
use engine::array::state::{Manager, NotAdded, Platform, Work};
use engine::counters::CounterTotals;
use engine::error::VolumeError;
use engine::members::load::UpdatePolicy;
use engine::members::{Failing, MemberState};
use host::array::{HostArray, MemberDevice};
use host::device::{HostDevice, SharedDevice};
use host::ring::Ring;
use host::shard::{ShardGone, Shards};
use layout::md_superblock::{SUPERBLOCK_BYTES_MAX, Superblock, display_uuid};
use parking_lot::Mutex;

use super::deleted::Deleted;
use super::speed::{NAP, NewLimits, Speed, is_stopping};
use super::start::{gone, open_free_device};
use super::{Serving, now_unix_s};
use crate::candidates::superblock_of;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::md_places;
use crate::member_file::MemberFile;
use crate::redo;
use crate::signatures;
use crate::status::{
    ArrayStatus, BitmapStatus, ExportStatus, MemberHealth, MemberStatus, RebuildKind, RebuildStatus,
    ScrubSummary, counters_by_name,
};

/// Devices and paths of an array's members.
#[derive(Default)]
pub(super) struct Known {
    /// Open devices, spares too, by the device's name.
    pub(super) devices: HashMap<String, SharedDevice>,
    /// How fast a resync, recovery or scrub goes.
    pub(super) speed: Arc<Speed>,
    /// The path of the member in each slot.
    pub(super) paths: Vec<Option<PathBuf>>,
    /// The path of what is to replace the member in each slot.
    pub(super) coming: Vec<Option<PathBuf>>,
    /// Failed members whose slots others have taken. They are held until somebody removes them.
    pub(super) faulty: Vec<PathBuf>,
    pub(super) created_unix_s: u64,
}

/// How often the manager looks at its array.
const LOOK: Duration = Duration::from_millis(200);

/// What the manager needs from the shards.
pub(super) struct HostPlatform {
    array: HostArray,
    ring: Ring,
    known: Arc<Mutex<Known>>,
    scrubs: Sender<ScrubState>,
}

impl Known {
    fn bytes_of(&self, path: &Path) -> u64 {
        self.devices.get(&path.display().to_string()).map_or(0, |device| device.info().size_bytes)
    }

    /// Lets go of failed members without a slot: of those that `is_meant` names. How many there were.
    fn remove_faulty(&mut self, is_meant: impl Fn(&Path) -> bool) -> usize {
        let (removed, kept) = std::mem::take(&mut self.faulty).into_iter().partition(|path| is_meant(path));
        self.faulty = kept;
        let removed: Vec<PathBuf> = removed;
        let count = removed.len();
        removed.into_iter().for_each(|path| self.close(Some(path)));
        count
    }

    /// The open device that one shard's way leads to, and its path.
    fn open(&self, device: Option<&(Rc<HostDevice>, u64)>) -> (Option<MemberDevice>, Option<PathBuf>) {
        let Some((device, data_offset_bytes)) = device else { return (None, None) };
        let (name, data_offset_bytes) = (&engine::device::Device::info(&**device).name, *data_offset_bytes);
        let open = self.devices.get(name).cloned();
        (open.map(|device| MemberDevice { device, data_offset_bytes }), Some(PathBuf::from(name)))
    }

    /// Nobody uses the device with this path any more.
    fn close(&mut self, path: Option<PathBuf>) {
        if let Some(path) = path {
            self.devices.remove(&path.display().to_string());
        }
    }
}

/// A shard ends only when the program does.
fn told(result: Result<(), ShardGone>, slot: u32) {
    if let Err(error) = result {
        tracing::error!(%error, slot, "a shard has no way to the member");
    }
}

impl Platform<HostDevice> for HostPlatform {
    async fn attach(&self, slot: u32, device: Option<(Rc<HostDevice>, u64)>) {
        let (member, path) = self.known.lock().open(device.as_ref());
        {
            let mut known = self.known.lock();
            let before = std::mem::replace(&mut known.paths[slot as usize], path);
            match member {
                None => known.close(before),
                Some(_) => known.faulty.extend(before),
            }
        }
        told(self.array.attach(slot, member).await, slot);
    }

    async fn attach_replacement(&self, slot: u32, device: Option<(Rc<HostDevice>, u64)>) {
        let (replacement, path) = self.known.lock().open(device.as_ref());
        let before = std::mem::replace(&mut self.known.lock().coming[slot as usize], path);
        told(self.array.attach_replacement(slot, replacement).await, slot);
        if device.is_none() {
            self.known.lock().close(before);
        }
    }

    async fn promote_replacement(&self, slot: u32) {
        told(self.array.promote_replacement(slot).await, slot);
        let mut known = self.known.lock();
        let path = known.coming[slot as usize].take();
        let before = std::mem::replace(&mut known.paths[slot as usize], path);
        known.close(before);
    }

    async fn pause(&self) {
        self.ring.sleep(LOOK).await;
    }

    async fn pace(&self, bytes: u64) {
        let speed = Arc::clone(&self.known.lock().speed);
        let shared = &self.array.shared;
        let pause = speed.pause(shared, bytes);
        loop {
            let left = speed.left(&pause, shared);
            if left.is_zero() || is_stopping(&self.array.mode) {
                return;
            }
            self.ring.sleep(left.min(NAP)).await;
        }
    }

    fn keep_scrub(&self, state: &ScrubState) {
        if self.scrubs.send(state.clone()).is_err() {
            tracing::debug!("nobody keeps the state of the scrub any more");
        }
    }
}

pub(super) type HostManager = Manager<HostDevice, HostPlatform>;

thread_local! {
    /// The manager of the array that this process serves; on shard 0 only.
    static MANAGER: RefCell<Option<Rc<HostManager>>> = const { RefCell::new(None) };
}

pub(super) fn manager() -> Rc<HostManager> {
    MANAGER.with_borrow(|manager| Rc::clone(manager.as_ref().expect("shard 0 manages the array")))
}

/// The way to the manager.
pub(super) struct ArrayManager;

/// What only shard 0 knows.
#[derive(Default)]
struct Kept {
    superblocks: Vec<Option<Superblock>>,
    spares: Vec<(Superblock, String, u64)>,
    /// Superblocks of what is to replace members, by slot.
    coming: Vec<Option<Superblock>>,
    events: u64,
    works: Vec<(Work, Arc<Progress>)>,
    /// What begins at the manager's next look.
    upcoming: Option<Work>,
    scrub: Option<ScrubState>,
    resync_from_bytes: Option<u64>,
    bitmap: Option<BitmapStatus>,
}

/// What assembly found: superblocks by slot, spares, and what may not agree.
pub(super) struct FoundArray {
    pub(super) superblocks: Vec<Option<Superblock>>,
    /// The newest event count.
    pub(super) events: u64,
    pub(super) spares: Vec<(SharedDevice, Superblock)>,
    /// What is to replace the members in slots.
    pub(super) replacements: Vec<(u32, SharedDevice, Superblock)>,
    pub(super) redo: redo::Found,
    /// Writes are logged while members are missing.
    pub(super) keeps_redo_log: bool,
    pub(super) bitmap: Option<StartBitmap>,
}

/// Clears bits of idle chunks every few seconds, as the bitmap's superblock has it.
async fn clear_bits(manager: Rc<HostManager>, ring: Ring) {
    let sleep_s = manager.keeper().bitmap().map_or(0, |bitmap| bitmap.superblock().daemon_sleep_s());
    let looks = u64::from(sleep_s).clamp(1, 3600) * 1000 / LOOK.as_millis() as u64;
    let mut look = 0;
    while !manager.is_stopping() {
        ring.sleep(LOOK).await;
        look += 1;
        if look % looks == 0 {
            manager.keeper().clear_idle_bits().await;
        }
    }
}

impl ArrayManager {
    pub(super) fn start(
        shards: &Shards,
        array: &HostArray,
        found: FoundArray,
        (scrub, scrubs): (Option<ScrubState>, Sender<ScrubState>),
        known: &Arc<Mutex<Known>>,
        read_only: bool,
    ) -> Result<Self, Failure> {
        let (array, known) = (array.clone(), Arc::clone(known));
        let started = shards.run_on(0, move |context| async move {
            let set = Rc::clone(array.volume().stripes());
            let FoundArray { superblocks, events, spares, replacements, redo, keeps_redo_log, bitmap } =
                found;
            // Before anything is served or any superblock is written.
            replay(&set, &redo.repair).await?;
            take_doubts(&set, &redo.repair);
            let bitmap =
                bitmap.map(|start| Bitmaps::new(Rc::clone(&set), start.image, &superblocks, &start.whole));
            let (resync, now_s) = (redo.resync_from_bytes, Box::new(now_unix_s));
            let keeper = Keeper::new(Rc::clone(&set), superblocks, events, resync, now_s);
            if keeps_redo_log {
                keeper.keep_redo_log(&redo.repair, &redo.bitmaps);
            } else if redo.repair.in_force && !read_only {
                // No new header will make it old: without other superblocks its writes would be made again, over later ones.
                keeper.void_redo_log();
            }
            for (device, superblock) in spares {
                let device = Rc::new(device.attach(&context.ring));
                keeper.spares().borrow_mut().push(Spare { superblock, device });
            }
            let platform = HostPlatform { array, ring: context.ring.clone(), known, scrubs };
            let manager = Manager::new(set, Rc::clone(&keeper), platform, scrub, read_only);
            MANAGER.set(Some(Rc::clone(&manager)));
            if let Some(bitmap) = bitmap {
                keeper.keep_bitmap(Rc::clone(&bitmap));
                context.executor.spawn(async move { bitmap.run().await });
                if !read_only {
                    context.executor.spawn(clear_bits(Rc::clone(&manager), context.ring.clone()));
                }
            }
            context.executor.spawn(async move { keeper.run().await });
            for (slot, device, superblock) in replacements {
                manager.resume_later(slot, Rc::new(device.attach(&context.ring)), superblock);
            }
            context.executor.spawn(async move { manager.run().await });
            Ok(())
        });
        let failed = |error: VolumeError| {
            let message = format!("what a crash left half done cannot be made good: {error}");
            Failure::new(ExitKind::IoError, message)
        };
        started.map_err(gone)?.map_err(failed)?;
        Ok(ArrayManager)
    }

    pub(super) fn ask<T: Send + 'static>(
        &self,
        shards: &Shards,
        question: impl FnOnce(Rc<HostManager>) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        shards.run_on(0, move |_| async move { question(manager()) }).map_err(gone)
    }

    /// Ends the manager and writes clean superblocks, unless something is left to resync. Whether they are clean.
    pub(super) fn stop(&self, shards: &Shards, read_only: bool) -> Result<bool, Failure> {
        let stopped = shards.run_on(0, move |_| async move {
            let manager = manager();
            manager.stop().await;
            let stopped = match read_only {
                true => {
                    manager.keeper().stop_read_only();
                    Ok(())
                }
                false => manager.keeper().stop().await,
            };
            manager.keeper().stop_flusher();
            MANAGER.set(None);
            stopped.map(|()| manager.keeper().says_clean())
        });
        stopped.map_err(gone)?.map_err(|error| {
            let message = format!("the array could not be stopped cleanly: {error}");
            Failure::new(ExitKind::IoError, message).help("it starts with a resync next time")
        })
    }
}

impl Serving {
    /// Everything that `status` and `detail` print.
    pub fn status(&self) -> ArrayStatus {
        let memory_bytes = self.array.shared.intent.bitmap_memory_bytes();
        let kept =
            self.manager.ask(&self.shards, move |manager| kept(&manager, memory_bytes)).unwrap_or_default();
        let (shared, superblock) = (&self.array.shared, kept.superblocks.iter().flatten().next());
        let geometry = &shared.geometry;
        let limits = self.known.lock().speed.limits();
        let created_unix_s = self.known.lock().created_unix_s; // released at once: the members are asked below
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
            size_bytes: geometry.array_bytes(),
            member_bytes: geometry.member_bytes(),
            raid_devices: geometry.members(),
            created_unix_s,
            updated_unix_s: kept.superblocks.iter().flatten().map(Superblock::utime_s).max().unwrap_or(0),
            events: kept.events,
            clean: !shared.intent.wants_dirty() && kept.resync_from_bytes.is_none(),
            read_only: self.read_only,
            failed: !shared.members.serving(),
            members: self.member_status(&kept),
            rebuild: self.rebuild_status(&kept),
            works: kept
                .works
                .iter()
                .map(|(work, progress)| self.work_status(*work, progress, &kept))
                .collect(),
            scrub: kept.scrub.as_ref().map(ScrubSummary::from),
            exports: self.export_status(),
            block_device: self.device_status(),
            counters: self.counters(),
            consistency_policy: self.consistency_policy().to_string(),
            bitmap: kept.bitmap,
            update_policy: shared.loads.policy().to_string(),
            avoid_slow: shared.loads.avoid_slow(),
            spare_group: self.spare_group.clone(),
            redo_log: self.redo_log().to_string(),
            stripes_in_doubt: match shared.members.all_in_sync() {
                true => 0,
                false => shared.consistency.stripes_in_doubt(geometry.stripes()),
            },
            rate_max: limits.rate_max,
            rate_min: limits.rate_min,
            p99_budget_ns: limits.p99_budget_ns,
            shards: self.shards.count(),
            pid: std::process::id(),
            started_unix_s: self.started_unix_s,
        }
    }

    fn redo_log(&self) -> &'static str {
        let (redo, geometry) = (&self.array.shared.redo, &self.array.shared.geometry);
        match () {
            () if redo.in_force() => "in-force",
            () if redo.has_no_room() => "absent",
            () if geometry.parity_chunks() > 0 && !self.read_only && !redo.is_used() => "unused",
            () => "off",
        }
    }

    fn consistency_policy(&self) -> &'static str {
        let intent = &self.array.shared.intent;
        match (intent.has_bitmap(), intent.is_used()) {
            (true, _) => "bitmap",
            (false, true) => "resync",
            (false, false) => "none",
        }
    }

    fn member_status(&self, kept: &Kept) -> Vec<MemberStatus> {
        let (members, known) = (&self.array.shared.members, self.known.lock());
        let slot_status = |slot: u32| {
            let path = known.paths[slot as usize].as_ref();
            let superblock = kept.superblocks.get(slot as usize).and_then(Option::as_ref);
            let latency = self.array.shared.loads.latency(slot);
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
                deleted: false,
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
        let replacement_status = |slot: u32| {
            let path = known.coming[slot as usize].as_ref()?;
            let superblock = kept.coming.get(slot as usize).and_then(Option::as_ref);
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
        let deleted = Deleted::look();
        let is_deleted = |path: &String| deleted.has(Path::new(path));
        let with_name = |member: MemberStatus| MemberStatus {
            deleted: member.path.as_ref().is_some_and(is_deleted),
            ..member
        };
        let slots = 0..self.array.shared.geometry.members();
        let replacements = slots.clone().filter_map(replacement_status);
        let spares = kept.spares.iter().map(spare_status);
        let faulty = known.faulty.iter().map(faulty_status);
        slots.map(slot_status).chain(replacements).chain(spares).chain(faulty).map(with_name).collect()
    }

    fn rebuild_status(&self, kept: &Kept) -> Option<RebuildStatus> {
        if let Some((work, progress)) = kept.works.first() {
            return Some(self.work_status(*work, progress, kept));
        }
        let total_bytes = self.array.shared.geometry.member_bytes();
        if let Some(work) = kept.upcoming {
            return Some(RebuildStatus { total_bytes, ..self.work_status(work, &Progress::default(), kept) });
        }
        let pending = self.read_only || !self.array.shared.members.all_in_sync();
        let waits = |kind, done_bytes| {
            Some(RebuildStatus { kind, slot: None, done_bytes, total_bytes, bytes_per_s: 0, pending })
        };
        // It waits: for a look of the manager, or for members that are missing.
        match (kept.resync_from_bytes, &kept.scrub) {
            (Some(from_bytes), _) => waits(RebuildKind::Resync, from_bytes),
            (None, Some(scrub)) if scrub.phase == Phase::Running => waits(scrub_kind(scrub), 0),
            _ => None,
        }
    }

    fn work_status(&self, work: Work, progress: &Progress, kept: &Kept) -> RebuildStatus {
        let (kind, slot) = match work {
            Work::Resync => (RebuildKind::Resync, None),
            Work::Recovery(slot) => (RebuildKind::Recovery, Some(slot)),
            Work::Replacement(slot) => (RebuildKind::Replacement, Some(slot)),
            Work::Scrub => (kept.scrub.as_ref().map_or(RebuildKind::Check, scrub_kind), None),
        };
        RebuildStatus {
            kind,
            slot,
            done_bytes: progress.done_bytes.load(Relaxed),
            total_bytes: progress.total_bytes.load(Relaxed),
            bytes_per_s: progress.bytes_per_s(self.array.shared.loads.now_ns()),
            pending: false,
        }
    }

    /// Starts, pauses, resumes or cancels a check or repair.
    ///
    /// # Errors
    /// Why not.
    pub fn scrub(&self, wish: Wish) -> Result<(), Failure> {
        self.manager.ask(&self.shards, move |manager| manager.wish(wish))?.map_err(|refused| {
            let kind = match refused {
                Refused::NoRedundancy => ExitKind::Unsupported,
                Refused::ReadOnly | Refused::Degraded | Refused::NotSynced => ExitKind::MemberInUse,
                Refused::Another(..) => ExitKind::AlreadyExists,
                Refused::Nothing(_) => ExitKind::NotFound,
            };
            Failure::new(kind, refused.to_string())
        })
    }

    /// The last check or repair with all it found.
    ///
    /// # Errors
    /// The array is being stopped.
    pub fn scrub_state(&self) -> Result<Option<ScrubState>, Failure> {
        self.manager.ask(&self.shards, |manager| manager.scrub())
    }

    pub(super) fn connections(&self) -> u64 {
        self.server.status().exports.iter().map(|export| export.connections as u64).sum()
    }

    fn export_status(&self) -> Vec<ExportStatus> {
        let status = self.server.status();
        let connections = self.connections();
        let uri = |address: &String| ExportStatus { uri: address.clone(), connections };
        status.addresses.iter().map(uri).collect()
    }

    fn counters(&self) -> BTreeMap<String, u64> {
        let mut counters = counters_by_name(&CounterTotals::of(&self.array.shared.counters));
        let cache = self.array.shared.cache.counters();
        counters.insert("parity_cache_hits".into(), cache.hits);
        counters.insert("parity_cache_misses".into(), cache.misses);
        counters.insert("parity_cache_evictions".into(), cache.evictions);
        counters
    }

    /// Changes how writes choose and whether reads avoid slow members; what is None stays.
    ///
    /// # Errors
    /// Reads cannot avoid slow members here.
    pub fn set(
        &self,
        policy: Option<UpdatePolicy>,
        avoid_slow: Option<bool>,
        limits: &NewLimits,
    ) -> Result<(), Failure> {
        if avoid_slow == Some(true) && !self.array.shared.intent.is_used() {
            let message = "no slow member can be avoided: with --consistency-policy none parity may not agree after a crash";
            return Err(Failure::new(ExitKind::Unsupported, message));
        }
        let loads = &self.array.shared.loads;
        if let Some(policy) = policy {
            loads.set_policy(policy);
        }
        if let Some(avoid) = avoid_slow {
            loads.set_avoid_slow(avoid);
        }
        let limits = self.known.lock().speed.set(limits, &self.array.shared);
        tracing::info!(policy = %loads.policy(), avoid_slow = loads.avoid_slow(), ?limits, "set");
        Ok(())
    }

    /// Stops using a member.
    ///
    /// # Errors
    /// There is no such member, or the array needs it.
    pub fn fail(&self, member: &str) -> Result<(), Failure> {
        let slot = self.slot(member)?;
        let failing =
            self.shards.run_on(0, move |_| async move { manager().fail(slot, "an operator said so").await });
        match failing.map_err(gone)? {
            Failing::Needed => {
                let message = format!("member {member} cannot fail: the array would be lost without it");
                Err(Failure::new(ExitKind::WouldLoseData, message).help("rebuild onto a spare first"))
            }
            Failing::Failed => {
                self.array.shared.cache.clear();
                let array = self.array.clone();
                let settled =
                    self.shards.run_on(0, move |_| async move { array.shared.members.settled().await });
                let lost = |_| Failure::new(ExitKind::IoError, "the superblocks cannot be written");
                settled.map_err(gone)?.map_err(lost)
            }
        }
    }

    /// Takes a failed member or a spare out of the array, or with `failed` or `detached` all members that failed. How many
    /// there were.
    ///
    /// # Errors
    /// There is no such member, or it is in use.
    pub fn remove(&self, member: &str) -> Result<usize, Failure> {
        if self.remove_spare(member)? || self.remove_replacement(member)? {
            return Ok(1);
        }
        let members = &self.array.shared.members;
        let all_failed = ["failed", "faulty", "detached"].contains(&member);
        let is_named = named(member);
        let without_slot = self.known.lock().remove_faulty(|path| all_failed || is_named(path));
        let slots: Vec<u32> = match without_slot {
            _ if all_failed => {
                let all = 0..self.array.shared.geometry.members();
                all.filter(|&slot| members.state(slot) == MemberState::Failed).collect()
            }
            0 => vec![self.slot(member)?],
            _ => Vec::new(),
        };
        for &slot in &slots {
            let removed =
                self.shards.run_on(0, move |_| async move { manager().remove(slot).await }).map_err(gone)?;
            if !removed {
                let message = format!("member {member} is in use");
                return Err(Failure::new(ExitKind::MemberInUse, message).help("fail it first"));
            }
        }
        Ok(without_slot + slots.len())
    }

    /// Adds a device as a spare; it takes the place of a missing member at once. `force`: what is on it may go.
    ///
    /// # Errors
    /// It cannot be opened, holds something, is too small, is in use, or its superblock could not be written.
    pub fn add(&self, path: &Path, force: bool) -> Result<(), Failure> {
        let name = path.display().to_string();
        let problem = |kind, message: String| Failure::new(kind, format!("{name}: {message}"));
        if self.read_only {
            return Err(problem(ExitKind::MemberInUse, "the array is read-only".into()));
        }
        if self.array.shared.geometry.losses_survived() == 0 {
            let message = "a spare cannot help a RAID-0: what a member held that fails is lost";
            return Err(problem(ExitKind::BadGeometry, message.into()));
        }
        let refused = |wrong| Failure::from_problems("the device cannot be added", vec![wrong]);
        if !force {
            self.check_unused(path).map_err(refused)?;
        }
        let device = self.open_new(path).map_err(refused)?;
        self.check_blocks(&name, &device)?;
        self.clear_other_superblocks(path).map_err(refused)?;
        let bytes = device.info().size_bytes;
        let uuid = *uuid::Uuid::new_v4().as_bytes();
        let added = self.offer(device, async move |device| {
            let join = move |template: &Superblock, number| template.for_new_device(number, uuid, bytes);
            manager().add_spare(device, join).await
        });
        added?.map(drop).map_err(|error| {
            let kind = match error {
                NotAdded::NoNumber | NotAdded::Unfit(_) => ExitKind::BadGeometry,
                _ => ExitKind::IoError,
            };
            problem(kind, error.to_string())
        })
    }

    /// Opens a device that is to come to the array. What the array has already is not waited for.
    pub(super) fn open_new(&self, path: &Path) -> Result<SharedDevice, Problem> {
        let identity = MemberFile::open(path)?.identity;
        let names: Vec<String> = self.known.lock().devices.keys().cloned().collect();
        let is_it =
            |name: &&String| MemberFile::open(Path::new(name)).is_ok_and(|known| known.identity == identity);
        let Some(name) = names.iter().find(is_it) else { return open_free_device(path) };
        let problem =
            Problem::new(ExitKind::MemberInUse, path, format!("this array has it already, as {name}"));
        Err(problem.help("if it, or what was there before it, has failed: twill remove failed"))
    }

    /// md's superblocks at places where this array has none: the next start might believe one that is newer. Nobody else
    /// writes to the device, which is held.
    fn clear_other_superblocks(&self, path: &Path) -> Result<(), Problem> {
        let from_io = |error: std::io::Error| Problem::from_io(path, "clear old superblocks of", &error);
        let minor = self.shards.run_on(0, async |_| {
            let keeper = Rc::clone(manager().keeper());
            (0..)
                .map_while(|slot| keeper.try_superblock(slot))
                .flatten()
                .next()
                .map(|own| own.minor_version())
        });
        let minor = minor.ok().flatten();
        let member = MemberFile::open_to_clear(path)?;
        let own = minor.and_then(|minor| minor.superblock_offset(member.device_bytes).ok());
        for found in md_places::find_all(&member).map_err(from_io)? {
            if Some(found.offset) != own {
                member.write(found.offset, &[0; SUPERBLOCK_BYTES_MAX]).map_err(from_io)?;
            }
        }
        member.sync().map_err(from_io)
    }

    /// A device with larger blocks than the array's could not take every write.
    pub(super) fn check_blocks(&self, name: &str, device: &SharedDevice) -> Result<(), Failure> {
        let (block, array) = (device.info().logical_block_bytes, self.array.logical_block_bytes);
        if block <= array {
            return Ok(());
        }
        let message = format!("{name}: its logical blocks are {block} bytes, those of the array {array}");
        let help = "many NVMe drives can be formatted with smaller blocks (nvme format --lbaf); or stop the array and serve it \
                    with this device";
        Err(Failure::new(ExitKind::BadGeometry, message).help(help))
    }

    /// Has the manager take a device. One that it does not take is let go: else it would stay open and locked.
    pub(super) fn offer<T: Send + 'static>(
        &self,
        device: SharedDevice,
        take: impl AsyncFnOnce(Rc<HostDevice>) -> Result<T, NotAdded> + Send + 'static,
    ) -> Result<Result<T, NotAdded>, Failure> {
        let name = device.info().name.clone();
        {
            let mut known = self.known.lock();
            if known.devices.contains_key(&name) {
                let message = format!("{name}: a device that was a member under this name is still listed");
                let failure = Failure::new(ExitKind::MemberInUse, message);
                return Err(failure.help("let go of it first: twill remove failed"));
            }
            known.devices.insert(name.clone(), device.clone());
        }
        let taken = self
            .shards
            .run_on(0, move |context| async move { take(Rc::new(device.attach(&context.ring))).await });
        let taken = taken.map_err(gone)?;
        if taken.is_err() {
            self.known.lock().devices.remove(&name);
        }
        Ok(taken)
    }

    /// A device that holds nothing, or was a member of this array before, may be added without force.
    fn check_unused(&self, path: &Path) -> Result<(), Problem> {
        let member = MemberFile::open(path)?;
        let uuid = self.status().uuid;
        if superblock_of(&member).is_ok_and(|superblock| display_uuid(&superblock.set_uuid()) == uuid) {
            return Ok(());
        }
        let found = signatures::find(&member).map_err(|error| Problem::from_io(path, "read", &error))?;
        if found.is_empty() {
            return Ok(());
        }
        let problem = Problem::new(ExitKind::NeedsForce, path, format!("has {}", found.join(", ")));
        Err(problem.help("it would be overwritten: --force does it nevertheless"))
    }

    /// The slot that a person names by number or path.
    pub(super) fn slot(&self, member: &str) -> Result<u32, Failure> {
        let count = self.array.shared.geometry.members();
        if let Some(slot) = member.parse().ok().filter(|slot| *slot < count) {
            return Ok(slot);
        }
        slot_of(&self.known.lock().paths, member).ok_or_else(|| {
            let message = format!("{member} is no member of the array");
            Failure::new(ExitKind::NotFound, message).help("name a slot number or a path that `status` shows")
        })
    }
}

/// The slot with this path, however it is written.
pub(super) fn slot_of(paths: &[Option<PathBuf>], member: &str) -> Option<u32> {
    let is_named = named(member);
    let found = paths.iter().position(|path| path.as_ref().is_some_and(|path| is_named(path)));
    found.and_then(|slot| u32::try_from(slot).ok())
}

/// Whether a path is the one that a person names, however both are written.
pub(super) fn named(member: &str) -> impl Fn(&Path) -> bool + use<> {
    let given = PathBuf::from(member);
    let wanted = std::fs::canonicalize(&given).unwrap_or_else(|_| given.clone());
    move |path| path == given || std::fs::canonicalize(path).is_ok_and(|path| path == wanted)
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
    let keeper = manager.keeper();
    let info = |spare: &Spare<HostDevice>| {
        let info = engine::device::Device::info(&*spare.device);
        (spare.superblock.clone(), info.name.clone(), info.size_bytes)
    };
    Kept {
        superblocks: (0..).map_while(|slot| keeper.try_superblock(slot)).collect(),
        spares: keeper.spares().borrow().iter().map(info).collect(),
        coming: (0..manager.slots()).map(|slot| keeper.coming(slot)).collect(),
        events: keeper.events(),
        works: manager.works(),
        upcoming: manager.upcoming(),
        scrub: manager.scrub(),
        resync_from_bytes: keeper.resync_from_bytes(),
        bitmap: keeper.bitmap().map(|bitmap| bitmap_status(&bitmap, memory_bytes)),
    }
}
