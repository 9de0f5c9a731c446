//! The outcome of an attempt to claim a stripe.

/// The outcome of an attempt to claim a stripe, with the place of the stripe's owner.
pub(super) enum Attempt {
    /// The stripe had no owner: the caller owns it.
    Claimed(usize),
    /// The stripe has an owner.
    Held(usize),
    /// The stripe has no owner, and the table has no place for one.
    Full,
}
