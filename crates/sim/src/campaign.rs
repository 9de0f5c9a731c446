//! Many seeds on many threads, until one fails, or all of them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::counts::Counts;
use crate::report::{Failure, Options, Report};

/// Longer than any seed takes, on the slowest machine.
const SEED_SECONDS_MAX: u64 = 120;

/// What is made of a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Load, faults and crashes of all sorts at an array of any size.
    Histories,
    /// A power cut at every moment of a short history.
    Grid,
    /// The same of a zoned array, and of its recovery.
    Zoned,
    /// Histories of parity arrays whose members' targets make parity among themselves.
    Peers,
    /// Histories of arrays whose members are on other machines.
    Network,
    /// A fault at every command to such members, of a short history.
    Messages,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Kind::Histories, Kind::Grid, Kind::Zoned, Kind::Peers, Kind::Network, Kind::Messages];

    /// As the command line has it.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Histories => "histories",
            Kind::Grid => "grid",
            Kind::Zoned => "zoned",
            Kind::Peers => "peers",
            Kind::Network => "network",
            Kind::Messages => "messages",
        }
    }

    /// Runs a seed.
    ///
    /// # Errors
    /// [`Failure`] says which check failed, and how.
    pub fn run(self, seed: u64, options: &Options) -> Result<Report, Box<Failure>> {
        match self {
            Kind::Histories => crate::history::run(seed, options),
            Kind::Grid => crate::grid::run(seed, options),
            Kind::Zoned => crate::zoned::run(seed, options),
            Kind::Peers => crate::history::run_with_peers(seed, options),
            Kind::Network => crate::history::run_with_network(seed, options),
            Kind::Messages => crate::grid::messages::run(seed, options),
        }
    }
}

/// What is run.
pub struct Campaign<'a> {
    /// What is made of each seed.
    pub kinds: &'a [Kind],
    /// The first seed.
    pub start: u64,
    /// How many of them at most.
    pub seeds: u64,
    /// No new seed is begun after this time.
    pub limit: Duration,
    /// Threads that work at once.
    pub threads: usize,
    /// A failure does not end the campaign.
    pub keep_going: bool,
    /// What else is wanted.
    pub options: &'a Options,
}

/// How a campaign ended.
pub struct Outcome {
    /// What was done.
    pub counts: Counts,
    /// What failed, in the order in which it was found; at most one without `keep_going`.
    pub failures: Vec<(Kind, Box<Failure>)>,
}

impl Campaign<'_> {
    /// Runs seed after seed; `seen` hears of each as it ends.
    pub fn run(&self, seen: &(impl Fn(u64, Kind, Result<&Report, &Failure>) + Sync)) -> Outcome {
        let outcome = Mutex::new(Outcome { counts: Counts::default(), failures: Vec::new() });
        let (next, over) = (AtomicU64::new(0), AtomicBool::new(false));
        let busy: Vec<AtomicU64> = (0..self.threads).map(|_| AtomicU64::new(self.start)).collect();
        let started = Instant::now();
        std::thread::scope(|scope| {
            for own in &busy {
                scope.spawn(|| {
                    while !over.load(Relaxed) && started.elapsed() < self.limit {
                        let number = next.fetch_add(1, Relaxed);
                        if number >= self.seeds {
                            break;
                        }
                        own.store(self.start + number, Relaxed);
                        if !self.run_seed(self.start + number, &outcome, seen) && !self.keep_going {
                            over.store(true, Relaxed);
                        }
                    }
                    own.store(u64::MAX, Relaxed);
                });
            }
            watch(&busy);
        });
        outcome.into_inner().expect("no thread panics with it")
    }

    fn run_seed(
        &self,
        seed: u64,
        outcome: &Mutex<Outcome>,
        seen: &(impl Fn(u64, Kind, Result<&Report, &Failure>) + Sync),
    ) -> bool {
        for &kind in self.kinds {
            let result = kind.run(seed, self.options);
            let mut outcome = outcome.lock().expect("no thread panics with it");
            match result {
                Ok(report) => {
                    outcome.counts.add(&report.counts);
                    seen(seed, kind, Ok(&report));
                }
                Err(failure) => {
                    if self.keep_going || outcome.failures.is_empty() {
                        seen(seed, kind, Err(&failure));
                        outcome.failures.push((kind, failure));
                    }
                    return false;
                }
            }
        }
        true
    }
}

/// A world cannot notice an endless loop inside one of its steps: this names the seed and ends the program.
fn watch(busy: &[AtomicU64]) {
    let mut since: Vec<(u64, Instant)> = busy.iter().map(|_| (u64::MAX, Instant::now())).collect();
    while busy.iter().any(|seed| seed.load(Relaxed) != u64::MAX) {
        for (seed, since) in busy.iter().zip(&mut since) {
            let seed = seed.load(Relaxed);
            if seed != since.0 {
                *since = (seed, Instant::now());
            }
            if seed != u64::MAX && since.1.elapsed() > Duration::from_secs(SEED_SECONDS_MAX) {
                println!("seed {seed} FAILED: no end after {SEED_SECONDS_MAX} s");
                std::process::exit(1);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
