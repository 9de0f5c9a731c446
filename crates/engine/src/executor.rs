//! A small single-threaded executor: one for each shard, and the one the simulator drives.
//!
//! Invariants:
//! - Tasks run on the thread that owns the executor and only there; wakers may be called from any thread.
//! - A wake is never lost: `queued` goes to true before the task is put into a queue and to false before it is
//!   polled, so a wake during the poll queues it again.
//! - A waker that outlives its task may wake the next task with the same number. Tasks bear spurious wakes.
//! - The executor has no clock and makes no choice: its owner says when to run and, through [`Executor::run_one_of`],
//!   which task comes next.
//!
//! Cancellation: a task runs until its future returns. Only [`Executor::abandon`] drops a future earlier, at the owner's
//! end; what the future has in flight then stays with its device.

use slab::Slab;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::task::{Context, Poll, Wake, Waker};

use crate::sync::weak::atomic::{AtomicBool, Ordering, fence};
use crate::sync::weak::{SegQueue, thread_local};

/// Called when another thread has woken a task of a sleeping executor.
pub type Unpark = Box<dyn Fn() + Send + Sync>;

/// The part of an executor that other threads use.
struct Inbox {
    id: u64,
    woken: SegQueue<u32>,
    sleeping: AtomicBool,
    unpark: Unpark,
}

struct TaskWaker {
    task: u32,
    queued: AtomicBool,
    /// Whether its last poll ended in [`ahead`]. Only the executor's own thread uses it, so any order will do.
    ahead: std::sync::atomic::AtomicBool,
    inbox: Arc<Inbox>,
}

thread_local! {
    /// The executor running on this thread.
    static CURRENT: RefCell<Option<Rc<Inner>>> = const { RefCell::new(None) };
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let local = CURRENT.with(|current| match &*current.borrow() {
            Some(inner) if inner.inbox.id == self.inbox.id => {
                // No locked instruction: a wake from another thread at the same time costs one spurious poll.
                if !self.queued.load(Ordering::Relaxed) {
                    self.queued.store(true, Ordering::Relaxed);
                    let mut ready = inner.ready.borrow_mut();
                    match self.ahead.load(Ordering::Relaxed) {
                        true => ready.push_front(self.task),
                        false => ready.push_back(self.task),
                    }
                }
                true
            }
            _ => false,
        });
        if local || self.queued.swap(true, Ordering::AcqRel) {
            return;
        }
        self.inbox.woken.push(self.task);
        // SeqCst pairs with `prepare_to_sleep`: either it sees the task or we see it sleeping.
        fence(Ordering::SeqCst);
        if self.inbox.sleeping.load(Ordering::SeqCst) {
            (self.inbox.unpark)();
        }
    }
}

struct Task {
    /// Absent while the task is polled, as is its waker: so a poll changes no reference count.
    future: Option<Pin<Box<dyn Future<Output = ()>>>>,
    waker: Option<Waker>,
    state: Arc<TaskWaker>,
}

/// The executor. Clones are handles to the same one.
#[derive(Clone)]
pub struct Executor {
    inner: Rc<Inner>,
}

struct Inner {
    tasks: RefCell<Slab<Task>>,
    /// Tasks that this thread has woken, in the order in which they run.
    ready: RefCell<VecDeque<u32>>,
    inbox: Arc<Inbox>,
    alive: Cell<usize>,
    /// Whether the task that is being polled waits in [`ahead`].
    ahead: Cell<bool>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Executor {
    /// An executor whose sleeping owner `unpark` wakes.
    pub fn new(unpark: Unpark) -> Self {
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        let inbox = Inbox { id, woken: SegQueue::new(), sleeping: AtomicBool::new(false), unpark };
        Executor {
            inner: Rc::new(Inner {
                tasks: RefCell::new(Slab::new()),
                ready: RefCell::new(VecDeque::new()),
                inbox: Arc::new(inbox),
                alive: Cell::new(0),
                ahead: Cell::new(false),
            }),
        }
    }

    /// The executor that runs the caller, if one does.
    pub fn current() -> Option<Executor> {
        CURRENT.with(|current| current.borrow().as_ref().map(|inner| Executor { inner: Rc::clone(inner) }))
    }

    /// Starts a task; it runs at the next turn.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        let mut tasks = self.inner.tasks.borrow_mut();
        let entry = tasks.vacant_entry();
        let task = u32::try_from(entry.key()).expect("fewer than 2^32 tasks");
        let waker = TaskWaker {
            task,
            queued: AtomicBool::new(true),
            ahead: false.into(),
            inbox: Arc::clone(&self.inner.inbox),
        };
        let state = Arc::new(waker);
        let waker = Some(Waker::from(Arc::clone(&state)));
        entry.insert(Task { future: Some(Box::pin(future)), waker, state });
        self.inner.alive.set(self.inner.alive.get() + 1);
        self.inner.ready.borrow_mut().push_back(task);
    }

    /// Starts a task whose result is wanted.
    pub fn spawn_with_result<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> JoinHandle<T> {
        let slot = Rc::new(RefCell::new(JoinSlot { value: None, waker: None }));
        let filled = Rc::clone(&slot);
        self.spawn(async move {
            let value = future.await;
            let mut slot = filled.borrow_mut();
            slot.value = Some(value);
            if let Some(waker) = slot.waker.take() {
                waker.wake();
            }
        });
        JoinHandle { slot }
    }

    /// Polls the tasks that are ready, and those that they make ready, at most `polls_max` times. Returns the number of
    /// polls; fewer than `polls_max` means that nothing is ready.
    pub fn run_ready(&self, polls_max: usize) -> usize {
        self.run_ready_until(polls_max, || false)
    }

    /// As [`Executor::run_ready`], but ends also when `enough`, called before each poll, is true.
    #[inline]
    pub fn run_ready_until(&self, polls_max: usize, enough: impl Fn() -> bool) -> usize {
        self.enter(|| {
            for made in 0..polls_max {
                if enough() || !self.run_next(|_| 0) {
                    return made;
                }
            }
            polls_max
        })
    }

    /// Polls one ready task, chosen by index among `n` ready ones. Returns false if none is ready.
    pub fn run_one_of(&self, choose: impl FnOnce(usize) -> usize) -> bool {
        self.enter(|| self.run_next(choose))
    }

    fn run_next(&self, choose: impl FnOnce(usize) -> usize) -> bool {
        // The queue is mostly empty, and this check is cheaper than a pop, which has a fence.
        while !self.inner.inbox.woken.is_empty() {
            let Some(task) = self.inner.inbox.woken.pop() else { break };
            self.inner.ready.borrow_mut().push_back(task);
        }
        let task = {
            let mut ready = self.inner.ready.borrow_mut();
            match ready.len() {
                0 => return false,
                1 => ready.pop_front(),
                n => {
                    let index = choose(n);
                    assert!(index < n, "choice among the ready tasks");
                    // All owners but the simulator take the first.
                    if index == 0 { ready.pop_front() } else { ready.remove(index) }
                }
            }
        };
        self.poll(task.expect("a ready task"));
        true
    }

    fn poll(&self, task: u32) {
        let taken = self.inner.tasks.borrow_mut().get_mut(task as usize).map(|entry| {
            // A swap that acquires: a waker that found `queued` true has left its wake to this poll, and the poll must see what
            // it wrote before.
            entry.state.queued.swap(false, Ordering::AcqRel);
            entry.state.ahead.store(false, Ordering::Relaxed); // a task that wakes itself goes to the end
            (entry.future.take(), entry.waker.take())
        });
        let Some((Some(mut future), Some(waker))) = taken else { return };
        let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
        let ahead = self.inner.ahead.take();
        match polled {
            Poll::Pending => {
                let mut tasks = self.inner.tasks.borrow_mut();
                let entry = tasks.get_mut(task as usize).expect("a polled task keeps its place");
                entry.state.ahead.store(ahead, Ordering::Relaxed);
                (entry.future, entry.waker) = (Some(future), Some(waker));
            }
            Poll::Ready(()) => {
                let entry = self.inner.tasks.borrow_mut().remove(task as usize);
                self.inner.alive.set(self.inner.alive.get() - 1);
                drop((future, entry)); // may drop wakers, buffers, other handles: no borrow is held
            }
        }
    }

    /// Runs the owner's own work between polls, such as reaping completions. Tasks that it wakes go straight to the run queue,
    /// as if another task had woken them.
    pub fn enter<R>(&self, work: impl FnOnce() -> R) -> R {
        let outer = CURRENT.with(|current| current.replace(Some(Rc::clone(&self.inner))));
        let result = work();
        CURRENT.with(|current| current.replace(outer));
        result
    }

    /// Drops every task. For an owner that ends: tasks often hold a handle to this executor, so dropping the handles alone
    /// would free nothing.
    pub fn abandon(&self) {
        let tasks = std::mem::take(&mut *self.inner.tasks.borrow_mut());
        self.inner.ready.borrow_mut().clear();
        self.inner.alive.set(0);
        drop(tasks); // drops futures, which may use the executor: no borrow is held
    }

    /// Tasks that have not finished.
    pub fn tasks_alive(&self) -> usize {
        self.inner.alive.get()
    }

    /// Tasks ready to run, those woken from other threads included.
    pub fn tasks_ready(&self) -> usize {
        self.inner.ready.borrow().len() + self.inner.inbox.woken.len()
    }

    /// Announces that the owner is about to sleep. True: every wake from another thread calls `unpark` until
    /// [`Executor::awake`]. False: a task is ready, and the owner must not sleep.
    pub fn prepare_to_sleep(&self) -> bool {
        self.inner.inbox.sleeping.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.tasks_ready() > 0 {
            self.awake();
            return false;
        }
        true
    }

    /// Ends what [`Executor::prepare_to_sleep`] began.
    pub fn awake(&self) {
        self.inner.inbox.sleeping.store(false, Ordering::SeqCst);
    }
}

struct JoinSlot<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

/// The result of a task to come. Dropping it leaves the task running.
pub struct JoinHandle<T> {
    slot: Rc<RefCell<JoinSlot<T>>>,
}

impl<T> JoinHandle<T> {
    /// The result, if the task has finished.
    pub fn try_take(&self) -> Option<T> {
        self.slot.borrow_mut().value.take()
    }
}

impl<T> Future for JoinHandle<T> {
    type Output = T;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut slot = self.slot.borrow_mut();
        match slot.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                slot.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Returns after every other ready task of this executor has run once.
pub fn yield_now() -> impl Future<Output = ()> {
    let mut yielded = false;
    std::future::poll_fn(move |context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
}

/// Whether other tasks are ready on the executor that runs the caller.
pub fn others_ready() -> bool {
    CURRENT.with(|current| current.borrow().as_ref().is_some_and(|inner| !inner.ready.borrow().is_empty()))
}

pin_project_lite::pin_project! {
    /// Waits for a future, by [`ahead`].
    pub struct Ahead<F> {
        #[pin]
        future: F,
    }
}

/// Waits for `future`. When it is woken, its task runs before the tasks that are ready. For a read whose data its task uses
/// right away: thirty other requests later the data is in no cache any more. A task that waits for nothing but such futures
/// keeps the other tasks from running.
pub fn ahead<F: Future>(future: F) -> Ahead<F> {
    Ahead { future }
}

impl<F: Future> Future for Ahead<F> {
    type Output = F::Output;
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let result = self.project().future.poll(context);
        if result.is_pending() {
            CURRENT.with(|current| current.borrow().iter().for_each(|inner| inner.ahead.set(true)));
        }
        result
    }
}

/// Waits for all futures that are present, where they lie. `ended` gets the index and the result of each as it ends; then it is
/// absent.
pub fn join_in_place<F: Future + Unpin>(
    futures: &mut [Option<F>],
    mut ended: impl FnMut(usize, F::Output),
) -> impl Future<Output = ()> {
    std::future::poll_fn(move |context| {
        let mut pending = false;
        for (index, slot) in futures.iter_mut().enumerate() {
            let Some(future) = slot else { continue };
            match Pin::new(future).poll(context) {
                Poll::Ready(output) => {
                    *slot = None;
                    ended(index, output);
                }
                Poll::Pending => pending = true,
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
}

/// Waits for all of `futures` and returns their results in order. Up to eight need no allocation.
pub async fn join_all<F: Future + Unpin>(
    futures: impl IntoIterator<Item = F>,
) -> smallvec::SmallVec<[F::Output; 8]> {
    enum Slot<F: Future> {
        Pending(F),
        Done(Option<F::Output>),
    }
    let mut slots: smallvec::SmallVec<[Slot<F>; 8]> = futures.into_iter().map(Slot::Pending).collect();
    std::future::poll_fn(|context| {
        let mut pending = false;
        for slot in &mut slots {
            if let Slot::Pending(future) = slot {
                match Pin::new(future).poll(context) {
                    Poll::Ready(output) => *slot = Slot::Done(Some(output)),
                    Poll::Pending => pending = true,
                }
            }
        }
        if pending { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    let take = |slot: &mut Slot<F>| match slot {
        Slot::Done(output) => output.take().expect("taken once"),
        Slot::Pending(_) => unreachable!("all are done"),
    };
    slots.iter_mut().map(take).collect()
}

#[cfg(all(test, feature = "model"))]
mod model;

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn tasks_run_in_order_and_results_come_back() {
        let executor = Executor::new(Box::new(|| {}));
        let log = Rc::new(RefCell::new(Vec::new()));
        for i in 0..3 {
            let log = Rc::clone(&log);
            executor.spawn(async move {
                log.borrow_mut().push(i);
                yield_now().await;
                log.borrow_mut().push(i + 10);
            });
        }
        let sum = executor.spawn_with_result(async { 1 + 2 });
        executor.run_ready(usize::MAX);
        assert_eq!(*log.borrow(), [0, 1, 2, 10, 11, 12]);
        assert_eq!((sum.try_take(), executor.tasks_alive()), (Some(3), 0));
    }

    #[test]
    fn a_turn_ends_when_there_is_enough_and_leaves_the_rest_ready() {
        let executor = Executor::new(Box::new(|| {}));
        let done = Rc::new(Cell::new(0));
        for _ in 0..5 {
            let done = Rc::clone(&done);
            executor.spawn(async move { done.set(done.get() + 1) });
        }
        assert_eq!(executor.run_ready_until(usize::MAX, || done.get() == 2), 2);
        assert_eq!((done.get(), executor.tasks_ready()), (2, 3));
        assert_eq!(executor.run_ready(usize::MAX), 3);
    }

    /// A task that waits in [`ahead`] overtakes the tasks that are ready, once for each wait.
    #[test]
    fn a_task_that_waits_ahead_runs_before_those_that_are_ready() {
        let executor = Executor::new(Box::new(|| {}));
        let log = Rc::new(RefCell::new(Vec::new()));
        let read_waker = Rc::new(RefCell::new(None::<Waker>));
        let (reader_log, waker) = (Rc::clone(&log), Rc::clone(&read_waker));
        executor.spawn(async move {
            let read = std::future::poll_fn(|context| match waker.replace(Some(context.waker().clone())) {
                None => Poll::Pending,
                Some(_) => Poll::Ready(()),
            });
            ahead(read).await;
            reader_log.borrow_mut().push("read");
            yield_now().await;
            reader_log.borrow_mut().push("read, behind");
        });
        executor.run_ready(usize::MAX);
        for _ in 0..2 {
            let log = Rc::clone(&log);
            executor.spawn(async move { log.borrow_mut().push("other") });
        }
        let waker = read_waker.borrow().clone().expect("a poll");
        executor.enter(|| waker.wake_by_ref());
        executor.run_ready(usize::MAX);
        assert_eq!(*log.borrow(), ["read", "other", "other", "read, behind"]);
    }

    #[test]
    fn wakes_from_other_threads_are_never_lost() {
        let unparks = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&unparks);
        let (send, thread) = (std::thread::current(), Arc::new(SegQueue::<Waker>::new()));
        let executor = Executor::new(Box::new(move || {
            counter.fetch_add(1, Ordering::SeqCst);
            send.unpark();
        }));
        let (queue, rounds) = (Arc::clone(&thread), 20_000);
        let done = Rc::new(Cell::new(0));
        let count = Rc::clone(&done);
        executor.spawn(async move {
            for _ in 0..rounds {
                let mut first = true;
                std::future::poll_fn(|context| {
                    if std::mem::take(&mut first) {
                        queue.push(context.waker().clone());
                        return Poll::Pending;
                    }
                    Poll::Ready(())
                })
                .await;
                count.set(count.get() + 1);
            }
        });
        let stop = Arc::new(AtomicBool::new(false));
        let (waking, stopped) = (Arc::clone(&thread), Arc::clone(&stop));
        let helper = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                match waking.pop() {
                    Some(waker) => waker.wake(),
                    None => std::thread::yield_now(),
                }
            }
        });
        while executor.tasks_alive() > 0 {
            executor.run_ready(64);
            if executor.tasks_alive() > 0 && executor.prepare_to_sleep() {
                std::thread::park_timeout(std::time::Duration::from_secs(20));
                executor.awake();
            }
        }
        stop.store(true, Ordering::Relaxed);
        helper.join().expect("helper ends");
        assert_eq!(done.get(), rounds);
    }

    #[test]
    fn join_all_keeps_the_order() {
        let executor = Executor::new(Box::new(|| {}));
        let spawner = executor.clone();
        let joined = executor.spawn_with_result(async move {
            let handles: Vec<_> = (0..20).map(|i| spawner.spawn_with_result(async move { i })).collect();
            join_all(handles).await
        });
        executor.run_ready(usize::MAX);
        assert_eq!(joined.try_take().expect("done").into_vec(), (0..20).collect::<Vec<_>>());
    }
}
