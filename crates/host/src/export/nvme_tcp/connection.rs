//! A connection from its first byte to its last: Connect, then the commands of a queue.

use engine::buffer::{Buffer, Gather};
use engine::fabric::epochs::EpochStamp;
use nvme_tcp::auth::{CONNECT_REQUIRES_AUTHENTICATION, transfer_bytes};
use nvme_tcp::command::{FABRICS, Sqe, fabrics};
use nvme_tcp::names::{DISCOVERY_NQN, Host, HostId, Nqn};
use nvme_tcp::pdu::{Fatal, Side, Unverified};
use nvme_tcp::session::{Offer, STAGED_BYTES_MAX, Session};
use nvme_tcp::status::Status;
use nvme_tcp::target::connect::{Connect, Refused};
use nvme_tcp::target::io::{Request, Shape, check, check_data};
use nvme_tcp::target::queue::{Arrival, Queue, Slot};
use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::aborts::{self, Abortable};
use super::admin::AdminQueue;
use super::association::Association;
use super::authentication::Authentication;
use super::connection_limits::{
    ADMIN_IN_CAPSULE_BYTES, COMMANDS, H2C_DATA_BYTES_MAX, IN_CAPSULE_BYTES, R2T_BYTES_MAX,
};
use super::fabric::attach_command::AttachCommand;
use super::fabric::command::FabricCommand;
use super::fabric::ledgers::changed_by;
use super::gate::Gate;
use super::hearers::Hearer;
use super::link::{Item, Link};
use super::namespace::{Namespace, Started};
use super::opening::{Opened, check_names, open};
use super::outgoing::send;
use super::reservation_work::ReservationWork;
use super::server_state::Shared;
use super::subsystems::Entry;
use crate::fabric_wire::epoch_from_wire;
use crate::receiver::Receiver;
use crate::shard::ShardContext;
use crate::tls::either::EitherWire;
use crate::tls::key_owner::PskPeer;

/// Bytes of the data of Connect.
const CONNECT_BYTES: u32 = 1024;

/// Between two looks of a watch at whether its connection has ended: a server that stops waits no longer for it.
const LOOK: Duration = Duration::from_millis(500);

/// Between two looks of a connection that is asked to end at whether its commands have ended.
const STOP_LOOK: Duration = Duration::from_millis(1);

/// Serves one connection.
pub(super) async fn serve(shared: Arc<Shared>, shard: ShardContext, socket: OwnedFd) {
    let socket = Rc::new(socket);
    let offer = Offer {
        header_digest: true,
        data_digest: true,
        alignment: 0,
        in_capsule_bytes_max: ADMIN_IN_CAPSULE_BYTES,
        h2c_data_bytes_max: H2C_DATA_BYTES_MAX,
        r2ts_max: 0,
    };
    let queue = Queue::new(Session::new(Side::Controller, offer), COMMANDS, R2T_BYTES_MAX);
    let link = Link::new(queue, COMMANDS);
    let commands = Rc::new(Commands {
        shared: Arc::clone(&shared),
        link: Rc::clone(&link),
        shard: shard.clone(),
        pending: RefCell::new((0..COMMANDS).map(|_| Pending::default()).collect()),
    });
    let beginning = Rc::clone(&commands);
    link.set_begin(move |slot| beginning.begin(slot));
    watch_handshake(&shared, &shard, &link, &socket);
    let Opened { wire, receiver, peer } = match open(&shared, &shard, &socket).await {
        Ok(opened) => opened,
        Err(error) => {
            tracing::debug!(%error, "a connection has ended before its first PDU");
            return link.forget_begin();
        }
    };
    shard.executor.spawn(send(Rc::clone(&link), shard.clone(), wire));
    let mut connection = Connection {
        shared: Arc::clone(&shared),
        shard,
        socket,
        receiver,
        link: Rc::clone(&link),
        commands,
        role: Role::None,
        peer,
        authentication: None,
    };
    let ended = connection.run().await;
    let is_orderly = ended.is_ok();
    if shared.is_stopping() {
        connection.finish_work().await;
    }
    match ended {
        Ok(()) => {}
        Err(Ended::Fatal(fatal)) => {
            tracing::warn!(%fatal, "a host broke the rules of the transport; its connection ends");
            let mut term = vec![0; STAGED_BYTES_MAX];
            let bytes = link.with_queue(|queue| queue.session().encode_term(fatal, &mut term));
            term.truncate(bytes);
            link.push(Item::Last(term));
        }
        Err(Ended::NotAuthentic) => {
            // The end of the association would cut off the reason that the host has just fetched.
            link.finish();
            link.wait_for_end().await;
        }
        Err(Ended::Io(error)) => tracing::debug!(%error, "a connection has ended"),
        Err(Ended::Terminated { status, information }) => {
            tracing::warn!(status, information, "a host ended its connection: it saw a broken rule");
        }
    }
    link.finish();
    link.forget_begin();
    match &connection.role {
        Role::None | Role::Left => {}
        Role::Admin(admin) => shared.associations.remove(&admin.association),
        Role::Io(io) if is_orderly => io.association.leave(io.id),
        Role::Io(io) => shared.associations.remove(&io.association),
    }
    // A host that reads nothing holds memory, so its connection counts until the last answer is sent or given up.
    link.wait_for_end().await;
}

/// Why a connection ends.
enum Ended {
    Io(io::Error),
    Fatal(Fatal),
    Terminated {
        status: u16,
        information: u32,
    },
    /// The host did not prove that it has its secret.
    NotAuthentic,
}

impl From<io::Error> for Ended {
    fn from(error: io::Error) -> Self {
        Ended::Io(error)
    }
}

/// A command between its capsule and its execution.
#[derive(Default)]
struct Pending {
    work: Option<Work>,
    buffer: Option<Buffer>,
}

enum Work {
    Connect(Unverified<Sqe>),
    /// A message of an authentication.
    Proof {
        authentication: Rc<Authentication>,
        bytes: u32,
    },
    Io {
        namespace: Rc<dyn Namespace>,
        request: Request,
        shape: Shape,
        id: u32,
        opcode: u8,
        /// The epoch that it names, for a ledger.
        stamp: Option<EpochStamp>,
        gate: Rc<Gate>,
    },
    Reservation {
        command: ReservationWork,
        gate: Rc<Gate>,
    },
    Fabric {
        command: FabricCommand,
        gate: Rc<Gate>,
    },
    Attach(AttachCommand),
}

/// The commands of a queue that have not been handed on.
struct Commands {
    shared: Arc<Shared>,
    shard: ShardContext,
    link: Rc<Link>,
    pending: RefCell<Box<[Pending]>>,
}

impl Commands {
    /// A command has its share of the memory.
    fn begin(&self, slot: Slot) {
        let out_bytes = match &self.pending.borrow()[slot.index()].work {
            Some(Work::Io { request, .. }) => request.data_out_bytes(),
            Some(Work::Reservation { command, .. }) => command.data_out_bytes(),
            Some(Work::Fabric { command, .. }) => command.data_out_bytes(),
            Some(Work::Attach(attach)) => attach.bytes(),
            Some(Work::Proof { bytes, .. }) => *bytes,
            Some(Work::Connect(_)) => CONNECT_BYTES,
            None => return,
        };
        if out_bytes == 0 {
            return self.carry_out(slot, Gather::new());
        }
        self.take_buffer(slot, out_bytes);
        self.link.with_queue(|queue| queue.grant(slot, out_bytes));
        self.link.push_wishes(slot);
        if let Some(Work::Fabric { command, gate }) = &mut self.pending.borrow_mut()[slot.index()].work {
            command.begin(gate);
        }
    }

    fn take_buffer(&self, slot: Slot, bytes: u32) {
        let buffer = self.shard.pool.take(bytes as usize);
        self.pending.borrow_mut()[slot.index()].buffer = Some(buffer);
    }

    /// All of a command's data is here.
    fn carry_out(&self, slot: Slot, data: Gather) {
        let work = self.pending.borrow_mut()[slot.index()].work.take();
        match work {
            Some(Work::Io { namespace, request, shape, id, opcode, stamp, gate }) => {
                match gate.begin(slot, id, opcode) {
                    Ok(ticket) => {
                        gate.entry
                            .ledgers
                            .change(id, &gate.host, stamp, || changed_by(&request, &shape, &data));
                        let started = Started { request, shape, ticket };
                        namespace.carry_out(Rc::clone(&self.link), slot, started, data);
                    }
                    Err(status) => self.link.answer(slot, status, 0, Gather::new()),
                }
            }
            Some(Work::Reservation { command, gate }) => {
                command.carry_out(&self.shared, &gate, Rc::clone(&self.link), slot, &data);
            }
            Some(Work::Fabric { command, gate }) => command.carry_out(&gate, &self.link, slot, data),
            Some(Work::Attach(attach)) => attach.carry_out(&self.shared.subsystems, &self.link, slot, &data),
            Some(Work::Proof { authentication, .. }) => {
                let mut message = vec![0; data.len()];
                data.copy_to(&mut message);
                authentication.receive(&self.shard, Rc::clone(&self.link), slot, &message);
            }
            Some(Work::Connect(_)) | None => {}
        }
    }
}

impl Abortable for Commands {
    fn abort(&self, cid: u16) -> bool {
        let slot = self.link.with_queue(|queue| queue.slot_of(cid));
        let Some(slot) = slot.filter(|slot| self.link.withdraw(*slot)) else { return false };
        self.pending.borrow_mut()[slot.index()].work = None;
        self.link.answer(slot, Status::ABORT_REQUESTED, 0, Gather::new());
        true
    }
}

/// What a connection is.
enum Role {
    /// Not connected yet.
    None,
    Admin(AdminQueue),
    Io(IoQueue),
    /// An I/O queue that its host has deleted.
    Left,
}

struct IoQueue {
    association: Arc<Association>,
    gate: Rc<Gate>,
    id: u16,
}

impl IoQueue {
    /// What a command asks for, if the host may ask for it now, and the bytes of its data.
    fn work(&self, sqe: &Unverified<Sqe>, data_bytes: u32) -> Result<(Work, u32), Status> {
        let (received, gate) = (sqe.as_received(), Rc::clone(&self.gate));
        let (id, opcode) = (received.nsid.get(), received.opcode);
        if let Some(command) = FabricCommand::parse(&gate, sqe, data_bytes)? {
            let bytes = command.data_bytes();
            return Ok((Work::Fabric { command, gate }, bytes));
        }
        if gate.is_peer_only {
            return Err(Status::OPERATION_DENIED);
        }
        if let Some(command) = ReservationWork::parse(received, data_bytes)? {
            return Ok((Work::Reservation { command, gate }, command.data_bytes()));
        }
        let (namespace, shape) = gate.open(id, opcode)?;
        let request = check(sqe, &shape, data_bytes)?;
        let bytes = request.data_out_bytes().max(request.data_in_bytes());
        let stamp = epoch_from_wire(received);
        Ok((Work::Io { namespace, request, shape, id, opcode, stamp, gate }, bytes))
    }
}

struct Connection {
    shared: Arc<Shared>,
    shard: ShardContext,
    socket: Rc<OwnedFd>,
    receiver: Receiver<EitherWire>,
    link: Rc<Link>,
    commands: Rc<Commands>,
    role: Role,
    /// Whose key it is under; none: it is not under TLS.
    peer: Option<PskPeer>,
    /// None: its host need not authenticate.
    authentication: Option<Rc<Authentication>>,
}

impl Connection {
    /// Takes what arrives until the connection ends.
    async fn run(&mut self) -> Result<(), Ended> {
        while !self.shared.is_stopping() {
            let received = self.link.with_queue(|queue| queue.receive(self.receiver.bytes()));
            let (consumed, arrival) = received.map_err(Ended::Fatal)?;
            self.receiver.consume(consumed);
            match arrival {
                Arrival::More => {
                    if matches!(self.role, Role::Left) || !self.receiver.receive_more().await? {
                        return Ok(());
                    }
                }
                Arrival::Begun => self.link.push(Item::Begin),
                Arrival::Command { slot, sqe, in_capsule_bytes, fault } => {
                    let begun = match fault {
                        Some(status) => Err(status),
                        None => self.command(slot, sqe, in_capsule_bytes),
                    };
                    if let Err(status) = begun {
                        self.link.answer(slot, status, 0, Gather::new());
                    }
                    if self.authentication.as_ref().is_some_and(|one| one.has_ended()) {
                        return Err(Ended::NotAuthentic);
                    }
                }
                Arrival::Place { slot, offset, bytes } => self.place(slot, offset, bytes).await?,
                Arrival::Partial { slot } => slot.into_iter().for_each(|slot| self.link.push_wishes(slot)),
                Arrival::Ready { slot, intact } => self.ready(slot, intact),
                Arrival::Terminated { status, information } => {
                    return Err(Ended::Terminated { status, information });
                }
            }
        }
        Ok(())
    }

    /// The server stops: waits until what is at work has been answered. The admin queue ends last, because its end cuts the
    /// others off.
    async fn finish_work(&self) {
        self.link.forget_waiting();
        let is_busy = || match &self.role {
            Role::Io(io) => !io.gate.is_idle(),
            Role::Admin(admin) => !admin.association.has_ended() && admin.association.io_queues() > 0,
            Role::None | Role::Left => false,
        };
        while is_busy() {
            self.shard.ring.sleep(STOP_LOOK).await;
        }
    }

    /// Brings data to where it belongs.
    async fn place(&mut self, slot: Option<Slot>, offset: u32, bytes: u32) -> io::Result<()> {
        let (offset, bytes) = (offset as usize, bytes as usize);
        let waiting = slot.and_then(|slot| self.commands.pending.borrow_mut()[slot.index()].buffer.take());
        let passed_over = waiting.is_none();
        let (buffer, offset) = match waiting {
            Some(buffer) => (buffer, offset),
            None => (self.shard.pool.take(bytes), 0),
        };
        let buffer = self.receiver.fill(buffer, offset, bytes).await?;
        self.link.with_queue(|queue| queue.session_mut().placed(&buffer.bytes()[offset..offset + bytes]));
        if let (Some(slot), false) = (slot, passed_over) {
            self.commands.pending.borrow_mut()[slot.index()].buffer = Some(buffer);
        }
        Ok(())
    }

    /// The data of a command is complete.
    fn ready(&mut self, slot: Slot, intact: bool) {
        let (buffer, is_connect) = {
            let pending = &mut self.commands.pending.borrow_mut()[slot.index()];
            (pending.buffer.take(), matches!(pending.work, Some(Work::Connect(_))))
        };
        // A command that was answered before its data had come.
        let Some(buffer) = buffer else { return };
        if !intact {
            self.commands.pending.borrow_mut()[slot.index()].work = None;
            return self.link.answer(slot, Status::TRANSIENT_TRANSPORT_ERROR, 0, Gather::new());
        }
        if is_connect {
            return self.connect(slot, buffer.bytes());
        }
        self.commands.carry_out(slot, buffer.freeze().into());
    }

    fn command(&mut self, slot: Slot, sqe: Unverified<Sqe>, in_capsule_bytes: u32) -> Result<(), Status> {
        let data_bytes = check_data(&sqe, in_capsule_bytes)?;
        let received = sqe.as_received();
        let fabrics_type = (received.opcode == FABRICS).then(|| received.fabrics_type());
        if let Some(authentication) = &self.authentication {
            match fabrics_type {
                Some(fabrics::AUTHENTICATION_SEND | fabrics::AUTHENTICATION_RECEIVE) => {
                    let authentication = Rc::clone(authentication);
                    return self.authenticate(authentication, slot, received, data_bytes, in_capsule_bytes);
                }
                _ if !authentication.is_proven() => return Err(Status::AUTHENTICATION_REQUIRED),
                _ => {}
            }
        }
        match &mut self.role {
            Role::None if fabrics_type == Some(fabrics::CONNECT) => {
                if data_bytes != CONNECT_BYTES {
                    return Err(Status::INVALID_SGL_LENGTH);
                }
                self.commands.pending.borrow_mut()[slot.index()].work = Some(Work::Connect(sqe));
                self.admit(slot, data_bytes, in_capsule_bytes);
                Ok(())
            }
            Role::None | Role::Left => Err(Status::COMMAND_SEQUENCE_ERROR),
            _ if fabrics_type == Some(fabrics::CONNECT) => Err(Status::COMMAND_SEQUENCE_ERROR),
            Role::Admin(admin) => {
                admin.association.see();
                if let Some(attach) = admin.attach(received, data_bytes)? {
                    let bytes = attach.bytes();
                    self.commands.pending.borrow_mut()[slot.index()].work = Some(Work::Attach(attach));
                    self.admit(slot, bytes, in_capsule_bytes);
                    return Ok(());
                }
                admin.command(&self.shared, &self.shard, &self.link, slot, received, data_bytes)
            }
            Role::Io(io) if fabrics_type == Some(fabrics::DISCONNECT) => {
                io.association.leave(io.id);
                self.role = Role::Left;
                self.link.answer(slot, Status::SUCCESS, 0, Gather::new());
                Ok(())
            }
            Role::Io(_) if fabrics_type.is_some() => Err(Status::INVALID_OPCODE),
            Role::Io(io) => {
                io.association.see();
                let (work, bytes) = io.work(&sqe, data_bytes)?;
                self.commands.pending.borrow_mut()[slot.index()].work = Some(work);
                self.admit(slot, bytes, in_capsule_bytes);
                Ok(())
            }
        }
    }

    /// A message of an authentication: one that comes, or one that the host fetches.
    fn authenticate(
        &self,
        authentication: Rc<Authentication>,
        slot: Slot,
        sqe: &Sqe,
        data_bytes: u32,
        in_capsule_bytes: u32,
    ) -> Result<(), Status> {
        let bytes = transfer_bytes(sqe)?;
        if data_bytes != bytes {
            return Err(Status::INVALID_SGL_LENGTH);
        }
        if sqe.fabrics_type() == fabrics::AUTHENTICATION_SEND {
            let work = Work::Proof { authentication, bytes };
            self.commands.pending.borrow_mut()[slot.index()].work = Some(work);
            self.admit(slot, bytes, in_capsule_bytes);
        } else {
            let message = authentication.answer(&self.link, bytes)?;
            self.link.answer(slot, Status::SUCCESS, 0, message);
        }
        Ok(())
    }

    /// Gives a command its share of the memory, now or later, and begins it. F-I10: one of the fabric does not wait, since
    /// those before it may wait for its op.
    fn admit(&self, slot: Slot, bytes: u32, in_capsule_bytes: u32) {
        let waits = !matches!(self.commands.pending.borrow()[slot.index()].work, Some(Work::Fabric { .. }));
        if in_capsule_bytes > 0 {
            // Its data is on its way already; capsules of a whole queue are small.
            self.link.admit(slot, bytes, false);
            self.commands.take_buffer(slot, in_capsule_bytes);
        } else if self.link.admit(slot, bytes, waits) {
            self.commands.begin(slot);
        }
    }

    fn connect(&mut self, slot: Slot, data: &[u8]) {
        let work = self.commands.pending.borrow_mut()[slot.index()].work.take();
        let Some(Work::Connect(sqe)) = work else { return };
        match self.connect_queue(&sqe, data) {
            Ok(id) => {
                let asks = if self.authentication.is_some() { CONNECT_REQUIRES_AUTHENTICATION } else { 0 };
                self.link.answer(slot, Status::SUCCESS, u64::from(u32::from(id) | asks), Gather::new());
            }
            Err(refused) => {
                tracing::warn!(status = %refused.status, "a host was not connected");
                self.link.answer(slot, refused.status, refused.value, Gather::new());
            }
        }
    }

    /// Makes this connection a queue. Returns the controller's number.
    fn connect_queue(&mut self, sqe: &Unverified<Sqe>, data: &[u8]) -> Result<u16, Refused> {
        let connect = Connect::check(sqe, data, COMMANDS as u16)?;
        let host = Host { id: HostId(connect.host_id), nqn: connect.host.clone() };
        check_names(&self.shared, self.peer.as_ref(), &host, &connect.subsystem)?;
        let socket = self.socket.try_clone().map_err(|_| Refused::with(Status::CONNECT_BUSY))?;
        let id = if connect.queue_id == 0 {
            self.connect_admin(&connect, &host, socket)?
        } else {
            self.connect_io(&connect, &host, socket)?
        };
        self.link.with_queue(|queue| {
            queue.set_entries(connect.entries);
            if connect.no_flow_control {
                queue.drop_flow_control();
            }
        });
        if let Err(refused) = self.begin_proof(&host) {
            if let Role::Admin(admin) = std::mem::replace(&mut self.role, Role::Left) {
                self.shared.associations.remove(&admin.association);
            }
            return Err(refused);
        }
        Ok(id)
    }

    /// The queue may be used, at once or when its host has authenticated.
    fn begin_proof(&mut self, host: &Host) -> Result<(), Refused> {
        let association = match &self.role {
            Role::Admin(admin) => &admin.association,
            Role::Io(io) => &io.association,
            Role::None | Role::Left => return Err(Refused::with(Status::INTERNAL_ERROR)),
        };
        if let Some(authenticator) = self.shared.subsystems.authenticator(&host.nqn) {
            let begun = Authentication::new(authenticator, association, host);
            self.authentication = Some(begun.map_err(|_| Refused::with(Status::INTERNAL_ERROR))?);
        } else if association.prove() {
            self.link.set_connected();
        } else {
            return Err(Refused::with(Status::CONNECT_INVALID_HOST));
        }
        Ok(())
    }

    fn connect_admin(&mut self, connect: &Connect, host: &Host, socket: OwnedFd) -> Result<u16, Refused> {
        let subsystem = connect.subsystem.clone();
        let (entry, id) = if subsystem.as_str() == DISCOVERY_NQN {
            if !self.shared.subsystems.allows_any(&host.nqn) {
                return Err(Refused::with(Status::CONNECT_INVALID_HOST));
            }
            (None, self.shared.associations.discovery_id())
        } else {
            let entry = self.find(&subsystem, &host.nqn)?;
            self.check_digests(&host.nqn)?;
            let id = entry.with(|subsystem| subsystem.connect(host, connect.controller_id));
            let id =
                id.map_err(|refusal| Refused { status: refusal.status, value: refusal.dword0.into() })?;
            (Some(entry), id)
        };
        let association = Association::new(entry, subsystem, host, id, connect.keep_alive_ms);
        if !association.join(0, socket, self.shard.index) {
            return Err(Refused::with(Status::CONNECT_BUSY));
        }
        let hearers = match &association.entry {
            Some(entry) => &entry.hearers,
            None => &self.shared.subsystems.hearers,
        };
        hearers.enter(Arc::downgrade(&association) as Weak<dyn Hearer>);
        self.shared.associations.enter(&association);
        let local = self.shared.local_address(&self.socket);
        let admin = AdminQueue::new(Arc::clone(&association), local);
        admin.watch_events(&self.shard, &self.link);
        self.role = Role::Admin(admin);
        self.watch_keep_alive(association);
        Ok(id)
    }

    fn connect_io(&mut self, connect: &Connect, host: &Host, socket: OwnedFd) -> Result<u16, Refused> {
        let entry = self.find(&connect.subsystem, &host.nqn)?;
        self.check_digests(&host.nqn)?;
        let joined = entry.with(|one| one.connect_queue(host, connect.controller_id, connect.queue_id));
        joined.map_err(|refusal| Refused { status: refusal.status, value: refusal.dword0.into() })?;
        let association = self.shared.associations.find(&connect.subsystem, connect.controller_id);
        let association = association.ok_or_else(Refused::unknown_controller)?;
        if !association.join(connect.queue_id, socket, self.shard.index) {
            return Err(Refused::wrong_queue());
        }
        let commands = Rc::downgrade(&self.commands);
        aborts::enter(association.serial, connect.queue_id, commands);
        self.link.with_queue(|queue| queue.session_mut().set_in_capsule_bytes_max(IN_CAPSULE_BYTES));
        let gate = Gate::new(&entry, host, &self.shard);
        self.role = Role::Io(IoQueue { association, gate, id: connect.queue_id });
        Ok(connect.controller_id)
    }

    /// The subsystem, if it is one and the host may connect: a host that may not learns nothing but that.
    fn find(&self, subsystem: &Nqn, host: &Nqn) -> Result<Arc<Entry>, Refused> {
        match self.shared.subsystems.find(subsystem) {
            Some(entry) if entry.with(|subsystem| subsystem.allows(host)) => Ok(entry),
            None if self.shared.subsystems.allows_any(host) => Err(Refused::unknown_subsystem()),
            _ => {
                tracing::warn!(%host, %subsystem, "a host that is not allowed was refused; if it should be, name it with --allow");
                Err(Refused::with(Status::CONNECT_INVALID_HOST))
            }
        }
    }

    /// Refuses a queue without digests where they are required.
    fn check_digests(&self, host: &Nqn) -> Result<(), Refused> {
        let agreed = self.link.with_queue(|queue| *queue.session().agreement());
        if agreed.header_digest && agreed.data_digest || !self.shared.options.digests_required {
            return Ok(());
        }
        tracing::warn!(%host, "a host without digests was refused; on Linux: nvme connect --hdr-digest --data-digest");
        Err(Refused::with(Status::CONNECT_INVALID_PARAMETERS))
    }

    /// Ends the association if no command comes for twice its keep-alive time: traffic of any queue counts, so that the time
    /// is judged only in whole intervals.
    fn watch_keep_alive(&self, association: Arc<Association>) {
        const WITHOUT: Duration = Duration::from_secs(5);
        let ring = self.shard.ring.clone();
        self.shard.executor.spawn(async move {
            let mut missed = false;
            while !association.has_ended() {
                let time = u64::from(association.with(|controller, _| controller.features().keep_alive_ms()));
                let end = Instant::now() + if time == 0 { WITHOUT } else { Duration::from_millis(time) };
                while Instant::now() < end && !association.has_ended() {
                    ring.sleep(end.saturating_duration_since(Instant::now()).min(LOOK)).await;
                }
                if association.was_seen() || time == 0 {
                    missed = false;
                } else if std::mem::replace(&mut missed, true) {
                    let (host, subsystem) = (&association.host.nqn, &association.subsystem);
                    tracing::warn!(%host, %subsystem, "no sign of a host for its keep-alive time; its connections end");
                    association.end();
                }
            }
        });
    }
}

/// Ends the connection if it is no queue within the time limit.
fn watch_handshake(shared: &Shared, shard: &ShardContext, link: &Rc<Link>, socket: &Rc<OwnedFd>) {
    let (ring, limit) = (shard.ring.clone(), shared.options.handshake_limit);
    let (link, socket) = (Rc::downgrade(link), Rc::downgrade(socket));
    shard.executor.spawn(async move {
        let end = Instant::now() + limit;
        while link.upgrade().is_some_and(|link| !link.is_connected()) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                tracing::debug!("a connection is no queue within the time limit");
                if let Some(socket) = socket.upgrade() {
                    let _ = rustix::net::shutdown(&*socket, rustix::net::Shutdown::Both);
                }
                return;
            }
            ring.sleep(left.min(LOOK)).await;
        }
    });
}
