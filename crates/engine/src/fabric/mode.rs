//! Whether an array's parity is made at the host or at its members' targets, and the trial by which `auto` decides it.
//!
//! Which is faster depends on what is scarce: the host's network wants targets, its processors want the host. Nothing short of a
//! trial tells: the latency of a single write does not, since a write at the host delays others more than itself.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

/// Fewest writes of an epoch: the rate of fewer would be noise.
const EPOCH_WRITES_MIN: u64 = 32;
/// Shortest time of an epoch.
const EPOCH_NS_MIN: u64 = 100_000_000;
/// After this time with fewer writes there is too little load for a trial.
const EPOCH_NS_MAX: u64 = 1_000_000_000;
/// Epochs between trials; each trial that changed nothing makes it four times as long, so that at last 1 % of the time is tried.
const INTERVALS: std::ops::RangeInclusive<u32> = 16..=256;
/// The other way has to be this much faster, in percent.
const GAIN_PERCENT: u64 = 3;
/// Writes that are larger or smaller by so much, in percent, are another load, which is tried at once.
const OTHER_LOAD_PERCENT: u64 = 150;

/// Where the parity of an array is made.
#[derive(Debug, Default)]
pub struct PeerMode {
    is_used: AtomicBool,
    are_up: AtomicBool,
    are_reducers_drawn: AtomicBool,
    auto: OnceLock<Auto>,
}

#[derive(Debug)]
struct Auto {
    by_peers: AtomicBool,
    writes: AtomicU64,
    bytes: AtomicU64,
    began_ns: AtomicU64,
    trial: Mutex<Trial>,
}

impl PeerMode {
    /// Targets make parity where they can, as soon as they are attached; by trial, if so, only while that is faster.
    pub fn enable(&self, by_trial: bool) {
        self.is_used.store(true, Relaxed);
        if by_trial {
            self.auto.get_or_init(|| Auto {
                by_peers: AtomicBool::new(false),
                writes: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                began_ns: AtomicU64::new(0),
                trial: Mutex::new(Trial::new()),
            });
        }
    }

    /// As `--fabric` has it.
    pub fn policy(&self) -> &'static str {
        match (self.is_used.load(Relaxed), self.auto.get()) {
            (false, _) => "host",
            (true, None) => "peer",
            (true, Some(_)) => "auto",
        }
    }

    /// Lost chunks are put together by any target, whatever its speed: the paper's comparison.
    pub fn draw_reducers(&self) {
        self.are_reducers_drawn.store(true, Relaxed);
    }

    /// See [`PeerMode::draw_reducers`].
    pub fn are_reducers_drawn(&self) -> bool {
        self.are_reducers_drawn.load(Relaxed)
    }

    /// Records whether targets are attached that make parity together.
    pub fn set_up(&self, are_up: bool) {
        self.are_up.store(are_up, Relaxed);
    }

    /// Whether targets are attached that may work together: a rebuild, a resync and a check go there whatever a trial says, since
    /// they would take all of the host's network.
    #[inline]
    pub fn are_up(&self) -> bool {
        self.are_up.load(Relaxed)
    }

    /// Whether the next write's parity is made at the targets, where these can.
    #[inline]
    pub fn by_peers(&self) -> bool {
        self.are_up.load(Relaxed) && self.auto.get().is_none_or(|auto| auto.by_peers.load(Relaxed))
    }

    /// A trial wants to know of writes.
    #[inline]
    pub(crate) fn is_tried(&self) -> bool {
        self.auto.get().is_some() && self.are_up.load(Relaxed)
    }

    /// A write of a stripe has ended.
    pub(crate) fn wrote(&self, bytes: u64, now_ns: u64) {
        if let Some(auto) = self.auto.get() {
            auto.wrote(bytes, now_ns);
        }
    }
}

impl Auto {
    fn wrote(&self, bytes: u64, now_ns: u64) {
        let writes = self.writes.fetch_add(1, Relaxed) + 1;
        let bytes = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        let lasted_ns = now_ns.saturating_sub(self.began_ns.load(Relaxed));
        let is_over = writes >= EPOCH_WRITES_MIN && lasted_ns >= EPOCH_NS_MIN;
        if !is_over && lasted_ns < EPOCH_NS_MAX {
            return;
        }
        // One shard ends it; writes that another counts meanwhile are few.
        let Some(mut trial) = self.trial.try_lock() else { return };
        self.writes.store(0, Relaxed);
        self.bytes.store(0, Relaxed);
        self.began_ns.store(now_ns, Relaxed);
        let has_load = is_over && lasted_ns < 2 * EPOCH_NS_MAX;
        let reached =
            || Reached { rate: bytes * 1_000 / (lasted_ns / 1_000_000), write_bytes: bytes / writes };
        self.by_peers.store(trial.epoch(has_load.then(reached)), Relaxed);
    }
}

/// What an epoch was.
#[derive(Clone, Copy, Debug)]
struct Reached {
    /// Bytes a second.
    rate: u64,
    /// Mean size of a write of a stripe.
    write_bytes: u64,
}

/// Compares the two ways, an epoch each, and keeps the faster one.
#[derive(Debug)]
struct Trial {
    by_peers: bool,
    interval: u32,
    stage: Stage,
    /// Mean size of a write when the last trial began.
    tried_bytes: u64,
}

#[derive(Debug)]
enum Stage {
    /// How many more epochs pass before the next trial.
    Steady(u32),
    /// The other way has begun, and writes of the first are still under way. What the first reached.
    Changing(u64),
    /// The other way is measured.
    Trying(u64),
    /// What was tried is over, and writes of it are still under way.
    Returning,
}

impl Trial {
    fn new() -> Self {
        let interval = *INTERVALS.start();
        Trial { by_peers: false, interval, stage: Stage::Steady(1), tried_bytes: 0 }
    }

    /// An epoch has ended; none: there was little to do. Whether targets make parity in the next.
    fn epoch(&mut self, reached: Option<Reached>) -> bool {
        let Some(Reached { rate, write_bytes }) = reached else {
            let was_tried = matches!(self.stage, Stage::Changing(_) | Stage::Trying(_));
            self.by_peers ^= was_tried;
            self.stage = Stage::Steady(1);
            return self.by_peers;
        };
        self.stage = match self.stage {
            Stage::Steady(0) => {
                self.by_peers = !self.by_peers;
                self.tried_bytes = write_bytes;
                Stage::Changing(rate)
            }
            // The epoch in which it changed was of both loads.
            Stage::Steady(left) if left > 1 && is_another_load(self.tried_bytes, write_bytes) => {
                self.interval = *INTERVALS.start();
                Stage::Steady(1)
            }
            Stage::Steady(left) => Stage::Steady(left - 1),
            Stage::Changing(before) => Stage::Trying(before),
            Stage::Trying(before) if rate * 100 > before * (100 + GAIN_PERCENT) => {
                self.interval = *INTERVALS.start();
                Stage::Steady(self.interval)
            }
            Stage::Trying(_) => {
                self.by_peers = !self.by_peers;
                Stage::Returning
            }
            Stage::Returning => {
                self.interval = (4 * self.interval).min(*INTERVALS.end());
                Stage::Steady(self.interval)
            }
        };
        self.by_peers
    }
}

fn is_another_load(before: u64, now: u64) -> bool {
    before.max(now) * 100 > before.min(now) * OTHER_LOAD_PERCENT
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reached(rate: u64) -> Option<Reached> {
        Some(Reached { rate, write_bytes: 4096 })
    }

    /// Epochs, of which the two ways reach these rates, host first. How many were by the targets in the last half.
    fn plays(rates: [u64; 2], epochs: u32) -> u32 {
        let (mut trial, mut by_peers, mut count) = (Trial::new(), false, 0);
        for epoch in 0..epochs {
            by_peers = trial.epoch(reached(rates[usize::from(by_peers)]));
            count += u32::from(by_peers && epoch >= epochs / 2);
        }
        count
    }

    #[test]
    fn the_faster_way_has_nearly_all_epochs() {
        assert!(plays([100, 200], 2000) > 970);
        assert!(plays([200, 100], 2000) < 30);
        assert!(plays([100, 101], 2000) < 30, "what gains little is not worth the change");
    }

    #[test]
    fn what_is_faster_later_is_found_and_a_trial_without_load_ends() {
        let mut trial = Trial::new();
        let mut run = |rates: [Option<u64>; 2], epochs| {
            let mut by_peers = trial.by_peers;
            for _ in 0..epochs {
                by_peers = trial.epoch(rates[usize::from(by_peers)].and_then(reached));
            }
            by_peers
        };
        assert!(!run([Some(2), Some(1)], 300));
        assert!(run([Some(100), Some(200)], 300), "the longest interval is 256 epochs");
        assert!(run([Some(100), None], 4), "no rate, no trial");
    }

    #[test]
    fn writes_of_another_size_are_tried_at_once() {
        let mut trial = Trial::new();
        let mut by_peers = false;
        for epoch in 0..1020 {
            // Small ones are faster at the host, large ones by the targets.
            let (write_bytes, rates) = if epoch < 1000 { (4096, [200, 100]) } else { (131_072, [100, 200]) };
            by_peers = trial.epoch(Some(Reached { rate: rates[usize::from(by_peers)], write_bytes }));
        }
        assert!(by_peers, "within 20 epochs, although trials were 256 apart");
    }

    #[test]
    fn epochs_need_time_and_writes() {
        let mode = PeerMode::default();
        mode.enable(true);
        mode.set_up(true);
        let mut now_ns = 0;
        // 4 KiB at a time: 400 a second at the host, 2,000 a second by the targets.
        let mut by_targets = 0;
        for _ in 0..20_000 {
            by_targets += u32::from(mode.by_peers());
            now_ns += if mode.by_peers() { 500_000 } else { 2_500_000 };
            mode.wrote(4096, now_ns);
        }
        assert!(by_targets > 15_000, "{by_targets}");
    }
}
