//! The manager and the writer of an array live on its first shard; other threads send it closures.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::Sender;

use engine::array::manager::Manager;
use engine::array::running::Running;
use engine::array::scrub::ScrubState;
use engine::array::start::{Prepared, start};
use engine::error::VolumeError;
use host::array::HostArray;
use host::device::{HostDevice, SharedDevice};
use host::shard::{Handle, ShardGone};
use parking_lot::Mutex;

use super::platform::{HostPlatform, Known};
use crate::exit::ExitKind;
use crate::failure::Failure;

pub(super) type HostManager = Manager<HostDevice, HostPlatform>;

type HostRunning = Running<HostDevice, HostPlatform>;

thread_local! {
    /// The arrays of which this shard is the first.
    static RUNNING: RefCell<BTreeMap<ArrayManager, Rc<HostRunning>>> = const { RefCell::new(BTreeMap::new()) };
}

static NEXT: AtomicU64 = AtomicU64::new(0);

/// The way to the manager: its number among those of the process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ArrayManager(u64);

impl ArrayManager {
    /// Starts the array on its first shard; `devices` are those of candidates that are spares or replacements.
    pub(super) fn start(
        shards: &Handle,
        array: &HostArray,
        prepared: Prepared,
        devices: HashMap<usize, SharedDevice>,
        (scrub, scrubs): (Option<ScrubState>, Sender<ScrubState>),
        known: &Arc<Mutex<Known>>,
    ) -> Result<Self, Failure> {
        let (array, known) = (array.clone(), Arc::clone(known));
        let own = ArrayManager(NEXT.fetch_add(1, Relaxed));
        let started = shards.run_on(0, move |context| async move {
            let set = Rc::clone(array.volume().engine());
            let device = |candidate: usize| Some(Rc::new(devices.get(&candidate)?.attach(&context.ring)));
            let platform = HostPlatform { array, ring: context.ring.clone(), known, scrubs };
            let running = start(prepared, set, platform, device, scrub).await?;
            RUNNING.with_borrow_mut(|all| all.insert(own, Rc::new(running)));
            Ok(())
        });
        let failed = |error: VolumeError| {
            let message = format!("what a crash left half done cannot be made good: {error}");
            Failure::new(ExitKind::IoError, message)
        };
        started.map_err(gone)?.map_err(failed)?;
        Ok(own)
    }

    /// The manager, for tasks on the array's first shard.
    pub(super) fn here(self) -> Rc<HostManager> {
        Rc::clone(self.running().manager())
    }

    fn running(self) -> Rc<HostRunning> {
        RUNNING.with_borrow(|all| Rc::clone(all.get(&self).expect("the first shard manages the array")))
    }

    pub(super) fn ask<T: Send + 'static>(
        self,
        shards: &Handle,
        question: impl FnOnce(Rc<HostManager>) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        shards.run_on(0, move |_| async move { question(self.here()) }).map_err(gone)
    }

    /// Stops the array. Whether its superblocks say clean.
    pub(super) fn stop(self, shards: &Handle) -> Result<bool, Failure> {
        let stopped = shards.run_on(0, async move |_| {
            let running = self.running();
            let stopped = running.stop().await;
            let last = RUNNING.with_borrow_mut(|all| all.remove(&self)); // operators may ask until then
            drop((running, last));
            stopped
        });
        stopped.map_err(gone)?.map_err(|error| {
            let message = format!("the array could not be stopped cleanly: {error}");
            Failure::new(ExitKind::IoError, message).help("it starts with a resync next time")
        })
    }
}

pub(super) fn gone(error: ShardGone) -> Failure {
    Failure::new(ExitKind::Internal, error.to_string())
}
