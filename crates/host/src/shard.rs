//! Shards: one thread, one executor, one ring, one pool for each core.
//!
//! The loop of a shard runs the tasks that are ready, hands their operations over in one call, completes what is done,
//! and sleeps only when nothing is ready.
//!
//! Invariants:
//! - What belongs to a shard never leaves its thread; other threads send closures.
//! - A message that was sent to a shard is run, or dropped if the shard ends first. Then its caller gets [`ShardGone`].
//! - A shard ends when its tasks have ended, or drops them after the grace period. Its ring drains before memory goes.
//! - A panic ends its shard only; it is logged, and [`Shards::stop`] and [`Shards::failure`] return it.

use crossbeam::queue::SegQueue;
use engine::buffer::Pool;
use engine::executor::Executor;
use rustix::thread::CpuSet;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::panic::AssertUnwindSafe;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock, Weak, mpsc};
use std::task::{Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::buffer::{BufferOptions, pool_for};
use crate::busy::Busy;
use crate::call::{Call, Reply};
use crate::ring::{Ring, RingOptions, WakeUp};

pub use crate::call::ShardGone;

/// How shards are set up.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// The ring of each shard.
    pub ring: RingOptions,
    /// The pool of each shard.
    pub buffers: BufferOptions,
    /// Each shard stays on a core of its own, if there are enough for all.
    pub pin: bool,
    /// How long an idle shard polls before it sleeps. Zero: never.
    pub busy_poll: Duration,
    /// How long tasks may take to end after [`Shards::stop`]. Then the rest is dropped.
    pub stop_grace: Duration,
    /// A shard that panics ends the process, once it has logged why. Otherwise its queues and connections would hang beside
    /// those of a server that looks well, and no other server could take them over.
    pub abort_on_panic: bool,
}

impl Default for ShardOptions {
    fn default() -> Self {
        ShardOptions {
            ring: RingOptions::default(),
            buffers: BufferOptions::default(),
            pin: true,
            busy_poll: Duration::ZERO,
            stop_grace: Duration::from_secs(10),
            abort_on_panic: false,
        }
    }
}

/// What a task on a shard works with. Clones are handles to the same shard; none leaves its thread.
#[derive(Clone)]
pub struct ShardContext {
    /// Number of this shard among all of the process, from 0. An array may have another: [`Handle::number_of`].
    pub index: usize,
    /// Runs the tasks.
    pub executor: Executor,
    /// Does I/O.
    pub ring: Ring,
    /// Buffers.
    pub pool: Arc<Pool>,
    /// The way to the other shards.
    pub shards: Handle,
    /// Whether the shard's core is its limit.
    pub busy: Busy,
    stop: Rc<Stop>,
}

#[derive(Default)]
struct Stop {
    asked: Cell<Option<Instant>>,
    waiting: RefCell<Vec<Waker>>,
    hooks: RefCell<Vec<Hook>>,
}

/// What is called when the shard is asked to stop.
struct Hook {
    is_of_use: Box<dyn Fn() -> bool>,
    call: Box<dyn FnOnce()>,
}

impl ShardContext {
    /// Returns when the shard is asked to stop. A task that serves for ever waits for it, and ends.
    pub fn stopping(&self) -> impl Future<Output = ()> + Unpin + use<> {
        let stop = Rc::clone(&self.stop);
        std::future::poll_fn(move |context| {
            if stop.asked.get().is_some() {
                return Poll::Ready(());
            }
            let mut waiting = stop.waiting.borrow_mut();
            if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                waiting.push(context.waker().clone());
            }
            Poll::Pending
        })
    }

    /// Whether the shard was asked to stop.
    pub fn is_stopping(&self) -> bool {
        self.stop.asked.get().is_some()
    }

    /// Calls `hook` with `of` when the shard is asked to stop. What has ended before is not kept: arrays come and go on a shard.
    pub fn at_stop<T: 'static>(&self, of: Weak<T>, hook: fn(&T)) {
        let watched = Weak::clone(&of);
        let is_of_use = Box::new(move || watched.strong_count() > 0);
        let call = Box::new(move || of.upgrade().iter().for_each(|of| hook(of)));
        if self.is_stopping() {
            return call();
        }
        let mut hooks = self.stop.hooks.borrow_mut();
        hooks.retain(|hook| (hook.is_of_use)());
        hooks.push(Hook { is_of_use, call });
    }

    fn ask_to_stop(&self) {
        if self.stop.asked.get().is_none() {
            self.stop.asked.set(Some(Instant::now()));
            self.stop.waiting.take().into_iter().for_each(Waker::wake);
            self.stop.hooks.take().into_iter().for_each(|hook| (hook.call)());
        }
    }
}

/// A shard has ended by a panic.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("shard {shard} ended by a panic: {message}")]
pub struct ShardPanic {
    /// Number of the shard.
    pub shard: usize,
    /// The panic's message.
    pub message: String,
}

/// The running shards, in the hands of the thread that stops them; for all else they are their [`Handle`]. Dropping them
/// stops them.
pub struct Shards {
    handle: Handle,
    threads: Vec<JoinHandle<()>>,
}

impl Shards {
    /// Starts `count` shards; `setup` runs first on each.
    ///
    /// # Errors
    /// A thread or a ring could not be made. No shard is left then.
    pub fn start(
        count: usize,
        options: &ShardOptions,
        setup: impl Fn(ShardContext) + Send + Clone + 'static,
    ) -> io::Result<Self> {
        assert!(count > 0, "at least one shard");
        let ports: io::Result<Vec<Arc<Port>>> = (0..count).map(|_| Port::new().map(Arc::new)).collect();
        let handle = Handle { ports: ports?.into() };
        let mut shards = Shards { handle: handle.clone(), threads: Vec::new() };
        let (started, starts) = mpsc::channel();
        let cores = if options.pin { cores_for(count) } else { Vec::new() };
        for index in 0..count {
            let (handle, options, setup) = (handle.clone(), options.clone(), setup.clone());
            let (started, core) = (started.clone(), cores.get(index).copied());
            let body = move || shard_main(index, handle, &options, core, &started, setup);
            shards.threads.push(std::thread::Builder::new().name(format!("twill-{index}")).spawn(body)?);
        }
        for _ in 0..count {
            // An error drops `shards`, which stops those that did start.
            starts.recv().map_err(|_| io::Error::other("a shard ended while it started"))??;
        }
        Ok(shards)
    }

    /// The way to the shards for other threads.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// The first shard that ended by a panic, if any has.
    pub fn failure(&self) -> Option<ShardPanic> {
        self.handle.ports.iter().find_map(|port| port.failure.get().cloned())
    }

    /// Asks every shard to stop and waits until all have.
    ///
    /// # Errors
    /// The first shard that ended by a panic, now or before.
    pub fn stop(mut self) -> Result<(), ShardPanic> {
        self.stop_all();
        self.failure().map_or(Ok(()), Err)
    }

    fn stop_all(&mut self) {
        for shard in 0..self.handle.count() {
            self.handle.send(shard, Box::new(ShardContext::ask_to_stop));
        }
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a shard ended by a panic while it reported one");
            }
        }
    }
}

impl std::ops::Deref for Shards {
    type Target = Handle;

    fn deref(&self) -> &Handle {
        &self.handle
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        self.stop_all();
    }
}

type Message = Box<dyn FnOnce(&ShardContext) + Send>;

/// Where messages for one shard arrive.
struct Port {
    messages: SegQueue<Message>,
    /// The task of the shard that takes them, once it runs.
    receiver: OnceLock<Waker>,
    ended: AtomicBool,
    failure: OnceLock<ShardPanic>,
    wake: Arc<WakeUp>,
}

impl Port {
    fn new() -> io::Result<Self> {
        Ok(Port {
            messages: SegQueue::new(),
            receiver: OnceLock::new(),
            ended: AtomicBool::new(false),
            failure: OnceLock::new(),
            wake: Arc::new(WakeUp::new()?),
        })
    }

    /// Takes no further message and drops those that came, which ends their calls.
    fn close(&self) {
        self.ended.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        while self.messages.pop().is_some() {}
    }
}

/// The way to the shards, for any thread.
#[derive(Clone)]
pub struct Handle {
    ports: Arc<[Arc<Port>]>,
}

impl Handle {
    /// How many shards there are.
    pub fn count(&self) -> usize {
        self.ports.len()
    }

    /// `count` of these shards for one array among several: the one with number `first` is number 0 there, and the others follow it
    /// round the circle.
    ///
    /// # Panics
    /// If there are not as many.
    #[must_use]
    pub fn part(&self, first: usize, count: usize) -> Handle {
        assert!((1..=self.count()).contains(&count), "{count} of {} shards", self.count());
        let ports = (0..count).map(|number| Arc::clone(&self.ports[(first + number) % self.count()]));
        Handle { ports: ports.collect() }
    }

    /// The number among these of the shard that has this context.
    ///
    /// # Panics
    /// If it is none of them.
    pub fn number_of(&self, context: &ShardContext) -> usize {
        let own = &context.shards.ports[context.index];
        let is_own = |port: &Arc<Port>| Arc::ptr_eq(port, own);
        self.ports.iter().position(is_own).expect("a shard of the array")
    }

    /// Runs `work` on a shard and blocks until its result is there. Not for use on a shard: it would wait for itself.
    ///
    /// # Errors
    /// The shard has ended.
    pub fn run_on<T, F>(
        &self,
        shard: usize,
        work: impl FnOnce(ShardContext) -> F + Send + 'static,
    ) -> Result<T, ShardGone>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (sender, receiver) = mpsc::channel();
        self.spawn_on(shard, async move |context| {
            let _ = sender.send(work(context).await); // the caller waits for it until the shard ends
        });
        receiver.recv().map_err(|_| ShardGone(shard))
    }

    /// Runs `work` on a shard; the future returns its result. For tasks on any shard, the same one included.
    pub fn call<T, F>(&self, shard: usize, work: impl FnOnce(ShardContext) -> F + Send + 'static) -> Call<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + 'static,
    {
        let (reply, call) = Reply::new(shard);
        self.spawn_on(shard, async move |context| reply.send(work(context).await));
        call
    }

    /// Runs `work` on a shard, without a result.
    pub fn spawn_on<F>(&self, shard: usize, work: impl FnOnce(ShardContext) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        self.send(shard, Box::new(move |context| context.executor.spawn(work(context.clone()))));
    }

    fn send(&self, shard: usize, message: Message) {
        let port = &self.ports[shard];
        port.messages.push(message);
        // Pairs with the fences of `receive` and `close`: they see the message, or this thread sees what they stored.
        fence(Ordering::SeqCst);
        if let Some(receiver) = port.receiver.get() {
            receiver.wake_by_ref();
        }
        if port.ended.load(Ordering::SeqCst) {
            while port.messages.pop().is_some() {}
        }
    }
}

fn shard_main(
    index: usize,
    handle: Handle,
    options: &ShardOptions,
    core: Option<usize>,
    started: &mpsc::Sender<io::Result<()>>,
    setup: impl Fn(ShardContext),
) {
    let port = Arc::clone(&handle.ports[index]);
    if let Some(core) = core {
        pin_to(index, core);
    }
    let ring = match Ring::with_wake(&options.ring, Arc::clone(&port.wake)) {
        Ok(ring) => ring,
        Err(error) => {
            port.close();
            let _ = started.send(Err(error));
            return;
        }
    };
    let _ = started.send(Ok(()));
    let wake = Arc::clone(&port.wake);
    let context = ShardContext {
        index,
        executor: Executor::new(Box::new(move || wake.notify())),
        pool: pool_for(&ring, &options.buffers),
        ring,
        shards: handle,
        busy: Busy::default(),
        stop: Rc::default(),
    };
    let run = AssertUnwindSafe(|| {
        setup(context.clone());
        context.executor.spawn(receive(context.clone(), Arc::clone(&port)));
        run_shard(&context, options);
    });
    if let Err(panic) = std::panic::catch_unwind(run) {
        report(index, &port, panic.as_ref());
        if options.abort_on_panic {
            std::process::abort();
        }
    }
    port.close();
    // Tasks hold the executor that holds them: dropping the handles alone would free neither them nor the ring.
    if let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(|| context.executor.abandon())) {
        report(index, &port, panic.as_ref());
    }
}

/// The task of a shard that takes messages.
async fn receive(context: ShardContext, port: Arc<Port>) {
    std::future::poll_fn(|task| {
        port.receiver.get_or_init(|| task.waker().clone());
        fence(Ordering::SeqCst);
        while let Some(message) = port.messages.pop() {
            message(&context);
        }
        Poll::<()>::Pending
    })
    .await;
}

/// Polls between two looks at completions: enough to fill a batch, few enough that completions do not wait long.
const POLLS_PER_TURN: usize = 128;

/// The loop of a shard, until it has stopped.
fn run_shard(context: &ShardContext, options: &ShardOptions) {
    let ShardContext { executor, ring, busy, .. } = context;
    let mut idle_since: Option<Instant> = None;
    loop {
        busy.turn();
        let polls = executor.run_ready_until(POLLS_PER_TURN, || ring.has_round());
        let completed = executor.enter(|| ring.reap());
        if polls + completed > 0 {
            idle_since = None;
        }
        if completed > 0 || polls == POLLS_PER_TURN {
            ring.submit();
            continue;
        }
        if has_stopped(context, options) {
            return;
        }
        if !options.busy_poll.is_zero()
            && idle_since.get_or_insert_with(Instant::now).elapsed() < options.busy_poll
        {
            ring.submit();
            busy.rest();
            std::hint::spin_loop();
        } else if executor.prepare_to_sleep() {
            ring.wait(context.stop.asked.get().map(|_| options.stop_grace));
            executor.awake();
        }
    }
}

/// Whether the shard was asked to stop, and its tasks have ended or the grace period is over.
fn has_stopped(context: &ShardContext, options: &ShardOptions) -> bool {
    let Some(asked) = context.stop.asked.get() else { return false };
    let tasks = context.executor.tasks_alive() - 1; // without the one that takes messages
    if tasks == 0 {
        return true;
    }
    let is_over = asked.elapsed() >= options.stop_grace;
    if is_over {
        tracing::warn!(
            shard = context.index,
            tasks,
            "the shard stops: tasks that have not ended within the grace period are dropped"
        );
    }
    is_over
}

fn report(index: usize, port: &Port, panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let message =
        text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message").to_owned();
    tracing::error!(shard = index, message, "a shard ended by a panic");
    let _ = port.failure.set(ShardPanic { shard: index, message }); // the first one counts
}

/// A core for each shard, or none if there are not enough.
fn cores_for(count: usize) -> Vec<usize> {
    let Ok(allowed) = rustix::thread::sched_getaffinity(None) else { return Vec::new() };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|core| allowed.is_set(*core)).collect();
    if cores.len() < count { Vec::new() } else { cores }
}

fn pin_to(index: usize, core: usize) {
    let mut set = CpuSet::new();
    set.set(core);
    if let Err(error) = rustix::thread::sched_setaffinity(None, &set) {
        tracing::info!(shard = index, core, %error, "a shard is not pinned to its core");
    }
}

#[cfg(test)]
#[path = "shard_tests.rs"]
mod tests;
