//! How a history is made smaller than its seed says, in words that replay it: without some kinds of faults and requests, and
//! with lower numbers.

use std::fmt::{self, Display};
use std::str::FromStr;

use engine::stripe::locks::Locks;
use layout::geometry::{Geometry, Level};

use crate::network::NetworkPlan;
use crate::scenario::{Consistency, MEMBER_BYTES_WITH_BITMAP, Scenario};

/// What can be left out of a history.
const PARTS: &[(&str, fn(&mut Scenario))] = &[
    ("operator", |s| s.faults.pause = 0),
    ("deaths", |s| s.faults.deaths = false),
    ("beyond", |s| s.faults.beyond = false),
    ("re-adds", |s| s.faults.re_adds = false),
    ("full", |s| s.faults.full = false),
    ("metadata-lost", |s| s.faults.metadata_lost = false),
    ("transient", |s| s.faults.transient_one_in = 0),
    ("zeroes", |s| s.load.mix = [s.load.mix[0], 100 - s.load.mix[0] - s.load.mix[2], s.load.mix[2], 0]),
    ("flushes", |s| (s.load.mix[1], s.load.mix[2]) = (s.load.mix[1] + s.load.mix[2], 0)),
    ("reads", |s| (s.load.mix[0], s.load.mix[1]) = (0, s.load.mix[0] + s.load.mix[1])),
    ("fua", |s| s.load.fua_percent = 0),
    ("cache", |s| s.cache_bytes = 0),
    ("two-phases", |s| s.two_phase = false),
    ("avoid-slow", |s| s.avoid_slow = false),
    ("unlogged-starts", |s| s.unlogged_starts = false),
    ("redo-log", |s| s.redo_log = false),
    ("bad-log", |s| s.bad_log = false),
    ("spread", |s| s.bitmap.1 = false),
    ("locks", |s| s.bitmap.0 = Locks::Scala),
    ("peers", |s| s.fabric = None),
    ("take-overs", |s| s.network = s.network.map(|plan| NetworkPlan { take_overs: false, ..plan })),
    ("restarts", |s| s.network = s.network.map(|plan| NetworkPlan { restarts: false, ..plan })),
    ("cuts", |s| s.network = s.network.map(|plan| NetworkPlan { pause: 0, ..plan })),
    ("bitmap", |s| {
        if s.has_bitmap() {
            s.consistency = Consistency::Resync;
        }
    }),
];

/// What numbers can be lowered, and to what at least.
const NUMBERS: &[(&str, Number)] = &[
    ("rounds", Number { get: |s| s.rounds, set: |s, n| s.rounds = n, least: 1 }),
    ("clients", Number { get: |s| s.load.clients, set: |s, n| s.load.clients = n, least: 1 }),
    ("shards", Number { get: |s| s.shards as u64, set: |s, n| s.shards = n as usize, least: 1 }),
    ("requests", Number { get: |s| s.load.requests, set: |s, n| s.load.requests = n, least: 1 }),
    ("stripes", Number { get: stripes, set: set_stripes, least: 2 }),
];

struct Number {
    get: fn(&Scenario) -> u64,
    set: fn(&mut Scenario, u64),
    least: u64,
}

fn stripe_bytes(scenario: &Scenario) -> u64 {
    u64::from(scenario.geometry.chunk_bytes()).max(4096)
}

fn stripes(scenario: &Scenario) -> u64 {
    scenario.geometry.member_bytes() / stripe_bytes(scenario)
}

/// An array of fewer stripes, if there is one.
fn set_stripes(scenario: &mut Scenario, stripes: u64) {
    let (old, bytes) = (scenario.geometry, stripes * stripe_bytes(scenario));
    let bytes = if scenario.has_bitmap() { bytes.max(MEMBER_BYTES_WITH_BITMAP) } else { bytes };
    let chunk = if old.level() == Level::Raid1 { 0 } else { old.chunk_bytes() };
    let new = Geometry::new(old.level(), old.layout(), old.members(), chunk, bytes.min(old.member_bytes()));
    let Ok(new) = new else { return };
    scenario.geometry = new;
    let spots = new.array_bytes() / scenario.spot_bytes();
    scenario.load.hot.iter_mut().for_each(|hot| *hot %= spots.max(1));
}

/// How a history is made smaller than its seed says. In words: `requests=3,clients=1,without=deaths+full,salt=2`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reduced {
    numbers: Vec<(&'static str, u64)>,
    without: Vec<&'static str>,
    /// Another order of events than the seed's.
    pub(crate) salt: u64,
}

impl Display for Reduced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words: Vec<String> =
            self.numbers.iter().map(|(name, number)| format!("{name}={number}")).collect();
        if !self.without.is_empty() {
            words.push(format!("without={}", self.without.join("+")));
        }
        if self.salt > 0 {
            words.push(format!("salt={}", self.salt));
        }
        f.write_str(&words.join(","))
    }
}

impl FromStr for Reduced {
    type Err = String;

    fn from_str(words: &str) -> Result<Self, String> {
        let mut reduced = Reduced::default();
        for word in words.split(',').filter(|word| !word.is_empty()) {
            let (name, value) = word.split_once('=').ok_or_else(|| format!("{word:?} is no NAME=VALUE"))?;
            let number = || value.parse::<u64>().map_err(|error| format!("{word}: {error}"));
            match name {
                "salt" => reduced.salt = number()?,
                "without" => {
                    for part in value.split('+') {
                        let known = PARTS.iter().find(|(name, _)| *name == part);
                        reduced
                            .without
                            .push(known.ok_or_else(|| format!("{part:?} is no part of a history"))?.0);
                    }
                }
                _ => {
                    let known = NUMBERS.iter().find(|(known, _)| *known == name);
                    let (name, least) = known
                        .map(|(name, n)| (*name, n.least))
                        .ok_or_else(|| format!("nothing is called {name:?}"))?;
                    reduced.numbers.push((name, number()?.max(least)));
                }
            }
        }
        Ok(reduced)
    }
}

impl Reduced {
    /// Makes a scenario smaller. With a salt it returns the seed of another order of events.
    pub(crate) fn apply(&self, scenario: &mut Scenario, seed: u64) -> Option<u64> {
        for (_, leave_out) in PARTS.iter().filter(|(name, _)| self.without.contains(name)) {
            leave_out(scenario);
        }
        for (name, number) in &self.numbers {
            let (_, known) = NUMBERS.iter().find(|(known, _)| known == name).expect("parsed");
            let least = (known.get)(scenario).min(*number);
            (known.set)(scenario, least);
        }
        (self.salt > 0).then(|| (seed ^ self.salt.rotate_right(8)).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.numbers.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
    }

    fn with_number(&self, name: &'static str, number: u64) -> Self {
        let mut new = self.clone();
        new.numbers.retain(|(known, _)| *known != name);
        new.numbers.push((name, number));
        new
    }

    /// The next smaller ones, the boldest first.
    pub(crate) fn smaller(&self, scenario: &Scenario) -> Vec<Self> {
        let mut all = Vec::new();
        for (name, number) in NUMBERS {
            let now = self.number(name).unwrap_or(u64::MAX).min((number.get)(scenario));
            let mut next = vec![number.least, now / 2, now.saturating_sub(1)];
            next.retain(|&next| next >= number.least && next < now);
            next.dedup();
            all.extend(next.into_iter().map(|next| self.with_number(name, next)));
        }
        for (name, _) in PARTS.iter().filter(|(name, _)| !self.without.contains(name)) {
            let mut new = self.clone();
            new.without.push(name);
            all.push(new);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_reduction() {
        let reduced: Reduced = "requests=3,without=deaths+full,salt=2".parse().unwrap();
        assert_eq!(reduced.to_string(), "requests=3,without=deaths+full,salt=2");
        assert!("requests".parse::<Reduced>().is_err() && "without=luck".parse::<Reduced>().is_err());
        assert!("hope=1".parse::<Reduced>().is_err() && "salt=x".parse::<Reduced>().is_err());
    }
}
