//! An operation of a zoned memory device: the copies that the reap step makes for it, and when.

use engine::buffer::{Buffer, Gather, Slice};
use std::rc::Rc;
use std::time::Instant;

use super::memory::Region;

/// What is copied.
#[derive(Debug)]
pub(crate) enum ZoneIo {
    Write {
        data: Gather,
        metadata: Option<Slice>,
    },
    /// The buffer for metadata is empty where none is asked for.
    Read {
        data: Buffer,
        metadata: Buffer,
    },
    /// A flush, or a change of a zone.
    Nothing,
}

/// An operation with all that it owns.
pub(crate) struct ZoneCopy {
    pub regions: Rc<ZoneRegions>,
    pub io: ZoneIo,
    pub name: &'static str,
    pub offset_bytes: u64,
    pub bytes: u64,
    /// When it is made. None: at once.
    pub ready: Option<Instant>,
}

/// The memory of a zoned device, as one shard reaches it.
pub(crate) struct ZoneRegions {
    pub data: Region,
    /// Metadata lies as densely as it comes: so many bytes for each logical block.
    pub metadata: Option<Region>,
    pub metadata_bytes: u64,
    pub logical_block_bytes: u64,
}

impl ZoneCopy {
    pub fn is_read(&self) -> bool {
        matches!(self.io, ZoneIo::Read { .. })
    }

    /// Bytes that are copied for a write; 0 for what copies nothing.
    pub fn bytes_moved(&self) -> usize {
        match &self.io {
            ZoneIo::Write { data, .. } => data.len(),
            ZoneIo::Read { .. } | ZoneIo::Nothing => 0,
        }
    }

    /// Makes the copies.
    pub(super) fn make(&mut self) {
        let ZoneRegions { data: memory, metadata: beside, metadata_bytes, logical_block_bytes } =
            &*self.regions;
        let beside_at = self.offset_bytes / logical_block_bytes * metadata_bytes;
        match &mut self.io {
            ZoneIo::Write { data, metadata } => {
                memory.write(self.offset_bytes, data.slices());
                if let (Some(beside), Some(metadata)) = (beside, metadata) {
                    beside.write(beside_at, std::slice::from_ref(metadata));
                }
            }
            ZoneIo::Read { data, metadata } => {
                memory.read(self.offset_bytes, data.bytes_mut());
                if let Some(beside) = beside
                    && !metadata.is_empty()
                {
                    beside.read(beside_at, metadata.bytes_mut());
                }
            }
            ZoneIo::Nothing => memory.count_other(),
        }
    }

    /// The buffers of a read.
    pub fn into_buffers(self) -> (Buffer, Buffer) {
        match self.io {
            ZoneIo::Read { data, metadata } => (data, metadata),
            _ => unreachable!("only reads have buffers to give back"),
        }
    }
}
