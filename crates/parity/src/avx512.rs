//! Kernels for AVX-512 with GFNI: 64 bytes a vector, any multiplication in one instruction, XOR of three in one.

use std::arch::x86_64::{
    __m512i, _mm_sfence, _mm512_gf2p8affine_epi64_epi8, _mm512_loadu_si512, _mm512_set1_epi64,
    _mm512_setzero_si512, _mm512_storeu_si512, _mm512_stream_si512, _mm512_ternarylogic_epi64,
    _mm512_xor_si512,
};

use crate::chunk::Change;
use crate::gf256::{MATRICES, matrix};
use crate::passes::{self, InOut, Lanes, Recovery, entry_points};
use crate::solution::Solution;

entry_points!(Zmm, features: "avx512f,avx512bw,gfni", wide: 8, tail: 1);

const TIMES_G: i64 = matrix(2).cast_signed();
const TIMES_G2: i64 = matrix(4).cast_signed();
/// The truth table of a ^ b ^ c.
const XOR3: i32 = 0x96;

#[derive(Clone, Copy)]
struct Zmm(__m512i);

impl Lanes for Zmm {
    const BYTES: usize = 64;
    const STREAMS: bool = true;
    type Factor = __m512i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the CPU has AVX-512, as `Lanes` demands.
        Self(unsafe { _mm512_setzero_si512() })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: 64 bytes are readable at `from`, as `Lanes` demands.
        Self(unsafe { _mm512_loadu_si512(from.cast()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 64 bytes are writable at `to`, as `Lanes` demands.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: 64 bytes are writable at `to`, which is aligned, as `Lanes` demands.
        unsafe { _mm512_stream_si512(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn fence() {
        // SAFETY: the CPU has SSE.
        unsafe { _mm_sfence() }
    }

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the CPU has AVX-512, as `Lanes` demands.
        Self(unsafe { _mm512_xor_si512(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        // SAFETY: the CPU has AVX-512, as `Lanes` demands.
        Self(unsafe { _mm512_ternarylogic_epi64::<XOR3>(self.0, a.0, b.0) })
    }

    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> Self::Factor {
        // SAFETY: the CPU has AVX-512, as `Lanes` demands.
        unsafe { _mm512_set1_epi64(MATRICES[usize::from(coefficient)].cast_signed()) }
    }

    #[inline(always)]
    unsafe fn times(self, factor: Self::Factor) -> Self {
        // SAFETY: the CPU has GFNI, as `Lanes` demands.
        Self(unsafe { _mm512_gf2p8affine_epi64_epi8::<0>(self.0, factor) })
    }

    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: the CPU has GFNI, as `Lanes` demands.
        unsafe { self.times(_mm512_set1_epi64(TIMES_G)) }
    }

    /// `self` * g^2 ^ `high` * g ^ `low`: one step less in the chain from chunk to chunk than doubling twice.
    #[inline(always)]
    unsafe fn horner(self, high: Self, low: Self) -> Self {
        // SAFETY: the CPU has GFNI, as `Lanes` demands.
        unsafe { self.times(_mm512_set1_epi64(TIMES_G2)).xor3(high.double(), low) }
    }
}
