//! The message grid: a small array on members on other machines in a given state, and a few requests. The targets of some make parity
//! among themselves. The history is run once to count the commands, orders and contributions; then again for each of these and each
//! fault that can happen there, with nothing else wrong. Then everything is read and compared with the oracle, and all parity is
//! checked: on the next host, where one has taken the members.

use std::cell::Cell;
use std::rc::Rc;

use engine::fabric::credit::CREDIT_BYTES;

use crate::array::Array;
use crate::check;
use crate::crash;
use crate::fabric::FabricPlan;
use crate::history::{restart, witness};
use crate::machine::Machine;
use crate::network::{End, Fault, NetworkPlan};
use crate::random::Random;
use crate::report::{Failure, Options, Report};
use crate::scenario::{Consistency, Scenario};
use crate::workload;
use crate::world::{Ended, NO_LIMIT, World};

use super::states::{State, start};
use super::{PRELUDE_REQUESTS, draw};

/// Commands of a history at which something goes wrong: those of a longer one are taken in even steps, from another one on by seed.
const POINTS_MAX: u64 = 8;
/// Messages after which all members' targets have a ledger that is complete.
const LEDGER_MESSAGES: usize = 64;

/// Runs the message grid of a seed.
///
/// # Errors
/// [`Failure`] says at which command what went wrong, and which check failed.
pub(crate) fn run(seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
    let commands = Cell::new(0);
    let mut report = run_with(seed, options, None, &commands)?;
    let step = commands.get().div_ceil(POINTS_MAX).max(1);
    let (scenario, state, _) = draw_all(seed, options);
    for at in (seed % step..commands.get()).step_by(step as usize) {
        for fault in Fault::ALL.into_iter().filter(|fault| fits(*fault, &scenario, state)) {
            report.counts.network_points += 1;
            report.counts.add(&run_with(seed, options, Some((at, fault)), &Cell::new(0))?.counts);
        }
    }
    report.counts.network_grids += 1;
    Ok(report)
}

/// Whether the array survives a fault in a state, whatever command it hits.
fn fits(fault: Fault, scenario: &Scenario, state: &State) -> bool {
    let losses = if state.name == "replacing" { 1 } else { state.losses };
    let is_known = scenario.consistency != Consistency::None && state.name != "resyncing";
    match fault {
        Fault::TakeOver | Fault::Kill => scenario.consistency != Consistency::None,
        fault if fault.is_hard() => {
            is_known && losses + fault.losses() <= scenario.geometry.losses_survived()
        }
        _ => true,
    }
}

fn draw_all(seed: u64, options: &Options) -> (Scenario, &'static State, Random) {
    let random = Random::new(seed ^ 0x6d65_7373);
    let (mut scenario, state) = draw(&random, options.level);
    scenario.faults.transient_one_in = 0;
    let network = NetworkPlan::quiet(random.pick(&[2, 10, 60]), options.network_bug);
    scenario.network = Some(NetworkPlan { ledgers: true, ..network });
    if scenario.geometry.parity_chunks() > 0 && random.one_in(2) {
        scenario.fabric = Some(FabricPlan {
            order_lost_one_in: 0,
            contribution_lost_one_in: 0,
            foreign_one_in: random.pick(&[0, 0, 0, 3]),
            delay: random.pick(&[2, 10, 60]),
            is_auto: false,
            attaches_anew: false,
            credit: CREDIT_BYTES,
            fails_once: true,
        });
    }
    let random = options.change(&mut scenario, seed).unwrap_or(random);
    (scenario, state, random)
}

fn run_with(
    seed: u64,
    options: &Options,
    fault: Option<(u64, Fault)>,
    commands: &Cell<u64>,
) -> Result<Report, Box<Failure>> {
    let (scenario, state, random) = draw_all(seed, options);
    let world = World::new(random, options.tail.max(1));
    let words = |scenario: &str| {
        let at = fault.map_or_else(String::new, |(at, fault)| format!(", {fault:?} at command {at}"));
        format!("{}{at}, {scenario}", state.name)
    };
    let mut ended = witness(seed, &world, scenario, |machine, running| {
        live(machine, running, state, fault);
        commands.set(machine.hosts.commands());
    });
    match &mut ended {
        Ok(report) => report.scenario = words(&report.scenario),
        Err(failure) => failure.scenario = words(&failure.scenario),
    }
    ended
}

/// Fills the array, brings it into the state, and makes a few requests with a fault among their commands.
fn live(machine: &Rc<Machine>, running: &mut Option<Rc<Array>>, state: &State, fault: Option<(u64, Fault)>) {
    let Some(array) = start(machine, running) else { return };
    workload::start(&array, PRELUDE_REQUESTS);
    if array.run(NO_LIMIT) != Ended::Idle {
        return;
    }
    let Some(mut array) = (state.reach)(array, running) else { return };
    // What the targets record is complete, where it can be.
    array.keep_ledgers(LEDGER_MESSAGES);
    machine.hosts.arm(fault);
    workload::start(&array, machine.scenario.load.requests);
    while machine.hosts.end_due.get().is_none() {
        match array.run(1) {
            Ended::Idle => break,
            Ended::Failed | Ended::Circles => return,
            Ended::Steps => {}
        }
    }
    if let Some(end) = machine.hosts.end_due.take() {
        *running = None;
        match end {
            End::TakenOver => crash::take_over(&array),
            End::Killed => crash::kill(&array),
        }
        if machine.world.failure().is_some() {
            return;
        }
        let Some(taken) = start(machine, running) else { return };
        array = taken;
        if !restart(&array) || array.run(NO_LIMIT) != Ended::Idle {
            return;
        }
    }
    check::at_rest(&array);
    check::quiet(&array);
    workload::read_all(&array);
}
