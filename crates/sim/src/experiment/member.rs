//! Members that take time and do nothing else: contents are not kept, for here it is only latency that counts.
//!
//! A member serves [`WIDTH`] operations at once, in the order they came. It may pause, as an SSD that collects: what
//! runs is finished and nothing new begins. Or other clients may read there, too.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use engine::buffer::{Buffer, Gather};
use engine::device::{Device, DeviceError, DeviceInfo};

use crate::random::Random;
use crate::timeline::Timeline;
use crate::world::{Filler, Pending, pending};
use layout::units::DeviceOffset;

/// Operations that a member serves at once.
pub(super) const WIDTH: u32 = 4;
/// Mean time of a read; three quarters of it are fixed, the rest is exponential.
pub(super) const READ_NS: u64 = 80_000;
/// Mean time of a write into the member's buffer, likewise.
pub(super) const WRITE_NS: u64 = 20_000;
/// Mean time from the end of a pause to the next.
const PAUSE_EVERY_NS: u64 = 60_000_000;
/// A pause takes from half of this to one and a half.
const PAUSE_NS: u64 = 4_000_000;

/// What troubles a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    None,
    Pauses,
    /// Other clients read there, this many percent of what it can do.
    Others(u64),
}

pub(super) struct Member {
    time: Rc<Timeline>,
    random: Random,
    info: DeviceInfo,
    state: RefCell<State>,
}

#[derive(Default)]
struct State {
    serving: u32,
    paused: bool,
    queue: VecDeque<Job>,
}

struct Job {
    ns: u64,
    done: Box<dyn FnOnce()>,
}

impl Member {
    pub(super) fn new(time: &Rc<Timeline>, seed: u64, size_bytes: u64, trouble: Trouble) -> Rc<Self> {
        let info = DeviceInfo {
            size_bytes,
            logical_block_bytes: 4096,
            discard_zeroes: false,
            name: "a member that takes time".to_string(),
        };
        let member =
            Member { time: Rc::clone(time), random: Random::new(seed), info, state: RefCell::default() };
        let member = Rc::new(member);
        match trouble {
            Trouble::None => {}
            // Chance of their own, so that pauses do not depend on what the policies make of the member.
            Trouble::Pauses => member.pause_later(Rc::new(Random::new(seed ^ 0x5eed))),
            Trouble::Others(percent) => member.others(percent, Rc::new(Random::new(seed ^ 0x5eed))),
        }
        member
    }

    fn pause_later(self: &Rc<Self>, random: Rc<Random>) {
        let member = Rc::clone(self);
        self.time.after(exponential(&random, PAUSE_EVERY_NS), move || {
            member.state.borrow_mut().paused = true;
            let ended = Rc::clone(&member);
            member.time.after(random.between(PAUSE_NS / 2, PAUSE_NS * 3 / 2), move || {
                ended.state.borrow_mut().paused = false;
                ended.serve();
                ended.pause_later(random);
            });
        });
    }

    fn others(self: &Rc<Self>, percent: u64, random: Rc<Random>) {
        let member = Rc::clone(self);
        let every_ns = READ_NS * 100 / percent / u64::from(WIDTH);
        self.time.after(exponential(&random, every_ns), move || {
            member.submit(READ_NS, || {});
            member.others(percent, random);
        });
    }

    fn submit(self: &Rc<Self>, mean_ns: u64, done: impl FnOnce() + 'static) {
        let ns = mean_ns * 3 / 4 + exponential(&self.random, mean_ns / 4);
        self.state.borrow_mut().queue.push_back(Job { ns, done: Box::new(done) });
        self.serve();
    }

    fn serve(self: &Rc<Self>) {
        loop {
            let state = &mut *self.state.borrow_mut();
            if state.paused || state.serving == WIDTH {
                return;
            }
            let Some(job) = state.queue.pop_front() else { return };
            state.serving += 1;
            let member = Rc::clone(self);
            self.time.after(job.ns, move || {
                member.state.borrow_mut().serving -= 1;
                (job.done)();
                member.serve();
            });
        }
    }
}

/// A time with this mean.
pub(super) fn exponential(random: &Random, mean_ns: u64) -> u64 {
    let uniform = (random.next() >> 11) as f64 / (1u64 << 53) as f64;
    (-(1.0 - uniform).ln() * mean_ns as f64) as u64
}

/// The engine's way to a [`Member`].
pub(super) struct TimedDevice(pub(super) Rc<Member>);

impl TimedDevice {
    fn change(&self) -> Pending<Result<(), DeviceError>> {
        let (pending, filler): (_, Filler<Result<(), DeviceError>>) = pending();
        self.0.submit(WRITE_NS, move || filler.fill(Ok(())));
        pending
    }
}

impl Device for TimedDevice {
    type Read = Pending<(Buffer, Result<(), DeviceError>)>;
    type Done = Pending<Result<(), DeviceError>>;

    fn info(&self) -> &DeviceInfo {
        &self.0.info
    }

    fn read(&self, _offset: DeviceOffset, buffer: Buffer) -> Self::Read {
        let (pending, filler) = pending();
        self.0.submit(READ_NS, move || filler.fill((buffer, Ok(()))));
        pending
    }

    fn write(&self, _offset: DeviceOffset, _data: Gather, _fua: bool) -> Self::Done {
        self.change()
    }

    fn flush(&self) -> Self::Done {
        self.change()
    }

    fn discard(&self, _offset: DeviceOffset, _bytes: u64) -> Self::Done {
        self.change()
    }

    fn write_zeroes(&self, _offset: DeviceOffset, _bytes: u64, _may_unmap: bool) -> Self::Done {
        self.change()
    }
}
