//! From paths to a served array. Whatever is refused is refused before anything is written or listened on.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::array::assemble::Assembly;
use engine::array::bad_block_log;
use engine::array::start_bitmap::StartBitmap;
use engine::bad_blocks::BadBlocks;
use engine::members::{MemberState, Members};
use engine::stripe::Shared;
use engine::stripe::intent::Intent;
use engine::stripe::load::Clock;
use engine::stripe::locks::Locks;
use engine::volume::VolumeMode;
use host::array::{HostArray, MemberDevice};
use host::device::SharedDevice;
use host::export::nbd::{Address, ExportOptions, Server, ServerOptions};
use host::machine::memory_bytes;
use host::shard::{ShardOptions, Shards};
use layout::geometry::{Geometry, Level};
use layout::md_superblock::Superblock;
use layout::redo_log::{BitmapExtent, RedoArea};
use parking_lot::Mutex;

use super::event_log::EventLog;
use super::manager::{ArrayManager, FoundArray, gone};
use super::open::open_member;
use super::platform::Known;
use super::scrub_file::{ScrubFile, left_open};
use super::{Exports, ManagedArray, ServeOptions, Serving, block_device, end, now_unix_s};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::probe::bad_blocks::bad_blocks_of;
use crate::probe::bitmap;
use crate::probe::candidates::Candidates;
use crate::probe::chosen::Chosen;
use crate::probe::member_file::MemberFile;
use crate::probe::redo;

/// How long an idle shard polls with `--poll`.
const POLL: Duration = Duration::from_micros(50);

impl Serving {
    /// Opens and serves an array.
    ///
    /// # Errors
    /// What is wrong, with which member, and what would help. Nothing was written then.
    pub fn start(chosen: &Chosen, options: &ServeOptions) -> Result<Serving, Failure> {
        let Chosen { candidates, array: assembly, .. } = chosen;
        let geometry = assembly.geometry.expect("an array that may start has a geometry");
        let opened = Opened::open(candidates, assembly, options)?;
        let log = Arc::new(EventLog::default());
        let bitmap = opened.bitmap(candidates, assembly, &geometry, options)?;
        let geometry = of_whole_blocks(geometry, opened.logical_block_bytes());
        let shared = shared(assembly, &geometry, &opened, bitmap.as_ref(), options, &log);
        let shards = start_shards(options)?;
        let mode = Arc::new(VolumeMode { read_only: options.read_only.into(), ..VolumeMode::default() });
        let array = HostArray::start(shards.handle(), shared, mode, &opened.members).map_err(gone)?;
        let known = Arc::new(Mutex::new(opened.known(candidates, assembly)));
        log.ask(&known);
        let scrub_file = ScrubFile::new(&assembly.set_uuid);
        let scrub = (left_open(&assembly.set_uuid), scrub_file.sender());
        // From here on nobody else changes the members.
        let mut redo = redo::find(candidates, assembly, bitmap.as_ref(), chosen.force, options.read_only);
        if bitmap.is_some() {
            // Its bits are cleared by a resync when the array is whole again, whatever was redone.
            redo.resync_from_bytes = assembly.resync_from_bytes;
        }
        // Superblocks that call the array clean whatever is written say of no record whether it is to be made again.
        let is_told = !options.read_only && !options.no_consistency;
        let keeps_redo_log = is_told && !options.no_redo_log && geometry.parity_chunks() > 0;
        if keeps_redo_log {
            opened.reserve_logs(&redo.bitmaps);
        }
        let found = FoundArray {
            superblocks: opened.superblocks.clone(),
            events: assembly.events,
            generations: assembly.generations.clone(),
            spares: opened.spares.clone(),
            replacements: opened.replacements.clone(),
            redo,
            keeps_redo_log,
            bitmap,
        };
        let manager = ArrayManager::start(&shards, &array, found, scrub, &known, options.read_only);
        let manager = manager?;
        let exported = export(&shards, &array, options).and_then(|server| {
            let device = block_device::start(&shards, &array, options, &assembly.set_uuid)?;
            Ok((server, device))
        });
        let (server, device) = match exported {
            Ok(exported) => exported,
            Err(failure) => {
                // Why nobody can be served says more than whether that was stopped well.
                let _ = end(&manager, &array, shards, options.read_only);
                return Err(failure);
            }
        };
        Ok(Serving {
            array: ManagedArray { host: array, shards, manager, known, read_only: options.read_only },
            exports: Exports { server, device },
            log,
            spare_group: options.spare_group.clone(),
            started_unix_s: now_unix_s(),
            _scrub_file: scrub_file,
        })
    }
}

/// The members of an assembly, open and locked.
struct Opened {
    members: Vec<Option<MemberDevice>>,
    superblocks: Vec<Option<Superblock>>,
    /// What the members' bad-block logs say.
    bad_blocks: Vec<BadBlocks>,
    spares: Vec<(SharedDevice, Superblock)>,
    /// What is to replace the members in slots.
    replacements: Vec<(u32, SharedDevice, Superblock)>,
}

impl Opened {
    fn open(candidates: &Candidates, assembly: &Assembly, options: &ServeOptions) -> Result<Self, Failure> {
        let open = |index: usize| open_member(&candidates.paths[index], &candidates.read[index], options);
        let (mut members, mut superblocks, mut problems) = (Vec::new(), Vec::new(), Vec::new());
        let mut logs = Vec::new();
        for slot in &assembly.slots {
            let opened = slot.map(open).transpose();
            let opened = opened.unwrap_or_else(|problem| {
                problems.push(problem);
                None
            });
            let (device, superblock) = opened.unzip();
            let log = slot.zip(superblock.as_ref()).map(|(index, superblock)| {
                MemberFile::open(&candidates.paths[index])
                    .and_then(|member| bad_blocks_of(&member, superblock))
            });
            logs.push(log.transpose().unwrap_or_else(|problem| {
                problems.push(problem);
                None
            }));
            members.push(device.zip(superblock.clone()).map(
                |(device, superblock): (SharedDevice, Superblock)| MemberDevice {
                    device,
                    data_offset_bytes: superblock.data_offset().bytes(),
                },
            ));
            superblocks.push(superblock);
        }
        let mut spares = Vec::new();
        for &index in &assembly.spares {
            match open(index) {
                Ok(opened) => spares.push(opened),
                Err(problem) => problems.push(problem),
            }
        }
        let mut replacements = Vec::new();
        for &(index, slot) in assembly.replacements.iter().filter(|_| !options.read_only) {
            match open(index) {
                Ok((device, superblock)) => replacements.push((slot, device, superblock)),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() {
            let bad_blocks = logs.into_iter().map(Option::unwrap_or_default).collect();
            let mut opened = Opened { members, superblocks, bad_blocks, spares, replacements };
            opened.leave_out_larger_blocks();
            return Ok(opened);
        }
        Err(Failure::from_problems("the members cannot be opened", problems))
    }

    /// Unit of addressing: the largest that a member has.
    fn logical_block_bytes(&self) -> u32 {
        let blocks = self.members.iter().flatten().map(|member| member.device.info().logical_block_bytes);
        blocks.max().unwrap_or(512)
    }

    /// What could not take every write that the members take is not used.
    fn leave_out_larger_blocks(&mut self) {
        let array = self.logical_block_bytes();
        let fits = |device: &SharedDevice| {
            let (name, block) = (&device.info().name, device.info().logical_block_bytes);
            if block > array {
                tracing::warn!(
                    device = name,
                    "not used: its logical blocks are {block} bytes, those of the array {array}"
                );
            }
            block <= array
        };
        self.spares.retain(|(device, _)| fits(device));
        self.replacements.retain(|(_, device, _)| fits(device));
    }

    /// The bitmap to start with, if the superblocks say that there is one.
    fn bitmap(
        &self,
        candidates: &Candidates,
        assembly: &Assembly,
        geometry: &Geometry,
        options: &ServeOptions,
    ) -> Result<Option<StartBitmap>, Failure> {
        let has_bitmap = |superblock: &&Superblock| superblock.bitmap_start().is_some();
        if !self.superblocks.iter().flatten().any(|superblock| has_bitmap(&superblock)) {
            return Ok(None);
        }
        if options.no_consistency {
            let message = "the array has a bitmap, which --consistency-policy none would leave untrue";
            return Err(
                Failure::new(ExitKind::Usage, message).help("take it off first: mdadm --grow --bitmap=none")
            );
        }
        bitmap::decide_start(candidates, assembly, &self.superblocks, geometry)
            .map_err(|problem| Failure::from_problems("no bitmap", vec![problem]))
    }

    /// Sparse files have no room yet where the redo log will be, and it is wanted just when something goes wrong.
    fn reserve_logs(&self, bitmaps: &[BitmapExtent]) {
        for ((member, superblock), bitmap) in self.members.iter().zip(&self.superblocks).zip(bitmaps) {
            let area = superblock.as_ref().and_then(|superblock| RedoArea::of(superblock, *bitmap));
            let (Some(member), Some(area)) = (member, area) else { continue };
            if let Err(error) = member.device.reserve(area.start_bytes, area.bytes) {
                let name = &member.device.info().name;
                tracing::warn!(
                    member = name,
                    "no room for its redo log: {error}; writes may be refused when a member is missing"
                );
            }
        }
    }

    /// Paths and devices, by the device's name.
    fn known(&self, candidates: &Candidates, assembly: &Assembly) -> Known {
        let mut devices = HashMap::new();
        for member in self.members.iter().flatten() {
            devices.insert(member.device.info().name.clone(), member.device.clone());
        }
        let replacements = self.replacements.iter().map(|(_, device, _)| device);
        for device in self.spares.iter().map(|(spare, _)| spare).chain(replacements) {
            devices.insert(device.info().name.clone(), device.clone());
        }
        let path = |slot: &Option<usize>| slot.map(|index| candidates.paths[index].clone());
        Known {
            devices,
            paths: assembly.slots.iter().map(path).collect(),
            coming: vec![None; assembly.slots.len()],
            faulty: Vec::new(),
            speed: Arc::default(),
            created_unix_s: created(&self.superblocks),
        }
    }
}

/// A RAID-1 has md's size in KiB, which may end inside a block of its members. That end cannot be reached by itself, and is
/// not served.
fn of_whole_blocks(geometry: Geometry, block_bytes: u32) -> Geometry {
    let bytes = geometry.member_bytes();
    let whole = bytes - bytes % u64::from(block_bytes);
    if geometry.level() != Level::Raid1 || whole == bytes || whole == 0 {
        return geometry;
    }
    Geometry::new(geometry.level(), geometry.layout(), geometry.members(), geometry.chunk_bytes(), whole)
        .unwrap_or(geometry)
}

fn created(superblocks: &[Option<Superblock>]) -> u64 {
    superblocks.iter().flatten().map(Superblock::ctime_s).next().unwrap_or(0)
}

fn shared(
    assembly: &Assembly,
    geometry: &Geometry,
    opened: &Opened,
    bitmap: Option<&StartBitmap>,
    options: &ServeOptions,
    log: &Arc<EventLog>,
) -> Arc<Shared> {
    let sink = Arc::clone(log);
    let states = assembly.states();
    let members = Members::new(*geometry, &states, Box::new(move |event| sink.add(event)));
    for ((slot, superblock), bad) in (0u32..).zip(&opened.superblocks).zip(&opened.bad_blocks) {
        if let Some(superblock) = superblock {
            let corrected = u64::from(superblock.corrected_reads());
            members.begin_with(slot, corrected, bad.clone(), bad_block_log::room(superblock));
        }
        let recovering = superblock.as_ref().filter(|_| states[slot as usize] == MemberState::Recovering);
        if let Some((superblock, offset)) = recovering.and_then(|of| Some((of, of.recovery_offset()?))) {
            let lacks_marked = bitmap.is_some_and(|bitmap| bitmap.lets_catch_up(superblock));
            members.resume_recovery(slot, offset.bytes(), lacks_marked);
        }
    }
    let intent = match bitmap {
        Some(start) => start.intent(assembly.resync_from_bytes, Locks::default()),
        None => {
            let is_used = geometry.level() != Level::Raid0 && !options.no_consistency;
            Intent::new(options.shards, is_used, false)
        }
    };
    let mut shared = Shared::new(*geometry, members, intent, options.shards, options.parity_cache_bytes);
    if let Some(start) = bitmap {
        start.limit_doubts(Arc::get_mut(&mut shared).expect("not shared yet"));
    }
    if options.read_only {
        shared.set_read_only();
    }
    shared.two_phase.store(options.two_phase, std::sync::atomic::Ordering::Relaxed);
    shared.loads.set_clock(Arc::new(SinceStart(Instant::now())));
    shared.loads.set_policy(options.update_policy);
    shared.loads.set_avoid_slow(options.avoid_slow);
    shared
}

/// The engine's clock.
struct SinceStart(Instant);

impl Clock for SinceStart {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }
}

fn start_shards(options: &ServeOptions) -> Result<Arc<Shards>, Failure> {
    let busy_poll = if options.poll { POLL } else { Duration::ZERO };
    let shard_options = ShardOptions { busy_poll, abort_on_panic: true, ..ShardOptions::default() };
    let started = Shards::start(options.shards, &shard_options, |_| {});
    let failed =
        |error| Failure::new(ExitKind::IoError, format!("cannot start {} shards: {error}", options.shards));
    started.map(Arc::new).map_err(failed)
}

fn export(shards: &Arc<Shards>, array: &HostArray, options: &ServeOptions) -> Result<Server, Failure> {
    let server = Server::new(shards.handle(), ServerOptions::default().within(memory_bytes() / 4));
    let (volume, balance) = (array.clone(), options.balance);
    let fast_zero = array.shared.geometry.parity_chunks() > 0;
    let export = ExportOptions { read_only: options.read_only, fast_zero, ..ExportOptions::default() };
    let added =
        server.exports().add(&options.export_name, export, move |context| volume.balanced(context, balance));
    added.map_err(|error| Failure::new(ExitKind::Usage, error.to_string()))?;
    server.exports().set_default(Some(&options.export_name));
    let unix = options.unix.iter().cloned().map(Address::Unix);
    for address in unix.chain(options.tcp.iter().copied().map(Address::Tcp)) {
        server.listen(&address).map_err(|error| {
            let kind = match error.kind() {
                std::io::ErrorKind::AddrInUse => ExitKind::AlreadyExists,
                other => ExitKind::from(other),
            };
            Failure::new(kind, format!("cannot listen at {address}: {error}"))
        })?;
    }
    Ok(server)
}
