//! Writing again what the log tells of a missing chunk, which has no place but parity.

use smallvec::smallvec;

use crate::buffer::Slice;
use crate::device::Device;
use crate::stages::Watch;
use crate::stripe::StripeSet;
use crate::stripe::image::Image;
use crate::stripe::plan::{Fragment, Rows};
use crate::stripe::salvage::cut_at_blocks;
use crate::stripe::union::{NewData, StripeWrite, Union};
use crate::stripe::write::Way;
use crate::volume::VolumeError;

impl<D: Device> StripeSet<D> {
    /// A chunk of data holds this from `offset` on in its member's data area: parity is made of it and of what the other
    /// members have. Where one of those cannot be read the block there is lost, and with it what parity is to tell of the
    /// missing one: it is bad there. Before anything is served.
    pub(crate) async fn redo_missing(
        &self,
        slot: u32,
        offset: u64,
        contents: Slice,
    ) -> Result<(), VolumeError> {
        let chunk_bytes = u64::from(self.shared.geometry.chunk_bytes());
        let (stripe, start) = (offset / chunk_bytes, (offset % chunk_bytes) as u32);
        let rows = Rows { start, end: start + contents.len() as u32 };
        let fragment = Fragment { chunk: self.shared.chunk_on(stripe, slot), rows };
        let parts = smallvec![NewData { fragment, data: contents }];
        let union = Union::of(std::iter::once(&StripeWrite { parts, fua: false, in_stream: false }));
        match self.reconstruct(stripe, &union).await {
            Err(VolumeError::Unreadable { .. }) => {}
            result => return result,
        }
        for rows in cut_at_blocks(rows) {
            match self.reconstruct(stripe, &union.within(rows)).await {
                Err(VolumeError::Unreadable { .. }) if self.give_up_parity(stripe, rows) => {}
                Err(VolumeError::Unreadable { .. }) => self.shared.doubt(stripe),
                result => result?,
            }
        }
        Ok(())
    }

    async fn reconstruct(&self, stripe: u64, union: &Union) -> Result<(), VolumeError> {
        let mut watch = Watch::off(self.shard);
        Box::pin(self.update_by(Way::Reconstruct, stripe, union, Image::default(), false, &mut watch)).await
    }
}
