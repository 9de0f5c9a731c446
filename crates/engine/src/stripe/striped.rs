//! RAID-0: chunks side by side, nothing to survive a failure with.

use smallvec::SmallVec;

use super::StripeSet;
use super::member_io::{MemberRead, MemberWrite, Undone};
use super::read::Piece;
use super::read_into::Reads;
use crate::buffer::Gather;
use crate::device::Device;
use crate::volume::VolumeError;

impl<D: Device> StripeSet<D> {
    pub(super) async fn read_striped(&self, offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        let reads = self.striped_reads(offset_bytes, bytes);
        let mut gather = Gather::new();
        for result in self.read_members(&reads).await {
            gather.push(result.map_err(lost)?.freeze());
        }
        Ok(gather)
    }

    pub(super) fn striped_reads(&self, offset_bytes: u64, bytes: u64) -> Reads {
        let read = |piece: Piece| {
            let (slot, offset) = self.striped_place(&piece);
            MemberRead { slot, offset, bytes: piece.fragment.rows.bytes() }
        };
        self.pieces(offset_bytes, bytes).map(read).collect()
    }

    pub(super) async fn write_striped(
        &self,
        offset_bytes: u64,
        data: Gather,
        fua: bool,
    ) -> Result<(), VolumeError> {
        let mut done = 0;
        let writes: SmallVec<[MemberWrite; 2]> = self
            .pieces(offset_bytes, data.len() as u64)
            .map(|piece| {
                let (slot, offset) = self.striped_place(&piece);
                let part = data.part(done, piece.fragment.rows.bytes());
                done += part.len();
                MemberWrite { slot, offset, data: part }
            })
            .collect();
        let results = self.write_members(&writes, fua).await;
        results.into_iter().try_for_each(|result| result.map_err(lost))
    }

    fn striped_place(&self, piece: &Piece) -> (u32, u64) {
        let geometry = &self.shared.geometry;
        let slot = geometry.data_member(piece.stripe, u32::from(piece.fragment.chunk));
        (slot, geometry.member_offset(piece.stripe) + u64::from(piece.fragment.rows.start))
    }
}

fn lost(undone: Undone) -> VolumeError {
    match undone {
        Undone::Request(error) => error,
        Undone::MemberGone | Undone::Unreadable => {
            VolumeError::Io { reason: "a member of the RAID-0 is missing".to_string() }
        }
    }
}
