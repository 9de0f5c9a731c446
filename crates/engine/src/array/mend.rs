//! Stripes, and regions of a mirror, whose last write failed half way. The next write there makes them whole, but it may never
//! come: until then one member that fails takes data with it that was acknowledged long ago. So what could not be made
//! whole at once, as where the file system below a member is full, is tried again by itself.

use std::cell::Cell;
use std::rc::Rc;

use super::managed::Managed;
use super::platform::Platform;
use crate::device::Device;
use crate::limits::{MEND_NS_MAX, MEND_NS_MIN};

/// When they are tried again.
pub(super) struct Mending {
    under_way: Cell<bool>,
    /// Time between the last try and the next.
    wait_ns: Cell<u64>,
    /// When the last try ended, or they were first seen.
    since_ns: Cell<Option<u64>>,
}

impl Default for Mending {
    fn default() -> Self {
        Mending { under_way: Cell::new(false), wait_ns: Cell::new(MEND_NS_MIN), since_ns: Cell::new(None) }
    }
}

impl Mending {
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.get()
    }

    /// A look at the array at `now_ns`: whether to try now. `any`: it has such stripes.
    fn is_due(&self, any: bool, now_ns: u64) -> bool {
        if !any {
            self.wait_ns.set(MEND_NS_MIN);
            self.since_ns.set(None);
            return false;
        }
        let since_ns = self.since_ns.get().unwrap_or(now_ns);
        let is_due = !self.under_way.get() && now_ns.saturating_sub(since_ns) >= self.wait_ns.get();
        self.since_ns.set(Some(since_ns));
        if is_due {
            self.under_way.set(true);
            self.wait_ns.set((self.wait_ns.get() * 2).min(MEND_NS_MAX));
        }
        is_due
    }

    /// The try ended. It may have taken longer than the wait before it, where each block of a member fails slowly.
    fn ended(&self, now_ns: u64) {
        self.under_way.set(false);
        self.since_ns.set(Some(now_ns));
    }
}

/// At each look: stripes and regions whose last write failed half way are tried again, if it is time.
pub(super) fn mend_suspects<D: Device, P: Platform<D>>(managed: &Rc<Managed<D, P>>, mending: &Rc<Mending>) {
    let is_any = managed.set.shared.consistency.suspects() > 0;
    if managed.read_only || !mending.is_due(is_any, managed.platform.now_ns()) {
        return;
    }
    let (managed, mending) = (Rc::clone(managed), Rc::clone(mending));
    managed.set.executor.clone().spawn(async move {
        let set = &managed.set;
        for unit in set.shared.consistency.suspect_units() {
            if managed.stopping.get() {
                break;
            }
            // A stripe or region whose mending fails is as it was.
            let _ = set.make_agree(unit).await;
        }
        mending.ended(managed.platform.now_ns());
        managed.works.wake();
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::LOOK_NS;

    #[test]
    fn tried_again_after_a_while_that_grows() {
        const S: u64 = 1_000_000_000;
        const TRY_NS: u64 = 400 * S; // longer than any wait
        let (mending, now_ns) = (Mending::default(), Cell::new(7 * S));
        let look = |any| {
            now_ns.set(now_ns.get() + LOOK_NS);
            mending.is_due(any, now_ns.get())
        };
        let end = || {
            assert!((0..TRY_NS / LOOK_NS).all(|_| !look(true)), "it is under way");
            mending.ended(now_ns.get());
        };
        assert!((0..100).all(|_| !look(false)));
        let wait_s = || {
            let began_ns = now_ns.get();
            (0..).find(|_| look(true)).expect("a look");
            (now_ns.get() - began_ns) / S
        };
        for wait in [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300] {
            assert_eq!(wait_s(), wait);
            end();
        }
        assert!(!look(false));
        assert_eq!(wait_s(), 1, "another one");
    }
}
