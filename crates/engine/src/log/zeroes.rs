//! Zeroes of a range, and discards, which are the same: an entry in the log, mapped when it is written. Any 4 KiB range
//! costs one block of a stripe, however long it is.

use std::rc::Rc;

use layout::zoned::{BlockName, ZeroesEntry};

use super::encode::StripeBlock;
use super::paging::Fetch;
use super::shard::LogEngine;
use super::write::{fill, used_up};
use crate::buffer::Slice;
use crate::error::VolumeError;
use crate::limits::BLOCK_BYTES;
use crate::zone_device::ZoneDevice;

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
    shared.space.clients_write();
    let (mut first, end) = (offset_bytes / BLOCK_BYTES as u64, (offset_bytes + bytes) / BLOCK_BYTES as u64);
    while first < end {
        let blocks = (end - first).min(u32::MAX.into()) as u32;
        let part = first..first + u64::from(blocks);
        first = part.end;
        // Registered before it takes its sequence (Z-I3).
        let range = shared.map.begin_range(part.clone(), shared.sequences.peek());
        let sequence = shared.sequences.take().ok_or_else(used_up)?;
        let entry = ZeroesEntry { lba: part.start, blocks, is_lost: false, sequence };
        let contents = Slice::from_bytes(&ZeroesEntry::encode_all(&[entry]));
        let block = StripeBlock::new(BlockName::Zeroes, sequence, contents);
        for outcome in fill(engine, engine.class_of(1), std::iter::once(block), fua) {
            outcome.ended().await?;
        }
        for part in range.parts() {
            let apply = || range.apply(part.clone(), sequence, |changes| shared.count(changes));
            while let Err(out) = apply() {
                Fetch::default().bring(&engine.port, out).await?;
            }
        }
    }
    Ok(shared.members.settled().await?)
}
