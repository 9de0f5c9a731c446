//! How an array is started: what the operator says, and the reads that the engine's own start asks for.

use engine::array::assemble::{Assembly, Candidate};
use engine::array::bad_block_log;
use engine::array::generations::find_record;
use engine::array::start::{self, Inspection, Policy};
use engine::bad_blocks::BadBlocks;
use layout::generations::GenerationsRecord;
use layout::md_superblock::Superblock;

use crate::disk::Disk;
use crate::machine::Machine;
use crate::scenario::{Consistency, Scenario};
use layout::units::DeviceOffset;

/// What the operator says of one start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct How {
    /// Contents that may be wrong are accepted.
    pub(crate) force: bool,
    /// Nothing is written.
    pub(crate) read_only: bool,
    /// Nothing is written down before stripes change in this run, whatever the array's other runs do.
    pub(crate) unmarked: bool,
    /// While members are missing, writes are not logged.
    pub(crate) unlogged: bool,
}

impl How {
    /// As the scenario has it.
    pub(crate) fn usual(scenario: &Scenario) -> Self {
        How {
            force: false,
            read_only: false,
            unmarked: scenario.consistency == Consistency::None,
            unlogged: !scenario.redo_log,
        }
    }

    /// As usual, or now and then without a log, where one may be in force.
    pub(crate) fn logged_or_not(machine: &Machine) -> Self {
        let mut how = How::usual(&machine.scenario);
        how.unlogged |= machine.scenario.unlogged_starts && machine.world.random().one_in(2);
        how
    }

    /// The same, or now and then without marks either: after such a run the operator has to repair the array.
    pub(crate) fn marked_or_not(machine: &Machine) -> Self {
        let mut how = How::logged_or_not(machine);
        let may = how.unlogged && machine.scenario.consistency == Consistency::Resync;
        how.unmarked |= may && machine.scenario.unlogged_starts && machine.world.random().one_in(2);
        how
    }

    /// Reads only.
    pub(crate) fn reading(scenario: &Scenario) -> Self {
        How { read_only: true, ..How::usual(scenario) }
    }

    pub(crate) fn policy(self, scenario: &Scenario) -> Policy {
        Policy {
            read_only: self.read_only,
            force: self.force,
            consistency: match self.unmarked {
                true => start::Consistency::None,
                false => start::Consistency::Marked,
            },
            redo_log: (!self.unlogged).then(|| scenario.redo_contents()),
            logical_block_bytes: scenario.unit,
            shards: scenario.shards,
            parity_cache_bytes: scenario.cache_bytes,
            locks: scenario.bitmap.0,
            two_phase: scenario.two_phase,
            update_policy: scenario.policy,
            avoid_slow: scenario.avoid_slow,
        }
    }
}

/// Reads the devices that an assembly was made of, whatever is broken about them.
pub(crate) fn inspection<'a>(
    machine: &Machine,
    candidates: &'a [Candidate],
    assembly: &'a Assembly,
) -> Inspection<'a, impl Fn(usize, DeviceOffset, usize) -> Result<Vec<u8>, String> + use<>> {
    let disks = machine.connected();
    let read = move |candidate: usize, offset, bytes| Ok(disks[candidate].read_at_once(offset, bytes));
    Inspection { candidates, assembly, read }
}

/// The record of generations that goes with a superblock of a device.
pub(crate) fn record(disk: &Disk, superblock: &Superblock) -> Option<GenerationsRecord> {
    find_record(superblock, disk.places.size, |offset, bytes| Some(disk.read_at_once(offset, bytes)))
}

/// What a member's bad-block log lists.
pub(crate) fn bad_blocks(disk: &Disk, superblock: &Superblock) -> BadBlocks {
    let listed = bad_block_log::read(superblock, |offset, bytes| Ok(disk.read_at_once(offset, bytes)));
    listed.expect("a log that was written whole")
}
