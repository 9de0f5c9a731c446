//! The bytes of the md superblock, version 1.

use byte_struct::byte_struct;
use zerocopy::little_endian::{I32, U16, U32, U64};

/// First word of every md superblock.
pub const MAGIC: u32 = 0xa92b_4efc;

/// Bytes that md reserves for a superblock; read this many at its place.
pub const SUPERBLOCK_BYTES_MAX: usize = 4096;

/// Bytes before the roles.
pub const HEADER_BYTES: usize = 256;

/// The most roles that a superblock can hold.
pub const MAX_DEV: u32 = ((SUPERBLOCK_BYTES_MAX - HEADER_BYTES) / 2) as u32;

byte_struct! {
    /// The part of the superblock before the roles. These bytes are not to be trusted until
    /// [`super::Superblock::parse`] has checked them.
    pub(super) struct RawSuperblock, 256 bytes {
        0    4   magic: U32,
        4    4   major_version: U32,
        8    4   feature_map: U32,
        12   4   pad0: U32,
        16   16  set_uuid: bytes,
        32   32  set_name: bytes,
        64   8   ctime: U64,
        72   4   level: I32,
        76   4   layout: U32,
        80   8   size: U64,
        88   4   chunksize: U32,
        92   4   raid_disks: U32,
        96   4   bitmap_offset: I32,       /// With a partial parity log: its offset and its size, 16 bits each.
        100  4   new_level: U32,
        104  8   reshape_position: U64,
        112  4   delta_disks: U32,
        116  4   new_layout: U32,
        120  4   new_chunk: U32,
        124  4   new_offset: U32,
        128  8   data_offset: U64,
        136  8   data_size: U64,
        144  8   super_offset: U64,
        152  8   recovery_offset: U64,     /// On a journal device: the journal's tail.
        160  4   dev_number: U32,
        164  4   cnt_corrected_read: U32,
        168  16  device_uuid: bytes,
        184  1   devflags: u8,
        185  1   bblog_shift: u8,
        186  2   bblog_size: U16,
        188  4   bblog_offset: I32,
        192  8   utime: U64,
        200  8   events: U64,
        208  8   resync_offset: U64,
        216  4   sb_csum: U32,
        220  4   max_dev: U32,
        224  4   logical_block_size: U32,
        228  28  pad3: bytes,
    }
}
