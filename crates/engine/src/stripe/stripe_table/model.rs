//! Models of the stripe table (invariant 4): threads stand for shards, shuttle chooses who runs.

use super::*;
use crate::limits::STRIPE_TABLE_WAYS;
use crate::sync::models::{self, threads};
use layout::units::Stripe;
use shuttle::future::block_on;
use std::sync::atomic::{AtomicBool, AtomicUsize as Count, Ordering::Relaxed};

/// Two buckets, or one segment: every stripe has the same few places.
const PLACES: usize = 2 * STRIPE_TABLE_WAYS;

fn table(locks: Locks) -> Arc<StripeTable> {
    StripeTable::with_entries(PLACES, locks)
}

/// A table whose other places are taken for good, with room for `room` stripes.
fn table_with_room(room: usize, locks: Locks) -> Arc<StripeTable> {
    let table = table(locks);
    for stripe in (1000..).map(Stripe::new) {
        if table.active() == PLACES - room {
            break;
        }
        std::mem::forget(table.claim_if_free(stripe, 0).expect("room"));
    }
    table
}

/// Tries a model with each kind of locks.
fn check(model: impl Fn(Locks) + Clone + Send + Sync + 'static) {
    for locks in Locks::ALL {
        let model = model.clone();
        models::check(move || model(locks));
    }
}

fn write() -> StripeWrite {
    StripeWrite { parts: SmallVec::new(), fua: false, in_stream: false }
}

/// An observer outside of the table: whether a stripe has an owner, and how many writes were made.
#[derive(Default)]
struct Seen {
    owned: AtomicBool,
    done: Count,
}

impl Seen {
    fn own(&self, work: impl FnOnce() -> usize) {
        assert!(!self.owned.swap(true, Relaxed), "two owners of one stripe");
        shuttle::thread::yield_now();
        self.done.fetch_add(work(), Relaxed);
        assert!(self.owned.swap(false, Relaxed), "two owners of one stripe");
    }
}

/// One write from the claim to its result. The owner makes the writes that joined too.
async fn write_once(table: &Arc<StripeTable>, stripe: Stripe, shard: usize, seen: &Seen) {
    match table.claim_or_join(stripe, Unwatched(shard), write()).await {
        Entry::Joined(joined) => joined.await.expect("the owner did it"),
        Entry::Owned(mut claim, _) => {
            seen.own(|| {
                claim.gather();
                shuttle::thread::yield_now();
                claim.freeze();
                1 + claim.joined().count()
            });
            claim.release(&Ok(()), Unwatched(0));
        }
    }
}

/// No write is lost: each is made once, by itself or by the owner it joined, and all end.
#[test]
fn every_write_of_a_stripe_is_done_once() {
    check(|locks| {
        let (table, seen) = (table(locks), Arc::new(Seen::default()));
        let (inside, looked) = (Arc::clone(&table), Arc::clone(&seen));
        threads(3, move |shard| {
            block_on(async {
                for _ in 0..2 {
                    write_once(&inside, Stripe::new(7), shard, &looked).await;
                }
            });
        });
        assert_eq!((seen.done.load(Relaxed), table.active()), (6, 0));
    });
}

/// A neighbour comes and goes, so that two claims of one stripe find different free places.
#[test]
fn one_owner_though_two_places_are_free() {
    check(|locks| {
        let (table, seen) = (table(locks), Arc::new(Seen::default()));
        let inside = Arc::clone(&table);
        threads(4, move |shard| {
            block_on(async {
                let alone = |number| inside.claim(Stripe::new(number), shard);
                match shard {
                    0 => {
                        drop(alone(1).await);
                        drop(alone(2).await);
                    }
                    _ => {
                        let claim = alone(7).await;
                        seen.own(|| 1);
                        claim.release(&Ok(()), Unwatched(0));
                    }
                }
            });
        });
        assert_eq!(table.active(), 0);
    });
}

/// In a full table a claim waits for a release and is woken by it.
#[test]
fn a_claim_that_finds_no_room_is_woken() {
    check(|locks| {
        let table = table_with_room(1, locks);
        let inside = Arc::clone(&table);
        threads(3, move |shard| {
            block_on(async {
                let claim = inside.claim(Stripe::new(shard as u64), shard).await;
                shuttle::thread::yield_now();
                claim.release(&Ok(()), Unwatched(0));
            });
        });
        assert_eq!(table.active(), PLACES - 1);
        assert_eq!(table.overflowed.load(SeqCst), 0);
    });
}

/// Runs are claimed in ascending order, so that two that overlap do not wait for each other, not even without room.
#[test]
fn overlapping_runs_do_not_wait_in_a_circle() {
    check(|locks| {
        let table = table_with_room(3, locks);
        let inside = Arc::clone(&table);
        threads(3, move |shard| {
            block_on(async {
                let mut next = shard as u64;
                while next < 4 {
                    let run = Stripe::new(next)..Stripe::new(4);
                    let claims = match shard {
                        0 => inside.claim_run(run, shard).await,
                        1 => inside.claim_run_in_turn(run, shard).await,
                        _ => inside.claim_whole_run(Stripe::each(run).map(UnitNumber::from), shard).await,
                    };
                    next += claims.len() as u64;
                    shuttle::thread::yield_now();
                }
            });
        });
        assert_eq!(table.active(), PLACES - 3);
    });
}

/// When an owner is dropped, the writes that joined it fail and the claims that wait go on.
#[test]
fn nobody_waits_for_an_owner_that_is_gone() {
    check(|locks| {
        let (table, done) = (table(locks), Arc::new(Count::new(0)));
        let (inside, count) = (Arc::clone(&table), Arc::clone(&done));
        threads(3, move |shard| {
            block_on(async {
                match inside.claim_or_join(Stripe::new(7), Unwatched(shard), write()).await {
                    Entry::Joined(joined) => assert_eq!(joined.await, Err(VolumeError::Stopping)),
                    Entry::Owned(mut claim, _) => {
                        if shard == 1 {
                            claim.freeze();
                        }
                        drop(claim);
                    }
                }
                count.fetch_add(1, Relaxed);
            });
        });
        assert_eq!((done.load(Relaxed), table.active()), (3, 0));
    });
}

/// Owners hand their stripe over to the next waiter for a turn, writers that come meanwhile are not lost, and the turn of a
/// waiter that was dropped goes to the next one.
#[test]
fn every_turn_comes_and_nobody_is_lost_meanwhile() {
    check(|locks| {
        let (table, seen) = (table(locks), Arc::new(Seen::default()));
        let (inside, looked) = (Arc::clone(&table), Arc::clone(&seen));
        threads(4, move |shard| match shard {
            0 | 1 => block_on(write_once(&inside, Stripe::new(7), shard, &looked)),
            2 => block_on(async {
                let claim = inside.claim_in_turn(Stripe::new(7), shard).await;
                looked.own(|| 1);
                claim.release(&Ok(()), Unwatched(0));
            }),
            _ => {
                let mut turn = Box::pin(inside.claim_in_turn(Stripe::new(7), shard));
                for _ in 0..2 {
                    if let Poll::Ready(claim) = turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                        looked.own(|| 0);
                        return drop(claim);
                    }
                    shuttle::thread::yield_now();
                }
            }
        });
        assert_eq!((seen.done.load(Relaxed), table.active()), (3, 0));
    });
}

/// A read that reconstructs takes a stripe only if it is free; writers that come meanwhile are not lost.
#[test]
fn a_claim_if_free_never_shares() {
    check(|locks| {
        let (table, seen) = (table(locks), Arc::new(Seen::default()));
        let (inside, looked) = (Arc::clone(&table), Arc::clone(&seen));
        threads(3, move |shard| match shard {
            0 => {
                if let Some(claim) = inside.claim_if_free(Stripe::new(7), shard) {
                    looked.own(|| 0);
                    claim.release(&Ok(()), Unwatched(0));
                }
            }
            _ => block_on(write_once(&inside, Stripe::new(7), shard, &looked)),
        });
        assert_eq!((seen.done.load(Relaxed), table.active()), (2, 0));
    });
}
