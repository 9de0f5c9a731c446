//! What hosts hear without asking, and reads whose data completes them.

use nvme_tcp::command::admin;

use super::host_end::HostQueue;
use super::*;

const ANY_CONTROLLER: u16 = 0xffff;
/// Asynchronous event: notice, namespace attribute changed, page 04h.
const NAMESPACE_EVENT: u64 = 0x0004_0002;
const SECOND: [u8; 16] = [10; 16];

/// Wants to hear of namespaces, and waits.
fn listens(admin: &mut HostQueue) {
    let mut configuration = Sqe::new(admin::SET_FEATURES, 0);
    (configuration.cdw10, configuration.cdw11) = (U32::new(0x0b), U32::new(1 << 8));
    assert_eq!(admin.call(configuration, Payload::None, Vec::new()).0, Status::SUCCESS);
    admin.begin(Sqe::new(admin::ASYNC_EVENT_REQUEST, 0), Payload::None, Vec::new());
    assert!(admin.is_silent_for(Duration::from_millis(100)));
}

/// The log page of changed namespaces, which is empty afterwards.
fn changed(admin: &mut HostQueue) -> Vec<u32> {
    let mut page = Sqe::new(admin::GET_LOG_PAGE, u32::MAX);
    page.cdw10 = U32::new(0x04 | 1023 << 16);
    let (status, _, data) = admin.call(page, Payload::In { bytes: 4096 }, Vec::new());
    assert_eq!(status, Status::SUCCESS);
    ids(&data)
}

/// Active namespaces, as Identify lists them.
fn listed(admin: &mut HostQueue) -> Vec<u32> {
    let mut identify = Sqe::new(admin::IDENTIFY, 0);
    identify.cdw10 = U32::new(0x02);
    let (status, _, data) = admin.call(identify, Payload::In { bytes: 4096 }, Vec::new());
    assert_eq!(status, Status::SUCCESS);
    ids(&data)
}

fn ids(page: &[u8]) -> Vec<u32> {
    let ids = page.chunks_exact(4).map(|id| u32::from_le_bytes(id.try_into().expect("four bytes")));
    ids.take_while(|id| *id != 0).collect()
}

#[test]
fn a_host_hears_of_namespaces_that_come_and_go() {
    let world = World::new();
    let mut host = world.connect(1);
    let (shards, second) = (world._shards.handle(), Memory::new(1 << 20));
    let read =
        |host: &mut Connected| host.io.call(Sqe::new(io::READ, 2), Payload::In { bytes: 4096 }, Vec::new()).0;
    assert_eq!(read(&mut host), Status::INVALID_NAMESPACE);
    listens(&mut host.admin);
    let kept = KeptReservations::open(world.folder.path(), SECOND, true).expect("reservations");
    let namespace = NewNamespace { id: 2, uuid: SECOND };
    world
        .subsystems
        .add_namespace(&subsystem(), &namespace, &shards, kept, Memory::opener(&second))
        .expect("a second namespace");
    assert_eq!(host.admin.end().value, NAMESPACE_EVENT);
    assert_eq!(changed(&mut host.admin), [2]);
    assert_eq!(listed(&mut host.admin), [1, 2]);
    assert_eq!(read(&mut host), Status::SUCCESS);

    listens(&mut host.admin);
    second.resize(2 << 20);
    world.subsystems.change_namespace(&subsystem(), 2, &shards).expect("it is there");
    assert_eq!(host.admin.end().value, NAMESPACE_EVENT);
    assert_eq!(changed(&mut host.admin), [2]);
    let mut beyond = Sqe::new(io::READ, 2);
    beyond.cdw10 = U32::new((1 << 20) / 4096);
    assert_eq!(host.io.call(beyond, Payload::In { bytes: 4096 }, Vec::new()).0, Status::SUCCESS);

    listens(&mut host.admin);
    let gone = world.subsystems.remove_namespace(&subsystem(), 2, Duration::from_secs(20));
    assert_eq!(gone, Ok(true));
    assert_eq!(host.admin.end().value, NAMESPACE_EVENT);
    assert_eq!(changed(&mut host.admin), [2]);
    assert_eq!(listed(&mut host.admin), [1]);
    assert_eq!(read(&mut host), Status::INVALID_NAMESPACE);
    assert_eq!(read_status(&mut host), Status::SUCCESS);
    // Its reservations are another server's to keep now.
    KeptReservations::open(world.folder.path(), SECOND, false).expect("it is not locked");
}

/// Without flow control of the submission queue the data of a read says that it went well; errors are said as ever.
#[test]
fn data_completes_a_read_where_no_flow_control_was_agreed() {
    const NO_FLOW_CONTROL: u32 = 1 << 2;
    let world = World::new();
    let mut admin = HostQueue::open(world.address);
    let asked = (0, ANY_CONTROLLER);
    let controller = admin.connect_as(&subsystem(), &host(1), asked, NO_FLOW_CONTROL).expect("allowed");
    assert_eq!(admin.configure(ENABLED), Status::SUCCESS);
    let mut io = HostQueue::open(world.address);
    io.connect_as(&subsystem(), &host(1), (1, controller), NO_FLOW_CONTROL).expect("allowed");
    let mut host = Connected { admin, io };
    for byte in 1..10 {
        assert_eq!(write_status(&mut host, byte), Status::SUCCESS);
        let read = host.io.call(Sqe::new(io::READ, 1), Payload::In { bytes: 4096 }, Vec::new());
        assert_eq!((read.0, read.2), (Status::SUCCESS, vec![byte; 4096]));
        assert!(byte > 1 || host.io.is_silent_for(Duration::from_millis(200)), "no completion follows");
        let mut beyond = Sqe::new(io::READ, 1);
        beyond.cdw10 = U32::new(1 << 20);
        let refused = host.io.call(beyond, Payload::In { bytes: 4096 }, Vec::new());
        assert_eq!(refused.0, Status::LBA_OUT_OF_RANGE);
    }
}
