//! Runs histories and says what they found.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand, ValueEnum};
use layout::geometry::Level;
use sim::acts::{self, Planted, Records};
use sim::campaign::{Campaign, Kind};
use sim::experiment::zoned::endurance::{self, Kind as MemberKind, Size};
use sim::experiment::{self, Plan, paper};
use sim::shrink::shrink;
use sim::zoned::Plant;
use sim::{Bug, Counts, Failure, Options, Reduced};

/// Lines of the trace that a failure prints.
const TAIL: usize = 60;

/// Tries to break the engine: seeded histories of arrays on simulated members, and power cuts at every moment of them.
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
    /// Only one half of what is made of a seed.
    #[arg(long)]
    only: Option<Only>,
    /// Threads; as many as there are cores if not given.
    #[arg(long)]
    threads: Option<usize>,
    /// Only this level: raid0, raid1, raid4, raid5, raid6, raid10.
    #[arg(long)]
    level: Option<Level>,
    /// With --only acts: acts of a sequence.
    #[arg(long, default_value_t = 3)]
    depth: usize,
    /// With --only acts and --level: plays this history, as a failure prints it.
    #[arg(long, requires = "level")]
    history: Option<String>,
    /// With --history: of an array without a bitmap.
    #[arg(long, requires = "history")]
    no_bitmap: bool,
    /// With --history: the next act comes before repairs have ended.
    #[arg(long)]
    at_once: bool,
    /// With --only acts, plants a bug to see it found: a new device gets the number of one that failed. Superblocks of
    /// version 1.0, which have no generations beside them.
    #[arg(long)]
    reuse_numbers: bool,
    /// Plants a bug to see it found: members ignore flush and FUA.
    #[arg(long)]
    flushes_lie: bool,
    /// Plants a bug in zoned arrays to see it found.
    #[arg(long)]
    plant: Option<Plant>,
    /// Plants a bug in members on other machines to see it found.
    #[arg(long)]
    network_bug: Option<Bug>,
    /// With --only zoned: bits to flip at the end of each history, in which the power is not cut then.
    #[arg(long, value_name = "N")]
    flips: Option<u64>,
    /// With --seed: the history made smaller, as a failure prints it.
    #[arg(long, default_value = "", requires = "seed")]
    reduced: Reduced,
    /// Go on after a history that fails: what else fails is found in the same run.
    #[arg(long)]
    keep_going: bool,
    /// A history that fails is not made smaller.
    #[arg(long)]
    no_shrink: bool,
    /// Print every scenario and its trace hash; with --seed the whole trace.
    #[arg(long)]
    verbose: bool,
    /// Print the counts as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Only {
    /// Load, faults and crashes of all sorts at an array of any size.
    Histories,
    /// A power cut at every moment of a short history of a small array.
    Grid,
    /// A power cut at every moment of a zoned array, and of its recovery.
    Zoned,
    /// Histories of parity arrays whose members' targets make parity among themselves.
    Peers,
    /// Histories of arrays whose members are on other machines: connections are cut, targets restart, another host takes over.
    Network,
    /// A fault at every command to such members, of a short history of a small array.
    Messages,
    /// Every short sequence of an operator's acts at a tiny array, and members that run apart.
    Acts,
}

impl Only {
    /// What is made of a seed; None: nothing is drawn.
    fn kind(self) -> Option<Kind> {
        match self {
            Only::Histories => Some(Kind::Histories),
            Only::Grid => Some(Kind::Grid),
            Only::Zoned => Some(Kind::Zoned),
            Only::Peers => Some(Kind::Peers),
            Only::Network => Some(Kind::Network),
            Only::Messages => Some(Kind::Messages),
            Only::Acts => None,
        }
    }
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
    /// ZapRAID's experiments in virtual time, on drives that take the paper's times, beside its claims.
    Zoned(PaperArguments),
    /// The dRAID paper's figures at its own scale, in virtual time: parity at the host and at the targets, beside its claims.
    Draid(PaperArguments),
    /// What reclaim of a zoned array costs, in virtual time: write amplification by policy, and the latency of writes meanwhile.
    Reclaim(ReclaimArguments),
    /// How long a start of a zoned array takes after a crash, and what memory, up to members of 1 PiB that keep metadata only.
    Starts(StartsArguments),
    /// Zoned arrays that are written ten times over while the power is cut a hundred times: nothing is lost, no write is refused, and
    /// what reclaim costs stays within its bounds. Fails where that does not hold.
    Endurance(EnduranceArguments),
}

#[derive(Args)]
struct StartsArguments {
    /// GiB that clients write to the larger arrays; a quarter and half of it besides to one of 100 GiB.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(4..=56))]
    written_gib: u64,
    /// Members of no more GiB, all together.
    #[arg(long, default_value_t = 1 << 20)]
    largest_gib: u64,
    /// Print a table of Markdown.
    #[arg(long)]
    markdown: bool,
    /// Print all figures as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct PaperArguments {
    /// Print the claims as a table of Markdown.
    #[arg(long)]
    markdown: bool,
    /// Only these, by name.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Threads; as many as there are cores if not given.
    #[arg(long)]
    threads: Option<usize>,
    /// Print all figures as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct ReclaimArguments {
    /// How many times the array is written over before it is measured.
    #[arg(long, default_value_t = 3)]
    times: u64,
    /// Zones of each drive.
    #[arg(long, default_value_t = 128)]
    zones: u32,
    /// Blocks of a zone.
    #[arg(long, default_value_t = 512)]
    zone_blocks: u32,
    /// Print all figures as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct EnduranceArguments {
    /// How many times the capacity is written.
    #[arg(long, default_value_t = Size::WHOLE.times)]
    times: u64,
    /// Power cuts of each case.
    #[arg(long, default_value_t = Size::WHOLE.cuts)]
    cuts: u64,
    /// Zones of each drive.
    #[arg(long, default_value_t = Size::WHOLE.zones)]
    zones: u32,
    /// Blocks of a zone.
    #[arg(long, default_value_t = Size::WHOLE.zone_blocks)]
    zone_blocks: u32,
    /// Write a checkpoint when so many groups of the map have changed, 512 blocks each; without it there are none.
    #[arg(long)]
    checkpoint_after: Option<usize>,
    /// Only members of this kind.
    #[arg(long)]
    members: Option<MemberKind>,
    /// Only this reserve, in hundredths of the array's size.
    #[arg(long)]
    reserve: Option<u64>,
    /// Threads; as many as there are cores if not given.
    #[arg(long)]
    threads: Option<usize>,
    /// Print a table of Markdown.
    #[arg(long)]
    markdown: bool,
    /// Print all figures as JSON.
    #[arg(long)]
    json: bool,
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
    match &arguments.command {
        Some(Command::Experiment(Experiment::Adaptive(adaptive))) => {
            print_adaptive(adaptive);
            return ExitCode::SUCCESS;
        }
        Some(Command::Experiment(Experiment::Zoned(zoned))) => {
            return print_paper(zoned, experiment::zoned::ALL);
        }
        Some(Command::Experiment(Experiment::Reclaim(reclaim))) => return print_reclaim(reclaim),
        Some(Command::Experiment(Experiment::Starts(starts))) => return print_starts(starts),
        Some(Command::Experiment(Experiment::Endurance(endurance))) => return print_endurance(endurance),
        Some(Command::Experiment(Experiment::Draid(draid))) => {
            return print_paper(draid, experiment::draid::ALL);
        }
        None => {}
    }
    if let Some(Only::Acts) = arguments.only {
        return try_acts(&arguments);
    }
    let started = Instant::now();
    let seeds = match (arguments.seed, arguments.seeds, arguments.minutes) {
        (Some(_), ..) => 1,
        (_, Some(seeds), _) => seeds,
        (_, None, Some(_)) => u64::MAX,
        (_, None, None) => 1000,
    };
    let tail = if arguments.verbose && arguments.seed.is_some() { usize::MAX } else { TAIL };
    let options = Options {
        level: arguments.level,
        flushes_lie: arguments.flushes_lie,
        plant: arguments.plant,
        network_bug: arguments.network_bug,
        flips: arguments.flips,
        reduced: arguments.reduced.clone(),
        tail,
    };
    let only = arguments.only.and_then(Only::kind);
    let campaign = Campaign {
        kinds: only.as_ref().map_or(&Kind::ALL, std::slice::from_ref),
        start: arguments.seed.unwrap_or(arguments.start),
        seeds,
        limit: arguments.minutes.map_or(Duration::MAX, |minutes| Duration::from_secs(minutes * 60)),
        threads: arguments.threads.unwrap_or_else(cores).max(1),
        keep_going: arguments.keep_going,
        options: &options,
    };
    let outcome = campaign.run(&|seed, kind: Kind, ended| match ended {
        Ok(report) if arguments.verbose || arguments.seed.is_some() => {
            let (hash, scenario) = (report.trace_hash, &report.scenario);
            println!("seed {seed} {} ok, trace {hash:016x}: {scenario}", kind.name());
        }
        Err(failure) if arguments.keep_going => {
            eprintln!("seed {seed} {} FAILED: {}", kind.name(), failure.what);
        }
        _ => {}
    });
    let (elapsed, found) = (started.elapsed(), outcome.failures.len());
    for (kind, failure) in outcome.failures {
        print_failure(kind, &failure, &options);
        if !arguments.no_shrink && options.reduced == Reduced::default() {
            println!("made smaller:");
            let (failure, options) = shrink(kind, failure, &options);
            print_failure(kind, &failure, &options);
        }
    }
    if found == 0 || arguments.keep_going {
        print_counts(&outcome.counts, elapsed, found, arguments.json);
    }
    if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Tries every sequence of acts at one level or all, and says what was tried of each.
fn try_acts(arguments: &Arguments) -> ExitCode {
    let levels = arguments.level.map_or_else(|| acts::LEVELS.to_vec(), |level| vec![level]);
    let planted = Planted { numbers_are_reused: arguments.reuse_numbers };
    let mut plans = acts::plans(&levels, arguments.depth, arguments.start);
    for plan in &mut plans {
        plan.planted = planted;
        if arguments.reuse_numbers {
            plan.records = Records::BitmapOnly;
        }
    }
    if let Some((history, plan)) = arguments.history.as_ref().zip(plans.first()) {
        let records = if arguments.no_bitmap { Records::NoBitmap } else { plan.records };
        let plan = acts::Plan { at_rest: !arguments.at_once, records, ..*plan };
        return match acts::replay(&plan, history, |line| println!("{line}")) {
            Ok(()) => ExitCode::SUCCESS,
            Err(wrong) => {
                println!("FAILED: {wrong}");
                ExitCode::FAILURE
            }
        };
    }
    let ended =
        acts::run_all(&plans, arguments.threads.unwrap_or_else(cores).max(1), &|line| println!("{line}"));
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failures) => {
            failures.iter().for_each(|wrong| println!("FAILED: {wrong}"));
            ExitCode::FAILURE
        }
    }
}

fn print_reclaim(arguments: &ReclaimArguments) -> ExitCode {
    use sim::experiment::zoned::reclaim;
    if !arguments.json {
        println!("{}", reclaim::heading());
    }
    let run = |point: &reclaim::Point| {
        let row = reclaim::run(point, arguments.times);
        if !arguments.json {
            println!("{}", row.words());
        }
        row
    };
    let points = reclaim::points(arguments.zones, arguments.zone_blocks);
    let rows: Vec<reclaim::Row> = points.iter().map(run).collect();
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&rows).expect("figures are plain data"));
    }
    ExitCode::SUCCESS
}

fn print_starts(arguments: &StartsArguments) -> ExitCode {
    use sim::experiment::zoned::starts;
    let StartsArguments { written_gib, largest_gib, markdown, json } = *arguments;
    match (json, markdown) {
        (true, _) => {}
        (false, true) => println!("{}", starts::markdown_heading()),
        (false, false) => println!("{}", starts::heading()),
    }
    let run = |point: &starts::Point| {
        let row = starts::run(point);
        match (json, markdown) {
            (true, _) => {}
            (false, true) => println!("{}", row.markdown()),
            (false, false) => println!("{}", row.words()),
        }
        row
    };
    // One after the other: memory is the whole program's.
    let rows: Vec<starts::Row> = starts::points(written_gib, largest_gib).iter().map(run).collect();
    if json {
        println!("{}", serde_json::to_string_pretty(&rows).expect("figures are plain data"));
    }
    ExitCode::SUCCESS
}

/// Fails if a promise does not hold in some case.
fn print_endurance(arguments: &EnduranceArguments) -> ExitCode {
    use endurance::{Point, Row};
    let EnduranceArguments { times, cuts, zones, zone_blocks, checkpoint_after, .. } = *arguments;
    let size = Size { times, cuts, zones, zone_blocks, changed_groups: checkpoint_after, ..Size::WHOLE };
    let mut points = endurance::points(size);
    points.retain(|point| arguments.reserve.is_none_or(|reserve| reserve == point.reserve_percent));
    points.retain(|point| arguments.members.is_none_or(|kind| kind == point.kind));
    let is_text = !arguments.json && !arguments.markdown;
    if is_text {
        println!("{}", endurance::heading());
    }
    let run = |point: &Point| {
        let row = endurance::run(point);
        if is_text {
            println!("{}", row.words()); // each as it ends
        }
        row
    };
    let rows: Vec<Row> = paper::on_threads(arguments.threads.unwrap_or_else(cores), &points, run);
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&rows).expect("figures are plain data"));
    } else if arguments.markdown {
        println!("{}", endurance::markdown_heading());
        rows.iter().for_each(|row| println!("{}", row.markdown()));
    }
    eprintln!("{}", endurance::summary(&rows));
    rows.iter().filter_map(|row| row.wrong.as_ref()).for_each(|wrong| eprintln!("{wrong}"));
    if !rows.is_empty() && rows.iter().all(Row::holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Fails if a claim does not hold.
fn print_paper<P: paper::Point>(arguments: &PaperArguments, all: &[paper::Experiment<P>]) -> ExitCode {
    let is_chosen = |experiment: &&paper::Experiment<P>| {
        arguments.only.is_empty() || arguments.only.iter().any(|only| only == experiment.name)
    };
    let (mut rows, mut failed) = (Vec::new(), 0);
    for experiment in all.iter().filter(is_chosen) {
        let own = experiment.run(arguments.threads.unwrap_or_else(cores));
        if !arguments.json && !arguments.markdown {
            print!("\nFigures {}: {}\n{}", experiment.figures, experiment.title, paper::table(&own));
        }
        for claim in experiment.claims {
            let Some(here) = claim.here(&own) else { continue };
            failed += u32::from(here.verdict == paper::Verdict::Not);
            let (verdict, words) = (here.verdict.words(), here.words);
            if arguments.markdown {
                println!("| {} | {} | {words} | {verdict} |", experiment.figures, claim.paper);
            } else if !arguments.json {
                println!("{verdict}. The paper: {}. Here: {words}", claim.paper);
            }
        }
        rows.extend(own);
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&rows).expect("figures are plain data"));
    }
    if rows.is_empty() {
        let names: Vec<&str> = all.iter().map(|one| one.name).collect();
        eprintln!("none of these; there are {}", names.join(", "));
    }
    if failed == 0 && !rows.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

fn print_adaptive(arguments: &AdaptiveArguments) {
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

fn print_failure(kind: Kind, failure: &Failure, options: &Options) {
    let (seed, what, scenario) = (failure.seed, &failure.what, &failure.scenario);
    let mut words = options.level.map_or_else(String::new, |level| format!(" --level {level}"));
    if options.flushes_lie {
        words.push_str(" --flushes-lie");
    }
    if let Some(plant) = options.plant.and_then(|plant| plant.to_possible_value()) {
        words.push_str(&format!(" --plant {}", plant.get_name()));
    }
    if let Some(bug) = options.network_bug.and_then(|bug| bug.to_possible_value()) {
        words.push_str(&format!(" --network-bug {}", bug.get_name()));
    }
    if options.reduced != Reduced::default() {
        words.push_str(&format!(" --reduced {}", options.reduced));
    }
    println!("seed {seed} FAILED: {what}\n  array: {scenario}\n  the last of what happened:");
    failure.tail.iter().for_each(|line| println!("  {line}"));
    println!(
        "seed {seed} FAILED: {what}\nreplay: cargo run --release -p twill-sim -- --only {} --seed {seed}{words} --verbose",
        kind.name()
    );
}

fn print_counts(counts: &Counts, elapsed: Duration, found: usize, json: bool) {
    let seconds = elapsed.as_secs_f64();
    if json {
        let fields = counts.table().into_iter().map(|(_, name, count)| format!("\"{name}\":{count}"));
        println!("{{{},\"seconds\":{seconds:.1},\"found\":{found}}}", fields.collect::<Vec<_>>().join(","));
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
    let found = if found == 0 { "nothing found".to_string() } else { format!("{found} found") };
    let per_minute = |count: u64| count as f64 / seconds * 60.0;
    println!(
        "{} histories and {} crash images at {} points in {seconds:.1} s; a minute: {:.0}, {:.0} and {:.0}: {found}",
        counts.histories,
        counts.crash_images,
        counts.crash_points,
        per_minute(counts.histories),
        per_minute(counts.crash_images),
        per_minute(counts.crash_points)
    );
}
