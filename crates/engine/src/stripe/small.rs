//! The common small write by hand: one piece of one chunk, every member in sync, read-modify-write. It does what the
//! plan would say, without making the plan: an array of three instead of lists, old parity changed in place.
//!
//! The general way costs about three times the instructions, which at 4 KiB is more than the copies. Whatever is not
//! as usual (parity cached of other rows, a write that joins, an error) leaves what was read in the image, and the
//! general way goes on from there.

use super::StripeSet;
use super::chunk_set::{Chunk, P, Q};
use super::image::{Held, Image};
use super::member_io::{MemberRead, MemberWrite, Undone};
use super::plan::Fragment;
use super::stripe_table::Claim;
use super::union::{NewData, StripeWrite};

use crate::buffer::{Buffer, Gather, Slice};
use crate::device::Device;
use crate::executor::{ahead, join_array};
use crate::stages::{Stage, Watch};
use crate::volume::VolumeError;

/// The chunks of a small write: the data chunk, P, and in RAID-6 Q.
const CHUNKS_MAX: usize = 3;

/// Where the chunks are. Without Q the last place is not used.
struct Small {
    chunks: [Chunk; CHUNKS_MAX],
    reads: [MemberRead; CHUNKS_MAX],
    count: usize,
}

impl<D: Device> StripeSet<D> {
    /// Does a small write, or returns None with what was read in `image`.
    pub(super) async fn write_small(
        &self,
        stripe: u64,
        own: &StripeWrite,
        claim: &mut Claim,
        image: &mut Image,
        watch: &mut Watch<'_>,
    ) -> Option<Result<(), VolumeError>> {
        let ([part], true) = (&own.parts[..], claim.is_alone()) else { return None };
        let small = self.small(stripe, part)?;
        self.shared.cache.take(stripe, part.fragment.rows, image);
        let cached = small.cached(part, image)?;
        let read = self.read_small(&small, part, cached, image).await?;
        if claim.freeze() > 0 || !self.shared.members.plain() {
            small.keep(read, part, image);
            return None;
        }
        watch.enter(Stage::Parity);
        let index = self.shared.geometry.syndrome_index(stripe, u32::from(part.fragment.chunk)) as usize;
        let parity = update(read, index, part.data.bytes());
        watch.enter(Stage::Write);
        self.counters().rmw.add(1);
        Some(self.store_small(stripe, &small, part, parity, own.fua).await)
    }

    /// Whether read-modify-write is what the plan would choose, and where its chunks are.
    fn small(&self, stripe: u64, part: &NewData) -> Option<Small> {
        let (shared, shape) = (&*self.shared, self.shared.shape());
        let is_trusted = !shared.is_suspect(stripe) && !shared.doubts.is_unsynced(stripe);
        if !shared.members.plain() || shape.parity + 2 > shape.data || !is_trusted {
            return None;
        }
        if !self.rmw_is_chosen(stripe, &part.fragment) {
            return None;
        }
        let offset = shared.geometry.member_offset(stripe) + u64::from(part.fragment.rows.start);
        let read = |chunk| MemberRead {
            slot: shared.member_of(stripe, chunk),
            offset,
            bytes: part.fragment.rows.bytes(),
        };
        let (data, p) = (read(part.fragment.chunk), read(P));
        let q = if shape.parity == 2 { read(Q) } else { p };
        let count = 1 + shape.parity as usize;
        Some(Small { chunks: [part.fragment.chunk, P, Q], reads: [data, p, q], count })
    }

    /// Old data, and old parity that is not cached. None if a read failed; the general way finds out why.
    async fn read_small(
        &self,
        small: &Small,
        part: &NewData,
        mut read: [Option<Buffer>; CHUNKS_MAX],
        image: &mut Image,
    ) -> Option<[Option<Buffer>; CHUNKS_MAX]> {
        let start = |i: usize| {
            if i < small.count && read[i].is_none() { self.start_read(&small.reads[i]) } else { None }
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

    async fn store_small(
        &self,
        stripe: u64,
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
        let start = |i: usize| self.start_write(&write(i)?, fua);
        let (mut to, mut started) = ([const { None }; CHUNKS_MAX], [const { None }; CHUNKS_MAX]);
        for i in 0..small.count {
            (to[i], started[i]) = start(i).unzip();
        }
        let mut all_written = true;
        for (i, done) in join_array(started).await.into_iter().enumerate().take(small.count) {
            let result = match (done, &to[i]) {
                (Some(Ok(())), _) => continue,
                (Some(result), Some(to)) => {
                    self.finish_write(&write(i).expect("a chunk of the write"), fua, to, result).await
                }
                _ => Err(self.absent(small.reads[i].slot)),
            };
            match result {
                Ok(()) => {}
                // The others got data and parity of this write: the stripe is as good as a degraded one can be.
                Err(Undone::MemberGone | Undone::Unreadable) => all_written = false,
                Err(Undone::Request(error)) => {
                    return Err(Box::pin(self.half_written(stripe, part.fragment.rows, error)).await);
                }
            }
        }
        if !all_written {
            return self.survived(stripe);
        }
        for (chunk, slice) in small.chunks[1..].iter().zip(&slices[1..small.count]) {
            // Invariant 5: the members have it, and this task owns the stripe until after this.
            let slice = slice.as_ref().expect("new parity");
            self.shared.cache.put(stripe, *chunk, part.fragment.rows.start, slice);
        }
        Ok(())
    }
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
