//! What a level takes of members and chunks: md's limits, and where md has none Twill's; what of a member counts at RAID-0.

use super::error::GeometryError;
use super::level::{Layout, Level};

/// The smallest chunk: one page, as in md.
pub const CHUNK_BYTES_MIN: u32 = 4 << 10;

/// The largest chunk that Twill runs. md has no limit of its own; mdadm's default is 512 KiB.
pub const CHUNK_BYTES_MAX: u32 = 64 << 20;

/// The most members: the number of roles that fit in a 4 KiB md superblock.
pub const MEMBERS_MAX: u32 = 1920;

/// The most members of a RAID-6, as in mdadm: GF(256) has 255 exponents for the data chunks.
pub const RAID6_MEMBERS_MAX: u32 = 256;

/// Refuses more or fewer members than the level takes.
pub(super) fn check_members(level: Level, layout: Layout, members: u32) -> Result<(), GeometryError> {
    let least = match level {
        Level::Raid0 | Level::Raid1 => 1,
        Level::Raid4 | Level::Raid5 | Level::Raid10 => 2,
        Level::Raid6 => 4,
    };
    let most = match layout {
        // Their exponents are member numbers; g^255 = g^0, so the 256th member would share its exponent with the first.
        Layout::DdfZeroRestart | Layout::DdfNRestart | Layout::DdfNContinue => RAID6_MEMBERS_MAX - 1,
        _ if level == Level::Raid6 => RAID6_MEMBERS_MAX,
        _ => MEMBERS_MAX,
    };
    if (least..=most).contains(&members) {
        return Ok(());
    }
    Err(GeometryError::Members { level, members, least, most })
}

/// Refuses a chunk that the level cannot use.
pub(super) fn check_chunk(level: Level, chunk_bytes: u32) -> Result<(), GeometryError> {
    let in_range = (CHUNK_BYTES_MIN..=CHUNK_BYTES_MAX).contains(&chunk_bytes);
    let (good, wanted) = match level {
        Level::Raid0 => (
            in_range && chunk_bytes.is_multiple_of(CHUNK_BYTES_MIN),
            "a multiple of 4 KiB from 4 KiB to 64 MiB",
        ),
        Level::Raid1 => (
            chunk_bytes == 0 || (in_range && chunk_bytes.is_power_of_two()),
            "none (0), or a power of two from 4 KiB to 64 MiB",
        ),
        _ => (in_range && chunk_bytes.is_power_of_two(), "a power of two from 4 KiB to 64 MiB"),
    };
    if good {
        return Ok(());
    }
    Err(GeometryError::Chunk { level, chunk_bytes, wanted })
}

/// What a member adds to the size of a RAID-0. md takes the chunk for a power of two here (`raid0_size`), though it
/// takes others too: then it leaves the last part of each member unused. An array must not be larger than md has it.
pub(super) fn raid0_member_share(member_bytes: u64, chunk_bytes: u32) -> u64 {
    member_bytes & !(u64::from(chunk_bytes) - 1)
}
