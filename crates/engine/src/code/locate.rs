//! Which block of a row is wrong, as a pure decision: syndromes or copies in, a verdict out.
//!
//! Let S_P and S_Q be what stored parity and parity made from the stored data differ by. With one wrong block in the
//! row they say which: a wrong P changes S_P alone, a wrong Q S_Q alone, and a data block with the exponent z that is
//! wrong by d gives S_P = d and S_Q = g^z d, in every byte with the same z (H. P. Anvin, *The mathematics of RAID-6*,
//! section 4; `raid6check` of mdadm does the same). Two wrong blocks may by chance look like one: for bytes that differ in
//! both, one time in 255 for each exponent that no chunk has; over a row of many changed bytes that does not happen.

use super::chunk_set::{Chunk, P, Q};

/// Which chunk of a row is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Located {
    /// All agree.
    Agrees,
    /// This chunk; with the others its right contents are known.
    Chunk(Chunk),
    /// They do not agree, and it cannot be said which is wrong: RAID-5, or more than one in RAID-6.
    Unknown,
}

/// Judges a row by `s_p` and, in RAID-6, `s_q`. `chunks` are the data chunks with their exponents in Q.
pub(crate) fn locate(
    s_p: &[u8],
    s_q: Option<&[u8]>,
    chunks: impl IntoIterator<Item = (Chunk, usize)>,
) -> Located {
    let Some(s_q) = s_q else { return if is_zero(s_p) { Located::Agrees } else { Located::Unknown } };
    match (is_zero(s_p), is_zero(s_q)) {
        (true, true) => Located::Agrees,
        (false, true) => Located::Chunk(P),
        (true, false) => Located::Chunk(Q),
        (false, false) => {
            let zeroes = vec![0; s_p.len()];
            let mut rest = vec![0; s_p.len()];
            let explains = |&(_, exponent): &(Chunk, usize)| {
                rest.copy_from_slice(s_q);
                parity::update_q(exponent, &zeroes, s_p, &mut rest); // rest = S_Q - g^z S_P
                is_zero(&rest)
            };
            chunks.into_iter().find(explains).map_or(Located::Unknown, |(chunk, _)| Located::Chunk(chunk))
        }
    }
}

/// Of several copies of a block, the places of those that the others outvote. `None` if no contents have more than
/// half of the votes; nobody if all are equal.
pub(crate) fn outvoted(copies: &[&[u8]]) -> Option<Vec<usize>> {
    let votes = |copy: &[u8]| copies.iter().filter(|other| **other == copy).count();
    let winner = copies.iter().find(|copy| votes(copy) * 2 > copies.len())?;
    Some((0..copies.len()).filter(|&place| copies[place] != *winner).collect())
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROW: usize = 4096;
    const DATA: usize = 5;

    struct Row {
        data: Vec<Vec<u8>>,
        p: Vec<u8>,
        q: Vec<u8>,
    }

    impl Row {
        fn new() -> Self {
            let data: Vec<Vec<u8>> =
                (0..DATA).map(|i| (0..ROW).map(|at| (at * (i + 3) % 251) as u8).collect()).collect();
            let (p, q) = parity_of(&data);
            Row { data, p, q }
        }

        fn chunk(&mut self, chunk: Chunk) -> &mut Vec<u8> {
            match chunk {
                P => &mut self.p,
                Q => &mut self.q,
                data => &mut self.data[usize::from(data)],
            }
        }

        fn judge(&self, raid6: bool) -> Located {
            let (p, q) = parity_of(&self.data);
            let differ = |a: &[u8], b: &[u8]| a.iter().zip(b).map(|(a, b)| a ^ b).collect::<Vec<u8>>();
            let (s_p, s_q) = (differ(&p, &self.p), differ(&q, &self.q));
            locate(&s_p, raid6.then_some(&s_q[..]), (0..DATA).map(|i| (i as Chunk, i)))
        }
    }

    fn parity_of(data: &[Vec<u8>]) -> (Vec<u8>, Vec<u8>) {
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let (mut p, mut q) = (vec![0; ROW], vec![0; ROW]);
        parity::encode_pq(&data, &mut p, &mut q);
        (p, q)
    }

    /// Wrong chunks, the bytes of each that are wrong, and the verdicts of RAID-6 and RAID-5 (which has no Q).
    #[test]
    fn table_of_wrong_blocks() {
        type Case = (&'static [(Chunk, usize, usize)], Located, Located);
        let cases: &[Case] = &[
            (&[], Located::Agrees, Located::Agrees),
            (&[(0, 17, 1)], Located::Chunk(0), Located::Unknown),
            (&[(3, 0, ROW)], Located::Chunk(3), Located::Unknown),
            (&[(4, 4095, 1)], Located::Chunk(4), Located::Unknown),
            (&[(P, 5, 7)], Located::Chunk(P), Located::Unknown),
            (&[(Q, 5, 7)], Located::Chunk(Q), Located::Agrees),
            (&[(1, 0, 512), (2, 0, 512)], Located::Unknown, Located::Unknown),
            (&[(1, 0, 8), (2, 100, 8)], Located::Unknown, Located::Unknown),
            (&[(P, 0, 8), (Q, 100, 8)], Located::Unknown, Located::Unknown),
            (&[(2, 0, 64), (P, 64, 64)], Located::Unknown, Located::Unknown),
        ];
        for (wrong, raid6, raid5) in cases {
            let mut row = Row::new();
            for (place, &(chunk, from, bytes)) in wrong.iter().enumerate() {
                row.chunk(chunk)[from..from + bytes]
                    .iter_mut()
                    .enumerate()
                    .for_each(|(at, byte)| *byte ^= (1 + place * 90 + at % 90) as u8);
            }
            assert_eq!(row.judge(true), *raid6, "RAID-6 with {wrong:?}");
            assert_eq!(row.judge(false), *raid5, "RAID-5 with {wrong:?}");
        }
    }

    #[test]
    fn an_exponent_that_no_chunk_has_is_nobody() {
        let (s_p, mut s_q) = ([7; 64], [0; 64]);
        parity::update_q(9, &[0; 64], &s_p, &mut s_q);
        assert_eq!(locate(&s_p, Some(&s_q), [(0, 0), (1, 1)]), Located::Unknown);
        assert_eq!(locate(&s_p, Some(&s_q), [(0, 0), (1, 9)]), Located::Chunk(1));
    }

    #[test]
    fn a_majority_outvotes_and_a_tie_does_not() {
        let copies = |letters: &str| {
            let owned: Vec<Vec<u8>> = letters.bytes().map(|letter| vec![letter; 8]).collect();
            outvoted(&owned.iter().map(Vec::as_slice).collect::<Vec<_>>())
        };
        assert_eq!(copies("aa"), Some(vec![]));
        assert_eq!(copies("ab"), None);
        assert_eq!(copies("aba"), Some(vec![1]));
        assert_eq!(copies("abc"), None);
        assert_eq!(copies("aabb"), None);
        assert_eq!(copies("abacaa"), Some(vec![1, 3]));
    }
}
