//! What a lying device should hold: it loses a write that it acknowledges, puts one elsewhere, or flips a bit. Checks
//! compare what the array makes of it with what is remembered here.

use std::ops::Range;

/// What becomes of a write to the data area that the device acknowledges.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Astray {
    /// Nothing.
    Lost,
    /// It is written at another place.
    Elsewhere,
}

/// A part of the data area that does not hold what it should.
#[derive(Clone)]
pub(crate) struct Damage {
    pub(crate) range: Range<u64>,
    pub(crate) right: Vec<u8>,
}

impl Damage {
    /// Whether `held`, the contents of the device from `start` on, differs from what it should be.
    pub(super) fn differs(&self, start: u64, held: &[u8]) -> bool {
        let from = (start - self.range.start) as usize;
        held != &self.right[from..from + held.len()]
    }
}

/// All damage of a device.
#[derive(Default)]
pub(super) struct Lies(Vec<Damage>);

impl Lies {
    /// From now on `range` should hold `right`, and does not.
    pub(super) fn add(&mut self, range: Range<u64>, right: Vec<u8>) {
        self.0.push(Damage { range, right });
    }

    /// Whether a part of the range is damaged.
    pub(super) fn overlap(&self, range: &Range<u64>) -> bool {
        self.0.iter().any(|lie| lie.range.start < range.end && range.start < lie.range.end)
    }

    pub(super) fn all(&self) -> Vec<Damage> {
        self.0.clone()
    }

    /// All is as it should be again.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
