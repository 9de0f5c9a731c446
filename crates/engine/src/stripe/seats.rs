//! Which devices a slot has on this shard: its member, and while that is being replaced the device that is to take its
//! place. [`Members`](crate::members::Members) knows which of the two the slot means now, for all shards at once; a
//! shard only has to have both before that matters.

use smallvec::SmallVec;
use std::rc::Rc;

use super::member_io::MemberRead;
use super::{Attached, StripeSet};
use crate::device::Device;
use crate::members::Replacing;

/// The devices of a slot.
pub(super) struct Seat<D> {
    member: Option<Rc<Attached<D>>>,
    replacement: Option<Rc<Attached<D>>>,
}

impl<D> Seat<D> {
    pub(super) fn of(member: Option<Attached<D>>) -> Self {
        Seat { member: member.map(Rc::new), replacement: None }
    }

    /// What the slot means at a step of its replacement.
    fn meant(&self, step: Replacing) -> Option<&Rc<Attached<D>>> {
        self.replacement.as_ref().filter(|_| step.has_slot()).or(self.member.as_ref())
    }

    /// Who else gets what is written.
    fn other(&self, step: Replacing) -> Option<&Rc<Attached<D>>> {
        let replacement = self.replacement.as_ref()?;
        match step {
            Replacing::Copying | Replacing::Moving => Some(replacement),
            Replacing::Taken => self.member.as_ref(),
            Replacing::No | Replacing::Alone => None,
        }
    }
}

/// What a device is to its slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Standing {
    Member,
    /// It gets what the member gets.
    Replacement,
    /// It is used no more.
    Nobody,
}

impl<D: Device> StripeSet<D> {
    /// Puts a device into a slot, or takes it out. Every shard has to do this before the slot is put to use.
    pub fn attach(&self, slot: u32, member: Option<Attached<D>>) {
        self.seats.borrow_mut()[slot as usize].member = member.map(Rc::new);
    }

    /// Puts a device beside the member in a slot, or takes it away. Every shard has to do this before the replacement
    /// begins, or after it has failed.
    pub fn attach_replacement(&self, slot: u32, device: Option<Attached<D>>) {
        self.seats.borrow_mut()[slot as usize].replacement = device.map(Rc::new);
        self.count_replacements();
    }

    /// The replacement in a slot has it alone: this shard forgets the member before it.
    pub fn promote_replacement(&self, slot: u32) {
        {
            let seat = &mut self.seats.borrow_mut()[slot as usize];
            seat.member = seat.replacement.take().or(seat.member.take());
        }
        self.count_replacements();
    }

    fn count_replacements(&self) {
        let count = self.seats.borrow().iter().filter(|seat| seat.replacement.is_some()).count();
        self.replacements.set(count);
    }

    fn step(&self, slot: u32) -> Replacing {
        // A shard without any does not look at what all shards share.
        if self.replacements.get() == 0 { Replacing::No } else { self.shared.members.replacing(slot) }
    }

    /// The device in a slot.
    pub fn attached(&self, slot: u32) -> Option<Rc<Attached<D>>> {
        self.seats.borrow()[slot as usize].meant(self.step(slot)).cloned()
    }

    /// The device that the superblock kept for a slot is about: where bitmap and log are is said there.
    pub(crate) fn described(&self, slot: u32) -> Option<Rc<Attached<D>>> {
        let is_replacements =
            self.replacements.get() > 0 && self.shared.members.is_superblock_replacements(slot);
        let step = if is_replacements { Replacing::Alone } else { Replacing::No };
        self.seats.borrow()[slot as usize].meant(step).cloned()
    }

    /// The device that is to replace the member in a slot, or has just done so.
    pub(crate) fn replacement(&self, slot: u32) -> Option<Rc<Attached<D>>> {
        self.seats.borrow()[slot as usize].replacement.clone()
    }

    /// Where a write to a slot goes: to its member first.
    pub(super) fn targets(&self, slot: u32) -> SmallVec<[Rc<Attached<D>>; 2]> {
        let (seats, step) = (self.seats.borrow(), self.step(slot));
        let seat = &seats[slot as usize];
        seat.meant(step).into_iter().chain(seat.other(step)).cloned().collect()
    }

    /// Whether a device is still what its slot means: only then is what is wrong with it wrong with the member.
    pub(crate) fn is_in_slot(&self, slot: u32, device: &Rc<Attached<D>>) -> bool {
        self.attached(slot).is_some_and(|now| Rc::ptr_eq(&now, device))
    }

    /// What a device is to its slot now.
    pub(crate) fn standing(&self, slot: u32, device: &Rc<Attached<D>>) -> Standing {
        let (seats, step) = (self.seats.borrow(), self.step(slot));
        let (seat, is) = (&seats[slot as usize], |other: &Rc<Attached<D>>| Rc::ptr_eq(other, device));
        if seat.meant(step).is_some_and(is) {
            Standing::Member
        } else if !step.has_slot() && seat.other(step).is_some_and(is) {
            Standing::Replacement
        } else {
            Standing::Nobody
        }
    }

    /// The device to read from. None if nobody is in the slot, the place [is bad](Self::is_bad), or the slot has got
    /// another device since the read was planned that does not hold it yet (invariant 8).
    pub(super) fn source(&self, read: &MemberRead) -> Option<Rc<Attached<D>>> {
        let step = match self.replacements.get() {
            0 => Replacing::No,
            _ => self.shared.members.step_to_read(read.slot, read.offset + read.bytes as u64)?,
        };
        if self.is_bad(read) {
            return None;
        }
        let source = self.seats.borrow()[read.slot as usize].meant(step).cloned();
        source.filter(|_| self.step(read.slot) == step)
    }
}
