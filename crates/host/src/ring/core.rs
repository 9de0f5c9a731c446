//! Everything in flight on one ring, from the start of an operation to its completion: the same path for the kernel's
//! operations, for copies of memory devices, for timers and for helper threads.
//!
//! Invariants: those of the [slots](super::slots), the [lanes](super::lane) and the [copies](super::copies), and:
//! - The token of an operation is its slot and the slot's generation. A slot in flight is not reused, so a completion
//!   always meets the operation that caused it.
//! - While a file has late writes nothing else is sent to it.

use crossbeam::queue::SegQueue;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::backend::Backend;
use super::clock::{TimeLimits, Timers};
use super::copies::{Copies, Round};
use super::file::RingFile;
use super::lane::Waiting;
use super::late::LateWrite;
use super::op::{Op, Route, Step};
use super::registered::{RegisteredBuffers, RegisteredFiles};
use super::slots::{LaneState, Slot, SlotState, Slots};
use super::system_call::Pushed;

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
    pub files: RegisteredFiles,
    pub buffers: RegisteredBuffers,
    pub mailbox: Arc<Mailbox>,
    /// Operations that helper threads work on.
    pub helped: usize,
    pub copies: Copies,
    queued: VecDeque<Queued>,
    /// Operations that wait for late writes of their files.
    held: VecDeque<u32>,
    completed: Vec<(u64, i32)>,
    timers: Timers,
    limits: TimeLimits,
}

impl Core {
    pub fn new(backend: Backend) -> Self {
        Core {
            files: RegisteredFiles::new(&backend),
            backend,
            slots: Slots::default(),
            buffers: RegisteredBuffers::default(),
            mailbox: Arc::default(),
            helped: 0,
            copies: Copies::default(),
            queued: VecDeque::new(),
            held: VecDeque::new(),
            completed: Vec::new(),
            timers: Timers::default(),
            limits: TimeLimits::new(),
        }
    }

    /// Starts an operation that ends in [`SlotState::Expired`] after `limit`. It is held back, unsent, while its file has
    /// late writes.
    pub fn start_timed(&mut self, op: Op, limit: Duration) -> u32 {
        let slot = if must_wait(&op) { self.hold(op) } else { self.start(op) };
        if self.slots.get(slot).state == SlotState::Running {
            self.slots.get(slot).deadline = Some(self.limits.begin(limit));
        }
        slot
    }

    /// Starts an operation and returns its slot.
    #[inline]
    pub fn start(&mut self, op: Op) -> u32 {
        let route = op.route();
        let slot = self.slots.insert(op);
        match route {
            Route::Copy => self.copies.push(slot, &self.slots.get(slot).op),
            Route::CopyLater => {
                let ready = self.slots.get(slot).op.ready_at();
                self.start_timer(slot, ready);
            }
            Route::System => self.issue_first(slot),
            Route::Elsewhere => {}
        }
        slot
    }

    #[inline]
    fn issue_first(&mut self, slot: u32) {
        let entry = self.slots.get(slot);
        if let Some(pool) = &self.buffers.pool {
            entry.op.find_fixed(pool);
        }
        if let Some(file) = entry.op.file() {
            let (mut lane, operation) = (file.lane.borrow_mut(), (slot, entry.generation));
            let may_go =
                if entry.op.is_flush() { lane.enter_flush(operation) } else { lane.enter(operation) };
            drop(lane);
            if !may_go {
                entry.lane = LaneState::Waiting;
                return;
            }
            entry.lane = LaneState::Sent;
        }
        self.issue(slot);
    }

    fn issue(&mut self, slot: u32) {
        let entry = self.slots.get(slot);
        if entry.state == SlotState::Orphaned && entry.op.awaits_peer() {
            return self.complete(slot, -libc::ECANCELED);
        }
        let token = token_of(slot, entry.generation);
        let call = entry.op.call(&mut entry.vectors);
        if self.backend.push(&call, token) == Pushed::Full {
            self.queued.push_back(Queued::Issue(slot));
        }
    }

    /// Starts a sleep.
    pub fn start_sleep(&mut self, end: Instant) -> u32 {
        let slot = self.slots.insert(Op::Sleep);
        self.start_timer(slot, end);
        slot
    }

    #[cold]
    fn start_timer(&mut self, slot: u32, end: Instant) {
        let generation = self.slots.get(slot).generation;
        let slots = &self.slots;
        self.timers
            .push((end, slot, generation), |&(_, slot, generation)| slots.generation(slot) == generation);
    }

    /// Hands queued operations over and sleeps, at most until `limit`, the next timer or the next scan of time limits.
    pub fn wait(&mut self, limit: Option<Duration>) {
        self.files.empty_released(&self.backend);
        if !self.copies.is_empty() {
            return self.backend.submit();
        }
        let next = [self.timers.next(), self.limits.next_scan()].into_iter().flatten().min();
        let until = next.map(|next| next.saturating_duration_since(Instant::now()));
        self.backend.wait([limit, until].into_iter().flatten().min());
    }

    /// Completes what can be completed without a call to the system. Returns how much.
    #[inline]
    pub fn reap(&mut self) -> usize {
        let mut count = self.reap_backend();
        count += self.reap_copies();
        if self.helped > 0 {
            count += self.reap_helpers();
        }
        if self.limits.any() || !self.timers.is_empty() {
            count += self.reap_clock();
        }
        if !self.queued.is_empty() {
            self.issue_queued();
        }
        count
    }

    #[inline]
    fn reap_backend(&mut self) -> usize {
        self.backend.reap(&mut self.completed);
        reap_nvme(&mut self.backend, &mut self.slots, &mut self.completed);
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

    /// A round of writes and a round of reads of memory devices.
    #[inline]
    fn reap_copies(&mut self) -> usize {
        let mut count = 0;
        let mut round = Round::new();
        while let Some(slot) = self.copies.write_next(&mut self.slots, &mut round) {
            self.complete(slot, 0);
            count += 1;
        }
        let mut round = Round::new();
        while let Some(slot) = self.copies.read_next(&mut self.slots, &mut round) {
            self.complete(slot, 0);
            count += 1;
        }
        count
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
        self.limits.now = Instant::now();
        let mut count = 0;
        while let Some((_, slot, generation)) = self.timers.pop_ended(self.limits.now) {
            let entry = self.slots.get(slot);
            if entry.generation != generation {
                continue; // a sleep that was dropped
            }
            match entry.op {
                Op::Sleep => self.complete(slot, 0),
                _ => self.copies.push(slot, &entry.op),
            }
            count += 1;
        }
        if !self.held.is_empty() {
            count += self.issue_held();
        }
        if self.limits.start_scan() {
            count += self.expire();
        }
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

    /// An operation has its final result.
    #[inline]
    pub fn complete(&mut self, slot: u32, result: i32) {
        let entry = self.slots.get(slot);
        if (entry.state, entry.lane) == (SlotState::Running, LaneState::Outside) && entry.deadline.is_none() {
            // Without a file and in time, as every copy of a memory device: there is only its task to wake.
            (entry.state, entry.result) = (SlotState::Finished, result);
            return entry.wake();
        }
        if entry.deadline.take().is_some() {
            self.limits.end();
        }
        entry.late = None;
        let left = match std::mem::take(&mut entry.lane) {
            LaneState::Sent => entry.op.file().map(|file| (Rc::clone(file), entry.op.is_flush())),
            LaneState::Outside | LaneState::Waiting => None,
        };
        match entry.state {
            SlotState::Running => {
                entry.state = SlotState::Finished;
                entry.result = result;
                entry.wake();
            }
            // Its task was woken for the time limit, but finds a result after all.
            SlotState::Expired => (entry.state, entry.result) = (SlotState::Finished, result),
            SlotState::Orphaned => {
                entry.op.discard_result(result);
                drop(self.slots.remove(slot));
            }
            SlotState::Vacant | SlotState::Finished => unreachable!("an operation completes once"),
        }
        if let Some((file, was_flush)) = left {
            self.leave_lane(&file, was_flush, result);
        }
    }

    /// An operation that was sent has ended: the next ones in the lane of its file are sent. Flushes that share the result of
    /// one that ended end with it.
    fn leave_lane(&mut self, file: &RingFile, was_flush: bool, result: i32) {
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
            self.slots.get(slot).lane = LaneState::Sent;
            self.issue(slot);
        }
    }

    /// What waits in the lane waits for late writes of the file first.
    #[cold]
    fn hold_waiting(&mut self, file: &RingFile) {
        for operation in file.lane.borrow_mut().take_waiting() {
            if waits(&mut self.slots, operation) {
                self.slots.get(operation.0).lane = LaneState::Outside;
                self.held.push_back(operation.0);
            }
        }
    }

    #[cold]
    fn hold(&mut self, op: Op) -> u32 {
        let slot = self.slots.insert(op);
        self.held.push_back(slot);
        slot
    }

    /// Sends held operations whose file has no late writes any more, and fails those whose limit is over: they were never
    /// sent.
    #[cold]
    fn issue_held(&mut self) -> usize {
        let mut count = 0;
        for slot in std::mem::take(&mut self.held) {
            let entry = self.slots.get(slot);
            let is_over = entry.deadline.is_none_or(|deadline| deadline <= self.limits.now);
            match (entry.state, must_wait(&entry.op)) {
                (SlotState::Orphaned, _) => self.complete(slot, -libc::ECANCELED),
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

    /// Wakes the tasks of operations beyond their time limit. An operation that was sent stays in flight, and holds up its
    /// file if it may still change it; one that was not sent ends.
    fn expire(&mut self) -> usize {
        let (now, mut count) = (self.limits.now, 0);
        let mut unsent = Vec::new();
        for (index, slot) in self.slots.iter_mut() {
            if slot.deadline.is_some_and(|deadline| deadline <= now) {
                if slot.lane == LaneState::Waiting {
                    unsent.push(index);
                    continue;
                }
                slot.deadline = None;
                self.limits.end();
                if slot.op.changes_contents() {
                    slot.late = slot.op.file().map(|file| LateWrite::new(&file.late));
                }
                if slot.state == SlotState::Running {
                    slot.state = SlotState::Expired;
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

    /// The future of an operation was dropped: a device operation runs on, a socket operation is cancelled.
    pub fn orphan(&mut self, slot: u32) {
        let entry = self.slots.get(slot);
        match entry.state {
            SlotState::Finished => {
                entry.op.discard_result(entry.result);
                drop(self.slots.remove(slot));
            }
            SlotState::Running if matches!(entry.op, Op::Sleep) => drop(self.slots.remove(slot)),
            SlotState::Running | SlotState::Expired => {
                entry.state = SlotState::Orphaned;
                entry.is_awaited = false;
                if entry.op.awaits_peer() {
                    let token = token_of(slot, entry.generation);
                    self.cancel(token);
                }
            }
            SlotState::Vacant | SlotState::Orphaned => unreachable!("a future lets go of its slot once"),
        }
    }

    fn cancel(&mut self, token: u64) {
        if self.backend.push_cancel(token) == Pushed::Full {
            self.queued.push_back(Queued::Cancel(token));
        }
    }

    /// Ends everything in flight before its memory goes: cancels what may wait for ever and waits for the rest, at most
    /// for `limit`. Commands of drivers own no memory: the end of the ring ends them. False: something is left, and its
    /// memory must stay.
    pub fn drain(&mut self, limit: Duration) -> bool {
        let sockets = self.slots.iter_mut().filter(|(_, slot)| slot.op.awaits_peer());
        let tokens: Vec<u64> = sockets.map(|(index, slot)| token_of(index, slot.generation)).collect();
        tokens.into_iter().for_each(|token| self.cancel(token));
        self.backend.disarm_wake();
        let (start, mut warned) = (Instant::now(), 0);
        loop {
            self.reap();
            let commands = commands_in_flight(&mut self.slots);
            if self.backend.in_flight() == commands && self.queued.is_empty() && self.copies.is_empty() {
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
}

/// Takes the completions of NVMe commands, which have an answer besides their result.
#[inline]
fn reap_nvme(backend: &mut Backend, slots: &mut Slots, completed: &mut Vec<(u64, i32)>) {
    backend.reap_nvme(|token, result, answer| {
        if let Op::Nvme { command, .. } = &mut slots.get(slot_of(token)).op {
            command.answer = answer;
        }
        completed.push((token, result));
    });
}

/// Commands that their driver has not answered.
fn commands_in_flight(slots: &mut Slots) -> u32 {
    let waits = |slot: &Slot| slot.op.is_command() && slot.state != SlotState::Finished;
    let count = slots.iter_mut().filter(|(_, slot)| waits(slot)).count();
    u32::try_from(count).expect("fewer than 2^32 operations in flight")
}

/// Whether an operation still waits in its lane.
#[inline]
fn waits(slots: &mut Slots, (slot, generation): Waiting) -> bool {
    let entry = slots.get(slot);
    entry.generation == generation && entry.lane == LaneState::Waiting
}

/// Whether an operation waits for late writes of its file. A helper thread starts on its operation at once: the device checks
/// for late writes before.
#[inline]
fn must_wait(op: &Op) -> bool {
    matches!(op.route(), Route::System) && op.file().is_some_and(|file| file.late.any())
}

fn token_of(slot: u32, generation: u32) -> u64 {
    u64::from(generation) << 32 | u64::from(slot)
}

fn slot_of(token: u64) -> u32 {
    u32::try_from(token & u64::from(u32::MAX)).expect("32 bits")
}
