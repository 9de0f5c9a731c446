//! md's bad-block logs, written by the writer before the superblocks that rely on them.
//!
//! An entry that goes says that its place was written. So the member is flushed first: after a power cut the log must not
//! be newer than the data. And it is written so that a cut anywhere leaves every entry that was there before and is to stay.

use std::cell::RefCell;

use layout::md_superblock::{
    Features, Superblock, SuperblockError, bad_block_steps, decode_bad_blocks, encode_bad_blocks,
};
use layout::units::{DeviceOffset, Slot};

use crate::bad_blocks::BadBlocks;
use crate::buffer::{Gather, Slice};
use crate::device::Device;
use crate::events::Event;
use crate::in_place::InPlace;
use crate::members::Failing;

/// Entries that the log of a member has room for; 0 without a log.
pub fn room(superblock: &Superblock) -> usize {
    superblock.bad_block_log().map_or(0, |(_, length)| length.bytes() as usize / 8)
}

/// Why a bad-block log cannot be believed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unbelieved {
    /// It cannot be read.
    Unreadable(String),
    /// It makes no sense: it does not tell which of the member's blocks hold data. md does not take such a member either.
    Damaged(SuperblockError),
}

/// What the log of the member with this superblock lists; nothing if the superblock says that it is empty. `read` reads
/// a number of bytes at an offset of its device.
///
/// # Errors
/// [`Unbelieved`] says why it cannot be believed.
pub fn read(
    superblock: &Superblock,
    read: impl Fn(DeviceOffset, usize) -> Result<Vec<u8>, String>,
) -> Result<BadBlocks, Unbelieved> {
    let is_listed = superblock.features().contains(Features::BAD_BLOCKS);
    let Some((start, length)) = superblock.bad_block_log().filter(|_| is_listed) else {
        return Ok(BadBlocks::default());
    };
    let log =
        read(DeviceOffset::of_sector(start), length.bytes() as usize).map_err(Unbelieved::Unreadable)?;
    let ranges = decode_bad_blocks(&log, superblock.bad_block_shift()).map_err(Unbelieved::Damaged)?;
    Ok(BadBlocks::from_log(&ranges, superblock.data_offset()))
}

/// What was written of a member's log.
pub(super) struct Written {
    /// The device's number.
    pub(super) number: u32,
    /// There is something in the log.
    pub(super) any: bool,
}

/// Which version of its bad places each member's log holds.
pub(super) struct BadBlockLogs(RefCell<Vec<u64>>);

impl BadBlockLogs {
    pub(super) fn new(slots: u32) -> Self {
        BadBlockLogs(RefCell::new(vec![0; slots as usize]))
    }

    /// Another device has the slot.
    pub(super) fn forget(&self, slot: Slot) {
        self.0.borrow_mut()[slot.index()] = u64::MAX;
    }

    /// Brings the log of the member in a slot up to date, which has this superblock. None: it is, or it has no log, or another
    /// device has the slot meanwhile.
    ///
    /// # Errors
    /// The member does not take it: how it failed.
    pub(super) async fn write<D: Device>(
        &self,
        set: &InPlace<D>,
        slot: Slot,
        superblock: Option<&Superblock>,
    ) -> Result<Option<Written>, Failing> {
        let members = &set.shared.members;
        let (bad, version) = members.bad_blocks(slot);
        if self.0.borrow()[slot.index()] == version {
            return Ok(None);
        }
        let described = set.devices().described(slot);
        match write_log(set, slot, superblock, &bad).await {
            Ok(number) => {
                self.0.borrow_mut()[slot.index()] = version;
                Ok(number.map(|number| Written { number, any: !bad.is_empty() }))
            }
            Err(_) if !described.is_some_and(|device| set.devices().is_in_slot(slot, &device)) => Ok(None),
            Err(reason) => {
                members.report(Event::MetadataError { member: slot, reason: reason.clone() });
                let why = format!("its bad-block log cannot be written: {reason}");
                Err(members.fail(slot, &why))
            }
        }
    }
}

/// The number of the device whose log was written; none without a log.
async fn write_log<D: Device>(
    set: &InPlace<D>,
    slot: Slot,
    superblock: Option<&Superblock>,
    bad: &BadBlocks,
) -> Result<Option<u32>, String> {
    let Some(superblock) = superblock else { return Ok(None) };
    let (Some((start, length)), Some(member)) = (superblock.bad_block_log(), set.devices().described(slot))
    else {
        return Ok(None);
    };
    // Until the next superblock the log would be read in the old unit. No md writes one; a superblock without entries loses it.
    if superblock.bad_block_shift() != 0 && superblock.features().contains(Features::BAD_BLOCKS) {
        return Err(format!("it counts in units of 2^{} sectors", superblock.bad_block_shift()));
    }
    let entries = bad.to_log(superblock.data_offset());
    let log = encode_bad_blocks(&entries, length.bytes() as usize).map_err(|error| error.to_string())?;
    member.device.flush().await.map_err(|error| error.to_string())?;
    let start = DeviceOffset::of_sector(start);
    let old = set.pool().take(log.len());
    let (old, is_read) = member.device.read(start, old).await;
    // What cannot be read is written, which may help.
    let old = is_read.map_or(&[][..], |()| old.bytes());
    let block_bytes = member.device.info().logical_block_bytes as usize;
    for step in bad_block_steps(old, &log, block_bytes) {
        let (offset, data) = (start + step.offset as u64, Gather::from(Slice::from_bytes(&step.bytes)));
        if let Err(error) = member.device.write(offset, data.clone(), true).await {
            set.shared.members.note_error(slot, &error);
            member.device.write(offset, data, true).await.map_err(|error| error.to_string())?;
        }
    }
    Ok(Some(superblock.dev_number()))
}
