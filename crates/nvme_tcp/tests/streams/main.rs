//! Both ends of a connection on mutations of what the other end would send.

#[path = "../../../layout/tests/readers/corpus.rs"]
mod corpus;
mod entries;

use entries::{BLOCK, Host, Target, setting, settle};

const MUTATIONS: usize = 3000;

/// Feeds what a fuzzer kept under `name`, the good inputs, then mutations of them.
fn mutate(name: &str, seeds: &[Vec<u8>], entry: fn(&[u8])) {
    corpus::run(name, seeds, entry);
    let mut state = 1u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n.max(1)
    };
    for seed in seeds {
        entry(seed);
        for _ in 0..MUTATIONS {
            let mut bytes = seed.clone();
            for _ in 0..1 + below(3) {
                let at = below(bytes.len());
                match below(3) {
                    0 => bytes[at] ^= 1 << below(8),
                    1 => bytes[at] = [0, 1, 0x7f, 0xff][below(4)],
                    _ => bytes.truncate(at.max(2)),
                }
            }
            entry(&bytes);
        }
    }
}

/// What each end sends in a conversation, behind the byte of its setting.
fn conversation(first: u8) -> (Vec<u8>, Vec<u8>) {
    let (mut host, mut target) = (Host::new(setting(first), 8), Target::new(setting(first), 64 * BLOCK, 8));
    let (mut to_target, mut to_host) = (vec![first], vec![first]);
    target.at_once = true;
    let mut talk = |host: &mut Host, target: &mut Target| {
        while !(host.out.is_empty() && target.out.is_empty()) {
            let (there, back) = (std::mem::take(&mut host.out), std::mem::take(&mut target.out));
            to_target.extend_from_slice(&there);
            target.feed(&there).expect("it keeps to the rules");
            if host.begun {
                to_host.extend_from_slice(&back);
            }
            host.feed(&back).expect("it keeps to the rules");
        }
    };
    talk(&mut host, &mut target);
    host.read(0, 4);
    host.write(8, vec![1; BLOCK]);
    host.write(16, vec![2; 4 * BLOCK]);
    talk(&mut host, &mut target);
    settle(&mut host, &mut target);
    (to_target, to_host)
}

const FIRST_BYTES: [u8; 5] = [0, 3, 4, 0x3b, 0xff];

#[test]
fn to_target() {
    let seeds = FIRST_BYTES.map(|first| conversation(first).0);
    mutate("nvme_to_target", &seeds, entries::to_target);
}

#[test]
fn to_host() {
    let seeds = FIRST_BYTES.map(|first| conversation(first).1);
    mutate("nvme_to_host", &seeds, entries::to_host);
}
