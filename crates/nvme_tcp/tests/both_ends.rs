//! Both ends of a connection drive each other, in every setting, split anywhere and in any order.

mod ends;

use ends::{BLOCK, Host, PLAIN, Setting, Target, settle, transfer};
use nvme_tcp::command::{Sqe, io};
use nvme_tcp::initiator::Payload;
use nvme_tcp::status::Status;
use proptest::prelude::*;

const DRIVE_BLOCKS: usize = 64;

fn settings() -> Vec<Setting> {
    let mut settings = Vec::new();
    for digests in 0..4u8 {
        for (r2ts_max, r2t_bytes_max) in [(1, u32::MAX), (1, 1024), (2, 1024), (9, 512)] {
            for (host_alignment, target_alignment) in [(0, 0), (31, 0), (0, 31), (7, 20)] {
                settings.push(Setting {
                    header_digest: digests & 1 != 0,
                    data_digest: digests & 2 != 0,
                    host_alignment,
                    target_alignment,
                    r2ts_max,
                    r2t_bytes_max,
                    c2h_data_bytes_max: if digests == 1 { 700 } else { u32::MAX },
                    success_in_data: digests == 2,
                    ..PLAIN
                });
            }
        }
    }
    settings
}

fn pair(setting: Setting) -> (Host, Target) {
    let mut host = Host::new(setting, 8);
    let mut target = Target::new(setting, DRIVE_BLOCKS * BLOCK, 8);
    settle(&mut host, &mut target);
    assert!(host.begun);
    (host, target)
}

fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + seed * 131 + at / 251) as u8).collect()
}

#[test]
fn what_is_written_is_read_in_every_setting() {
    for setting in settings() {
        let (mut host, mut target) = pair(setting);
        // One block stands in the capsule, 24 do not; the longest needs several H2CData for one R2T.
        for (seed, blocks) in [(1, 1), (2, 2), (3, 3), (4, 24)] {
            let data = pattern(seed, blocks * BLOCK);
            host.write(seed as u64, data.clone());
            settle(&mut host, &mut target);
            host.read(seed as u64, blocks);
            settle(&mut host, &mut target);
            let ended: Vec<_> = host.completed.drain(..).collect();
            assert!(ended.iter().all(|(one, _)| one.status == Status::SUCCESS), "{setting:?} {ended:?}");
            assert_eq!(ended[1].1, data, "{setting:?}, {blocks} blocks");
        }
        assert_eq!((host.queue.in_flight(), target.queue.in_flight()), (0, 0));
    }
}

/// All that goes to the target in a conversation with writes of both kinds, and what the target answers.
fn conversation(setting: Setting) -> (Vec<u8>, Vec<u8>) {
    let mut host = Host::new(setting, 8);
    let mut target = Target::new(setting, DRIVE_BLOCKS * BLOCK, 8);
    let (mut to_target, mut to_host) = (Vec::new(), Vec::new());
    let mut step = |host: &mut Host, target: &mut Target| {
        while !(host.out.is_empty() && target.out.is_empty() && target.ready.is_empty()) {
            let (there, back) = (std::mem::take(&mut host.out), std::mem::take(&mut target.out));
            to_target.extend_from_slice(&there);
            to_host.extend_from_slice(&back);
            target.feed(&there).expect("it keeps to the rules");
            host.feed(&back).expect("it keeps to the rules");
            while !target.ready.is_empty() {
                target.execute(0);
            }
        }
    };
    step(&mut host, &mut target);
    host.write(0, pattern(1, BLOCK));
    step(&mut host, &mut target);
    host.write(2, pattern(2, 3 * BLOCK));
    step(&mut host, &mut target);
    host.read(0, 5);
    step(&mut host, &mut target);
    (to_target, to_host)
}

#[test]
fn a_stream_may_be_split_at_every_byte() {
    for digests in [false, true] {
        let setting = Setting { header_digest: digests, data_digest: digests, host_alignment: 9, ..PLAIN };
        let (to_target, to_host) = conversation(setting);
        for cut in 0..=to_target.len() {
            let mut target = Target::new(setting, DRIVE_BLOCKS * BLOCK, 8);
            target.at_once = true;
            for part in [&to_target[..cut], &to_target[cut..]] {
                target.feed(part).expect("it keeps to the rules");
            }
            assert_eq!(target.out, to_host, "cut at {cut}");
        }
        let mut target = Target::new(setting, DRIVE_BLOCKS * BLOCK, 8);
        target.at_once = true;
        for byte in &to_target {
            target.feed(&[*byte]).expect("it keeps to the rules");
        }
        assert_eq!(target.out, to_host, "byte by byte");
    }
}

#[test]
fn other_commands() {
    let (mut host, mut target) = pair(PLAIN);
    target.drive.fill(7);
    let mut statuses = |sqe: Sqe, payload, data: Vec<u8>| {
        host.submit(sqe, payload, data);
        settle(&mut host, &mut target);
        let (completed, _) = host.completed.pop().expect("a command is completed");
        (completed.status, target.drive.clone())
    };
    assert_eq!(statuses(Sqe::new(io::FLUSH, 1), Payload::None, vec![]).0, Status::SUCCESS);
    let (status, drive) = statuses(transfer(io::WRITE_ZEROES, 3, 2), Payload::None, vec![]);
    assert_eq!(status, Status::SUCCESS);
    assert!(drive.iter().enumerate().all(|(at, byte)| (*byte == 0) == (3 * BLOCK..5 * BLOCK).contains(&at)));
    let mut discard = Sqe::new(io::DATASET_MANAGEMENT, 1);
    (discard.cdw10, discard.cdw11) = (1.into(), 4.into());
    let range = |slba: u64, blocks: u32| [&[0; 4][..], &blocks.to_le_bytes(), &slba.to_le_bytes()].concat();
    let ranges = [range(10, 1), range(20, 2)].concat();
    let (status, drive) = statuses(discard, Payload::Out { bytes: 32 }, ranges);
    assert_eq!((status, drive[10 * BLOCK], drive[12 * BLOCK], drive[21 * BLOCK]), (Status::SUCCESS, 0, 7, 0));
    let ranges = [range(30, 1), range(60, 5)].concat();
    let (status, drive) = statuses(discard, Payload::Out { bytes: 32 }, ranges);
    assert_eq!((status, drive[30 * BLOCK]), (Status::LBA_OUT_OF_RANGE, 7), "none of them is discarded");
    for (opcode, expected) in [
        (io::COMPARE, Status::INVALID_OPCODE),
        (0x7e, Status::INVALID_OPCODE),
        (io::READ, Status::LBA_OUT_OF_RANGE),
    ] {
        let payload = if opcode & 3 == 2 { Payload::In { bytes: 512 } } else { Payload::Out { bytes: 512 } };
        let (status, _) = statuses(transfer(opcode, 64, 1), payload, vec![0; 512]);
        assert_eq!(status, expected, "{opcode:#x}");
    }
}

#[test]
fn a_command_of_which_a_field_is_wrong_is_refused_and_the_connection_lives() {
    let read = || transfer(io::READ, 0, 1);
    let edit = |change: fn(&mut Sqe)| {
        let mut sqe = read();
        change(&mut sqe);
        sqe
    };
    let table = [
        (edit(|sqe| sqe.flags = 0x00), 512, Status::INVALID_FIELD),
        (edit(|sqe| sqe.flags = 0x80), 512, Status::INVALID_FIELD),
        (edit(|sqe| sqe.flags = 0x41), 512, Status::INVALID_FIELD),
        (edit(|sqe| sqe.cdw12.set(1)), 512, Status::INVALID_SGL_LENGTH),
        (edit(|sqe| sqe.cdw12.set(1 << 26)), 512, Status::INVALID_FIELD),
        (edit(|sqe| sqe.cdw11.set(u32::MAX)), 512, Status::LBA_OUT_OF_RANGE),
        (edit(|sqe| sqe.cdw12.set(0xffff)), 512, Status::LBA_OUT_OF_RANGE),
        (read(), 1024, Status::INVALID_SGL_LENGTH),
    ];
    let (mut host, mut target) = pair(PLAIN);
    for (sqe, bytes, status) in table {
        host.submit(sqe, Payload::In { bytes }, vec![]);
        settle(&mut host, &mut target);
        assert_eq!(host.completed.pop().expect("an answer").0.status, status, "{sqe:?}");
    }
    // A refused write with its data in the capsule: the data is passed over.
    host.write(1 << 40, pattern(1, BLOCK));
    host.write(5, pattern(2, BLOCK));
    settle(&mut host, &mut target);
    let statuses: Vec<Status> = host.completed.iter().map(|(one, _)| one.status).collect();
    assert_eq!(statuses, [Status::LBA_OUT_OF_RANGE, Status::SUCCESS]);
    assert_eq!(target.drive[5 * BLOCK..6 * BLOCK], pattern(2, BLOCK));
}

#[test]
fn a_data_digest_that_is_wrong_fails_the_command_alone() {
    let setting = Setting { data_digest: true, ..PLAIN };
    for blocks in [1, 4] {
        let (mut host, mut target) = pair(setting);
        host.write(0, pattern(1, blocks * BLOCK));
        while target.ready.is_empty() {
            let mut bytes = std::mem::take(&mut host.out);
            if bytes.len() > 4 * 24 + BLOCK / 2 {
                *bytes.last_mut().expect("some") ^= 1;
            }
            target.feed(&bytes).expect("no header is wrong");
            host.feed(&std::mem::take(&mut target.out)).expect("it keeps to the rules");
        }
        settle(&mut host, &mut target);
        let (completed, _) = host.completed.pop().expect("an answer");
        assert_eq!(completed.status, Status::TRANSIENT_TRANSPORT_ERROR, "{blocks} blocks");
        assert!(target.drive.iter().all(|byte| *byte == 0), "nothing is written");
        host.read(0, 2);
        settle(&mut host, &mut target);
        assert_eq!(host.completed.pop().expect("an answer").0.status, Status::SUCCESS);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Many commands in flight, carried out in any order, with bytes that arrive in pieces of any size.
    #[test]
    fn any_order_and_any_pieces(
        which in 0..64usize,
        commands in proptest::collection::vec((any::<bool>(), 0..56u64, 1..8usize), 1..40),
        draws in proptest::collection::vec(0..4000usize, 64),
    ) {
        let (mut host, mut target) = pair(settings()[which]);
        let mut draw = draws.into_iter().cycle();
        let mut model = vec![0; DRIVE_BLOCKS * BLOCK];
        for (number, (is_write, block, blocks)) in commands.into_iter().enumerate() {
            // Two at a time, apart from each other, so that their order does not matter.
            let range = block as usize * BLOCK..(block as usize + blocks) * BLOCK;
            if is_write {
                let data = pattern(number, blocks * BLOCK);
                model[range].copy_from_slice(&data);
                host.write(block, data);
            } else {
                host.read(block, blocks);
            }
            for extra in 0..3 {
                host.read(56 + extra, 1);
            }
            while host.queue.in_flight() > 0 {
                let piece = draw.next().expect("a cycle").min(host.out.len());
                let bytes: Vec<u8> = host.out.drain(..piece).collect();
                target.feed(&bytes).expect("it keeps to the rules");
                let piece = draw.next().expect("a cycle").min(target.out.len());
                let bytes: Vec<u8> = target.out.drain(..piece).collect();
                host.feed(&bytes).expect("it keeps to the rules");
                if !target.ready.is_empty() {
                    target.execute(draw.next().expect("a cycle") % target.ready.len());
                }
            }
            for (completed, data) in host.completed.drain(..) {
                prop_assert_eq!(completed.status, Status::SUCCESS);
                prop_assert!(completed.received_bytes as usize == data.len() || completed.received_bytes == 0);
            }
        }
        prop_assert_eq!(&target.drive, &model);
    }
}
