//! A recipe done: copies and parity passes, nothing else.

use std::sync::Arc;

use engine::buffer::Buffer;
use host::device::memory::{Copier, Memory};
use parity::Change;

use super::recipe::{At, Kind, Move, Pass, Recipe};
#[cfg(test)]
use crate::operations::Operations;
use crate::random::Random;

/// Members' memory, and buffers as a run has them: a set for each request in flight.
pub(crate) struct Kitchen {
    members: Vec<Copier>,
    sets: Vec<Set>,
    next: usize,
}

/// Buffers of one request in flight. An output is taken out while a pass writes it.
struct Set {
    request: Buffer,
    buffers: Vec<Option<Buffer>>,
}

impl Kitchen {
    /// For `recipes` of requests of up to `bytes_max` bytes.
    pub(crate) fn new(memories: &[Arc<Memory>], recipes: &[Recipe], depth: usize, bytes_max: usize) -> Self {
        let count = recipes.iter().map(|recipe| recipe.buffers.len()).max().unwrap_or(0);
        let largest = |at: usize| recipes.iter().filter_map(|recipe| recipe.buffers.get(at)).max().copied();
        let sizes: Vec<usize> = (0..count).filter_map(largest).collect();
        let set = |seed: usize| {
            let (mut random, mut request) = (Random::new(seed as u64), Buffer::new(bytes_max));
            let words = request.bytes_mut().chunks_exact_mut(8);
            words.for_each(|word| word.copy_from_slice(&random.next().to_le_bytes()));
            Set { request, buffers: sizes.iter().map(|bytes| Some(Buffer::new(*bytes))).collect() }
        };
        Kitchen {
            members: memories.iter().map(Memory::copier).collect(),
            sets: (0..depth).map(set).collect(),
            next: 0,
        }
    }

    /// What it has copied so far.
    #[cfg(test)]
    pub(crate) fn copied(&self) -> Operations {
        let mut sum = Operations::default();
        for counters in self.members.iter().map(Copier::counters) {
            let host::device::memory::MemoryCounters { reads, read_bytes, writes, write_bytes, .. } =
                counters;
            sum += Operations { reads, read_bytes, writes, write_bytes };
        }
        sum
    }

    /// Does all that a request needs, with the layout's period at `base` of each member.
    #[inline]
    pub(crate) fn perform(&mut self, recipe: &Recipe, base: u64) {
        let count = self.sets.len();
        let set = &mut self.sets[self.next];
        self.next = if self.next + 1 == count { 0 } else { self.next + 1 };
        for Move { slot, offset, bytes, at } in &recipe.reads {
            let At::Buffer(buffer, start) = *at else { unreachable!("reads go to buffers") };
            let target = set.buffers[buffer].as_mut().expect("not taken").bytes_mut();
            self.members[slot.index()].read(base + offset, &mut target[start..start + bytes]);
        }
        recipe.passes.iter().for_each(|pass| set.pass(pass));
        for Move { slot, offset, bytes, at } in &recipe.writes {
            self.members[slot.index()].write(base + offset, set.at(*at, *bytes));
        }
    }
}

impl Set {
    fn at(&self, at: At, bytes: usize) -> &[u8] {
        match at {
            At::Request(start) => &self.request.bytes()[start..start + bytes],
            At::Buffer(buffer, start) => {
                &self.buffers[buffer].as_ref().expect("not an output of this pass").bytes()
                    [start..start + bytes]
            }
        }
    }

    fn pass(&mut self, pass: &Pass) {
        let mut taken = pass.out.map(|out| self.buffers[out?.0].take());
        let [first, second] = &mut taken;
        let first = first.as_mut().map(|buffer| cut(buffer, pass.out[0], pass.bytes));
        let second = second.as_mut().map(|buffer| cut(buffer, pass.out[1], pass.bytes));
        self.make(pass, first, second);
        for (buffer, out) in taken.into_iter().zip(pass.out) {
            if let Some((at, _)) = out {
                self.buffers[at] = buffer;
            }
        }
    }

    fn make(&self, pass: &Pass, p: Option<&mut [u8]>, q: Option<&mut [u8]>) {
        let at = |place: At| self.at(place, pass.bytes);
        match &pass.kind {
            Kind::Update { index, old, new } => match (p, q) {
                (Some(p), Some(q)) => parity::update_pq(*index, at(*old), at(*new), p, q),
                (Some(p), None) => parity::update_p(at(*old), at(*new), p),
                (None, Some(q)) => parity::update_q(*index, at(*old), at(*new), q),
                (None, None) => {}
            },
            Kind::Delta { changes, old } => {
                let change =
                    |&(index, old, new): &(usize, At, At)| Change { index, old: at(old), new: at(new) };
                let changes: Vec<Change> = changes.iter().map(change).collect();
                let old = old.map(|old| old.map(at));
                match (p, q, old) {
                    (Some(p), Some(q), [Some(old_p), Some(old_q)]) => {
                        parity::delta_pq(&changes, old_p, old_q, p, q);
                    }
                    (Some(p), None, [Some(old), _]) => parity::delta_p(&changes, old, p),
                    (None, Some(q), [_, Some(old)]) => parity::delta_q(&changes, old, q),
                    _ => {}
                }
            }
            Kind::Encode { data } => {
                let data: Vec<&[u8]> = data.iter().map(|place| at(*place)).collect();
                match (p, q) {
                    (Some(p), Some(q)) => parity::encode_pq(&data, p, q),
                    (Some(p), None) => parity::encode_p(&data, p),
                    (None, Some(q)) => parity::encode_q(&data, q),
                    (None, None) => {}
                }
            }
            Kind::Recover { known, parity, lost } => {
                let known: Vec<(usize, &[u8])> =
                    known.iter().map(|(index, place)| (*index, at(*place))).collect();
                recover(&known, parity.map(|place| place.map(at)), lost, p, q);
            }
        }
    }
}

fn cut(buffer: &mut Buffer, out: Option<(usize, usize)>, bytes: usize) -> &mut [u8] {
    let start = out.map_or(0, |(_, start)| start);
    &mut buffer.bytes_mut()[start..start + bytes]
}

fn recover(
    known: &[(usize, &[u8])],
    parity: [Option<&[u8]>; 2],
    lost: &[usize],
    first: Option<&mut [u8]>,
    second: Option<&mut [u8]>,
) {
    match (lost, parity, first, second) {
        (&[_], [Some(p), _], Some(out), _) => {
            let known: Vec<&[u8]> = known.iter().map(|(_, bytes)| *bytes).collect();
            parity::recover_data_from_p(&known, p, out);
        }
        (&[lost], [None, Some(q)], Some(out), _) => parity::recover_data_from_q(known, q, lost, out),
        (&[one, two], [Some(p), Some(q)], Some(first), Some(second)) => {
            parity::recover_two_data(known, p, q, (one, two), (first, second));
        }
        _ => {}
    }
}
