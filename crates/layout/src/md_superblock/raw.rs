//! The bytes of the md superblock, version 1.

use zerocopy::little_endian::{I32, U16, U32, U64};

use crate::disk_struct::disk_struct;

/// First word of every md superblock.
pub const MAGIC: u32 = 0xa92b_4efc;

/// Bytes that md reserves for a superblock; read this many at its place.
pub const SUPERBLOCK_BYTES_MAX: usize = 4096;

/// Bytes before the roles.
pub const HEADER_BYTES: usize = 256;

/// The most roles that a superblock can hold.
pub const MAX_DEV: u32 = ((SUPERBLOCK_BYTES_MAX - HEADER_BYTES) / 2) as u32;

disk_struct! {
    /// The part of the superblock before the roles. These bytes are not to be trusted until
    /// [`super::Superblock::parse`] has checked them.
    pub(super) struct RawSuperblock, 256 bytes {
        magic: U32 = 0,
        major_version: U32 = 4,
        feature_map: U32 = 8,
        pad0: U32 = 12,
        set_uuid: [u8; 16] = 16,
        set_name: [u8; 32] = 32,
        ctime: U64 = 64,
        level: I32 = 72,
        layout: U32 = 76,
        size: U64 = 80,
        chunksize: U32 = 88,
        raid_disks: U32 = 92,
        /// With a partial parity log: its offset and its size, 16 bits each.
        bitmap_offset: I32 = 96,
        new_level: U32 = 100,
        reshape_position: U64 = 104,
        delta_disks: U32 = 112,
        new_layout: U32 = 116,
        new_chunk: U32 = 120,
        new_offset: U32 = 124,
        data_offset: U64 = 128,
        data_size: U64 = 136,
        super_offset: U64 = 144,
        /// On a journal device: the journal's tail.
        recovery_offset: U64 = 152,
        dev_number: U32 = 160,
        cnt_corrected_read: U32 = 164,
        device_uuid: [u8; 16] = 168,
        devflags: u8 = 184,
        bblog_shift: u8 = 185,
        bblog_size: U16 = 186,
        bblog_offset: I32 = 188,
        utime: U64 = 192,
        events: U64 = 200,
        resync_offset: U64 = 208,
        sb_csum: U32 = 216,
        max_dev: U32 = 220,
        logical_block_size: U32 = 224,
        pad3: [u8; 28] = 228,
    }
}
