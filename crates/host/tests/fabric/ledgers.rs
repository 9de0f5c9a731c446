//! What a target records of its host for the next one.

use nvme_tcp::command::Sqe;
use nvme_tcp::host_command;
use nvme_tcp::status::Status;
use nvme_tcp::vendor::{ContributeHow, Epoch, LedgerAction, LedgerReport, ReduceBase, Sink};
use std::ops::Range;

use super::world::{Attached, DRIVE_BLOCKS, World, host, ledger_of, peer, preempt, register, reservation};
use super::{LIMIT, blocks, contents, contribute, reduce};

const AREA: Range<u64> = 8..DRIVE_BLOCKS as u64;

fn epoch(number: u64, lowest: u64) -> Option<Epoch> {
    Some(Epoch { number, lowest })
}

/// A target whose ledger is complete.
fn recorded(world: &World) -> Attached {
    let mut attached = world.attach(1, 11, LIMIT);
    assert_eq!(attached.ledger_step(0, LedgerAction::Begin, 5, AREA), Status::SUCCESS);
    assert_eq!(attached.ledger(0), LedgerReport::NONE, "it has only begun");
    assert_eq!(attached.ledger_step(0, LedgerAction::Complete, 5, AREA), Status::SUCCESS);
    assert_eq!(attached.report(0).ledger, 5);
    attached
}

fn write(host: &mut Attached, slba: u64, epoch: Option<Epoch>) {
    let sqe = host_command::write(1, slba, 1, false);
    assert_eq!(host.change(0, sqe, epoch, contents(slba as u8, 1)), Status::SUCCESS);
}

/// Plain commands and orders are listed until no write of their epoch is under way, also for a host that takes the namespace.
#[test]
fn the_next_host_learns_what_was_under_way() {
    let world = World::new(2);
    let mut first = recorded(&world);
    write(&mut first, 9, epoch(3, 3));
    write(&mut first, 2, epoch(3, 3));
    let zeroes = host_command::write_zeroes(1, 20, 4, false);
    assert_eq!(first.change(0, zeroes, epoch(4, 3), Vec::new()), Status::SUCCESS);
    let rows = blocks(30, 1);
    let order = contribute(1, ContributeHow::Delta, Some(rows), rows, &[(1, 1)]).encode(1);
    let reduction = reduce(1, ReduceBase::Old, rows, 1, Sink::Drive);
    first.begin(1, &reduction, Vec::new());
    assert_eq!(first.change(0, order, epoch(5, 3), contents(1, 1)), Status::SUCCESS);
    assert_eq!(first.ledger(0).ranges, [9..10, 20..24, 30..31]);
    // The first two have ended.
    write(&mut first, 40, epoch(6, 5));
    assert_eq!(first.ledger(0).ranges, [30..31, 40..41]);
    let mut second = world.targets[0].connect(&host(2));
    assert_eq!(ledger_of(&mut second, 1).0, Status::RESERVATION_CONFLICT, "it is not the next one yet");
    assert_eq!(reservation(&mut second, 1, &register(22)), Status::SUCCESS);
    assert_eq!(reservation(&mut second, 1, &preempt(22, 11)), Status::SUCCESS);
    let (status, report) = ledger_of(&mut second, 1);
    assert_eq!(status, Status::SUCCESS);
    assert_eq!(report, Some(LedgerReport { id: 5, area: AREA, ranges: vec![30..31, 40..41] }));
    // What it changes itself is for its own ledger.
    let (sqe, data) = (host_command::write(1, 8, 1, false), contents(9, 1));
    let payload = nvme_tcp::initiator::Payload::Out { bytes: data.len() as u32 };
    assert_eq!(second.io.call(sqe, payload, data).0, Status::SUCCESS);
    assert_eq!(ledger_of(&mut second, 1).1, Some(LedgerReport::NONE));
}

#[test]
fn a_change_without_an_epoch_ends_a_ledger() {
    let world = World::new(2);
    let rows = blocks(30, 1);
    let (deallocate, range) = host_command::deallocate(1, 12, 2);
    let order = reduce(1, ReduceBase::Zero, rows, 0, Sink::Drive).encode(1);
    let changes: [(&str, Sqe, Vec<u8>); 4] = [
        ("write", host_command::write(1, 8, 1, false), contents(1, 1)),
        ("write zeroes", host_command::write_zeroes(1, 63, 1, false), Vec::new()),
        ("deallocate", deallocate, range.to_vec()),
        ("order", order, Vec::new()),
    ];
    let mut host = world.attach(1, 11, LIMIT);
    for (id, (what, sqe, data)) in (1..).zip(changes) {
        for action in [LedgerAction::Begin, LedgerAction::Complete] {
            assert_eq!(host.ledger_step(0, action, id, AREA), Status::SUCCESS);
        }
        // Below the area, and a read of it.
        write(&mut host, 7, None);
        assert_eq!(host.ledger(0).id, id, "{what}");
        assert_eq!(host.change(0, sqe, None, data), Status::SUCCESS, "{what}");
        assert_eq!((host.ledger(0), host.report(0).ledger), (LedgerReport::NONE, 0), "{what}");
        let again = host.ledger_step(0, LedgerAction::Complete, id, AREA);
        assert_eq!(again, Status::NO_ATTACH, "{what}: it stays ended");
    }
}

#[test]
fn a_target_that_restarts_has_recorded_nothing() {
    let mut world = World::new(1);
    let mut host = recorded(&world);
    let target = world.targets.pop().expect("the first");
    world.targets.push(target.restart(0));
    host.attach_again(&world, 0);
    assert_eq!((host.ledger(0), host.report(0).ledger), (LedgerReport::NONE, 0));
    assert_eq!(host.ledger_step(0, LedgerAction::Complete, 5, AREA), Status::NO_ATTACH);
}

#[test]
fn steps_are_for_hosts_that_may_attach_and_for_what_is_there() {
    let world = World::new(1);
    let mut attached = world.attach(1, 11, LIMIT);
    let beyond = AREA.start..AREA.end + 1;
    assert_eq!(attached.ledger_step(0, LedgerAction::Begin, 5, beyond), Status::LBA_OUT_OF_RANGE);
    attached.key = 12;
    let wrong_key = attached.ledger_step(0, LedgerAction::Begin, 5, AREA);
    assert_eq!(wrong_key, Status::RESERVATION_CONFLICT);
    let mut one = world.targets[0].connect(&peer(7));
    assert_eq!(ledger_of(&mut one, 1).0, Status::OPERATION_DENIED);
}
