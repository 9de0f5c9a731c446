//! The superblocks of a new array. Every choice is mdadm's, so that mdadm can examine, assemble and grow the array as
//! one of its own.

use zerocopy::FromZeros;

use super::raw::RawSuperblock;
use super::{
    ALL_SECTORS, DeviceRole, Features, HEADER_BYTES, MAGIC, MAX_DEV, MinorVersion, Superblock,
    SuperblockError,
};
use crate::geometry::{Geometry, GeometryError, Layout, Level};
use crate::md_bitmap::{self, BitmapSuper};
use crate::units::{SECTOR_BYTES, Sectors, Slot};

/// mdadm aligns data to this.
const DATA_ALIGN: u64 = (1 << 20) / SECTOR_BYTES;

/// Sectors of the bad-block log: 512 entries.
const BAD_BLOCK_LOG: u64 = 8;

/// Why an array cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// Level, layout, chunk and members make no array.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The new superblock does not parse, so that no program could read it back.
    #[error("the new superblock of device {device} is not valid: {source}")]
    Superblock {
        /// The device's place among those given.
        device: usize,
        /// What is wrong.
        source: SuperblockError,
    },
    /// The name is longer than its field.
    #[error("name {0:?} is longer than 32 bytes")]
    Name(String),
    /// A device has no room for superblock, bitmap and one chunk.
    #[error("device {device} of {device_bytes} bytes is too small: data would begin at {data_offset}")]
    DeviceTooSmall {
        /// The device's place among those given.
        device: usize,
        /// Its size, in bytes.
        device_bytes: u64,
        /// Where data would begin.
        data_offset: Sectors,
    },
    /// The caller asks for more bytes of each member than the smallest device has.
    #[error("{asked} bytes of each member asked for, the smallest has {most}")]
    Size {
        /// Bytes asked for.
        asked: u64,
        /// Bytes there are.
        most: u64,
    },
    /// Two devices have the same role, a role is not one of a new array, or there are more devices than roles.
    #[error("devices do not fit the members: {0}")]
    Roles(String),
    /// Too many members are missing.
    #[error("{level} cannot start with these {missing} members missing")]
    TooManyMissing {
        /// The level asked for.
        level: Level,
        /// Members without a device.
        missing: u32,
    },
    /// The bitmap's chunk is not a power of two, or so small that the bitmap would not fit.
    #[error("bitmap chunk of {chunk_bytes} bytes: wants a power of two of at least {least}")]
    BitmapChunk {
        /// The chunk asked for, in bytes.
        chunk_bytes: u32,
        /// The least that fits.
        least: u32,
    },
    /// This array cannot have a bitmap: its level has nothing to resync, or it is too small.
    #[error("no bitmap for this array: {0}")]
    NoBitmap(&'static str),
}

/// The bitmap of a new array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewBitmap {
    /// None.
    None,
    /// Beside the superblock, with this chunk in bytes, or with mdadm's choice.
    Internal(Option<u32>),
    /// As `Internal`, with the bits spread over the stripes. md does not start such an array.
    Spread(Option<u32>),
}

/// A device of a new array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewMember {
    /// Size of the device, in bytes.
    pub device_bytes: u64,
    /// A new random identity.
    pub device_uuid: [u8; 16],
    /// Active or spare.
    pub role: DeviceRole,
}

/// An array to make. Randomness and time come from the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewArray {
    /// Where to put the superblock; normally 1.2.
    pub minor: MinorVersion,
    /// Where data begins; `None` for [`default_data_offset`] of the first device.
    pub data_offset: Option<Sectors>,
    /// A new random identity.
    pub set_uuid: [u8; 16],
    /// Name of the array, normally `host:name`; at most 32 bytes.
    pub name: String,
    /// Now, in seconds since 1970.
    pub ctime_s: u64,
    /// The level.
    pub level: Level,
    /// The layout. RAID-0 with unequal members wants [`Layout::Raid0Alternate`].
    pub layout: Layout,
    /// Bytes in a chunk; 0 for RAID-1.
    pub chunk_bytes: u32,
    /// Members, those without a device included.
    pub raid_disks: u32,
    /// Bytes of each member to use; `None` for all of the smallest, at RAID-0 all of each.
    pub member_bytes: Option<u64>,
    /// The bitmap.
    pub bitmap: NewBitmap,
    /// Parity or copies are in sync already (mdadm's `--assume-clean`). Otherwise the array starts with a resync.
    pub clean: bool,
}

/// What to write for a new array.
#[derive(Clone, Debug)]
pub struct Created {
    /// One for each device, in the order they were given.
    pub superblocks: Vec<Superblock>,
    /// The bitmap's superblock, the same for every device. The caller writes all bits after it as set.
    pub bitmap: Option<BitmapSuper>,
}

/// Where mdadm lets data begin: after superblock, bad-block log, room for a bitmap, and headroom for a reshape (a
/// thousandth of the device, at most 128 MiB), rounded up to 1 MiB. At version 1.0 data begins at 0.
#[must_use]
pub fn default_data_offset(minor: MinorVersion, device_bytes: u64, chunk_bytes: u32) -> Sectors {
    if minor == MinorVersion::V1_0 {
        return Sectors(0);
    }
    let device = device_bytes / SECTOR_BYTES;
    let chunk = u64::from(chunk_bytes) / SECTOR_BYTES;
    let mut headroom = (128 << 20) / SECTOR_BYTES;
    while headroom << 10 > device && (chunk == 0 || headroom / 2 >= chunk * 2) {
        headroom >>= 1;
    }
    Sectors((24 + bitmap_room(device) + headroom).next_multiple_of(DATA_ALIGN))
}

/// Sectors that mdadm keeps for a bitmap on a device, or for a member, of this many sectors.
fn bitmap_room(sectors: u64) -> u64 {
    const GIB: u64 = (1 << 30) / SECTOR_BYTES;
    match sectors {
        0..128 => 0,
        _ if sectors - 128 >= 200 * GIB => 256,
        _ if sectors - 8 > 8 * GIB => 128,
        _ => 8,
    }
}

impl NewArray {
    /// An array in sync, with the choices that mdadm makes unasked: version 1.2, the level's default layout, chunks of
    /// 512 KiB, and all of each member. It has an internal bitmap if its level has anything to resync. Name and time of
    /// creation are empty.
    #[must_use]
    pub fn new(set_uuid: [u8; 16], level: Level, raid_disks: u32) -> Self {
        NewArray {
            minor: MinorVersion::V1_2,
            data_offset: None,
            set_uuid,
            name: String::new(),
            ctime_s: 0,
            level,
            layout: Layout::default_for(level),
            chunk_bytes: if level == Level::Raid1 { 0 } else { 512 << 10 },
            raid_disks,
            member_bytes: None,
            bitmap: if level == Level::Raid0 { NewBitmap::None } else { NewBitmap::Internal(None) },
            clean: true,
        }
    }

    /// Superblocks and bitmap for these devices. The first device's size decides where data begins on all of them.
    ///
    /// # Errors
    /// [`CreateError`]
    pub fn create(&self, devices: &[NewMember]) -> Result<Created, CreateError> {
        if self.name.len() > 32 {
            return Err(CreateError::Name(self.name.clone()));
        }
        let numbers = self.dev_numbers(devices)?;
        let first = devices.first().ok_or_else(|| CreateError::Roles("there are no devices".into()))?;
        let data_offset = self
            .data_offset
            .unwrap_or_else(|| default_data_offset(self.minor, first.device_bytes, self.chunk_bytes));
        let geometry = self.geometry(devices, data_offset)?;
        self.check_missing(&geometry, devices)?;
        let bitmap = self.new_bitmap(&geometry)?;
        let mut roles = vec![DeviceRole::SPARE; self.role_count(&numbers)];
        for (device, number) in devices.iter().zip(&numbers) {
            roles[*number as usize] = device.role.md();
        }
        let mut superblocks = Vec::with_capacity(devices.len());
        for (i, (device, number)) in devices.iter().zip(&numbers).enumerate() {
            let mut raw = self.common(&geometry, data_offset, roles.len());
            raw.dev_number.set(*number);
            raw.device_uuid = device.device_uuid;
            self.place(&mut raw, device.device_bytes, bitmap.as_ref());
            // RAID-0 has no size of its own: what each member gives is all that md goes by.
            if let Some(bytes) = self.member_bytes.filter(|_| self.level == Level::Raid0) {
                raw.data_size.set(raw.data_size.get().min(bytes / SECTOR_BYTES));
            }
            let superblock = Superblock { raw, roles: roles.clone(), minor: self.minor, tail: Vec::new() };
            // The superblock that was checked is the one that is written, checksum included.
            let superblock = Superblock::parse(&superblock.encode(512), self.minor, device.device_bytes)
                .map_err(|source| CreateError::Superblock { device: i, source })?;
            superblocks.push(superblock);
        }
        Ok(Created { superblocks, bitmap })
    }

    /// Device numbers: a member's is its slot, those of spares follow.
    fn dev_numbers(&self, devices: &[NewMember]) -> Result<Vec<u32>, CreateError> {
        let mut taken = vec![false; self.raid_disks as usize];
        let mut spare = self.raid_disks;
        let mut numbers = Vec::with_capacity(devices.len());
        for device in devices {
            numbers.push(match device.role {
                DeviceRole::Active(member) => {
                    let taken = taken.get_mut(member.index()).ok_or_else(|| {
                        CreateError::Roles(format!("there is no member {member} of {}", self.raid_disks))
                    })?;
                    if std::mem::replace(taken, true) {
                        return Err(CreateError::Roles(format!("member {member} has two devices")));
                    }
                    member.get()
                }
                DeviceRole::Spare => {
                    spare += 1;
                    spare - 1
                }
                DeviceRole::Faulty | DeviceRole::Journal => {
                    return Err(CreateError::Roles("a new device is a member or a spare".into()));
                }
            });
        }
        if spare > MAX_DEV {
            return Err(CreateError::Roles(format!("{spare} devices, a superblock has {MAX_DEV} roles")));
        }
        Ok(numbers)
    }

    /// The size of the table of roles: like mdadm's, it fills the superblock's last sector, which leaves room for
    /// spares.
    fn role_count(&self, numbers: &[u32]) -> usize {
        let devices = self.raid_disks.max(numbers.iter().max().map_or(0, |last| last + 1)) as usize;
        ((HEADER_BYTES + devices * 2).next_multiple_of(512) - HEADER_BYTES) / 2
    }

    fn geometry(&self, devices: &[NewMember], data_offset: Sectors) -> Result<Geometry, CreateError> {
        let mut most = u64::MAX;
        for (i, device) in devices.iter().enumerate() {
            let sectors = device.device_bytes / SECTOR_BYTES;
            // Superblock, bad-block log and bitmap follow the data at version 1.0 and precede it otherwise.
            let free = match self.minor {
                MinorVersion::V1_0 => (sectors & !7).checked_sub(data_offset.0 + 24 + bitmap_room(sectors)),
                MinorVersion::V1_1 | MinorVersion::V1_2 => sectors.checked_sub(data_offset.0),
            };
            let free = free.filter(|free| *free > 0).ok_or(CreateError::DeviceTooSmall {
                device: i,
                device_bytes: device.device_bytes,
                data_offset,
            })?;
            // mdadm rounds down to whole KiB.
            most = most.min(free / 2 * 2 * SECTOR_BYTES);
        }
        let used = self.member_bytes.unwrap_or(most);
        if used > most {
            return Err(CreateError::Size { asked: used, most });
        }
        Ok(Geometry::new(self.level, self.layout, self.raid_disks, self.chunk_bytes, used)?)
    }

    fn check_missing(&self, geometry: &Geometry, devices: &[NewMember]) -> Result<(), CreateError> {
        let has_device = |slot: Slot| devices.iter().any(|device| device.role == DeviceRole::Active(slot));
        if geometry.survives(|slot| !has_device(slot)) {
            return Ok(());
        }
        let missing = geometry.slots().filter(|slot| !has_device(*slot)).count() as u32;
        Err(CreateError::TooManyMissing { level: self.level, missing })
    }

    fn new_bitmap(&self, geometry: &Geometry) -> Result<Option<BitmapSuper>, CreateError> {
        let (asked, is_spread) = match self.bitmap {
            NewBitmap::None => return Ok(None),
            NewBitmap::Internal(asked) => (asked, false),
            NewBitmap::Spread(asked) => (asked, true),
        };
        if self.level == Level::Raid0 {
            return Err(CreateError::NoBitmap("RAID-0 has nothing to resync"));
        }
        let sync_size = md_bitmap::sync_sectors(geometry);
        let room = bitmap_room(geometry.member_bytes() / SECTOR_BYTES);
        let least = BitmapSuper::least_chunk_bytes(sync_size, room * SECTOR_BYTES)
            .ok_or(CreateError::NoBitmap("it has no room"))?;
        let chunk_bytes = asked.unwrap_or_else(|| least.max(md_bitmap::CHUNK_BYTES_DEFAULT));
        if chunk_bytes < least || !chunk_bytes.is_power_of_two() {
            return Err(CreateError::BitmapChunk { chunk_bytes, least });
        }
        let bitmap = BitmapSuper::new(self.set_uuid, sync_size, chunk_bytes);
        if !is_spread {
            return Ok(Some(bitmap));
        }
        if !md_bitmap::may_be_spread(geometry, self.chunk_bytes) {
            return Err(CreateError::NoBitmap("only levels with parity have stripes to spread bits over"));
        }
        if self.chunk_bytes > chunk_bytes {
            return Err(CreateError::BitmapChunk { chunk_bytes, least: self.chunk_bytes });
        }
        Ok(Some(bitmap.spread(self.chunk_bytes)))
    }

    fn common(&self, geometry: &Geometry, data_offset: Sectors, roles: usize) -> RawSuperblock {
        let mut raw = RawSuperblock::new_zeroed();
        raw.magic.set(MAGIC);
        raw.major_version.set(1);
        raw.set_uuid = self.set_uuid;
        raw.set_name[..self.name.len()].copy_from_slice(self.name.as_bytes());
        raw.ctime.set(self.ctime_s);
        raw.utime.set(self.ctime_s);
        raw.level.set(self.level.md_number());
        raw.layout.set(self.layout.md_word());
        if self.level != Level::Raid0 {
            raw.size.set(geometry.member_bytes() / SECTOR_BYTES);
        } else if self.layout != Layout::Unset {
            raw.feature_map.set(Features::RAID0_LAYOUT.0);
        }
        raw.chunksize.set(self.chunk_bytes / SECTOR_BYTES as u32);
        raw.raid_disks.set(self.raid_disks);
        raw.data_offset.set(data_offset.0);
        raw.resync_offset.set(if self.clean || self.level == Level::Raid0 { ALL_SECTORS } else { 0 });
        raw.max_dev.set(roles as u32);
        raw
    }

    /// Where superblock, bitmap and bad-block log are on this device.
    fn place(&self, raw: &mut RawSuperblock, device_bytes: u64, bitmap: Option<&BitmapSuper>) {
        let device = device_bytes / SECTOR_BYTES;
        let size = raw.size.get();
        let bitmap_sectors = bitmap.map(|bitmap| bitmap.bitmap_bytes().next_multiple_of(4096) / SECTOR_BYTES);
        let room = bitmap_sectors.unwrap_or_else(|| bitmap_room(size));
        if bitmap.is_some() {
            raw.feature_map.set(raw.feature_map.get() | Features::BITMAP_OFFSET.0);
        }
        if self.minor == MinorVersion::V1_0 {
            // From the superblock downwards: bad-block log, bitmap, data.
            let super_offset = (device - 16) & !7;
            let room = (room + BAD_BLOCK_LOG).min(super_offset.saturating_sub(raw.data_offset.get() + size));
            raw.super_offset.set(super_offset);
            raw.data_size.set(super_offset - room - raw.data_offset.get());
            if room >= BAD_BLOCK_LOG {
                raw.bblog_size.set(BAD_BLOCK_LOG as u16);
                raw.bblog_offset.set(-(BAD_BLOCK_LOG as i32));
            }
            if let Some(sectors) = bitmap_sectors {
                raw.bitmap_offset.set(-((sectors + BAD_BLOCK_LOG) as i32));
            }
            return;
        }
        // From the superblock upwards: bitmap, bad-block log, headroom, data.
        let super_offset = if self.minor == MinorVersion::V1_2 { 8 } else { 0 };
        raw.super_offset.set(super_offset);
        raw.data_size.set(device - raw.data_offset.get());
        if raw.data_offset.get() >= super_offset + 8 + room + BAD_BLOCK_LOG {
            raw.bblog_size.set(BAD_BLOCK_LOG as u16);
            raw.bblog_offset.set((8 + room) as i32);
        }
        if bitmap.is_some() {
            raw.bitmap_offset.set(8);
        }
    }
}
