//! Every kernel gives the bytes of the scalar one, for every operation, any number of chunks, any length and any
//! alignment, and writes nothing beside its outputs.

use parity::{ALIGNMENT, Change, DATA_CHUNKS_MAX, Kernel};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// A slice somewhere within a larger buffer, whose other bytes have to stay as they are.
struct Placed {
    buffer: Vec<u8>,
    start: usize,
    len: usize,
}

impl Placed {
    /// `skew` bytes past an address that a vector of any kernel is aligned to.
    fn new(len: usize, skew: usize, noise: &mut Noise) -> Self {
        let mut buffer = vec![0; len + 3 * ALIGNMENT];
        noise.fill(&mut buffer);
        let start = buffer.as_ptr().align_offset(ALIGNMENT) + skew;
        Self { buffer, start, len }
    }

    fn bytes(&self) -> &[u8] {
        &self.buffer[self.start..][..self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buffer[self.start..][..self.len]
    }

    /// A copy in a buffer of its own, at the same alignment.
    fn copied(&self) -> Self {
        let skew = self.start - self.buffer.as_ptr().align_offset(ALIGNMENT);
        let mut copy = Self { buffer: vec![0; self.buffer.len()], start: 0, len: self.len };
        copy.start = copy.buffer.as_ptr().align_offset(ALIGNMENT) + skew;
        copy.bytes_mut().copy_from_slice(self.bytes());
        copy
    }

    /// What was written, after a check that nothing was written around it.
    fn into_written(self, before: &[u8]) -> Vec<u8> {
        assert!(self.buffer[..self.start] == before[..self.start], "written before the output");
        let end = self.start + self.len;
        assert!(self.buffer[end..] == before[end..], "written behind the output");
        self.bytes().to_vec()
    }
}

/// xorshift64*: quick and repeatable.
struct Noise(u64);

impl Noise {
    fn fill(&mut self, bytes: &mut [u8]) {
        for bytes in bytes.chunks_mut(8) {
            self.0 ^= self.0 >> 12;
            self.0 ^= self.0 << 25;
            self.0 ^= self.0 >> 27;
            let word = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
    }
}

/// Runs an operation into one or two outputs whose content before is `seed`, and returns what it wrote.
fn outputs<const N: usize>(seed: &[Placed; N], run: impl FnOnce(&mut [&mut [u8]; N])) -> [Vec<u8>; N] {
    let mut outputs = seed.each_ref().map(Placed::copied);
    let before = outputs.each_ref().map(|output| output.buffer.clone());
    run(&mut outputs.each_mut().map(Placed::bytes_mut));
    let mut before = before.iter();
    outputs.map(|output| output.into_written(before.next().expect("as many")))
}

struct Stripe {
    data: Vec<Placed>,
    /// New content of some chunks.
    news: Vec<(usize, Placed)>,
    parity: [Placed; 2],
}

impl std::fmt::Debug for Stripe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let changed: Vec<_> = self.news.iter().map(|new| new.0).collect();
        write!(f, "{} chunks of {} bytes, changed {changed:?}", self.data.len(), self.data[0].len)
    }
}

impl Stripe {
    fn new(width: usize, blocks: usize, changed: &[Index], skews: &[usize], seed: u64) -> Self {
        let mut noise = Noise(seed | 1);
        let len = blocks * ALIGNMENT;
        let mut skews = skews.iter().copied().cycle();
        let mut place = || Placed::new(len, skews.next().expect("not empty"), &mut noise);
        let data = (0..width).map(|_| place()).collect();
        let mut indices: Vec<_> = changed.iter().map(|index| index.index(width)).collect();
        indices.sort_unstable();
        indices.dedup();
        indices.reverse();
        let news = indices.into_iter().map(|index| (index, place())).collect();
        Self { data, news, parity: [place(), place()] }
    }

    fn data(&self) -> Vec<&[u8]> {
        self.data.iter().map(Placed::bytes).collect()
    }

    fn data_after_changes(&self) -> Vec<&[u8]> {
        let mut data = self.data();
        for (index, new) in &self.news {
            data[*index] = new.bytes();
        }
        data
    }

    fn changes(&self) -> Vec<Change<'_>> {
        let change = |(index, new)| Change { index, old: self.data[index].bytes(), new: Placed::bytes(new) };
        self.news.iter().map(|(index, new)| change((*index, new))).collect()
    }

    fn encoded(&self, kernel: Kernel, data: &[&[u8]]) -> [Vec<u8>; 2] {
        outputs(&self.parity, |[p, q]| kernel.encode_pq(data, p, q))
    }
}

fn others() -> impl Iterator<Item = Kernel> {
    Kernel::available().filter(|kernel| *kernel != Kernel::Scalar)
}

/// Mostly narrow stripes, up to the widest; lengths from none over odd multiples of 64 to several of the widest
/// block of any kernel.
fn stripes() -> impl Strategy<Value = Stripe> {
    let width = prop_oneof![4 => 1..=9usize, 2 => 10..=40usize, 1 => 41..=DATA_CHUNKS_MAX];
    let blocks = prop_oneof![4 => 0..=9usize, 1 => 10..=33usize];
    let skews = prop_oneof![1 => Just(vec![0]), 3 => vec(0..ALIGNMENT, 1..7)];
    (width, blocks, vec(any::<Index>(), 0..6), skews, any::<u64>())
        .prop_map(|(width, blocks, changed, skews, seed)| Stripe::new(width, blocks, &changed, &skews, seed))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn encode_equals_scalar(stripe in stripes()) {
        let data = stripe.data();
        let expected = stripe.encoded(Kernel::Scalar, &data);
        for kernel in Kernel::available() {
            prop_assert!(stripe.encoded(kernel, &data) == expected, "pq {}", kernel.name());
            let [p, q] = outputs(&stripe.parity, |[p, q]| {
                kernel.encode_p(&data, p);
                kernel.encode_q(&data, q);
            });
            prop_assert!(p == expected[0], "p {}", kernel.name());
            prop_assert!(q == expected[1], "q {}", kernel.name());
        }
    }

    #[test]
    fn update_equals_scalar(stripe in stripes(), index in 0..DATA_CHUNKS_MAX) {
        let (old, new) = (stripe.data[0].bytes(), stripe.data[stripe.data.len() - 1].bytes());
        let run = |kernel: Kernel| {
            let both = outputs(&stripe.parity, |[p, q]| kernel.update_pq(index, old, new, p, q));
            let each = outputs(&stripe.parity, |[p, q]| {
                kernel.update_p(old, new, p);
                kernel.update_q(index, old, new, q);
            });
            let summed = outputs(&stripe.parity, |[p, _]| kernel.xor_into(old, p));
            for coefficient in [0, 1, 2, 0x8e, 0xff, parity::coefficient(41)] {
                let with = |kernel: Kernel| {
                    outputs(&stripe.parity, |[p, _]| kernel.add_product(coefficient, old, p))
                };
                assert_eq!(with(kernel), with(Kernel::Scalar), "{kernel:?}, {coefficient}");
            }
            (both, each, summed)
        };
        let expected = run(Kernel::Scalar);
        prop_assert!(expected.0 == expected.1, "scalar");
        for kernel in others() {
            prop_assert!(run(kernel) == expected, "{}", kernel.name());
        }
    }

    #[test]
    fn delta_equals_scalar_and_encoding_anew(stripe in stripes()) {
        let [old_p, old_q] = stripe.encoded(Kernel::Scalar, &stripe.data());
        let expected = stripe.encoded(Kernel::Scalar, &stripe.data_after_changes());
        let changes = stripe.changes();
        for kernel in Kernel::available() {
            let both = outputs(&stripe.parity, |[p, q]| kernel.delta_pq(&changes, &old_p, &old_q, p, q));
            prop_assert!(both == expected, "pq {}", kernel.name());
            let each = outputs(&stripe.parity, |[p, q]| {
                kernel.delta_p(&changes, &old_p, p);
                kernel.delta_q(&changes, &old_q, q);
            });
            prop_assert!(each == expected, "p, q {}", kernel.name());
            let in_place = outputs(&stripe.parity, |[p, q]| {
                p.copy_from_slice(&old_p);
                q.copy_from_slice(&old_q);
                for Change { index, old, new } in &changes {
                    kernel.update_pq(*index, old, new, p, q);
                }
            });
            prop_assert!(in_place == expected, "in place {}", kernel.name());
        }
    }

    #[test]
    fn recovery_returns_what_was_lost(
        stripe in stripes(),
        lost in (any::<Index>(), any::<Index>()),
        first in 0..DATA_CHUNKS_MAX,
        step in prop::sample::select(vec![1, 3, 89, DATA_CHUNKS_MAX - 1]),
    ) {
        // The chunks stand at indices with gaps, in any order; the steps have no divisor in common with 254, so that
        // no index comes twice. The chunks between are zero, which parity cannot tell from absent.
        let width = stripe.data.len();
        let indices: Vec<_> = (0..width).map(|i| (first + i * step) % DATA_CHUNKS_MAX).collect();
        let zero = vec![0; stripe.data[0].len];
        let mut data = vec![zero.as_slice(); DATA_CHUNKS_MAX];
        for (index, chunk) in indices.iter().zip(&stripe.data) {
            data[*index] = chunk.bytes();
        }
        let [p, q] = stripe.encoded(Kernel::Scalar, &data);
        let (x, y) = (indices[lost.0.index(width)], indices[lost.1.index(width)]);
        let known = |kept: &dyn Fn(usize) -> bool| -> Vec<(usize, &[u8])> {
            indices.iter().filter(|index| kept(**index)).map(|index| (*index, data[*index])).collect()
        };
        for kernel in Kernel::available() {
            let but_x = known(&|index| index != x);
            let slices: Vec<_> = but_x.iter().map(|chunk| chunk.1).collect();
            let [from_p, from_q] = outputs(&stripe.parity, |[from_p, from_q]| {
                kernel.recover_data_from_p(&slices, &p, from_p);
                kernel.recover_data_from_q(&but_x, &q, x, from_q);
            });
            prop_assert!(from_p == data[x], "from p {}", kernel.name());
            prop_assert!(from_q == data[x], "from q {}", kernel.name());
            if x != y {
                let but_both = known(&|index| index != x && index != y);
                let [found_x, found_y] = outputs(&stripe.parity, |[found_x, found_y]| {
                    kernel.recover_two_data(&but_both, &p, &q, (x, y), (found_x, found_y));
                });
                prop_assert!(found_x == data[x] && found_y == data[y], "two {}", kernel.name());
            }
        }
    }
}

/// Lengths at which encoding stores past the caches, aligned and not.
#[test]
fn long_chunks_equal_scalar() {
    for (skew, blocks) in [(0, (4 << 20) / ALIGNMENT + 1), (1, (4 << 20) / ALIGNMENT)] {
        let stripe = Stripe::new(3, blocks, &[], &[skew], 7);
        let expected = stripe.encoded(Kernel::Scalar, &stripe.data());
        for kernel in others() {
            assert!(stripe.encoded(kernel, &stripe.data()) == expected, "pq {}", kernel.name());
            let each = outputs(&stripe.parity, |[p, q]| {
                kernel.encode_p(&stripe.data(), p);
                kernel.encode_q(&stripe.data(), q);
            });
            assert!(each == expected, "p, q {}", kernel.name());
        }
    }
}

/// The functions of the crate's root are the best kernel's.
#[test]
fn root_functions_run_the_best_kernel() {
    assert_eq!(parity::kernel_name(), Kernel::best().name());
    assert!(Kernel::best().is_available());
    let stripe = Stripe::new(5, 7, &[], &[3], 11);
    let (data, best) = (stripe.data(), Kernel::best());
    let root = outputs(&stripe.parity, |[p, q]| {
        parity::encode_pq(&data, p, q);
        parity::update_pq(3, data[0], data[1], p, q);
        parity::xor_into(data[2], p);
        parity::add_product(7, data[2], p);
    });
    let method = outputs(&stripe.parity, |[p, q]| {
        best.encode_pq(&data, p, q);
        best.update_pq(3, data[0], data[1], p, q);
        best.xor_into(data[2], p);
        best.add_product(7, data[2], p);
    });
    assert!(root == method);
}

/// Contributions that are made one at a time, anywhere, add up to the parity that is made of all chunks at once.
#[test]
fn contributions_add_up_to_p_and_q() {
    let chunks: Vec<Vec<u8>> =
        (0..9u8).map(|i| (0..192).map(|at| (at as u8).wrapping_mul(i + 3)).collect()).collect();
    let data: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
    let (mut p, mut q) = (vec![0; 192], vec![0; 192]);
    parity::encode_pq(&data, &mut p, &mut q);
    let (mut sum_p, mut sum_q) = (vec![0; 192], vec![0; 192]);
    for (index, chunk) in data.iter().enumerate().rev() {
        parity::add_product(1, chunk, &mut sum_p);
        parity::add_product(parity::coefficient(index), chunk, &mut sum_q);
    }
    assert_eq!((sum_p, sum_q), (p, q));
}
