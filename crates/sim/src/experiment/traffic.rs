//! One run: an array over members that take time, and requests that come when they come.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use engine::array::volume::{ArrayVolume, VolumeMode};
use engine::buffer::{Gather, Pool, Slice};
use engine::counters::CounterTotals;
use engine::executor::Executor;
use engine::in_place::InPlace;
use engine::members::Attached;
use engine::members::{MemberState, Members};
use engine::stripe::Shared;
use engine::stripe::intent::Intent;
use engine::volume::Space;
use layout::geometry::{Geometry, Layout, Level};

use super::conditions::{Policy, Troubles, Writes};
use super::member::{Member, READ_NS, TimedDevice, Trouble, WIDTH, WRITE_NS, exponential};
use crate::random::Random;
use crate::timeline::Timeline;
use layout::units::DeviceOffset;

const MEMBERS: u32 = 6;
const CHUNK_BYTES: u32 = 16 << 10;
const MEMBER_BYTES: u64 = 1 << 30;
const SMALL_BYTES: u64 = 4096;
/// Requests that read, in percent.
const READ_PERCENT: u64 = 50;

/// What is run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) level: Level,
    pub(super) writes: Writes,
    pub(super) troubles: Troubles,
    pub(super) policy: Policy,
    pub(super) requests: u64,
    /// Of what the members could do, with the routine that reads least.
    pub(super) load_percent: u64,
    pub(super) shards: usize,
    pub(super) seed: u64,
}

/// What came out.
pub(super) struct Outcome {
    /// Latencies in nanoseconds, ascending.
    pub(super) reads_ns: Vec<u64>,
    pub(super) writes_ns: Vec<u64>,
    pub(super) totals: CounterTotals,
}

struct Traffic {
    run: Run,
    geometry: Geometry,
    time: Rc<Timeline>,
    volumes: Vec<(Executor, Rc<ArrayVolume<InPlace<TimedDevice>>>)>,
    random: Random,
    every_ns: u64,
    data: Slice,
    begun: Cell<u64>,
    open: Cell<u64>,
    latencies_ns: RefCell<[Vec<u64>; 2]>,
}

/// Runs it to its end.
pub(super) fn run(run: Run) -> Outcome {
    let geometry =
        Geometry::new(run.level, Layout::default_for(run.level), MEMBERS, CHUNK_BYTES, MEMBER_BYTES)
            .expect("an array");
    let time = Timeline::new();
    let shared = share(&run, geometry, &time);
    let members: Vec<Rc<Member>> = (0..MEMBERS)
        .map(|slot| {
            let trouble = match run.troubles {
                Troubles::None => Trouble::None,
                Troubles::Pauses => Trouble::Pauses,
                Troubles::Others if slot == 2 => Trouble::Others(55),
                Troubles::Others => Trouble::None,
            };
            Member::new(&time, run.seed * 100 + u64::from(slot), MEMBER_BYTES, trouble)
        })
        .collect();
    let traffic = Rc::new(Traffic {
        run,
        geometry,
        volumes: (0..run.shards).map(|shard| volume(&shared, shard, &members)).collect(),
        random: Random::new(run.seed),
        every_ns: work_ns(&run, &geometry) * 100 / run.load_percent / u64::from(MEMBERS * WIDTH),
        data: engine::buffer::Buffer::new(geometry.stripe_bytes() as usize).freeze(),
        time,
        begun: Cell::new(0),
        open: Cell::new(0),
        latencies_ns: RefCell::default(),
    });
    traffic.begin();
    loop {
        while traffic.volumes.iter().any(|(executor, _)| executor.run_ready(usize::MAX) > 0) {}
        if traffic.begun.get() == run.requests && traffic.open.get() == 0 {
            break;
        }
        let action = traffic.time.next().expect("requests are under way");
        traffic.volumes[0].0.enter(action);
    }
    let [mut reads_ns, mut writes_ns] = traffic.latencies_ns.take();
    reads_ns.sort_unstable();
    writes_ns.sort_unstable();
    Outcome { reads_ns, writes_ns, totals: CounterTotals::of(&shared.counters) }
}

fn share(run: &Run, geometry: Geometry, time: &Timeline) -> Arc<Shared> {
    let members = Members::new(geometry, &[MemberState::InSync; MEMBERS as usize], Box::new(|_| {}));
    let shared = Shared::new(geometry, members, Intent::new(run.shards, false, false), run.shards, 0);
    shared.loads.set_clock(Arc::clone(&time.now) as _);
    shared.loads.set_parity_agrees(true);
    shared.loads.set_avoid_slow(run.policy.avoid_slow);
    shared.loads.set_policy(run.policy.update);
    shared
}

fn volume(
    shared: &Arc<Shared>,
    shard: usize,
    members: &[Rc<Member>],
) -> (Executor, Rc<ArrayVolume<InPlace<TimedDevice>>>) {
    let executor = Executor::new(Box::new(|| {}));
    let attached = |member: &Rc<Member>| {
        Some(Attached { device: TimedDevice(Rc::clone(member)), data_offset: DeviceOffset::START })
    };
    let members = members.iter().map(attached).collect();
    let set = InPlace::new(Arc::clone(shared), shard, Pool::new(64 << 20), executor.clone(), members);
    (executor, Rc::new(ArrayVolume::new(set, 4096, Arc::new(VolumeMode::default()))))
}

/// What a request takes of the members' time, on average and with the routine that reads least.
fn work_ns(run: &Run, geometry: &Geometry) -> u64 {
    let (data, parity) = (u64::from(geometry.data_chunks()), u64::from(geometry.parity_chunks()));
    let write = |chunks: u64| (chunks + parity).min(data - chunks) * READ_NS + (chunks + parity) * WRITE_NS;
    let writes = match run.writes {
        Writes::Small => write(1),
        Writes::Mixed => (1..data).map(write).sum::<u64>() / (data - 1),
    };
    (READ_PERCENT * READ_NS + (100 - READ_PERCENT) * writes) / 100
}

impl Traffic {
    /// Begins a request and sees to it that the next one comes.
    fn begin(self: &Rc<Self>) {
        let number = self.begun.replace(self.begun.get() + 1);
        if number == self.run.requests {
            self.begun.set(number);
            return;
        }
        let next = Rc::clone(self);
        self.time.after(exponential(&self.random, self.every_ns), move || next.begin());
        let (executor, volume) = &self.volumes[number as usize % self.volumes.len()];
        let (is_read, offset, bytes) = self.draw();
        let (own, volume) = (Rc::clone(self), Rc::clone(volume));
        self.open.set(self.open.get() + 1);
        let since_ns = self.time.now_ns();
        executor.spawn(async move {
            let result = match is_read {
                true => volume.read(offset, bytes).await.map(|_| ()),
                false => volume.write(offset, Gather::from(own.data.part(0, bytes as usize)), false).await,
            };
            result.expect("nothing fails here");
            own.open.set(own.open.get() - 1);
            if number >= own.run.requests / 20 {
                let ns = own.time.now_ns() - since_ns;
                own.latencies_ns.borrow_mut()[usize::from(!is_read)].push(ns);
            }
        });
    }

    fn draw(&self) -> (bool, u64, u64) {
        let (random, chunk) = (&self.random, u64::from(CHUNK_BYTES));
        let is_read = random.percent(READ_PERCENT);
        let data = u64::from(self.geometry.data_chunks());
        let stripe = random.below(self.geometry.stripes()) * self.geometry.stripe_bytes();
        if is_read || self.run.writes == Writes::Small {
            let offset = random.below(self.geometry.stripe_bytes() / SMALL_BYTES) * SMALL_BYTES;
            return (is_read, stripe + offset, SMALL_BYTES);
        }
        let chunks = random.between(1, data - 1);
        let first = random.below(data - chunks + 1);
        (false, stripe + first * chunk, chunks * chunk)
    }
}
