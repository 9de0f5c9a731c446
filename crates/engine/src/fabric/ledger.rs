//! What a target records of a member for the next host: the changes of its data area that may be half done, should this host die.
//!
//! After a host's death parity may disagree with data where writes were under way. A bitmap marks 64 MiB for each of them; the
//! targets, which live on, know them to the block. The next host makes the parity of those stripes agree, and of no others.
//!
//! F-I14: a ledger is used only if it is complete. It is the target that sees to it: a change of the data area that does not say in
//! which epoch it was sent ([`super::epochs`]), or comes from another than the host that keeps the ledger, ends it, as does a change that
//! finds no room. A target that was restarted has none. So a host can neither forget to record a change nor record it too late. The next
//! host uses ledgers only if every member has one, and all are one host's of one time ([`crate::array::ledgers`]).
//!
//! In contrast to the paper's servers a target lists ranges and no ops: with all members present parity is always made from
//! data, whatever it had come to. With a member missing the redo log is in force, and no ledger is used.

use std::collections::VecDeque;
use std::ops::Range;

use super::epochs::{EpochStamp, WINDOW};

/// Most changes that a ledger lists: 400 KB. A host has at most [`WINDOW`] writes under way before they share epochs.
pub const CHANGES_MAX: usize = 16 * WINDOW as usize;

/// The ledger of a namespace, which the host `H` keeps.
#[derive(Debug)]
pub struct Ledger<H> {
    id: u64,
    host: H,
    area: Range<u64>,
    state: State,
    changes: VecDeque<(u64, Range<u64>)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    /// Changes are listed. Others that began before may be under way.
    Begun,
    /// All that is under way is listed.
    Complete,
    /// Something is not.
    Ended,
}

/// What a complete ledger says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Listed {
    /// Drawn by the host for all members at once.
    pub id: u64,
    /// The data area, in bytes of the namespace.
    pub area: Range<u64>,
    /// What may be half done, ascending, in bytes of the namespace.
    pub ranges: Vec<Range<u64>>,
}

impl<H: PartialEq> Ledger<H> {
    /// A ledger that lists changes from here on, in the data area.
    pub fn begin(id: u64, host: H, area: Range<u64>) -> Self {
        Ledger { id, host, area, state: State::Begun, changes: VecDeque::new() }
    }

    /// All that was under way when all members had begun has ended. False if this is not that ledger, or it has ended.
    pub fn complete(&mut self, id: u64, host: &H) -> bool {
        let is_it = self.id == id && self.host == *host && self.state != State::Ended;
        if is_it {
            self.state = State::Complete;
        }
        is_it
    }

    /// What it is known by, unless it has ended.
    pub fn id(&self) -> Option<u64> {
        (self.state != State::Ended).then_some(self.id)
    }

    /// A host is about to change a range. Called before the command goes to the drive.
    pub fn change(&mut self, by: &H, range: &Range<u64>, stamp: Option<EpochStamp>) {
        if self.state == State::Ended || range.end <= self.area.start || range.start >= self.area.end {
            return;
        }
        let Some(stamp) = stamp.filter(|_| *by == self.host) else { return self.end() };
        self.retire(stamp.lowest);
        if self.changes.len() == CHANGES_MAX {
            return self.end();
        }
        self.changes.push_back((stamp.epoch, range.clone()));
    }

    /// Changes below this epoch are consistent with those of other members. They come nearly in order: one behind a later one stays
    /// until that goes.
    fn retire(&mut self, lowest: u64) {
        while self.changes.front().is_some_and(|(epoch, _)| *epoch < lowest) {
            self.changes.pop_front();
        }
    }

    fn end(&mut self) {
        self.state = State::Ended;
        self.changes = VecDeque::new();
    }

    /// What the next host goes by; none if it is not complete.
    pub fn listed(&self) -> Option<Listed> {
        if self.state != State::Complete {
            return None;
        }
        let mut all: Vec<Range<u64>> = self.changes.iter().map(|(_, range)| range.clone()).collect();
        all.sort_by_key(|range| range.start);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for range in all {
            match ranges.last_mut() {
                Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                _ => ranges.push(range),
            }
        }
        Some(Listed { id: self.id, area: self.area.clone(), ranges })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AREA: Range<u64> = 1000..9000;

    fn stamp(epoch: u64, lowest: u64) -> Option<EpochStamp> {
        Some(EpochStamp { epoch, lowest })
    }

    fn complete() -> Ledger<&'static str> {
        let mut ledger = Ledger::begin(7, "host", AREA);
        assert_eq!(ledger.listed(), None, "what began before may not be listed");
        assert!(ledger.complete(7, &"host"));
        ledger
    }

    fn ranges(ledger: &Ledger<&str>) -> Option<Vec<Range<u64>>> {
        ledger.listed().map(|listed| listed.ranges)
    }

    #[test]
    fn it_lists_what_is_not_below_the_lowest_epoch() {
        let mut ledger = complete();
        ledger.change(&"host", &(2000..3000), stamp(5, 5));
        ledger.change(&"host", &(1000..1500), stamp(6, 5));
        ledger.change(&"host", &(2500..3500), stamp(7, 5));
        assert_eq!(ranges(&ledger), Some(vec![1000..1500, 2000..3500]));
        ledger.change(&"host", &(8000..8500), stamp(8, 7));
        assert_eq!(ranges(&ledger), Some(vec![2500..3500, 8000..8500]));
    }

    #[test]
    fn a_change_that_is_not_its_hosts_ends_it() {
        for (by, stamped) in [("host", None), ("another", stamp(1, 1)), ("another", None)] {
            let mut ledger = complete();
            ledger.change(&by, &(0..1000), stamped);
            ledger.change(&by, &(9000..9500), stamped);
            assert_eq!(ranges(&ledger), Some(vec![]), "outside of the data area anybody may write");
            ledger.change(&by, &(999..1001), stamped);
            assert_eq!((ledger.listed(), ledger.id()), (None, None), "{by} {stamped:?}");
            assert!(!ledger.complete(7, &"host"), "an ended one stays so");
        }
    }

    #[test]
    fn only_its_host_completes_it() {
        let mut ledger = Ledger::begin(7, "host", AREA);
        assert!(!ledger.complete(8, &"host") && !ledger.complete(7, &"another"));
        assert_eq!(ledger.listed(), None);
    }

    #[test]
    fn one_that_is_full_ends() {
        let mut ledger = complete();
        for at in 0..CHANGES_MAX as u64 {
            ledger.change(&"host", &(2000 + at % 100..3000), stamp(at, 0));
        }
        assert!(ledger.listed().is_some());
        ledger.change(&"host", &(2000..3000), stamp(CHANGES_MAX as u64, 0));
        assert_eq!(ledger.listed(), None);
    }
}
