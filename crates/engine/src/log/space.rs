//! The free space of a zoned array, as writers and reclaim see it: when reclaim is wanted, how fast writers may go meanwhile,
//! which segments are being reset, and what all of it cost. Shared by all shards.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use super::reclaim::throttle::{Slope, block_cost_ns};
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};

/// A segment: its number and the tag that was drawn for it.
pub type SegmentKey = (u64, u64);

/// What reclaim did since the start, and how much clients wrote.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceTotals {
    /// Blocks that clients wrote.
    pub user_blocks: u64,
    /// Blocks that were moved.
    pub moved_blocks: u64,
    /// Of these, blocks that were moved while clients rested.
    pub idle_moved_blocks: u64,
    /// Segments that were emptied.
    pub emptied_segments: u64,
    /// Blocks that a victim held and that could not be read or made any more.
    pub lost_blocks: u64,
}

impl SpaceTotals {
    /// Blocks written for each that a client wrote, in hundredths: 100 is no reclaim. `mapping_blocks` were written of the map.
    pub fn write_amplification_percent(&self, mapping_blocks: u64) -> u64 {
        match self.user_blocks {
            0 => 100,
            user => (user + self.moved_blocks + mapping_blocks).saturating_mul(100) / user,
        }
    }
}

/// What reclaim does now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// Nothing.
    #[default]
    None,
    /// It makes room for writers.
    ForWriters,
    /// It makes room while clients rest.
    WhileIdle,
}

/// See [`Space::closed`].
const OWN_DAMAGED_MAX: u64 = 4;

/// Why reclaim has something to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Fewer segments are free than it keeps, or something is to be made whole.
    Wanted,
    /// Clients wrote, and have rested since.
    Idle,
    /// The array stops.
    Stop,
}

/// See the file's header. On cache lines of its own: every stripe of every shard counts what it wrote.
#[derive(Default)]
#[repr(align(128))]
pub struct Space {
    wanted: AtomicBool,
    stop: AtomicBool,
    is_running: AtomicBool,
    /// Clients have written since reclaim looked last.
    is_written: AtomicBool,
    activity: AtomicU8,
    /// Blocks that reclaim's open segment has room for, and what the batch under way has gained so far.
    ahead: AtomicU64,
    /// Blocks that segments have room for whose zones are being reset.
    resetting: AtomicU64,
    waiting: Mutex<Vec<Waker>>,
    /// Passes that found nothing to gain.
    without_gain: AtomicU64,
    /// Segments of reclaim's own that were damaged since one of clients was closed.
    own_damaged: AtomicU64,
    /// When the next write is admitted, by the platform's clock.
    next_ns: AtomicU64,
    /// What it takes reclaim to free the room of a block that clients write.
    ns_per_block: AtomicU64,
    user_blocks: AtomicU64,
    /// Blocks that the stripes of clients took, padding included.
    taken_blocks: AtomicU64,
    moved_blocks: AtomicU64,
    idle_moved_blocks: AtomicU64,
    emptied_segments: AtomicU64,
    lost_blocks: AtomicU64,
    unreset: Mutex<Unreset>,
    mends: Mutex<Mends>,
}

/// Segments in which something is wrong, and which reclaim is to empty.
#[derive(Default)]
struct Mends {
    /// Those that wait.
    asked: BTreeSet<SegmentKey>,
    /// The one that is being emptied.
    now: Option<SegmentKey>,
    /// Those whose end someone waits for, and what came of those that ended.
    awaited: BTreeSet<SegmentKey>,
    ended: BTreeMap<SegmentKey, bool>,
}

/// Segments that an emptied entry names, and whose zones may still be found at a start.
#[derive(Default)]
struct Unreset {
    /// A zone could not be reset.
    kept: BTreeSet<SegmentKey>,
    /// All zones were reset; a flush makes that durable.
    recent: BTreeSet<SegmentKey>,
}

impl Space {
    /// Reclaim has work: fewer segments are free than it keeps.
    pub fn want(&self) {
        self.wanted.store(true, SeqCst);
        self.wake();
    }

    /// A segment is closed, and what it lacks is to be written anew. Of segments of reclaim's own only a few times for each of clients: where
    /// a drive damages each, it would wake itself for ever, and wear the drives out.
    pub fn closed(&self, is_of_clients: bool, is_whole: bool, is_behind: bool) {
        let is_wanted = match is_of_clients {
            true => {
                self.own_damaged.store(0, SeqCst);
                !is_whole || is_behind
            }
            false => !is_whole && self.own_damaged.fetch_add(1, SeqCst) < OWN_DAMAGED_MAX,
        };
        if is_wanted {
            self.want();
        }
    }

    /// For reclaim: waits until there is work. `rest` sleeps for as long as clients have to rest, if they ever do.
    pub async fn work(&self, rest: impl Fn() -> Option<Pin<Box<dyn Future<Output = ()>>>>) -> Work {
        let mut resting = None;
        std::future::poll_fn(|context| self.poll_work(context, &rest, &mut resting)).await
    }

    fn poll_work(
        &self,
        context: &mut Context<'_>,
        rest: &impl Fn() -> Option<Pin<Box<dyn Future<Output = ()>>>>,
        resting: &mut Option<Pin<Box<dyn Future<Output = ()>>>>,
    ) -> Poll<Work> {
        self.waiting.lock().push(context.waker().clone());
        if self.is_stopping() {
            return Poll::Ready(Work::Stop);
        }
        if self.wanted.swap(false, SeqCst) {
            // A rest that this cuts short begins anew.
            self.is_written.fetch_or(resting.is_some(), SeqCst);
            return Poll::Ready(Work::Wanted);
        }
        loop {
            // A sleep that has begun is not begun again for each write: what came meanwhile is seen at its end.
            if let Some(sleep) = resting {
                if sleep.as_mut().poll(context).is_pending() {
                    return Poll::Pending;
                }
                *resting = None;
                if !self.is_written.load(SeqCst) {
                    return Poll::Ready(Work::Idle);
                }
            }
            if !self.is_written.load(SeqCst) {
                return Poll::Pending;
            }
            // Without rest the mark stays: no write wakes reclaim for nothing.
            let Some(sleep) = rest() else { return Poll::Pending };
            self.is_written.store(false, SeqCst);
            *resting = Some(sleep);
        }
    }

    /// Clients write: what reclaim does while they rest ends.
    pub fn clients_write(&self) {
        // Mostly a look: every write of every shard comes by.
        if !self.is_written.load(SeqCst) {
            self.is_written.store(true, SeqCst);
            self.wake();
        }
    }

    /// Reclaim begins something else, or nothing.
    pub fn set_activity(&self, activity: Activity) {
        self.activity.store(activity as u8, SeqCst);
    }

    /// What reclaim does.
    pub fn activity(&self) -> Activity {
        let all = [Activity::None, Activity::ForWriters, Activity::WhileIdle];
        all.into_iter().find(|activity| *activity as u8 == self.activity.load(SeqCst)).unwrap_or_default()
    }

    /// Whether reclaim is to leave its victims as they are: the array stops, or clients write again.
    pub fn is_interrupted(&self) -> bool {
        self.is_stopping() || self.activity() == Activity::WhileIdle && self.is_written.load(SeqCst)
    }

    /// Blocks that reclaim's open segment has room for, what the batch under way has gained so far, and what is being reset.
    pub fn ahead(&self) -> u64 {
        self.ahead.load(SeqCst) + self.resetting.load(SeqCst)
    }

    /// The zones of a segment with room for `blocks` blocks are being reset.
    pub fn reset_begins(&self, blocks: u64) {
        self.resetting.fetch_add(blocks, SeqCst);
    }

    /// They were, or cannot be.
    pub fn reset_ended(&self, blocks: u64) {
        self.resetting.fetch_sub(blocks, SeqCst);
        self.wake();
    }

    /// Waits until no zone of an emptied segment is being reset.
    pub async fn resets_ended(&self) {
        std::future::poll_fn(|context| {
            let none = || self.resetting.load(SeqCst) == 0;
            if none() {
                return Poll::Ready(());
            }
            self.waiting.lock().push(context.waker().clone());
            if none() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// See [`Space::ahead`].
    pub fn set_ahead(&self, blocks: u64) {
        self.ahead.store(blocks, SeqCst);
    }

    /// Whether reclaim is to end.
    pub fn is_stopping(&self) -> bool {
        self.stop.load(SeqCst)
    }

    /// Reclaim begins or has ended.
    pub fn set_running(&self, is_running: bool) {
        self.is_running.store(is_running, SeqCst);
        self.wake();
    }

    /// Ends reclaim, and waits until it has. A segment that it was emptying stays as it is.
    pub async fn stopped(&self) {
        self.stop.store(true, SeqCst);
        self.wake();
        std::future::poll_fn(|context| {
            self.waiting.lock().push(context.waker().clone());
            if self.is_running.load(SeqCst) { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
    }

    /// Has reclaim empty a segment in which something is wrong: what counts of it is made again elsewhere. Whether it was.
    pub async fn mended(&self, key: SegmentKey) -> bool {
        {
            let mut mends = self.mends.lock();
            mends.asked.insert(key);
            mends.awaited.insert(key);
        }
        self.want();
        std::future::poll_fn(|context| {
            self.waiting.lock().push(context.waker().clone());
            match self.mends.lock().ended.remove(&key) {
                Some(is_emptied) => Poll::Ready(is_emptied),
                None if !self.is_running() || self.is_stopping() => Poll::Ready(false),
                None => Poll::Pending,
            }
        })
        .await
    }

    /// The same, without waiting for it.
    pub fn mend(&self, key: SegmentKey) {
        self.mends.lock().asked.insert(key);
        self.want();
    }

    /// Whether a segment waits to be mended, or is being.
    pub fn is_mending(&self, key: SegmentKey) -> bool {
        let mends = self.mends.lock();
        mends.asked.contains(&key) || mends.now == Some(key)
    }

    /// For reclaim: the next segment to be mended.
    pub fn to_mend(&self) -> Option<SegmentKey> {
        let mends = &mut *self.mends.lock();
        mends.now = mends.asked.pop_first();
        mends.now
    }

    /// For reclaim: what came of it.
    pub fn mend_ended(&self, key: SegmentKey, is_emptied: bool) {
        let mut mends = self.mends.lock();
        mends.now = None;
        if mends.awaited.remove(&key) {
            mends.ended.insert(key, is_emptied);
        }
        drop(mends);
        self.wake();
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        waiting.into_iter().for_each(Waker::wake);
    }

    /// Whether something is there to make room.
    pub fn is_running(&self) -> bool {
        self.is_running.load(SeqCst)
    }

    /// Passes that found nothing to gain.
    pub fn without_gain(&self) -> u64 {
        self.without_gain.load(SeqCst)
    }

    /// A pass found nothing to gain.
    pub fn nothing_gained(&self) {
        self.without_gain.fetch_add(1, SeqCst);
    }

    /// When a write of `blocks` blocks may begin: at once while space is there, later the less there is (the slope).
    pub fn admit_at(&self, now_ns: u64, blocks: u64, slope: Slope) -> u64 {
        let cost = block_cost_ns(slope, self.ns_per_block.load(SeqCst));
        if cost == 0 {
            return now_ns;
        }
        let mut next = self.next_ns.load(SeqCst);
        loop {
            let at = next.max(now_ns);
            let after = at.saturating_add(cost.saturating_mul(blocks));
            match self.next_ns.compare_exchange(next, after, SeqCst, SeqCst) {
                Ok(_) => return at,
                Err(seen) => next = seen,
            }
        }
    }

    /// Reclaim made `blocks` blocks free in this time. Clients' writes take more than they are where stripes go before they are full.
    pub fn gained(&self, blocks: u64, took_ns: u64) {
        let [user, taken] =
            [&self.user_blocks, &self.taken_blocks].map(|count| u128::from(count.load(SeqCst)));
        let now = u128::from(took_ns) * taken.max(1) / user.max(1) / u128::from(blocks.max(1));
        let now = u64::try_from(now).unwrap_or(u64::MAX);
        let before = self.ns_per_block.load(SeqCst);
        let mean = if before == 0 { now } else { (before * 3 + now) / 4 };
        self.ns_per_block.store(mean, SeqCst);
    }

    /// Blocks of clients were written, in stripes with room for `taken`.
    pub fn wrote(&self, blocks: u64, taken: u64) {
        self.user_blocks.fetch_add(blocks, SeqCst);
        self.taken_blocks.fetch_add(taken, SeqCst);
    }

    /// Blocks were moved.
    pub fn moved(&self, blocks: u64) {
        self.moved_blocks.fetch_add(blocks, SeqCst);
        if self.activity() == Activity::WhileIdle {
            self.idle_moved_blocks.fetch_add(blocks, SeqCst);
        }
    }

    /// A block of a victim is lost.
    pub fn lost(&self) {
        self.lost_blocks.fetch_add(1, SeqCst);
    }

    /// What was done since the start.
    pub fn totals(&self) -> SpaceTotals {
        SpaceTotals {
            user_blocks: self.user_blocks.load(SeqCst),
            moved_blocks: self.moved_blocks.load(SeqCst),
            idle_moved_blocks: self.idle_moved_blocks.load(SeqCst),
            emptied_segments: self.emptied_segments.load(SeqCst),
            lost_blocks: self.lost_blocks.load(SeqCst),
        }
    }

    /// A segment is about to be reset: its emptied entry is needed from here on.
    pub fn resetting(&self, key: SegmentKey) {
        self.unreset.lock().kept.insert(key);
    }

    /// All zones of a segment were reset.
    pub fn reset(&self, key: SegmentKey) {
        let mut unreset = self.unreset.lock();
        unreset.kept.remove(&key);
        unreset.recent.insert(key);
        drop(unreset);
        self.emptied_segments.fetch_add(1, SeqCst);
    }

    /// Segments whose zones were all reset, and whose resets a flush that is sent now makes durable.
    pub fn resets_to_flush(&self) -> BTreeSet<SegmentKey> {
        self.unreset.lock().recent.clone()
    }

    /// The resets of these segments are durable: their emptied entries are not needed any more.
    pub fn resets_are_durable(&self, keys: &BTreeSet<SegmentKey>) {
        self.unreset.lock().recent.retain(|key| !keys.contains(key));
    }

    /// Whether a segment's emptied entry is still needed.
    pub fn needs_entry(&self, key: SegmentKey) -> bool {
        let unreset = self.unreset.lock();
        unreset.kept.contains(&key) || unreset.recent.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    type Sleep = Pin<Box<dyn Future<Output = ()>>>;

    fn poll_work(space: &Space, wakes: &Arc<Wakes>, rest: impl Fn() -> Option<Sleep>) -> Poll<Work> {
        pin!(space.work(rest)).poll(&mut Context::from_waker(&Waker::from(Arc::clone(wakes))))
    }

    #[test]
    fn a_rest_that_is_cut_short_begins_anew() {
        let (space, wakes) = (Space::default(), Arc::default());
        let mut context = Context::from_waker(Waker::noop());
        space.clients_write();
        let mut work = pin!(space.work(|| Some(Box::pin(std::future::pending()) as Sleep)));
        assert_eq!(work.as_mut().poll(&mut context), Poll::Pending, "clients are to rest first");
        space.want();
        assert_eq!(work.as_mut().poll(&mut context), Poll::Ready(Work::Wanted));
        let is_over = || Some(Box::pin(std::future::ready(())) as Sleep);
        assert_eq!(poll_work(&space, &wakes, is_over), Poll::Ready(Work::Idle), "though nobody wrote since");
        assert_eq!(poll_work(&space, &wakes, is_over), Poll::Pending, "once");
    }

    /// Reclaim waits for resets before it writes a checkpoint, whose table they would change.
    #[test]
    fn resets_that_go_on_are_waited_for_and_count_as_room() {
        let space = Space::default();
        space.set_ahead(5);
        space.reset_begins(100);
        space.reset_begins(20);
        assert_eq!(space.ahead(), 125);
        let wakes: Arc<Wakes> = Arc::default();
        let waker = Waker::from(Arc::clone(&wakes));
        let mut context = Context::from_waker(&waker);
        let mut ended = pin!(space.resets_ended());
        space.reset_ended(100);
        assert_eq!(ended.as_mut().poll(&mut context), Poll::Pending);
        space.reset_ended(20);
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1);
        assert_eq!((ended.as_mut().poll(&mut context), space.ahead()), (Poll::Ready(()), 5));
    }

    /// Writes of a block each, in stripes of three: a block of a client costs what three cost reclaim.
    #[test]
    fn the_padding_of_clients_counts_where_reclaim_learns_its_cost() {
        let cost = |user, taken| {
            let space = Space::default();
            space.wrote(user, taken);
            space.gained(10, 10_000);
            space.ns_per_block.load(SeqCst)
        };
        assert_eq!([cost(0, 0), cost(30, 30), cost(10, 30)], [1000, 1000, 3000]);
    }

    #[test]
    fn where_reclaim_does_not_work_while_clients_rest_writes_do_not_wake_it() {
        let (space, wakes) = (Space::default(), Arc::<Wakes>::default());
        space.clients_write();
        assert_eq!(poll_work(&space, &wakes, || None), Poll::Pending);
        (0..3).for_each(|_| space.clients_write());
        assert_eq!(wakes.0.load(Ordering::Relaxed), 0);
        space.want();
        assert_eq!(wakes.0.load(Ordering::Relaxed), 1, "work does");
    }
}
