//! Runs histories and says what they found.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};
use layout::geometry::Level;
use sim::experiment::{self, Plan};
use sim::{Counts, Failure, Options};

/// Lines of the trace that a failure prints.
const TAIL: usize = 60;

/// Longer than any history takes, on the slowest machine.
const HISTORY_SECONDS_MAX: u64 = 60;

/// Tries to break the engine: seeded histories of arrays on simulated members.
#[derive(Parser)]
#[command(name = "sim", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// How many histories; 1000 if neither this nor --minutes is given.
    #[arg(long)]
    seeds: Option<u64>,
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    start: u64,
    /// Just this seed, with its trace.
    #[arg(long, conflicts_with_all = ["seeds", "minutes", "start"])]
    seed: Option<u64>,
    /// Stop after this many minutes.
    #[arg(long)]
    minutes: Option<u64>,
    /// Only this level: raid0, raid1, raid4, raid5, raid6, raid10.
    #[arg(long)]
    level: Option<Level>,
    /// Print every scenario and its trace hash; with --seed the whole trace.
    #[arg(long)]
    verbose: bool,
    /// Print the counts as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum Command {
    /// Measures rather than tries to break.
    #[command(subcommand)]
    Experiment(Experiment),
}

#[derive(Subcommand)]
enum Experiment {
    /// The update policies and --avoid-slow on members that pause, are shared with others, or neither.
    Adaptive(AdaptiveArguments),
}

#[derive(Args)]
struct AdaptiveArguments {
    /// Requests of each run.
    #[arg(long, default_value_t = 200_000)]
    requests: u64,
    /// Runs of each row.
    #[arg(long, default_value_t = 5)]
    seeds: u64,
    /// Load in percent of what the members could do.
    #[arg(long, default_value_t = 40)]
    load: u64,
    /// Shards of the array.
    #[arg(long, default_value_t = 1)]
    shards: usize,
    /// Print all figures as JSON.
    #[arg(long)]
    json: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(Command::Experiment(Experiment::Adaptive(adaptive))) = &arguments.command {
        print_experiment(adaptive);
        return ExitCode::SUCCESS;
    }
    let started = Instant::now();
    let (mut total, mut next) = (Counts::default(), arguments.seed.unwrap_or(arguments.start));
    let count = match (arguments.seed, arguments.seeds, arguments.minutes) {
        (Some(_), ..) => 1,
        (_, Some(seeds), _) => seeds,
        (_, None, Some(_)) => u64::MAX,
        (_, None, None) => 1000,
    };
    let limit = arguments.minutes.map_or(Duration::MAX, |minutes| Duration::from_secs(minutes * 60));
    let tail = if arguments.verbose && arguments.seed.is_some() { usize::MAX } else { TAIL };
    let options = Options { level: arguments.level, tail };
    let watched = watch();
    for _ in 0..count {
        watched.store(next, Relaxed);
        if started.elapsed() > limit {
            break;
        }
        match sim::run(next, &options) {
            Ok(report) => {
                total.add(&report.counts);
                if arguments.verbose || arguments.seed.is_some() {
                    println!("seed {next} ok, trace {:016x}: {}", report.trace_hash, report.scenario);
                }
            }
            Err(failure) => {
                print_failure(&failure, &arguments);
                return ExitCode::FAILURE;
            }
        }
        next += 1;
    }
    print_counts(&total, started.elapsed(), arguments.json);
    ExitCode::SUCCESS
}

/// A loop without an end inside one step is nothing the world can see: this ends the program, with the seed.
fn watch() -> Arc<AtomicU64> {
    let watched = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&watched);
    std::thread::spawn(move || {
        let mut last = u64::MAX;
        loop {
            let now = seen.load(Relaxed);
            if now == last {
                println!("seed {now} FAILED: no end after {HISTORY_SECONDS_MAX} s");
                std::process::exit(1);
            }
            last = now;
            std::thread::sleep(Duration::from_secs(HISTORY_SECONDS_MAX));
        }
    });
    watched
}

fn print_experiment(arguments: &AdaptiveArguments) {
    let AdaptiveArguments { requests, seeds, load, shards, json } = *arguments;
    if !json {
        println!("{}", experiment::heading());
    }
    let plan = Plan { requests, seeds, load_percent: load, shards };
    let rows = experiment::adaptive(&plan, &mut |row| {
        if !json {
            println!("{}", row.words());
        }
    });
    if json {
        println!("{}", serde_json::to_string_pretty(&rows).expect("figures are plain data"));
    }
}

fn print_failure(failure: &Failure, arguments: &Arguments) {
    let Failure { seed, what, scenario, tail } = failure;
    let level = arguments.level.map_or_else(String::new, |level| format!(" --level {level}"));
    println!("seed {seed} FAILED: {what}\n  array: {scenario}\n  the last of what happened:");
    tail.iter().for_each(|line| println!("  {line}"));
    println!(
        "seed {seed} FAILED: {what}\nreplay: cargo run --release -p sim -- --seed {seed}{level} --verbose"
    );
}

fn print_counts(counts: &Counts, elapsed: Duration, json: bool) {
    let seconds = elapsed.as_secs_f64();
    if json {
        let fields = counts.table().into_iter().map(|(_, name, count)| format!("\"{name}\":{count}"));
        println!("{{{},\"seconds\":{seconds:.1}}}", fields.collect::<Vec<_>>().join(","));
        return;
    }
    let mut last = "";
    for (group, name, count) in counts.table() {
        if group != last {
            println!("{group}");
            last = group;
        }
        println!("  {count:>12} {}", name.replace('_', " "));
    }
    let rate = counts.histories as f64 / seconds * 60.0;
    println!("{} histories in {seconds:.1} s, {rate:.0} a minute: nothing found", counts.histories);
}
