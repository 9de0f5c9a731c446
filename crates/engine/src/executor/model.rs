//! Models of the way a wake takes from another thread: a store buffer must not swallow it.

use super::*;
use crate::sync::models::explore;
use loom::thread;

/// The owner of an executor, as in a shard's loop: runs what is ready, sleeps when nothing is.
fn run_to_the_end(executor: &Executor) {
    while executor.tasks_alive() > 0 {
        executor.run_ready(16);
        if executor.tasks_alive() > 0 && executor.prepare_to_sleep() {
            thread::park();
            executor.awake();
        }
    }
}

/// `wakers` threads each say something and wake the task once; the task ends when it has heard all of them.
fn heard_from(wakers: usize) {
    let owner = thread::current();
    let executor = Executor::new(Box::new(move || owner.unpark()));
    let said: Arc<Vec<AtomicBool>> = Arc::new((0..wakers).map(|_| AtomicBool::new(false)).collect());
    let (heard, waker) = (Arc::clone(&said), Rc::new(RefCell::new(None)));
    let lent = Rc::clone(&waker);
    executor.spawn(std::future::poll_fn(move |context| {
        lent.replace(Some(context.waker().clone()));
        // What was said before a wake is heard after it; the order of the flags themselves promises nothing.
        if heard.iter().all(|said| said.load(Ordering::Relaxed)) { Poll::Ready(()) } else { Poll::Pending }
    }));
    executor.run_ready(1);
    let waker: Waker = waker.take().expect("polled once");
    let threads: Vec<_> = (0..wakers)
        .map(|index| {
            let (said, waker) = (Arc::clone(&said), waker.clone());
            thread::spawn(move || {
                said[index].store(true, Ordering::Relaxed);
                waker.wake();
            })
        })
        .collect();
    run_to_the_end(&executor);
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

#[test]
fn a_wake_finds_the_owner_awake_or_rouses_it() {
    explore(|| heard_from(1));
}

#[test]
fn a_wake_that_finds_another_on_its_way_is_heard_with_it() {
    explore(|| heard_from(2));
}
