//! An operator ends doubt: what parity makes of the missing chunks counts as right from here on.
//!
//! Doubt ends by itself when the missing chunks are overwritten whole. Where no member comes back that tells better, everything
//! else waits for it: reads of these chunks fail, and no spare is filled with them. A start with force accepts all of it; this
//! accepts named stripes while the array goes on being served.

use layout::redo_log::StripeRange;
use layout::units::Stripe;

use crate::device::Device;
use crate::error::MetadataLost;
use crate::events::Event;
use crate::in_place::InPlace;

/// Why no doubt ends.
#[derive(Debug, thiserror::Error)]
pub enum NotAccepted {
    /// All members are in sync: what parity says is not needed.
    #[error("no member is missing: a resync makes parity agree with the data, and nothing is in doubt")]
    Whole,
    /// It did not become durable.
    #[error("the superblocks cannot be written")]
    Lost,
}

impl From<MetadataLost> for NotAccepted {
    fn from(_: MetadataLost) -> Self {
        NotAccepted::Lost
    }
}

/// Takes these stripes out of doubt, and returns how many they were once superblocks say so. A stripe whose last write failed
/// half way in this run stays as it is: its next write makes it whole.
///
/// # Errors
/// [`NotAccepted`].
pub async fn accept_doubt<D: Device>(set: &InPlace<D>, range: StripeRange) -> Result<u64, NotAccepted> {
    let shared = &set.shared;
    if shared.members.all_in_sync() {
        return Err(NotAccepted::Whole);
    }
    let end = range.end.min(shared.geometry.stripes());
    let first = range.first.min(end);
    if first < end {
        // From here on parity speaks for members that come back, too.
        let bytes = |stripe| shared.geometry.member_offset(Stripe::new(stripe));
        shared.absences.forget_all(&(bytes(first)..bytes(end)));
        set.persist_absences().await.map_err(|_| NotAccepted::Lost)?;
    }
    let accepted = shared.consistency.accept(StripeRange { first, end });
    if accepted > 0 {
        shared.members.want_metadata();
        shared.members.settled().await?;
        let (first, end, stripes) = (range.first, end, accepted);
        shared.members.report(Event::DoubtAccepted { first, end, stripes });
    }
    Ok(accepted)
}
