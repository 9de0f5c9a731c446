//! The stripe group of an append segment (ZapRAID 3.2): one word that every shard reserves stripes from.
//!
//! Within a group the records of a stripe may land at different offsets of their zones. Z-I5: a group starts when every
//! record of the one before has returned on all columns, so all zones of the segment have one length where a group starts,
//! and the group of a record follows from its offset. The word counts the stripes of the group that have not returned; the
//! one whose return makes the group empty lets the next group start, and wakes the tasks that wait for it.

use std::task::{Context, Poll, Waker};

use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicU64, Ordering::SeqCst};

const ID_SHIFT: u32 = 16;
const GROUP_SHIFT: u32 = 32;
/// No stripe is reserved any more: the segment is closed early.
const CLOSED: u64 = 1 << 63;

/// Where a stripe of an append segment belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupStripe {
    /// The group's number in its segment.
    pub group: u32,
    /// The stripe's number in the group.
    pub id: u16,
}

/// What a group's word says: the group, how many of its stripes are reserved, and how many of those have not returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Word {
    closed: bool,
    group: u32,
    next: u16,
    outstanding: u16,
}

impl Word {
    fn of(word: u64) -> Word {
        Word {
            closed: word & CLOSED != 0,
            group: (word >> GROUP_SHIFT) as u32 & 0x7fff_ffff,
            next: (word >> ID_SHIFT) as u16,
            outstanding: word as u16,
        }
    }

    fn bits(self) -> u64 {
        let closed = if self.closed { CLOSED } else { 0 };
        let (group, next) = (u64::from(self.group) << GROUP_SHIFT, u64::from(self.next) << ID_SHIFT);
        closed | group | next | u64::from(self.outstanding)
    }
}

/// The outcome of an attempt to reserve a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reserved {
    /// The caller owns the stripe, and calls [`StripeGroups::returned`] once.
    Stripe(GroupStripe),
    /// The group is full, and stripes of it have not returned: the next group cannot start yet (Z-I5).
    Draining,
    /// The segment has no more groups, or is closed early.
    End,
}

/// The groups of one segment.
pub struct StripeGroups {
    word: AtomicU64,
    groups: u32,
    stripes: u16,
    waiting: Mutex<Vec<Waker>>,
}

impl StripeGroups {
    /// A segment of `groups` groups of `stripes` stripes each.
    pub fn new(groups: u32, stripes: u16) -> Self {
        assert!(groups > 0 && groups < 1 << 31 && stripes > 0, "a segment has stripes");
        let waiting = Mutex::new(Vec::new());
        StripeGroups { word: AtomicU64::new(0), groups, stripes, waiting }
    }

    /// Reserves the next stripe, if one can be reserved now.
    pub fn try_reserve(&self) -> Reserved {
        let mut seen = self.word.load(SeqCst);
        loop {
            let mut word = Word::of(seen);
            if word.closed {
                return Reserved::End;
            }
            if word.next == self.stripes {
                if word.group + 1 == self.groups {
                    return Reserved::End;
                }
                if word.outstanding > 0 {
                    return Reserved::Draining;
                }
                word = Word { closed: false, group: word.group + 1, next: 0, outstanding: 0 };
            }
            let stripe = GroupStripe { group: word.group, id: word.next };
            word.next += 1;
            word.outstanding += 1;
            match self.word.compare_exchange(seen, word.bits(), SeqCst, SeqCst) {
                Ok(_) => return Reserved::Stripe(stripe),
                Err(now) => seen = now,
            }
        }
    }

    /// Reserves the next stripe, and waits for the group before it where it must. None: the segment is at its end.
    pub async fn reserve(&self) -> Option<GroupStripe> {
        std::future::poll_fn(|context| self.poll_reserve(context)).await
    }

    fn poll_reserve(&self, context: &Context<'_>) -> Poll<Option<GroupStripe>> {
        let ready = |reserved| match reserved {
            Reserved::Stripe(stripe) => Poll::Ready(Some(stripe)),
            Reserved::End => Poll::Ready(None),
            Reserved::Draining => Poll::Pending,
        };
        let first = ready(self.try_reserve());
        if first.is_ready() {
            return first;
        }
        self.waiting.lock().push(context.waker().clone());
        // The group may have drained between the look and the push, when its last stripe found no waker.
        ready(self.try_reserve())
    }

    /// Every record of a stripe of `group` has returned, well or not.
    pub fn returned(&self, stripe: GroupStripe) {
        let before = Word::of(self.word.fetch_sub(1, SeqCst));
        assert!(
            before.outstanding > 0 && before.group == stripe.group,
            "a stripe returns in its own group, once"
        );
        if before.outstanding == 1 {
            self.wake();
        }
    }

    /// Closes the segment early: no stripe is reserved any more. Stripes that are out still return.
    pub fn close(&self) {
        self.word.fetch_or(CLOSED, SeqCst);
        self.wake();
    }

    /// Waits until nothing is reserved that has not returned. Of a segment that is closed or at its end: nothing follows.
    pub async fn drained(&self) {
        std::future::poll_fn(|context| {
            let drained = || Word::of(self.word.load(SeqCst)).outstanding == 0;
            if drained() {
                return Poll::Ready(());
            }
            self.waiting.lock().push(context.waker().clone());
            if drained() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Stripes that were reserved, of all groups together.
    pub fn reserved(&self) -> u32 {
        let word = Word::of(self.word.load(SeqCst));
        word.group * u32::from(self.stripes) + u32::from(word.next)
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(all(test, feature = "model"))]
mod model {
    //! Models of the group's word: stripes come once, groups do not overlap, and no waiter sleeps for ever.

    use super::*;
    use crate::sync::models::{check, threads};
    use shuttle::future::block_on;
    use std::sync::Mutex as StdMutex;

    /// Z-I5, with more tasks than stripes in a group, so that some wait for the group before theirs.
    #[test]
    fn a_group_starts_when_the_one_before_has_returned() {
        check(|| {
            let groups = StripeGroups::new(3, 2);
            let (out, taken) = (StdMutex::new(Vec::new()), StdMutex::new(Vec::new()));
            threads(3, move |_| {
                while let Some(stripe) = block_on(groups.reserve()) {
                    {
                        let mut out = out.lock().unwrap();
                        assert!(
                            out.iter().all(|of: &GroupStripe| of.group == stripe.group),
                            "{out:?} {stripe:?}"
                        );
                        out.push(stripe);
                        let mut taken = taken.lock().unwrap();
                        assert!(!taken.contains(&stripe), "{stripe:?} twice");
                        taken.push(stripe);
                    }
                    shuttle::thread::yield_now();
                    out.lock().unwrap().retain(|of| *of != stripe);
                    groups.returned(stripe);
                }
            });
        });
    }

    #[test]
    fn a_waiter_for_a_group_sees_it_closed() {
        check(|| {
            let groups = StripeGroups::new(2, 1);
            let Reserved::Stripe(first) = groups.try_reserve() else { unreachable!("the first stripe") };
            threads(3, move |thread| match thread {
                0 => groups.returned(first),
                1 => groups.close(),
                _ => {
                    if let Some(stripe) = block_on(groups.reserve()) {
                        groups.returned(stripe);
                    }
                    block_on(groups.drained());
                }
            });
        });
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn stripes_are_handed_out_group_by_group() {
        let groups = StripeGroups::new(2, 2);
        let take = || groups.try_reserve();
        let stripe = |group, id| Reserved::Stripe(GroupStripe { group, id });
        assert_eq!([take(), take(), take()], [stripe(0, 0), stripe(0, 1), Reserved::Draining]);
        groups.returned(GroupStripe { group: 0, id: 1 });
        assert_eq!((take(), groups.reserved()), (Reserved::Draining, 2));
        groups.returned(GroupStripe { group: 0, id: 0 });
        assert_eq!([take(), take(), take()], [stripe(1, 0), stripe(1, 1), Reserved::End]);
    }

    #[test]
    fn a_closed_segment_reserves_nothing() {
        let groups = StripeGroups::new(2, 2);
        assert!(matches!(groups.try_reserve(), Reserved::Stripe(_)));
        groups.close();
        assert_eq!(groups.try_reserve(), Reserved::End);
    }

    #[test]
    #[should_panic(expected = "in its own group")]
    fn a_stripe_that_returns_twice_is_a_mistake() {
        let groups = StripeGroups::new(1, 2);
        let Reserved::Stripe(stripe) = groups.try_reserve() else { unreachable!("the first stripe") };
        groups.returned(stripe);
        groups.returned(stripe);
    }
}
