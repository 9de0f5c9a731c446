//! A controller on another machine: connected, authenticated, enabled, and what it and its namespace are.

use std::time::{Duration, Instant};

use nvme_tcp::HashFunction;
use nvme_tcp::auth::{
    CONNECT_REQUIRES_AUTHENTICATION, DhGroup, Failure, HostExchange, HostSettings, Names, Randomness,
    TRANSFER_BYTES_MAX, transfer,
};
use nvme_tcp::command::Sqe;
use nvme_tcp::command::admin;
use nvme_tcp::discovery::{DiscoveryError, DiscoveryLog};
use nvme_tcp::events::{AsyncEvent, Heard};
use nvme_tcp::host_command::{self, NewQueue, property};
use nvme_tcp::identify::{
    ControllerInfo, ControllerInfoError, IDENTIFY_BYTES, NamespaceInfo, NamespaceInfoError, cns,
};
use nvme_tcp::log_page::{LogRequest, page};
use nvme_tcp::names::{Host, Nqn};
use nvme_tcp::status::Status;
use nvme_tcp::vendor::{
    AttachRecord, AttachReport, LedgerReport, LedgerStep, NoLedger, REPORT_BYTES, admin_opcode,
};

use super::address::Portal;
use super::options::{RemoteOptions, random};
use super::wire::{Digests, Transfer, Wire, WireError};

/// Entries of the admin queue.
const ADMIN_ENTRIES: u16 = 32;
/// Commands in flight on an I/O queue, at most: what Linux asks for.
const IO_ENTRIES_MAX: u32 = 128;
/// How often a controller is asked whether it is ready.
const READY_INTERVAL: Duration = Duration::from_millis(20);
/// Notices of namespaces that come, go or change, as a bit of the events that are wanted.
const NAMESPACE_NOTICES: u32 = 1 << 8;
/// Bytes of the log pages that say more about events.
const CHANGED_NAMESPACES_BYTES: usize = 4096;
const RESERVATION_NOTICE_BYTES: usize = 64;
/// Bytes of a discovery log page that are read first: its header, which says how many entries follow.
const DISCOVERY_FIRST_BYTES: usize = 1024;
/// Bytes of a ledger that are asked for first.
const LEDGER_BYTES: usize = 4096;
/// How often a discovery log page that changes while it is read is read again.
const DISCOVERY_ATTEMPTS: u32 = 5;

/// Why a controller cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No connection to it, or it has ended.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// It refused a command.
    #[error("{command} was refused: {status}")]
    Refused {
        /// Which.
        command: &'static str,
        /// How.
        status: Status,
    },
    /// Authentication failed, or a side that should authenticate has no secret.
    #[error("{0}")]
    Authentication(String),
    /// It is not ready in time.
    #[error("its controller is not ready within {0} s")]
    NotReady(u64),
    /// What it says of itself makes no sense, or is nothing that members are made of.
    #[error(transparent)]
    Controller(#[from] ControllerInfoError),
    /// The same of its namespace.
    #[error("its namespace cannot be used: {0}")]
    Namespace(#[from] NamespaceInfoError),
    /// The same of its discovery log page.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// Its report of an attach is none.
    #[error("its report of the array's attach makes no sense")]
    Report,
    /// It has too few queues.
    #[error("it grants {granted} I/O queues, {wanted} are needed: serve with fewer --shards")]
    Queues {
        /// What it grants.
        granted: u32,
        /// What is needed.
        wanted: u32,
    },
}

impl ConnectError {
    /// Whether a further attempt may succeed. A target that is being set up again refuses for a while what it served before,
    /// and says that a retry does not help; the member's time limit decides how long that may last. Only a secret that does
    /// not fit stays so.
    pub fn may_pass(&self) -> bool {
        !matches!(self, ConnectError::Authentication(_))
    }
}

/// What to connect to, and as whom.
#[derive(Clone, Debug)]
pub(super) struct Target<'a> {
    pub portal: &'a Portal,
    pub subsystem: &'a Nqn,
    pub host: &'a Host,
    pub options: &'a RemoteOptions,
    /// How long a step may take.
    pub limit: Duration,
}

impl Target<'_> {
    /// Opens a connection for a queue of `entries`, under TLS if this host has a key.
    fn open_wire(&self, entries: u16) -> Result<Wire, ConnectError> {
        let RemoteOptions { header_digest: header, data_digest: data, ref tls_key, .. } = *self.options;
        let (host, subsystem) = (self.host.nqn.as_str(), self.subsystem.as_str());
        let keys = tls_key.as_ref().map(|key| key.tls_psks(host, subsystem));
        let (digests, commands) = (Digests { header, data }, usize::from(entries) - 1);
        let opened = match keys {
            None => Wire::open(self.portal, digests, commands, self.limit),
            Some(keys) => Wire::open_tls(self.portal, &keys, digests, commands, self.limit),
        };
        opened.map_err(|error| match error {
            WireError::Tls(reason) => ConnectError::Authentication(format!(
                "no TLS with the target ({reason}): compare the key of --tls-secret with the one that the target has for this host"
            )),
            error => error.into(),
        })
    }
}

/// A controller and its admin queue.
pub(super) struct Controller {
    admin: Wire,
    id: u16,
    entries: u16,
    /// It takes requests for asynchronous events.
    hears: bool,
    pub info: ControllerInfo,
}

/// A namespace as its target tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Namespace {
    pub info: NamespaceInfo,
    pub uuid: Option<[u8; 16]>,
}

impl Controller {
    /// Connects the admin queue and enables the controller.
    pub fn connect(target: &Target<'_>, keep_alive: Duration) -> Result<Controller, ConnectError> {
        let mut admin = target.open_wire(ADMIN_ENTRIES)?;
        let queue = NewQueue {
            host: target.host,
            subsystem: target.subsystem,
            controller: None,
            queue: 0,
            entries: ADMIN_ENTRIES,
            keep_alive_ms: u32::try_from(keep_alive.as_millis()).unwrap_or(u32::MAX),
        };
        let id = connect_queue(&mut admin, target, &queue)?;
        let capabilities = get(&mut admin, property::CAPABILITIES, true)?;
        let (entries_max, ready_ms) = host_command::queue_limits(capabilities);
        refusal("enabling it", admin.succeed(host_command::enable(), Transfer::None)?)?;
        let until = Instant::now() + Duration::from_millis(ready_ms).max(target.limit);
        while !host_command::is_ready(get(&mut admin, property::STATUS, false)?) {
            if Instant::now() >= until {
                return Err(ConnectError::NotReady(ready_ms / 1000));
            }
            std::thread::sleep(READY_INTERVAL);
        }
        let mut bytes = vec![0; IDENTIFY_BYTES];
        let sqe = host_command::identify(cns::CONTROLLER, 0);
        refusal("Identify Controller", admin.succeed(sqe, Transfer::In(&mut bytes))?)?;
        let info = ControllerInfo::parse(&bytes)?;
        let told = if info.commands_max == 0 { IO_ENTRIES_MAX } else { u32::from(info.commands_max) };
        let entries = entries_max.min(told).clamp(2, IO_ENTRIES_MAX) as u16;
        Ok(Controller { admin, id, entries, hears: false, info })
    }

    /// Asks for I/O queues.
    pub fn take_queues(&mut self, wanted: u16) -> Result<(), ConnectError> {
        let answer = self.admin.succeed(host_command::set_queues(wanted), Transfer::None)?;
        let granted = host_command::queues_granted(refusal("its number of queues", answer)?);
        if granted < u32::from(wanted) {
            return Err(ConnectError::Queues { granted, wanted: wanted.into() });
        }
        Ok(())
    }

    /// Connects an I/O queue.
    pub fn open_queue(&self, target: &Target<'_>, number: u16) -> Result<Wire, ConnectError> {
        let mut wire = target.open_wire(self.entries)?;
        let queue = NewQueue {
            host: target.host,
            subsystem: target.subsystem,
            controller: Some(self.id),
            queue: number,
            entries: self.entries,
            keep_alive_ms: 0,
        };
        connect_queue(&mut wire, target, &queue)?;
        wire.set_in_capsule_bytes_max(self.info.in_capsule_bytes);
        Ok(wire)
    }

    /// Asks what a namespace is.
    pub fn namespace(&mut self, number: u32) -> Result<Namespace, ConnectError> {
        let mut bytes = vec![0; IDENTIFY_BYTES];
        let sqe = host_command::identify(cns::NAMESPACE, number);
        refusal("Identify Namespace", self.admin.succeed(sqe, Transfer::In(&mut bytes))?)?;
        let info = NamespaceInfo::parse(&bytes)?;
        let sqe = host_command::identify(cns::NAMESPACE_IDS, number);
        bytes.fill(0);
        // Older targets do not have this one.
        let told = self.admin.succeed(sqe, Transfer::In(&mut bytes))?;
        let uuid = told.ok().and_then(|_| NamespaceInfo::uuid(&bytes)).filter(|uuid| *uuid != [0; 16]);
        Ok(Namespace { info, uuid })
    }

    /// Shows that this host lives. How long the answer took.
    pub fn keep_alive(&mut self) -> Result<Duration, ConnectError> {
        let start = Instant::now();
        refusal("Keep Alive", self.admin.succeed(host_command::keep_alive(), Transfer::None)?)?;
        Ok(start.elapsed())
    }

    /// Has the controller tell when a namespace or its reservations change.
    pub fn hear(&mut self) -> Result<(), ConnectError> {
        let wanted = self.info.async_events & NAMESPACE_NOTICES;
        let told = self.admin.succeed(host_command::set_async_events(wanted), Transfer::None)?;
        self.hears = told.is_ok();
        Ok(self.admin.request_event(host_command::async_event_request())?)
    }

    /// Whether it tells when a namespace changes.
    pub fn tells_of_namespaces(&self) -> bool {
        self.info.async_events & NAMESPACE_NOTICES != 0 && self.hears
    }

    /// What the controller has told since it was asked last, as far as answers to later commands came.
    pub fn heard(&mut self) -> Result<Option<Heard>, ConnectError> {
        let dword0 = match self.admin.take_event() {
            None => return Ok(None),
            Some(Ok(dword0)) => dword0,
            Some(Err(_)) => {
                self.hears = false;
                return Ok(None);
            }
        };
        let heard = Heard::parse(dword0);
        // It tells again only after its page was read. What the page says is looked up.
        let bytes = match heard.event {
            Some(AsyncEvent::NamespaceChanged) => CHANGED_NAMESPACES_BYTES,
            Some(AsyncEvent::Reservation) => RESERVATION_NOTICE_BYTES,
            _ => 0,
        };
        if let Err(error @ ConnectError::Wire(_)) = self.log(heard.page, bytes) {
            return Err(error);
        }
        self.admin.request_event(host_command::async_event_request())?;
        Ok(Some(heard))
    }

    /// Reads the discovery log page.
    pub fn discovery_log(&mut self) -> Result<DiscoveryLog, ConnectError> {
        let mut bytes = DISCOVERY_FIRST_BYTES;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let read = self.log(page::DISCOVERY, bytes)?;
            match DiscoveryLog::parse(&read) {
                Err(DiscoveryError::Longer { bytes: wanted })
                    if attempt < DISCOVERY_ATTEMPTS && wanted > bytes =>
                {
                    bytes = wanted;
                }
                parsed => return Ok(parsed?),
            }
        }
    }

    fn log(&mut self, page: u8, bytes: usize) -> Result<Vec<u8>, ConnectError> {
        const PIECE: usize = 4096;
        let mut whole = vec![0; bytes];
        for (index, piece) in whole.chunks_mut(PIECE).enumerate() {
            let (offset, bytes) = ((index * PIECE) as u64, piece.len() as u64);
            let request = LogRequest { page, specific: 0, keeps_event: false, offset, bytes };
            let mut sqe = Sqe::new(admin::GET_LOG_PAGE, 0);
            let [dword10, dword11, dword12, dword13] = request.encode();
            sqe.cdw10.set(dword10);
            sqe.cdw11.set(dword11);
            sqe.cdw12.set(dword12);
            sqe.cdw13.set(dword13);
            refusal("Get Log Page", self.admin.succeed(sqe, Transfer::In(piece))?)?;
        }
        Ok(whole)
    }

    /// Tells the target of an array's attach at a namespace: its handle.
    pub fn attach_fabric(&mut self, namespace: u32, record: &AttachRecord) -> Result<u32, ConnectError> {
        let sqe = Sqe::new(admin_opcode::ATTACH, namespace);
        let answer = self.admin.succeed(sqe, Transfer::Out(&record.encode()))?;
        Ok(refusal("Attach", answer)? as u32)
    }

    /// Asks how the attach at a namespace stands.
    pub fn fabric_report(&mut self, namespace: u32) -> Result<AttachReport, ConnectError> {
        let mut bytes = [0; REPORT_BYTES];
        let sqe = Sqe::new(admin_opcode::ATTACH_REPORT, namespace);
        refusal("Attach report", self.admin.succeed(sqe, Transfer::In(&mut bytes))?)?;
        AttachReport::parse(&bytes).ok_or(ConnectError::Report)
    }

    /// Has the target begin or complete the ledger of a namespace.
    pub fn ledger_step(&mut self, namespace: u32, step: &LedgerStep) -> Result<(), ConnectError> {
        let sqe = Sqe::new(admin_opcode::LEDGER_STEP, namespace);
        refusal("Ledger step", self.admin.succeed(sqe, Transfer::Out(&step.encode()))?).map(drop)
    }

    /// Asks what the target has recorded of the former host of a namespace.
    pub fn ledger(&mut self, namespace: u32) -> Result<LedgerReport, ConnectError> {
        let mut bytes = vec![0; LEDGER_BYTES];
        loop {
            let sqe = Sqe::new(admin_opcode::LEDGER, namespace);
            refusal("Ledger", self.admin.succeed(sqe, Transfer::In(&mut bytes))?)?;
            match LedgerReport::parse(&bytes) {
                Ok(report) => return Ok(report),
                Err(NoLedger::Longer(all)) if all > bytes.len() => bytes.resize(all, 0),
                Err(_) => return Err(ConnectError::Report),
            }
        }
    }

    /// Ends the association in order, as far as the target still answers.
    pub fn shut_down(&mut self) {
        self.admin.set_limit(Duration::from_secs(1));
        let _best_effort = self.admin.run(host_command::shut_down(), Transfer::None);
    }

    /// Another descriptor of the connection.
    pub fn handle(&self) -> std::io::Result<std::os::fd::OwnedFd> {
        self.admin.handle()
    }
}

fn get(admin: &mut Wire, offset: u32, long: bool) -> Result<u64, ConnectError> {
    refusal("Property Get", admin.succeed(host_command::property_get(offset, long), Transfer::None)?)
}

fn refusal<T>(command: &'static str, answer: Result<T, Status>) -> Result<T, ConnectError> {
    answer.map_err(|status| ConnectError::Refused { command, status })
}

/// Connects a queue, and authenticates on it if the controller asks for that or this host does. The controller's number.
fn connect_queue(wire: &mut Wire, target: &Target<'_>, queue: &NewQueue<'_>) -> Result<u16, ConnectError> {
    let (sqe, data) = queue.connect();
    let value = refusal("Connect", wire.succeed(sqe, Transfer::Out(&data))?)?;
    let asks = value as u32 & CONNECT_REQUIRES_AUTHENTICATION != 0;
    match (&target.options.secret, asks) {
        (Some(_), true) => authenticate(wire, target)?,
        (None, true) => {
            let message =
                "the target wants this host to authenticate: name its secret with --dhchap-secret FILE";
            return Err(ConnectError::Authentication(message.into()));
        }
        // A target in the place of the right one would ask for nothing. Of a controller that has proven itself the kernel's
        // target (7.3) has no other queue authenticate.
        (_, false) if queue.queue == 0 && target.options.target_secret.is_some() => {
            let message =
                "the target asks for no authentication, but --dhchap-ctrl-secret wants it to prove itself";
            return Err(ConnectError::Authentication(message.into()));
        }
        (_, false) => {}
    }
    Ok(value as u16)
}

fn authenticate(wire: &mut Wire, target: &Target<'_>) -> Result<(), ConnectError> {
    let failed = |failure: Failure| ConnectError::Authentication(format!("not authenticated: {failure}"));
    let RemoteOptions { secret, target_secret, .. } = target.options;
    let names = Names { host: target.host.nqn.as_str().into(), subsystem: target.subsystem.as_str().into() };
    let settings = HostSettings {
        names,
        secret: secret.clone().expect("asked for above"),
        subsystem_secret: target_secret.clone(),
        functions: vec![HashFunction::Sha256, HashFunction::Sha384, HashFunction::Sha512],
        groups: DhGroup::BY_PREFERENCE.to_vec(),
    };
    let randomness =
        Randomness { challenge: random(), private: random().into(), sequence: u32::from_le_bytes(random()) };
    let (mut exchange, mut message) = HostExchange::begin(settings, randomness, u16::from_le_bytes(random()));
    loop {
        let bytes = u32::try_from(message.len()).expect("a short message");
        let sent = wire.succeed(transfer(true, bytes), Transfer::Out(&message))?;
        sent.map_err(|status| ConnectError::Authentication(format!("not authenticated: {status}")))?;
        let mut received = vec![0; TRANSFER_BYTES_MAX as usize];
        let got = wire.succeed(transfer(false, TRANSFER_BYTES_MAX), Transfer::In(&mut received))?;
        got.map_err(|status| ConnectError::Authentication(format!("not authenticated: {status}")))?;
        let step = exchange.receive(&received);
        match (step.end, step.send) {
            (Some(end), last) => {
                let told = last.map(|last| {
                    let bytes = u32::try_from(last.len()).expect("a short message");
                    wire.succeed(transfer(true, bytes), Transfer::Out(&last))
                });
                // A target may end the connection over a failure, which says more than that end.
                end.map_err(failed)?;
                told.transpose()?;
                return Ok(());
            }
            (None, Some(next)) => message = next,
            (None, None) => return Err(failed(Failure::IncorrectMessage)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_is_set_up_again_refuses_for_a_while() {
        let refused = |command, status: Status| ConnectError::Refused { command, status };
        for error in [
            refused("Connect", Status::CONNECT_INVALID_PARAMETERS.without_retry()),
            refused("Identify Namespace", Status::INVALID_NAMESPACE.without_retry()),
            ConnectError::Namespace(NamespaceInfoError::Absent),
            ConnectError::NotReady(1),
        ] {
            assert!(error.may_pass(), "{error}");
        }
        assert!(!ConnectError::Authentication("a wrong secret".into()).may_pass());
    }
}
