//! What a request needs at the least, as the engine's own plan has it: which bytes are copied from and to which member,
//! and which parity passes are made between.

use engine::code::chunk_set::Chunk;
use engine::code::chunk_set::ChunkSet;
use engine::code::chunk_set::P;
use engine::code::chunk_set::Q;
use engine::code::plan::{Plan, Routine, Shape, Step, plan, plan_read};
use engine::code::rows::{Fragment, Rows};
use layout::geometry::{Geometry, Level, Role};
use layout::units::{ArrayOffset, Slot, Stripe};

use crate::operations::Operations;

/// Where bytes are that a pass or a write uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// In the request's own data, from this byte on.
    Request(usize),
    /// In this buffer, from this byte on.
    Buffer(usize, usize),
}

/// A copy between a member and memory. Offsets are those of the first period of the layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    pub(super) slot: Slot,
    pub(super) offset: u64,
    pub(super) bytes: usize,
    pub(super) at: At,
}

/// A pass of the parity library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    pub(super) bytes: usize,
    pub(super) kind: Kind,
    /// Results: P and Q, or lost chunks.
    pub(super) out: [Option<(usize, usize)>; 2],
}

/// Which pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Parity in place for one changed chunk.
    Update { index: usize, old: At, new: At },
    /// New parity from old parity and changes.
    Delta { changes: Vec<(usize, At, At)>, old: [Option<At>; 2] },
    /// Parity from all data, in the order of Q's exponents.
    Encode { data: Vec<At> },
    /// Lost data from the rest.
    Recover { known: Vec<(usize, At)>, parity: [Option<At>; 2], lost: Vec<usize> },
}

/// All that one request needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Recipe {
    /// Length of each buffer.
    pub(super) buffers: Vec<usize>,
    pub(super) reads: Vec<Move>,
    pub(super) passes: Vec<Pass>,
    pub(super) writes: Vec<Move>,
}

/// Makes recipes for one array.
pub(super) struct Cook<'a> {
    pub(super) geometry: &'a Geometry,
    /// Slots not in use.
    pub(super) missing: &'a [Slot],
}

/// The part of a request in one stripe.
struct Part {
    stripe: Stripe,
    /// Fragments, each with where it is in the request.
    pieces: Vec<(Fragment, usize)>,
}

impl Cook<'_> {
    /// What a request needs.
    pub(super) fn recipe(&self, write: bool, offset: u64, bytes: u64) -> Recipe {
        let mut recipe = Recipe::default();
        match self.geometry.level() {
            Level::Raid1 | Level::Raid10 => self.copies(&mut recipe, write, offset, bytes),
            _ => {
                for part in self.parts(offset, bytes) {
                    match (write, self.geometry.parity_chunks()) {
                        (true, 0) => self.write_data(&mut recipe, &part, ChunkSet::EMPTY),
                        (true, _) => self.write(&mut recipe, &part),
                        (false, _) => self.read(&mut recipe, &part),
                    }
                }
            }
        }
        recipe
    }

    /// The array's bytes after which the layout repeats, and the members' bytes that it takes.
    pub(super) fn period(&self) -> (u64, u64) {
        let (geometry, members) = (self.geometry, u64::from(self.geometry.members()));
        let chunk = u64::from(geometry.chunk_bytes());
        match geometry.level() {
            Level::Raid1 => (members << 20, members << 20),
            Level::Raid10 => (members * chunk, 2 * chunk),
            _ => (members * geometry.stripe_bytes(), members * chunk),
        }
    }

    fn parts(&self, offset: u64, bytes: u64) -> Vec<Part> {
        let mut parts: Vec<Part> = Vec::new();
        let (mut at, end) = (offset, offset + bytes);
        while at < end {
            let place = self.geometry.locate(ArrayOffset::new(at));
            let left = u64::from(self.geometry.chunk_bytes() - place.chunk_offset).min(end - at);
            let rows = Rows { start: place.chunk_offset, end: place.chunk_offset + left as u32 };
            let chunk = Chunk::try_from(place.data_index).expect("at most 254 data chunks");
            let piece = (Fragment { chunk, rows }, (at - offset) as usize);
            match parts.last_mut() {
                Some(part) if part.stripe == place.stripe => part.pieces.push(piece),
                _ => parts.push(Part { stripe: place.stripe, pieces: vec![piece] }),
            }
            at += left;
        }
        parts
    }

    fn lost(&self, stripe: Stripe) -> ChunkSet {
        let chunk = |slot: &Slot| match self.geometry.role(stripe, *slot) {
            Role::Data(index) => Chunk::try_from(index).expect("at most 254 data chunks"),
            Role::P => P,
            Role::Q => Q,
        };
        self.missing.iter().map(chunk).collect()
    }

    fn shape(&self) -> Shape {
        Shape { data: self.geometry.data_chunks(), parity: self.geometry.parity_chunks() }
    }

    fn place(&self, stripe: Stripe, chunk: Chunk, start: u32, bytes: usize, at: At) -> Move {
        let slot = match chunk {
            P => self.geometry.p_member(stripe).expect("a level with P"),
            Q => self.geometry.q_member(stripe).expect("a level with Q"),
            data => self.geometry.data_member(stripe, u32::from(data)),
        };
        Move { slot, offset: (self.geometry.member_offset(stripe) + u64::from(start)).get(), bytes, at }
    }

    fn read(&self, recipe: &mut Recipe, part: &Part) {
        let lost = self.lost(part.stripe);
        let wanted: Vec<Fragment> = part.pieces.iter().map(|piece| piece.0).collect();
        if !wanted.iter().any(|fragment| lost.contains(fragment.chunk)) {
            self.fetch(recipe, part.stripe, &wanted);
            return;
        }
        let fetched = plan_read(self.shape(), lost, &wanted).expect("losses within the level");
        let held = self.fetch(recipe, part.stripe, &fetched);
        for fragment in wanted.iter().filter(|fragment| lost.contains(fragment.chunk)) {
            self.recover(recipe, part.stripe, lost, fragment.rows, &|chunk, rows| find(&held, chunk, rows));
        }
    }

    /// Copies fragments from the members into buffers.
    fn fetch(&self, recipe: &mut Recipe, stripe: Stripe, fragments: &[Fragment]) -> Vec<(Fragment, usize)> {
        let mut held = Vec::new();
        for fragment in fragments {
            let (bytes, buffer) = (fragment.rows.bytes(), recipe.buffer(fragment.rows.bytes()));
            recipe.reads.push(self.place(
                stripe,
                fragment.chunk,
                fragment.rows.start,
                bytes,
                At::Buffer(buffer, 0),
            ));
            held.push((*fragment, buffer));
        }
        held
    }

    fn write(&self, recipe: &mut Recipe, part: &Part) {
        let lost = self.lost(part.stripe);
        let written: Vec<Fragment> = part.pieces.iter().map(|piece| piece.0).collect();
        let plan: Plan = plan(self.shape(), lost, &written, &[], None).expect("losses within the level");
        let held = self.fetch(recipe, part.stripe, &plan.reads);
        let mut parity = Vec::new();
        for run in plan.steps.chunk_by(|a, b| a.rows.end == b.rows.start) {
            if run[0].routine != Routine::DataOnly {
                self.make_parity(recipe, part, lost, run, &held, &mut parity);
            }
        }
        self.write_data(recipe, part, lost);
        recipe.writes.extend(parity);
    }

    fn write_data(&self, recipe: &mut Recipe, part: &Part, lost: ChunkSet) {
        for (fragment, at) in part.pieces.iter().filter(|(fragment, _)| !lost.contains(fragment.chunk)) {
            let (rows, at) = (fragment.rows, At::Request(*at));
            recipe.writes.push(self.place(part.stripe, fragment.chunk, rows.start, rows.bytes(), at));
        }
    }

    /// The passes for neighbouring steps, and the writes of their parity.
    fn make_parity(
        &self,
        recipe: &mut Recipe,
        part: &Part,
        lost: ChunkSet,
        run: &[Step],
        held: &[(Fragment, usize)],
        writes: &mut Vec<Move>,
    ) {
        let rows = Rows { start: run[0].rows.start, end: run[run.len() - 1].rows.end };
        let chunks = [P, Q].map(|chunk| {
            (self.shape().parity > u32::from(chunk - P) && !lost.contains(chunk)).then_some(chunk)
        });
        let in_place = run.len() == 1 && run[0].routine == Routine::Rmw && run[0].written.len() == 1;
        let old = |chunk: Chunk, rows: Rows| find(held, chunk, rows).expect("what the plan needs is read");
        let out = chunks.map(|chunk| match (chunk?, in_place) {
            (chunk, true) => Some(old(chunk, rows)),
            (_, false) => Some(At::Buffer(recipe.buffer(rows.bytes()), 0)),
        });
        for step in run {
            let skip = (step.rows.start - rows.start) as usize;
            let kind = match step.routine {
                Routine::Rmw => self.delta(part, step, chunks, in_place, &old),
                _ => self.encode(recipe, part, lost, step, held),
            };
            let out = out.map(|at| at.map(|at| at.buffer(skip)));
            recipe.passes.push(Pass { bytes: step.rows.bytes(), kind, out });
        }
        for (chunk, at) in chunks.into_iter().zip(out) {
            if let (Some(chunk), Some(at)) = (chunk, at) {
                writes.push(self.place(part.stripe, chunk, rows.start, rows.bytes(), at));
            }
        }
    }

    fn delta(
        &self,
        part: &Part,
        step: &Step,
        parity: [Option<Chunk>; 2],
        in_place: bool,
        old: &dyn Fn(Chunk, Rows) -> At,
    ) -> Kind {
        let change =
            |chunk: Chunk| (self.index(part, chunk), old(chunk, step.rows), part.new_data(chunk, step.rows));
        let changes: Vec<(usize, At, At)> = step.written.iter().map(change).collect();
        match changes[..] {
            [(index, old, new)] if in_place => Kind::Update { index, old, new },
            _ => Kind::Delta { changes, old: parity.map(|chunk| Some(old(chunk?, step.rows))) },
        }
    }

    fn encode(
        &self,
        recipe: &mut Recipe,
        part: &Part,
        lost: ChunkSet,
        step: &Step,
        held: &[(Fragment, usize)],
    ) -> Kind {
        let known = |chunk: Chunk, rows: Rows| find(held, chunk, rows);
        let mut recovered = Vec::new();
        if step.routine == Routine::Recover {
            recovered = self.recover(recipe, part.stripe, lost, step.rows, &known);
        }
        let contents = |chunk: Chunk| {
            if step.written.contains(chunk) {
                return part.new_data(chunk, step.rows);
            }
            let lost = recovered.iter().find(|(lost, _)| *lost == chunk);
            lost.map(|(_, buffer)| At::Buffer(*buffer, 0))
                .or_else(|| known(chunk, step.rows))
                .expect("what the plan needs is read")
        };
        let mut data = vec![At::Request(0); self.geometry.data_chunks() as usize];
        for chunk in ChunkSet::first(self.geometry.data_chunks()).iter() {
            data[self.index(part, chunk)] = contents(chunk);
        }
        Kind::Encode { data }
    }

    /// A pass that recovers the lost data chunks of some rows. Returns their buffers.
    fn recover(
        &self,
        recipe: &mut Recipe,
        stripe: Stripe,
        lost: ChunkSet,
        rows: Rows,
        known: &dyn Fn(Chunk, Rows) -> Option<At>,
    ) -> Vec<(Chunk, usize)> {
        let data = ChunkSet::first(self.geometry.data_chunks());
        let index = |chunk: Chunk| self.geometry.syndrome_index(stripe, u32::from(chunk)) as usize;
        let rest = data.without(lost).iter();
        let rest = rest.map(|chunk| (index(chunk), known(chunk, rows).expect("the rest is read"))).collect();
        let recovered: Vec<(Chunk, usize)> =
            data.and(lost).iter().map(|chunk| (chunk, recipe.buffer(rows.bytes()))).collect();
        let out = [0, 1].map(|at| recovered.get(at).map(|(_, buffer)| (*buffer, 0)));
        let kind = Kind::Recover {
            known: rest,
            parity: [known(P, rows), known(Q, rows)],
            lost: recovered.iter().map(|(chunk, _)| index(*chunk)).collect(),
        };
        recipe.passes.push(Pass { bytes: rows.bytes(), kind, out });
        recovered
    }

    fn index(&self, part: &Part, chunk: Chunk) -> usize {
        self.geometry.syndrome_index(part.stripe, u32::from(chunk)) as usize
    }

    /// RAID-1 and RAID-10: one copy is read, all are written.
    fn copies(&self, recipe: &mut Recipe, write: bool, offset: u64, bytes: u64) {
        let mut done = 0;
        while done < bytes {
            let copies = self.geometry.copies(ArrayOffset::new(offset + done), bytes - done);
            let working = copies.places.iter().filter(|place| !self.missing.contains(&place.member));
            for place in working.take(if write { usize::MAX } else { 1 }) {
                let at = match write {
                    true => At::Request(done as usize),
                    false => At::Buffer(recipe.buffer(copies.len as usize), 0),
                };
                let copy = Move {
                    slot: place.member,
                    offset: place.member_offset.get(),
                    bytes: copies.len as usize,
                    at,
                };
                if write { recipe.writes.push(copy) } else { recipe.reads.push(copy) }
            }
            done += copies.len;
        }
    }
}

impl Recipe {
    /// What its copies come to.
    pub(super) fn copied(&self) -> Operations {
        let sum = |moves: &[Move]| moves.iter().map(|copy| copy.bytes as u64).sum();
        Operations {
            reads: self.reads.len() as u64,
            read_bytes: sum(&self.reads),
            writes: self.writes.len() as u64,
            write_bytes: sum(&self.writes),
        }
    }

    fn buffer(&mut self, bytes: usize) -> usize {
        self.buffers.push(bytes);
        self.buffers.len() - 1
    }
}

impl At {
    fn buffer(self, skip: usize) -> (usize, usize) {
        match self {
            At::Buffer(buffer, start) => (buffer, start + skip),
            At::Request(_) => unreachable!("parity is not in the request"),
        }
    }
}

impl Part {
    /// Where the request has new contents of these rows.
    fn new_data(&self, chunk: Chunk, rows: Rows) -> At {
        let holds = |piece: &&(Fragment, usize)| piece.0.chunk == chunk && piece.0.rows.contains(rows);
        let (fragment, at) = self.pieces.iter().find(holds).expect("a written chunk");
        At::Request(at + (rows.start - fragment.rows.start) as usize)
    }
}

fn find(held: &[(Fragment, usize)], chunk: Chunk, rows: Rows) -> Option<At> {
    let holds = |(fragment, _): &&(Fragment, usize)| fragment.chunk == chunk && fragment.rows.contains(rows);
    let (fragment, buffer) = held.iter().find(holds)?;
    Some(At::Buffer(*buffer, (rows.start - fragment.rows.start) as usize))
}
