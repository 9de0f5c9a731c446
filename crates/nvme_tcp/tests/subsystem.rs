//! Which hosts a subsystem connects, how many, and what it admits.

mod facts;

use nvme_tcp::ana::AnaState;
use nvme_tcp::identify::NamespaceFacts;
use nvme_tcp::names::{Host, HostId, Nqn};
use nvme_tcp::reservation::{Persistence, Registration, ReservationCommand, Reservations, Synced};
use nvme_tcp::status::Status;
use nvme_tcp::subsystem::{AllowList, Refusal, Subsystem, SubsystemFacts};

/// A host that asks for any controller.
const CONTROLLER_ANY: u16 = 0xffff;
/// The highest number of a controller.
const CONTROLLER_ID_MAX: u16 = 0xffef;

fn host(id: u8, name: &str) -> Host {
    Host { id: HostId([id; 16]), nqn: Nqn::new(&format!("nqn.2026-11.test:{name}")).unwrap() }
}

fn namespace(ana_group: u32) -> NamespaceFacts {
    NamespaceFacts { ana_group, ..facts::namespace(1) }
}

fn subsystem(controllers_max: u16) -> Subsystem {
    let mut subsystem = Subsystem::new(SubsystemFacts { controllers_max, ..facts::subsystem() });
    subsystem.add_namespace(1, namespace(3), Reservations::none());
    subsystem
}

#[test]
fn no_host_connects_before_it_is_allowed() {
    let mut subsystem = subsystem(10);
    assert_eq!(subsystem.connect(&host(1, "a"), CONTROLLER_ANY), Err(Status::CONNECT_INVALID_HOST.into()));
    subsystem.allow(AllowList::Named([host(1, "a").nqn].into()));
    assert_eq!(subsystem.connect(&host(1, "a"), CONTROLLER_ANY), Ok(1));
    assert_eq!(subsystem.connect(&host(2, "b"), CONTROLLER_ANY), Err(Status::CONNECT_INVALID_HOST.into()));
    // A host that is not allowed is refused alike, whatever else is wrong.
    assert_eq!(subsystem.connect(&host(0, "b"), 5), Err(Status::CONNECT_INVALID_HOST.into()));
    assert_eq!(subsystem.connect_queue(&host(2, "b"), 1, 1), Err(Status::CONNECT_INVALID_HOST.into()));
    assert_eq!(subsystem.connect_queue(&host(2, "b"), 9, 1), Err(Status::CONNECT_INVALID_HOST.into()));
    subsystem.allow(AllowList::Any);
    assert_eq!(subsystem.connect(&host(2, "b"), CONTROLLER_ANY), Ok(2));
    let refusal = |dword0| Err(Refusal { status: Status::CONNECT_INVALID_PARAMETERS, dword0 });
    assert_eq!(subsystem.connect(&host(0, "b"), CONTROLLER_ANY), refusal(0x1_0000));
    assert_eq!(subsystem.connect(&host(2, "b"), 5), refusal(0x1_0010));
}

#[test]
fn an_identifier_belongs_to_a_name() {
    let mut subsystem = subsystem(10);
    subsystem.allow(AllowList::Any);
    let controller = subsystem.connect(&host(1, "a"), CONTROLLER_ANY).unwrap();
    let refused = Err(Status::CONNECT_INVALID_HOST.into());
    // Before its proof it owns nothing, and has no queues.
    assert!(subsystem.connect_queue(&host(1, "a"), controller, 1).is_err());
    let impostor = subsystem.connect(&host(1, "b"), CONTROLLER_ANY).unwrap();
    assert_eq!(subsystem.prove(controller), Ok(()));
    assert_eq!(subsystem.prove(impostor), Err(Status::CONNECT_INVALID_HOST.into()));
    assert_eq!((subsystem.prove(controller), subsystem.controllers().count()), (Ok(()), 1));
    assert_eq!(subsystem.connect(&host(1, "b"), CONTROLLER_ANY), refused);
    // A queue of another host's controller, and of none.
    assert_eq!(
        subsystem.connect_queue(&host(2, "b"), controller, 1),
        Err(Status::CONNECT_INVALID_HOST.into())
    );
    assert_eq!(subsystem.connect_queue(&host(1, "a"), controller, 4), Ok(()));
    for queue in [0, 5] {
        assert_eq!(
            subsystem.connect_queue(&host(1, "a"), controller, queue),
            Err(Status::INVALID_QUEUE_ID.into())
        );
    }
    // Registered, it stays the first one's also while it is away.
    let registration = Registration::Register { new_key: 1 };
    let command = ReservationCommand::Register { registration, persistence: Persistence::Unchanged };
    let change = subsystem.namespace(1).unwrap().reservations().decide(&host(1, "a"), &command).unwrap();
    let synced = Synced::after_writing(&change.next().encode(&[1; 16]), &[1; 16]).unwrap();
    subsystem.install(1, &change, Some(&synced));
    subsystem.disconnect(controller);
    assert_eq!(subsystem.connect(&host(1, "b"), CONTROLLER_ANY), refused);
    assert!(subsystem.connect(&host(1, "a"), CONTROLLER_ANY).is_ok());
}

#[test]
fn controllers_have_a_limit_and_numbers_are_not_given_again_soon() {
    let mut subsystem = subsystem(2);
    subsystem.allow(AllowList::Any);
    let connect = |subsystem: &mut Subsystem| subsystem.connect(&host(1, "a"), CONTROLLER_ANY);
    assert_eq!((connect(&mut subsystem), connect(&mut subsystem)), (Ok(1), Ok(2)));
    assert_eq!(connect(&mut subsystem), Err(Status::CONNECT_BUSY.into()));
    subsystem.disconnect(1);
    assert_eq!(connect(&mut subsystem), Ok(3));
    // All the numbers above come first, then those that are free again.
    for newest in 3..CONTROLLER_ID_MAX {
        subsystem.disconnect(newest);
        assert_eq!(connect(&mut subsystem), Ok(newest + 1));
    }
    subsystem.disconnect(CONTROLLER_ID_MAX);
    assert_eq!(connect(&mut subsystem), Ok(1));
}

#[test]
fn commands_are_admitted_where_the_way_is_open() {
    let mut subsystem = subsystem(2);
    let admit = |subsystem: &Subsystem, id, opcode| subsystem.admit(&host(1, "a"), id, opcode).map(|_| ());
    assert_eq!(admit(&subsystem, 2, 1), Err(Status::INVALID_NAMESPACE));
    assert_eq!(admit(&subsystem, 1, 1), Ok(()));
    assert!(subsystem.set_ana(3, AnaState::Inaccessible) && !subsystem.set_ana(3, AnaState::Inaccessible));
    assert_eq!(admit(&subsystem, 1, 2), Err(Status::ANA_INACCESSIBLE));
    assert!(subsystem.set_ana(3, AnaState::Optimized) && !subsystem.set_ana(4, AnaState::Change));
    subsystem.change_namespace(1, Some(NamespaceFacts { write_protected: true, ..namespace(3) }));
    assert_eq!(admit(&subsystem, 1, 1), Err(Status::NAMESPACE_WRITE_PROTECTED));
    assert_eq!(admit(&subsystem, 1, 2), Ok(()));
    let log = subsystem.ana_log();
    assert_eq!((log.changes, log.groups.len(), log.groups[0].id), (2, 1, 3));
    assert_eq!((log.groups[0].changes, &log.groups[0].namespaces), (2, &vec![1]));
    subsystem.change_namespace(1, None);
    assert_eq!(admit(&subsystem, 1, 2), Err(Status::INVALID_NAMESPACE));
}
