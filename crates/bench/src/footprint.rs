//! How much memory an array takes, by its capacity: arrays of up to petabytes, over members that store nothing, are
//! written at random places. Anything that grows with the capacity shows.

use std::fmt::Write as _;
use std::future::{Ready, ready};
use std::rc::Rc;
use std::sync::Arc;

use engine::array::volume::{ArrayVolume, VolumeMode};
use engine::buffer::{Buffer, Gather, Pool};
use engine::device::{Device, DeviceError, DeviceInfo};
use engine::error::VolumeError;
use engine::executor::{Executor, join_all};
use engine::in_place::InPlace;
use engine::members::Attached;
use engine::members::{MemberState, Members};
use engine::stripe::Shared;
use engine::stripe::intent::Intent;
use engine::stripe::locks::Locks;
use engine::stripe::stripe_table::TableBytes;
use engine::volume::{Space, Volume};
use layout::geometry::{Geometry, Layout, Level};
use layout::md_bitmap::{BitmapSuper, CHUNK_BYTES_DEFAULT, sync_sectors};
use layout::units::{DeviceOffset, Slot};
use serde::Serialize;

use crate::Error;
use crate::random::Random;

/// Members of the arrays: RAID-5 of ten.
const MEMBERS: u32 = 10;

/// Room for a bitmap on large members, as mdadm has it.
const BITMAP_ROOM_BYTES: u64 = 128 << 10;

/// Writes in flight.
const DEPTH: usize = 32;

/// Memory of free buffers that a shard keeps, as the host has it.
const POOL_BYTES: usize = 64 << 20;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Capacities of arrays in bytes.
    pub sizes: Vec<u64>,
    /// Random writes of 4 KiB to each.
    pub writes: usize,
    /// Bytes of the parity cache.
    pub parity_cache: usize,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Footprint {
    /// Random writes of 4 KiB to each array.
    pub writes: usize,
    /// Bytes of the parity cache.
    pub parity_cache: usize,
    /// Resident before the first array.
    pub resident_before_bytes: u64,
    /// One for each capacity.
    pub arrays: Vec<Resident>,
}

/// What one array keeps.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Resident {
    /// Capacity.
    pub array_bytes: u64,
    /// Stripes of it.
    pub stripes: u64,
    /// Resident memory of the process after the writes.
    pub resident_bytes: u64,
    /// The stripe table.
    pub table: TableBytes,
    /// Its bitmap.
    pub bitmap: BitmapMemory,
}

/// What a bitmap with mdadm's choice of chunk keeps.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct BitmapMemory {
    /// Bytes of a member that a bit stands for.
    pub chunk_bytes: u32,
    /// Bits.
    pub bits: u64,
    /// Memory of the counters after the writes.
    pub counters_bytes: u64,
    /// Bytes on each member.
    pub member_bytes: u64,
}

/// Makes an array of each size in turn and writes to it.
///
/// # Errors
/// A size that makes no array.
pub fn measure(plan: &Plan, say: &dyn Fn(&str)) -> Result<Footprint, Error> {
    let resident_before_bytes = resident_bytes();
    let mut arrays = Vec::new();
    for &size in &plan.sizes {
        say(&format!("{} GiB", size >> 30));
        arrays.push(one(plan, size)?);
    }
    let (writes, parity_cache) = (plan.writes, plan.parity_cache);
    Ok(Footprint { writes, parity_cache, resident_before_bytes, arrays })
}

fn one(plan: &Plan, size: u64) -> Result<Resident, Error> {
    let member = size.div_ceil(u64::from(MEMBERS - 1));
    let level = Level::Raid5;
    let geometry = Geometry::new(level, Layout::default_for(level), MEMBERS, 64 << 10, member);
    let geometry = geometry.map_err(|error| Error::Setting(error.to_string()))?;
    let states = vec![MemberState::InSync; MEMBERS as usize];
    let members = Members::new(geometry, &states, Box::new(|_| {}));
    let bitmap = bitmap_of(&geometry)?;
    let intent = Intent::with_bitmap(bitmap.mapping(), true, Locks::default());
    let shared = Shared::new(geometry, members, intent, 1, plan.parity_cache);
    let table = shared.table.bytes();
    let executor = Executor::new(Box::new(|| {}));
    let flushed = Arc::clone(&shared);
    executor.spawn(async move {
        while let Some(chunks) = flushed.intent.bits_wanted().await {
            flushed.intent.bits_written(&chunks); // members that keep nothing have them at once
        }
    });
    let used = Arc::clone(&shared);
    let device =
        |slot: Slot| Some(Attached { device: Nothing::new(slot, member), data_offset: DeviceOffset::START });
    let attached = geometry.slots().map(device).collect();
    let set = InPlace::new(shared, 0, Pool::new(POOL_BYTES), executor.clone(), attached);
    let volume = Rc::new(ArrayVolume::new(set, 512, Arc::new(VolumeMode::default())));
    let writer = |number: usize| write(Rc::clone(&volume), number as u64, plan.writes / DEPTH);
    let tasks: Vec<_> = (0..DEPTH).map(|number| executor.spawn_with_result(writer(number))).collect();
    let done = executor.spawn_with_result(join_all(tasks));
    let results = loop {
        executor.run_ready(usize::MAX);
        if let Some(results) = done.try_take() {
            break results;
        }
    };
    let results: Result<Vec<()>, VolumeError> = results.into_iter().collect();
    results.map_err(|error| Error::Request(error.to_string()))?;
    let (array_bytes, stripes) = (geometry.array_bytes(), geometry.stripes());
    let resident_bytes = resident_bytes();
    used.intent.stop_flusher();
    executor.run_ready(usize::MAX);
    let bitmap = BitmapMemory {
        chunk_bytes: bitmap.chunk_bytes(),
        bits: bitmap.bits(),
        counters_bytes: used.intent.bitmap_memory_bytes(),
        member_bytes: bitmap.bitmap_bytes(),
    };
    Ok(Resident { array_bytes, stripes, resident_bytes, table, bitmap })
}

fn bitmap_of(geometry: &Geometry) -> Result<BitmapSuper, Error> {
    let size = sync_sectors(geometry);
    let least = BitmapSuper::least_chunk_bytes(size, BITMAP_ROOM_BYTES)
        .ok_or_else(|| Error::Setting("the array is too large for a bitmap".into()))?;
    Ok(BitmapSuper::new([0; 16], size, least.max(CHUNK_BYTES_DEFAULT)))
}

async fn write(
    volume: Rc<ArrayVolume<InPlace<Nothing>>>,
    seed: u64,
    writes: usize,
) -> Result<(), VolumeError> {
    let (mut random, data) = (Random::new(seed), Buffer::new(4096).freeze());
    let blocks = volume.info().size_bytes / 4096;
    for _ in 0..writes {
        volume.write(random.below(blocks) * 4096, data.clone().into(), false).await?;
    }
    Ok(())
}

/// Resident memory of this process, 0 if the system does not say.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// A member of any size that keeps nothing and reads as zeroes.
struct Nothing(DeviceInfo);

impl Nothing {
    fn new(slot: Slot, size_bytes: u64) -> Self {
        let size_bytes = size_bytes / 512 * 512;
        let name = format!("nothing:{slot}");
        Nothing(DeviceInfo { size_bytes, logical_block_bytes: 512, discard_zeroes: true, name })
    }
}

impl Device for Nothing {
    type Read = Ready<(Buffer, Result<(), DeviceError>)>;
    type Done = Ready<Result<(), DeviceError>>;

    fn info(&self) -> &DeviceInfo {
        &self.0
    }

    fn read(&self, _offset: DeviceOffset, mut buffer: Buffer) -> Self::Read {
        buffer.bytes_mut().fill(0);
        ready((buffer, Ok(())))
    }

    fn write(&self, _offset: DeviceOffset, _data: Gather, _fua: bool) -> Self::Done {
        ready(Ok(()))
    }

    fn flush(&self) -> Self::Done {
        ready(Ok(()))
    }

    fn discard(&self, _offset: DeviceOffset, _bytes: u64) -> Self::Done {
        ready(Ok(()))
    }

    fn write_zeroes(&self, _offset: DeviceOffset, _bytes: u64, _may_unmap: bool) -> Self::Done {
        ready(Ok(()))
    }
}

impl Footprint {
    /// A table in Markdown.
    pub fn words(&self) -> String {
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        let mut text = format!(
            "RAID-5 of {MEMBERS} members that keep nothing, {} random writes of 4 KiB to each array, {} MiB of parity cache; \
             {:.1} MiB were resident before.\n\n| array | stripes | resident, MiB | entries of the stripe table, KiB | with \
             padding, KiB | batches beside them, KiB | bits of the bitmap | its counters, KiB | on each member, KiB \
             |\n|---|---|---|---|---|---|---|---|---|\n",
            self.writes,
            self.parity_cache >> 20,
            mib(self.resident_before_bytes)
        );
        for array in &self.arrays {
            let TableBytes { entries, entries_padded, batches } = array.table;
            let _infallible = writeln!(
                text,
                "| {:.1} TB | {} | {:.1} | {} | {} | {} | {} of {} MiB | {} | {:.1} |",
                array.array_bytes as f64 / 1e12,
                array.stripes,
                mib(array.resident_bytes),
                entries >> 10,
                entries_padded >> 10,
                batches >> 10,
                array.bitmap.bits,
                array.bitmap.chunk_bytes >> 20,
                array.bitmap.counters_bytes >> 10,
                array.bitmap.member_bytes as f64 / 1024.0
            );
        }
        text
    }
}
