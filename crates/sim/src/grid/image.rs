//! One moment of a history, and what a power cut then leaves.

use std::rc::Rc;

use super::states::State;
use crate::array::Array;
use crate::check;
use crate::disk::cache::Survivors;
use crate::history::repair_by_hand;
use crate::random::Random;
use crate::reading;
use crate::recorded::{check_after_cut, guarded_machine};
use crate::scenario::Consistency;
use crate::start::How;
use crate::workload::read_all;
use crate::world::{Ended, NO_LIMIT, World};

/// Percent of what is not durable that survives, in the images of one moment.
const SURVIVE_PERCENT: [u64; 3] = [0, 100, 50];

/// Lines of an image's own trace that a failure shows.
const TAIL: usize = 40;

/// The power goes now: every image of this moment is started and checked. The history itself goes on untouched.
pub(super) fn crash_here(array: &Array, state: &State) {
    let point = {
        let mut counts = array.world.counts.borrow_mut();
        counts.crash_points += 1;
        *(state.count)(&mut counts) += 1;
        counts.crash_points
    };
    for (number, percent) in (0..).zip(SURVIVE_PERCENT) {
        let random = Random::new(point * SURVIVE_PERCENT.len() as u64 + number);
        let world = World::new(random, TAIL);
        check_image(array, &world, percent);
        let mut counts = array.world.counts.borrow_mut();
        counts.crash_images += 1;
        counts.add(&world.counts.borrow());
        drop(counts);
        if let Some(what) = world.failure() {
            let trace = world.trace_tail().join("\n    | ");
            array.world.fail(format!(
                "after a crash at point {point}, of which {percent} % of what was not durable survived: {what}\n    \
                 what happened after the crash:\n    | {trace}"
            ));
            return;
        }
    }
}

fn check_image(running: &Array, world: &Rc<World>, percent: u64) {
    let of = &running.machine;
    let mut scenario = of.scenario.clone();
    (scenario.shards, scenario.table_entries, scenario.look) = (1, 64, 20);
    scenario.faults.transient_one_in = 0;
    let machine = guarded_machine(Rc::clone(world), scenario, of.oracle.borrow().clone());
    machine.generations.set(of.generations.get()); // its own are none of those on the devices
    *machine.all_disks.borrow_mut() =
        of.all_disks.borrow().iter().map(|disk| disk.twin(world, &machine.watch)).collect();
    machine.excuses.all_logged.set(running.is_all_logged());
    machine.cut_power(|blocks, random| Survivors::some(blocks, percent, random));
    check_after_cut(&machine);
    if world.random().one_in(8) {
        reading::look(&machine);
    }
    let array = match Array::assemble(&machine, How::marked_or_not(&machine)) {
        Some(Ok(array)) => array,
        Some(Err(refusal)) => return machine.refused(&refusal),
        None => return,
    };
    let known = match machine.scenario.consistency {
        Consistency::None => repair_by_hand(&array),
        Consistency::Resync | Consistency::Bitmap(_) => {
            read_all(&array); // repairs are on their way
            array.run(NO_LIMIT) == Ended::Idle
        }
    };
    if known {
        check::at_rest(&array);
        check::quiet(&array);
        read_all(&array);
    }
    array.kill();
    world.cut();
}
