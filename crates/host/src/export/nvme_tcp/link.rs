//! What the tasks of one connection share: its queue, the memory that its commands hold, and what waits to be sent.
//!
//! Invariants:
//! - F-I10: the task that receives never waits for memory. A command that does not fit waits here with no memory, and begins
//!   when others have been answered; one alone always fits.
//! - A command holds its share until its answer has been sent, so a host that sends much and reads nothing stops itself.

use engine::buffer::Gather;
use nvme_tcp::status::Status;
use nvme_tcp::target::queue::{Queue, Slot, Wish};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use super::super::outbox::Outbox;
use super::connection_limits::HELD_BYTES_MAX;

/// What waits to be sent.
pub(super) enum Item {
    /// The answer to the first PDU.
    Begin,
    /// A wish for data.
    Wish(Wish),
    /// The end of a command, its data before it.
    Answer { slot: Slot, status: Status, value: u64, data: Gather, held_bytes: usize },
    /// The request to end the connection, as it stands.
    Last(Vec<u8>),
}

impl Item {
    /// Bytes of data among it.
    pub fn data_bytes(&self) -> usize {
        if let Item::Answer { data, .. } = self { data.len() } else { 0 }
    }
}

/// A connection, as its tasks share it.
pub(super) struct Link {
    queue: RefCell<Queue>,
    held_bytes: Cell<usize>,
    /// Bytes that each command in flight holds.
    held: RefCell<Box<[u32]>>,
    /// Commands that wait for memory.
    waiting: RefCell<VecDeque<(Slot, u32)>>,
    items: Outbox<Item>,
    /// The receiving task, which waits for the sending one to end.
    receiver: RefCell<Option<Waker>>,
    /// No answer can reach the host any more.
    broken: Cell<bool>,
    /// It is a queue.
    connected: Cell<bool>,
    begin: RefCell<Option<Box<dyn Fn(Slot)>>>,
}

impl Link {
    pub fn new(queue: Queue, commands: usize) -> Rc<Self> {
        Rc::new(Link {
            queue: RefCell::new(queue),
            held_bytes: Cell::new(0),
            held: RefCell::new(vec![0; commands].into()),
            waiting: RefCell::default(),
            items: Outbox::new(),
            receiver: RefCell::default(),
            broken: Cell::new(false),
            connected: Cell::new(false),
            begin: RefCell::default(),
        })
    }

    /// Uses the queue for a moment.
    pub fn with_queue<T>(&self, work: impl FnOnce(&mut Queue) -> T) -> T {
        work(&mut self.queue.borrow_mut())
    }

    /// The connection is a queue now.
    pub fn set_connected(&self) {
        self.connected.set(true);
    }

    /// Whether the connection is a queue.
    pub fn is_connected(&self) -> bool {
        self.connected.get()
    }

    /// How commands begin that have waited for memory.
    pub fn set_begin(&self, begin: impl Fn(Slot) + 'static) {
        self.begin.replace(Some(Box::new(begin)));
    }

    /// The tasks are over: breaks the circle of this and of what begins commands.
    pub fn forget_begin(&self) {
        self.begin.take();
    }

    /// Takes a share of the memory for a command; false: it waits, and begins later.
    pub fn admit(&self, slot: Slot, bytes: u32, may_wait: bool) -> bool {
        let held = self.held_bytes.get();
        let fits = held == 0 || held + bytes as usize <= HELD_BYTES_MAX;
        if may_wait && !(fits && self.waiting.borrow().is_empty()) {
            self.waiting.borrow_mut().push_back((slot, bytes));
            return false;
        }
        self.hold(slot, bytes);
        true
    }

    fn hold(&self, slot: Slot, bytes: u32) {
        self.held_bytes.set(self.held_bytes.get() + bytes as usize);
        self.held.borrow_mut()[slot.index()] = bytes;
    }

    /// Queues the end of a command.
    pub fn answer(&self, slot: Slot, status: Status, value: u64, data: Gather) {
        let held_bytes = std::mem::take(&mut self.held.borrow_mut()[slot.index()]) as usize;
        self.push(Item::Answer { slot, status, value, data, held_bytes });
    }

    /// Queues something to be sent.
    pub fn push(&self, item: Item) {
        if !self.broken.get() {
            self.items.push(item);
        }
    }

    /// Queues every wish of a command that may be sent now.
    pub fn push_wishes(&self, slot: Slot) {
        while let Some(wish) = self.with_queue(|queue| queue.next_wish(slot)) {
            self.push(Item::Wish(wish));
        }
    }

    /// Ends the sending task when all is sent.
    pub fn finish(&self) {
        self.items.finish();
    }

    /// Waits until something is to be sent; false when nothing will be.
    pub async fn wait_for_items(&self) -> bool {
        self.items.wait().await
    }

    /// Takes what goes with the next send.
    pub fn take_batch(&self, batch: &mut Vec<Item>, items_max: usize, bytes_max: usize) {
        self.items.take_batch(batch, (items_max, bytes_max), Item::data_bytes);
    }

    /// Answers that held `bytes` have been sent: commands that waited begin.
    pub fn sent(&self, bytes: usize) {
        self.held_bytes.set(self.held_bytes.get() - bytes);
        loop {
            let Some((slot, bytes)) = self.waiting.borrow().front().copied() else { return };
            let held = self.held_bytes.get();
            if held > 0 && held + bytes as usize > HELD_BYTES_MAX {
                return;
            }
            self.waiting.borrow_mut().pop_front();
            self.hold(slot, bytes);
            if let Some(begin) = &*self.begin.borrow() {
                begin(slot);
            }
        }
    }

    /// A command that waits for memory never begins. False: it does not wait.
    pub fn withdraw(&self, slot: Slot) -> bool {
        let mut waiting = self.waiting.borrow_mut();
        let at = waiting.iter().position(|(one, _)| *one == slot);
        at.is_some_and(|at| waiting.remove(at).is_some())
    }

    /// Commands that wait for memory never begin: the server stops.
    pub fn forget_waiting(&self) {
        self.waiting.take();
    }

    /// The sending task has ended: gives up every answer, now and later.
    pub fn give_up(&self) {
        self.broken.set(true);
        self.items.take_all();
        self.waiting.take();
        if let Some(receiver) = self.receiver.take() {
            receiver.wake();
        }
    }

    /// Waits until the sending task has ended.
    pub async fn wait_for_end(&self) {
        poll_fn(|context| {
            if self.broken.get() {
                return Poll::Ready(());
            }
            self.receiver.replace(Some(context.waker().clone()));
            Poll::Pending
        })
        .await;
    }
}
