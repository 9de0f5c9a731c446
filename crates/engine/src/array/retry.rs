//! When a resync, recovery or replacement that stopped is tried again: at once where something changed that may have been
//! the reason, else after a while, and each time after a longer one.
//!
//! What stops them is often over soon without a trace in the array: a full file system under a member, a path that was away.
//! Where it is not, as with a block that no member can make, each try reads up to that block again and says so again.

use std::cell::RefCell;

use crate::limits::{RETRY_NS_MAX, RETRY_NS_MIN};

/// What is remembered of the last try.
#[derive(Default)]
pub(super) struct Retry(RefCell<Option<Failed>>);

struct Failed {
    state_changes: u64,
    doubts: u64,
    /// When it stopped.
    at_ns: u64,
    /// Time from then to the next try.
    wait_ns: u64,
    /// That try has begun.
    is_tried: bool,
}

impl Retry {
    /// It stopped at `now_ns`. `state_changes` and `doubts` count how often members' states had changed and how many stripes were
    /// in doubt when it was begun.
    pub(super) fn failed(&self, now_ns: u64, state_changes: u64, doubts: u64) {
        let last = self.0.take().filter(|last| !last.has_changed(state_changes, || doubts));
        let wait_ns = last.map_or(RETRY_NS_MIN, |last| match last.is_tried {
            false => last.wait_ns, // two works of one try stopped
            true => (last.wait_ns * 2).min(RETRY_NS_MAX),
        });
        let failed = Failed { state_changes, doubts, at_ns: now_ns, wait_ns, is_tried: false };
        self.0.replace(Some(failed));
    }

    /// Whether it was tried without success and nothing has changed since. This is no look.
    pub(super) fn is_waiting(&self, state_changes: u64, doubts: impl Fn() -> u64) -> bool {
        self.0.borrow().as_ref().is_some_and(|failed| !failed.has_changed(state_changes, doubts))
    }

    /// A look at the array at `now_ns`: whether to try now.
    pub(super) fn is_due(&self, now_ns: u64, state_changes: u64, doubts: impl Fn() -> u64) -> bool {
        let failed = &mut *self.0.borrow_mut();
        if failed.as_ref().is_some_and(|failed| failed.has_changed(state_changes, doubts)) {
            *failed = None;
        }
        failed.as_mut().is_none_or(|failed| {
            failed.is_tried |= now_ns.saturating_sub(failed.at_ns) >= failed.wait_ns;
            failed.is_tried
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

    const S: u64 = 1_000_000_000;

    /// Seconds from `now_ns` on until it is tried again.
    fn wait_s(retry: &Retry, now_ns: u64) -> u64 {
        (0..).find(|wait_s| retry.is_due(now_ns + wait_s * S, 7, || 3)).expect("a look")
    }

    #[test]
    fn tried_again_after_a_while_that_grows_and_at_once_when_something_changed() {
        let retry = Retry::default();
        assert!(retry.is_due(0, 7, || 3), "nothing failed yet");
        let (mut now_ns, mut waits) = (5 * S, Vec::new());
        for _ in 0..7 {
            retry.failed(now_ns, 7, 3);
            waits.push(wait_s(&retry, now_ns));
            now_ns += waits[waits.len() - 1] * S;
            assert!(retry.is_due(now_ns, 7, || 3), "until it fails again");
        }
        assert_eq!(waits, [30, 60, 120, 240, 480, 600, 600]);
        // Two that stop together are one reason to wait.
        let retry = Retry::default();
        retry.failed(0, 7, 3);
        retry.failed(0, 7, 3);
        assert_eq!(wait_s(&retry, 0), 30);
        retry.failed(0, 7, 3);
        assert!(!retry.is_due(1, 7, || 3));
        assert!(!retry.is_due(1, 7, || 4), "more in doubt is no reason");
        assert!(retry.is_due(1, 7, || 2), "a stripe in doubt was written");
        retry.failed(1, 7, 2);
        assert!(retry.is_due(1, 8, || 2), "a member changed");
        retry.failed(1, 6, 2);
        assert_eq!(wait_s(&retry, 1), 0, "a member changed while it was tried");
    }
}
