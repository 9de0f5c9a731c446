//! A chunk as the sum of other chunks, each multiplied by a coefficient. Contributors of a reduction multiply by these. The code is
//! linear: each chunk is such a sum while no more chunks are missing than there is parity (H. P. Anvin, *The mathematics of
//! RAID-6*, sections 3 and 4). There is no I/O, so every case is a row of a table test.

use smallvec::SmallVec;

use super::chunk_set::{Chunk, ChunkSet, P, Q};
use super::plan::Shape;

/// Chunks and their coefficients, none of them 0.
pub(crate) type Combination = SmallVec<[(Chunk, u8); 8]>;

/// The sum that makes up a chunk, of chunks that are not `missing` nor it. None: too many are missing. `factor` is what a data
/// chunk is multiplied by in Q.
pub(crate) fn combination(
    shape: Shape,
    wanted: Chunk,
    missing: ChunkSet,
    factor: impl Fn(Chunk) -> u8,
) -> Option<Combination> {
    let missing = missing.or(ChunkSet::one(wanted));
    let data = shape.data_set();
    let known = data.without(missing);
    let parity = shape.parity_set().without(missing);
    let lost: SmallVec<[Chunk; 2]> = data.and(missing).iter().collect();
    let weight = |parity: Chunk, chunk: Chunk| if parity == P { 1 } else { factor(chunk) };
    let mut sum = Sum::default();
    if !matches!(wanted, P | Q) {
        sum.add_lost(1, wanted, &lost, known, parity, &factor)?;
        return Some(sum.0);
    }
    known.iter().for_each(|chunk| sum.add(chunk, weight(wanted, chunk)));
    for &chunk in &lost {
        sum.add_lost(weight(wanted, chunk), chunk, &lost, known, parity, &factor)?;
    }
    Some(sum.0)
}

#[derive(Default)]
struct Sum(Combination);

impl Sum {
    fn add(&mut self, chunk: Chunk, coefficient: u8) {
        match self.0.iter_mut().find(|(other, _)| *other == chunk) {
            Some((_, sum)) => *sum ^= coefficient,
            None => self.0.push((chunk, coefficient)),
        }
        self.0.retain(|(_, coefficient)| *coefficient != 0);
    }

    /// Adds `times` a lost data chunk. None: too little is left of the stripe.
    fn add_lost(
        &mut self,
        times: u8,
        chunk: Chunk,
        lost: &[Chunk],
        known: ChunkSet,
        parity: ChunkSet,
        factor: &impl Fn(Chunk) -> u8,
    ) -> Option<()> {
        let mut add = |chunk, over: u8, under: u8| {
            self.add(chunk, parity::product(times, parity::quotient(over, under)));
        };
        let own = factor(chunk);
        match lost {
            [_] if parity.contains(P) => known.or(ChunkSet::one(P)).iter().for_each(|of| add(of, 1, 1)),
            [_] if parity.contains(Q) => {
                known.iter().for_each(|of| add(of, factor(of), own));
                add(Q, 1, own);
            }
            [one, two] if parity.contains(P) && parity.contains(Q) => {
                let other = factor(if chunk == *one { *two } else { *one });
                let under = own ^ other;
                known.iter().for_each(|of| add(of, other ^ factor(of), under));
                add(P, other, under);
                add(Q, 1, under);
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DATA: usize = 5;

    /// A byte of every chunk.
    fn contents(chunk: Chunk) -> u8 {
        let data: Vec<[u8; 64]> = (0..DATA as u8).map(|index| [index * 37 + 11; 64]).collect();
        let slices: Vec<&[u8]> = data.iter().map(|chunk| &chunk[..]).collect();
        let (mut p, mut q) = ([0; 64], [0; 64]);
        parity::encode_pq(&slices, &mut p, &mut q);
        match chunk {
            P => p[0],
            Q => q[0],
            data => slices[usize::from(data)][0],
        }
    }

    fn factor(chunk: Chunk) -> u8 {
        parity::coefficient(usize::from(chunk))
    }

    #[test]
    fn every_chunk_is_a_sum_of_those_that_are_left() {
        for parity in 1..=2 {
            let shape = Shape { data: DATA as u32, parity };
            let all: Vec<Chunk> = shape.data_set().or(shape.parity_set()).iter().collect();
            for (one, two) in all.iter().flat_map(|one| all.iter().map(move |two| (*one, *two))) {
                let missing: ChunkSet = [one, two].into_iter().collect();
                let Some(sum) = combination(shape, one, missing, factor) else {
                    assert!(parity == 1 && one != two, "{one} without {missing:?} of {parity}");
                    continue;
                };
                assert!(
                    sum.iter().all(|(chunk, coefficient)| !missing.contains(*chunk) && *coefficient != 0)
                );
                let made = sum
                    .iter()
                    .fold(0, |made, (chunk, times)| made ^ parity::product(*times, contents(*chunk)));
                assert_eq!(made, contents(one), "{one} without {missing:?} of {parity}: {sum:?}");
            }
        }
    }

    #[test]
    fn three_are_too_many() {
        let shape = Shape { data: DATA as u32, parity: 2 };
        assert_eq!(combination(shape, 0, [1, 2].into_iter().collect(), factor), None);
        assert_eq!(combination(shape, P, [1, Q].into_iter().collect(), factor), None);
    }
}
