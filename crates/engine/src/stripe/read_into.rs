//! Reads that members put where their reader wants them, outside of this process. That is for the ordinary case: what is
//! read is there, and nothing speaks against it. In any other the answer is no, and the reader asks again for a read that
//! brings the data here, which finds out why and makes what is lost.

use smallvec::SmallVec;
use std::rc::Rc;

use super::load::{Kind, Timed};
use super::member_io::MemberRead;
use super::{Attached, StripeSet};
use crate::device::{Device, DeviceError, DeviceErrorKind, ReadForeign};
use crate::executor::join_all;
use crate::foreign_buffer::Lease;
use layout::geometry::Level;

/// The reads of a request, in its order and without gaps.
pub(super) type Reads = SmallVec<[MemberRead; 2]>;

/// A read on its way to a foreign buffer.
type Started<'a, D> = (Rc<Attached<D>>, Timed<'a, <D as Device>::Done>);

impl<D: ReadForeign> StripeSet<D> {
    /// Fills `target` with a range that lies inside the array. False: it did not, or only in part.
    pub(crate) async fn read_range_into(&self, offset_bytes: u64, bytes: u64, target: &Lease) -> bool {
        let reads = match self.shared.geometry.level() {
            Level::Raid0 => Some(self.striped_reads(offset_bytes, bytes)),
            Level::Raid1 | Level::Raid10 => self.copy_reads(&self.runs(offset_bytes, bytes)).ok(),
            Level::Raid4 | Level::Raid5 | Level::Raid6 => self.present_reads(offset_bytes, bytes),
        };
        let Some(reads) = reads else { return false };
        let (mut from, mut started) = (SmallVec::<[_; 2]>::new(), SmallVec::<[_; 4]>::new());
        let mut at = 0;
        for read in &reads {
            let Some((member, future)) = self.start_read_into(read, target.skip(at)) else { return false };
            from.push(member);
            started.push(future);
            at += read.bytes as u64;
        }
        let mut all = true;
        for ((read, from), result) in reads.iter().zip(&from).zip(join_all(started).await) {
            if let Err(error) = result {
                self.not_read_into(read, from, &error);
                all = false;
            }
        }
        all
    }

    /// None: no member has the data, or its device cannot.
    fn start_read_into(&self, read: &MemberRead, target: Lease) -> Option<Started<'_, D>> {
        let member = self.source(read)?;
        let started = member.device.read_into(member.data_offset_bytes + read.offset, read.bytes, target)?;
        self.counters().member_reads.add(1);
        self.counters().member_read_bytes.add(read.bytes as u64);
        let started = self.shared.loads.timed(self.shard, read.slot, Kind::Read, started);
        Some((member, started))
    }

    /// The member is told of its error. What the read comes to shows the next one, which brings the data here.
    fn not_read_into(&self, read: &MemberRead, from: &Rc<Attached<D>>, error: &DeviceError) {
        let is_ours = matches!(error.kind, DeviceErrorKind::Invalid | DeviceErrorKind::Unsupported);
        // The memory may not suit the device: nothing is wrong with that.
        if !is_ours && self.is_in_slot(read.slot, from) {
            let _what_the_next_read_meets = self.first_error(read.slot, error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign_buffer::ForeignBuffer;
    use crate::members::MemberState;
    use crate::stripe::fake::{CHUNK, World, attached, foreign_memory, register_foreign_memory};

    const BLOCK: u64 = 4096;

    fn read_into(world: &World, offset_bytes: u64, bytes: u64) -> bool {
        let set = Rc::clone(&world.set);
        world.run(async move {
            let buffer = ForeignBuffer::new(0);
            let is_read = set.read_range_into(offset_bytes, bytes, &buffer.lease()).await;
            buffer.returned().await;
            is_read
        })
    }

    fn worlds() -> [World; 5] {
        [(Level::Raid0, 3), (Level::Raid1, 2), (Level::Raid10, 4), (Level::Raid5, 4), (Level::Raid6, 5)]
            .map(|(level, members)| World::new(level, members))
    }

    #[test]
    fn present_data_goes_to_the_foreign_buffer() {
        let worlds = worlds();
        assert!(worlds.iter().all(|world| !read_into(world, 0, BLOCK)), "the devices cannot yet");
        for world in worlds {
            let (pattern, chunk) = (world.fill(), u64::from(CHUNK));
            register_foreign_memory(pattern.len());
            world.fakes.iter().for_each(|fake| fake.delay(7));
            for (at, bytes) in
                [(0, 512), (chunk - BLOCK, 2 * BLOCK), (512, 3 * chunk), (0, pattern.len() as u64)]
            {
                assert!(read_into(&world, at, bytes));
                assert!(
                    foreign_memory()[..bytes as usize] == pattern[at as usize..][..bytes as usize],
                    "{bytes} at {at}"
                );
            }
        }
    }

    #[test]
    fn lost_data_does_not() {
        let world = World::new(Level::Raid5, 4);
        let pattern = world.fill();
        register_foreign_memory(pattern.len());
        world.set.shared.members.fail(1, "by hand");
        let all = pattern.len() as u64;
        assert!(!read_into(&world, 0, all));
        let there = (0..all).step_by(CHUNK as usize).filter(|&at| read_into(&world, at, BLOCK)).count();
        assert_eq!(there as u64, all / u64::from(CHUNK) * 3 / 4, "three of four members are there");
        assert_eq!(world.read(0, all), Ok(pattern));
    }

    #[test]
    fn an_error_is_noted_and_left_to_the_next_read() {
        let world = World::new(Level::Raid6, 5);
        let pattern = world.fill();
        register_foreign_memory(pattern.len());
        world.fakes[0].break_block(u64::from(CHUNK), false); // data, in the second stripe
        let member_0 =
            (0..pattern.len() as u64).step_by(CHUNK as usize).find(|&at| !read_into(&world, at, BLOCK));
        let at = member_0.expect("one of them is on member 0");
        assert_eq!(world.state(0), MemberState::InSync, "a second try may mend it");
        assert_eq!(world.read(at, BLOCK), Ok(pattern[at as usize..][..BLOCK as usize].to_vec()));
        assert!(read_into(&world, at, BLOCK), "the block was made and written again");
    }

    /// Invariant 8: another device has the slot while the read is on its way. The error is not its own.
    #[test]
    fn a_successor_is_not_blamed() {
        let world = World::new(Level::Raid5, 3);
        world.fill();
        register_foreign_memory(BLOCK as usize);
        let (set, next) = (Rc::clone(&world.set), attached(&world.fakes[2]));
        world.fakes[0].break_block(0, true);
        world.fakes[0].at_read(1, move || set.attach(0, Some(next)));
        let chunks = (0..4).map(|index| index * u64::from(CHUNK));
        assert_eq!(chunks.filter(|&at| !read_into(&world, at, BLOCK)).count(), 1);
        assert_eq!(world.set.shared.members.errors(0), 0);
    }
}
