//! What the page of `serve --metrics` and `twill top` show of an array at one moment. Rates are theirs to make: they are differences
//! of two moments.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::status::{ArrayStatus, MemberStatus};
use crate::words::advice::{Advice, advice};

/// Events that are shown: the newest.
pub const EVENTS: usize = 20;

/// An array at one moment.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Overview {
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// Clients' requests by how long they took: exclusive upper bound in nanoseconds, and count. Empty for arrays that do not measure it.
    pub latencies: Vec<(u64, u64)>,
    /// The newest events, the newest first, as `events` has them.
    pub events: Vec<Value>,
    /// What to do next; empty where all is well.
    pub advice: Vec<Advice>,
    /// What `detail --json` prints.
    pub status: ArrayStatus,
}

impl Overview {
    /// Put together from what a server knows; `events` come with the oldest first.
    pub fn new(
        unix_ms: u64,
        status: ArrayStatus,
        latencies: Vec<(u64, u64)>,
        mut events: Vec<Value>,
    ) -> Self {
        events.reverse();
        Overview { unix_ms, latencies, events, advice: advice(&status), status }
    }
}

/// The newest look at an array, and what came of it and the one before.
#[derive(Clone, Debug, Serialize)]
pub struct Shown {
    /// Between the two newest looks.
    pub rates: Option<Rates>,
    /// The newest.
    #[serde(flatten)]
    pub now: Overview,
}

/// What happens in a second, between two moments of one server.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Bytes that clients read.
    pub read_bytes: u64,
    /// Bytes that clients wrote.
    pub write_bytes: u64,
    /// Their reads.
    pub reads: u64,
    /// Their writes.
    pub writes: u64,
    /// Half of the requests took less, in nanoseconds; 0 if there were none or it is not measured.
    pub p50_ns: u64,
    /// 99 % of the requests took less, likewise.
    pub p99_ns: u64,
    /// Of each member, in the order of the status.
    pub members: Vec<MemberRates>,
}

/// What happens at a member in a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemberRates {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl Rates {
    /// None: the server is another, or no time has passed.
    pub fn between(before: &Overview, now: &Overview) -> Option<Self> {
        let is_same =
            (before.status.pid, before.status.started_unix_s) == (now.status.pid, now.status.started_unix_s);
        let ms = now.unix_ms.checked_sub(before.unix_ms).filter(|ms| is_same && *ms > 0)?;
        let per_s = |before: u64, now: u64| {
            u64::try_from(u128::from(now.saturating_sub(before)) * 1000 / u128::from(ms)).unwrap_or(u64::MAX)
        };
        let counter = |name: &str| {
            let of = |status: &ArrayStatus| status.counters.get(name).copied().unwrap_or(0);
            per_s(of(&before.status), of(&now.status))
        };
        let member = |now: &MemberStatus| {
            let is_it =
                |old: &&MemberStatus| (old.slot, &old.path, old.state) == (now.slot, &now.path, now.state);
            let old = before.status.members.iter().find(is_it);
            old.map_or_else(MemberRates::default, |old| MemberRates {
                read_bytes: per_s(old.read_bytes, now.read_bytes),
                write_bytes: per_s(old.write_bytes, now.write_bytes),
            })
        };
        Some(Rates {
            read_bytes: counter("read_bytes"),
            write_bytes: counter("write_bytes"),
            reads: counter("reads"),
            writes: counter("writes"),
            p50_ns: percentile(&before.latencies, &now.latencies, 50),
            p99_ns: percentile(&before.latencies, &now.latencies, 99),
            members: now.status.members.iter().map(member).collect(),
        })
    }
}

/// The latency in nanoseconds below which that many of a hundred requests between two moments stayed; 0 if there were none.
fn percentile(before: &[(u64, u64)], now: &[(u64, u64)], percent: u64) -> u64 {
    let old: BTreeMap<u64, u64> = before.iter().copied().collect();
    let since =
        now.iter().map(|(bound, count)| (*bound, count.saturating_sub(old.get(bound).copied().unwrap_or(0))));
    let counts: BTreeMap<u64, u64> = since.filter(|(_, count)| *count > 0).collect();
    let all: u64 = counts.values().sum();
    let mut passed = 0;
    counts
        .iter()
        .find(|(_, count)| {
            passed += *count;
            passed * 100 >= all * percent
        })
        .map_or(0, |(bound, _)| *bound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::units::Slot;

    fn moment(unix_ms: u64, reads: u64, member_bytes: u64, latencies: &[(u64, u64)]) -> Overview {
        let member =
            MemberStatus { slot: Some(Slot::new(0)), read_bytes: member_bytes, ..MemberStatus::default() };
        let counters = [("reads".to_owned(), reads), ("read_bytes".to_owned(), reads * 4096)];
        let status =
            ArrayStatus { members: vec![member], counters: counters.into(), ..ArrayStatus::default() };
        Overview::new(unix_ms, status, latencies.to_vec(), Vec::new())
    }

    #[test]
    fn rates_are_differences() {
        let before = moment(1000, 10, 1 << 20, &[(2000, 5)]);
        let now = moment(1500, 110, 3 << 20, &[(2000, 95), (9000, 9), (70_000, 1)]);
        let rates = Rates::between(&before, &now).expect("half a second");
        assert_eq!((rates.reads, rates.read_bytes, rates.writes), (200, 819_200, 0));
        assert_eq!(rates.members[0], MemberRates { read_bytes: 4 << 20, write_bytes: 0 });
        assert_eq!((rates.p50_ns, rates.p99_ns), (2000, 9000));
        assert_eq!(Rates::between(&now, &before), None);
        let other = Overview { status: ArrayStatus { pid: 7, ..now.status.clone() }, ..now };
        assert_eq!(Rates::between(&before, &other), None, "another server's counts");
    }
}
