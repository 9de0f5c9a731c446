//! RAID-0: chunks spread over the members without redundancy. A member that fails fails the requests that need it.

use smallvec::SmallVec;
use std::rc::Rc;

use crate::buffer::Gather;
use crate::code::rows::{ChunkPiece, pieces};
use crate::device::Device;
use crate::error::VolumeError;
use crate::members::port::{MemberError, MemberPort, MemberRead, MemberWrite};
use crate::members::read_into::Reads;
use layout::geometry::Geometry;
use layout::units::{ArrayOffset, MemberOffset, Slot};

/// RAID-0 on one shard.
pub(crate) struct StripedEngine<D> {
    port: Rc<MemberPort<D>>,
}

impl<D: Device> StripedEngine<D> {
    pub(crate) fn new(port: &Rc<MemberPort<D>>) -> Self {
        StripedEngine { port: Rc::clone(port) }
    }

    fn geometry(&self) -> &Geometry {
        self.port.members.geometry()
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
        let read = |piece: ChunkPiece| {
            let (slot, offset) = self.place(&piece);
            MemberRead { slot, offset, bytes: piece.fragment.rows.bytes() }
        };
        pieces(self.geometry(), offset, bytes).map(read).collect()
    }

    pub(crate) async fn write(
        &self,
        offset: ArrayOffset,
        data: Gather,
        fua: bool,
    ) -> Result<(), VolumeError> {
        let mut done = 0;
        let writes: SmallVec<[MemberWrite; 2]> = pieces(self.geometry(), offset, data.len() as u64)
            .map(|piece| {
                let (slot, offset) = self.place(&piece);
                let part = data.part(done, piece.fragment.rows.bytes());
                done += part.len();
                MemberWrite { slot, offset, data: part }
            })
            .collect();
        let results = self.port.write(&writes, fua).await;
        results.into_iter().try_for_each(|result| result.map_err(lost))
    }

    fn place(&self, piece: &ChunkPiece) -> (Slot, MemberOffset) {
        let geometry = self.geometry();
        let slot = geometry.data_member(piece.stripe, u32::from(piece.fragment.chunk));
        (slot, geometry.member_offset(piece.stripe) + u64::from(piece.fragment.rows.start))
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
