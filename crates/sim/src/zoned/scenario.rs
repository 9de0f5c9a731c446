//! What a seed draws: the array, its drives, the load, and what goes wrong.

use engine::log::config::{Appends, LogConfig, MapLimits, OpenCounts, ReclaimOptions};
use engine::log::dispatch::FillWait;
use engine::log::reclaim::choose::ReclaimPolicy;
use engine::log::zone_budget;
use engine::zone_device::{ZoneAccess, ZonedInfo};
use layout::geometry::Level;
use layout::zoned::{Access, Carrier, Class, MapEntryBytes, MapShape};

use super::drive::Fault;
use super::medium::BLOCK;
use super::plant::Plant;
use crate::random::Random;

/// State in which the history is cut at every moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// A new array, and whatever it comes to.
    Serving,
    /// Started again after a clean stop.
    Stopped,
    /// Started again after power cuts, some of them in the recovery.
    Crashed,
    /// A member is missing since an earlier start, which served.
    MemberMissing,
    /// A member has failed.
    MemberFailed,
    /// A member has failed, and another drive joins in its place.
    Joining,
    /// A member was away, and comes back.
    Returning,
    /// Members are added.
    Growing,
    /// Nearly full: segments are moved and reset while clients write.
    Reclaiming,
}

/// Room beside the logical blocks that reclaim works with: less than `create` leaves.
const RESERVE_PERCENT: u64 = 10;

/// How long clients rest before reclaim goes on: some of the pauses between requests are longer.
const IDLE_NS: u64 = 500_000;

const STATES: [State; 9] = [
    State::Serving,
    State::Stopped,
    State::Crashed,
    State::MemberMissing,
    State::MemberFailed,
    State::Joining,
    State::Returning,
    State::Reclaiming,
    State::Reclaiming,
];

#[derive(Clone, Debug)]
pub(super) struct Scenario {
    pub(super) level: Level,
    pub(super) members: usize,
    /// Drives that are added to them.
    pub(super) added: usize,
    pub(super) access: ZoneAccess,
    pub(super) carrier: Carrier,
    /// The logical block of the drives.
    pub(super) unit: u32,
    pub(super) zones: u32,
    pub(super) zone_blocks: u32,
    pub(super) logical_blocks: u64,
    pub(super) entry: MapEntryBytes,
    pub(super) record_blocks: [u16; 2],
    pub(super) group: u16,
    pub(super) open: OpenCounts,
    pub(super) band_blocks: u32,
    pub(super) open_max: Option<u32>,
    /// The drives allow one active zone less than they say.
    pub(super) limits_lie: bool,
    pub(super) fill_wait: FillWait,
    /// Entries of a group of the map.
    pub(super) map_entries: u32,
    pub(super) map_limits: MapLimits,
    pub(super) reclaim: ReclaimOptions,
    pub(super) shards: usize,
    pub(super) clients: u64,
    pub(super) requests: u64,
    pub(super) blocks_max: u64,
    pub(super) state: State,
    /// What goes wrong: member, at which of its writes, and how.
    pub(super) faults: Vec<(usize, u64, Fault)>,
    /// A planted bug.
    pub(super) plant: Option<Plant>,
}

impl Scenario {
    pub(super) fn draw(random: &Random, wanted: Option<Level>) -> Scenario {
        loop {
            let scenario = Scenario::draw_one(random, wanted);
            let config = scenario.config();
            let width = scenario.members as u8;
            let fits = |class| (1..=width).all(|width| is_possible(&config, class, width));
            if fits(Class::Small) && fits(Class::Large) {
                match scenario.state {
                    State::Reclaiming => match scenario.nearly_full(random) {
                        Some(nearly_full) => return nearly_full,
                        None => continue,
                    },
                    _ => return scenario.with_room().with_more_members(),
                }
            }
        }
    }

    fn draw_one(random: &Random, wanted: Option<Level>) -> Scenario {
        use Level::{Raid0, Raid1, Raid4, Raid5, Raid6, Raid10};
        let level = match wanted {
            Some(Raid1) => Raid10,
            Some(level) => level,
            None => random.pick(&[Raid0, Raid10, Raid4, Raid5, Raid5, Raid6, Raid6]),
        };
        let members = match level {
            Raid0 => random.between(1, 3),
            Raid1 | Raid10 => random.pick(&[2, 4]),
            Raid4 | Raid5 => random.between(3, 5),
            Raid6 => random.between(4, 6),
        } as usize;
        let access = random.pick(&[
            ZoneAccess::Placed,
            ZoneAccess::Placed,
            ZoneAccess::Sequential,
            ZoneAccess::Append,
            ZoneAccess::Append,
        ]);
        let oob = access == ZoneAccess::Append && random.one_in(2);
        let shards = random.pick(&[1, 1, 2]);
        let limited = access != ZoneAccess::Placed && random.one_in(2);
        let state = random.pick(&STATES);
        let state = match state {
            State::MemberMissing | State::MemberFailed | State::Joining | State::Returning
                if level == Raid0 =>
            {
                State::Crashed
            }
            state => state,
        };
        let small = random.pick(&[1, 2, 3, 4]);
        let appends = random.pick(&[Appends::IfAlone, Appends::IfAlone, Appends::UnlessIdle, Appends::Only]);
        let (small_open, large_open) = random.pick(&[(1, 1), (1, 1), (2, 1), (3, 0), (1, 2), (0, 2)]);
        let open = OpenCounts { small: small_open, large: large_open, appends };
        let mut scenario = Scenario {
            level,
            members,
            added: 0,
            access,
            carrier: if oob { Carrier::Oob } else { Carrier::Inband },
            unit: if oob { 4096 } else { random.pick(&[512, 4096]) },
            zones: random.between(12, 20) as u32 + 2 * open.total().saturating_sub(2) * shards as u32,
            zone_blocks: random.pick(&[16, 20, 27, 40]),
            logical_blocks: random.between(8, 40),
            entry: random.pick(&[MapEntryBytes::Eight, MapEntryBytes::Eight, MapEntryBytes::Four]),
            record_blocks: [small.max(2), random.pick(&[4, 6, 8])],
            group: random.pick(&[1, 2, 3, 4]),
            open,
            band_blocks: random.pick(&[4, 8, 12, 100]),
            open_max: limited.then(|| zone_budget::wanted(open.total() * shards as u32)),
            limits_lie: false,
            fill_wait: random.pick(&[
                FillWait::Auto,
                FillWait::Auto,
                FillWait::Fixed(0),
                FillWait::Fixed(60_000),
            ]),
            map_entries: 512,
            map_limits: MapLimits { groups: None, changed: None },
            reclaim: ReclaimOptions::default(),
            shards,
            clients: random.between(1, 5),
            requests: random.between(4, 24),
            blocks_max: random.pick(&[1, 3, 12]),
            state,
            faults: Vec::new(),
            plant: None,
        };
        // Without checksums in the map reads are not verified over in-band metadata, which is what `status` says then.
        if scenario.carrier == Carrier::Inband {
            scenario.entry = MapEntryBytes::Eight;
        }
        scenario.draw_faults(random);
        scenario.limit_map();
        scenario.vary_reclaim();
        scenario
    }

    /// A third of the arrays is reclaimed by age, and a third, not the same, while clients rest. Not drawn, as the map's limits.
    fn vary_reclaim(&mut self) {
        let mix = u64::from(self.zones) * 13 + self.requests * 7 + self.logical_blocks * 5 + self.clients;
        let policy = if mix.is_multiple_of(3) { ReclaimPolicy::CostBenefit } else { ReclaimPolicy::Greedy };
        self.reclaim = ReclaimOptions { policy, idle_ns: (mix / 3).is_multiple_of(3).then_some(IDLE_NS) };
    }

    /// Half of the arrays keep checkpoints, and have groups of few blocks, some of which are in memory. Not drawn: seeds that once
    /// failed keep their histories.
    fn limit_map(&mut self) {
        let mix = u64::from(self.zones) * 31 + self.requests * 17 + self.clients * 7 + self.logical_blocks;
        if mix.is_multiple_of(2) {
            return;
        }
        let pick = |of: &[usize], shift: u64| of[(mix / shift % of.len() as u64) as usize];
        self.map_entries = [2, 3, 5, 16][(mix / 2 % 4) as usize];
        let groups = pick(&[0, MapLimits::GROUPS_LEAST, 6], 8);
        if self.open.appends == Appends::Only && self.access == ZoneAccess::Append {
            // Each mapping block that is written alone takes a whole stripe there, padding beside it: half of a zone of a few records.
            self.map_entries = 16;
            self.map_limits = MapLimits { groups: None, changed: Some(6) };
            return;
        }
        self.map_limits = MapLimits {
            groups: Some(groups).filter(|groups| *groups > 0),
            changed: Some(pick(&[1, 2, 4, 9], 24)),
        };
        self.lose_roots(mix);
    }

    /// Of arrays with checkpoints whose members nothing else takes every second has a drive that writes nothing of records with a root.
    fn lose_roots(&mut self, mix: u64) {
        let has_places = self.access != ZoneAccess::Sequential; // else the next write would be off the pointer
        let takes =
            matches!(self.state, State::Serving | State::Stopped | State::Crashed | State::Reclaiming);
        if has_places
            && takes
            && self.hard_faults().next().is_none()
            && self.losses() > 0
            && (mix / 2).is_multiple_of(2)
        {
            let member = (mix / 4 % self.members as u64) as usize;
            self.faults.push((member, 0, Fault::LostRoot));
        }
    }

    /// With as many zones as its logical blocks need, beside the reserve and what is open: no less than what `create` asks for.
    fn with_room(mut self) -> Scenario {
        loop {
            let config = self.config();
            let kept = config.low_segments() + self.open.total() as usize * self.shards;
            let segments = (config.slots() as usize).saturating_sub(kept) as u64;
            let blocks = self.logical_blocks + self.map_blocks(self.logical_blocks);
            if segments * self.segment_blocks() * 100 >= blocks * (100 + RESERVE_PERCENT) {
                return self;
            }
            self.zones += 1;
        }
    }

    /// Of arrays that no member is taken from a quarter grows, mirrors by two drives. Not drawn, as the map's limits.
    fn with_more_members(mut self) -> Scenario {
        let mix = u64::from(self.zones) * 11 + self.requests * 5 + self.logical_blocks * 3 + self.clients;
        let takes = matches!(self.state, State::Serving | State::Stopped | State::Crashed);
        if !takes || self.hard_faults().next().is_some() || !mix.is_multiple_of(4) {
            return self;
        }
        let added = if self.level == Level::Raid10 { 2 } else { 1 };
        let (config, width) = (self.config(), (self.members + added) as u8);
        if [Class::Small, Class::Large].iter().all(|class| is_possible(&config, *class, width)) {
            (self.added, self.state) = (added, State::Growing);
        }
        self
    }

    /// Blocks that the map of so many blocks takes in the log: a checkpoint's, and the next one's beside it. Of groups as large as a
    /// block has room for, it is less than the hundredth part.
    fn map_blocks(&self, logical_blocks: u64) -> u64 {
        match self.map_limits.changed {
            None => 0,
            Some(_) => 2 * (logical_blocks.div_ceil(self.map_entries.into()) + 2),
        }
    }

    /// Blocks of clients that a segment holds, of the class that holds fewer.
    fn segment_blocks(&self) -> u64 {
        let config = self.config();
        let blocks = |class| {
            let shape = config.shape(class, self.members as u8).expect("it is possible");
            u64::from(shape.rows()) * u64::from(shape.plan().columns.data())
        };
        blocks(Class::Small).min(blocks(Class::Large))
    }

    /// With as many logical blocks as its segments hold, but for a reserve. None: it has too few segments.
    fn nearly_full(self, random: &Random) -> Option<Scenario> {
        let mut scenario = self;
        scenario.zones += 8;
        let config = scenario.config();
        // What stays open, and what each of a few crashes in a row costs: the rest of every open segment.
        let open = scenario.open.total() as usize * scenario.shards + 2;
        let segments = (config.slots() as usize).checked_sub(config.low_segments() + 2 * open)?;
        let room = segments as u64 * scenario.segment_blocks();
        scenario.logical_blocks = (room * 100 / random.pick(&[125, 150, 200])).min(120);
        while scenario.logical_blocks + scenario.map_blocks(scenario.logical_blocks) > room * 4 / 5 {
            scenario.logical_blocks = scenario.logical_blocks.checked_sub(1)?;
        }
        scenario.requests *= 3;
        (scenario.logical_blocks >= 8).then_some(scenario)
    }

    fn draw_faults(&mut self, random: &Random) {
        for _ in 0..random.pick(&[0, 0, 1, 2]) {
            let fault = random.pick(&Fault::SOFT);
            self.faults.push((random.below(self.members as u64) as usize, random.between(1, 60), fault));
        }
        let takes = [State::MemberMissing, State::MemberFailed, State::Joining, State::Returning];
        let taken = usize::from(takes.contains(&self.state));
        let left = self.losses().saturating_sub(taken);
        if left > 0 && random.one_in(3) {
            // The last member, which nothing else takes.
            let fault = random.pick(&Fault::HARD);
            // Only a checksum in the map tells that a drive did not write what it says.
            let is_verified = self.entry == MapEntryBytes::Eight;
            let fault = if is_verified { fault } else { Fault::Gone };
            self.faults.push((self.members - 1, random.between(1, 60), fault));
        }
        self.limits_lie = self.open_max.is_some() && random.one_in(8);
    }

    /// Members that may be lost, all in all.
    pub(super) fn losses(&self) -> usize {
        match self.level {
            Level::Raid10 => 1,
            level => level.parity_chunks() as usize,
        }
    }

    /// Members that a fault may take.
    pub(super) fn hard_faults(&self) -> impl Iterator<Item = usize> {
        self.faults.iter().filter(|(_, _, fault)| fault.is_hard()).map(|(member, ..)| *member)
    }

    /// Members that the array may have, as the map has columns.
    pub(super) fn slots(&self) -> usize {
        2 * self.members
    }

    pub(super) fn zoned(&self) -> ZonedInfo {
        ZonedInfo {
            access: self.access,
            zones: self.zones,
            zone_bytes: u64::from(self.zone_blocks) * BLOCK,
            capacity_bytes: u64::from(self.zone_blocks) * BLOCK,
            record_bytes_max: 16 << 12,
            metadata_bytes: if self.carrier == Carrier::Oob { 64 } else { 0 },
            open_max: self.open_max,
            active_max: self.open_max,
        }
    }

    pub(super) fn config(&self) -> LogConfig {
        LogConfig {
            set_uuid: [7; 16],
            devices: (0..self.slots())
                .map(|slot| if slot < self.members { [slot as u8 + 1; 16] } else { [0; 16] })
                .collect(),
            level: self.level,
            access: match self.access {
                ZoneAccess::Append => Access::Append,
                ZoneAccess::Sequential => Access::Sequential,
                ZoneAccess::Placed => Access::Placed,
            },
            carrier: self.carrier,
            zones: self.zones,
            capacity_blocks: self.zone_blocks,
            record_blocks: self.record_blocks,
            group: self.group,
            open: self.open,
            band_blocks: self.band_blocks,
            map: MapShape::new(self.entry, 2 * self.members as u8, self.zone_blocks)
                .expect("a shape")
                .with_groups_of(self.map_entries),
            logical_blocks: self.logical_blocks,
            fill_wait: self.fill_wait,
            zone_limits: vec![self.open_max; self.slots()],
            record_bytes_max: 16 << 12,
            map_limits: self.map_limits,
            reclaim: self.reclaim,
        }
    }

    pub(super) fn words(&self) -> String {
        format!("{self:?}")
    }
}

/// Widths that a level does not have are no fault.
fn is_possible(config: &LogConfig, class: Class, width: u8) -> bool {
    let has_columns = layout::zoned::Columns::new(config.level, width).is_some();
    !has_columns || config.shape(class, width).is_ok()
}
