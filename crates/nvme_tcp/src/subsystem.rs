//! A subsystem as a target serves it: its namespaces, who may connect, and the controllers that there are.
//!
//! - No host may connect until its name is allowed.
//! - A host identifier belongs to the name that it came with: while a controller of it lives, or it is registered with a
//!   namespace, it is refused to other names. Else any allowed host could be any holder of a reservation.
//! - A namespace whose reservations are lost is not here: it is added with its reservations, and there is no other way (F-I9).

use std::collections::{BTreeMap, BTreeSet};

use crate::ana::{AnaGroup, AnaLog, AnaState};
use crate::command::io;
use crate::identify::NamespaceFacts;
use crate::log_page::Health;
use crate::names::{Host, HostId, Nqn};
use crate::reservation::{Change, CommandClass, Report, ReservationCommand, Reservations, Synced};
use crate::status::Status;

/// The largest namespace id that a subsystem gives. Hosts are told this one, and not the largest in use: they take memory for the
/// log page of asymmetric access once, when they connect.
pub const NAMESPACE_ID_MAX: u32 = 1024;
/// The largest number of a group of asymmetric access, told for the same reason.
pub const ANA_GROUP_MAX: u32 = 128;
/// The largest number of a controller; those above have meanings.
const CONTROLLER_ID_MAX: u16 = 0xffef;
/// Asks for any controller.
const CONTROLLER_ANY: u16 = 0xffff;
/// Where fields stand in the data of Connect, for the host that reads why it was refused.
const AT_HOST_ID: u16 = 0;
const AT_CONTROLLER_ID: u16 = 16;
/// The field stands in the data, not in the command.
const IN_DATA: u32 = 1 << 16;

/// Which hosts may connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AllowList {
    /// These.
    Named(BTreeSet<Nqn>),
    /// Every host.
    Any,
}

impl AllowList {
    /// If a host may connect.
    #[must_use]
    pub fn allows(&self, nqn: &Nqn) -> bool {
        match self {
            AllowList::Named(names) => names.contains(nqn),
            AllowList::Any => true,
        }
    }
}

/// What is the same for all controllers of a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubsystemFacts {
    /// Its name.
    pub nqn: Nqn,
    /// Its serial number, at most 20 ASCII characters.
    pub serial: String,
    /// Its model, at most 40 ASCII characters.
    pub model: String,
    /// The program's version, at most 8 ASCII characters.
    pub firmware: String,
    /// The longest transfer is 2 to the power of this many 4 KiB.
    pub transfer_log2: u8,
    /// Bytes of data in the capsule of a command on an I/O queue, a multiple of 16.
    pub in_capsule_bytes: u32,
    /// Commands that a queue has room for.
    pub commands_max: u16,
    /// I/O queues of a controller.
    pub queues_max: u16,
    /// Controllers at a time.
    pub controllers_max: u16,
    /// Milliseconds after which no command of a lost association runs any more; 0: not told.
    pub quiesce_ms: u16,
    /// If what is not flushed is lost with the power.
    pub volatile_cache: bool,
    /// Write Zeroes and Dataset Management are done.
    pub deallocates: bool,
    /// Asymmetric access is reported.
    pub has_ana: bool,
    /// What a Twill target says of itself.
    pub capability: [u8; crate::identify::CAPABILITY_BYTES],
}

/// A namespace.
#[derive(Clone, Debug)]
pub struct Namespace {
    facts: NamespaceFacts,
    reservations: Reservations,
}

impl Namespace {
    /// What it is.
    #[must_use]
    pub fn facts(&self) -> &NamespaceFacts {
        &self.facts
    }

    /// Who is registered and who holds.
    #[must_use]
    pub fn reservations(&self) -> &Reservations {
        &self.reservations
    }
}

/// Why a host is not connected, as the completion of Connect says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status.
    pub status: Status,
    /// Which field is wrong, for the status that says so.
    pub dword0: u32,
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        Refusal { status, dword0: 0 }
    }
}

/// How a reservation command is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReservationAnswer {
    /// With this data.
    Report(Vec<u8>),
    /// When this change is durable and installed, its notices are given, and the commands of its victims have ended.
    Change(Change),
}

/// A subsystem.
#[derive(Clone, Debug)]
pub struct Subsystem {
    facts: SubsystemFacts,
    allow: AllowList,
    namespaces: BTreeMap<u32, Namespace>,
    controllers: BTreeMap<u16, Host>,
    /// Controllers of hosts that have not authenticated. They own nothing, else any machine could keep an identifier from the
    /// host that it belongs to.
    unproven: BTreeMap<u16, Host>,
    last_controller: u16,
    ana: BTreeMap<u32, (AnaState, u64)>,
    ana_changes: u64,
    /// What the log page of health says; the caller counts.
    pub health: Health,
}

impl Subsystem {
    /// A subsystem that no host may connect to, without namespaces.
    #[must_use]
    pub fn new(facts: SubsystemFacts) -> Subsystem {
        Subsystem {
            facts,
            allow: AllowList::Named(BTreeSet::new()),
            namespaces: BTreeMap::new(),
            controllers: BTreeMap::new(),
            unproven: BTreeMap::new(),
            last_controller: 0,
            ana: BTreeMap::new(),
            ana_changes: 0,
            health: Health { spare_percent: 100, ..Health::default() },
        }
    }

    /// What it is.
    #[must_use]
    pub fn facts(&self) -> &SubsystemFacts {
        &self.facts
    }

    /// Who may connect from now on. Hosts that are connected stay.
    pub fn allow(&mut self, allow: AllowList) {
        self.allow = allow;
    }

    /// If a host may connect.
    #[must_use]
    pub fn allows(&self, nqn: &Nqn) -> bool {
        self.allow.allows(nqn)
    }

    /// Adds a namespace with the reservations that its state file has.
    ///
    /// # Panics
    /// If the id or the group is too large, or the id is 0 or taken.
    pub fn add_namespace(&mut self, id: u32, facts: NamespaceFacts, reservations: Reservations) {
        assert!((1..=NAMESPACE_ID_MAX).contains(&id), "namespace id {id}");
        assert!(facts.ana_group <= ANA_GROUP_MAX, "group {} of asymmetric access", facts.ana_group);
        if self.facts.has_ana && facts.ana_group != 0 {
            self.ana.entry(facts.ana_group).or_insert((AnaState::Optimized, 0));
        }
        let former = self.namespaces.insert(id, Namespace { facts, reservations });
        assert!(former.is_none(), "namespace id {id} is taken");
    }

    /// A namespace.
    #[must_use]
    pub fn namespace(&self, id: u32) -> Option<&Namespace> {
        self.namespaces.get(&id)
    }

    /// All namespaces, by id.
    pub fn namespaces(&self) -> impl Iterator<Item = (u32, &Namespace)> {
        self.namespaces.iter().map(|(id, namespace)| (*id, namespace))
    }

    /// Takes a namespace away, or changes its size; its controllers are to be told.
    pub fn change_namespace(&mut self, id: u32, facts: Option<NamespaceFacts>) {
        match (facts, self.namespaces.get_mut(&id)) {
            (Some(facts), Some(namespace)) => namespace.facts = facts,
            (None, Some(_)) => drop(self.namespaces.remove(&id)),
            (_, None) => {}
        }
    }

    /// Installs a change of reservations that is durable.
    ///
    /// # Panics
    /// As [`Reservations::install`].
    pub fn install(&mut self, id: u32, change: &Change, synced: Option<&Synced>) {
        if let Some(namespace) = self.namespaces.get_mut(&id) {
            namespace.reservations.install(change, synced);
        }
    }

    /// Whether an I/O command of `host` may begin: the namespace is there, this way to it is open, and no reservation is in
    /// the way (F-I6).
    ///
    /// # Errors
    /// The status to answer with.
    pub fn admit(&self, host: &Host, id: u32, opcode: u8) -> Result<&Namespace, Status> {
        let namespace = self.namespaces.get(&id).ok_or(Status::INVALID_NAMESPACE)?;
        if let Some((state, _)) = self.ana.get(&namespace.facts.ana_group) {
            state.admit()?;
        }
        let class = CommandClass::of_io(opcode);
        namespace.reservations.admit(host, class)?;
        if namespace.facts.write_protected && class == CommandClass::Write {
            return Err(Status::NAMESPACE_WRITE_PROTECTED);
        }
        Ok(namespace)
    }

    /// Answers a reservation command of an I/O queue.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn reservation(
        &self,
        host: &Host,
        id: u32,
        command_opcode: u8,
        dwords: [u32; 2],
        data: &[u8],
    ) -> Result<ReservationAnswer, Status> {
        let reservations = self.admit(host, id, command_opcode)?.reservations();
        if command_opcode == io::RESERVATION_REPORT {
            return Report::answer(reservations, dwords[0], dwords[1]).map(ReservationAnswer::Report);
        }
        let command = ReservationCommand::parse(command_opcode, dwords[0], data)?;
        reservations.decide(host, &command).map(ReservationAnswer::Change)
    }

    /// A host connects its admin queue; returns the number of its new controller, which is usable after [`Subsystem::prove`].
    ///
    /// # Errors
    /// [`Refusal`]: a host that is not allowed learns nothing else.
    pub fn connect(&mut self, host: &Host, asked: u16) -> Result<u16, Refusal> {
        let invalid =
            |at: u16| Refusal { status: Status::CONNECT_INVALID_PARAMETERS, dword0: IN_DATA | u32::from(at) };
        if !self.allow.allows(&host.nqn) {
            return Err(Status::CONNECT_INVALID_HOST.into());
        }
        if host.id == HostId([0; 16]) {
            return Err(invalid(AT_HOST_ID));
        }
        if asked != CONTROLLER_ANY {
            return Err(invalid(AT_CONTROLLER_ID));
        }
        if self.is_anothers(host) {
            return Err(Status::CONNECT_INVALID_HOST.into());
        }
        if self.controllers.len() + self.unproven.len() >= usize::from(self.facts.controllers_max) {
            return Err(Status::CONNECT_BUSY.into());
        }
        let id = self.next_controller().ok_or(Status::CONNECT_BUSY)?;
        self.last_controller = id;
        self.unproven.insert(id, host.clone());
        Ok(id)
    }

    /// The host of a controller is the one that it says, by its proof or because none is asked for. From here on its
    /// identifier is its own.
    ///
    /// # Errors
    /// [`Refusal`]: the identifier belongs to another name by now.
    pub fn prove(&mut self, controller: u16) -> Result<(), Refusal> {
        let Some(host) = self.unproven.remove(&controller) else { return Ok(()) };
        if self.is_anothers(&host) {
            return Err(Status::CONNECT_INVALID_HOST.into());
        }
        self.controllers.insert(controller, host);
        Ok(())
    }

    /// A host connects an I/O queue to its controller.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn connect_queue(&self, host: &Host, controller: u16, queue: u16) -> Result<(), Refusal> {
        if !self.allow.allows(&host.nqn) {
            return Err(Status::CONNECT_INVALID_HOST.into());
        }
        let refusal = Refusal {
            status: Status::CONNECT_INVALID_PARAMETERS,
            dword0: IN_DATA | u32::from(AT_CONTROLLER_ID),
        };
        let owner = self.controllers.get(&controller).ok_or(refusal)?;
        if owner != host {
            return Err(Status::CONNECT_INVALID_HOST.into());
        }
        if queue == 0 || queue > self.facts.queues_max {
            return Err(Status::INVALID_QUEUE_ID.into());
        }
        Ok(())
    }

    /// A controller is gone.
    pub fn disconnect(&mut self, controller: u16) {
        self.controllers.remove(&controller);
        self.unproven.remove(&controller);
    }

    /// Controllers that there are, and their hosts.
    pub fn controllers(&self) -> impl Iterator<Item = (u16, &Host)> {
        self.controllers.iter().map(|(id, host)| (*id, host))
    }

    /// If the identifier of a host belongs to another name.
    fn is_anothers(&self, host: &Host) -> bool {
        self.owner(host.id).is_some_and(|owner| owner != host)
    }

    /// The host that an identifier belongs to.
    fn owner(&self, id: HostId) -> Option<&Host> {
        let connected = self.controllers.values().find(|host| host.id == id);
        connected.or_else(|| self.namespaces.values().find_map(|namespace| namespace.reservations.owner(id)))
    }

    /// The next number that is free: one that was given back lately stays unused as long as there are others.
    fn next_controller(&self) -> Option<u16> {
        let above = self.last_controller + 1..=CONTROLLER_ID_MAX;
        above
            .chain(1..=self.last_controller)
            .find(|id| !self.controllers.contains_key(id) && !self.unproven.contains_key(id))
    }

    /// A group of asymmetric access has another state now. Returns if that is a change.
    pub fn set_ana(&mut self, group: u32, state: AnaState) -> bool {
        match self.ana.get_mut(&group) {
            Some((former, changes)) if *former != state => {
                *former = state;
                *changes += 1;
                self.ana_changes += 1;
                true
            }
            _ => false,
        }
    }

    /// The log page of asymmetric access.
    #[must_use]
    pub fn ana_log(&self) -> AnaLog {
        let groups = self.ana.iter().map(|(id, (state, changes))| AnaGroup {
            id: *id,
            state: *state,
            changes: *changes,
            namespaces: self
                .namespaces()
                .filter(|(_, one)| one.facts.ana_group == *id)
                .map(|(id, _)| id)
                .collect(),
        });
        AnaLog { changes: self.ana_changes, groups: groups.collect() }
    }
}
