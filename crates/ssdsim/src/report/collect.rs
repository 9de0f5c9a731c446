//! The runs that the figures need.

use std::{path::PathBuf, time::Instant};

use serde::Serialize;

use crate::{
    Error,
    device::Device,
    experiment::Setup,
    generate::{PROFILES, Profile, TraceStatistics, generate, profile, statistics},
    outcome::Outcome,
    policy::{ModelView, Policy},
    simulator::{Acknowledge, ParityStart},
    trace::Trace,
    warmup::WarmUp,
};

/// What a report covers.
#[derive(Clone, Debug)]
pub struct Plan {
    /// At most this many requests of each trace.
    pub requests: u64,
    /// Folder of genuine traces; need not exist.
    pub traces: PathBuf,
    /// Whether to vary the device.
    pub variants: bool,
    /// Blocks in a plane.
    pub blocks: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Seeds to run the stand-ins with, from `seed` on: the figures show the first, the claims all.
    pub seeds: u64,
}

/// The outcomes of all policies on one trace with one stripe.
#[derive(Clone, Debug, Serialize)]
pub struct Group {
    /// Trace.
    pub trace: String,
    /// Data chunks in a stripe.
    pub data: usize,
    /// Outcomes, in the order of [`Policy::ALL`].
    pub outcomes: Vec<Outcome>,
}

/// One variation of device or behaviour, with the relative change of Adaptive on each trace.
#[derive(Clone, Debug)]
pub struct VariantRow {
    /// What was varied.
    pub name: &'static str,
    /// What the row shows.
    pub why: &'static str,
    /// For each of [`VARIANT_TRACES`]: Baseline, BPU, Adaptive.
    pub outcomes: Vec<Vec<Outcome>>,
}

/// All that a report shows.
#[derive(Clone, Debug)]
pub struct Data {
    /// The six stand-ins at 5+1, then at 7+1.
    pub main: Vec<Group>,
    /// The same for each further seed.
    pub repeats: Vec<Vec<Group>>,
    /// Baseline at 5+1 on genuine traces (name starts with "genuine") and on LUN stand-ins: Fig. 2 and Table A2.
    pub balance: Vec<Outcome>,
    /// All policies at 5+1 on the genuine traces.
    pub genuine: Vec<Group>,
    /// Table III and IV against the stand-ins.
    pub match_rows: Vec<(&'static Profile, TraceStatistics)>,
    /// Variations of the device.
    pub variants: Vec<VariantRow>,
    /// Wall-clock figures: policy, nanoseconds a decision; then requests a second of the main runs.
    pub decision_ns: Vec<(Policy, f64)>,
    /// Host requests a second of wall time over all main runs.
    pub requests_per_second: f64,
}

/// Stand-ins that the variations run on: bursty and light, a LUN, congested and skewed.
pub const VARIANT_TRACES: [usize; 3] = [0, 2, 5];

const VARIANT_POLICIES: [Policy; 3] = [Policy::Baseline, Policy::Bpu, Policy::Adaptive];

/// Seeds of each LUN stand-in for Fig. 2, whose folder holds many traces.
const BALANCE_SEEDS: usize = 4;

impl Data {
    /// The main runs of each seed.
    pub fn seeds(&self) -> impl Iterator<Item = &Vec<Group>> {
        std::iter::once(&self.main).chain(&self.repeats)
    }
}

/// Runs all of `plan`.
pub fn collect(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Data, Error> {
    let mut clock = Clock::default();
    let mut seeds = Vec::new();
    for seed in plan.seed..plan.seed + plan.seeds.max(1) {
        seeds.push(main_runs(&Plan { seed, ..plan.clone() }, &mut clock, progress)?);
    }
    let (balance, genuine) = balance(plan, progress)?;
    let stand_in = |profile| statistics(&generate(profile, plan.requests, plan.seed));
    Ok(Data {
        main: seeds.remove(0),
        repeats: seeds,
        balance,
        genuine,
        match_rows: PROFILES.iter().map(|profile| (profile, stand_in(profile))).collect(),
        variants: if plan.variants { variants(plan, progress)? } else { Vec::new() },
        decision_ns: Policy::ALL.map(|policy| (policy, super::decision::decision_ns(policy))).to_vec(),
        requests_per_second: clock.requests as f64 / clock.seconds,
    })
}

/// Wall time that simulating took.
#[derive(Default)]
struct Clock {
    requests: usize,
    seconds: f64,
}

/// All policies on the six stand-ins, at 5+1 and at 7+1.
fn main_runs(plan: &Plan, clock: &mut Clock, progress: &mut dyn FnMut(&str)) -> Result<Vec<Group>, Error> {
    let mut groups = Vec::new();
    for chunks in [5, 7] {
        for profile in &PROFILES {
            progress(&format!("{} at {chunks}+1, seed {}", profile.name, plan.seed));
            let trace = generate(profile, plan.requests, plan.seed);
            let setup = setup(plan, chunks);
            let warm = setup.warmed(&trace)?;
            let mut outcomes = Vec::new();
            for policy in Policy::ALL {
                let simulator = warm.clone();
                let started = Instant::now();
                outcomes.push(simulator.run(&trace, &setup.chooser(policy)));
                clock.seconds += started.elapsed().as_secs_f64();
                clock.requests += trace.requests.len();
            }
            groups.push(Group { trace: profile.name.to_string(), data: chunks, outcomes });
        }
    }
    Ok(groups)
}

fn setup(plan: &Plan, chunks: usize) -> Setup {
    let paper = Setup::paper(chunks, plan.seed);
    Setup { device: Device { blocks: plan.blocks, ..paper.device.clone() }, ..paper }
}

/// Baseline at 5+1 on every genuine trace there is and on LUN stand-ins of several seeds; and all policies on the
/// genuine ones.
fn balance(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<(Vec<Outcome>, Vec<Group>), Error> {
    let (mut balance, mut genuine) = (Vec::new(), Vec::new());
    for trace in genuine_traces(plan)? {
        progress(&trace.name);
        let outcomes = setup(plan, 5).simulate(&trace, &Policy::ALL)?;
        balance.push(outcomes[0].clone());
        genuine.push(Group { trace: trace.name, data: 5, outcomes });
    }
    for profile in PROFILES.iter().filter(|profile| profile.name.starts_with("lun")) {
        for seed in (plan.seed + 100..).take(BALANCE_SEEDS) {
            let mut trace = generate(profile, plan.requests.min(100_000), seed);
            trace.name = format!("{} stand-in, seed {seed}", profile.name);
            progress(&trace.name);
            balance.extend(setup(plan, 5).simulate(&trace, &[Policy::Baseline])?);
        }
    }
    Ok((balance, genuine))
}

fn genuine_traces(plan: &Plan) -> Result<Vec<Trace>, Error> {
    let Ok(entries) = std::fs::read_dir(&plan.traces) else { return Ok(Vec::new()) };
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).collect();
    paths.retain(|path| path.to_string_lossy().ends_with(".csv.zst"));
    paths.sort();
    let mut traces = Vec::new();
    for path in paths {
        let mut trace = Trace::read(&path)?;
        trace.name = format!("genuine {}", trace.name);
        trace.requests.truncate(usize::try_from(plan.requests).unwrap_or(usize::MAX));
        traces.push(trace);
    }
    Ok(traces)
}

type Vary = fn(&mut Setup, &mut Trace);

/// One thing changed at a time.
const VARIANTS: [(&str, &str, Vary); 13] = [
    ("as in the figures", "the reference", |_, _| {}),
    (
        "another seed",
        "another trace of the same statistics: how much of all this is chance",
        |setup, trace| {
            setup.seed += 1000;
            if let Some(profile) = profile(&trace.name) {
                *trace = generate(profile, trace.requests.len() as u64, setup.seed);
            }
        },
    ),
    ("serial channels", "what Eq. 4 to 7 assume: one operation at a time on a channel", |setup, _| {
        setup.device = setup.device.clone().with_serial_channels();
    }),
    (
        "two write streams",
        "moves fill blocks of their own, as in current devices: cheaper collections",
        |setup, _| {
            setup.device.separate_streams = true;
        },
    ),
    ("no collections", "a fresh device: how much of the gain is avoiding collections", |setup, _| {
        setup.warm_up = WarmUp { random: 0.0, trace: 0.0 };
        setup.device.over_provision = 0.6;
    }),
    ("no LDPC retries", "all reads 0.045 ms: how much the read time decides", |setup, _| {
        setup.device.timing.ldpc_decay = 0.0;
    }),
    ("slow reads", "LDPC levels equally likely: a worn device", |setup, _| {
        setup.device.timing.ldpc_decay = 1.0;
    }),
    ("parity with data", "pre-reads overlap the data writes", |setup, _| {
        setup.behaviour.parity_start = ParityStart::WithData;
    }),
    ("acknowledged from DRAM", "writes return at once: what reads alone gain", |setup, _| {
        setup.behaviour.acknowledge = Acknowledge::Buffer;
    }),
    ("t_R of the very page", "Adaptive knows the LDPC level of each page it would read", |setup, _| {
        setup.view = ModelView::PageLevel;
    }),
    ("queues of the chip", "Adaptive sees the chip's queues and what is left of a collection", |setup, _| {
        setup.view = ModelView::Chip;
    }),
    ("half the load", "intervals doubled", |_, trace| {
        trace.requests.iter_mut().for_each(|request| request.time_ns *= 2);
    }),
    ("one and a half times the load", "intervals cut by a third", |_, trace| {
        trace.requests.iter_mut().for_each(|request| request.time_ns = request.time_ns * 2 / 3);
    }),
];

fn variants(plan: &Plan, progress: &mut dyn FnMut(&str)) -> Result<Vec<VariantRow>, Error> {
    let mut rows = Vec::new();
    for (name, why, vary) in VARIANTS {
        progress(&format!("variant: {name}"));
        let mut outcomes = Vec::new();
        for index in VARIANT_TRACES {
            let mut trace = generate(&PROFILES[index], plan.requests.min(150_000), plan.seed);
            let mut setup = setup(plan, 5);
            vary(&mut setup, &mut trace);
            outcomes.push(setup.simulate(&trace, &VARIANT_POLICIES)?);
        }
        rows.push(VariantRow { name, why, outcomes });
    }
    Ok(rows)
}
