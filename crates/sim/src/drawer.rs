//! Where devices come from: those of a new array, with superblocks on them, and others to replace them.

use std::rc::Rc;

use layout::md_bitmap::Bitmap;
use layout::md_superblock::{DeviceRole, NewArray, NewBitmap, NewMember, Superblock};
use layout::units::{DeviceOffset, Sectors, Slot};

use crate::disk::Disk;
use crate::machine::Machine;
use crate::oracle::Oracle;
use crate::recorded;
use crate::scenario::{Consistency, Scenario};
use crate::world::World;

/// A machine with a new array on it: devices of zeroes, whose parity agrees, and the superblocks of a new array.
pub(crate) fn machine_with_array(world: Rc<World>, scenario: Scenario) -> Rc<Machine> {
    let (geometry, unit) = (scenario.geometry, u64::from(scenario.unit));
    let oracle = Oracle::new(geometry.array_bytes() / unit, !geometry.level().is_striped());
    let machine = recorded::guarded_machine(world, scenario, oracle);
    create(&machine);
    machine
}

fn create(machine: &Machine) {
    let members = machine.geometry().members();
    let disks: Vec<Rc<Disk>> = (0..members).map(|_| machine.new_disk(false)).collect();
    let member = |(slot, disk): (Slot, &Rc<Disk>)| NewMember {
        device_bytes: disk.places.size,
        device_uuid: uuid(disk.number),
        role: DeviceRole::Active(slot),
    };
    let devices: Vec<NewMember> = Slot::all().zip(&disks).map(member).collect();
    let all_set = machine.world.random().one_in(2);
    let created = new_array(machine).create(&devices).expect("an array of simulated members");
    for (disk, mut superblock) in disks.iter().zip(created.superblocks) {
        if !machine.scenario.bad_log {
            superblock.drop_bad_block_log(); // without one, a block that cannot be reconstructed ends a rebuild
        }
        let block_bytes = disk.places.block as usize;
        if let Some((bitmap, start)) = created.bitmap.as_ref().zip(superblock.bitmap_start()) {
            // Parity agrees, so no bit is needed; a new array of the program's has all of them set.
            let mut bitmap = bitmap.clone();
            bitmap.set_daemon_sleep_s(1); // a history is short
            let bitmap = Bitmap::new(bitmap, all_set);
            (0..bitmap.pages()).for_each(|page| {
                let offset =
                    DeviceOffset::of_sector(start) + page as u64 * layout::md_bitmap::PAGE_BYTES as u64;
                disk.put(offset, &bitmap.page(page, block_bytes));
            });
        }
        disk.put(superblock.offset(), &superblock.encode(block_bytes));
    }
}

fn new_array(machine: &Machine) -> NewArray {
    let (scenario, geometry) = (&machine.scenario, machine.geometry());
    NewArray {
        minor: scenario.metadata,
        set_uuid: *b"simulated array.",
        name: "sim:array".to_string(),
        ctime_s: 1,
        level: geometry.level(),
        layout: geometry.layout(),
        chunk_bytes: geometry.chunk_bytes(),
        raid_disks: geometry.members(),
        bitmap: match scenario.consistency {
            Consistency::Bitmap(chunk) if scenario.mapping().is_some_and(|mapping| mapping.is_spread()) => {
                NewBitmap::Spread(Some(chunk))
            }
            Consistency::Bitmap(chunk) => NewBitmap::Internal(Some(chunk)),
            Consistency::None | Consistency::Resync => NewBitmap::None,
        },
        member_bytes: Some(geometry.member_bytes()),
        data_offset: Some(Sectors::from_bytes_floor(scenario.data_offset)),
        clean: true,
    }
}

/// The superblock of a device that joins the array of `template` as a spare. It is a member anew each time, with an identity
/// that it never had.
pub(crate) fn join(template: &Superblock, dev_number: u32, disk: &Disk) -> Superblock {
    let mut identity = uuid(disk.number);
    identity[12..].copy_from_slice(&dev_number.to_le_bytes());
    let joined = template.for_new_device(dev_number, identity, disk.places.size);
    joined.expect("a device that is large enough")
}

fn uuid(device: u32) -> [u8; 16] {
    let mut uuid = *b"device      ....";
    uuid[8..12].copy_from_slice(&device.to_le_bytes());
    uuid
}

#[cfg(test)]
mod tests {
    use engine::buffer::{Buffer, Gather};
    use engine::device::Device;
    use layout::geometry::Level;

    use super::*;
    use crate::disk::SimDevice;
    use crate::random::Random;

    /// Parity agrees and the superblocks say clean: a write that changes data is found before it is applied, one that
    /// changes nothing is not.
    #[test]
    fn a_new_array_is_guarded_against_writes_while_clean() {
        for (byte, is_found) in [(0, false), (1, true)] {
            let random = Random::new(1);
            let mut scenario = Scenario::draw(&random, Some(Level::Raid5));
            scenario.consistency = Consistency::Resync;
            let machine = machine_with_array(World::new(random, 1), scenario);
            let disk = Rc::clone(&machine.all_disks.borrow()[0]);
            let mut block = Buffer::new(machine.unit() as usize);
            block.bytes_mut().fill(byte);
            drop(SimDevice::new(&disk).write(disk.places.data, Gather::from(block.freeze()), false));
            let failure = machine.world.failure();
            let found = failure.as_ref().is_some_and(|what| what.starts_with("invariant 2: device 0: write"));
            assert_eq!((found, failure.is_some()), (is_found, is_found), "{failure:?}");
        }
    }
}
