//! Which host may use a namespace: what is to be done next, decided from a target's report of its reservations.
//!
//! Invariants:
//! - F-I6: a member is used under an Exclusive Access reservation of this attach's own key. A former holder is preempted with
//!   abort: the target answers when that host's commands have ended.
//! - F-I7: a host that finds another in its place is fenced; it takes nothing back. What an attempt of its own has taken, and was
//!   cut off before it heard so, is no other's.

use nvme_tcp::names::HostId;
use nvme_tcp::reservation::{Report, ReportedRegistrant, ReservationType};

/// The keys under which a member may still be this attach's.
#[derive(Clone, Debug, Default)]
pub(super) struct OwnKeys {
    /// That of its last association; none: it was not attached before.
    held: Option<u64>,
    /// Those of attempts since, which may have gone further than is known here.
    tried: Vec<Tried>,
}

#[derive(Clone, Copy, Debug)]
struct Tried {
    key: u64,
    /// The target had not restarted until then, as its reservations showed.
    is_same_run: bool,
}

impl OwnKeys {
    /// Of a member whose last association had this key.
    pub(super) fn of(held: Option<u64>) -> Self {
        OwnKeys { held, tried: Vec::new() }
    }

    /// A key is about to be registered.
    pub(super) fn tries(&mut self, key: u64, is_same_run: bool) {
        self.tried.push(Tried { key, is_same_run });
    }

    /// Whether a key is one of them.
    pub(super) fn has(&self, key: u64) -> bool {
        self.held == Some(key) || self.tried.iter().any(|tried| tried.key == key)
    }

    /// Whether a reservation under this key is from before any restart of the target.
    fn shows_same_run(&self, key: u64) -> bool {
        self.held == Some(key) || self.tried.iter().any(|tried| tried.key == key && tried.is_same_run)
    }
}

/// What a host knows when it looks at a report.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    /// This attach's identifier, and its key.
    pub host: HostId,
    pub key: u64,
    /// The keys that this attach had before.
    pub own: OwnKeys,
    /// The first half of the identifiers of this machine, if no other process of it has the member.
    pub own_half: Option<[u8; 8]>,
    /// The member is taken from whatever host has it.
    pub take_over: bool,
    /// For a member that was attached: most of the others still show this host's key.
    pub others_hold: bool,
}

/// What comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Register this attach's key.
    Register,
    /// Take the reservation, which is free.
    Acquire,
    /// Take registration and reservation from the hosts with this key, and have their commands ended.
    Preempt(u64),
    /// The member is this attach's.
    Held,
    /// Another host has it.
    Taken(Holder),
    /// The reservation is gone, and no other member shows that the array is still this host's.
    Lost,
}

/// The host that has a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its identifier.
    pub host: HostId,
    /// Its key.
    pub key: u64,
}

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "host {} with key {:#018x}", self.host, self.key)
    }
}

/// Decides what comes next.
pub(super) fn next(report: &Report, claim: &Claim) -> Step {
    let registered = |one: &&ReportedRegistrant| one.host == claim.host && one.key == claim.key;
    let is_own = |one: &ReportedRegistrant| {
        claim.own.has(one.key) || claim.own_half.is_some_and(|half| one.host.0[..8] == half)
    };
    let me = report.registrants.iter().find(registered);
    let holder = report.registrants.iter().find(|one| one.holds && one.host != claim.host);
    if let Some(holder) = holder
        && !claim.take_over
        && !is_own(holder)
    {
        return Step::Taken(Holder { host: holder.host, key: holder.key });
    }
    // A member that was this host's and that no host has now: the target forgot, or it was released on purpose.
    let is_gone = holder.is_none() && me.is_none_or(|me| !me.holds);
    if claim.own.held.is_some() && is_gone && !claim.others_hold {
        return Step::Lost;
    }
    let Some(me) = me else { return Step::Register };
    match holder {
        Some(holder) => Step::Preempt(holder.key),
        None if !me.holds => Step::Acquire,
        None if report.kind != Some(ReservationType::ExclusiveAccess) => Step::Preempt(claim.key),
        // Leftovers would fill the target's table, and could preempt.
        None => match report.registrants.iter().find(|one| one.host != claim.host && is_own(one)) {
            Some(leftover) => Step::Preempt(leftover.key),
            None => Step::Held,
        },
    }
}

/// Whether a target shows by a report that it has not restarted since a former association: it does not keep reservations through
/// a restart, and still has that association's. `may_persist`: it can keep them.
pub(super) fn shows_same_run(report: &Report, own: &OwnKeys, may_persist: bool) -> bool {
    let is_former = |one: &ReportedRegistrant| one.holds && own.shows_same_run(one.key);
    !may_persist && !report.persists && report.registrants.iter().any(is_former)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: [u8; 8] = [7; 8];
    const ME: (u8, u64) = (1, 100);
    const MINE_BEFORE: (u8, u64) = (2, 90);
    const LEFTOVER: (u8, u64) = (3, 80);
    const TRIED: (u8, u64) = (4, 95);
    const OTHER: (u8, u64) = (200, 70);

    fn host(number: u8) -> HostId {
        let mut id = [number; 16];
        if number < 100 {
            id[..8].copy_from_slice(&HALF);
        }
        HostId(id)
    }

    fn report(registrants: &[((u8, u64), bool)]) -> Report {
        let registrant = |((number, key), holds): &((u8, u64), bool)| ReportedRegistrant {
            host: host(*number),
            key: *key,
            holds: *holds,
        };
        Report {
            generation: 1,
            kind: registrants.iter().any(|one| one.1).then_some(ReservationType::ExclusiveAccess),
            persists: true,
            registrants: registrants.iter().map(registrant).collect(),
        }
    }

    fn claim() -> Claim {
        Claim {
            host: host(ME.0),
            key: ME.1,
            own: OwnKeys::default(),
            own_half: Some(HALF),
            take_over: false,
            others_hold: false,
        }
    }

    #[test]
    fn an_attach_goes_step_by_step() {
        let taken = Step::Taken(Holder { host: host(OTHER.0), key: OTHER.1 });
        let forced = Claim { take_over: true, ..claim() };
        let second = Claim { own_half: None, ..claim() };
        let back = Claim { own: OwnKeys::of(Some(MINE_BEFORE.1)), own_half: None, ..claim() };
        let sure = Claim { others_hold: true, ..back.clone() };
        let mut cut_short = back.clone();
        cut_short.own.tries(TRIED.1, true);
        for (what, claim, registrants, step) in [
            ("free", claim(), &[][..], Step::Register),
            ("registered", claim(), &[(ME, false)], Step::Acquire),
            ("held", claim(), &[(ME, true)], Step::Held),
            ("another's", claim(), &[(OTHER, true)], taken),
            ("another's, and registered", claim(), &[(ME, false), (OTHER, true)], taken),
            ("taken over", forced.clone(), &[(OTHER, true)], Step::Register),
            ("taken over, registered", forced, &[(ME, false), (OTHER, true)], Step::Preempt(OTHER.1)),
            ("own leftover", claim(), &[(ME, false), (LEFTOVER, true)], Step::Preempt(LEFTOVER.1)),
            ("own registration left", claim(), &[(ME, true), (LEFTOVER, false)], Step::Preempt(LEFTOVER.1)),
            (
                "another process here",
                second,
                &[(LEFTOVER, true)],
                Step::Taken(Holder { host: host(3), key: 80 }),
            ),
            ("a stranger registered", claim(), &[(ME, true), (OTHER, false)], Step::Held),
            ("reconnected", back.clone(), &[(MINE_BEFORE, true)], Step::Register),
            (
                "reconnected, registered",
                back.clone(),
                &[(ME, false), (MINE_BEFORE, true)],
                Step::Preempt(MINE_BEFORE.1),
            ),
            ("an attempt has taken it", cut_short.clone(), &[(TRIED, true)], Step::Register),
            (
                "an attempt has taken it, registered",
                cut_short.clone(),
                &[(ME, false), (TRIED, true)],
                Step::Preempt(TRIED.1),
            ),
            (
                "an attempt has registered",
                cut_short.clone(),
                &[(ME, true), (TRIED, false)],
                Step::Preempt(TRIED.1),
            ),
            ("fenced after an attempt", cut_short, &[(OTHER, true)], taken),
            ("fenced while away", back.clone(), &[(OTHER, true)], taken),
            ("forgotten", back, &[], Step::Lost),
            ("forgotten, others know", sure.clone(), &[], Step::Register),
            ("forgotten, others know, registered", sure, &[(ME, false)], Step::Acquire),
        ] {
            assert_eq!(next(&report(registrants), &claim), step, "{what}");
        }
    }

    #[test]
    fn a_reservation_that_no_restart_leaves_shows_that_there_was_none() {
        let kept = |registrants| Report { persists: false, ..report(registrants) };
        let former = OwnKeys::of(Some(MINE_BEFORE.1));
        let tried = |is_same_run| {
            let mut own = former.clone();
            own.tries(TRIED.1, is_same_run);
            own
        };
        for (what, report, own, may_persist, shown) in [
            ("held by an attempt that saw it held", kept(&[(TRIED, true)]), tried(true), false, true),
            ("held by an attempt that saw it forgotten", kept(&[(TRIED, true)]), tried(false), false, false),
            ("still held", kept(&[(MINE_BEFORE, true)]), former.clone(), false, true),
            ("forgotten", kept(&[]), former.clone(), false, false),
            (
                "registered by another since",
                kept(&[(MINE_BEFORE, false), (OTHER, true)]),
                former.clone(),
                false,
                false,
            ),
            ("another holds it", kept(&[(OTHER, true)]), former.clone(), false, false),
            (
                "held, and would be after a restart",
                report(&[(MINE_BEFORE, true)]),
                former.clone(),
                false,
                false,
            ),
            ("held, and the target can keep it", kept(&[(MINE_BEFORE, true)]), former.clone(), true, false),
            ("a first association", kept(&[(LEFTOVER, true)]), OwnKeys::default(), false, false),
        ] {
            assert_eq!(shows_same_run(&report, &own, may_persist), shown, "{what}");
        }
    }

    #[test]
    fn another_type_is_changed_by_a_preempt_of_oneself() {
        let mut held = report(&[(ME, true)]);
        held.kind = Some(ReservationType::WriteExclusive);
        assert_eq!(next(&held, &claim()), Step::Preempt(ME.1));
    }
}
