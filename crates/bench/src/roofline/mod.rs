//! The floor below which no RAID of the same plan can go: the copies and parity passes that the engine's own plan needs
//! for the same requests, in a plain loop without engine, ring or locks.
//!
//! The comparison is fair: the floor does the same requests at the same places of the same members' memory, on all
//! cores at once, with as many sets of buffers as requests are in flight. The recipe of a request comes from
//! [`engine::code::plan`], and a test compares its copies with the engine's counters. Sequential writes that gather
//! count as whole stripes, the best that gathering can do. The parity cache is left out: where it hits, a run may be
//! faster than its floor.

mod perform;
mod recipe;

use std::collections::HashMap;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use layout::geometry::Geometry;
use layout::units::Slot;
use serde::Serialize;

use crate::Error;
use crate::array::{Array, shards_failed};
use crate::clock::{now_ns, thread_cpu_ns};
use crate::operations::Operations;
use crate::setting::{Setting, Work};
use crate::workload::{Replay, Workload};
use perform::Kitchen;
use recipe::{Cook, Recipe};

/// The most requests that are prepared; the loop repeats them.
const REQUESTS_MAX: usize = 1 << 18;

/// The most bytes of requests that are prepared: more than caches hold.
const BYTES_MAX: u64 = 8 << 30;

/// The time is cut into this many slices, of which the one with the median speed counts: other work on the machine
/// disturbs some slices, but not the median.
const SLICES: u32 = 5;

/// Requests between two readings of the clock.
const BATCH: usize = 64;

/// The floor of a run.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Floor {
    /// Bytes of requests, each second.
    pub bytes_per_s: f64,
    /// Bytes of requests for each second of processor time of one core.
    pub bytes_per_cpu_s: f64,
}

/// What a request needs of the members of an array with `missing` slots.
pub fn copied(geometry: &Geometry, missing: &[Slot], write: bool, offset: u64, bytes: u64) -> Operations {
    Cook { geometry, missing }.recipe(write, offset, bytes).copied()
}

/// Measures the floor on the array's shards. `None` if members are not memory: then the devices are the limit.
pub(crate) fn measure(
    array: &Array,
    setting: &Setting,
    replay: Option<&Arc<Replay>>,
) -> Result<Option<Floor>, Error> {
    let Some(memories) = array.memories() else { return Ok(None) };
    let setting = gathered(setting, &array.geometry, replay.is_some());
    let time = Duration::from_secs_f64((setting.runtime / 5.0).clamp(0.002, 1.0));
    let (sender, results) = mpsc::channel();
    for shard in 0..setting.shards {
        let (sender, setting, memories) = (sender.clone(), setting.clone(), memories.clone());
        let (geometry, missing, replay) = (array.geometry, array.missing(), replay.cloned());
        array.shards.handle().spawn_on(shard, async move |_| {
            let list = List::new(&geometry, &missing, &setting, shard, replay.as_deref());
            let mut kitchen = Kitchen::new(&memories, &list.recipes, setting.iodepth, list.bytes_max);
            list.run(&mut kitchen, time / 4); // until every shard works and the buffers are warm
            let mut slices: Vec<Done> = (0..SLICES).map(|_| list.run(&mut kitchen, time / SLICES)).collect();
            slices.sort_by(|a, b| a.speed().total_cmp(&b.speed()));
            let _ = sender.send(slices.swap_remove(slices.len() / 2)); // fails only if the caller has given up
        });
    }
    drop(sender);
    let done: Vec<Done> = results.iter().collect();
    if done.len() < setting.shards {
        return Err(shards_failed("a shard has ended"));
    }
    if let Some(replay) = replay {
        replay.restart();
    }
    let cpu_s = done.iter().map(|done| done.cpu_ns as f64 / 1e9).sum::<f64>();
    let bytes = done.iter().map(|done| done.bytes as f64).sum::<f64>();
    let each = done.iter().map(|done| done.bytes as f64 / (done.wall_ns as f64 / 1e9));
    Ok(Some(Floor { bytes_per_s: each.sum(), bytes_per_cpu_s: bytes / cpu_s.max(1e-9) }))
}

/// Sequential writes that gather into whole stripes are measured as such.
fn gathered(setting: &Setting, geometry: &Geometry, is_trace: bool) -> Setting {
    let mut setting = setting.clone();
    let parity = geometry.parity_chunks() > 0;
    if parity && setting.two_phase && setting.rw == Work::Write && !is_trace {
        let stripe = geometry.stripe_bytes();
        let in_flight = (setting.iodepth / setting.numjobs) as u64 * setting.bs;
        if in_flight >= stripe && !setting.bs.is_multiple_of(stripe) {
            setting.bs = stripe;
        }
    }
    setting
}

struct Done {
    bytes: u64,
    wall_ns: u64,
    cpu_ns: u64,
}

impl Done {
    fn speed(&self) -> f64 {
        self.bytes as f64 / self.wall_ns.max(1) as f64
    }
}

/// Requests of one shard, each as a recipe and the period of the layout that it is in.
struct List {
    recipes: Vec<Recipe>,
    requests: Vec<(u32, u32)>,
    /// Bytes of each recipe's request.
    bytes: Vec<u64>,
    period_bytes: u64,
    bytes_max: usize,
}

impl List {
    fn new(
        geometry: &Geometry,
        missing: &[Slot],
        setting: &Setting,
        shard: usize,
        replay: Option<&Replay>,
    ) -> Self {
        let cook = Cook { geometry, missing };
        let (period, period_bytes) = cook.period();
        let own = Workload::new(setting, shard, geometry.array_bytes(), None);
        let (mut known, mut planned) = (HashMap::new(), 0);
        let bytes_max = BYTES_MAX.min(4 * geometry.array_bytes());
        let mut list =
            List { recipes: Vec::new(), requests: Vec::new(), bytes: Vec::new(), period_bytes, bytes_max: 0 };
        while list.requests.len() < REQUESTS_MAX && planned < bytes_max {
            let at = list.requests.len();
            let request = match replay {
                Some(replay) => replay.requests.get(at * setting.shards + shard).map(|(_, request)| *request),
                None => own.next(at),
            };
            let Some(request) = request else { break };
            let key = (request.write, request.offset % period, request.bytes);
            let recipe = *known.entry(key).or_insert_with(|| {
                list.recipes.push(cook.recipe(key.0, key.1, key.2));
                list.bytes.push(request.bytes);
                list.recipes.len() - 1
            });
            let number = u32::try_from(request.offset / period).expect("an array of this machine's memory");
            list.requests.push((recipe as u32, number));
            list.bytes_max = list.bytes_max.max(request.bytes as usize);
            planned += request.bytes;
        }
        list
    }

    fn run(&self, kitchen: &mut Kitchen, time: Duration) -> Done {
        let (wall_ns, cpu_ns) = (now_ns(), thread_cpu_ns());
        let end_ns = wall_ns + time.as_nanos() as u64;
        let mut bytes = 0;
        for batch in self.requests.chunks(BATCH).cycle() {
            for &request in batch {
                self.perform(kitchen, request);
                bytes += self.bytes[request.0 as usize];
            }
            if now_ns() >= end_ns {
                break;
            }
        }
        Done { bytes, wall_ns: now_ns() - wall_ns, cpu_ns: thread_cpu_ns() - cpu_ns }
    }

    #[inline]
    fn perform(&self, kitchen: &mut Kitchen, (recipe, period): (u32, u32)) {
        kitchen.perform(&self.recipes[recipe as usize], u64::from(period) * self.period_bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::OpenMembers;
    use crate::redundancy;
    use layout::units::Slot;

    /// No work left out: after the floor alone has done the requests, parity agrees with the data that it wrote.
    /// None added: it has copied what the recipes say, which another test compares with the engine.
    #[test]
    fn the_floor_leaves_an_array_behind_that_is_right() {
        for (level, fail) in
            [("5", vec![]), ("6", vec![]), ("4", vec![]), ("10", vec![]), ("5", vec![Slot::new(1)])]
        {
            for (rw, kib) in
                [(Work::RandWrite, 4), (Work::RandWrite, 64), (Work::Write, 64), (Work::RandRw, 192)]
            {
                let setting = Setting {
                    members: vec!["memory:6x2M".to_string()],
                    level: level.to_string(),
                    fail: fail.clone(),
                    rw,
                    bs: kib << 10,
                    iodepth: 8,
                    ..Setting::default()
                };
                let array =
                    Array::start(&setting, &OpenMembers::open(&setting).expect("members")).expect("an array");
                let setting = gathered(&setting, &array.geometry, false);
                let list = List::new(&array.geometry, &array.missing(), &setting, 0, None);
                let memories = array.memories().expect("memory");
                let mut kitchen = Kitchen::new(&memories, &list.recipes, setting.iodepth, list.bytes_max);
                list.requests.iter().for_each(|request| list.perform(&mut kitchen, *request));
                let mut wanted = Operations::default();
                for (recipe, _) in &list.requests {
                    wanted += list.recipes[*recipe as usize].copied();
                }
                assert_eq!(kitchen.copied(), wanted, "RAID-{level} {rw:?} {kib}K");
                assert!(wanted.write_bytes > 0);
                if fail.is_empty() {
                    redundancy::check(&array)
                        .unwrap_or_else(|error| panic!("RAID-{level} {rw:?} {kib}K: {error}"));
                }
            }
        }
    }
}
