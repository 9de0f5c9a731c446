//! The plan of a stripe write as a value: what to read, how to make parity, what to write where. There is no I/O, so every
//! case is a row of a table test.
//!
//! The written rows are cut into steps in which the set of written chunks is the same. Each step takes the routine that
//! has the fewest chunks left to read (StRAID 3.1, Eq. 1): read-modify-write needs the old data of the written chunks and
//! the old parity, reconstruct-write all data that is not written. Contents already in memory (a parity cache hit, the
//! pre-read of the batching phase) are `held` and cost nothing. On a tie read-modify-write wins, as Eq. 1 has it below half
//! a stripe: it reads the blocks that it then writes, so device and processor caches hold them.
//!
//! Where the load of the members is given, the choice is by the cost of the reads there ([`cost`](super::cost), Eq. 4
//! to 9).

use smallvec::SmallVec;

use super::chunk_set::{Chunk, ChunkSet, P, Q};
use super::cost::{MemberLoad, routine_cost};
use super::rows::{Fragment, Rows};

/// How many chunks a stripe has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Data chunks.
    pub data: u32,
    /// Parity chunks: 1 is P, 2 is P and Q.
    pub parity: u32,
}

impl Shape {
    pub(crate) fn data_set(self) -> ChunkSet {
        ChunkSet::first(self.data)
    }

    pub(crate) fn parity_set(self) -> ChunkSet {
        [P, Q].into_iter().take(self.parity as usize).collect()
    }
}

/// How the parity of a step is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Routine {
    /// No parity chunk is on a working member: only data is written.
    DataOnly,
    /// New parity from all data, part of it read (reconstruct-write); a full-stripe write reads nothing.
    Rcw,
    /// New parity from old parity, old data and new data (read-modify-write).
    Rmw,
    /// Missing data that is not overwritten is recovered first, then parity is made from all data.
    Recover,
}

/// Rows in which the set of written chunks is the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step {
    /// Which rows.
    pub rows: Rows,
    /// Data chunks that are written.
    pub written: ChunkSet,
    /// How parity is made.
    pub routine: Routine,
    /// Old chunks the routine needs in memory.
    pub needed: ChunkSet,
    /// The load model overrode the choice by fewest reads.
    pub adjusted: bool,
}

/// How busy the members are that hold the chunks of a stripe, at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StripeLoad {
    /// By data chunk.
    pub data: SmallVec<[MemberLoad; 16]>,
    /// P and Q; ignored for a parity chunk that the stripe does not have.
    pub parity: [MemberLoad; 2],
}

impl StripeLoad {
    fn of(&self, chunk: Chunk) -> MemberLoad {
        match chunk {
            P => self.parity[0],
            Q => self.parity[1],
            data => self.data[usize::from(data)],
        }
    }
}

/// The plan of a stripe write.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// How parity is made of the written rows, ascending and disjoint.
    pub steps: SmallVec<[Step; 1]>,
    /// Fragments that are needed and not held, ascending by chunk and rows.
    pub reads: SmallVec<[Fragment; 4]>,
    /// Fragments to write to working members: data, then parity, adjacent rows merged.
    pub writes: SmallVec<[Fragment; 4]>,
    /// New contents of missing chunks, which only parity records.
    pub unplaced: SmallVec<[Fragment; 1]>,
}

/// More chunks are missing than parity can make up for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyMissing;

/// Plans a write of the `written` fragments (data chunks, disjoint) in a stripe of this `shape` whose `missing` chunks
/// can be neither read nor written, with the `held` fragments in memory. Without a `load` the choice is by fewest reads.
pub fn plan(
    shape: Shape,
    missing: ChunkSet,
    written: &[Fragment],
    held: &[Fragment],
    load: Option<&StripeLoad>,
) -> Result<Plan, TooManyMissing> {
    if missing.len() > shape.parity {
        return Err(TooManyMissing);
    }
    let mut plan =
        steps(written, held, |rows, written, held| choose(shape, missing, rows, written, held, load));
    plan.place(shape, missing, written);
    Ok(plan)
}

/// Plans only the data of a write: its parity is recorded as bad and stays as it is.
pub fn plan_data_only(shape: Shape, missing: ChunkSet, written: &[Fragment]) -> Plan {
    let mut plan = Plan::default();
    plan.place(shape, missing, written);
    plan
}

/// Plans reconstruct-write in every step, for a write whose old data or old parity cannot be read.
pub fn plan_reconstruct(
    shape: Shape,
    missing: ChunkSet,
    written: &[Fragment],
    held: &[Fragment],
) -> Result<Plan, TooManyMissing> {
    let data = shape.data_set();
    let mut plan = steps(written, held, |rows, written, _| Step {
        rows,
        written,
        routine: Routine::Rcw,
        needed: data.without(written),
        adjusted: false,
    });
    let works = plan.reads.iter().all(|read| !missing.contains(read.chunk));
    if !works {
        return Err(TooManyMissing);
    }
    plan.place(shape, missing, written);
    Ok(plan)
}

impl Plan {
    /// Adds the writes: data on working members, data on missing ones, and the parity that the steps make.
    fn place(&mut self, shape: Shape, missing: ChunkSet, written: &[Fragment]) {
        for part in written {
            let to = if missing.contains(part.chunk) { &mut self.unplaced[..] } else { &mut self.writes[..] };
            match to.last_mut() {
                Some(last) if last.chunk == part.chunk && last.rows.end == part.rows.start => {
                    last.rows.end = part.rows.end;
                }
                _ if missing.contains(part.chunk) => self.unplaced.push(*part),
                _ => self.writes.push(*part),
            }
        }
        for rows in self.runs_with_parity() {
            let parity = shape.parity_set().without(missing);
            self.writes.extend(parity.iter().map(|chunk| Fragment { chunk, rows }));
        }
    }

    /// The rows of steps that make parity, adjacent ones merged: each parity chunk is written in as few fragments as
    /// possible.
    fn runs_with_parity(&self) -> SmallVec<[Rows; 1]> {
        let mut runs = SmallVec::<[Rows; 1]>::new();
        for step in self.steps.iter().filter(|step| step.routine != Routine::DataOnly) {
            match runs.last_mut() {
                Some(run) if run.end == step.rows.start => run.end = step.rows.end,
                _ => runs.push(step.rows),
            }
        }
        runs
    }

    /// Whether new parity is made from all data, without old parity.
    pub fn is_from_all_data(&self) -> bool {
        self.steps.iter().all(|step| matches!(step.routine, Routine::Rcw | Routine::DataOnly))
    }
}

fn steps(written: &[Fragment], held: &[Fragment], choose: impl Fn(Rows, ChunkSet, ChunkSet) -> Step) -> Plan {
    let mut plan = Plan::default();
    if let ([only], []) = (written, held) {
        plan.steps.push(choose(only.rows, ChunkSet::one(only.chunk), ChunkSet::EMPTY));
    } else {
        let covering = |fragments: &[Fragment], rows: Rows| {
            fragments.iter().filter(|f| f.rows.contains(rows)).map(|f| f.chunk).collect::<ChunkSet>()
        };
        for rows in cut(written, held) {
            let now_written = covering(written, rows);
            if !now_written.is_empty() {
                plan.steps.push(choose(rows, now_written, covering(held, rows)));
            }
        }
    }
    plan.reads = reads(&plan.steps, held);
    plan
}

/// Rows cut at every boundary of a fragment: within a cut the written and the held chunks are the same.
fn cut(written: &[Fragment], held: &[Fragment]) -> impl Iterator<Item = Rows> {
    let both = written.iter().chain(held);
    let mut cuts: SmallVec<[u32; 16]> = both.flat_map(|f| [f.rows.start, f.rows.end]).collect();
    cuts.sort_unstable();
    cuts.dedup();
    (1..cuts.len()).map(move |i| Rows { start: cuts[i - 1], end: cuts[i] })
}

/// The step with the fewest chunks left to read, or, by `load`, with the least cost of reading them.
fn choose(
    shape: Shape,
    missing: ChunkSet,
    rows: Rows,
    written: ChunkSet,
    held: ChunkSet,
    load: Option<&StripeLoad>,
) -> Step {
    let data = shape.data_set();
    let parity = shape.parity_set().without(missing);
    let step = |routine, needed| Step { rows, written, routine, needed, adjusted: false };
    if parity.is_empty() {
        return step(Routine::DataOnly, ChunkSet::EMPTY);
    }
    let unwritten = data.without(written);
    let lost = missing.without(held); // a chunk that was read before its member failed is still good
    let rcw = step(Routine::Rcw, unwritten);
    let rmw = step(Routine::Rmw, written.or(parity));
    let rcw_works = unwritten.and(lost).is_empty();
    let rmw_works = written.and(lost).is_empty();
    let to_read = |step: &Step| step.needed.without(held);
    match (rcw_works, rmw_works) {
        (true, true) => {
            let (rmw_reads, rcw_reads) = (to_read(&rmw), to_read(&rcw));
            let fewest_is_rmw = !rcw_reads.is_empty() && rmw_reads.len() <= rcw_reads.len();
            let rmw_wins = match load {
                Some(load) if !rcw_reads.is_empty() => {
                    let weight = |reads| weight(load, reads);
                    let (rmw_weight, rcw_weight) = (weight(rmw_reads), weight(rcw_reads));
                    rmw_weight < rcw_weight || (rmw_weight == rcw_weight && fewest_is_rmw)
                }
                _ => fewest_is_rmw,
            };
            let chosen = if rmw_wins { rmw } else { rcw };
            Step { adjusted: rmw_wins != fewest_is_rmw, ..chosen }
        }
        (true, false) => rcw,
        (false, true) => rmw,
        // A missing chunk is written and another one, unwritten, is missing too: two lost data chunks in RAID-6.
        (false, false) => step(Routine::Recover, data.without(missing).or(parity)),
    }
}

/// A routine's cost, times the number of its reads: the model counts how long a read waits and how long writes wait for it,
/// but not the delay of other reads, which each read adds alike.
fn weight(load: &StripeLoad, reads: ChunkSet) -> u64 {
    let cost = routine_cost(reads.iter().map(|chunk| load.of(chunk)));
    cost.total_ns().saturating_mul(u64::from(reads.len()))
}

/// The fragments that the steps need and that are not held, adjacent rows merged.
fn reads(steps: &[Step], held: &[Fragment]) -> SmallVec<[Fragment; 4]> {
    let mut reads = SmallVec::<[Fragment; 4]>::new();
    let all = steps.iter().fold(ChunkSet::EMPTY, |all, step| all.or(step.needed));
    for chunk in all.iter() {
        let first = reads.len();
        for step in steps.iter().filter(|step| step.needed.contains(chunk)) {
            let rows = step.rows;
            if held.iter().any(|f| f.chunk == chunk && f.rows.contains(rows)) {
                continue;
            }
            match reads[first..].last_mut() {
                Some(last) if last.rows.end == rows.start => last.rows.end = rows.end,
                _ => reads.push(Fragment { chunk, rows }),
            }
        }
    }
    reads
}

/// The fragments to fetch for a read of `wanted` data while `missing` chunks are out: the wanted rows that are there, and
/// for each lost row all other data of that row and as many parity chunks as data chunks are missing.
pub fn plan_read(
    shape: Shape,
    missing: ChunkSet,
    wanted: &[Fragment],
) -> Result<SmallVec<[Fragment; 4]>, TooManyMissing> {
    let data = shape.data_set();
    let lost = data.and(missing).len() as usize;
    let parity: SmallVec<[Chunk; 2]> = shape.parity_set().without(missing).iter().take(lost).collect();
    if parity.len() < lost {
        return Err(TooManyMissing);
    }
    let helpers = data.without(missing).or(parity.into_iter().collect());
    let (lost, present): (SmallVec<[Fragment; 4]>, SmallVec<[Fragment; 4]>) =
        wanted.iter().copied().partition(|fragment| missing.contains(fragment.chunk));
    let mut fetch = SmallVec::new();
    for chunk in helpers.iter() {
        let own = present.iter().filter(|fragment| fragment.chunk == chunk).map(|fragment| fragment.rows);
        let mut rows: SmallVec<[Rows; 4]> = own.chain(lost.iter().map(|fragment| fragment.rows)).collect();
        rows.sort_unstable();
        let mut merged = SmallVec::<[Rows; 4]>::new();
        for rows in rows {
            match merged.last_mut() {
                Some(last) if rows.start <= last.end => last.end = last.end.max(rows.end),
                _ => merged.push(rows),
            }
        }
        fetch.extend(merged.into_iter().map(|rows| Fragment { chunk, rows }));
    }
    Ok(fetch)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Routine::{DataOnly, Rcw, Recover, Rmw};

    const RAID5: Shape = Shape { data: 5, parity: 1 };
    const RAID6: Shape = Shape { data: 4, parity: 2 };
    const K: u32 = 1024;

    fn fragments(list: &[(Chunk, u32, u32)]) -> Vec<Fragment> {
        list.iter().map(|&(chunk, start, end)| Fragment { chunk, rows: Rows { start, end } }).collect()
    }

    fn set(chunks: &[Chunk]) -> ChunkSet {
        chunks.iter().copied().collect()
    }

    #[test]
    fn rows_that_are_held_in_part_are_read_where_they_are_not() {
        let written = fragments(&[(0, 0, 8 * K), (1, 0, 8 * K), (2, 0, 8 * K), (3, 0, 8 * K)]);
        let held = fragments(&[(4, 0, 4 * K)]);
        let plan = plan(RAID5, ChunkSet::EMPTY, &written, &held, None).expect("a plan");
        assert_eq!(plan.reads.to_vec(), fragments(&[(4, 4 * K, 8 * K)]));
    }

    /// One step: written, missing, held chunks -> routine, chunks read.
    #[test]
    fn table_of_single_segments() {
        type Case = (Shape, &'static [Chunk], &'static [Chunk], &'static [Chunk], Routine, &'static [Chunk]);
        let cases: &[Case] = &[
            // healthy RAID-5: Eq. 1, RMW while fewer than half of the chunks are written
            (RAID5, &[1], &[], &[], Rmw, &[1, P]),
            (RAID5, &[1, 2], &[], &[], Rmw, &[1, 2, P]),
            (RAID5, &[1, 2, 3], &[], &[], Rcw, &[0, 4]),
            (RAID5, &[0, 1, 2, 3], &[], &[], Rcw, &[4]),
            (RAID5, &[0, 1, 2, 3, 4], &[], &[], Rcw, &[]),
            // the parity cache makes RMW cheaper
            (RAID5, &[1], &[], &[P], Rmw, &[1]),
            (RAID5, &[1, 2], &[], &[P], Rmw, &[1, 2]),
            // degraded RAID-5
            (RAID5, &[1], &[1], &[], Rcw, &[0, 2, 3, 4]),
            (RAID5, &[1], &[2], &[], Rmw, &[1, P]),
            (RAID5, &[1, 2, 3], &[4], &[], Rmw, &[1, 2, 3, P]),
            (RAID5, &[1], &[P], &[], DataOnly, &[]),
            // RAID-6
            (RAID6, &[0], &[], &[], Rmw, &[0, P, Q]),
            (RAID6, &[0, 1], &[], &[], Rcw, &[2, 3]),
            (RAID6, &[0], &[], &[P, Q], Rmw, &[0]),
            (RAID6, &[0], &[1], &[], Rmw, &[0, P, Q]),
            (RAID6, &[0], &[0], &[], Rcw, &[1, 2, 3]),
            (RAID6, &[0], &[0, 1], &[], Recover, &[2, 3, P, Q]),
            (RAID6, &[0, 1], &[0, 1], &[], Rcw, &[2, 3]),
            (RAID6, &[0], &[1, P], &[], Rmw, &[0, Q]),
            (RAID6, &[0], &[0, Q], &[], Rcw, &[1, 2, 3]),
            (RAID6, &[0], &[P, Q], &[], DataOnly, &[]),
        ];
        for &(shape, written, missing, held, routine, read) in cases {
            let whole = |chunks: &[Chunk]| {
                chunks
                    .iter()
                    .map(|&chunk| Fragment { chunk, rows: Rows { start: 0, end: 4 * K } })
                    .collect::<Vec<_>>()
            };
            let plan =
                plan(shape, set(missing), &whole(written), &whole(held), None).expect("within the level");
            let context = format!("{shape:?} written {written:?} missing {missing:?} held {held:?}");
            assert_eq!(plan.steps.len(), 1, "{context}");
            assert_eq!(plan.steps[0].routine, routine, "{context}");
            assert_eq!(plan.reads.to_vec(), whole(read), "{context}");
        }
    }

    #[test]
    fn uneven_writes_are_cut_where_the_written_set_changes() {
        // the end of one chunk and the start of the next: RMW each, reads on P merged
        let plan = plan(RAID5, ChunkSet::EMPTY, &fragments(&[(0, 60 * K, 64 * K), (1, 0, 4 * K)]), &[], None)
            .unwrap();
        assert_eq!(plan.steps.len(), 2);
        assert_eq!(
            plan.reads.to_vec(),
            fragments(&[(0, 60 * K, 64 * K), (1, 0, 4 * K), (P, 0, 4 * K), (P, 60 * K, 64 * K)])
        );
        // three chunks whole, one half: the half it shares is reconstruct-write, as is the rest
        let written = fragments(&[(0, 0, 8 * K), (1, 0, 8 * K), (2, 0, 8 * K), (3, 0, 4 * K)]);
        let plan = super::plan(RAID5, ChunkSet::EMPTY, &written, &[], None).unwrap();
        assert_eq!(plan.steps.iter().map(|s| s.routine).collect::<Vec<_>>(), [Rcw, Rcw]);
        assert_eq!(plan.reads.to_vec(), fragments(&[(3, 4 * K, 8 * K), (4, 0, 8 * K)]));
    }

    /// Written, missing -> data and parity that members get, and what has no place.
    #[test]
    fn table_of_writes() {
        type Case = (
            &'static [(Chunk, u32, u32)],
            &'static [Chunk],
            &'static [(Chunk, u32, u32)],
            &'static [(Chunk, u32, u32)],
        );
        let cases: &[Case] = &[
            (&[(1, 0, K)], &[], &[(1, 0, K), (P, 0, K)], &[]),
            // parts of one chunk side by side are one write, and so is their parity
            (&[(1, 0, K), (1, K, 2 * K)], &[], &[(1, 0, 2 * K), (P, 0, 2 * K)], &[]),
            (
                &[(1, 0, K), (1, 2 * K, 3 * K)],
                &[],
                &[(1, 0, K), (1, 2 * K, 3 * K), (P, 0, K), (P, 2 * K, 3 * K)],
                &[],
            ),
            // the end of one chunk and the start of the next: two pieces of parity
            (
                &[(0, 60 * K, 64 * K), (1, 0, 4 * K)],
                &[],
                &[(0, 60 * K, 64 * K), (1, 0, 4 * K), (P, 0, 4 * K), (P, 60 * K, 64 * K)],
                &[],
            ),
            (&[(1, 0, K), (2, 0, K)], &[1], &[(2, 0, K), (P, 0, K)], &[(1, 0, K)]),
            (&[(1, 0, K)], &[P], &[(1, 0, K)], &[]),
        ];
        for &(written, missing, writes, unplaced) in cases {
            let plan = plan(RAID5, set(missing), &fragments(written), &[], None).expect("within the level");
            assert_eq!(plan.writes.to_vec(), fragments(writes), "{written:?} {missing:?}");
            assert_eq!(plan.unplaced.to_vec(), fragments(unplaced), "{written:?} {missing:?}");
        }
        let both = plan(RAID6, set(&[P]), &fragments(&[(0, 0, K)]), &[], None).unwrap();
        assert_eq!(both.writes.to_vec(), fragments(&[(0, 0, K), (Q, 0, K)]));
        let data = plan_data_only(RAID5, ChunkSet::EMPTY, &fragments(&[(0, 0, K)]));
        assert_eq!((data.writes.to_vec(), data.steps.len()), (fragments(&[(0, 0, K)]), 0));
    }

    #[test]
    fn the_second_plan_reads_only_what_the_first_did_not() {
        let held = fragments(&[(1, 0, 4 * K), (P, 0, 4 * K)]);
        let written = fragments(&[(1, 0, 4 * K), (2, 0, 4 * K)]);
        let plan = plan(RAID5, ChunkSet::EMPTY, &written, &held, None).unwrap();
        assert_eq!(plan.reads.to_vec(), fragments(&[(2, 0, 4 * K)]));
        assert_eq!(plan.steps[0].routine, Rmw);
        let all: Vec<_> =
            (0..5).map(|chunk| Fragment { chunk, rows: Rows { start: 0, end: 4 * K } }).collect();
        assert!(super::plan(RAID5, ChunkSet::EMPTY, &all, &held, None).unwrap().reads.is_empty());
    }

    #[test]
    fn a_degraded_read_fetches_each_row_once() {
        let wanted = fragments(&[(1, 0, 8 * K), (2, 0, 4 * K)]);
        let fetch = |missing: &[Chunk]| plan_read(RAID5, set(missing), &wanted).map(|fetch| fetch.to_vec());
        assert_eq!(fetch(&[]).unwrap(), wanted);
        assert_eq!(
            fetch(&[2]).unwrap(),
            fragments(&[(0, 0, 4 * K), (1, 0, 8 * K), (3, 0, 4 * K), (4, 0, 4 * K), (P, 0, 4 * K)])
        );
        assert_eq!(fetch(&[2, P]), Err(TooManyMissing));
        let lost_two = plan_read(RAID6, set(&[1, 2]), &fragments(&[(1, 0, K)])).unwrap();
        assert_eq!(lost_two.to_vec(), fragments(&[(0, 0, K), (3, 0, K), (P, 0, K), (Q, 0, K)]));
        let by_q = plan_read(RAID6, set(&[1, P]), &fragments(&[(1, 0, K)])).unwrap();
        assert_eq!(by_q.to_vec(), fragments(&[(0, 0, K), (2, 0, K), (3, 0, K), (Q, 0, K)]));
    }

    #[test]
    fn what_was_read_before_its_member_failed_still_counts() {
        let written = fragments(&[(0, 0, K)]);
        let plan =
            plan(RAID5, set(&[1]), &written, &fragments(&[(1, 0, K), (2, 0, K), (3, 0, K), (4, 0, K)]), None)
                .unwrap();
        assert_eq!((plan.steps[0].routine, plan.reads.len()), (Rcw, 0));
    }

    #[test]
    fn too_many_missing_is_an_error() {
        let written = fragments(&[(0, 0, 4 * K)]);
        assert_eq!(plan(RAID5, set(&[1, P]), &written, &[], None), Err(TooManyMissing));
        assert_eq!(plan(RAID6, set(&[0, 1, Q]), &written, &[], None), Err(TooManyMissing));
    }

    /// Written, held chunks, and members that are busy or stalled -> routine, chunks read, adjusted.
    #[test]
    fn table_of_loads() {
        type Loaded = (Chunk, MemberLoad);
        type Case =
            (Shape, &'static [Chunk], &'static [Chunk], &'static [Loaded], Routine, &'static [Chunk], bool);
        const IDLE: MemberLoad = MemberLoad { reads: 0, writes: 0, read_ns: 100, gc_ns: 0 };
        const BUSY: MemberLoad = MemberLoad { reads: 3, ..IDLE };
        const WRITING: MemberLoad = MemberLoad { writes: 3, ..IDLE };
        const STALLED: MemberLoad = MemberLoad { gc_ns: 5000, ..IDLE };
        const SLOW: MemberLoad = MemberLoad { read_ns: 900, ..IDLE };
        let cases: &[Case] = &[
            // idle members: fewest reads
            (RAID5, &[1], &[], &[], Rmw, &[1, P], false),
            (RAID5, &[1, 2, 3], &[], &[], Rcw, &[0, 4], false),
            (RAID5, &[0, 1, 2, 3, 4], &[], &[], Rcw, &[], false),
            // a queue, writes that would wait, a stall, a slow member at what RMW reads
            (RAID5, &[1], &[], &[(1, BUSY)], Rcw, &[0, 2, 3, 4], true),
            (RAID5, &[1], &[], &[(P, WRITING)], Rcw, &[0, 2, 3, 4], true),
            (RAID5, &[1], &[], &[(P, STALLED)], Rcw, &[0, 2, 3, 4], true),
            (RAID5, &[1], &[], &[(1, SLOW)], Rcw, &[0, 2, 3, 4], true),
            // the same at what RCW reads
            (RAID5, &[1, 2, 3], &[], &[(0, STALLED)], Rmw, &[1, 2, 3, P], true),
            (RAID5, &[1, 2, 3], &[], &[(1, STALLED)], Rcw, &[0, 4], false),
            // both: the cheaper of two evils
            (RAID5, &[1], &[], &[(P, BUSY), (0, STALLED)], Rmw, &[1, P], false),
            // only what is still to be read counts
            (RAID5, &[1], &[P], &[(P, STALLED)], Rmw, &[1], false),
            (RAID5, &[1], &[1, P], &[(1, STALLED), (P, STALLED)], Rmw, &[], false),
            (RAID5, &[1], &[0, 2, 3, 4], &[(0, STALLED)], Rcw, &[], false),
            // RAID-6
            (RAID6, &[0], &[], &[(Q, STALLED)], Rcw, &[1, 2, 3], true),
            (RAID6, &[0, 1], &[], &[(2, STALLED)], Rmw, &[0, 1, P, Q], true),
        ];
        for &(shape, written, held, loaded, routine, read, adjusted) in cases {
            let whole = |chunks: &[Chunk]| {
                fragments(&chunks.iter().map(|&chunk| (chunk, 0, 4 * K)).collect::<Vec<_>>())
            };
            let of =
                |chunk: Chunk| loaded.iter().find(|(at, _)| *at == chunk).map_or(IDLE, |(_, load)| *load);
            let data = (0..shape.data).map(|index| of(Chunk::try_from(index).unwrap())).collect();
            let load = StripeLoad { data, parity: [of(P), of(Q)] };
            let plan = plan(shape, ChunkSet::EMPTY, &whole(written), &whole(held), Some(&load)).unwrap();
            let context = format!("{shape:?} written {written:?} held {held:?} loaded {loaded:?}");
            assert_eq!(plan.steps[0].routine, routine, "{context}");
            assert_eq!(plan.reads.to_vec(), whole(read), "{context}");
            assert_eq!(plan.steps[0].adjusted, adjusted, "{context}");
        }
    }

    #[test]
    fn no_load_makes_an_impossible_routine_possible() {
        let idle =
            StripeLoad { data: SmallVec::from_elem(MemberLoad::default(), 5), ..StripeLoad::default() };
        let written = fragments(&[(1, 0, 4 * K)]);
        let plan = |missing: &[Chunk]| plan(RAID5, set(missing), &written, &[], Some(&idle)).unwrap();
        assert_eq!(plan(&[1]).steps[0].routine, Rcw);
        assert_eq!(plan(&[2]).steps[0].routine, Rmw);
        assert_eq!(plan(&[P]).steps[0].routine, DataOnly);
    }
}
