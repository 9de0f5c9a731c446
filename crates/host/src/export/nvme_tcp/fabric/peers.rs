//! Connections to other targets, as a host of theirs without a reservation.
//!
//! A peer is a subsystem at an address: attaches that name the same one share its connection. It is connected in the background
//! and again whenever it is lost, as long as an attach names it. Each shard that sends has a queue of its own.
//!
//! Invariants:
//! - F-I2: a contribution is sent once at most. One whose connection is lost may or may not have been added; its op is settled.

use nvme_tcp::status::Status;
use parking_lot::{Condvar, Mutex};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use engine::buffer::Gather;
use nvme_tcp::command::Sqe;

use super::within::within;
use crate::device::nvme_tcp::{
    Attached, RemoteAddress, RemoteDevice, RemoteOptions, Sent, VendorCommand, VendorReply,
};
use crate::shard::ShardContext;

/// Waits between two attempts to connect for the first time: the first, and the longest.
const RETRY_MIN: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
/// Between two looks at whether a connection that is up still is one.
const LOOK: Duration = Duration::from_millis(500);
/// A contribution's own limit is the op's. This one ends a connection whose target answers nothing at all.
const SILENCE_MAX: Duration = Duration::from_secs(120);

static NEXT_SERIAL: AtomicU64 = AtomicU64::new(0);

/// The peers of a server.
#[derive(Default)]
pub(in super::super) struct Peers {
    options: OnceLock<RemoteOptions>,
    known: Mutex<Vec<Weak<Peer>>>,
}

impl Peers {
    /// How peers are connected to from now on: under whose name, and by which secret. False: that is known already.
    pub fn set_options(&self, options: RemoteOptions) -> bool {
        let options = RemoteOptions {
            time_limit: SILENCE_MAX,
            // F-I11: a flipped bit would be added up and written as parity.
            header_digest: true,
            data_digest: true,
            ..options
        };
        self.options.set(options).is_ok()
    }

    /// The peer at an address, which is connected to in the background. None: this server connects to no peers.
    pub(super) fn connect(&self, address: &RemoteAddress) -> io::Result<Option<Arc<Peer>>> {
        let Some(options) = self.options.get() else { return Ok(None) };
        let mut known = self.known.lock();
        known.retain(|peer| peer.strong_count() > 0);
        let is_it = |peer: &Arc<Peer>| {
            let other = &peer.connection.address;
            (&other.portal, &other.nqn) == (&address.portal, &address.nqn)
        };
        if let Some(peer) = known.iter().filter_map(Weak::upgrade).find(is_it) {
            return Ok(Some(peer));
        }
        let peer = Peer::start(address, options)?;
        known.push(Arc::downgrade(&peer));
        Ok(Some(peer))
    }
}

/// Another target. Its connection ends with the last attach that names it.
pub(super) struct Peer {
    connection: Arc<Connection>,
}

/// What a peer's thread and the shards share.
struct Connection {
    serial: u64,
    address: RemoteAddress,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    attached: Option<Arc<Attached>>,
    is_over: bool,
}

impl Drop for Peer {
    fn drop(&mut self) {
        self.connection.state.lock().is_over = true;
        self.connection.changed.notify_all();
    }
}

impl Peer {
    fn start(address: &RemoteAddress, options: &RemoteOptions) -> io::Result<Arc<Peer>> {
        let connection = Arc::new(Connection {
            serial: NEXT_SERIAL.fetch_add(1, Ordering::Relaxed),
            address: address.clone(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let (kept, options) = (Arc::clone(&connection), options.clone());
        std::thread::Builder::new().name("twill-peer".to_owned()).spawn(move || keep(&kept, &options))?;
        Ok(Arc::new(Peer { connection }))
    }

    /// Whether contributions reach it now.
    pub fn is_up(&self) -> bool {
        self.connection.up().is_some()
    }

    /// Sends a contribution once, and returns its status. None: it is not there, or did not answer within the limit.
    pub async fn send(
        &self,
        shard: &ShardContext,
        sqe: Sqe,
        data: Gather,
        limit: Duration,
    ) -> Option<Status> {
        let device = device_here(&self.connection, shard)?;
        let command = VendorCommand { sqe, data, bytes_in: 0, sent: Sent::Once, is_volatile: false };
        match within(&shard.ring, limit, device.send("peer", command)).await? {
            Ok(VendorReply::Completed(status, ..)) => Some(status),
            Ok(VendorReply::Away | VendorReply::NotSent) => None,
            Err(error) => {
                tracing::debug!(peer = %self.connection.address, %error, "a contribution was not taken");
                None
            }
        }
    }
}

impl Connection {
    fn up(&self) -> Option<Arc<Attached>> {
        self.state.lock().attached.clone().filter(|attached| attached.is_connected())
    }

    /// Whether this connection is the one that is used.
    fn uses(&self, attached: &Arc<Attached>) -> bool {
        let state = self.state.lock();
        !state.is_over && state.attached.as_ref().is_some_and(|now| Arc::ptr_eq(now, attached))
    }

    /// Waits. False: the connection is not wanted any more.
    fn pause(&self, time: Duration) -> bool {
        let mut state = self.state.lock();
        if !state.is_over {
            self.changed.wait_for(&mut state, time);
        }
        !state.is_over
    }
}

/// Connects, and connects anew when a connection has ended for good: the keeper of each does the rest.
fn keep(connection: &Connection, options: &RemoteOptions) {
    let (mut wait, mut has_told) = (RETRY_MIN, false);
    loop {
        let is_usable = connection.state.lock().attached.as_ref().is_some_and(|one| one.is_usable());
        if is_usable {
            if !connection.pause(LOOK) {
                break;
            }
            continue;
        }
        match Attached::open_peer(&connection.address, options) {
            Ok(attached) => {
                tracing::info!(peer = %connection.address, "connected to a peer");
                let former = connection.state.lock().attached.replace(attached);
                drop(former);
                (wait, has_told) = (RETRY_MIN, false);
            }
            Err(error) => {
                if !std::mem::replace(&mut has_told, true) {
                    tracing::warn!(peer = %connection.address, %error, "a peer cannot be reached; it is tried again");
                }
                if !connection.pause(wait) {
                    break;
                }
                wait = (wait * 2).min(RETRY_MAX);
            }
        }
    }
    let attached = connection.state.lock().attached.take();
    drop(attached);
}

thread_local! {
    /// The queues of this shard, by the serial number of their connection.
    static QUEUES: RefCell<BTreeMap<u64, (Arc<Attached>, RemoteDevice)>> = const { RefCell::new(BTreeMap::new()) };
}

/// This shard's queue to a peer that is up.
fn device_here(connection: &Arc<Connection>, shard: &ShardContext) -> Option<RemoteDevice> {
    let attached = connection.up()?;
    let serial = connection.serial;
    let known = QUEUES.with_borrow(|queues| {
        let (of, device) = queues.get(&serial)?;
        Arc::ptr_eq(of, &attached).then(|| device.clone())
    });
    if known.is_some() {
        return known;
    }
    let device = RemoteDevice::new(&attached, &shard.ring);
    let former =
        QUEUES.with_borrow_mut(|queues| queues.insert(serial, (Arc::clone(&attached), device.clone())));
    drop(former);
    let (watched, context) = (Arc::clone(connection), shard.clone());
    shard.executor.spawn(async move {
        // Its tasks would hold up the end of the shard, and keep a connection that no attach names any more.
        while watched.uses(&attached) && within(&context.ring, LOOK, context.stopping()).await.is_none() {}
        let ended = QUEUES.with_borrow_mut(|queues| {
            let is_it = queues.get(&serial).is_some_and(|(of, _)| Arc::ptr_eq(of, &attached));
            if is_it { queues.remove(&serial) } else { None }
        });
        drop(ended);
    });
    Some(device)
}
