//! The field GF(2^8) of RAID-6: polynomials over GF(2) modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11d), generator g = 2.
//!
//! This is the field of the Linux kernel's `lib/raid6`, so Q is the same byte for byte. It is not the field of AES
//! (0x11b): `GF2P8MULB` computes in that one and is of no use here, while `GF2P8AFFINEQB` takes any matrix.
//!
//! All tables are computed by the compiler from [`multiply`].

/// The number of powers of g before they repeat, hence of chunks that Q can tell apart.
pub(crate) const ORDER: usize = 255;

/// What x^8 is congruent to: the low byte of 0x11d.
pub(crate) const REDUCTION: u8 = 0x1d;

/// The product of two field elements.
pub(crate) const fn multiply(a: u8, b: u8) -> u8 {
    let mut product = 0;
    let mut shifted = a; // a * x^bit
    let mut bit = 0;
    while bit < 8 {
        if b >> bit & 1 == 1 {
            product ^= shifted;
        }
        shifted = (shifted << 1) ^ (if shifted & 0x80 != 0 { REDUCTION } else { 0 });
        bit += 1;
    }
    product
}

/// g^`exponent`: the coefficient of chunk `exponent` in Q.
pub(crate) fn power(exponent: usize) -> u8 {
    POWERS[exponent % ORDER]
}

/// The element whose product with `a` is 1. Zero has none.
pub(crate) fn inverse(a: u8) -> u8 {
    assert!(a != 0, "zero has no inverse");
    POWERS[(ORDER - LOGARITHMS[a as usize] as usize) % ORDER]
}

static POWERS: [u8; ORDER] = powers();
static LOGARITHMS: [u8; 256] = logarithms();

/// For each coefficient c: the products of c with 0..16 and then with 0, 16, 32, .. 240, which a byte shuffle looks
/// up by the low and by the high half of each byte.
pub(crate) static HALF_BYTE_PRODUCTS: [[[u8; 16]; 2]; 256] = half_byte_products();

/// For each coefficient c: multiplication by c as the 8x8 bit matrix that `GF2P8AFFINEQB` takes. The row of result
/// bit i is byte 7 - i.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(crate) static MATRICES: [u64; 256] = matrices();

const fn powers() -> [u8; ORDER] {
    let mut table = [1; ORDER];
    let mut i = 1;
    while i < ORDER {
        table[i] = multiply(table[i - 1], 2);
        i += 1;
    }
    table
}

const fn logarithms() -> [u8; 256] {
    let powers = powers();
    let mut table = [0; 256];
    let mut i = 0;
    while i < ORDER {
        table[powers[i] as usize] = i as u8;
        i += 1;
    }
    table
}

const fn half_byte_products() -> [[[u8; 16]; 2]; 256] {
    let mut table = [[[0; 16]; 2]; 256];
    let mut c = 0;
    while c < 256 {
        let mut half = 0;
        while half < 16 {
            table[c][0][half] = multiply(c as u8, half as u8);
            table[c][1][half] = multiply(c as u8, (half << 4) as u8);
            half += 1;
        }
        c += 1;
    }
    table
}

/// Multiplication by `c` as a bit matrix, see [`MATRICES`].
pub(crate) const fn matrix(c: u8) -> u64 {
    let mut rows = 0;
    let mut column = 0;
    while column < 8 {
        let product = multiply(c, 1 << column);
        let mut bit = 0;
        while bit < 8 {
            rows |= ((product >> bit & 1) as u64) << ((7 - bit) * 8 + column);
            bit += 1;
        }
        column += 1;
    }
    rows
}

const fn matrices() -> [u64; 256] {
    let mut table = [0; 256];
    let mut c = 0;
    while c < 256 {
        table[c] = matrix(c as u8);
        c += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generator_has_full_order() {
        assert_eq!(multiply(POWERS[ORDER - 1], 2), 1);
        let mut seen = [false; 256];
        for power in POWERS {
            assert!(power != 0 && !seen[power as usize]);
            seen[power as usize] = true;
        }
    }

    #[test]
    fn powers_match_those_of_linux() {
        // lib/raid6's raid6_gfexp at 0, 8, 9, 128, 254.
        assert_eq!([0, 8, 9, 128, 254].map(power), [0x01, 0x1d, 0x3a, 0x85, 0x8e]);
    }

    #[test]
    fn inverse_times_element_is_one() {
        for a in 1..=255 {
            assert_eq!(multiply(a, inverse(a)), 1);
        }
    }

    #[test]
    fn tables_multiply_like_multiply() {
        for c in 0..=255u8 {
            for x in 0..=255u8 {
                let [low, high] = &HALF_BYTE_PRODUCTS[c as usize];
                assert_eq!(low[(x & 15) as usize] ^ high[(x >> 4) as usize], multiply(c, x));
                let rows = MATRICES[c as usize].to_be_bytes();
                let product = (0..8).map(|bit| ((rows[bit] & x).count_ones() as u8 & 1) << bit).sum::<u8>();
                assert_eq!(product, multiply(c, x));
            }
        }
    }
}
