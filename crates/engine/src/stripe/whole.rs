//! The write of a whole stripe by hand: every data chunk is written, each in one piece, and every member is in sync. New
//! parity is made of what is written, so nothing is read and nothing planned.
//!
//! The general way plans twice, before and after the freeze, and makes lists of rows for either: 4 % of the processor
//! time of a stripe of 320 KiB in memory. Whatever is not as usual is left to it, with a batch that may be closed by then.

use smallvec::SmallVec;

use super::StripeSet;
use super::chunk_set::{Chunk, ChunkSet};
use super::image::Image;
use super::member_io::MemberWrite;
use super::parity_step::NewParity;
use super::plan::Rows;
use super::stripe_table::Claim;
use super::union::StripeWrite;

use crate::buffer::{Gather, Slice};
use crate::device::Device;
use crate::stages::{Stage, Watch};
use crate::volume::VolumeError;

/// The contents of each data chunk.
type Contents = SmallVec<[Slice; 8]>;

impl<D: Device> StripeSet<D> {
    /// Does the write of a whole stripe, or returns None.
    pub(super) async fn write_whole(
        &self,
        stripe: u64,
        own: &StripeWrite,
        claim: &mut Claim,
        watch: &mut Watch<'_>,
    ) -> Option<Result<(), VolumeError>> {
        let contents = self.whole_contents(own, claim)?;
        if !self.is_as_usual(stripe) || claim.freeze() > 0 {
            return None;
        }
        let rows = self.all_rows();
        // Invariant 5: from here on the members have other parity. Not only forgotten: the cache counts looks in vain.
        self.shared.cache.take(stripe, rows, &mut Image::default());
        watch.enter(Stage::Parity);
        let bytes = |chunk: Chunk| contents[usize::from(chunk)].bytes();
        let parity = self.parity_from(stripe, rows, ChunkSet::EMPTY, bytes).into_iter();
        let parity: SmallVec<[NewParity; 2]> =
            parity.map(|(chunk, buffer)| NewParity { chunk, start: 0, slice: buffer.freeze() }).collect();
        watch.enter(Stage::Write);
        self.counters().full_stripe_writes.add(1);
        self.counters().rcw.add(1);
        let place = |chunk: Chunk, slice: Slice| MemberWrite {
            slot: self.shared.member_of(stripe, chunk),
            offset: self.shared.geometry.member_offset(stripe),
            data: Gather::from(slice),
        };
        let mut writes = SmallVec::<[MemberWrite; 8]>::new();
        writes.extend((0..).zip(contents).map(|(chunk, slice)| place(chunk, slice)));
        writes.extend(parity.iter().map(|new| place(new.chunk, new.slice.clone())));
        let fua = own.fua || claim.joined().any(|write| write.fua);
        let results = self.write_members(&writes, fua).await;
        Some(self.stored(stripe, rows, &parity, results).await)
    }

    /// What the batch writes so far, if that is every chunk of the stripe in one piece.
    fn whole_contents(&self, own: &StripeWrite, claim: &Claim) -> Option<Contents> {
        let (rows, count) = (self.all_rows(), self.shared.geometry.data_chunks() as usize);
        // Most writes are told by their first part.
        if own.parts.first()?.fragment.rows != rows {
            return None;
        }
        let mut found: SmallVec<[Option<&Slice>; 8]> = smallvec::smallvec![None; count];
        for part in [own].into_iter().chain(claim.joined()).flat_map(|write| &write.parts) {
            if part.fragment.rows != rows {
                return None;
            }
            found[usize::from(part.fragment.chunk)] = Some(&part.data); // later writes over earlier ones
        }
        found.into_iter().map(Option::<&Slice>::cloned).collect()
    }

    /// Whether the stripe has all its members and its parity agrees, so that nothing but this write is to be done.
    fn is_as_usual(&self, stripe: u64) -> bool {
        let shared = &*self.shared;
        shared.members.plain() && !shared.is_suspect(stripe) && !shared.doubts.contains(stripe)
    }

    /// The rows of a whole chunk.
    pub(super) fn all_rows(&self) -> Rows {
        Rows { start: 0, end: self.shared.geometry.chunk_bytes() }
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use layout::geometry::Level;

    use crate::buffer::Slice;
    use crate::counters::CounterTotals;
    use crate::executor::join_all;
    use crate::members::MemberState;
    use crate::stripe::fake::{CHUNK, World};

    const LEVELS: [(Level, u32); 3] = [(Level::Raid4, 4), (Level::Raid5, 4), (Level::Raid6, 6)];

    fn totals(world: &World) -> CounterTotals {
        CounterTotals::of(&world.set.shared.counters)
    }

    /// Every block of the array is `expected` without each of the members, one after the other and, at RAID-6, two.
    fn survives(world: &World, expected: &[u8]) {
        assert!(world.read(0, expected.len() as u64).expect("whole") == expected);
        for slot in 0..world.set.shared.geometry.parity_chunks() {
            world.set.shared.members.fail(slot, "a test");
            assert!(world.read(0, expected.len() as u64).expect("degraded") == expected, "without {slot}");
        }
    }

    #[test]
    fn whole_stripes_are_written_without_a_read() {
        for (level, members) in LEVELS {
            let world = World::new(level, members);
            let pattern = world.fill();
            let stripes = world.set.shared.geometry.stripes();
            let counts = totals(&world);
            assert_eq!(
                (counts.full_stripe_writes, counts.rcw, counts.rmw),
                (stripes, stripes, 0),
                "{level:?}"
            );
            assert_eq!(counts.member_reads, 0, "{level:?}");
            assert_eq!(counts.member_writes, stripes * u64::from(members), "one for each chunk");
            survives(&world, &pattern);
        }
    }

    #[test]
    fn writes_that_joined_make_a_stripe_whole() {
        let world = World::new(Level::Raid5, 4);
        let mut expected = world.fill();
        let (stripe, chunk) = (world.set.shared.geometry.stripe_bytes(), u64::from(CHUNK));
        let before = totals(&world);
        let set = Rc::clone(&world.set);
        let write = move |index: u64| {
            let (own, new) = (Rc::clone(&set), Slice::from_bytes(&vec![index as u8; chunk as usize]));
            let write = async move { own.write_range(2 * stripe + index * chunk, new.into(), false).await };
            set.executor.spawn_with_result(write) // they have all arrived when the first one is begun
        };
        let results = world.run(async move { join_all((0..3).map(write)).await });
        assert!(results.iter().all(Result::is_ok));
        for index in 0..3 {
            let at = (2 * stripe + index * chunk) as usize;
            expected[at..at + chunk as usize].fill(index as u8);
        }
        let after = totals(&world);
        assert_eq!(after.full_stripe_writes - before.full_stripe_writes, 1);
        assert_eq!((after.member_reads, after.joined_writes), (before.member_reads, 2));
        survives(&world, &expected);
    }

    /// Small writes of one place have left their parity in the cache, which is not what the members have after this.
    #[test]
    fn parity_that_was_cached_is_not_built_upon() {
        let world = World::new(Level::Raid5, 4);
        let mut expected = world.fill();
        let stripe = world.set.shared.geometry.stripe_bytes() as usize;
        let mut write = |at: usize, bytes: usize, byte: u8| {
            world.write(at as u64, &vec![byte; bytes]).expect("written");
            expected[at..at + bytes].fill(byte);
        };
        for round in 0..3 {
            (1..4).for_each(|byte| write(stripe, 4096, byte + 10 * round));
            write(stripe, stripe, 9 + 10 * round);
            write(stripe + 4096, 4096, 5 + 10 * round);
        }
        assert!(totals(&world).rmw > 0);
        survives(&world, &expected);
    }

    #[test]
    fn a_member_that_fails_under_it_costs_nothing() {
        for (level, members) in LEVELS {
            let world = World::new(level, members);
            let mut expected = world.fill();
            world.fakes[1].set_gone();
            let stripe = world.set.shared.geometry.stripe_bytes() as usize;
            world.write(stripe as u64, &vec![7; stripe]).expect("written");
            expected[stripe..2 * stripe].fill(7);
            assert_eq!(world.state(1), MemberState::Failed);
            assert!(world.read(0, expected.len() as u64).expect("degraded") == expected, "{level:?}");
        }
    }
}
