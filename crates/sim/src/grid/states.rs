//! The states in which the grid cuts the power: how an array gets there, and which arrays can.

use std::rc::Rc;

use engine::array::scrub::ScrubRequest;
use engine::members::{Failing, MemberState, Replacing};
use engine::mismatch::ScrubMode;
use layout::geometry::Level;
use layout::units::Slot;

use crate::array::Array;
use crate::counts::Counts;
use crate::disk::cache::Survivors;
use crate::machine::Machine;
use crate::operator;
use crate::scenario::{Consistency, Scenario};
use crate::start::How;
use crate::workload;
use crate::world::{Ended, NO_LIMIT};

pub(super) struct State {
    pub(super) name: &'static str,
    /// Members that are missing in this state or were before it.
    pub(super) losses: u32,
    /// Brings a quiet, whole array there. None: a check failed on the way.
    pub(super) reach: fn(Rc<Array>, &mut Option<Rc<Array>>) -> Option<Rc<Array>>,
    pub(super) count: fn(&mut Counts) -> &mut u64,
}

pub(super) const STATES: &[State] = &[
    State { name: "clean", losses: 0, reach: |array, _| Some(array), count: |c| &mut c.clean },
    State {
        name: "one degraded",
        losses: 1,
        reach: |array, _| lose(array, 1),
        count: |c| &mut c.one_degraded,
    },
    State {
        name: "two degraded",
        losses: 2,
        reach: |array, _| lose(array, 2),
        count: |c| &mut c.two_degraded,
    },
    State { name: "recovering", losses: 1, reach: |array, _| recover(array), count: |c| &mut c.recovering },
    State {
        name: "resyncing",
        losses: 0,
        reach: |array, running| crash_and_resync(&array, running),
        count: |c| &mut c.resyncing,
    },
    State { name: "scrubbing", losses: 0, reach: |array, _| scrub(array), count: |c| &mut c.scrubbing },
    State { name: "replacing", losses: 0, reach: |array, _| replace(array), count: |c| &mut c.replacing },
];

impl State {
    pub(super) fn fits(&self, scenario: &Scenario) -> bool {
        let geometry = &scenario.geometry;
        if self.name == "resyncing" && scenario.consistency == Consistency::None {
            return false; // no record says that there is something to resync
        }
        geometry.level() != Level::Raid0 && lost(self.losses, geometry).is_some()
    }
}

/// Starts the array that the devices make. None: it is refused.
pub(super) fn start(machine: &Rc<Machine>, running: &mut Option<Rc<Array>>) -> Option<Rc<Array>> {
    match Array::assemble(machine, How::logged_or_not(machine))? {
        Ok(array) => {
            *running = Some(Rc::clone(&array));
            Some(array)
        }
        Err(refusal) => {
            machine.refused(&refusal);
            None
        }
    }
}

/// The first slots that the array can lose together.
fn lost(losses: u32, geometry: &layout::geometry::Geometry) -> Option<Vec<Slot>> {
    let mut slots = Vec::new();
    for slot in geometry.slots() {
        let without = |other: Slot| other == slot || slots.contains(&other);
        if slots.len() < losses as usize && geometry.survives(without) {
            slots.push(slot);
        }
    }
    (slots.len() == losses as usize).then_some(slots)
}

fn lose(array: Rc<Array>, losses: u32) -> Option<Rc<Array>> {
    let geometry = array.machine.geometry();
    for slot in lost(losses, geometry)? {
        assert_eq!(array.shared.members.fail(slot, "by hand"), Failing::Failed);
    }
    (array.run(NO_LIMIT) == Ended::Idle).then_some(array)
}

/// A spare is being rebuilt, in place of a member that lacks the writes since it failed.
fn recover(array: Rc<Array>) -> Option<Rc<Array>> {
    let array = lose(array, 1)?;
    workload::start(&array, 4);
    if array.run(NO_LIMIT) != Ended::Idle {
        return None;
    }
    let own = Rc::clone(&array);
    array.spawn(0, "adding a spare", async move {
        operator::add_spare(&own, &own.machine.new_disk(true)).await;
    });
    let waiting = || array.shared.members.states().iter().all(|state| *state != MemberState::Recovering);
    while waiting() && !array.shared.members.all_in_sync() {
        if array.run(1) != Ended::Steps {
            return None;
        }
    }
    Some(array)
}

/// The last member is being replaced, now and then while another one is missing.
fn replace(array: Rc<Array>) -> Option<Rc<Array>> {
    let last = array.machine.geometry().slots().next_back().expect("an array has members");
    let array = if array.world.random().one_in(3) && lost(1, array.machine.geometry()).is_some() {
        lose(array, 1)?
    } else {
        array
    };
    let own = Rc::clone(&array);
    array.spawn(0, "beginning to replace a member", async move {
        operator::begin_replacement(&own, last).await;
    });
    while array.shared.members.replacing(last) == Replacing::No {
        if array.run(1) != Ended::Steps {
            return None;
        }
    }
    Some(array)
}

/// The power went while the array was written to.
fn crash_and_resync(array: &Rc<Array>, running: &mut Option<Rc<Array>>) -> Option<Rc<Array>> {
    let machine: Rc<Machine> = Rc::clone(&array.machine);
    workload::start(array, 8);
    let steps = machine.world.random().between(20, 400);
    if matches!(array.run(steps), Ended::Failed | Ended::Circles) {
        return None;
    }
    *running = None;
    array.kill();
    machine.world.cut();
    machine.cut_power(|blocks, random| Survivors::some(blocks, 50, random));
    start(&machine, running)
}

fn scrub(array: Rc<Array>) -> Option<Rc<Array>> {
    let repair = array.world.random().one_in(2);
    array
        .manager
        .request_scrub(ScrubRequest::Start { mode: ScrubMode { repair, trust_data: false }, restart: true })
        .ok()?;
    Some(array)
}
