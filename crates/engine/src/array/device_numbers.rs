//! Device numbers: what superblocks call the device of each, and which one a new device gets.
//!
//! A number is the only name by which md's superblock speaks of another device. One that a member had is given to another
//! device only when there is no other left: a superblock that was away meanwhile takes the one for the other.

use layout::md_superblock::{DeviceRole, HEADER_BYTES, MAX_DEV, Superblock};
use layout::units::{SECTOR_BYTES, Slot};

/// The devices of an array, by number.
pub(super) struct Numbers<'a> {
    /// In use, with the slot.
    pub(super) active: &'a [(u32, Slot)],
    /// Waiting for a slot.
    pub(super) spares: &'a [u32],
    /// Failed, removed or not there, ever since it is known.
    pub(super) failed: &'a [u32],
}

impl Numbers<'_> {
    /// Writes the roles of all numbers into a superblock.
    pub(super) fn tell(&self, superblock: &mut Superblock) {
        for number in 0..count(superblock) {
            let role = match self.active.iter().find(|(active, _)| *active == number) {
                Some((_, slot)) => DeviceRole::Active(*slot),
                None if self.spares.contains(&number) => DeviceRole::Spare,
                None if self.failed.contains(&number) => DeviceRole::Faulty,
                // A number that no device has, or whose device was not there when the array was assembled.
                None => match superblock.role_of(number) {
                    Some(DeviceRole::Active(_)) => DeviceRole::Faulty,
                    Some(role) => role,
                    None => continue,
                },
            };
            superblock.set_role(number, role);
        }
    }
}

/// Numbers that the superblocks of an array call failed.
pub(super) fn failed<'a>(superblocks: impl Iterator<Item = &'a Superblock>) -> Vec<u32> {
    let is_failed = |(_, role): &(u32, DeviceRole)| *role == DeviceRole::Faulty;
    let mut failed: Vec<u32> =
        superblocks.flat_map(|s| (0..).zip(s.roles()).filter(is_failed).map(|(number, _)| number)).collect();
    failed.sort_unstable();
    failed.dedup();
    failed
}

/// A device that had this number is not in use any more.
pub(super) fn note(failed: &mut Vec<u32>, number: u32) {
    if !failed.contains(&number) {
        failed.push(number);
    }
}

/// A number for a new device, that no device of the array has and that is not reserved; `all` are the superblocks of its
/// devices, which get room for it. One that another device had is the last to be taken.
pub(super) fn take(all: &mut [&mut Superblock], reserved: &[u32], failed: &mut Vec<u32>) -> Option<u32> {
    let free = {
        let known: Vec<&Superblock> = all.iter().map(|superblock| &**superblock).collect();
        let is_taken = |number: u32| {
            reserved.contains(&number) || known.iter().any(|superblock| superblock.dev_number() == number)
        };
        free(&known, is_taken, failed)
    };
    let number = free.into_iter().find_map(|number| match number {
        FreeNumber::Unused(number) | FreeNumber::Used(number) => Some(number),
        FreeNumber::Beyond(number) => make_room(all, number).then_some(number),
    })?;
    failed.retain(|failed| *failed != number);
    Some(number)
}

/// The tables of roles get a place for a number. False if one of them cannot grow. None grows into another sector: the
/// superblocks of all members are written at once, and a power cut can tear each one that is longer than a sector.
fn make_room(all: &mut [&mut Superblock], number: u32) -> bool {
    if all.iter().any(|superblock| sectors(number + 1) > sectors(count(superblock))) {
        return false;
    }
    // Each fits on its device as it is: only what stands behind the superblock may be in the way.
    let grown = all.iter().map(|superblock| superblock.with_role_for(number, u64::MAX));
    let Ok(grown) = grown.collect::<Result<Vec<Superblock>, _>>() else { return false };
    all.iter_mut().zip(grown).for_each(|(superblock, grown)| **superblock = grown);
    true
}

/// A number for a new device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FreeNumber {
    /// No device had it.
    Unused(u32),
    /// No device had it, and the tables of roles end before it.
    Beyond(u32),
    /// A device that failed had it.
    Used(u32),
}

/// The numbers to try, best first. `taken` says of a number that a device of the array has it, `failed` are those that one had.
pub(super) fn free(
    superblocks: &[&Superblock],
    taken: impl Fn(u32) -> bool,
    failed: &[u32],
) -> Vec<FreeNumber> {
    let roles = superblocks.iter().map(|superblock| count(superblock)).max().unwrap_or(0);
    let is_unused = |number: &u32| {
        let is_spare = |s: &&Superblock| matches!(s.role_of(*number), None | Some(DeviceRole::Spare));
        !failed.contains(number) && superblocks.iter().all(is_spare)
    };
    let free: Vec<u32> = (0..roles).filter(|number| !taken(*number)).collect();
    let unused = free.iter().copied().find(is_unused).map(FreeNumber::Unused);
    let beyond = (roles..MAX_DEV).find(|number| !taken(*number)).map(FreeNumber::Beyond);
    let used = free.iter().copied().find(|number| !is_unused(number)).map(FreeNumber::Used);
    [unused, beyond, used].into_iter().flatten().collect()
}

/// Sectors of a superblock with this many roles.
fn sectors(roles: u32) -> usize {
    (HEADER_BYTES + 2 * roles as usize).div_ceil(SECTOR_BYTES as usize)
}

fn count(superblock: &Superblock) -> u32 {
    u32::try_from(superblock.roles().len()).expect("a few roles")
}

#[cfg(test)]
mod tests {
    use layout::geometry::{Layout, Level};
    use layout::md_superblock::{MinorVersion, NewArray, NewBitmap, NewMember};

    use super::*;

    fn superblocks() -> Vec<Superblock> {
        let (level, members) = (Level::Raid1, 2);
        let array = NewArray {
            minor: MinorVersion::V1_2,
            set_uuid: [7; 16],
            name: "numbers".into(),
            ctime_s: 1,
            level,
            layout: Layout::default_for(level),
            chunk_bytes: 0,
            raid_disks: members.into(),
            bitmap: NewBitmap::None,
            member_bytes: None,
            data_offset: None,
            clean: true,
        };
        let member = |slot: u16| NewMember {
            device_bytes: 64 << 20,
            device_uuid: [slot as u8 + 1; 16],
            role: DeviceRole::Active(Slot::new(slot.into())),
        };
        array.create(&(0..members).map(member).collect::<Vec<_>>()).expect("an array").superblocks
    }

    /// A power cut tore the superblocks of all members, which had all grown into a second sector in the same round.
    #[test]
    fn superblocks_do_not_grow_into_another_sector() {
        let mut superblocks = superblocks();
        let before = sectors(count(&superblocks[0]));
        let mut failed = Vec::new();
        let mut taken: Vec<u32> = Vec::new();
        for _ in 0..300 {
            let mut all: Vec<&mut Superblock> = superblocks.iter_mut().collect();
            let number =
                take(&mut all, &[], &mut failed).expect("one that another device had, if there is no other");
            assert!(number > 1, "members have 0 and 1");
            assert!(
                taken.len() >= 126 || !taken.contains(&number),
                "{number} was another device's, and others were free"
            );
            taken.push(number);
            note(&mut failed, number);
            assert!(superblocks.iter().all(|superblock| sectors(count(superblock)) == before));
        }
    }
}
