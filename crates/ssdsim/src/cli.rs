//! The commands: `run`, `report`, `generate`, `calibrate`, `train-bpu`, as argument structs and functions that a larger
//! command-line program can take in as they are.

use std::{io::Write, path::PathBuf, time::Instant};

use clap::{Args, Subcommand};

use crate::{
    Error,
    device::Device,
    experiment::Setup,
    generate::{PROFILES, Profile, generate, profile, statistics},
    outcome::Outcome,
    policy::{BPU_THRESHOLDS, ModelView, Policy},
    report::{self, Plan},
    simulator::{Acknowledge, Behaviour, ParityStart},
    trace::Trace,
    warmup::WarmUp,
};

/// What `ssdsim` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Replay a trace on the simulated device and print what it measured.
    Run(RunArgs),
    /// Make the paper's figures and tables as SVG with an HTML index.
    Report(ReportArgs),
    /// Write the stand-in of one of the paper's traces, and how well it matches.
    Generate(GenerateArgs),
    /// Find the share of hot accesses that gives a stand-in its published cv.
    Calibrate(CalibrateArgs),
    /// Train BPU's thresholds on a trace.
    TrainBpu(TrainArgs),
}

/// Does what `command` says.
///
/// # Errors
/// What went wrong, ready to be printed.
pub fn execute(command: &Command) -> Result<(), Error> {
    match command {
        Command::Run(args) => run(args),
        Command::Report(args) => report(args),
        Command::Generate(args) => generate_trace(args),
        Command::Calibrate(args) => calibrate(args),
        Command::TrainBpu(args) => train_bpu(args),
    }
}

/// The simulated device and how it behaves.
#[derive(Clone, Debug, Args)]
pub struct DeviceArgs {
    /// Stripe: data chunks + parity. A stripe lies over as many channels.
    #[arg(long, default_value = "5+1", value_parser = parse_stripe)]
    pub stripe: usize,
    /// Blocks in a plane (Table II: 512; 1024 gives the 40 GB that the paper's text names).
    #[arg(long, default_value_t = 512)]
    pub blocks: usize,
    /// Share of the flash kept spare.
    #[arg(long, default_value_t = 0.25)]
    pub over_provision: f64,
    /// One operation at a time on a channel, as the paper's model assumes.
    #[arg(long)]
    pub serial: bool,
    /// Collections move pages into blocks of their own, not into those that writes fill as in SSDsim.
    #[arg(long)]
    pub separate_streams: bool,
    /// All pages read at LDPC level 0.
    #[arg(long)]
    pub no_retries: bool,
    /// When parity starts.
    #[arg(long, value_enum, default_value_t)]
    pub parity_start: ParityStart,
    /// When a write is acknowledged.
    #[arg(long, value_enum, default_value_t)]
    pub acknowledge: Acknowledge,
    /// What the Adaptive model sees.
    #[arg(long, value_enum, default_value_t)]
    pub view: ModelView,
    /// Random overwrites before the run, in multiples of the spare space.
    #[arg(long, default_value_t = 1.0)]
    pub warm_random: f64,
    /// Writes of the trace before the run, in multiples of the spare space.
    #[arg(long, default_value_t = 1.0)]
    pub warm_trace: f64,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

impl DeviceArgs {
    /// The setup these arguments describe.
    pub fn setup(&self) -> Setup {
        let mut device = Device::table_ii(self.stripe).with_blocks(self.blocks);
        device.over_provision = self.over_provision;
        device.separate_streams = self.separate_streams;
        if self.no_retries {
            device.timing.ldpc_decay = 0.0;
        }
        if self.serial {
            device = device.with_serial_channels();
        }
        Setup {
            device,
            behaviour: Behaviour { parity_start: self.parity_start, acknowledge: self.acknowledge },
            warm_up: WarmUp { random: self.warm_random, trace: self.warm_trace },
            view: self.view,
            bpu: BPU_THRESHOLDS,
            seed: self.seed,
        }
    }
}

/// Arguments of `run`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example: all four policies on a stand-in of one of the paper's traces
  twill ssdsim run --trace Ali_1 --stripe 7+1")]
pub struct RunArgs {
    /// Trace file (CSV, plain or zstd), or the name of a stand-in: hm_0, lun0, lun1, lun2, Ali_0, Ali_1.
    #[arg(long)]
    pub trace: String,
    /// Policies; all four if none is given.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub policy: Vec<Policy>,
    /// Only the trace's first requests.
    #[arg(long)]
    pub requests: Option<u64>,
    /// Print JSON. Without wall-clock figures, so that two runs print the same.
    #[arg(long)]
    pub json: bool,
    /// The device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Replays a trace and prints the outcome of each policy.
///
/// # Errors
/// A trace that cannot be read, or an impossible device.
pub fn run(args: &RunArgs) -> Result<(), Error> {
    let setup = args.device.setup();
    let trace = load(&args.trace, args.requests, args.device.seed)?;
    let policies = if args.policy.is_empty() { &Policy::ALL[..] } else { &args.policy };
    let warm = setup.warmed(&trace)?;
    let mut outcomes = Vec::new();
    for &policy in policies {
        let simulator = warm.clone();
        let started = Instant::now();
        let outcome = simulator.run(&trace, &setup.chooser(policy));
        let seconds = started.elapsed().as_secs_f64();
        if !args.json {
            let rate = outcome.requests as f64 / seconds / 1e6;
            eprintln!(
                "{}: {:.2} M requests, {:.2} M flash operations a wall second",
                policy.name(),
                rate,
                outcome.flash_ops as f64 / seconds / 1e6
            );
        }
        outcomes.push(outcome);
    }
    if args.json {
        return print(&serde_json::to_string_pretty(&outcomes).expect("outcomes have no odd keys"));
    }
    print(&table(&outcomes))
}

/// Arguments of `report`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example: all figures and tables of the paper as a page to look at
  twill ssdsim report --out report")]
pub struct ReportArgs {
    /// Folder for the figures and `index.html`.
    #[arg(long, default_value = "ssdsim-report")]
    pub out: PathBuf,
    /// At most this many requests of each trace; 0 for all.
    #[arg(long, default_value_t = 400_000)]
    pub requests: u64,
    /// Folder with genuine traces for Fig. 2 and Table A2, beside the stand-ins.
    #[arg(long, default_value = "../shared/traces")]
    pub traces: PathBuf,
    /// Leave out the experiments that vary the device (they take half of the time).
    #[arg(long)]
    pub no_variants: bool,
    /// Blocks in a plane.
    #[arg(long, default_value_t = 512)]
    pub blocks: usize,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Seeds that the claims are averaged over.
    #[arg(long, default_value_t = 3)]
    pub seeds: u64,
}

/// Runs what the figures need, writes them, and says where.
///
/// # Errors
/// A trace that cannot be read or a file that cannot be written.
pub fn report(args: &ReportArgs) -> Result<(), Error> {
    print(&format!("wrote {}", make_report(args)?.display()))
}

/// Runs what the figures need and writes them; returns the page that shows them.
///
/// # Errors
/// A trace that cannot be read or a file that cannot be written.
pub fn make_report(args: &ReportArgs) -> Result<PathBuf, Error> {
    let plan = Plan {
        requests: if args.requests == 0 { u64::MAX } else { args.requests },
        traces: args.traces.clone(),
        variants: !args.no_variants,
        blocks: args.blocks,
        seed: args.seed,
        seeds: args.seeds,
    };
    report::make(&plan, &args.out, &mut |step| eprintln!("{step}"))?;
    Ok(args.out.join("index.html"))
}

/// Arguments of `generate`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example: a stand-in of a trace as a file, and how well it matches
  twill ssdsim generate --profile hm_0 --out hm_0.csv.zst")]
pub struct GenerateArgs {
    /// Stand-in: hm_0, lun0, lun1, lun2, Ali_0, Ali_1.
    #[arg(long)]
    pub profile: String,
    /// Only the first requests.
    #[arg(long)]
    pub requests: Option<u64>,
    /// File to write, compressed if it ends in `.zst`; none to see the match only.
    #[arg(long)]
    pub out: Option<PathBuf>,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Writes a stand-in and prints the published statistics beside its own.
///
/// # Errors
/// An unknown profile, or a file that cannot be written.
pub fn generate_trace(args: &GenerateArgs) -> Result<(), Error> {
    let profile = known_profile(&args.profile)?;
    let trace = generate(profile, args.requests.unwrap_or(u64::MAX), args.seed);
    if let Some(path) = &args.out {
        trace.write(path)?;
    }
    let (p, m) = (profile, statistics(&trace));
    let mut text = format!("{:<22}{:>14}{:>14}\n", "", "published", "stand-in");
    let mut row = |name: &str, published: f64, measured: f64| {
        text += &format!("{name:<22}{published:>14.3}{measured:>14.3}\n");
    };
    row("requests", p.requests as f64, m.requests as f64);
    row("write ratio", p.write_ratio, m.write_ratio);
    row("write size, KiB", p.write_kib, m.write_kib);
    row("update ratio", p.update_ratio, m.update_ratio);
    for (i, share) in [20, 40, 60, 80, 100].into_iter().enumerate() {
        row(&format!("interval {share} %, us"), p.interval_us[i], m.interval_us[i]);
    }
    row("mean interval, us", p.mean_interval_us.unwrap_or(f64::NAN), m.mean_interval_us);
    print(&text)
}

/// Arguments of `calibrate`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example: the one fitted number of a stand-in
  twill ssdsim calibrate --profile lun1")]
pub struct CalibrateArgs {
    /// Stand-ins; all if none is given.
    #[arg(long, value_delimiter = ',')]
    pub profile: Vec<String>,
    /// Requests of each to run.
    #[arg(long, default_value_t = 200_000)]
    pub requests: u64,
    /// The device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Finds the share of hot accesses at which Baseline shows the published cv, by halving.
///
/// # Errors
/// An unknown profile, or an impossible device.
pub fn calibrate(args: &CalibrateArgs) -> Result<(), Error> {
    let setup = args.device.setup();
    let names: Vec<String> = PROFILES.iter().map(|profile| profile.name.to_string()).collect();
    for name in if args.profile.is_empty() { &names } else { &args.profile } {
        let profile = known_profile(name)?;
        let (mut low, mut high) = (0.0, 0.95);
        for _ in 0..8 {
            let hot_share = f64::midpoint(low, high);
            let trace = generate(&Profile { hot_share, ..profile.clone() }, args.requests, args.device.seed);
            let outcome = &setup.simulate(&trace, &[Policy::Baseline])?[0];
            let mean_ms = outcome.all.mean_ns / 1e6;
            print(&format!(
                "{name}: hot share {hot_share:.4} gives cv {:.3} (published {}), mean {mean_ms:.3} ms",
                outcome.cv, profile.cv
            ))?;
            if outcome.cv > profile.cv { high = hot_share } else { low = hot_share }
        }
    }
    Ok(())
}

/// Arguments of `train-bpu`.
#[derive(Clone, Debug, Args)]
#[command(after_help = "Example: BPU's thresholds, as the paper trains them
  twill ssdsim train-bpu --trace lun1 --requests 300000")]
pub struct TrainArgs {
    /// Trace file or stand-in to train on.
    #[arg(long, default_value = "lun1")]
    pub trace: String,
    /// Only the trace's first requests.
    #[arg(long, default_value_t = 200_000)]
    pub requests: u64,
    /// The device.
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// Prints the tried thresholds, the best first.
///
/// # Errors
/// A trace that cannot be read, or an impossible device.
pub fn train_bpu(args: &TrainArgs) -> Result<(), Error> {
    let trace = load(&args.trace, Some(args.requests), args.device.seed)?;
    for (thresholds, mean_ns) in args.device.setup().train_bpu(&trace)? {
        print(&format!("{thresholds:?}: mean {:.4} ms", mean_ns / 1e6))?;
    }
    Ok(())
}

/// Reads a trace file, or makes the stand-in of that name, cut to `requests`.
///
/// # Errors
/// As [`Trace::read`].
pub fn load(trace: &str, requests: Option<u64>, seed: u64) -> Result<Trace, Error> {
    let requests = requests.unwrap_or(u64::MAX);
    if let Some(profile) = profile(trace) {
        return Ok(generate(profile, requests, seed));
    }
    let mut trace = Trace::read(trace.as_ref())?;
    trace.requests.truncate(usize::try_from(requests).unwrap_or(usize::MAX));
    Ok(trace)
}

fn known_profile(name: &str) -> Result<&'static Profile, Error> {
    let names = || PROFILES.iter().map(|profile| profile.name).collect::<Vec<_>>().join(", ");
    profile(name)
        .ok_or_else(|| Error::Argument(format!("no stand-in is called {name}; there are {}", names())))
}

fn parse_stripe(text: &str) -> Result<usize, String> {
    let data = text.strip_suffix("+1").and_then(|data| data.parse().ok());
    match data {
        Some(data) if (2..16).contains(&data) => Ok(data),
        _ => Err("a stripe is written as 5+1, with 2 to 15 data chunks".to_string()),
    }
}

fn table(outcomes: &[Outcome]) -> String {
    let mut text = format!(
        "{:<9}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}{:>8}{:>7}{:>7}{:>8}{:>9}{:>7}\n",
        "",
        "mean ms",
        "read ms",
        "write ms",
        "p99",
        "p99.9",
        "p99.99",
        "cv",
        "RMW",
        "RCW",
        "full",
        "adjusted",
        "WAF"
    );
    for o in outcomes {
        let share = |count: u64| 100.0 * count as f64 / o.choices.updates().max(1) as f64;
        let [mean, read, write, p99, p999, p9999] = o.latencies_ms();
        text += &format!(
            "{:<9}{mean:>11.3}{read:>11.3}{write:>11.3}{p99:>11.2}{p999:>11.2}{p9999:>11.2}{:>8.3}{:>6.1}%{:>6.1}%{:>7.1}%{:>8.1}%{:>7.2}\n",
            o.policy.name(),
            o.cv,
            share(o.choices.rmw),
            share(o.choices.rcw),
            share(o.choices.full),
            share(o.choices.adjusted),
            o.write_amplification,
        );
    }
    text
}

/// Prints to standard output; a reader that went away is an error, not a panic.
fn print(text: &str) -> Result<(), Error> {
    let io = |source| Error::Io { path: "standard output".into(), source };
    writeln!(std::io::stdout(), "{}", text.trim_end()).map_err(io)
}
