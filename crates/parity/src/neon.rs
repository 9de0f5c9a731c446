//! Kernels for NEON: 16 bytes a vector, multiplication by looking up half bytes in a table, by g with a shift.

use std::arch::aarch64::{
    uint8x16_t, vandq_u8, vdupq_n_u8, veorq_u8, vld1q_u8, vqtbl1q_u8, vreinterpretq_s8_u8,
    vreinterpretq_u8_s8, vshlq_n_u8, vshrq_n_s8, vshrq_n_u8, vst1q_u8,
};

use crate::chunk::Change;
use crate::gf256::{HALF_BYTE_PRODUCTS, REDUCTION};
use crate::passes::{self, InOut, Lanes, Recovery, entry_points};
use crate::solution::Solution;

entry_points!(Quad, features: "neon", wide: 8, tail: 4);

#[derive(Clone, Copy)]
struct Quad(uint8x16_t);

impl Lanes for Quad {
    const BYTES: usize = 16;
    const STREAMS: bool = false;
    /// The products with the low and with the high half of a byte.
    type Factor = [uint8x16_t; 2];

    #[inline(always)]
    unsafe fn zero() -> Self {
        // SAFETY: the CPU has NEON, as `Lanes` demands.
        Self(unsafe { vdupq_n_u8(0) })
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: 16 bytes are readable at `from`, as `Lanes` demands.
        Self(unsafe { vld1q_u8(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: 16 bytes are writable at `to`, as `Lanes` demands.
        unsafe { vst1q_u8(to, self.0) }
    }

    /// There is no streaming store among the intrinsics.
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's promise covers a plain store.
        unsafe { self.store(to) }
    }

    #[inline(always)]
    unsafe fn fence() {}

    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        // SAFETY: the CPU has NEON, as `Lanes` demands.
        Self(unsafe { veorq_u8(self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn factor(coefficient: u8) -> Self::Factor {
        let [low, high] = &HALF_BYTE_PRODUCTS[usize::from(coefficient)];
        // SAFETY: each table has the 16 bytes that are loaded; the CPU has NEON, as `Lanes` demands.
        unsafe { [vld1q_u8(low.as_ptr()), vld1q_u8(high.as_ptr())] }
    }

    #[inline(always)]
    unsafe fn times(self, [low, high]: Self::Factor) -> Self {
        // SAFETY: the CPU has NEON, as `Lanes` demands.
        unsafe {
            let low = vqtbl1q_u8(low, vandq_u8(self.0, vdupq_n_u8(0x0f)));
            let high = vqtbl1q_u8(high, vshrq_n_u8::<4>(self.0));
            Self(veorq_u8(low, high))
        }
    }

    /// Shifted left, then reduced where the top bit was set, which a signed shift right spreads over the byte.
    #[inline(always)]
    unsafe fn double(self) -> Self {
        // SAFETY: the CPU has NEON, as `Lanes` demands.
        unsafe {
            let carries = vreinterpretq_u8_s8(vshrq_n_s8::<7>(vreinterpretq_s8_u8(self.0)));
            let reduction = vandq_u8(carries, vdupq_n_u8(REDUCTION));
            Self(veorq_u8(vshlq_n_u8::<1>(self.0), reduction))
        }
    }
}
