//! Sets of stripes, or of a member's sectors, as ranges.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;

use layout::redo_log::StripeRange;

/// A set of stripes or sectors: each range's first one, mapped to the first one after the range. No two ranges touch.
#[derive(Default)]
pub(super) struct Ranges(pub(super) BTreeMap<u64, u64>);

impl Ranges {
    pub(super) fn add(&mut self, range: impl Into<Range<u64>>) {
        let Range { start: mut first, mut end } = range.into();
        if first >= end {
            return;
        }
        let touching: Vec<u64> =
            self.0.range(..=end).rev().take_while(|&(_, &other)| other >= first).map(|(&at, _)| at).collect();
        for at in touching {
            first = first.min(at);
            end = end.max(self.0.remove(&at).expect("it was there"));
        }
        self.0.insert(first, end);
    }

    /// Takes a stripe out. False if it was not in.
    pub(super) fn remove(&mut self, stripe: u64) -> bool {
        let Some((first, end)) = self.around(stripe) else { return false };
        self.0.remove(&first);
        if first < stripe {
            self.0.insert(first, stripe);
        }
        if stripe + 1 < end {
            self.0.insert(stripe + 1, end);
        }
        true
    }

    /// Takes all of a range out.
    pub(super) fn remove_all(&mut self, range: impl Into<Range<u64>>) {
        let range: Range<u64> = range.into();
        if range.is_empty() {
            return;
        }
        for cut in [range.start, range.end] {
            if let Some((first, end)) = self.around(cut).filter(|(first, _)| *first < cut) {
                self.0.insert(first, cut);
                self.0.insert(cut, end);
            }
        }
        let inside: Vec<u64> = self.0.range(range.start..range.end).map(|(&first, _)| first).collect();
        for first in inside {
            self.0.remove(&first);
        }
    }

    /// Ranges are not empty, and no two touch.
    pub(super) fn self_check(&self) {
        let mut before = None;
        for (&first, &end) in &self.0 {
            assert!(first < end && before.is_none_or(|before| before < first), "{:?}", self.0);
            before = Some(end);
        }
    }

    pub(super) fn contains(&self, stripe: u64) -> bool {
        self.around(stripe).is_some()
    }

    pub(super) fn around(&self, stripe: u64) -> Option<(u64, u64)> {
        let (&first, &end) = self.0.range(..=stripe).next_back()?;
        (stripe < end).then_some((first, end))
    }

    /// The parts of the set within a range, ascending.
    pub(super) fn within(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let from = self.around(range.start).map_or(range.start, |(first, _)| first);
        let parts = self.0.range(from..range.end.max(from));
        parts.map(|(&first, &end)| first.max(range.start)..end.min(range.end)).collect()
    }

    /// How many stripes or sectors there are.
    pub(super) fn len(&self) -> u64 {
        self.0.iter().map(|(first, end)| end - first).sum()
    }

    /// The part of the set from this stripe on.
    pub(super) fn from(&self, stripe: u64) -> BTreeMap<u64, u64> {
        let cut = |(&first, &end): (&u64, &u64)| (first.max(stripe), end);
        self.0.iter().filter(|(_, end)| **end > stripe).map(cut).collect()
    }
}

/// Joins the ranges of an ascending list that touch.
pub(crate) fn join(ranges: impl IntoIterator<Item = StripeRange>) -> Vec<StripeRange> {
    let mut joined: Vec<StripeRange> = Vec::new();
    for range in ranges {
        match joined.last_mut().filter(|last| last.end >= range.first) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    joined
}

/// The intersection of two ascending lists of ranges that do not touch.
pub(crate) fn common(some: &[StripeRange], others: &[StripeRange]) -> Vec<StripeRange> {
    let (mut common, mut at, mut other_at) = (Vec::new(), 0, 0);
    while let (Some(one), Some(other)) = (some.get(at), others.get(other_at)) {
        let (first, end) = (one.first.max(other.first), one.end.min(other.end));
        if first < end {
            common.push(StripeRange { first, end });
        }
        match one.end < other.end {
            true => at += 1,
            false => other_at += 1,
        }
    }
    common
}

/// At most `most` ranges that hold all of an ascending list: those with the smallest gaps are joined.
pub(super) fn at_most(list: Vec<StripeRange>, most: usize) -> Vec<StripeRange> {
    if list.len() <= most.max(1) {
        return list;
    }
    let gap = |at: usize| list[at + 1].first - list[at].end;
    let mut before_gaps: Vec<usize> = (0..list.len() - 1).collect();
    before_gaps.select_nth_unstable_by_key(most.max(1) - 1, |&at| Reverse(gap(at)));
    before_gaps.truncate(most.max(1) - 1);
    before_gaps.sort_unstable();
    let lasts = before_gaps.into_iter().chain([list.len() - 1]);
    let mut first = 0;
    let joined = lasts.map(|last| StripeRange {
        first: list[std::mem::replace(&mut first, last + 1)].first,
        end: list[last].end,
    });
    joined.collect()
}
