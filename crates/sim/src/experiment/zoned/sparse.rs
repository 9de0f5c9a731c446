//! What a drive holds beside zeroes: where clients write zeroes that is headers, footers and blocks of the map, and of zones that
//! take records still the metadata beside each block. A petabyte of such drives fits into memory, as far as it was written, and reads
//! of data are right, too.

use std::collections::{BTreeMap, HashMap};

use engine::buffer::{Buffer, Gather, Slice};
use engine::limits::BLOCK_BYTES;
use engine::zone_device::{ZoneChange, ZonedInfo};
use layout::units::DeviceOffset;
use layout::zoned::OOB_BYTES;

/// See the file's header.
#[derive(Default)]
pub(super) struct SparseZones {
    zones: HashMap<u32, SparseZone>,
}

#[derive(Default)]
struct SparseZone {
    blocks: BTreeMap<u64, Box<[u8]>>,
    /// Of the blocks from the first on, until the zone is finished: footers say the same then.
    metadata: Vec<u8>,
}

impl SparseZones {
    /// Writes whole blocks, with their metadata.
    pub(super) fn put(&mut self, zone: u32, block: u64, data: &Gather, metadata: Option<&Slice>) {
        let zone = self.zones.entry(zone).or_default();
        let mut bytes = vec![0; data.len()];
        data.copy_to(&mut bytes);
        for (block, bytes) in (block..).zip(bytes.chunks_exact(BLOCK_BYTES)) {
            if bytes.iter().any(|byte| *byte != 0) {
                zone.blocks.insert(block, bytes.into());
            }
        }
        if let Some(metadata) = metadata {
            let first = block as usize * OOB_BYTES;
            zone.metadata.resize(zone.metadata.len().max(first + metadata.len()), 0);
            zone.metadata[first..first + metadata.len()].copy_from_slice(metadata.bytes());
        }
    }

    /// Fills a buffer of whole blocks from a place of the drive on.
    pub(super) fn read(&self, zoned: &ZonedInfo, offset: DeviceOffset, mut buffer: Buffer) -> Buffer {
        let zone = self.zones.get(&((offset.get() / zoned.zone_bytes) as u32));
        let first = offset.get() % zoned.zone_bytes / BLOCK_BYTES as u64;
        for (block, bytes) in (first..).zip(buffer.bytes_mut().chunks_exact_mut(BLOCK_BYTES)) {
            match zone.and_then(|zone| zone.blocks.get(&block)) {
                Some(own) => bytes.copy_from_slice(own),
                None => bytes.fill(0),
            }
        }
        buffer
    }

    /// Fills a buffer with the metadata of blocks.
    pub(super) fn read_metadata(&self, zone: u32, block: u64, mut buffer: Buffer) -> Buffer {
        let own: &[u8] = self.zones.get(&zone).map_or(&[], |zone| &zone.metadata);
        let own = own.get(block as usize * OOB_BYTES..).unwrap_or_default();
        let known = own.len().min(buffer.bytes().len());
        buffer.bytes_mut()[..known].copy_from_slice(&own[..known]);
        buffer.bytes_mut()[known..].fill(0);
        buffer
    }

    pub(super) fn change(&mut self, zone: u32, change: ZoneChange) {
        match change {
            ZoneChange::Reset => drop(self.zones.remove(&zone)),
            ZoneChange::Finish => {
                self.zones.get_mut(&zone).into_iter().for_each(|zone| zone.metadata = Vec::new());
            }
            ZoneChange::Open | ZoneChange::Close => {}
        }
    }
}
