//! What a fast path left behind.

use crate::error::VolumeError;

/// How a stripe write left one of the two fast paths, [`small`](super::small) and [`whole`](super::whole).
pub(super) enum FastPath {
    /// The fast path made the write, or failed to.
    Done(Result<(), VolumeError>),
    /// The write does not qualify. Nothing was read, and the batch is open as before.
    Declined,
    /// A write joined, or a read failed. What was read is in the image, and the batch may be closed.
    Interrupted,
}
