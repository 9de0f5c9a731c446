//! RAID-0: chunks spread over the members without redundancy. A member that fails fails the requests that need it.
//! Members may differ in size: what lies beyond the end of the smallest is spread over the larger ones ([`Raid0Zones`]).

use smallvec::SmallVec;
use std::rc::Rc;
use std::sync::Arc;

use crate::buffer::Gather;
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::port::{MemberError, MemberPort, MemberRead, MemberWrite};
use crate::members::read_into::Reads;
use layout::geometry::Raid0Zones;
use layout::units::ArrayOffset;

/// RAID-0 on one shard.
pub(crate) struct StripedEngine<D> {
    port: Rc<MemberPort<D>>,
    zones: Arc<Raid0Zones>,
}

impl<D: Device> StripedEngine<D> {
    pub(crate) fn new(port: &Rc<MemberPort<D>>, zones: &Arc<Raid0Zones>) -> Self {
        StripedEngine { port: Rc::clone(port), zones: Arc::clone(zones) }
    }

    pub(crate) async fn read(&self, offset: ArrayOffset, bytes: u64) -> Result<Gather, VolumeError> {
        let reads = self.reads(offset, bytes);
        let mut gather = Gather::new();
        for result in self.port.read(&reads).await {
            gather.push(result.map_err(lost)?.freeze());
        }
        Ok(gather)
    }

    pub(crate) fn reads(&self, offset: ArrayOffset, bytes: u64) -> Reads {
        self.cut_at_chunks(offset, bytes).collect()
    }

    pub(crate) async fn write(
        &self,
        offset: ArrayOffset,
        data: Gather,
        fua: bool,
    ) -> Result<(), VolumeError> {
        let mut done = 0;
        let writes: SmallVec<[MemberWrite; 2]> = self
            .cut_at_chunks(offset, data.len() as u64)
            .map(|MemberRead { slot, offset, bytes }| {
                let part = data.part(done, bytes);
                done += bytes;
                MemberWrite { slot, offset, data: part }
            })
            .collect();
        let results = self.port.write(&writes, fua).await;
        results.into_iter().try_for_each(|result| result.map_err(lost))
    }

    /// Where the bytes of a range are, a chunk at a time, in order.
    fn cut_at_chunks(&self, offset: ArrayOffset, bytes: u64) -> impl Iterator<Item = MemberRead> {
        let (mut at, end) = (offset, offset + bytes);
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (slot, offset, in_chunk) = self.zones.locate(at);
            let bytes = in_chunk.min(end - at);
            at += bytes;
            Some(MemberRead { slot, offset, bytes: bytes as usize })
        })
    }
}

fn lost(error: MemberError) -> VolumeError {
    match error {
        MemberError::Request(error) => error,
        MemberError::Gone | MemberError::Unreadable => {
            VolumeError::Io { reason: "a member of the RAID-0 is missing".to_string() }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::stripe::fake::{CHUNK, World};
    use layout::geometry::Layout;

    /// Slot and chunk on the member of each chunk of the array, as the kernel's `raid0.c` places them on members of two, one and
    /// three chunks.
    const PLACES: [(Layout, [(usize, u64); 6]); 2] = [
        (Layout::Raid0Alternate, [(0, 0), (1, 0), (2, 0), (0, 1), (2, 1), (2, 2)]),
        (Layout::Raid0Original, [(0, 0), (1, 0), (2, 0), (2, 1), (0, 1), (2, 2)]),
    ];

    #[test]
    fn what_is_beyond_the_smallest_member_is_on_the_larger_ones() {
        let chunk = u64::from(CHUNK);
        for (layout, places) in PLACES {
            let world = World::unequal(layout, &[2 * chunk, chunk, 3 * chunk + 512]);
            let pattern = world.fill();
            assert_eq!(pattern.len() as u64, 6 * chunk);
            for ((slot, row), of_array) in places.into_iter().zip(pattern.chunks(CHUNK as usize)) {
                let on_member = world.fakes[slot].area();
                let on_member = &on_member[(row * chunk) as usize..][..of_array.len()];
                assert!(on_member == of_array, "{layout}: chunk {row} of member {slot}");
            }
            let (at, bytes) = (chunk - 512, 4 * chunk + 1024);
            assert_eq!(world.read(at, bytes), Ok(pattern[at as usize..][..bytes as usize].to_vec()));
        }
    }
}
