//! A controller: what it answers to admin commands. The session hands in commands that have arrived whole, and completes them
//! with what comes back. Abort and Keep Alive are the session's own, since they are about its queues and its clock.

use std::collections::BTreeMap;

use crate::command::{Sqe, admin, io};
use crate::discovery::DiscoveryLog;
use crate::events::{AsyncEvent, AsyncEvents, REQUESTS_MAX};
use crate::features::{FeatureContext, FeatureEffect, Features, NamespaceFeatures};
use crate::identify::{self, CAPABILITY_BYTES, ControllerFacts, ControllerType, cns};
use crate::log_page::{
    self, ChangedNamespaces, ERROR_ENTRIES, ErrorLog, LogRequest, ReservationNotices, page,
};
use crate::names::{DISCOVERY_NQN, Host, Nqn};
use crate::reservation::NoticeKind;
use crate::status::Status;
use crate::subsystem::{ANA_GROUP_MAX, NAMESPACE_ID_MAX, Namespace, Subsystem, SubsystemFacts};

/// Admin commands that a controller of namespaces knows, for the log page of effects: with the session's own two.
const ADMIN_KNOWN: &[u8] = &[
    admin::GET_LOG_PAGE,
    admin::IDENTIFY,
    admin::ABORT,
    admin::SET_FEATURES,
    admin::GET_FEATURES,
    admin::ASYNC_EVENT_REQUEST,
    admin::KEEP_ALIVE,
];
/// I/O commands, and whether they change contents.
const IO_KNOWN: &[(u8, bool)] = &[
    (io::FLUSH, false),
    (io::WRITE, true),
    (io::READ, false),
    (io::RESERVATION_REGISTER, false),
    (io::RESERVATION_REPORT, false),
    (io::RESERVATION_ACQUIRE, false),
    (io::RESERVATION_RELEASE, false),
];
/// Those that deallocate.
const IO_DEALLOCATES: &[(u8, bool)] = &[(io::WRITE_ZEROES, true), (io::DATASET_MANAGEMENT, true)];

const PAGES: &[u8] = &[
    page::SUPPORTED,
    page::ERRORS,
    page::HEALTH,
    page::FIRMWARE,
    page::CHANGED_NAMESPACES,
    page::EFFECTS,
    page::RESERVATIONS,
];

/// The NVM command set.
const COMMAND_SET_NVM: u8 = 0;
const ALL_NAMESPACES: u32 = u32::MAX;
/// Ids from here on have meanings.
const NAMESPACE_ID_RESERVED: u32 = u32::MAX - 1;
const GROUPS_ONLY: u8 = 1;
/// Ranges of a Dataset Management command.
const DATASET_RANGES: u8 = 255;

/// An admin command, as far as it is answered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminCommand {
    /// Its opcode.
    pub opcode: u8,
    /// Its id, which an event completes.
    pub command_id: u16,
    /// Its namespace.
    pub namespace: u32,
    /// Command dwords 10 to 15.
    pub dwords: [u32; 6],
}

impl From<&Sqe> for AdminCommand {
    fn from(sqe: &Sqe) -> AdminCommand {
        let Sqe { cdw10, cdw11, cdw12, cdw13, cdw14, cdw15, .. } = sqe;
        AdminCommand {
            opcode: sqe.opcode,
            command_id: sqe.cid.get(),
            namespace: sqe.nsid.get(),
            dwords: [cdw10, cdw11, cdw12, cdw13, cdw14, cdw15].map(|dword| dword.get()),
        }
    }
}

/// How a command is completed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// With success. The data is at most as long as was asked for; what is missing reads as zeroes.
    Done {
        /// Dword 0 of the completion.
        dword0: u32,
        /// For the host.
        data: Vec<u8>,
    },
    /// With an error.
    Failed(Status),
    /// Later, by an event.
    Waits,
    /// With success, when this change of a namespace's reservations is durable and installed
    /// ([`crate::reservation::Reservations::decide_persistence`]).
    Persistence {
        /// Which namespace.
        namespace: u32,
        /// What the host wants.
        persists: bool,
    },
}

/// What stands behind a controller.
#[derive(Clone, Copy, Debug)]
pub enum Service<'a> {
    /// Namespaces.
    Namespaces(&'a Subsystem),
    /// The discovery log page, as this host is to see it.
    Discovery(&'a DiscoveryService),
}

/// A discovery subsystem, for one host.
#[derive(Clone, Debug)]
pub struct DiscoveryService {
    /// Its serial number.
    pub serial: String,
    /// Its model.
    pub model: String,
    /// The program's version.
    pub firmware: String,
    /// Commands that the queue has room for.
    pub commands_max: u16,
    /// What the host may see.
    pub log: DiscoveryLog,
}

/// A controller, from its Connect to its end.
#[derive(Clone, Debug)]
pub struct Controller {
    id: u16,
    host: Host,
    features: Features,
    events: AsyncEvents,
    changed: ChangedNamespaces,
    notices: ReservationNotices,
    /// Commands that ended with an error, which the session enters.
    pub errors: ErrorLog,
}

impl Controller {
    /// A controller of `host`, with the keep-alive time of its Connect.
    #[must_use]
    pub fn new(id: u16, host: Host, keep_alive_ms: u32) -> Controller {
        Controller {
            id,
            host,
            features: Features::new(keep_alive_ms),
            events: AsyncEvents::default(),
            changed: ChangedNamespaces::default(),
            notices: ReservationNotices::default(),
            errors: ErrorLog::default(),
        }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Its host.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// What its host has set: the keep-alive time among others.
    #[must_use]
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// Answers an admin command.
    pub fn admin(&mut self, service: Service<'_>, command: &AdminCommand) -> Answer {
        let [dword10, dword11, dword12, dword13, ..] = command.dwords;
        let answered = match command.opcode {
            admin::IDENTIFY => self.identify(service, command.namespace, dword10, dword11).map(without_dword),
            admin::GET_LOG_PAGE => LogRequest::parse([dword10, dword11, dword12, dword13])
                .and_then(|request| self.log(service, request))
                .map(without_dword),
            admin::SET_FEATURES => self.set_feature(service, command.namespace, [dword10, dword11]),
            admin::GET_FEATURES => self.get_feature(service, command.namespace, [dword10, dword11]),
            admin::ASYNC_EVENT_REQUEST => self.events.wait(command.command_id).map(|()| Answer::Waits),
            _ => Err(Status::INVALID_OPCODE),
        };
        answered.unwrap_or_else(Answer::Failed)
    }

    /// The host gave a command up. Returns if it was an event request that waited, which then ends as aborted.
    pub fn abort_event_request(&mut self, command: u16) -> bool {
        self.events.abort(command)
    }

    /// The next event request to complete: its command id and dword 0.
    pub fn next_event(&mut self) -> Option<(u16, u32)> {
        self.events.next_completion()
    }

    /// A namespace came, went, or changed.
    pub fn namespace_changed(&mut self, id: u32) {
        self.changed.enter(id);
        self.events.happened(AsyncEvent::NamespaceChanged);
    }

    /// Something else happened.
    pub fn happened(&mut self, event: AsyncEvent) {
        self.events.happened(event);
    }

    /// Its host is to hear of a reservation, unless it does not want to.
    pub fn notify(&mut self, kind: NoticeKind, namespace: u32) {
        if self.features.wants(kind, namespace) {
            self.notices.enter(kind, namespace);
            self.events.happened(AsyncEvent::Reservation);
        }
    }

    fn identify(&self, service: Service<'_>, id: u32, dword10: u32, dword11: u32) -> Result<Vec<u8>, Status> {
        let (what, command_set) = ((dword10 & 0xff) as u8, (dword11 >> 24) as u8);
        if what == cns::CONTROLLER {
            return Ok(self.facts(service).encode());
        }
        let Service::Namespaces(subsystem) = service else { return Err(Status::INVALID_FIELD) };
        let of_set = matches!(
            what,
            cns::COMMAND_SET_NAMESPACE | cns::COMMAND_SET_CONTROLLER | cns::COMMAND_SET_ACTIVE_NAMESPACES
        );
        if of_set && command_set != COMMAND_SET_NVM {
            return Err(Status::INVALID_FIELD);
        }
        match what {
            cns::NAMESPACE => match namespace(subsystem, id)? {
                Some(namespace) => Ok(namespace.facts().encode()),
                None => Ok(vec![0; identify::IDENTIFY_BYTES]),
            },
            cns::ACTIVE_NAMESPACES | cns::COMMAND_SET_ACTIVE_NAMESPACES => {
                if id >= NAMESPACE_ID_RESERVED {
                    return Err(Status::INVALID_NAMESPACE);
                }
                Ok(identify::active_list(subsystem.namespaces().map(|(id, _)| id), id))
            }
            cns::NAMESPACE_IDS => {
                let namespace = subsystem.namespace(id).ok_or(Status::INVALID_NAMESPACE)?;
                Ok(identify::namespace_ids(namespace.facts()))
            }
            // The command set adds nothing to a namespace without metadata.
            cns::COMMAND_SET_NAMESPACE => namespace(subsystem, id).map(|_| vec![0; identify::IDENTIFY_BYTES]),
            cns::COMMAND_SET_CONTROLLER => {
                let facts = subsystem.facts();
                let (log2, ranges) =
                    if facts.deallocates { (facts.transfer_log2, DATASET_RANGES) } else { (0, 0) };
                Ok(identify::nvm_controller(log2, ranges))
            }
            cns::INDEPENDENT_NAMESPACE => {
                let namespace = subsystem.namespace(id).ok_or(Status::INVALID_NAMESPACE)?;
                Ok(identify::independent(namespace.facts()))
            }
            cns::COMMAND_SETS => {
                let mut bytes = vec![0; identify::IDENTIFY_BYTES];
                bytes[0] = 1;
                Ok(bytes)
            }
            _ => Err(Status::INVALID_FIELD),
        }
    }

    fn facts(&self, service: Service<'_>) -> ControllerFacts {
        match service {
            Service::Namespaces(subsystem) => self.io_facts(subsystem),
            Service::Discovery(discovery) => ControllerFacts {
                controller_type: ControllerType::Discovery,
                serial: discovery.serial.clone(),
                model: discovery.model.clone(),
                firmware: discovery.firmware.clone(),
                controller_id: self.id,
                subsystem: Nqn::new(DISCOVERY_NQN).expect("the name of every discovery subsystem"),
                transfer_log2: 0,
                in_capsule_bytes: 0,
                commands_max: discovery.commands_max,
                namespace_id_max: 0,
                volatile_cache: false,
                flush_all: false,
                atomic_blocks: 0,
                atomic_blocks_power_fail: 0,
                deallocates: false,
                compares: false,
                traffic_keeps_alive: true,
                quiesce_ms: 0,
                ana_group_max: 0,
                async_event_limit: event_limit(),
                async_events: AsyncEvents::KNOWN_BY_DISCOVERY,
                error_log_entries: 0,
                capability: [0; CAPABILITY_BYTES],
            },
        }
    }

    fn io_facts(&self, subsystem: &Subsystem) -> ControllerFacts {
        let SubsystemFacts { nqn, serial, model, firmware, transfer_log2, in_capsule_bytes, .. } =
            subsystem.facts();
        let facts = subsystem.facts();
        ControllerFacts {
            controller_type: ControllerType::Io,
            serial: serial.clone(),
            model: model.clone(),
            firmware: firmware.clone(),
            controller_id: self.id,
            subsystem: nqn.clone(),
            transfer_log2: *transfer_log2,
            in_capsule_bytes: *in_capsule_bytes,
            commands_max: facts.commands_max,
            namespace_id_max: NAMESPACE_ID_MAX,
            volatile_cache: facts.volatile_cache,
            flush_all: false,
            atomic_blocks: 0,
            atomic_blocks_power_fail: 0,
            deallocates: facts.deallocates,
            compares: false,
            traffic_keeps_alive: true,
            quiesce_ms: facts.quiesce_ms,
            ana_group_max: if facts.has_ana { ANA_GROUP_MAX } else { 0 },
            async_event_limit: event_limit(),
            async_events: AsyncEvents::known(facts.has_ana),
            error_log_entries: ERROR_ENTRIES - 1,
            capability: facts.capability,
        }
    }

    fn log(&mut self, service: Service<'_>, request: LogRequest) -> Result<Vec<u8>, Status> {
        let bytes = match service {
            Service::Discovery(discovery) => match request.page {
                page::DISCOVERY => discovery.log.encode(),
                page::SUPPORTED => log_page::supported(&[page::SUPPORTED, page::DISCOVERY]),
                _ => return Err(Status::INVALID_LOG_PAGE),
            },
            Service::Namespaces(subsystem) => self.log_of_namespaces(subsystem, request)?,
        };
        let cut = request.cut(&bytes)?;
        if !request.keeps_event {
            self.events.read(request.page);
            match request.page {
                page::CHANGED_NAMESPACES => self.changed.clear(),
                page::RESERVATIONS if request.offset + request.bytes >= bytes.len() as u64 => {
                    self.notices.take();
                    if self.notices.waiting() > 0 {
                        self.events.happened(AsyncEvent::Reservation);
                    }
                }
                _ => {}
            }
        }
        Ok(cut)
    }

    fn log_of_namespaces(&self, subsystem: &Subsystem, request: LogRequest) -> Result<Vec<u8>, Status> {
        let facts = subsystem.facts();
        Ok(match request.page {
            page::SUPPORTED if facts.has_ana => log_page::supported(&[PAGES, &[page::ANA]].concat()),
            page::SUPPORTED => log_page::supported(PAGES),
            page::ERRORS => self.errors.encode(),
            page::HEALTH => subsystem.health.encode(self.errors.count()),
            page::FIRMWARE => log_page::firmware(&facts.firmware),
            page::CHANGED_NAMESPACES => self.changed.encode(),
            page::EFFECTS => {
                let deallocates = if facts.deallocates { IO_DEALLOCATES } else { &[] };
                log_page::effects(ADMIN_KNOWN, &[IO_KNOWN, deallocates].concat())
            }
            page::ANA if facts.has_ana => {
                // Hosts read as much as the limits that they were told allow, in pieces: all of that is there to be read.
                let mut bytes = subsystem.ana_log().encode(request.specific & GROUPS_ONLY != 0);
                bytes.resize(ana_log_bytes_max().max(bytes.len()), 0);
                bytes
            }
            page::RESERVATIONS => self.notices.encode(),
            _ => return Err(Status::INVALID_LOG_PAGE),
        })
    }

    fn set_feature(&mut self, service: Service<'_>, id: u32, dwords: [u32; 2]) -> Result<Answer, Status> {
        let namespaces = namespace_features(service);
        let context = feature_context(service, &self.host, &namespaces);
        let set = self.features.set(context, &mut self.events, id, dwords)?;
        Ok(match set.effect {
            // The session asks for the keep-alive time whenever it starts its clock anew.
            FeatureEffect::None | FeatureEffect::KeepAlive(_) => {
                Answer::Done { dword0: set.dword0, data: Vec::new() }
            }
            FeatureEffect::Persistence { namespace, persists } => Answer::Persistence { namespace, persists },
        })
    }

    fn get_feature(&self, service: Service<'_>, id: u32, dwords: [u32; 2]) -> Result<Answer, Status> {
        let namespaces = namespace_features(service);
        let context = feature_context(service, &self.host, &namespaces);
        let got = self.features.get(context, &self.events, id, dwords)?;
        Ok(Answer::Done { dword0: got.dword0, data: got.data })
    }
}

fn ana_log_bytes_max() -> usize {
    crate::ana::log_bytes(ANA_GROUP_MAX as usize, NAMESPACE_ID_MAX as usize)
}

fn without_dword(data: Vec<u8>) -> Answer {
    Answer::Done { dword0: 0, data }
}

/// Less one, as the field has it.
fn event_limit() -> u8 {
    u8::try_from(REQUESTS_MAX - 1).expect("a few requests")
}

/// The namespace of an id; `None` if there could be one and is none.
fn namespace(subsystem: &Subsystem, id: u32) -> Result<Option<&Namespace>, Status> {
    if id == 0 || id == ALL_NAMESPACES || id > NAMESPACE_ID_MAX {
        return Err(Status::INVALID_NAMESPACE);
    }
    Ok(subsystem.namespace(id))
}

fn namespace_features(service: Service<'_>) -> BTreeMap<u32, NamespaceFeatures> {
    match service {
        Service::Discovery(_) => BTreeMap::new(),
        Service::Namespaces(subsystem) => subsystem
            .namespaces()
            .map(|(id, namespace)| {
                let persists = namespace.reservations().persists();
                (id, NamespaceFeatures { persists, write_protected: namespace.facts().write_protected })
            })
            .collect(),
    }
}

fn feature_context<'a>(
    service: Service<'_>,
    host: &Host,
    namespaces: &'a BTreeMap<u32, NamespaceFeatures>,
) -> FeatureContext<'a> {
    let (is_discovery, queues_max, volatile_cache, has_ana) = match service {
        Service::Discovery(_) => (true, 0, false, false),
        Service::Namespaces(subsystem) => {
            let facts = subsystem.facts();
            (false, facts.queues_max, facts.volatile_cache, facts.has_ana)
        }
    };
    FeatureContext { is_discovery, host_id: host.id, queues_max, volatile_cache, has_ana, namespaces }
}
