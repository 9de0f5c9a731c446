//! How many corrected read errors a member may have, as a pure decision.

use crate::limits::{CORRECTED_READS_MAX, READ_ERRORS_HALVE_NS};

/// The recent read errors of one member. md counts in the same way (`check_decay_read_errors` of raid10.c): the count
/// halves for every whole hour between two errors, and a member with more than 20 fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadErrors {
    recent: u64,
    last_ns: u64,
    total: u64,
}

impl ReadErrors {
    /// A member that had `total` corrected errors before, none of them lately.
    pub fn with_total(total: u64) -> Self {
        ReadErrors { total, ..ReadErrors::default() }
    }

    /// Counts one more at `now_ns`, by a clock that may start anywhere. True if that is one too many.
    pub fn note(&mut self, now_ns: u64) -> bool {
        let halvings = now_ns.saturating_sub(self.last_ns) / READ_ERRORS_HALVE_NS;
        self.recent = if halvings < u64::from(u64::BITS) { self.recent >> halvings } else { 0 };
        self.last_ns = now_ns;
        self.recent += 1;
        self.total += 1;
        self.recent > CORRECTED_READS_MAX
    }

    /// All corrected errors, for the superblock and for status.
    pub fn total(&self) -> u64 {
        self.total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn twenty_are_forgiven_and_the_next_is_too_many() {
        let mut errors = ReadErrors::default();
        assert!((0..20).all(|i| !errors.note(i)));
        assert!(errors.note(20));
        assert_eq!(errors.total(), 21);
    }

    #[test]
    fn an_hour_halves_and_days_forget() {
        let mut errors = ReadErrors::with_total(100);
        (0..20).for_each(|_| assert!(!errors.note(0)));
        let hour = READ_ERRORS_HALVE_NS;
        assert!((0..10).all(|_| !errors.note(hour)), "ten of the twenty are left");
        assert!(errors.note(hour));
        assert!(!errors.note(1000 * hour));
        assert_eq!(errors.total(), 132);
    }
}
