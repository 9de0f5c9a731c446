//! Targets with drives in memory, each a server of its own, and a host that attaches them.

use engine::buffer::{Gather, Pool};
use engine::error::VolumeError;
use engine::volume::{Space, Volume, VolumeInfo, ZeroFlags};
use host::device::nvme_tcp::RemoteOptions;
use host::export::nvme_tcp::{
    KeptReservations, NewNamespace, NewSubsystem, Server, ServerOptions, Subsystems,
};
use host::ring::Ring;
use host::shard::{ShardContext, ShardOptions, Shards};
use nvme_tcp::command::Sqe;
use nvme_tcp::discovery::{DiscoveryEntry, SubsystemType};
use nvme_tcp::initiator::Payload;
use nvme_tcp::names::{Host, HostId, Nqn};
use nvme_tcp::reservation::{Acquisition, Persistence, Registration, ReservationCommand, ReservationType};
use nvme_tcp::status::Status;
use nvme_tcp::subsystem::AllowList;
use nvme_tcp::vendor::{
    AttachMember, AttachRecord, AttachReport, Epoch, LedgerAction, LedgerReport, LedgerStep, Order,
    REPORT_BYTES, Settle, Ticket, admin_opcode,
};
use std::net::SocketAddr;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::host_end::Connected;

pub const BLOCK: usize = 4096;
pub const DRIVE_BLOCKS: usize = 64;
/// What each target gives: four times its drive.
pub const PEER_MEMORY: u64 = 4 * (DRIVE_BLOCKS * BLOCK) as u64;
const LIMIT: Duration = Duration::from_secs(20);

/// A drive in memory, whose writes can be held up.
pub struct Drive {
    bytes: Mutex<Vec<u8>>,
    pub paused: AtomicBool,
    /// Writes that are held up.
    pub waiting: AtomicUsize,
    /// Reads that it has answered.
    pub reads: AtomicUsize,
}

impl Drive {
    fn new(seed: u64) -> Arc<Drive> {
        let word =
            |at: usize| (seed ^ (at as u64 / 8)).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[at % 8];
        let bytes = Mutex::new((0..DRIVE_BLOCKS * BLOCK).map(word).collect());
        let (paused, waiting, reads) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
        Arc::new(Drive { bytes, paused, waiting, reads })
    }

    pub fn blocks(&self, blocks: Range<usize>) -> Vec<u8> {
        self.bytes.lock().expect("no panic")[blocks.start * BLOCK..blocks.end * BLOCK].to_vec()
    }

    pub fn set(&self, blocks: Range<usize>, contents: &[u8]) {
        self.bytes.lock().expect("no panic")[blocks.start * BLOCK..blocks.end * BLOCK]
            .copy_from_slice(contents);
    }

    /// Until a write is held up.
    pub fn wait_for_write(&self) {
        let since = Instant::now();
        while self.waiting.load(Ordering::SeqCst) == 0 {
            assert!(since.elapsed() < LIMIT, "it writes");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A shard's handle of a drive.
struct DriveVolume {
    drive: Arc<Drive>,
    pool: Arc<Pool>,
    ring: Ring,
}

fn range(offset_bytes: u64, bytes: u64) -> Range<usize> {
    offset_bytes as usize..(offset_bytes + bytes) as usize
}

impl Volume for DriveVolume {
    fn info(&self) -> VolumeInfo {
        VolumeInfo {
            size_bytes: (DRIVE_BLOCKS * BLOCK) as u64,
            logical_block_bytes: BLOCK as u32,
            physical_block_bytes: BLOCK as u32,
            io_min_bytes: BLOCK as u32,
            io_opt_bytes: 0,
            read_only: false,
        }
    }
}

impl Space for DriveVolume {
    async fn read(&self, offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        let mut buffer = self.pool.take(bytes as usize);
        self.drive.reads.fetch_add(1, Ordering::SeqCst);
        buffer
            .bytes_mut()
            .copy_from_slice(&self.drive.bytes.lock().expect("no panic")[range(offset_bytes, bytes)]);
        Ok(buffer.freeze().into())
    }

    async fn write(&self, offset_bytes: u64, data: Gather, _fua: bool) -> Result<(), VolumeError> {
        self.drive.waiting.fetch_add(1, Ordering::SeqCst);
        while self.drive.paused.load(Ordering::SeqCst) {
            self.ring.sleep(Duration::from_millis(1)).await;
        }
        self.drive.waiting.fetch_sub(1, Ordering::SeqCst);
        data.copy_to(&mut self.drive.bytes.lock().expect("no panic")[range(offset_bytes, data.len() as u64)]);
        Ok(())
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    async fn write_zeroes(&self, offset_bytes: u64, bytes: u64, _how: ZeroFlags) -> Result<(), VolumeError> {
        self.drive.bytes.lock().expect("no panic")[range(offset_bytes, bytes)].fill(0);
        Ok(())
    }

    async fn discard(&self, _offset_bytes: u64, _bytes: u64) -> Result<(), VolumeError> {
        Ok(())
    }
}

/// A target: one server, one subsystem, as many namespaces as drives.
pub struct Target {
    // Ends before the shards that it runs on.
    pub server: Server,
    _shards: Shards,
    pub address: SocketAddr,
    pub nqn: Nqn,
    pub drives: Vec<Arc<Drive>>,
    _folder: tempfile::TempDir,
}

fn name(text: &str) -> Nqn {
    Nqn::new(&format!("nqn.2026-11.example:{text}")).expect("a name")
}

pub fn host(number: u8) -> Host {
    Host { id: HostId([number; 16]), nqn: name(&format!("host{number}")) }
}

/// The name of a target among its peers.
pub fn peer(number: u8) -> Host {
    Host { id: HostId([100 + number; 16]), nqn: name(&format!("peer{number}")) }
}

impl Target {
    fn new(number: u8, namespaces: usize) -> Target {
        let drives = (0..namespaces).map(|at| Drive::new(u64::from(number) << 8 | at as u64)).collect();
        Target::at(SocketAddr::from(([127, 0, 0, 1], 0)), number, drives)
    }

    /// The server ends, and another serves the same drives at the same address. No host has them any more.
    pub fn restart(self, number: u8) -> Target {
        let Target { server, _shards, address, drives, .. } = self;
        drop((server, _shards));
        Target::at(address, number, drives)
    }

    fn at(address: SocketAddr, number: u8, drives: Vec<Arc<Drive>>) -> Target {
        let folder = tempfile::tempdir().expect("a folder");
        let shards = Shards::start(2, &ShardOptions { pin: false, ..ShardOptions::default() }, |_| {})
            .expect("shards");
        let subsystems = Arc::new(Subsystems::default());
        assert!(subsystems.connect_peers(RemoteOptions::new(peer(number).nqn, [number; 8])));
        let nqn = name(&format!("drive{number}"));
        let new = NewSubsystem {
            nqn: nqn.clone(),
            serial: number.to_string(),
            allow: AllowList::Named([host(1).nqn, host(2).nqn].into()),
            drives: String::new(),
            peers: Some(AllowList::Named((0..9).map(|number| peer(number).nqn).collect())),
            peer_memory: PEER_MEMORY,
        };
        subsystems.add(new).expect("the first");
        for (drive, id) in drives.iter().zip(1..) {
            let uuid = [id as u8; 16];
            let kept = KeptReservations::open(folder.path(), uuid, true).expect("reservations");
            let drive = Arc::clone(drive);
            let open = move |shard: &ShardContext| {
                let (drive, pool) = (Arc::clone(&drive), Arc::clone(&shard.pool));
                Rc::new(DriveVolume { drive, pool, ring: shard.ring.clone() })
            };
            let namespace = NewNamespace { id, uuid };
            subsystems.add_namespace(&nqn, &namespace, &shards.handle(), kept, open).expect("a namespace");
        }
        let server = Server::new(shards.handle(), subsystems, ServerOptions::default());
        let address = server.listen(address).expect("an address");
        Target { server, _shards: shards, address, nqn, drives, _folder: folder }
    }

    pub fn connect(&self, host: &Host) -> Connected {
        Connected::new(self.address, &self.nqn, host)
    }
}

/// Where a member is.
#[derive(Clone, Copy)]
pub struct Place {
    pub target: usize,
    pub namespace: u32,
}

/// Targets.
pub struct World {
    pub targets: Vec<Target>,
    pub places: Vec<Place>,
}

impl World {
    /// Each member on a target of its own.
    pub fn new(members: usize) -> World {
        let targets = (0..members).map(|number| Target::new(number as u8, 1)).collect();
        let places = (0..members).map(|target| Place { target, namespace: 1 }).collect();
        World { targets, places }
    }

    /// All members on one target.
    pub fn on_one(members: usize) -> World {
        let places = (0..members).map(|at| Place { target: 0, namespace: at as u32 + 1 }).collect();
        World { targets: vec![Target::new(0, members)], places }
    }

    pub fn drive(&self, member: usize) -> &Drive {
        let Place { target, namespace } = self.places[member];
        &self.targets[target].drives[namespace as usize - 1]
    }

    /// A host that has reserved and attached all members, and whose targets reach each other.
    pub fn attach(&self, number: u8, key: u64, op_limit: Duration) -> Attached {
        let mut attached = self.attach_without_peers(number, key);
        attached.tell_of_members(self, op_limit);
        attached.wait_for_peers();
        attached
    }

    /// A host that has reserved the members and has their handles.
    pub fn attach_without_peers(&self, number: u8, key: u64) -> Attached {
        let mut members = Vec::new();
        for place in &self.places {
            let mut connected = self.targets[place.target].connect(&host(number));
            reserve(&mut connected, place.namespace, key);
            members.push(Member { connected, namespace: place.namespace, handle: 0 });
        }
        let mut attached = Attached { members, key };
        for index in 0..attached.members.len() {
            let (status, handle) = attached.send_record(index, Vec::new(), Duration::from_secs(10));
            assert!(status.is_success() && handle != 0, "{status}");
            attached.members[index].handle = handle;
        }
        attached
    }
}

/// What a target says that it has recorded.
pub fn ledger_of(connected: &mut Connected, namespace: u32) -> (Status, Option<LedgerReport>) {
    let sqe = Sqe::new(admin_opcode::LEDGER, namespace);
    let (status, _, data) = connected.admin.call(sqe, Payload::In { bytes: 4096 }, Vec::new());
    let report = status.is_success().then(|| LedgerReport::parse(&data).expect("a ledger"));
    (status, report)
}

pub fn register(new_key: u64) -> ReservationCommand {
    let registration = Registration::Register { new_key };
    ReservationCommand::Register { registration, persistence: Persistence::Unchanged }
}

pub fn preempt(key: u64, victims_key: u64) -> ReservationCommand {
    let acquisition = Acquisition::Preempt { victims_key, abort: true };
    ReservationCommand::Acquire { key, kind: ReservationType::ExclusiveAccess, acquisition }
}

pub fn reserve(connected: &mut Connected, namespace: u32, key: u64) {
    let kind = ReservationType::ExclusiveAccess;
    let acquire = ReservationCommand::Acquire { key, kind, acquisition: Acquisition::Acquire };
    for command in [register(key), acquire] {
        assert_eq!(reservation(connected, namespace, &command), Status::SUCCESS);
    }
}

pub fn reservation(connected: &mut Connected, namespace: u32, command: &ReservationCommand) -> Status {
    let (opcode, dword10, data) = command.encode();
    let mut sqe = Sqe::new(opcode, namespace);
    sqe.cdw10.set(dword10);
    connected.io.call(sqe, Payload::Out { bytes: data.len() as u32 }, data).0
}

/// A host's attach.
pub struct Attached {
    pub members: Vec<Member>,
    pub key: u64,
}

pub struct Member {
    pub connected: Connected,
    pub namespace: u32,
    pub handle: u32,
}

impl Attached {
    fn record(&self, index: usize, members: Vec<AttachMember>, op_limit: Duration) -> AttachRecord {
        AttachRecord {
            index: index as u8,
            key: self.key,
            array: [1; 16],
            op_limit_ms: op_limit.as_millis() as u32,
            credit_bytes: 0,
            members,
        }
    }

    pub fn send_record(
        &mut self,
        index: usize,
        members: Vec<AttachMember>,
        op_limit: Duration,
    ) -> (Status, u32) {
        let data = self.record(index, members, op_limit).encode();
        let member = &mut self.members[index];
        let sqe = Sqe::new(admin_opcode::ATTACH, member.namespace);
        let (status, value, _) =
            member.connected.admin.call(sqe, Payload::Out { bytes: data.len() as u32 }, data);
        (status, value as u32)
    }

    /// A target has forgotten this host.
    pub fn attach_again(&mut self, world: &World, index: usize) {
        let place = world.places[index];
        let mut connected = world.targets[place.target].connect(&host(1));
        reserve(&mut connected, place.namespace, self.key);
        self.members[index].connected = connected;
        let (status, handle) = self.send_record(index, Vec::new(), LIMIT);
        assert_eq!(status, Status::SUCCESS);
        self.members[index].handle = handle;
        self.tell_of_members(world, LIMIT);
    }

    /// The host attaches anew everywhere, under another key.
    pub fn replace_key(&mut self, world: &World, key: u64) {
        for member in &mut self.members {
            let registration = Registration::Replace { key: Some(self.key), new_key: key };
            let command = ReservationCommand::Register { registration, persistence: Persistence::Unchanged };
            assert_eq!(reservation(&mut member.connected, member.namespace, &command), Status::SUCCESS);
        }
        self.key = key;
        for index in 0..self.members.len() {
            let (status, handle) = self.send_record(index, Vec::new(), LIMIT);
            assert_eq!(status, Status::SUCCESS);
            self.members[index].handle = handle;
        }
        self.tell_of_members(world, LIMIT);
        self.wait_for_peers();
    }

    fn wait_for_peers(&mut self) {
        let all = (1u32 << self.members.len()) - 1;
        for member in 0..self.members.len() {
            let since = Instant::now();
            while self.report(member).reached != all {
                assert!(since.elapsed() < LIMIT, "member {member} reaches the others");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn tell_of_members(&mut self, world: &World, op_limit: Duration) {
        let members: Vec<AttachMember> = world
            .places
            .iter()
            .zip(&self.members)
            .map(|(place, member)| {
                let target = &world.targets[place.target];
                AttachMember {
                    nsid: place.namespace,
                    handle: member.handle,
                    ticket: Ticket([0; 16]),
                    boot_id: 0,
                    shift_blocks: 0,
                    flags: 0,
                    place: DiscoveryEntry {
                        subsystem_type: SubsystemType::Nvm,
                        port: 1,
                        nqn: target.nqn.clone(),
                        address: target.address.ip(),
                        service: target.address.port(),
                        tls: false,
                    },
                }
            })
            .collect();
        for index in 0..self.members.len() {
            let (status, handle) = self.send_record(index, members.clone(), op_limit);
            assert_eq!((status, handle), (Status::SUCCESS, self.members[index].handle));
        }
    }

    pub fn report(&mut self, index: usize) -> AttachReport {
        let member = &mut self.members[index];
        let sqe = Sqe::new(admin_opcode::ATTACH_REPORT, member.namespace);
        let payload = Payload::In { bytes: REPORT_BYTES as u32 };
        let (status, _, data) = member.connected.admin.call(sqe, payload, Vec::new());
        assert_eq!(status, Status::SUCCESS);
        AttachReport::parse(&data).expect("a report")
    }

    /// Has a member's target begin or complete a ledger of the blocks `area`.
    pub fn ledger_step(&mut self, index: usize, action: LedgerAction, id: u64, area: Range<u64>) -> Status {
        let step = LedgerStep { action, id, key: self.key, area };
        let member = &mut self.members[index];
        let sqe = Sqe::new(admin_opcode::LEDGER_STEP, member.namespace);
        let data = step.encode().to_vec();
        let (status, ..) = member.connected.admin.call(sqe, Payload::Out { bytes: data.len() as u32 }, data);
        status
    }

    /// What a member's target has recorded.
    pub fn ledger(&mut self, index: usize) -> LedgerReport {
        let member = &mut self.members[index];
        let (status, report) = ledger_of(&mut member.connected, member.namespace);
        report.unwrap_or_else(|| panic!("no ledger: {status}"))
    }

    /// Sends a command that names an epoch, or none. Its status.
    pub fn change(&mut self, index: usize, mut sqe: Sqe, epoch: Option<Epoch>, data: Vec<u8>) -> Status {
        if let Some(epoch) = epoch {
            epoch.stamp(&mut sqe);
        }
        let payload = if data.is_empty() { Payload::None } else { Payload::Out { bytes: data.len() as u32 } };
        self.members[index].connected.io.call(sqe, payload, data).0
    }

    /// Gives each of some members an order at the same time. Returns status, first word and data of each.
    pub fn order(&mut self, orders: Vec<(usize, Order, Vec<u8>)>) -> Vec<Ended> {
        let mut given: Vec<_> = self.members.iter_mut().map(Some).collect();
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (index, order, data) in orders {
                let member = given[index].take().expect("one order each");
                threads.push(scope.spawn(move || {
                    let (sqe, payload) = command(&order, member.namespace, &data);
                    member.connected.io.call(sqe, payload, data)
                }));
            }
            threads.into_iter().map(|thread| thread.join().expect("no panic").into()).collect()
        })
    }

    /// Sends an order and does not wait.
    pub fn begin(&mut self, index: usize, order: &Order, data: Vec<u8>) {
        let member = &mut self.members[index];
        let (sqe, payload) = command(order, member.namespace, &data);
        member.connected.io.begin(sqe, payload, data);
    }

    pub fn settle(&mut self, index: usize, settle: &Settle) -> Ended {
        let member = &mut self.members[index];
        member.connected.io.call(settle.encode(member.namespace), Payload::None, Vec::new()).into()
    }
}

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    pub status: Status,
    pub outcome: nvme_tcp::vendor::Outcome,
    pub data: Vec<u8>,
}

impl From<(Status, u64, Vec<u8>)> for Ended {
    fn from((status, value, data): (Status, u64, Vec<u8>)) -> Self {
        Ended { status, outcome: nvme_tcp::vendor::Outcome::decode(value as u32), data }
    }
}

pub fn command(order: &Order, namespace: u32, data: &[u8]) -> (Sqe, Payload) {
    let returned = order.data_in_blocks() * BLOCK as u32;
    let payload = match (data.len() as u32, returned) {
        (0, 0) => Payload::None,
        (0, bytes) => Payload::In { bytes },
        (bytes, _) => Payload::Out { bytes },
    };
    (order.encode(namespace), payload)
}
