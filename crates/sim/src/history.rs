//! One history: an array is used, damaged and repaired; then everything is checked, the power goes, and what is left
//! is checked again.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use engine::array::scrub::ScrubRequest;
use engine::members::MemberState;
use engine::mismatch::ScrubMode;
use layout::geometry::Level;

use crate::array::Array;
use crate::check;
use crate::crash::{crash, take_over};
use crate::drawer;
use crate::fabric::FabricPlan;
use crate::machine::Machine;
use crate::network::NetworkPlan;
use crate::operator;
use crate::outage;
use crate::random::Random;
use crate::reading;
use crate::recorded;
use crate::report::{Failure, Options, Report};
use crate::scenario::{Consistency, Scenario};
use crate::silent;
use crate::start::How;
use crate::workload::{self, read_all};
use crate::world::{Ended, NO_LIMIT, World};

/// Runs the history of a seed.
///
/// # Errors
/// [`Failure`] says which check failed, and how.
pub fn run(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    let random = Random::new(seed);
    let mut scenario = Scenario::draw(&random, options.level);
    let random = options.change(&mut scenario, seed).unwrap_or(random);
    let world = World::new(random, options.tail.max(1));
    world.counts.borrow_mut().histories = 1;
    witness(seed, &world, scenario, live)
}

/// Runs the history of a seed of a parity array whose members' targets make parity among themselves.
///
/// # Errors
/// [`Failure`] says which check failed, and how.
pub fn run_with_peers(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    let random = Random::new(seed);
    let level = options
        .level
        .unwrap_or_else(|| random.pick(&[Level::Raid5, Level::Raid6, Level::Raid6, Level::Raid4]));
    let mut scenario = Scenario::draw(&random, Some(level));
    scenario.fabric = Some(FabricPlan::draw(&random));
    let random = options.change(&mut scenario, seed).unwrap_or(random);
    let world = World::new(random, options.tail.max(1));
    world.counts.borrow_mut().histories = 1;
    witness(seed, &world, scenario, live)
}

/// Runs the history of a seed of an array whose members are on other machines.
///
/// # Errors
/// [`Failure`] says which check failed, and how.
pub fn run_with_network(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    let random = Random::new(seed ^ 0x6e65_7477);
    let mut scenario = Scenario::draw(&random, options.level);
    scenario.network = Some(NetworkPlan { bug: options.network_bug, ..NetworkPlan::draw(&random) });
    let random = options.change(&mut scenario, seed).unwrap_or(random);
    let world = World::new(random, options.tail.max(1));
    world.counts.borrow_mut().histories = 1;
    witness(seed, &world, scenario, live)
}

/// Runs a history by `live` and reports how it ended; a panic is a failure.
pub(crate) fn witness(
    seed: u64,
    world: &Rc<World>,
    scenario: Scenario,
    live: impl Fn(&Rc<Machine>, &mut Option<Rc<Array>>),
) -> Result<Report, Box<Failure>> {
    let (words, drawn) = (scenario.words(), scenario.clone());
    let machine = drawer::machine_with_array(Rc::clone(world), scenario);
    let mut running: Option<Rc<Array>> = None;
    let lived = catch_unwind(AssertUnwindSafe(|| live(&machine, &mut running)));
    if let Some(array) = &running {
        let _ = catch_unwind(AssertUnwindSafe(|| array.kill()));
    }
    let _ = catch_unwind(AssertUnwindSafe(|| machine.kill_fenced()));
    if let Err(panic) = lived {
        world.fail_by_panic(&*panic);
    }
    world.cut();
    match world.failure() {
        Some(what) => Err(Box::new(Failure {
            seed,
            what,
            scenario: words,
            tail: world.trace_tail(),
            drawn: Some(drawn),
        })),
        None => {
            let counts = *world.counts.borrow();
            Ok(Report { counts, trace_hash: world.trace_hash(), scenario: words })
        }
    }
}

/// Rounds of use, each ended by a crash. What is running is left in `running`.
fn live(machine: &Rc<Machine>, running: &mut Option<Rc<Array>>) {
    for round in 0..machine.scenario.rounds {
        if machine.world.random().one_in(4) {
            reading::look(machine);
        }
        let array = match Array::assemble(machine, How::marked_or_not(machine)) {
            Some(Ok(array)) => array,
            Some(Err(refusal)) => return machine.refused(&refusal),
            None => return,
        };
        *running = Some(Rc::clone(&array));
        if round > 0 && !restart(&array) {
            return;
        }
        operator::start(&array);
        outage::start(&array);
        workload::start(&array, machine.scenario.load.requests);
        let in_the_middle = machine.world.random().one_in(2);
        let steps = if in_the_middle { machine.world.random().between(1, 4000) } else { NO_LIMIT };
        match array.run(steps) {
            Ended::Failed | Ended::Circles => return,
            Ended::Steps => {}
            Ended::Idle => afterwards(&array),
        }
        if machine.world.failure().is_some() {
            return;
        }
        let may_be_taken =
            machine.scenario.network.is_some_and(|plan| plan.take_overs) && array.clients.get() > 0;
        *running = None;
        match may_be_taken && machine.world.random().one_in(2) {
            true => take_over(&array),
            false => crash(&array),
        }
        if machine.world.failure().is_some() {
            return;
        }
    }
}

/// After a crash the oracle settles on one content of every block. Where members can fail during a resync, it first waits
/// for the resync to end; elsewhere clients use the array meanwhile.
pub(crate) fn restart(array: &Rc<Array>) -> bool {
    let machine = &array.machine;
    machine.excuses.beyond.set(false);
    machine.is_failing_one.set(false);
    if machine.scenario.consistency == Consistency::None || array.after_unmarked {
        return repair_by_hand(array);
    }
    let faults = &machine.scenario.faults;
    let dirty = array.writer.resync_from_bytes().is_some();
    if dirty && (faults.deaths || faults.full || faults.metadata_lost) {
        if matches!(array.run(NO_LIMIT), Ended::Failed | Ended::Circles) {
            return false;
        }
        check::at_rest(array);
        check::quiet(array);
    }
    check::settle(array);
    array.world.failure().is_none()
}

/// Nothing was written down before stripes changed, so after a crash the operator runs a repair. What missing members held
/// cannot be known then.
pub(crate) fn repair_by_hand(array: &Rc<Array>) -> bool {
    if array.machine.geometry().losses_survived() > 0 {
        if !array.shared.members.all_in_sync() {
            return false;
        }
        let mode = ScrubMode { repair: true, trust_data: true };
        array
            .manager
            .request_scrub(ScrubRequest::Start { mode, restart: true })
            .expect("a level with redundancy");
        if matches!(array.run(NO_LIMIT), Ended::Failed | Ended::Circles)
            || !array.shared.members.all_in_sync()
        {
            return false;
        }
        check::quiet(array);
    }
    check::settle(array);
    array.machine.unmarked.set(!array.shared.intent.is_used());
    array.world.failure().is_none()
}

/// All clients have ended: every check has to pass, also with as many members out as the level survives.
fn afterwards(array: &Rc<Array>) {
    check::at_rest(array);
    check::quiet(array);
    read_all(array);
    if array.world.failure().is_some() || array.machine.excuses.beyond.get() {
        return;
    }
    if array.world.random().one_in(2) {
        silent::trial(array);
        read_all(array);
    }
    let steps = array.world.random().below(3);
    if steps > 0 {
        lose_some(array);
        read_all(array);
        check::quiet(array);
    }
    if steps > 1 && array.world.failure().is_none() {
        replace_all(array);
        check::at_rest(array);
        check::quiet(array);
        read_all(array);
    }
    if array.world.random().one_in(3) && array.world.failure().is_none() {
        stop(array);
    }
}

/// An orderly stop, after which the superblocks have to say clean.
fn stop(array: &Rc<Array>) {
    array.world.counts.borrow_mut().clean_stops += 1;
    let own = Rc::clone(array);
    array.spawn(0, "an orderly stop", async move {
        if let Err(error) = own.running.stop().await {
            own.world.fail(format!("an orderly stop failed: {error}"));
        }
    });
    array.run(NO_LIMIT);
    let machine = &array.machine;
    let dirty = recorded::outcomes(machine).iter().any(|outcome| outcome.resync_from.is_some());
    let redundant = machine.geometry().losses_survived() > 0;
    let resynced = array.writer.resync_from_bytes().is_none() && array.shared.consistency.suspects() == 0;
    if dirty && redundant && resynced && array.world.failure().is_none() {
        array.world.fail("superblocks say dirty after an orderly stop".to_string());
    }
}

fn lose_some(array: &Rc<Array>) {
    let geometry = array.machine.geometry();
    for _ in 0..geometry.losses_survived() {
        let slot = array.world.random().slot(geometry);
        if operator::expendable(array, slot) {
            array.shared.members.fail(slot, "lost at the end");
        }
    }
    array.run(NO_LIMIT);
}

fn replace_all(array: &Rc<Array>) {
    for disk in array.machine.disks.borrow().iter().flatten() {
        disk.faults.borrow_mut().full_one_in = 0;
    }
    let (own, shard) = (Rc::clone(array), array.any_shard());
    array.spawn(shard, "replacing everything", async move {
        for slot in own.machine.geometry().slots() {
            if matches!(own.shared.members.state(slot), MemberState::Failed | MemberState::Missing) {
                operator::replace(&own, slot).await;
            }
        }
    });
    array.run(NO_LIMIT);
}
