//! Models of a wake from another thread: a store buffer must not swallow it.

use super::*;
use crate::sync::models::explore;
use loom::thread;

/// The owner of an executor, as in a shard's loop: it runs what is ready, and sleeps when nothing is.
fn run_to_the_end(executor: &Executor) {
    while executor.tasks_alive() > 0 {
        executor.run_ready(16);
        if executor.tasks_alive() > 0 && executor.prepare_to_sleep() {
            thread::park();
            executor.awake();
        }
    }
}

/// `wakers` threads each set a flag and wake the task once; the task ends when it sees all flags.
fn sees_all_flags_of(wakers: usize) {
    let owner = thread::current();
    let executor = Executor::new(Box::new(move || owner.unpark()));
    let flags: Arc<Vec<AtomicBool>> = Arc::new((0..wakers).map(|_| AtomicBool::new(false)).collect());
    let (seen, waker) = (Arc::clone(&flags), Rc::new(RefCell::new(None)));
    let lent = Rc::clone(&waker);
    executor.spawn(std::future::poll_fn(move |context| {
        lent.replace(Some(context.waker().clone()));
        // The wake alone makes a flag that was set before it visible here: the flags' own order promises nothing.
        if seen.iter().all(|flag| flag.load(Ordering::Relaxed)) { Poll::Ready(()) } else { Poll::Pending }
    }));
    executor.run_ready(1);
    let waker: Waker = waker.take().expect("polled once");
    let threads: Vec<_> = (0..wakers)
        .map(|index| {
            let (flags, waker) = (Arc::clone(&flags), waker.clone());
            thread::spawn(move || {
                flags[index].store(true, Ordering::Relaxed);
                waker.wake();
            })
        })
        .collect();
    run_to_the_end(&executor);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn a_wake_finds_the_owner_awake_or_wakes_it() {
    explore(|| sees_all_flags_of(1));
}

#[test]
fn a_wake_during_another_is_not_lost() {
    explore(|| sees_all_flags_of(2));
}
