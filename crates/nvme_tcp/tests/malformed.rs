//! Bytes that break the rules of the transport: each wrong field ends the connection with its status and its place.

mod ends;

use ends::{BLOCK, Host, PLAIN, Setting, Target, settle, transfer};
use nvme_tcp::command::io;
use nvme_tcp::initiator::Payload;
use nvme_tcp::pdu::{FatalStatus, Side};
use nvme_tcp::session::{Offer, Session};
use nvme_tcp::status::Status;

const BYTES: usize = 64 * BLOCK;

/// A target whose connection has begun, and the bytes of a PDU that its host could send next.
fn target_and(setting: Setting, what: fn(&mut Host)) -> (Target, Vec<u8>) {
    let mut host = Host::new(setting, 8);
    let mut target = Target::new(setting, BYTES, 8);
    settle(&mut host, &mut target);
    what(&mut host);
    (target, host.out)
}

/// A target that has asked for data, and the H2CData that answers.
fn target_and_data(setting: Setting) -> (Target, Vec<u8>) {
    let mut host = Host::new(setting, 8);
    let mut target = Target::new(setting, BYTES, 8);
    settle(&mut host, &mut target);
    host.write(0, vec![1; 4 * BLOCK]);
    target.feed(&std::mem::take(&mut host.out)).expect("a good command");
    host.feed(&std::mem::take(&mut target.out)).expect("a good R2T");
    (target, host.out)
}

type Edit = fn(&mut Vec<u8>);

fn expect(mut target: Target, mut bytes: Vec<u8>, edit: Edit, status: FatalStatus, information: u32) {
    edit(&mut bytes);
    let fatal = target.feed(&bytes).expect_err("a rule is broken");
    assert_eq!((fatal.status, fatal.information), (status, information));
    // The termination request: its own header, what is wrong, and the header that was wrong.
    let term = &target.out;
    assert_eq!((term[0], term[2], usize::from(term[4])), (3, 24, term.len()));
    assert_eq!(u16::from_le_bytes([term[8], term[9]]), status as u16);
    assert_eq!(u32::from_le_bytes([term[10], term[11], term[12], term[13]]), information);
    assert_eq!(term[24..], bytes[..term.len() - 24]);
    // Nothing is taken any more.
    let before = target.out.len();
    target.feed(&[0; 64]).expect("it is passed over");
    assert_eq!(target.out.len(), before);
}

#[test]
fn first_pdu() {
    use FatalStatus as S;
    let table: &[(Edit, S, u32)] = &[
        (|pdu| pdu[0] = 4, S::InvalidHeaderField, 2), // a command with a header of 128 bytes
        (|pdu| pdu[0] = 1, S::InvalidHeaderField, 0), // only a controller sends that
        (|pdu| pdu[0] = 8, S::InvalidHeaderField, 0),
        (|pdu| pdu[0] = 0xff, S::InvalidHeaderField, 0),
        (|pdu| pdu[1] = 1, S::InvalidHeaderField, 1),
        (|pdu| pdu[1] = 0x80, S::InvalidHeaderField, 1),
        (|pdu| pdu[2] = 127, S::InvalidHeaderField, 2),
        (|pdu| pdu[4] = 127, S::InvalidHeaderField, 4),
        (|pdu| pdu[4] = 129, S::InvalidHeaderField, 4),
        (|pdu| pdu[7] = 0xff, S::InvalidHeaderField, 4),
        (|pdu| pdu[8] = 1, S::UnsupportedParameter, 8),
        (|pdu| pdu[10] = 32, S::InvalidHeaderField, 10),
        (|pdu| pdu[11] = 4, S::InvalidHeaderField, 11),
    ];
    for (edit, status, information) in table {
        expect(Target::new(PLAIN, BYTES, 8), Host::new(PLAIN, 8).out, *edit, *status, *information);
    }
}

#[test]
fn commands() {
    use FatalStatus as S;
    fn write(host: &mut Host) {
        host.write(0, vec![1; BLOCK]);
    }
    let table: &[(Edit, S, u32)] = &[
        (|pdu| pdu[0] = 0, S::InvalidHeaderField, 2),
        (|pdu| pdu[0] = 5, S::InvalidHeaderField, 0),
        (|pdu| pdu[1] = 1, S::InvalidHeaderField, 1), // digests were not agreed
        (|pdu| pdu[1] = 2, S::InvalidHeaderField, 1),
        (|pdu| pdu[1] = 4, S::InvalidHeaderField, 1),
        (|pdu| pdu[2] = 73, S::InvalidHeaderField, 2),
        (|pdu| pdu[3] = 0, S::InvalidHeaderField, 3),
        (|pdu| pdu[3] = 71, S::InvalidHeaderField, 3),
        (|pdu| pdu[3] = 74, S::InvalidHeaderField, 3),
        (|pdu| pdu[4..8].copy_from_slice(&71u32.to_le_bytes()), S::InvalidHeaderField, 4),
        (|pdu| pdu[4..8].copy_from_slice(&(73u32 + 1024).to_le_bytes()), S::InvalidHeaderField, 4),
        (|pdu| pdu[4..8].copy_from_slice(&u32::MAX.to_le_bytes()), S::InvalidHeaderField, 4),
    ];
    for (edit, status, information) in table {
        let (target, bytes) = target_and(PLAIN, write);
        expect(target, bytes, *edit, *status, *information);
    }
    let digests = Setting { header_digest: true, data_digest: true, ..PLAIN };
    let table: &[(Edit, S)] =
        &[(|pdu| pdu[1] = 0, S::InvalidHeaderField), (|pdu| pdu[1] = 1, S::InvalidHeaderField)];
    for (edit, status) in table {
        let (target, bytes) = target_and(digests, write);
        expect(target, bytes, *edit, *status, 1);
    }
    let (target, bytes) = target_and(digests, write);
    let digest = u32::from_le_bytes([bytes[72], bytes[73], bytes[74], bytes[75]]);
    expect(target, bytes, |pdu| pdu[20] ^= 1, S::HeaderDigest, digest);
    // Where the data begins is not covered by any rule on alignment that this target has not asked for.
    let aligned = Setting { target_alignment: 3, ..PLAIN };
    let (target, bytes) = target_and(aligned, write);
    expect(target, bytes, |pdu| pdu[3] = 76, S::InvalidHeaderField, 3);
}

#[test]
fn data() {
    use FatalStatus as S;
    let table: &[(Edit, S, u32)] = &[
        (|pdu| pdu[0] = 7, S::InvalidHeaderField, 0),
        (|pdu| pdu[1] |= 8, S::InvalidHeaderField, 1),
        (|pdu| pdu[4..8].copy_from_slice(&24u32.to_le_bytes()), S::InvalidHeaderField, 4),
        (|pdu| pdu[4..8].copy_from_slice(&(25u32 + 4096).to_le_bytes()), S::LimitExceeded, 4),
        (|pdu| pdu[8] ^= 1, S::InvalidHeaderField, 10), // another command
        (|pdu| pdu[10] ^= 1, S::InvalidHeaderField, 10), // a tag that was not given
        (|pdu| pdu[11] = 0xff, S::InvalidHeaderField, 10),
        (|pdu| pdu[12] = 1, S::DataOutOfRange, 12),
        (|pdu| pdu[15] = 0xff, S::DataOutOfRange, 12),
        (|pdu| pdu[16] ^= 1, S::InvalidHeaderField, 16), // not what the length of the PDU says
    ];
    for (edit, status, information) in table {
        let (target, bytes) = target_and_data(PLAIN);
        expect(target, bytes, *edit, *status, *information);
    }
    // More than was asked for, and the same data twice.
    let (target, bytes) = target_and_data(PLAIN);
    let longer: Edit = |pdu| {
        let bytes = 5 * BLOCK as u32;
        pdu[4..8].copy_from_slice(&(24 + bytes).to_le_bytes());
        pdu[16..20].copy_from_slice(&bytes.to_le_bytes());
    };
    expect(target, bytes, longer, S::DataOutOfRange, 12);
    let (mut target, bytes) = target_and_data(PLAIN);
    target.feed(&bytes).expect("the first time");
    assert_eq!(target.feed(&bytes).expect_err("it was not asked for again").status, S::InvalidHeaderField);
}

#[test]
fn sequence() {
    let (target, _) = target_and(PLAIN, |_| ());
    let again = Host::new(PLAIN, 8).out;
    expect(target, again, |_| (), FatalStatus::Sequence, 0);
    let (_, command) = target_and(PLAIN, |host| {
        host.read(0, 1);
    });
    expect(Target::new(PLAIN, BYTES, 8), command, |_| (), FatalStatus::Sequence, 0);
    // More commands than the queue has room for.
    let mut host = Host::new(PLAIN, 9);
    let mut target = Target::new(PLAIN, BYTES, 8);
    settle(&mut host, &mut target);
    for _ in 0..9 {
        host.read(0, 1);
    }
    assert_eq!(target.feed(&host.out).expect_err("there is no room").status, FatalStatus::Sequence);
}

#[test]
fn one_id_twice_is_answered() {
    let (mut target, mut bytes) = target_and(PLAIN, |host| {
        host.read(0, 1);
        host.read(0, 1);
    });
    let cid: [u8; 2] = [bytes[10], bytes[11]];
    bytes[72 + 10..72 + 12].copy_from_slice(&cid);
    target.out.clear();
    target.feed(&bytes).expect("the connection lives");
    assert_eq!((target.out[0], target.ready.len(), &target.out[20..22]), (5, 1, &cid[..]));
    let status = u16::from_le_bytes([target.out[22], target.out[23]]);
    assert_eq!(Status::from_completion(status), Status::COMMAND_ID_CONFLICT);
}

#[test]
fn a_termination_is_heard() {
    let (mut target, _) = target_and(PLAIN, |_| ());
    let mut term = vec![2, 0, 24, 0, 24 + 72, 0, 0, 0, 3, 0, 7, 0, 0, 0];
    term.resize(24 + 72, 0);
    target.feed(&term).expect("it is one");
    assert_eq!(target.terminated, Some(3));
    let (target, _) = target_and(PLAIN, |_| ());
    term[4] = 153;
    expect(target, term, |_| (), FatalStatus::InvalidHeaderField, 4);
}

/// What a controller may not send.
#[test]
fn a_host_checks_its_controller() {
    use FatalStatus as S;
    let answer = |what: fn(&mut Host)| {
        let (mut host, mut target) = (Host::new(PLAIN, 8), Target::new(PLAIN, BYTES, 8));
        settle(&mut host, &mut target);
        what(&mut host);
        target.at_once = true;
        target.feed(&std::mem::take(&mut host.out)).expect("it keeps to the rules");
        (host, target.out)
    };
    fn read(host: &mut Host) {
        host.read(0, 1);
    }
    fn write(host: &mut Host) {
        host.write(0, vec![1; 4 * BLOCK]);
    }
    type Case = (fn(&mut Host), Edit, S);
    let table: &[Case] = &[
        (read, |pdu| pdu[8] ^= 1, S::InvalidHeaderField),
        (read, |pdu| pdu[9] ^= 0x10, S::InvalidHeaderField),
        (read, |pdu| pdu[12] = 1, S::DataOutOfRange),
        (read, |pdu| pdu[1] = 8, S::InvalidHeaderField),
        (read, |pdu| pdu[24 + BLOCK + 8 + 12] ^= 1, S::InvalidHeaderField),
        (write, |pdu| pdu[8] ^= 1, S::InvalidHeaderField),
        (write, |pdu| pdu[12] = 1, S::DataOutOfRange),
        (write, |pdu| pdu[17] = 0x10, S::DataOutOfRange),
        (write, |pdu| pdu[16..20].fill(0), S::InvalidHeaderField),
        (write, |pdu| pdu.extend_from_within(..), S::DataOutOfRange),
    ];
    for (at, (what, edit, status)) in table.iter().enumerate() {
        let (mut host, mut bytes) = answer(*what);
        edit(&mut bytes);
        assert_eq!(host.feed(&bytes).expect_err("a rule is broken").status, *status, "case {at}");
    }
    // Digests that the host did not ask for, and too little data in a PDU.
    let offer = Offer {
        header_digest: true,
        data_digest: true,
        alignment: 0,
        in_capsule_bytes_max: 0,
        h2c_data_bytes_max: 4096,
        r2ts_max: 1,
    };
    let mut response = [0; 128];
    let bytes = Session::new(Side::Controller, offer).encode_ic_resp(&mut response);
    for (at, value, wrong) in [(11, 1, 11), (13, 0x0f, 12), (10, 32, 10)] {
        let mut edited = response[..bytes].to_vec();
        edited[at] = value;
        let fatal = Host::new(PLAIN, 8).feed(&edited).expect_err("a rule is broken");
        assert_eq!((fatal.status, fatal.information), (S::InvalidHeaderField, wrong));
    }
}

/// A command in the capsule whose descriptor does not fit is refused; the connection lives.
#[test]
fn descriptors() {
    let table: &[(Edit, Status)] = &[
        (|pdu| pdu[8 + 24] = 4, Status::INVALID_SGL_OFFSET),
        (|pdu| pdu[8 + 32] = 1, Status::INVALID_SGL_LENGTH),
        (|pdu| pdu[8 + 39] = 0x5a, Status::INVALID_SGL_TYPE),
        (|pdu| pdu[8 + 39] = 0x00, Status::INVALID_SGL_TYPE),
    ];
    for (edit, status) in table {
        let (mut target, mut bytes) = target_and(PLAIN, |host| {
            host.submit(transfer(io::WRITE, 0, 1), Payload::Out { bytes: 512 }, vec![1; BLOCK]);
        });
        edit(&mut bytes);
        target.out.clear();
        target.feed(&bytes).expect("the connection lives");
        let answered = u16::from_le_bytes([target.out[22], target.out[23]]);
        assert_eq!(Status::from_completion(answered), *status);
    }
}
