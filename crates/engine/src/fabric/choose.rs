//! From a plan to orders: which rows the targets do among themselves, and what each of them does. There is no I/O, so every case
//! is a row of a table test.

use smallvec::SmallVec;

use super::order::{Base, How};
use crate::code::chunk_set::{Chunk, ChunkSet};
use crate::code::plan::{Plan, Routine, Shape, Step};
use crate::code::rows::Rows;

/// What a chunk contributes to the parity of some rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChunkPart {
    /// The data chunk.
    pub chunk: Chunk,
    /// Made of what.
    pub how: How,
    /// It is written, too.
    pub is_written: bool,
}

/// What the targets of a stripe do in rows where the same chunks are written. Each is an op of its own: a member that is lost in
/// the middle then either was to be written in all of the op's rows, or is no part of it, so that one loss never leaves rows
/// whose parity cannot be made again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StepParts {
    /// Which rows.
    pub rows: Rows,
    /// What the reducers start from.
    pub base: Base,
    /// Data chunks.
    pub parts: SmallVec<[ChunkPart; 4]>,
    /// P and Q, as far as their members are there.
    pub parity: SmallVec<[Chunk; 2]>,
}

impl StepParts {
    /// Whether it is the same in the rows that follow: data of several requests, or of several buffers, is cut there.
    fn continues(&self, before: &StepParts) -> bool {
        before.rows.end == self.rows.start && before.base == self.base && before.parts == self.parts
    }
}

/// Why the host makes the parity of some rows itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostCentric {
    /// All data of the rows is written: its bytes cross the network once anyway (D1).
    Whole,
    /// A chunk that the step writes or reads is missing, or all parity is.
    Degraded,
}

/// What the targets do in the rows of a step.
///
/// # Errors
/// Why the host does it.
pub fn choose(step: &Step, shape: Shape, missing: ChunkSet) -> Result<StepParts, HostCentric> {
    let data = shape.data_set();
    if step.written == data {
        return Err(HostCentric::Whole);
    }
    let (base, chunks) = match step.routine {
        Routine::Rmw => (Base::Old, step.written),
        Routine::Rcw => (Base::Zero, data),
        Routine::DataOnly | Routine::Recover => return Err(HostCentric::Degraded),
    };
    // New contents of a missing chunk, and those that parity has to tell of it, are at the host only.
    if !chunks.and(missing).is_empty() {
        return Err(HostCentric::Degraded);
    }
    let part = |chunk| {
        let is_written = step.written.contains(chunk);
        let how = match (step.routine, is_written) {
            (Routine::Rmw, _) => How::Delta,
            (_, true) => How::Overlay,
            (_, false) => How::Old,
        };
        ChunkPart { chunk, how, is_written }
    };
    let parity = shape.parity_set().without(missing).iter().collect();
    Ok(StepParts { rows: step.rows, base, parts: chunks.iter().map(part).collect(), parity })
}

/// The steps of a plan that the targets do, and the rows that are left to the host.
#[must_use]
pub fn split(
    plan: &Plan,
    shape: Shape,
    missing: ChunkSet,
) -> (SmallVec<[StepParts; 1]>, SmallVec<[Rows; 1]>) {
    let mut by_targets = SmallVec::<[StepParts; 1]>::new();
    let mut by_host = SmallVec::<[Rows; 1]>::new();
    for step in &plan.steps {
        match choose(step, shape, missing) {
            Ok(parts) => match by_targets.last_mut() {
                Some(last) if parts.continues(last) => last.rows.end = parts.rows.end,
                _ => by_targets.push(parts),
            },
            Err(_) => match by_host.last_mut() {
                Some(last) if last.end == step.rows.start => last.end = step.rows.end,
                _ => by_host.push(step.rows),
            },
        }
    }
    (by_targets, by_host)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code::chunk_set::{P, Q};
    use crate::code::plan::plan;
    use crate::code::rows::Fragment;

    const RAID5: Shape = Shape { data: 5, parity: 1 };
    const RAID6: Shape = Shape { data: 4, parity: 2 };

    fn planned(
        shape: Shape,
        written: &[(Chunk, u32, u32)],
        missing: &[Chunk],
    ) -> (Vec<StepParts>, Vec<Rows>) {
        let fragments: Vec<Fragment> = written
            .iter()
            .map(|&(chunk, start, end)| Fragment { chunk, rows: Rows { start, end } })
            .collect();
        let missing: ChunkSet = missing.iter().copied().collect();
        let plan = plan(shape, missing, &fragments, &[], None).expect("a plan");
        let (by_targets, by_host) = split(&plan, shape, missing);
        (by_targets.to_vec(), by_host.to_vec())
    }

    #[test]
    fn a_small_write_is_a_delta_for_each_parity() {
        for (shape, parity) in [(RAID5, &[P][..]), (RAID6, &[P, Q])] {
            let (by_targets, by_host) = planned(shape, &[(1, 0, 4096)], &[]);
            let [step] = &by_targets[..] else { panic!("{by_targets:?}") };
            assert_eq!((step.base, &step.parity[..]), (Base::Old, parity));
            assert_eq!(step.parts[..], [ChunkPart { chunk: 1, how: How::Delta, is_written: true }]);
            assert!(by_host.is_empty());
        }
    }

    #[test]
    fn most_of_a_stripe_is_reconstructed_from_every_chunk() {
        let (by_targets, by_host) = planned(RAID5, &[(0, 0, 8192), (1, 0, 8192), (2, 0, 8192)], &[]);
        let [step] = &by_targets[..] else { panic!("{by_targets:?}") };
        let hows: Vec<_> = step.parts.iter().map(|part| (part.chunk, part.how, part.is_written)).collect();
        let (new, old) = (How::Overlay, How::Old);
        assert_eq!(hows, [(0, new, true), (1, new, true), (2, new, true), (3, old, false), (4, old, false)]);
        assert_eq!((step.base, by_host.len()), (Base::Zero, 0));
    }

    #[test]
    fn each_set_of_written_chunks_is_an_op_of_its_own() {
        let (by_targets, _) = planned(RAID5, &[(0, 4096, 8192), (1, 0, 8192)], &[]);
        let rows: Vec<_> = by_targets.iter().map(|step| (step.rows.start, step.rows.end)).collect();
        assert_eq!(rows, [(0, 4096), (4096, 8192)]);
        assert_eq!((by_targets[0].parts.len(), by_targets[1].parts.len()), (1, 2));
    }

    #[test]
    fn rows_that_follow_are_of_one_op() {
        let (by_targets, _) = planned(RAID5, &[(1, 0, 4096), (1, 4096, 8192), (1, 12288, 16384)], &[]);
        let rows: Vec<_> = by_targets.iter().map(|step| (step.rows.start, step.rows.end)).collect();
        assert_eq!(rows, [(0, 8192), (12288, 16384)]);
    }

    #[test]
    fn a_chunk_that_a_step_leaves_alone_may_be_missing() {
        let cases = [
            (RAID5, &[2][..], &[P][..]),
            (RAID6, &[2], &[P, Q]),
            (RAID6, &[2, 3], &[P, Q]),
            (RAID6, &[P], &[Q]),
            (RAID6, &[2, Q], &[P]),
        ];
        for (shape, missing, parity) in cases {
            let (by_targets, by_host) = planned(shape, &[(1, 0, 4096)], missing);
            let [step] = &by_targets[..] else { panic!("{missing:?}: {by_targets:?}") };
            assert_eq!((step.base, &step.parity[..]), (Base::Old, parity));
            assert_eq!(step.parts[..], [ChunkPart { chunk: 1, how: How::Delta, is_written: true }]);
            assert!(by_host.is_empty());
        }
        let most = [(0, 0, 4096), (1, 0, 4096), (2, 0, 4096)];
        let (by_targets, _) = planned(RAID6, &most, &[P]);
        assert_eq!((by_targets[0].base, &by_targets[0].parity[..]), (Base::Zero, &[Q][..]));
    }

    #[test]
    fn whole_rows_and_rows_that_need_a_lost_chunk_are_the_hosts() {
        let whole: Vec<_> = (0..5).map(|chunk| (chunk, 0, 4096)).collect();
        assert_eq!(planned(RAID5, &whole, &[]), (vec![], vec![Rows { start: 0, end: 4096 }]));
        for (shape, missing) in
            [(RAID5, &[1][..]), (RAID5, &[P]), (RAID6, &[1]), (RAID6, &[1, 2]), (RAID6, &[P, Q])]
        {
            let rows = Rows { start: 0, end: 4096 };
            assert_eq!(planned(shape, &[(1, 0, 4096)], missing), (vec![], vec![rows]), "{missing:?}");
        }
        let mut most = whole;
        most.push((0, 4096, 8192));
        most.sort_unstable();
        let (by_targets, by_host) = planned(RAID5, &most, &[]);
        assert_eq!((by_targets.len(), by_host), (1, vec![Rows { start: 0, end: 4096 }]));
    }
}
