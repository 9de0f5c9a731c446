//! Where an array that has no bitmap gets one, as `mdadm --grow --bitmap=internal` gives it one (`add_internal_bitmap1` in its
//! super1.c).

use super::{MinorVersion, Superblock};
use crate::geometry::{Geometry, Level};
use crate::md_bitmap::{self, BitmapSuper};
use crate::units::{SECTOR_BYTES, Sectors};

/// What mdadm leaves between superblock and bitmap, and keeps for a bad-block log where there is none.
const BLOCK_SECTORS: i64 = 8;

/// mdadm takes no more for a bitmap whose chunk it chooses.
const ROOM_UNASKED_SECTORS: i64 = (128 << 10) / SECTOR_BYTES as i64;

/// Why an array gets no bitmap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BitmapError {
    /// RAID-0 has no parity and no copies.
    #[error("RAID-0 has nothing to resync")]
    NothingToResync,
    /// What stands around the superblock leaves no block free that all members have.
    #[error("there is no room for a bitmap beside the superblocks")]
    NoRoom,
    /// The chunk is no power of two, or so small that the bitmap would not fit.
    #[error(
        "a bitmap with chunks of {chunk_bytes} bytes does not fit beside the superblocks: at least {least} are needed"
    )]
    Chunk {
        /// The chunk asked for, in bytes.
        chunk_bytes: u32,
        /// The least that fits.
        least: u32,
    },
}

/// Where a member has room for a bitmap, in sectors from its superblock on; the room before a superblock counts below 0. md's bitmap
/// has the same distance from the superblock on every member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitmapSpace {
    start: i64,
    end: i64,
    /// It is used from its end on: the superblock follows the data.
    from_end: bool,
}

impl BitmapSpace {
    /// Where a member has room: after the superblock up to the bad-block log or the data, or, where the data comes
    /// first, between data and bad-block log.
    #[must_use]
    pub fn of(superblock: &Superblock) -> BitmapSpace {
        let log = superblock.bad_block_log().map(|(start, _)| distance(superblock, start));
        match superblock.minor {
            MinorVersion::V1_0 => BitmapSpace {
                start: distance(superblock, Sectors(superblock.data_offset().0 + superblock.data_size().0)),
                end: log.filter(|log| *log < 0).unwrap_or(-BLOCK_SECTORS),
                from_end: true,
            },
            MinorVersion::V1_1 | MinorVersion::V1_2 => BitmapSpace {
                start: BLOCK_SECTORS,
                end: log.unwrap_or_else(|| distance(superblock, superblock.data_offset()) - BLOCK_SECTORS),
                from_end: false,
            },
        }
    }

    /// What both have.
    #[must_use]
    pub fn intersect(self, other: Self) -> Self {
        let (start, end) = (self.start.max(other.start), self.end.min(other.end));
        BitmapSpace { start, end, from_end: self.from_end }
    }

    /// The part before a sector of the device on which `superblock` is.
    #[must_use]
    pub fn before(self, superblock: &Superblock, sector: Sectors) -> Self {
        BitmapSpace { end: self.end.min(distance(superblock, sector)), ..self }
    }

    /// The bitmap that fits in here, and its distance from the superblock: with chunks of `chunk_bytes`, or of mdadm's choice.
    ///
    /// # Errors
    /// [`BitmapError`]
    pub fn choose(
        self,
        set_uuid: [u8; 16],
        geometry: &Geometry,
        chunk_bytes: Option<u32>,
    ) -> Result<(BitmapSuper, i32), BitmapError> {
        if geometry.level() == Level::Raid0 {
            return Err(BitmapError::NothingToResync);
        }
        let room = (self.end - self.start) / BLOCK_SECTORS * BLOCK_SECTORS;
        let room = if chunk_bytes.is_none() { room.min(ROOM_UNASKED_SECTORS) } else { room };
        let room_bytes =
            u64::try_from(room).ok().filter(|room| *room > 0).ok_or(BitmapError::NoRoom)? * SECTOR_BYTES;
        let sync_size = md_bitmap::sync_sectors(geometry);
        let least = BitmapSuper::least_chunk_bytes(sync_size, room_bytes).ok_or(BitmapError::NoRoom)?;
        let chunk_bytes = chunk_bytes.unwrap_or_else(|| least.max(md_bitmap::CHUNK_BYTES_DEFAULT));
        if chunk_bytes < least || !chunk_bytes.is_power_of_two() {
            return Err(BitmapError::Chunk { chunk_bytes, least });
        }
        let bitmap = BitmapSuper::new(set_uuid, sync_size, chunk_bytes);
        let sectors = bitmap.bitmap_bytes().next_multiple_of(4096) / SECTOR_BYTES;
        let sectors = i64::try_from(sectors).expect("it fits in the room");
        let distance = if self.from_end { self.end - sectors } else { self.start };
        Ok((bitmap, i32::try_from(distance).map_err(|_| BitmapError::NoRoom)?))
    }
}

/// Sectors from the superblock to a sector of its device.
fn distance(superblock: &Superblock, sector: Sectors) -> i64 {
    let signed = |sectors: Sectors| i64::try_from(sectors.0).expect("parse checks that it is on a device");
    signed(sector) - signed(superblock.super_offset())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::geometry::Layout;
    use crate::md_superblock::{DeviceRole, NewArray, NewBitmap, NewMember};
    use crate::units::Slot;

    const DEVICE_BYTES: u64 = 64 << 20;

    fn array(minor: MinorVersion, level: Level, device_bytes: u64) -> NewArray {
        let member_bytes = Some(device_bytes / 2);
        let (layout, bitmap) = (Layout::default_for(level), NewBitmap::None);
        NewArray { minor, layout, bitmap, member_bytes, ..NewArray::new([7; 16], level, 3) }
    }

    fn superblocks(array: &NewArray, device_bytes: u64) -> Vec<Superblock> {
        let member = |slot: u16| NewMember {
            device_bytes,
            device_uuid: [slot as u8 + 1; 16],
            role: DeviceRole::Active(Slot::new(slot.into())),
        };
        array.create(&[member(0), member(1), member(2)]).expect("an array").superblocks
    }

    /// The place and the chunk are those that `create` would have chosen, since that leaves the room for it.
    #[test]
    fn the_bitmap_stands_where_it_would_have_been_created() {
        for minor in [MinorVersion::V1_0, MinorVersion::V1_1, MinorVersion::V1_2] {
            for (device_bytes, chunk) in [
                (DEVICE_BYTES, None),
                (DEVICE_BYTES, Some(64 << 10)),
                (1 << 40, None),
                (1 << 40, Some(8 << 20)),
            ] {
                let array = array(minor, Level::Raid5, device_bytes);
                let without = superblocks(&array, device_bytes);
                let created = NewArray { bitmap: NewBitmap::Internal(chunk), ..array };
                let wanted = superblocks(&created, device_bytes);
                let geometry = without[0].geometry().expect("a geometry");
                let (bitmap, distance) =
                    BitmapSpace::of(&without[0]).choose([7; 16], &geometry, chunk).expect("room");
                let with = without[0].with_bitmap(distance, device_bytes).expect("it is free");
                if minor == MinorVersion::V1_0 {
                    assert_eq!(with.bitmap_start(), wanted[0].bitmap_start(), "{device_bytes} {chunk:?}");
                } else {
                    // The room may be larger: `create` puts the bad-block log right behind the bitmap.
                    assert_eq!(distance, 8);
                }
                let room = with.bitmap_room(device_bytes).expect("a bitmap");
                assert!(bitmap.bitmap_bytes() <= room, "{minor} {device_bytes} {chunk:?}");
                let parsed = Superblock::parse(&with.encode(512), minor, device_bytes);
                assert_eq!(parsed.expect("md reads it").encode(512), with.encode(512));
                assert_eq!(with.without_bitmap().encode(512), without[0].encode(512));
            }
        }
    }

    #[test]
    fn a_chunk_that_does_not_fit_names_the_least_that_does() {
        let array = array(MinorVersion::V1_2, Level::Raid5, DEVICE_BYTES);
        let superblock = &superblocks(&array, DEVICE_BYTES)[0];
        let (space, geometry) = (BitmapSpace::of(superblock), superblock.geometry().expect("a geometry"));
        // 4 KiB of room: 30720 bits behind the bitmap's superblock, more than 32 MiB have blocks.
        assert_eq!(space.end - space.start, 8);
        assert!(space.choose([7; 16], &geometry, Some(4096)).is_ok());
        for chunk_bytes in [512, 2048, 12 << 10] {
            let refused = space.choose([7; 16], &geometry, Some(chunk_bytes));
            assert_eq!(refused.err(), Some(BitmapError::Chunk { chunk_bytes, least: 4096 }));
        }
        let large = Geometry::new(Level::Raid5, Layout::default_for(Level::Raid5), 3, 64 << 10, 1 << 40);
        let refused = space.choose([7; 16], &large.expect("a geometry"), Some(1 << 20));
        assert_eq!(refused.err(), Some(BitmapError::Chunk { chunk_bytes: 1 << 20, least: 64 << 20 }));
    }

    #[test]
    fn what_stands_in_the_way_is_not_written_over() {
        let array = array(MinorVersion::V1_2, Level::Raid5, DEVICE_BYTES);
        let mut superblock = superblocks(&array, DEVICE_BYTES).remove(0);
        let geometry = superblock.geometry().expect("a geometry");
        let (log, _) = superblock.bad_block_log().expect("a log");
        assert_eq!(
            BitmapSpace::of(&superblock).end,
            distance(&superblock, log),
            "it ends at the bad-block log"
        );
        let none =
            BitmapSpace::of(&superblock).before(&superblock, Sectors(superblock.super_offset().0 + 15));
        assert_eq!(none.choose([7; 16], &geometry, None).err(), Some(BitmapError::NoRoom));
        superblock.drop_bad_block_log();
        let data = distance(&superblock, superblock.data_offset());
        assert_eq!(BitmapSpace::of(&superblock).end, data - 8, "as mdadm, which may want room for a log");
        assert!(superblock.with_bitmap(i32::try_from(data).expect("near"), DEVICE_BYTES).is_err());
    }

    #[test]
    fn raid0_gets_none() {
        let array = NewArray { member_bytes: None, ..array(MinorVersion::V1_2, Level::Raid0, DEVICE_BYTES) };
        let superblock = &superblocks(&array, DEVICE_BYTES)[0];
        let geometry = superblock.geometry().expect("a geometry");
        let refused = BitmapSpace::of(superblock).choose([7; 16], &geometry, None);
        assert_eq!(refused.err(), Some(BitmapError::NothingToResync));
    }

    #[test]
    fn the_newest_superblock_decides_for_the_others() {
        let array = array(MinorVersion::V1_2, Level::Raid5, DEVICE_BYTES);
        let old = superblocks(&array, DEVICE_BYTES);
        let newest = old[0].with_bitmap(8, DEVICE_BYTES).expect("it is free");
        let followed = old[1].with_bitmap_of(&newest, DEVICE_BYTES).expect("it had none");
        assert_eq!(followed.bitmap_start(), newest.bitmap_start());
        assert!(followed.with_bitmap_of(&newest, DEVICE_BYTES).is_none(), "nothing is left to change");
        let without = followed.with_bitmap_of(&old[0], DEVICE_BYTES).expect("it had one");
        assert_eq!(without.encode(512), old[1].encode(512));
    }
}
