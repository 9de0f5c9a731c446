//! A zoned array on the shards of this machine: started, kept and stopped on shard 0, served by all.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::array::volume::VolumeMode;
use engine::array::zoned::assemble::ZonedAssembly;
use engine::array::zoned::plan;
use engine::array::zoned::running::{NotJoined, Running};
use engine::array::zoned::start::{Opened, StartError, Surroundings};
use engine::counters::Counters;
use engine::error::VolumeError;
use engine::events::EventSink;
use engine::limits::BLOCK_BYTES;
use engine::log::config::{MapLimits, ReclaimOptions};
use engine::log::engine::LogSet;
use engine::log::join::Joining;
use engine::log::port::{LogPlatform, LogPort};
use engine::log::shared::LogShared;
use layout::zoned::Superblock;

use crate::device::zoned::{HostZones, SharedZones};
use crate::ring::Ring;
use crate::shard::{Handle, ShardContext, ShardGone};
use crate::volumes::Volumes;

thread_local! {
    /// The arrays of which this shard is the first, by the numbers of their volumes.
    static RUNNING: RefCell<BTreeMap<u64, Rc<Running<HostZones>>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Time and chance for the log engine: `random` is the program's.
pub struct RingPlatform {
    ring: Ring,
    started: Instant,
    random: fn() -> u64,
}

impl RingPlatform {
    /// Of the shard that has this ring.
    pub fn new(ring: &Ring, random: fn() -> u64) -> Self {
        RingPlatform { ring: ring.clone(), started: Instant::now(), random }
    }
}

impl LogPlatform for RingPlatform {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn sleep_until(&self, at_ns: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        let left = Duration::from_nanos(at_ns.saturating_sub(self.now_ns()));
        let sleep = self.ring.sleep(left);
        Box::pin(async move {
            sleep.await;
        })
    }

    fn random(&self) -> u64 {
        (self.random)()
    }
}

/// What a zoned array is started from.
pub struct ZonedStart {
    /// Which candidates make it up.
    pub assembly: ZonedAssembly,
    /// The open member of each slot that is in sync.
    pub members: Vec<Option<SharedZones>>,
    /// What the map may take.
    pub map_limits: MapLimits,
    /// How it reclaims.
    pub reclaim: ReclaimOptions,
    /// The superblock that each of them was chosen by.
    pub chosen: Vec<Option<Superblock>>,
    /// Receives what happens.
    pub events: EventSink,
    /// Seconds since 1970.
    pub clock: fn() -> u64,
    /// A random number.
    pub random: fn() -> u64,
}

/// Why a zoned array is not served.
#[derive(Debug, thiserror::Error)]
pub enum NotStarted {
    /// The engine says why.
    #[error(transparent)]
    Engine(#[from] StartError),
    /// A ring that cannot carry what a member needs.
    #[error("this system carries no NVMe commands, which the member in slot {slot} needs")]
    NoNvme {
        /// The member's slot.
        slot: usize,
    },
    /// A shard has ended.
    #[error(transparent)]
    Shard(#[from] ShardGone),
}

/// A zoned array that all shards serve. Clones are handles to the same one.
#[derive(Clone)]
pub struct ZonedArray {
    volumes: Volumes<LogSet<HostZones>>,
    /// The state that the engine shares between shards.
    pub shared: Arc<LogShared>,
}

impl ZonedArray {
    /// Starts the array, and sets it up on every shard. Not for use on a shard.
    ///
    /// # Errors
    /// Why it is not served, and whether anything was written.
    pub fn start(shards: &Handle, mode: Arc<VolumeMode>, start: ZonedStart) -> Result<Self, NotStarted> {
        let (members, random) = (start.members.clone(), start.random);
        let volumes = Volumes::new(shards.clone(), mode, BLOCK_BYTES as u32);
        let (count, number) = (shards.count(), volumes.number());
        let shared = shards.run_on(0, move |context| async move {
            let running = run(&context, start, count).await?;
            let shared = Arc::clone(running.shared());
            RUNNING.with_borrow_mut(|all| all.insert(number, Rc::new(running)));
            Ok::<_, NotStarted>(shared)
        })??;
        let array = ZonedArray { volumes, shared: Arc::clone(&shared) };
        array.volumes.set_up(move |context, shard| {
            let devices = attach(&members, &context.ring);
            let platform = Rc::new(RingPlatform::new(&context.ring, random));
            let (executor, pool) = (context.executor.clone(), Arc::clone(&context.pool));
            let port = LogPort::new(Arc::clone(&shared), shard, executor, pool, platform, devices);
            Rc::new(LogSet::serve(port))
        })?;
        Ok(array)
    }

    /// Its volumes, for exports.
    pub fn volumes(&self) -> &Volumes<LogSet<HostZones>> {
        &self.volumes
    }

    /// Asks the array, on its shard.
    ///
    /// # Errors
    /// The shard has ended.
    ///
    /// # Panics
    /// If the array was stopped.
    pub fn ask<T, F>(
        &self,
        question: impl FnOnce(Rc<Running<HostZones>>) -> F + Send + 'static,
    ) -> Result<T, ShardGone>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let number = self.volumes.number();
        self.volumes.shards().run_on(0, move |_| question(running(number)))
    }

    /// Lets go of the device in a slot, which failed, on every shard. Not for use on a shard.
    ///
    /// # Errors
    /// A shard has ended.
    pub fn detach(&self, slot: usize) -> Result<(), ShardGone> {
        self.ask(move |running| async move { running.port().detach(slot) })?;
        for shard in 0..self.volumes.shards().count() {
            let volumes = self.volumes.clone();
            let detach = move |_| async move { volumes.here().engine().0.port.detach(slot) };
            self.volumes.shards().run_on(shard, detach)?;
        }
        Ok(())
    }

    /// A device joins while the array serves: as a new member, or, with its superblock, as one that was away. Not for use on a
    /// shard. Returns its slot, and how many of its columns count as they are.
    ///
    /// # Errors
    /// A shard has ended, or within: why it does not join.
    pub fn join(
        &self,
        member: &SharedZones,
        uuid: [u8; 16],
        own: Option<Superblock>,
    ) -> Result<Result<(usize, usize), NotJoined>, ShardGone> {
        let is_new = own.is_none();
        let slot = match self.ask(move |running| async move { running.may_join(own.as_ref()) })? {
            Ok(slot) => slot,
            Err(why) => return Ok(Err(why)),
        };
        self.renew()?; // no open segment has a column of the former member
        self.detach(slot)?;
        let adopted = match self.exchange(slot, member, uuid, is_new)? {
            Ok(adopted) => adopted,
            Err(why) => return Ok(Err(why)),
        };
        let joined = self.ask(move |running| async move { running.join().await })?;
        self.renew()?; // what is open lacks a column of the new member
        Ok(joined.map(|()| (slot, adopted)).map_err(NotJoined::from))
    }

    /// The array grows by these devices, each with its identity. Not for use on a shard. Returns the slot of the first.
    ///
    /// # Errors
    /// A shard has ended, or within: which of them is not taken, and why. The array is as it was then, and those devices that were
    /// looked at before are empty.
    pub fn grow(
        &self,
        members: &[(SharedZones, [u8; 16])],
    ) -> Result<Result<usize, (usize, NotJoined)>, ShardGone> {
        let count = members.len();
        let first = match self.ask(move |running| async move { running.may_grow(count) })? {
            Ok(first) => first,
            Err(why) => return Ok(Err((0, why))),
        };
        for (index, (member, uuid)) in members.iter().enumerate() {
            if let Err(why) = self.exchange(first + index, member, *uuid, true)? {
                self.detach_all(first..first + index)?;
                return Ok(Err((index, why)));
            }
        }
        let grown = self.ask(|running| async move { running.grow().await })?;
        if let Err(why) = grown {
            self.detach_all(first..first + count)?;
            return Ok(Err((0, why)));
        }
        self.renew()?; // what is open is narrower than the array
        Ok(Ok(first))
    }

    fn detach_all(&self, slots: Range<usize>) -> Result<(), ShardGone> {
        slots.into_iter().try_for_each(|slot| self.detach(slot))
    }

    /// Puts a device into a slot that was reserved for it, and gives it to every shard. Otherwise the slot is reserved no longer.
    fn exchange(
        &self,
        slot: usize,
        member: &SharedZones,
        uuid: [u8; 16],
        is_new: bool,
    ) -> Result<Result<usize, NotJoined>, ShardGone> {
        let (device, number) = (member.clone(), self.volumes.number());
        let exchanged = self.volumes.shards().run_on(0, move |context| async move {
            let running = running(number);
            let Some(device) = device.attach(&context.ring) else {
                running.give_up();
                return Err(NotJoined::NoNvme);
            };
            let device = Rc::new(device);
            running.port().attach(slot, Rc::clone(&device));
            let exchanged = running.exchange(Joining { slot, uuid, device }, is_new).await;
            if exchanged.is_err() {
                running.port().detach(slot);
                running.give_up();
            }
            exchanged
        })?;
        if exchanged.is_err() {
            return Ok(exchanged);
        }
        for shard in 0..self.volumes.shards().count() {
            let (volumes, member) = (self.volumes.clone(), member.clone());
            let attach = move |context: ShardContext| async move {
                if let Some(device) = member.attach(&context.ring) {
                    volumes.here().engine().0.port.attach(slot, Rc::new(device));
                }
            };
            self.volumes.shards().run_on(shard, attach)?;
        }
        Ok(exchanged)
    }

    /// Closes the open segments of all shards.
    fn renew(&self) -> Result<(), ShardGone> {
        for shard in 0..self.volumes.shards().count() {
            let volumes = self.volumes.clone();
            let renew = move |_| async move { volumes.here().engine().renew().await };
            self.volumes.shards().run_on(shard, renew)?;
        }
        Ok(())
    }

    /// Closes the segments of all shards, makes everything durable, writes the last superblocks and takes the array off the
    /// shards. No client is left. Not for use on a shard.
    ///
    /// # Errors
    /// A shard has ended, or within: something could not be made durable. The next start finds out what is there.
    pub fn stop(&self) -> Result<Result<(), VolumeError>, ShardGone> {
        let mut closed = Ok(());
        for shard in (0..self.volumes.shards().count()).rev() {
            let volumes = self.volumes.clone();
            let stopped = self
                .volumes
                .shards()
                .run_on(shard, move |_| async move { volumes.here().engine().stop().await })?;
            closed = closed.and(stopped);
        }
        let stopped = self.ask(move |running| async move { running.stop(closed).await })?;
        let number = self.volumes.number();
        self.volumes.shards().run_on(0, move |_| async move {
            let running = RUNNING.with_borrow_mut(|all| all.remove(&number));
            drop(running); // not while the table is borrowed
        })?;
        self.volumes.close();
        Ok(stopped)
    }
}

fn running(number: u64) -> Rc<Running<HostZones>> {
    RUNNING.with_borrow(|all| Rc::clone(all.get(&number).expect("the first shard of an array runs it")))
}

fn attach(members: &[Option<SharedZones>], ring: &Ring) -> Vec<Option<Rc<HostZones>>> {
    members.iter().map(|member| Some(Rc::new(member.as_ref()?.attach(ring)?))).collect()
}

async fn run(
    context: &ShardContext,
    start: ZonedStart,
    shards: usize,
) -> Result<Running<HostZones>, NotStarted> {
    let ZonedStart { assembly, members, map_limits, reclaim, chosen, events, clock, random } = start;
    let devices = attach(&members, &context.ring);
    if let Some(slot) = (0..members.len()).find(|slot| members[*slot].is_some() && devices[*slot].is_none()) {
        return Err(NotStarted::NoNvme { slot });
    }
    let mut opened = Opened::read(assembly, devices, &chosen, &context.pool).await?;
    opened.limit_map(map_limits);
    opened.set_reclaim(reclaim);
    plan::check_shards(shards, opened.config()).map_err(StartError::Limit)?;
    let around = Surroundings {
        executor: context.executor.clone(),
        pool: Arc::clone(&context.pool),
        platform: Rc::new(RingPlatform::new(&context.ring, random)),
        clock: Rc::new(clock),
        counters: (0..shards).map(|_| Counters::default()).collect(),
        events,
    };
    Ok(opened.start(around).await?)
}
