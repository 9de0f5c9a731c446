//! The RAID-enabled SSD at work: requests come in, split into pages, parity follows, all in simulated time.
//!
//! The walk of a write: `arrive` admits it to the DRAM buffer; `write` cuts it at stripes; `start_update` queues the data
//! pages on their channels; when they are on flash, `update_parity` lets the policy choose and queues the pre-reads;
//! when those are back, the XOR runs; `write_parity` queues the new parity; with it the request is done.
//! The order data, then parity is the paper's (its Fig. 1 and 5); [`ParityStart::WithData`] overlaps them.
//!
//! What a profile taught: a request costs some 600 ns of processor time, a tenth of it the one cache miss in the
//! forward map when an operation finds its page. Hence the flat arrays of 4-byte entries, events packed in one word
//! (a heap of some forty words stays in the first-level cache), histograms of 4-byte counts, and collections done as
//! one step that yields a duration, not as events of their own.

use std::collections::VecDeque;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::{
    Error,
    cost::{MemberLoad, Routine},
    device::{Device, PAGE_BYTES, ReadTimes},
    events::{Event, Events},
    ftl::NONE,
    outcome::{Measures, Outcome},
    policy::{Chooser, ModelView, Sight, fewest_pre_reads},
    queue::{Channel, Op, Purpose, Wake},
    raid::{ChannelSet, Layout, PreReads, channels_in},
    trace::{Request, Trace},
};

/// When the parity of a partial-stripe write is started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ParityStart {
    /// When the stripe's data is on flash, as the paper tells it.
    #[default]
    AfterData,
    /// At once, so that pre-reads overlap the data writes.
    WithData,
}

/// When the host hears that its write is done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Acknowledge {
    /// When data and parity are on flash.
    #[default]
    Flash,
    /// When the data is in the DRAM buffer (a device that survives power loss).
    Buffer,
}

/// How a run behaves, apart from the device and the policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Behaviour {
    /// When parity starts.
    pub parity_start: ParityStart,
    /// When a write is acknowledged.
    pub acknowledge: Acknowledge,
}

/// A host request under way.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    arrived_ns: u64,
    /// Page reads or stripe updates still to be done.
    left: u32,
    write: bool,
}

/// A write to one stripe under way.
#[derive(Clone, Copy, Debug)]
struct Update {
    request: u32,
    stripe: u32,
    /// Channels of the written data chunks.
    written: ChannelSet,
    data_left: u8,
    pre_reads_left: u8,
    parity_done: bool,
    /// Where the old content of each written chunk was when the write came, for RMW to read.
    old: [u32; crate::device::CHANNELS_MAX],
}

/// A list of slots that are used again.
#[derive(Clone, Debug)]
struct Slots<T> {
    items: Vec<T>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    fn add(&mut self, item: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.items[slot as usize] = item;
            return slot;
        }
        self.items.push(item);
        (self.items.len() - 1) as u32
    }

    fn drop_slot(&mut self, slot: u32) {
        self.free.push(slot);
    }

    fn live(&self) -> usize {
        self.items.len() - self.free.len()
    }
}

/// A device, its state and what it has measured.
#[derive(Clone, Debug)]
pub struct Simulator {
    device: Device,
    behaviour: Behaviour,
    layout: Layout,
    times: ReadTimes,
    pub(crate) channels: Vec<Channel>,
    events: Events,
    now: u64,
    requests: Slots<Live>,
    updates: Slots<Update>,
    /// Updates whose XOR runs, by end: the time is constant, so first in is first out.
    xors: VecDeque<(u64, u32)>,
    /// Requests whose last step is a DRAM transfer, by end.
    dram: VecDeque<(u64, u32)>,
    /// Writes that wait for buffer pages.
    held: VecDeque<Request>,
    buffer_used: usize,
    /// Writes under way to each logical page: a read of such a page is served from the buffer.
    in_flight: Vec<u16>,
    finished: Vec<Op>,
    measures: Measures,
}

impl Simulator {
    /// An empty device. `seed` decides the LDPC levels of its pages.
    ///
    /// # Errors
    /// [`Error::Device`] if the shape is impossible.
    pub fn new(device: &Device, behaviour: Behaviour, seed: u64) -> Result<Simulator, Error> {
        device.check()?;
        Ok(Simulator {
            device: device.clone(),
            behaviour,
            layout: Layout::new(device),
            times: ReadTimes::new(&device.timing, seed),
            channels: (0..device.channels).map(|index| Channel::new(device, index)).collect(),
            events: Events::default(),
            now: 0,
            requests: Slots { items: Vec::new(), free: Vec::new() },
            updates: Slots { items: Vec::new(), free: Vec::new() },
            xors: VecDeque::new(),
            dram: VecDeque::new(),
            held: VecDeque::new(),
            buffer_used: 0,
            in_flight: vec![0; device.logical_pages()],
            finished: Vec::new(),
            measures: Measures::new(device.channels),
        })
    }

    /// Replays `trace` under `chooser` until the last request is done, then checks that nothing was lost.
    pub fn run(mut self, trace: &Trace, chooser: &Chooser) -> Outcome {
        let mut arrivals = trace.requests.iter().peekable();
        loop {
            let arrival_ns = arrivals.peek().map_or(u64::MAX, |request| request.time_ns);
            let xor_ns = self.xors.front().map_or(u64::MAX, |xor| xor.0);
            let dram_ns = self.dram.front().map_or(u64::MAX, |dram| dram.0);
            let event_ns = self.events.next_ns();
            let next_ns = arrival_ns.min(xor_ns).min(dram_ns).min(event_ns);
            if next_ns == u64::MAX {
                break;
            }
            self.now = next_ns;
            if event_ns == next_ns {
                self.on_event(chooser);
            } else if xor_ns == next_ns {
                let (_, update) = self.xors.pop_front().expect("the front was looked at");
                self.write_parity(update);
            } else if dram_ns == next_ns {
                let (_, request) = self.dram.pop_front().expect("the front was looked at");
                self.step_request(request);
            } else {
                let request = *arrivals.next().expect("the next was looked at");
                self.arrive(request, chooser);
            }
        }
        self.check_at_rest();
        Outcome::new(trace, &self.device, chooser, self.measures, &self.channels)
    }

    /// Simulated device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Stripe geometry.
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// First logical page and number of pages of `request`. Addresses beyond the device wrap round it, so that any
    /// trace runs on any device; a page partly covered counts as whole.
    pub(crate) fn pages_of(&self, request: &Request) -> (u32, u32) {
        let logical = self.device.logical_pages() as u64;
        let first = request.offset / PAGE_BYTES;
        let last = (request.offset + u64::from(request.length) - 1) / PAGE_BYTES;
        ((first % logical) as u32, (last - first + 1).min(logical) as u32)
    }

    fn arrive(&mut self, request: Request, chooser: &Chooser) {
        self.measures.arrived += 1;
        if !request.write {
            self.read(&request);
        } else if self.held.is_empty() && self.fits_buffer(&request) {
            self.write(&request, chooser);
        } else {
            self.measures.held += 1;
            self.held.push_back(request);
        }
    }

    fn read(&mut self, request: &Request) {
        let (first, count) = self.pages_of(request);
        let id = self.requests.add(Live { arrived_ns: request.time_ns, left: count, write: false });
        let logical = self.device.logical_pages() as u32;
        for page in (0..count).map(|i| (first + i) % logical) {
            let (stripe, chunk) = self.layout.place(page);
            let channel = self.layout.data_channel(stripe, chunk) as usize;
            let physical = self.channels[channel].ftl.locate(stripe);
            if self.in_flight[page as usize] > 0 || physical == NONE {
                self.measures.buffer_reads += 1;
                self.dram.push_back((self.now + self.device.timing.dram_ns, id));
            } else {
                self.queue_read(channel, physical, id, Purpose::HostRead);
            }
        }
    }

    fn fits_buffer(&self, request: &Request) -> bool {
        let count = self.pages_of(request).1 as usize;
        self.buffer_used == 0 || self.buffer_used + count <= self.device.buffer_pages
    }

    /// Cuts a write at stripes and starts each part.
    fn write(&mut self, request: &Request, chooser: &Chooser) {
        let (first, count) = self.pages_of(request);
        let logical = self.device.logical_pages() as u32;
        self.buffer_used += count as usize;
        let id = self.requests.add(Live { arrived_ns: request.time_ns, left: 0, write: true });
        let early = self.behaviour.acknowledge == Acknowledge::Buffer;
        let owner = if early { NONE } else { id };
        let mut parts = 0;
        let mut done = 0;
        while done < count {
            let page = (first + done) % logical;
            let (stripe, chunk) = self.layout.place(page);
            let chunks = (self.layout.data() - chunk).min(count - done);
            parts += 1;
            self.start_update(owner, stripe, chunk, chunks, chooser);
            done += chunks;
        }
        // No part can have ended yet: nothing takes no time.
        self.requests.items[id as usize].left = if early { 1 } else { parts };
        if early {
            self.dram.push_back((self.now + self.device.timing.dram_ns, id));
        }
    }

    fn start_update(&mut self, request: u32, stripe: u32, chunk: u32, chunks: u32, chooser: &Chooser) {
        let mut update = Update {
            request,
            stripe,
            written: 0,
            data_left: chunks as u8,
            pre_reads_left: 0,
            parity_done: !self.layout.has_parity(),
            old: [NONE; crate::device::CHANNELS_MAX],
        };
        for i in chunk..chunk + chunks {
            let channel = self.layout.data_channel(stripe, i) as usize;
            update.written |= 1 << channel;
            update.old[channel] = self.channels[channel].ftl.locate(stripe);
            self.in_flight[(stripe * self.layout.data() + i) as usize] += 1;
        }
        let id = self.updates.add(update);
        // A full stripe has all it needs in the buffer: there is nothing to choose and nothing to wait for.
        let full = chunks == self.layout.data();
        if self.layout.has_parity() && (full || self.behaviour.parity_start == ParityStart::WithData) {
            self.update_parity(id, chooser);
        }
        for channel in channels_in(update.written) {
            self.queue_write(channel, stripe, id, Purpose::DataWrite);
        }
    }

    /// Chooses the routine and queues its pre-reads.
    fn update_parity(&mut self, id: u32, chooser: &Chooser) {
        let Update { stripe, written, old, .. } = self.updates.items[id as usize];
        let sets = self.layout.pre_reads(stripe, written);
        let routine = self.choose(sets, stripe, &old, chooser);
        let from = match routine {
            Routine::Rmw => sets.rmw,
            Routine::Rcw => sets.rcw,
        };
        self.measures.count_choice(sets, routine, fewest_pre_reads(sets));
        self.updates.items[id as usize].pre_reads_left = from.count_ones() as u8;
        if from == 0 {
            self.xors.push_back((self.now + self.device.timing.xor_ns, id));
        }
        for channel in channels_in(from) {
            let physical = self.source(channel, stripe, &old);
            self.queue_read(channel, physical, id, Purpose::PreRead);
        }
    }

    fn choose(&self, sets: PreReads, stripe: u32, old: &[u32], chooser: &Chooser) -> Routine {
        if sets.rcw == 0 {
            return Routine::Rcw;
        }
        chooser.choose(sets, &View { simulator: self, stripe, old })
    }

    /// Physical page a pre-read of `stripe` from `channel` reads: the old content where the chunk is being written.
    #[inline]
    fn source(&self, channel: usize, stripe: u32, old: &[u32]) -> u32 {
        let page =
            if old[channel] == NONE { self.channels[channel].ftl.locate(stripe) } else { old[channel] };
        // A page never written is read as the first of the channel: it takes a chip's time all the same.
        if page == NONE { 0 } else { page }
    }

    fn write_parity(&mut self, update: u32) {
        let stripe = self.updates.items[update as usize].stripe;
        let channel = self.layout.parity_channel(stripe) as usize;
        self.queue_write(channel, stripe, update, Purpose::ParityWrite);
    }

    fn queue_read(&mut self, channel: usize, physical: u32, owner: u32, purpose: Purpose) {
        let sense_ns = self.sense_ns(channel, physical);
        let op = Op::read(self.now, physical, owner, sense_ns, purpose);
        let chip = self.channels[channel].queue_read(op);
        self.start(channel, chip);
    }

    fn queue_write(&mut self, channel: usize, stripe: u32, owner: u32, purpose: Purpose) {
        let op = Op::write(self.now, stripe, owner, purpose);
        let chip = self.channels[channel].queue_write(op);
        self.start(channel, chip);
    }

    #[inline]
    fn sense_ns(&self, channel: usize, physical: u32) -> u64 {
        self.times.of(channel, physical, self.channels[channel].ftl.erases_of(physical))
    }

    #[inline]
    fn start(&mut self, channel: usize, chip: usize) {
        let events = &mut self.events;
        self.channels[channel].start(chip, self.now, &self.times, &mut |time_ns, wake| {
            events.add(Event { time_ns, wake, channel, chip });
        });
    }

    fn on_event(&mut self, chooser: &Chooser) {
        let Event { wake, channel, chip, .. } = self.events.take().expect("the next was looked at");
        match wake {
            Wake::Sensed => {
                let time_ns = self.channels[channel].send_sensed(chip, self.now);
                self.events.add(Event { time_ns, wake: Wake::Done, channel, chip });
            }
            Wake::Done => {
                let mut finished = std::mem::take(&mut self.finished);
                self.channels[channel].finish(chip, &mut finished);
                for op in finished.drain(..) {
                    self.finish(channel, &op, chooser);
                }
                self.finished = finished;
                self.start(channel, chip);
            }
            Wake::Collected => {
                for chip in 0..self.channels[channel].chips() {
                    self.start(channel, chip);
                }
            }
        }
    }

    fn finish(&mut self, channel: usize, op: &Op, chooser: &Chooser) {
        self.measures.finished(channel, op, self.now);
        match op.purpose {
            Purpose::HostRead => self.step_request(op.owner),
            Purpose::DataWrite => {
                let update = &mut self.updates.items[op.owner as usize];
                update.data_left -= 1;
                let partial = update.written.count_ones() < self.layout.data();
                let parity_waits = partial && self.behaviour.parity_start == ParityStart::AfterData;
                if update.data_left == 0 && parity_waits && self.layout.has_parity() {
                    self.update_parity(op.owner, chooser);
                } else {
                    self.step_update(op.owner, chooser);
                }
            }
            Purpose::PreRead => {
                let update = &mut self.updates.items[op.owner as usize];
                update.pre_reads_left -= 1;
                if update.pre_reads_left == 0 {
                    self.xors.push_back((self.now + self.device.timing.xor_ns, op.owner));
                }
            }
            Purpose::ParityWrite => {
                self.updates.items[op.owner as usize].parity_done = true;
                self.step_update(op.owner, chooser);
            }
        }
    }

    /// Ends an update whose data and parity are both on flash.
    fn step_update(&mut self, id: u32, chooser: &Chooser) {
        let Update { request, stripe, written, data_left, parity_done, .. } = self.updates.items[id as usize];
        if data_left > 0 || !parity_done {
            return;
        }
        for i in 0..self.layout.data() {
            if written >> self.layout.data_channel(stripe, i) & 1 == 1 {
                self.in_flight[(stripe * self.layout.data() + i) as usize] -= 1;
            }
        }
        self.buffer_used -= written.count_ones() as usize;
        self.updates.drop_slot(id);
        if request != NONE {
            self.step_request(request);
        }
        while let Some(request) = self.held.front().copied() {
            if !self.fits_buffer(&request) {
                break;
            }
            self.held.pop_front();
            self.write(&request, chooser);
        }
    }

    fn step_request(&mut self, id: u32) {
        let request = &mut self.requests.items[id as usize];
        request.left -= 1;
        if request.left == 0 {
            let Live { arrived_ns, write, .. } = *request;
            self.requests.drop_slot(id);
            self.measures.completed(self.now - arrived_ns, write, &self.channels);
        }
    }

    /// Nothing under way, nothing waiting, every page where the maps say.
    fn check_at_rest(&self) {
        assert_eq!(
            self.measures.completed_total(),
            self.measures.arrived,
            "a request was lost or done twice"
        );
        assert_eq!(
            (self.requests.live(), self.updates.live(), self.held.len()),
            (0, 0, 0),
            "work is left over"
        );
        assert_eq!(self.buffer_used, 0, "buffer pages leaked");
        assert!(self.channels.iter().all(Channel::is_idle), "a queue is left over");
        if cfg!(debug_assertions) {
            self.channels.iter().for_each(|channel| channel.ftl.self_check());
            assert!(self.in_flight.iter().all(|&writes| writes == 0), "a page is in flight for ever");
        }
    }
}

/// What the policy sees of the simulator for one update.
struct View<'a> {
    simulator: &'a Simulator,
    stripe: u32,
    old: &'a [u32],
}

impl Sight for View<'_> {
    #[inline]
    fn load(&self, channel: usize, view: ModelView) -> MemberLoad {
        let Simulator { channels, now, .. } = self.simulator;
        match view {
            ModelView::Channel => channels[channel].load(*now),
            ModelView::PageLevel => {
                let source = self.simulator.source(channel, self.stripe, self.old);
                MemberLoad {
                    read_ns: self.simulator.sense_ns(channel, source),
                    ..channels[channel].load(*now)
                }
            }
            ModelView::Chip => {
                channels[channel].chip_load(self.simulator.source(channel, self.stripe, self.old), *now)
            }
        }
    }

    fn truth(&self, channel: usize) -> (u64, u64) {
        let Simulator { channels, now, device, .. } = self.simulator;
        let source = self.simulator.source(channel, self.stripe, self.old);
        let own_ns = self.simulator.sense_ns(channel, source) + device.timing.bus_ns;
        let done_ns = channels[channel].wait_for_read_ns(source, *now) + own_ns;
        (done_ns, own_ns * channels[channel].writes_behind(source))
    }

    fn parity_blocked_ns(&self) -> u64 {
        let Simulator { channels, layout, now, .. } = self.simulator;
        channels[layout.parity_channel(self.stripe) as usize].collection_left_ns(*now)
    }
}
