//! A read-only start on copies of the devices, in a world of its own: it reads right data or an error, and writes nothing.
//! The history goes on as if it had not been.

use std::rc::Rc;

use engine::array::scrub::ScrubRequest;
use engine::error::VolumeError;
use engine::mismatch::ScrubMode;
use engine::volume::{Space, ZeroFlags};

use crate::array::Array;
use crate::disk::Disk;
use crate::machine::Machine;
use crate::random::Random;
use crate::recorded::guarded_machine;
use crate::scenario::Consistency;
use crate::start::How;
use crate::workload::read_all;
use crate::world::{Ended, NO_LIMIT, World};

/// Lines of its own trace that a failure shows.
const TAIL: usize = 40;

/// Starts the array read-only, reads all of it, checks it and stops it; then compares the devices.
pub(crate) fn look(of: &Machine) {
    if of.unmarked.get() || of.scenario.consistency == Consistency::None {
        return; // no record says which parity agrees, so a missing chunk may read as anything
    }
    let world = World::new(Random::new(of.world.random().below(u64::MAX)), TAIL);
    let machine = twin(of, &world);
    world.counts.borrow_mut().started_read_only += 1;
    read_only(&machine, of);
    let counts = *world.counts.borrow();
    of.world.counts.borrow_mut().add(&counts);
    if let Some(what) = world.failure() {
        let trace = world.trace_tail().join("\n    | ");
        of.world.fail(format!("a read-only start: {what}\n    | {trace}"));
    }
}

/// The same devices with the same faults, and the same knowledge of what they may hold.
fn twin(of: &Machine, world: &Rc<World>) -> Rc<Machine> {
    let machine = guarded_machine(Rc::clone(world), of.scenario.clone(), of.oracle.borrow().clone());
    let twin = |disk: &Rc<Disk>| {
        let twin = disk.twin(world, &machine.watch);
        let (faults, own) = (disk.faults.borrow(), &mut *twin.faults.borrow_mut());
        (own.dead, own.bad, own.transient_one_in) =
            (faults.dead, faults.bad.clone(), faults.transient_one_in);
        Rc::clone(&twin)
    };
    *machine.all_disks.borrow_mut() = of.all_disks.borrow().iter().map(twin).collect();
    let (own, others) = (&machine.excuses, &of.excuses);
    own.beyond.set(others.beyond.get());
    *own.lost.borrow_mut() = others.lost.borrow().clone();
    *own.uneven.borrow_mut() = others.uneven.borrow().clone();
    *own.doubted.borrow_mut() = others.doubted.borrow().clone();
    machine
}

fn read_only(machine: &Rc<Machine>, of: &Machine) {
    let array = match Array::assemble(machine, How::reading(&machine.scenario)) {
        Some(Ok(array)) => array,
        Some(Err(refusal)) => return machine.refused(&refusal),
        None => return,
    };
    read_all(&array);
    let mode = ScrubMode { repair: false, trust_data: false };
    let is_checked = array.manager.request_scrub(ScrubRequest::Start { mode, restart: true }).is_ok();
    array.run(NO_LIMIT);
    if is_checked {
        read_all(&array); // what the check saw is what it left
    }
    refuses_writes(&array);
    let own = Rc::clone(&array);
    array.spawn(0, "a stop", async move {
        if let Err(error) = own.running.stop().await {
            own.world.fail(format!("the stop failed: {error}"));
        }
    });
    if array.run(NO_LIMIT) == Ended::Idle {
        changed_nothing(machine, of);
    }
    array.kill();
    machine.world.cut();
}

/// Every kind of write is refused.
fn refuses_writes(array: &Rc<Array>) {
    let own = Rc::clone(array);
    array.spawn(0, "writes", async move {
        let (volume, unit) = (&own.shards[0].volume, own.machine.unit());
        let zeroed = volume.write_zeroes(0, unit, ZeroFlags { may_unmap: true, fua: true }).await;
        let discarded = volume.discard(0, unit).await;
        if (&zeroed, &discarded) != (&Err(VolumeError::ReadOnly), &Err(VolumeError::ReadOnly)) {
            own.world.fail(format!("a write was taken: {zeroed:?}, {discarded:?}"));
        }
    });
    array.run(NO_LIMIT);
}

/// No device was written to, and each holds what it held before.
fn changed_nothing(machine: &Machine, of: &Machine) {
    let counts = *machine.world.counts.borrow();
    let written = counts.member_writes + counts.member_zeroes + counts.member_discards;
    let disks = machine.all_disks.borrow();
    let pairs = disks.iter().zip(of.all_disks.borrow().iter().cloned()).collect::<Vec<_>>();
    let changed = pairs.iter().find_map(|(disk, before)| Some((disk.number, disk.differs(before)?)));
    if let Some((device, at)) = changed {
        machine.world.fail(format!("device {device} was changed in the page at {at}"));
    } else if written > 0 {
        machine.world.fail(format!("{written} writes were sent to devices, of what they held"));
    }
}
