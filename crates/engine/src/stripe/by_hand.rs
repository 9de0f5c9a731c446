//! What a write by hand left behind.

use crate::error::VolumeError;

/// What became of the write of a stripe by one of the two ways by hand, [`small`](super::small) and [`whole`](super::whole).
pub(super) enum ByHand {
    /// It was made, well or not.
    Made(Result<(), VolumeError>),
    /// It is not such a write. Nothing was read, and the batch is open as before.
    Declined,
    /// Something came between. What was read is in the image, and the batch may be closed.
    Interrupted,
}
