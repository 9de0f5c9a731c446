//! A served array: members opened, assembled, put on shards, exported, looked after, and stopped in order.

mod acts;
pub mod block_device;
mod deleted;
mod event_log;
mod manager;
mod open;
mod platform;
mod re_add;
mod replace;
mod scrub;
mod scrub_file;
mod spares;
mod speed;
mod start;
mod status;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use engine::stripe::load::UpdatePolicy;
use host::array::HostArray;
use host::export::nbd::Server;
use host::export::ublk::UblkDevice;
use host::shard::Shards;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::status::LoggedEvent;
use event_log::EventLog;
use manager::ArrayManager;
use platform::Known;
use scrub_file::ScrubFile;
pub use speed::NewLimits;

/// How an array is served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Threads, each with a ring.
    pub shards: usize,
    /// Parity kept in memory, in bytes; 0 turns it off.
    pub parity_cache_bytes: usize,
    /// Writes that arrive together share one stripe write.
    pub two_phase: bool,
    /// How writes choose what to read for new parity.
    pub update_policy: UpdatePolicy,
    /// Reads of a member that is far slower than the others are reconstructed.
    pub avoid_slow: bool,
    /// Nothing is written down before a stripe changes (the policy `none`).
    pub no_consistency: bool,
    /// While members are missing, stripes are written without being logged first.
    pub no_redo_log: bool,
    /// No write is accepted, nothing is written to members.
    pub read_only: bool,
    /// Writes of a busy shard's clients go to others that are not.
    pub balance: bool,
    /// Members put what is read through the block device where it is wanted, if the kernel can.
    pub zero_copy: bool,
    /// Idle shards poll for a while instead of sleeping at once.
    pub poll: bool,
    /// Unix sockets to listen on.
    pub unix: Vec<PathBuf>,
    /// TCP addresses to listen on.
    pub tcp: Vec<SocketAddr>,
    /// Serve as a block device, with this number if there is one.
    pub ublk: Option<Option<u32>>,
    /// Name that clients ask for; the array is the default export too.
    pub export_name: String,
    /// Arrays of this group share their spares.
    pub spare_group: Option<String>,
    /// Past the page cache wherever the file system can.
    pub direct: bool,
}

/// How long clients get to finish at a stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A served array. Its methods may be called from any thread that is no shard.
pub struct Serving {
    array: HostArray,
    server: Server,
    device: Option<UblkDevice>,
    shards: Arc<Shards>,
    manager: ArrayManager,
    log: Arc<EventLog>,
    known: Arc<Mutex<Known>>,
    read_only: bool,
    spare_group: Option<String>,
    started_unix_s: u64,
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
    /// Events after the one with number `since`.
    pub fn events(&self, since: u64) -> Vec<LoggedEvent> {
        self.log.since(since)
    }

    /// Finishes what is in flight, writes clean superblocks and ends. The block device is taken away before, by
    /// [`Serving::take_device_away`]; one that is left waits for the next server.
    ///
    /// # Errors
    /// Clients did not leave, or the superblocks could not be written: the array is dirty then.
    pub fn stop(self) -> Result<Stopped, Failure> {
        for path in self.status().deleted() {
            tracing::warn!("{path} has been deleted: what it holds is lost now");
        }
        let connections = self.connections();
        self.server.stop(STOP_LIMIT);
        drop(self.server);
        let clean = end(&self.manager, &self.array, self.shards, self.read_only)?;
        Ok(Stopped { clean, connections })
    }
}

/// Ends what looks after the array, and the shards. Whether the array is clean on its members.
fn end(
    manager: &ArrayManager,
    array: &HostArray,
    shards: Arc<Shards>,
    read_only: bool,
) -> Result<bool, Failure> {
    array.mode.stopping.store(true, Relaxed);
    let stopped = manager.stop(&shards, read_only);
    array.close();
    // Whoever holds the shards last stops them.
    let panicked = Arc::try_unwrap(shards).ok().and_then(|shards| shards.stop().err());
    match panicked {
        Some(panic) => Err(Failure::new(ExitKind::Internal, panic.to_string())),
        None => stopped,
    }
}

/// Seconds since 1970.
fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
