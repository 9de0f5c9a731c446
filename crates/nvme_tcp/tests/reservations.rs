//! The reservation machine beside a small model of the specification: two to four hosts, keys that collide, every command, and a
//! loss of power between any two steps.

use std::collections::{BTreeMap, BTreeSet};

use nvme_tcp::names::{Host, HostId, Nqn};
use nvme_tcp::reservation::{
    Acquisition, Change, CommandClass, Notice, NoticeKind, Persistence, Registration, Report, ReportError,
    ReservationCommand, ReservationType, Reservations, Standing, Synced,
};
use nvme_tcp::status::Status;
use proptest::prelude::*;

const NAMESPACE: [u8; 16] = *b"a test namespace";

/// Host 3 is an impostor: it has the identifier of host 0 and a name of its own.
fn host(number: usize) -> Host {
    let id = HostId([u8::try_from(number % 3 + 1).unwrap(); 16]);
    Host { id, nqn: Nqn::new(&format!("nqn.2026-11.test:host{number}")).unwrap() }
}

/// The specification in sets: who has which key, which type is held by whom.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    keys: BTreeMap<usize, u64>,
    held: Option<(u8, BTreeSet<usize>)>,
    generation: u32,
    persists: bool,
}

impl Model {
    fn is_all(&self) -> bool {
        matches!(self.held, Some((5 | 6, _)))
    }

    fn holds(&self, host: usize) -> bool {
        self.held.as_ref().is_some_and(|(_, holders)| holders.contains(&host))
    }

    /// What a type that everyone holds and the end of a holder make of it.
    fn settle(&mut self) {
        let registered: BTreeSet<usize> = self.keys.keys().copied().collect();
        let is_all = self.is_all();
        if let Some((_, holders)) = &mut self.held {
            *holders = if is_all { registered } else { holders.intersection(&registered).copied().collect() };
            if holders.is_empty() {
                self.held = None;
            }
        }
    }

    fn apply(&mut self, host: usize, command: &ReservationCommand) -> Result<(), Status> {
        let own = self.keys.get(&host).copied();
        let conflict = Err(Status::RESERVATION_CONFLICT);
        match *command {
            ReservationCommand::Register { registration, persistence } => {
                self.register(host, registration)?;
                self.persists = match persistence {
                    Persistence::Unchanged => self.persists,
                    Persistence::Off => false,
                    Persistence::On => true,
                };
            }
            ReservationCommand::Acquire { key, .. }
            | ReservationCommand::Release { key, .. }
            | ReservationCommand::Clear { key }
                if own != Some(key) =>
            {
                return conflict;
            }
            ReservationCommand::Acquire { kind, acquisition: Acquisition::Acquire, .. } => match &self.held {
                None => self.held = Some((kind.number(), [host].into())),
                Some((held, _)) if *held == kind.number() && self.holds(host) => {}
                Some(_) => return conflict,
            },
            ReservationCommand::Acquire {
                kind,
                acquisition: Acquisition::Preempt { victims_key, .. },
                ..
            } => {
                let holder_has_it = !self.is_all()
                    && self.keys.iter().any(|(host, key)| *key == victims_key && self.holds(*host));
                let all_others = self.is_all() && victims_key == 0;
                if holder_has_it || all_others {
                    self.keys.retain(|other, key| *other == host || !all_others && *key != victims_key);
                    self.held = Some((kind.number(), [host].into()));
                } else if victims_key == 0 && self.held.is_some() {
                    return Err(Status::INVALID_FIELD);
                } else if self.keys.values().all(|key| *key != victims_key) {
                    return conflict;
                } else {
                    self.keys.retain(|_, key| *key != victims_key);
                }
                self.generation += 1;
            }
            ReservationCommand::Release { kind, .. } => match &self.held {
                Some((held, _)) if self.holds(host) => {
                    if *held != kind {
                        return Err(Status::INVALID_FIELD);
                    }
                    self.held = None;
                }
                _ => {}
            },
            ReservationCommand::Clear { .. } => {
                self.keys.clear();
                self.held = None;
                self.generation += 1;
            }
        }
        self.settle();
        Ok(())
    }

    fn register(&mut self, host: usize, registration: Registration) -> Result<(), Status> {
        let own = self.keys.get(&host).copied();
        let twin = [(0, 3), (3, 0)].iter().any(|(one, twin)| *one == host && self.keys.contains_key(twin));
        match registration {
            Registration::Replace { key: None, new_key } => {
                if own.is_none() && twin {
                    return Err(Status::RESERVATION_CONFLICT);
                }
                self.keys.insert(host, new_key);
            }
            Registration::Register { new_key } => {
                if own.is_some_and(|own| own != new_key) || own.is_none() && twin {
                    return Err(Status::RESERVATION_CONFLICT);
                }
                self.keys.insert(host, new_key);
            }
            Registration::Unregister { key } | Registration::Replace { key, .. }
                if own.is_none() || key.is_some_and(|key| Some(key) != own) =>
            {
                return Err(Status::RESERVATION_CONFLICT);
            }
            Registration::Unregister { .. } => {
                self.keys.remove(&host);
            }
            Registration::Replace { new_key, .. } => {
                self.keys.insert(host, new_key);
            }
        }
        self.generation += 1;
        Ok(())
    }

    /// May a host read, write: by the words of the specification.
    fn may(&self, host: usize) -> (bool, bool) {
        let Some((kind, _)) = &self.held else { return (true, true) };
        let class = match kind {
            1 | 2 => self.holds(host),
            _ => self.keys.contains_key(&host),
        };
        let is_write_exclusive = matches!(kind, 1 | 3 | 5);
        (class || is_write_exclusive, class)
    }
}

fn check_same(machine: &Reservations, model: &Model) {
    assert_eq!((machine.generation(), machine.persists()), (model.generation, model.persists));
    assert_eq!(machine.registrants().len(), model.keys.len());
    for (host_number, key) in &model.keys {
        assert!(machine.registrants().iter().any(|one| one.host == host(*host_number) && one.key == *key));
    }
    assert_eq!(machine.held().map(|held| held.kind().number()), model.held.as_ref().map(|(kind, _)| *kind));
    for number in 0..4 {
        let standing = match (model.keys.contains_key(&number), model.holds(number)) {
            (true, true) => Standing::Holder,
            (true, false) => Standing::Registrant,
            (false, _) => Standing::Stranger,
        };
        assert_eq!(machine.standing(&host(number)), standing, "host {number}");
        let may = |class| machine.admit(&host(number), class).is_ok();
        assert_eq!((may(CommandClass::Read), may(CommandClass::Write)), model.may(number), "host {number}");
        assert!(may(CommandClass::Other));
    }
    check_report(machine, model);
}

fn check_report(machine: &Reservations, model: &Model) {
    let (dword10, dword11) = Report::request(64);
    let short = Report::answer(machine, dword10, dword11).unwrap();
    let bytes = match Report::parse(&short) {
        Ok(_) => 64,
        Err(ReportError::Longer { bytes }) => bytes,
        Err(error) => panic!("{error}"),
    };
    assert_eq!(bytes, 64 + 64 * model.keys.len());
    let (dword10, dword11) = Report::request(bytes + 400);
    let report = Report::parse(&Report::answer(machine, dword10, dword11).unwrap()).unwrap();
    assert_eq!((report.generation, report.persists), (model.generation, model.persists));
    assert_eq!(report.kind.map(ReservationType::number), model.held.as_ref().map(|(kind, _)| *kind));
    for (number, key) in &model.keys {
        let reported = report
            .registrants
            .iter()
            .find(|one| one.host == host(*number).id)
            .unwrap_or_else(|| panic!("{report:?}"));
        assert_eq!((reported.key, reported.holds), (*key, model.holds(*number)));
    }
}

/// What a change says of victims and notices follows from the states before and after.
fn check_consequences(
    change: &Change,
    before: &Model,
    after: &Model,
    actor: usize,
    command: &ReservationCommand,
) {
    let lost: BTreeSet<Host> = before
        .keys
        .keys()
        .filter(|number| **number != actor && !after.keys.contains_key(number))
        .map(|number| host(*number))
        .collect();
    let preempts =
        matches!(command, ReservationCommand::Acquire { acquisition: Acquisition::Preempt { .. }, .. });
    let clears = matches!(command, ReservationCommand::Clear { .. });
    let victims: BTreeSet<Host> = change.victims.iter().map(|victim| victim.host.clone()).collect();
    assert_eq!(victims, if preempts { lost.clone() } else { BTreeSet::new() });
    for victim in &change.victims {
        assert!(before.keys.iter().any(|(number, key)| host(*number) == victim.host && *key == victim.key));
    }
    let mut notices: BTreeSet<Notice> = BTreeSet::new();
    let kind = if clears { NoticeKind::ReservationPreempted } else { NoticeKind::RegistrationPreempted };
    notices.extend(lost.iter().map(|host| Notice { host: host.id, kind }));
    // Released, or another type: those that are still registered lose or gain rights.
    let kind_of = |model: &Model| model.held.as_ref().map(|(kind, _)| *kind);
    let (was, is) = (kind_of(before), kind_of(after));
    let released = match command {
        ReservationCommand::Register { .. } => is.is_none() && matches!(was, Some(3 | 4)),
        ReservationCommand::Release { .. } => is.is_none() && matches!(was, Some(3..=6)),
        ReservationCommand::Acquire { .. } => preempts && was.is_some() && is.is_some() && was != is,
        ReservationCommand::Clear { .. } => false,
    };
    if released {
        let kind = NoticeKind::ReservationReleased;
        let others = after.keys.keys().filter(|number| **number != actor);
        notices.extend(others.map(|number| Notice { host: host(*number).id, kind }));
    }
    let found: BTreeSet<Notice> = change.notices.iter().copied().collect();
    assert_eq!(found, notices);
    assert_eq!(found.len(), change.notices.len(), "each notice once");
}

#[derive(Clone, Copy, Debug)]
enum PowerLoss {
    None,
    /// The new image was not written: the former one is there, and the command was never answered.
    BeforeSync,
    /// It was written; the command was not answered.
    AfterSync,
    /// After the answer.
    AfterAnswer,
}

fn commands() -> impl Strategy<Value = (usize, ReservationCommand, PowerLoss)> {
    let key = 1u64..4;
    let optional_key = prop_oneof![3 => key.clone().prop_map(Some), 1 => Just(None)];
    let registration = prop_oneof![
        4 => key.clone().prop_map(|new_key| Registration::Register { new_key }),
        1 => optional_key.clone().prop_map(|key| Registration::Unregister { key }),
        1 => (optional_key, key.clone()).prop_map(|(key, new_key)| Registration::Replace { key, new_key }),
    ];
    let persistence = prop_oneof![
        6 => Just(Persistence::Unchanged),
        1 => Just(Persistence::Off),
        1 => Just(Persistence::On),
    ];
    let kind = (1u8..=6).prop_map(|number| ReservationType::from_number(number).unwrap());
    let acquisition = prop_oneof![
        Just(Acquisition::Acquire),
        (0u64..4, any::<bool>()).prop_map(|(victims_key, abort)| Acquisition::Preempt { victims_key, abort }),
    ];
    let command = prop_oneof![
        5 => (registration, persistence).prop_map(|(registration, persistence)| ReservationCommand::Register { registration, persistence }),
        6 => (key.clone(), kind, acquisition).prop_map(|(key, kind, acquisition)| ReservationCommand::Acquire { key, kind, acquisition }),
        2 => (key.clone(), 1u8..=6).prop_map(|(key, kind)| ReservationCommand::Release { key, kind }),
        1 => key.prop_map(|key| ReservationCommand::Clear { key }),
    ];
    let power = prop_oneof![
        12 => Just(PowerLoss::None),
        1 => Just(PowerLoss::BeforeSync),
        1 => Just(PowerLoss::AfterSync),
        1 => Just(PowerLoss::AfterAnswer),
    ];
    (0usize..4, command, power)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn the_machine_does_what_the_model_does(steps in proptest::collection::vec(commands(), 1..60)) {
        let mut machine = Reservations::none();
        let mut model = Model { persists: true, ..Model::default() };
        // A target's first start, by the operator's word.
        let mut file = machine.encode(&NAMESPACE);
        for (actor, command, power) in steps {
            let before = model.clone();
            let expected = model.apply(actor, &command);
            let decided = machine.decide(&host(actor), &command);
            prop_assert_eq!(decided.as_ref().map(|_| ()).map_err(|status| *status), expected, "{:?}", command);
            if expected.is_err() {
                model = before.clone();
            }
            let mut lost_power = false;
            if let Ok(change) = decided {
                check_consequences(&change, &before, &model, actor, &command);
                if matches!(power, PowerLoss::BeforeSync) && change.must_be_durable {
                    model = before;
                    lost_power = true;
                } else {
                    let image = change.next().encode(&NAMESPACE);
                    let synced = change.must_be_durable.then(|| {
                        file.clone_from(&image);
                        Synced::after_writing(&image, &NAMESPACE).unwrap()
                    });
                    // What needs no write leaves after a loss of power what is in the file already.
                    prop_assert_eq!(&file, &image);
                    if !matches!(power, PowerLoss::AfterSync) {
                        machine.install(&change, synced.as_ref());
                    }
                    lost_power = matches!(power, PowerLoss::AfterSync | PowerLoss::AfterAnswer);
                }
            }
            if lost_power {
                machine = Reservations::parse(&file, &NAMESPACE).unwrap();
                if !model.persists {
                    model = Model::default();
                }
            }
            check_same(&machine, &model);
        }
    }

    /// F-I9: a file with any byte changed, cut or grown, or of another namespace is no state.
    #[test]
    fn a_damaged_file_is_no_state(steps in proptest::collection::vec(commands(), 1..30), at in any::<prop::sample::Index>(), value in 1u8..) {
        let mut machine = Reservations::none();
        for (actor, command, _) in steps {
            if let Ok(change) = machine.decide(&host(actor), &command) {
                let synced = Synced::after_writing(&change.next().encode(&NAMESPACE), &NAMESPACE).unwrap();
                machine.install(&change, Some(&synced));
            }
        }
        let image = machine.encode(&NAMESPACE);
        prop_assert_eq!(Reservations::parse(&image, &NAMESPACE), Ok(machine.after_power_loss()));
        let mut damaged = image.clone();
        damaged[at.index(image.len())] ^= value;
        prop_assert!(Reservations::parse(&damaged, &NAMESPACE).is_err());
        prop_assert!(Reservations::parse(&image[..at.index(image.len())], &NAMESPACE).is_err());
        prop_assert!(Reservations::parse(&[&image[..], &[0]].concat(), &NAMESPACE).is_err());
        prop_assert!(Reservations::parse(&image, b"another one     ").is_err());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), dwords in any::<(u32, u32)>()) {
        let _ = Reservations::parse(&bytes, &NAMESPACE);
        let _ = Report::parse(&bytes);
        for opcode in [0x0d, 0x11, 0x15] {
            if let Ok(command) = ReservationCommand::parse(opcode, dwords.0, &bytes) {
                let (again, dword10, data) = command.encode();
                prop_assert_eq!(again, opcode);
                prop_assert_eq!(ReservationCommand::parse(opcode, dword10, &data), Ok(command));
            }
        }
        let _ = Report::answer(&Reservations::none(), dwords.0, dwords.1);
    }
}

fn register(new_key: u64) -> ReservationCommand {
    let registration = Registration::Register { new_key };
    ReservationCommand::Register { registration, persistence: Persistence::Unchanged }
}

fn done(machine: &mut Reservations, actor: usize, command: &ReservationCommand) -> Change {
    let change = machine.decide(&host(actor), command).unwrap();
    let synced = Synced::after_writing(&change.next().encode(&NAMESPACE), &NAMESPACE).unwrap();
    machine.install(&change, Some(&synced));
    change
}

/// The way a host takes over: F-I6.
#[test]
fn a_take_over_fences_the_former_host_and_names_it() {
    let kind = ReservationType::ExclusiveAccess;
    let mut machine = Reservations::none();
    done(&mut machine, 0, &register(10));
    done(&mut machine, 0, &ReservationCommand::Acquire { key: 10, kind, acquisition: Acquisition::Acquire });
    assert_eq!(machine.admit(&host(1), CommandClass::Read), Err(Status::RESERVATION_CONFLICT));
    done(&mut machine, 1, &register(20));
    assert_eq!(machine.admit(&host(1), CommandClass::Write), Err(Status::RESERVATION_CONFLICT));
    let acquisition = Acquisition::Preempt { victims_key: 10, abort: true };
    let change = done(&mut machine, 1, &ReservationCommand::Acquire { key: 20, kind, acquisition });
    assert_eq!((change.victims.len(), &change.victims[0].host, change.abort), (1, &host(0), true));
    assert_eq!(change.notices, [Notice { host: host(0).id, kind: NoticeKind::RegistrationPreempted }]);
    for class in [CommandClass::Read, CommandClass::Write] {
        assert_eq!(machine.admit(&host(0), class), Err(Status::RESERVATION_CONFLICT));
        assert_eq!(machine.admit(&host(1), class), Ok(()));
    }
    // The key that was read is not there any more: a third host that read it, too, is late.
    done(&mut machine, 2, &register(30));
    let late = ReservationCommand::Acquire { key: 30, kind, acquisition };
    assert_eq!(machine.decide(&host(2), &late), Err(Status::RESERVATION_CONFLICT));
}

/// An identifier belongs to the name that registered with it.
#[test]
fn another_name_with_the_holders_identifier_is_a_stranger() {
    let kind = ReservationType::ExclusiveAccess;
    let mut machine = Reservations::none();
    done(&mut machine, 0, &register(10));
    done(&mut machine, 0, &ReservationCommand::Acquire { key: 10, kind, acquisition: Acquisition::Acquire });
    assert_eq!(host(0).id, host(3).id);
    assert_eq!(machine.standing(&host(3)), Standing::Stranger);
    assert_eq!(machine.admit(&host(3), CommandClass::Read), Err(Status::RESERVATION_CONFLICT));
    assert_eq!(machine.decide(&host(3), &register(10)), Err(Status::RESERVATION_CONFLICT));
    assert_eq!(
        machine.decide(&host(3), &ReservationCommand::Clear { key: 10 }),
        Err(Status::RESERVATION_CONFLICT)
    );
}

#[test]
#[should_panic(expected = "F-I9")]
fn a_change_without_its_file_is_not_installed() {
    let mut machine = Reservations::none();
    let change = machine.decide(&host(0), &register(1)).unwrap();
    machine.install(&change, None);
}

#[test]
#[should_panic(expected = "F-I9")]
fn the_file_of_another_change_does_not_do() {
    let mut machine = Reservations::none();
    let other = machine.decide(&host(1), &register(1)).unwrap();
    let synced = Synced::after_writing(&other.next().encode(&NAMESPACE), &NAMESPACE).unwrap();
    let change = machine.decide(&host(0), &register(1)).unwrap();
    machine.install(&change, Some(&synced));
}

#[test]
fn registrants_have_a_limit() {
    let mut machine = Reservations::none();
    let numbered = |number: u32| {
        let mut id = [0; 16];
        id[..4].copy_from_slice(&number.to_le_bytes());
        Host { id: HostId(id), nqn: Nqn::new("nqn.2026-11.test:many").unwrap() }
    };
    for number in 1..=128 {
        let change = machine.decide(&numbered(number), &register(1)).unwrap();
        let synced = Synced::after_writing(&change.next().encode(&NAMESPACE), &NAMESPACE).unwrap();
        machine.install(&change, Some(&synced));
    }
    let refused = machine.decide(&numbered(129), &register(1)).unwrap_err();
    assert!(refused.is(Status::INTERNAL_ERROR) && !refused.may_retry());
    assert_eq!(machine.encode(&NAMESPACE).len(), nvme_tcp::reservation::STATE_FILE_BYTES_MAX);
}
