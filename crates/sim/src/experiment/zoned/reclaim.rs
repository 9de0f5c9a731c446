//! What reclaim costs, in virtual time on drives that keep contents: write amplification by policy, workload and reserve, and the
//! latency of writes while it works beside that of an array that has nothing to reclaim.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use engine::buffer::{Buffer, Gather, Slice};
use engine::executor::Executor;
use engine::log::config::{Appends, LogConfig, MapLimits, OpenCounts, ReclaimOptions};
use engine::log::dispatch::FillWait;
use engine::log::engine::LogSet;
use engine::log::reclaim::choose::ReclaimPolicy;
use engine::volume::Space;
use engine::zone_device::ZoneAccess;
use engine::zone_device::timing::DriveModel;
use layout::geometry::Level;
use layout::zoned::{Access, Carrier, Class, MapEntryBytes, MapShape};
use serde::Serialize;

use super::array::{serve_new, zoned_info};
use super::drive::TimedZones;
use crate::experiment::quantile_us;
use crate::random::Random;
use crate::timeline::Timeline;

const BLOCK: u64 = 4096;
const MEMBERS: u8 = 4;
const NUMBERS: u64 = 1 << 20;
/// Blocks of the requests that fill the array.
const FILL_BLOCKS: u64 = 24;
/// Requests in flight.
const DEPTH: u64 = 64;

/// Which blocks are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Places {
    /// All alike.
    Uniform,
    /// Four of five writes go to a fifth of the blocks.
    HotCold,
    /// By Zipf's law with the exponent 0.99.
    Zipf,
}

/// One way to run it.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// Where writes go.
    pub places: Places,
    /// Room for what is overwritten, in hundredths of the array's size.
    pub reserve_percent: u64,
    /// Which segments are emptied first.
    #[serde(serialize_with = "policy_words")]
    pub policy: ReclaimPolicy,
    /// Zones of each drive.
    pub zones: u32,
    /// Blocks of a zone.
    pub zone_blocks: u32,
}

/// What came out.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Row {
    /// The point.
    pub point: Point,
    /// Blocks written for each that clients wrote, parity apart.
    pub write_amplification: f64,
    /// While reclaim works.
    pub aged: Latencies,
    /// On a new array of the same shape, with nothing to reclaim.
    pub new: Latencies,
}

/// Of writes of 4 KiB.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latencies {
    /// MiB a second.
    pub mib_per_s: f64,
    /// Median.
    pub median_us: f64,
    /// 99 of 100 took no longer.
    pub p99_us: f64,
    /// 999 of 1000 took no longer.
    pub p999_us: f64,
    /// The longest.
    pub max_us: f64,
}

fn policy_words<S: serde::Serializer>(policy: &ReclaimPolicy, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(policy)
}

impl Row {
    /// The 99th percentile while reclaim works, by that without.
    pub fn p99_ratio(&self) -> f64 {
        self.aged.p99_us / self.new.p99_us
    }

    /// A line of the table.
    pub fn words(&self) -> String {
        let Row { point, write_amplification, aged, new } = self;
        format!(
            "{:<9}{:>5} %  {:<13}{:>6.2}{:>9.1}{:>9.1}{:>9.1}{:>9.1}{:>10.1}{:>9.1}{:>9.1}{:>7.1}",
            format!("{:?}", point.places),
            point.reserve_percent,
            point.policy.to_string(),
            write_amplification,
            aged.mib_per_s,
            aged.median_us,
            aged.p99_us,
            aged.p999_us,
            aged.max_us,
            new.mib_per_s,
            new.p99_us,
            self.p99_ratio()
        )
    }
}

/// The heading of the lines of [`Row::words`].
pub fn heading() -> String {
    format!(
        "{:<9}{:>7}  {:<13}{:>6}{:>9}{:>9}{:>9}{:>9}{:>10}{:>9}{:>9}{:>7}",
        "places",
        "reserve",
        "policy",
        "WA",
        "MiB/s",
        "p50 us",
        "p99",
        "p99.9",
        "max",
        "new MiB/s",
        "p99",
        "ratio"
    )
}

/// All points.
pub fn points(zones: u32, zone_blocks: u32) -> Vec<Point> {
    let mut points = Vec::new();
    for places in [Places::Uniform, Places::HotCold, Places::Zipf] {
        for reserve_percent in [25, 50, 100] {
            let point = |policy| Point { places, reserve_percent, policy, zones, zone_blocks };
            points.extend(ReclaimPolicy::ALL.map(point));
        }
    }
    points
}

/// Fills an array, writes it over `times` times, and measures one more time.
pub fn run(point: &Point, times: u64) -> Row {
    let logical = logical_blocks(point);
    let (new, _) = write(point, logical, &[(false, logical / 20), (true, logical / 5)]);
    let (aged, write_amplification) =
        write(point, logical, &[(false, 0), (false, times * logical), (true, logical)]);
    Row { point: *point, write_amplification, aged, new }
}

/// Blocks that clients see with this reserve, as `create` has it.
fn logical_blocks(point: &Point) -> u64 {
    let config = config(point, 1 << 20);
    let segment = |class| {
        let shape = config.shape(class, MEMBERS).expect("a shape");
        u64::from(shape.rows()) * u64::from(shape.plan().columns.data())
    };
    let slots = u64::from(config.slots()) - config.low_segments() as u64 - 2;
    slots * segment(Class::Small).min(segment(Class::Large)) * 100 / (100 + point.reserve_percent)
}

/// Stages one after the other: whether the stage is measured, and its writes; the first of three fills the array.
fn write(point: &Point, logical: u64, stages: &[(bool, u64)]) -> (Latencies, f64) {
    let time = Timeline::new();
    let executor = Executor::new(Box::new(|| {}));
    let found = Rc::new(Cell::new(None));
    let (own, of, told) = (Rc::clone(&time), executor.clone(), Rc::clone(&found));
    let (point, stages) = (*point, stages.to_vec());
    executor.spawn(async move {
        let zoned = zoned_info(ZoneAccess::Append, point.zones, point.zone_blocks);
        let device = |_| Some(TimedZones::new(zoned.clone(), DriveModel::Zn540, &own, true));
        let devices = (0..MEMBERS).map(device).collect();
        let (set, shared) = serve_new(config(&point, logical), devices, NUMBERS, &own, &of).await;
        let set = Rc::new(set);
        let clients = Rc::new(Clients::new(&point, logical, &own));
        let fills = stages.len() > 2;
        for (at, (is_measured, requests)) in stages.into_iter().enumerate() {
            let before = shared.space.totals();
            let began_ns = own.now_ns();
            match fills && at == 0 {
                true => clients.fill(&set).await,
                false => clients.run(&set, &of, requests).await,
            }
            if is_measured {
                let after = shared.space.totals();
                let user = (after.user_blocks - before.user_blocks) as f64;
                let moved = (after.moved_blocks - before.moved_blocks) as f64;
                let latencies = clients.latencies(own.now_ns() - began_ns);
                told.set(Some((latencies, (user + moved) / user)));
            }
            clients.latencies_ns.borrow_mut().clear();
        }
    });
    let found = loop {
        executor.run_ready(usize::MAX);
        if let Some(found) = found.get() {
            break found;
        }
        executor.enter(time.next().expect("requests are under way"));
    };
    executor.abandon();
    found
}

struct Clients {
    time: Rc<Timeline>,
    random: Random,
    logical: u64,
    places: Places,
    /// For Zipf: which share of all writes goes to the most written blocks up to each.
    shares: Vec<f64>,
    /// Has no divisor in common with the array's size, so that its multiples reach every block.
    stride: u64,
    data: Slice,
    left: Cell<u64>,
    latencies_ns: RefCell<Vec<u64>>,
}

impl Clients {
    fn new(point: &Point, logical: u64, time: &Rc<Timeline>) -> Self {
        let mut shares = Vec::new();
        if point.places == Places::Zipf {
            let mut sum = 0.0;
            for rank in 1..=logical {
                sum += (rank as f64).powf(-0.99);
                shares.push(sum);
            }
            shares.iter_mut().for_each(|share| *share /= sum);
        }
        Clients {
            time: Rc::clone(time),
            random: Random::new(7),
            logical,
            places: point.places,
            shares,
            stride: (7_368_787..).find(|stride| gcd(*stride, logical) == 1).expect("a prime is among them"),
            data: Buffer::new((FILL_BLOCKS * BLOCK) as usize).freeze(),
            left: Cell::new(0),
            latencies_ns: RefCell::default(),
        }
    }

    async fn fill(&self, set: &LogSet<TimedZones>) {
        for first in (0..self.logical).step_by(FILL_BLOCKS as usize) {
            let blocks = FILL_BLOCKS.min(self.logical - first);
            let data = Gather::from(self.data.part(0, (blocks * BLOCK) as usize));
            set.write(first * BLOCK, data, false).await.expect("nothing fails here");
        }
    }

    async fn run(self: &Rc<Self>, set: &Rc<LogSet<TimedZones>>, executor: &Executor, requests: u64) {
        self.left.set(requests);
        let client = |_| executor.spawn_with_result(Rc::clone(self).client(Rc::clone(set)));
        engine::executor::join_all((0..DEPTH).map(client)).await;
    }

    async fn client(self: Rc<Self>, set: Rc<LogSet<TimedZones>>) {
        while let Some(left) = self.left.get().checked_sub(1) {
            self.left.set(left);
            let since_ns = self.time.now_ns();
            let data = Gather::from(self.data.part(0, BLOCK as usize));
            set.write(self.next() * BLOCK, data, false).await.expect("nothing fails here");
            self.latencies_ns.borrow_mut().push(self.time.now_ns() - since_ns);
        }
    }

    fn next(&self) -> u64 {
        let hot = self.logical / 5;
        match self.places {
            Places::Uniform => self.random.below(self.logical),
            Places::HotCold if self.random.percent(80) => self.spread(self.random.below(hot)),
            Places::HotCold => self.spread(hot + self.random.below(self.logical - hot)),
            Places::Zipf => {
                let drawn = self.random.below(1 << 53) as f64 / (1u64 << 53) as f64;
                self.spread(self.shares.partition_point(|share| *share < drawn) as u64)
            }
        }
    }

    /// What is written often is not side by side.
    fn spread(&self, rank: u64) -> u64 {
        (u128::from(rank) * u128::from(self.stride) % u128::from(self.logical)) as u64
    }

    fn latencies(&self, elapsed_ns: u64) -> Latencies {
        let mut all = self.latencies_ns.borrow().clone();
        all.sort_unstable();
        Latencies {
            mib_per_s: all.len() as f64 * BLOCK as f64 / f64::from(1 << 20) / (elapsed_ns as f64 / 1e9),
            median_us: quantile_us(&all, 0.5),
            p99_us: quantile_us(&all, 0.99),
            p999_us: quantile_us(&all, 0.999),
            max_us: quantile_us(&all, 1.0),
        }
    }
}

fn gcd(first: u64, second: u64) -> u64 {
    if second == 0 { first } else { gcd(second, first % second) }
}

fn config(point: &Point, logical_blocks: u64) -> LogConfig {
    LogConfig {
        set_uuid: [7; 16],
        devices: (1..=MEMBERS).map(|member| [member; 16]).collect(),
        level: Level::Raid5,
        access: Access::Append,
        carrier: Carrier::Oob,
        zones: point.zones,
        capacity_blocks: point.zone_blocks,
        record_blocks: [2, 16],
        group: 32,
        open: OpenCounts { small: 1, large: 1, appends: Appends::IfAlone },
        band_blocks: 256,
        map: MapShape::new(MapEntryBytes::Eight, 2 * MEMBERS, point.zone_blocks).expect("a shape"),
        logical_blocks,
        fill_wait: FillWait::Auto,
        zone_limits: vec![None; MEMBERS.into()],
        record_bytes_max: 128 << 10,
        map_limits: MapLimits { groups: None, changed: None },
        reclaim: ReclaimOptions { policy: point.policy, idle_ns: None },
    }
}
