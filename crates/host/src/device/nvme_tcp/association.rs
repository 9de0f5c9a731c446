//! One association with the target of a member: its controller, the queue for reservations and one-off commands, and the
//! reservation under which this host has the member.

use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use nvme_tcp::command::{Sqe, io as opcode};
use nvme_tcp::host_command::{self, BLOCKS_MAX};
use nvme_tcp::identify::CAPABILITY_BYTES;
use nvme_tcp::names::Host;
use nvme_tcp::reservation::{
    Acquisition, Persistence, Registration, Report, ReportError, ReservationCommand, ReservationType,
};
use nvme_tcp::status::Status;
use nvme_tcp::vendor::{AttachRecord, AttachReport, LedgerReport, LedgerStep};

use super::address::RemoteAddress;
use super::controller::{ConnectError, Controller, Namespace, Target};
use super::fencing::{self, Claim, Holder, OwnKeys, Step};
use super::options::{RemoteOptions, random_key};
use super::wire::{Transfer, Wire, WireError};

/// How long a step of connecting may take.
const STEP_LIMIT: Duration = Duration::from_secs(5);
/// How long a preempt may take: it waits for the other host's commands.
const PREEMPT_LIMIT: Duration = Duration::from_secs(60);
/// Steps of an attach until it is given up: another host attaches at the same time.
const STEPS_MAX: u32 = 64;
/// Bytes of a report that are asked for first.
const REPORT_BYTES: usize = 4096;
/// Bytes of one-off reads and writes in one command.
const PIECE_BYTES_MAX: u64 = 128 << 10;
/// The type of reservation that keeps other hosts from reading and writing, as a bit of the namespace's abilities.
const EXCLUSIVE_ACCESS_KNOWN: u8 = 1 << 2;
const PERSISTS: u8 = 1;
/// What a Twill target's capability begins with, and where the machine's half of its boot id stands.
const CAPABILITY: &[u8] = b"TwFab\0\0\0";

/// Why a member was not attached.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// Its target cannot be used.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// Another host has it.
    #[error("{0} has reserved it")]
    Taken(Holder),
    /// Hosts attach at the same time, again and again.
    #[error("another host attaches it at the same time")]
    Race,
    /// The reservation is gone.
    #[error(
        "the target has forgotten this host's reservation, and no other member shows that the array is still this host's"
    )]
    Lost,
    /// Its target has no reservations.
    #[error("its target has no reservations, so nothing keeps another host from writing to it")]
    NoReservations,
    /// It is not the one that it was.
    #[error("{0}")]
    Changed(String),
    /// Its blocks are too large.
    #[error("its blocks have {0} bytes; those of members have at most 4096")]
    Blocks(u64),
    /// What it answers makes no sense.
    #[error(transparent)]
    Report(#[from] ReportError),
    /// The system.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<WireError> for AttachError {
    fn from(error: WireError) -> Self {
        ConnectError::from(error).into()
    }
}

/// How a member is to be attached.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Attach {
    /// No other process of this machine has the member.
    pub is_alone: bool,
    pub take_over: bool,
    /// Nothing is reserved: to look only.
    pub look: bool,
    /// I/O queues beside the one for reservations.
    pub queues: u16,
}

/// What is known of a member that was attached before.
pub(super) struct Former<'a> {
    /// The keys under which it may still be this host's.
    pub own: &'a mut OwnKeys,
    /// Whether most of the other members are still this host's, asked if the target has forgotten this one's reservation.
    pub others_hold: &'a dyn Fn() -> bool,
    /// In what a namespace is not the one that it was.
    pub changed: &'a dyn Fn(&Namespace) -> Option<String>,
}

impl<'a> Former<'a> {
    /// For one that this process had not.
    pub fn none(own: &'a mut OwnKeys) -> Self {
        Former { own, others_hold: &|| false, changed: &|_| None }
    }
}

/// An association.
pub(super) struct Association {
    pub controller: Controller,
    control: Wire,
    pub namespace: Namespace,
    pub host: Host,
    /// Of the reservation; none: the member is used without one.
    pub key: Option<u64>,
    /// The host that had the member and was preempted.
    pub preempted: Option<Holder>,
    /// The target has not restarted since the former association, as its reservations show.
    pub is_same_run: bool,
    number: u32,
    next_queue: u16,
}

impl Association {
    /// Connects, and takes the member for this host alone (F-I6).
    pub fn open(
        address: &RemoteAddress,
        options: &RemoteOptions,
        attach: &Attach,
        former: &mut Former<'_>,
    ) -> Result<Association, AttachError> {
        let host = options.new_host();
        let target = Target {
            portal: &address.portal,
            subsystem: &address.nqn,
            host: &host,
            options,
            limit: STEP_LIMIT.min(options.time_limit),
        };
        let keep_alive = if attach.look { Duration::ZERO } else { options.keep_alive };
        let mut controller = Controller::connect(&target, keep_alive)?;
        controller.take_queues(attach.queues + 1)?;
        let control = controller.open_queue(&target, 1)?;
        let namespace = controller.namespace(address.namespace)?;
        // Before anything is reserved: another namespace is another's.
        if let Some(reason) = (former.changed)(&namespace) {
            controller.shut_down();
            return Err(AttachError::Changed(reason));
        }
        let mut association = Association {
            controller,
            control,
            namespace,
            host,
            key: None,
            preempted: None,
            is_same_run: false,
            number: address.namespace,
            next_queue: 2,
        };
        if !attach.look && !options.is_peer {
            association.controller.hear()?;
            association.fence(options, attach, former)?;
        }
        Ok(association)
    }

    fn fence(
        &mut self,
        options: &RemoteOptions,
        attach: &Attach,
        former: &mut Former<'_>,
    ) -> Result<(), AttachError> {
        let known = self.namespace.info.reservations;
        if !self.knows_reservations() {
            return if options.unfenced { Ok(()) } else { Err(AttachError::NoReservations) };
        }
        let mut claim = Claim {
            host: self.host.id,
            key: random_key(),
            own: former.own.clone(),
            own_half: attach.is_alone.then_some(options.host_half),
            take_over: attach.take_over,
            others_hold: false,
        };
        for attempt in 0..STEPS_MAX {
            let report = self.report()?;
            if attempt == 0 {
                let may_persist = known & PERSISTS != 0;
                self.is_same_run = fencing::shows_same_run(&report, former.own, may_persist);
            }
            let step = fencing::next(&report, &claim);
            let command = match step {
                Step::Held => {
                    self.key = Some(claim.key);
                    return Ok(());
                }
                Step::Taken(holder) => return Err(AttachError::Taken(holder)),
                Step::Lost if (former.others_hold)() => {
                    claim.others_hold = true;
                    continue;
                }
                Step::Lost => return Err(AttachError::Lost),
                Step::Register => {
                    // Before it is sent: if its answer is lost, the next attempt finds the key at the target.
                    former.own.tries(claim.key, self.is_same_run);
                    ReservationCommand::Register {
                        registration: Registration::Register { new_key: claim.key },
                        persistence: if known & PERSISTS != 0 {
                            Persistence::On
                        } else {
                            Persistence::Unchanged
                        },
                    }
                }
                Step::Acquire => acquire(claim.key, Acquisition::Acquire),
                Step::Preempt(victims_key) => {
                    self.note_preempted(&report, &claim, victims_key);
                    acquire(claim.key, Acquisition::Preempt { victims_key, abort: true })
                }
            };
            let status = self.reserve(&command)?;
            // A conflict is for the next report to explain: another host was faster.
            if !status.is_success() && !status.is(Status::RESERVATION_CONFLICT) {
                return Err(ConnectError::Refused { command: "a reservation command", status }.into());
            }
        }
        Err(AttachError::Race)
    }

    /// Whether the namespace has the reservations that keep other hosts away: a controller may know the commands, and not have
    /// them for each of its namespaces.
    pub fn knows_reservations(&self) -> bool {
        let known = self.namespace.info.reservations;
        self.controller.info.reservations && known & EXCLUSIVE_ACCESS_KNOWN != 0
    }

    fn note_preempted(&mut self, report: &Report, claim: &Claim, key: u64) {
        let victim = report.registrants.iter().find(|one| one.key == key && one.holds);
        if let Some(victim) = victim.filter(|one| !claim.own.has(one.key)) {
            self.preempted = Some(Holder { host: victim.host, key });
        }
    }

    fn reserve(&mut self, command: &ReservationCommand) -> Result<Status, WireError> {
        let (opcode, dword10, data) = command.encode();
        let mut sqe = Sqe::new(opcode, self.number);
        sqe.cdw10.set(dword10);
        let usual = self.control.set_limit(PREEMPT_LIMIT);
        let completed = self.control.run(sqe, Transfer::Out(&data));
        self.control.set_limit(usual);
        Ok(completed?.status)
    }

    /// Asks which host has the member.
    pub fn report(&mut self) -> Result<Report, AttachError> {
        let mut bytes = REPORT_BYTES;
        loop {
            let mut sqe = Sqe::new(opcode::RESERVATION_REPORT, self.number);
            let (dword10, dword11) = Report::request(bytes);
            sqe.cdw10.set(dword10);
            sqe.cdw11.set(dword11);
            let mut data = vec![0; bytes];
            let answer = self.control.succeed(sqe, Transfer::In(&mut data))?;
            answer.map_err(|status| ConnectError::Refused { command: "Reservation Report", status })?;
            match Report::parse(&data) {
                Err(ReportError::Longer { bytes: wanted }) if wanted > bytes => bytes = wanted,
                parsed => return Ok(parsed?),
            }
        }
    }

    /// The host that has the member, if it is another.
    pub fn other_holder(&mut self) -> Result<Option<Holder>, AttachError> {
        let report = self.report()?;
        let other = report.registrants.iter().find(|one| one.holds && one.host != self.host.id);
        Ok(other.map(|one| Holder { host: one.host, key: one.key }))
    }

    /// Whether the member is still this attach's.
    pub fn still_holds(&mut self) -> Result<bool, AttachError> {
        let Some(key) = self.key else { return Ok(self.other_holder()?.is_none()) };
        let report = self.report()?;
        Ok(report.registrants.iter().any(|one| one.holds && one.host == self.host.id && one.key == key))
    }

    /// Looks at a namespace without taking it.
    pub fn look(address: &RemoteAddress, options: &RemoteOptions) -> Result<Association, AttachError> {
        let look = Attach { look: true, ..Attach::default() };
        Association::open(address, options, &look, &mut Former::none(&mut OwnKeys::default()))
    }

    /// Connects a queue for a shard.
    pub fn open_queue(
        &mut self,
        address: &RemoteAddress,
        options: &RemoteOptions,
    ) -> Result<Wire, ConnectError> {
        let number = self.next_queue;
        self.next_queue += 1;
        let target = Target {
            portal: &address.portal,
            subsystem: &address.nqn,
            host: &self.host,
            options,
            limit: STEP_LIMIT.min(options.time_limit),
        };
        self.controller.open_queue(&target, number)
    }

    /// Descriptors of its two connections.
    pub fn handles(&self) -> io::Result<Vec<OwnedFd>> {
        Ok(vec![self.controller.handle()?, self.control.handle()?])
    }

    /// The machine's half of the target's boot id, where the target has one: a process that restarts keeps it (F-I17).
    pub fn machine(&self) -> Option<[u8; 4]> {
        let capability: &[u8; CAPABILITY_BYTES] = &self.controller.info.capability;
        let is_one = capability.starts_with(CAPABILITY) && capability[16..] != [0; 8];
        is_one.then(|| capability[20..].try_into().expect("4 bytes"))
    }

    /// Bytes that one command moves, a multiple of the namespace's block.
    pub fn transfer_bytes_max(&self) -> u64 {
        let log2 = self.namespace.info.block_log2;
        let most = self.controller.info.transfer_bytes_max.unwrap_or(u64::MAX);
        let most = most.min(u64::from(BLOCKS_MAX) << log2).min(1 << 30);
        (most >> log2 << log2).max(1 << log2)
    }

    /// Reads whole blocks.
    pub fn read(&mut self, offset: u64, target: &mut [u8]) -> io::Result<()> {
        let (log2, piece) = (self.namespace.info.block_log2, self.piece_bytes());
        for (index, part) in target.chunks_mut(piece).enumerate() {
            let at = offset + (index * piece) as u64;
            let sqe = host_command::read(self.number, at >> log2, (part.len() >> log2) as u32);
            let answer = self.control.succeed(sqe, Transfer::In(part)).map_err(io::Error::other)?;
            answer.map_err(|status| self.failed("read", status))?;
        }
        Ok(())
    }

    /// Writes whole blocks.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let (log2, piece) = (self.namespace.info.block_log2, self.piece_bytes());
        for (index, part) in data.chunks(piece).enumerate() {
            let at = offset + (index * piece) as u64;
            let sqe = host_command::write(self.number, at >> log2, (part.len() >> log2) as u32, false);
            let answer = self.control.succeed(sqe, Transfer::Out(part)).map_err(io::Error::other)?;
            answer.map_err(|status| self.failed("write", status))?;
        }
        Ok(())
    }

    /// Makes what was written durable.
    pub fn flush(&mut self) -> io::Result<()> {
        let sqe = host_command::flush(self.number);
        let answer = self.control.succeed(sqe, Transfer::None).map_err(io::Error::other)?;
        answer.map(drop).map_err(|status| self.failed("flush", status))
    }

    fn piece_bytes(&self) -> usize {
        usize::try_from(self.transfer_bytes_max().min(PIECE_BYTES_MAX)).expect("at most 128 KiB")
    }

    /// The error of a command, which for a member of another host says whose it is.
    fn failed(&mut self, what: &str, status: Status) -> io::Error {
        let is_reserved = status.is(Status::RESERVATION_CONFLICT);
        let by = if is_reserved { self.other_holder().ok().flatten() } else { None };
        match by {
            Some(holder) => io::Error::new(io::ErrorKind::ResourceBusy, format!("{holder} has reserved it")),
            None => io::Error::other(format!("the {what} was refused: {status}")),
        }
    }

    /// Whether the target makes parity together with others.
    pub fn takes_orders(&self) -> bool {
        self.controller.info.fabric.is_some_and(|fabric| fabric.knows_commands())
    }

    /// Tells the target of an array's attach. The handle by which other targets reach the member.
    pub fn attach_fabric(&mut self, record: &AttachRecord) -> Result<u32, ConnectError> {
        self.controller.attach_fabric(self.number, record)
    }

    /// Whether its target counts the memory that ops take, and is asked for some.
    pub fn counts_credit(&self) -> bool {
        self.controller.info.fabric.is_some_and(|fabric| fabric.retained_mib > 0)
    }

    /// Asks how the attach stands.
    pub fn fabric_report(&mut self) -> Result<AttachReport, ConnectError> {
        self.controller.fabric_report(self.number)
    }

    /// Has the target begin or complete the ledger of the member.
    pub fn ledger_step(&mut self, step: &LedgerStep) -> Result<(), ConnectError> {
        self.controller.ledger_step(self.number, step)
    }

    /// Asks what the target has recorded of the member's former host.
    pub fn ledger(&mut self) -> Result<LedgerReport, ConnectError> {
        self.controller.ledger(self.number)
    }

    /// Gives the member up, for any host to take, and ends the association.
    pub fn release(mut self) {
        if let Some(key) = self.key {
            let kind = ReservationType::ExclusiveAccess.number();
            let _best_effort = self.reserve(&ReservationCommand::Release { key, kind });
            let registration = Registration::Unregister { key: Some(key) };
            let persistence = Persistence::Unchanged;
            let _best_effort = self.reserve(&ReservationCommand::Register { registration, persistence });
        }
        self.controller.shut_down();
    }

    /// Ends the association.
    pub fn close(mut self) {
        self.controller.shut_down();
    }
}

fn acquire(key: u64, acquisition: Acquisition) -> ReservationCommand {
    ReservationCommand::Acquire { key, kind: ReservationType::ExclusiveAccess, acquisition }
}
