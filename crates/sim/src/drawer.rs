//! Where devices come from: those of a new array, with superblocks on them, and others to replace them.

use std::rc::Rc;

use layout::geometry::Level;
use layout::md_bitmap::Bitmap;
use layout::md_superblock::{DeviceRole, MinorVersion, NewArray, NewBitmap, NewMember, Superblock};
use layout::units::Sectors;

use crate::array::Machine;
use crate::disk::{Disk, Places};
use crate::pages::Pages;
use crate::scenario::Consistency;

/// Room behind the data area for what metadata 1.0 keeps there.
const TAIL_BYTES: u64 = 64 << 10;

impl Machine {
    /// Makes the array: devices of zeroes, whose parity agrees, and the superblocks of a new array.
    pub(crate) fn create(&self) {
        let members = self.geometry().members();
        let disks: Vec<Rc<Disk>> = (0..members).map(|_| self.new_disk(false)).collect();
        let member = |slot: u16, disk: &Rc<Disk>| NewMember {
            device_bytes: disk.places.size,
            device_uuid: uuid(disk.number),
            role: DeviceRole::Active(slot),
        };
        let devices: Vec<NewMember> = (0u16..).zip(&disks).map(|(slot, disk)| member(slot, disk)).collect();
        let all_set = self.world.random().one_in(2);
        let created = self.new_array().create(&devices).expect("an array of simulated members");
        for (disk, mut superblock) in disks.iter().zip(created.superblocks) {
            if !self.scenario.bad_log {
                superblock.drop_bad_block_log(); // what nobody can make ends what makes the array whole
            }
            let block_bytes = disk.places.block as usize;
            if let Some((bitmap, start)) = created.bitmap.as_ref().zip(superblock.bitmap_start()) {
                // Parity agrees, so no bit is needed; a new array of the program's has all of them set.
                let mut bitmap = bitmap.clone();
                bitmap.set_daemon_sleep_s(1); // a history is short
                let bitmap = Bitmap::new(bitmap, all_set);
                (0..bitmap.pages()).for_each(|page| {
                    let offset = start.bytes() + page as u64 * layout::md_bitmap::PAGE_BYTES as u64;
                    disk.put(offset, &bitmap.page(page, block_bytes));
                });
            }
            disk.put(superblock.offset(), &superblock.encode(block_bytes));
        }
    }

    fn new_array(&self) -> NewArray {
        let (scenario, geometry) = (&self.scenario, self.geometry());
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
                Consistency::Bitmap(chunk)
                    if scenario.mapping().is_some_and(|mapping| mapping.is_spread()) =>
                {
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

    /// A device of the right size: zeroes, or with `foreign` contents of its own.
    pub(crate) fn new_disk(&self, foreign: bool) -> Rc<Disk> {
        let number = u32::try_from(self.all_disks.borrow().len()).expect("few devices");
        let places = self.places_on_device();
        let contents = Pages::new(places.size, foreign.then_some(number));
        let abilities = self.scenario.abilities(self.world.random());
        let disk = Disk::new(number, contents, (&self.world, &self.guard), places, abilities);
        disk.faults.borrow_mut().transient_one_in = self.scenario.faults.transient_one_in;
        disk.faults.borrow_mut().flushes_lie = self.scenario.faults.flushes_lie;
        self.all_disks.borrow_mut().push(Rc::clone(&disk));
        self.guard.metadata_changed();
        disk
    }

    pub(crate) fn places_on_device(&self) -> Places {
        let (scenario, geometry) = (&self.scenario, self.geometry());
        let data = scenario.data_offset;
        let data_end = data + geometry.member_bytes();
        let size = match (geometry.level(), scenario.metadata) {
            (Level::Raid0, _) => data_end, // all that is there is used
            (_, MinorVersion::V1_0) => data_end.next_multiple_of(4096) + TAIL_BYTES,
            _ => data_end.next_multiple_of(4096),
        };
        let superblock = scenario.metadata.superblock_offset(size).expect("a device that is large enough");
        Places { size, superblock, data, data_end, block: scenario.unit }
    }
}

/// The superblock of a device that joins the array of `template` as a spare.
pub(crate) fn join(template: &Superblock, dev_number: u32, disk: &Disk) -> Superblock {
    let joined = template.for_new_device(dev_number, uuid(disk.number), disk.places.size);
    joined.expect("a device that is large enough")
}

fn uuid(device: u32) -> [u8; 16] {
    let mut uuid = *b"device      ....";
    uuid[8..12].copy_from_slice(&device.to_le_bytes());
    uuid
}
