//! A store of objects of 128 KiB that places each by a hash of its key, under the workloads of YCSB: a stand-in for the paper's store,
//! which is not published. Keys are drawn evenly, as there. Objects are not loaded before: what was never written reads as zeroes,
//! which costs the network the same.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::bench_fabric::rack::Work;
use crate::nbd_client::Connection;

const OBJECT_BYTES: u64 = 128 << 10;
/// Each waits for its request before it sends the next.
const CLIENTS: u64 = 32;
/// Of the slots half have an object at first: the rest is for those that workload D adds.
const FILLED: u64 = 2;

/// A workload of YCSB.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Workload {
    /// Half reads, half updates.
    A,
    /// 95 of 100 reads, the others updates.
    B,
    /// Reads.
    C,
    /// 95 of 100 reads, the others new objects.
    D,
    /// Half reads, half updates of what was read before.
    F,
}

/// All of the paper's figures.
pub const WORKLOADS: [Workload; 5] = [Workload::A, Workload::B, Workload::C, Workload::D, Workload::F];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    Read,
    Update,
    Insert,
    ReadModifyWrite,
}

impl Workload {
    /// What the next request is, by a number below 100 that was drawn.
    fn request(self, drawn: u32) -> Request {
        match self {
            Workload::A if drawn >= 50 => Request::Update,
            Workload::B if drawn >= 95 => Request::Update,
            Workload::D if drawn >= 95 => Request::Insert,
            Workload::F if drawn >= 50 => Request::ReadModifyWrite,
            _ => Request::Read,
        }
    }
}

/// Keys 0 to `inserted` have objects.
struct Store {
    slots: u64,
    inserted: AtomicU64,
}

impl Store {
    fn new(bytes: u64) -> Self {
        let slots = bytes / OBJECT_BYTES;
        Store { slots, inserted: AtomicU64::new(slots / FILLED) }
    }

    /// Where a key's object lies. Multiplying by a number without a common divisor gives each key a slot of its own.
    fn offset(&self, key: u64) -> u64 {
        const MULTIPLIER: u64 = 2_654_435_761;
        key % self.slots * (MULTIPLIER % self.slots) % self.slots * OBJECT_BYTES
    }

    fn existing(&self, random: &mut StdRng) -> u64 {
        random.random_range(0..self.inserted.load(Ordering::Relaxed).min(self.slots))
    }
}

/// Has clients work for so many seconds.
pub fn run(socket: &Path, workload: Workload, seconds: u32) -> Result<Work> {
    let first = Connection::open(socket, "")?;
    let store = Store::new(first.bytes);
    ensure!(store.slots > FILLED, "an array of {} bytes has no room for objects", first.bytes);
    let start = Instant::now();
    let end = start + Duration::from_secs(seconds.into());
    let totals: Vec<Result<Totals>> = std::thread::scope(|scope| {
        let work = |seed| {
            let store = &store;
            scope.spawn(move || client(store, Connection::open(socket, "")?, workload, seed, end))
        };
        let clients: Vec<_> = (0..CLIENTS).map(work).collect();
        clients.into_iter().map(|client| client.join().expect("a client does not panic")).collect()
    });
    let elapsed_s = start.elapsed().as_secs_f64();
    let mut all = Totals::default();
    for totals in totals {
        let Totals { bytes, requests, waited } = totals?;
        all = Totals {
            bytes: all.bytes + bytes,
            requests: all.requests + requests,
            waited: all.waited + waited,
        };
    }
    let bytes = all.bytes as f64;
    let latency_us = all.waited.as_secs_f64() * 1e6 / all.requests as f64;
    Ok(Work { bytes, bytes_s: bytes / elapsed_s, latency_us })
}

#[derive(Default)]
struct Totals {
    bytes: u64,
    requests: u64,
    waited: Duration,
}

fn client(
    store: &Store,
    mut connection: Connection,
    workload: Workload,
    seed: u64,
    end: Instant,
) -> Result<Totals> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut object = vec![0; OBJECT_BYTES as usize];
    random.fill(&mut object[..]);
    let mut totals = Totals::default();
    while Instant::now() < end {
        let request = workload.request(random.random_range(0..100));
        let key = match request {
            Request::Insert => store.inserted.fetch_add(1, Ordering::Relaxed),
            _ => store.existing(&mut random),
        };
        let offset = store.offset(key);
        let asked = Instant::now();
        if matches!(request, Request::Read | Request::ReadModifyWrite) {
            connection.read(offset, &mut object)?;
            totals.bytes += OBJECT_BYTES;
        }
        if request != Request::Read {
            connection.write(offset, &object)?;
            totals.bytes += OBJECT_BYTES;
        }
        totals.waited += asked.elapsed();
        totals.requests += 1;
    }
    Ok(totals)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_key_has_a_slot_of_its_own() {
        for objects in [1792_u64, 14_336, 12_287] {
            let store = Store::new(objects * OBJECT_BYTES);
            let places: BTreeSet<u64> = (0..objects).map(|key| store.offset(key)).collect();
            assert_eq!(places.len() as u64, objects);
            assert!(places.iter().all(|place| place % OBJECT_BYTES == 0 && *place < objects * OBJECT_BYTES));
        }
    }

    #[test]
    fn workloads_have_the_shares_that_ycsb_gives_them() {
        let count =
            |workload: Workload, wanted| (0..100).filter(|&drawn| workload.request(drawn) == wanted).count();
        let shares = WORKLOADS.map(|workload| {
            [Request::Read, Request::Update, Request::Insert, Request::ReadModifyWrite]
                .map(|request| count(workload, request))
        });
        assert_eq!(shares, [[50, 50, 0, 0], [95, 5, 0, 0], [100, 0, 0, 0], [95, 0, 5, 0], [50, 0, 0, 50]]);
    }
}
