//! Fast path of a full-stripe write: every data chunk is written, each by one slice, and every member is in sync. New
//! parity is made of the new data, so nothing is read and nothing planned.
//!
//! The general path plans twice, before and after the freeze, and makes lists of rows for each plan: 4 % of the processor
//! time of a stripe of 320 KiB in memory. It takes every other case over, with a batch that may be closed by then.

use smallvec::SmallVec;

use super::engine::{Owned, ParityEngine};
use super::fast_path::FastPath;
use super::runner::{Verdict, judge};
use super::stripe_table::Claim;
use crate::buffer::Slice;
use crate::code::chunk_set::{Chunk, ChunkSet};
use crate::code::image::Image;
use crate::code::parity_step::{NewParity, encode_all};
use crate::code::union::StripeWrite;
use crate::device::Device;
use crate::members::port::MemberWrite;
use crate::stages::{Stage, Watch};

/// The contents of each data chunk.
type Contents = SmallVec<[Slice; 8]>;

/// Makes a full-stripe write. It reads nothing.
pub(super) async fn write_whole<D: Device>(
    engine: &ParityEngine<D>,
    own: &StripeWrite,
    claim: &mut Claim,
    watch: impl Watch,
) -> FastPath {
    let owned = engine.owned(claim);
    let Some(contents) = whole_contents(owned, own) else { return FastPath::Declined };
    if !is_plain_and_sound(owned) {
        return FastPath::Declined;
    }
    if claim.freeze() > 0 {
        return FastPath::Interrupted;
    }
    let owned = engine.owned(claim);
    let rows = owned.all_rows();
    // Invariant 5: this write makes cached parity stale. `take` rather than `forget`, so that the cache also counts the
    // lookup.
    owned.shared().cache.take(owned.stripe(), rows, &mut Image::default());
    watch.enter(Stage::Parity);
    let bytes = |chunk: Chunk| contents[usize::from(chunk)].bytes();
    let parity = encode_all(owned.geometry(), owned.stripe(), rows, ChunkSet::EMPTY, bytes, owned.pool());
    watch.enter(Stage::Write);
    owned.port().counters().full_stripe_writes.add(1);
    owned.port().counters().rcw.add(1);
    let mut writes = SmallVec::<[MemberWrite; 8]>::new();
    writes.extend((0..).zip(contents).map(|(chunk, slice)| owned.write_of(chunk, 0, slice)));
    writes.extend(parity.iter().map(|new| owned.write_of(new.chunk, 0, new.slice.clone())));
    let fua = own.fua || claim.joined().any(|write| write.fua);
    let results = owned.port().write(&writes, fua).await;
    FastPath::Done(judge(owned, rows, Verdict::of(results), parity.iter().map(NewParity::parts)).await)
}

/// The new contents by chunk, if the batch so far writes every chunk and each by one slice.
fn whole_contents<D: Device>(owned: Owned<'_, D>, own: &StripeWrite) -> Option<Contents> {
    let (rows, count) = (owned.all_rows(), owned.geometry().data_chunks() as usize);
    // The first part rules out most writes.
    if own.parts.first()?.fragment.rows != rows {
        return None;
    }
    let mut found: SmallVec<[Option<&Slice>; 8]> = smallvec::smallvec![None; count];
    for part in [own].into_iter().chain(owned.claim().joined()).flat_map(|write| &write.parts) {
        if part.fragment.rows != rows {
            return None;
        }
        found[usize::from(part.fragment.chunk)] = Some(&part.data); // a later write replaces an earlier one
    }
    found.into_iter().map(Option::<&Slice>::cloned).collect()
}

/// Whether every member is in sync and the stripe's parity agrees, so that the write has nothing to repair or log.
fn is_plain_and_sound<D: Device>(owned: Owned<'_, D>) -> bool {
    owned.shared().members.plain() && owned.shared().consistency.is_plain(owned.stripe())
}

#[cfg(test)]
mod tests {
    use crate::volume::Space;
    use layout::units::Slot;
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
        for slot in Slot::first(world.set.shared.geometry.parity_chunks()) {
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
            let write = async move { own.write(2 * stripe + index * chunk, new.into(), false).await };
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
            assert_eq!(world.state(Slot::new(1)), MemberState::Failed);
            assert!(world.read(0, expected.len() as u64).expect("degraded") == expected, "{level:?}");
        }
    }
}
