//! The search: sequences of acts, shortest first, each state once.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;

use engine::members::MemberState;
use layout::geometry::Level;
use layout::units::Slot;

use super::act::{Act, CELLS_WRITTEN, Crash, Devices, parse, words};
use super::back::{self, Back};
use super::check::{check_cells, check_rest};
use super::key;
use super::run::{Done, Pace, Run, Started, Wrong};
use super::site::{Planted, Records, Site};

/// New devices in a history.
const NEW_DEVICES_MAX: usize = 1;

/// Which sequences are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// All.
    Any,
    /// Side A runs and gets one act, then side B. Then any mixture of both starts or a member of side B fails, and a device comes
    /// back.
    TwoSides,
}

/// What is tried.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The level of the array.
    pub level: Level,
    /// What the array has to record things in.
    pub records: Records,
    /// Repairs end before the next act.
    pub at_rest: bool,
    /// Which sequences.
    pub scheme: Scheme,
    /// Acts of a sequence at most.
    pub depth: usize,
    /// The order of events in the world.
    pub seed: u64,
    /// A bug that is planted.
    pub planted: Planted,
}

impl Plan {
    fn pace(&self) -> Pace {
        if self.at_rest { Pace::AtRest } else { Pace::AtOnce }
    }
}

/// What was tried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tried {
    /// Acts that were performed, without those that lead to where they begin.
    pub acts: u64,
    /// Different states.
    pub states: u64,
    /// Starts and acts that were refused.
    pub refused: u64,
    /// All drives were back, and the array was split: one side went on.
    pub splits: u64,
}

/// Tries all sequences of a plan; `progress` hears of each length that is done, with what was tried up to there.
///
/// # Errors
/// The shortest history that goes wrong, and how.
pub fn search(plan: &Plan, mut progress: impl FnMut(usize, &Tried)) -> Result<Tried, String> {
    let site = prelude(plan)?;
    let mut search = Search { plan, seen: HashSet::new(), tried: Tried::default() };
    let acts = search.acts_off(&site);
    let mut now = vec![Node { site: Rc::new(site), since: Vec::new(), acts, path: Vec::new() }];
    for depth in 1..=plan.depth {
        let mut next = Vec::new();
        for node in now {
            search.expand(&node, depth, &mut next)?;
        }
        progress(depth, &search.tried);
        now = next;
    }
    Ok(search.tried)
}

/// Plays one history, as a failure prints it: what came of each act, and how it ends once all drives are back.
///
/// # Errors
/// What goes wrong, with the last of what happened.
pub fn replay(plan: &Plan, history: &str, mut say: impl FnMut(String)) -> Result<(), String> {
    let pace = plan.pace();
    let mut now = Done::Off(prelude(plan)?);
    for act in parse(history)? {
        now = match now {
            Done::Off(site) => start(site, act, pace)?,
            Done::Runs(run) => run.perform(act)?,
            Done::Not => return Err(format!("it was refused, and {act} does not follow")),
        };
        say(format!("{act}: {}", came_of(&now)));
    }
    let back = match now {
        Done::Off(site) => back::from_off(&site)?.0,
        Done::Runs(run) => {
            check_cells(&run, false)?;
            back::from_running(run)?
        }
        Done::Not => return Ok(()),
    };
    say(format!("all drives are back: {back:?}"));
    Ok(())
}

fn came_of(done: &Done) -> String {
    match done {
        Done::Off(_) => "off".to_string(),
        Done::Not => "refused".to_string(),
        Done::Runs(run) => {
            let doubts = run.array.shared.consistency.doubt_ranges(usize::MAX);
            format!("members {:?}, in doubt {doubts:?}", run.array.shared.members.states())
        }
    }
}

/// An array with data at rest in every cell.
fn prelude(plan: &Plan) -> Result<Site, Wrong> {
    let site = Site::new(plan.level, plan.records, plan.seed, plan.planted);
    let all = site.all();
    let Started::Runs(mut run) = Run::start(site, all, false, Pace::AtRest)? else {
        return Err("a new array does not start".into());
    };
    (0..4).try_for_each(|cell| run.write(cell, true))?;
    run.rest()?;
    run.stop()
}

/// A state: what is on the devices, and what was done since they were last at rest.
struct Node {
    site: Rc<Site>,
    since: Vec<Act>,
    /// What may be done.
    acts: Vec<Act>,
    path: Vec<Act>,
}

struct Search<'a> {
    plan: &'a Plan,
    seen: HashSet<u64>,
    tried: Tried,
}

impl Search<'_> {
    fn expand(&mut self, node: &Node, depth: usize, next: &mut Vec<Node>) -> Result<(), Wrong> {
        for act in &node.acts {
            if !self.is_wanted(*act, depth) {
                continue;
            }
            let mut path = node.path.clone();
            path.push(*act);
            let told = catch_unwind(AssertUnwindSafe(|| self.try_act(node, *act, depth)));
            let told = told.unwrap_or_else(|panic| {
                let text = panic.downcast_ref::<String>().cloned();
                Err(format!("panic: {}", text.unwrap_or_default()))
            });
            let reached = told.map_err(|wrong| format!("{}: {}: {wrong}", self.plan.level, words(&path)))?;
            let Some(Reached { node, back }) = reached else { continue };
            if back == Some(Back::InDoubt) {
                let (level, history) = (self.plan.level, words(&path));
                return Err(format!("{level}: {history}: in doubt though all drives are back"));
            }
            if let Some(node) = node.filter(|_| depth < self.plan.depth) {
                next.push(Node { path, ..node });
            }
        }
        Ok(())
    }

    /// Whether the scheme has such an act at this place.
    fn is_wanted(&self, act: Act, depth: usize) -> bool {
        match (self.plan.scheme, depth) {
            (Scheme::Any, _) => true,
            (Scheme::TwoSides, 1 | 3) => matches!(act, Act::Start(_)),
            (Scheme::TwoSides, 2 | 4) => matches!(act, Act::Write(_) | Act::Crash(_) | Act::Add),
            (Scheme::TwoSides, 5) => matches!(act, Act::Start(_) | Act::Force(_) | Act::Fail(_)),
            (Scheme::TwoSides, 6) => matches!(act, Act::ReAdd(_)),
            (Scheme::TwoSides, _) => false,
        }
    }

    /// Performs an act at a state. None: it was refused, or leads to a state that is known.
    fn try_act(&mut self, node: &Node, act: Act, depth: usize) -> Result<Option<Reached>, Wrong> {
        let pace = self.plan.pace();
        let twin = node.site.twin();
        let done = match node.since.split_first() {
            None => start(twin, act, pace)?,
            Some((first, rest)) => {
                let mut done = start(twin, *first, pace)?;
                for act in rest.iter().chain([&act]) {
                    let Done::Runs(run) = done else { return Err("it went otherwise before".into()) };
                    done = run.perform(*act)?;
                }
                done
            }
        };
        let site = Rc::clone(&node.site);
        match done {
            Done::Not => {
                self.tried.refused += 1;
                Ok(None)
            }
            Done::Off(site) => self.reach_off(site),
            Done::Runs(run) => {
                // A start stopped what ran before: from there on it is another boot.
                let is_start = matches!(act, Act::Start(_) | Act::Force(_));
                let (site, since) = match (is_start, node.since.is_empty()) {
                    (true, false) => (Rc::new(stopped(node, pace)?), vec![act]),
                    _ => (site, node.since.iter().copied().chain([act]).collect()),
                };
                self.reach_running(run, site, since, depth)
            }
        }
    }

    fn reach_off(&mut self, site: Site) -> Result<Option<Reached>, Wrong> {
        self.tried.acts += 1;
        if !self.seen.insert(key::of_site(&site)) {
            return Ok(None);
        }
        self.tried.states += 1;
        let (back, is_split) = back::from_off(&site)?;
        self.tried.splits += u64::from(is_split);
        let acts = self.acts_off(&site);
        let node = Node { site: Rc::new(site), since: Vec::new(), acts, path: Vec::new() };
        Ok(Some(Reached { node: Some(node), back: Some(back) }))
    }

    fn reach_running(
        &mut self,
        run: Run,
        site: Rc<Site>,
        since: Vec<Act>,
        depth: usize,
    ) -> Result<Option<Reached>, Wrong> {
        self.tried.acts += 1;
        // A state in the middle of repairs is like no other.
        if self.plan.at_rest && !self.seen.insert(key::of_run(&run) ^ 1) {
            return Ok(None);
        }
        self.tried.states += 1;
        let acts = if depth < self.plan.depth { self.acts_on(&run) } else { Vec::new() };
        check_cells(&run, false)?;
        if self.plan.at_rest {
            check_rest(&run)?;
        }
        let back = back::from_running(run)?;
        Ok(Some(Reached { node: Some(Node { site, since, acts, path: Vec::new() }), back: Some(back) }))
    }

    /// What may be done to an array that does not run: a start with any of its devices, by force where that is asked for.
    fn acts_off(&mut self, site: &Site) -> Vec<Act> {
        let mut acts = Vec::new();
        let likeness: Vec<u64> =
            site.machine.all_disks.borrow().iter().map(|disk| key::likeness(site, disk)).collect();
        for bits in 1..=site.all().0 {
            let with = Devices(bits);
            if !is_first_of_its_like(with, &likeness) {
                continue;
            }
            site.connect(with);
            let Some((_, assembly)) = site.assembly(false) else { continue };
            let is_refused = assembly.start.is_err();
            if !is_refused {
                acts.push(Act::Start(with));
            }
            self.tried.refused += u64::from(is_refused);
            if self.plan.level != Level::Raid0
                && (is_refused && may_be_forced(site) || !site.doubts(false).is_empty())
            {
                acts.push(Act::Force(with));
            }
        }
        acts
    }

    /// What may be done to a running array: another start, and whatever comes of clients, operators and the power.
    fn acts_on(&mut self, run: &Run) -> Vec<Act> {
        let site = &run.site;
        let plugged = site.machine.connected();
        let mut acts = self.acts_off(&site.twin());
        site.machine.all_disks.borrow().iter().for_each(|disk| {
            disk.plug(plugged.iter().any(|other| other.number == disk.number));
        });
        acts.extend(CELLS_WRITTEN.map(Act::Write));
        acts.extend([Act::Crash(Crash::Quiet), Act::Crash(Crash::OnlyData), Act::Crash(Crash::AllButData)]);
        if self.plan.level == Level::Raid0 {
            return acts;
        }
        let members = site.machine.geometry().members();
        let has_new = site.machine.all_disks.borrow().len() - members as usize >= NEW_DEVICES_MAX;
        let disks = site.machine.disks.borrow();
        let mut seen = Vec::new();
        for slot in site.machine.geometry().slots() {
            let Some(disk) = &disks[slot.index()] else { continue };
            let like = (key::likeness(site, disk), run.state(slot));
            if seen.contains(&like) {
                continue;
            }
            seen.push(like);
            acts.push(Act::Fail(slot));
            acts.extend((!has_new).then_some(Act::Replace(slot)));
        }
        let is_free = |slot: Slot| matches!(run.state(slot), MemberState::Missing | MemberState::Failed);
        if !has_new && site.machine.geometry().slots().any(is_free) {
            acts.push(Act::Add);
        }
        let outside = site.machine.all_disks.borrow();
        let outside = outside.iter().map(|disk| disk.number).filter(|device| !run.is_used(*device));
        acts.extend(outside.map(Act::ReAdd));
        acts
    }
}

struct Reached {
    node: Option<Node>,
    back: Option<Back>,
}

fn start(site: Site, act: Act, pace: Pace) -> Result<Done, Wrong> {
    let (with, force) = match act {
        Act::Start(with) => (with, false),
        Act::Force(with) => (with, true),
        _ => return Err("nothing runs".into()),
    };
    Ok(match Run::start(site, with, force, pace)? {
        Started::Runs(run) => Done::Runs(run),
        Started::Refused(_) => Done::Not,
    })
}

/// What is on the devices once the array of a state has been stopped.
fn stopped(node: &Node, pace: Pace) -> Result<Site, Wrong> {
    let Some((first, rest)) = node.since.split_first() else { return Ok(node.site.twin()) };
    let mut done = start(node.site.twin(), *first, pace)?;
    for act in rest {
        let Done::Runs(run) = done else { return Err("it went otherwise before".into()) };
        done = run.perform(*act)?;
    }
    match done {
        Done::Runs(run) => run.stop(),
        _ => Err("it went otherwise before".into()),
    }
}

/// Of sets of devices that differ only by devices that are alike the first one is tried.
fn is_first_of_its_like(with: Devices, likeness: &[u64]) -> bool {
    let number = |at: usize| u32::try_from(at).expect("a few devices");
    (0..likeness.len()).all(|at| {
        with.has(number(at))
            || (at + 1..likeness.len())
                .all(|other| likeness[other] != likeness[at] || !with.has(number(other)))
    })
}

fn may_be_forced(site: &Site) -> bool {
    site.assembly(true).is_some_and(|(_, assembly)| assembly.start.is_ok())
}
