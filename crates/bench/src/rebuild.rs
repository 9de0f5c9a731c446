//! How fast an idle array rebuilds a member. Two bounds are measured in turns with it, both past the engine: plain
//! writes of the same member, and those writes together with the reads that a recovery needs. Where members share a
//! disk, or the processor moves every byte, the second bound is what the machine allows.

use std::fmt::Write as _;
use std::rc::Rc;
use std::sync::Arc;

use engine::array::progress::{Ended, FullSpeed, Progress};
use engine::array::rebuild::recover;
use engine::buffer::{Buffer, Gather};
use engine::device::Device;
use engine::executor::join_all;
use host::array::MemberDevice;
use host::device::{DeviceSpec, HostDevice, SharedDevice};
use host::shard::ShardContext;
use layout::geometry::Geometry;
use layout::units::{DeviceOffset, Slot};
use serde::Serialize;

use crate::array::{Array, OpenMembers, shards_failed};
use crate::beside::files::fill;
use crate::clock::{now_ns, process_cpu_ns};
use crate::machine::Machine;
use crate::setting::Setting;
use crate::table::Spread;
use crate::{Error, random::Random};

/// The member that is rebuilt.
const SLOT: Slot = Slot::new(1);

/// Size of a plain write or read, and how many are in flight: enough to keep any member busy.
const REQUEST_BYTES: usize = 256 << 10;
const REQUESTS: usize = 16;

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Rounds; the median counts.
    pub runs: usize,
    /// Levels, in the words of `create`.
    pub levels: Vec<String>,
    /// Members, chunk and whether members that hold something are used.
    pub array: Setting,
}

/// What was found.
#[derive(Clone, Debug, Serialize)]
pub struct Rebuild {
    /// The machine.
    pub machine: Machine,
    /// What was done, in words.
    pub method: String,
    /// One for each level.
    pub levels: Vec<Level>,
}

/// One level.
#[derive(Clone, Debug, Serialize)]
pub struct Level {
    /// Its level.
    pub level: String,
    /// The recovery.
    pub recovery: Speed,
    /// Plain writes of one member.
    pub writes: Speed,
    /// Plain writes of one member, each after reads of the same size from every member that a recovery reads.
    pub same_io: Speed,
    /// Median speed of the recovery, divided by that of the plain writes.
    pub ratio: f64,
    /// Median speed of the recovery, divided by that of the reads and writes.
    pub ratio_to_same_io: f64,
}

/// How fast, and at what cost.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Speed {
    /// Bytes of the member in a second, in millions.
    pub mb_per_s: Spread,
    /// Processor seconds of the whole process for a GiB of the member.
    pub cpu_s_per_gib: Spread,
}

#[derive(Clone, Copy)]
struct Run {
    mb_per_s: f64,
    cpu_s_per_gib: f64,
}

/// Rebuilds a member at each level; `say` hears how it goes.
///
/// # Errors
/// What is wrong with a member or a level, or an operation that failed.
pub fn measure(plan: &Plan, say: &dyn Fn(&str)) -> Result<Rebuild, Error> {
    let machine = Machine::now();
    plan.array.check_costs()?;
    if plan.array.has_null() {
        return Err(Error::Setting("--members: members of null: keep nothing that could be rebuilt".into()));
    }
    let specs = plan.array.specs()?;
    let members = OpenMembers::open(&plan.array)?.of_any_contents();
    for spec in &specs {
        if let DeviceSpec::Path(path) = spec {
            say(&format!("filling {}", path.display()));
            fill(path).map_err(|source| Error::Io { path: path.clone(), source })?;
        }
    }
    let mut levels = Vec::new();
    for level in &plan.levels {
        let setting = Setting { level: level.clone(), fail: vec![SLOT], ..plan.array.clone() };
        let array = Array::start(&setting, &members)?;
        let (mut recoveries, mut writes, mut same_io) = (Vec::new(), Vec::new(), Vec::new());
        let sources = array.sources();
        for round in 1..=plan.runs.max(1) {
            say(&format!("RAID-{level}, round {round} of {}", plan.runs));
            recoveries.push(array.recovery()?);
            same_io.push(array.plain(&sources)?);
            writes.push(array.plain(&[])?);
        }
        let (recovery, writes, same_io) = (Speed::of(&recoveries), Speed::of(&writes), Speed::of(&same_io));
        let by = |other: &Speed| recovery.mb_per_s.median / other.mb_per_s.median.max(1e-9);
        let (ratio, ratio_to_same_io) = (by(&writes), by(&same_io));
        let level = format!("RAID-{level}");
        levels.push(Level { level, recovery, writes, same_io, ratio, ratio_to_same_io });
    }
    let method = format!(
        "{} members {}, chunks of {} KiB, no clients. {} rounds: member {SLOT} is rebuilt whole and flushed, then as much is \
         written to it past the engine in requests of {} KiB, {REQUESTS} in flight, and flushed: once each after reads of \
         as much from every member that a recovery reads (same I/O), once alone. Processor time is that of the process.",
        members.count(),
        match (plan.array.is_memory(), plan.array.member_rate) {
            (false, _) => "past the page cache".to_owned(),
            (true, 0) => "in memory".to_owned(),
            (true, rate) =>
                format!("in memory that move {} MB/s each, reads and writes together", rate / 1_000_000),
        },
        plan.array.chunk >> 10,
        plan.runs.max(1),
        REQUEST_BYTES >> 10,
    );
    Ok(Rebuild { machine, method, levels })
}

impl Array {
    fn recovery(&self) -> Result<Run, Error> {
        let (host, device, geometry) = (self.host.clone(), self.device(), self.geometry);
        let job = async move |_: ShardContext| {
            let members = &host.shared.members;
            members.fail(SLOT, "to be rebuilt");
            members.remove(SLOT);
            let member = MemberDevice { device, data_offset: DeviceOffset::START };
            host.attach(SLOT, Some(member)).await.map_err(shards_failed)?;
            let set = Rc::clone(host.volume().engine());
            let start = (now_ns(), process_cpu_ns());
            members.begin_recovery(SLOT, 0);
            match recover(&set, SLOT, &Progress::default(), &FullSpeed).await {
                Ended::Finished => Ok(Run::since(start, &geometry)),
                ended => Err(Error::Request(format!("the recovery ended: {ended:?}"))),
            }
        };
        self.shards.run_on(0, job).map_err(shards_failed)?
    }

    /// The members that a recovery reads: as many as a stripe has data chunks, of a mirror one copy.
    fn sources(&self) -> Vec<Slot> {
        let count = if self.geometry.parity_chunks() == 0 { 1 } else { self.geometry.data_chunks() };
        self.geometry.slots().filter(|slot| *slot != SLOT).take(count as usize).collect()
    }

    /// Writes the member, each request after reads of the same place of every one in `sources`.
    fn plain(&self, sources: &[Slot]) -> Result<Run, Error> {
        let (device, geometry) = (self.device(), self.geometry);
        let sources: Vec<SharedDevice> =
            sources.iter().map(|slot| self.devices[slot.index()].clone()).collect();
        let job = async move |context: ShardContext| {
            let device = Rc::new(device.attach(&context.ring));
            let sources: Rc<Vec<HostDevice>> =
                Rc::new(sources.iter().map(|source| source.attach(&context.ring)).collect());
            let mut data = Buffer::new(REQUEST_BYTES);
            let mut random = Random::new(1);
            data.bytes_mut()
                .chunks_exact_mut(8)
                .for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
            let data = data.freeze();
            let start = (now_ns(), process_cpu_ns());
            let worker = |number: usize| {
                let (device, sources, data) = (Rc::clone(&device), Rc::clone(&sources), data.clone());
                let pool = Arc::clone(&context.pool);
                context.executor.spawn_with_result(async move {
                    let first = (number * REQUEST_BYTES) as u64;
                    for at in (first..geometry.member_bytes()).step_by(REQUESTS * REQUEST_BYTES) {
                        let bytes = (geometry.member_bytes() - at).min(REQUEST_BYTES as u64) as usize;
                        let reads =
                            sources.iter().map(|source| source.read(DeviceOffset::new(at), pool.take(bytes)));
                        join_all(reads).await.into_iter().try_for_each(|(_, result)| result)?;
                        device.write(DeviceOffset::new(at), Gather::from(data.part(0, bytes)), false).await?;
                    }
                    Ok(())
                })
            };
            let moved = join_all((0..REQUESTS).map(worker)).await;
            let moved = moved.into_iter().collect::<Result<(), engine::device::DeviceError>>();
            moved.map_err(|error| Error::Request(error.to_string()))?;
            device.flush().await.map_err(|error| Error::Request(error.to_string()))?;
            Ok(Run::since(start, &geometry))
        };
        self.shards.run_on(0, job).map_err(shards_failed)?
    }

    fn device(&self) -> SharedDevice {
        self.devices[SLOT.index()].clone()
    }
}

impl Run {
    fn since((wall_ns, cpu_ns): (u64, u64), geometry: &Geometry) -> Self {
        let (wall_ns, cpu_ns) = ((now_ns() - wall_ns).max(1), process_cpu_ns() - cpu_ns);
        let bytes = geometry.member_bytes() as f64;
        Run {
            mb_per_s: bytes * 1e3 / wall_ns as f64,
            cpu_s_per_gib: cpu_ns as f64 / 1e9 / (bytes / (1u64 << 30) as f64),
        }
    }
}

impl Speed {
    fn of(runs: &[Run]) -> Self {
        Speed {
            mb_per_s: Spread::of(runs.iter().map(|run| run.mb_per_s).collect()),
            cpu_s_per_gib: Spread::of(runs.iter().map(|run| run.cpu_s_per_gib).collect()),
        }
    }
}

impl Rebuild {
    /// A table in Markdown.
    pub fn words(&self) -> String {
        let Machine { cpu, cores, kernel, load_before, .. } = &self.machine;
        let mut text = format!(
            "{}\n\n{cpu}, {cores} cores, Linux {kernel}, load before {load_before}.\n\n",
            self.method
        );
        text += "| level | recovery MB/s | plain writes MB/s | ratio | same I/O MB/s | ratio | recovery CPU s/GiB | \
                 same I/O CPU s/GiB |\n";
        text += "|---|---|---|---|---|---|---|---|\n";
        for Level { level, recovery, writes, same_io, ratio, ratio_to_same_io } in &self.levels {
            let speed =
                |speed: &Spread| format!("{:.0} ({:.0} to {:.0})", speed.median, speed.least, speed.greatest);
            let _infallible = writeln!(
                text,
                "| {level} | {} | {} | {ratio:.2} | {} | {ratio_to_same_io:.2} | {:.2} | {:.2} |",
                speed(&recovery.mb_per_s),
                speed(&writes.mb_per_s),
                speed(&same_io.mb_per_s),
                recovery.cpu_s_per_gib.median,
                same_io.cpu_s_per_gib.median
            );
        }
        text
    }
}
