//! Stripes, and regions of a mirror, whose last write failed half way. The next write there makes them whole, but it may never
//! come: until then one member that fails takes data with it that was acknowledged long ago. So what could not be made
//! whole at once, as where the file system below a member is full, is tried again by itself.

use std::cell::Cell;
use std::rc::Rc;
use std::task::Waker;

use super::state::{Manager, Platform};
use crate::device::Device;

/// With five looks a second: a second.
const LOOKS_MIN: u32 = 5;
/// Five minutes.
const LOOKS_MAX: u32 = 1500;

/// When they are tried again.
pub(super) struct Mending {
    under_way: Cell<bool>,
    /// Looks between the last try and the next, and since the last.
    wait: Cell<u32>,
    looks: Cell<u32>,
}

impl Default for Mending {
    fn default() -> Self {
        Mending { under_way: Cell::new(false), wait: Cell::new(LOOKS_MIN), looks: Cell::new(0) }
    }
}

impl Mending {
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.get()
    }

    /// A look at the array, which has such stripes or not: whether to try now.
    fn is_due(&self, any: bool) -> bool {
        if !any {
            self.wait.set(LOOKS_MIN);
            self.looks.set(0);
            return false;
        }
        self.looks.set(self.looks.get() + 1);
        let is_due = !self.under_way.get() && self.looks.get() >= self.wait.get();
        if is_due {
            self.wait.set((self.wait.get() * 2).min(LOOKS_MAX));
            self.looks.set(0);
        }
        is_due
    }
}

impl<D: Device, P: Platform<D>> Manager<D, P> {
    /// At each look.
    pub(super) fn mend_suspects(self: &Rc<Self>) {
        if self.read_only || !self.mending.is_due(self.set.shared.consistency.suspects() > 0) {
            return;
        }
        self.mending.under_way.set(true);
        let manager = Rc::clone(self);
        self.set.executor.clone().spawn(async move {
            let set = &manager.set;
            for place in set.shared.consistency.suspect_stripes() {
                if manager.is_stopping() {
                    break;
                }
                // Where it fails it is as it was.
                let _ = match set.shared.geometry.parity_chunks() {
                    0 => set.copy_region(place, None).await,
                    _ => set.resync_stripe(place).await,
                };
            }
            manager.mending.under_way.set(false);
            manager.idle.take().into_iter().for_each(Waker::wake);
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tried_again_after_a_while_that_grows() {
        let mending = Mending::default();
        assert!((0..100).all(|_| !mending.is_due(false)));
        let looks = || (1..).find(|_| mending.is_due(true)).expect("a look");
        let waits: Vec<u32> = (0..10).map(|_| looks()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 640, 1280, 1500]);
        assert!(!mending.is_due(false));
        assert_eq!(looks(), 5, "another one");
        mending.under_way.set(true);
        assert!((0..100).all(|_| !mending.is_due(true)));
    }
}
