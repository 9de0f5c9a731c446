//! What the superblocks of an array say: those of the members, of devices that are to replace members, and of spares.
//! When they are written is the [writer](super::superblock_writer)'s.
//!
//! A device that is to replace the member in a slot has that slot's role, too, and md's `REPLACEMENT` feature bit; its
//! recovery offset says how far it is. When it has the slot it gets the bitmap, says that it is in sync, and only then the
//! others say that the old member is faulty: a crash in between leaves one of the two that may be started from.

use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;

use layout::md_superblock::Superblock;
use layout::redo_log::BitmapExtent;
use layout::units::{Sectors, Slot};

use super::bad_block_log;
use super::device_numbers::{self, Numbers};
use super::generation_records::GenerationRecords;
use super::generations::FoundGenerations;
use super::superblock_write::SuperblockWrite;
use crate::device::Device;
use crate::in_place::InPlace;
use crate::members::{MemberState, Replacing};

/// The superblocks of one array as last written, and what the next ones will say. Lives on one shard, with the writer.
pub struct Superblocks<D> {
    set: Rc<InPlace<D>>,
    /// Superblock of the member in each slot.
    by_slot: RefCell<Vec<Option<Superblock>>>,
    /// What is to replace the member in each slot.
    incoming: RefCell<Vec<Option<Incoming>>>,
    /// Superblocks and devices of spares.
    spares: RefCell<Vec<Spare<D>>>,
    /// Device numbers that once were members and failed.
    failed: RefCell<Vec<u32>>,
    /// The records of generations that go with them, if the array keeps any.
    records: OnceCell<GenerationRecords>,
    events: Cell<u64>,
    /// Event count of the first superblocks of this run that are newer than those that were found.
    first_events: u64,
    /// Bytes of each recovering member that are in sync **and durable**: what its superblock may say.
    recovered_bytes: RefCell<Vec<u64>>,
    /// Seconds since 1970.
    now_s: Box<dyn Fn() -> u64>,
}

/// A device that waits for a slot.
pub struct Spare<D> {
    /// Its superblock.
    pub superblock: Superblock,
    /// This shard's way to it.
    pub device: Rc<D>,
}

/// What is to replace the member in a slot.
pub(super) struct Incoming {
    pub(super) superblock: Superblock,
    /// What was copied **and is durable**: what its superblock may say.
    pub(super) copied_bytes: u64,
}

impl<D: Device> Superblocks<D> {
    /// Superblocks in slot order; `events` is the newest event count.
    pub(super) fn new(
        set: &Rc<InPlace<D>>,
        by_slot: Vec<Option<Superblock>>,
        events: u64,
        now_s: Box<dyn Fn() -> u64>,
    ) -> Self {
        let slots = set.shared.geometry.slots();
        let recovered_bytes = slots.map(|slot| set.shared.members.recovered_bytes(slot)).collect();
        let failed = device_numbers::failed(by_slot.iter().flatten());
        Superblocks {
            set: Rc::clone(set),
            incoming: RefCell::new(by_slot.iter().map(|_| None).collect()),
            by_slot: RefCell::new(by_slot),
            spares: RefCell::new(Vec::new()),
            failed: RefCell::new(failed),
            records: OnceCell::new(),
            events: Cell::new(events),
            first_events: events.saturating_add(1),
            recovered_bytes: RefCell::new(recovered_bytes),
            now_s,
        }
    }

    /// Keeps a record of generations beside each superblock, from what was found on; `new_id` draws a random number. Before
    /// the writer runs.
    pub fn keep_generations(&self, found: &FoundGenerations, new_id: Box<dyn Fn() -> u64>) {
        self.records.get_or_init(|| GenerationRecords::new(found, new_id));
    }

    /// The records of generations that go with them, if the array keeps any.
    pub(super) fn records(&self) -> Option<&GenerationRecords> {
        self.records.get()
    }

    /// A random number that is not 0; 0 where no records of generations are kept.
    pub(super) fn new_id(&self) -> u64 {
        self.records().map_or(0, GenerationRecords::new_id)
    }

    /// Newest event count.
    pub fn events(&self) -> u64 {
        self.events.get()
    }

    /// The superblock of the member in a slot, as last written; the outer `None` means that there is no such slot.
    pub fn try_superblock(&self, slot: Slot) -> Option<Option<Superblock>> {
        self.by_slot.borrow().get(slot.index()).cloned()
    }

    /// The spares.
    pub fn spares(&self) -> &RefCell<Vec<Spare<D>>> {
        &self.spares
    }

    /// Whether the superblocks, as last written, call the array clean: after a stop nothing is left to resync.
    pub fn says_clean(&self) -> bool {
        let superblocks = self.by_slot.borrow();
        let mut in_use =
            self.slots_in_use().into_iter().filter_map(|slot| superblocks[slot.index()].as_ref());
        in_use.all(|superblock| superblock.resync_offset().is_none())
    }

    /// Slots whose members are used.
    pub(super) fn slots_in_use(&self) -> Vec<Slot> {
        let states = self.set.shared.members.states();
        Slot::all().zip(states).filter(|(_, state)| in_use(*state)).map(|(slot, _)| slot).collect()
    }

    pub(super) fn change_superblock(&self, slot: Slot, change: impl FnOnce(&mut Superblock)) {
        if let Some(superblock) = &mut self.by_slot.borrow_mut()[slot.index()] {
            change(superblock);
        }
    }

    /// The member in `slot` is in sync and durable below `bytes`.
    pub fn set_recovered(&self, slot: Slot, bytes: u64) {
        self.recovered_bytes.borrow_mut()[slot.index()] = bytes;
    }

    /// Superblocks by slot, as last written.
    pub fn all(&self) -> Vec<Option<Superblock>> {
        self.by_slot.borrow().clone()
    }

    /// Puts a superblock in a slot, or takes it out. The number of the one before is a failed member's from now on.
    pub(super) fn put(&self, slot: Slot, superblock: Option<Superblock>) {
        self.set_recovered(slot, 0);
        let old = std::mem::replace(&mut self.by_slot.borrow_mut()[slot.index()], superblock);
        if let Some(old) = old {
            device_numbers::note(&mut self.failed.borrow_mut(), old.dev_number());
        }
    }

    /// The next superblocks are newer by so much.
    pub(super) fn raise_events(&self, events: u64) {
        self.events.set(self.events.get() + events);
    }

    /// Takes what was to replace the member in a slot.
    pub(super) fn take_incoming(&self, slot: Slot) -> Option<Incoming> {
        self.incoming.borrow_mut()[slot.index()].take()
    }

    /// The next superblocks of the members and of what is to replace them. `resync`: from where on parity or copies may not
    /// agree; `bitmap` is how long the bitmap is on each member.
    pub(super) fn prepare(&self, resync: Option<u64>, bitmap: BitmapExtent) -> Vec<SuperblockWrite<D>> {
        let states = self.set.shared.members.states();
        self.note_failed(&states);
        let mut superblocks = self.by_slot.borrow_mut();
        let active: Vec<(u32, Slot)> = Slot::all()
            .zip(superblocks.iter())
            .filter(|(slot, _)| in_use(states[slot.index()]))
            .filter_map(|(slot, superblock)| Some((superblock.as_ref()?.dev_number(), slot)))
            .chain(self.incoming_numbers())
            .collect();
        self.follow_generations(&superblocks, &states, bitmap);
        let mut writes = Vec::new();
        for (slot, superblock) in Slot::all().zip(superblocks.iter_mut()) {
            let is_told = in_use(states[slot.index()]) && !self.has_just_fallen(slot);
            let Some(superblock) = superblock.as_mut().filter(|_| is_told) else { continue };
            self.fill(superblock, resync, &active);
            self.fill_errors(slot, superblock);
            superblock.set_recovery_offset(match states[slot.index()] {
                MemberState::Recovering => {
                    Some(Sectors::from_bytes_floor(self.recovered_bytes.borrow()[slot.index()]))
                }
                MemberState::InSync | MemberState::Failed | MemberState::Missing => None,
            });
            let by_bitmap = superblock.recovery_offset().is_some() && superblock.bitmap_start().is_some();
            if by_bitmap && self.set.shared.members.lacks_only_marked(slot) {
                superblock.set_recovers_by_bitmap();
            }
            writes.extend(self.superblock_write(slot, superblock));
        }
        writes.extend(self.incoming_writes(|superblock| self.fill(superblock, resync, &active)));
        writes
    }

    /// A new generation begins if a member is gone that the last superblocks were written with.
    fn follow_generations(
        &self,
        by_slot: &[Option<Superblock>],
        states: &[MemberState],
        bitmap: BitmapExtent,
    ) {
        let Some(records) = self.records.get() else { return };
        let is_told = |slot: Slot| in_use(states[slot.index()]) && !self.has_just_fallen(slot);
        let members =
            Slot::all().zip(by_slot).map(|(slot, superblock)| superblock.as_ref().filter(|_| is_told(slot)));
        let incoming = self.incoming.borrow();
        let incoming = incoming.iter().flatten().map(|incoming| Some(&incoming.superblock));
        let devices: Vec<Option<&Superblock>> = members.chain(incoming).collect();
        let mut slots = Slot::all().zip(states);
        let is_whole = slots.all(|(slot, state)| *state == MemberState::InSync && is_told(slot));
        let absences = self.set.shared.absences.id();
        // Those of a first round may be as new as what was found: a member that is away and has these was never beside this run.
        let events = self.events().max(self.first_events);
        records.follow(&devices, is_whole, events, bitmap, absences);
    }

    fn fill(&self, superblock: &mut Superblock, resync: Option<u64>, active: &[(u32, Slot)]) {
        superblock.set_events(self.events.get());
        superblock.set_utime_s((self.now_s)());
        superblock.set_resync_offset(resync.map(Sectors::from_bytes_floor));
        // A copy that took the slot of a member has it for itself.
        superblock.set_replacement(false);
        let spares: Vec<u32> =
            self.spares.borrow().iter().map(|spare| spare.superblock.dev_number()).collect();
        Numbers { active, spares: &spares, failed: &self.failed.borrow() }.tell(superblock);
    }

    fn fill_errors(&self, slot: Slot, superblock: &mut Superblock) {
        let members = &self.set.shared.members;
        superblock.set_corrected_reads(u32::try_from(members.corrected_reads(slot)).unwrap_or(u32::MAX));
    }

    /// Members that are out of use stay known by their device number: their role is "faulty" from now on.
    fn note_failed(&self, states: &[MemberState]) {
        for (superblock, state) in self.by_slot.borrow().iter().zip(states) {
            if let Some(superblock) = superblock.as_ref().filter(|_| !in_use(*state)) {
                device_numbers::note(&mut self.failed.borrow_mut(), superblock.dev_number());
            }
        }
    }

    /// A member that was rebuilt says so before anything else changes. Another one may have failed since, because this
    /// one is there: if the superblocks that tell of the failure were first, a crash would leave neither.
    pub(super) fn promote(&self) -> Vec<SuperblockWrite<D>> {
        let mut writes = Vec::new();
        for (slot, superblock) in Slot::all().zip(self.by_slot.borrow_mut().iter_mut()) {
            let in_sync = self.set.shared.members.state(slot) == MemberState::InSync;
            let Some(superblock) = superblock.as_mut().filter(|s| in_sync && s.recovery_offset().is_some())
            else {
                continue;
            };
            superblock.set_recovery_offset(None);
            writes.extend(self.superblock_write(slot, superblock));
        }
        writes
    }

    fn superblock_write(&self, slot: Slot, superblock: &Superblock) -> Option<SuperblockWrite<D>> {
        Some(SuperblockWrite::new(slot, superblock, self.set.devices().described(slot)?))
    }

    /// A superblock of the array and a number for a device that is added: one that no device has and none of these is.
    pub fn for_new_device(&self, reserved: &[u32]) -> Option<(Superblock, u32)> {
        let (mut by_slot, mut incoming) = (self.by_slot.borrow_mut(), self.incoming.borrow_mut());
        let mut spares = self.spares.borrow_mut();
        let of_incoming = incoming.iter_mut().flatten().map(|incoming| &mut incoming.superblock);
        let of_spares = spares.iter_mut().map(|spare| &mut spare.superblock);
        let mut all: Vec<&mut Superblock> =
            by_slot.iter_mut().flatten().chain(of_incoming).chain(of_spares).collect();
        let number = device_numbers::take(&mut all, reserved, &mut self.failed.borrow_mut())?;
        Some((by_slot.iter().flatten().next()?.clone(), number))
    }

    /// A device may say that it has this number, and is not of the array: no other one gets it.
    pub(super) fn burn_number(&self, number: u32) {
        device_numbers::note(&mut self.failed.borrow_mut(), number);
    }

    /// From here on superblocks say that the device with this one is to replace the member in `slot`. Every shard has it
    /// beside the member. False if the member is not in sync, or is being replaced already.
    pub(super) fn begin_replacement(&self, slot: Slot, superblock: Superblock, from_bytes: u64) -> bool {
        self.forget_failed_replacement(slot);
        let begun =
            self.set.shared.members.begin_replacement(slot, from_bytes, bad_block_log::room(&superblock));
        if begun {
            let incoming = Incoming { superblock, copied_bytes: from_bytes };
            self.incoming.borrow_mut()[slot.index()] = Some(incoming);
        }
        begun
    }

    /// The replacement in `slot` has so much, durably.
    pub(super) fn set_copied(&self, slot: Slot, bytes: u64) {
        if let Some(incoming) = &mut self.incoming.borrow_mut()[slot.index()] {
            incoming.copied_bytes = bytes;
        }
    }

    /// The superblock of what is to replace the member in a slot, as last written.
    pub fn incoming(&self, slot: Slot) -> Option<Superblock> {
        self.incoming.borrow()[slot.index()].as_ref().map(|incoming| incoming.superblock.clone())
    }

    /// What was to replace the member in a slot and failed is faulty from now on.
    pub(super) fn forget_failed_replacement(&self, slot: Slot) {
        if self.set.shared.members.replacing(slot) == Replacing::No
            && let Some(incoming) = self.incoming.borrow_mut()[slot.index()].take()
        {
            device_numbers::note(&mut self.failed.borrow_mut(), incoming.superblock.dev_number());
        }
    }

    /// Whether the member in a slot has failed since this round began, and what was to replace it has the slot: the
    /// superblock that is kept is not about that yet, and the failed member gets none any more.
    pub(super) fn has_just_fallen(&self, slot: Slot) -> bool {
        self.incoming.borrow()[slot.index()].is_some()
            && matches!(self.set.shared.members.replacing(slot), Replacing::Moving | Replacing::Alone)
    }

    /// Device numbers of what is to replace members, and the slots.
    pub(super) fn incoming_numbers(&self) -> Vec<(u32, Slot)> {
        let incoming = self.incoming.borrow();
        let number = |(slot, incoming): (Slot, &Option<Incoming>)| {
            Some((incoming.as_ref()?.superblock.dev_number(), slot))
        };
        Slot::all().zip(incoming.iter()).filter_map(number).collect()
    }

    /// Their superblocks; `fill` says what is the same in all.
    pub(super) fn incoming_writes(&self, fill: impl Fn(&mut Superblock)) -> Vec<SuperblockWrite<D>> {
        let mut writes = Vec::new();
        for (slot, incoming) in Slot::all().zip(self.incoming.borrow_mut().iter_mut()) {
            let (Some(incoming), Some(device)) = (incoming, self.set.devices().replacement(slot)) else {
                continue;
            };
            fill(&mut incoming.superblock);
            incoming.superblock.set_replacement(true);
            incoming.superblock.set_recovery_offset(Some(Sectors::from_bytes_floor(incoming.copied_bytes)));
            let mut write = SuperblockWrite::new(slot, &incoming.superblock, device);
            write.is_replacement = true;
            writes.push(write);
        }
        writes
    }
}

/// Whether a member in this state gets superblocks.
fn in_use(state: MemberState) -> bool {
    matches!(state, MemberState::InSync | MemberState::Recovering)
}
