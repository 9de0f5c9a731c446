//! Writers that know what of their writes was acknowledged, and so what an array must hold after its server was killed.

use std::path::Path;

use crate::nbd::{Client, FLUSH, FUA, WRITE};
use crate::world::World;

pub const BLOCK: u64 = 4096;
/// Blocks that one writer has to itself, in turns with the other: a third of a stripe, so that both meet in stripes.
const TURN_BLOCKS: u64 = 16;
pub const WRITERS: u64 = 2;
const IN_FLIGHT: usize = 12;
const WRITE_BLOCKS_MAX: u64 = 8;

/// Xorshift: the tests of the program need no better one.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// What a writer knows of one block: the last version sent and the last one acknowledged. Version 0 is zeroes.
#[derive(Clone, Copy, Default)]
struct Block {
    sent: u64,
    acknowledged: u64,
    /// The last one that was acknowledged with FUA or before a flush that returned.
    durable: u64,
    in_flight: bool,
}

/// One write on its way.
struct Request {
    id: u64,
    first: u64,
    count: u64,
    fua: bool,
    /// A flush: the versions acknowledged when it was sent.
    covers: Option<Vec<(u64, u64)>>,
}

pub struct Writer {
    index: u64,
    random: Random,
    /// Of the whole array; a writer touches its own.
    blocks: Vec<Block>,
    next_id: u64,
}

fn contents(block: u64, version: u64) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK as usize];
    }
    let stamp = [block.to_le_bytes(), version.to_le_bytes()].concat();
    stamp.repeat(BLOCK as usize / 16)
}

impl Writer {
    /// All writers of an array of this size.
    pub fn all(array_bytes: u64, seed: u64) -> Vec<Self> {
        let blocks = vec![Block::default(); (array_bytes / BLOCK) as usize];
        let writer =
            |index| Writer { index, random: Random(seed ^ (index + 1)), blocks: blocks.clone(), next_id: 0 };
        (0..WRITERS).map(writer).collect()
    }

    /// Writes and flushes until the server is gone. Returns how many requests were acknowledged.
    pub fn load(&mut self, socket: &Path) -> u64 {
        // What an earlier server did not answer may be there or not: later versions tell which.
        self.blocks.iter_mut().for_each(|block| block.in_flight = false);
        let (mut acknowledged, mut on_their_way) = (0, Vec::new());
        let Ok(mut client) = Client::connect(socket) else { return 0 };
        loop {
            while on_their_way.len() < IN_FLIGHT {
                let Some(request) = self.send(&mut client) else { return acknowledged };
                on_their_way.push(request);
            }
            let Ok((id, error)) = client.reply() else { return acknowledged };
            assert_eq!(error, 0, "a healthy array takes writes");
            let at = on_their_way.iter().position(|request| request.id == id).expect("a request of ours");
            self.finish(&on_their_way.swap_remove(at));
            acknowledged += 1;
        }
    }

    fn send(&mut self, client: &mut Client) -> Option<Request> {
        self.next_id += 1;
        let id = self.next_id;
        if self.random.below(16) == 0 {
            client.send((FLUSH, 0), id, 0, 0, &[]).ok()?;
            let known =
                self.blocks.iter().enumerate().filter(|(_, block)| block.acknowledged > block.durable);
            let covers = known.map(|(at, block)| (at as u64, block.acknowledged)).collect();
            return Some(Request { id, first: 0, count: 0, fua: false, covers: Some(covers) });
        }
        let (first, count) = self.place();
        let fua = self.random.below(4) == 0;
        let mut data = Vec::new();
        for at in first..first + count {
            let block = &mut self.blocks[at as usize];
            (block.sent, block.in_flight) = (block.sent + 1, true);
            data.extend(contents(at, block.sent));
        }
        let flags = if fua { FUA } else { 0 };
        client.send((WRITE, flags), id, first * BLOCK, (count * BLOCK) as u32, &data).ok()?;
        Some(Request { id, first, count, fua, covers: None })
    }

    /// A place of this writer with no write on its way, so that versions have an order.
    fn place(&mut self) -> (u64, u64) {
        let turns = self.blocks.len() as u64 / (TURN_BLOCKS * WRITERS);
        loop {
            let turn = self.random.below(turns) * WRITERS + self.index;
            let start = self.random.below(TURN_BLOCKS);
            let count = (1 + self.random.below(WRITE_BLOCKS_MAX)).min(TURN_BLOCKS - start);
            let first = turn * TURN_BLOCKS + start;
            if (first..first + count).all(|at| !self.blocks[at as usize].in_flight) {
                return (first, count);
            }
        }
    }

    fn finish(&mut self, request: &Request) {
        for at in request.first..request.first + request.count {
            let block = &mut self.blocks[at as usize];
            (block.acknowledged, block.in_flight) = (block.sent, false);
            if request.fua {
                block.durable = block.sent;
            }
        }
        for (at, version) in request.covers.iter().flatten() {
            let block = &mut self.blocks[*at as usize];
            block.durable = block.durable.max(*version);
        }
    }

    /// Compares every block of this writer with what the server reads. What is there counts from now on.
    fn compare(&mut self, array: &[u8]) {
        let own = |at: u64| at / TURN_BLOCKS % WRITERS == self.index;
        for (at, block) in (0..).zip(&mut self.blocks).filter(|(at, _)| own(*at)) {
            let found = &array[(at * BLOCK) as usize..][..BLOCK as usize];
            let version = u64::from_le_bytes(found[8..16].try_into().expect("eight bytes"));
            assert!(found == contents(at, version), "block {at} is none of its versions");
            assert!(
                version >= block.durable,
                "block {at}: {version} is there, {} was durable",
                block.durable
            );
            // More than is promised: what was acknowledged is with the kernel, which goes on.
            let Block { acknowledged, sent, .. } = *block;
            assert!(
                (acknowledged..=sent).contains(&version),
                "block {at}: {version}, not {acknowledged}..={sent}"
            );
            *block = Block { sent, acknowledged: version, durable: version, in_flight: false };
        }
    }
}

/// Every block is one of its versions, and none older than what was acknowledged.
pub fn compare_all(world: &World, writers: &mut [Writer]) {
    let mut client = world.client();
    let mut array = Vec::new();
    while (array.len() as u64) < client.size_bytes {
        let bytes = (client.size_bytes - array.len() as u64).min(1 << 20) as u32;
        array.extend(client.read(array.len() as u64, bytes).expect("served").expect("readable"));
    }
    writers.iter_mut().for_each(|writer| writer.compare(&array));
}

/// A number of the environment.
pub fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{name} is a number")))
}
