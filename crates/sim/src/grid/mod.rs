//! The crash grid: a small array in a given state, a few requests, and a power cut after every change of what a cut would
//! leave. Of every such moment three images are taken: nothing of what is not durable survives, all of it, or any part. Each image is started by the program's own assembly in a world of its own; everything is read and
//! compared with the oracle, while repairs are on their way and after them, and all parity is checked.

mod image;
pub(crate) mod messages;
mod states;

use std::rc::Rc;

use layout::geometry::{Geometry, Layout, Level};

use crate::array::Array;
use crate::history::witness;
use crate::machine::Machine;
use crate::random::Random;
use crate::report::{Failure, Options, Report};
use crate::scenario::{FaultPlan, Load, Scenario, Support};
use crate::workload;
use crate::world::{Ended, NO_LIMIT, World};
use states::{STATES, State, start};

/// Runs the crash history of a seed.
///
/// # Errors
/// [`Failure`] says after which crash which check failed, and how.
pub fn run(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    let random = Random::new(seed ^ 0x6772_6964);
    let (mut scenario, state) = draw(&random, options.level);
    let random = options.change(&mut scenario, seed).unwrap_or(random);
    let world = World::new(random, options.tail.max(1));
    world.counts.borrow_mut().crash_histories = 1;
    let mut report = witness(seed, &world, scenario, |machine, running| live(machine, running, state));
    match &mut report {
        Ok(report) => report.scenario = format!("{}, {}", state.name, report.scenario),
        Err(failure) => failure.scenario = format!("{}, {}", state.name, failure.scenario),
    }
    report
}

/// Fills the array, brings it into the state, then cuts the power at every moment of a few requests.
fn live(machine: &Rc<Machine>, running: &mut Option<Rc<Array>>, state: &State) {
    let Some(array) = start(machine, running) else { return };
    workload::start(&array, PRELUDE_REQUESTS);
    if array.run(NO_LIMIT) != Ended::Idle {
        return;
    }
    let Some(array) = (state.reach)(array, running) else { return };
    workload::start(&array, machine.scenario.load.requests);
    let (mut seen, mut points) = (machine.watch.boundaries(), 0);
    loop {
        match array.run(1) {
            Ended::Idle => break,
            Ended::Failed | Ended::Circles => return,
            Ended::Steps => {}
        }
        let boundaries = machine.watch.boundaries();
        if boundaries != seen && points < POINTS_MAX {
            points += 1;
            seen = boundaries;
            image::crash_here(&array, state);
        }
    }
    crate::check::at_rest(&array);
    crate::check::quiet(&array);
    workload::read_all(&array);
}

/// Requests that fill the array before the grid begins.
const PRELUDE_REQUESTS: u64 = 10;
const CHUNK_BYTES: u32 = 4096;
/// Moments of one history at most: the rest of a longer one runs without power cuts.
const POINTS_MAX: u64 = 500;

fn draw(random: &Random, wanted: Option<Level>) -> (Scenario, &'static State) {
    loop {
        let level = wanted.unwrap_or_else(|| {
            use Level::{Raid1, Raid4, Raid5, Raid6, Raid10};
            random.pick(&[Raid1, Raid4, Raid5, Raid5, Raid6, Raid6, Raid10])
        });
        let state = &STATES[random.below(STATES.len() as u64) as usize];
        if let Some(scenario) = draw_scenario(random, level).filter(|scenario| state.fits(scenario)) {
            return (scenario, state);
        }
        if level == Level::Raid0 {
            let scenario = draw_scenario(random, level).expect("a small array");
            return (scenario, &STATES[0]);
        }
    }
}

fn draw_scenario(random: &Random, level: Level) -> Option<Scenario> {
    let members = match level {
        Level::Raid0 | Level::Raid1 => random.between(2, 3),
        Level::Raid4 | Level::Raid5 => random.between(3, 5),
        Level::Raid6 => random.between(4, 6),
        Level::Raid10 => random.pick(&[4, 4, 6]),
    };
    let layout = match level {
        Level::Raid5 | Level::Raid6 if random.one_in(3) => {
            random.pick(&Layout::parity_layouts(level).collect::<Vec<_>>())
        }
        _ => Layout::default_for(level),
    };
    let chunks = match level {
        _ if random.one_in(2) => random.between(16, 18), // room for a bitmap
        Level::Raid1 => random.between(8, 15),
        _ => random.between(3, 6),
    };
    let chunk = if level == Level::Raid1 { 0 } else { CHUNK_BYTES };
    let member_bytes = chunks * u64::from(CHUNK_BYTES);
    let geometry = Geometry::new(level, layout, members as u32, chunk, member_bytes).ok()?;
    let mut scenario = Scenario::draw_for(random, geometry);
    scenario.data_offset =
        if scenario.redo_log { scenario.data_offset } else { scenario.data_offset.min(16 << 10) };
    scenario.unit = random.pick(&[512, 4096, 4096]);
    scenario.shards = random.pick(&[1, 1, 2]);
    scenario.look = random.pick(&[20, 100]);
    scenario.load = Load {
        clients: random.pick(&[1, 2, 4]),
        requests: random.between(3, 12),
        hot: vec![0],
        hot_percent: random.pick(&[0, 50]),
        pause: random.pick(&[1, 10, 50]),
        bytes_max: random.pick(&[4096, 32 << 10]),
        ..scenario.load
    };
    scenario.faults = FaultPlan {
        transient_one_in: random.pick(&[0, 0, 50]),
        ..FaultPlan::none(
            random.pick(&[Support::All, Support::None]),
            random.pick(&[Support::All, Support::None]),
        )
    };
    Some(scenario)
}
