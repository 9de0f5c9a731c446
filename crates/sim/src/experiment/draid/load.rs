//! One point: an array over a rack, and clients that each have one request in flight.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use engine::array::volume::{ArrayVolume, VolumeMode};
use engine::buffer::{Buffer, Gather, Pool, Slice};
use engine::executor::Executor;
use engine::in_place::InPlace;
use engine::members::{Attached, MemberState, Members};
use engine::stripe::Shared;
use engine::stripe::intent::Intent;
use engine::volume::Space;
use layout::geometry::{Geometry, Layout, Role};
use layout::units::{DeviceOffset, Slot, Stripe};

use super::point::{Cards, Mode, Point, State};
use super::rack::{Rack, RackDevice};
use super::row::{Measured, Spent};
use crate::nic::NicSpeed;
use crate::random::Random;
use crate::timeline::Timeline;

/// Goodput of the paper's cards of 100 Gbit/s.
pub(super) const LINK_BYTES_PER_S: u64 = 11_500_000_000;
/// And of those of 25 Gbit/s, by the same share.
const SLOW_LINK_BYTES_PER_S: u64 = LINK_BYTES_PER_S / 4;
/// What a card and its driver need for a message.
const MESSAGE_NS: u64 = 20;
/// So large that two requests seldom meet in a stripe.
const MEMBER_BYTES: u64 = 256 << 30;
/// The one that is missing. It has one of the faster cards.
const LOST: u32 = 1;
/// Bytes that all requests of a point move, and fewest requests.
const POINT_BYTES: u64 = 1 << 30;
const REQUESTS: std::ops::RangeInclusive<u64> = 1_000..=12_000;

struct Clients {
    point: Point,
    geometry: Geometry,
    requests: u64,
    time: Rc<Timeline>,
    rack: Rc<Rack>,
    random: Random,
    data: Slice,
    begun: Cell<u64>,
    ended: Cell<u64>,
    latencies_ns: RefCell<Vec<u64>>,
    /// When the first request that counts ended, and what the host's card had moved.
    counts_from: Cell<(u64, (u64, u64))>,
}

/// Runs a point to its end.
pub(super) fn run(point: &Point) -> Measured {
    let chunk_bytes = point.chunk_kib << 10;
    let layout = Layout::default_for(point.level);
    let geometry =
        Geometry::new(point.level, layout, point.members, chunk_bytes, MEMBER_BYTES).expect("an array");
    let time = Timeline::new();
    let fast = NicSpeed { bytes_per_s: LINK_BYTES_PER_S, message_ns: MESSAGE_NS };
    let slow = NicSpeed { bytes_per_s: SLOW_LINK_BYTES_PER_S, message_ns: MESSAGE_NS };
    let card = |slot: u32| if point.cards == Cards::Mixed && slot.is_multiple_of(2) { slow } else { fast };
    let cards: Vec<NicSpeed> = (0..point.members).map(card).collect();
    let rack = Rack::new(&time, fast, &cards, point.drives);
    let (executor, volume) = serve(point, geometry, &time, &rack);
    let clients = Rc::new(Clients {
        point: *point,
        geometry,
        requests: (POINT_BYTES / (point.size_kib << 10)).clamp(*REQUESTS.start(), *REQUESTS.end()),
        time: Rc::clone(&time),
        rack,
        random: Random::new(1),
        data: Buffer::new((point.size_kib << 10) as usize).freeze(),
        begun: Cell::new(0),
        ended: Cell::new(0),
        latencies_ns: RefCell::default(),
        counts_from: Cell::default(),
    });
    for _ in 0..point.depth {
        executor.spawn(Rc::clone(&clients).client(Rc::clone(&volume)));
    }
    loop {
        executor.run_ready(usize::MAX);
        if clients.ended.get() == clients.requests {
            break;
        }
        executor.enter(time.next().expect("requests are under way"));
    }
    let measured = clients.measured();
    executor.abandon();
    measured
}

type Volume = ArrayVolume<InPlace<RackDevice>>;

fn serve(point: &Point, geometry: Geometry, time: &Rc<Timeline>, rack: &Rc<Rack>) -> (Executor, Rc<Volume>) {
    let is_missing = |slot: u32| point.state != State::Whole && slot == LOST;
    let state = |slot| if is_missing(slot) { MemberState::Missing } else { MemberState::InSync };
    let states: Vec<MemberState> = (0..point.members).map(state).collect();
    let members = Members::new(geometry, &states, Box::new(|_| {}));
    let shared = Shared::new(geometry, members, Intent::new(1, false, false), 1, 0);
    shared.loads.set_clock(Arc::clone(&time.now) as _);
    if point.mode != Mode::Host {
        shared.peers.enable(false);
        shared.peers.set_up(true);
    }
    if point.mode == Mode::PeerRandom {
        shared.peers.draw_reducers();
    }
    let executor = Executor::new(Box::new(|| {}));
    let attached = |slot: u32| {
        let device = RackDevice::new(rack, slot as usize, MEMBER_BYTES);
        (!is_missing(slot)).then(|| Attached { device, data_offset: DeviceOffset::START })
    };
    let attached = (0..point.members).map(attached).collect();
    let set = InPlace::new(shared, 0, Pool::new(1 << 30), executor.clone(), attached);
    (executor, Rc::new(ArrayVolume::new(set, 4096, Arc::new(VolumeMode::default()))))
}

impl Clients {
    /// The first tenth of the requests does not count.
    async fn client(self: Rc<Self>, volume: Rc<Volume>) {
        let bytes = self.point.size_kib << 10;
        while self.begun.get() < self.requests {
            self.begun.set(self.begun.get() + 1);
            let since_ns = self.time.now_ns();
            let offset = self.draw();
            let result = match self.random.percent(self.point.read_percent) {
                true => volume.read(offset, bytes).await.map(drop),
                false => volume.write(offset, Gather::from(self.data.clone()), false).await,
            };
            result.expect("nothing fails here");
            self.ended.set(self.ended.get() + 1);
            if self.ended.get() == self.warming() {
                self.counts_from.set((self.time.now_ns(), self.rack.host.bytes()));
            } else if self.ended.get() > self.warming() {
                self.latencies_ns.borrow_mut().push(self.time.now_ns() - since_ns);
            }
        }
    }

    fn warming(&self) -> u64 {
        self.requests / 10
    }

    /// A place within one stripe: at a multiple of the request's size, or where that leaves gaps, of the chunk.
    fn draw(&self) -> u64 {
        let (bytes, stripe_bytes) = (self.point.size_kib << 10, self.geometry.stripe_bytes());
        let chunk_bytes = u64::from(self.geometry.chunk_bytes());
        loop {
            let stripe = self.random.below(self.geometry.stripes());
            if self.point.state != State::AllLost {
                let step = if stripe_bytes.is_multiple_of(bytes) { bytes } else { chunk_bytes };
                let places = (stripe_bytes - bytes) / step + 1;
                return stripe * stripe_bytes + self.random.below(places) * step;
            }
            if let Role::Data(index) = self.geometry.role(Stripe::new(stripe), Slot::new(LOST)) {
                let within = self.random.below(chunk_bytes / bytes) * bytes;
                return stripe * stripe_bytes + u64::from(index) * chunk_bytes + within;
            }
        }
    }

    fn measured(&self) -> Measured {
        let mut latencies_ns = self.latencies_ns.take();
        latencies_ns.sort_unstable();
        let (since_ns, (sent, received)) = self.counts_from.get();
        let (sent_now, received_now) = self.rack.host.bytes();
        let bytes = ((self.requests - self.warming()) * (self.point.size_kib << 10)) as f64;
        let seconds = (self.time.now_ns() - since_ns) as f64 / 1e9;
        let at = |share: f64| latencies_ns[(latencies_ns.len() as f64 * share) as usize] as f64 / 1e3;
        Measured {
            mb_per_s: bytes / seconds / 1e6,
            mean_us: latencies_ns.iter().sum::<u64>() as f64 / latencies_ns.len() as f64 / 1e3,
            p99_us: at(0.99),
            host: Spent {
                sent: (sent_now - sent) as f64 / bytes,
                received: (received_now - received) as f64 / bytes,
            },
        }
    }
}
