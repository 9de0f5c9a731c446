//! How a run ends without an orderly stop: the process is killed or the power goes, and the machine starts again.

use std::rc::Rc;

use engine::members::MemberState;

use crate::array::Array;
use crate::disk::Disk;
use crate::disk::cache::Survivors;
use crate::lost::may_lose;
use crate::machine::Machine;
use crate::network;
use crate::recorded;
use crate::trace::Note;
use crate::workload;
use crate::world::{Ended, NO_LIMIT};
use layout::units::Slot;

/// Places of one member that cannot be read after a crash, at the most.
const PLACES_MAX: usize = 3;

/// The process is killed, or the power goes and takes what was not durable.
pub(crate) fn crash(array: &Rc<Array>) {
    let (machine, world) = (&array.machine, &array.world);
    stop(array);
    let survive = world.random().pick(&[100, 0, 0, 50, 50, 90]);
    if survive == 100 {
        world.counts.borrow_mut().kills += 1;
    } else {
        world.counts.borrow_mut().power_cuts += 1;
    }
    world.note(Note::Words(format!("crash; {survive} % of what is not durable survives")));
    match survive {
        100 => machine.lose_host(),
        _ => machine.cut_power(|blocks, random| Survivors::some(blocks, survive, random)),
    }
    let with_bad_places = draw_bad_places(machine);
    come_back(machine, with_bad_places.as_deref());
    recorded::check_after_cut(machine);
}

/// Nothing runs any more, and the oracle knows what the array promised until then.
fn stop(array: &Array) {
    let machine = &array.machine;
    machine.excuses.all_logged.set(array.is_all_logged());
    if array.writer.resync_from_bytes().is_none() {
        machine.oracle.borrow_mut().resynced();
    }
    array.kill();
    machine.kill_fenced();
    array.world.cut();
}

/// As [`end_process`], and another host comes, with what the targets have recorded of this one.
pub(crate) fn kill(array: &Rc<Array>) {
    end_process(array);
    come_back(&array.machine, None);
    recorded::check_after_cut(&array.machine);
}

/// The process is killed while the members' targets live on.
pub(crate) fn end_process(array: &Rc<Array>) {
    let (machine, world) = (&array.machine, &array.world);
    world.note(Note::Words("the host's process is killed".to_string()));
    world.counts.borrow_mut().kills += 1;
    stop(array);
    machine.lose_host();
}

/// Another host takes the members while this one goes on: its clients get errors, and nothing that it does counts any more (F-I6,
/// F-I7).
pub(crate) fn take_over(array: &Rc<Array>) {
    let (machine, world) = (&array.machine, &array.world);
    world.note(Note::Words("another host takes the members over".to_string()));
    world.counts.borrow_mut().network_take_overs += 1;
    machine.excuses.fenced.set(true);
    machine.excuses.all_logged.set(false);
    if array.writer.resync_from_bytes().is_none() {
        machine.oracle.borrow_mut().resynced();
    }
    let own = Rc::clone(machine);
    array.spawn(0, "another host takes the members", async move {
        let disks = own.all_disks.borrow().clone();
        network::take_all(&own.world, &own.hosts, &disks).await;
    });
    array.requests_left.set(array.requests_left.get().min(REQUESTS_AT_A_FENCE));
    if array.run(NO_LIMIT) != Ended::Idle {
        return;
    }
    // And those that come after it.
    workload::start(array, REQUESTS_AT_A_FENCE);
    if array.run(NO_LIMIT) != Ended::Idle {
        return;
    }
    machine.hosts.all_taken.set(false);
    machine.excuses.fenced.set(false);
    array.shared.self_check();
    machine.fenced.borrow_mut().extend(array.executors());
    machine.lose_host();
    come_back(machine, None);
    recorded::check_after_cut(machine);
}

/// Requests of a host that is being fenced, and of one that is.
const REQUESTS_AT_A_FENCE: u64 = 8;

/// The machine starts again with every device, also those that had failed, with the contents that they had then, but for one
/// that has bad places. Now and then one is away this time, and back the next.
fn come_back(machine: &Machine, with_bad_places: Option<&Disk>) {
    let random = machine.world.random();
    for disk in machine.all_disks.borrow().iter() {
        // Broken members come back as working ones: assembling with fewer is what a later check is for.
        if with_bad_places.is_none_or(|other| other.number != disk.number) {
            disk.mend();
        }
        disk.faults.borrow_mut().transient_one_in = machine.scenario.faults.transient_one_in;
        disk.plug(true);
    }
    machine.excuses.full.set(false);
    machine.excuses.hurt.borrow_mut().clear();
    if random.one_in(4) && machine.geometry().losses_survived() > 0 && !machine.excuses.beyond.get() {
        let away = random.slot(machine.geometry());
        let outcomes = recorded::outcomes(machine);
        let outcome = &outcomes[0];
        let out = |slot: Slot| {
            let hard = outcome.disks[slot.index()].as_ref().is_some_and(|disk| disk.faults.borrow().hard());
            slot == away || outcome.states[slot.index()] != MemberState::InSync || hard
        };
        if let Some(disk) = outcome.disks[away.index()].as_ref().filter(|_| machine.geometry().survives(out))
        {
            machine.world.note(Note::Words(format!("device {} is away", disk.number)));
            machine.world.counts.borrow_mut().members_away += 1;
            disk.plug(false);
        }
    }
}

/// Now and then a member in sync cannot read a few places after a crash, if the array can do without it. Its device.
fn draw_bad_places(machine: &Machine) -> Option<Rc<Disk>> {
    let random = machine.world.random();
    let outcomes = recorded::outcomes(machine);
    let outcome = outcomes.first()?;
    let slots: Vec<Slot> = machine
        .geometry()
        .slots()
        .filter(|&slot| outcome.states[slot.index()] == MemberState::InSync)
        .filter(|&slot| {
            let out = |other: Slot| other == slot || outcome.states[other.index()] != MemberState::InSync;
            machine.geometry().survives(out) && outcome.disks[slot.index()].is_some()
        })
        .collect();
    if slots.is_empty() || !machine.promises_redundancy() || !random.one_in(4) {
        return None;
    }
    let disk = outcome.disks[random.pick(&slots).index()].clone().expect("a device");
    let mut bad: Vec<u64> = disk.faults.borrow().bad.iter().copied().take(PLACES_MAX).collect();
    let unit = u64::from(disk.places.block);
    while bad.is_empty() || (bad.len() < PLACES_MAX && random.one_in(2)) {
        bad.push(disk.places.data.get() / unit + random.below(machine.geometry().member_bytes() / unit));
    }
    disk.mend();
    machine.world.note(Note::Words(format!("device {} cannot read {bad:?}", disk.number)));
    machine.world.counts.borrow_mut().bad_places_after_crash += 1;
    disk.faults.borrow_mut().bad.extend(bad);
    may_lose(machine, &disk, |_| true);
    Some(disk)
}
