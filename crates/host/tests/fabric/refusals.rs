//! Who may do what: hosts that have lost their right, targets that are not allowed, and ops that are over.

use nvme_tcp::command::{Sqe, io};
use nvme_tcp::initiator::Payload;
use nvme_tcp::names::{Host, HostId, Nqn};
use nvme_tcp::status::Status;
use nvme_tcp::vendor::{Peer, admin_opcode};

use std::sync::atomic::Ordering;

use super::host_end::{Connected, HostQueue};
use super::world::{host, peer, preempt, register, reservation};
use super::*;

fn peer_command(number: u64, handle: u32, rows: Blocks) -> (Sqe, Payload, Vec<u8>) {
    let Blocks { slba, blocks } = rows;
    let one = Peer { op: op(number), slba, blocks, handle, member: 0, answer_when_complete: false };
    let data = contents(9, blocks as usize);
    (one.encode(1), Payload::Out { bytes: data.len() as u32 }, data)
}

fn call(connected: &mut Connected, (sqe, payload, data): (Sqe, Payload, Vec<u8>)) -> Status {
    connected.io.call(sqe, payload, data).0
}

/// F-I6: nothing of the former host begins after the preempt, which waits for no op's limit.
#[test]
fn a_host_that_lost_its_reservation_does_nothing_more_and_holds_no_preempt_up() {
    let world = World::new(3);
    let mut first = world.attach(1, 11, Duration::from_secs(60));
    let rows = blocks(0, 1);
    let before = world.drive(2).blocks(0..1);
    first.begin(2, &reduce(1, ReduceBase::Old, rows, 1, Sink::Drive), Vec::new());
    let since = Instant::now();
    while first.report(2).ops_open == 0 {
        assert!(since.elapsed() < LIMIT, "it gathers");
    }
    let mut second = world.targets[2].connect(&host(2));
    assert_eq!(reservation(&mut second, 1, &register(22)), Status::SUCCESS);
    let since = Instant::now();
    assert_eq!(reservation(&mut second, 1, &preempt(22, 11)), Status::SUCCESS);
    assert!(since.elapsed() < Duration::from_secs(5), "it does not wait for the op");
    assert_eq!(first.members[2].connected.io.end().status, Status::OP_ABORTED);
    let ended = first.order(vec![(2, reduce(2, ReduceBase::Old, rows, 1, Sink::Drive), Vec::new())]);
    assert_eq!(ended[0].status, Status::RESERVATION_CONFLICT);
    // Its peers are refused by the handle that died.
    let (handle, ended) = {
        let handle = first.members[2].handle;
        (handle, first.order(vec![(0, contribute(3, ContributeHow::Old, None, rows, &[(2, 1)]), Vec::new())]))
    };
    assert_eq!(ended[0].status, Status::PEER_UNREACHABLE);
    let mut stranger = world.targets[2].connect(&peer(0));
    assert_eq!(call(&mut stranger, peer_command(4, handle, rows)), Status::NO_ATTACH);
    assert_eq!(world.drive(2).blocks(0..1), before);
}

/// F-I6: what the drive writes for an op of the former host is over when the preempt is answered.
#[test]
fn a_preempt_waits_for_what_an_op_is_writing() {
    let world = World::new(2);
    let mut first = world.attach(1, 11, LIMIT);
    let rows = blocks(0, 1);
    let drive = world.drive(0);
    drive.paused.store(true, Ordering::SeqCst);
    let order = contribute(1, ContributeHow::Delta, Some(rows), rows, &[(1, 1)]);
    first.begin(0, &order, contents(1, 1));
    drive.wait_for_write();
    let mut second = world.targets[0].connect(&host(2));
    assert_eq!(reservation(&mut second, 1, &register(22)), Status::SUCCESS);
    second.io.begin_reserve(&preempt(22, 11));
    assert!(second.io.is_silent_for(Duration::from_millis(300)), "the op still writes");
    drive.paused.store(false, Ordering::SeqCst);
    assert_eq!(second.io.end().status, Status::SUCCESS);
    assert_eq!(drive.blocks(0..1), contents(1, 1));
    let ended = first.members[0].connected.io.end();
    assert_eq!(ended.status, Status::OP_ABORTED);
    assert!(nvme_tcp::vendor::Outcome::decode(ended.value as u32).written, "and it says so");
}

/// The new attach of the same host knows what became of the former one's ops.
#[test]
fn an_attach_under_another_key_ends_the_one_before() {
    let world = World::new(2);
    let mut first = world.attach(1, 11, LIMIT);
    let rows = blocks(0, 1);
    let written =
        first.order(vec![(0, contribute(1, ContributeHow::Delta, Some(rows), rows, &[]), contents(1, 1))]);
    assert!(written[0].status.is_success());
    let former = first.members[0].handle;
    let connected = &mut first.members[0].connected;
    let command = nvme_tcp::reservation::ReservationCommand::Register {
        registration: nvme_tcp::reservation::Registration::Replace { key: Some(11), new_key: 12 },
        persistence: nvme_tcp::reservation::Persistence::Unchanged,
    };
    assert_eq!(reservation(connected, 1, &command), Status::SUCCESS);
    let ended = first.order(vec![(0, contribute(2, ContributeHow::Old, None, rows, &[]), Vec::new())]);
    assert_eq!(ended[0].status, Status::NO_ATTACH, "its key is gone");
    first.key = 12;
    let (status, handle) = first.send_record(0, Vec::new(), LIMIT);
    assert!(status.is_success() && handle != former);
    let ask = |key, number| Settle { op: op(number), attach_key: key, action: SettleAction::Ask };
    let asked = first.settle(0, &ask(11, 1));
    assert!(written[0].outcome.retained);
    assert_eq!((asked.status, asked.outcome), (Status::SUCCESS, written[0].outcome));
    assert_eq!(first.settle(0, &ask(77, 1)).status, Status::NO_ATTACH);
    first.key = 11;
    assert_eq!(first.send_record(0, Vec::new(), LIMIT).0, Status::RESERVATION_CONFLICT);
}

/// What a former attach has kept goes to the members of the next one of the same host, and not once another host has the right.
#[test]
fn what_a_former_attach_has_kept_is_sent_by_the_next_one() {
    let world = World::new(2);
    let mut first = world.attach(1, 11, LIMIT);
    let rows = blocks(0, 1);
    world.drive(0).set(0..1, &contents(1, 1));
    world.drive(1).set(0..1, &contents(2, 1));
    let delta = contribute(1, ContributeHow::Delta, Some(rows), rows, &[(1, 1)]);
    let drive = world.drive(0);
    drive.paused.store(true, Ordering::SeqCst);
    first.begin(0, &delta, contents(3, 1));
    // An abort that comes before the order has begun to write would leave nothing to send again.
    drive.wait_for_write();
    drive.paused.store(false, Ordering::SeqCst);
    let settle = |number, key, action| Settle { op: op(number), attach_key: key, action };
    first.settle(1, &settle(1, 11, SettleAction::Abort));
    let settled = first.settle(0, &settle(1, 11, SettleAction::Abort));
    assert!(settled.outcome.written && settled.outcome.retained && !settled.outcome.applied);
    let _order = first.members[0].connected.io.end();
    first.replace_key(&world, 12);
    first.begin(1, &reduce(2, ReduceBase::Old, rows, 1, Sink::Drive), Vec::new());
    let resend = |new_op| SettleAction::Resend { peer: 1, new_op };
    assert_eq!(first.settle(0, &settle(1, 11, resend(2))).status, Status::SUCCESS);
    assert_eq!(first.members[1].connected.io.end().status, Status::SUCCESS);
    let whole = [contents(1, 1), contents(2, 1), contents(3, 1)];
    let sum: Vec<u8> = (0..BLOCK).map(|at| whole.iter().fold(0, |sum, part| sum ^ part[at])).collect();
    assert_eq!(world.drive(1).blocks(0..1), sum, "the difference was added once");
    let mut second = world.targets[0].connect(&host(2));
    assert_eq!(reservation(&mut second, 1, &register(22)), Status::SUCCESS);
    assert_eq!(reservation(&mut second, 1, &preempt(22, 12)), Status::SUCCESS);
    assert_ne!(first.settle(0, &settle(1, 11, resend(3))).status, Status::SUCCESS);
    assert_eq!(world.drive(1).blocks(0..1), sum);
}

/// The target's own count, whatever a host or a peer sends.
#[test]
fn what_is_beyond_the_memory_that_was_given_is_refused() {
    let world = World::new(2);
    let mut first = world.attach(1, 11, Duration::from_secs(60));
    assert_eq!(first.report(1).credit_bytes, world::PEER_MEMORY);
    let lowest_is = |lowest: u64, mut order: Order| {
        order.op.lowest = lowest;
        order
    };
    // With what they read, two take all there is.
    let all = blocks(0, world::DRIVE_BLOCKS as u32);
    for number in [1, 2] {
        let order = reduce(number, ReduceBase::Old, all, 1, Sink::Drive);
        first.begin(1, &lowest_is(1, order), Vec::new());
    }
    let since = Instant::now();
    while first.report(1).ops_open < 2 {
        assert!(since.elapsed() < LIMIT, "they gather");
    }
    let rows = blocks(0, 1);
    let mut one = world.targets[1].connect(&peer(0));
    let (handle, early) = (first.members[1].handle, Op { number: 3, lowest: 1 });
    let part = Peer { op: early, slba: 0, blocks: 1, handle, member: 0, answer_when_complete: false };
    let sent = (part.encode(1), Payload::Out { bytes: BLOCK as u32 }, contents(9, 1));
    assert_eq!(call(&mut one, sent), Status::NO_CREDIT, "its order has not come");
    let mut second = world.targets[1].connect(&host(1));
    let order = |number, lowest| {
        let order = lowest_is(lowest, reduce(number, ReduceBase::Zero, rows, 0, Sink::Drive));
        (order.encode(1), Payload::None, Vec::new())
    };
    assert_eq!(call(&mut second, order(4, 1)), Status::NO_CREDIT);
    let settle = Settle { op: Op { number: 2, lowest: 1 }, attach_key: 0, action: SettleAction::Abort };
    assert_eq!(call(&mut second, (settle.encode(1), Payload::None, Vec::new())), Status::OP_ABORTED);
    assert_eq!(call(&mut second, order(5, 1)), Status::SUCCESS);
}

#[test]
fn a_target_that_is_only_a_peer_contributes_and_no_more() {
    let world = World::new(2);
    let attached = world.attach(1, 11, LIMIT);
    let (handle, rows) = (attached.members[1].handle, blocks(0, 1));
    let mut one = world.targets[1].connect(&peer(7));
    let read = |sqe| (sqe, Payload::In { bytes: BLOCK as u32 }, Vec::new());
    assert_eq!(call(&mut one, read(Sqe::new(io::READ, 1))), Status::OPERATION_DENIED);
    let data = || (Payload::Out { bytes: BLOCK as u32 }, contents(1, 1));
    let (payload, bytes) = data();
    assert_eq!(call(&mut one, (Sqe::new(io::WRITE, 1), payload, bytes)), Status::OPERATION_DENIED);
    assert_eq!(reservation(&mut one, 1, &register(5)), Status::OPERATION_DENIED);
    let order = reduce(1, ReduceBase::Old, rows, 1, Sink::Drive).encode(1);
    assert_eq!(call(&mut one, (order, Payload::None, Vec::new())), Status::OPERATION_DENIED);
    let (payload, bytes) = data();
    let attach = Sqe::new(admin_opcode::ATTACH, 1);
    assert_eq!(one.admin.call(attach, payload, bytes).0, Status::OPERATION_DENIED);
    assert_eq!(call(&mut one, peer_command(1, handle ^ 1, rows)), Status::NO_ATTACH);
    assert_eq!(call(&mut one, peer_command(1, handle, rows)), Status::SUCCESS);
    assert_eq!(call(&mut one, peer_command(1, handle, rows)), Status::CONTRIBUTION_REFUSED, "F-I2: once");
    // Further apart than any order: it would take memory for all between.
    let beyond = blocks(world::DRIVE_BLOCKS as u64, 1);
    assert_eq!(call(&mut one, peer_command(2, handle, beyond)), Status::LBA_OUT_OF_RANGE);
    // A host without the reservation is no peer either.
    let mut other = world.targets[1].connect(&host(2));
    assert_eq!(call(&mut other, peer_command(3, handle, rows)), Status::RESERVATION_CONFLICT);
    let nobody = Host { id: HostId([9; 16]), nqn: Nqn::new("nqn.2026-11.example:nobody").expect("a name") };
    let mut queue = HostQueue::open(world.targets[1].address);
    let refused = queue.connect(&world.targets[1].nqn, &nobody, 0, 0xffff);
    assert_eq!(refused, Err(Status::CONNECT_INVALID_HOST));
}

#[test]
fn an_op_that_is_retired_has_no_effect_any_more() {
    let world = World::new(2);
    let mut host = world.attach(1, 11, LIMIT);
    let rows = blocks(0, 1);
    let write = |number| contribute(number, ContributeHow::Delta, Some(rows), rows, &[]);
    let ended = host.order(vec![(0, write(5), contents(5, 1))]);
    assert!(ended[0].status.is_success());
    let ended = host.order(vec![(0, write(4), contents(4, 1))]);
    assert_eq!(ended[0].status, Status::OP_RETIRED);
    assert_eq!(world.drive(0).blocks(0..1), contents(5, 1));
    let settle = Settle { op: op(4), attach_key: 0, action: SettleAction::Ask };
    assert_eq!(host.settle(0, &settle).status, Status::OP_RETIRED);
}

#[test]
fn orders_without_an_attach_are_refused() {
    let world = World::new(2);
    let rows = blocks(0, 1);
    let order = contribute(1, ContributeHow::Old, None, rows, &[]);
    let mut stranger = world.targets[0].connect(&host(1));
    let sent = (order.encode(1), Payload::None, Vec::new());
    assert_eq!(call(&mut stranger, sent), Status::NO_ATTACH);
    let mut half = world.attach_without_peers(1, 11);
    let ended = half.order(vec![(0, order, Vec::new())]);
    assert_eq!(ended[0].status, Status::NO_ATTACH, "its members are not known yet");
}
