//! Everything in flight on one ring, and its completion path: the same for the kernel's operations, for copies of
//! memory devices, for timers and for helper threads.
//!
//! Invariants: those of the slots, and:
//! - The token of an operation is its slot and the slot's generation. A slot in flight is not reused, so a completion
//!   always meets the operation that caused it.
//! - Copies are made one after the other, on one shard a memory device is sequential: the writes in the order of
//!   submission, and the reads, each round of both cut at [`ROUND_BYTES`], so neither keeps the other waiting.

use crossbeam::queue::SegQueue;
use engine::buffer::Pool;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backend::Backend;
use super::copies::{Copies, ROUND_BYTES};
use super::kernel::Pushed;
use super::lane::Waiting;
use super::late::LateWrite;
use super::op::{Op, Route, Step, Target};
use super::slots::{Slot, Slots, State, Turn};
use super::timers::Timers;

/// How often operations are compared with their time limit: an eighth of the limit, within these bounds.
const SCAN_MIN: Duration = Duration::from_millis(2);
const SCAN_MAX: Duration = Duration::from_secs(1);

/// How many copies ahead memory is fetched.
const COPIES_AHEAD: usize = 3;

/// What waits for room in the submission queue.
#[derive(Clone, Copy)]
enum Queued {
    Issue(u32),
    Cancel(u64),
}

/// Results from helper threads: slot and result.
pub(super) type Mailbox = SegQueue<(u32, i32)>;

pub(super) struct Core {
    pub backend: Backend,
    pub slots: Slots,
    /// Places of registered files whose last operation is gone.
    pub released: Rc<RefCell<Vec<u32>>>,
    pub files_free: Vec<u32>,
    pub mailbox: Arc<Mailbox>,
    /// Operations that helper threads work on.
    pub helped: usize,
    /// The pool whose memory is registered.
    pub fixed_pool: Option<Arc<Pool>>,
    /// Free places of the table of registered memory, for drivers.
    pub places_free: Vec<u16>,
    copies_out: Copies,
    copies_in: Copies,
    queued: VecDeque<Queued>,
    /// Operations that wait for late writes of their devices.
    held: VecDeque<u32>,
    completed: Vec<(u64, i32)>,
    timers: Timers,
    /// Operations with a time limit, and when they are looked at next.
    timed: usize,
    scan_every: Duration,
    scan_next: Instant,
    now: Instant,
}

impl Core {
    pub fn new(backend: Backend) -> Self {
        let now = Instant::now();
        Core {
            files_free: (0..backend.files()).rev().collect(),
            backend,
            slots: Slots::default(),
            released: Rc::default(),
            mailbox: Arc::default(),
            helped: 0,
            fixed_pool: None,
            places_free: Vec::new(),
            copies_out: Copies::default(),
            copies_in: Copies::default(),
            queued: VecDeque::new(),
            held: VecDeque::new(),
            completed: Vec::new(),
            timers: Timers::default(),
            timed: 0,
            scan_every: SCAN_MAX,
            scan_next: now,
            now,
        }
    }

    /// Starts an operation and returns its slot.
    #[inline]
    pub fn start(&mut self, op: Op) -> u32 {
        let route = op.route();
        let slot = self.slots.insert(op);
        match route {
            Route::Copy => self.copy_soon(slot),
            Route::CopyLater => self.copy_later(slot),
            Route::System => {
                self.issue_first(slot);
            }
            Route::Elsewhere => {}
        }
        slot
    }

    #[inline]
    fn issue_first(&mut self, slot: u32) {
        let entry = self.slots.get(slot);
        if let Some(pool) = &self.fixed_pool {
            entry.op.find_fixed(pool);
        }
        if let Some(file) = entry.op.target() {
            let (mut lane, operation) = (file.lane.borrow_mut(), (slot, entry.generation));
            let is_turn =
                if entry.op.is_flush() { lane.enter_flush(operation) } else { lane.enter(operation) };
            drop(lane);
            if !is_turn {
                entry.turn = Turn::Waits;
                return;
            }
            entry.turn = Turn::UnderWay;
        }
        self.issue(slot);
    }

    /// An operation of this file has ended that was sent: others have their turn. Flushes that share it have its result.
    fn give_turn(&mut self, file: &Target, was_flush: bool, result: i32) {
        let ended = match was_flush {
            true => file.lane.borrow_mut().leave_flush(),
            false => {
                file.lane.borrow_mut().leave();
                Vec::new()
            }
        };
        for (slot, generation) in ended {
            if waits(&mut self.slots, (slot, generation)) {
                self.complete(slot, result);
            }
        }
        if file.late.any() {
            return self.hold_waiting(file);
        }
        let next = {
            let mut lane = file.lane.borrow_mut();
            let operation = lane.next_operation(|operation| waits(&mut self.slots, operation));
            [operation, lane.next_flush(|flush| waits(&mut self.slots, flush))]
        };
        for slot in next.into_iter().flatten() {
            self.slots.get(slot).turn = Turn::UnderWay;
            self.issue(slot);
        }
    }

    /// What waits for its turn waits for late writes of the file first.
    #[cold]
    fn hold_waiting(&mut self, file: &Target) {
        for operation in file.lane.borrow_mut().take_waiting() {
            if waits(&mut self.slots, operation) {
                self.slots.get(operation.0).turn = Turn::None;
                self.held.push_back(operation.0);
            }
        }
    }

    /// Starts an operation that fails with [`State::Expired`] after `limit`. It waits while its device owes an answer to a
    /// write beyond that.
    pub fn start_timed(&mut self, op: Op, limit: Duration) -> u32 {
        let slot = match must_wait(&op) {
            true => self.hold(op),
            false => self.start(op),
        };
        if self.slots.get(slot).state == State::Running {
            if self.timed == 0 {
                self.now = Instant::now();
                self.scan_every = SCAN_MAX;
            }
            self.timed += 1;
            self.scan_every = self.scan_every.min((limit / 8).max(SCAN_MIN));
            self.scan_next = self.scan_next.min(self.now + self.scan_every);
            self.slots.get(slot).deadline = Some(self.now + limit);
        }
        slot
    }

    /// Starts a sleep.
    pub fn start_sleep(&mut self, end: Instant) -> u32 {
        let slot = self.slots.insert(Op::Sleep);
        self.start_timer(slot, end);
        slot
    }

    /// Leaves a copy to the next rounds.
    #[inline]
    fn copy_soon(&mut self, slot: u32) {
        match &self.slots.get(slot).op {
            Op::MemoryRead { buffer, .. } => self.copies_out.push(slot, buffer.len()),
            Op::MemoryWrite { data, .. } => self.copies_in.push(slot, data.len()),
            _ => self.copies_in.push(slot, 0),
        }
    }

    #[cold]
    fn copy_later(&mut self, slot: u32) {
        let ready = match &self.slots.get(slot).op {
            Op::MemoryRead { region, buffer, .. } => region.ready_at(true, buffer.len()),
            Op::MemoryWrite { region, data, .. } => region.ready_at(false, data.len()),
            _ => unreachable!("only reads and writes of memory devices wait for them"),
        };
        self.start_timer(slot, ready);
    }

    fn start_timer(&mut self, slot: u32, end: Instant) {
        let generation = self.slots.get(slot).generation;
        let slots = &self.slots;
        self.timers
            .push((end, slot, generation), |&(_, slot, generation)| slots.generation(slot) == generation);
    }

    fn issue(&mut self, slot: u32) {
        let entry = self.slots.get(slot);
        if entry.state == State::Orphaned && entry.op.is_socket() {
            return self.complete(slot, -libc::ECANCELED);
        }
        let token = token_of(slot, entry.generation);
        let request = entry.op.request(&mut entry.vectors);
        if self.backend.push(&request, token) == Pushed::Full {
            self.queued.push_back(Queued::Issue(slot));
        }
    }

    /// What happens to an operation whose future is dropped: device operations run on, sockets are cancelled.
    pub fn orphan(&mut self, slot: u32) {
        let entry = self.slots.get(slot);
        match entry.state {
            State::Finished => {
                super::socket::discard_result(&entry.op, entry.result);
                drop(self.slots.remove(slot));
            }
            State::Running if matches!(entry.op, Op::Sleep) => drop(self.slots.remove(slot)),
            State::Running | State::Expired => {
                entry.state = State::Orphaned;
                entry.is_awaited = false;
                if entry.op.is_socket() {
                    let token = token_of(slot, entry.generation);
                    self.cancel(token);
                }
            }
            State::Vacant | State::Orphaned => unreachable!("a future lets go of its slot once"),
        }
    }

    fn cancel(&mut self, token: u64) {
        if self.backend.push_cancel(token) == Pushed::Full {
            self.queued.push_back(Queued::Cancel(token));
        }
    }

    /// Completes what can be completed without a call to the system. Returns how much.
    #[inline]
    pub fn reap(&mut self) -> usize {
        let mut count = self.reap_backend();
        count += self.copy_in();
        count += self.copy_out();
        if self.helped > 0 {
            count += self.reap_helpers();
        }
        if self.timed > 0 || !self.timers.is_empty() {
            count += self.reap_clock();
        }
        if !self.queued.is_empty() {
            self.issue_queued();
        }
        count
    }

    /// Whether enough copies wait for a round.
    #[inline]
    pub fn has_round(&self) -> bool {
        self.copies_out.bytes() + self.copies_in.bytes() >= ROUND_BYTES
    }

    fn has_copies(&self) -> bool {
        !self.copies_in.is_empty() || !self.copies_out.is_empty()
    }

    /// A round of writes and what else changes memory devices.
    #[inline]
    fn copy_in(&mut self) -> usize {
        let (mut count, mut copied_bytes) = (0, 0);
        while copied_bytes < ROUND_BYTES
            && let Some((slot, bytes)) = self.copies_in.pop()
        {
            match &self.slots.get(slot).op {
                Op::MemoryWrite { region, data, offset } => region.write(*offset, data.slices()),
                Op::MemoryClear { region, offset, bytes, unmap, .. } => region.clear(*offset, *bytes, *unmap),
                Op::MemoryFlush { region } => region.count_other(),
                _ => unreachable!("reads have a queue of their own"),
            }
            self.complete(slot, 0);
            copied_bytes += bytes;
            count += 1;
        }
        count
    }

    /// A round of reads from memory devices.
    #[inline]
    fn copy_out(&mut self) -> usize {
        let (mut count, mut copied_bytes) = (0, 0);
        while copied_bytes < ROUND_BYTES
            && let Some((slot, bytes)) = self.copies_out.pop()
        {
            if let Some(later) = self.copies_out.later(COPIES_AHEAD - 1)
                && let Op::MemoryRead { region, offset, .. } = &self.slots.get(later).op
            {
                region.prefetch(*offset);
            }
            if let Op::MemoryRead { region, buffer, offset } = &mut self.slots.get(slot).op {
                region.read(*offset, buffer.bytes_mut());
            }
            self.complete(slot, 0);
            copied_bytes += bytes;
            count += 1;
        }
        count
    }

    #[inline]
    fn reap_backend(&mut self) -> usize {
        self.backend.reap(&mut self.completed);
        let count = self.completed.len();
        if count > 0 {
            let mut completed = std::mem::take(&mut self.completed);
            for (token, result) in completed.drain(..) {
                self.advance(token, result);
            }
            self.completed = completed;
        }
        count
    }

    fn advance(&mut self, token: u64, result: i32) {
        let slot = slot_of(token);
        let entry = self.slots.get(slot);
        assert_eq!(token_of(slot, entry.generation), token, "a completion meets its operation");
        match entry.op.advance(result) {
            Step::Again => self.issue(slot),
            Step::Done(result) => self.complete(slot, result),
        }
    }

    /// An operation has its final result.
    #[inline]
    fn complete(&mut self, slot: u32, result: i32) {
        let entry = self.slots.get(slot);
        if entry.deadline.take().is_some() {
            self.timed -= 1;
        }
        entry.late = None;
        let left = match std::mem::take(&mut entry.turn) {
            Turn::UnderWay => entry.op.target().map(|file| (Rc::clone(file), entry.op.is_flush())),
            Turn::None | Turn::Waits => None,
        };
        match entry.state {
            State::Running => {
                entry.state = State::Finished;
                entry.result = result;
                entry.wake();
            }
            // Woken for the time limit, but it has a result after all.
            State::Expired => (entry.state, entry.result) = (State::Finished, result),
            State::Orphaned => {
                super::socket::discard_result(&entry.op, result);
                drop(self.slots.remove(slot));
            }
            State::Vacant | State::Finished => unreachable!("an operation completes once"),
        }
        if let Some((file, was_flush)) = left {
            self.give_turn(&file, was_flush, result);
        }
    }

    fn reap_helpers(&mut self) -> usize {
        let mut count = 0;
        while let Some((slot, result)) = self.mailbox.pop() {
            self.helped -= 1;
            self.complete(slot, result);
            count += 1;
        }
        count
    }

    fn reap_clock(&mut self) -> usize {
        self.now = Instant::now();
        let mut count = 0;
        while let Some((_, slot, generation)) = self.timers.pop_ended(self.now) {
            let entry = self.slots.get(slot);
            if entry.generation != generation {
                continue; // a sleep that was dropped
            }
            match entry.op {
                Op::Sleep => self.complete(slot, 0),
                _ => self.copy_soon(slot),
            }
            count += 1;
        }
        if !self.held.is_empty() {
            count += self.issue_held();
        }
        if self.timed > 0 && self.now >= self.scan_next {
            self.scan_next = self.now + self.scan_every;
            count += self.expire();
        }
        count
    }

    #[cold]
    fn hold(&mut self, op: Op) -> u32 {
        let slot = self.slots.insert(op);
        self.held.push_back(slot);
        slot
    }

    /// Sends what no late write stands before any more, and ends what has waited too long. Nothing of that was sent.
    #[cold]
    fn issue_held(&mut self) -> usize {
        let mut count = 0;
        for slot in std::mem::take(&mut self.held) {
            let entry = self.slots.get(slot);
            let is_over = entry.deadline.is_none_or(|deadline| deadline <= self.now);
            match (entry.state, must_wait(&entry.op)) {
                (State::Orphaned, _) => self.complete(slot, -libc::ECANCELED),
                (_, false) => self.issue_first(slot),
                (_, true) if is_over => self.complete(slot, -libc::ETIMEDOUT),
                (_, true) => {
                    self.held.push_back(slot);
                    continue;
                }
            }
            count += 1;
        }
        count
    }

    /// Tells the futures of operations beyond their time limit. The operations stay, but for those that were not sent.
    fn expire(&mut self) -> usize {
        let (now, mut count) = (self.now, 0);
        let mut unsent = Vec::new();
        for (index, slot) in self.slots.iter_mut() {
            if slot.deadline.is_some_and(|deadline| deadline <= now) {
                if slot.turn == Turn::Waits {
                    unsent.push(index);
                    continue;
                }
                slot.deadline = None;
                self.timed -= 1;
                if slot.op.changes_contents() {
                    slot.late = slot.op.target().map(|file| LateWrite::new(&file.late));
                }
                if slot.state == State::Running {
                    slot.state = State::Expired;
                    slot.result = -libc::ETIMEDOUT;
                    slot.wake();
                    count += 1;
                }
            }
        }
        count += unsent.len();
        unsent.into_iter().for_each(|slot| self.complete(slot, -libc::ETIMEDOUT));
        count
    }

    fn issue_queued(&mut self) {
        for _ in 0..self.queued.len() {
            let refused_before = self.queued.len();
            match self.queued.pop_front() {
                Some(Queued::Issue(slot)) => self.issue(slot),
                Some(Queued::Cancel(token)) => self.cancel(token),
                None => return,
            }
            if self.queued.len() == refused_before {
                return;
            }
        }
    }

    /// Hands queued operations to the system.
    #[inline]
    pub fn submit(&mut self) {
        self.backend.submit();
    }

    /// Hands queued operations over and sleeps, at most until `limit`, the next timer or the next look at time
    /// limits.
    pub fn wait(&mut self, limit: Option<Duration>) {
        if !self.released.borrow().is_empty() {
            self.release_files();
        }
        if self.has_copies() {
            return self.backend.submit();
        }
        let scan = (self.timed > 0).then_some(self.scan_next);
        let next = [self.timers.next(), scan].into_iter().flatten().min();
        let until = next.map(|next| next.saturating_duration_since(Instant::now()));
        self.backend.wait([limit, until].into_iter().flatten().min());
    }

    /// Empties the places of registered files that nobody uses any more, so that the files close.
    pub fn release_files(&mut self) {
        while let Some(index) = self.released.borrow_mut().pop() {
            if let Err(error) = self.backend.set_file(index, -1) {
                tracing::warn!(index, %error, "a registered file stays open until the shard ends");
                continue;
            }
            self.files_free.push(index);
        }
    }

    /// Ends everything in flight before its memory goes: cancels what may wait for ever and waits for the rest, at most
    /// for `limit`. Commands of drivers own no memory: the end of the ring ends them. False if something is left: then
    /// the memory must stay.
    pub fn drain(&mut self, limit: Duration) -> bool {
        let mut tokens = Vec::new();
        for (index, slot) in self.slots.iter_mut() {
            if slot.op.is_socket() {
                tokens.push(token_of(index, slot.generation));
            }
        }
        tokens.into_iter().for_each(|token| self.cancel(token));
        self.backend.disarm_wake();
        let (start, mut warned) = (Instant::now(), 0);
        loop {
            self.reap();
            let waiting = self.commands_waiting();
            if self.backend.in_flight() == waiting && self.queued.is_empty() && !self.has_copies() {
                return true;
            }
            if start.elapsed() >= limit {
                return false;
            }
            self.backend.wait(Some(Duration::from_millis(100)));
            let waited = start.elapsed().as_secs() / 5;
            if waited > warned {
                warned = waited;
                let in_flight = self.backend.in_flight();
                tracing::warn!(in_flight, seconds = waited * 5, "waiting for operations that do not end");
            }
        }
    }

    /// Commands that their driver has not answered.
    fn commands_waiting(&mut self) -> u32 {
        let waits = |slot: &Slot| slot.op.is_command() && slot.state != State::Finished;
        let count = self.slots.iter_mut().filter(|(_, slot)| waits(slot)).count();
        u32::try_from(count).expect("fewer than 2^32 operations in flight")
    }
}

/// Whether an operation still waits for its turn.
#[inline]
fn waits(slots: &mut Slots, (slot, generation): Waiting) -> bool {
    let entry = slots.get(slot);
    entry.generation == generation && entry.turn == Turn::Waits
}

/// Whether an operation waits for late writes of its device. What a helper thread does is on its way as soon as it is started:
/// its device is asked before.
#[inline]
fn must_wait(op: &Op) -> bool {
    matches!(op.route(), Route::System) && op.target().is_some_and(|file| file.late.any())
}

fn token_of(slot: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(slot)
}

fn slot_of(token: u64) -> u32 {
    u32::try_from(token & u64::from(u32::MAX)).expect("32 bits")
}
