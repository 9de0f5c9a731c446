//! Checks of a superblock's values, once magic and checksum say that md wrote the bytes.

use super::{DeviceRole, Features, MinorVersion, Superblock, SuperblockError};
use crate::geometry::{GeometryError, Layout, Level};
use crate::units::Sectors;

/// No device has more sectors than this. The sum of two sector numbers, and each of them in bytes, fits in 64 bits.
const SECTORS_MAX: u64 = 1 << 54;

/// The largest logical block of a block device, in bytes (Linux' BLK_MAX_BLOCK_SIZE).
const BLOCK_BYTES_MAX: u32 = 64 << 10;

impl Superblock {
    pub(super) fn check_values(&self) -> Result<(), SuperblockError> {
        let raw = &self.raw;
        let padded = [(raw.pad0.get() != 0, "pad0"), (raw.pad3 != [0; 28], "pad3")];
        if let Some((_, field)) = padded.into_iter().find(|(nonzero, _)| *nonzero) {
            return Err(SuperblockError::Padding { field });
        }
        let wrong = |field, found: u64, expected: &str| {
            Err(SuperblockError::Field { field, found, expected: expected.into() })
        };
        let level = Level::from_md_number(raw.level.get())?;
        self.checked_layout()?;
        // Checked before the multiplication by 512. The level's own limits are the geometry's.
        let chunk_sectors = raw.chunksize.get();
        if chunk_sectors > u32::MAX / 512 {
            return wrong("chunksize", chunk_sectors.into(), "below 2^23");
        }
        if chunk_sectors == 0 && level != Level::Raid1 {
            return wrong("chunksize", 0, "set, at any level but RAID-1");
        }
        if level != Level::Raid0 && chunk_sectors != 0 && !chunk_sectors.is_power_of_two() {
            return wrong("chunksize", chunk_sectors.into(), "a power of two");
        }
        if raw.raid_disks.get() == 0 || raw.raid_disks.get() > super::MAX_DEV {
            return wrong("raid_disks", raw.raid_disks.get().into(), "1 to 1920");
        }
        let block_bytes = raw.logical_block_size.get();
        if block_bytes != 0
            && !(block_bytes.is_power_of_two() && (512..=BLOCK_BYTES_MAX).contains(&block_bytes))
        {
            return wrong(
                "logical_block_size",
                block_bytes.into(),
                "0 or a power of two from 512 to 65536 bytes",
            );
        }
        if raw.bblog_shift >= 32 {
            return wrong("bblog_shift", raw.bblog_shift.into(), "below 32");
        }
        if self.resync_offset().is_some_and(|offset| offset.0 > SECTORS_MAX) {
            return wrong("resync_offset", raw.resync_offset.get(), "a place on a device, or all ones");
        }
        if self.recovery_offset().is_some_and(|offset| offset.0 > SECTORS_MAX) {
            return wrong("recovery_offset", raw.recovery_offset.get(), "a place on a device");
        }
        self.check_roles()
    }

    pub(super) fn checked_layout(&self) -> Result<Layout, GeometryError> {
        let level = Level::from_md_number(self.raw.level.get())?;
        // mdadm always writes the word, but without the feature bit md ignores it.
        if level == Level::Raid0 && !self.features().contains(Features::RAID0_LAYOUT) {
            return Ok(Layout::Unset);
        }
        Layout::from_md_word(level, self.raw.layout.get())
    }

    fn check_roles(&self) -> Result<(), SuperblockError> {
        let max_dev = self.roles.len() as u64;
        if u64::from(self.dev_number()) >= max_dev {
            return Err(SuperblockError::Field {
                field: "dev_number",
                found: self.dev_number().into(),
                expected: format!("below max_dev, {max_dev}"),
            });
        }
        // During a reshape roles may count up to the larger of two geometries, which is not always the one in
        // raid_disks.
        if self.features().contains(Features::RESHAPE_ACTIVE) {
            return Ok(());
        }
        let beyond = |role: &DeviceRole| match role {
            DeviceRole::Active(slot) => slot.get() >= self.raid_disks(),
            _ => false,
        };
        match self.roles().find(beyond) {
            Some(role) => Err(SuperblockError::Field {
                field: "dev_roles",
                found: role.md().into(),
                expected: format!("a member below raid_disks, {}", self.raid_disks()),
            }),
            None => Ok(()),
        }
    }

    pub(super) fn check_areas(&self, device: Sectors) -> Result<(), SuperblockError> {
        let raw = &self.raw;
        let fields = [
            ("size", raw.size.get()),
            ("data_offset", raw.data_offset.get()),
            ("data_size", raw.data_size.get()),
            ("super_offset", raw.super_offset.get()),
        ];
        for (field, found) in fields {
            if found > SECTORS_MAX {
                let expected = format!("at most {SECTORS_MAX}");
                return Err(SuperblockError::Field { field, found, expected });
            }
        }
        self.check_data(device)?;
        if let Some(start) = self.bitmap_start() {
            // Only the bitmap's own superblock knows its length (see `bitmap_room`); here its first sector must fit.
            self.check_area("bitmap", start, Sectors(1), device)?;
        }
        if let Some((start, length)) = self.bad_block_log() {
            self.check_area("bad-block log", start, length, device)?;
            if let Some(bitmap) = self.bitmap_start()
                && start <= bitmap
                && bitmap.0 < start.0 + length.0
            {
                let over = "the bitmap";
                return Err(SuperblockError::Overlap { area: "bad-block log", start, length, over });
            }
        }
        Ok(())
    }

    fn check_data(&self, device: Sectors) -> Result<(), SuperblockError> {
        let (data_offset, data_size) = (self.data_offset(), self.data_size());
        let limit = match self.minor {
            MinorVersion::V1_0 => self.super_offset(),
            MinorVersion::V1_1 | MinorVersion::V1_2 => device,
        };
        let after_superblock = self.super_offset().0 + self.superblock_sectors();
        if self.minor != MinorVersion::V1_0 && data_offset.0 < after_superblock {
            let limit = Sectors(after_superblock);
            return Err(SuperblockError::DataBeyondEnd { data_offset, data_size, limit });
        }
        if data_offset.0 + data_size.0 > limit.0 {
            return Err(SuperblockError::DataBeyondEnd { data_offset, data_size, limit });
        }
        // On a journal device `size` is that of the members; at RAID-0 it is 0.
        let has_size = matches!(self.role(), DeviceRole::Active(_)) && self.level() != Level::Raid0;
        if has_size && !(1..=data_size.0).contains(&self.size().0) {
            return Err(SuperblockError::Field {
                field: "size",
                found: self.size().0,
                expected: format!("1 to data_size, {data_size}"),
            });
        }
        if data_size.0 == 0 {
            let expected = "more than no data".into();
            return Err(SuperblockError::Field { field: "data_size", found: 0, expected });
        }
        Ok(())
    }

    fn check_area(
        &self,
        area: &'static str,
        start: Sectors,
        length: Sectors,
        device: Sectors,
    ) -> Result<(), SuperblockError> {
        let overlap = |over| Err(SuperblockError::Overlap { area, start, length, over });
        // A `start` before the device has wrapped around and is now beyond every end.
        if start.0 > SECTORS_MAX || start.0 + length.0 > device.0 {
            return overlap("the end of the device");
        }
        let meets = |at: Sectors, sectors: u64| start.0 < at.0 + sectors && at.0 < start.0 + length.0;
        if meets(self.super_offset(), self.superblock_sectors()) {
            return overlap("the superblock");
        }
        if meets(self.data_offset(), self.data_size().0) {
            return overlap("the data");
        }
        Ok(())
    }

    /// Bytes between the start of the bitmap and whatever follows it on the device. The bitmap with its superblock must
    /// fit in them. `None` if there is no bitmap.
    #[must_use]
    pub fn bitmap_room(&self, device_bytes: u64) -> Option<u64> {
        let start = self.bitmap_start()?;
        let log = self.bad_block_log().map(|(log, _)| log);
        let next = [Some(self.super_offset()), Some(self.data_offset()), log]
            .into_iter()
            .flatten()
            .filter(|next| *next > start)
            .min()
            .unwrap_or(Sectors::from_bytes_floor(device_bytes));
        Some(next.bytes() - start.bytes())
    }

    /// Sectors that header and roles occupy, rounded up.
    fn superblock_sectors(&self) -> u64 {
        (super::HEADER_BYTES + self.roles.len() * 2).div_ceil(512) as u64
    }
}
