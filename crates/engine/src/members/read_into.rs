//! Reads that members put straight into a foreign buffer, outside of this process. They serve the ordinary case: the data
//! is there, and every read succeeds. In any other case they decline, and the caller makes an ordinary read, which finds
//! out why and reconstructs lost data.

use smallvec::SmallVec;
use std::rc::Rc;

use super::attachment::Attached;
use super::load::Timed;
use super::port::{MemberPort, MemberRead};
use crate::device::{Device, DeviceError, DeviceErrorKind, ReadForeign};
use crate::executor::join_all;
use crate::foreign_buffer::Lease;

/// The reads of a request, in its order and without gaps.
pub(crate) type Reads = SmallVec<[MemberRead; 2]>;

/// Fills `target` by these reads. False if `target` is not filled, or only in part.
pub(crate) async fn read_into<D: ReadForeign>(port: &MemberPort<D>, reads: &Reads, target: &Lease) -> bool {
    let (mut from, mut started) = (SmallVec::<[_; 2]>::new(), SmallVec::<[_; 4]>::new());
    let mut at = 0;
    for read in reads {
        let Some((member, future)) = start_read_into(port, read, target.skip(at)) else { return false };
        from.push(member);
        started.push(future);
        at += read.bytes as u64;
    }
    let mut all = true;
    for ((read, from), result) in reads.iter().zip(&from).zip(join_all(started).await) {
        if let Err(error) = result {
            not_read_into(port, read, from, &error);
            all = false;
        }
    }
    all
}

/// Starts a read. None: no member can serve it, or its device cannot read into foreign buffers.
fn start_read_into<'a, D: ReadForeign>(
    port: &'a MemberPort<D>,
    read: &MemberRead,
    target: Lease,
) -> Option<(Rc<Attached<D>>, Timed<'a, D::Done>)> {
    let member = port.source(read)?;
    let started = member.device.read_into(member.on_device(read.offset), read.bytes, target)?;
    Some((member, port.counted_read(read, started)))
}

/// Counts an error against the member. The ordinary read that follows decides what becomes of the member.
fn not_read_into<D: Device>(
    port: &MemberPort<D>,
    read: &MemberRead,
    from: &Rc<Attached<D>>,
    error: &DeviceError,
) {
    let is_buffers = matches!(error.kind, DeviceErrorKind::Invalid | DeviceErrorKind::Unsupported);
    // An `Invalid` or `Unsupported` error means that the foreign buffer does not suit the device, not that the member
    // failed.
    if !is_buffers && port.devices.is_in_slot(read.slot, from) {
        let _what_the_next_read_meets = port.first_error(read.slot, error);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign_buffer::ForeignBuffer;
    use crate::members::MemberState;
    use crate::stripe::fake::{CHUNK, World, attached, foreign_memory, register_foreign_memory};
    use crate::volume::ReadInto;
    use layout::geometry::Level;
    use layout::units::{MemberOffset, Slot};

    const BLOCK: u64 = 4096;

    fn read_into(world: &World, offset_bytes: u64, bytes: u64) -> bool {
        let set = Rc::clone(&world.set);
        world.run(async move {
            let buffer = ForeignBuffer::new(0);
            let is_read = set.read_into(offset_bytes, bytes, &buffer.lease()).await;
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
        world.set.shared.members.fail(Slot::new(1), "by hand");
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
        world.fakes[0].break_block(MemberOffset::new(u64::from(CHUNK)), false); // data, in the second stripe
        let member_0 =
            (0..pattern.len() as u64).step_by(CHUNK as usize).find(|&at| !read_into(&world, at, BLOCK));
        let at = member_0.expect("one of them is on member 0");
        assert_eq!(world.state(Slot::new(0)), MemberState::InSync, "a second try may mend it");
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
        world.fakes[0].break_block(MemberOffset::START, true);
        world.fakes[0].at_read(1, move || set.devices().attach(Slot::new(0), Some(next)));
        let chunks = (0..4).map(|index| index * u64::from(CHUNK));
        assert_eq!(chunks.filter(|&at| !read_into(&world, at, BLOCK)).count(), 1);
        assert_eq!(world.set.shared.members.errors(Slot::new(0)), 0);
    }
}
