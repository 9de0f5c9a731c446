//! What a benchmark is asked to do.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use engine::array::assemble::check_width;
use engine::members::load::UpdatePolicy;
use engine::stripe::locks::Locks;
use host::device::nvme_tcp::RemoteOptions;
use host::device::{DeviceSpec, parse_size};
use host::machine::check_memory;
use layout::geometry::{Geometry, Layout, Level};
use layout::md_bitmap::may_be_spread;
use layout::units::Slot;
use serde::Serialize;

use crate::Error;

/// Most threads.
const SHARDS_MAX: usize = 1024;

/// Longest cost of a read of memory: beyond a second nothing is a device any more.
const READ_US_MAX: u64 = 1_000_000;

/// What requests do, in fio's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandRead,
    /// Random writes.
    RandWrite,
    /// Sequential, reads and writes.
    Rw,
    /// Random, reads and writes.
    RandRw,
}

impl Work {
    /// Its name, fio's.
    pub fn name(self) -> &'static str {
        match self {
            Work::Read => "read",
            Work::Write => "write",
            Work::RandRead => "randread",
            Work::RandWrite => "randwrite",
            Work::Rw => "rw",
            Work::RandRw => "randrw",
        }
    }

    /// Whether places are drawn rather than counted up.
    pub fn is_random(self) -> bool {
        matches!(self, Work::RandRead | Work::RandWrite | Work::RandRw)
    }

    /// Reads among 100 requests.
    pub(crate) fn read_percent(self, mixed: u32) -> u32 {
        match self {
            Work::Read | Work::RandRead => 100,
            Work::Write | Work::RandWrite => 0,
            Work::Rw | Work::RandRw => mixed,
        }
    }
}

impl FromStr for Work {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let works = [
            ("read", Work::Read),
            ("write", Work::Write),
            ("randread", Work::RandRead),
            ("randwrite", Work::RandWrite),
            ("rw", Work::Rw),
            ("randrw", Work::RandRw),
        ];
        named(if text == "readwrite" { "rw" } else { text }, &works)
    }
}

/// The value with this name, or what to write instead.
pub(crate) fn named<T: Copy>(text: &str, values: &[(&str, T)]) -> Result<T, String> {
    if let Some((_, value)) = values.iter().find(|(name, _)| *name == text) {
        return Ok(*value);
    }
    let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
    let (last, others) = names.split_last().expect("there are values");
    Err(format!("{text:?}: write {} or {last}", others.join(", ")))
}

/// What is durable before a stripe changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    /// Nothing: as peers that have no crash consistency.
    None,
    /// md's flag for the whole array, set once; each write counts itself.
    Resync,
    /// md's bitmap: a bit for each 64 MiB of the members, durable before a write there.
    Bitmap,
}

impl FromStr for Consistency {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let kinds =
            [("none", Consistency::None), ("resync", Consistency::Resync), ("bitmap", Consistency::Bitmap)];
        named(text, &kinds)
    }
}

/// Which part of the members a bit of the bitmap stands for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum BitmapMapping {
    /// A chunk, as in md.
    #[default]
    Contiguous,
    /// Stripes all over.
    Dblock,
}

impl FromStr for BitmapMapping {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        named(text, &[("contiguous", BitmapMapping::Contiguous), ("dblock", BitmapMapping::Dblock)])
    }
}

/// Which places random requests choose.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Skew {
    /// All alike.
    Uniform,
    /// By Zipf's law with this exponent; the frequent places are spread over the array.
    Zipf(f64),
}

impl FromStr for Skew {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let theta = text.strip_prefix("zipf:").and_then(|theta| theta.parse().ok());
        match (text, theta) {
            ("uniform", _) => Ok(Skew::Uniform),
            (_, Some(theta)) if theta > 0.0 && theta < 10.0 => Ok(Skew::Zipf(theta)),
            _ => Err(format!("{text:?}: write uniform or zipf:EXPONENT, like zipf:0.99")),
        }
    }
}

/// The whole setting of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Setting {
    /// Members: files, block devices, `memory:COUNTxSIZE`, `null:COUNTxSIZE`.
    pub members: Vec<String>,
    /// RAID level, as `create` takes it.
    pub level: String,
    /// Chunk in bytes.
    pub chunk: u64,
    /// What requests do.
    pub rw: Work,
    /// Bytes of a request.
    pub bs: u64,
    /// Requests in flight on each shard.
    pub iodepth: usize,
    /// Threads that serve.
    pub shards: usize,
    /// Sequential streams on each shard, which share its requests in flight.
    pub numjobs: usize,
    /// Requests that each shard serves, from the first on, instead of `runtime` and `ramp`: what a run does is then the same each
    /// time.
    pub requests: Option<u64>,
    /// Seconds that are measured.
    pub runtime: f64,
    /// Seconds before that.
    pub ramp: f64,
    /// Bytes of the parity cache.
    pub parity_cache: u64,
    /// Whether writes gather.
    pub two_phase: bool,
    /// How small writes choose what to read.
    pub update_policy: UpdatePolicy,
    /// Microseconds that each read takes a member of memory, one read after the other; 0: only its copy.
    pub member_read_us: u64,
    /// Bytes that each member of memory moves in a second, reads and writes together; 0: no limit.
    pub member_rate: u64,
    /// What is durable before a stripe changes.
    pub consistency: Consistency,
    /// Which locks are over a bitmap's counters and over the stripes.
    pub bitmap_locks: Locks,
    /// Which part of the members a bit stands for.
    pub bitmap_mapping: BitmapMapping,
    /// Slots that fail before the run.
    pub fail: Vec<Slot>,
    /// Which places random requests choose.
    pub skew: Skew,
    /// Reads among 100 requests of mixed work.
    pub rwmixread: u32,
    /// Replay this instead.
    pub trace: Option<PathBuf>,
    /// Replay in the trace's own time rather than as fast as possible.
    pub trace_time: bool,
    /// Check every block that is read, and all contents at the end, also degraded.
    pub verify: bool,
    /// Measure the floor too.
    pub roofline: bool,
    /// Idle shards poll rather than sleep.
    pub poll: bool,
    /// Shards use io_uring where the system allows it.
    pub io_uring: bool,
    /// Use members that hold something.
    pub force: bool,
    /// How members on other machines are reached; none: they are not.
    #[serde(skip)]
    pub remote: Option<RemoteOptions>,
    /// Seed of all random numbers.
    pub seed: u64,
}

impl Default for Setting {
    fn default() -> Self {
        Setting {
            members: vec!["memory:6x2G".to_string()],
            level: "5".to_string(),
            chunk: 64 << 10,
            rw: Work::RandWrite,
            bs: 4 << 10,
            iodepth: 32,
            shards: 1,
            numjobs: 1,
            requests: None,
            runtime: 10.0,
            ramp: 1.0,
            parity_cache: engine::limits::PARITY_CACHE_BYTES_DEFAULT as u64,
            two_phase: true,
            update_policy: UpdatePolicy::default(),
            member_read_us: 0,
            member_rate: 0,
            consistency: Consistency::None,
            bitmap_locks: Locks::default(),
            bitmap_mapping: BitmapMapping::default(),
            fail: Vec::new(),
            skew: Skew::Uniform,
            rwmixread: 50,
            trace: None,
            trace_time: false,
            verify: false,
            roofline: true,
            poll: false,
            io_uring: true,
            remote: None,
            force: false,
            seed: 1,
        }
    }
}

impl Setting {
    /// What members are made from.
    ///
    /// # Errors
    /// A word that is no member.
    pub fn specs(&self) -> Result<Vec<DeviceSpec>, Error> {
        let mut specs = Vec::new();
        for member in &self.members {
            specs.extend(DeviceSpec::parse(member).map_err(|error| Error::Setting(error.to_string()))?);
        }
        Ok(specs)
    }

    /// Whether every member is memory.
    pub fn is_memory(&self) -> bool {
        self.members.iter().all(|member| member.starts_with("memory:"))
    }

    /// Whether a member stores nothing.
    pub fn has_null(&self) -> bool {
        self.members.iter().any(|member| member.starts_with("null:"))
    }

    /// Whether requests take so little time that a clock read for each would show.
    pub(crate) fn is_fast(&self) -> bool {
        self.members.iter().all(|member| member.starts_with("memory:") || member.starts_with("null:"))
    }

    /// The array of `members` members that have `member_bytes` each.
    ///
    /// # Errors
    /// What makes no array.
    pub fn geometry(&self, members: usize, member_bytes: u64) -> Result<Geometry, Error> {
        let wrong = |error: &dyn std::fmt::Display| Error::Setting(error.to_string());
        let number = self.level.strip_prefix("raid").unwrap_or(&self.level).parse::<i32>();
        let number = number.map_err(|_| Error::Setting(format!("level {:?} is no number", self.level)))?;
        let level = Level::from_md_number(number).map_err(|error| wrong(&error))?;
        let count = u32::try_from(members).map_err(|error| wrong(&error))?;
        let chunk = u32::try_from(self.chunk).map_err(|error| wrong(&error))?;
        let geometry = Geometry::new(level, Layout::default_for(level), count, chunk, member_bytes)
            .map_err(|error| wrong(&error))?;
        check_width(&geometry).map_err(|refusal| wrong(&refusal))?;
        Ok(geometry)
    }

    /// Refuses what makes no sense on this array.
    pub(crate) fn check(&self, geometry: &Geometry) -> Result<(), Error> {
        let refuse = |reason: String| Err(Error::Setting(reason));
        if let Some(slot) = self.fail.iter().find(|slot| !geometry.has(**slot)) {
            return refuse(format!("--fail {slot}, but slots are 0 to {}", geometry.members() - 1));
        }
        if let Some((at, slot)) = (0..).zip(&self.fail).find(|(at, slot)| self.fail[..*at].contains(*slot)) {
            return refuse(format!("--fail names slot {slot} twice, also in place {}", at + 1));
        }
        if !geometry.survives(|slot| self.fail.contains(&slot)) {
            let slots: Vec<String> = self.fail.iter().map(ToString::to_string).collect();
            let (level, slots) = (geometry.level(), slots.join(", "));
            return refuse(format!("{level} does not survive the loss of slots {slots}"));
        }
        let is_spread =
            self.consistency == Consistency::Bitmap && self.bitmap_mapping == BitmapMapping::Dblock;
        if is_spread && !may_be_spread(geometry, geometry.chunk_bytes()) {
            return refuse(
                "--bitmap-mapping dblock spreads bits over stripes: levels 4, 5 and 6 have those".into(),
            );
        }
        self.check_costs()?;
        self.check_requests(geometry.array_bytes())?;
        if self.verify && self.has_null() {
            return refuse("--verify: members of null: keep nothing that could be checked".into());
        }
        if self.verify && !self.bs.is_multiple_of(4096) {
            return refuse("--verify needs --bs to be a multiple of 4K".into());
        }
        if self.rwmixread > 100 {
            return refuse(format!("--rwmixread {}: a percentage", self.rwmixread));
        }
        Ok(())
    }

    /// Refuses requests that cannot be made of an array of any kind that has `array_bytes`.
    pub(crate) fn check_requests(&self, array_bytes: u64) -> Result<(), Error> {
        let refuse = |reason: String| Err(Error::Setting(reason));
        if self.bs == 0
            || !self.bs.is_multiple_of(512)
            || self.bs > u64::from(engine::limits::REQUEST_BYTES_MAX)
        {
            return refuse(format!("--bs {}: a multiple of 512 up to 32M", self.bs));
        }
        if self.iodepth == 0 || self.shards == 0 || self.numjobs == 0 || self.numjobs > self.iodepth {
            return refuse(
                "--shards, --iodepth and --numjobs are at least 1, and there is a request for each job"
                    .into(),
            );
        }
        self.check_memory()?;
        if array_bytes / self.bs < (self.shards * self.numjobs) as u64 {
            return refuse(format!("an array of {array_bytes} bytes is too small"));
        }
        if self.requests == Some(0) {
            return refuse("--requests 0: at least 1".into());
        }
        if !(self.runtime > 0.0 && self.ramp >= 0.0 && self.runtime + self.ramp < 1e6) {
            return refuse("--runtime and --ramp are seconds".into());
        }
        Ok(())
    }

    /// What operations are to cost at members.
    ///
    /// # Errors
    /// They are no members of memory, or it is too much.
    pub(crate) fn check_costs(&self) -> Result<(), Error> {
        let refuse = |reason: String| Err(Error::Setting(reason));
        if self.member_read_us > READ_US_MAX || (self.member_read_us > 0 && !self.is_memory()) {
            return refuse(format!(
                "--member-read-us {}: up to {READ_US_MAX}, and all members are memory; files have a cost of their own",
                self.member_read_us
            ));
        }
        if self.member_rate > 0 && !self.is_memory() {
            return refuse("--member-rate: all members are memory; files have a speed of their own".into());
        }
        Ok(())
    }

    /// Refuses more requests in flight, or a larger parity cache, than this machine has memory for.
    fn check_memory(&self) -> Result<(), Error> {
        let requests = (self.shards as u64).saturating_mul(self.iodepth as u64);
        // A request has its data, what it reads, and new parity.
        let bytes = requests.saturating_mul(3 * self.bs.max(4096));
        let refuse = |reason: String| Err(Error::Setting(reason));
        if self.shards > SHARDS_MAX {
            return refuse(format!("--shards {}: up to {SHARDS_MAX}", self.shards));
        }
        if let Err(error) = check_memory(bytes) {
            let Setting { shards, iodepth, bs, .. } = self;
            return refuse(format!("--shards {shards} with --iodepth {iodepth} of {bs} bytes: {error}"));
        }
        if let Err(error) = check_memory(self.parity_cache) {
            return refuse(format!("--parity-cache: {error}"));
        }
        Ok(())
    }

    pub(crate) fn runtime(&self) -> Duration {
        Duration::from_secs_f64(self.runtime)
    }

    pub(crate) fn ramp(&self) -> Duration {
        Duration::from_secs_f64(self.ramp)
    }
}

/// Reads a size as the command line has it.
///
/// # Errors
/// Not a size.
pub fn size(text: &str) -> Result<u64, Error> {
    parse_size(text).map_err(|error| Error::Setting(error.to_string()))
}
