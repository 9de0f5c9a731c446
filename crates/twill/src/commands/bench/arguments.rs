//! What `twill bench` can be asked.

use std::path::PathBuf;

use bench::setting::{BitmapMapping, Consistency, Setting, Skew, Work};
use bench::table::PeerCommand;
use clap::{Args, Subcommand, ValueEnum};
use engine::log::config::MapLimits;
use engine::log::reclaim::choose::ReclaimPolicy;
use engine::members::load::UpdatePolicy;
use engine::stripe::locks::Locks;

use crate::bytes;
use crate::remote_arguments::RemoteArguments;
use crate::switch::Switch;
use layout::units::Slot;

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example: small random writes to six members in memory, on one core
  twill bench --members memory:6x2G --level 5 --chunk 64K \\
    --rw randwrite --bs 4K --iodepth 32 --shards 1

The array is made for the run and has no superblocks. `roofline` is what plain copies and parity passes of the same
requests reach on the same cores; it is there for members in memory. `ceiling` is what the members alone allow: for files
and block devices, and with --member-read-us.

Example: the engine alone, the same requests each time, on members that copy nothing
  twill bench --members null:6x2G --requests 1000000

Example: what a target of NVMe/TCP does, whose namespace is overwritten
  twill bench --members nvme://10.0.0.1/nqn.2026-11.example:drive0 --level 0 \\
    --rw randread --bs 4K --force

Example: the time in locks as md has them, for writes with a bitmap
  twill bench --consistency bitmap --bitmap-locks orig --shards 4"
)]
pub struct BenchArguments {
    /// What else than one run.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// One run.
    #[command(flatten)]
    pub run: RunArguments,
}

/// What else than one run.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Repeat the experiments of the StRAID and ScalaRAID papers and write a page with plots.
    Report(ReportArguments),
    /// Print the table of figures that docs/performance.md quotes: medians of several runs, beside floor and memcpy.
    Table(TableArguments),
    /// An array in memory over NBD beside `nbdkit memory`, which has no RAID: fio on both in turns.
    Nbd(NbdArguments),
    /// An array on files or block devices beside fio on the same members without RAID, in turns.
    Files(FilesArguments),
    /// How fast a member is rebuilt without clients, beside plain writes of the same member.
    Rebuild(RebuildArguments),
    /// What a write to a zoned array costs, in software zones in memory, beside the floor of the same stripes.
    Zoned(ZonedBenchArguments),
    /// What zoned arrays do that are written over and over: by the room in reserve, or by the memory for the map.
    Aged(AgedArguments),
    /// How long a zoned array takes to start after its server was killed, with checkpoints of its map and without.
    Starts(StartsArguments),
    /// What arrays of 1 TB to 1 PB keep in memory.
    Memory(MemoryArguments),
}

/// Arguments of one run.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// Members: files, block devices, nvme://ADDRESS/NQN on other machines, memory:COUNTxSIZE, or null:COUNTxSIZE, which complete
    /// operations at once and copy nothing; what files and devices hold is lost.
    #[arg(long, value_name = "MEMBER", num_args = 1.., value_delimiter = ',', default_value = "memory:6x2G")]
    pub members: Vec<String>,
    /// RAID level: 0, 1, 4, 5, 6 or 10.
    #[arg(short, long, default_value = "5")]
    pub level: String,
    /// Chunk, a member's share of a stripe.
    #[arg(short, long, value_parser = bytes::parse, value_name = "SIZE", default_value = "64K")]
    pub chunk: u64,
    /// read, write, randread, randwrite, rw or randrw, as in fio [default: randwrite].
    #[arg(long)]
    pub rw: Option<Work>,
    /// Bytes of a request [default: 4K].
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE")]
    pub bs: Option<u64>,
    /// Requests in flight on each shard [default: 32].
    #[arg(long, value_name = "N")]
    pub iodepth: Option<usize>,
    /// Threads that serve, each with a core of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub shards: usize,
    /// Sequential streams on each shard, which share its requests in flight [default: 1].
    #[arg(long, value_name = "N")]
    pub numjobs: Option<usize>,
    /// Requests that each shard serves, rather than for --runtime: a run then does the same each time.
    #[arg(long, value_name = "N", conflicts_with_all = ["runtime", "ramp", "trace_time"])]
    pub requests: Option<u64>,
    /// Seconds that are measured; with --trace-time the most.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub runtime: f64,
    /// Seconds before that [default: 1].
    #[arg(long, value_name = "SECONDS")]
    pub ramp: Option<f64>,
    /// Memory for parity that small writes would read again; 0 for none [default: 64M].
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE")]
    pub parity_cache: Option<u64>,
    /// Gather writes of one stripe before reading for them [default: on].
    #[arg(long, value_name = "on|off")]
    pub two_phase: Option<Switch>,
    /// How small writes choose what to read: fewest-reads, or adaptive to the members' load [default: fewest-reads].
    #[arg(long, value_name = "POLICY")]
    pub update_policy: Option<UpdatePolicy>,
    /// Microseconds that each read takes a member of memory, one read after the other, without keeping a core busy.
    #[arg(long, value_name = "US", default_value_t = 0)]
    pub member_read_us: u64,
    /// Bytes that each member of memory moves in a second, reads and writes together, like a device with a speed of its own
    /// [default: no limit].
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", default_value_t = 0, hide_default_value = true)]
    pub member_rate: u64,
    /// What is durable before a stripe changes: none, resync (md's flag for the whole array) or bitmap [default: none].
    #[arg(long)]
    pub consistency: Option<Consistency>,
    /// Which counters of the bitmap and which stripes share a lock: orig, as in md; hemi, with many locks over the stripes;
    /// scala, none [default: scala].
    #[arg(long, value_name = "LOCKS")]
    pub bitmap_locks: Option<Locks>,
    /// Which part of the members a bit stands for: contiguous, a chunk as in md; dblock, stripes all over [default:
    /// contiguous].
    #[arg(long, value_name = "MAPPING")]
    pub bitmap_mapping: Option<BitmapMapping>,
    /// Slots that have failed before the run.
    #[arg(long, value_name = "SLOT", value_delimiter = ',')]
    pub fail: Vec<Slot>,
    /// Places of random requests: uniform, or zipf:EXPONENT [default: uniform].
    #[arg(long)]
    pub skew: Option<Skew>,
    /// Reads among 100 requests of rw and randrw [default: 50].
    #[arg(long, value_name = "PERCENT")]
    pub rwmixread: Option<u32>,
    /// Replay this trace, folded onto the array and as fast as possible, again and again: CSV or zstd of it,
    /// time_us,op,offset_bytes,length_bytes.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Replay once, each request when the trace has it, however many are in flight then.
    #[arg(long, requires = "trace")]
    pub trace_time: bool,
    /// Check all contents, also with members lost after the run. Blocks then have one request at a time.
    #[arg(long)]
    pub verify: bool,
    /// Do not measure the floor of memory, or the ceiling of files.
    #[arg(long)]
    pub no_roofline: bool,
    /// Threads ask for completions all the time rather than sleep.
    #[arg(long)]
    pub poll: bool,
    /// Do without io_uring, as where a system forbids it.
    #[arg(long)]
    pub no_io_uring: bool,
    /// Overwrite members that hold something.
    #[arg(short, long)]
    pub force: bool,
    /// Seed of all random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// How members on other machines are reached.
    #[command(flatten)]
    pub remote: RemoteArguments,
}

/// Arguments of `bench report`.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples: all experiments on this machine, small, as a page to look at; the dRAID paper's figures; ZapRAID's experiments
  twill bench report --output report
  twill bench report --set draid --output draid
  twill bench report --set zapraid --traces traces --output zapraid"
)]
pub struct ReportArguments {
    /// Which: StRAID's and ScalaRAID's on this machine, `quick` in a few minutes, `full` in an hour; or in virtual time `draid`, that
    /// paper's figures at its own scale, or `zapraid`, its experiments.
    #[arg(long, default_value = "quick")]
    pub set: bench::report::Set,
    /// Only these experiments, like straid-fig10, fig10 of `draid`, or exp3 of `zapraid`.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// With `draid`: what cargo xtask bench-draid --json has measured over sockets, to stand on the same page.
    #[arg(long, value_name = "FILE", value_delimiter = ',')]
    pub measured: Vec<PathBuf>,
    /// Folder of traces for straid-fig18, or for exp10 of `zapraid`.
    #[arg(long, value_name = "FOLDER")]
    pub traces: Option<PathBuf>,
    /// Seconds of each run, rather than those of the set.
    #[arg(long, value_name = "SECONDS")]
    pub runtime: Option<f64>,
    /// Size of each of the six members, rather than that of the set.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE")]
    pub member_size: Option<u64>,
    /// Write the page and the raw figures here.
    #[arg(short, long, value_name = "FOLDER")]
    pub output: PathBuf,
}

/// Arguments of `bench table`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: the table of docs/performance.md again, in about five minutes on a quiet machine
  twill bench table --markdown docs/performance.md

Each round makes every row once, so that whatever else the machine does meets all rows. `by floor` compares with plain
copies and parity passes of the same requests in the same run, `by memcpy` with plain copies.

A peer is any other program: its command is run in turns with each run of each row. In its environment it finds TWILL_ROW, TWILL_LEVEL,
TWILL_RW (randread, randwrite, read, write), TWILL_BS, TWILL_CHUNK, TWILL_IODEPTH (on each core), TWILL_CORES, TWILL_SECONDS, TWILL_MEMBERS
and TWILL_MEMBER_BYTES, sizes in bytes. The last line that it prints is the operations that it did in a second; with code 77 it
says that it does not do such work. The ratio is of runs one after the other. Twill copies each request once, to or from its members: say so
beside a peer that does not."
)]
pub struct TableArguments {
    /// Runs of each row; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: usize,
    /// Seconds of each run: with its floor and what is around it a run takes half as long again.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.5)]
    pub runtime: f64,
    /// Size of each of the six members.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", default_value = "2G")]
    pub member_size: u64,
    /// Less than a minute: three runs of 0.2 seconds, members of 512 MiB.
    #[arg(long, conflicts_with_all = ["runs", "runtime", "member_size"])]
    pub quick: bool,
    /// Further rows than those with figures to reach.
    #[arg(long, conflicts_with = "only")]
    pub all: bool,
    /// Put the table into this file too, between its two marks, as docs/performance.md has them.
    #[arg(long, value_name = "FILE")]
    pub markdown: Option<PathBuf>,
    /// Cores: 1, 2 or both.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    pub shards: Vec<usize>,
    /// Only rows whose name holds this.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Another program that does the same work, in turns; may be repeated.
    #[arg(long, value_name = "NAME=COMMAND")]
    pub peer: Vec<PeerCommand>,
}

/// Arguments of `bench nbd`.
#[derive(Debug, Args)]
#[command(after_help = "Example: RAID-5 on one core beside nbdkit, reads and writes of 4 KiB and 128 KiB
  twill bench nbd

Needs fio with its nbd engine, and nbdkit.")]
pub struct NbdArguments {
    /// Rounds; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: usize,
    /// Seconds of each run.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    pub runtime: f64,
    /// Sizes of requests.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", value_delimiter = ',', default_value = "4K,128K")]
    pub bs: Vec<u64>,
    /// Requests in flight.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub iodepth: usize,
    /// What is done, in fio's words.
    #[arg(
        long,
        value_name = "WORK",
        value_delimiter = ',',
        default_value = "randread,randwrite",
        value_parser = ["read", "write", "randread", "randwrite"]
    )]
    pub rw: Vec<String>,
    /// RAID level of the array.
    #[arg(short, long, default_value = "5")]
    pub level: String,
    /// Threads that serve.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub shards: usize,
    /// Bytes of both volumes that are used.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", default_value = "1G")]
    pub size: u64,
}

/// Arguments of `bench files`.
#[derive(Debug, Args)]
#[command(after_help = "Example: six files of a gigabyte, which are made
  twill bench files --make 1G /data/member{0..5}

What the members hold is lost. Needs fio.")]
pub struct FilesArguments {
    /// Members: files or block devices.
    #[arg(value_name = "MEMBER", required = true, num_args = 1..)]
    pub members: Vec<String>,
    /// Make the files that do not exist, of this size, and remove them afterwards.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE")]
    pub make: Option<u64>,
    /// Overwrite members that hold something.
    #[arg(short, long)]
    pub force: bool,
    /// Rounds; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: usize,
    /// Seconds of each run.
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    pub runtime: f64,
    /// Sizes of requests.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", value_delimiter = ',', default_value = "4K,64K")]
    pub bs: Vec<u64>,
    /// Requests in flight on each shard.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub iodepth: usize,
    /// Threads that serve.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub shards: usize,
    /// RAID level of the array.
    #[arg(short, long, default_value = "5")]
    pub level: String,
    /// fio's engine on the bare members.
    #[arg(long, default_value = "io_uring", value_parser = ["io_uring", "libaio", "psync"])]
    pub engine: String,
}

/// Arguments of `bench memory`.
#[derive(Debug, Args)]
#[command(after_help = "Example: does anything grow with capacity?
  twill bench memory

The members keep nothing, so any size can be had; the engine is the real one.")]
pub struct MemoryArguments {
    /// Capacities of the arrays.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", value_delimiter = ',', default_value = "1T,100T,1P")]
    pub sizes: Vec<u64>,
    /// Random writes of 4 KiB to each array.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    pub writes: usize,
    /// Memory for parity.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", default_value = "64M")]
    pub parity_cache: u64,
}

/// Arguments of `bench rebuild`.
#[derive(Debug, Args)]
#[command(after_help = "Example: six members in memory, then six files
  twill bench rebuild --members memory:6x256M
  truncate -s 256M m0 m1 m2 m3 m4 m5
  twill bench rebuild --members m0,m1,m2,m3,m4,m5

Example: members that do so many bytes a second
  twill bench rebuild --members memory:6x256M --member-rate 200M")]
pub struct RebuildArguments {
    /// Members: files, block devices, or memory:COUNTxSIZE; what files hold is lost.
    #[arg(long, value_name = "MEMBER", num_args = 1.., value_delimiter = ',', default_value = "memory:6x256M")]
    pub members: Vec<String>,
    /// RAID levels with redundancy.
    #[arg(short, long, value_name = "LEVEL", value_delimiter = ',', default_value = "5,6,10,1")]
    pub levels: Vec<String>,
    /// Chunk, a member's share of a stripe.
    #[arg(short, long, value_parser = bytes::parse, value_name = "SIZE", default_value = "64K")]
    pub chunk: u64,
    /// Bytes that each member of memory moves in a second, reads and writes together, like a device with a speed of its own
    /// [default: no limit].
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", default_value_t = 0, hide_default_value = true)]
    pub member_rate: u64,
    /// Rounds; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: usize,
    /// Overwrite members that hold something.
    #[arg(short, long)]
    pub force: bool,
}

/// Arguments of `bench zoned`.
#[derive(Debug, Args)]
#[command(after_help = "Example: random writes of 4 KiB to RAID-5 over four members, on one core and on two
  twill bench zoned

Example: the same while reclaim works
  twill bench zoned --aged --runtime 5")]
pub struct ZonedBenchArguments {
    /// Members, of memory.
    #[arg(long, value_name = "MEMBER", num_args = 1.., value_delimiter = ',', default_value = "memory:4x2G")]
    pub members: Vec<String>,
    /// RAID level: 0, 4, 5, 6 or 10.
    #[arg(short, long, default_value = "5")]
    pub level: String,
    /// write or randwrite, as in fio.
    #[arg(long, default_value = "randwrite")]
    pub rw: Work,
    /// Bytes of a request.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", default_value = "4K")]
    pub bs: u64,
    /// Requests in flight on each shard.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub iodepth: usize,
    /// Threads that serve: each number in turn.
    #[arg(long, value_name = "N", value_delimiter = ',', default_values_t = [1, 2])]
    pub shards: Vec<usize>,
    /// Seconds of each run. Short enough that nothing is reclaimed meanwhile, unless --aged.
    #[arg(long, value_name = "SECONDS", default_value_t = 0.5)]
    pub runtime: f64,
    /// Rounds; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: usize,
    /// Bytes of a software zone.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", default_value = "32M")]
    pub zone_size: u64,
    /// Room for what is overwritten, in hundredths of the array's size.
    #[arg(long, value_name = "PERCENT", default_value_t = 25)]
    pub reserve: u32,
    /// Fill the array and write as much again in the way that is measured then, so that reclaim works meanwhile.
    #[arg(long)]
    pub aged: bool,
    /// Which segments reclaim empties first: greedy or cost-benefit.
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub reclaim: ReclaimPolicy,
    /// Memory for the map, of which the rest stays in the log [default: all]. The map takes 1/512 of the array's size.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE")]
    pub map_memory: Option<u64>,
    /// How much of the map may change before a checkpoint is written; 0 for no checkpoints.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", default_value = "256M")]
    pub map_dirty: u64,
}

/// Arguments of `bench aged`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: all, half and a quarter of the map in memory, with the workloads of the ZapRAID paper
  twill bench aged --vary map-memory"
)]
pub struct AgedArguments {
    /// Members, of memory.
    #[arg(long, value_name = "MEMBER", num_args = 1.., value_delimiter = ',', default_value = "memory:4x1G")]
    pub members: Vec<String>,
    /// RAID level: 0, 4, 5, 6 or 10.
    #[arg(short, long, default_value = "5")]
    pub level: String,
    /// What is varied.
    #[arg(long, value_enum, default_value = "reserve")]
    pub vary: Vary,
    /// Requests in flight on each shard.
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub iodepth: usize,
    /// Threads that serve.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub shards: usize,
    /// Seconds of each run.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    pub runtime: f64,
    /// Rounds; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: usize,
    /// Bytes of a software zone.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", default_value = "8M")]
    pub zone_size: u64,
    /// Room for what is overwritten, in hundredths of the array's size, unless that is varied.
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    pub reserve: u32,
    /// How many times as much as the array has is written before the measurement.
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub times: u64,
    /// Which segments reclaim empties first: greedy or cost-benefit.
    #[arg(long, value_name = "POLICY", default_value_t)]
    pub reclaim: ReclaimPolicy,
}

/// What `bench aged` varies.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Vary {
    /// The reserve: 20, 25, 50 and 100 % (the paper's experiment 8).
    Reserve,
    /// The memory for the map: all of it, half and a quarter (its experiment 9).
    MapMemory,
}

/// Arguments of `bench starts`.
#[derive(Debug, Args)]
#[command(after_help = "Example: an eighth, a quarter, a half and all of an array written before the kill
  twill bench starts")]
pub struct StartsArguments {
    /// Members, of memory.
    #[arg(long, value_name = "MEMBER", num_args = 1.., value_delimiter = ',', default_value = "memory:4x1G")]
    pub members: Vec<String>,
    /// RAID level: 0, 4, 5, 6 or 10.
    #[arg(short, long, default_value = "5")]
    pub level: String,
    /// Rounds; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: usize,
    /// Bytes of a software zone.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", default_value = "8M")]
    pub zone_size: u64,
    /// How much of the map may change before a checkpoint is written.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", default_value = "512K")]
    pub map_dirty: u64,
}

impl AgedArguments {
    /// What to measure.
    pub fn plan(&self) -> bench::zoned::Plan {
        let array = Setting {
            members: self.members.clone(),
            level: self.level.clone(),
            iodepth: self.iodepth,
            shards: self.shards,
            runtime: self.runtime,
            ramp: 0.0,
            ..Setting::default()
        };
        bench::zoned::Plan {
            runs: self.runs,
            shards: vec![self.shards],
            array,
            zone_bytes: self.zone_size,
            reserve_percent: self.reserve,
            aged: self.times,
            map_limits: MapLimits::of_bytes(None, MapLimits::default().changed_bytes()),
            reclaim: self.reclaim,
        }
    }

    /// What is varied.
    pub fn varied(&self) -> bench::zoned::aged::Varied {
        match self.vary {
            Vary::Reserve => bench::zoned::aged::Varied::Reserve,
            Vary::MapMemory => bench::zoned::aged::Varied::MapMemory,
        }
    }
}

impl StartsArguments {
    /// What to measure.
    pub fn plan(&self) -> bench::zoned::Plan {
        let array =
            Setting { members: self.members.clone(), level: self.level.clone(), ..Setting::default() };
        bench::zoned::Plan {
            runs: self.runs,
            shards: vec![1],
            array,
            zone_bytes: self.zone_size,
            reserve_percent: 25,
            aged: 0,
            map_limits: MapLimits::of_bytes(None, Some(self.map_dirty)),
            reclaim: ReclaimPolicy::default(),
        }
    }
}

impl ZonedBenchArguments {
    /// What to measure.
    pub fn plan(&self) -> bench::zoned::Plan {
        let array = Setting {
            members: self.members.clone(),
            level: self.level.clone(),
            rw: self.rw,
            bs: self.bs,
            iodepth: self.iodepth,
            runtime: self.runtime,
            ramp: self.runtime / 5.0,
            ..Setting::default()
        };
        bench::zoned::Plan {
            runs: self.runs,
            shards: self.shards.clone(),
            array,
            zone_bytes: self.zone_size,
            reserve_percent: self.reserve,
            aged: u64::from(self.aged),
            map_limits: MapLimits::of_bytes(self.map_memory, Some(self.map_dirty).filter(|bytes| *bytes > 0)),
            reclaim: self.reclaim,
        }
    }
}

impl RebuildArguments {
    /// What to measure.
    pub fn plan(&self) -> bench::rebuild::Plan {
        let array = Setting {
            members: self.members.clone(),
            level: self.levels.first().cloned().unwrap_or_default(),
            chunk: self.chunk,
            force: self.force,
            member_rate: self.member_rate,
            ..Setting::default()
        };
        bench::rebuild::Plan { runs: self.runs, levels: self.levels.clone(), array }
    }
}

impl MemoryArguments {
    /// What to measure.
    pub fn plan(&self) -> bench::footprint::Plan {
        let parity_cache = usize::try_from(self.parity_cache).unwrap_or(usize::MAX);
        bench::footprint::Plan { sizes: self.sizes.clone(), writes: self.writes, parity_cache }
    }
}

impl NbdArguments {
    /// What to measure.
    pub fn plan(&self) -> bench::beside::nbd::Plan {
        // Six members hold the size at every level, mirrors of all six too.
        let array = Setting {
            members: vec![format!("memory:6x{}", self.size.next_multiple_of(1 << 20))],
            level: self.level.clone(),
            shards: self.shards,
            ..Setting::default()
        };
        bench::beside::nbd::Plan {
            runs: self.runs,
            runtime: self.runtime,
            sizes: self.bs.clone(),
            iodepth: self.iodepth,
            works: self.rw.clone(),
            array,
            bytes: self.size,
        }
    }
}

impl FilesArguments {
    /// What to measure.
    pub fn plan(&self) -> bench::beside::files::Plan {
        let array = Setting {
            members: self.members.clone(),
            level: self.level.clone(),
            shards: self.shards,
            iodepth: self.iodepth,
            runtime: self.runtime,
            ramp: self.runtime / 5.0,
            force: self.force,
            ..Setting::default()
        };
        let (sizes, engine) = (self.bs.clone(), self.engine.clone());
        bench::beside::files::Plan { runs: self.runs, array, sizes, engine, make: self.make }
    }
}

impl RunArguments {
    /// The setting, with the defaults of what was not said.
    pub fn setting(&self) -> Setting {
        let default = Setting::default();
        Setting {
            members: self.members.clone(),
            level: self.level.clone(),
            chunk: self.chunk,
            rw: self.rw.unwrap_or(default.rw),
            bs: self.bs.unwrap_or(default.bs),
            iodepth: self.iodepth.unwrap_or(default.iodepth),
            shards: self.shards,
            numjobs: self.numjobs.unwrap_or(default.numjobs),
            requests: self.requests,
            io_uring: !self.no_io_uring,
            runtime: self.runtime,
            ramp: self.ramp.unwrap_or(default.ramp),
            parity_cache: self.parity_cache.unwrap_or(default.parity_cache),
            two_phase: self.two_phase.map_or(default.two_phase, |switch| switch == Switch::On),
            update_policy: self.update_policy.unwrap_or(default.update_policy),
            member_read_us: self.member_read_us,
            member_rate: self.member_rate,
            consistency: self.consistency.unwrap_or(default.consistency),
            bitmap_locks: self.bitmap_locks.unwrap_or(default.bitmap_locks),
            bitmap_mapping: self.bitmap_mapping.unwrap_or(default.bitmap_mapping),
            fail: self.fail.clone(),
            skew: self.skew.unwrap_or(default.skew),
            rwmixread: self.rwmixread.unwrap_or(default.rwmixread),
            trace: self.trace.clone(),
            trace_time: self.trace_time,
            verify: self.verify,
            roofline: !self.no_roofline,
            poll: self.poll,
            force: self.force,
            remote: None,
            seed: self.seed,
        }
    }
}

impl TableArguments {
    /// What to measure.
    pub fn plan(&self) -> bench::table::Plan {
        let (runs, runtime_s, member_bytes) = match self.quick {
            true => (3, 0.2, 512 << 20),
            false => (self.runs, self.runtime, self.member_size),
        };
        let (shards, only) = (self.shards.clone(), self.only.clone());
        let method = bench::table::Method { runs, runtime_s, member_bytes };
        bench::table::Plan { method, shards, only, all: self.all, peers: self.peer.clone() }
    }
}
