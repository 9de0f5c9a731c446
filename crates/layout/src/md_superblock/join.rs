//! The superblock of a device that joins an array, and room for its number in those of the array: the table of roles grows as
//! md's does when a device with a higher number comes.

use super::{DeviceRole, Features, HEADER_BYTES, MAX_DEV, MinorVersion, Superblock, SuperblockError};
use crate::units::Sectors;

/// A superblock is written in sectors of this size: what a new place costs, the rest of the sector does not.
const SECTOR: usize = 512;

impl Superblock {
    /// The superblock of a device of `device_bytes` that joins this array as a spare. Data, bitmap and bad-block log
    /// are where this member has them; counts and marks of this member's history are cleared. As in mdadm, the data
    /// area is as large as the device allows, so that the array can be grown later.
    ///
    /// # Errors
    /// [`SuperblockError`] if the device is too small, the areas do not fit on it, or the table of roles has no place
    /// for `dev_number`.
    pub fn for_new_device(
        &self,
        dev_number: u32,
        device_uuid: [u8; 16],
        device_bytes: u64,
    ) -> Result<Self, SuperblockError> {
        if dev_number as usize >= self.roles.len() {
            return Err(SuperblockError::Field {
                field: "dev_number",
                found: dev_number.into(),
                expected: format!("below max_dev, {}", self.roles.len()),
            });
        }
        let mut new = self.clone();
        new.tail.clear();
        new.set_device(dev_number, device_uuid);
        new.set_role(dev_number, DeviceRole::Spare);
        new.raw.devflags = 0;
        new.set_corrected_reads(0);
        new.set_recovery_offset(None);
        new.set_features(new.features().with(Features::BAD_BLOCKS, false));
        new.place_data(self, device_bytes)?;
        // Parsing checks that everything fits on the device.
        Self::parse(&new.encode(4096), self.minor, device_bytes)
    }

    /// A superblock like this one whose table of roles has room for `dev_number`, on a device of `device_bytes`. It fills up
    /// its last sector.
    ///
    /// # Errors
    /// [`SuperblockError`] if md takes no number so high, or the superblock would grow into what is behind it.
    pub fn with_role_for(&self, dev_number: u32, device_bytes: u64) -> Result<Self, SuperblockError> {
        if (dev_number as usize) < self.roles.len() {
            return Ok(self.clone());
        }
        if dev_number >= MAX_DEV {
            return Err(SuperblockError::RoleCount { found: dev_number.saturating_add(1) });
        }
        let bytes = (HEADER_BYTES + (dev_number as usize + 1) * 2).next_multiple_of(SECTOR);
        let roles = ((bytes - HEADER_BYTES) / 2).min(MAX_DEV as usize);
        let mut new = self.clone();
        let added = (roles - self.roles.len()) * 2;
        new.roles.resize(roles, DeviceRole::SPARE);
        new.raw.max_dev.set(u32::try_from(roles).expect("at most 1920"));
        new.tail.drain(..added.min(new.tail.len()));
        new.check_areas(Sectors::from_bytes_floor(device_bytes))?;
        Ok(new)
    }

    fn place_data(&mut self, like: &Self, device_bytes: u64) -> Result<(), SuperblockError> {
        let super_offset = Sectors::from_bytes_floor(self.minor.superblock_offset(device_bytes)?);
        self.raw.super_offset.set(super_offset.0);
        let end = match self.minor {
            // Bitmap and bad-block log lie between data and superblock; they keep their room.
            MinorVersion::V1_0 => {
                let between = like.super_offset().0 - like.data_offset().0 - like.data_size().0;
                super_offset.0.saturating_sub(between)
            }
            MinorVersion::V1_1 | MinorVersion::V1_2 => Sectors::from_bytes_floor(device_bytes).0,
        };
        self.raw.data_size.set(end.saturating_sub(like.data_offset().0));
        if self.data_size() >= like.size() {
            return Ok(());
        }
        Err(SuperblockError::Field {
            field: "data_size",
            found: self.data_size().0,
            expected: format!("at least what the array uses of each member, {}", like.size()),
        })
    }
}
