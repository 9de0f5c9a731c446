//! What applications ask of a block device, replayed as fast as the array answers: experiments 10 to 12.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use engine::zone_device::timing::DriveModel;
use layout::geometry::Level;
use layout::zoned::Carrier;
use serde::{Serialize, Serializer};

use super::array::Array;
use super::clients::{REQUEST_BYTES_MAX, Request};
use super::drive::Keeps;
use super::machine::Machine;
use super::members::{BLOCK, Members};
use super::speed::{BLOCK_KIB, Mode, Speed};
use super::writes::{LOGICAL_BLOCKS, ZONE_BLOCKS, ZONES};
use crate::random::Random;
use crate::timeline::Timeline;

/// Requests of a stand-in.
const REQUESTS: u64 = 20_000;
/// More of a trace is not replayed: what is written is kept in memory.
const BYTES_MAX: u64 = 1 << 30;
/// Bytes of an extent. Addresses are made dense extent by extent, in the order in which they are met.
const EXTENT: u64 = REQUEST_BYTES_MAX;

/// A trace of requests, without its times.
#[derive(Clone, Debug)]
pub struct Trace {
    name: String,
    requests: Arc<[Request]>,
}

impl Serialize for Trace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.name)
    }
}

/// A request of a trace: whether it reads, its first byte, and how many.
pub type Traced = (bool, u64, u64);

impl Trace {
    /// From requests of any device: what is far apart there is near here, since the array is small.
    pub fn new(name: &str, requests: impl Iterator<Item = Traced>) -> Self {
        let mut extents: BTreeMap<u64, u64> = BTreeMap::new();
        let (mut pieces, mut sum) = (Vec::new(), 0);
        for (is_read, offset, bytes) in requests {
            let (mut at, end) = (offset / BLOCK * BLOCK, (offset + bytes).next_multiple_of(BLOCK));
            while at < end {
                let next = extents.len() as u64;
                let extent = *extents.entry(at / EXTENT).or_insert(next) % (LOGICAL_BLOCKS * BLOCK / EXTENT);
                let to = end.min((at / EXTENT + 1) * EXTENT);
                pieces.push(Request { is_read, offset: extent * EXTENT + at % EXTENT, bytes: to - at });
                sum += to - at;
                at = to;
            }
            if sum > BYTES_MAX {
                break;
            }
        }
        Trace { name: name.to_owned(), requests: pieces.into() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Blocks that are read before they are written: these are written first.
    fn read_first(&self) -> BTreeSet<u64> {
        let (mut first, mut known) = (BTreeSet::new(), BTreeSet::new());
        for request in &*self.requests {
            for block in request.offset / BLOCK..(request.offset + request.bytes) / BLOCK {
                if known.insert(block) && request.is_read {
                    first.insert(block);
                }
            }
        }
        first
    }

    /// A stand-in for the paper's twenty volumes of Alibaba Cloud: of writes more than 60 % of 4 KiB or less, and more than 25 % of 16 KiB
    /// or more; 88 % of all requests write, four of five of them a fifth of the places.
    pub fn cloud() -> Self {
        let random = Random::new(10);
        let request = |_| {
            let kib = match random.below(100) {
                0..62 => 4,
                62..72 => 8,
                72..86 => 16,
                86..94 => 32,
                _ => 64,
            };
            let hot = random.percent(80);
            let place = if hot { random.below(1 << 11) } else { (1 << 11) + random.below(1 << 13) };
            (random.percent(12), place << 16, kib << 10)
        };
        Trace::new("stand-in for cloud volumes", (0..REQUESTS).map(request))
    }

    /// A stand-in for Sysbench's writes of 64 KiB to files of ext4: the writes alone, at random. A direct write to a block that is
    /// allocated changes nothing else but a time, once in seconds.
    pub fn files() -> Self {
        let random = Random::new(11);
        let request = |_| (false, random.below(1 << 14) << 16, 64 << 10);
        Trace::new("stand-in for file writes", (0..REQUESTS / 2).map(request))
    }

    /// A stand-in for TPC-C on a database with pages of 16 KiB, that flushes its log once a second: pages read and written at random, the
    /// log appended to.
    pub fn database() -> Self {
        let random = Random::new(12);
        let mut log = 0;
        let request = |_| {
            let page = || (1 << 30) + (random.below(1 << 16) << 14);
            match random.below(100) {
                0..40 => (true, page(), 16 << 10),
                40..80 => (false, page(), 16 << 10),
                _ => {
                    let bytes = random.between(1, 4) * BLOCK;
                    log += bytes;
                    (false, (log - bytes) % (256 << 20), bytes)
                }
            }
        };
        Trace::new("stand-in for TPC-C", (0..REQUESTS).map(request))
    }
}

/// A trace on an array.
#[derive(Clone, Debug, Serialize)]
pub struct Replay {
    /// What is replayed.
    pub trace: Trace,
    /// How zones are written.
    pub mode: Mode,
    /// Open segments with small and with large chunks.
    pub open: [u8; 2],
    /// KiB of a small chunk, and of a large one.
    pub chunk_kib: [u16; 2],
    /// Requests in flight.
    pub depth: u32,
}

/// Replays it once.
pub(super) fn run(point: &Replay) -> Speed {
    let array = Array {
        level: Level::Raid5,
        members: 4,
        mode: point.mode,
        access: point.mode.access(),
        carrier: Carrier::Oob,
        open: point.open,
        chunk_blocks: point.chunk_kib.map(|kib| kib / BLOCK_KIB),
        group: point.mode.group().unwrap_or(0),
        zones: ZONES,
        zone_blocks: ZONE_BLOCKS,
    };
    let time = Timeline::new();
    // What is never read need not be kept.
    let has_reads = point.trace.requests.iter().any(|request| request.is_read);
    let keeps = if has_reads { Keeps::Contents } else { Keeps::States };
    let members = Members::new(array.config(LOGICAL_BLOCKS), DriveModel::Zn540, keeps, &time);
    let (trace, depth) = (point.trace.clone(), point.depth);
    let ended = Machine::run(&time, |machine| async move {
        let served = members.serve(&machine).await;
        let mut first = trace.read_first().into_iter();
        let write_first =
            move || Some(Request { is_read: false, offset: first.next()? * BLOCK, bytes: BLOCK });
        served.work(&machine, depth, write_first).await;
        let (requests, at) = (Arc::clone(&trace.requests), Rc::new(std::cell::Cell::new(0)));
        let next = move || requests.get(at.replace(at.get() + 1)).copied();
        served.work(&machine, depth, next).await
    });
    Speed::of(&ended)
}
