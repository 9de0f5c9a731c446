//! A place in the array to be.

use std::path::PathBuf;

use layout::md_superblock::DeviceRole;

use crate::probe::member_file::MemberFile;
use crate::probe::signatures::Signature;

/// A member of the array to be.
pub struct Place {
    /// As it was named.
    pub path: PathBuf,
    /// Slot or spare.
    pub role: DeviceRole,
    /// Size of the file or device, in bytes.
    pub device_bytes: u64,
    /// Held against others; none for a file that is still to be made.
    pub member: Option<MemberFile>,
    /// What was found on it and is given up.
    pub found: Vec<Signature>,
}
