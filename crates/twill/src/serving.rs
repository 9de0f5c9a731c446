//! A served array: members opened, assembled, put on shards, exported, looked after, and stopped in order.

mod control;
mod event_log;
mod start;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use engine::array::rebuild::Progress;
use engine::stripe::load::UpdatePolicy;
use host::array::HostArray;
use host::export::nbd::Server;
use host::shard::Shards;
use parking_lot::Mutex;

use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::status::LoggedEvent;
use control::{ArrayManager, Known};
use event_log::EventLog;

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
    /// No write is accepted, nothing is written to members.
    pub read_only: bool,
    /// Idle shards poll for a while instead of sleeping at once.
    pub poll: bool,
    /// Unix sockets to listen on.
    pub unix: Vec<PathBuf>,
    /// TCP addresses to listen on.
    pub tcp: Vec<SocketAddr>,
    /// Name that clients ask for; the array is the default export too.
    pub export_name: String,
    /// Past the page cache wherever the file system can.
    pub direct: bool,
}

/// How long clients get to finish at a stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// A served array. Its methods may be called from any thread that is no shard.
pub struct Serving {
    array: HostArray,
    server: Server,
    shards: Arc<Shards>,
    manager: ArrayManager,
    progress: Arc<Progress>,
    log: Arc<EventLog>,
    known: Arc<Mutex<Known>>,
    read_only: bool,
    started_unix_s: u64,
    rebuild_seen: Mutex<Option<(Instant, u64)>>,
}

impl Serving {
    /// Events after the one with number `since`.
    pub fn events(&self, since: u64) -> Vec<LoggedEvent> {
        self.log.since(since)
    }

    /// Finishes what is in flight, writes clean superblocks and ends.
    ///
    /// # Errors
    /// Clients did not leave, or the superblocks could not be written: the array is dirty then.
    pub fn stop(self) -> Result<(), Failure> {
        self.server.stop(STOP_LIMIT);
        self.array.mode.stopping.store(true, Relaxed);
        let stopped = self.manager.stop(&self.shards, self.read_only);
        self.array.close();
        drop(self.server);
        // Whoever holds the shards last stops them.
        let panicked = Arc::try_unwrap(self.shards).ok().and_then(|shards| shards.stop().err());
        match panicked {
            Some(panic) => Err(Failure::new(ExitKind::Internal, panic.to_string())),
            None => stopped,
        }
    }
}

/// Seconds since 1970.
fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
