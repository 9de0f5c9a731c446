//! Targets that make parity among themselves, over sockets: a host gives orders and looks at the drives afterwards.

#[allow(dead_code)]
#[path = "../nvme_tcp/host_end.rs"]
mod host_end;
mod ledgers;
mod refusals;
mod world;

use nvme_tcp::status::Status;
use nvme_tcp::vendor::{
    Blocks, ContributeHow, Destination, Op, Order, OrderKind, ReduceBase, Settle, SettleAction, Sink,
};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use world::{Attached, BLOCK, World};

const LIMIT: Duration = Duration::from_secs(10);

fn op(number: u64) -> Op {
    Op { number, lowest: number }
}

fn blocks(slba: u64, blocks: u32) -> Blocks {
    Blocks { slba, blocks }
}

fn contents(seed: u8, blocks: usize) -> Vec<u8> {
    (0..blocks * BLOCK).map(|at| (at % 251) as u8 ^ (at / BLOCK) as u8 ^ seed).collect()
}

fn contribute(number: u64, how: ContributeHow, own: Option<Blocks>, rows: Blocks, to: &[(u8, u8)]) -> Order {
    let to = |at: usize| {
        to.get(at).map(|(peer, coefficient)| Destination { peer: *peer, coefficient: *coefficient })
    };
    let returns_own = how == ContributeHow::Old && own.is_some();
    Order {
        op: op(number),
        own,
        slba: own.map_or(rows.slba, |own| own.slba),
        kind: OrderKind::Contribute { how, destinations: [to(0), to(1)], returns_own },
        rows,
        fua: false,
    }
}

fn reduce(number: u64, base: ReduceBase, rows: Blocks, contributions: u8, sink: Sink) -> Order {
    let kind = OrderKind::Reduce { base, contributions, sink, compare_only: false };
    Order { op: op(number), own: None, slba: rows.slba, kind, rows, fua: false }
}

/// Destinations of a data chunk among `data` ones, and `parity` reducers.
fn to_parity(chunk: usize, data: usize, parity: usize) -> Vec<(u8, u8)> {
    let coefficient = |index| if index == 0 { 1 } else { (0..chunk).fold(1, |power, _| times_two(power)) };
    (0..parity).map(|index| ((data + index) as u8, coefficient(index))).collect()
}

/// In the field of P and Q, by its definition.
fn times_two(byte: u8) -> u8 {
    byte << 1 ^ if byte & 0x80 == 0 { 0 } else { 0x1d }
}

/// P and Q of what is on the data drives.
fn encode(world: &World, data: usize, parity: usize) -> Vec<Vec<u8>> {
    let (mut p, mut q) = (vec![0; world::DRIVE_BLOCKS * BLOCK], vec![0; world::DRIVE_BLOCKS * BLOCK]);
    for member in (0..data).rev() {
        let chunk = world.drive(member).blocks(0..world::DRIVE_BLOCKS);
        p.iter_mut().zip(&chunk).for_each(|(sum, byte)| *sum ^= byte);
        q.iter_mut().zip(&chunk).for_each(|(sum, byte)| *sum = times_two(*sum) ^ byte);
    }
    [p, q].into_iter().take(parity).collect()
}

fn make_parity(world: &World, data: usize, parity: usize) {
    for (index, contents) in encode(world, data, parity).into_iter().enumerate() {
        world.drive(data + index).set(0..world::DRIVE_BLOCKS, &contents);
    }
}

fn check_parity(world: &World, data: usize, parity: usize) {
    for (index, contents) in encode(world, data, parity).into_iter().enumerate() {
        assert!(world.drive(data + index).blocks(0..world::DRIVE_BLOCKS) == contents, "parity {index}");
    }
}

/// One chunk is written, the others stay: each parity gets its difference.
fn small_write(
    world: &World,
    host: &mut Attached,
    number: u64,
    (data, parity): (usize, usize),
    rows: Blocks,
) {
    let new = contents(number as u8, rows.blocks as usize);
    let to = to_parity(1, data, parity);
    let mut orders = vec![(1, contribute(number, ContributeHow::Delta, Some(rows), rows, &to), new.clone())];
    for index in 0..parity {
        orders.push((data + index, reduce(number, ReduceBase::Old, rows, 1, Sink::Drive), Vec::new()));
    }
    let ended = host.order(orders);
    assert!(ended.iter().all(|one| one.status.is_success()), "{ended:?}");
    assert!(ended[0].outcome.written && ended[0].outcome.forwarded == [true, parity > 1]);
    assert!(ended[1..].iter().all(|one| one.outcome.applied));
    let (start, end) = (rows.slba as usize, rows.slba as usize + rows.blocks as usize);
    assert_eq!(world.drive(1).blocks(start..end), new);
}

/// A part of one chunk is written, and the parity is made of all chunks.
fn reconstruct_write(
    world: &World,
    host: &mut Attached,
    number: u64,
    (data, parity): (usize, usize),
    rows: Blocks,
) {
    let own = blocks(rows.slba + 1, rows.blocks - 2);
    let new = contents(number as u8, own.blocks as usize);
    let first = contribute(number, ContributeHow::Overlay, Some(own), rows, &to_parity(0, data, parity));
    let mut orders = vec![(0, first, new.clone())];
    for chunk in 1..data {
        let to = to_parity(chunk, data, parity);
        orders.push((chunk, contribute(number, ContributeHow::Old, None, rows, &to), Vec::new()));
    }
    for index in 0..parity {
        let order = reduce(number, ReduceBase::Zero, rows, data as u8, Sink::Drive);
        orders.push((data + index, order, Vec::new()));
    }
    let ended = host.order(orders);
    assert!(ended.iter().all(|one| one.status.is_success()), "{ended:?}");
    let start = own.slba as usize;
    assert_eq!(world.drive(0).blocks(start..start + own.blocks as usize), new);
}

fn writes_keep_parity(world: &World, data: usize, parity: usize) {
    make_parity(world, data, parity);
    let mut host = world.attach(1, 11, LIMIT);
    let shape = (data, parity);
    small_write(world, &mut host, 1, shape, blocks(3, 1));
    check_parity(world, data, parity);
    // Too long for a capsule.
    small_write(world, &mut host, 2, shape, blocks(0, 32));
    check_parity(world, data, parity);
    reconstruct_write(world, &mut host, 3, shape, blocks(8, 3));
    reconstruct_write(world, &mut host, 4, shape, blocks(16, 20));
    check_parity(world, data, parity);
    for member in 0..data + parity {
        assert!(host.report(member).ops_open <= 1, "what is retired is forgotten");
    }
}

#[test]
fn writes_of_raid5_keep_parity() {
    writes_keep_parity(&World::new(4), 3, 1);
}

#[test]
fn writes_of_raid6_keep_parity() {
    writes_keep_parity(&World::new(4), 2, 2);
}

/// D5: a target reads what is replaced while it fetches what replaces it, and reads it once.
#[test]
fn the_drive_is_read_while_data_is_fetched() {
    let world = World::new(2);
    make_parity(&world, 1, 1);
    let mut host = world.attach(1, 11, LIMIT);
    let (rows, new) = (blocks(0, 32), contents(7, 32));
    let reads = || world.drive(0).reads.load(Ordering::SeqCst);
    host.begin(1, &reduce(1, ReduceBase::Old, rows, 1, Sink::Drive), Vec::new());
    // The second is an op that was settled before: it is refused when its data is there, and what was read for it is dropped.
    let abort = Settle { op: op(2), attach_key: 0, action: SettleAction::Abort };
    for (number, is_done) in [(1, true), (2, false)] {
        if !is_done {
            host.settle(0, &abort);
        }
        let before = reads();
        host.begin(0, &contribute(number, ContributeHow::Delta, Some(rows), rows, &[(1, 1)]), new.clone());
        let wanted = host.members[0].connected.io.wanted();
        let since = Instant::now();
        while reads() == before {
            assert!(since.elapsed() < LIMIT, "it reads before the data is there");
            std::thread::sleep(Duration::from_millis(1));
        }
        host.members[0].connected.io.send_wanted(&wanted);
        let ended = host.members[0].connected.io.end();
        assert_eq!((ended.status.is_success(), reads()), (is_done, before + 1), "{number}");
    }
    assert!(host.members[1].connected.io.end().status.is_success());
    assert!(world.drive(0).blocks(0..32) == new);
    check_parity(&world, 1, 1);
}

#[test]
fn members_of_one_server_need_no_connection() {
    writes_keep_parity(&World::on_one(4), 2, 2);
}

/// Ops on queues of several shards, at the same time and of one attach.
#[test]
fn ops_of_many_queues_are_one_attachs() {
    const QUEUES: u64 = 4;
    const OPS: u64 = 40;
    let world = World::new(4);
    make_parity(&world, 2, 2);
    let attached = world.attach(1, 11, LIMIT);
    std::thread::scope(|scope| {
        for queue in 0..QUEUES {
            let world = &world;
            scope.spawn(move || {
                let mut targets: Vec<_> =
                    world.targets.iter().map(|one| one.connect(&world::host(1))).collect();
                for count in 0..OPS {
                    let (number, chunk) = (1 + count * QUEUES + queue, count as usize % 2);
                    let rows = blocks(queue * 16 + count % 16, 1);
                    let all = |order: Order| Order { op: Op { number, lowest: 1 }, ..order };
                    let to = to_parity(chunk, 2, 2);
                    let delta = all(contribute(number, ContributeHow::Delta, Some(rows), rows, &to));
                    let sum = all(reduce(number, ReduceBase::Old, rows, 1, Sink::Drive));
                    for (target, order) in [(chunk, &delta), (2, &sum), (3, &sum)] {
                        let data = if target == chunk { contents(number as u8, 1) } else { Vec::new() };
                        let (sqe, payload) = world::command(order, 1, &data);
                        targets[target].io.begin(sqe, payload, data);
                    }
                    for target in [chunk, 2, 3] {
                        assert_eq!(
                            targets[target].io.end().status,
                            Status::SUCCESS,
                            "op {number} at {target}"
                        );
                    }
                }
            });
        }
    });
    check_parity(&world, 2, 2);
    drop(attached);
}

/// Lost rows go to the host, and rows that are there and wanted with them.
#[test]
fn a_lost_chunk_is_read_from_the_others() {
    let world = World::new(4);
    make_parity(&world, 3, 1);
    let lost = world.drive(0).blocks(4..8);
    world.drive(0).set(4..8, &contents(77, 4));
    let mut host = world.attach(1, 11, LIMIT);
    let rows = blocks(4, 4);
    let own = blocks(5, 2);
    let mut sum = reduce(1, ReduceBase::Own { coefficient: 1 }, rows, 2, Sink::Host);
    (sum.own, sum.slba) = (Some(own), own.slba);
    let ended = host.order(vec![
        (3, sum, Vec::new()),
        (1, contribute(1, ContributeHow::Old, Some(own), rows, &[(3, 1)]), Vec::new()),
        (2, contribute(1, ContributeHow::Old, None, rows, &[(3, 1)]), Vec::new()),
    ]);
    assert!(ended.iter().all(|one| one.status.is_success()), "{ended:?}");
    assert_eq!(ended[0].data, [world.drive(3).blocks(5..7), lost].concat());
    assert_eq!(ended[1].data, world.drive(1).blocks(5..7));
}

#[test]
fn rows_become_zeroes_and_sums_are_compared() {
    let world = World::new(3);
    make_parity(&world, 2, 1);
    let mut host = world.attach(1, 11, LIMIT);
    let rows = blocks(2, 2);
    let compare = |number| {
        let kind = OrderKind::Reduce {
            base: ReduceBase::Zero,
            contributions: 2,
            sink: Sink::Drive,
            compare_only: true,
        };
        Order { op: op(number), own: None, slba: rows.slba, kind, rows, fua: false }
    };
    let check = |host: &mut Attached, number| {
        let old = |_| contribute(number, ContributeHow::Old, None, rows, &[(2, 1)]);
        let ended = host.order(vec![
            (0, old(0), Vec::new()),
            (1, old(1), Vec::new()),
            (2, compare(number), Vec::new()),
        ]);
        assert!(ended.iter().all(|one| one.status.is_success()), "{ended:?}");
        ended[2].outcome.equal
    };
    assert!(check(&mut host, 1));
    let ended = host.order(vec![(0, contribute(2, ContributeHow::Zeroes, None, rows, &[]), Vec::new())]);
    assert!(ended[0].status.is_success() && ended[0].outcome.written);
    assert_eq!(world.drive(0).blocks(2..4), vec![0; 2 * BLOCK]);
    assert!(!check(&mut host, 3));
}

/// The data is written, the parity is not: the host learns both, and what it settles stays settled.
#[test]
fn a_peer_that_is_down_is_told_and_the_op_settled() {
    let world = World::new(3);
    make_parity(&world, 2, 1);
    let mut host = world.attach(1, 11, Duration::from_secs(2));
    assert_eq!(world.targets[2].server.stop(Duration::from_secs(5)), 0);
    let since = Instant::now();
    while host.report(0).reached != 0b011 {
        assert!(since.elapsed() < LIMIT, "the pair is known to be down");
        std::thread::sleep(Duration::from_millis(5));
    }
    let rows = blocks(1, 1);
    let order = contribute(1, ContributeHow::Delta, Some(rows), rows, &[(2, 1)]);
    let ended = host.order(vec![(0, order, contents(5, 1))]);
    assert_eq!(ended[0].status, Status::PEER_UNREACHABLE);
    assert!(ended[0].outcome.written && !ended[0].outcome.forwarded[0]);
    let settle = |action, number| Settle { op: Op { number, lowest: 1 }, attach_key: 0, action };
    let asked = host.settle(0, &settle(SettleAction::Ask, 1));
    assert_eq!((asked.status, asked.outcome), (ended[0].status, ended[0].outcome), "it says the same again");
    let unseen = host.settle(1, &settle(SettleAction::Abort, 1));
    assert_eq!(unseen.status, Status::NEVER_SEEN);
    // F-I3: the order comes late and has no effect.
    let before = world.drive(1).blocks(1..2);
    let late =
        host.order(vec![(1, contribute(1, ContributeHow::Delta, Some(rows), rows, &[]), contents(6, 1))]);
    assert_eq!(late[0].status, Status::OP_ABORTED);
    assert_eq!(world.drive(1).blocks(1..2), before);
}

/// A target that restarts has no attach. When the host has attached it anew, the others reach it again by themselves.
#[test]
fn a_peer_that_is_back_is_reached_again() {
    let mut world = World::new(2);
    let mut host = world.attach(1, 11, LIMIT);
    let rows = blocks(1, 1);
    let target = world.targets.pop().expect("the second");
    world.targets.push(target.restart(1));
    let order = |host: &mut Attached, number| {
        let order = contribute(number, ContributeHow::Old, None, rows, &[(1, 1)]);
        host.order(vec![(0, order, Vec::new())])[0].status
    };
    let since = Instant::now();
    while host.report(0).reached != 0b11 {
        assert_eq!(order(&mut host, 1 + since.elapsed().as_millis() as u64), Status::PEER_UNREACHABLE);
        assert!(since.elapsed() < LIMIT, "it connects again");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(order(&mut host, 1 << 30), Status::PEER_UNREACHABLE, "the handle is of the former server");
    host.attach_again(&world, 1);
    assert_eq!(order(&mut host, 1 << 31), Status::SUCCESS);
}

#[test]
fn a_reduction_that_lacks_a_contribution_ends_by_its_limit_or_when_it_is_settled() {
    let world = World::new(3);
    let mut host = world.attach(1, 11, Duration::from_millis(300));
    let rows = blocks(0, 1);
    let ended = host.order(vec![(2, reduce(1, ReduceBase::Old, rows, 1, Sink::Drive), Vec::new())]);
    assert_eq!(ended[0].status, Status::TIME_OVER);
    assert!(!ended[0].outcome.applied && !ended[0].outcome.write_begun);
    let ended = host.order(vec![(0, contribute(1, ContributeHow::Old, None, rows, &[(2, 1)]), Vec::new())]);
    assert_eq!(ended[0].status, Status::TIME_OVER, "what comes late is refused");
}
