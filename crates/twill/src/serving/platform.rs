//! What the engine's manager needs from the shards of this process, and which devices they have.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};
use std::time::Duration;

use engine::array::platform::Platform;
use engine::array::scrub::ScrubState;
use host::array::{HostArray, MemberDevice};
use host::device::nvme_tcp::RemoteStatus;
use host::device::{HostDevice, SharedDevice};
use host::ring::Ring;
use host::shard::ShardGone;
use parking_lot::Mutex;
use uuid::Uuid;

use super::clock::now_unix_s;
use super::speed::{NAP, Speed, is_stopping};
use layout::units::{DeviceOffset, Slot};

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
    /// The path of the device that was last replaced in each slot.
    pub(super) replaced: Vec<Option<PathBuf>>,
    /// Failed members whose slots others have taken. They are held until an operator removes them.
    pub(super) faulty: Vec<PathBuf>,
    pub(super) created_unix_s: u64,
}

/// The devices of all arrays of this process.
static ARRAYS: Mutex<Vec<Weak<Mutex<Known>>>> = Mutex::new(Vec::new());

impl Known {
    /// These devices are seen by [`is_held`] as long as the array has them.
    pub(super) fn shared(self) -> Arc<Mutex<Self>> {
        let known = Arc::new(Mutex::new(self));
        let mut arrays = ARRAYS.lock();
        arrays.retain(|array| array.strong_count() > 0);
        arrays.push(Arc::downgrade(&known));
        known
    }
}

/// Whether an array of this process has the device with this name. Locks keep two programs from one member; a namespace on another
/// machine that the process has attached is attached for all of its arrays.
pub(super) fn is_held(name: &str) -> bool {
    let arrays: Vec<Arc<Mutex<Known>>> = ARRAYS.lock().iter().filter_map(Weak::upgrade).collect();
    arrays.iter().any(|known| known.lock().devices.contains_key(name))
}

/// What the manager needs from the shards.
pub(super) struct HostPlatform {
    pub(super) array: HostArray,
    pub(super) ring: Ring,
    pub(super) known: Arc<Mutex<Known>>,
    pub(super) scrubs: Sender<ScrubState>,
}

impl Known {
    pub(super) fn bytes_of(&self, path: &Path) -> u64 {
        self.devices.get(&path.display().to_string()).map_or(0, |device| device.info().size_bytes)
    }

    /// How the connection to a device is, if that is on another machine.
    pub(super) fn remote(&self, path: &str) -> Option<RemoteStatus> {
        self.devices.get(path).and_then(SharedDevice::remote).map(|remote| remote.status())
    }

    /// Lets go of failed members without a slot: of those that `is_meant` names. How many there were.
    pub(super) fn remove_faulty(&mut self, is_meant: impl Fn(&Path) -> bool) -> usize {
        let (removed, kept) = std::mem::take(&mut self.faulty).into_iter().partition(|path| is_meant(path));
        self.faulty = kept;
        let removed: Vec<PathBuf> = removed;
        let count = removed.len();
        removed.into_iter().for_each(|path| self.close(Some(path)));
        count
    }

    /// The open device that one shard's way leads to, and its path.
    fn open(
        &self,
        device: Option<&(Rc<HostDevice>, DeviceOffset)>,
    ) -> (Option<MemberDevice>, Option<PathBuf>) {
        let Some((device, data_offset)) = device else { return (None, None) };
        let (name, data_offset) = (&engine::device::Device::info(&**device).name, *data_offset);
        let open = self.devices.get(name).cloned();
        (open.map(|device| MemberDevice { device, data_offset }), Some(PathBuf::from(name)))
    }

    /// The array no longer uses the device with this path.
    fn close(&mut self, path: Option<PathBuf>) {
        if let Some(path) = path {
            self.devices.remove(&path.display().to_string());
        }
    }
}

/// A shard ends with the last array that it serves, or by a panic.
fn told(result: Result<(), ShardGone>, slot: Slot) {
    if let Err(error) = result {
        tracing::error!(%error, slot = slot.get(), "a shard has no way to the member");
    }
}

impl Platform<HostDevice> for HostPlatform {
    async fn attach(&self, slot: Slot, device: Option<(Rc<HostDevice>, DeviceOffset)>) {
        let (member, path) = self.known.lock().open(device.as_ref());
        {
            let mut known = self.known.lock();
            let before = std::mem::replace(&mut known.paths[slot.index()], path);
            match member {
                None => known.close(before),
                Some(_) => known.faulty.extend(before),
            }
        }
        told(self.array.attach(slot, member).await, slot);
    }

    async fn attach_replacement(&self, slot: Slot, device: Option<(Rc<HostDevice>, DeviceOffset)>) {
        let (replacement, path) = self.known.lock().open(device.as_ref());
        let before = std::mem::replace(&mut self.known.lock().coming[slot.index()], path);
        told(self.array.attach_replacement(slot, replacement).await, slot);
        if device.is_none() {
            self.known.lock().close(before);
        }
    }

    async fn promote_replacement(&self, slot: Slot) {
        told(self.array.promote_replacement(slot).await, slot);
        let mut known = self.known.lock();
        let path = known.coming[slot.index()].take();
        let before = std::mem::replace(&mut known.paths[slot.index()], path);
        known.replaced[slot.index()].clone_from(&before);
        known.close(before);
    }

    fn now_ns(&self) -> u64 {
        self.array.shared.loads.now_ns()
    }

    fn now_unix_s(&self) -> u64 {
        now_unix_s()
    }

    fn new_id(&self) -> u64 {
        let (high, low) = Uuid::new_v4().as_u64_pair();
        (high ^ low).max(1) // neither half is random in all its bits
    }

    async fn sleep(&self, ns: u64) {
        self.ring.sleep(Duration::from_nanos(ns)).await;
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
            tracing::debug!("the task that saves the state of a scrub has ended");
        }
    }
}
