//! A served array: members opened, assembled, put on shards, exported, looked after, and stopped in order.

pub mod acts;
pub mod add;
pub mod block_device;
mod clock;
mod deleted;
pub mod doubt;
mod event_file;
mod event_log;
mod exports;
pub mod hosts;
mod managed;
mod manager;
mod nvme_tcp;
mod open;
mod options;
mod platform;
mod process;
pub mod re_add;
mod remote;
pub mod replace;
pub mod scrub;
mod scrub_file;
mod served;
mod speed;
mod start;
mod status;
pub mod take_back;
mod virtual_machine;
pub mod zoned;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use engine::foreground::Latencies;
use host::array::HostArray;
use host::device::Closing;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::failure::Failure;
use crate::overview::{self, Overview};
use crate::status::ArrayStatus;
use crate::words::status::state;
pub use clock::{now_unix_ms, now_unix_s};
use event_log::EventLog;
pub use exports::Exports;
pub use managed::ManagedArray;
use manager::ArrayManager;
pub use nvme_tcp::NvmeTcpOptions;
pub use open::open_device;
pub use options::ServeOptions;
use process::ArrayShards;
pub use process::{Process, shards_default};
use scrub_file::ScrubFile;
pub use served::ServedArray;
pub use speed::NewLimits;
pub use zoned::random;

/// A served array. Its methods may be called from any thread that is no shard.
pub struct Serving {
    /// What operators act on.
    pub array: ServedArray,
    /// What clients are connected to.
    pub exports: Exports,
    log: Arc<EventLog>,
    spare_group: Option<String>,
    started_unix_s: u64,
    /// Stale members that `--force` took, in words.
    taken_by_force: Vec<String>,
    _scrub_file: ScrubFile,
}

/// What a stop came to.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Stopped {
    /// The superblocks call the array clean. Else a resync goes on at the next start.
    pub clean: bool,
    /// Connections that were cut off.
    pub connections: u64,
}

impl Serving {
    /// Everything that `status` and `detail` print.
    pub fn status(&self) -> ArrayStatus {
        let gathered = match &self.array {
            ServedArray::InPlace(array) => status::gather(array, &self.exports),
            ServedArray::Zoned(array) => zoned::gather(array, &self.exports),
        };
        let failing = self.log.is_failing();
        let status = ArrayStatus {
            clean: gathered.clean && !failing,
            failing,
            degraded: !gathered.failed && gathered.working() < gathered.raid_devices as usize,
            spare_group: self.spare_group.clone(),
            started_unix_s: self.started_unix_s,
            taken_by_force: self.taken_by_force.clone(),
            ..gathered
        };
        ArrayStatus { state: state(&status).join(", "), ..status }
    }

    /// Its block device and its members, without asking a shard.
    pub fn devices(&self) -> Vec<String> {
        let known = match &self.array {
            ServedArray::InPlace(array) => array.known.lock(),
            ServedArray::Zoned(array) => array.known.lock(),
        };
        let members = known.paths.iter().flatten().map(|path| path.display().to_string());
        // Spares have no slot.
        let spares = known.devices.keys().cloned();
        let devices: BTreeSet<String> = members.chain(spares).collect();
        self.exports.device_path().into_iter().chain(devices).collect()
    }

    /// Measures from now on how long requests take, and what goes to each member.
    pub fn show_latencies(&self) {
        if let ServedArray::InPlace(array) = &self.array {
            array.host.shared.foreground.show();
            array.host.shared.loads.show();
        }
    }

    /// How long requests took since then. None: requests of a zoned array are not measured.
    pub fn latencies(&self) -> Option<Latencies> {
        match &self.array {
            ServedArray::InPlace(array) => Some(array.host.shared.foreground.latencies()),
            ServedArray::Zoned(_) => None,
        }
    }

    /// Events after the one with number `since`.
    pub fn events(&self, since: u64) -> Vec<Value> {
        self.log.since(since)
    }

    /// What people watch. It is measured from now on, so the first one has no speeds.
    pub fn overview(&self) -> Overview {
        self.show_latencies();
        let latencies = self.latencies().map_or_else(Vec::new, |latencies| latencies.by_bucket());
        let events = self.log.newest(overview::EVENTS);
        Overview::new(clock::now_unix_ms(), self.status(), latencies, events)
    }

    /// Finishes what is in flight, writes clean superblocks and ends. The block device is taken away before, by
    /// [`Exports::take_device_away`]; one that is left waits for the next server.
    ///
    /// # Errors
    /// Clients did not leave, or the superblocks could not be written: the array is dirty then.
    pub fn stop(self) -> Result<Stopped, Failure> {
        for path in self.status().deleted() {
            tracing::warn!("{path} has been deleted: what it holds is lost now");
        }
        let Serving { array, exports, log, _scrub_file: scrub_file, .. } = self;
        let connections = exports.connections();
        exports.stop();
        let held = array.held();
        let clean = end_array(array)?;
        drop((log, scrub_file)); // they know the members
        wait_until_free(&held);
        Ok(Stopped { clean, connections })
    }
}

/// Ends what looks after an array, and all that is left of it here.
fn end_array(array: ServedArray) -> Result<bool, Failure> {
    match array {
        ServedArray::InPlace(ManagedArray { host, shards, manager, .. }) => end(manager, &host, shards),
        ServedArray::Zoned(array) => {
            let stopped = array.stop();
            end_shards(array.shards, stopped)
        }
    }
}

/// How long a stop waits for members that something still uses.
const FREE_LIMIT: Duration = Duration::from_secs(2);

/// Waits until the members are closed: tasks of the array see within a moment that it has stopped.
fn wait_until_free(held: &[Closing]) {
    let end = Instant::now() + FREE_LIMIT;
    while !held.iter().all(Closing::is_over) {
        if Instant::now() >= end {
            tracing::warn!(
                "members of the stopped array stay open: an operation at one that hangs is not answered yet"
            );
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Ends what looks after the array, and the shards. Whether the array is clean on its members.
fn end(manager: ArrayManager, array: &HostArray, shards: ArrayShards) -> Result<bool, Failure> {
    array.mode.stopping.store(true, Relaxed);
    let stopped = manager.stop(&shards);
    array.close();
    end_shards(shards, stopped)
}

/// Gives back the shards, and says how the array was stopped.
fn end_shards(shards: ArrayShards, stopped: Result<bool, Failure>) -> Result<bool, Failure> {
    shards.give_back().and(stopped)
}
