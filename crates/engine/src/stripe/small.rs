//! Fast path of the common small write: one fragment of one chunk, every member in sync, read-modify-write. It does what
//! the plan would say without making one: arrays of three instead of lists, and old parity is updated in place.
//!
//! The general path costs about three times the instructions, which at 4 KiB is more than the copies
//! (docs/decisions/2026-11-25-rooms.md has the figures). On cached parity of other rows, a write that joins or an error,
//! the fast path leaves what it has read in the image, and the general path goes on from there.

use super::avoid::rmw_is_chosen;
use super::engine::{Owned, ParityEngine};
use super::fast_path::FastPath;
use super::runner::{Verdict, judge};
use super::stripe_table::Claim;
use crate::buffer::{Buffer, Gather, Slice};
use crate::code::chunk_set::{Chunk, P, Q};
use crate::code::image::{Held, Image};
use crate::code::rows::Fragment;
use crate::code::union::{NewData, StripeWrite};
use crate::device::{Device, DeviceError};
use crate::error::VolumeError;
use crate::executor::{ahead, join_in_place};
use crate::members::port::{MemberRead, MemberWrite};
use crate::stages::{Stage, Watch};

/// The chunks of a small write: the data chunk, P, and in RAID-6 Q.
const CHUNKS_MAX: usize = 3;

/// The chunks and their reads. Without Q the last of each is not used.
struct Small {
    chunks: [Chunk; CHUNKS_MAX],
    reads: [MemberRead; CHUNKS_MAX],
    count: usize,
}

/// Makes a small write. If it is interrupted, `image` holds what it has read.
pub(super) async fn write_small<D: Device>(
    engine: &ParityEngine<D>,
    own: &StripeWrite,
    claim: &mut Claim,
    image: &mut Image,
    watch: impl Watch,
) -> FastPath {
    let ([part], true) = (&own.parts[..], claim.is_alone()) else { return FastPath::Declined };
    let owned = engine.owned(claim);
    let Some(small) = small(owned, part) else { return FastPath::Declined };
    owned.shared().cache.take(owned.stripe(), part.fragment.rows, image);
    let Some(cached) = small.cached(part, image) else { return FastPath::Interrupted };
    let Some(read) = read_small(owned, &small, part, cached, image).await else {
        return FastPath::Interrupted;
    };
    if claim.freeze() > 0 || !engine.shared.members.plain() {
        small.keep(read, part, image);
        return FastPath::Interrupted;
    }
    let owned = engine.owned(claim);
    watch.enter(Stage::Parity);
    let index = || owned.geometry().syndrome_index(owned.stripe(), u32::from(part.fragment.chunk)) as usize;
    let parity = update(read, index, part.data.bytes());
    watch.enter(Stage::Write);
    owned.port().counters().rmw.add(1);
    FastPath::Done(store_small(owned, &small, part, parity, own.fua).await)
}

/// The reads of a small write, if the plan would choose read-modify-write for it.
fn small<D: Device>(owned: Owned<'_, D>, part: &NewData) -> Option<Small> {
    let (shared, shape) = (owned.shared(), owned.shape());
    let is_trusted = shared.consistency.is_plain(owned.stripe());
    if !shared.members.plain() || shape.parity + 2 > shape.data || !is_trusted {
        return None;
    }
    if !rmw_is_chosen(owned.engine(), owned.stripe(), &part.fragment) {
        return None;
    }
    let offset = shared.geometry.member_offset(owned.stripe()) + u64::from(part.fragment.rows.start);
    let chunk = u32::from(part.fragment.chunk);
    let (data, p, q) = shared.geometry.members_of_update(owned.stripe(), chunk);
    let read = |slot| MemberRead { slot, offset, bytes: part.fragment.rows.bytes() };
    let (data, p, q) = (read(data), read(p), read(q.unwrap_or(p)));
    let count = 1 + shape.parity as usize;
    Some(Small { chunks: [part.fragment.chunk, P, Q], reads: [data, p, q], count })
}

/// Reads old data, and old parity that is not cached. None if a read failed; the general path finds out why.
async fn read_small<D: Device>(
    owned: Owned<'_, D>,
    small: &Small,
    part: &NewData,
    mut read: [Option<Buffer>; CHUNKS_MAX],
    image: &mut Image,
) -> Option<[Option<Buffer>; CHUNKS_MAX]> {
    let mut started = [const { None }; CHUNKS_MAX];
    for i in 0..small.count {
        if read[i].is_none() {
            started[i] = owned.port().start_read(&small.reads[i]).map(|(_, read)| read);
        }
    }
    let ended = |i: usize, (buffer, result): (_, Result<_, _>)| read[i] = result.is_ok().then_some(buffer);
    ahead(join_in_place(&mut started, ended)).await;
    if read[..small.count].iter().all(Option::is_some) {
        return Some(read);
    }
    small.keep(read, part, image);
    None
}

/// Turns old parity into new parity, in place. `index` counts the data chunk as Q does.
fn update(
    read: [Option<Buffer>; CHUNKS_MAX],
    index: impl FnOnce() -> usize,
    new: &[u8],
) -> [Option<Slice>; 2] {
    let [Some(old), Some(mut p), q] = read else { unreachable!("data and P were read") };
    match q {
        None => {
            parity::update_p(old.bytes(), new, p.bytes_mut());
            [Some(p.freeze()), None]
        }
        Some(mut q) => {
            parity::update_pq(index(), old.bytes(), new, p.bytes_mut(), q.bytes_mut());
            [Some(p.freeze()), Some(q.freeze())]
        }
    }
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
    let start = |i: usize| owned.port().start_write(write(i)?, fua);
    let (mut to, mut started) = ([const { None }; CHUNKS_MAX], [const { None }; CHUNKS_MAX]);
    for i in 0..small.count {
        (to[i], started[i]) = start(i).unzip();
    }
    let mut errors = [const { None }; CHUNKS_MAX];
    let mut has_failed = to[..small.count].iter().any(Option::is_none);
    let ended = |i: usize, result: Result<(), DeviceError>| {
        if let Err(error) = result {
            (errors[i], has_failed) = (Some(error), true);
        }
    };
    join_in_place(&mut started, ended).await;
    let mut verdict = Verdict::new();
    if has_failed {
        for i in 0..small.count {
            verdict.add(match (errors[i].take(), &to[i]) {
                (None, Some(_)) => continue,
                (Some(error), Some(to)) => {
                    let write = write(i).expect("a chunk of the write");
                    Box::pin(owned.port().finish_write(&write, fua, to, Err(error))).await
                }
                (_, None) => Err(owned.port().absent(small.reads[i].slot)),
            });
        }
    }
    let start = part.fragment.rows.start;
    let made = small.chunks[1..].iter().zip(&slices[1..small.count]);
    let parity = made.map(|(chunk, slice)| (*chunk, start, slice.as_ref().expect("new parity")));
    judge(owned, part.fragment.rows, verdict, parity).await
}

impl Small {
    /// Takes cached parity out of the image. None if the image holds other rows, or memory that is shared.
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
        for (buffer, chunk) in cached[1..].iter_mut().zip(parity) {
            *buffer = image.take_owned(*chunk, rows);
        }
        Some(cached)
    }

    /// Puts what was read into the image, for the general path.
    fn keep(&self, read: [Option<Buffer>; CHUNKS_MAX], part: &NewData, image: &mut Image) {
        for (chunk, buffer) in self.chunks.iter().zip(read) {
            if let Some(buffer) = buffer {
                image.insert(Fragment { chunk: *chunk, rows: part.fragment.rows }, Held::Owned(buffer));
            }
        }
    }
}
