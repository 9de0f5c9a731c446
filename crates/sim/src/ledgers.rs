//! Ledgers of members on other machines: a host has their targets record what it has under way, one message to one target at a
//! time, and the next host goes by them.

use std::cell::Cell;

use engine::fabric::ledger::Ledger;
use engine::fabric::recording::{Recording, Said};
use engine::stripe::Shared;

use crate::disk::Disk;
use crate::machine::Machine;

/// How far a host has come with its members' ledgers.
#[derive(Default)]
pub(crate) struct Keeper {
    recording: Cell<Recording>,
    /// Members that have done the present step.
    done: Cell<usize>,
}

impl Keeper {
    /// One message of the host, if its array may be recorded: between any two of them there are other events.
    pub(crate) fn step(&self, shared: &Shared, machine: &Machine, host: u64) {
        let Some(epochs) = shared.consistency.epochs() else { return };
        let disks = machine.disks.borrow();
        let disks: Vec<_> = disks.iter().flatten().collect();
        let is_here = |disk: &Disk| disk.gate.holder.get().host == host && !disk.is_away();
        let may = shared.may_be_recorded()
            && disks.len() == machine.geometry().members() as usize
            && disks.iter().all(|disk| is_here(disk));
        let recording = self.recording.get();
        if let (true, Some(disk)) = (may, disks.get(self.done.get())) {
            let (owner, places) = (disk.gate.holder.get(), disk.places);
            let end = places.data.get() + machine.geometry().member_bytes();
            match recording {
                Recording::Beginning { id } => {
                    let begun = Ledger::begin(id, owner, places.data.get()..end);
                    *disk.gate.ledger.borrow_mut() = Some(begun);
                    return self.done.set(self.done.get() + 1);
                }
                Recording::Completing { id } => {
                    let mut ledger = disk.gate.ledger.borrow_mut();
                    if ledger.as_mut().is_some_and(|ledger| ledger.complete(id, &owner)) {
                        return self.done.set(self.done.get() + 1);
                    }
                }
                Recording::Off | Recording::Waiting { .. } | Recording::Complete { .. } => {}
            }
        }
        let has = |disk: &Disk, id| disk.gate.ledger.borrow().as_ref().and_then(Ledger::id) == Some(id);
        let said = match recording.id() {
            Some(id) if !disks.iter().all(|disk| has(disk, id)) => Said::NotAll,
            _ => Said::All,
        };
        let any_suspect = || shared.consistency.suspects() > 0;
        let new_id = || machine.new_generation();
        self.recording.set(recording.next(said, may, epochs, any_suspect, new_id));
        self.done.set(0);
    }
}
