//! What the management of an array begins now, as a pure decision.

use super::works::Work;
use crate::members::MemberState;
use layout::units::Slot;

/// What [`due`] looks at.
pub(super) struct Situation<'a> {
    pub(super) states: &'a [MemberState],
    /// Slots whose members are being replaced.
    pub(super) replacing: &'a [Slot],
    /// Parity or copies may not agree.
    pub(super) resync: bool,
    /// The array keeps copies, not parity.
    pub(super) copies: bool,
    /// A check or repair is wanted.
    pub(super) scrub: bool,
    /// Nothing may be written.
    pub(super) read_only: bool,
}

/// What has to begin now: members first, all at once; then what makes parity agree; then what looks whether it does.
/// Copies that are there are made to agree before all else, also while members are missing: until then one that fails could change
/// what clients have read. A scrub that is under way ends by itself when something else is due.
/// A replacement goes on beside all that, but not beside a scrub, which reads what it reads.
pub(super) fn due(situation: &Situation<'_>, running: &[Work]) -> Vec<Work> {
    let Situation { states, replacing, resync, copies, scrub, read_only } = *situation;
    if running.contains(&Work::Scrub) {
        return Vec::new();
    }
    let recovering = Slot::all().zip(states).filter(|(_, state)| **state == MemberState::Recovering);
    let recoveries: Vec<Work> = recovering.map(|(slot, _)| Work::Recovery(slot)).collect();
    let all_in_sync = states.iter().all(|state| *state == MemberState::InSync);
    let mut wanted = match (read_only, all_in_sync) {
        (false, _) if resync && copies => vec![Work::Resync],
        (false, _) if !recoveries.is_empty() => recoveries,
        (_, false) => Vec::new(),
        (false, true) if resync => vec![Work::Resync],
        _ if scrub && !resync && replacing.is_empty() && running.is_empty() => vec![Work::Scrub],
        _ => Vec::new(),
    };
    if !read_only {
        wanted.extend(replacing.iter().map(|slot| Work::Replacement(*slot)));
    }
    wanted.into_iter().filter(|work| !running.contains(work)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberState::{Failed, InSync, Missing, Recovering};
    use Work::{Recovery, Replacement, Resync, Scrub};

    /// States, a resync is wanted, a scrub is wanted, what runs -> what begins.
    #[test]
    fn table_of_what_is_due() {
        const WHOLE: &[MemberState] = &[InSync, InSync, InSync];
        const FIRST: Work = Recovery(Slot::new(0));
        const SECOND: Work = Recovery(Slot::new(1));
        const THIRD: Work = Recovery(Slot::new(2));
        type Case = (&'static [MemberState], bool, bool, &'static [Work], &'static [Work]);
        let cases: &[Case] = &[
            (WHOLE, false, false, &[], &[]),
            (WHOLE, true, false, &[], &[Resync]),
            (WHOLE, true, true, &[], &[Resync]),
            (WHOLE, true, true, &[Resync], &[]),
            (WHOLE, false, true, &[], &[Scrub]),
            (WHOLE, false, true, &[Scrub], &[]),
            (WHOLE, true, false, &[Scrub], &[]),
            (&[Recovering, InSync, InSync], false, true, &[Scrub], &[]),
            (&[Recovering, InSync, InSync], true, true, &[], &[FIRST]),
            (&[Recovering, InSync, Recovering], true, true, &[], &[FIRST, THIRD]),
            (&[Recovering, InSync, Recovering], false, true, &[THIRD], &[FIRST]),
            (&[Failed, InSync, InSync], true, true, &[], &[]),
            (&[InSync, Missing, Recovering], true, true, &[THIRD], &[]),
            (WHOLE, false, true, &[SECOND], &[]),
        ];
        for &(states, resync, scrub, running, begins) in cases {
            let situation =
                Situation { states, replacing: &[], resync, copies: false, scrub, read_only: false };
            assert_eq!(due(&situation, running), begins, "{states:?} {resync} {scrub} {running:?}");
            let situation = Situation { read_only: true, ..situation };
            let begins: &[Work] = if begins == [Scrub] { begins } else { &[] };
            assert_eq!(
                due(&situation, running),
                begins,
                "read-only: {states:?} {resync} {scrub} {running:?}"
            );
        }
    }

    /// Replacements go on beside everything but a scrub, which waits for them.
    #[test]
    fn replacements_are_begun() {
        let states: &[MemberState] = &[InSync, InSync, Missing];
        let situation = Situation {
            states,
            replacing: &[Slot::new(1)],
            resync: false,
            copies: false,
            scrub: true,
            read_only: false,
        };
        let whole = Situation { states: &[InSync; 3], ..situation };
        assert_eq!(due(&situation, &[]), [Replacement(Slot::new(1))]);
        assert_eq!(due(&whole, &[]), [Replacement(Slot::new(1))]);
        assert_eq!(due(&whole, &[Replacement(Slot::new(1))]), []);
        assert_eq!(due(&whole, &[Scrub]), []);
        assert_eq!(due(&Situation { read_only: true, ..situation }, &[]), []);
        assert_eq!(due(&Situation { resync: true, ..whole }, &[]), [Resync, Replacement(Slot::new(1))]);
    }

    /// A mirror that was not stopped cleanly is resynced also while members are missing, and before any is rebuilt from it.
    #[test]
    fn copies_agree_before_all_else() {
        for states in [&[InSync, InSync, InSync], &[Missing, InSync, InSync], &[Recovering, InSync, InSync]] {
            let situation = Situation {
                states,
                replacing: &[],
                resync: true,
                copies: true,
                scrub: true,
                read_only: false,
            };
            assert_eq!(due(&situation, &[]), [Resync], "{states:?}");
            assert_eq!(due(&situation, &[Resync]), [], "{states:?}");
            assert_eq!(due(&Situation { read_only: true, ..situation }, &[]), [], "{states:?}");
        }
    }
}
