//! An array that starts, serves and stops on a machine. The start is the seam to the program's: what it does beside
//! `recover` is what superblocks are there for.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use engine::buffer::Pool;
use engine::counters::Counters;
use engine::executor::Executor;
use engine::log::config::LogConfig;
use engine::log::engine::LogSet;
use engine::log::join::{Joining, exchange};
use engine::log::paging::load_all;
use engine::log::port::{LogPlatform, LogPort};
use engine::log::recover::found::RecoveryReport;
use engine::log::recover::{Recovery, Start};
use engine::log::shared::LogShared;
use engine::members::MemberState;
use engine::zone_device::ZoneDevice;
use layout::zoned::{BlockPlace, Epoch, MapEntry, SegmentHeader, ZonePlace};

use super::drive::{Drive, SimZones};
use super::machine::Machine;
use super::medium::{BLOCK, Survival};
use super::plant::Plant;
use super::superblocks::Superblock;
use crate::trace::Note;
use crate::world::{Ended, NO_LIMIT, World};
use layout::units::DeviceOffset;

/// Nanoseconds of a tick of the world.
const TICK_NS: u64 = 20_000;
/// Segment numbers that a start reserves: more than a recovery uses.
const NUMBERS: u64 = 64;

struct Platform(Rc<World>);

impl LogPlatform for Platform {
    fn now_ns(&self) -> u64 {
        self.0.now() * TICK_NS
    }

    fn sleep_until(&self, at_ns: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        let ticks = at_ns.saturating_sub(self.now_ns()).div_ceil(TICK_NS);
        let sleep = self.0.sleep(ticks.max(1));
        Box::pin(sleep)
    }

    fn random(&self) -> u64 {
        self.0.random().next()
    }
}

/// The drives whose superblocks are written.
type Kept = Rc<RefCell<Vec<Option<Rc<Drive>>>>>;

/// A running array.
pub(super) struct Array {
    pub(super) machine: Rc<Machine>,
    pub(super) executors: Vec<Executor>,
    pub(super) sets: Vec<Rc<LogSet<SimZones>>>,
    pub(super) shared: Arc<LogShared>,
    pub(super) report: RecoveryReport,
    /// The drives whose superblocks are written.
    kept: Kept,
    /// Clients that have not ended.
    pub(super) working: Cell<u64>,
}

impl Array {
    /// Starts the array. `seen` is called whenever a power cut would leave something else.
    ///
    /// # Errors
    /// Why it does not start, in words.
    pub(super) fn start(machine: &Rc<Machine>, mut seen: impl FnMut()) -> Result<Rc<Array>, String> {
        let executors: Vec<Executor> =
            (0..machine.scenario.shards).map(|_| Executor::new(Box::new(|| {}))).collect();
        let started = Rc::new(RefCell::new(None));
        let result = Rc::clone(&started);
        let (own, shards) = (Rc::clone(machine), executors.clone());
        executors[0].spawn(async move {
            let outcome = start(&own, &shards).await;
            *result.borrow_mut() = Some(outcome);
        });
        let mut boundaries = machine.watch.boundaries();
        while started.borrow().is_none() {
            let ended = machine.world.run(&executors, 1);
            let now = machine.watch.boundaries();
            if now != boundaries {
                boundaries = now;
                seen();
            }
            if ended != Ended::Steps {
                break;
            }
        }
        let outcome = started.borrow_mut().take();
        match outcome {
            Some(outcome) => outcome,
            None => {
                executors.iter().for_each(Executor::abandon);
                Err(machine.world.failure().unwrap_or_else(|| "the start never ends".to_owned()))
            }
        }
    }

    /// Runs until nothing is left to do.
    pub(super) fn run(&self, steps: u64) -> Ended {
        self.machine.world.run(&self.executors, steps)
    }

    /// Runs one task to its end.
    pub(super) fn wait<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> Option<T> {
        let handle = self.executors[0].spawn_with_result(future);
        self.run(NO_LIMIT);
        handle.try_take()
    }

    /// A drive joins: another one, or the one that was away, in the slot of a member that is out of use.
    pub(super) async fn join(self: Rc<Self>, slot: usize, uuid: [u8; 16]) {
        let (machine, drive) = (&self.machine, Rc::clone(&self.machine.drives[slot]));
        for set in &self.sets {
            set.renew().await;
            set.0.port.detach(slot);
        }
        while !drive.is_idle() {
            machine.world.sleep_up_to(20).await;
        }
        // Superblocks call it failed by now: from here on those that call it in sync are newer.
        if self.shared.members.settled().await.is_err() {
            return;
        }
        machine.joined.set(Some(slot));
        if uuid == self.shared.members.uuid(slot) {
            // It was without power, as likely as not.
            let random = machine.world.random();
            let survival =
                random.pick(&[Survival::Nothing, Survival::Everything, Survival::Some { hostile: true }]);
            let left = drive.medium.borrow().cut(survival, random);
            *drive.medium.borrow_mut() = left;
        } else {
            machine.erase(slot);
            *drive.superblock.borrow_mut() = None;
        }
        drive.is_gone.set(false);
        drive.is_joining.set(true);
        let device = Rc::new(SimZones(Rc::clone(&drive)));
        let joining = Joining { slot, uuid, device: Rc::clone(&device) };
        let exchanged = exchange(&self.sets[0].0.port, &joining).await;
        drive.is_joining.set(false);
        let adopted = match exchanged {
            Ok(adopted) => adopted,
            Err(error) => {
                return machine.world.note(Note::Words(format!("  drive {slot} does not join: {error}")));
            }
        };
        machine.world.note(Note::Words(format!("  drive {slot} joins with {adopted} columns")));
        self.count_joined(adopted as u64);
        self.sets.iter().for_each(|set| set.0.port.attach(slot, Rc::clone(&device)));
        self.kept.borrow_mut()[slot] = Some(drive);
        self.shared.members.join(slot);
        for set in &self.sets {
            set.renew().await;
        }
    }

    /// Drives are added as members.
    pub(super) async fn grow(self: Rc<Self>) {
        let (machine, members) = (&self.machine, &self.shared.members);
        let slots = members.width()..members.width() + machine.scenario.added;
        for slot in slots.clone() {
            let drive = Rc::clone(&machine.drives[slot]);
            drive.is_joining.set(true);
            let device = Rc::new(SimZones(Rc::clone(&drive)));
            let joining = Joining { slot, uuid: [slot as u8 + 1; 16], device: Rc::clone(&device) };
            let exchanged = exchange(&self.sets[0].0.port, &joining).await;
            drive.is_joining.set(false);
            if let Err(error) = exchanged {
                return machine.world.note(Note::Words(format!("  drive {slot} is not added: {error}")));
            }
            self.sets.iter().for_each(|set| set.0.port.attach(slot, Rc::clone(&device)));
        }
        self.kept.borrow_mut().extend(slots.clone().map(|slot| Some(Rc::clone(&machine.drives[slot]))));
        members.list(slots.end);
        if members.settled().await.is_err() || !members.widen(slots.end) {
            return;
        }
        machine.world.note(Note::Words(format!("  the array has {} members", slots.end)));
        machine.world.counts.borrow_mut().zoned_grown += 1;
        self.shared.space.want();
        for set in &self.sets {
            set.renew().await;
        }
    }

    fn count_joined(&self, adopted: u64) {
        let mut counts = self.machine.world.counts.borrow_mut();
        counts.zoned_joined += 1;
        counts.zoned_adopted += adopted;
    }

    /// Stops cleanly. False if it does not.
    pub(super) fn stop(&self) -> bool {
        for (set, executor) in self.sets.iter().zip(&self.executors).rev() {
            let set = Rc::clone(set);
            let handle = executor.spawn_with_result(async move { set.stop().await });
            self.run(NO_LIMIT);
            if !matches!(handle.try_take(), Some(Ok(()))) {
                return false;
            }
        }
        true
    }

    /// Nothing of it runs any more.
    pub(super) fn kill(&self) {
        let totals = self.shared.space.totals();
        let mut counts = self.machine.world.counts.borrow_mut();
        counts.zoned_emptied += totals.emptied_segments;
        counts.zoned_moved += totals.moved_blocks;
        counts.zoned_checkpoints += self.shared.checkpoints.written();
        counts.zoned_map_written += self.shared.memory.written();
        drop(counts);
        self.machine.world.cut();
        self.executors.iter().for_each(Executor::abandon);
        self.machine.world.cut();
    }
}

async fn start(machine: &Rc<Machine>, executors: &[Executor]) -> Result<Rc<Array>, String> {
    let mut present = machine.present();
    let says = machine.superblock(&present).ok_or("no member has a superblock")?;
    present.truncate(says.states.len()); // others are no members yet
    let states: Vec<MemberState> =
        (0..present.len()).map(|slot| state(machine, &present, &says, slot)).collect();
    let used = used_in(&present, &states);
    let of = |field: fn(&Superblock) -> u64| {
        let all = present.iter().flatten().filter_map(|drive| drive.superblock.borrow().as_ref().map(field));
        all.max().unwrap_or(0)
    };
    let epoch = of(|superblock| superblock.epoch.into()) as u32 + 1;
    let epoch = if machine.has(Plant::EpochAgain) { epoch.saturating_sub(1).max(1) } else { epoch };
    let numbers = of(|superblock| superblock.numbers);
    if machine.has(Plant::MissingHeaderResets) {
        reset_without_header(machine, &used).await;
    }
    let begun = Superblock {
        sequence: of(|superblock| superblock.sequence) + 1,
        epoch,
        served: says.served,
        numbers: numbers + NUMBERS,
        checkpoint: says.checkpoint,
        states: says.states.clone(), // nobody is called failed yet
        devices: says.devices.clone(),
        growing: says.growing,
    };
    write_all(&used, &begun).await.map_err(|slot| format!("member {slot} takes no superblock"))?;
    let world = &machine.world;
    let random = world.random().next() as u32;
    let devices: Vec<Option<Rc<SimZones>>> =
        present.iter().map(|drive| drive.clone().map(|drive| Rc::new(SimZones(drive)))).collect();
    let start = |checkpoint| Start {
        growing: says.growing,
        config: LogConfig { devices: slots_of(machine, &says), ..machine.scenario.config() },
        devices: devices.clone(),
        states: states.clone(),
        epoch: Epoch { number: epoch, random },
        numbers: numbers..numbers + NUMBERS,
        checkpoint,
        counters: executors.iter().map(|_| Counters::default()).collect(),
        events: {
            let events = Arc::clone(&world.events);
            Box::new(move |event| events.lock().expect("one thread").push(event))
        },
    };
    let (platform, pool): (Rc<dyn LogPlatform>, _) =
        (Rc::new(Platform(Rc::clone(world))), Pool::new(1 << 20));
    let read = async |checkpoint| {
        let recovery = Recovery::read(start(checkpoint), &executors[0], &pool, &platform).await;
        recovery.map_err(|error| error.to_string())
    };
    let recovery = read(says.checkpoint).await?;
    // Where nothing makes a block again, a checkpoint may know that something was there, or where it is, and nothing else does.
    if says.checkpoint.is_some() && !machine.is_flipped.get() && world.random().one_in(2) {
        same_without_checkpoint(machine, &read(says.checkpoint).await?, &read(None).await?).await;
    }
    let (shared, report) = recovery.write(|_| {}).await.map_err(|error| error.to_string())?;
    let mut serving = Superblock { sequence: begun.sequence + 1, served: epoch, ..begun };
    loop {
        serving.states = shared.members.shown();
        serving.checkpoint = shared.checkpoints.said();
        match write_all(&used_in(&used, &serving.states), &serving).await {
            Ok(()) => break,
            Err(slot) => lose(&shared, slot)?,
        }
    }
    machine.serves();
    count_start(machine, &report);
    let engine = |(shard, executor): (usize, &Executor)| {
        let (shared, pool, platform) = (Arc::clone(&shared), Arc::clone(&pool), Rc::clone(&platform));
        let port = LogPort::new(shared, shard, executor.clone(), pool, platform, devices.clone());
        Rc::new(LogSet::serve(port))
    };
    let sets = executors.iter().enumerate().map(engine).collect();
    let kept = Rc::new(RefCell::new(used));
    executors[0].spawn(keep_superblocks(Arc::clone(&shared), Rc::clone(&kept), serving));
    let (machine, executors) = (Rc::clone(machine), executors.to_vec());
    Ok(Rc::new(Array { machine, executors, sets, shared, report, kept, working: Cell::new(0) }))
}

/// The members, and zeroes for each slot that the array may grow to.
fn slots_of(machine: &Machine, says: &Superblock) -> Vec<[u8; 16]> {
    let vacant = std::iter::repeat([0; 16]);
    says.devices.iter().copied().chain(vacant).take(machine.scenario.slots()).collect()
}

fn count_start(machine: &Machine, report: &RecoveryReport) {
    let mut counts = machine.world.counts.borrow_mut();
    counts.zoned_from_checkpoint += u64::from(report.from_checkpoint);
    counts.zoned_left_out += report.left_out as u64;
    counts.zoned_replayed_groups += if report.from_checkpoint { report.replayed_groups as u64 } else { 0 };
}

/// A checkpoint saves a start work, and changes nothing: the map is the one that all footers and records tell.
async fn same_without_checkpoint(machine: &Machine, with: &Recovery<SimZones>, without: &Recovery<SimZones>) {
    for recovery in [with, without] {
        let groups = (0..recovery.shared().map.groups()).collect();
        if load_all(recovery.port(), groups).await.is_err() {
            return; // reads show it
        }
    }
    machine.world.counts.borrow_mut().zoned_maps_compared += 1;
    let is_wide = with.shared().map.shape().checksum_bits() > 0;
    let contents = |recovery: &Recovery<SimZones>, block| match recovery.shared().map.get(block) {
        Ok(MapEntry::At { checksum, .. }) if is_wide => Some(MapEntry::At { place: ANYWHERE, checksum }),
        Ok(MapEntry::At { .. }) => Some(MapEntry::At { place: ANYWHERE, checksum: 0 }),
        entry => entry.ok(),
    };
    for block in 0..machine.scenario.logical_blocks {
        let (own, all) = (contents(with, block), contents(without, block));
        if own != all {
            let entries = [with, without].map(|recovery| recovery.shared().map.get(block));
            let words = format!(
                "block {block} is {own:?} by the checkpoint, {all:?} by all that was written: {entries:?}"
            );
            return machine.world.fail(words);
        }
    }
}

/// Of equal copies either counts.
const ANYWHERE: BlockPlace = BlockPlace { slot: 0, column: 0, block: 1 };

/// What a member is to a start: it is in sync if the superblock that speaks calls it so, whichever epochs it missed that
/// never served.
fn state(machine: &Machine, present: &[Option<Rc<Drive>>], says: &Superblock, slot: usize) -> MemberState {
    let Some(drive) = &present[slot] else { return MemberState::Missing };
    // A drive that was to join, and is listed on no other, or is another than the one that is listed.
    let is_listed = |own: &Superblock| own.devices.get(slot) == Some(&says.devices[slot]);
    if !drive.superblock.borrow().as_ref().is_some_and(is_listed) {
        return MemberState::Missing;
    }
    let missed = drive.superblock.borrow().as_ref().is_none_or(|own| own.epoch < says.epoch);
    match says.states[slot] {
        MemberState::InSync if missed && machine.has(Plant::StaleByUnserved) => MemberState::Missing,
        state => state,
    }
}

/// The bug of the released prototype: a segment that lacks the header of any column is reset.
async fn reset_without_header(machine: &Machine, used: &[Option<Rc<Drive>>]) {
    let config = machine.scenario.config();
    let mut found = BTreeMap::new();
    for (slot, drive) in used.iter().enumerate() {
        for zone in engine::log::config::SUPERBLOCK_ZONES..drive.as_ref().map_or(0, |_| config.zones) {
            let drive = drive.as_ref().expect("it has zones");
            let mut block = vec![0; BLOCK as usize];
            let at = u64::from(zone) * u64::from(config.capacity_blocks) * BLOCK;
            drive.medium.borrow().read(DeviceOffset::new(at), &mut block, &mut []);
            let place = ZonePlace { set_uuid: config.set_uuid, device_uuid: config.devices[slot], zone };
            if let Ok(header) = SegmentHeader::parse(&block, place) {
                found.entry(header.tag).or_insert_with(Vec::new).push((slot, zone, header.columns.len()));
            }
        }
    }
    for zones in found.values().filter(|zones| zones.iter().any(|(_, _, width)| zones.len() < *width)) {
        for (slot, zone, _) in zones {
            let drive = used[*slot].clone().expect("it was read");
            _ = SimZones(drive).reset(*zone).await; // a zone that cannot be reset stays
        }
    }
}

/// Writes what changes to the superblocks, as long as the array runs.
async fn keep_superblocks(shared: Arc<LogShared>, kept: Kept, last: Superblock) {
    let mut superblock = last;
    loop {
        let version = shared.members.metadata_wanted().await;
        superblock.sequence += 1;
        superblock.numbers = superblock.numbers.max(shared.table.numbers_to_reserve());
        superblock.checkpoint = shared.checkpoints.said();
        superblock.states = shared.members.shown();
        let before = superblock.devices.len();
        superblock.devices = (0..superblock.states.len()).map(|slot| shared.members.uuid(slot)).collect();
        let (members, listed) = (&shared.members, superblock.states.len());
        superblock.growing = members.is_growing() || listed > members.width();
        kept.borrow_mut().truncate(listed);
        let used = used_in(&kept.borrow(), &superblock.states);
        // Those that are added have theirs first, and these do not speak, as the program's keeper does it.
        let first = Superblock { sequence: 0, ..superblock.clone() };
        let mut written = write_all(&used[before.min(used.len())..], &first).await;
        if written.is_ok() {
            written = write_all(&used, &superblock).await;
        }
        match written {
            Ok(()) => {
                shared.table.numbers_are_reserved(superblock.numbers);
                shared.members.metadata_written(version);
            }
            Err(slot) if lose(&shared, slot).is_ok() => {}
            Err(_) => return shared.members.metadata_lost(),
        }
    }
}

fn used_in(used: &[Option<Rc<Drive>>], states: &[MemberState]) -> Vec<Option<Rc<Drive>>> {
    let in_sync = |slot: usize| matches!(states[slot], MemberState::InSync | MemberState::Recovering);
    (0..used.len()).map(|slot| used[slot].clone().filter(|_| in_sync(slot))).collect()
}

/// A member that takes no superblock is out.
fn lose(shared: &LogShared, slot: usize) -> Result<(), String> {
    match shared.fail(slot, "it takes no superblock") {
        engine::members::Failing::Failed => Ok(()),
        engine::members::Failing::Needed => Err(format!("member {slot} takes no superblock, and is needed")),
    }
}

/// Writes a superblock to members, one after the other. The slot of the one that failed, if any.
async fn write_all(members: &[Option<Rc<Drive>>], superblock: &Superblock) -> Result<(), usize> {
    for drive in members.iter().flatten() {
        if !drive.write_superblock(superblock.clone()).await {
            return Err(drive.slot);
        }
    }
    Ok(())
}
