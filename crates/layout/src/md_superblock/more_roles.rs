//! A table of roles that has no unused place left gets more, as md's grows when a device with a higher number comes.

use super::{DeviceRole, HEADER_BYTES, MAX_DEV, Superblock, SuperblockError};
use crate::units::Sectors;

/// A superblock is written in sectors of this size: what a new place costs, the rest of the sector does not.
const SECTOR: usize = 512;

impl Superblock {
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
}
