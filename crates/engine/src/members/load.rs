//! How busy each member is and how fast it answers: for [`plan`](crate::code::plan) with [`UpdatePolicy::Adaptive`], and
//! for reads that avoid a fail-slow member. With both off an operation pays one load of a flag.
//!
//! Each shard counts its own operations with plain stores, as in [`counters`](crate::counters). A plan adds up all
//! shards, since its pre-reads would stand in the member's whole queue: one line of memory for each shard and member,
//! against the microseconds of a read that the plan may save.
//!
//! | Eq. 4 to 9 | here |
//! |---|---|
//! | R_i, W_i | operations of all shards in flight |
//! | t_R | average of a read's latency divided by the reads that were in flight with it, itself included: t_R (R_i + 1) is then what a read will take, on a device that serves one at a time and on one that serves many at once |
//! | T_GC_i | a device does not say when it collects garbage. A member with operations in flight that has completed none for much longer than it usually takes is stalled, and the stall is assumed to last as long again as it has lasted |
//!
//! Averages fade while no read ends: reads avoid a slow member, which would otherwise stay slow for ever. A stall enters an
//! average as at most [`STALL_FACTOR`] times that average, or it would count long after its end.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use crate::buffer::Buffer;
use crate::code::cost::MemberLoad;
use crate::device::DeviceError;
use crate::limits::{
    AVOID_ALLOWANCE_MAX, AVOID_EXTRA_PERCENT, LATENCY_FADE_NS, LATENCY_WEIGHT, SLOW_FACTOR, SLOW_NS_MIN,
    STALL_FACTOR, STALL_NS_MIN,
};
use layout::units::Slot;

/// How a stripe write chooses between read-modify-write and reconstruct-write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpdatePolicy {
    /// The routine that reads fewer chunks (StRAID 3.1, Eq. 1).
    #[default]
    FewestReads,
    /// The routine that costs less by the members' load (adaptive parity, Eq. 4 to 9).
    Adaptive,
}

impl UpdatePolicy {
    /// All of them, the default first.
    pub const ALL: [UpdatePolicy; 2] = [UpdatePolicy::FewestReads, UpdatePolicy::Adaptive];

    /// The word for it.
    pub const fn name(self) -> &'static str {
        match self {
            UpdatePolicy::FewestReads => "fewest-reads",
            UpdatePolicy::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for UpdatePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for UpdatePolicy {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = UpdatePolicy::ALL.into_iter().find(|policy| policy.name() == name);
        found.ok_or_else(|| format!("{name:?} is no update policy; there are fewest-reads and adaptive"))
    }
}

/// A source of time; the engine has none of its own.
pub trait Clock: Send + Sync {
    /// Nanoseconds since some fixed moment.
    fn now_ns(&self) -> u64;
}

/// The load of every member of an array, and the policies that depend on it.
pub struct Loads {
    adaptive: AtomicBool,
    avoid_slow: AtomicBool,
    /// People look at the members' speed.
    is_shown: AtomicBool,
    /// One of the three is on.
    counting: AtomicBool,
    /// No resync is due: reconstruction returns what the member holds.
    parity_agrees: AtomicBool,
    clock: OnceLock<Arc<dyn Clock>>,
    shards: Box<[ShardLoads]>,
}

#[repr(align(128))]
struct ShardLoads {
    members: Box<[Counts]>,
    /// Extra reads that this shard may still make to avoid slow members, in hundredths.
    allowance: AtomicU64,
}

/// One shard's operations at one member. Only that shard stores here.
#[derive(Default)]
#[repr(align(64))]
struct Counts {
    reads: AtomicU32,
    writes: AtomicU32,
    read_ns: AtomicU64,
    write_ns: AtomicU64,
    /// Average of a read's latency divided by the queue depth: t_R.
    service_ns: AtomicU64,
    /// When a read last entered the averages.
    read_at_ns: AtomicU64,
    /// Since when the member has had operations in flight and completed none.
    silent_since_ns: AtomicU64,
    /// Bytes of reads, and of writes, that were started.
    read_bytes: AtomicU64,
    write_bytes: AtomicU64,
}

const _: () = assert!(size_of::<Counts>() == 64, "one line of memory for each shard and member");

/// The latency of a member, as far as it is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemberLatency {
    /// Average of recent reads in nanoseconds, 0 if none is known.
    pub read_ns: u64,
    /// Average of recent writes in nanoseconds, 0 if none is known.
    pub write_ns: u64,
    /// How long it has been stalled, 0 if it is not.
    pub stalled_ns: u64,
}

impl Loads {
    pub(crate) fn new(shards: usize, members: u32) -> Self {
        let shard = |_| ShardLoads {
            members: (0..members).map(|_| Counts::default()).collect(),
            allowance: AtomicU64::new(0),
        };
        Loads {
            adaptive: AtomicBool::new(false),
            avoid_slow: AtomicBool::new(false),
            is_shown: AtomicBool::new(false),
            counting: AtomicBool::new(false),
            parity_agrees: AtomicBool::new(false),
            clock: OnceLock::new(),
            shards: (0..shards).map(shard).collect(),
        }
    }

    /// Sets the clock; without one only queues are measured. Later calls have no effect.
    pub fn set_clock(&self, clock: Arc<dyn Clock>) {
        self.clock.get_or_init(|| clock);
    }

    /// Sets how stripe writes choose their routine from now on.
    pub fn set_policy(&self, policy: UpdatePolicy) {
        self.adaptive.store(policy == UpdatePolicy::Adaptive, Relaxed);
        self.update_counting();
    }

    /// Sets whether reads avoid slow members from now on.
    pub fn set_avoid_slow(&self, avoid: bool) {
        self.avoid_slow.store(avoid, Relaxed);
        self.update_counting();
    }

    /// Sets whether parity agrees with data, and copies with each other, wherever no write is in flight. Until it does,
    /// reads avoid no member and take the first copy (invariants 6 and 10).
    pub fn set_parity_agrees(&self, agrees: bool) {
        self.parity_agrees.store(agrees, Relaxed);
    }

    #[inline]
    pub(crate) fn parity_agrees(&self) -> bool {
        self.parity_agrees.load(Relaxed)
    }

    /// How stripe writes choose their routine.
    pub fn policy(&self) -> UpdatePolicy {
        if self.adaptive.load(Relaxed) { UpdatePolicy::Adaptive } else { UpdatePolicy::FewestReads }
    }

    /// Whether reads avoid slow members.
    pub fn avoid_slow(&self) -> bool {
        self.avoid_slow.load(Relaxed)
    }

    /// Operations are counted from now on, for people to see.
    pub fn show(&self) {
        self.is_shown.store(true, Relaxed);
        self.update_counting();
    }

    fn update_counting(&self) {
        let wanted = self.adaptive.load(Relaxed) || self.avoid_slow() || self.is_shown.load(Relaxed);
        self.counting.store(wanted, Relaxed);
    }

    /// Bytes read and written at a member while operations were counted.
    pub fn transferred(&self, slot: Slot) -> (u64, u64) {
        let sum = |count: fn(&Counts) -> &AtomicU64| self.at(slot).map(|c| count(c).load(Relaxed)).sum();
        (sum(|counts| &counts.read_bytes), sum(|counts| &counts.write_bytes))
    }

    /// The array's clock; 0 if it has none.
    pub fn now_ns(&self) -> u64 {
        self.clock.get().map_or(0, |clock| clock.now_ns())
    }

    /// Counts an operation of `bytes` bytes at a member until it is done or dropped.
    #[inline]
    pub(crate) fn timed<F>(
        &self,
        shard: usize,
        slot: Slot,
        (kind, bytes): (Kind, u64),
        future: F,
    ) -> Timed<'_, F> {
        let ticket = match self.counting.load(Relaxed) {
            false => None,
            true => Some(self.begin(&self.shards[shard].members[slot.index()], kind, bytes)),
        };
        Timed { future, ticket }
    }

    fn begin<'a>(&'a self, counts: &'a Counts, kind: Kind, bytes: u64) -> Ticket<'a> {
        let started_ns = self.now_ns();
        let moved = kind.bytes_of(counts);
        moved.store(moved.load(Relaxed) + bytes, Relaxed);
        let in_flight = [&counts.reads, &counts.writes].map(|count| count.load(Relaxed));
        if in_flight == [0, 0] {
            counts.silent_since_ns.store(started_ns, Relaxed);
        }
        let count = kind.of(counts);
        count.store(count.load(Relaxed) + 1, Relaxed);
        Ticket { loads: self, counts, kind, started_ns, queue_depth: in_flight[0] + 1 }
    }

    /// The load of a member now, as [`cost`](crate::code::cost) wants it.
    pub(crate) fn of(&self, slot: Slot) -> MemberLoad {
        let now_ns = self.now_ns();
        let sum = |count: fn(&Counts) -> &AtomicU32| self.at(slot).map(|c| count(c).load(Relaxed)).sum();
        MemberLoad {
            reads: sum(|counts| &counts.reads),
            writes: sum(|counts| &counts.writes),
            read_ns: self.faded(slot, now_ns, |counts| &counts.service_ns).max(1),
            gc_ns: self.stalled_ns(slot, now_ns),
        }
    }

    /// The latency of a member, for status.
    pub fn latency(&self, slot: Slot) -> MemberLatency {
        let now_ns = self.now_ns();
        MemberLatency {
            read_ns: self.average(slot, |counts| &counts.read_ns),
            write_ns: self.average(slot, |counts| &counts.write_ns),
            stalled_ns: self.stalled_ns(slot, now_ns),
        }
    }

    fn at(&self, slot: Slot) -> impl Iterator<Item = &Counts> {
        self.shards.iter().map(move |shard| &shard.members[slot.index()])
    }

    /// The mean over the shards that have a value.
    fn average(&self, slot: Slot, of: fn(&Counts) -> &AtomicU64) -> u64 {
        let (sum, count) = self
            .at(slot)
            .map(|counts| of(counts).load(Relaxed))
            .filter(|&ns| ns > 0)
            .fold((0, 0), |(sum, count), ns| (sum + ns, count + 1));
        sum.checked_div(count).unwrap_or(0)
    }

    fn faded(&self, slot: Slot, now_ns: u64, of: fn(&Counts) -> &AtomicU64) -> u64 {
        let newest_ns = self.at(slot).map(|counts| counts.read_at_ns.load(Relaxed)).max().unwrap_or(0);
        let halvings = now_ns.saturating_sub(newest_ns) / LATENCY_FADE_NS;
        self.average(slot, of) >> halvings.min(u64::from(u64::BITS - 1))
    }

    /// How long the member has been silent, if that is long enough for a stall.
    fn stalled_ns(&self, slot: Slot, now_ns: u64) -> u64 {
        let owing = |counts: &&Counts| counts.reads.load(Relaxed) + counts.writes.load(Relaxed) > 0;
        let silent = self.at(slot).filter(owing).map(|counts| counts.silent_since_ns.load(Relaxed)).max();
        let silent_ns = silent.map_or(0, |since_ns| now_ns.saturating_sub(since_ns));
        let usual_ns = self.average(slot, |counts| &counts.read_ns);
        if silent_ns > (STALL_FACTOR * usual_ns).max(STALL_NS_MIN) { silent_ns } else { 0 }
    }

    /// Whether reads may avoid a slow member at all. Each read adds to the allowance that avoiding spends.
    pub(crate) fn may_avoid(&self, shard: usize, reads: usize) -> bool {
        if !self.avoid_slow() {
            return false;
        }
        let allowance = &self.shards[shard].allowance;
        let earned = allowance.load(Relaxed) + AVOID_EXTRA_PERCENT * reads as u64;
        allowance.store(earned.min(AVOID_ALLOWANCE_MAX), Relaxed);
        self.parity_agrees()
    }

    /// Takes `extra` reads out of this shard's allowance. False if the allowance is smaller.
    pub(crate) fn spend(&self, shard: usize, extra: usize) -> bool {
        let allowance = &self.shards[shard].allowance;
        let left = allowance.load(Relaxed).checked_sub(100 * extra as u64);
        left.inspect(|&left| allowance.store(left, Relaxed)).is_some()
    }

    /// Whether a read at this member takes far longer than at any other of the array.
    pub(crate) fn is_slow(&self, slot: Slot) -> bool {
        let now_ns = self.now_ns();
        let expected = |slot| self.faded(slot, now_ns, |c| &c.read_ns) + self.stalled_ns(slot, now_ns);
        let own_ns = expected(slot);
        if own_ns < SLOW_NS_MIN {
            return false;
        }
        let mut slots = Slot::all().take(self.shards[0].members.len());
        slots.all(|other| other == slot || own_ns > SLOW_FACTOR * expected(other))
    }
}

/// Kinds of operations that are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Read,
    Write,
}

impl Kind {
    fn of(self, counts: &Counts) -> &AtomicU32 {
        match self {
            Kind::Read => &counts.reads,
            Kind::Write => &counts.writes,
        }
    }

    fn bytes_of(self, counts: &Counts) -> &AtomicU64 {
        match self {
            Kind::Read => &counts.read_bytes,
            Kind::Write => &counts.write_bytes,
        }
    }
}

/// An operation in flight. Dropping it takes the operation out of the count, whatever its result.
struct Ticket<'a> {
    loads: &'a Loads,
    counts: &'a Counts,
    kind: Kind,
    started_ns: u64,
    /// Reads in flight when it started, itself included.
    queue_depth: u32,
}

impl Ticket<'_> {
    fn answered(&self, succeeded: bool) {
        let Some(clock) = self.loads.clock.get() else { return };
        let now_ns = clock.now_ns();
        self.counts.silent_since_ns.store(now_ns, Relaxed);
        if !succeeded {
            return; // an error is no measure of how long the work takes
        }
        let ns = now_ns.saturating_sub(self.started_ns).max(1);
        match self.kind {
            Kind::Write => add_to_average(&self.counts.write_ns, ns),
            Kind::Read => {
                add_to_average(&self.counts.read_ns, ns);
                add_to_average(&self.counts.service_ns, (ns / u64::from(self.queue_depth)).max(1));
                self.counts.read_at_ns.store(now_ns, Relaxed);
            }
        }
    }
}

fn add_to_average(average: &AtomicU64, ns: u64) {
    let new = match average.load(Relaxed) {
        0 => ns,
        old => old - old / LATENCY_WEIGHT + (ns.min(STALL_FACTOR * old) / LATENCY_WEIGHT).max(1),
    };
    average.store(new, Relaxed);
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let count = self.kind.of(self.counts);
        count.store(count.load(Relaxed) - 1, Relaxed);
    }
}

/// An operation in flight at a member, counted if a policy asks for it.
pub(crate) struct Timed<'a, F> {
    future: F,
    ticket: Option<Ticket<'a>>,
}

impl<F: Future<Output: Answer> + Unpin> Future for Timed<'_, F> {
    type Output = F::Output;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let output = ready!(Pin::new(&mut self.future).poll(context));
        if let Some(ticket) = self.ticket.take() {
            ticket.answered(output.succeeded());
        }
        Poll::Ready(output)
    }
}

/// The output of an operation at a member.
pub(crate) trait Answer {
    fn succeeded(&self) -> bool;
}

impl Answer for Result<(), DeviceError> {
    fn succeeded(&self) -> bool {
        self.is_ok()
    }
}

impl Answer for (Buffer, Result<(), DeviceError>) {
    fn succeeded(&self) -> bool {
        self.1.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Hand(AtomicU64);

    impl Clock for Hand {
        fn now_ns(&self) -> u64 {
            self.0.load(Relaxed)
        }
    }

    type Done = std::future::Ready<Result<(), DeviceError>>;

    fn done() -> Done {
        std::future::ready(Ok(()))
    }

    fn finish(timed: Timed<'_, Done>) {
        let mut timed = std::pin::pin!(timed);
        assert!(timed.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop())).is_ready());
    }

    fn loads() -> (Loads, Arc<Hand>) {
        let (loads, clock) = (Loads::new(2, 3), Arc::new(Hand::default()));
        loads.set_clock(Arc::clone(&clock) as _);
        loads.set_policy(UpdatePolicy::Adaptive);
        (loads, clock)
    }

    #[test]
    fn bytes_are_counted_while_people_look() {
        let loads = Loads::new(2, 1);
        let slot = Slot::new(0);
        finish(loads.timed(0, slot, (Kind::Read, 4096), done()));
        assert_eq!(loads.transferred(slot), (0, 0));
        loads.show();
        finish(loads.timed(0, slot, (Kind::Read, 4096), done()));
        finish(loads.timed(1, slot, (Kind::Write, 512), done()));
        finish(loads.timed(1, slot, (Kind::Read, 1024), done()));
        assert_eq!(loads.transferred(slot), (5120, 512));
    }

    fn take(loads: &Loads, clock: &Hand, slot: Slot, ns: u64) {
        let timed = loads.timed(0, slot, (Kind::Read, 512), done());
        clock.0.fetch_add(ns, Relaxed);
        finish(timed);
    }

    #[test]
    fn operations_count_over_all_shards_until_done_or_dropped() {
        let (loads, _) = loads();
        let dropped = loads.timed(0, Slot::new(1), (Kind::Read, 512), done());
        let finished = loads.timed(1, Slot::new(1), (Kind::Read, 512), done());
        let write = loads.timed(1, Slot::new(1), (Kind::Write, 512), done());
        assert_eq!(
            (loads.of(Slot::new(1)).reads, loads.of(Slot::new(1)).writes, loads.of(Slot::new(0)).reads),
            (2, 1, 0)
        );
        drop(dropped);
        finish(finished);
        assert_eq!((loads.of(Slot::new(1)).reads, loads.of(Slot::new(1)).writes), (0, 1));
        drop(write);
        assert_eq!(loads.of(Slot::new(1)).writes, 0);
    }

    #[test]
    fn nothing_is_counted_while_no_policy_asks() {
        let (loads, _) = loads();
        let counted = loads.timed(0, Slot::new(0), (Kind::Read, 512), done());
        loads.set_policy(UpdatePolicy::FewestReads);
        let uncounted = loads.timed(0, Slot::new(0), (Kind::Read, 512), done());
        assert_eq!(loads.of(Slot::new(0)).reads, 1);
        drop((counted, uncounted)); // each by what it was when it started
        assert_eq!(loads.of(Slot::new(0)).reads, 0);
    }

    #[test]
    fn service_time_is_latency_by_queue_depth() {
        let (loads, clock) = loads();
        let queue: Vec<_> = (0..4).map(|_| loads.timed(0, Slot::new(0), (Kind::Read, 512), done())).collect();
        for timed in queue {
            clock.0.fetch_add(100, Relaxed); // one at a time
            finish(timed);
        }
        assert_eq!(loads.of(Slot::new(0)).read_ns, 100);
        assert!(loads.latency(Slot::new(0)).read_ns > 100);
    }

    #[test]
    fn a_silent_member_is_stalled_and_one_that_answers_any_shard_is_not() {
        let (loads, clock) = loads();
        take(&loads, &clock, Slot::new(0), 100);
        let waiting = loads.timed(0, Slot::new(0), (Kind::Read, 512), done());
        clock.0.fetch_add(STALL_NS_MIN, Relaxed);
        assert_eq!(loads.of(Slot::new(0)).gc_ns, 0, "not yet");
        clock.0.fetch_add(100, Relaxed);
        assert_eq!(loads.of(Slot::new(0)).gc_ns, STALL_NS_MIN + 100);
        let other = loads.timed(1, Slot::new(0), (Kind::Read, 512), done());
        assert_eq!(loads.of(Slot::new(0)).gc_ns, 0, "another shard's has only begun");
        drop((waiting, other));
        assert_eq!(loads.of(Slot::new(0)).gc_ns, 0, "it owes nothing");
    }

    #[test]
    fn averages_fade_and_a_stall_weighs_little() {
        let (loads, clock) = loads();
        take(&loads, &clock, Slot::new(0), 800);
        take(&loads, &clock, Slot::new(0), 8_000_000);
        assert_eq!(loads.of(Slot::new(0)).read_ns, 800 - 100 + 400);
        clock.0.fetch_add(2 * LATENCY_FADE_NS, Relaxed);
        assert_eq!(loads.of(Slot::new(0)).read_ns, 1100 / 4);
    }

    fn slow(loads: &Loads) -> Vec<bool> {
        Slot::first(3).map(|slot| loads.is_slow(slot)).collect()
    }

    #[test]
    fn slow_is_far_above_all_others_and_is_avoided_for_a_share_of_reads() {
        let (loads, clock) = loads();
        loads.set_avoid_slow(true);
        let slow_ns = SLOW_NS_MIN * 2;
        for (slot, ns) in Slot::all().zip([slow_ns, slow_ns / SLOW_FACTOR - 1, slow_ns / SLOW_FACTOR + 1]) {
            take(&loads, &clock, slot, ns);
        }
        assert_eq!(slow(&loads), [false; 3], "member 2 is not far below");
        for _ in 0..20 {
            take(&loads, &clock, Slot::new(2), 1000);
        }
        assert_eq!(slow(&loads), [true, false, false]);
        assert!(!loads.may_avoid(0, 4), "parity may not agree yet");
        loads.set_parity_agrees(true);
        assert!(loads.may_avoid(0, 4));
        assert!(!loads.spend(0, 3) && loads.spend(0, 2) && !loads.spend(0, 1), "a quarter of eight reads");
    }
}
