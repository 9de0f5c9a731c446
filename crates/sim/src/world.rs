//! Time, chance and order of one history. Everything that could happen next is either a ready task of an executor or
//! the next entry of the agenda (an operation of a member that ends, a timer), and the seed chooses.
//!
//! Nothing here knows what RAID is; there is no other clock, thread or source of chance in a history, so the same
//! seed gives the same trace. A network, when there is one, is more entries of the agenda.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use engine::events::Event;
use engine::executor::Executor;
use engine::members::load::Clock;
use layout::units::{DeviceOffset, Slot};

use crate::agenda::{Agenda, Kind};
use crate::counts::Counts;
use crate::foreign_buffer::ForeignBuffers;
use crate::random::Random;
use crate::trace::{Note, Trace};

/// More steps than any history needs: a world that makes them runs in circles.
const STEPS_MAX: u64 = 1_000_000;

/// Steps that are as good as no limit: the world has its own.
pub(crate) const NO_LIMIT: u64 = u64::MAX;

/// After this many looks in a row with nothing else to do the next one finds nothing either: the manager needs fewer to
/// call an array quiet, and the bitmap's writer to clear bits.
const LOOKS_MAX: u64 = 40;

pub(crate) struct World {
    random: Random,
    now: Cell<u64>,
    /// The same in nanoseconds for the engine: a tick is long enough for delays to matter to its choices.
    pub(crate) ticks: Arc<Ticks>,
    steps: Cell<u64>,
    agenda: Agenda,
    /// Looks in a row with nothing else to do.
    looks: Cell<u64>,
    order: Order,
    trace: RefCell<Trace>,
    failure: RefCell<Option<String>>,
    pub(crate) counts: RefCell<Counts>,
    pub(crate) foreign_buffers: ForeignBuffers,
    /// Events of the engine that are not in the trace yet.
    pub(crate) events: Arc<Mutex<Vec<Event>>>,
    /// What the engine recorded as bad: member, and bytes of its device.
    pub(crate) given_up: RefCell<Vec<(Slot, Range<DeviceOffset>)>>,
}

/// How the world chooses what comes next; drawn once a history, so that some are hasty and some are slow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    /// A ready task runs before the next entry of the agenda with this chance.
    pub(crate) task_percent: u64,
    /// The task that has waited longest runs first with this chance.
    pub(crate) fifo_percent: u64,
}

/// An operation of a member takes some ten ticks, one of a slow member hundreds.
const TICK_NS: u64 = 20_000;

/// The world's time as the engine sees it.
#[derive(Default)]
pub(crate) struct Ticks(AtomicU64);

impl Clock for Ticks {
    fn now_ns(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Why a run ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ended {
    /// No task is ready and the agenda is empty.
    Idle,
    /// The given number of steps was made.
    Steps,
    /// More than [`STEPS_MAX`] steps were made.
    Circles,
    /// A check failed.
    Failed,
}

impl World {
    pub(crate) fn new(random: Random, tail: usize) -> Rc<Self> {
        let order = Order {
            task_percent: random.pick(&[30, 60, 90, 99]),
            fifo_percent: random.pick(&[0, 0, 50, 95]),
        };
        Rc::new(World {
            random,
            now: Cell::new(0),
            ticks: Arc::default(),
            steps: Cell::new(0),
            agenda: Agenda::default(),
            looks: Cell::new(0),
            order,
            trace: RefCell::new(Trace::new(tail)),
            failure: RefCell::new(None),
            counts: RefCell::new(Counts::default()),
            foreign_buffers: ForeignBuffers::default(),
            events: Arc::default(),
            given_up: RefCell::default(),
        })
    }

    /// Runs until nothing is left to do, `steps` steps were made, or a check failed. Tasks that look now and then for work
    /// never end by themselves: after [`LOOKS_MAX`] looks in a row they count as nothing to do.
    pub(crate) fn run(&self, executors: &[Executor], steps: u64) -> Ended {
        if steps > 1 {
            self.looks.set(0); // a caller that goes step by step keeps its count of looks
        }
        for _ in 0..steps {
            if self.failure.borrow().is_some() {
                return Ended::Failed;
            }
            if !self.step(executors) {
                return Ended::Idle;
            }
            self.hear();
            self.steps.set(self.steps.get() + 1);
            if self.steps.get() > STEPS_MAX {
                return Ended::Circles;
            }
        }
        if self.failure.borrow().is_some() { Ended::Failed } else { Ended::Steps }
    }

    fn step(&self, executors: &[Executor]) -> bool {
        let ready: Vec<&Executor> = executors.iter().filter(|executor| executor.tasks_ready() > 0).collect();
        let waiting = self.agenda.only_looks();
        if !ready.is_empty() && (waiting || self.random().percent(self.order.task_percent)) {
            let executor = ready[self.random().below(ready.len() as u64) as usize];
            let fifo = self.random().percent(self.order.fifo_percent);
            executor.run_one_of(|n| if fifo { 0 } else { self.random().below(n as u64) as usize });
            return true;
        }
        if waiting && self.looks.replace(self.looks.get() + 1) >= LOOKS_MAX {
            return false;
        }
        let Some(due) = self.agenda.next() else { return false };
        self.now.set(self.now.get().max(due.at));
        self.ticks.0.store(self.now.get() * TICK_NS, Relaxed);
        // The host reaps its own completions inside its executor; wakes of other shards take the inbox.
        let inside = self.random().below(executors.len() as u64 + 1) as usize;
        match executors.get(inside) {
            Some(executor) => executor.enter(due.action),
            None => (due.action)(),
        }
        true
    }

    /// Puts the engine's events into the trace.
    fn hear(&self) {
        let events = std::mem::take(&mut *self.events.lock().expect("one thread"));
        for event in events {
            match event {
                Event::RecoveryFinished { .. } => self.counts.borrow_mut().recoveries += 1,
                Event::ResyncFinished { .. } => self.counts.borrow_mut().resyncs += 1,
                Event::BadBlockRecorded { member, offset_bytes, bytes } => {
                    self.counts.borrow_mut().bad_blocks_recorded += 1;
                    self.given_up.borrow_mut().push((member, offset_bytes..offset_bytes + bytes));
                }
                _ => {}
            }
            self.note(Note::Words(format!("  event: {event:?}")));
        }
    }

    /// Drops what is on the agenda: the power is gone.
    pub(crate) fn cut(&self) {
        self.agenda.clear();
    }

    pub(crate) fn random(&self) -> &Random {
        &self.random
    }

    /// Puts an action on the agenda, `ticks` from now.
    pub(crate) fn after(&self, ticks: u64, action: impl FnOnce() + 'static) {
        self.looks.set(0);
        self.agenda.add(self.now.get() + ticks, Kind::Work, action);
    }

    /// Waits for the next look of a task that looks now and then for work. The world does not go on for its sake.
    pub(crate) fn look_after(&self, ticks: u64) -> Pending<()> {
        let (pending, filler) = pending();
        self.agenda.add(self.now.get() + ticks, Kind::Look, move || filler.fill(()));
        pending
    }

    /// Ticks since the start.
    pub(crate) fn now(&self) -> u64 {
        self.now.get()
    }

    pub(crate) fn sleep(&self, ticks: u64) -> Pending<()> {
        let (pending, filler) = pending();
        self.after(ticks, move || filler.fill(()));
        pending
    }

    /// Sleeps 1 to `ticks_max` ticks.
    pub(crate) fn sleep_up_to(&self, ticks_max: u64) -> Pending<()> {
        let ticks = self.random().between(1, ticks_max);
        self.sleep(ticks)
    }

    pub(crate) fn note(&self, note: Note) {
        self.trace.borrow_mut().note(self.now.get(), note);
    }

    /// A check failed; the first one counts.
    pub(crate) fn fail(&self, what: String) {
        self.failure.borrow_mut().get_or_insert(what);
    }

    /// A panic that was caught, by its message.
    pub(crate) fn fail_by_panic(&self, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
        self.fail(format!("panic: {}", text.unwrap_or_default()));
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    pub(crate) fn trace_hash(&self) -> u64 {
        self.trace.borrow().hash()
    }

    pub(crate) fn trace_tail(&self) -> Vec<String> {
        self.trace.borrow().tail()
    }
}

struct Promise<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// A value to come, as a future.
pub(crate) struct Pending<T>(Rc<RefCell<Promise<T>>>);

/// The other end of a [`Pending`].
pub(crate) struct Filler<T>(Rc<RefCell<Promise<T>>>);

pub(crate) fn pending<T>() -> (Pending<T>, Filler<T>) {
    let slot = Rc::new(RefCell::new(Promise { value: None, waker: None }));
    (Pending(Rc::clone(&slot)), Filler(slot))
}

impl<T> Filler<T> {
    pub(crate) fn fill(self, value: T) {
        let waker = {
            let mut slot = self.0.borrow_mut();
            slot.value = Some(value);
            slot.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Future for Pending<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.0.borrow_mut();
        match slot.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}
