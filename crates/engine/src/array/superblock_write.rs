//! One superblock on its way to one device.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use layout::md_superblock::Superblock;
use layout::units::{DeviceOffset, Slot};

use crate::buffer::{Gather, Slice};
use crate::device::{Device, DeviceError};
use crate::events::Event;
use crate::executor::join_all;
use crate::in_place::InPlace;
use crate::members::Attached;
use crate::members::attachment::Attachment;
use crate::members::{Failing, Members};

/// A superblock and where it goes. Another device may have the slot by the time it is written.
pub(super) struct SuperblockWrite<D> {
    pub(super) slot: Slot,
    pub(super) superblock: Superblock,
    offset: DeviceOffset,
    data: Slice,
    pub(super) digest: u32,
    pub(super) member: Rc<Attached<D>>,
    /// It is about what is to replace the member.
    pub(super) is_replacement: bool,
}

impl<D: Device> SuperblockWrite<D> {
    pub(super) fn new(slot: Slot, superblock: &Superblock, member: Rc<Attached<D>>) -> Self {
        let bytes = superblock.encode(member.device.info().logical_block_bytes as usize);
        let (offset, data) = (superblock.offset(), Slice::from_bytes(&bytes));
        let digest = superblock.digest();
        let superblock = superblock.clone();
        SuperblockWrite { slot, superblock, offset, data, digest, member, is_replacement: false }
    }

    /// What stands behind the first logical block.
    fn tail(&self) -> &[u8] {
        &self.data.bytes()[self.member.device.info().logical_block_bytes as usize..]
    }

    pub(super) fn start(&self) -> D::Done {
        self.member.device.write(self.offset, Gather::from(self.data.clone()), true)
    }

    /// A second try, then the member fails, which asks for another round. Another device that took the slot meanwhile
    /// has nothing to do with the error, and must not get this superblock: it would call it in sync (invariant 8).
    pub(super) async fn retry(&self, set: &InPlace<D>, error: DeviceError) -> Option<Failing> {
        let members = &set.shared.members;
        if self.is_replacement {
            return self.retry_replacement(set, error).await;
        }
        let replaced = || !set.devices().is_in_slot(self.slot, &self.member);
        if replaced() {
            return None;
        }
        members.note_error(self.slot, &error);
        let Err(error) = self.start_again(error).await else { return None };
        if replaced() {
            return None;
        }
        members.report(Event::MetadataError { member: self.slot, reason: error.to_string() });
        Some(members.fail(self.slot, &format!("its superblock cannot be written: {error}")))
    }

    /// A second try where that may help. One more at a silent device would take as long again, and all writes wait for it.
    async fn start_again(&self, error: DeviceError) -> Result<(), DeviceError> {
        if Members::worth_a_retry(&error) { self.start().await } else { Err(error) }
    }

    /// A second try, then the replacement fails; the member does if it is that by now. A device that is neither has nothing
    /// to do with the slot any more.
    async fn retry_replacement(&self, set: &InPlace<D>, error: DeviceError) -> Option<Failing> {
        let Err(error) = self.start_again(error).await else { return None };
        let members = &set.shared.members;
        let reason = format!("its superblock cannot be written: {error}");
        match set.devices().attachment(self.slot, &self.member) {
            Attachment::Detached => return None,
            Attachment::Replacement if members.fail_replacement(self.slot, &reason) => return None,
            Attachment::Replacement | Attachment::Member => {}
        }
        members.report(Event::MetadataError { member: self.slot, reason: error.to_string() });
        Some(members.fail(self.slot, &reason))
    }
}

/// What stands behind the first logical block of each superblock, as it is on its device. A power cut may leave such a
/// superblock with the first block of one time and the others of another.
#[derive(Default)]
pub(super) struct WrittenTails(RefCell<BTreeMap<[u8; 16], Vec<u8>>>);

impl WrittenTails {
    /// Writes superblocks side by side, or one after another where a power cut could tear them all.
    pub(super) async fn write_all<D: Device>(
        &self,
        writes: &[SuperblockWrite<D>],
    ) -> Vec<Result<(), DeviceError>> {
        if !writes.iter().any(|write| self.may_tear(write)) {
            return join_all(writes.iter().map(SuperblockWrite::start)).await.into_vec();
        }
        let mut results = Vec::new();
        for write in writes {
            results.push(write.start().await);
        }
        results
    }

    /// Whether a power cut during this write may leave a superblock that makes no sense.
    fn may_tear<D: Device>(&self, write: &SuperblockWrite<D>) -> bool {
        let tail = write.tail();
        let known = self.0.borrow();
        let known = known.get(&write.superblock.device_uuid()).map_or(&[][..], Vec::as_slice);
        !tail.is_empty() && tail != known
    }

    /// It is on its device.
    pub(super) fn written<D: Device>(&self, write: &SuperblockWrite<D>) {
        if !write.tail().is_empty() {
            self.0.borrow_mut().insert(write.superblock.device_uuid(), write.tail().to_vec());
        }
    }
}
