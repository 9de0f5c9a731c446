//! Every short sequence of what an operator may do to a tiny array, at the engine itself, by enumeration.
//!
//! An array of two to four members with a few stripes and data at rest gets every sequence of up to a number of acts: a start
//! with some of its devices, by force or not, a write, a power cut with a write in flight or without, a member that fails, a
//! new device, a device that comes back, a replacement ([`act`]). A state that is equal to an earlier one is not tried again,
//! nor is a device that is like another one ([`key`]). Two more rules make a tree of two histories: side A runs with some of
//! the devices, side B with others, then any mixture of them is started.
//!
//! After each act ([`run`], [`check`], [`lineage`]):
//! - Reads find what the side that runs wrote, and an error only where a stripe is in doubt and a member is missing.
//! - What parity made of a member that is away, and was read, stays so whoever comes back.
//! - Members in sync hold the same: parity and copies agree at rest.
//! - No member in sync lacks a write, or holds one of another side, and none is left out without a word that holds a write.
//! - All drives are back ([`back`]): all data at rest is readable and every member in sync, or the refusal names the next step.
//!   Stripes that stay in doubt nevertheless are an error.
//!
//! Limits are steps of the world, so the same arguments give the same counts on every machine.

mod act;
mod back;
mod check;
mod key;
mod lineage;
mod run;
mod search;
mod site;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

use layout::geometry::Level;

pub use search::{Plan, Scheme, Tried, replay, search};
pub use site::{Planted, Records};

/// Every level that is tried.
pub const LEVELS: [Level; 6] =
    [Level::Raid0, Level::Raid1, Level::Raid4, Level::Raid5, Level::Raid6, Level::Raid10];

/// Acts of a tree of two histories: a start and an act of each side, the start of a mixture, and a device that comes back.
const TWO_SIDES: usize = 6;

/// All that is tried of some levels: every sequence of `depth` acts with repairs that end before the next act and with ones
/// that do not, and two histories.
pub fn plans(levels: &[Level], depth: usize, seed: u64) -> Vec<Plan> {
    let mut plans = Vec::new();
    for &level in levels {
        let plan = |at_rest, scheme, depth| Plan {
            level,
            records: Records::All,
            at_rest,
            scheme,
            depth,
            seed,
            planted: Planted::default(),
        };
        plans.push(plan(true, Scheme::Any, depth));
        if level != Level::Raid0 {
            plans.push(plan(false, Scheme::Any, depth));
            plans.push(plan(true, Scheme::TwoSides, TWO_SIDES));
            plans.push(Plan { records: Records::NoBitmap, ..plan(true, Scheme::Any, depth) });
        }
    }
    plans
}

/// Tries plans on some threads at once; `say` gets a line for each length of each plan that is done.
///
/// # Errors
/// What went wrong, one history for each plan.
pub fn run_all(plans: &[Plan], threads: usize, say: &(impl Fn(String) + Sync)) -> Result<(), Vec<String>> {
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(plan) = plans.get(next.fetch_add(1, Relaxed)) {
                    let started = Instant::now();
                    let told = search(plan, |depth, tried| {
                        say(format!(
                            "{} in {:.1} s",
                            line(plan, depth, tried),
                            started.elapsed().as_secs_f64()
                        ));
                    });
                    if let Err(wrong) = told {
                        failures.lock().expect("no thread panics with it").push(wrong);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect("no thread panics with it");
    if failures.is_empty() { Ok(()) } else { Err(failures) }
}

/// What was tried of a plan up to a length, in words.
fn line(plan: &Plan, depth: usize, tried: &Tried) -> String {
    let Tried { acts, states, refused, splits } = tried;
    let what = match (plan.scheme, plan.at_rest, plan.records) {
        (Scheme::TwoSides, ..) => "two sides",
        (Scheme::Any, true, Records::NoBitmap) => "without a bitmap",
        (Scheme::Any, true, _) => "at rest",
        (Scheme::Any, false, _) => "at once",
    };
    format!(
        "{} {what}, {depth} acts: {states} states, {acts} acts, {refused} refused, {splits} split",
        plan.level
    )
}
