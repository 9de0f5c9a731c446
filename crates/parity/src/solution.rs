//! The coefficients by which known chunks and Q (and P) give a lost chunk back.
//!
//! Folding the final division into each chunk's coefficient makes recovery the same single pass as encoding, instead
//! of a syndrome pass and a second one over its result as in Linux's `raid6_2data_recov`.

use crate::chunk::DATA_CHUNKS_MAX;
use crate::gf256::{ORDER, inverse, multiply, power};

/// lost = the sum of coefficient * chunk over the known chunks, Q, and P.
pub(crate) struct Solution {
    /// In the order of the known chunks.
    pub(crate) of_known: [u8; DATA_CHUNKS_MAX],
    pub(crate) of_p: u8,
    pub(crate) of_q: u8,
}

impl Solution {
    /// One lost chunk x from Q = sum of g^i d_i:  d_x = g^-x (Q ^ sum of g^i d_i over the known).
    pub(crate) fn of_one(known: &[(usize, &[u8])], lost: usize) -> Self {
        Self::new(known, 0, power(ORDER - lost))
    }

    /// The first of two lost chunks x, y from P and Q. Less the known chunks, P is d_x ^ d_y and Q is
    /// g^x d_x ^ g^y d_y, so  d_x = (Q' ^ g^y P') / (g^x ^ g^y).
    pub(crate) fn of_first_of_two(known: &[(usize, &[u8])], (x, y): (usize, usize)) -> Self {
        let of_q = inverse(power(x) ^ power(y));
        Self::new(known, multiply(power(y), of_q), of_q)
    }

    /// What is there already, and the only known chunk times a coefficient.
    pub(crate) fn of_product(coefficient: u8) -> Self {
        let mut of_known = [0; DATA_CHUNKS_MAX];
        of_known[0] = coefficient;
        Self { of_known, of_p: 0, of_q: 1 }
    }

    fn new(known: &[(usize, &[u8])], of_p: u8, of_q: u8) -> Self {
        let mut of_known = [0; DATA_CHUNKS_MAX];
        for ((index, _), coefficient) in known.iter().zip(&mut of_known) {
            *coefficient = of_p ^ multiply(of_q, power(*index));
        }
        Self { of_known, of_p, of_q }
    }
}
