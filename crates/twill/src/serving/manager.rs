//! The manager and the writer live on shard 0; other threads send it closures.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use engine::array::manager::Manager;
use engine::array::running::Running;
use engine::array::scrub::ScrubState;
use engine::array::start::{Prepared, start};
use engine::error::VolumeError;
use host::array::HostArray;
use host::device::{HostDevice, SharedDevice};
use host::shard::{ShardGone, Shards};
use parking_lot::Mutex;

use super::platform::{HostPlatform, Known};
use crate::exit::ExitKind;
use crate::failure::Failure;

pub(super) type HostManager = Manager<HostDevice, HostPlatform>;

thread_local! {
    /// The array that this process serves; on shard 0 only.
    static RUNNING: RefCell<Option<Rc<Running<HostDevice, HostPlatform>>>> = const { RefCell::new(None) };
}

pub(super) fn manager() -> Rc<HostManager> {
    RUNNING.with_borrow(|running| Rc::clone(running.as_ref().expect("shard 0 manages the array").manager()))
}

/// The way to the manager.
pub(super) struct ArrayManager;

impl ArrayManager {
    /// Starts the array on shard 0; `devices` are those of candidates that are spares or replacements.
    pub(super) fn start(
        shards: &Shards,
        array: &HostArray,
        prepared: Prepared,
        devices: HashMap<usize, SharedDevice>,
        (scrub, scrubs): (Option<ScrubState>, Sender<ScrubState>),
        known: &Arc<Mutex<Known>>,
    ) -> Result<Self, Failure> {
        let (array, known) = (array.clone(), Arc::clone(known));
        let started = shards.run_on(0, move |context| async move {
            let set = Rc::clone(array.volume().engine());
            let device = |candidate: usize| Some(Rc::new(devices.get(&candidate)?.attach(&context.ring)));
            let platform = HostPlatform { array, ring: context.ring.clone(), known, scrubs };
            let running = start(prepared, set, platform, device, scrub).await?;
            RUNNING.set(Some(Rc::new(running)));
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

    /// Stops the array. Whether its superblocks say clean.
    pub(super) fn stop(&self, shards: &Shards) -> Result<bool, Failure> {
        let stopped = shards.run_on(0, async |_| {
            let running = RUNNING.with_borrow(Clone::clone).expect("shard 0 manages the array");
            let stopped = running.stop().await;
            RUNNING.set(None); // operators may ask until then
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
