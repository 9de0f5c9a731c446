//! The subsystems of a server: namespaces over volumes, and which hosts may connect.

use engine::volume::{Volume, VolumeInfo};
use nvme_tcp::command::io;
use nvme_tcp::discovery::{DiscoveryEntry, DiscoveryLog, SubsystemType};
use nvme_tcp::identify::{NamespaceFacts, WriteHints};
use nvme_tcp::names::{Host, Nqn};
use nvme_tcp::reservation::{Change, Reservations};
use nvme_tcp::status::Status;
use nvme_tcp::subsystem::{AllowList, NAMESPACE_ID_MAX, Subsystem, SubsystemFacts};
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::authenticator::{Authenticator, HostKeys};
use super::boot_id;
use super::connection_limits::{COMMANDS, IN_CAPSULE_BYTES, TRANSFER_LOG2};
use super::fabric::attach::Attaches;
use super::fabric::ledgers::Ledgers;
use super::fabric::peers::Peers;
use super::hearers::Hearers;
use super::namespace::Source;
use super::reservation_file::{KeptReservations, ReservationFile};
use super::running::Queues;
use crate::call::Call;
use crate::device::nvme_tcp::RemoteOptions;
use crate::keeper::Keeper;
use crate::shard::{Handle, ShardContext};
use crate::tls::acceptor::PskAcceptor;

/// I/O queues of a controller.
const QUEUES_MAX: u16 = 128;
/// Controllers of a subsystem.
const CONTROLLERS_MAX: u16 = 512;

/// Between two looks at whether commands at work have ended.
const LOOK: Duration = Duration::from_millis(1);

/// A subsystem to be served.
#[derive(Clone, Debug)]
pub struct NewSubsystem {
    /// Its name.
    pub nqn: Nqn,
    /// Its serial number, at most 20 ASCII characters.
    pub serial: String,
    /// Which hosts may connect: none, until they are named.
    pub allow: AllowList,
    /// What differs whenever one of its drives may have lost its cache though the machine did not restart (F-I17).
    pub drives: String,
    /// It takes orders of peer mode, and contributions of these targets; none: it takes none. Targets that are not allowed as
    /// hosts may send contributions and no more.
    pub peers: Option<AllowList>,
    /// Bytes of memory that an attach is given at each namespace, if it takes orders.
    pub peer_memory: u64,
}

/// A namespace to be served.
#[derive(Clone, Debug)]
pub struct NewNamespace {
    /// Its number, from 1.
    pub id: u32,
    /// Which namespace it is, for all time.
    pub uuid: [u8; 16],
}

/// Why a subsystem or namespace was not added.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubsystemError {
    /// There is one of that name.
    #[error("there is a subsystem {0} already")]
    Exists(Nqn),
    /// There is none of that name.
    #[error("there is no subsystem {0}")]
    Unknown(Nqn),
    /// The number is 0, too large, or taken; or there is no such namespace.
    #[error("namespace {0}: its number is taken, or that of none, or not in 1 to {NAMESPACE_ID_MAX}")]
    NamespaceId(u32),
    /// The blocks are none that hosts know.
    #[error("blocks of {0} bytes cannot be served")]
    BlockSize(u32),
    /// The system gives no thread that keeps reservations or checks keys.
    #[error("no thread can be started that keeps reservations or checks keys: {0}")]
    NoKeeper(std::io::ErrorKind),
    /// The shard that was to look at it has ended.
    #[error("the server is stopping")]
    Stopping,
}

/// The subsystems of a server.
#[derive(Default)]
pub struct Subsystems {
    table: RwLock<BTreeMap<Nqn, Arc<Entry>>>,
    /// Counts changes, for the discovery log page.
    changes: AtomicU64,
    /// None: no host has a secret.
    authenticator: Option<Arc<Authenticator>>,
    /// None: no host has a key of TLS.
    tls: Option<Arc<PskAcceptor>>,
    /// Discovery controllers.
    pub(super) hearers: Hearers,
    /// Other targets that attaches name.
    pub(super) peers: Peers,
}

/// One subsystem.
pub(super) struct Entry {
    state: Mutex<State>,
    /// Its queues, as far as commands of theirs are at work.
    pub queues: Queues,
    keeper: Keeper,
    /// Controllers whose hosts hear of namespaces that come, go and change.
    pub hearers: Hearers,
    /// Counts changes of what a command may do to a namespace, so that a queue looks only when there was one.
    epoch: AtomicU64,
    /// Which hosts may connect to use namespaces.
    hosts: AllowList,
    /// Which targets may send contributions; none: there is no fabric.
    peers: Option<AllowList>,
    /// Bytes that an attach of a namespace is given.
    pub peer_memory: u64,
    pub attaches: Arc<Attaches>,
    pub ledgers: Ledgers,
}

struct State {
    subsystem: Subsystem,
    served: BTreeMap<u32, Served>,
}

struct Served {
    source: Arc<dyn Source>,
    reservations: Arc<ReservationFile>,
}

/// A change of reservations that is durable and installed.
pub(super) struct Changed {
    pub change: Change,
    /// Commands that began before this epoch may not know of the change.
    pub epoch: u64,
}

impl Entry {
    /// Uses the subsystem for a moment.
    pub fn with<T>(&self, work: impl FnOnce(&mut Subsystem) -> T) -> T {
        work(&mut self.state.lock().subsystem)
    }

    /// Changes whenever what commands may do has changed.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::SeqCst)
    }

    /// A namespace, and whether `host` may read and write it now.
    pub fn admit(&self, host: &Host, id: u32) -> Result<Admitted, Status> {
        let state = self.state.lock();
        let verdict = |opcode| state.subsystem.admit(host, id, opcode).map(|_| ());
        let served = state.served.get(&id).ok_or(Status::INVALID_NAMESPACE)?;
        Ok(Admitted {
            source: Arc::clone(&served.source),
            read: verdict(io::READ),
            write: verdict(io::WRITE),
        })
    }

    /// Whether its namespaces take orders.
    pub fn has_fabric(&self) -> bool {
        self.peers.is_some()
    }

    /// Whether a target may send contributions.
    pub fn allows_peer(&self, nqn: &Nqn) -> bool {
        self.peers.as_ref().is_some_and(|peers| peers.allows(nqn))
    }

    /// Whether it may do that and no more.
    pub fn is_peer_only(&self, nqn: &Nqn) -> bool {
        !self.hosts.allows(nqn) && self.allows_peer(nqn)
    }

    /// Whether `host` may attach a namespace under a key: it may write, and if the namespace is reserved, the key is its own.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn may_attach(&self, host: &Host, id: u32, key: u64) -> Result<Arc<dyn Source>, Status> {
        let admitted = self.admit(host, id)?;
        admitted.write?;
        let is_own =
            self.with(|one| one.namespace(id).is_some_and(|one| is_key(one.reservations(), host, key)));
        if is_own { Ok(admitted.source) } else { Err(Status::RESERVATION_CONFLICT) }
    }

    /// Ends the attach of a namespace if its host has lost its right (F-I6).
    pub fn review_attaches(&self, id: u32) {
        self.attaches.end_unless(id, |host, key| self.may_attach(host, id, key).is_ok());
    }

    /// Changes the reservations of a namespace: decided, written, installed (F-I9), by the keeper's thread and so one after the
    /// other.
    pub fn change(
        self: &Arc<Self>,
        id: u32,
        decide: impl FnOnce(&Subsystem) -> Result<Change, Status> + Send + 'static,
    ) -> Call<Result<Changed, Status>> {
        let entry = Arc::clone(self);
        self.keeper.call(move || entry.change_now(id, decide))
    }

    fn change_now(
        &self,
        id: u32,
        decide: impl FnOnce(&Subsystem) -> Result<Change, Status>,
    ) -> Result<Changed, Status> {
        let (change, file) = {
            let state = self.state.lock();
            let served = state.served.get(&id).ok_or(Status::INVALID_NAMESPACE)?;
            (decide(&state.subsystem)?, Arc::clone(&served.reservations))
        };
        let synced = match change.must_be_durable {
            false => None,
            true => Some(file.replace(change.next()).map_err(|error| {
                let path = file.path().display();
                tracing::error!(%path, %error, "a change of reservations cannot be kept, so the host gets an error");
                Status::INTERNAL_ERROR
            })?),
        };
        let mut state = self.state.lock();
        state.subsystem.install(id, &change, synced.as_ref());
        // F-I6: with the state locked, so that a queue which sees the new epoch sees the new state.
        let epoch = self.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(Changed { change, epoch })
    }
}

/// A namespace, and what a host may do with it.
pub(super) struct Admitted {
    pub source: Arc<dyn Source>,
    pub read: Result<(), Status>,
    pub write: Result<(), Status>,
}

impl Subsystems {
    /// No subsystems yet, for hosts of which those with a secret have to authenticate, and those with a key to use TLS.
    ///
    /// # Errors
    /// [`SubsystemError::NoKeeper`].
    pub fn with_keys(keys: HostKeys) -> Result<Self, SubsystemError> {
        let no_keeper = |error: std::io::Error| SubsystemError::NoKeeper(error.kind());
        let mut subsystems = Subsystems::default();
        if !keys.tls.is_empty() {
            let started = PskAcceptor::start(keys.tls.clone()).map_err(no_keeper)?;
            subsystems.tls = Some(Arc::new(started));
        }
        if !keys.hosts.is_empty() {
            let started = Authenticator::start(keys).map_err(no_keeper)?;
            subsystems.authenticator = Some(Arc::new(started));
        }
        Ok(subsystems)
    }

    /// By what hosts use TLS; none: no host has a key.
    pub(super) fn tls(&self) -> Option<&Arc<PskAcceptor>> {
        self.tls.as_ref()
    }

    /// Whether a host has to use TLS.
    pub(super) fn demands_tls(&self, host: &Nqn) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.demands_tls(host))
    }

    /// By what a host authenticates; none: it need not.
    pub(super) fn authenticator(&self, host: &Nqn) -> Option<&Arc<Authenticator>> {
        self.authenticator.as_ref().filter(|authenticator| authenticator.demands_proof(host))
    }

    /// Adds a subsystem without namespaces.
    ///
    /// # Errors
    /// [`SubsystemError::Exists`], [`SubsystemError::NoKeeper`].
    pub fn add(&self, new: NewSubsystem) -> Result<(), SubsystemError> {
        let NewSubsystem { nqn, serial, allow, drives, peers, peer_memory } = new;
        let fabric_bytes = peers.as_ref().map(|_| peer_memory);
        let mut table = self.table.write();
        if table.contains_key(&nqn) {
            return Err(SubsystemError::Exists(nqn));
        }
        let mut subsystem = Subsystem::new(SubsystemFacts {
            nqn: nqn.clone(),
            serial,
            model: "Twill".to_owned(),
            firmware: env!("CARGO_PKG_VERSION").to_owned(),
            transfer_log2: TRANSFER_LOG2,
            in_capsule_bytes: IN_CAPSULE_BYTES,
            commands_max: COMMANDS as u16,
            queues_max: QUEUES_MAX,
            controllers_max: CONTROLLERS_MAX,
            quiesce_ms: 0,
            volatile_cache: true,
            deallocates: true,
            has_ana: false,
            capability: boot_id::capability(&drives, fabric_bytes),
        });
        subsystem.allow(any_of(&allow, peers.as_ref()));
        let keeper = Keeper::start("twill-keeper").map_err(|error| SubsystemError::NoKeeper(error.kind()))?;
        let state = Mutex::new(State { subsystem, served: BTreeMap::new() });
        let (queues, hearers, epoch) = (Queues::default(), Hearers::default(), AtomicU64::new(0));
        let (hosts, attaches) = (allow, Arc::default());
        let ledgers = Ledgers::default();
        let entry =
            Entry { state, queues, keeper, hearers, epoch, hosts, peers, peer_memory, attaches, ledgers };
        table.insert(nqn, Arc::new(entry));
        drop(table);
        self.changes.fetch_add(1, Ordering::Release);
        self.hearers.tell(|hearer| hearer.discovery_changed());
        Ok(())
    }

    /// Adds a namespace. `open` gives the shard it is called on its handle of the volume; it is called for each queue that uses
    /// the namespace. Its reservations are those of its state file: a namespace without one is not served (F-I9). Waits for a
    /// shard, so it is not for one.
    ///
    /// # Errors
    /// [`SubsystemError`].
    pub fn add_namespace<V: Volume>(
        &self,
        nqn: &Nqn,
        new: &NewNamespace,
        shards: &Handle,
        reservations: KeptReservations,
        open: impl Fn(&ShardContext) -> Rc<V> + Send + Sync + 'static,
    ) -> Result<(), SubsystemError> {
        let entry = self.entry(nqn)?;
        let source: Arc<dyn Source> = Arc::new(open);
        let facts = facts(new.uuid, &look(&source, shards)?)?;
        let mut state = entry.state.lock();
        if !(1..=NAMESPACE_ID_MAX).contains(&new.id) || state.served.contains_key(&new.id) {
            return Err(SubsystemError::NamespaceId(new.id));
        }
        let KeptReservations { state: kept, file } = reservations;
        state.subsystem.add_namespace(new.id, facts, kept);
        state.served.insert(new.id, Served { source, reservations: Arc::new(file) });
        entry.epoch.fetch_add(1, Ordering::SeqCst);
        drop(state);
        entry.hearers.tell(|hearer| hearer.namespace_changed(new.id));
        Ok(())
    }

    /// Looks at a namespace again: it has another size, or may no longer be written. Its hosts hear of that. Waits for a shard,
    /// so it is not for one.
    ///
    /// # Errors
    /// [`SubsystemError`].
    pub fn change_namespace(&self, nqn: &Nqn, id: u32, shards: &Handle) -> Result<(), SubsystemError> {
        let entry = self.entry(nqn)?;
        let source = entry.state.lock().served.get(&id).map(|served| Arc::clone(&served.source));
        let info = look(&source.ok_or(SubsystemError::NamespaceId(id))?, shards)?;
        let mut state = entry.state.lock();
        let namespace = state.subsystem.namespace(id).ok_or(SubsystemError::NamespaceId(id))?;
        let facts = facts(namespace.facts().uuid, &info)?;
        state.subsystem.change_namespace(id, Some(facts));
        entry.epoch.fetch_add(1, Ordering::SeqCst);
        drop(state);
        entry.hearers.tell(|hearer| hearer.namespace_changed(id));
        Ok(())
    }

    /// Takes a namespace away: its hosts hear of it, and get Invalid Namespace for further commands. Returns when commands that
    /// are at work have ended, or after `limit`: true, they have. Waits, so it is not for a shard.
    ///
    /// # Errors
    /// [`SubsystemError`].
    pub fn remove_namespace(&self, nqn: &Nqn, id: u32, limit: Duration) -> Result<bool, SubsystemError> {
        let (entry, end) = (self.entry(nqn)?, Instant::now() + limit);
        let mut state = entry.state.lock();
        let removed = state.served.remove(&id).ok_or(SubsystemError::NamespaceId(id))?;
        state.subsystem.change_namespace(id, None);
        // F-I6: with the state locked, so that a queue which sees the new epoch sees the new state.
        let epoch = entry.epoch.fetch_add(1, Ordering::SeqCst) + 1;
        drop(state);
        drop(removed);
        entry.review_attaches(id);
        entry.hearers.tell(|hearer| hearer.namespace_changed(id));
        while entry.queues.has_before(id, epoch) && Instant::now() < end {
            std::thread::sleep(LOOK);
        }
        Ok(!entry.queues.has_before(id, epoch))
    }

    /// How targets that attaches name are connected to: under which name, and by which secret. Without this, or a second time,
    /// nothing is connected to.
    pub fn connect_peers(&self, options: RemoteOptions) -> bool {
        self.peers.set_options(options)
    }

    /// Ends every attach.
    pub(super) fn end_attaches(&self) {
        self.table.read().values().for_each(|entry| entry.attaches.end_all());
    }

    fn entry(&self, nqn: &Nqn) -> Result<Arc<Entry>, SubsystemError> {
        self.find(nqn).ok_or_else(|| SubsystemError::Unknown(nqn.clone()))
    }

    pub(super) fn find(&self, nqn: &Nqn) -> Option<Arc<Entry>> {
        self.table.read().get(nqn).cloned()
    }

    /// Whether no command is at work on any namespace.
    pub(super) fn is_idle(&self) -> bool {
        self.table.read().values().all(|entry| entry.queues.is_idle())
    }

    /// Whether any subsystem lets the host connect: others learn nothing of discovery either.
    pub(super) fn allows_any(&self, host: &Nqn) -> bool {
        self.table.read().values().any(|entry| entry.with(|subsystem| subsystem.allows(host)))
    }

    /// What a host may see that has connected to `address`.
    pub(super) fn discovery(&self, host: &Nqn, address: SocketAddr) -> DiscoveryLog {
        let tls = self.demands_tls(host);
        let allowed = |(nqn, entry): (&Nqn, &Arc<Entry>)| {
            entry.with(|subsystem| subsystem.allows(host)).then(|| DiscoveryEntry {
                subsystem_type: SubsystemType::Nvm,
                port: 1,
                nqn: nqn.clone(),
                address: address.ip().to_canonical(),
                service: address.port(),
                tls,
            })
        };
        let entries = self.table.read().iter().filter_map(allowed).collect();
        let generation = self.changes.load(Ordering::Acquire);
        DiscoveryLog { generation, entries, left_out: Vec::new() }
    }
}

/// Whether a host may attach under a key. Without a reservation any host may write, and so attach.
fn is_key(reservations: &Reservations, host: &Host, key: u64) -> bool {
    let is_own = || reservations.registrants().iter().any(|one| one.host == *host && one.key == key);
    reservations.held().is_none() || is_own()
}

/// Who may connect, as a host or as a peer.
fn any_of(hosts: &AllowList, peers: Option<&AllowList>) -> AllowList {
    match (hosts, peers) {
        (AllowList::Named(hosts), Some(AllowList::Named(peers))) => {
            AllowList::Named(hosts.union(peers).cloned().collect())
        }
        (_, Some(AllowList::Any)) => AllowList::Any,
        (hosts, _) => hosts.clone(),
    }
}

/// A volume as shard 0 sees it now.
fn look(source: &Arc<dyn Source>, shards: &Handle) -> Result<VolumeInfo, SubsystemError> {
    let source = Arc::clone(source);
    let info = shards.run_on(0, async move |context: ShardContext| source.open(&context).info());
    info.map_err(|_| SubsystemError::Stopping)
}

/// What hosts learn of a namespace.
fn facts(uuid: [u8; 16], info: &VolumeInfo) -> Result<NamespaceFacts, SubsystemError> {
    let block = info.logical_block_bytes;
    if !block.is_power_of_two() || !(512..=65536).contains(&block) {
        return Err(SubsystemError::BlockSize(block));
    }
    let in_blocks = |bytes: u64| u16::try_from(bytes / u64::from(block)).unwrap_or(0);
    let granularity = in_blocks(u64::from(info.physical_block_bytes)).max(1);
    let optimum = in_blocks(info.io_opt_bytes.max(u64::from(info.io_min_bytes))).max(granularity);
    Ok(NamespaceFacts {
        blocks: info.size_bytes / u64::from(block),
        block_log2: block.trailing_zeros() as u8,
        nguid: uuid,
        uuid,
        atomic_blocks_power_fail: 0,
        hints: Some(WriteHints { granularity, alignment: granularity, optimum, boundary: 0 }),
        deallocated_reads_zeroes: false,
        write_zeroes_deallocates: true,
        write_protected: info.read_only,
        ana_group: 0,
    })
}
