//! Connections to members on other machines are cut while clients work.

use std::rc::Rc;

use crate::array::Array;
use crate::network::{LIMIT_TICKS, NetworkPlan};
use crate::operator::{expendable, is_in_doubt};

/// Cuts of a round at most.
const CUTS_MAX: u64 = 200;

/// Starts what cuts connections now and then, if the plan has it.
pub(crate) fn start(array: &Rc<Array>) {
    let Some(plan) = array.machine.scenario.network.filter(|plan| plan.pause > 0) else { return };
    let own = Rc::clone(array);
    array.spawn(array.any_shard(), "cuts of connections", async move {
        for _ in 0..CUTS_MAX {
            if own.clients.get() == 0 {
                break;
            }
            own.world.sleep_up_to(plan.pause).await;
            // What a restart loses is noticed by requests.
            if own.clients.get() > 0 {
                cut_one(&own, plan);
            }
        }
    });
}

fn cut_one(array: &Array, plan: NetworkPlan) {
    let random = array.world.random();
    let slot = random.slot(array.machine.geometry());
    let disk = array.machine.disks.borrow()[slot.index()].clone();
    let Some(link) = disk.and_then(|disk| disk.link.borrow().clone()) else { return };
    let away = match random.below(8) {
        0 if array.machine.scenario.faults.deaths => random.between(LIMIT_TICKS, 3 * LIMIT_TICKS),
        _ => random.between(1, LIMIT_TICKS / 4),
    };
    let restarts = plan.restarts && random.one_in(3);
    let may_fail = expendable(array, slot) && !array.machine.is_failing_one.get() && !is_in_doubt(array);
    link.cut(away, restarts, may_fail);
}
