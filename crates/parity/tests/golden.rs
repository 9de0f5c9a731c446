//! Parity against values that this crate's own arithmetic had no part in: polynomials multiplied and divided bit by
//! bit, and sums worked out by hand.

use parity::{Change, Kernel};

const LEN: usize = 64;

/// a * b modulo x^8 + x^4 + x^3 + x^2 + 1: the product as a polynomial over GF(2), then long division.
fn product(a: u8, b: u8) -> u8 {
    let mut product = 0u32;
    for bit in 0..8 {
        if b & (1 << bit) != 0 {
            product ^= u32::from(a) << bit;
        }
    }
    for bit in (8..16).rev() {
        if product & (1 << bit) != 0 {
            product ^= 0x11d << (bit - 8);
        }
    }
    product as u8
}

fn power_of_two(exponent: usize) -> u8 {
    (0..exponent).fold(1, |power, _| product(power, 2))
}

/// Every byte value occurs in some chunk, and no two chunks are equal.
fn chunk(index: usize) -> Vec<u8> {
    (0..LEN).map(|at| (at * 7 + index * 61 + (at * index) % 13) as u8).collect()
}

fn syndromes(data: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
    let (mut p, mut q) = (vec![0; LEN], vec![0; LEN]);
    for (index, chunk) in data.iter().enumerate() {
        for at in 0..LEN {
            p[at] ^= chunk[at];
            q[at] ^= product(power_of_two(index), chunk[at]);
        }
    }
    (p, q)
}

fn slices(data: &[Vec<u8>]) -> Vec<&[u8]> {
    data.iter().map(Vec::as_slice).collect()
}

#[test]
fn known_bytes() {
    // Three chunks of one repeated byte each: P = 01^80^ff, Q = 1*01 ^ 2*80 ^ 4*ff, where 2*80 = 11d - 100 = 1d and
    // 4*ff = 2*(1fe - 11d) = 2*e3 = 1c6 - 11d = db.
    let data = [vec![0x01; LEN], vec![0x80; LEN], vec![0xff; LEN]];
    for kernel in Kernel::available() {
        let (mut p, mut q) = (vec![0; LEN], vec![0; LEN]);
        kernel.encode_pq(&slices(&data), &mut p, &mut q);
        assert_eq!(p, vec![0x7e; LEN], "{}", kernel.name());
        assert_eq!(q, vec![0x01 ^ 0x1d ^ 0xdb; LEN], "{}", kernel.name());
    }
}

#[test]
fn encode_is_polynomial_arithmetic_for_every_width() {
    for width in 1..=parity::DATA_CHUNKS_MAX {
        let data: Vec<_> = (0..width).map(chunk).collect();
        let (p, q) = syndromes(&data);
        for kernel in Kernel::available() {
            let (mut found_p, mut found_q, mut found_q_alone) = (vec![1; LEN], vec![2; LEN], vec![3; LEN]);
            kernel.encode_pq(&slices(&data), &mut found_p, &mut found_q);
            assert!(found_p == p && found_q == q, "{} with {width} chunks", kernel.name());
            kernel.encode_p(&slices(&data), &mut found_p);
            kernel.encode_q(&slices(&data), &mut found_q_alone);
            assert!(found_p == p && found_q_alone == q, "{} with {width} chunks", kernel.name());
        }
    }
}

#[test]
fn every_coefficient_times_every_byte() {
    for kernel in Kernel::available() {
        for index in 0..parity::DATA_CHUNKS_MAX {
            let old: Vec<u8> = (0..=255).collect();
            let new = vec![0; old.len()];
            let mut q = vec![0; old.len()];
            kernel.update_q(index, &old, &new, &mut q);
            let coefficient = power_of_two(index);
            for byte in 0..=255 {
                assert_eq!(q[usize::from(byte)], product(coefficient, byte), "{} {index}", kernel.name());
            }
        }
    }
}

/// Any one or two of data, P and Q lost, in stripes of up to 8 data chunks, and with the highest indices.
#[test]
fn every_pair_of_losses_comes_back() {
    for kernel in Kernel::available() {
        for width in 1..=8 {
            let data: Vec<_> = (0..width).map(chunk).collect();
            for x in 0..width {
                lose_one(kernel, &data, x);
                for y in (0..width).filter(|y| *y != x) {
                    lose_two(kernel, &data, x, y);
                }
            }
        }
        let data: Vec<_> = (0..parity::DATA_CHUNKS_MAX).map(chunk).collect();
        for (x, y) in [(0, 253), (253, 0), (252, 253), (127, 128), (1, 200)] {
            lose_one(kernel, &data, x);
            lose_two(kernel, &data, x, y);
        }
    }
}

/// Data chunk `x` with Q lost, then with P lost.
fn lose_one(kernel: Kernel, data: &[Vec<u8>], x: usize) {
    let (p, q) = syndromes(data);
    let known: Vec<_> = (0..data.len()).filter(|i| *i != x).map(|i| (i, data[i].as_slice())).collect();
    let known_slices: Vec<_> = known.iter().map(|chunk| chunk.1).collect();
    let mut out = vec![0xaa; LEN];
    kernel.recover_data_from_p(&known_slices, &p, &mut out);
    assert!(out == data[x], "{} from P: {x} of {}", kernel.name(), data.len());
    out.fill(0xaa);
    kernel.recover_data_from_q(&known, &q, x, &mut out);
    assert!(out == data[x], "{} from Q: {x} of {}", kernel.name(), data.len());
}

fn lose_two(kernel: Kernel, data: &[Vec<u8>], x: usize, y: usize) {
    let (p, q) = syndromes(data);
    let known = (0..data.len()).rev().filter(|i| *i != x && *i != y);
    let known: Vec<_> = known.map(|i| (i, data[i].as_slice())).collect();
    let mut out = (vec![0xaa; LEN], vec![0xaa; LEN]);
    kernel.recover_two_data(&known, &p, &q, (x, y), (&mut out.0, &mut out.1));
    assert!(out.0 == data[x] && out.1 == data[y], "{}: {x}, {y} of {}", kernel.name(), data.len());
}

/// Each rule that a caller can break ends in a panic, and none in a wrong parity.
#[test]
fn misuse_panics() {
    let (chunk, longer, odd) = (vec![0; 64], vec![0; 128], vec![0; 65]);
    let (chunk, longer, odd) = (chunk.as_slice(), longer.as_slice(), odd.as_slice());
    let too_many = vec![chunk; 255];
    let change = |index| Change { index, old: chunk, new: chunk };
    let out = || vec![0u8; 64];
    let misuses: [(&str, &dyn Fn()); 14] = [
        ("no data", &|| parity::encode_p(&[], &mut out())),
        ("255 data chunks", &|| parity::encode_pq(&too_many, &mut out(), &mut out())),
        ("a longer chunk", &|| parity::encode_q(&[chunk, longer], &mut out())),
        ("a shorter chunk", &|| parity::encode_p(&[chunk], &mut [0; 128])),
        ("a shorter q", &|| parity::encode_pq(&[longer], &mut [0; 128], &mut out())),
        ("an odd length", &|| parity::encode_p(&[odd], &mut [0; 65])),
        ("a high index", &|| parity::update_q(254, chunk, chunk, &mut out())),
        ("old and new differ in length", &|| parity::update_p(chunk, longer, &mut out())),
        ("a change twice", &|| parity::delta_p(&[change(3), change(3)], chunk, &mut out())),
        ("old parity longer", &|| parity::delta_q(&[change(3)], longer, &mut out())),
        ("the lost one known", &|| parity::recover_data_from_q(&[(1, chunk)], chunk, 1, &mut out())),
        ("a high lost index", &|| parity::recover_data_from_q(&[(1, chunk)], chunk, 254, &mut out())),
        ("one chunk lost twice", &|| {
            parity::recover_two_data(&[], chunk, chunk, (5, 5), (&mut out(), &mut out()));
        }),
        ("xor of two lengths", &|| parity::xor_into(longer, &mut out())),
    ];
    for (name, misuse) in misuses {
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(misuse));
        assert!(result.is_err(), "{name}");
    }
}
