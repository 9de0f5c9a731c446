//! One pass over memory for each operation, written once for every SIMD instruction set.
//!
//! An instruction set gives a vector type that is [`Lanes`] and gets its kernels by `entry_points!`. A pass walks the
//! chunks side by side in blocks of `WIDE` vectors, whose sums stay in registers while the sources go by, and ends
//! with blocks of `TAIL` vectors, which are 64 bytes. Nothing is allocated, nothing is read twice.
//!
//! What callers promise (`lib.rs` asserts it): every chunk, seed and output has one length, a multiple of 64 bytes,
//! and the CPU has the instructions. Outputs may be the same memory as the old parity they derive from ([`InOut`]),
//! since a block is read whole before it is written; `&mut` keeps all else apart.
//!
//! Everything here is `inline(always)`: only inside the entry points, which enable the instruction set, can the
//! intrinsics be inlined.

use crate::chunk::Change;
use crate::gf256::power;
use crate::solution::Solution;

/// A vector of field elements.
///
/// Methods are unsafe because the CPU must have the instructions; `load` and `store` also want `BYTES` bytes of
/// memory behind the pointer, at any alignment.
pub(crate) trait Lanes: Copy {
    const BYTES: usize;
    /// Whether [`stream`](Self::stream) is more than a plain store.
    const STREAMS: bool;
    /// A coefficient as the instructions want it.
    type Factor: Copy;

    unsafe fn zero() -> Self;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    /// Stores past the caches where that exists. `to` is aligned to `BYTES`.
    unsafe fn stream(self, to: *mut u8);
    /// Makes streamed stores visible in order with what follows.
    unsafe fn fence();
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn factor(coefficient: u8) -> Self::Factor;
    unsafe fn times(self, factor: Self::Factor) -> Self;
    /// `self` times g
    unsafe fn double(self) -> Self;

    /// `self` ^ `a` ^ `b`
    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        // SAFETY: the caller's promise is the same.
        unsafe { self.xor(a.xor(b)) }
    }

    /// Two steps of Horner's rule: (`self` * g ^ `high`) * g ^ `low`.
    #[inline(always)]
    unsafe fn horner(self, high: Self, low: Self) -> Self {
        // SAFETY: the caller's promise is the same.
        unsafe { self.double().xor(high).double().xor(low) }
    }
}

/// Where a parity chunk is read and where its successor is written; may be the same memory.
#[derive(Clone, Copy)]
pub(crate) struct InOut {
    pub(crate) old: *const u8,
    pub(crate) new: *mut u8,
}

impl InOut {
    /// For the parity that an operation is compiled without: never dereferenced.
    pub(crate) const NONE: Self = Self { old: std::ptr::null(), new: std::ptr::null_mut() };

    pub(crate) fn in_place(parity: &mut [u8]) -> Self {
        let new = parity.as_mut_ptr();
        Self { old: new, new }
    }

    pub(crate) fn between(old: &[u8], new: &mut [u8]) -> Self {
        Self { old: old.as_ptr(), new: new.as_mut_ptr() }
    }
}

/// Does all of `len` bytes with a pass's function for one block, which takes the block's place as its last argument: in
/// wide blocks as far as they go, the rest in blocks of the tail.
macro_rules! in_blocks {
    ($len:expr, $block:ident::<[$wide:ident, $tail:ident] $(, $flag:ident)*>($($argument:expr),*)) => {
        let mut at = 0;
        while at + $wide * V::BYTES <= $len {
            $block::<V, $wide $(, $flag)*>($($argument,)* at);
            at += $wide * V::BYTES;
        }
        while at < $len {
            $block::<V, $tail $(, $flag)*>($($argument,)* at);
            at += $tail * V::BYTES;
        }
    };
}

/// p = the XOR of all data, and of `seed` where given.
///
/// # Safety
/// As the module says; `p` is aligned to a vector if `STREAM`.
#[inline(always)]
pub(crate) unsafe fn sum<V: Lanes, const WIDE: usize, const TAIL: usize, const STREAM: bool>(
    data: &[&[u8]],
    seed: Option<*const u8>,
    p: *mut u8,
    len: usize,
) {
    // SAFETY: every block ends at or before `len`, which is a multiple of the tail's 64 bytes.
    unsafe {
        in_blocks!(len, sum_block::<[WIDE, TAIL], STREAM>(data, seed, p));
        if STREAM {
            V::fence();
        }
    }
}

/// # Safety
/// As the module says, and `N` vectors from `at` on are within the length.
#[inline(always)]
unsafe fn sum_block<V: Lanes, const N: usize, const STREAM: bool>(
    data: &[&[u8]],
    seed: Option<*const u8>,
    p: *mut u8,
    at: usize,
) {
    // SAFETY: the caller's promise, for each access of `N` vectors at `at`.
    unsafe {
        let mut sum = match seed {
            Some(seed) => load::<V, N>(seed.add(at)),
            None => [V::zero(); N],
        };
        let (pairs, rest) = data.as_chunks::<2>();
        for [a, b] in pairs {
            let (a, b) = (a.as_ptr().add(at), b.as_ptr().add(at));
            for (i, sum) in sum.iter_mut().enumerate() {
                *sum = sum.xor3(V::load(a.add(i * V::BYTES)), V::load(b.add(i * V::BYTES)));
            }
        }
        if let [last] = rest {
            let last = last.as_ptr().add(at);
            for (i, sum) in sum.iter_mut().enumerate() {
                *sum = sum.xor(V::load(last.add(i * V::BYTES)));
            }
        }
        store::<V, N, STREAM>(sum, p.add(at));
    }
}

/// q = the sum of `g^i * data[i]`; with `P` also p = the XOR of all data.
///
/// # Safety
/// As the module says; `p` is not touched without `P`; outputs are aligned to a vector if `STREAM`.
#[inline(always)]
pub(crate) unsafe fn encode<
    V: Lanes,
    const WIDE: usize,
    const TAIL: usize,
    const P: bool,
    const STREAM: bool,
>(
    data: &[&[u8]],
    p: *mut u8,
    q: *mut u8,
    len: usize,
) {
    // SAFETY: every block ends at or before `len`, which is a multiple of the tail's 64 bytes.
    unsafe {
        in_blocks!(len, encode_block::<[WIDE, TAIL], P, STREAM>(data, p, q));
        if STREAM {
            V::fence();
        }
    }
}

/// Horner's rule from the last chunk down, two chunks a step.
///
/// # Safety
/// As the module says, and `N` vectors from `at` on are within the length.
#[inline(always)]
unsafe fn encode_block<V: Lanes, const N: usize, const P: bool, const STREAM: bool>(
    data: &[&[u8]],
    p: *mut u8,
    q: *mut u8,
    at: usize,
) {
    // SAFETY: the caller's promise, for each access of `N` vectors at `at`.
    unsafe {
        let (pairs, rest) = data.as_chunks::<2>();
        let mut syndrome = match rest {
            [last] => load::<V, N>(last.as_ptr().add(at)),
            _ => [V::zero(); N],
        };
        let mut sum = syndrome;
        for [low, high] in pairs.iter().rev() {
            let (low, high) = (low.as_ptr().add(at), high.as_ptr().add(at));
            for i in 0..N {
                let (low, high) = (V::load(low.add(i * V::BYTES)), V::load(high.add(i * V::BYTES)));
                if P {
                    sum[i] = sum[i].xor3(low, high);
                }
                syndrome[i] = syndrome[i].horner(high, low);
            }
        }
        if P {
            store::<V, N, STREAM>(sum, p.add(at));
        }
        store::<V, N, STREAM>(syndrome, q.add(at));
    }
}

/// With `P`: p.new = p.old ^ the changes. With `Q`: q.new = q.old ^ the changes, each times its coefficient.
///
/// # Safety
/// As the module says; `p` is not touched without `P`, nor `q` without `Q`.
#[inline(always)]
pub(crate) unsafe fn delta<V: Lanes, const WIDE: usize, const TAIL: usize, const P: bool, const Q: bool>(
    changes: &[Change],
    p: InOut,
    q: InOut,
    len: usize,
) {
    // SAFETY: every block ends at or before `len`, which is a multiple of the tail's 64 bytes.
    unsafe {
        if let [change] = changes {
            // A small write's: the list in each block would take a third of its time.
            let (old, new) = (change.old.as_ptr(), change.new.as_ptr());
            let factor = V::factor(if Q { power(change.index) } else { 1 });
            in_blocks!(len, change_block::<[WIDE, TAIL], P, Q>(old, new, factor, p, q));
        } else {
            in_blocks!(len, delta_block::<[WIDE, TAIL], P, Q>(changes, p, q));
        }
    }
}

/// [`delta_block`] of one change.
///
/// # Safety
/// As the module says, and `N` vectors from `at` on are within the length.
#[inline(always)]
unsafe fn change_block<V: Lanes, const N: usize, const P: bool, const Q: bool>(
    old: *const u8,
    new: *const u8,
    factor: V::Factor,
    p: InOut,
    q: InOut,
    at: usize,
) {
    // SAFETY: the caller's promise, for each access of `N` vectors at `at`.
    unsafe {
        let mut change = load::<V, N>(old.add(at));
        let new = load::<V, N>(new.add(at));
        for i in 0..N {
            change[i] = change[i].xor(new[i]);
        }
        if P {
            let mut sum = load::<V, N>(p.old.add(at));
            for i in 0..N {
                sum[i] = sum[i].xor(change[i]);
            }
            store::<V, N, false>(sum, p.new.add(at));
        }
        if Q {
            let mut syndrome = load::<V, N>(q.old.add(at));
            for i in 0..N {
                syndrome[i] = syndrome[i].xor(change[i].times(factor));
            }
            store::<V, N, false>(syndrome, q.new.add(at));
        }
    }
}

/// # Safety
/// As the module says, and `N` vectors from `at` on are within the length.
#[inline(always)]
unsafe fn delta_block<V: Lanes, const N: usize, const P: bool, const Q: bool>(
    changes: &[Change],
    p: InOut,
    q: InOut,
    at: usize,
) {
    // SAFETY: the caller's promise, for each access of `N` vectors at `at`.
    unsafe {
        let mut sum = if P { load::<V, N>(p.old.add(at)) } else { [V::zero(); N] };
        let mut syndrome = if Q { load::<V, N>(q.old.add(at)) } else { [V::zero(); N] };
        for change in changes {
            let factor = V::factor(power(change.index));
            let (old, new) = (change.old.as_ptr().add(at), change.new.as_ptr().add(at));
            for i in 0..N {
                let (old, new) = (V::load(old.add(i * V::BYTES)), V::load(new.add(i * V::BYTES)));
                if P {
                    sum[i] = sum[i].xor3(old, new);
                }
                if Q {
                    syndrome[i] = syndrome[i].xor(old.xor(new).times(factor));
                }
            }
        }
        if P {
            store::<V, N, false>(sum, p.new.add(at));
        }
        if Q {
            store::<V, N, false>(syndrome, q.new.add(at));
        }
    }
}

/// What a recovery reads and writes. `p` and `y` are null where one chunk is lost.
#[derive(Clone, Copy)]
pub(crate) struct Recovery<'a> {
    pub(crate) known: &'a [(usize, &'a [u8])],
    pub(crate) p: *const u8,
    pub(crate) q: *const u8,
    pub(crate) solution: &'a Solution,
    pub(crate) x: *mut u8,
    pub(crate) y: *mut u8,
}

/// x = the sum of each known chunk and of q times its coefficient. With `TWO` also of p times its own, and y = what
/// the XOR of all known chunks and x then lacks of p.
///
/// # Safety
/// As the module says; `p` and `y` are not touched without `TWO`.
#[inline(always)]
pub(crate) unsafe fn recover<V: Lanes, const WIDE: usize, const TAIL: usize, const TWO: bool>(
    recovery: Recovery<'_>,
    len: usize,
) {
    // SAFETY: every block ends at or before `len`, which is a multiple of the tail's 64 bytes.
    unsafe {
        in_blocks!(len, recover_block::<[WIDE, TAIL], TWO>(recovery));
    }
}

/// # Safety
/// As the module says, and `N` vectors from `at` on are within the length.
#[inline(always)]
unsafe fn recover_block<V: Lanes, const N: usize, const TWO: bool>(recovery: Recovery<'_>, at: usize) {
    let Recovery { known, p, q, solution, x, y } = recovery;
    // SAFETY: the caller's promise, for each access of `N` vectors at `at`.
    unsafe {
        let mut sum = [V::zero(); N];
        let mut lost = load::<V, N>(q.add(at));
        let factor = V::factor(solution.of_q);
        for lost in &mut lost {
            *lost = lost.times(factor);
        }
        if TWO {
            sum = load::<V, N>(p.add(at));
            let factor = V::factor(solution.of_p);
            for i in 0..N {
                lost[i] = lost[i].xor(sum[i].times(factor));
            }
        }
        let (pairs, rest) = known.as_chunks::<2>();
        let (coefficients, of_rest) = solution.of_known[..known.len()].as_chunks::<2>();
        for ([a, b], [of_a, of_b]) in pairs.iter().zip(coefficients) {
            let (factor_a, factor_b) = (V::factor(*of_a), V::factor(*of_b));
            let (a, b) = (a.1.as_ptr().add(at), b.1.as_ptr().add(at));
            for i in 0..N {
                let (a, b) = (V::load(a.add(i * V::BYTES)), V::load(b.add(i * V::BYTES)));
                if TWO {
                    sum[i] = sum[i].xor3(a, b);
                }
                lost[i] = lost[i].xor3(a.times(factor_a), b.times(factor_b));
            }
        }
        if let ([last], [of_last]) = (rest, of_rest) {
            let factor = V::factor(*of_last);
            let last = last.1.as_ptr().add(at);
            for i in 0..N {
                let last = V::load(last.add(i * V::BYTES));
                if TWO {
                    sum[i] = sum[i].xor(last);
                }
                lost[i] = lost[i].xor(last.times(factor));
            }
        }
        store::<V, N, false>(lost, x.add(at));
        if TWO {
            for i in 0..N {
                sum[i] = sum[i].xor(lost[i]);
            }
            store::<V, N, false>(sum, y.add(at));
        }
    }
}

/// # Safety
/// `N` vectors are readable at `from`.
#[inline(always)]
unsafe fn load<V: Lanes, const N: usize>(from: *const u8) -> [V; N] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut vectors = [V::zero(); N];
        for (i, vector) in vectors.iter_mut().enumerate() {
            *vector = V::load(from.add(i * V::BYTES));
        }
        vectors
    }
}

/// # Safety
/// `N` vectors are writable at `to`, which is aligned to a vector if `STREAM`.
#[inline(always)]
unsafe fn store<V: Lanes, const N: usize, const STREAM: bool>(vectors: [V; N], to: *mut u8) {
    // SAFETY: the caller's promise.
    unsafe {
        for (i, vector) in vectors.into_iter().enumerate() {
            let to = to.add(i * V::BYTES);
            if STREAM { vector.stream(to) } else { vector.store(to) }
        }
    }
}

/// From this length of an output on, encoding stores past the caches.
///
/// Measured with 8 data chunks and AVX-512: from and to memory it saves reading the output before writing it, 10 to
/// 15 %. Where the chunks are in L2 it loses 25 to 40 %, and in L3 it gains nothing. The length is all that is known
/// here of where the chunks are; at 4 MiB the output alone exceeds the L2 of today's CPUs. Engines work with chunks
/// of 4 KiB to 1 MiB, which a device is to read next, and so never get here; resync of huge chunks and benches do.
const STREAM_LEN_MIN: usize = 4 << 20;

/// Whether outputs of `len` bytes are to be streamed, and can be.
pub(crate) fn streams<V: Lanes>(len: usize, outputs: &[*mut u8]) -> bool {
    V::STREAMS && len >= STREAM_LEN_MIN && outputs.iter().all(|output| output.addr().is_multiple_of(V::BYTES))
}

/// The kernels of one instruction set: each pass compiled with its CPU features enabled.
macro_rules! entry_points {
    ($lanes:ty, features: $features:literal, wide: $wide:literal, tail: $tail:literal) => {
        const _: () = assert!($tail * <$lanes as $crate::passes::Lanes>::BYTES == 64);

        /// p = the XOR of all data, and of `seed` where given.
        ///
        /// # Safety
        /// The CPU has the features; chunks, `seed` and `p` have `len` bytes, a multiple of 64.
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn sum(data: &[&[u8]], seed: Option<*const u8>, p: *mut u8, len: usize) {
            // SAFETY: the caller's promise is the pass's; alignment is checked before streaming.
            unsafe {
                if passes::streams::<$lanes>(len, &[p]) {
                    passes::sum::<$lanes, $wide, $tail, true>(data, seed, p, len);
                } else {
                    passes::sum::<$lanes, $wide, $tail, false>(data, seed, p, len);
                }
            }
        }

        /// P and Q of all data.
        ///
        /// # Safety
        /// The CPU has the features; chunks, `p` and `q` have `len` bytes, a multiple of 64.
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn encode_pq(data: &[&[u8]], p: *mut u8, q: *mut u8, len: usize) {
            // SAFETY: the caller's promise is the pass's; alignment is checked before streaming.
            unsafe {
                if passes::streams::<$lanes>(len, &[p, q]) {
                    passes::encode::<$lanes, $wide, $tail, true, true>(data, p, q, len);
                } else {
                    passes::encode::<$lanes, $wide, $tail, true, false>(data, p, q, len);
                }
            }
        }

        /// Q of all data.
        ///
        /// # Safety
        /// The CPU has the features; chunks and `q` have `len` bytes, a multiple of 64.
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn encode_q(data: &[&[u8]], q: *mut u8, len: usize) {
            // SAFETY: the caller's promise is the pass's; alignment is checked before streaming.
            unsafe {
                if passes::streams::<$lanes>(len, &[q]) {
                    passes::encode::<$lanes, $wide, $tail, false, true>(data, std::ptr::null_mut(), q, len);
                } else {
                    passes::encode::<$lanes, $wide, $tail, false, false>(data, std::ptr::null_mut(), q, len);
                }
            }
        }

        /// P after the changes.
        ///
        /// # Safety
        /// The CPU has the features; chunks and `p` have `len` bytes, a multiple of 64.
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn delta_p(changes: &[Change], p: InOut, len: usize) {
            // SAFETY: the caller's promise is the pass's.
            unsafe { passes::delta::<$lanes, $wide, $tail, true, false>(changes, p, InOut::NONE, len) }
        }

        /// P and Q after the changes.
        ///
        /// # Safety
        /// The CPU has the features; chunks, `p` and `q` have `len` bytes, a multiple of 64.
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn delta_pq(changes: &[Change], p: InOut, q: InOut, len: usize) {
            // SAFETY: the caller's promise is the pass's.
            unsafe { passes::delta::<$lanes, $wide, $tail, true, true>(changes, p, q, len) }
        }

        /// Q after the changes.
        ///
        /// # Safety
        /// The CPU has the features; chunks and `q` have `len` bytes, a multiple of 64.
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn delta_q(changes: &[Change], q: InOut, len: usize) {
            // SAFETY: the caller's promise is the pass's.
            unsafe { passes::delta::<$lanes, $wide, $tail, false, true>(changes, InOut::NONE, q, len) }
        }

        /// One lost chunk from Q.
        ///
        /// # Safety
        /// The CPU has the features; chunks and pointers have `len` bytes, a multiple of 64.
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn recover_one(
            known: &[(usize, &[u8])],
            q: *const u8,
            solution: &Solution,
            x: *mut u8,
            len: usize,
        ) {
            let recovery = Recovery { known, p: std::ptr::null(), q, solution, x, y: std::ptr::null_mut() };
            // SAFETY: the caller's promise is the pass's.
            unsafe { passes::recover::<$lanes, $wide, $tail, false>(recovery, len) }
        }

        /// Two lost chunks from P and Q.
        ///
        /// # Safety
        /// The CPU has the features; chunks and pointers have `len` bytes, a multiple of 64.
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn recover_two(
            known: &[(usize, &[u8])],
            p: *const u8,
            q: *const u8,
            solution: &Solution,
            (x, y): (*mut u8, *mut u8),
            len: usize,
        ) {
            let recovery = Recovery { known, p, q, solution, x, y };
            // SAFETY: the caller's promise is the pass's.
            unsafe { passes::recover::<$lanes, $wide, $tail, true>(recovery, len) }
        }
    };
}
pub(crate) use entry_points;
