//! The socket to which one virtual machine at a time connects.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

use crossbeam::channel::{Receiver, RecvTimeoutError, bounded};
use engine::volume::{Volume, VolumeInfo};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::net::{SocketFlags, accept_with};
use vhost::vhost_user::{BackendReqHandler, Error as VhostError};

use super::frontend::{Device, Frontend};
use super::request::SERIAL_BYTES;
use super::ring::serve;
use crate::shard::{Handle, ShardContext};
use crate::socket::{SocketAccess, SocketName, listen};

/// How long a machine that connects waits for one that is just leaving.
const LEAVING_LIMIT: Duration = Duration::from_secs(5);

/// Connections that wait to be accepted.
const BACKLOG: i32 = 8;

/// A volume as a device of a virtual machine.
pub struct Server {
    path: PathBuf,
    state: Arc<State>,
    stop: Arc<OwnedFd>,
    /// Ends when the server has.
    ended: Receiver<()>,
}

/// What the server's threads share.
#[derive(Default)]
struct State {
    stopping: AtomicBool,
    /// The machine that is connected, as a way to cut it off.
    connected: Mutex<Option<UnixStream>>,
    errors: Arc<AtomicU64>,
}

/// What a device shows of itself.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Size and units.
    pub info: VolumeInfo,
    /// Serial number, as `/sys/block/vda/serial` shows it.
    pub serial: [u8; SERIAL_BYTES],
}

impl Server {
    /// Listens at `path` for those with `access`. `open` opens the volume on a shard; the rings of a machine are spread over all
    /// of them.
    ///
    /// # Errors
    /// What the system says; `AddrInUse` if another server listens there.
    pub fn start<V: Volume>(
        path: &Path,
        access: SocketAccess,
        shards: &Handle,
        identity: Identity,
        open: impl Fn(&ShardContext) -> Rc<V> + Clone + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let (name, listener) = listen(path, access, BACKLOG)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let state = Arc::new(State::default());
        let (shards, count) = (shards.clone(), shards.count());
        let device = Device {
            path: path.to_owned(),
            info: identity.info,
            serial: identity.serial,
            start: Box::new(move |setup| {
                let open = open.clone();
                let shard = usize::from(setup.index) % count;
                shards.spawn_on(shard, move |context| async move {
                    let volume = open(&context);
                    serve(context, volume, setup).await;
                });
            }),
            errors: Arc::clone(&state.errors),
        };
        let (ends, ended) = bounded::<()>(0);
        let accepting = Accepting { name, listener, stop: Arc::clone(&stop), state: Arc::clone(&state) };
        let device = Arc::new(device);
        thread::Builder::new().name("vhost-user".into()).spawn(move || {
            accepting.run(&device);
            drop(ends);
        })?;
        Ok(Server { path: path.to_owned(), state, stop, ended })
    }

    /// Where machines connect to.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether a machine is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.state.connected.lock().is_some()
    }

    /// Requests that were answered with an error.
    #[must_use]
    pub fn errors(&self) -> u64 {
        self.state.errors.load(Relaxed)
    }

    /// Cuts the machine off, after what it has under way but no later than the limit, and ends.
    pub fn stop(&self, limit: Duration) {
        self.state.stopping.store(true, SeqCst);
        let _full_is_as_good = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        self.state.cut_off();
        let _or_out_of_time = self.ended.recv_timeout(limit);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop(Duration::ZERO);
    }
}

impl State {
    /// The machine has closed its connection, and its rings may still be ending.
    fn is_leaving(&self) -> bool {
        let connected = self.connected.lock();
        let Some(stream) = &*connected else { return true };
        let mut polled = [PollFd::new(stream, PollFlags::RDHUP)];
        let _or_interrupted = poll(&mut polled, Some(&Timespec::default()));
        !polled[0].revents().is_empty()
    }

    fn cut_off(&self) {
        if let Some(stream) = &*self.connected.lock() {
            let _gone_already = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

/// Takes connections, one at a time.
struct Accepting {
    /// Before the listener: the file goes first.
    name: SocketName,
    listener: OwnedFd,
    stop: Arc<OwnedFd>,
    state: Arc<State>,
}

impl Accepting {
    fn run(self, device: &Arc<Device>) {
        let mut before: Option<Receiver<()>> = None;
        while let Some(connection) = self.next() {
            let is_free = before.as_ref().is_none_or(|ended| {
                // A machine that was killed and started again connects while its old rings end.
                let limit = if self.state.is_leaving() { LEAVING_LIMIT } else { Duration::ZERO };
                ended.recv_timeout(limit) == Err(RecvTimeoutError::Disconnected)
            });
            if !is_free {
                tracing::warn!(
                    path = %self.name.path().display(),
                    "a virtual machine was turned away: another one has this device; give each its own array"
                );
                continue;
            }
            before = self.serve(connection, device);
        }
        self.state.cut_off();
        if let Some(ended) = before {
            let _ended = ended.recv();
        }
    }

    /// The next connection; none: the server stops.
    fn next(&self) -> Option<UnixStream> {
        loop {
            let mut polled =
                [PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&*self.stop, PollFlags::IN)];
            let _or_interrupted = poll(&mut polled, None);
            if self.state.stopping.load(SeqCst) {
                return None;
            }
            if polled[0].revents().is_empty() {
                continue;
            }
            match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(connection) => return Some(connection.into()),
                Err(error) => tracing::debug!(%error, "a virtual machine could not connect"),
            }
        }
    }

    /// Serves a connection on a thread of its own. The receiver ends with it.
    fn serve(&self, connection: UnixStream, device: &Arc<Device>) -> Option<Receiver<()>> {
        let Ok(own) = connection.try_clone() else { return None };
        *self.state.connected.lock() = Some(own);
        let (state, device) = (Arc::clone(&self.state), Arc::clone(device));
        let path = self.name.path().to_owned();
        let (ends, ended) = bounded::<()>(0);
        let serve = move || {
            let frontend = Arc::new(std::sync::Mutex::new(Frontend::new(device)));
            tracing::info!(path = %path.display(), "a virtual machine has connected");
            handle(BackendReqHandler::from_stream(connection, Arc::clone(&frontend)), &path);
            *state.connected.lock() = None;
            frontend.lock().unwrap_or_else(std::sync::PoisonError::into_inner).stop_all();
            tracing::info!(path = %path.display(), "the virtual machine has gone");
            drop(ends);
        };
        match thread::Builder::new().name("vhost-user-vm".into()).spawn(serve) {
            Ok(_) => Some(ended),
            Err(error) => {
                tracing::warn!(path = %self.name.path().display(), %error, "a virtual machine cannot be served");
                *self.state.connected.lock() = None;
                None
            }
        }
    }
}

/// Handles messages until the connection ends.
fn handle(mut requests: BackendReqHandler<std::sync::Mutex<Frontend>>, path: &Path) {
    loop {
        match requests.handle_request() {
            Ok(()) => {}
            Err(VhostError::Disconnected | VhostError::SocketBroken(_) | VhostError::PartialMessage) => {
                return;
            }
            // The frontend has been told, if it asked to be.
            Err(
                error @ (VhostError::ReqHandlerError(_)
                | VhostError::InvalidOperation(_)
                | VhostError::InvalidParam),
            ) => {
                tracing::warn!(path = %path.display(), %error, "a request of a virtual machine is refused");
            }
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the connection of a virtual machine is closed");
                return;
            }
        }
    }
}
