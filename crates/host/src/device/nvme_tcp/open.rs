//! Members on other machines opened: attached to be used, or looked at.

use std::io;
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;

use engine::device::DeviceInfo;
use engine::executor::Executor;
use nvme_tcp::discovery::DiscoveryLog;
use nvme_tcp::names::{DISCOVERY_NQN, Nqn};
use nvme_tcp::status::Status;

use super::address::{Portal, RemoteAddress};
use super::association::{Association, Attach, AttachError, Former};
use super::controller::{Controller, Target};
use super::fencing::{Holder, OwnKeys};
use super::group::{Fellow, Group};
use super::host_lock::HostLock;
use super::keeper::{OthersHold, keep};
use super::member::{End, Identity, Kept, Opened, RemoteEvent, RemoteMember, Shape, read_any};
use super::options::RemoteOptions;
use crate::device::open::{OpenError, OpenErrorKind};

/// I/O queues that are asked for: as many as shards may want.
const QUEUES: u16 = 64;
/// The largest unit of addressing that the engine has.
const BLOCK_LOG2_MAX: u8 = 12;

static ATTACHED: LazyLock<Group<Attached>> = LazyLock::new(Group::default);

/// A member of this process. The last one of its handles releases it.
pub struct Attached {
    member: Arc<RemoteMember>,
    keeper: Option<JoinHandle<()>>,
}

impl Fellow for Attached {
    fn is_usable(&self) -> bool {
        self.member.end() == End::Not
    }

    fn is_held(&self) -> bool {
        self.member.is_held()
    }
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.member.info.name)
    }
}

impl std::ops::Deref for Attached {
    type Target = Arc<RemoteMember>;

    fn deref(&self) -> &Arc<RemoteMember> {
        &self.member
    }
}

impl Drop for Attached {
    /// Releases the member, and waits for it unless that would hold up a shard.
    fn drop(&mut self) {
        self.member.stop();
        if let (Some(keeper), None) = (self.keeper.take(), Executor::current()) {
            let _ended = keeper.join();
        }
    }
}

impl Attached {
    /// The member of this address that this process has attached.
    pub fn find(address: &RemoteAddress) -> Option<Arc<Attached>> {
        ATTACHED.find(&address.to_string())
    }

    /// Whether this process had the member of this address, and has left it reserved.
    pub fn is_kept(address: &RemoteAddress) -> bool {
        let ended = ATTACHED.find_ended(&address.to_string());
        ended.is_some_and(|ended| ended.state.lock().kept_keys.is_some())
    }

    /// Attaches a member for this host alone, or returns it if this process has it already.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn open(address: &RemoteAddress, options: &RemoteOptions) -> Result<Arc<Attached>, OpenError> {
        if let Some(attached) = Attached::find(address) {
            return Ok(attached);
        }
        let name = address.to_string();
        attach(address, options).map_err(|error| open_error(&name, &error))
    }

    /// Connects to another target as its peer. Nothing is reserved, and no member of this process is found by its name.
    pub(crate) fn open_peer(
        address: &RemoteAddress,
        options: &RemoteOptions,
    ) -> Result<Arc<Attached>, AttachError> {
        let options = RemoteOptions { is_peer: true, ..options.clone() };
        let attach = Attach { queues: QUEUES.min(queues_wanted()), ..Attach::default() };
        let association =
            Association::open(address, &options, &attach, &mut Former::none(&mut OwnKeys::default()))?;
        let member = member(address, &options, association, None)?;
        member.listen(Box::new(|name, event| match event {
            RemoteEvent::Away { reason } => {
                tracing::warn!(peer = name, "connection to a peer lost: {reason}");
            }
            RemoteEvent::Back { after } => {
                tracing::info!(peer = name, seconds = after.as_secs_f32(), "connected to a peer again");
            }
            RemoteEvent::Fenced { reason } | RemoteEvent::Ended { reason } => {
                tracing::warn!(peer = name, "a peer is not used as it is: {reason}");
            }
        }));
        Ok(Arc::new(with_keeper(member, Box::new(|| false))?))
    }
}

/// A member, of which there is an association.
fn member(
    address: &RemoteAddress,
    options: &RemoteOptions,
    association: Association,
    lock: Option<HostLock>,
) -> Result<Arc<RemoteMember>, AttachError> {
    check_blocks(&association)?;
    let (info, shape) = (info(address, &association), shape(&association));
    let identity = Identity::of(&association.namespace);
    let opened = Opened { address: address.clone(), options: options.clone(), info, shape, identity, lock };
    Ok(RemoteMember::new(opened, association)?)
}

/// A member with its keeper.
fn with_keeper(member: Arc<RemoteMember>, others_hold: OthersHold) -> Result<Attached, AttachError> {
    let keepers = Arc::clone(&member);
    let keeper = std::thread::Builder::new()
        .name("twill-member".into())
        .spawn(move || keep(&keepers, &others_hold))?;
    Ok(Attached { member, keeper: Some(keeper) })
}

fn attach(address: &RemoteAddress, options: &RemoteOptions) -> Result<Arc<Attached>, AttachError> {
    // The lock goes by the namespace's identity, which only the target knows.
    let looked = look_at(address, options)?;
    let number = looked.identity;
    drop(looked);
    let ended = ATTACHED.find_ended(&address.to_string());
    let kept = ended.as_ref().and_then(|ended| ended.take_kept());
    let is_kept = kept.is_some();
    let (mut own, lock) = match (kept, &options.locks) {
        (Some(Kept { own, lock }), _) => (own, lock),
        (None, Some(folder)) => (OwnKeys::default(), HostLock::take(folder, number)?),
        (None, None) => (OwnKeys::default(), None),
    };
    let queues = QUEUES.min(queues_wanted());
    let take_over = options.take_over;
    let attach = Attach { is_alone: lock.is_some(), take_over, queues, look: false };
    let association = match Association::open(address, options, &attach, &mut Former::none(&mut own)) {
        Ok(association) => association,
        Err(error) => {
            if let Some(ended) = ended.filter(|_| is_kept) {
                ended.keep(Kept { own, lock });
            }
            return Err(error);
        }
    };
    let name = address.to_string();
    if let Some(holder) = association.preempted {
        tracing::warn!(member = name, "taken over from {holder}");
    }
    if association.key.is_none() {
        tracing::warn!(
            member = name,
            "its target has no reservations: nothing keeps another host from writing to it"
        );
    }
    let member = member(address, options, association, lock)?;
    let own_name = name.clone();
    let attached = Arc::new(with_keeper(member, Box::new(move || ATTACHED.others_hold(&own_name)))?);
    ATTACHED.enter(&name, &attached);
    Ok(attached)
}

fn check_blocks(association: &Association) -> Result<(), AttachError> {
    let log2 = association.namespace.info.block_log2;
    if log2 > BLOCK_LOG2_MAX { Err(AttachError::Blocks(1 << log2)) } else { Ok(()) }
}

fn queues_wanted() -> u16 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u16::try_from(cores).unwrap_or(u16::MAX)
}

fn info(address: &RemoteAddress, association: &Association) -> DeviceInfo {
    let namespace = &association.namespace.info;
    DeviceInfo {
        size_bytes: namespace.blocks << namespace.block_log2,
        logical_block_bytes: 1 << namespace.block_log2,
        discard_zeroes: namespace.deallocated_reads_zeroes,
        name: address.to_string(),
    }
}

fn shape(association: &Association) -> Shape {
    let controller = &association.controller.info;
    Shape {
        block_log2: association.namespace.info.block_log2,
        transfer_bytes_max: association.transfer_bytes_max(),
        write_zeroes: controller.write_zeroes,
        dataset_management: controller.dataset_management,
        volatile_cache: controller.volatile_cache,
    }
}

/// A member that is looked at only: no host is kept from it, and it is not kept from this one.
pub struct LookedAt {
    association: parking_lot::Mutex<Option<Association>>,
    /// Size and abilities.
    pub info: DeviceInfo,
    /// A number that is the same for every name of the same namespace.
    pub identity: (u64, u64),
    /// The host that has reserved it.
    pub holder: Option<Holder>,
}

/// Looks at a member without reserving it.
///
/// # Errors
/// Why that cannot be done.
pub fn look_at(address: &RemoteAddress, options: &RemoteOptions) -> Result<LookedAt, AttachError> {
    let mut association = Association::look(address, options)?;
    let holder = if association.knows_reservations() { association.other_holder()? } else { None };
    let identity = Identity::of(&association.namespace).number(address);
    let info = info(address, &association);
    Ok(LookedAt { association: parking_lot::Mutex::new(Some(association)), info, identity, holder })
}

impl LookedAt {
    /// Reads up to `bytes` bytes; fewer at the end.
    ///
    /// # Errors
    /// What the target or the connection says.
    pub fn read(&self, offset: u64, bytes: usize) -> io::Result<Vec<u8>> {
        let end = (offset + bytes as u64).min(self.info.size_bytes);
        if offset >= end {
            return Ok(Vec::new());
        }
        let mut association = self.association.lock();
        read_any(association.as_mut().expect("present until the drop"), offset, end)
    }
}

impl std::fmt::Debug for LookedAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.info.name)
    }
}

impl Drop for LookedAt {
    fn drop(&mut self) {
        if let Some(association) = self.association.get_mut().take() {
            association.close();
        }
    }
}

/// Asks a discovery controller for the subsystems that it knows.
///
/// # Errors
/// Why that cannot be done.
pub fn discover(portal: &Portal, options: &RemoteOptions) -> Result<DiscoveryLog, AttachError> {
    let host = options.new_host();
    let subsystem = Nqn::new(DISCOVERY_NQN).expect("a name");
    let limit = options.time_limit;
    let target = Target { portal, subsystem: &subsystem, host: &host, options, limit };
    let mut controller = Controller::connect(&target, std::time::Duration::ZERO)?;
    let log = controller.discovery_log()?;
    controller.shut_down();
    Ok(log)
}

/// Why a member was not opened, for a person.
pub fn open_error(name: &str, error: &AttachError) -> OpenError {
    use super::controller::ConnectError;
    use super::wire::WireError;
    let (kind, reason) = match error {
        AttachError::Taken(holder) => (
            OpenErrorKind::InUse,
            format!("{holder} has reserved it: another host uses it. --take-over takes it from that host, whose writes fail from then on"),
        ),
        AttachError::NoReservations => (
            OpenErrorKind::InUse,
            "its target has no reservations, so nothing keeps another host from writing to it. --unfenced uses it all the same".into(),
        ),
        AttachError::Changed(reason) => (OpenErrorKind::WrongType, reason.clone()),
        AttachError::Race => (OpenErrorKind::InUse, error.to_string()),
        AttachError::Io(system) => (OpenErrorKind::System, system.to_string()),
        AttachError::Blocks(_) => (OpenErrorKind::WrongType, error.to_string()),
        AttachError::Lost | AttachError::Report(_) => (OpenErrorKind::System, error.to_string()),
        AttachError::Connect(ConnectError::Wire(WireError::Io(system))) => {
            (OpenErrorKind::Gone, format!("cannot connect to its target: {system}"))
        }
        AttachError::Connect(ConnectError::Wire(_)) => {
            (OpenErrorKind::Gone, format!("cannot connect to its target: {error}"))
        }
        AttachError::Connect(ConnectError::Refused { command: "Connect", status })
            if status.is(Status::CONNECT_INVALID_PARAMETERS) =>
        (
            OpenErrorKind::NotFound,
            "there is no such subsystem at its target: `twill discover` lists those that are there".into(),
        ),
        AttachError::Connect(ConnectError::Refused { command: "Connect", status }) => {
            let reason = format!(
                "its target refused this host: {status}; if it has a TLS key for it, name the key's file with --tls-secret"
            );
            (OpenErrorKind::Permission, reason)
        }
        AttachError::Connect(ConnectError::Authentication(why)) => (OpenErrorKind::Permission, why.clone()),
        AttachError::Connect(_) => (OpenErrorKind::WrongType, error.to_string()),
    };
    OpenError::refuse(kind, name, reason)
}
