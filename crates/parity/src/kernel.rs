//! The choice of a kernel, and what every operation asserts before a kernel sees a pointer.

use std::sync::OnceLock;

use crate::chunk::{ALIGNMENT, Change, Chunk, DATA_CHUNKS_MAX};
use crate::solution::Solution;
use crate::{gf256, scalar};

#[cfg(target_arch = "aarch64")]
use crate::neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::passes::InOut;
#[cfg(target_arch = "x86_64")]
use crate::{avx2, avx512};

/// An implementation of every operation of this crate. All give the same bytes.
///
/// The methods are the functions of the crate's root, which say what each does, and panic as those do; also where
/// this CPU lacks the kernel's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kernel {
    /// Portable code, eight bytes in a word.
    Scalar,
    /// x86-64 with AVX2.
    Avx2,
    /// x86-64 with AVX-512 and GFNI (Ice Lake, Zen 4 and later).
    Avx512,
    /// Any 64-bit ARM.
    Neon,
}

/// From the slowest to the fastest.
const ALL: [Kernel; 4] = [Kernel::Scalar, Kernel::Neon, Kernel::Avx2, Kernel::Avx512];

/// Runs a pass of the kernel's own module, or `scalar`. Whatever the pass says it wants was asserted before.
macro_rules! dispatch {
    ($kernel:expr, $pass:ident $arguments:tt, scalar: $scalar:expr) => {
        match $kernel {
            Kernel::Scalar => $scalar,
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `require` found AVX2; the lengths are asserted to be one multiple of 64.
            Kernel::Avx2 => unsafe { avx2::$pass $arguments },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: `require` found AVX-512 and GFNI; the lengths are asserted to be one multiple of 64.
            Kernel::Avx512 => unsafe { avx512::$pass $arguments },
            #[cfg(target_arch = "aarch64")]
            // SAFETY: `require` found NEON; the lengths are asserted to be one multiple of 64.
            Kernel::Neon => unsafe { neon::$pass $arguments },
            #[allow(unreachable_patterns)]
            other => unreachable!("{other:?} passed `require` on another architecture"),
        }
    };
}

impl Kernel {
    /// The fastest that this CPU has.
    pub fn best() -> Self {
        static BEST: OnceLock<Kernel> = OnceLock::new();
        *BEST.get_or_init(|| Self::available().last().unwrap_or(Self::Scalar))
    }

    /// Those that this CPU has, from the slowest to the fastest.
    pub fn available() -> impl Iterator<Item = Self> {
        ALL.into_iter().filter(|kernel| kernel.is_available())
    }

    /// Whether this CPU has the instructions.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("gfni")
            }
            #[cfg(target_arch = "aarch64")]
            Self::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[allow(unreachable_patterns)]
            _ => false,
        }
    }

    /// "avx512-gfni", "avx2", "neon" or "scalar".
    pub fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512-gfni",
            Self::Neon => "neon",
        }
    }

    /// See [`encode_p`](crate::encode_p).
    pub fn encode_p(self, data: &[&[u8]], p: &mut [u8]) {
        self.require(p.len());
        require_stripe(data.len());
        require_lengths(data, p.len());
        self.sum(data, None, p);
    }

    /// See [`encode_pq`](crate::encode_pq).
    pub fn encode_pq(self, data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
        let len = p.len();
        self.require(len);
        require_stripe(data.len());
        require_lengths(data, len);
        require_lengths(&[&*q], len);
        dispatch!(self, encode_pq(data, p.as_mut_ptr(), q.as_mut_ptr(), len), scalar: {
            scalar::sum(data, None, p);
            scalar::encode_q(data, q);
        });
    }

    /// See [`encode_q`](crate::encode_q).
    pub fn encode_q(self, data: &[&[u8]], q: &mut [u8]) {
        let len = q.len();
        self.require(len);
        require_stripe(data.len());
        require_lengths(data, len);
        dispatch!(self, encode_q(data, q.as_mut_ptr(), len), scalar: scalar::encode_q(data, q));
    }

    /// See [`update_p`](crate::update_p).
    pub fn update_p(self, old: &[u8], new: &[u8], p: &mut [u8]) {
        let len = p.len();
        self.require(len);
        require_lengths(&[old, new], len);
        let change = [Change { index: 0, old, new }];
        dispatch!(self, delta_p(&change, InOut::in_place(p), len), scalar: scalar::update(1, old, new, p));
    }

    /// See [`update_pq`](crate::update_pq).
    pub fn update_pq(self, index: usize, old: &[u8], new: &[u8], p: &mut [u8], q: &mut [u8]) {
        let len = p.len();
        self.require(len);
        require_index(index);
        require_lengths(&[old, new, &*q], len);
        let change = [Change { index, old, new }];
        dispatch!(self, delta_pq(&change, InOut::in_place(p), InOut::in_place(q), len), scalar: {
            scalar::update(1, old, new, p);
            scalar::update(gf256::power(index), old, new, q);
        });
    }

    /// See [`update_q`](crate::update_q).
    pub fn update_q(self, index: usize, old: &[u8], new: &[u8], q: &mut [u8]) {
        let len = q.len();
        self.require(len);
        require_index(index);
        require_lengths(&[old, new], len);
        let change = [Change { index, old, new }];
        dispatch!(self, delta_q(&change, InOut::in_place(q), len), scalar: {
            scalar::update(gf256::power(index), old, new, q);
        });
    }

    /// See [`delta_p`](crate::delta_p).
    pub fn delta_p(self, changes: &[Change], old_p: &[u8], p: &mut [u8]) {
        let len = p.len();
        self.require(len);
        require_changes(changes, len);
        require_lengths(&[old_p], len);
        dispatch!(self, delta_p(changes, InOut::between(old_p, p), len), scalar: {
            scalar::delta_p(changes, old_p, p);
        });
    }

    /// See [`delta_pq`](crate::delta_pq).
    pub fn delta_pq(self, changes: &[Change], old_p: &[u8], old_q: &[u8], p: &mut [u8], q: &mut [u8]) {
        let len = p.len();
        self.require(len);
        require_changes(changes, len);
        require_lengths(&[old_p, old_q, &*q], len);
        dispatch!(self, delta_pq(changes, InOut::between(old_p, p), InOut::between(old_q, q), len), scalar: {
            scalar::delta_p(changes, old_p, p);
            scalar::delta_q(changes, old_q, q);
        });
    }

    /// See [`delta_q`](crate::delta_q).
    pub fn delta_q(self, changes: &[Change], old_q: &[u8], q: &mut [u8]) {
        let len = q.len();
        self.require(len);
        require_changes(changes, len);
        require_lengths(&[old_q], len);
        dispatch!(self, delta_q(changes, InOut::between(old_q, q), len), scalar: {
            scalar::delta_q(changes, old_q, q);
        });
    }

    /// See [`recover_data_from_p`](crate::recover_data_from_p).
    pub fn recover_data_from_p(self, known: &[&[u8]], p: &[u8], out: &mut [u8]) {
        self.require(out.len());
        require_stripe(known.len() + 1);
        require_lengths(known, out.len());
        require_lengths(&[p], out.len());
        self.sum(known, Some(p), out);
    }

    /// See [`recover_data_from_q`](crate::recover_data_from_q).
    pub fn recover_data_from_q(self, known: &[(usize, &[u8])], q: &[u8], lost: usize, out: &mut [u8]) {
        let len = out.len();
        self.require(len);
        require_distinct(known.iter().map(|chunk| chunk.0).chain([lost]));
        require_lengths(known, len);
        require_lengths(&[q], len);
        let solution = Solution::of_one(known, lost);
        dispatch!(self, recover_one(known, q.as_ptr(), &solution, out.as_mut_ptr(), len), scalar: {
            scalar::recover_one(known, q, &solution, out);
        });
    }

    /// See [`recover_two_data`](crate::recover_two_data).
    pub fn recover_two_data(
        self,
        known: &[(usize, &[u8])],
        p: &[u8],
        q: &[u8],
        lost: (usize, usize),
        out: (&mut [u8], &mut [u8]),
    ) {
        let (x, y) = out;
        let len = x.len();
        self.require(len);
        require_distinct(known.iter().map(|chunk| chunk.0).chain([lost.0, lost.1]));
        require_lengths(known, len);
        require_lengths(&[p, q, &*y], len);
        let solution = Solution::of_first_of_two(known, lost);
        let pointers = (x.as_mut_ptr(), y.as_mut_ptr());
        dispatch!(self, recover_two(known, p.as_ptr(), q.as_ptr(), &solution, pointers, len), scalar: {
            scalar::recover_two(known, p, q, &solution, x, y);
        });
    }

    /// See [`xor_into`](crate::xor_into).
    pub fn xor_into(self, src: &[u8], dst: &mut [u8]) {
        let len = dst.len();
        self.require(len);
        require_lengths(&[src], len);
        let to = dst.as_mut_ptr();
        dispatch!(self, sum(&[src], Some(to.cast_const()), to, len), scalar: {
            scalar::xor_into(src, dst);
        });
    }

    /// See [`add_product`](crate::add_product).
    pub fn add_product(self, coefficient: u8, source: &[u8], out: &mut [u8]) {
        let len = out.len();
        self.require(len);
        require_lengths(&[source], len);
        let (known, solution) = ([(0, source)], Solution::of_product(coefficient));
        let to = out.as_mut_ptr();
        // As the recovery of one chunk from `out`, whose blocks are read before they are written.
        dispatch!(self, recover_one(&known, to.cast_const(), &solution, to, len), scalar: {
            scalar::update_by_product(coefficient, source, out);
        });
    }

    fn sum(self, data: &[&[u8]], seed: Option<&[u8]>, p: &mut [u8]) {
        let len = p.len();
        let pointer = seed.map(<[u8]>::as_ptr);
        dispatch!(self, sum(data, pointer, p.as_mut_ptr(), len), scalar: scalar::sum(data, seed, p));
    }

    fn require(self, len: usize) {
        assert!(self.is_available(), "this CPU has no {}", self.name());
        assert!(len.is_multiple_of(ALIGNMENT), "the length {len} is no multiple of {ALIGNMENT}");
    }
}

fn require_stripe(data_chunks: usize) {
    assert!(
        (1..=DATA_CHUNKS_MAX).contains(&data_chunks),
        "{data_chunks} data chunks are not within 1 to {DATA_CHUNKS_MAX}"
    );
}

fn require_index(index: usize) {
    assert!(index < DATA_CHUNKS_MAX, "chunk index {index} is not below {DATA_CHUNKS_MAX}");
}

fn require_lengths<C: Chunk>(chunks: &[C], len: usize) {
    for chunk in chunks {
        let found = chunk.bytes().len();
        assert!(found == len, "a chunk has {found} bytes, another {len}");
    }
}

fn require_changes(changes: &[Change], len: usize) {
    for change in changes {
        require_lengths(&[change.old, change.new], len);
    }
    require_distinct(changes.iter().map(|change| change.index));
}

/// Indices are within a stripe, and none stands twice; so there are no more than a stripe has.
fn require_distinct(indices: impl Iterator<Item = usize>) {
    let mut seen = [0u64; DATA_CHUNKS_MAX.div_ceil(64)];
    for index in indices {
        require_index(index);
        let (word, bit) = (index / 64, 1 << (index % 64));
        assert!(seen[word] & bit == 0, "chunk index {index} stands twice");
        seen[word] |= bit;
    }
}
