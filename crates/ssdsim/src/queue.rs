//! One channel: its read and write queues, its chips, its bus and its collections.
//!
//! A chip does one thing at a time: it senses one page (with all LDPC retries) and then sends it over the bus, or it
//! takes up to `multi_plane` pages over the bus and programs them at once. Reads go first, on each chip in order of
//! arrival; a program that runs is not interrupted. A write is given its chip and plane when it is queued, chips in
//! turn and then planes, so that all planes fill at one rate and neighbours in a chip's queue can share a program.
//! A collection stops the whole channel: what runs ends, nothing new starts until the block is erased.

use std::collections::VecDeque;

use crate::{
    cost::{MemberLoad, gc_time_ns},
    device::{Device, ReadTimes, Timing},
    ftl::Ftl,
};

/// What an operation is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A page the host reads.
    HostRead,
    /// A page the host writes.
    DataWrite,
    /// A chunk read to make parity.
    PreRead,
    /// A stripe's new parity.
    ParityWrite,
}

/// One page-sized operation on the channel's flash.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    /// When it was queued.
    pub queued_ns: u64,
    /// Read: physical page. Write: logical page.
    pub page: u32,
    /// The host request (`HostRead`) or the stripe update it belongs to.
    pub owner: u32,
    /// Read: time to sense the page. Write: unused.
    pub sense_ns: u32,
    /// What it is for.
    pub purpose: Purpose,
    /// Write: plane of the channel it goes to.
    plane: u8,
}

impl Op {
    /// A read of physical page `page`.
    pub fn read(queued_ns: u64, page: u32, owner: u32, sense_ns: u64, purpose: Purpose) -> Op {
        Op { queued_ns, page, owner, sense_ns: sense_ns as u32, purpose, plane: 0 }
    }

    /// A write of logical page `logical`.
    pub fn write(queued_ns: u64, logical: u32, owner: u32, purpose: Purpose) -> Op {
        Op { queued_ns, page: logical, owner, sense_ns: 0, purpose, plane: 0 }
    }
}

/// What the channel wants to hear about, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// The chip has sensed a page and wants the bus.
    Sensed,
    /// The chip's running operations are done.
    Done,
    /// The channel's collection is over.
    Collected,
}

/// Counters of one channel, for the conservation checks and the report.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Reads started.
    pub reads: u64,
    /// Pages programmed for the host or for parity.
    pub programs: u64,
    /// Program commands: fewer than pages where planes shared one.
    pub program_commands: u64,
    /// Time chips spent sensing.
    pub sense_ns: u64,
    /// Time chips spent programming.
    pub program_ns: u64,
    /// Time the bus was taken.
    pub bus_ns: u64,
    /// Time the channel was stopped by collections.
    pub gc_ns: u64,
    /// Collections.
    pub collections: u64,
    /// Pages moved by collections.
    pub gc_moves: u64,
    /// Blocks erased.
    pub gc_erases: u64,
    /// Time that moved pages took to sense.
    pub gc_sense_ns: u64,
    /// Blocks moved by static wear levelling.
    pub wear_moves: u64,
}

#[derive(Clone, Debug)]
struct Chip {
    reads: VecDeque<Op>,
    writes: VecDeque<Op>,
    running: Vec<Op>,
    busy_until: u64,
    /// Sum of `sense_ns` over `reads`.
    queued_sense_ns: u64,
}

/// One channel of the device.
#[derive(Clone, Debug)]
pub struct Channel {
    /// Its translation layer.
    pub ftl: Ftl,
    /// Its counters.
    pub usage: Usage,
    index: usize,
    timing: Timing,
    planes_per_chip: usize,
    multi_plane: usize,
    chips: Vec<Chip>,
    reads_waiting: u32,
    writes_waiting: u32,
    write_turn: usize,
    bus_free_at: u64,
    gc_until: u64,
    read_mean_ns: u64,
    /// Eq. 3's counters: all that collections ever moved and erased, warm-up included.
    moves_ever: u64,
    erases_ever: u64,
}

impl Channel {
    /// Idle and empty channel `index` of `device`.
    pub fn new(device: &Device, index: usize) -> Channel {
        let chip = Chip {
            reads: VecDeque::with_capacity(64),
            writes: VecDeque::with_capacity(64),
            running: Vec::with_capacity(device.multi_plane),
            busy_until: 0,
            queued_sense_ns: 0,
        };
        Channel {
            ftl: Ftl::new(device),
            usage: Usage::default(),
            index,
            timing: device.timing.clone(),
            planes_per_chip: device.planes,
            multi_plane: device.multi_plane,
            chips: vec![chip; device.chips],
            reads_waiting: 0,
            writes_waiting: 0,
            write_turn: 0,
            bus_free_at: 0,
            gc_until: 0,
            read_mean_ns: device.timing.read_mean_ns() as u64,
            moves_ever: 0,
            erases_ever: 0,
        }
    }

    /// Queues a read behind the reads of its chip; returns the chip.
    #[inline]
    pub fn queue_read(&mut self, op: Op) -> usize {
        let chip = self.chip_of(op.page);
        self.chips[chip].queued_sense_ns += u64::from(op.sense_ns);
        self.chips[chip].reads.push_back(op);
        self.reads_waiting += 1;
        chip
    }

    /// Queues a write on the chip whose turn it is; returns the chip.
    #[inline]
    pub fn queue_write(&mut self, mut op: Op) -> usize {
        let (chip, plane) = self.next_write_place();
        op.plane = plane as u8;
        self.chips[chip].writes.push_back(op);
        self.writes_waiting += 1;
        chip
    }

    /// Chip and plane of the next write: chips in turn, then planes.
    #[inline]
    fn next_write_place(&mut self) -> (usize, usize) {
        let chips = self.chips.len();
        let (chip, lap) = (self.write_turn % chips, self.write_turn / chips);
        self.write_turn += 1;
        if self.write_turn == chips * self.planes_per_chip {
            self.write_turn = 0;
        }
        (chip, chip * self.planes_per_chip + lap)
    }

    /// Starts what `chip` can start. Calls `wake` for each event to schedule.
    #[inline]
    pub fn start(&mut self, chip: usize, now: u64, times: &ReadTimes, wake: &mut impl FnMut(u64, Wake)) {
        if now < self.gc_until || !self.chips[chip].running.is_empty() {
            return;
        }
        if let Some(op) = self.chips[chip].reads.pop_front() {
            self.start_read(chip, op, now, wake);
        } else if !self.chips[chip].writes.is_empty() {
            self.start_program(chip, now, times, wake);
        }
    }

    /// The page that `chip` has sensed goes over the bus; returns when it has arrived.
    #[inline]
    pub fn send_sensed(&mut self, chip: usize, now: u64) -> u64 {
        let done = self.take_bus(now, 1);
        self.chips[chip].busy_until = done;
        done
    }

    /// Moves the operations that `chip` has finished to `done`.
    #[inline]
    pub fn finish(&mut self, chip: usize, done: &mut Vec<Op>) {
        done.append(&mut self.chips[chip].running);
    }

    /// Operations that wait in the queues, neither started nor done.
    #[inline]
    pub fn waiting(&self) -> u32 {
        self.reads_waiting + self.writes_waiting
    }

    /// Whether nothing waits or runs.
    pub fn is_idle(&self) -> bool {
        self.waiting() == 0 && self.chips.iter().all(|chip| chip.running.is_empty())
    }

    /// Load as the paper's model sees it: all that waits on the channel, the mean read time and, while a collection
    /// runs, the mean collection time of Eq. 3.
    #[inline]
    pub fn load(&self, now: u64) -> MemberLoad {
        let gc_ns = if now < self.gc_until { self.mean_collection_ns() } else { 0 };
        MemberLoad {
            reads: self.reads_waiting,
            writes: self.writes_waiting,
            read_ns: self.read_mean_ns,
            gc_ns,
        }
    }

    /// Load on the chip of physical page `page` alone, with what is left of a collection instead of the mean.
    #[inline]
    pub fn chip_load(&self, page: u32, now: u64) -> MemberLoad {
        let chip = &self.chips[self.chip_of(page)];
        MemberLoad {
            reads: chip.reads.len() as u32,
            writes: chip.writes.len() as u32,
            read_ns: self.read_mean_ns,
            gc_ns: self.collection_left_ns(now),
        }
    }

    /// When a read of `page` queued now would start if nothing else came, from now.
    #[inline]
    pub fn wait_for_read_ns(&self, page: u32, now: u64) -> u64 {
        let chip = &self.chips[self.chip_of(page)];
        chip.busy_until.max(self.gc_until).saturating_sub(now) + chip.queued_sense_ns
    }

    /// Writes waiting on the chip of `page`.
    #[inline]
    pub fn writes_behind(&self, page: u32) -> u64 {
        self.chips[self.chip_of(page)].writes.len() as u64
    }

    /// What is left of the running collection, 0 if none runs.
    #[inline]
    pub fn collection_left_ns(&self, now: u64) -> u64 {
        self.gc_until.saturating_sub(now)
    }

    /// Eq. 3 with this channel's own counters.
    pub fn mean_collection_ns(&self) -> u64 {
        let Timing { write_ns, erase_ns, .. } = self.timing;
        gc_time_ns(self.read_mean_ns, write_ns, erase_ns, self.moves_ever, self.erases_ever)
    }

    /// Writes logical page `logical` to `plane` without taking time: to fill and to age the device.
    pub fn write_untimed(&mut self, logical: u32, plane: usize) {
        self.ftl.write(logical, plane);
        if self.ftl.needs_collection(plane) {
            let collected = self.ftl.collect(plane);
            self.moves_ever += u64::from(collected.moves);
            self.erases_ever += u64::from(collected.erases);
        }
    }

    /// Number of chips.
    pub fn chips(&self) -> usize {
        self.chips.len()
    }

    #[inline]
    fn chip_of(&self, page: u32) -> usize {
        self.ftl.plane_of(page) / self.planes_per_chip
    }

    #[inline]
    fn take_bus(&mut self, now: u64, pages: u64) -> u64 {
        let taken_ns = pages * self.timing.bus_ns;
        self.bus_free_at = self.bus_free_at.max(now) + taken_ns;
        self.usage.bus_ns += taken_ns;
        self.bus_free_at
    }

    #[inline]
    fn start_read(&mut self, chip: usize, op: Op, now: u64, wake: &mut impl FnMut(u64, Wake)) {
        let sense_ns = u64::from(op.sense_ns);
        self.reads_waiting -= 1;
        self.usage.reads += 1;
        self.usage.sense_ns += sense_ns;
        let state = &mut self.chips[chip];
        state.queued_sense_ns -= sense_ns;
        state.running.push(op);
        state.busy_until = now + sense_ns + self.timing.bus_ns;
        wake(now + sense_ns, Wake::Sensed);
    }

    #[inline]
    fn start_program(&mut self, chip: usize, now: u64, times: &ReadTimes, wake: &mut impl FnMut(u64, Wake)) {
        let mut collect = None;
        let mut planes_taken = 0u64;
        while let Some(&op) = self.chips[chip].writes.front() {
            let bit = 1 << (usize::from(op.plane) % self.planes_per_chip % 64);
            if self.chips[chip].running.len() == self.multi_plane || planes_taken & bit != 0 {
                break;
            }
            planes_taken |= bit;
            self.chips[chip].writes.pop_front();
            self.chips[chip].running.push(op);
            self.ftl.write(op.page, usize::from(op.plane));
            if collect.is_none() && self.ftl.needs_collection(usize::from(op.plane)) {
                collect = Some(usize::from(op.plane));
            }
        }
        let pages = self.chips[chip].running.len() as u64;
        let done = self.take_bus(now, pages) + self.timing.write_ns;
        self.writes_waiting -= pages as u32;
        self.usage.programs += pages;
        self.usage.program_commands += 1;
        self.usage.program_ns += self.timing.write_ns;
        self.chips[chip].busy_until = done;
        wake(done, Wake::Done);
        if let Some(plane) = collect {
            // One collection at a time: the chip's other planes ask again with their next write.
            self.gc_until = done + self.collect(plane, times);
            self.usage.gc_ns += self.gc_until - done;
            wake(self.gc_until, Wake::Collected);
        }
    }

    /// Collects in `plane` and returns the time it takes: each move a read and a write, each block an erase (Eq. 3).
    fn collect(&mut self, plane: usize, times: &ReadTimes) -> u64 {
        let collected = self.ftl.collect(plane);
        let sense: u64 =
            collected.sources.iter().map(|&(page, erases)| times.of(self.index, page, erases)).sum();
        let (moves, erases) = (u64::from(collected.moves), u64::from(collected.erases));
        self.moves_ever += moves;
        self.erases_ever += erases;
        self.usage.collections += 1;
        self.usage.gc_moves += moves;
        self.usage.gc_erases += erases;
        self.usage.gc_sense_ns += sense;
        self.usage.wear_moves += u64::from(collected.wear_moves);
        sense + moves * self.timing.write_ns + erases * self.timing.erase_ns
    }
}
