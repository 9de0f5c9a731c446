//! A tiny array that is not running: its devices with all that is on them, and what they may hold.

use std::rc::Rc;

use engine::array::assemble::{Assembly, Candidate};
use engine::members::load::UpdatePolicy;
use engine::stripe::locks::Locks;
use layout::geometry::{Geometry, Layout, Level};
use layout::md_superblock::MinorVersion;
use layout::redo_log::StripeRange;

use super::act::Devices;
use super::lineage::{Cells, Lineage};
use crate::drawer::machine_with_array;
use crate::machine::Machine;
use crate::random::Random;
use crate::recorded;
use crate::scenario::{Consistency, FaultPlan, Load, MEMBER_BYTES_WITH_BITMAP, Scenario, Support};
use crate::start;
use crate::world::World;

/// A chunk, and a cell.
pub(super) const CHUNK: u32 = 4096;
/// Room for superblock, bitmap, records of generations and redo log, with what mdadm wants left for a bitmap.
const DATA_OFFSET_WITH_ALL: u64 = 640 << 10;
/// Lines of the trace that a failure shows.
const TAIL: usize = 40;

/// Mistakes that are made on purpose, to see that the search finds them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Planted {
    /// A new device gets the number of one that failed.
    pub numbers_are_reused: bool,
}

/// What an array has to record things in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Records {
    /// A bitmap, and room for records of generations and absences, and for a redo log.
    All,
    /// All but a bitmap.
    NoBitmap,
    /// A bitmap only, as in arrays of other programs.
    BitmapOnly,
}

/// An array that is not running.
pub(super) struct Site {
    pub(super) machine: Rc<Machine>,
    pub(super) lineage: Lineage,
    pub(super) planted: Planted,
    pub(super) seed: u64,
}

impl Site {
    /// A new array.
    pub(super) fn new(level: Level, records: Records, seed: u64, planted: Planted) -> Self {
        let world = World::new(Random::new(seed), TAIL);
        let machine = machine_with_array(world, scenario(level, records));
        let devices = 0..machine.geometry().members();
        let lineage = Lineage::new(devices, cells(machine.geometry()).len());
        Site { machine, lineage, planted, seed }
    }

    /// The same in a world of its own.
    pub(super) fn twin(&self) -> Self {
        let of = &self.machine;
        let world = World::new(Random::new(self.seed), TAIL);
        let scenario = of.scenario.clone();
        let machine = recorded::guarded_machine(world, scenario, of.oracle.borrow().clone());
        machine.generations.set(of.generations.get());
        *machine.all_disks.borrow_mut() =
            of.all_disks.borrow().iter().map(|disk| disk.twin(&machine.world, &machine.watch)).collect();
        Site { machine, lineage: self.lineage.clone(), ..*self }
    }

    /// These devices are plugged in and no others.
    pub(super) fn connect(&self, devices: Devices) {
        let disks = self.machine.all_disks.borrow();
        disks.iter().for_each(|disk| disk.plug(devices.has(disk.number)));
    }

    /// All devices there are.
    pub(super) fn all(&self) -> Devices {
        Devices((1 << self.machine.all_disks.borrow().len()) - 1)
    }

    /// What the devices that are plugged in make, by force or not.
    pub(super) fn assembly(&self, force: bool) -> Option<(Vec<Candidate>, Assembly)> {
        let candidates = recorded::candidates(&self.machine);
        let assembly = recorded::one_array(&self.machine, &candidates, force)?;
        Some((candidates, assembly))
    }

    /// Stripes that are in doubt when the array starts with the devices that are plugged in; by force they are accepted.
    pub(super) fn doubts(&self, force: bool) -> Vec<StripeRange> {
        let Some((candidates, assembly)) = self.assembly(force) else { return Vec::new() };
        if assembly.start.is_err() {
            return Vec::new();
        }
        let inspection = start::inspection(&self.machine, &candidates, &assembly);
        let bitmap = inspection.bitmap(self.machine.geometry()).unwrap_or_default();
        inspection.redo(bitmap.as_ref(), false, false).repair.doubts
    }
}

/// Where the cells are, in bytes of the array: two of one stripe or copies apart, one of the next, and one that no act
/// touches. The first and the third are written; all hold data at rest from the beginning.
pub(super) fn cells(geometry: &Geometry) -> [u64; 4] {
    let (chunk, stripe) = (u64::from(CHUNK), spot_bytes(geometry));
    [0, chunk, stripe + chunk % stripe, 5 * stripe]
}

/// Bytes of the array that parity binds together; of a mirror a cell.
fn spot_bytes(geometry: &Geometry) -> u64 {
    match geometry.parity_chunks() {
        0 => 2 * u64::from(CHUNK),
        _ => geometry.stripe_bytes(),
    }
}

/// The cells that a loss in some of these may reach: those of the same stripe.
pub(super) fn beside(geometry: &Geometry, cells_hit: Cells) -> Cells {
    if geometry.parity_chunks() == 0 {
        return cells_hit;
    }
    let cells = cells(geometry);
    let stripe = |cell: usize| cells[cell] / geometry.stripe_bytes();
    let is_hit =
        |stripe_hit: u64| (0..4).any(|cell| cells_hit & 1 << cell != 0 && stripe(cell) == stripe_hit);
    (0..4).filter(|cell| is_hit(stripe(*cell))).fold(0, |hit, cell| hit | 1 << cell)
}

/// The cells in these stripes.
pub(super) fn cells_in(geometry: &Geometry, stripes: &[StripeRange]) -> Cells {
    if geometry.parity_chunks() == 0 {
        return 0;
    }
    let cells = cells(geometry);
    let is_in = |cell: &usize| {
        let stripe = cells[*cell] / geometry.stripe_bytes();
        stripes.iter().any(|range| (range.first..range.end).contains(&stripe))
    };
    (0..4).filter(is_in).fold(0, |all, cell| all | 1 << cell)
}

fn members(level: Level) -> u32 {
    match level {
        Level::Raid0 => 2,
        Level::Raid1 | Level::Raid4 | Level::Raid5 => 3,
        Level::Raid6 | Level::Raid10 => 4,
    }
}

fn scenario(level: Level, records: Records) -> Scenario {
    let room = records != Records::BitmapOnly;
    let chunk = if level == Level::Raid1 { 0 } else { CHUNK };
    let layout = Layout::default_for(level);
    let geometry = Geometry::new(level, layout, members(level), chunk, MEMBER_BYTES_WITH_BITMAP);
    let has_parity = matches!(level, Level::Raid4 | Level::Raid5 | Level::Raid6);
    Scenario {
        geometry: geometry.expect("an array"),
        unit: CHUNK,
        metadata: if room { MinorVersion::V1_2 } else { MinorVersion::V1_0 },
        data_offset: match (room, has_parity) {
            (false, _) => 0,
            (true, true) => DATA_OFFSET_WITH_ALL,
            (true, false) => 64 << 10,
        },
        look: 20,
        shards: 1,
        cache_bytes: 1 << 20,
        table_entries: 64,
        two_phase: true,
        policy: UpdatePolicy::FewestReads,
        avoid_slow: false,
        load: Load::none(u64::from(CHUNK)),
        faults: FaultPlan::none(Support::All, Support::All),
        rounds: 1,
        consistency: match (level, records) {
            (Level::Raid0, _) | (_, Records::NoBitmap) => Consistency::Resync,
            _ => Consistency::Bitmap(CHUNK),
        },
        bitmap: (Locks::default(), false),
        redo_log: room && has_parity,
        unlogged_starts: false,
        bad_log: true,
        fabric: None,
        network: None,
    }
}
