//! The table by hand on one thread, and hammered by several, with each kind of locks.

use super::*;
use crate::executor::{Executor, yield_now};
use layout::units::Stripe;
use std::sync::atomic::AtomicBool;

fn write() -> StripeWrite {
    StripeWrite { parts: SmallVec::new(), fua: false, in_stream: false }
}

fn run(executor: &Executor) {
    executor.run_ready(usize::MAX);
}

#[test]
fn writes_join_until_the_freeze_and_wait_after_it() {
    for locks in Locks::ALL {
        let executor = Executor::new(Box::new(|| {}));
        let table = StripeTable::new(locks);
        let owner = {
            let table = Arc::clone(&table);
            executor.spawn_with_result(async move {
                let Entry::Owned(claim, _) = table.claim_or_join(Stripe::new(7), Unwatched(0), write()).await
                else {
                    panic!("free")
                };
                claim
            })
        };
        run(&executor);
        let mut claim = owner.try_take().expect("claimed");
        let start = || {
            let table = Arc::clone(&table);
            executor.spawn_with_result(async move {
                match table.claim_or_join(Stripe::new(7), Unwatched(0), write()).await {
                    Entry::Joined(joined) => (true, joined.await.is_ok()),
                    Entry::Owned(claim, _) => {
                        claim.release(&Ok(()), Unwatched(0));
                        (false, true)
                    }
                }
            })
        };
        let early = start();
        run(&executor);
        assert_eq!(claim.freeze(), 1);
        let late = start();
        run(&executor);
        assert!(early.try_take().is_none() && late.try_take().is_none());
        claim.release(&Ok(()), Unwatched(0));
        run(&executor);
        assert_eq!((early.try_take(), late.try_take()), (Some((true, true)), Some((false, true))));
        assert_eq!(table.active(), 0);
    }
}

/// One writer without a pause kept a recovery away from its stripe for ever.
#[test]
fn a_turn_comes_before_the_next_write_of_the_same_writer() {
    for locks in Locks::ALL {
        let executor = Executor::new(Box::new(|| {}));
        let table = StripeTable::new(locks);
        let (own, other) = (Arc::clone(&table), Arc::clone(&table));
        let writer = executor.spawn_with_result(async move {
            let mut writes = 0;
            loop {
                let Entry::Owned(mut claim, _) =
                    own.claim_or_join(Stripe::new(7), Unwatched(0), write()).await
                else {
                    return writes;
                };
                yield_now().await;
                claim.freeze();
                claim.release(&Ok(()), Unwatched(0));
                writes += 1;
                if own.active() > 0 {
                    return writes; // it was handed on
                }
                assert!(writes < 3, "the stripe was not handed on");
            }
        });
        executor.run_ready(1);
        let turn = executor.spawn_with_result(async move { other.claim_in_turn(Stripe::new(7), 0).await });
        run(&executor);
        assert_eq!(writer.try_take(), Some(2), "the turn was asked for in the second write");
        drop(turn.try_take().expect("it has the stripe"));
        assert_eq!(table.active(), 0);
    }
}

/// A wait for an owner does not extend to the next owner: on a stripe that is never free it would not end.
#[test]
fn whoever_waits_for_an_owner_waits_for_that_one_only() {
    for locks in Locks::ALL {
        let table = StripeTable::new(locks);
        let claim = || table.claim_if_free(Stripe::new(7), 0).expect("free");
        let gone =
            |seen: &mut Option<Owner>| table.wake_at_release(Stripe::new(7).into(), seen, Waker::noop());
        let (mut seen, first) = (None, claim());
        assert!(!gone(&mut seen) && !gone(&mut seen));
        drop(first);
        let second = claim();
        assert!(gone(&mut seen), "the second owner was never waited for");
        let mut turn = Box::pin(table.claim_in_turn(Stripe::new(7), 0));
        let mut look = || turn.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(look().is_pending());
        let mut seen = None;
        assert!(!gone(&mut seen));
        drop(second);
        assert!(gone(&mut seen), "it was handed on");
        let Poll::Ready(third) = look() else { panic!("it is the next owner") };
        drop(third);
        assert!(gone(&mut None) && table.active() == 0);
    }
}

#[test]
fn an_owner_that_is_gone_fails_its_batch_and_frees_the_stripe() {
    for locks in Locks::ALL {
        let executor = Executor::new(Box::new(|| {}));
        let table = StripeTable::new(locks);
        let (one, two) = (Arc::clone(&table), Arc::clone(&table));
        let owner = executor
            .spawn_with_result(async move { one.claim_or_join(Stripe::new(7), Unwatched(0), write()).await });
        run(&executor);
        let joined = executor.spawn_with_result(async move {
            let Entry::Joined(joined) = two.claim_or_join(Stripe::new(7), Unwatched(0), write()).await else {
                panic!("owned")
            };
            joined.await
        });
        run(&executor);
        drop(owner.try_take());
        run(&executor);
        assert_eq!(joined.try_take(), Some(Err(VolumeError::Stopping)));
        assert_eq!(table.active(), 0);
    }
}

/// Threads hammer few stripes in a tiny table: ownership excludes, no waiter is lost, the overflow drains.
#[test]
fn claims_exclude_each_other_across_threads() {
    for locks in Locks::ALL {
        let table = StripeTable::with_entries(16, locks);
        let stripes = 40;
        let busy: Arc<Vec<AtomicBool>> = Arc::new((0..stripes).map(|_| AtomicBool::new(false)).collect());
        let threads: Vec<_> = (0..4)
            .map(|shard| {
                let (table, busy) = (Arc::clone(&table), Arc::clone(&busy));
                std::thread::spawn(move || {
                    let parker = std::thread::current();
                    let executor = Executor::new(Box::new(move || parker.unpark()));
                    for task in 0..8u64 {
                        let (table, busy) = (Arc::clone(&table), Arc::clone(&busy));
                        executor.spawn(async move {
                            for round in 0..300u64 {
                                let number = (round * 7 + task * 13 + shard as u64) % stripes;
                                match table
                                    .claim_or_join(Stripe::new(number), Unwatched(shard), write())
                                    .await
                                {
                                    Entry::Joined(joined) => joined.await.expect("owner finishes"),
                                    Entry::Owned(mut claim, _) => {
                                        let flag = &busy[usize::try_from(number).unwrap()];
                                        assert!(!flag.swap(true, SeqCst), "one owner at a time");
                                        yield_now().await;
                                        claim.freeze();
                                        yield_now().await;
                                        assert!(flag.swap(false, SeqCst));
                                        claim.release(&Ok(()), Unwatched(0));
                                    }
                                }
                            }
                        });
                    }
                    while executor.tasks_alive() > 0 {
                        executor.run_ready(16);
                        if executor.tasks_alive() > 0 && executor.prepare_to_sleep() {
                            std::thread::park_timeout(std::time::Duration::from_secs(60));
                            executor.awake();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(table.active(), 0);
    }
}
