//! Which of several targets puts a lost chunk together (dRAID 6.2).
//!
//! It receives a part of each other one, and its link may be slower than theirs, or busy with other work. Targets report no figures
//! of their links: a link knows its own rate, and not that of the network behind it. So their host measures what it gets: the time
//! of a chunk at a target that had no other. The next chunk goes where it is expected first.
//!
//! What a target with many chunks sends in a time is more, since their parts come side by side, and is no measure: chunks that
//! others put together wait for that target's parts, whose orders its busy link has to receive. Each would take as long anywhere as
//! all those before it at the busy target, which would look fastest and keep them all.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use smallvec::SmallVec;

use super::order::{PEERS_MAX, PeerIndex};

/// A target that was not asked for this long may have become faster: it is tried again, with one chunk at a time.
const STALE_NS: u64 = 1_000_000_000;
/// Expectations that differ by less than this part are alike: a link that has rested takes a burst, and turns are as fast as any.
const ALIKE: u64 = 4;
/// A measurement counts for so much of the mean.
const WEIGHT: u64 = 8;

/// What a host knows of the targets of an attach as reducers.
#[derive(Debug)]
pub struct ReducerChoice {
    peers: [Peer; PEERS_MAX],
    /// How many chunks were drawn for.
    draws: AtomicU64,
}

#[derive(Debug, Default)]
struct Peer {
    /// Bytes of chunks that it is putting together.
    under_way: AtomicU64,
    /// Mean of bytes a second, of chunks that were alone there; 0 until it has put one together.
    rate: AtomicU64,
    measured_ns: AtomicU64,
}

impl Default for ReducerChoice {
    fn default() -> Self {
        ReducerChoice { peers: std::array::from_fn(|_| Peer::default()), draws: AtomicU64::new(0) }
    }
}

impl ReducerChoice {
    /// The position of one of `candidates` at random, whatever its speed: what the paper compares with.
    pub fn draw(&self, candidates: usize) -> usize {
        let mut mixed = self.draws.fetch_add(1, Relaxed).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ mixed >> 31) % candidates as u64) as usize
    }

    /// The candidate, by its position, from which `bytes` are expected first; any of those that are about as good.
    pub fn pick(&self, candidates: &[PeerIndex], bytes: u64, now_ns: u64) -> usize {
        let expected = |peer: &PeerIndex| self.peers[usize::from(*peer)].expected_ns(bytes, now_ns);
        let all: SmallVec<[u64; 16]> = candidates.iter().map(expected).collect();
        let best = *all.iter().min().expect("somebody has to do it");
        let is_as_good = |expected: u64| expected <= best.saturating_add(best / ALIKE);
        let good: SmallVec<[usize; 16]> = (0..all.len()).filter(|at| is_as_good(all[*at])).collect();
        good[self.draw(good.len())]
    }

    /// A target begins to put a chunk together.
    pub fn begin(&self, peer: PeerIndex, bytes: u64, now_ns: u64) -> UnderWay<'_> {
        let peer = &self.peers[usize::from(peer)];
        let before = peer.under_way.fetch_add(bytes, Relaxed);
        UnderWay { peer, bytes, queued: before + bytes, began_ns: now_ns }
    }
}

impl Peer {
    fn expected_ns(&self, bytes: u64, now_ns: u64) -> u64 {
        let under_way = self.under_way.load(Relaxed);
        let is_stale = now_ns.saturating_sub(self.measured_ns.load(Relaxed)) > STALE_NS;
        match self.rate.load(Relaxed) {
            // One that nothing is known of, or no more, is tried, and no other chunk with it.
            0 if under_way > 0 => u64::MAX,
            0 => 0,
            _ if is_stale && under_way == 0 => 0,
            rate => u64::try_from(u128::from(under_way + bytes) * 1_000_000_000 / u128::from(rate))
                .unwrap_or(u64::MAX),
        }
    }
}

/// A chunk that a target puts together.
#[must_use]
pub struct UnderWay<'a> {
    peer: &'a Peer,
    bytes: u64,
    /// With what was under way when it began.
    queued: u64,
    began_ns: u64,
}

impl UnderWay<'_> {
    /// It came, or did not: then there are better ones for a while.
    pub fn ended(self, came: bool, now_ns: u64) {
        if !came {
            self.peer.rate.store(1, Relaxed);
            self.peer.measured_ns.store(now_ns, Relaxed);
            return;
        }
        let elapsed_ns = now_ns.saturating_sub(self.began_ns);
        if elapsed_ns == 0 {
            return; // no clock
        }
        let new = u64::try_from(u128::from(self.queued) * 1_000_000_000 / u128::from(elapsed_ns))
            .unwrap_or(u64::MAX)
            .max(1);
        let old = self.peer.rate.load(Relaxed);
        // One that had others before it tells of a target that has become slower, and of none that is faster.
        let tells = self.queued == self.bytes || new < old;
        let mean = match old {
            0 => new,
            old if tells => old - old / WEIGHT + new / WEIGHT,
            old => old,
        };
        self.peer.rate.store(mean.max(1), Relaxed);
        self.peer.measured_ns.store(now_ns, Relaxed);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.peer.under_way.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 64 << 10;
    const MS: u64 = 1_000_000;
    const LONG_NS: u64 = 2 * STALE_NS;

    /// How often each of three targets puts one of many chunks together, each chunk after the one before. Rates in bytes a microsecond.
    fn shares(rates: [u64; 3], chunks: usize) -> [usize; 3] {
        let (choice, mut now_ns, mut shares) = (ReducerChoice::default(), STALE_NS * 2, [0; 3]);
        for _ in 0..chunks {
            let at = choice.pick(&[4, 7, 9], CHUNK, now_ns);
            let under_way = choice.begin([4, 7, 9][at], CHUNK, now_ns);
            now_ns += CHUNK * 1_000 / rates[at];
            under_way.ended(true, now_ns);
            shares[at] += 1;
        }
        shares
    }

    #[test]
    fn a_slow_target_is_tried_now_and_then() {
        // 655 us or 6.5 ms a chunk: the slow one once a second.
        let [one, slow, other] = shares([100, 10, 90], 6_000);
        assert!(one > 2_700 && other > 2_700 && (2..12).contains(&slow), "{one} {slow} {other}");
    }

    #[test]
    fn equals_are_picked_alike() {
        let (choice, mut picked) = (ReducerChoice::default(), [0; 3]);
        (0..3_000).for_each(|_| picked[choice.pick(&[0, 1, 2], CHUNK, 0)] += 1);
        assert!(picked.iter().all(|count| (900..1_100).contains(count)), "{picked:?}");
    }

    #[test]
    fn what_is_under_way_counts() {
        let choice = ReducerChoice::default();
        for peer in 0..2 {
            choice.begin(peer, CHUNK, STALE_NS).ended(true, STALE_NS + MS);
        }
        let mut open = Vec::new();
        for _ in 0..10 {
            let at = choice.pick(&[0, 1], CHUNK, STALE_NS + 2 * MS);
            open.push((at, choice.begin(at as PeerIndex, CHUNK, STALE_NS + 2 * MS)));
        }
        let first = open.iter().filter(|(at, _)| *at == 0).count();
        assert!((4..=6).contains(&first), "{first}");
        drop(open);
        assert_eq!(choice.peers[0].under_way.load(Relaxed), 0);
    }

    #[test]
    fn one_that_failed_is_tried_again_later() {
        let choice = ReducerChoice::default();
        choice.begin(0, CHUNK, STALE_NS).ended(true, STALE_NS + MS);
        choice.begin(1, CHUNK, STALE_NS).ended(false, STALE_NS + MS);
        assert!((0..100).all(|_| choice.pick(&[0, 1], CHUNK, STALE_NS + 2 * MS) == 0));
        assert_eq!(choice.pick(&[1], CHUNK, STALE_NS + 2 * MS), 0, "there is no other");
        choice.begin(0, CHUNK, 3 * STALE_NS).ended(true, 3 * STALE_NS + MS);
        assert_eq!(choice.pick(&[0, 1], CHUNK, 3 * STALE_NS + MS), 1);
    }

    /// What comes of many chunks in a time does not make a target fast, and that of one chunk does; either makes it slow.
    #[test]
    fn a_target_is_as_fast_as_with_one_chunk() {
        let choice = ReducerChoice::default();
        let rate = || choice.peers[0].rate.load(Relaxed);
        choice.begin(0, CHUNK, LONG_NS).ended(true, LONG_NS + 4 * MS);
        let alone = rate();
        let several: Vec<_> = (0..4).map(|_| choice.begin(0, CHUNK, LONG_NS)).collect();
        several.into_iter().rev().for_each(|one| one.ended(true, LONG_NS + 4 * MS));
        assert_eq!(rate(), alone, "four side by side, as fast as one");
        let several: Vec<_> = (0..4).map(|_| choice.begin(0, CHUNK, LONG_NS)).collect();
        several.into_iter().for_each(|one| one.ended(true, LONG_NS + 100 * MS));
        assert!(rate() < alone);
        let slow = rate();
        choice.begin(0, CHUNK, LONG_NS).ended(true, LONG_NS + MS);
        assert!(rate() > slow);
    }

    #[test]
    fn one_that_is_unknown_gets_one_chunk_at_a_time() {
        let choice = ReducerChoice::default();
        choice.begin(0, CHUNK, STALE_NS).ended(true, STALE_NS + MS);
        assert_eq!(choice.pick(&[0, 1], CHUNK, STALE_NS + MS), 1);
        let _first = choice.begin(1, CHUNK, STALE_NS + MS);
        assert_eq!(choice.pick(&[0, 1], CHUNK, STALE_NS + MS), 0);
    }
}
