//! One shard of the parity cache: stripes in order of use, and fingerprints of the rows written lately.

use slab::Slab;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::worth::CacheCounters;
use crate::buffer::Slice;
use crate::code::rows::{Fragment, Rows};
use layout::units::Stripe;

/// The shard remembers one fingerprint of rows written lately, cached or not, for this many bytes of cache: 16 bytes of
/// memory for 4096.
const BYTES_PER_FINGERPRINT: usize = 4096;

/// Spreads a number over all bits.
pub(super) fn mix(number: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A hash of the rows of a parity chunk; never 0.
fn fingerprint(stripe: Stripe, fragment: &Fragment) -> u64 {
    mix(mix(stripe.get() + 1) ^ u64::from(fragment.rows.start) << 8 ^ u64::from(fragment.chunk)) | 1
}

/// Stripe numbers are no attacker's choice: one multiplication spreads them well enough.
#[derive(Default)]
struct StripeHasher(u64);

impl Hasher for StripeHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only stripe numbers are hashed")
    }
    fn write_u64(&mut self, stripe: u64) {
        self.0 = mix(stripe).rotate_left(26);
    }
}

pub(super) type Parts = SmallVec<[(Fragment, Slice); 2]>;

pub(super) struct Entry {
    pub stripe: Stripe,
    pub parts: Parts,
    newer: usize,
    older: usize,
}

const NONE: usize = usize::MAX;

/// One shard: entries in a slab, linked from the most to the least recently used.
pub(super) struct Lru {
    index: HashMap<Stripe, usize, BuildHasherDefault<StripeHasher>>,
    pub entries: Slab<Entry>,
    newest: usize,
    oldest: usize,
    bytes: usize,
    bytes_max: usize,
    /// The rows last written, in a table indexed by [`fingerprint`].
    seen: Box<[Seen]>,
    /// Bytes of parity written so far, cached or not.
    written: u64,
    pub counters: CacheCounters,
}

/// Rows, and the value of [`Lru::written`] when they were written.
#[derive(Clone, Copy, Default)]
struct Seen {
    fingerprint: u64,
    written: u64,
}

impl Lru {
    pub fn new(bytes_max: usize) -> Self {
        Lru {
            index: HashMap::default(),
            entries: Slab::new(),
            newest: NONE,
            oldest: NONE,
            bytes: 0,
            bytes_max,
            seen: vec![Seen::default(); (bytes_max / BYTES_PER_FINGERPRINT).max(1)].into_boxed_slice(),
            written: 0,
            counters: CacheCounters::default(),
        }
    }

    pub fn clear(&mut self) {
        *self = Lru { counters: self.counters, ..Lru::new(self.bytes_max) };
    }

    pub fn take(&mut self, stripe: Stripe, rows: Rows) -> Parts {
        let taken = self.take_parts(stripe, rows);
        match taken.is_empty() {
            true => self.counters.misses += 1,
            false => self.counters.hits += 1,
        }
        taken
    }

    /// Whether the last look-up ended a window. A window is long enough for its share of hits to mean something: twice as
    /// many look-ups as the shard remembers fingerprints.
    pub fn ends_window(&self) -> bool {
        let lookups = self.counters.hits + self.counters.misses;
        lookups.is_multiple_of(2 * self.seen.len() as u64)
    }

    fn take_parts(&mut self, stripe: Stripe, rows: Rows) -> Parts {
        let mut taken = Parts::new();
        let Some(&at) = self.index.get(&stripe) else { return taken };
        let mut freed = 0;
        self.entries[at].parts.retain(|(fragment, slice)| {
            let apart = fragment.rows.end <= rows.start || rows.end <= fragment.rows.start;
            if !apart {
                freed += slice.len();
                // A part that reaches beyond the rows is of use too: the plan cuts at its ends.
                taken.push((*fragment, slice.clone()));
            }
            apart
        });
        self.bytes -= freed;
        self.touch(at);
        for (fragment, _) in &taken {
            self.note_seen(stripe, fragment); // parity that was of use is admitted again
        }
        taken
    }

    pub fn put(&mut self, stripe: Stripe, fragment: Fragment, slice: &Slice) {
        let is_admitted = self.note_seen(stripe, &fragment);
        self.written += slice.len() as u64;
        if !is_admitted {
            return;
        }
        self.bytes += slice.len();
        let slice = slice.clone();
        match self.index.get(&stripe) {
            Some(&at) => {
                self.entries[at].parts.push((fragment, slice));
                self.touch(at);
            }
            None => {
                let parts = Parts::from_iter([(fragment, slice)]);
                let at = self.entries.insert(Entry { stripe, parts, newer: NONE, older: NONE });
                self.index.insert(stripe, at);
                self.link_newest(at);
            }
        }
        while self.bytes > self.bytes_max && self.oldest != NONE {
            let stripe = self.entries[self.oldest].stripe;
            self.remove(stripe);
            self.counters.evictions += 1;
        }
    }

    /// Checks that list, index and counts match the entries.
    pub fn self_check(&self) {
        let (mut at, mut newer, mut bytes, mut count) = (self.newest, NONE, 0, 0);
        while at != NONE {
            let entry = &self.entries[at];
            assert_eq!(entry.newer, newer, "the list reads the same from both ends");
            assert_eq!(self.index.get(&entry.stripe), Some(&at), "an entry is found by its stripe");
            for (index, (fragment, slice)) in entry.parts.iter().enumerate() {
                assert_eq!(fragment.rows.bytes(), slice.len(), "a part has the length of its rows");
                let overlaps = |other: &Fragment| {
                    let (one, two) = (fragment.rows, other.rows);
                    fragment.chunk == other.chunk && one.start < two.end && two.start < one.end
                };
                let others = entry.parts[index + 1..].iter();
                assert!(
                    !others.map(|(other, _)| other).any(overlaps),
                    "invariant 5: two versions of the same rows"
                );
                bytes += slice.len();
            }
            (newer, at, count) = (at, entry.older, count + 1);
        }
        assert_eq!(self.oldest, newer, "the list ends at its oldest entry");
        assert_eq!((self.bytes, self.index.len(), self.entries.len()), (bytes, count, count));
    }

    /// Remembers rows as written now. True if they were written before, recently enough for the cache to hold them still.
    fn note_seen(&mut self, stripe: Stripe, fragment: &Fragment) -> bool {
        let now = Seen { fingerprint: fingerprint(stripe, fragment), written: self.written };
        // The upper half of the fingerprint, scaled to the size of the table.
        let at = (((now.fingerprint >> 32) * self.seen.len() as u64) >> 32) as usize;
        let last = std::mem::replace(&mut self.seen[at], now);
        last.fingerprint == now.fingerprint && now.written - last.written <= self.bytes_max as u64
    }

    pub fn remove(&mut self, stripe: Stripe) {
        if let Some(at) = self.index.remove(&stripe) {
            self.unlink(at);
            let entry = self.entries.remove(at);
            self.bytes -= entry.parts.iter().map(|(_, slice)| slice.len()).sum::<usize>();
        }
    }

    fn touch(&mut self, at: usize) {
        if self.newest != at {
            self.unlink(at);
            self.link_newest(at);
        }
    }

    fn link_newest(&mut self, at: usize) {
        (self.entries[at].newer, self.entries[at].older) = (NONE, self.newest);
        match self.newest {
            NONE => self.oldest = at,
            newest => self.entries[newest].newer = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: usize) {
        let (newer, older) = (self.entries[at].newer, self.entries[at].older);
        match newer {
            NONE => self.newest = older,
            newer => self.entries[newer].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.entries[older].newer = newer,
        }
    }
}
