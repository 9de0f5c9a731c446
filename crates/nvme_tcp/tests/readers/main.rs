//! The readers of bytes from other machines, from files and from people, on thousands of mutations of good ones.

mod entries;
#[path = "../facts/mod.rs"]
mod facts;
#[path = "../../../layout/tests/readers/mutations.rs"]
mod mutations;

use nvme_tcp::HashFunction;
use nvme_tcp::ana::{AnaGroup, AnaLog, AnaState};
use nvme_tcp::auth::{Challenge, DhGroup, Failure, Message, Negotiate, Offer, Reply, Secret};
use nvme_tcp::discovery::{DiscoveryEntry, DiscoveryLog, SubsystemType};
use nvme_tcp::identify::namespace_ids;
use nvme_tcp::names::{Host, HostId, Nqn};
use nvme_tcp::psk::ConfiguredPsk;
use nvme_tcp::reservation::{
    Acquisition, Persistence, Registration, Report, ReservationCommand, ReservationType, Reservations, Synced,
};
use nvme_tcp::vendor::{
    AttachMember, AttachRecord, AttachReport, Capability, LedgerAction, LedgerReport, LedgerStep, Ticket,
    VERSION,
};

use mutations::mutate;

fn nqn() -> Nqn {
    Nqn::new("nqn.2026-11.test:a").expect("a name")
}

#[test]
fn identify() {
    let namespace = facts::namespace(0xab);
    let seeds = [facts::controller().encode(), namespace.encode(), namespace_ids(&namespace)];
    mutate("nvme_identify", &seeds, entries::identify);
}

#[test]
fn log_pages() {
    let group = |id, state| AnaGroup { id, state, changes: 7, namespaces: vec![id, id + 10] };
    let ana = AnaLog { changes: 9, groups: vec![group(1, AnaState::Optimized), group(2, AnaState::Change)] };
    let entry = |address: &str| DiscoveryEntry {
        subsystem_type: SubsystemType::Nvm,
        port: 1,
        nqn: nqn(),
        address: address.parse().expect("an address"),
        service: 4420,
        tls: true,
    };
    let entries = vec![entry("192.0.2.1"), entry("2001:db8::1")];
    let discovery = DiscoveryLog { generation: 3, entries, left_out: Vec::new() };
    mutate("nvme_log_pages", &[ana.encode(false), discovery.encode()], entries::log_pages);
}

#[test]
fn fabric() {
    let place = DiscoveryEntry {
        subsystem_type: SubsystemType::Nvm,
        port: 1,
        nqn: nqn(),
        address: "192.0.2.1".parse().expect("an address"),
        service: 4420,
        tls: false,
    };
    let member = |nsid| AttachMember {
        nsid,
        handle: 7,
        ticket: Ticket([1; 16]),
        boot_id: 9,
        shift_blocks: -8,
        flags: 0,
        place: place.clone(),
    };
    let members = vec![member(1), member(2)];
    let record =
        AttachRecord { index: 1, key: 5, array: [3; 16], op_limit_ms: 4000, credit_bytes: 1 << 27, members };
    let first = AttachRecord { members: Vec::new(), ..record.clone() };
    let report = AttachReport {
        handle: 7,
        reached: 3,
        ops_open: 2,
        boot_id: 9,
        key: 5,
        ledger: 11,
        credit_bytes: 1 << 27,
    };
    let step = LedgerStep { action: LedgerAction::Begin, id: 11, key: 5, area: 8..1 << 30 };
    let ledger = LedgerReport { id: 11, area: 8..1 << 30, ranges: vec![8..16, 100..101] };
    let capability =
        Capability { version: VERSION, ops_in_flight: 120, retained_mib: 128, peers_max: 31, boot_id: 9 };
    let seeds = [
        record.encode(),
        first.encode(),
        report.encode().to_vec(),
        step.encode().to_vec(),
        ledger.encode(usize::MAX),
        capability.encode().to_vec(),
    ];
    mutate("nvme_fabric", &seeds, entries::fabric);
}

#[test]
fn reservations() {
    let namespace = [7; 16];
    let mut state = Reservations::none();
    let mut script = Vec::new();
    let registration = |new_key| Registration::Register { new_key };
    let persistence = Persistence::On;
    let kind = ReservationType::ExclusiveAccess;
    let preempt = Acquisition::Preempt { victims_key: 1, abort: true };
    for (id, command) in [
        (0, ReservationCommand::Register { registration: registration(1), persistence }),
        (1, ReservationCommand::Register { registration: registration(2), persistence }),
        (0, ReservationCommand::Acquire { key: 1, kind, acquisition: Acquisition::Acquire }),
        (1, ReservationCommand::Acquire { key: 2, kind, acquisition: preempt }),
    ] {
        let host =
            Host { id: HostId([id; 16]), nqn: Nqn::new(&format!("nqn.2026-11.test:{id}")).expect("a name") };
        let change = state.decide(&host, &command).expect("it may");
        let synced = Synced::after_writing(&change.next().encode(&namespace), &namespace).expect("an image");
        state.install(&change, Some(&synced));
        let (opcode, dword10, mut data) = command.encode();
        data.resize(16, 0);
        script.extend_from_slice(&[&[id, opcode, 0, 0][..], &dword10.to_le_bytes(), &data].concat());
    }
    let report = Report::answer(&state, 1023, 1).expect("a report");
    let seeds = [state.encode(&namespace), Reservations::none().encode(&namespace), report, script];
    mutate("nvme_reservations", &seeds, entries::reservations);
}

#[test]
fn authentication() {
    let digest = [7; 32];
    let (function, group) = (HashFunction::Sha256, DhGroup::Null);
    let offer = Offer { functions: HashFunction::ALL.to_vec(), groups: DhGroup::BY_PREFERENCE.to_vec() };
    let challenge = Challenge { function, group, sequence: 5, challenge: &digest, public: &[] };
    let large = Challenge { group: DhGroup::Ffdhe2048, public: &[9; 256], ..challenge };
    let seeds = [
        Message::Negotiate(Negotiate { concatenation: 0, offer: Some(offer) }).encode(0),
        Message::Challenge(challenge).encode(0),
        Message::Challenge(large).encode(0),
        Message::Reply(Reply { response: &digest, challenge: Some(&digest), sequence: 6, public: &[] })
            .encode(0),
        Message::Success1 { digest_bytes: 32, response: Some(&digest) }.encode(0),
        Message::Success2.encode(0),
        Message::Failure1(Failure::NotAuthentic).encode(0),
    ];
    mutate("nvme_authentication", &seeds, entries::authentication);
}

#[test]
fn key_texts() {
    let secret = Secret::new(Some(HashFunction::Sha384), &[3; 48]).expect("a secret");
    let key = ConfiguredPsk::new(Some(HashFunction::Sha256), &[4; 32]).expect("a key");
    let plain = ConfiguredPsk::new(None, &[4; 48]).expect("a key");
    let texts = [secret.to_text(), key.to_text(), plain.to_text()];
    let mut seeds: Vec<Vec<u8>> = texts.iter().map(|text| text.as_bytes().to_vec()).collect();
    seeds.push(nqn().as_str().as_bytes().to_vec());
    let identity = plain.tls_psks("nqn.h", "nqn.s").swap_remove(0).identity.into_bytes();
    let entry = [&(identity.len() as u16).to_be_bytes()[..], &identity, &[0; 4]].concat();
    let binder = [&[0, 33, 32][..], &[9; 32]].concat();
    seeds.push([&(entry.len() as u16).to_be_bytes()[..], &entry, &binder].concat());
    seeds.push(identity);
    mutate("nvme_key_texts", &seeds, entries::key_texts);
}
