//! The portable kernel and the oracle of the others: safe code, eight bytes in a word, no tables.
//!
//! It shares no loop with the SIMD kernels (`passes.rs`), so that a mistake there cannot hide here.

use crate::chunk::{Change, Chunk};
use crate::gf256::{REDUCTION, power};
use crate::solution::Solution;

/// 64 bytes, the unit of every length.
type Block = [u64; 8];

/// p = the XOR of all data, and of `seed` where given.
pub(crate) fn sum<C: Chunk>(data: &[C], seed: Option<&[u8]>, p: &mut [u8]) {
    for (at, p) in blocks_mut(p).enumerate() {
        let mut sum = seed.map_or([0; 8], |seed| load(seed, at));
        for chunk in data {
            sum = xor(sum, load(chunk.bytes(), at));
        }
        store(sum, p);
    }
}

/// q = the sum of `g^i * data[i]`, by Horner's rule.
pub(crate) fn encode_q(data: &[&[u8]], q: &mut [u8]) {
    for (at, q) in blocks_mut(q).enumerate() {
        let mut syndrome = [0; 8];
        for chunk in data.iter().rev() {
            syndrome = xor(double(syndrome), load(chunk, at));
        }
        store(syndrome, q);
    }
}

/// parity ^= coefficient * (old ^ new)
pub(crate) fn update(coefficient: u8, old: &[u8], new: &[u8], parity: &mut [u8]) {
    for (at, out) in blocks_mut(parity).enumerate() {
        let change = xor(load(old, at), load(new, at));
        store(xor(load(out, 0), multiply(coefficient, change)), out);
    }
}

/// p = old_p ^ the changes
pub(crate) fn delta_p(changes: &[Change], old_p: &[u8], p: &mut [u8]) {
    p.copy_from_slice(old_p);
    for change in changes {
        update(1, change.old, change.new, p);
    }
}

/// q = old_q ^ the changes, each times its coefficient
pub(crate) fn delta_q(changes: &[Change], old_q: &[u8], q: &mut [u8]) {
    q.copy_from_slice(old_q);
    for change in changes {
        update(power(change.index), change.old, change.new, q);
    }
}

/// out = the sum of each chunk times its coefficient
pub(crate) fn recover_one(known: &[(usize, &[u8])], q: &[u8], solution: &Solution, out: &mut [u8]) {
    for (at, out) in blocks_mut(out).enumerate() {
        let mut sum = multiply(solution.of_q, load(q, at));
        for (chunk, coefficient) in known.iter().zip(&solution.of_known) {
            sum = xor(sum, multiply(*coefficient, load(chunk.bytes(), at)));
        }
        store(sum, out);
    }
}

/// x as in [`recover_one`] with P as one more chunk; y is what P then lacks.
pub(crate) fn recover_two(
    known: &[(usize, &[u8])],
    p: &[u8],
    q: &[u8],
    solution: &Solution,
    x: &mut [u8],
    y: &mut [u8],
) {
    recover_one(known, q, solution, x);
    update_by_product(solution.of_p, p, x);
    sum(known, Some(p), y);
    xor_into(x, y);
}

/// dst ^= src
pub(crate) fn xor_into(src: &[u8], dst: &mut [u8]) {
    update_by_product(1, src, dst);
}

/// out ^= coefficient * source
pub(crate) fn update_by_product(coefficient: u8, source: &[u8], out: &mut [u8]) {
    for (at, out) in blocks_mut(out).enumerate() {
        store(xor(load(out, 0), multiply(coefficient, load(source, at))), out);
    }
}

fn blocks_mut(bytes: &mut [u8]) -> impl Iterator<Item = &mut [u8]> {
    bytes.chunks_exact_mut(size_of::<Block>())
}

fn load(bytes: &[u8], at: usize) -> Block {
    let mut block = [0; 8];
    let bytes = &bytes[at * size_of::<Block>()..][..size_of::<Block>()];
    for (word, bytes) in block.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    block
}

fn store(block: Block, bytes: &mut [u8]) {
    for (bytes, word) in bytes.as_chunks_mut().0.iter_mut().zip(block) {
        *bytes = word.to_ne_bytes();
    }
}

fn xor(a: Block, b: Block) -> Block {
    let mut sum = a;
    for (sum, b) in sum.iter_mut().zip(b) {
        *sum ^= b;
    }
    sum
}

/// Each byte times g: shifted left, and reduced where x^8 came out.
fn double(block: Block) -> Block {
    const TOP_BITS: u64 = 0x8080_8080_8080_8080;
    block.map(|word| {
        let carries = (word & TOP_BITS) >> 7;
        ((word & !TOP_BITS) << 1) ^ (carries * u64::from(REDUCTION))
    })
}

/// Each byte times `coefficient`, bit by bit from the top.
fn multiply(coefficient: u8, block: Block) -> Block {
    let mut product = [0; 8];
    for bit in (0..8).rev() {
        product = double(product);
        if coefficient >> bit & 1 == 1 {
            product = xor(product, block);
        }
    }
    product
}
