//! A point without the engine: stripes, groups and the drives' times as an event simulation. It says what these times allow.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use engine::log::dispatch::FILL_WAIT_NS;
use engine::zone_device::timing::{DriveTiming, Timed};

use super::point::{Mode, Point, Speed};

const BLOCK: u64 = 4096;
/// The one zone of each drive that is written.
const ZONE: u32 = 0;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// All chunks of a stripe are written.
    Returned { stripe: usize },
    /// A stripe that is not full has waited long enough.
    Due { stripe: usize },
}

/// A stripe, from its first request on.
#[derive(Default)]
struct Stripe {
    /// When each of its requests came.
    since_ns: Vec<u64>,
    blocks: u64,
    group: u64,
}

struct Model<'a> {
    point: &'a Point,
    drives: Vec<DriveTiming>,
    stripes: Vec<Stripe>,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    /// Stripes that wait for the group before theirs.
    waiting: VecDeque<usize>,
    group: u64,
    reserved: u32,
    outstanding: u32,
    in_flight: u32,
}

/// Runs a point to its end.
pub(super) fn run(point: &Point, requests: u64) -> Speed {
    let drives = (0..point.members).map(|_| DriveTiming::new(point.drive(), 1, 1)).collect();
    let mut model = Model {
        point,
        drives,
        stripes: vec![Stripe::default()],
        events: BinaryHeap::new(),
        waiting: VecDeque::new(),
        group: 0,
        reserved: 0,
        outstanding: 0,
        in_flight: 0,
    };
    (0..point.depth).for_each(|_| model.request(0));
    let (mut latencies_ns, mut ended, mut counts_from_ns) = (Vec::new(), 0, 0);
    loop {
        let Reverse((now_ns, event)) = model.events.pop().expect("requests are under way");
        let stripe = match event {
            Event::Due { stripe } => {
                if stripe + 1 == model.stripes.len() && model.stripes[stripe].blocks > 0 {
                    model.send_open(now_ns);
                }
                continue;
            }
            Event::Returned { stripe } => stripe,
        };
        model.returned(now_ns, stripe);
        let since_ns = std::mem::take(&mut model.stripes[stripe].since_ns);
        for since_ns in since_ns {
            ended += 1;
            if ended == requests / 10 {
                counts_from_ns = now_ns;
            } else if ended > requests / 10 {
                latencies_ns.push(now_ns - since_ns);
            }
            if ended == requests {
                let request_bytes = u64::from(point.request_blocks()) * BLOCK;
                return Speed::of(latencies_ns, request_bytes, now_ns - counts_from_ns);
            }
            model.request(now_ns);
        }
    }
}

impl Model<'_> {
    /// A request comes, and fills the open stripe. None here is longer than a chunk, so each is in one stripe.
    fn request(&mut self, now_ns: u64) {
        let (open, room) = (self.stripes.len() - 1, self.stripe_blocks());
        let stripe = &mut self.stripes[open];
        stripe.since_ns.push(now_ns);
        stripe.blocks += u64::from(self.point.request_blocks());
        match stripe.blocks {
            blocks if blocks >= room => self.send_open(now_ns),
            // `auto` sends at once what nothing is in flight before.
            _ if self.point.mode == Mode::Twill && self.in_flight == 0 => self.send_open(now_ns),
            blocks if blocks == u64::from(self.point.request_blocks()) => {
                self.events.push(Reverse((now_ns + FILL_WAIT_NS, Event::Due { stripe: open })));
            }
            _ => {}
        }
    }

    fn stripe_blocks(&self) -> u64 {
        u64::from(self.point.data_chunks()) * u64::from(self.point.chunk_blocks())
    }

    fn send_open(&mut self, now_ns: u64) {
        self.waiting.push_back(self.stripes.len() - 1);
        self.stripes.push(Stripe::default());
        self.in_flight += 1;
        self.send(now_ns);
    }

    /// Sends what may go: a group begins when the one before has returned.
    fn send(&mut self, now_ns: u64) {
        while let Some(stripe) = self.waiting.front().copied() {
            if let Some(group) = self.point.mode.group() {
                if self.reserved == u32::from(group) {
                    if self.outstanding > 0 {
                        return;
                    }
                    (self.group, self.reserved) = (self.group + 1, 0);
                }
                self.reserved += 1;
                self.outstanding += 1;
            }
            self.waiting.pop_front();
            self.stripes[stripe].group = self.group;
            let bytes = u64::from(self.point.chunk_blocks()) * BLOCK;
            // In order a stripe has only the rows that it needs.
            let rows = self.stripes[stripe].blocks.div_ceil(u64::from(self.point.data_chunks())) * BLOCK;
            let operation = match self.point.mode {
                Mode::ZoneWrite => Timed::Write(ZONE, rows),
                Mode::Append { .. } | Mode::Twill => Timed::Append(ZONE, bytes),
            };
            let done = self.drives.iter_mut().map(|drive| drive.done_at_ns(now_ns, operation));
            let done_ns = done.max().expect("an array has members");
            self.events.push(Reverse((done_ns, Event::Returned { stripe })));
        }
    }

    fn returned(&mut self, now_ns: u64, stripe: usize) {
        self.in_flight -= 1;
        if self.point.mode.group().is_some() {
            assert_eq!(
                self.stripes[stripe].group, self.group,
                "a group begins when the one before has returned"
            );
            self.outstanding -= 1;
        }
        self.send(now_ns);
        let open = self.stripes.len() - 1;
        if self.point.mode == Mode::Twill && self.in_flight == 0 && self.stripes[open].blocks > 0 {
            self.send_open(now_ns);
        }
    }
}
