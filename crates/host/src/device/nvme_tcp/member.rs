//! A namespace on another machine that is open as a member, for all shards.
//!
//! A thread of its own, the keeper, has the association: it connects, reserves, keeps alive, looks whether the namespace is
//! still what it was, and connects again when the association is lost. Shards have I/O queues of the association and only move
//! data.
//!
//! Invariants:
//! - Nothing is sent to the target after an association is lost before the commands of that association have ended: the next
//!   one preempts the former's key, and the target answers that when they have (F-I4). Without reservations the keeper waits
//!   until no command may run any more.
//! - F-I7: a fenced member says so for ever; the engine fails no member for it.
//! - F-I17: a write that was answered and not flushed may be gone with the target's machine. Then the member is gone, too, and
//!   comes back only by a re-add.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use engine::device::DeviceInfo;
use engine::fabric::epochs::Epochs;
use engine::fabric::host::Attach;
use engine::fabric::ledger::Listed;
use engine::fabric::order::PeerIndex;
use nvme_tcp::vendor::LedgerReport;
use parking_lot::{Condvar, Mutex};

use super::address::RemoteAddress;
use super::association::{Association, AttachError};
use super::controller::Namespace;
use super::fencing::{Holder, OwnKeys};
use super::host_lock::HostLock;
use super::options::RemoteOptions;
use super::port::Port;

/// What happened to a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RemoteEvent {
    /// Its association is lost; the keeper connects again.
    Away {
        /// Why.
        reason: String,
    },
    /// It is connected again.
    Back {
        /// How long it was away.
        after: Duration,
    },
    /// Another host has taken it over.
    Fenced {
        /// Which, and how it is known.
        reason: String,
    },
    /// It cannot be used any more as it is.
    Ended {
        /// Why.
        reason: String,
    },
}

/// Receives what happens.
pub type Listener = Box<dyn Fn(&str, RemoteEvent) + Send + Sync>;

/// Whether a member is connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RemoteState {
    /// It is.
    Connected,
    /// It is not; the keeper tries.
    Away,
    /// Another host has taken it over.
    Fenced,
    /// It is not used any more.
    Ended,
}

/// A member as `status` shows it.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct RemoteStatus {
    /// Address and port.
    pub address: String,
    /// The subsystem.
    pub nqn: String,
    /// The namespace.
    pub namespace: u32,
    /// Whether it is connected.
    pub state: RemoteState,
    /// Whether a reservation keeps other hosts away.
    pub reserved: bool,
    /// Whether all that is sent to it is under TLS.
    #[serde(default)]
    pub tls: bool,
    /// How long its target took to answer the last keep-alive.
    pub round_trip_us: Option<u64>,
    /// Operations in flight, on all shards.
    pub in_flight: u64,
    /// A member that does not answer for so long fails.
    pub time_limit_ms: u64,
    /// How often it was connected again.
    pub reconnects: u64,
    /// The last thing that went wrong.
    pub last_error: Option<String>,
    /// If its target makes parity together with others: other members whose targets its target does not reach. Parity with
    /// these is made at this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unreached_targets: Option<u32>,
    /// The same: bytes of its target's memory that this host is given for parity made there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credit_bytes: Option<u64>,
    /// What of these is taken now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credit_taken_bytes: Option<u64>,
    /// Bytes sent to its target, with all headers of NVMe/TCP.
    #[serde(default)]
    pub sent_bytes: u64,
    /// Bytes received from it, likewise.
    #[serde(default)]
    pub received_bytes: u64,
}

/// How a member ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum End {
    Not = 0,
    Gone = 1,
    Fenced = 2,
}

/// Sizes and abilities that a shard's queue works with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub block_log2: u8,
    pub transfer_bytes_max: u64,
    pub write_zeroes: bool,
    pub dataset_management: bool,
    pub volatile_cache: bool,
}

/// What tells namespaces apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub uuid: Option<[u8; 16]>,
    pub nguid: [u8; 16],
    pub eui64: [u8; 8],
}

/// An open member on another machine.
pub struct RemoteMember {
    pub(super) address: RemoteAddress,
    pub(super) options: RemoteOptions,
    pub(super) info: DeviceInfo,
    pub(super) shape: Shape,
    pub(super) identity: Identity,
    /// The association, for the keeper and for one-off reads and writes. None while it is lost.
    pub(super) association: Mutex<Option<Association>>,
    pub(super) state: Mutex<State>,
    pub(super) changed: Condvar,
    /// The association that shards may send on; 0: none.
    pub(super) up: AtomicU64,
    ended: AtomicU8,
    /// Writes that were answered and not with FUA, and those of them that a flush has made durable.
    written: AtomicU64,
    flushed: AtomicU64,
    pub(super) in_flight: AtomicU64,
    /// By the queues of shards.
    pub(super) sent_bytes: AtomicU64,
    pub(super) received_bytes: AtomicU64,
    listener: Mutex<Option<Listener>>,
    /// The host that had the member before, and was preempted.
    pub(super) preempted: Option<Holder>,
    pub(super) is_reserved: AtomicBool,
    is_refused: AtomicBool,
    lock: Mutex<Option<HostLock>>,
    /// Its place among the members whose targets work together.
    pub(super) seat: OnceLock<Seat>,
}

/// The place of a member among those of its array whose targets work together.
pub(super) struct Seat {
    pub attach: Arc<Attach>,
    pub index: PeerIndex,
    /// The array's writes that are under way: each change says in which epoch it is sent.
    pub epochs: Option<Arc<Epochs>>,
    /// The association on which its target knows all the others; 0: none.
    pub ready: AtomicU64,
    /// The key of that association.
    pub key: AtomicU64,
    /// Other members whose targets its target does not reach.
    pub unreached: AtomicU32,
}

/// What the keeper and the shards share.
#[derive(Default)]
pub(super) struct State {
    pub ports: Vec<Arc<Port>>,
    /// To end the connections of the association from any thread.
    pub sockets: Vec<OwnedFd>,
    /// Why the association is lost, until the keeper has taken note of it.
    pub lost: Option<String>,
    pub key: Option<u64>,
    /// Of a member that has ended: under which its reservation was left, for this process to take it back.
    pub kept_keys: Option<OwnKeys>,
    pub away_since: Option<Instant>,
    pub reconnects: u64,
    pub round_trip: Option<Duration>,
    pub last_error: Option<String>,
    pub stopping: bool,
}

/// What a member that has ended left for this process to take it back.
pub(super) struct Kept {
    /// Of its reservation.
    pub own: OwnKeys,
    pub lock: Option<HostLock>,
}

/// What a member is opened with.
pub(super) struct Opened {
    pub address: RemoteAddress,
    pub options: RemoteOptions,
    pub info: DeviceInfo,
    pub shape: Shape,
    pub identity: Identity,
    pub lock: Option<HostLock>,
}

impl RemoteMember {
    pub(super) fn new(opened: Opened, association: Association) -> std::io::Result<Arc<Self>> {
        let Opened { address, options, info, shape, identity, lock } = opened;
        let state = State { sockets: association.handles()?, key: association.key, ..State::default() };
        Ok(Arc::new(RemoteMember {
            address,
            options,
            info,
            shape,
            identity,
            preempted: association.preempted,
            is_reserved: AtomicBool::new(association.key.is_some()),
            is_refused: AtomicBool::new(false),
            association: Mutex::new(Some(association)),
            state: Mutex::new(state),
            changed: Condvar::new(),
            up: AtomicU64::new(1),
            ended: AtomicU8::new(End::Not as u8),
            written: AtomicU64::new(0),
            flushed: AtomicU64::new(0),
            in_flight: AtomicU64::new(0),
            sent_bytes: AtomicU64::new(0),
            received_bytes: AtomicU64::new(0),
            listener: Mutex::new(None),
            lock: Mutex::new(lock),
            seat: OnceLock::new(),
        }))
    }

    /// Size and abilities.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// Where it is.
    pub fn address(&self) -> &RemoteAddress {
        &self.address
    }

    /// The host from which it was taken over, if one had it.
    pub fn taken_from(&self) -> Option<Holder> {
        self.preempted
    }

    /// A number that is the same for every name of the same namespace.
    pub fn identity(&self) -> (u64, u64) {
        self.identity.number(&self.address)
    }

    /// Has this called with all that happens.
    pub fn listen(&self, listener: Listener) {
        *self.listener.lock() = Some(listener);
    }

    /// Whether its target can be sent commands now.
    pub(crate) fn is_connected(&self) -> bool {
        self.end() == End::Not && !self.is_lost()
    }

    /// Whether it is connected, or its keeper tries to.
    pub(crate) fn is_usable(&self) -> bool {
        self.end() == End::Not
    }

    /// How it is.
    pub fn status(&self) -> RemoteStatus {
        let state = self.state.lock();
        let is_up = self.up.load(Ordering::SeqCst) != 0;
        let credit = self.ready_seat().map(|seat| seat.attach.credit(seat.index));
        RemoteStatus {
            address: self.address.portal.to_string(),
            nqn: self.address.nqn.to_string(),
            namespace: self.address.namespace,
            state: match self.end() {
                End::Fenced => RemoteState::Fenced,
                End::Gone => RemoteState::Ended,
                End::Not if is_up => RemoteState::Connected,
                End::Not => RemoteState::Away,
            },
            reserved: self.is_reserved.load(Ordering::SeqCst),
            tls: self.options.tls_key.is_some(),
            round_trip_us: state.round_trip.map(|time| time.as_micros() as u64),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            time_limit_ms: self.options.time_limit.as_millis() as u64,
            reconnects: state.reconnects,
            last_error: state.last_error.clone(),
            unreached_targets: self.ready_seat().map(|seat| seat.unreached.load(Ordering::Relaxed)),
            credit_bytes: credit.map(|credit| credit.given()),
            credit_taken_bytes: credit.map(|credit| credit.taken()),
            sent_bytes: self.sent_bytes.load(Ordering::Relaxed),
            received_bytes: self.received_bytes.load(Ordering::Relaxed),
        }
    }

    /// Reads for a one-off command: any range, beside the shards.
    ///
    /// # Errors
    /// What the target or the connection says.
    pub fn read(&self, offset: u64, bytes: usize) -> std::io::Result<Vec<u8>> {
        let end = (offset + bytes as u64).min(self.info.size_bytes);
        if offset >= end {
            return Ok(Vec::new());
        }
        self.with_association(|association| read_any(association, offset, end))
    }

    /// Writes for a one-off command. What is written only in part is read before.
    ///
    /// # Errors
    /// As [`RemoteMember::read`].
    pub fn write(&self, offset: u64, data: &[u8]) -> std::io::Result<()> {
        if data.is_empty() {
            return Ok(());
        }
        if offset + data.len() as u64 > self.info.size_bytes {
            return Err(std::io::Error::new(
                std::io::ErrorKind::InvalidInput,
                "beyond the end of the namespace",
            ));
        }
        self.with_association(|association| {
            let unit = 1u64 << association.namespace.info.block_log2;
            let (start, end) = (offset / unit * unit, (offset + data.len() as u64).next_multiple_of(unit));
            let mut whole = vec![0; (end - start) as usize];
            let at = (offset - start) as usize;
            if whole.len() != data.len() {
                association.read(start, &mut whole)?;
            }
            whole[at..at + data.len()].copy_from_slice(data);
            association.write(start, &whole)
        })
    }

    /// Makes what one-off commands have written durable.
    ///
    /// # Errors
    /// As [`RemoteMember::read`].
    pub fn sync(&self) -> std::io::Result<()> {
        self.with_association(Association::flush)
    }

    /// What its target has recorded of its former host: what that had under way. None: nothing that is complete.
    pub fn ledger(&self) -> Option<Listed> {
        let report = self.with_association(|association| match association.takes_orders() {
            true => association.ledger().map_err(std::io::Error::other),
            false => Ok(LedgerReport::NONE),
        });
        let report = report.unwrap_or_else(|error| {
            tracing::warn!(member = self.info.name, "its target does not say what it has recorded of the former host, so a resync is due if that one died: {error}");
            LedgerReport::NONE
        });
        let bytes = |blocks: Range<u64>| {
            let at = |block: u64| block.saturating_mul(self.info.logical_block_bytes.into());
            at(blocks.start)..at(blocks.end)
        };
        let LedgerReport { id, area, ranges } = report;
        (id != 0).then(|| Listed { id, area: bytes(area), ranges: ranges.into_iter().map(bytes).collect() })
    }

    fn with_association<T>(
        &self,
        work: impl FnOnce(&mut Association) -> std::io::Result<T>,
    ) -> std::io::Result<T> {
        match &mut *self.association.lock() {
            Some(association) => work(association),
            None => Err(std::io::Error::new(std::io::ErrorKind::NotConnected, "its target is not connected")),
        }
    }
}

/// Reads any range, in whole blocks.
pub(super) fn read_any(association: &mut Association, offset: u64, end: u64) -> std::io::Result<Vec<u8>> {
    let unit = 1u64 << association.namespace.info.block_log2;
    let start = offset / unit * unit;
    let mut whole = vec![0; (end.next_multiple_of(unit) - start) as usize];
    association.read(start, &mut whole)?;
    whole.drain(..(offset - start) as usize);
    whole.truncate((end - offset) as usize);
    Ok(whole)
}

/// What shards tell and ask.
impl RemoteMember {
    /// How it ended, if it has.
    pub(super) fn end(&self) -> End {
        match self.ended.load(Ordering::SeqCst) {
            0 => End::Not,
            1 => End::Gone,
            _ => End::Fenced,
        }
    }

    /// Whether shards may send on this association.
    pub(super) fn is_up(&self, association: u64) -> bool {
        self.up.load(Ordering::SeqCst) == association
    }

    /// An association is lost: nothing more is sent on it, and the keeper connects again.
    pub(super) fn lose(&self, association: u64, reason: &str) {
        if self.up.compare_exchange(association, 0, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return;
        }
        let mut state = self.state.lock();
        for socket in state.sockets.drain(..) {
            let _ = rustix::net::shutdown(&socket, rustix::net::Shutdown::Both);
        }
        state.away_since = Some(Instant::now());
        state.last_error = Some(reason.to_owned());
        state.lost = Some(reason.to_owned());
        self.changed.notify_all();
    }

    /// The target refused a command because of a reservation: another host has the member. The keeper asks which, and then the
    /// member ends: before that no operation fails, so that the first word of it names that host.
    pub(super) fn conflict(&self, association: u64) {
        self.is_refused.store(true, Ordering::SeqCst);
        self.lose(association, "a command was refused: another host has reserved the member");
    }

    /// Whether its target has refused a command because of a reservation.
    pub(super) fn is_refused(&self) -> bool {
        self.is_refused.load(Ordering::SeqCst)
    }

    /// The member is not used any more.
    pub(super) fn finish(&self, end: End, reason: &str) {
        self.ended.fetch_max(end as u8, Ordering::SeqCst);
        self.state.lock().last_error = Some(reason.to_owned());
        let up = self.up.load(Ordering::SeqCst);
        if up != 0 {
            self.lose(up, reason);
        }
    }

    /// Its place among the members whose targets work together, while its target is attached.
    pub(super) fn ready_seat(&self) -> Option<&Seat> {
        self.ready_key().and_then(|_| self.seat.get())
    }

    /// The array's writes that are under way, if targets may record them.
    pub(super) fn epochs(&self) -> Option<&Epochs> {
        self.seat.get()?.epochs.as_deref()
    }

    /// Under which its target knows the attach, while it is attached.
    pub(super) fn ready_key(&self) -> Option<u64> {
        let seat = self.seat.get()?;
        let (ready, key) = (seat.ready.load(Ordering::SeqCst), seat.key.load(Ordering::SeqCst));
        // Each association has a key of its own: as long as it is this one, so is its key.
        let is_still = ready == seat.ready.load(Ordering::SeqCst);
        (ready != 0 && is_still && self.is_up(ready)).then_some(key)
    }

    /// A shard has a queue of its own from now on.
    pub(super) fn register(&self, port: &Arc<Port>) {
        let mut state = self.state.lock();
        state.ports.retain(|port| !port.is_closed());
        state.ports.push(Arc::clone(port));
        self.changed.notify_all();
    }

    /// A write was answered that is not durable yet. Called before it is acknowledged.
    pub(super) fn note_written(&self) {
        self.written.fetch_add(1, Ordering::SeqCst);
    }

    /// The keys and the lock of a member that has ended and that this process takes back.
    pub(super) fn take_kept(&self) -> Option<Kept> {
        let own = self.state.lock().kept_keys.take()?;
        Some(Kept { own, lock: self.lock.lock().take() })
    }

    /// It was not taken back yet.
    pub(super) fn keep(&self, kept: Kept) {
        *self.lock.lock() = kept.lock;
        self.state.lock().kept_keys = Some(kept.own);
    }

    /// Whether it has no association.
    pub(super) fn is_lost(&self) -> bool {
        self.up.load(Ordering::SeqCst) == 0
    }

    /// When an operation that begins now fails. A member that was away for longer than its limit holds nothing up any more.
    pub(super) fn deadline(&self) -> Instant {
        let from = if self.is_lost() { self.state.lock().away_since } else { None };
        from.unwrap_or_else(Instant::now) + self.options.time_limit
    }

    /// What a flush that is sent now will cover.
    pub(super) fn before_flush(&self) -> u64 {
        self.written.load(Ordering::SeqCst)
    }

    /// A flush was answered on the association that the writes before it were known to have survived.
    pub(super) fn note_flushed(&self, covered: u64) {
        self.flushed.fetch_max(covered, Ordering::SeqCst);
    }

    /// Whether answered writes may be gone with the target's memory.
    pub(super) fn has_unflushed(&self) -> bool {
        self.shape.volatile_cache && self.flushed.load(Ordering::SeqCst) < self.written.load(Ordering::SeqCst)
    }

    /// Tells the listener, or the log if there is none.
    pub(super) fn tell(&self, event: RemoteEvent) {
        if let Some(listener) = &*self.listener.lock() {
            return listener(&self.info.name, event);
        }
        match &event {
            RemoteEvent::Away { reason } => {
                tracing::warn!(member = self.info.name, "connection lost: {reason}");
            }
            RemoteEvent::Back { after } => {
                tracing::info!(member = self.info.name, seconds = after.as_secs_f32(), "connected again");
            }
            RemoteEvent::Fenced { reason } => {
                tracing::error!(member = self.info.name, "fenced: {reason}; this host writes nothing more");
            }
            RemoteEvent::Ended { reason } => {
                tracing::error!(member = self.info.name, "not used any more: {reason}");
            }
        }
    }

    /// Whether its target shows that the array is still this host's. It is asked: a host that slept remembers what is no longer
    /// so, and would take back from a host that took over and left.
    pub(super) fn is_held(&self) -> bool {
        let may_be = self.end() == End::Not && !self.is_lost() && self.is_reserved.load(Ordering::SeqCst);
        may_be && self.association.lock().as_mut().is_some_and(|own| own.still_holds().unwrap_or(false))
    }

    /// Ends the keeper. Called when the last handle goes.
    pub(super) fn stop(&self) {
        self.state.lock().stopping = true;
        self.changed.notify_all();
    }
}

impl Identity {
    /// That of a namespace as its target tells of it.
    pub(super) fn of(namespace: &Namespace) -> Identity {
        Identity { uuid: namespace.uuid, nguid: namespace.info.nguid, eui64: namespace.info.eui64 }
    }

    /// A number for it: of what the target tells, or of the address.
    pub(super) fn number(&self, address: &RemoteAddress) -> (u64, u64) {
        let text = match self {
            Identity { uuid: Some(uuid), .. } => uuid.to_vec(),
            Identity { nguid, .. } if *nguid != [0; 16] => nguid.to_vec(),
            Identity { eui64, .. } if *eui64 != [0; 8] => eui64.to_vec(),
            Identity { .. } => address.to_string().into_bytes(),
        };
        let digest = nvme_tcp::HashFunction::Sha256.digest(&text);
        (u64::MAX - 2, u64::from_le_bytes(digest[..8].try_into().expect("8 bytes")))
    }

    /// In words, for a message that compares two.
    pub(super) fn words(&self) -> String {
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        match self {
            Identity { uuid: Some(uuid), .. } => format!("UUID {}", hex(uuid)),
            Identity { nguid, .. } if *nguid != [0; 16] => format!("NGUID {}", hex(nguid)),
            Identity { eui64, .. } if *eui64 != [0; 8] => format!("EUI64 {}", hex(eui64)),
            Identity { .. } => "no identifier".into(),
        }
    }
}

/// Whether an attach failed in a way that a further attempt may get past.
pub(super) fn may_pass(error: &AttachError) -> bool {
    match error {
        AttachError::Connect(error) => error.may_pass(),
        AttachError::Race | AttachError::Io(_) => true,
        AttachError::Taken(_)
        | AttachError::Lost
        | AttachError::NoReservations
        | AttachError::Changed(_)
        | AttachError::Blocks(_)
        | AttachError::Report(_) => false,
    }
}
