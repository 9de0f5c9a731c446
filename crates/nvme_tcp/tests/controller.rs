//! A controller is asked what the kernel's host and nvme-cli ask, in their order; and anything at all, which it survives.

mod facts;

use nvme_tcp::ana::{AnaLog, AnaState};
use nvme_tcp::command::{Sqe, admin};
use nvme_tcp::controller::{AdminCommand, Answer, Controller, DiscoveryService, Service};
use nvme_tcp::discovery::{DiscoveryEntry, DiscoveryLog, SubsystemType};
use nvme_tcp::events::AsyncEvent;
use nvme_tcp::features::feature;
use nvme_tcp::identify::{ControllerInfo, ControllerType, NamespaceInfo, cns};
use nvme_tcp::log_page::{LogRequest, page};
use nvme_tcp::names::{Host, HostId, Nqn};
use nvme_tcp::reservation::{
    Acquisition, NoticeKind, Persistence, Registration, ReservationCommand, ReservationType, Reservations,
    Synced,
};
use nvme_tcp::status::Status;
use nvme_tcp::subsystem::{AllowList, ReservationAnswer, Subsystem};
use proptest::prelude::*;

use facts::namespace;

const CONTROLLER_ANY: u16 = 0xffff;

fn host(id: u8) -> Host {
    Host { id: HostId([id; 16]), nqn: Nqn::new(&format!("nqn.2026-11.test:host{id}")).unwrap() }
}

fn subsystem() -> Subsystem {
    let mut subsystem = Subsystem::new(facts::subsystem());
    subsystem.allow(AllowList::Any);
    subsystem.add_namespace(1, namespace(1), Reservations::none());
    subsystem.add_namespace(3, namespace(3), Reservations::none());
    subsystem
}

fn connected(subsystem: &mut Subsystem, id: u8) -> Controller {
    let number = subsystem.connect(&host(id), CONTROLLER_ANY).unwrap();
    subsystem.prove(number).unwrap();
    Controller::new(number, host(id), 5000)
}

fn command(opcode: u8, namespace: u32, dwords: &[u32]) -> AdminCommand {
    let mut sqe = Sqe::new(opcode, namespace);
    sqe.cid.set(77);
    let fields = [&mut sqe.cdw10, &mut sqe.cdw11, &mut sqe.cdw12, &mut sqe.cdw13];
    fields.into_iter().zip(dwords).for_each(|(field, dword)| field.set(*dword));
    AdminCommand::from(&sqe)
}

fn done(answer: Answer) -> (u32, Vec<u8>) {
    match answer {
        Answer::Done { dword0, data } => (dword0, data),
        other => panic!("{other:?}"),
    }
}

fn identify(controller: &mut Controller, subsystem: &Subsystem, what: u8, namespace: u32) -> Answer {
    controller.admin(Service::Namespaces(subsystem), &command(admin::IDENTIFY, namespace, &[u32::from(what)]))
}

fn log(
    controller: &mut Controller,
    service: Service<'_>,
    page: u8,
    specific: u8,
    bytes: u64,
    keeps_event: bool,
) -> Answer {
    let request = LogRequest { page, specific, keeps_event, offset: 0, bytes };
    controller.admin(service, &command(admin::GET_LOG_PAGE, u32::MAX, &request.encode()))
}

#[test]
fn the_kernels_host_finds_namespaces() {
    let mut subsystem = subsystem();
    let mut controller = connected(&mut subsystem, 1);
    let (_, data) = done(identify(&mut controller, &subsystem, cns::CONTROLLER, 0));
    let info = ControllerInfo::parse(&data).unwrap();
    assert_eq!((info.controller_type, info.controller_id), (Some(ControllerType::Io), controller.id()));
    assert_eq!((info.namespace_id_max, info.quiesce_ms, info.ana), (1024, 500, true));
    assert!(done(identify(&mut controller, &subsystem, cns::COMMAND_SET_CONTROLLER, 0)).1[1] == 8);

    let queues = command(admin::SET_FEATURES, 0, &[feature::QUEUES.into(), 0x0007_0007]);
    assert_eq!(done(controller.admin(Service::Namespaces(&subsystem), &queues)).0, 0x0003_0003);
    let events = command(admin::SET_FEATURES, 0, &[feature::ASYNC_EVENTS.into(), 0x900]);
    assert_eq!(done(controller.admin(Service::Namespaces(&subsystem), &events)).0, 0);
    let request = command(admin::ASYNC_EVENT_REQUEST, 0, &[]);
    assert_eq!(controller.admin(Service::Namespaces(&subsystem), &request), Answer::Waits);
    let (_, ana) = done(log(&mut controller, Service::Namespaces(&subsystem), page::ANA, 0, 4096, false));
    assert_eq!(AnaLog::parse(&ana).unwrap().groups[0].namespaces, [1, 3]);

    let (_, list) = done(identify(&mut controller, &subsystem, cns::ACTIVE_NAMESPACES, 0));
    assert_eq!(list[..12], [1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    for id in [1u8, 3] {
        let (_, ids) = done(identify(&mut controller, &subsystem, cns::NAMESPACE_IDS, id.into()));
        assert_eq!(NamespaceInfo::uuid(&ids), Some([id; 16]));
        let (_, data) = done(identify(&mut controller, &subsystem, cns::NAMESPACE, id.into()));
        let info = NamespaceInfo::parse(&data).unwrap();
        assert_eq!((info.blocks, info.nguid, info.ana_group), (1 << 20, [id; 16], 1));
        let (_, data) = done(identify(&mut controller, &subsystem, cns::INDEPENDENT_NAMESPACE, id.into()));
        let said = (data[1], data[2], data[4], data[14]);
        assert_eq!(said, (1, 0xff, 1, 1), "shared, all reservations, its group, ready");
    }
    // An id that could be one is empty; ids beyond are refused.
    assert_eq!(done(identify(&mut controller, &subsystem, cns::NAMESPACE, 2)).1, [0; 4096]);
    for (what, id) in [
        (cns::NAMESPACE, 1025),
        (cns::NAMESPACE, 0),
        (cns::NAMESPACE_IDS, 2),
        (cns::ACTIVE_NAMESPACES, u32::MAX),
    ] {
        let answer = identify(&mut controller, &subsystem, what, id);
        assert_eq!(answer, Answer::Failed(Status::INVALID_NAMESPACE), "{what} {id}");
    }
    let other_set = command(admin::IDENTIFY, 1, &[cns::COMMAND_SET_NAMESPACE.into(), 2 << 24]);
    let answer = controller.admin(Service::Namespaces(&subsystem), &other_set);
    assert_eq!(answer, Answer::Failed(Status::INVALID_FIELD));
}

#[test]
fn every_page_that_is_said_to_be_there_is_there() {
    let mut subsystem = subsystem();
    let mut controller = connected(&mut subsystem, 1);
    let service = Service::Namespaces(&subsystem);
    let (_, supported) = done(log(&mut controller, service, page::SUPPORTED, 0, 1024, false));
    for page in 0..=255u8 {
        let is_there = matches!(log(&mut controller, service, page, 0, 4, true), Answer::Done { .. });
        assert_eq!(is_there, supported[usize::from(page) * 4] == 1, "page {page:#x}");
    }
    let (_, groups) = done(log(&mut controller, service, page::ANA, 1, 4096, false));
    assert_eq!((groups[16], &groups[20..24]), (1, &[0; 4][..]));
    // nvme-cli reads the longest page that there could be, in pieces of 4 KiB.
    let request = LogRequest { page: page::ANA, specific: 0, keeps_event: true, offset: 8192, bytes: 16 };
    let (_, end) = done(controller.admin(service, &command(admin::GET_LOG_PAGE, 0, &request.encode())));
    assert_eq!(end, [0; 16]);
}

#[test]
fn changes_are_told_once_and_stand_in_their_page() {
    let mut subsystem = subsystem();
    let mut controller = connected(&mut subsystem, 1);
    let enable = command(admin::SET_FEATURES, 0, &[feature::ASYNC_EVENTS.into(), 0x900]);
    done(controller.admin(Service::Namespaces(&subsystem), &enable));
    let request = command(admin::ASYNC_EVENT_REQUEST, 0, &[]);
    for _ in 0..4 {
        assert_eq!(controller.admin(Service::Namespaces(&subsystem), &request), Answer::Waits);
    }
    let too_many = controller.admin(Service::Namespaces(&subsystem), &request);
    assert_eq!(too_many, Answer::Failed(Status::ASYNC_EVENT_LIMIT));

    subsystem.change_namespace(3, None);
    controller.namespace_changed(3);
    controller.namespace_changed(1);
    assert_eq!((controller.next_event(), controller.next_event()), (Some((77, 0x0004_0002)), None));
    let (_, page) =
        done(log(&mut controller, Service::Namespaces(&subsystem), page::CHANGED_NAMESPACES, 0, 4096, false));
    assert_eq!(page[..12], [1, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
    let (_, page) =
        done(log(&mut controller, Service::Namespaces(&subsystem), page::CHANGED_NAMESPACES, 0, 4096, false));
    assert_eq!(page[..4], [0; 4]);
    assert!(subsystem.set_ana(1, AnaState::Inaccessible));
    controller.happened(AsyncEvent::AnaChanged);
    assert_eq!(controller.next_event(), Some((77, 0x000c_0302)));
    assert!(controller.abort_event_request(77));
}

fn reserve(
    subsystem: &mut Subsystem,
    id: u8,
    command: &ReservationCommand,
) -> Vec<nvme_tcp::reservation::Notice> {
    let (opcode, dword10, data) = command.encode();
    let answer = subsystem.reservation(&host(id), 1, opcode, [dword10, 0], &data).unwrap();
    let ReservationAnswer::Change(change) = answer else { panic!("{answer:?}") };
    let synced = Synced::after_writing(&change.next().encode(&[1; 16]), &[1; 16]).unwrap();
    subsystem.install(1, &change, Some(&synced));
    change.notices
}

#[test]
fn a_preempted_host_is_fenced_and_hears_of_it() {
    let mut subsystem = subsystem();
    let mut first = connected(&mut subsystem, 1);
    let mut second = connected(&mut subsystem, 2);
    let kind = ReservationType::ExclusiveAccess;
    let register = |new_key| ReservationCommand::Register {
        registration: Registration::Register { new_key },
        persistence: Persistence::On,
    };
    reserve(&mut subsystem, 1, &register(10));
    reserve(
        &mut subsystem,
        1,
        &ReservationCommand::Acquire { key: 10, kind, acquisition: Acquisition::Acquire },
    );
    assert!(subsystem.admit(&host(1), 1, 0x01).is_ok());
    reserve(&mut subsystem, 2, &register(20));
    let acquisition = Acquisition::Preempt { victims_key: 10, abort: true };
    let notices = reserve(&mut subsystem, 2, &ReservationCommand::Acquire { key: 20, kind, acquisition });
    for notice in notices {
        for controller in [&mut first, &mut second] {
            if controller.host().id == notice.host {
                controller.notify(notice.kind, 1);
            }
        }
    }
    for opcode in [0x00, 0x01, 0x02, 0x08, 0xc1] {
        let refused = subsystem.admit(&host(1), 1, opcode).map(|_| ());
        assert_eq!(refused, Err(Status::RESERVATION_CONFLICT), "{opcode:#x}");
    }
    let request = command(admin::ASYNC_EVENT_REQUEST, 0, &[]);
    first.admin(Service::Namespaces(&subsystem), &request);
    second.admin(Service::Namespaces(&subsystem), &request);
    assert_eq!((first.next_event(), second.next_event()), (Some((77, 0x0080_0006)), None));
    let (_, notice) =
        done(log(&mut first, Service::Namespaces(&subsystem), page::RESERVATIONS, 0, 64, false));
    assert_eq!((notice[0], notice[8], notice[9], notice[12]), (1, 1, 0, 1));
    let (_, none) = done(log(&mut first, Service::Namespaces(&subsystem), page::RESERVATIONS, 0, 64, false));
    assert_eq!(none, [0; 64]);
    // Several notices: each read brings the next event.
    first.notify(NoticeKind::ReservationReleased, 1);
    first.notify(NoticeKind::ReservationReleased, 1);
    first.admin(Service::Namespaces(&subsystem), &request);
    first.admin(Service::Namespaces(&subsystem), &request);
    assert!(first.next_event().is_some() && first.next_event().is_none());
    log(&mut first, Service::Namespaces(&subsystem), page::RESERVATIONS, 0, 64, false);
    assert!(first.next_event().is_some());
    // A host that does not want to hear of it.
    let mask = command(admin::SET_FEATURES, 1, &[feature::RESERVATION_MASK.into(), 0b1110]);
    done(second.admin(Service::Namespaces(&subsystem), &mask));
    second.notify(NoticeKind::ReservationReleased, 1);
    assert_eq!(second.next_event(), None);
}

#[test]
fn persistence_is_answered_when_it_is_durable() {
    let mut subsystem = subsystem();
    let mut controller = connected(&mut subsystem, 1);
    let set = command(admin::SET_FEATURES, 1, &[feature::RESERVATION_PERSISTENCE.into(), 0]);
    let answer = controller.admin(Service::Namespaces(&subsystem), &set);
    assert_eq!(answer, Answer::Persistence { namespace: 1, persists: false });
    let change = subsystem.namespace(1).unwrap().reservations().decide_persistence(false);
    assert!(change.must_be_durable);
    let synced = Synced::after_writing(&change.next().encode(&[1; 16]), &[1; 16]).unwrap();
    subsystem.install(1, &change, Some(&synced));
    let get = command(admin::GET_FEATURES, 1, &[feature::RESERVATION_PERSISTENCE.into()]);
    assert_eq!(done(controller.admin(Service::Namespaces(&subsystem), &get)).0, 0);
}

#[test]
fn a_discovery_controller_shows_its_page_and_no_more() {
    let entry = DiscoveryEntry {
        subsystem_type: SubsystemType::Nvm,
        port: 1,
        nqn: Nqn::new("nqn.2026-11.test:subsystem").unwrap(),
        address: "192.0.2.1".parse().unwrap(),
        service: 4420,
        tls: false,
    };
    let discovery = DiscoveryService {
        serial: "1".to_owned(),
        model: "Twill".to_owned(),
        firmware: "0.1.0".to_owned(),
        commands_max: 32,
        log: DiscoveryLog { generation: 1, entries: vec![entry], left_out: Vec::new() },
    };
    let service = Service::Discovery(&discovery);
    let mut controller = Controller::new(1, host(1), 0);
    let (_, data) = done(controller.admin(service, &command(admin::IDENTIFY, 0, &[cns::CONTROLLER.into()])));
    let info = ControllerInfo::parse(&data).unwrap();
    // The kernel's host calls a controller that takes no commands at a time a firmware bug.
    assert_eq!((info.controller_type, info.commands_max), (Some(ControllerType::Discovery), 32));
    let (_, header) = done(log(&mut controller, service, page::DISCOVERY, 0, 1024, true));
    assert_eq!(header.len(), 1024);
    let (_, whole) = done(log(&mut controller, service, page::DISCOVERY, 0, 2048, false));
    assert_eq!(DiscoveryLog::parse(&whole).as_ref(), Ok(&discovery.log));
    let answer = controller.admin(service, &command(admin::IDENTIFY, 0, &[cns::ACTIVE_NAMESPACES.into()]));
    assert_eq!(answer, Answer::Failed(Status::INVALID_FIELD));
    assert_eq!(
        log(&mut controller, service, page::HEALTH, 0, 512, false),
        Answer::Failed(Status::INVALID_LOG_PAGE)
    );
}

proptest! {
    /// Whatever is asked, the answer is a status or at most as much data as is asked for.
    #[test]
    fn any_admin_command_is_answered(
        opcode in prop_oneof![Just(0x02u8), Just(0x06), Just(0x09), Just(0x0a), Just(0x0c), any::<u8>()],
        namespace in prop_oneof![0u32..5, Just(u32::MAX), Just(u32::MAX - 1), any::<u32>()],
        low in any::<u8>(),
        dwords in any::<[u32; 6]>(),
        discovery in any::<bool>(),
    ) {
        let mut subsystem = subsystem();
        let mut controller = connected(&mut subsystem, 1);
        let service_of_discovery = DiscoveryService {
            serial: String::new(),
            model: String::new(),
            firmware: String::new(),
            commands_max: 32,
            log: DiscoveryLog { generation: 0, entries: Vec::new(), left_out: Vec::new() },
        };
        let service = if discovery { Service::Discovery(&service_of_discovery) } else { Service::Namespaces(&subsystem) };
        let mut dwords = dwords;
        dwords[0] = dwords[0] & !0xff | u32::from(low);
        let answer = controller.admin(service, &AdminCommand { opcode, command_id: 1, namespace, dwords });
        match (opcode, &answer) {
            (admin::GET_LOG_PAGE, Answer::Done { data, .. }) => {
                let request = LogRequest::parse([dwords[0], dwords[1], dwords[2], dwords[3]]).unwrap();
                prop_assert!(data.len() as u64 <= request.bytes);
            }
            (admin::IDENTIFY, Answer::Done { data, .. }) => prop_assert_eq!(data.len(), 4096),
            (_, Answer::Done { data, .. }) => prop_assert!(data.len() <= 16),
            _ => {}
        }
    }
}
