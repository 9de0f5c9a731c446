//! When a resync, recovery or replacement that stopped is tried again: at once where something changed that may have been
//! the reason, else after a while, and each time after a longer one.
//!
//! What stops them is often over soon without a trace in the array: a full file system under a member, a path that was away.
//! Where it is not, as with a block that nobody can make, each try reads up to that block again and says so again.

use std::cell::RefCell;

use crate::members::MemberState;

/// With five looks a second: half a minute.
const LOOKS_MIN: u32 = 150;
/// Ten minutes.
const LOOKS_MAX: u32 = 3000;

/// What is remembered of the last try.
#[derive(Default)]
pub(super) struct Retry(RefCell<Option<Failed>>);

struct Failed {
    states: Vec<MemberState>,
    doubts: u64,
    /// Looks between that try and the next.
    wait: u32,
    /// Looks since then.
    looks: u32,
}

impl Retry {
    /// It stopped. When it was begun the members were in these states, and so many stripes in doubt.
    pub(super) fn failed(&self, states: Vec<MemberState>, doubts: u64) {
        let last = self.0.take().filter(|last| !last.has_changed(&states, doubts));
        let wait = last.map_or(LOOKS_MIN, |last| match last.looks {
            0 => last.wait, // of the same try: two of them stopped
            _ => (last.wait * 2).min(LOOKS_MAX),
        });
        self.0.replace(Some(Failed { states, doubts, wait, looks: 0 }));
    }

    /// There is a new reason to try.
    pub(super) fn forget(&self) {
        self.0.take();
    }

    /// A look at the array: whether to try now.
    pub(super) fn is_due(&self, states: &[MemberState], doubts: u64) -> bool {
        let failed = &mut *self.0.borrow_mut();
        if failed.as_ref().is_some_and(|failed| failed.has_changed(states, doubts)) {
            *failed = None;
        }
        failed.as_mut().is_none_or(|failed| {
            failed.looks = (failed.looks + 1).min(failed.wait);
            failed.looks >= failed.wait
        })
    }
}

impl Failed {
    fn has_changed(&self, states: &[MemberState], doubts: u64) -> bool {
        self.states != states || doubts < self.doubts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberState::{InSync, Missing, Recovering};

    fn looks_until_due(retry: &Retry) -> u32 {
        (1..).find(|_| retry.is_due(&[InSync, Recovering], 3)).expect("a look")
    }

    #[test]
    fn tried_again_after_a_while_that_grows_and_at_once_when_something_changed() {
        let retry = Retry::default();
        assert!(retry.is_due(&[InSync, Recovering], 3), "nothing failed yet");
        let mut waits = Vec::new();
        for _ in 0..7 {
            retry.failed(vec![InSync, Recovering], 3);
            waits.push(looks_until_due(&retry));
            assert!(retry.is_due(&[InSync, Recovering], 3), "until it fails again");
        }
        assert_eq!(waits, [150, 300, 600, 1200, 2400, 3000, 3000]);
        // Two that stop together are one reason to wait.
        retry.forget();
        retry.failed(vec![InSync, Recovering], 3);
        retry.failed(vec![InSync, Recovering], 3);
        assert_eq!(looks_until_due(&retry), 150);
        retry.failed(vec![InSync, Recovering], 3);
        assert!(!retry.is_due(&[InSync, Recovering], 3));
        assert!(!retry.is_due(&[InSync, Recovering], 4), "more in doubt is no reason");
        assert!(retry.is_due(&[InSync, Recovering], 2), "a stripe in doubt was written");
        retry.failed(vec![InSync, Recovering], 2);
        assert!(retry.is_due(&[InSync, Missing], 2), "a member changed");
        retry.failed(vec![InSync, Missing], 2);
        assert_eq!(looks_until_due(&retry), 1, "other states again");
        retry.failed(vec![InSync, Recovering], 3);
        retry.forget();
        assert!(retry.is_due(&[InSync, Recovering], 3));
    }
}
