//! When a host has its members' targets keep ledgers ([`super::ledger`]): which step is next, as a pure decision.
//!
//! All members begin one ledger; then all writes that began before are waited for; then it is complete at all. What ends one of
//! them, a lost association or a restart, has all begin another. So a ledger that is complete everywhere lists every write that is
//! under way, and never one of them on this member and not on that.

use super::epochs::Epochs;

/// How far a host has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Recording {
    /// No ledger is kept.
    #[default]
    Off,
    /// All members are to begin the ledger with this id.
    Beginning {
        /// Drawn anew each time.
        id: u64,
    },
    /// All have begun it. Writes that entered before the epoch may not be listed.
    Waiting {
        /// As before.
        id: u64,
        /// [`Epochs::mark`].
        mark: u64,
    },
    /// Those have ended: it is to be complete at all members.
    Completing {
        /// As before.
        id: u64,
    },
    /// It is.
    Complete {
        /// As before.
        id: u64,
    },
}

/// What the members' targets say of the step that they were asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Said {
    /// All have done it, or have the ledger still.
    All,
    /// One has not, or has another.
    NotAll,
}

impl Recording {
    /// The next state. `may`: every member is in sync on a target that keeps ledgers, and nothing awaits a resync; `any_suspect` is
    /// looked at after what is held was released. `new_id` draws one.
    pub fn next(
        self,
        said: Said,
        may: bool,
        epochs: &Epochs,
        any_suspect: impl FnOnce() -> bool,
        new_id: impl FnOnce() -> u64,
    ) -> Self {
        if !may {
            return Recording::Off;
        }
        match (self, said) {
            (Recording::Off, _) => {
                epochs.release();
                // Suspects of before hold nothing any more; they end first.
                if any_suspect() { Recording::Off } else { Recording::Beginning { id: new_id() } }
            }
            (_, Said::NotAll) => Recording::Off,
            _ if epochs.is_held() => Recording::Off,
            (Recording::Beginning { id }, Said::All) => Recording::Waiting { id, mark: epochs.mark() },
            (Recording::Waiting { id, mark }, Said::All) if epochs.is_past(mark) => {
                Recording::Completing { id }
            }
            (Recording::Completing { id } | Recording::Complete { id }, Said::All) => {
                Recording::Complete { id }
            }
            (waiting @ Recording::Waiting { .. }, Said::All) => waiting,
        }
    }

    /// It will be complete in a while.
    #[must_use]
    pub fn is_on_its_way(self) -> bool {
        !matches!(self, Recording::Off | Recording::Complete { .. })
    }

    /// The ledger that members have or are to have.
    #[must_use]
    pub fn id(self) -> Option<u64> {
        match self {
            Recording::Off => None,
            Recording::Beginning { id }
            | Recording::Waiting { id, .. }
            | Recording::Completing { id }
            | Recording::Complete { id } => Some(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(epochs: &Epochs, said: &[Said]) -> Recording {
        said.iter().fold(Recording::Off, |state, said| state.next(*said, true, epochs, || false, || 9))
    }

    #[test]
    fn it_is_complete_when_what_began_before_has_ended() {
        use Said::All;
        let epochs = Epochs::default();
        let write = epochs.enter();
        let waiting = steps(&epochs, &[All, All, All, All]);
        assert!(matches!(waiting, Recording::Waiting { id: 9, .. }), "{waiting:?}");
        drop(write);
        let completing = waiting.next(All, true, &epochs, || false, || 1);
        assert_eq!(completing, Recording::Completing { id: 9 });
        let complete = completing.next(All, true, &epochs, || false, || 1);
        assert_eq!(complete.next(All, true, &epochs, || false, || 1), Recording::Complete { id: 9 });
        assert_eq!(complete.next(Said::NotAll, true, &epochs, || false, || 1), Recording::Off);
        assert_eq!(complete.next(All, false, &epochs, || false, || 1), Recording::Off);
    }

    #[test]
    fn what_was_left_half_done_ends_it_until_it_agrees() {
        let epochs = Epochs::default();
        let complete = Recording::Complete { id: 9 };
        epochs.hold();
        assert_eq!(complete.next(Said::All, true, &epochs, || true, || 1), Recording::Off);
        assert_eq!(Recording::Off.next(Said::All, true, &epochs, || true, || 1), Recording::Off);
        let again = Recording::Off.next(Said::All, true, &epochs, || false, || 1);
        assert_eq!(again, Recording::Beginning { id: 1 });
        assert!(!epochs.is_held());
    }
}
