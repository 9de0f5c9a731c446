//! Kernels for AVX2: 32 bytes a vector, multiplication by looking up half bytes with a shuffle, by g with a compare.

use std::arch::x86_64::{
    __m256i, _mm_loadu_si128, _mm_sfence, _mm256_add_epi8, _mm256_and_si256, _mm256_broadcastsi128_si256,
    _mm256_cmpgt_epi8, _mm256_loadu_si256, _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8,
    _mm256_srli_epi64, _mm256_storeu_si256, _mm256_stream_si256, _mm256_xor_si256,
};

use crate::chunk::Change;
use crate::gf256::{HALF_BYTE_PRODUCTS, REDUCTION};
use crate::passes::{self, InOut, Lanes, Recovery, entry_points};
use crate::solution::Solution;

entry_points!(Ymm, features: "avx2", wide: 4, tail: 2);

#[derive(Clone, Copy)]
struct Ymm(__m256i);

impl Lanes for Ymm {
    const BYTES: usize = 32;
    const STREAMS: bool = true;
    /// The products with the low and with the high half of a byte, in both lanes.
    type Factor = [__m256i; 2];

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the CPU has AVX2, as `Lanes` demands.
        Self(unsafe { _mm256_setzero_si256() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: 32 bytes are readable at `from`, as `Lanes` demands.
        Self(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 32 bytes are writable at `to`, as `Lanes` demands.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: 32 bytes are writable at `to`, which is aligned, as `Lanes` demands.
        unsafe { _mm256_stream_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn fence() {
        // SAFETY: the CPU has SSE.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the CPU has AVX2, as `Lanes` demands.
        Self(unsafe { _mm256_xor_si256(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> Self::Factor {
        let [low, high] = &HALF_BYTE_PRODUCTS[usize::from(coefficient)];
        // SAFETY: each table has the 16 bytes that are loaded; the CPU has AVX2, as `Lanes` demands.
        unsafe {
            [
                _mm256_broadcastsi128_si256(_mm_loadu_si128(low.as_ptr().cast())),
                _mm256_broadcastsi128_si256(_mm_loadu_si128(high.as_ptr().cast())),
            ]
        }
    }

    #[inline(always)]
    unsafe fn times(self, [low, high]: Self::Factor) -> Self {
        // SAFETY: the CPU has AVX2, as `Lanes` demands.
        unsafe {
            let half = _mm256_set1_epi8(0x0f);
            let low = _mm256_shuffle_epi8(low, _mm256_and_si256(self.0, half));
            let high = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi64::<4>(self.0), half));
            Self(_mm256_xor_si256(low, high))
        }
    }

    /// Doubled as integers, then reduced where the top bit was set, which makes a signed byte negative.
    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: the CPU has AVX2, as `Lanes` demands.
        unsafe {
            let carries = _mm256_cmpgt_epi8(_mm256_setzero_si256(), self.0);
            let reduction = _mm256_and_si256(carries, _mm256_set1_epi8(REDUCTION.cast_signed()));
            Self(_mm256_xor_si256(_mm256_add_epi8(self.0, self.0), reduction))
        }
    }
}
