//! The NBD server's readers on mutations of a good dialogue.

#[path = "../../../layout/tests/readers/corpus.rs"]
mod corpus;
mod entries;

use host::export::nbd::check::REQUEST_MAGIC;
use host::export::nbd::protocol::{command, option};

fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let length = u32::try_from(data.len()).expect("short");
    [b"IHAVEOPT".as_slice(), &option.to_be_bytes(), &length.to_be_bytes(), data].concat()
}

fn request(command: u16, flags: u16, offset: u64, bytes: u32) -> Vec<u8> {
    let mut all = REQUEST_MAGIC.to_be_bytes().to_vec();
    all.extend([flags.to_be_bytes(), command.to_be_bytes()].concat());
    all.extend([7u64.to_be_bytes(), offset.to_be_bytes()].concat());
    all.extend(bytes.to_be_bytes());
    if command == command::WRITE {
        all.resize(all.len() + bytes as usize, 0xab);
    }
    all
}

fn requests() -> Vec<u8> {
    use command::{BLOCK_STATUS, CACHE, DISC, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES};
    let all = [READ, WRITE, FLUSH, TRIM, CACHE, WRITE_ZEROES, BLOCK_STATUS, DISC];
    all.into_iter()
        .flat_map(|command| request(command, 0, 4096, if command == FLUSH { 0 } else { 512 }))
        .collect()
}

fn dialogue() -> Vec<u8> {
    let name = [4u32.to_be_bytes().as_slice(), b"data", &0u16.to_be_bytes()].concat();
    let context = [
        4u32.to_be_bytes().as_slice(),
        b"data",
        &1u32.to_be_bytes(),
        &15u32.to_be_bytes(),
        b"base:allocation",
    ]
    .concat();
    let options = [
        option_bytes(option::STRUCTURED_REPLY, &[]),
        option_bytes(option::LIST, &[]),
        option_bytes(option::SET_META_CONTEXT, &context),
        option_bytes(option::INFO, &name),
        option_bytes(option::GO, &name),
    ];
    [vec![63, 0, 0, 0, 3], options.concat(), requests()].concat()
}

/// Feeds what a fuzzer kept under `name`, the good input, then mutations of it.
fn mutate(name: &str, seed: &[u8], entry: fn(&[u8])) {
    corpus::run(name, &[seed.to_vec()], entry);
    let mut state = 1u64;
    let mut below = |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n.max(1)
    };
    entry(seed);
    for _ in 0..10_000 {
        let mut bytes = seed.to_vec();
        for _ in 0..1 + below(4) {
            let at = below(bytes.len());
            match below(4) {
                0 => bytes[at] ^= 1 << below(8),
                1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][below(5)],
                2 => drop(bytes.remove(at)),
                _ => bytes.insert(at, below(256) as u8),
            }
        }
        if below(8) == 0 {
            bytes.truncate(below(bytes.len()));
        }
        entry(&bytes);
    }
}

#[test]
fn dialogues() {
    mutate("nbd_connection", &dialogue(), entries::connection);
}

#[test]
fn requests_alone() {
    mutate("nbd_requests", &requests(), entries::requests);
}
