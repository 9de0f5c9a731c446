//! The start of a zoned array, in the only order that is safe: superblocks read again where they count, what the members hold read
//! and judged, so that a refusal comes before the first byte is written, the new epoch durable on every member (Z-I16), what a crash
//! left half done made whole, *served* durable on every member before the first request (Z-I6).

use std::rc::Rc;
use std::sync::Arc;

use layout::units::Slot;
use layout::zoned::{Epoch, Superblock};

use super::assemble::{ZonedAssembly, needed};
use super::fit::{OtherZones, check_zones};
use super::keeper::{Keeper, Kept, Phase, Said};
use super::plan::{self, PlanRefusal};
use super::running::Running;
use super::superblock_log::MemberLog;
use crate::buffer::Pool;
use crate::counters::Counters;
use crate::device::DeviceError;
use crate::events::{Event, EventSink};
use crate::executor::Executor;
use crate::log::config::{LogConfig, MapLimits, ReclaimOptions};
use crate::log::port::{LogPlatform, LogPort};
use crate::log::recover::found::RecoverError;
use crate::log::recover::{Recovery, Start};
use crate::log::shared::LogShared;
use crate::log::zone_budget::{self, LimitTooLow};
use crate::members::MemberState;
use crate::zone_device::ZoneDevice;

/// Why a start ended. Unless it says otherwise nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// A member cannot be read or written.
    #[error("the superblocks of the member in slot {slot} cannot be read: {error}")]
    Member {
        /// Its slot.
        slot: usize,
        /// Why.
        error: DeviceError,
    },
    /// What its contents say is not below its write pointers.
    #[error(
        "the member in slot {slot} has no superblock below its write pointers: it lost them, or its zones were reset"
    )]
    NoSuperblock {
        /// Its slot.
        slot: usize,
    },
    /// Another program wrote it after it was chosen.
    #[error(
        "the superblock of the member in slot {slot} changed while it was being opened: another program uses the array"
    )]
    Changed {
        /// Its slot.
        slot: usize,
    },
    /// A member is smaller, or its drive has lower limits, than the array needs.
    #[error("{0}")]
    Plan(#[from] PlanRefusal),
    /// A drive cannot keep enough zones open.
    #[error("{0}")]
    Limit(#[from] LimitTooLow),
    /// A member's zones are not those that its superblock names.
    #[error("the member in slot {slot} has {found}, and its superblock says {expected}")]
    OtherZones {
        /// Its slot.
        slot: usize,
        /// Of the device.
        found: String,
        /// Of the superblock.
        expected: String,
    },
    /// The new epoch could not be written to enough members. Those that have it are as good as before.
    #[error("the new epoch could not be written to the member in slot {slot}: {error}; the array needs it")]
    NotBegun {
        /// Its slot.
        slot: usize,
        /// Why.
        error: DeviceError,
    },
    /// Recovery refused or failed; it says whether anything was changed.
    #[error(transparent)]
    Recover(#[from] RecoverError),
    /// Nothing was served, and what recovery did stands.
    #[error("the superblocks cannot be written any more")]
    MetadataLost,
}

/// Where an array runs.
pub struct Surroundings {
    /// Where its tasks run.
    pub executor: Executor,
    /// Memory.
    pub pool: Arc<Pool>,
    /// Time and chance.
    pub platform: Rc<dyn LogPlatform>,
    /// Seconds since 1970.
    pub clock: Rc<dyn Fn() -> u64>,
    /// The counters of each shard.
    pub counters: Arc<[Counters]>,
    /// Receives what happens.
    pub events: EventSink,
}

/// Members that were chosen and opened; the superblocks that count were read from them, and nothing was written.
pub struct Opened<D> {
    assembly: ZonedAssembly,
    config: LogConfig,
    devices: Vec<Option<Rc<D>>>,
    logs: Vec<Option<MemberLog>>,
}

impl<D: ZoneDevice> Opened<D> {
    /// Reads the superblocks of the chosen members again, by their write pointers. `devices` and `chosen` are in slot order:
    /// the open device of each member in sync, and the superblock that it was chosen by.
    ///
    /// # Errors
    /// A member is not what it was chosen for.
    pub async fn read(
        assembly: ZonedAssembly,
        devices: Vec<Option<Rc<D>>>,
        chosen: &[Option<Superblock>],
        pool: &Arc<Pool>,
    ) -> Result<Self, StartError> {
        let mut config = plan::config(&assembly.speaker)?;
        let mut logs = Vec::with_capacity(devices.len());
        for (slot, device) in devices.iter().enumerate() {
            let Some(device) = device else {
                logs.push(None);
                continue;
            };
            check_zones(&**device, &assembly.speaker.zones)
                .map_err(|OtherZones { found, expected }| StartError::OtherZones { slot, found, expected })?;
            let read = MemberLog::read(&**device, pool).await;
            let read = read.map_err(|error| StartError::Member { slot, error })?;
            let (superblock, log) = read.ok_or(StartError::NoSuperblock { slot })?;
            if chosen.get(slot).and_then(Option::as_ref) != Some(&superblock) {
                return Err(StartError::Changed { slot });
            }
            let zoned = device.zoned();
            config.zone_limits[slot] = zone_budget::limit(zoned.open_max, zoned.active_max);
            config.record_bytes_max = config.record_bytes_max.min(zoned.record_bytes_max);
            logs.push(Some(log));
        }
        Ok(Opened { assembly, config, devices, logs })
    }

    /// What the map may take.
    pub fn limit_map(&mut self, limits: MapLimits) {
        self.config.map_limits = limits;
    }

    /// How reclaim works.
    pub fn set_reclaim(&mut self, options: ReclaimOptions) {
        self.config.reclaim = options;
    }

    /// What is fixed while it runs.
    pub fn config(&self) -> &LogConfig {
        &self.config
    }

    /// Starts the array. On return it serves.
    ///
    /// # Errors
    /// Why not, and whether anything was written.
    pub async fn start(self, around: Surroundings) -> Result<Running<D>, StartError> {
        let Opened { assembly, config, mut devices, logs } = self;
        let Surroundings { executor, pool, platform, clock, counters, events } = around;
        let kept = devices.iter().zip(logs);
        let kept = kept.map(|(device, log)| Some(Kept { device: Rc::clone(device.as_ref()?), log: log? }));
        let mut keeper = Keeper::new(&assembly.speaker, assembly.newest, kept.collect(), &pool, clock);
        let number = assembly.newest.epoch + 1;
        let epoch = Epoch { number, random: (platform.random() as u32).max(1) };
        let (numbers, events) = (keeper.numbers(), Arc::new(events));
        let mut states = assembly.states();
        let read = |devices: &[Option<Rc<D>>], states: &[MemberState]| {
            let (sink, config) = (Arc::clone(&events), config.clone());
            let start = Start {
                config,
                devices: devices.to_vec(),
                states: states.to_vec(),
                growing: assembly.speaker.growing,
                epoch,
                numbers: numbers.clone(),
                checkpoint: assembly.speaker.checkpoint,
                counters: Arc::clone(&counters),
                events: Box::new(move |event| sink(event)),
            };
            let (executor, pool, platform) = (executor.clone(), Arc::clone(&pool), Rc::clone(&platform));
            async move { Recovery::read(start, &executor, &pool, &platform).await }
        };
        let mut recovery = read(&devices, &states).await?;
        let failed = keeper.begin(epoch).await;
        let are_all_there = failed.is_empty();
        for (slot, error) in failed {
            let member = Slot::of_index(slot);
            events(Event::MetadataError { member, reason: error.to_string() });
            states[slot] = MemberState::Failed;
            devices[slot] = None;
            keeper.drop_member(slot);
            let takes_part =
                |state: &&MemberState| matches!(**state, MemberState::InSync | MemberState::Recovering);
            let in_sync = states.iter().filter(takes_part).count();
            if in_sync < needed(assembly.speaker.plan.columns) {
                return Err(StartError::NotBegun { slot, error });
            }
        }
        if !are_all_there {
            recovery = read(&devices, &states).await?; // without the members that are out since
        }
        let (said, arrivals) = (keeper.said(), keeper.arrivals());
        let (task, followed, mut seen) = (executor.clone(), Rc::clone(&said), None);
        let keep = |shared: &Arc<LogShared>| {
            seen = Some(Arc::clone(shared));
            task.spawn(keeper.keep(Arc::clone(shared), followed));
        };
        let (shared, report) = match recovery.write(keep).await {
            Ok(recovered) => recovered,
            Err(error) => {
                said.enter(Phase::Abandoned); // a later start goes on from what is there
                seen.iter().for_each(|shared| shared.members.want_metadata());
                return Err(error.into());
            }
        };
        serve(&shared, &said).await?;
        let port = LogPort::new(shared, 0, executor, pool, platform, devices);
        Ok(Running::new(Rc::new(port), said, arrivals, report))
    }
}

/// Z-I6: every member that is in sync says *served*, and calls the others failed.
async fn serve(shared: &LogShared, said: &Said) -> Result<(), StartError> {
    said.enter(Phase::Serving);
    shared.members.want_metadata();
    shared.members.settled().await.map_err(|_| StartError::MetadataLost)
}
