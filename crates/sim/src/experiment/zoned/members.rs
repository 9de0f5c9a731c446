//! An array over drives that take time, from its first start to its last.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use engine::counters::Counters;
use engine::log::config::LogConfig;
use engine::log::engine::LogSet;
use engine::log::join::{Joining, exchange};
use engine::log::port::LogPort;
use engine::log::recover::found::{RecoverError, RecoveryReport};
use engine::log::recover::{Start, recover};
use engine::log::shard::LogEngine;
use engine::log::shared::LogShared;
use engine::members::MemberState;
use engine::zone_device::timing::DriveModel;
use engine::zone_device::{ZoneAccess, ZonedInfo};
use layout::zoned::{Access, Carrier, Checkpoint, Epoch};

use super::drive::{Keeps, TimedZones};
use super::machine::Machine;
use crate::random::Random;
use crate::timeline::Timeline;
use crate::zoned::medium::Survival;

pub(super) const BLOCK: u64 = 4096;
/// How often what takes long is looked at.
const LOOK_NS: u64 = 1_000_000;

/// What superblocks say. They are one value here, and take no time.
struct Saved {
    epoch: u32,
    numbers: u64,
    checkpoint: Option<Checkpoint>,
    states: Vec<MemberState>,
    uuids: Vec<[u8; 16]>,
}

/// The members of an array, which outlive its starts.
pub(super) struct Members {
    pub(super) config: LogConfig,
    model: DriveModel,
    keeps: Keeps,
    devices: RefCell<Vec<Option<Rc<TimedZones>>>>,
    saved: Rc<RefCell<Saved>>,
}

/// An array that has started, and does not serve yet.
pub(super) struct Started {
    pub(super) shared: Arc<LogShared>,
    pub(super) report: RecoveryReport,
}

/// An array that serves on one shard.
pub(super) struct Served {
    pub(super) set: Rc<LogSet<TimedZones>>,
    pub(super) shared: Arc<LogShared>,
}

impl Members {
    /// New ones, empty.
    pub(super) fn new(config: LogConfig, model: DriveModel, keeps: Keeps, time: &Rc<Timeline>) -> Rc<Self> {
        let uuids = config.devices.clone();
        let saved = Saved {
            epoch: 0,
            numbers: 1,
            checkpoint: None,
            states: vec![MemberState::InSync; uuids.len()],
            uuids,
        };
        let members = Members {
            config,
            model,
            keeps,
            devices: RefCell::default(),
            saved: Rc::new(RefCell::new(saved)),
        };
        let devices = (0..members.config.devices.len()).map(|_| Some(members.drive(time))).collect();
        *members.devices.borrow_mut() = devices;
        Rc::new(members)
    }

    /// An empty drive like the others.
    fn drive(&self, time: &Rc<Timeline>) -> Rc<TimedZones> {
        let access = match self.config.access {
            Access::Append => ZoneAccess::Append,
            Access::Sequential => ZoneAccess::Sequential,
            Access::Placed => ZoneAccess::Placed,
        };
        let zone_bytes = u64::from(self.config.capacity_blocks) * BLOCK;
        let zoned = ZonedInfo {
            access,
            zones: self.config.zones,
            zone_bytes,
            capacity_bytes: zone_bytes,
            record_bytes_max: self.config.record_bytes_max,
            metadata_bytes: if self.config.carrier == Carrier::Oob { 64 } else { 0 },
            open_max: None,
            active_max: None,
        };
        TimedZones::new(zoned, self.model, time, self.keeps)
    }

    /// Reads of all drives so far, and their bytes.
    pub(super) fn reads(&self) -> (u64, u64) {
        let devices = self.devices.borrow();
        let reads = devices.iter().flatten().map(|device| device.reads());
        reads.fold((0, 0), |(reads, bytes), own| (reads + own.0, bytes + own.1))
    }

    /// The member of a slot is gone.
    pub(super) fn take_out(&self, slot: usize) {
        self.devices.borrow_mut()[slot] = None;
        self.saved.borrow_mut().states[slot] = MemberState::Missing;
    }

    /// The power goes and comes back at all drives. What superblocks say is durable.
    pub(super) fn cut(&self, survival: Survival, random: &Random) {
        for drive in self.devices.borrow_mut().iter_mut().flatten() {
            *drive = drive.cut(survival, random);
        }
    }

    /// Blocks that were written to all drives since they were made, or left by a power cut.
    pub(super) fn written_blocks(&self) -> u64 {
        self.devices.borrow().iter().flatten().map(|drive| drive.written_blocks()).sum()
    }

    /// Starts the array.
    pub(super) async fn serve(&self, machine: &Machine) -> Served {
        let started = self.start(machine).await;
        self.go_on(machine, &started.expect("nothing fails here but members that are taken out"))
    }

    /// Starts the array. Superblocks follow from then on.
    ///
    /// # Errors
    /// It cannot be started.
    pub(super) async fn start(&self, machine: &Machine) -> Result<Started, RecoverError> {
        /// Enough that none have to be reserved while an array runs.
        const NUMBERS: u64 = 1 << 20;
        let (epoch, numbers, states) = {
            let mut saved = self.saved.borrow_mut();
            saved.epoch += 1;
            let first = saved.numbers;
            saved.numbers += NUMBERS;
            (saved.epoch, first..saved.numbers, saved.states.clone())
        };
        let uuids = self.saved.borrow().uuids.clone();
        let start = Start {
            growing: false,
            config: LogConfig { devices: uuids, ..self.config.clone() },
            states,
            devices: self.devices.borrow().clone(),
            epoch: Epoch { number: epoch, random: epoch },
            numbers,
            checkpoint: self.saved.borrow().checkpoint,
            counters: [Counters::default()].into(),
            events: Box::new(|_| {}),
        };
        let Machine { executor, pool, platform, .. } = machine;
        let (shared, report) = recover(start, executor, pool, platform).await?;
        executor.spawn(keep_superblocks(Arc::clone(&shared), Rc::clone(&self.saved)));
        Ok(Started { shared, report })
    }

    /// Clients may come, and reclaim works.
    pub(super) fn go_on(&self, machine: &Machine, started: &Started) -> Served {
        let shared = Arc::clone(&started.shared);
        Served { set: Rc::new(LogSet::serve(self.port(machine, started))), shared }
    }

    /// What was started, to read from it: nothing reclaims.
    pub(super) fn at_rest(&self, machine: &Machine, started: &Started) -> Rc<LogSet<TimedZones>> {
        Rc::new(LogSet(Rc::new(LogEngine::new(self.port(machine, started)))))
    }

    fn port(&self, machine: &Machine, started: &Started) -> LogPort<TimedZones> {
        let Machine { executor, pool, platform, .. } = machine.clone();
        let devices = self.devices.borrow().clone();
        LogPort::new(Arc::clone(&started.shared), 0, executor, pool, platform, devices)
    }

    /// An empty drive gets the slot of a member that is out of use, and everything is made whole. How long that takes.
    pub(super) async fn rebuild(&self, machine: &Machine, served: &Served, slot: usize) -> u64 {
        let began_ns = machine.time.now_ns();
        let (device, uuid) = (self.drive(&machine.time), [99; 16]);
        let Served { set, shared, .. } = served;
        set.renew().await;
        let port = &set.0.port;
        port.detach(slot);
        let joining = Joining { slot, uuid, device: Rc::clone(&device) };
        exchange(port, &joining).await.expect("the drive works");
        port.attach(slot, device);
        shared.members.join(slot);
        set.renew().await;
        while !shared.members.behind().is_empty() {
            machine.sleep(LOOK_NS).await;
        }
        machine.time.now_ns() - began_ns
    }
}

async fn keep_superblocks(shared: Arc<LogShared>, saved: Rc<RefCell<Saved>>) {
    loop {
        let version = shared.members.metadata_wanted().await;
        let numbers = shared.table.numbers_to_reserve();
        {
            let mut saved = saved.borrow_mut();
            saved.states = shared.members.shown();
            saved.uuids = (0..saved.states.len()).map(|slot| shared.members.uuid(slot)).collect();
            saved.checkpoint = shared.checkpoints.said();
            saved.numbers = saved.numbers.max(numbers);
        }
        shared.table.numbers_are_reserved(numbers);
        shared.members.metadata_written(version);
    }
}
