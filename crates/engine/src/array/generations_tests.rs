//! Members that leave, run by themselves and come back: by hand the smallest histories that went wrong, and by enumeration all
//! short ones. [`super::histories`] plays them with the functions that the program decides by.

use std::collections::HashSet;

use layout::geometry::Level;

use super::assemble::Refusal;
use super::histories::{CELLS, Machine, Planted, Round, Running, Wrong, key};

fn start(machine: &mut Machine, with: &[usize]) -> Running {
    machine.start(with, false).expect("right").expect("it starts")
}

/// Runs some members, which get one write, and stops them.
fn run_alone(machine: &mut Machine, with: &[usize], cell: usize) {
    let mut running = start(machine, with);
    machine.write(&mut running, cell).expect("right");
    machine.stop(&mut running);
}

/// A side and the other side of each level.
const SIDES: [(Level, u16, &[usize], &[usize]); 3] = [
    (Level::Raid1, 3, &[0, 1], &[2]),
    (Level::Raid6, 4, &[0, 1], &[2, 3]),
    (Level::Raid10, 4, &[0, 2], &[1, 3]),
];

/// A new device gets the slot and the number of a member of the other side, one of whose members is re-added.
#[test]
fn a_member_of_the_other_side_gets_no_delta_beside_a_new_device() {
    for (level, members, here, there) in SIDES {
        for has_room in [true, false] {
            let mut machine = Machine::new(level, members, has_room);
            run_alone(&mut machine, here, 0);
            let mut running = start(&mut machine, there);
            machine.write(&mut running, 1).expect("right");
            assert_eq!(machine.add(&mut running), Ok(true), "{level}");
            let new = machine.devices.last().expect("a device").superblock.dev_number();
            assert!(new >= u32::from(members), "{level}: number {new} was another device's");
            for device in here {
                assert_eq!(machine.re_add(&mut running, *device), Ok(false), "{level}: u{device}");
            }
            // The same after a restart.
            machine.stop(&mut running);
            let mut with = there.to_vec();
            with.push(machine.devices.len() - 1);
            let mut running = start(&mut machine, &with);
            for device in here {
                assert_eq!(machine.re_add(&mut running, *device), Ok(false), "{level}: u{device}");
            }
        }
    }
}

/// md ran the array, so the history of generations begins anew. The event count of a member shows that it was last written before
/// that: it is stale, and no side of a split.
#[test]
fn a_member_from_before_the_history_is_stale_and_no_split() {
    let mut machine = Machine::new(Level::Raid1, 2, true);
    let mut by_md = machine.start_md(&[0]).expect("right").expect("it starts");
    machine.write(&mut by_md, 1).expect("right");
    machine.stop(&mut by_md);
    let mut running = start(&mut machine, &[0]);
    machine.write(&mut running, 0).expect("right");
    assert_eq!(machine.add(&mut running), Ok(true));
    machine.stop(&mut running);
    let new = machine.devices.len() - 1;
    let started = machine.start(&[new, 1], false).expect("right");
    assert_eq!(started.err(), None, "a stale member is no reason to refuse");
}

/// Number and slot are the other device's, and event counts within one: its name tells.
#[test]
fn sides_are_a_split_whatever_numbers_and_event_counts_say() {
    for (level, members, here, there) in SIDES {
        for has_room in [true, false] {
            for rounds in [0, 1, 5] {
                let mut machine = Machine::new(level, members, has_room);
                machine.planted.numbers_are_reused = true;
                run_alone(&mut machine, here, 0);
                let mut running = start(&mut machine, there);
                machine.write(&mut running, 1).expect("right");
                assert_eq!(machine.add(&mut running), Ok(true));
                machine.stop(&mut running);
                for _ in 0..rounds {
                    run_alone(&mut machine, here, 0);
                }
                let all: Vec<usize> = (0..machine.devices.len()).collect();
                let refused = machine.start(&all, false).expect("right");
                assert!(
                    matches!(refused, Err(Refusal::Split { .. })),
                    "{level} {has_room} {rounds}: {refused:?}"
                );
            }
        }
    }
}

#[test]
fn a_member_that_was_only_away_comes_back_by_delta() {
    for (level, members, ..) in SIDES {
        for has_room in [true, false] {
            let mut machine = Machine::new(level, members, has_room);
            let rest: Vec<usize> = (1..usize::from(members)).collect();
            run_alone(&mut machine, &rest, 0);
            run_alone(&mut machine, &rest, 1); // after a restart, too
            let mut running = start(&mut machine, &rest);
            assert_eq!(machine.re_add(&mut running, 0), Ok(true), "{level}");
            machine.write(&mut running, 0).expect("right");
            machine.stop(&mut running);
            let all: Vec<usize> = (0..usize::from(members)).collect();
            let running = start(&mut machine, &all);
            assert_eq!(running.used_slots(), all);
        }
    }
}

/// A replaced member stays known by its name, and its bits are not cleared before the array is whole.
#[test]
fn members_come_back_by_delta_after_another_one_was_replaced() {
    let mut machine = Machine::new(Level::Raid6, 4, true);
    run_alone(&mut machine, &[1, 2, 3], 0);
    let mut running = start(&mut machine, &[1, 2, 3]);
    assert_eq!(machine.replace(&mut running, 1), Ok(true));
    machine.write(&mut running, 1).expect("right");
    machine.stop(&mut running);
    let mut running = start(&mut machine, &[2, 3, 4]);
    assert_eq!(machine.re_add(&mut running, 0), Ok(true));
    assert_eq!(machine.re_add(&mut running, 1), Ok(false), "its slot is taken");
}

/// md wrote superblocks meanwhile: what is beside them counts as absent.
#[test]
fn who_ran_under_md_is_judged_by_what_md_wrote() {
    let mut machine = Machine::new(Level::Raid1, 3, true);
    let mut md = machine.start_md(&[0]).expect("right").expect("it starts");
    machine.write(&mut md, 0).expect("right");
    machine.stop(&mut md);
    run_alone(&mut machine, &[1, 2], 1);
    let mut running = start(&mut machine, &[1, 2]);
    assert_eq!(machine.re_add(&mut running, 0), Ok(false), "it ran without them");
    // Those that were only away while md ran the others are named by their own record.
    let mut machine = Machine::new(Level::Raid1, 3, true);
    let mut md = machine.start_md(&[0, 1]).expect("right").expect("it starts");
    machine.write(&mut md, 0).expect("right");
    machine.stop(&mut md);
    let mut running = start(&mut machine, &[0, 1]);
    machine.write(&mut running, 1).expect("right");
    assert_eq!(machine.re_add(&mut running, 2), Ok(true));
}

/// A crash in the round that begins a generation leaves it on one member: nothing was acknowledged there, so it is no split.
#[test]
fn a_generation_that_was_never_complete_is_no_split() {
    let mut machine = Machine::new(Level::Raid6, 4, true);
    let mut running = start(&mut machine, &[0, 1, 2, 3]);
    assert!(machine.fail(&mut running, 3, Round::Only(0)));
    let mut all = start(&mut machine, &[0, 1, 2, 3]);
    assert_eq!(all.used_slots(), [0, 1, 2], "the newest does not name u3");
    machine.stop(&mut all);
    let mut machine = Machine::new(Level::Raid6, 4, true);
    let mut running = start(&mut machine, &[0, 1, 2, 3]);
    assert!(machine.fail(&mut running, 3, Round::Only(0)));
    run_alone(&mut machine, &[1, 2, 3], 0);
    let running = start(&mut machine, &[0, 1, 2, 3]);
    assert_eq!(running.used_slots(), [1, 2, 3], "those that u0 named went on with u3");
}

/// What is tried of a level.
struct Scope {
    level: Level,
    members: u16,
    has_room: bool,
    boots: usize,
    /// Most devices there are, the new ones included.
    devices: usize,
    /// Crashes in the middle of a round of superblocks.
    crashes: bool,
    /// md runs the array, too.
    md: bool,
}

/// All histories of a scope, each state once.
struct Search {
    scope: Scope,
    planted: Planted,
    seen: HashSet<Vec<u8>>,
    boots: u64,
    refused: u64,
    splits: u64,
}

/// What is done in a boot, after the array has started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Nothing,
    Write(usize),
    WriteAndCrash(usize),
    CrashAtFirst(usize),
    Fail(usize),
    FailAndCrash(usize, usize),
    Add,
    ReAdd(usize),
    Replace(usize),
}

impl Search {
    fn new(scope: Scope, planted: Planted) -> Self {
        Search { scope, planted, seen: HashSet::new(), boots: 0, refused: 0, splits: 0 }
    }

    /// Tries them all: the history that went wrong, if one did.
    fn run(&mut self) -> Result<(), Wrong> {
        let Scope { level, members, has_room, boots, .. } = self.scope;
        let mut machine = Machine::new(level, members, has_room);
        machine.planted = self.planted;
        let mut now = vec![machine];
        for boot in 0..boots {
            let mut next = Vec::new();
            for machine in now {
                self.boot(&machine, &mut next).map_err(|wrong| format!("boot {boot}: {wrong}"))?;
            }
            now = next;
        }
        Ok(())
    }

    /// One boot with every subset of the devices, and every act.
    fn boot(&mut self, machine: &Machine, next: &mut Vec<Machine>) -> Result<(), Wrong> {
        for subset in 1u32..1 << machine.devices.len() {
            let with: Vec<usize> =
                (0..machine.devices.len()).filter(|device| subset & 1 << device != 0).collect();
            let context = |what: &dyn std::fmt::Debug, wrong: &str, machine: &Machine| {
                format!("{wrong}\nwith {with:?}, {what:?}, from\n{machine:?}")
            };
            self.boots += 1;
            let mut started = machine.clone();
            let result = started.start(&with, false).map_err(|wrong| context(&"start", &wrong, machine))?;
            let (running, forced) = match result {
                Ok(running) => (Some(running), false),
                Err(refusal) => {
                    self.refused += 1;
                    if let Refusal::Split { .. } = refusal {
                        self.splits += 1;
                        let is_told = self.scope.has_room && !self.scope.crashes && !self.scope.md;
                        if is_told && !machine.is_forced && !machine.is_split(&with) {
                            return Err(context(&refusal, "nothing is split", machine));
                        }
                    }
                    let forced = started.start(&with, true);
                    (forced.map_err(|wrong| context(&"force", &wrong, machine))?.ok(), true)
                }
            };
            if let Some(running) = running {
                let acts = match forced {
                    true => vec![Act::Write(0)],
                    false => self.acts(&started, &running),
                };
                for act in acts {
                    let (mut machine, mut running) = (started.clone(), running.clone());
                    let done = perform(&mut machine, &mut running, act);
                    if done.map_err(|wrong| context(&act, &wrong, &started))? {
                        self.keep(machine, next);
                    }
                }
            }
            if self.scope.md {
                self.boot_md(machine, &with, next).map_err(|wrong| context(&"md", &wrong, machine))?;
            }
        }
        Ok(())
    }

    /// What md itself mixes is not ours: it is only what it leaves that counts.
    fn boot_md(&mut self, machine: &Machine, with: &[usize], next: &mut Vec<Machine>) -> Result<(), Wrong> {
        self.boots += 1;
        let mut started = machine.clone();
        let Ok(Some(running)) = started.start_md(with) else { return Ok(()) };
        for act in [Act::Write(0), Act::Add] {
            let (mut machine, mut running) = (started.clone(), running.clone());
            if act == Act::Add && machine.devices.len() >= self.scope.devices {
                continue;
            }
            if perform(&mut machine, &mut running, act)? {
                self.keep(machine, next);
            }
        }
        Ok(())
    }

    fn acts(&self, machine: &Machine, running: &Running) -> Vec<Act> {
        let used = running.used_slots();
        let mut acts = vec![Act::Nothing];
        acts.extend((0..CELLS).map(Act::Write));
        acts.extend(used.iter().map(|slot| Act::Fail(*slot)));
        acts.extend((0..machine.devices.len()).map(Act::ReAdd));
        if self.scope.crashes {
            acts.push(Act::WriteAndCrash(0));
            acts.extend(used.iter().map(|slot| Act::CrashAtFirst(*slot)));
            let pairs = used.iter().flat_map(|slot| used.iter().map(move |only| (*slot, *only)));
            acts.extend(
                pairs.filter(|(slot, only)| slot != only).map(|(slot, only)| Act::FailAndCrash(slot, only)),
            );
        }
        if machine.devices.len() < self.scope.devices {
            acts.push(Act::Add);
            acts.extend(used.iter().map(|slot| Act::Replace(*slot)));
        }
        acts
    }

    fn keep(&mut self, machine: Machine, next: &mut Vec<Machine>) {
        if self.seen.insert(key(&machine)) {
            next.push(machine);
        }
    }
}

/// Does it, with a write before and after where that shows what is wrong. False if it cannot be done.
fn perform(machine: &mut Machine, running: &mut Running, act: Act) -> Result<bool, Wrong> {
    match act {
        Act::Nothing => {}
        Act::Write(cell) => machine.write(running, cell)?,
        Act::WriteAndCrash(cell) => {
            machine.write(running, cell)?;
            return Ok(true);
        }
        Act::CrashAtFirst(only) => {
            machine.crash_at_first(running, only);
            return Ok(true);
        }
        Act::Fail(slot) => {
            if !machine.fail(running, slot, Round::All) {
                return Ok(false);
            }
            machine.write(running, 1)?;
        }
        Act::FailAndCrash(slot, only) => return Ok(machine.fail(running, slot, Round::Only(only))),
        Act::Add if !machine.add(running)? => return Ok(false),
        Act::ReAdd(device) if !machine.re_add(running, device)? => return Ok(false),
        Act::Replace(slot) if !machine.replace(running, slot)? => return Ok(false),
        Act::Add | Act::ReAdd(_) | Act::Replace(_) => machine.write(running, 1)?,
    }
    machine.stop(running);
    Ok(true)
}

fn search(scope: Scope, planted: Planted) -> (Search, Result<(), Wrong>) {
    let mut search = Search::new(scope, planted);
    let result = search.run();
    let Search { scope, seen, boots, refused, splits, .. } = &search;
    println!(
        "{} of {}, room {}, md {}, crashes {}, {} boots: {} states, {boots} starts, {refused} refused, {splits} of them split",
        scope.level,
        scope.members,
        scope.has_room,
        scope.md,
        scope.crashes,
        scope.boots,
        seen.len(),
    );
    (search, result)
}

fn scope(level: Level, members: u16, boots: usize) -> Scope {
    let devices = usize::from(members) + 1;
    Scope { level, members, has_room: true, boots, devices, crashes: false, md: false }
}

/// Plays all histories of some scopes.
fn try_all(scopes: impl IntoIterator<Item = Scope>) {
    for scope in scopes {
        let (search, result) = search(scope, Planted::default());
        if let Err(wrong) = result {
            panic!("{wrong}");
        }
        assert!(search.refused > 0 && search.seen.len() > 100, "it tried next to nothing");
    }
}

/// Members in sync always hold the same, and no side that wrote is left out without a word.
#[test]
fn no_short_history_of_a_mirror_mixes_sides() {
    try_all([
        scope(Level::Raid1, 2, 5),
        scope(Level::Raid1, 3, 3),
        Scope { devices: 3, ..scope(Level::Raid1, 3, 5) },
        Scope { md: true, ..scope(Level::Raid1, 3, 3) },
        Scope { has_room: false, ..scope(Level::Raid1, 3, 4) },
    ]);
}

#[test]
fn no_short_history_of_four_members_mixes_sides() {
    for level in [Level::Raid6, Level::Raid10] {
        try_all([Scope { devices: 4, ..scope(level, 4, 5) }, scope(level, 4, 3)]);
    }
}

#[test]
fn no_short_history_with_crashes_between_superblocks_mixes_sides() {
    let crashes = |scope| Scope { crashes: true, ..scope };
    try_all([
        crashes(scope(Level::Raid1, 2, 4)),
        crashes(scope(Level::Raid1, 3, 3)),
        crashes(Scope { devices: 4, ..scope(Level::Raid6, 4, 3) }),
    ]);
}

/// Would the search find it? A number that is given away again, where only numbers tell.
#[test]
fn a_reuse_of_numbers_is_found() {
    let planted = Planted { numbers_are_reused: true, ..Planted::default() };
    let (_, result) = search(Scope { has_room: false, ..scope(Level::Raid1, 3, 4) }, planted);
    assert!(result.is_err_and(|wrong| wrong.contains("in sync and holds")), "not found");
}

/// A delta for a member whose generation is not in the array's history.
#[test]
fn a_delta_for_a_strange_generation_is_found() {
    let planted = Planted { any_generation_comes_back: true, ..Planted::default() };
    let (_, result) = search(scope(Level::Raid1, 2, 4), planted);
    assert!(result.is_err_and(|wrong| wrong.contains("in sync and holds")), "not found");
}
