//! When a resync, recovery or replacement that stopped is tried again: at once where something changed that may have been
//! the reason, else after a while, and each time after a longer one.
//!
//! What stops them is often over soon without a trace in the array: a full file system under a member, a path that was away.
//! Where it is not, as with a block that nobody can make, each try reads up to that block again and says so again.

use std::cell::RefCell;

/// With five looks a second: half a minute.
const LOOKS_MIN: u32 = 150;
/// Ten minutes.
const LOOKS_MAX: u32 = 3000;

/// What is remembered of the last try.
#[derive(Default)]
pub(super) struct Retry(RefCell<Option<Failed>>);

struct Failed {
    state_changes: u64,
    doubts: u64,
    /// Looks between that try and the next.
    wait: u32,
    /// Looks since then.
    looks: u32,
}

impl Retry {
    /// It stopped. When it was begun, members' states had changed so often, and so many stripes were in doubt.
    pub(super) fn failed(&self, state_changes: u64, doubts: u64) {
        let last = self.0.take().filter(|last| !last.has_changed(state_changes, || doubts));
        let wait = last.map_or(LOOKS_MIN, |last| match last.looks {
            0 => last.wait, // of the same try: two of them stopped
            _ => (last.wait * 2).min(LOOKS_MAX),
        });
        self.0.replace(Some(Failed { state_changes, doubts, wait, looks: 0 }));
    }

    /// Whether it was tried without success and nothing has changed since. This is no look.
    pub(super) fn is_waiting(&self, state_changes: u64, doubts: impl Fn() -> u64) -> bool {
        self.0.borrow().as_ref().is_some_and(|failed| !failed.has_changed(state_changes, doubts))
    }

    /// A look at the array: whether to try now.
    pub(super) fn is_due(&self, state_changes: u64, doubts: impl Fn() -> u64) -> bool {
        let failed = &mut *self.0.borrow_mut();
        if failed.as_ref().is_some_and(|failed| failed.has_changed(state_changes, doubts)) {
            *failed = None;
        }
        failed.as_mut().is_none_or(|failed| {
            failed.looks = (failed.looks + 1).min(failed.wait);
            failed.looks >= failed.wait
        })
    }
}

impl Failed {
    /// `doubts` are counted only if need be: they may be many.
    fn has_changed(&self, state_changes: u64, doubts: impl Fn() -> u64) -> bool {
        self.state_changes != state_changes || doubts() < self.doubts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks_until_due(retry: &Retry) -> u32 {
        (1..).find(|_| retry.is_due(7, || 3)).expect("a look")
    }

    #[test]
    fn tried_again_after_a_while_that_grows_and_at_once_when_something_changed() {
        let retry = Retry::default();
        assert!(retry.is_due(7, || 3), "nothing failed yet");
        let mut waits = Vec::new();
        for _ in 0..7 {
            retry.failed(7, 3);
            waits.push(looks_until_due(&retry));
            assert!(retry.is_due(7, || 3), "until it fails again");
        }
        assert_eq!(waits, [150, 300, 600, 1200, 2400, 3000, 3000]);
        // Two that stop together are one reason to wait.
        let retry = Retry::default();
        retry.failed(7, 3);
        retry.failed(7, 3);
        assert_eq!(looks_until_due(&retry), 150);
        retry.failed(7, 3);
        assert!(!retry.is_due(7, || 3));
        assert!(!retry.is_due(7, || 4), "more in doubt is no reason");
        assert!(retry.is_due(7, || 2), "a stripe in doubt was written");
        retry.failed(7, 2);
        assert!(retry.is_due(8, || 2), "a member changed");
        retry.failed(6, 2);
        assert_eq!(looks_until_due(&retry), 1, "a member changed while it was tried");
    }
}
