//! What the next request is. Costs a few nanoseconds: no allocation, no clock, no lock.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use crate::random::{Random, Zipf, mix};
use crate::setting::{Setting, Skew};
use crate::trace::TraceRequest;

/// A request to the array.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Request {
    pub(crate) write: bool,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// Draws of a skewed choice that are made beforehand and then repeated: Zipf's law costs logarithms.
const DRAWS: usize = 1 << 20;

/// The requests of one shard.
pub(crate) struct Workload {
    random: RefCell<Random>,
    read_percent: u64,
    bs: u64,
    blocks: u64,
    places: Places,
}

enum Places {
    Uniform,
    Drawn { blocks: Box<[u32]>, next: Cell<usize> },
    Streams(Box<[Stream]>),
    Trace(Arc<Replay>),
}

/// A part of the array from its start to its end, again and again.
struct Stream {
    next: Cell<u64>,
    first: u64,
    end: u64,
}

/// A trace on the array, shared by all shards.
pub(crate) struct Replay {
    pub(crate) requests: Vec<(u64, Request)>,
    next: AtomicUsize,
    /// Start again at the end.
    again: bool,
}

impl Replay {
    pub(crate) fn new(trace: &[TraceRequest], size: u64, unit: u64, again: bool) -> Self {
        let fold = |request: &TraceRequest| {
            let (offset, bytes) = request.fold(size, unit);
            (request.time_us, Request { write: request.write, offset, bytes })
        };
        Replay { requests: trace.iter().map(fold).collect(), next: AtomicUsize::new(0), again }
    }

    /// The next request and its time in microseconds.
    pub(crate) fn next(&self) -> Option<(u64, Request)> {
        let index = self.next.fetch_add(1, Relaxed);
        if self.again {
            return Some(self.requests[index % self.requests.len()]);
        }
        self.requests.get(index).copied()
    }

    pub(crate) fn restart(&self) {
        self.next.store(0, Relaxed);
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.requests.iter().map(|(_, request)| request.bytes).max().unwrap_or(0)
    }
}

impl Workload {
    /// The requests of shard `shard` on an array of `size` bytes.
    pub(crate) fn new(setting: &Setting, shard: usize, size: u64, replay: Option<Arc<Replay>>) -> Self {
        let (bs, blocks) = (setting.bs, size / setting.bs);
        let mut random = Random::new(mix(setting.seed) ^ shard as u64);
        let places = match (replay, setting.rw.is_random(), setting.skew) {
            (Some(replay), ..) => Places::Trace(replay),
            (None, true, Skew::Uniform) => Places::Uniform,
            (None, true, Skew::Zipf(theta)) => {
                let zipf = Zipf::new(blocks, theta);
                // The same place has the same rank on every shard.
                let place = |rank: u64| u32::try_from(scatter(rank, blocks)).expect("at most 2^32 places");
                let draws = DRAWS.min(usize::try_from(blocks).unwrap_or(DRAWS).max(1024) * 4);
                let blocks = (0..draws).map(|_| place(zipf.draw(|| random.share()))).collect();
                Places::Drawn { blocks, next: Cell::new(0) }
            }
            (None, false, _) => Places::Streams(streams(setting, shard, blocks)),
        };
        let read_percent = u64::from(setting.rw.read_percent(setting.rwmixread));
        Workload { random: RefCell::new(random), read_percent, bs, blocks, places }
    }

    /// The next request of a slot; none at the end of a trace.
    #[inline]
    pub(crate) fn next(&self, slot: usize) -> Option<Request> {
        let mut random = self.random.borrow_mut();
        let block = match &self.places {
            Places::Uniform => random.below(self.blocks),
            Places::Drawn { blocks, next } => {
                let at = next.get();
                next.set(if at + 1 == blocks.len() { 0 } else { at + 1 });
                u64::from(blocks[at])
            }
            Places::Streams(streams) => streams[slot % streams.len()].next(),
            Places::Trace(replay) => return replay.next().map(|(_, request)| request),
        };
        let write = match self.read_percent {
            0 => true,
            100 => false,
            percent => random.below(100) >= percent,
        };
        Some(Request { write, offset: block * self.bs, bytes: self.bs })
    }
}

fn streams(setting: &Setting, shard: usize, blocks: u64) -> Box<[Stream]> {
    let all = (setting.shards * setting.numjobs) as u64;
    let stream = |job: usize| {
        let number = (shard * setting.numjobs + job) as u64;
        let (first, end) = (blocks * number / all, blocks * (number + 1) / all);
        Stream { next: Cell::new(first), first, end }
    };
    (0..setting.numjobs).map(stream).collect()
}

impl Stream {
    fn next(&self) -> u64 {
        let block = self.next.get();
        self.next.set(if block + 1 == self.end { self.first } else { block + 1 });
        block
    }
}

/// A place for each rank, one to one: frequent places do not lie side by side.
fn scatter(rank: u64, blocks: u64) -> u64 {
    // A power of two at least as large, walked through by an odd factor, skipping what is too large.
    let mask = blocks.next_power_of_two() - 1;
    let mut place = rank;
    loop {
        place = (place.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5bd1) & mask;
        place ^= place >> (mask.count_ones() / 2).max(1);
        if place < blocks {
            return place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::Work;

    #[test]
    fn every_rank_has_a_place_of_its_own() {
        for blocks in [1u64, 2, 3, 1000, 4096, 5000] {
            let mut places: Vec<u64> = (0..blocks).map(|rank| scatter(rank, blocks)).collect();
            places.sort_unstable();
            assert!(places.iter().copied().eq(0..blocks), "{blocks} blocks");
        }
    }

    #[test]
    fn streams_share_the_array_without_overlap() {
        let setting = Setting { rw: Work::Write, shards: 2, numjobs: 2, bs: 4096, ..Setting::default() };
        let mut seen = Vec::new();
        for shard in 0..2 {
            let workload = Workload::new(&setting, shard, 40 * 4096, None);
            for slot in 0..20 {
                let request = workload.next(slot).unwrap();
                assert!(request.write);
                seen.push(request.offset / 4096);
            }
        }
        seen.sort_unstable();
        assert!(seen.into_iter().eq(0..40));
    }

    #[test]
    fn mixed_work_reads_its_share() {
        let setting = Setting { rw: Work::RandRw, rwmixread: 70, ..Setting::default() };
        let workload = Workload::new(&setting, 0, 1 << 30, None);
        let reads = (0..10_000).filter(|_| !workload.next(0).unwrap().write).count();
        assert!((6800..7200).contains(&reads), "{reads}");
    }

    #[test]
    fn a_skewed_choice_repeats_places() {
        let setting = Setting { skew: Skew::Zipf(0.99), ..Setting::default() };
        let workload = Workload::new(&setting, 0, 1 << 30, None);
        let mut places: Vec<u64> = (0..10_000).map(|_| workload.next(0).unwrap().offset).collect();
        assert!(places.iter().all(|place| *place < 1 << 30));
        places.sort_unstable();
        places.dedup();
        assert!(places.len() < 8000, "{} different places", places.len());
    }
}
