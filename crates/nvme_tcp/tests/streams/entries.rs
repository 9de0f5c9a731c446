//! Both ends of a connection neither panic nor take more memory than was agreed, whatever bytes the other end sends. The test
//! calls these with mutated bytes, the fuzzer with its own.

#[allow(dead_code)]
#[path = "../ends/mod.rs"]
mod ends;

pub use ends::{BLOCK, Host, PLAIN, Setting, Target, settle};

/// The setting that the first byte of an input stands for.
pub fn setting(first: u8) -> Setting {
    Setting {
        header_digest: first & 1 != 0,
        data_digest: first & 2 != 0,
        target_alignment: if first & 4 != 0 { 31 } else { 0 },
        r2t_bytes_max: if first & 8 != 0 { 512 } else { u32::MAX },
        r2ts_max: 1 + u32::from(first >> 4),
        ..PLAIN
    }
}

/// What a host sends, from its first byte on.
pub fn to_target(bytes: &[u8]) {
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let mut target = Target::new(setting(first), 64 * BLOCK, 8);
    target.at_once = true;
    for piece in bytes.chunks(1 + usize::from(first)) {
        let before = target.out.len();
        if target.feed(piece).is_err() {
            let term = target.out.len();
            target.feed(&[0; 300]).expect("nothing is taken any more");
            assert_eq!(target.out.len(), term);
            return;
        }
        // A command of 72 bytes gets back 64 KiB at most.
        assert!(target.out.len() - before <= (piece.len() / 24 + 9) * (66 << 10), "a flood of answers");
    }
    assert!(target.queue.in_flight() <= 8);
}

/// What a controller sends to a host that has a read, a write in a capsule and a long write in flight.
pub fn to_host(bytes: &[u8]) {
    let Some((&first, bytes)) = bytes.split_first() else { return };
    let (mut host, mut target) = (Host::new(setting(first), 8), Target::new(setting(first), 64 * BLOCK, 8));
    settle(&mut host, &mut target);
    host.read(0, 4);
    host.write(8, vec![1; BLOCK]);
    host.write(16, vec![2; 4 * BLOCK]);
    for piece in bytes.chunks(1 + usize::from(first)) {
        if host.feed(piece).is_err() {
            host.feed(&[0; 300]).expect("nothing is taken any more");
            return;
        }
    }
    assert!(host.queue.in_flight() <= 3);
}
