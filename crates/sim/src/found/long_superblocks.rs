//! Superblocks with more roles than fit into a logical block of 512 bytes: a power cut may leave a part of one.

use super::*;
use crate::oracle::Oracle;
use layout::units::Slot;

/// A number whose role stands behind the first 512 bytes.
const NUMBER: u32 = 129;

/// An array as md may leave it: its last member has a high device number.
fn with_a_high_number(members: u32, seed: u64) -> Rc<Machine> {
    let quiet = quiet(Level::Raid1, members, Support::None, 16, 64);
    let scenario = Scenario { consistency: Consistency::None, ..quiet };
    let machine = machine_with_array(World::new(Random::new(seed), 100), scenario);
    let last = members - 1;
    for disk in machine.all_disks.borrow().iter() {
        let bytes = disk.read_at_once(disk.places.superblock, SUPERBLOCK_BYTES_MAX);
        let superblock = Superblock::parse(&bytes, MinorVersion::V1_2, disk.places.size).expect("a new one");
        let mut superblock = superblock.with_role_for(NUMBER, disk.places.size).expect("room");
        superblock.set_role(last, DeviceRole::Spare);
        superblock.set_role(NUMBER, DeviceRole::Active(Slot::new(last)));
        if superblock.dev_number() == last {
            superblock.set_device(NUMBER, superblock.device_uuid());
        }
        let bytes = superblock.encode(512);
        assert!(bytes.len() > 512, "it is longer than a logical block");
        disk.put(superblock.offset(), &bytes);
    }
    machine
}

/// The power goes now, and a part of what is not durable survives. How many superblocks make no sense then, and whether the
/// array starts.
fn after_a_cut(machine: &Rc<Machine>, seed: u64) -> (usize, bool) {
    let world = World::new(Random::new(seed), 1);
    let oracle = Oracle::new(machine.geometry().array_bytes() / machine.unit(), true);
    let image = Machine::empty(Rc::clone(&world), machine.scenario.clone(), oracle);
    *image.all_disks.borrow_mut() =
        machine.all_disks.borrow().iter().map(|disk| disk.twin(&world, &image.watch)).collect();
    image.cut_power(|blocks, random| Survivors::some(blocks, 50, random));
    let candidates = recorded::candidates(&image);
    let torn = candidates.iter().filter(|candidate| candidate.superblock.is_err()).count();
    let starts = torn < candidates.len()
        && recorded::one_array(&image, &candidates, false).is_some_and(|assembly| assembly.start.is_ok());
    (torn, starts)
}

/// A member with such a number fails. Its role changes behind the first block of all superblocks, which were written side by
/// side: a power cut tore them all.
#[test]
fn a_power_cut_tears_one_long_superblock_at_most() {
    let mut torn_most = 0;
    for history in 0..40 {
        let machine = with_a_high_number(4, history);
        let array = assemble(&machine);
        finish(&array);
        assert_eq!(array.shared.members.fail(Slot::new(3), "by hand"), Failing::Failed);
        while !array.shared.members.is_settled() {
            assert_eq!(array.run(1), Ended::Steps);
            for seed in 0..8 {
                let (torn, starts) = after_a_cut(&machine, seed);
                assert!(
                    torn <= 1 && starts,
                    "{history}: {torn} superblocks are torn at {}",
                    array.world.now()
                );
                torn_most = torn_most.max(torn);
            }
        }
        finish(&array);
        array.kill();
    }
    assert_eq!(torn_most, 1, "no cut came in the middle of one");
}
