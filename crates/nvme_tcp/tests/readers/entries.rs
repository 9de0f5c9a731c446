//! What is asked of each reader of bytes from another machine, a file or a person, whatever they are: no panic, and what is
//! believed can be written and read again. Called with mutated bytes; a fuzzer calls the same.

use nvme_tcp::HashFunction;
use nvme_tcp::ana::AnaLog;
use nvme_tcp::auth::{
    ControllerExchange, ControllerSettings, DhGroup, HostExchange, HostSettings, MESSAGE_BYTES_MAX, Message,
    Names, Randomness, Secret,
};
use nvme_tcp::discovery::{DiscoveryLog, ENTRIES_MAX};
use nvme_tcp::identify::{ControllerInfo, NamespaceInfo};
use nvme_tcp::names::{Host, HostId, Nqn};
use nvme_tcp::psk::{ConfiguredPsk, IDENTITIES_MAX, PskIdentity, offered_identities};
use nvme_tcp::reservation::{Report, ReservationCommand, Reservations, StateFileError};
use nvme_tcp::vendor::{
    AttachRecord, AttachReport, CAPABILITY_BYTES, Capability, LEDGER_RANGES_MAX, LedgerReport, LedgerStep,
    MEMBERS_MAX,
};
use zeroize::Zeroizing;

/// Readers of Identify's answers.
pub fn identify(bytes: &[u8]) {
    match ControllerInfo::parse(bytes) {
        Ok(info) => {
            assert!(info.in_capsule_bytes.is_multiple_of(16));
            assert!(info.transfer_bytes_max.is_none_or(|bytes| bytes >= 8192));
        }
        Err(error) => drop(error.to_string()),
    }
    match NamespaceInfo::parse(bytes) {
        Ok(info) => {
            let bytes = info.blocks.checked_mul(1 << info.block_log2).expect("a size in bytes");
            assert!(i64::try_from(bytes).is_ok() && info.atomic_blocks_power_fail > 0);
        }
        Err(error) => drop(error.to_string()),
    }
    let _ = NamespaceInfo::uuid(bytes);
}

/// Readers of log pages.
pub fn log_pages(bytes: &[u8]) {
    match AnaLog::parse(bytes) {
        Ok(log) => assert_eq!(AnaLog::parse(&log.encode(false)), Ok(log)),
        Err(error) => drop(error.to_string()),
    }
    match DiscoveryLog::parse(bytes) {
        Ok(log) => {
            assert!(log.entries.len() + log.left_out.len() <= ENTRIES_MAX);
            let again = DiscoveryLog::parse(&log.encode()).expect("what is believed is read again");
            assert_eq!((again.entries, again.left_out.len()), (log.entries, 0));
        }
        Err(error) => drop(error.to_string()),
    }
}

/// Readers of a state file of reservations, with the sum and the namespace that it wants, of a report, and of commands on what
/// is believed.
pub fn reservations(bytes: &[u8]) {
    let mut image = bytes.to_vec();
    let mut namespace = [0; 16];
    let mut state = None;
    for _ in 0..3 {
        match Reservations::parse(&image, &namespace) {
            Ok(parsed) => {
                assert_eq!(parsed.encode(&namespace), image, "one image for each state");
                state = Some(parsed);
                break;
            }
            Err(StateFileError::Foreign(own)) => namespace = own,
            Err(StateFileError::Checksum { expected, .. }) => {
                image[12..16].copy_from_slice(&expected.to_le_bytes());
            }
            Err(other) => {
                drop(other.to_string());
                break;
            }
        }
    }
    let _ = Report::parse(bytes).map_err(|error| error.to_string());
    let mut state = state.unwrap_or_else(Reservations::none);
    commands(&mut state, bytes);
    let report = Report::answer(&state, 1023, 1).expect("a report");
    assert_eq!(Report::parse(&report), Ok(Report::of(&state)));
}

/// Commands of four hosts, 24 bytes each.
fn commands(state: &mut Reservations, bytes: &[u8]) {
    for chunk in bytes.chunks_exact(24).take(32) {
        let (start, data) = chunk.split_at(8);
        let host = start[0] & 3;
        let nqn = Nqn::new(&format!("nqn.2026-11.test:{host}")).expect("a name");
        let host = Host { id: HostId([host; 16]), nqn };
        let dword10 = u32::from_le_bytes(start[4..].try_into().expect("4 bytes"));
        // Keys that meet now and then.
        let data: Vec<u8> =
            data.iter().enumerate().map(|(at, byte)| if at % 8 == 0 { byte & 3 } else { 0 }).collect();
        let Ok(command) = ReservationCommand::parse(start[1], dword10, &data) else { continue };
        let Ok(change) = state.decide(&host, &command) else { continue };
        let namespace = [7; 16];
        let image = change.next().encode(&namespace);
        let synced = nvme_tcp::reservation::Synced::after_writing(&image, &namespace).expect("an image");
        state.install(&change, Some(&synced));
    }
}

/// Messages of authentication, to both sides at each step.
pub fn authentication(bytes: &[u8]) {
    if let Ok((transaction, message)) = Message::parse(bytes) {
        let again = message.encode(transaction);
        assert!(again.len() <= MESSAGE_BYTES_MAX);
        assert_eq!(Message::parse(&again), Ok((transaction, message)));
    }
    let secret = || Secret::new(None, &[5; 32]).expect("a secret");
    let names = || Names { host: "nqn.h".to_owned(), subsystem: "nqn.s".to_owned() };
    let randomness =
        |byte| Randomness { challenge: [byte; 64], private: Zeroizing::new([byte; 64]), sequence: 1 };
    // The null group: the arithmetic of others is slow, and tested by itself.
    let (functions, groups) = (vec![HashFunction::Sha256], vec![DhGroup::Null]);
    let settings = HostSettings {
        names: names(),
        secret: secret(),
        subsystem_secret: None,
        functions: functions.clone(),
        groups: groups.clone(),
    };
    let (mut host, first) = HostExchange::begin(settings, randomness(1), 0);
    assert!(host.receive(bytes).end != Some(Ok(())));
    let settings = || ControllerSettings {
        names: names(),
        host_secret: Some(secret()),
        secret: None,
        functions: functions.clone(),
        groups: groups.clone(),
    };
    let mut controller = ControllerExchange::new(settings(), randomness(2));
    controller.receive(bytes);
    drop(controller.answer());
    controller.receive(bytes);
    assert!(controller.outcome() != Some(Ok(())));
    let mut controller = ControllerExchange::new(settings(), randomness(2));
    controller.receive(&first);
    assert!(controller.answer().is_some());
    controller.receive(bytes);
    drop(controller.answer());
    assert!(controller.outcome() != Some(Ok(())));
}

/// Texts of keys and names.
pub fn key_texts(bytes: &[u8]) {
    if let Some(identities) = offered_identities(bytes) {
        assert!(identities.len() <= IDENTITIES_MAX);
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    match ConfiguredPsk::parse(text) {
        Ok(key) => {
            assert_eq!(key.to_text().as_str(), text.trim());
            assert!(key.tls_psks("nqn.h", "nqn.s").len() >= 2);
        }
        Err(error) => drop(error.to_string()),
    }
    match Secret::parse(text) {
        Ok(secret) => assert_eq!(secret.to_text().as_str(), text.trim()),
        Err(error) => drop(error.to_string()),
    }
    if let Some(names) = PskIdentity::parse(text) {
        let key = ConfiguredPsk::new(None, &[4; 32]).expect("a key");
        assert!(key.with_identity(text, &names).is_none_or(|key| key.function == names.function));
    }
    if let Ok(nqn) = Nqn::new(text) {
        assert_eq!(Nqn::from_field(&nqn.to_field::<256>()), Ok(nqn));
    }
}

/// Records of the fabric: what hosts tell targets, and what targets answer.
pub fn fabric(bytes: &[u8]) {
    if let Ok(record) = AttachRecord::parse(bytes) {
        assert!(record.members.len() <= MEMBERS_MAX);
        assert_eq!(AttachRecord::parse(&record.encode()), Ok(record));
    }
    if let Some(report) = AttachReport::parse(bytes) {
        assert_eq!(AttachReport::parse(&report.encode()), Some(report));
    }
    if let Ok(step) = LedgerStep::parse(bytes) {
        assert!(step.area.start <= step.area.end);
        assert_eq!(LedgerStep::parse(&step.encode()), Ok(step));
    }
    if let Ok(report) = LedgerReport::parse(bytes) {
        assert!(report.ranges.len() <= LEDGER_RANGES_MAX);
        assert_eq!(LedgerReport::parse(&report.encode(usize::MAX)), Ok(report));
    }
    if let Some(Ok(bytes)) = bytes.get(..CAPABILITY_BYTES).map(<[u8; CAPABILITY_BYTES]>::try_from)
        && let Some(capability) = Capability::parse(&bytes)
    {
        assert_eq!(Capability::parse(&capability.encode()), Some(capability));
    }
}
