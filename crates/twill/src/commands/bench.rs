//! `twill bench`: what an array does on this machine, beside the floor that its plan allows.

use std::path::PathBuf;

use bench::setting::{Consistency, Setting, Skew, Work};
use clap::{Args, Subcommand, ValueEnum};

use super::Output;
use crate::bytes;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// Arguments of `bench`.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Example: small random writes to six members in memory, on one core
  twill bench --members memory:6x2G --level 5 --chunk 64K --rw randwrite --bs 4K --iodepth 32 --shards 1

The array is made for the run and has no superblocks. `roofline` is what plain copies and parity passes of the same
requests reach on the same cores; it is there for members in memory."
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
    /// Repeat the experiments of the StRAID paper and write a page with plots.
    Report(ReportArguments),
    /// Print the table of figures that docs/performance.md quotes: medians of several runs, beside floor and memcpy.
    Table(TableArguments),
}

/// A switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes.
    On,
    /// No.
    Off,
}

/// Arguments of one run.
#[derive(Debug, Args)]
pub struct RunArguments {
    /// Members: files, block devices, or memory:COUNTxSIZE; what files hold is lost.
    #[arg(long, value_name = "MEMBER", num_args = 1.., value_delimiter = ',', default_value = "memory:6x2G")]
    pub members: Vec<String>,
    /// RAID level: 0, 1, 4, 5, 6 or 10.
    #[arg(short, long, default_value = "5")]
    pub level: String,
    /// Chunk, a member's share of a stripe.
    #[arg(short, long, value_parser = bytes::parse, value_name = "SIZE", default_value = "64K")]
    pub chunk: u64,
    /// read, write, randread, randwrite, rw or randrw, as in fio.
    #[arg(long, default_value = "randwrite")]
    pub rw: Work,
    /// Bytes of a request.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", default_value = "4K")]
    pub bs: u64,
    /// Requests in flight on each shard.
    #[arg(long, value_name = "N", default_value_t = 32)]
    pub iodepth: usize,
    /// Threads that serve, each with a core of its own.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub shards: usize,
    /// Sequential streams on each shard, which share its requests in flight.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub numjobs: usize,
    /// Seconds that are measured.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    pub runtime: f64,
    /// Seconds before that.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    pub ramp: f64,
    /// Memory for parity that small writes would read again; 0 for none.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", default_value = "64M")]
    pub parity_cache: u64,
    /// Gather writes of one stripe before reading for them.
    #[arg(long, value_name = "on|off", default_value = "on")]
    pub two_phase: Switch,
    /// What is durable before a stripe changes: none, or resync (md's flag for the whole array).
    #[arg(long, default_value = "none")]
    pub consistency: Consistency,
    /// Slots that have failed before the run.
    #[arg(long, value_name = "SLOT", value_delimiter = ',')]
    pub fail: Vec<u32>,
    /// Places of random requests: uniform, or zipf:EXPONENT.
    #[arg(long, default_value = "uniform")]
    pub skew: Skew,
    /// Reads among 100 requests of rw and randrw.
    #[arg(long, value_name = "PERCENT", default_value_t = 50)]
    pub rwmixread: u32,
    /// Replay this trace, CSV or zstd of it: time_us,op,offset_bytes,length_bytes.
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
    /// Replay in the trace's own time, once, rather than as fast as possible.
    #[arg(long, requires = "trace")]
    pub trace_time: bool,
    /// Check all contents, also with members lost after the run. Blocks then have one request at a time.
    #[arg(long)]
    pub verify: bool,
    /// Do not measure the floor.
    #[arg(long)]
    pub no_roofline: bool,
    /// Threads ask for completions all the time rather than sleep.
    #[arg(long)]
    pub poll: bool,
    /// Overwrite members that hold something.
    #[arg(short, long)]
    pub force: bool,
    /// Seed of all random numbers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Arguments of `bench report`.
#[derive(Debug, Args)]
pub struct ReportArguments {
    /// How much: `quick` takes a few minutes, `full` an hour.
    #[arg(long, default_value = "quick")]
    pub set: bench::report::Extent,
    /// Only these experiments, like straid-fig10.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Folder of traces for straid-fig18.
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
pub struct TableArguments {
    /// Runs of each row; the median counts.
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub runs: usize,
    /// Seconds of each run.
    #[arg(long, value_name = "SECONDS", default_value_t = 3.0)]
    pub runtime: f64,
    /// Size of each of the six members.
    #[arg(long, value_parser = bytes::parse, value_name = "SIZE", default_value = "2G")]
    pub member_size: u64,
    /// Cores: 1, 2 or both.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 2])]
    pub shards: Vec<usize>,
    /// Only rows whose name holds this.
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
}

/// Runs it and prints what came out.
///
/// # Errors
/// What is wrong with the setting, a member or a trace; a request that failed; contents that are wrong.
pub fn run(arguments: &BenchArguments, output: Output) -> Result<(), Failure> {
    match &arguments.command {
        None => {
            let figures = bench::run::run(&arguments.run.setting()).map_err(|error| failure(&error))?;
            output.print(&figures, bench::figures::Figures::words);
        }
        Some(BenchCommand::Report(report)) => {
            let plan = bench::report::Plan {
                extent: report.set,
                only: report.only.clone(),
                traces: report.traces.clone(),
                output: report.output.clone(),
                runtime: report.runtime,
                member_bytes: report.member_size,
            };
            let page =
                bench::report::write(&plan, &|line| eprintln!("{line}")).map_err(|error| failure(&error))?;
            let answer = serde_json::json!({ "page": page });
            output.print(&answer, |_| page.display().to_string());
        }
        Some(BenchCommand::Table(table)) => {
            let plan = bench::table::Plan {
                runs: table.runs,
                runtime: table.runtime,
                member_bytes: table.member_size,
                shards: table.shards.clone(),
                only: table.only.clone(),
            };
            let table =
                bench::table::measure(&plan, &|line| eprintln!("{line}")).map_err(|error| failure(&error))?;
            output.print(&table, bench::table::Table::words);
        }
    }
    Ok(())
}

impl RunArguments {
    fn setting(&self) -> Setting {
        Setting {
            members: self.members.clone(),
            level: self.level.clone(),
            chunk: self.chunk,
            rw: self.rw,
            bs: self.bs,
            iodepth: self.iodepth,
            shards: self.shards,
            numjobs: self.numjobs,
            runtime: self.runtime,
            ramp: self.ramp,
            parity_cache: self.parity_cache,
            two_phase: self.two_phase == Switch::On,
            consistency: self.consistency,
            fail: self.fail.clone(),
            skew: self.skew,
            rwmixread: self.rwmixread,
            trace: self.trace.clone(),
            trace_time: self.trace_time,
            verify: self.verify,
            roofline: !self.no_roofline,
            poll: self.poll,
            force: self.force,
            seed: self.seed,
        }
    }
}

fn failure(error: &bench::Error) -> Failure {
    use bench::Error;
    use host::device::OpenErrorKind;
    let kind = match error {
        Error::Setting(_) | Error::Trace { .. } => ExitKind::Usage,
        Error::Occupied { .. } => ExitKind::NeedsForce,
        Error::Member(open) => match open.kind {
            OpenErrorKind::NotFound => ExitKind::NotFound,
            OpenErrorKind::Permission => ExitKind::Permission,
            OpenErrorKind::InUse => ExitKind::MemberInUse,
            OpenErrorKind::TooSmall => ExitKind::BadGeometry,
            _ => ExitKind::IoError,
        },
        Error::Io { source, .. } => source.kind().into(),
        Error::Request(_) | Error::Shards(_) => ExitKind::IoError,
        Error::Contents(_) | Error::Figure { .. } => ExitKind::Internal,
    };
    Failure::new(kind, error.to_string())
}
