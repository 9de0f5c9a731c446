//! What the arrays of a process share: its shards, which are a thread for each core, and the memory for requests of NBD clients.

use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use host::buffer::BufferOptions;
use host::export::nbd::{RequestMemory, ServerOptions};
use host::machine::MemoryLimit;
use host::shard::{Handle, ShardOptions, Shards};
use parking_lot::Mutex;

use crate::exit::ExitKind;
use crate::failure::Failure;

/// Most cores that serve the arrays of a process unless --shards asks for more.
const SHARDS_DEFAULT_MAX: usize = 8;

/// How long an idle shard polls with `--poll`.
const POLL: Duration = Duration::from_micros(50);

/// The shards and the memory of a process that serves arrays. Shards run while an array has them.
pub struct Process {
    /// How many shards there are. None: as many as the first array wants.
    shards: Option<usize>,
    poll: bool,
    running: Mutex<Weak<Shards>>,
    /// The shard that is the first one of the next array: what manages an array is on its first shard.
    next_first: AtomicUsize,
    requests: Arc<RequestMemory>,
}

/// The shards that an array has.
pub struct ArrayShards {
    /// Those of the process.
    all: Arc<Shards>,
    own: Handle,
}

impl Process {
    /// A process that serves one array.
    pub fn of_one_array(poll: bool) -> Self {
        Process {
            shards: None,
            poll,
            running: Mutex::default(),
            next_first: AtomicUsize::new(0),
            requests: request_options().memory(),
        }
    }

    /// A process whose arrays share this many shards.
    pub fn of_arrays(shards: usize, poll: bool) -> Self {
        Process { shards: Some(shards), ..Process::of_one_array(poll) }
    }

    /// How many shards an array gets that wants `wanted`, or none in particular.
    pub fn shards_for(&self, wanted: Option<usize>) -> usize {
        let most = self.shards.unwrap_or(usize::MAX);
        wanted.unwrap_or_else(|| self.shards.unwrap_or_else(shards_default)).min(most)
    }

    /// Shards for an array: as many as [`Process::shards_for`] says, or fewer.
    ///
    /// # Errors
    /// They cannot be started.
    pub(super) fn lend(&self, wanted: usize) -> Result<ArrayShards, Failure> {
        let mut running = self.running.lock();
        let all = match running.upgrade() {
            Some(shards) => shards,
            None => self.start(self.shards.unwrap_or(wanted))?,
        };
        *running = Arc::downgrade(&all);
        let first = self.next_first.fetch_add(1, Relaxed) % all.count();
        let own = all.part(first, wanted.min(all.count()));
        Ok(ArrayShards { all, own })
    }

    /// What requests of NBD clients hold together.
    pub(super) fn requests(&self) -> (ServerOptions, Arc<RequestMemory>) {
        (request_options(), Arc::clone(&self.requests))
    }

    fn start(&self, count: usize) -> Result<Arc<Shards>, Failure> {
        let busy_poll = if self.poll { POLL } else { Duration::ZERO };
        let buffers = BufferOptions::within(MemoryLimit::of_this_process(), count);
        let options = ShardOptions { busy_poll, buffers, abort_on_panic: true, ..ShardOptions::default() };
        let started = Shards::start(count, &options, |_| {});
        let failed = |error| Failure::new(ExitKind::IoError, format!("cannot start {count} shards: {error}"));
        started.map(Arc::new).map_err(failed)
    }
}

impl ArrayShards {
    /// Gives them back. Those that no array has any more end.
    ///
    /// # Errors
    /// One had ended by a panic.
    pub(super) fn give_back(self) -> Result<(), Failure> {
        let last = Arc::try_unwrap(self.all).ok();
        let panicked = last.and_then(|shards| shards.stop().err());
        panicked.map_or(Ok(()), |panic| Err(Failure::new(ExitKind::Internal, panic.to_string())))
    }
}

impl Deref for ArrayShards {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.own
    }
}

/// As many as cores, up to a limit.
pub fn shards_default() -> usize {
    thread::available_parallelism().map_or(1, |cores| cores.get().min(SHARDS_DEFAULT_MAX))
}

fn request_options() -> ServerOptions {
    ServerOptions::default().within(MemoryLimit::of_this_process())
}
