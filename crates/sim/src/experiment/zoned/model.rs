//! A point without the engine: stripes, segments, groups and the drives' times as an event simulation. It says what these times
//! allow.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use engine::log::config::Appends;
use engine::log::dispatch::FILL_WAIT_NS;
use engine::zone_device::timing::{DriveTiming, Timed};

use super::speed::{Mode, Sizes, Speed};
use super::writes::Writes;

const BLOCK: u64 = 4096;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// All chunks of a stripe are written.
    Returned { stripe: usize },
    /// A stripe that is not full has waited long enough.
    Due { stripe: usize },
}

/// A request, until all stripes that it has blocks in have returned.
struct Request {
    since_ns: u64,
    stripes: u32,
    bytes: u64,
}

/// A stripe, from its first request on.
struct Stripe {
    requests: Vec<usize>,
    blocks: u64,
    /// Of which class.
    class: usize,
    /// Which segment of its class it went to.
    segment: usize,
    group: u64,
}

/// An open segment: the same zone of each drive.
struct Segment {
    zone: u32,
    is_appended: bool,
    /// Stripes that wait for the group before theirs; in order, for the stripe before.
    waiting: VecDeque<usize>,
    group: u64,
    reserved: u32,
    outstanding: u32,
}

/// Small or large stripes.
struct Class {
    chunk_blocks: u64,
    segments: Vec<Segment>,
    next: usize,
    /// The stripe that takes more blocks.
    open: usize,
    in_flight: u32,
}

struct Model<'a> {
    point: &'a Writes,
    sizes: Sizes,
    drives: Vec<DriveTiming>,
    requests: Vec<Request>,
    stripes: Vec<Stripe>,
    classes: [Class; 2],
    events: BinaryHeap<Reverse<(u64, Event)>>,
}

/// Runs a point to its end.
pub(super) fn run(point: &Writes, requests: u64) -> Speed {
    let mut model = Model::new(point);
    (0..point.depth).for_each(|_| model.request(0));
    let (mut latencies_ns, mut ended, mut bytes, mut counts_from_ns) = (Vec::new(), 0, 0, 0);
    loop {
        let Reverse((now_ns, event)) = model.events.pop().expect("requests are under way");
        let stripe = match event {
            Event::Due { stripe } => {
                let class = model.stripes[stripe].class;
                if model.classes[class].open == stripe {
                    model.send_open(class, now_ns);
                }
                continue;
            }
            Event::Returned { stripe } => stripe,
        };
        model.returned(now_ns, stripe);
        for request in std::mem::take(&mut model.stripes[stripe].requests) {
            let Request { since_ns, stripes, bytes: of_request } = &mut model.requests[request];
            *stripes -= 1;
            if *stripes > 0 {
                continue;
            }
            ended += 1;
            if ended == requests / 10 {
                counts_from_ns = now_ns;
            } else if ended > requests / 10 {
                latencies_ns.push(now_ns - *since_ns);
                bytes += *of_request;
            }
            if ended == requests {
                return Speed::new(latencies_ns, bytes, now_ns - counts_from_ns);
            }
            model.request(now_ns);
        }
    }
}

impl Model<'_> {
    fn new(point: &Writes) -> Model<'_> {
        let mut zones = 0;
        let mut stripes = Vec::new();
        let classes = [0, 1].map(|class| {
            let count = point.open[class];
            let segments = (0..count).map(|index| {
                zones += 1;
                let is_appended = match point.mode {
                    Mode::ZoneWrite => false,
                    mode => match mode.appends() {
                        Appends::Only => true,
                        Appends::UnlessIdle => (class, index) == (0, 0),
                        Appends::IfAlone => class == 0 && count == 1,
                    },
                };
                Segment {
                    zone: zones - 1,
                    is_appended,
                    waiting: VecDeque::new(),
                    group: 0,
                    reserved: 0,
                    outstanding: 0,
                }
            });
            let segments = segments.collect();
            stripes.push(Stripe { requests: Vec::new(), blocks: 0, class, segment: 0, group: 0 });
            let chunk_blocks = point.chunk_blocks()[class].into();
            Class { chunk_blocks, segments, next: 0, open: class, in_flight: 0 }
        });
        let drives = (0..point.members).map(|_| DriveTiming::new(point.drive(), zones, 1)).collect();
        let sizes = point.sizes(1);
        Model { point, sizes, drives, requests: Vec::new(), stripes, classes, events: BinaryHeap::new() }
    }

    /// A request comes, and fills the open stripe of its class, and those that follow.
    fn request(&mut self, now_ns: u64) {
        let mut left = self.sizes.next_blocks();
        let class = self.class_of(left);
        let (request, bytes) = (self.requests.len(), left * BLOCK);
        self.requests.push(Request { since_ns: now_ns, stripes: 0, bytes });
        let room = self.stripe_blocks(class);
        while left > 0 {
            let open = self.classes[class].open;
            let stripe = &mut self.stripes[open];
            let taken = left.min(room - stripe.blocks);
            let is_first = stripe.blocks == 0;
            stripe.requests.push(request);
            stripe.blocks += taken;
            left -= taken;
            self.requests[request].stripes += 1;
            if self.stripes[open].blocks == room {
                self.send_open(class, now_ns);
            } else if is_first {
                self.events.push(Reverse((now_ns + FILL_WAIT_NS, Event::Due { stripe: open })));
            }
        }
        self.send_if_alone(class, now_ns);
    }

    fn class_of(&self, blocks: u64) -> usize {
        match self.point.open {
            [0, _] => 1,
            [_, 0] => 0,
            _ => usize::from(blocks >= self.classes[1].chunk_blocks),
        }
    }

    fn stripe_blocks(&self, class: usize) -> u64 {
        u64::from(self.point.data_chunks()) * self.classes[class].chunk_blocks
    }

    /// `auto` sends at once what nothing is in flight before.
    fn send_if_alone(&mut self, class: usize, now_ns: u64) {
        let Class { in_flight, open, .. } = self.classes[class];
        if self.point.mode == Mode::Twill && in_flight == 0 && self.stripes[open].blocks > 0 {
            self.send_open(class, now_ns);
        }
    }

    fn send_open(&mut self, class: usize, now_ns: u64) {
        let segment = self.choose(class);
        let of_class = &mut self.classes[class];
        let stripe = std::mem::replace(&mut of_class.open, self.stripes.len());
        of_class.segments[segment].waiting.push_back(stripe);
        of_class.in_flight += 1;
        self.stripes[stripe].segment = segment;
        self.stripes.push(Stripe { requests: Vec::new(), blocks: 0, class, segment: 0, group: 0 });
        self.send(class, segment, now_ns);
    }

    /// In turn; where the first is appended to an idle one of the others, else the first.
    fn choose(&mut self, class: usize) -> usize {
        let Class { segments, next, .. } = &mut self.classes[class];
        let is_mixed = segments.iter().any(|segment| segment.is_appended != segments[0].is_appended);
        let (first, count) = if is_mixed { (1, segments.len() - 1) } else { (0, segments.len()) };
        let is_idle = |at: &usize| segments[*at].outstanding == 0 && segments[*at].waiting.is_empty();
        let is_free = |at: &usize| !is_mixed || is_idle(at);
        let chosen = (0..count).map(|step| first + (*next + step) % count).find(is_free);
        if chosen.is_some() {
            *next = (*next + 1) % count;
        }
        chosen.unwrap_or(0)
    }

    /// Sends what may go: a group begins when the one before has returned, and a write in order when that before has.
    fn send(&mut self, class: usize, segment: usize, now_ns: u64) {
        let chunk_bytes = self.classes[class].chunk_blocks * BLOCK;
        let data = u64::from(self.point.data_chunks());
        let of_segment = &mut self.classes[class].segments[segment];
        while let Some(stripe) = of_segment.waiting.front().copied() {
            if let Some(group) = self.point.mode.group().filter(|_| of_segment.is_appended)
                && of_segment.reserved == u32::from(group)
            {
                if of_segment.outstanding > 0 {
                    return;
                }
                (of_segment.group, of_segment.reserved) = (of_segment.group + 1, 0);
            }
            if !of_segment.is_appended && of_segment.outstanding > 0 {
                return;
            }
            of_segment.reserved += 1;
            of_segment.outstanding += 1;
            of_segment.waiting.pop_front();
            self.stripes[stripe].group = of_segment.group;
            // In order a stripe has only the rows that it needs.
            let rows = self.stripes[stripe].blocks.div_ceil(data) * BLOCK;
            let operation = match of_segment.is_appended {
                false => Timed::Write(of_segment.zone, rows),
                true => Timed::Append(of_segment.zone, chunk_bytes),
            };
            let done = self.drives.iter_mut().map(|drive| drive.done_at_ns(now_ns, operation));
            let done_ns = done.max().expect("an array has members");
            self.events.push(Reverse((done_ns, Event::Returned { stripe })));
        }
    }

    fn returned(&mut self, now_ns: u64, stripe: usize) {
        let Stripe { class, segment, group, .. } = self.stripes[stripe];
        self.classes[class].in_flight -= 1;
        let of_segment = &mut self.classes[class].segments[segment];
        assert_eq!(group, of_segment.group, "a group begins when the one before has returned");
        of_segment.outstanding -= 1;
        self.send(class, segment, now_ns);
        self.send_if_alone(class, now_ns);
    }
}
