//! The common small write by hand: one piece of one chunk, every member in sync, read-modify-write. It does what the
//! plan would say, without making the plan: an array of three instead of lists, old parity changed in place.
//!
//! The general way costs about three times the instructions, which at 4 KiB is more than the copies
//! (docs/decisions/2026-11-25-rooms.md has the figures). Whatever is not as usual (parity cached of other rows, a write that
//! joins, an error) leaves what was read in the image, and the general way goes on from there.

use super::avoid::rmw_is_chosen;
use super::by_hand::ByHand;
use super::engine::{Owned, ParityEngine};
use super::runner::judge;
use super::stripe_table::Claim;
use crate::buffer::{Buffer, Gather, Slice};
use crate::code::chunk_set::{Chunk, P, Q};
use crate::code::image::{Held, Image};
use crate::code::parity_step::NewParity;
use crate::code::rows::Fragment;
use crate::code::union::{NewData, StripeWrite};
use crate::device::Device;
use crate::error::VolumeError;
use crate::executor::{ahead, join_array};
use crate::members::port::{MemberRead, MemberWrite};
use crate::stages::{Stage, Watch};
use smallvec::SmallVec;

/// The chunks of a small write: the data chunk, P, and in RAID-6 Q.
const CHUNKS_MAX: usize = 3;

/// Where the chunks are. Without Q the last place is not used.
struct Small {
    chunks: [Chunk; CHUNKS_MAX],
    reads: [MemberRead; CHUNKS_MAX],
    count: usize,
}

/// Makes a small write. Where it is interrupted, what was read is in `image`.
pub(super) async fn write_small<D: Device>(
    engine: &ParityEngine<D>,
    own: &StripeWrite,
    claim: &mut Claim,
    image: &mut Image,
    watch: &mut Watch<'_>,
) -> ByHand {
    let ([part], true) = (&own.parts[..], claim.is_alone()) else { return ByHand::Declined };
    let owned = engine.owned(claim);
    let Some(small) = small(owned, part) else { return ByHand::Declined };
    owned.shared().cache.take(owned.stripe(), part.fragment.rows, image);
    let Some(cached) = small.cached(part, image) else { return ByHand::Interrupted };
    let Some(read) = read_small(owned, &small, part, cached, image).await else { return ByHand::Interrupted };
    if claim.freeze() > 0 || !engine.shared.members.plain() {
        small.keep(read, part, image);
        return ByHand::Interrupted;
    }
    let owned = engine.owned(claim);
    watch.enter(Stage::Parity);
    let index = owned.geometry().syndrome_index(owned.stripe(), u32::from(part.fragment.chunk)) as usize;
    let parity = update(read, index, part.data.bytes());
    watch.enter(Stage::Write);
    owned.port().counters().rmw.add(1);
    ByHand::Made(store_small(owned, &small, part, parity, own.fua).await)
}

/// Whether read-modify-write is what the plan would choose, and where its chunks are.
fn small<D: Device>(owned: Owned<'_, D>, part: &NewData) -> Option<Small> {
    let (shared, shape) = (owned.shared(), owned.shape());
    let is_trusted =
        !shared.consistency.is_suspect(owned.stripe()) && !shared.consistency.is_unsynced(owned.stripe());
    if !shared.members.plain() || shape.parity + 2 > shape.data || !is_trusted {
        return None;
    }
    if !rmw_is_chosen(owned.engine(), owned.stripe(), &part.fragment) {
        return None;
    }
    let offset = shared.geometry.member_offset(owned.stripe()) + u64::from(part.fragment.rows.start);
    let read = |chunk| MemberRead {
        slot: shared.slot_of(owned.stripe(), chunk),
        offset,
        bytes: part.fragment.rows.bytes(),
    };
    let (data, p) = (read(part.fragment.chunk), read(P));
    let q = if shape.parity == 2 { read(Q) } else { p };
    let count = 1 + shape.parity as usize;
    Some(Small { chunks: [part.fragment.chunk, P, Q], reads: [data, p, q], count })
}

/// Old data, and old parity that is not cached. None if a read failed; the general way finds out why.
async fn read_small<D: Device>(
    owned: Owned<'_, D>,
    small: &Small,
    part: &NewData,
    mut read: [Option<Buffer>; CHUNKS_MAX],
    image: &mut Image,
) -> Option<[Option<Buffer>; CHUNKS_MAX]> {
    let start = |i: usize| {
        if i < small.count && read[i].is_none() { owned.port().start_read(&small.reads[i]) } else { None }
    };
    let started = [start(0), start(1), start(2)].map(|started| started.map(|(_, read)| read));
    for (buffer, done) in read.iter_mut().zip(ahead(join_array(started)).await) {
        if let Some((done, Ok(()))) = done {
            *buffer = Some(done);
        }
    }
    if read[..small.count].iter().all(Option::is_some) {
        return Some(read);
    }
    small.keep(read, part, image);
    None
}

async fn store_small<D: Device>(
    owned: Owned<'_, D>,
    small: &Small,
    part: &NewData,
    parity: [Option<Slice>; 2],
    fua: bool,
) -> Result<(), VolumeError> {
    let [p, q] = parity;
    let slices = [Some(part.data.clone()), p, q];
    let write = |i: usize| {
        let data = Gather::from(slices[i].clone()?);
        Some(MemberWrite { slot: small.reads[i].slot, offset: small.reads[i].offset, data })
    };
    let start = |i: usize| owned.port().start_write(&write(i)?, fua);
    let (mut to, mut started) = ([const { None }; CHUNKS_MAX], [const { None }; CHUNKS_MAX]);
    for i in 0..small.count {
        (to[i], started[i]) = start(i).unzip();
    }
    let mut results = SmallVec::<[_; CHUNKS_MAX]>::new();
    for (i, done) in join_array(started).await.into_iter().enumerate().take(small.count) {
        results.push(match (done, &to[i]) {
            (Some(Ok(())), _) => Ok(()),
            (Some(result), Some(to)) => {
                owned.port().finish_write(&write(i).expect("a chunk of the write"), fua, to, result).await
            }
            _ => Err(owned.port().absent(small.reads[i].slot)),
        });
    }
    let [_, p, q] = slices;
    let made = [(P, p), (Q, q)].into_iter().filter_map(|(chunk, slice)| Some((chunk, slice?)));
    let start = part.fragment.rows.start;
    let parity: SmallVec<[NewParity; 2]> =
        made.map(|(chunk, slice)| NewParity { chunk, start, slice }).collect();
    judge(owned, part.fragment.rows, &parity, results).await
}

/// New parity in the place of the old.
fn update(read: [Option<Buffer>; CHUNKS_MAX], index: usize, new: &[u8]) -> [Option<Slice>; 2] {
    let [Some(old), Some(mut p), q] = read else { unreachable!("data and P were read") };
    match q {
        None => {
            parity::update_p(old.bytes(), new, p.bytes_mut());
            [Some(p.freeze()), None]
        }
        Some(mut q) => {
            parity::update_pq(index, old.bytes(), new, p.bytes_mut(), q.bytes_mut());
            [Some(p.freeze()), Some(q.freeze())]
        }
    }
}

impl Small {
    /// Takes cached parity out of the image. None if what is there is of other rows, or shared.
    fn cached(&self, part: &NewData, image: &mut Image) -> Option<[Option<Buffer>; CHUNKS_MAX]> {
        let mut cached = [const { None }; CHUNKS_MAX];
        if image.is_empty() {
            return Some(cached);
        }
        let rows = part.fragment.rows;
        let parity = &self.chunks[1..self.count];
        let owned = parity.iter().filter(|&&chunk| image.own(chunk, rows)).count();
        if owned < image.len() {
            return None;
        }
        for (place, chunk) in cached[1..].iter_mut().zip(parity) {
            *place = image.take_owned(*chunk, rows);
        }
        Some(cached)
    }

    /// Leaves what was read to the general way.
    fn keep(&self, read: [Option<Buffer>; CHUNKS_MAX], part: &NewData, image: &mut Image) {
        for (chunk, buffer) in self.chunks.iter().zip(read) {
            if let Some(buffer) = buffer {
                image.insert(Fragment { chunk: *chunk, rows: part.fragment.rows }, Held::Owned(buffer));
            }
        }
    }
}
