//! A power cut at every moment: of serving, and of the recovery from such a cut.

use std::cell::Cell;
use std::rc::Rc;

use super::array::Array;
use super::check;
use super::drive::Fault;
use super::machine::Machine;
use super::medium::Survival;
use super::scenario::State;
use super::workload;
use crate::random::Random;
use crate::world::{Ended, World};

/// Moments of one history at most.
const POINTS_MAX: u64 = 60;
/// Of so many images one has its recovery cut at every moment.
const RECOVERIES_ONE_IN: u64 = 24;
/// Power cuts in a row, each in the recovery from the one before.
const DEPTH_MAX: u32 = 3;
/// Lines of an image's own trace that a failure shows.
const TAIL: usize = 80;

/// Runs requests, and cuts the power at every moment of them.
pub(super) fn cut_everywhere(array: &Rc<Array>) {
    workload::start(array, array.machine.scenario.requests);
    let watch = &array.machine.watch;
    let (mut seen, mut points) = (watch.boundaries(), 0);
    loop {
        match array.run(1) {
            Ended::Failed => break,
            Ended::Idle => return workload::all_ended(array),
            Ended::Circles => return array.machine.world.fail("the array runs in circles".to_owned()),
            Ended::Steps => {}
        }
        let is_new = watch.boundaries() != seen;
        seen = watch.boundaries();
        // Long histories are cut at a part of their moments.
        let is_taken =
            array.machine.scenario.state != State::Reclaiming || array.machine.world.random().one_in(4);
        if is_new && is_taken && points < POINTS_MAX {
            points += 1;
            let all = [Survival::Everything, Survival::Everything, Survival::Killed];
            let survivals = [
                Survival::Nothing,
                array.machine.world.random().pick(&all),
                Survival::Some { hostile: array.machine.world.random().one_in(2) },
            ];
            array.machine.world.counts.borrow_mut().zoned_points += 1;
            survivals.into_iter().for_each(|survival| crash_here(&array.machine, survival));
        }
    }
}

/// The power goes now: the image is started and checked, in a world of its own. The history itself goes on untouched.
fn crash_here(machine: &Rc<Machine>, survival: Survival) {
    if machine.world.failure().is_some() {
        return;
    }
    let point = {
        let mut counts = machine.world.counts.borrow_mut();
        counts.crash_points += 1;
        counts.crash_images += 1;
        counts.crash_points
    };
    let seed = (point << 8) ^ u64::from(machine.depth.get()) ^ machine.world.now() << 32;
    let world = World::new(Random::new(seed), TAIL);
    let image = machine.cut(&world, survival);
    check_image(&image);
    let what = world.failure();
    machine.world.counts.borrow_mut().add(&world.counts.borrow());
    if let Some(what) = what {
        let trace = world.trace_tail().join("\n    | ");
        machine.world.fail(format!(
            "after a power cut ({survival:?}, absent {:?}, lost {:?}) {what}\n    what happened then:\n    | {trace}",
            image.absent.borrow(),
            image.lost.borrow()
        ));
    }
}

/// Starts what a cut left, mostly with all members, and checks it; some images are used, stopped or cut again after that.
fn check_image(machine: &Rc<Machine>) {
    let random = machine.world.random();
    choose_members(machine);
    let is_probed = machine.depth.get() < DEPTH_MAX && random.one_in(RECOVERIES_ONE_IN);
    let cuts = Cell::new(0u64);
    let started = start_or_without(machine, || {
        // Deeper recoveries are cut at a few moments, else they would be many.
        if is_probed && (machine.depth.get() == 1 || machine.world.random().one_in(6)) {
            cuts.set(cuts.get() + 1);
            machine.world.counts.borrow_mut().zoned_recovery_points += 1;
            let survival = match machine.world.random().below(4) {
                0 => Survival::Nothing,
                1 => Survival::Everything,
                two => Survival::Some { hostile: two == 2 },
            };
            crash_here(machine, survival);
        }
    });
    machine.world.counts.borrow_mut().assemblies += 1;
    let array = match started {
        Ok(array) => array,
        Err(error) => return refused(machine, &error),
    };
    if check::after_start(&array) && machine.world.failure().is_none() {
        go_on(&array);
    }
    array.kill();
}

/// A start. A member that fails under it may take what it was made from: then the next one, without it, is what counts.
fn start_or_without(machine: &Rc<Machine>, seen: impl FnMut()) -> Result<Rc<Array>, String> {
    let gone = || machine.drives.iter().filter(|drive| drive.is_gone.get()).count();
    let mut before = 0;
    let mut started = Array::start(machine, seen);
    while started.is_err() && gone() > before && machine.world.failure().is_none() {
        before = gone();
        machine.world.counts.borrow_mut().zoned_second_starts += 1;
        started = Array::start(machine, || {});
    }
    started
}

/// A start is refused only where the log is full: every crash takes the rest of the open segments, and faults take zones.
fn refused(machine: &Machine, error: &str) {
    if error.contains("no space left") {
        machine.world.counts.borrow_mut().zoned_full_starts += 1;
    } else {
        machine.world.fail(format!("the array does not start: {error}"));
    }
}

/// Some starts are without a member, with one that is empty, or with one that comes back.
fn choose_members(machine: &Machine) {
    let random = machine.world.random();
    if random.one_in(2) {
        machine.absent.borrow_mut().clear(); // a member that superblocks call missing is stale
    }
    while random.one_in(3) {
        let Some(slot) = machine.another_loss(random) else { break };
        machine.lost.borrow_mut().insert(slot);
        let mut counts = machine.world.counts.borrow_mut();
        match random.below(6) {
            0 | 1 => {
                counts.zoned_members_empty += 1;
                machine.erase(slot);
            }
            2 => {
                counts.zoned_faults_in_recovery += 1;
                machine.drives[slot].fault.set(Some((random.between(1, 12), Fault::Gone)));
            }
            _ => {
                counts.zoned_members_missing += 1;
                machine.absent.borrow_mut().insert(slot);
            }
        }
    }
    if random.one_in(8) {
        let drive = random.pick(&(0..machine.drives.len()).collect::<Vec<_>>());
        let fault = (random.between(1, 8), random.pick(&Fault::SOFT));
        machine.drives[drive].fault.set(machine.drives[drive].fault.get().or(Some(fault)));
        machine.world.counts.borrow_mut().zoned_faults_in_recovery += 1;
    }
}

/// Uses the array after a start, and then stops it cleanly, or cuts the power once more.
fn go_on(array: &Rc<Array>) {
    let machine = &array.machine;
    let random = machine.world.random();
    if !random.one_in(8) {
        return;
    }
    // Some are started twice without a request in between.
    if !random.one_in(3) && !workload::serve(array, 8) {
        return;
    }
    let next = World::new(Random::new(random.next()), TAIL);
    let survival = match random.below(4) {
        0 => {
            if !array.stop() {
                return machine.world.fail("the array does not stop".to_owned());
            }
            machine.world.counts.borrow_mut().clean_stops += 1;
            Survival::Nothing
        }
        1 => Survival::Nothing,
        2 => Survival::Everything,
        _ => Survival::Some { hostile: true },
    };
    let image = machine.cut(&next, survival);
    let again = match start_or_without(&image, || {}) {
        Ok(again) => again,
        Err(error) => return refused(machine, &error),
    };
    check::after_start(&again);
    again.kill();
    machine.world.counts.borrow_mut().add(&next.counts.borrow());
    if let Some(what) = next.failure() {
        let trace = next.trace_tail().join("\n    | ");
        machine.world.fail(format!("at the start after it ({survival:?}): {what}\n    then:\n    | {trace}"));
    }
}
