//! A point with the engine: an array over drives that take time, and clients that each have one write in flight.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use engine::buffer::{Buffer, Gather, Pool, Slice};
use engine::counters::Counters;
use engine::executor::Executor;
use engine::log::config::{LogConfig, MapLimits, OpenCounts, ReclaimOptions};
use engine::log::dispatch::{FILL_WAIT_NS, FillWait};
use engine::log::engine::LogSet;
use engine::log::port::{LogPlatform, LogPort};
use engine::log::recover::{Start, recover};
use engine::log::shared::LogShared;
use engine::members::MemberState;
use engine::volume::Space;
use engine::zone_device::{ZoneAccess, ZonedInfo};
use layout::zoned::{Access, Carrier, Epoch, MapEntryBytes, MapShape};

use super::drive::TimedZones;
use super::point::{MIX_KIB_MAX, Mode, Point, Sizes, Speed};
use crate::random::Random;
use crate::timeline::Timeline;
use crate::world::pending;

const BLOCK: u64 = 4096;
/// Blocks of a zone: the ZN540's 1077 MiB.
const ZONE_BLOCKS: u32 = 1077 << 8;
const ZONES: u32 = 16;
/// Blocks of the array: much fewer than its zones hold, so that nothing is reclaimed.
const LOGICAL_BLOCKS: u64 = 1 << 20;
/// Segment numbers for as long as the run takes.
const NUMBERS: u64 = 64;

struct Clock {
    time: Rc<Timeline>,
    random: Random,
}

impl LogPlatform for Clock {
    fn now_ns(&self) -> u64 {
        self.time.now_ns()
    }

    fn sleep_until(&self, at_ns: u64) -> Pin<Box<dyn Future<Output = ()>>> {
        let (pending, filler) = pending();
        self.time.after(at_ns.saturating_sub(self.time.now_ns()), move || filler.fill(()));
        Box::pin(pending)
    }

    fn random(&self) -> u64 {
        self.random.next()
    }
}

struct Clients {
    point: Point,
    requests: u64,
    time: Rc<Timeline>,
    random: Random,
    sizes: Sizes,
    /// Of the longest request.
    data: Slice,
    begun: Cell<u64>,
    ended: Cell<u64>,
    latencies_ns: RefCell<Vec<u64>>,
    /// Of the requests that count.
    bytes: Cell<u64>,
    /// When the first request that counts ended.
    counts_from_ns: Cell<u64>,
}

/// Runs a point to its end.
pub(super) fn run(point: &Point, requests: u64) -> Speed {
    let time = Timeline::new();
    let executor = Executor::new(Box::new(|| {}));
    let clients = Rc::new(Clients {
        point: *point,
        requests,
        time: Rc::clone(&time),
        random: Random::new(1),
        sizes: point.sizes(3),
        data: Buffer::new(usize::from(point.request_kib.max(MIX_KIB_MAX)) << 10).freeze(),
        begun: Cell::new(0),
        ended: Cell::new(0),
        latencies_ns: RefCell::default(),
        bytes: Cell::new(0),
        counts_from_ns: Cell::new(0),
    });
    let (own, of) = (Rc::clone(&clients), executor.clone());
    executor.spawn(async move {
        let set = Rc::new(start(&own.point, &own.time, &of).await);
        for _ in 0..own.point.depth {
            of.spawn(Rc::clone(&own).client(Rc::clone(&set)));
        }
    });
    loop {
        executor.run_ready(usize::MAX);
        if clients.ended.get() == requests {
            break;
        }
        executor.enter(time.next().expect("requests are under way"));
    }
    let elapsed_ns = time.now_ns() - clients.counts_from_ns.get();
    executor.abandon();
    Speed::of(clients.latencies_ns.take(), clients.bytes.get(), elapsed_ns)
}

impl Clients {
    /// The first tenth of the requests does not count.
    async fn client(self: Rc<Self>, set: Rc<LogSet<TimedZones>>) {
        while self.begun.get() < self.requests {
            self.begun.set(self.begun.get() + 1);
            let since_ns = self.time.now_ns();
            let blocks = self.sizes.next_blocks();
            let offset = self.random.below(LOGICAL_BLOCKS / blocks) * blocks * BLOCK;
            let data = Gather::from(self.data.part(0, (blocks * BLOCK) as usize));
            set.write(offset, data, false).await.expect("nothing fails here");
            let ended = self.ended.get() + 1;
            self.ended.set(ended);
            let warming = self.requests / 10;
            match ended {
                _ if ended == warming => self.counts_from_ns.set(self.time.now_ns()),
                _ if ended > warming => {
                    self.latencies_ns.borrow_mut().push(self.time.now_ns() - since_ns);
                    self.bytes.set(self.bytes.get() + blocks * BLOCK);
                }
                _ => {}
            }
        }
    }
}

/// An array that is new and serves.
async fn start(point: &Point, time: &Rc<Timeline>, executor: &Executor) -> LogSet<TimedZones> {
    let access = if point.mode == Mode::ZoneWrite { ZoneAccess::Sequential } else { ZoneAccess::Append };
    let zoned = zoned_info(access, ZONES, ZONE_BLOCKS);
    let device = |_| Some(TimedZones::new(zoned.clone(), point.drive(), time, false));
    let devices = (0..point.members).map(device).collect();
    serve_new(config(point), devices, NUMBERS, time, executor).await.0
}

/// What a drive says of itself.
pub(super) fn zoned_info(access: ZoneAccess, zones: u32, zone_blocks: u32) -> ZonedInfo {
    let zone_bytes = u64::from(zone_blocks) * BLOCK;
    ZonedInfo {
        access,
        zones,
        zone_bytes,
        capacity_bytes: zone_bytes,
        record_bytes_max: 128 << 10,
        metadata_bytes: 64,
        open_max: None,
        active_max: None,
    }
}

/// Starts an array on new drives and serves it on one shard, with segment numbers below `numbers`.
pub(super) async fn serve_new(
    config: LogConfig,
    devices: Vec<Option<Rc<TimedZones>>>,
    numbers: u64,
    time: &Rc<Timeline>,
    executor: &Executor,
) -> (LogSet<TimedZones>, Arc<LogShared>) {
    let start = Start {
        config,
        states: vec![MemberState::InSync; devices.len()],
        devices: devices.clone(),
        epoch: Epoch { number: 1, random: 1 },
        numbers: 1..numbers,
        checkpoint: None,
        counters: [Counters::default()].into(),
        events: Box::new(|_| {}),
    };
    let pool = Pool::new(64 << 20);
    let platform: Rc<dyn LogPlatform> = Rc::new(Clock { time: Rc::clone(time), random: Random::new(2) });
    let (shared, _) = recover(start, executor, &pool, &platform).await.expect("an empty array starts");
    let port = LogPort::new(Arc::clone(&shared), 0, executor.clone(), pool, platform, devices);
    (LogSet::serve(port), shared)
}

fn config(point: &Point) -> LogConfig {
    LogConfig {
        set_uuid: [7; 16],
        devices: (1..=point.members).map(|member| [member; 16]).collect(),
        level: point.level,
        access: if point.mode == Mode::ZoneWrite { Access::Sequential } else { Access::Append },
        carrier: Carrier::Oob,
        zones: ZONES,
        capacity_blocks: ZONE_BLOCKS,
        record_blocks: point.chunk_blocks(),
        group: point.mode.group().unwrap_or(0),
        open: OpenCounts { small: point.open[0], large: point.open[1], appends: point.mode.appends() },
        band_blocks: 256,
        map: MapShape::new(MapEntryBytes::Eight, 2 * point.members, ZONE_BLOCKS).expect("a shape"),
        logical_blocks: LOGICAL_BLOCKS,
        fill_wait: if point.mode == Mode::Twill { FillWait::Auto } else { FillWait::Fixed(FILL_WAIT_NS) },
        zone_limits: vec![None; usize::from(point.members)],
        record_bytes_max: 128 << 10,
        map_limits: MapLimits { groups: None, changed: None },
        reclaim: ReclaimOptions::default(),
    }
}
