//! Zeroes of a range, and discards, which are the same: an entry in the log, mapped when it is written. Any 4 KiB range
//! costs one block of a stripe, however long it is.

use std::rc::Rc;

use layout::zoned::{BlockName, Class, Sequence};

use super::encode::StripeBlock;
use super::engine::LogEngine;
use super::write::{fill, used_up};
use crate::error::VolumeError;
use crate::limits::BLOCK_BYTES;
use crate::zone_device::ZoneDevice;

/// Bytes of an entry: first block u64, blocks u32, reserve u32, sequence u64.
const ENTRY_BYTES: usize = 24;

/// A range that reads as zeroes since a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ZeroesEntry {
    /// The first block.
    pub lba: u64,
    /// How many.
    pub blocks: u32,
    /// The write.
    pub sequence: Sequence,
}

/// Makes a range read as zeroes. With `fua` it is durable on return.
pub async fn zero_blocks<D: ZoneDevice>(
    engine: &Rc<LogEngine<D>>,
    offset_bytes: u64,
    bytes: u64,
    fua: bool,
) -> Result<(), VolumeError> {
    let shared = &engine.port.shared;
    if shared.members.is_read_only() {
        return Err(VolumeError::ReadOnly);
    }
    let (mut first, end) = (offset_bytes / BLOCK_BYTES as u64, (offset_bytes + bytes) / BLOCK_BYTES as u64);
    while first < end {
        let blocks = (end - first).min(u32::MAX.into()) as u32;
        let part = first..first + u64::from(blocks);
        first = part.end;
        // Registered before it takes its sequence (Z-I3).
        let range = shared.map.begin_range(part.clone());
        let sequence = shared.sequences.take().ok_or_else(used_up)?;
        let entry = ZeroesEntry { lba: part.start, blocks, sequence };
        let mut buffer = engine.port.pool.take(BLOCK_BYTES);
        encode(&[entry], buffer.bytes_mut());
        let block = StripeBlock::new(BlockName::Zeroes, sequence, buffer.freeze());
        for outcome in fill(engine, Class::Small, std::iter::once(block), fua) {
            outcome.ended().await?;
        }
        range.apply(sequence, |old| shared.unmapped(old));
    }
    Ok(shared.members.settled().await?)
}

/// Writes entries into a block.
pub fn encode(entries: &[ZeroesEntry], block: &mut [u8]) {
    block.fill(0);
    for (entry, bytes) in entries.iter().zip(block.chunks_exact_mut(ENTRY_BYTES)) {
        bytes[..8].copy_from_slice(&entry.lba.to_le_bytes());
        bytes[8..12].copy_from_slice(&entry.blocks.to_le_bytes());
        bytes[16..24].copy_from_slice(&entry.sequence.0.to_le_bytes());
    }
}

/// The entries of a block whose checksum was right: up to the first of no blocks. Ranges beyond the array are cut.
pub fn decode(block: &[u8], logical_blocks: u64) -> Vec<ZeroesEntry> {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    let mut entries = Vec::new();
    for bytes in block.chunks_exact(ENTRY_BYTES) {
        let blocks = u32::from_le_bytes(bytes[8..12].try_into().expect("four bytes"));
        if blocks == 0 {
            break;
        }
        let lba = word(&bytes[..8]).min(logical_blocks);
        let blocks = u64::from(blocks).min(logical_blocks - lba) as u32;
        entries.push(ZeroesEntry { lba, blocks, sequence: Sequence(word(&bytes[16..24])) });
    }
    entries
}
