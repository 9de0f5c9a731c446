//! Parity arithmetic for RAID-5 and RAID-6: bytes in, parity out.
//!
//! P is the XOR of the data chunks. Q is the sum of g^i * data\[i\] in GF(2^8) with g = 2 and the polynomial 0x11d,
//! the same bytes as Linux md's. The caller orders the chunks: the index of a chunk is its exponent, so for an md
//! array index 0 is the chunk that stands first in md's syndrome order.
//!
//! | to do | call |
//! |---|---|
//! | write a whole stripe, or check one | [`encode_p`], [`encode_pq`], [`encode_q`] |
//! | change one chunk in place | [`update_p`], [`update_pq`], [`update_q`] |
//! | change some chunks, keep the old parity | [`delta_p`], [`delta_pq`], [`delta_q`] |
//! | add one chunk's part where the others are elsewhere | [`add_product`], [`coefficient`] |
//! | get lost chunks back | [`recover_data_from_p`], [`recover_data_from_q`], [`recover_two_data`] |
//!
//! Each call makes one pass over its chunks, allocates nothing and blocks on nothing. All slices of a call have one
//! length, a multiple of [`ALIGNMENT`] bytes (0 is allowed); they may start at any address. A call that breaks these
//! rules is a mistake of the caller and panics, in release too.
//!
//! ```
//! let data = [[1u8; 64], [2; 64], [3; 64]];
//! let [d0, d1, d2] = data.each_ref().map(|chunk| chunk.as_slice());
//! let (mut p, mut q) = ([0; 64], [0; 64]);
//! parity::encode_pq(&[d0, d1, d2], &mut p, &mut q);
//!
//! let (mut lost_0, mut lost_2) = ([0; 64], [0; 64]);
//! parity::recover_two_data(&[(1, d1)], &p, &q, (0, 2), (&mut lost_0, &mut lost_2));
//! assert_eq!([lost_0, lost_2], [data[0], data[2]]);
//! ```
//!
//! The functions here run [`Kernel::best`]; the same operations are methods of [`Kernel`], for tests and benches.

mod chunk;
mod gf256;
mod kernel;
mod scalar;
mod solution;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod passes;

pub use chunk::{ALIGNMENT, Change, DATA_CHUNKS_MAX};
pub use kernel::Kernel;

/// p = the XOR of all `data`, 1 to [`DATA_CHUNKS_MAX`] chunks.
pub fn encode_p(data: &[&[u8]], p: &mut [u8]) {
    Kernel::best().encode_p(data, p);
}

/// P and Q of all `data`, 1 to [`DATA_CHUNKS_MAX`] chunks; `data[i]` has the coefficient g^i in Q.
pub fn encode_pq(data: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
    Kernel::best().encode_pq(data, p, q);
}

/// Q alone, as in [`encode_pq`].
pub fn encode_q(data: &[&[u8]], q: &mut [u8]) {
    Kernel::best().encode_q(data, q);
}

/// One changed chunk, in place: p ^= `old` ^ `new`.
pub fn update_p(old: &[u8], new: &[u8], p: &mut [u8]) {
    Kernel::best().update_p(old, new, p);
}

/// One changed chunk, in place: p ^= `old` ^ `new`, q ^= g^`index` * (`old` ^ `new`).
pub fn update_pq(index: usize, old: &[u8], new: &[u8], p: &mut [u8], q: &mut [u8]) {
    Kernel::best().update_pq(index, old, new, p, q);
}

/// One changed chunk, in place: q ^= g^`index` * (`old` ^ `new`).
pub fn update_q(index: usize, old: &[u8], new: &[u8], q: &mut [u8]) {
    Kernel::best().update_q(index, old, new, q);
}

/// p = `old_p` with `changes` applied.
pub fn delta_p(changes: &[Change], old_p: &[u8], p: &mut [u8]) {
    Kernel::best().delta_p(changes, old_p, p);
}

/// p = `old_p` and q = `old_q` with `changes` applied, in one pass.
pub fn delta_pq(changes: &[Change], old_p: &[u8], old_q: &[u8], p: &mut [u8], q: &mut [u8]) {
    Kernel::best().delta_pq(changes, old_p, old_q, p, q);
}

/// q = `old_q` with `changes` applied.
pub fn delta_q(changes: &[Change], old_q: &[u8], q: &mut [u8]) {
    Kernel::best().delta_q(changes, old_q, q);
}

/// The one lost data chunk from P and all other data chunks, in any order.
///
/// `known` is empty where the stripe has a single data chunk.
pub fn recover_data_from_p(known: &[&[u8]], p: &[u8], out: &mut [u8]) {
    Kernel::best().recover_data_from_p(known, p, out);
}

/// The one lost data chunk, of index `lost`, from Q and all other data chunks with their indices, in any order.
pub fn recover_data_from_q(known: &[(usize, &[u8])], q: &[u8], lost: usize, out: &mut [u8]) {
    Kernel::best().recover_data_from_q(known, q, lost, out);
}

/// The two lost data chunks, of indices `lost`, from P, Q and all other data chunks with their indices, in any order.
///
/// `out.0` receives chunk `lost.0`, `out.1` chunk `lost.1`.
pub fn recover_two_data(
    known: &[(usize, &[u8])],
    p: &[u8],
    q: &[u8],
    lost: (usize, usize),
    out: (&mut [u8], &mut [u8]),
) {
    Kernel::best().recover_two_data(known, p, q, lost, out);
}

/// dst ^= `src`
pub fn xor_into(src: &[u8], dst: &mut [u8]) {
    Kernel::best().xor_into(src, dst);
}

/// out ^= `coefficient` * `source`: one contribution to any linear code.
pub fn add_product(coefficient: u8, source: &[u8], out: &mut [u8]) {
    Kernel::best().add_product(coefficient, source, out);
}

/// The coefficient in Q of the chunk with this index, g^`index`.
///
/// # Panics
/// If `index` is [`DATA_CHUNKS_MAX`] or more.
pub fn coefficient(index: usize) -> u8 {
    assert!(index < DATA_CHUNKS_MAX, "{index} is no index of a data chunk");
    gf256::power(index)
}

/// What `b` is multiplied by to be `a`, in GF(2^8).
///
/// # Panics
/// If `b` is 0.
pub fn quotient(a: u8, b: u8) -> u8 {
    assert_ne!(b, 0, "nothing times zero is {a}");
    gf256::multiply(a, gf256::inverse(b))
}

/// The product of `a` and `b` in GF(2^8).
pub fn product(a: u8, b: u8) -> u8 {
    gf256::multiply(a, b)
}

/// The name of the kernel in use: "avx512-gfni", "avx2", "neon" or "scalar".
pub fn kernel_name() -> &'static str {
    Kernel::best().name()
}
