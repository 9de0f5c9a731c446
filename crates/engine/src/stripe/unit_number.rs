//! What has an owner in the stripe table.

use layout::units::Stripe;

/// What has one owner at a time, by its number: a stripe, or of a mirror a region. An array has one of the two kinds only.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct UnitNumber(u64);

impl UnitNumber {
    /// The stripe or region with this number.
    pub(crate) const fn new(number: u64) -> Self {
        UnitNumber(number)
    }

    /// Its number.
    pub(crate) const fn get(self) -> u64 {
        self.0
    }

    /// It as a stripe: at the parity levels every unit is one.
    pub(crate) const fn stripe(self) -> Stripe {
        Stripe::new(self.0)
    }
}

impl From<Stripe> for UnitNumber {
    fn from(stripe: Stripe) -> Self {
        UnitNumber(stripe.get())
    }
}
