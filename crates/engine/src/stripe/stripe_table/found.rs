//! What a claim finds.

/// What a claim of a stripe finds, with the place that is its owner's.
pub(super) enum Found {
    /// The stripe had no owner: the claim owns it.
    Claimed(usize),
    /// It has an owner.
    Held(usize),
    /// It has none, and there is no place for one.
    Full,
}
