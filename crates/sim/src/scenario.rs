//! What a history is about: the array, the load and the faults, drawn from the seed.

use std::cell::Cell;

use engine::members::load::UpdatePolicy;
use engine::stripe::locks::Locks;
use engine::stripe::redo::RedoContents;
use layout::geometry::{Geometry, Layout, Level};
use layout::md_bitmap::{Mapping, may_be_spread};
use layout::md_superblock::MinorVersion;

use crate::disk::{Abilities, Places};
use crate::fabric::FabricPlan;
use crate::network::NetworkPlan;
use crate::random::Random;
use layout::units::DeviceOffset;

/// Contents of all members together: small, so that a history is quick and writes meet.
const MEMBERS_BYTES: u64 = 6 << 20;

/// Room behind the data area for what metadata 1.0 keeps there.
const TAIL_BYTES: u64 = 64 << 10;

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) geometry: Geometry,
    pub(crate) unit: u32,
    /// Which superblock, and where the data area begins on the devices.
    pub(crate) metadata: MinorVersion,
    pub(crate) data_offset: u64,
    /// Longest time between two looks of the manager, in ticks.
    pub(crate) look: u64,
    pub(crate) shards: usize,
    pub(crate) cache_bytes: usize,
    pub(crate) table_entries: usize,
    pub(crate) two_phase: bool,
    pub(crate) policy: UpdatePolicy,
    pub(crate) avoid_slow: bool,
    pub(crate) load: Load,
    pub(crate) faults: FaultPlan,
    /// Crash and assembly in between.
    pub(crate) rounds: u64,
    pub(crate) consistency: Consistency,
    /// The locks over a bitmap's counters and the stripes, and whether its bits are spread, where there are stripes.
    pub(crate) bitmap: (Locks, bool),
    /// Writes are logged while members are missing, as far as there is room.
    pub(crate) redo_log: bool,
    /// Some starts go without that log, as the operator may choose.
    pub(crate) unlogged_starts: bool,
    /// Members have a log of bad blocks.
    pub(crate) bad_log: bool,
    /// The members' targets make parity among themselves.
    pub(crate) fabric: Option<FabricPlan>,
    /// Members are on other machines.
    pub(crate) network: Option<NetworkPlan>,
}

/// What is durable before a stripe may become inconsistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consistency {
    /// Nothing: after a crash no record says which parity agrees.
    None,
    /// The superblocks say dirty.
    Resync,
    /// The superblocks say dirty, and a bitmap with chunks of this many bytes says where.
    Bitmap(u32),
}

const BITMAPS: [(Locks, bool); 6] = [
    (Locks::Orig, false),
    (Locks::Hemi, false),
    (Locks::Scala, false),
    (Locks::Orig, true),
    (Locks::Hemi, true),
    (Locks::Scala, true),
];

/// A redo log of the least size, after superblock and bitmap.
pub(crate) const DATA_OFFSET_WITH_LOG: u64 = 300 << 10;
/// The same with room for the records of generations and of absences before it.
pub(crate) const DATA_OFFSET_WITH_ABSENCES: u64 = 640 << 10;
/// Smaller members have no room for a bitmap, by mdadm's rule.
pub(crate) const MEMBER_BYTES_WITH_BITMAP: u64 = 64 << 10;

/// What the clients do.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) clients: u64,
    pub(crate) requests: u64,
    /// Percent of reads, writes, flushes, zeroes; the rest are discards.
    pub(crate) mix: [u64; 4],
    pub(crate) fua_percent: u64,
    /// Stripes, or for mirrors ranges, that most requests go to.
    pub(crate) hot: Vec<u64>,
    pub(crate) hot_percent: u64,
    /// Longest pause of a client.
    pub(crate) pause: u64,
    pub(crate) bytes_max: u64,
}

impl Load {
    /// No client.
    pub(crate) fn none(bytes_max: u64) -> Self {
        Load {
            clients: 0,
            requests: 0,
            mix: [0; 4],
            fua_percent: 0,
            hot: vec![0],
            hot_percent: 0,
            pause: 1,
            bytes_max,
        }
    }
}

/// What goes wrong.
#[derive(Clone, Debug)]
pub(crate) struct FaultPlan {
    pub(crate) transient_one_in: u64,
    /// Longest time between two interventions; 0 for none.
    pub(crate) pause: u64,
    /// Members may die, within the level.
    pub(crate) deaths: bool,
    /// One more than the level survives may.
    pub(crate) beyond: bool,
    /// Members that were out come back with what they held, where the bitmap says what they lack.
    pub(crate) re_adds: bool,
    /// Members run out of space.
    pub(crate) full: bool,
    /// No member takes superblocks any more.
    pub(crate) metadata_lost: bool,
    /// A bug that is planted: members say that a flush is done, and nothing is durable.
    pub(crate) flushes_lie: bool,
    pub(crate) write_zeroes: Support,
    /// A cell, because a test changes it while the array runs.
    pub(crate) discard: Cell<Support>,
}

impl FaultPlan {
    /// Nothing goes wrong, on members with this support of two operations.
    pub(crate) fn none(write_zeroes: Support, discard: Support) -> Self {
        FaultPlan {
            transient_one_in: 0,
            pause: 0,
            deaths: false,
            beyond: false,
            re_adds: false,
            full: false,
            metadata_lost: false,
            flushes_lie: false,
            write_zeroes,
            discard: discard.into(),
        }
    }
}

/// How many members know an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Support {
    All,
    Some,
    None,
}

impl Scenario {
    /// Draws a scenario; `level` fixes the level.
    pub(crate) fn draw(random: &Random, level: Option<Level>) -> Self {
        let geometry = draw_geometry(random, level);
        Self::draw_for(random, geometry)
    }

    /// Draws what goes with a geometry.
    pub(crate) fn draw_for(random: &Random, geometry: Geometry) -> Self {
        let members = u64::from(geometry.members());
        let heavy = members > 12;
        let tables = [4096, 4096, 64, 16]; // the last ones are full now and then
        let metadata = draw_metadata(random, geometry.level());
        let redo_log = geometry.parity_chunks() > 0 && metadata != MinorVersion::V1_0 && random.one_in(2);
        let mut scenario = Scenario {
            metadata,
            data_offset: match metadata {
                MinorVersion::V1_0 => 0,
                _ if redo_log && geometry.members().is_multiple_of(2) => DATA_OFFSET_WITH_ABSENCES,
                _ if redo_log => DATA_OFFSET_WITH_LOG,
                _ => random.pick(&[16 << 10, 64 << 10]),
            },
            consistency: draw_consistency(random, &geometry),
            redo_log,
            unlogged_starts: false,
            bad_log: true,
            fabric: None,
            network: None,
            look: random.pick(&[20, 100, 400, 2000]),
            unit: if random.one_in(3) { 4096 } else { 512 },
            shards: random.pick(&[1, 1, 2, 3, 4]),
            cache_bytes: random.pick(&[0, 64 * 8192, 64 * 20_000, 64 << 20, 64 << 20]),
            table_entries: random.pick(&tables),
            two_phase: !random.one_in(4),
            load: draw_load(random, &geometry, heavy),
            faults: draw_faults(random),
            rounds: random.pick(&[1, 1, 1, 2, 3]),
            policy: random.pick(&UpdatePolicy::ALL),
            avoid_slow: random.one_in(2),
            bitmap: random.pick(&BITMAPS),
            geometry,
        };
        scenario.faults.re_adds = scenario.has_bitmap() && random.one_in(2);
        scenario.bad_log = !random.one_in(4);
        scenario.unlogged_starts = redo_log && random.one_in(3);
        scenario
    }

    /// What records of the redo log hold: in full where the manager looks so often. A draw of its own would make another history of
    /// each seed.
    pub(crate) fn redo_contents(&self) -> RedoContents {
        if self.look == 400 { RedoContents::Full } else { RedoContents::Lean }
    }

    pub(crate) fn has_bitmap(&self) -> bool {
        matches!(self.consistency, Consistency::Bitmap(_))
    }

    /// Which bit of a bitmap of the members stands for what.
    pub(crate) fn mapping(&self) -> Option<Mapping> {
        let Consistency::Bitmap(chunk) = self.consistency else { return None };
        let (geometry, unit) = (&self.geometry, self.geometry.chunk_bytes());
        Some(match self.bitmap.1 && may_be_spread(geometry, unit) && unit <= chunk {
            true => Mapping::spread(unit, chunk, geometry.member_bytes()),
            false => Mapping::contiguous(chunk),
        })
    }

    /// What lies where on each device.
    pub(crate) fn places(&self) -> Places {
        let geometry = &self.geometry;
        let data = DeviceOffset::new(self.data_offset);
        let data_end = data + geometry.member_bytes();
        let end = data_end.get();
        let size = match (geometry.level(), self.metadata) {
            (Level::Raid0, _) => end, // all that is there is used
            (_, MinorVersion::V1_0) => end.next_multiple_of(4096) + TAIL_BYTES,
            _ => end.next_multiple_of(4096),
        };
        let superblock = self.metadata.superblock_offset(size).expect("a device that is large enough");
        let superblock = DeviceOffset::new(superblock);
        Places { size, superblock, data, data_end, block: self.unit }
    }

    pub(crate) fn abilities(&self, random: &Random) -> Abilities {
        let has = |support| match support {
            Support::All => true,
            Support::None => false,
            Support::Some => !random.one_in(6),
        };
        let discard = has(self.faults.discard.get());
        Abilities {
            write_zeroes: has(self.faults.write_zeroes),
            discard: discard && !random.one_in(20),
            discard_zeroes: discard,
        }
    }

    /// Bytes of the array that a hot spot is about.
    pub(crate) fn spot_bytes(&self) -> u64 {
        if self.geometry.level().is_striped() { self.geometry.stripe_bytes() } else { 128 << 10 }
    }

    pub(crate) fn words(&self) -> String {
        let geometry = &self.geometry;
        format!(
            "{} {:?}, superblock {}, {} members of {} KiB, chunk {} KiB, blocks of {}, {} shards, parity cache {}, table {}, {}, {}{}, \
             {:?}{}{}{}, {} clients, {} requests, {:?}{}{}",
            geometry.level(),
            geometry.layout(),
            self.metadata,
            geometry.members(),
            geometry.member_bytes() >> 10,
            geometry.chunk_bytes() >> 10,
            self.unit,
            self.shards,
            self.cache_bytes,
            self.table_entries,
            if self.two_phase { "two phases" } else { "one phase" },
            self.policy,
            if self.avoid_slow { " that avoids slow members" } else { "" },
            self.consistency,
            self.mapping().map_or_else(String::new, |mapping| {
                format!("{}, locks {}", if mapping.is_spread() { " spread" } else { "" }, self.bitmap.0)
            }),
            match (self.redo_log, self.unlogged_starts) {
                (true, true) => " with redo log after some starts",
                (true, false) => " with redo log",
                (false, _) => "",
            },
            if self.bad_log { " with bad-block log" } else { "" },
            self.load.clients,
            self.load.requests,
            self.faults,
            self.fabric.map_or_else(String::new, |plan| format!(", {plan:?}")),
            self.network.map_or_else(String::new, |plan| format!(", {plan:?}")),
        )
    }
}

fn draw_metadata(random: &Random, level: Level) -> MinorVersion {
    use MinorVersion::{V1_0, V1_1, V1_2};
    if level == Level::Raid0 { V1_2 } else { random.pick(&[V1_2, V1_2, V1_2, V1_1, V1_0]) }
}

fn draw_consistency(random: &Random, geometry: &Geometry) -> Consistency {
    let may_have_bitmap =
        geometry.losses_survived() > 0 && geometry.member_bytes() >= MEMBER_BYTES_WITH_BITMAP;
    match random.below(10) {
        0 if geometry.losses_survived() > 0 => Consistency::None,
        1..6 if may_have_bitmap => Consistency::Bitmap(random.pick(&[4 << 10, 16 << 10, 64 << 10, 1 << 20])),
        _ => Consistency::Resync,
    }
}

fn draw_geometry(random: &Random, wanted: Option<Level>) -> Geometry {
    loop {
        let level = wanted.unwrap_or_else(|| {
            use Level::{Raid0, Raid1, Raid4, Raid5, Raid6, Raid10};
            random
                .pick(&[Raid0, Raid1, Raid4, Raid5, Raid5, Raid5, Raid5, Raid6, Raid6, Raid6, Raid6, Raid10])
        });
        let members = match random.below(40) {
            0 => random.between(13, 40),
            1 | 2 => 2,
            3..14 => random.between(7, 12),
            _ => random.between(3, 6),
        };
        let chunk: u32 = match random.below(100) {
            0 => 512 << 10, // two windows of a resync
            1..45 => 4 << 10,
            45..65 => 8 << 10,
            65..85 => 16 << 10,
            _ => random.pick(&[32 << 10, 64 << 10]),
        };
        let layout = draw_layout(random, level);
        let chunks = (MEMBERS_BYTES / members / u64::from(chunk)).clamp(2, 40);
        let member_bytes = match level {
            Level::Raid1 => random.between(16, 256) * 4096,
            Level::Raid10 => u64::from(chunk) * (MEMBERS_BYTES / members / u64::from(chunk)).clamp(4, 200),
            _ => u64::from(chunk) * random.between(2, chunks),
        };
        let chunk = if level == Level::Raid1 { 0 } else { chunk };
        // Some draws are no array (RAID-6 of three, RAID-10 layouts that collide).
        if let Ok(geometry) = Geometry::new(level, layout, members as u32, chunk, member_bytes) {
            return geometry;
        }
    }
}

fn draw_layout(random: &Random, level: Level) -> Layout {
    match level {
        Level::Raid0 | Level::Raid1 | Level::Raid4 => Layout::Unset,
        Level::Raid5 | Level::Raid6 => {
            let all: Vec<Layout> = Layout::parity_layouts(level).collect();
            if random.one_in(3) { Layout::default_for(level) } else { random.pick(&all) }
        }
        Level::Raid10 => random.pick(&[
            Layout::near(2),
            Layout::near(2),
            Layout::near(3),
            Layout::far(2),
            Layout::offset(2),
        ]),
    }
}

fn draw_load(random: &Random, geometry: &Geometry, heavy: bool) -> Load {
    let striped = geometry.level().is_striped();
    let spots = if striped { geometry.stripes() } else { geometry.array_bytes().div_ceil(128 << 10) };
    let hot = (0..random.between(1, 3)).map(|_| random.below(spots)).collect();
    let requests = if random.one_in(10) { 200 } else { random.between(10, 70) };
    Load {
        clients: random.pick(&[1, 2, 4, 8, 16, 24]),
        requests: if heavy { requests / 2 } else { requests },
        mix: random.pick(&[[25, 60, 5, 5], [10, 85, 5, 0], [45, 45, 5, 2], [20, 50, 5, 20], [15, 40, 40, 3]]),
        fua_percent: random.pick(&[0, 5, 30, 100]),
        hot,
        hot_percent: random.pick(&[0, 70, 95]),
        pause: random.pick(&[1, 10, 50, 200]),
        bytes_max: random.pick(&[4096, 64 << 10, 1 << 20]),
    }
}

fn draw_faults(random: &Random) -> FaultPlan {
    let kind = random.below(10);
    let support = [Support::All, Support::All, Support::Some, Support::None];
    FaultPlan {
        transient_one_in: random.pick(&[0, 0, 20, 100]),
        pause: if kind < 2 { 0 } else { random.pick(&[30, 100, 300, 1000]) },
        deaths: kind >= 3,
        beyond: kind == 9,
        re_adds: false,
        full: random.one_in(8),
        metadata_lost: random.one_in(40),
        flushes_lie: false,
        write_zeroes: random.pick(&support),
        discard: random.pick(&support).into(),
    }
}
