//! What the members themselves allow, where they are more than memory: their own operations a second, mixed as the
//! array's plan mixes them, divided by what the plan needs for a request. For small random writes that is raw mixed
//! IOPS / 4 for RAID-5 (two reads, two writes) and / 6 for RAID-6.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use engine::buffer::Buffer;
use engine::device::{Device, DeviceError};
use engine::executor::join_all;
use host::device::HostDevice;
use host::shard::ShardContext;
use layout::geometry::Geometry;
use layout::units::{DeviceOffset, Slot};
use serde::Serialize;

use crate::Error;
use crate::array::{Array, shards_failed};
use crate::clock::now_ns;
use crate::operations::Operations;
use crate::random::Random;
use crate::roofline::copied;
use crate::setting::Setting;
use crate::workload::{Replay, Workload};

/// Requests over which the need of one is averaged.
const REQUESTS: usize = 4096;

/// What the members allow.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Raw {
    /// Operations a second of all members together, without an array.
    pub iops: f64,
    /// How many of 100 operations are reads.
    pub read_percent: u32,
    /// Bytes of each operation.
    pub operation_bytes: u64,
    /// Operations that the plan needs for a request.
    pub operations_per_request: f64,
    /// Operations in flight, over all shards.
    pub in_flight: usize,
}

/// What requests need of the members on average.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Need {
    reads: f64,
    writes: f64,
    bytes: f64,
}

/// Measures it on the array's shards, past the engine. What the members hold is lost.
pub(crate) fn measure(
    array: &Array,
    setting: &Setting,
    replay: Option<&Arc<Replay>>,
) -> Result<Option<Raw>, Error> {
    let need = Need::of(setting, &array.geometry, &array.missing(), replay);
    let operations = need.reads + need.writes;
    if operations == 0.0 {
        return Ok(None);
    }
    // Reads of a request are in flight together, and so are its writes.
    let tasks = (setting.iodepth as f64 * need.reads.max(need.writes)).ceil() as usize;
    let raw = Raw {
        iops: 0.0,
        read_percent: (100.0 * need.reads / operations).round() as u32,
        operation_bytes: ((need.bytes / operations) as u64).next_multiple_of(array.unit),
        operations_per_request: operations,
        in_flight: tasks * setting.shards,
    };
    let time = Duration::from_secs_f64((setting.runtime / 2.0).clamp(0.002, 5.0));
    let (sender, results) = mpsc::channel();
    for shard in 0..setting.shards {
        let (sender, fail) = (sender.clone(), setting.fail.clone());
        let devices: Vec<_> =
            Slot::all().zip(&array.devices).filter(|(slot, _)| !fail.contains(slot)).collect();
        let devices: Vec<_> = devices.into_iter().map(|(_, device)| device.clone()).collect();
        array.shards.handle().spawn_on(shard, async move |context| {
            let devices = devices.iter().map(|device| device.attach(&context.ring)).collect();
            let _ = sender.send(drive(&context, devices, raw, tasks, time).await); // fails only if the caller has given up
        });
    }
    drop(sender);
    let mut iops = 0.0;
    for _ in 0..setting.shards {
        iops += results.recv().map_err(|_| shards_failed("a shard has ended"))??;
    }
    Ok(Some(Raw { iops, ..raw }))
}

impl Need {
    /// The mean over requests as the run makes them.
    fn of(setting: &Setting, geometry: &Geometry, missing: &[Slot], replay: Option<&Arc<Replay>>) -> Self {
        let own = Workload::new(setting, 0, geometry.array_bytes(), None);
        let (mut sum, mut count) = (Operations::default(), 0usize);
        while count < REQUESTS {
            let request = match replay {
                Some(replay) => replay.requests.get(count).map(|(_, request)| *request),
                None => own.next(count),
            };
            let Some(request) = request else { break };
            sum += copied(geometry, missing, request.write, request.offset, request.bytes);
            count += 1;
        }
        let mean = |sum: u64| sum as f64 / count.max(1) as f64;
        Need { reads: mean(sum.reads), writes: mean(sum.writes), bytes: mean(sum.bytes()) }
    }
}

/// Operations a second of one shard.
async fn drive(
    context: &ShardContext,
    devices: Vec<HostDevice>,
    raw: Raw,
    tasks: usize,
    time: Duration,
) -> Result<f64, Error> {
    let (devices, done, start_ns) = (Rc::new(devices), Rc::new(Cell::new(0u64)), now_ns());
    let end_ns = start_ns + time.as_nanos() as u64;
    let task = |number: usize| {
        let random = Random::new(((context.index as u64) << 32) + number as u64);
        let work = operate(Rc::clone(&devices), raw, random, Rc::clone(&done), end_ns);
        context.executor.spawn_with_result(work)
    };
    let results = join_all((0..tasks).map(task)).await;
    results
        .into_iter()
        .collect::<Result<Vec<()>, _>>()
        .map_err(|error| Error::Request(format!("at a member: {error}")))?;
    Ok(done.get() as f64 / ((now_ns() - start_ns) as f64 / 1e9))
}

/// One operation after the other at random places, until the end.
async fn operate(
    devices: Rc<Vec<HostDevice>>,
    raw: Raw,
    mut random: Random,
    done: Rc<Cell<u64>>,
    end_ns: u64,
) -> Result<(), DeviceError> {
    let bytes = usize::try_from(raw.operation_bytes).expect("a request fits in memory");
    let (mut buffer, data) = (Buffer::new(bytes), Buffer::new(bytes).freeze());
    while now_ns() < end_ns {
        let device = &devices[random.below(devices.len() as u64) as usize];
        let places = device.info().size_bytes / raw.operation_bytes;
        let offset = random.below(places.max(1)) * raw.operation_bytes;
        if random.below(100) < u64::from(raw.read_percent) {
            let (read, result) = device.read(DeviceOffset::new(offset), buffer).await;
            buffer = read;
            result?;
        } else {
            device.write(DeviceOffset::new(offset), data.clone().into(), false).await?;
        }
        done.set(done.get() + 1);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setting::Work;

    #[test]
    fn small_writes_need_four_operations_and_six() {
        let cases = [
            ("5", 4, Work::RandWrite, (2.0, 2.0)),
            ("6", 4, Work::RandWrite, (3.0, 3.0)),
            ("5", 320, Work::RandWrite, (0.0, 6.0)),
            ("5", 4, Work::RandRead, (1.0, 0.0)),
            ("10", 4, Work::RandWrite, (0.0, 2.0)),
        ];
        for (level, kib, rw, (reads, writes)) in cases {
            let setting = Setting { level: level.to_string(), bs: kib << 10, rw, ..Setting::default() };
            let geometry = setting.geometry(6, 64 << 20).expect("an array");
            let need = Need::of(&setting, &geometry, &[], None);
            assert_eq!((need.reads, need.writes), (reads, writes), "RAID-{level} {rw:?} {kib}K");
        }
    }
}
