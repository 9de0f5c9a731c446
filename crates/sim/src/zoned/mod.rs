//! Zoned arrays: the log engine on simulated zoned drives, with a power cut at every moment of serving and of recovery.
//!
//! A seed draws an array of any level, kind of drive and place of metadata, brings it into a state, and cuts the power at every
//! change of what a cut would leave. Each image is started in a world of its own, some without a member or with an empty one;
//! everything is read and compared with the oracle, also with as many members unreadable as the level survives. At the end bits
//! are flipped, one at a time.

mod array;
mod check;
mod drive;
mod flips;
mod grid;
mod machine;
pub(crate) mod medium;
mod plant;
mod scenario;
mod superblocks;
mod workload;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

pub use self::plant::Plant;

use engine::log::reclaim::narrow;
use engine::members::MemberState;

use self::array::Array;
use self::machine::Machine;
use self::medium::Survival;
use self::scenario::{Scenario, State};
use crate::random::Random;
use crate::report::{Failure, Options, Report};
use crate::world::{Ended, NO_LIMIT, World};

/// Lots of requests until an array must have reclaimed.
const LOTS_MAX: usize = 40;
/// Bits that are flipped at the end of a history.
const FLIPS: u64 = 4;

/// Runs the history of a seed.
///
/// # Errors
/// [`Failure`] says after which power cut which check failed, and how.
pub fn run(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    let random = Random::new(seed ^ 0x7a6f_6e65_6400);
    let scenario = Scenario { plant: options.plant, ..Scenario::draw(&random, options.level) };
    let scenario = Rc::new(scenario);
    let world = World::new(random, options.tail.max(1));
    world.counts.borrow_mut().zoned_histories = 1;
    let words = scenario.words();
    let machine = Machine::new(Rc::clone(&world), scenario);
    let lived = catch_unwind(AssertUnwindSafe(|| live(&machine, options.flips)));
    if let Err(panic) = lived {
        world.fail_by_panic(&*panic);
    }
    world.cut();
    match world.failure() {
        Some(what) => {
            Err(Box::new(Failure { seed, what, scenario: words, tail: world.trace_tail(), drawn: None }))
        }
        None => {
            let counts = *world.counts.borrow();
            Ok(Report { counts, trace_hash: world.trace_hash(), scenario: words })
        }
    }
}

/// Brings an array into the state of its scenario, and cuts the power everywhere. With `flips`, a number of bits, the power
/// is not cut, and they are flipped at the end.
fn live(machine: &Rc<Machine>, flips: Option<u64>) {
    let Some(array) = start(machine) else { return };
    if !workload::serve(&array, 12) {
        return array.kill();
    }
    let Some(array) = reach(array) else { return };
    match flips {
        None => grid::cut_everywhere(&array),
        Some(_) => _ = workload::serve(&array, machine.scenario.requests),
    }
    if machine.world.failure().is_none() && array.run(NO_LIMIT) == Ended::Idle {
        caught_up(&array);
        check::after_start(&array);
        flips::flip(&array.machine, flips.unwrap_or(FLIPS));
    }
    array.kill();
}

/// Nothing is left to do: a member that joined lacks nothing any more, and another one may be lost. But where the log was full, or
/// something else failed.
fn caught_up(array: &Array) {
    let members = &array.shared.members;
    let has_room = array.shared.table.free_least() > array.shared.config.low_segments();
    let is_whole = array.machine.scenario.faults.is_empty() && members.are_all_in_sync();
    if members.is_growing() && has_room && is_whole {
        let left = narrow(&array.shared).len();
        array.machine.world.fail(format!("{left} segments stay narrow, and nothing is left to do"));
    }
    let Some(slot) = array.machine.joined.get() else { return };
    if members.behind().is_empty() && members.state(slot) == MemberState::InSync {
        array.machine.lost.borrow_mut().remove(&slot);
    } else if array.machine.scenario.faults.is_empty() && members.state(slot) == MemberState::InSync {
        array.machine.world.fail(format!("member {slot} stays behind, and nothing is left to do"));
    }
}

fn start(machine: &Rc<Machine>) -> Option<Rc<Array>> {
    match Array::start(machine, || {}) {
        Ok(array) => Some(array),
        Err(error) => {
            machine.world.fail(format!("the array does not start: {error}"));
            None
        }
    }
}

/// The array in its state.
fn reach(array: Rc<Array>) -> Option<Rc<Array>> {
    let machine = Rc::clone(&array.machine);
    let random = machine.world.random();
    match machine.scenario.state {
        State::Serving => Some(array),
        State::Reclaiming => {
            for _ in 0..LOTS_MAX {
                if !workload::serve(&array, 40) {
                    array.kill();
                    return None;
                }
                if array.shared.space.totals().emptied_segments > 2 {
                    break;
                }
            }
            Some(array)
        }
        State::MemberFailed => {
            machine.drives[0].is_gone.set(true);
            machine.lost.borrow_mut().insert(0);
            workload::serve(&array, 6).then_some(array)
        }
        state @ (State::Joining | State::Returning) => {
            machine.drives[0].is_gone.set(true);
            machine.lost.borrow_mut().insert(0);
            // It joins while clients work, mostly before reclaim has moved what it held.
            workload::start(&array, 12);
            while array.shared.members.state(0) == MemberState::InSync {
                match array.run(1) {
                    Ended::Steps => {}
                    // Nothing was asked of it, or the array cannot do without it.
                    Ended::Idle => return Some(array),
                    Ended::Failed | Ended::Circles => {
                        array.kill();
                        return None;
                    }
                }
            }
            let uuid = if state == State::Joining { [99; 16] } else { array.shared.members.uuid(0) };
            array.executors[0].spawn(Rc::clone(&array).join(0, uuid));
            Some(array)
        }
        State::Growing => {
            workload::start(&array, 12);
            array.run(random.below(200));
            array.executors[0].spawn(Rc::clone(&array).grow());
            Some(array)
        }
        State::Stopped => {
            if !array.stop() {
                machine.world.fail("the array does not stop".to_owned());
            }
            array.kill();
            again(&machine, Survival::Nothing, 0)
        }
        State::MemberMissing => {
            array.kill();
            machine.absent.borrow_mut().insert(0);
            machine.lost.borrow_mut().insert(0);
            again(&machine, Survival::Everything, 6)
        }
        State::Crashed => {
            let mut array = array;
            for _ in 0..random.between(1, 4) {
                array.kill();
                let survival = random.pick(&[
                    Survival::Nothing,
                    Survival::Everything,
                    Survival::Some { hostile: false },
                    Survival::Some { hostile: true },
                ]);
                array = again(&Rc::clone(&array.machine), survival, 8)?;
            }
            Some(array)
        }
    }
}

/// The power goes and comes back in the same world, and the array serves for a while.
fn again(machine: &Rc<Machine>, survival: Survival, requests: u64) -> Option<Rc<Array>> {
    let next = machine.cut(&machine.world, survival);
    let array = start(&next)?;
    (check::after_start(&array) && workload::serve(&array, requests)).then_some(array)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::campaign::Kind;
    use clap::ValueEnum;

    /// Seeds until every planted bug must have been found.
    const SEEDS: u64 = 200;

    fn options(plant: Option<Plant>) -> Options {
        Options { plant, tail: 10, ..Options::default() }
    }

    #[test]
    fn a_seed_replays_exactly() {
        for seed in [1, 2, 3] {
            let run = || Kind::Zoned.run(seed, &options(None)).expect("nothing is found");
            assert_eq!(run(), run());
        }
    }

    /// Seeds that found bugs, each of its own kind: docs/reliability.md tells which.
    #[test]
    fn what_once_failed_finds_nothing() {
        for seed in [
            204, 216, 256, 368, 418, 480, 992, 1121, 1318, 1452, 100_133, 100_478, 101_145, 101_397, 300_231,
            501_260, 501_876, 880_093, 880_319, 880_434, 880_561, 900_035, 900_975, 2025, 2067,
        ] {
            if let Err(failure) = Kind::Zoned.run(seed, &options(None)) {
                panic!("seed {seed}: {}", failure.what);
            }
        }
    }

    #[test]
    fn planted_bugs_are_found() {
        for plant in Plant::value_variants() {
            let found = (1..=SEEDS).find(|seed| Kind::Zoned.run(*seed, &options(Some(*plant))).is_err());
            println!("{plant:?}: seed {found:?}");
            assert!(found.is_some(), "{plant:?} is not found within {SEEDS} seeds");
        }
    }
}
