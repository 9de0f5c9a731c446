//! Memory of targets for the ops of a host, as credits in bytes (dRAID, D7).
//!
//! Each target gives an attach a number of bytes; [`bytes_of`] says how many of them an order takes at most. The host takes the credit of all
//! participants of a step at once, before its first order leaves, or of none. So whatever comes first, memory for it is there, and
//! nothing waits for memory (F-I10). The target counts, too, and refuses what is beyond.
//!
//! A host that takes no more than it was given is never refused, in whatever order its messages arrive:
//! - The host numbers an op, says what is retired, and takes credit under one lock; it has a step's credit back when all numbers of
//!   the step are retired, and not when it has ended: an older op that is stuck keeps later ones from being retired.
//! - Let M be the highest op that a target has heard of, and L what was retired with it. All that the target holds is of ops from L to
//!   M: what is below was retired by the same message, and the host retires only what is final. When the host took M, it had the
//!   credit of every step with an op from L to M in its count.
//! - A step holds no more than its credit covers, however often parts of it are sent again under further ops: these begin when
//!   the former is final (F-I4), and of that nothing is left but the difference. So mending needs no credit of its own, and cannot
//!   be starved.
//!
//! Not counted: the data of a command until it is all here and of an answer until it is sent, which the queues bound; and what an
//! aborted order still has at the drive or on its way to a peer.

use std::ops::Range;

use smallvec::SmallVec;

use super::order::{Base, Destination, PEERS_MAX, PeerIndex, Role, Sink};

/// What a target gives for a member by default, and what an attach is known to be able to use (D7).
pub const CREDIT_BYTES: u64 = 128 << 20;

/// An order takes at most this many times the bytes of its rows: new contents, the contribution, and its product for each of two
/// reducers.
const TIMES_MAX: u64 = 4;

/// Bytes that an order takes at its target at most, with what comes for it from other targets.
#[must_use]
pub fn bytes_of(role: &Role) -> u64 {
    match role {
        Role::Contribute { own, rows, to, .. } => contribution_bytes(own.end - own.start, rows, to),
        Role::Reduce { base, rows, sink, .. } => reduction_bytes(*base, rows, *sink),
    }
}

/// New contents, what is contributed, and a product of that for each reducer that wants another multiple of it.
pub(super) fn contribution_bytes(own_bytes: u64, rows: &Range<u64>, to: &[Destination]) -> u64 {
    let products: u64 = to.iter().map(|to| product_bytes(to.coefficient, rows)).sum();
    own_bytes + (rows.end - rows.start) + products
}

/// What a contribution takes on its way to a reducer, beside itself.
pub(super) fn product_bytes(coefficient: u8, rows: &Range<u64>) -> u64 {
    if coefficient == 1 { 0 } else { rows.end - rows.start }
}

/// The sum, and what is read to be added to it or compared with it.
pub(super) fn reduction_bytes(base: Base, rows: &Range<u64>, sink: Sink) -> u64 {
    (rows.end - rows.start) * (1 + u64::from(base.reads(sink)))
}

/// Most bytes of an order's rows that `given` covers whatever is done with them.
#[must_use]
pub fn order_bytes_max(given: u64) -> u64 {
    given / TIMES_MAX
}

/// The account of one member.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Credit {
    given: u64,
    taken: u64,
}

impl Credit {
    /// Of which nothing is taken.
    #[must_use]
    pub fn new(given: u64) -> Self {
        Credit { given, taken: 0 }
    }

    /// Bytes that the target gives.
    #[must_use]
    pub fn given(&self) -> u64 {
        self.given
    }

    /// Bytes that are taken.
    #[must_use]
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Whether so much more is covered.
    #[must_use]
    pub fn covers(&self, bytes: u64) -> bool {
        self.taken.checked_add(bytes).is_some_and(|taken| taken <= self.given)
    }

    /// What is taken for one thing becomes more or less.
    ///
    /// # Panics
    /// Less was taken.
    pub fn change(&mut self, before: u64, now: u64) {
        assert!(before <= self.taken, "what is given back was taken: {before} of {}", self.taken);
        self.taken = self.taken - before + now;
    }
}

/// What a step takes at each of its participants.
pub type Costs = SmallVec<[(PeerIndex, u64); 4]>;

/// The accounts that a host has with the members of an attach. Until its target says what it
/// gives, a member has no credit.
#[derive(Debug, Default)]
pub struct Credits {
    members: [Credit; PEERS_MAX],
}

impl Credits {
    /// What a member's target gives from now on. What is taken stays so until it is given back: less may be given than that.
    pub fn set_given(&mut self, member: PeerIndex, given: u64) {
        self.members[usize::from(member)].given = given;
    }

    /// What a member's target gives, and what of it is taken.
    #[must_use]
    pub fn of(&self, member: PeerIndex) -> Credit {
        self.members[usize::from(member)]
    }

    /// Takes all of it. False: one member has not as much left, and nothing was taken.
    pub fn take(&mut self, costs: &Costs) -> bool {
        for (at, (member, bytes)) in costs.iter().enumerate() {
            let credit = &mut self.members[usize::from(*member)];
            if !credit.covers(*bytes) {
                self.give_back(&costs[..at]);
                return false;
            }
            credit.change(0, *bytes);
        }
        true
    }

    /// What was taken is free again.
    pub fn give_back(&mut self, costs: &[(PeerIndex, u64)]) {
        for (member, bytes) in costs {
            self.members[usize::from(*member)].change(*bytes, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::order::How;
    use smallvec::smallvec;

    #[test]
    fn what_an_order_takes() {
        let (rows, none) = (4096..12_288, 4096..4096);
        let to = |coefficients: &[u8]| -> SmallVec<[Destination; 2]> {
            let to = coefficients.iter().enumerate();
            to.map(|(peer, &coefficient)| Destination { peer: peer as u8, coefficient }).collect()
        };
        let contribute = |how, own: &Range<u64>, coefficients: &[u8]| Role::Contribute {
            how,
            own: own.clone(),
            rows: rows.clone(),
            to: to(coefficients),
        };
        let reduce = |base, sink| Role::Reduce { base, rows: rows.clone(), contributions: 3, sink };
        let cases = [
            (contribute(How::Old, &none, &[1]), 1),
            (contribute(How::Old, &none, &[7]), 2),
            (contribute(How::Delta, &rows, &[1]), 2),
            (contribute(How::Delta, &rows, &[1, 2]), 3),
            (contribute(How::Delta, &rows, &[2, 3]), 4),
            (contribute(How::Overlay, &rows, &[]), 2),
            (reduce(Base::Zero, Sink::Drive), 1),
            (reduce(Base::Zero, Sink::Compare), 2),
            (reduce(Base::Old, Sink::Drive), 2),
            (reduce(Base::Own(3), Sink::Host), 2),
        ];
        for (role, times) in cases {
            assert_eq!(bytes_of(&role), times * 8192, "{role:?}");
            assert!(times <= TIMES_MAX);
        }
        let part = 8192..12_288;
        assert_eq!(bytes_of(&contribute(How::Overlay, &part, &[1])), 4096 + 8192);
        assert_eq!(order_bytes_max(4 * 8192), 8192);
    }

    #[test]
    fn all_of_it_is_taken_or_nothing() {
        let mut credits = Credits::default();
        credits.set_given(0, 100);
        credits.set_given(1, 50);
        let both: Costs = smallvec![(0, 40), (1, 30)];
        assert!(credits.take(&both));
        let taken = |credits: &Credits| [0, 1, 2].map(|member| credits.of(member).taken());
        for refused in
            [both.clone(), smallvec![(0, 60), (1, 21)], smallvec![(0, 1), (2, 1)], smallvec![(0, u64::MAX)]]
        {
            assert!(!credits.take(&refused), "{refused:?}");
            assert_eq!(taken(&credits), [40, 30, 0]);
        }
        assert!(credits.take(&smallvec![(0, 60), (1, 20)]));
        // A target that was restarted with less: what is out stays out.
        credits.set_given(0, 10);
        assert!(!credits.take(&smallvec![(0, 1)]) && credits.take(&smallvec![(0, 0)]).eq(&false));
        credits.give_back(&both);
        assert_eq!(taken(&credits), [60, 20, 0]);
    }
}
