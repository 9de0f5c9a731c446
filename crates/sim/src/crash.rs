//! How a run ends without an orderly stop: the process is killed or the power goes, and the machine starts again.

use std::rc::Rc;

use engine::members::MemberState;

use crate::array::Array;
use crate::disk::Disk;
use crate::disk::cache::Survivors;
use crate::lost::may_lose;
use crate::machine::Machine;
use crate::recorded;
use crate::trace::Note;
use layout::units::Slot;

/// Places of one member that cannot be read after a crash, at the most.
const PLACES_MAX: usize = 3;

/// The process is killed, or the power goes and takes what was not durable.
pub(crate) fn crash(array: &Rc<Array>) {
    let (machine, world) = (&array.machine, &array.world);
    machine.excuses.all_logged.set(array.is_all_logged());
    if array.writer.resync_from_bytes().is_none() {
        machine.oracle.borrow_mut().resynced();
    }
    array.kill();
    world.cut();
    let survive = world.random().pick(&[100, 0, 0, 50, 50, 90]);
    if survive == 100 {
        world.counts.borrow_mut().kills += 1;
    } else {
        world.counts.borrow_mut().power_cuts += 1;
    }
    world.note(Note::Words(format!("crash; {survive} % of what is not durable survives")));
    machine.cut_power(|blocks, random| Survivors::some(blocks, survive, random));
    come_back(machine);
    recorded::check_after_cut(machine);
}

/// The machine starts again with every device, also those that had failed, with the contents that they had then. Now and
/// then one is away this time, and back the next.
fn come_back(machine: &Machine) {
    let random = machine.world.random();
    let with_bad_places = draw_bad_places(machine);
    for disk in machine.all_disks.borrow().iter() {
        // Broken members come back as working ones: assembling with fewer is what a later check is for.
        if with_bad_places.as_ref().is_none_or(|other| other.number != disk.number) {
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
