//! Everybody who is not a client: the keeper of the superblocks, the operator with bad luck and spare members, and
//! the repairs.

use std::rc::Rc;

use engine::device::DeviceErrorKind;
use engine::members::{Failing, MemberState};
use engine::stripe::load::UpdatePolicy;
use layout::geometry::Level;

use crate::array::{Array, attach};
use crate::trace::Note;

const INTERVENTIONS_MAX: u64 = 500;

/// Starts the keeper of the superblocks.
pub(crate) fn start_keeper(array: &Rc<Array>) {
    let (own, shard) = (Rc::clone(array), array.any_shard());
    array.shards[shard].executor.spawn(async move { keep(&own).await });
}

/// Starts the operator if the plan has one.
pub(crate) fn start(array: &Rc<Array>) {
    if array.machine.scenario.faults.pause > 0 {
        let shard = array.any_shard();
        let own = Rc::clone(array);
        array.spawn(shard, "operator", async move {
            // With an end of its own: clients that are stuck must not be hidden by a world that goes on.
            for _ in 0..INTERVENTIONS_MAX {
                if own.clients.get() == 0 {
                    break;
                }
                own.world.sleep_up_to(own.machine.scenario.faults.pause).await;
                intervene(&own).await;
            }
        });
    }
}

/// Writes superblocks whenever they have to say something new. Stands for `engine::array`'s keeper.
async fn keep(array: &Rc<Array>) {
    let members = &array.shared.members;
    loop {
        let version = members.metadata_wanted().await;
        let states = members.states();
        let disks = array.machine.disks.borrow().clone();
        let guard = &array.machine.guard;
        let dirty = array.shared.intent.wants_dirty() || array.closing.get() || guard.dirty.get();
        array.world.sleep_up_to(60).await;
        if array.machine.excuses.beyond.get() && metadata_lost(array) {
            return;
        }
        let recorded = &mut *array.machine.recorded.borrow_mut();
        (recorded.states, recorded.disks) = (states, disks);
        guard.dirty.set(dirty);
        array.world.note(Note::Words(format!("  superblocks: version {version}, dirty {dirty}")));
        if dirty {
            array.shared.intent.dirty_written();
        }
        members.metadata_written(version);
    }
}

fn metadata_lost(array: &Array) -> bool {
    let lost = array.machine.scenario.faults.metadata_lost && array.world.random().one_in(2);
    if lost {
        array.world.counts.borrow_mut().metadata_lost += 1;
        array.shared.members.metadata_lost();
        array.shared.intent.lost();
    }
    lost
}

async fn intervene(array: &Rc<Array>) {
    let plan = &array.machine.scenario.faults;
    let roll = array.world.random().below(12);
    match roll {
        0 | 1 if plan.deaths => break_member(array),
        2 if plan.deaths => fail_by_hand(array),
        3..6 => replace_any(array).await,
        6 if plan.full => fill_up(array),
        7 => slow_down(array),
        8 => close_gate(array).await,
        9 | 10 => start_resync(array),
        11 if plan.metadata_lost => array.machine.excuses.beyond.set(true),
        _ => {}
    }
}

/// A member breaks, if the array survives that or the plan goes beyond the level.
fn break_member(array: &Rc<Array>) {
    let machine = &array.machine;
    let slot = array.world.random().below(u64::from(machine.geometry().members())) as u32;
    let Some(disk) = machine.disks.borrow()[slot as usize].clone() else { return };
    if !expendable(array, slot) {
        if !machine.scenario.faults.beyond || disk.faults.borrow().hard() {
            return;
        }
        machine.excuses.beyond.set(true);
        array.world.counts.borrow_mut().beyond_the_level += 1;
    }
    let counts = &mut *array.world.counts.borrow_mut();
    let random = array.world.random();
    let faults = &mut *disk.faults.borrow_mut();
    let what = random.below(6);
    match what {
        0 | 1 => {
            faults.dead = Some(DeviceErrorKind::Io);
            counts.members_dead += 1;
        }
        2 => {
            faults.dead = Some(DeviceErrorKind::Gone);
            counts.members_gone += 1;
        }
        3 => {
            (faults.dead, faults.slow) = (Some(DeviceErrorKind::Timeout), 50);
            counts.members_silent += 1;
        }
        4 => {
            faults.flush_fails = Some(random.pick(&[DeviceErrorKind::Io, DeviceErrorKind::NoSpace]));
            counts.failed_flushes += 1;
        }
        _ => {
            let unit = machine.unit();
            let blocks = machine.geometry().member_bytes() / unit;
            let first = disk.data_offset / unit;
            let bad = (0..random.between(1, 40)).map(|_| first + random.below(blocks));
            faults.bad.extend(bad.collect::<Vec<_>>());
            counts.bad_places += 1;
        }
    }
    array.world.note(Note::Words(format!("  fault {what} at member {slot} (device {})", disk.number)));
}

/// Whether the array survives without this member, given all that is broken already.
pub(crate) fn expendable(array: &Array, slot: u32) -> bool {
    let disks = array.machine.disks.borrow();
    let broken = |other: u32| {
        let disk = &disks[other as usize];
        let in_sync = array.shared.members.state(other) == MemberState::InSync;
        other == slot || !in_sync || disk.as_ref().is_none_or(|disk| disk.faults.borrow().hard())
    };
    array.machine.geometry().survives(broken)
}

fn fail_by_hand(array: &Rc<Array>) {
    let slot = array.world.random().below(u64::from(array.machine.geometry().members())) as u32;
    if expendable(array, slot) && array.shared.members.fail(slot, "failed by hand") == Failing::Failed {
        array.world.counts.borrow_mut().failed_by_hand += 1;
    }
}

fn fill_up(array: &Rc<Array>) {
    let disks = array.machine.disks.borrow();
    let full = array.world.random().one_in(2);
    for disk in disks.iter().flatten() {
        let hit = array.world.random().one_in(2);
        disk.faults.borrow_mut().full = full && hit;
    }
    if full {
        array.machine.excuses.full.set(true);
        array.world.counts.borrow_mut().full_members += 1;
    }
}

fn slow_down(array: &Rc<Array>) {
    let slot = array.world.random().below(u64::from(array.machine.geometry().members())) as usize;
    if let Some(disk) = &array.machine.disks.borrow()[slot] {
        disk.faults.borrow_mut().slow = array.world.random().pick(&[1, 1, 20]);
        array.world.counts.borrow_mut().slow_members += 1;
    }
    // Whoever looks after it tries what helps.
    array.shared.loads.set_policy(array.world.random().pick(&UpdatePolicy::ALL));
    array.shared.loads.set_avoid_slow(array.world.random().one_in(2));
}

/// After a quiet moment the superblocks say clean: no write on its way, everything durable, then the word.
pub(crate) async fn close_gate(array: &Rc<Array>) {
    let (shared, guard) = (&array.shared, &array.machine.guard);
    if shared.suspects() > 0 || array.repairs.get() > 0 || !shared.intent.try_close() {
        return;
    }
    array.closing.set(true);
    let shard = array.any_shard();
    let durable = flush(array, shard).await;
    array.world.sleep_up_to(60).await;
    if durable && shared.suspects() == 0 {
        guard.dirty.set(false);
        array.world.note(Note::Words("  superblocks: clean".to_string()));
        shared.intent.clean_written();
    } else {
        shared.intent.reopen();
    }
    array.closing.set(false);
}

async fn flush(array: &Array, shard: usize) -> bool {
    use engine::volume::Volume;
    array.shards[shard].volume.flush().await.is_ok()
}

/// A free slot gets a device: a new one, or the old one with what it held.
async fn replace_any(array: &Rc<Array>) {
    let members = &array.shared.members;
    let out = |slot: &u32| matches!(members.state(*slot), MemberState::Failed | MemberState::Missing);
    let free = |slot: &u32| !array.recovering.borrow().contains(slot);
    let slots: Vec<u32> = (0..array.machine.geometry().members()).filter(out).filter(free).collect();
    if slots.is_empty() || array.machine.geometry().level() == Level::Raid0 {
        return;
    }
    let slot = array.world.random().pick(&slots);
    replace(array, slot).await;
}

/// Replaces a failed member and starts its recovery.
pub(crate) async fn replace(array: &Rc<Array>, slot: u32) {
    let members = &array.shared.members;
    if !array.recovering.borrow_mut().insert(slot) {
        return;
    }
    assert!(members.remove(slot), "only failed members are replaced");
    for shard in &array.shards {
        shard.set.attach(slot, None);
        if array.world.random().one_in(3) {
            array.world.sleep_up_to(20).await;
        }
    }
    let old = array.machine.disks.borrow()[slot as usize].clone();
    let disk = match old.filter(|_| array.world.random().one_in(3)) {
        Some(old) => {
            array.world.counts.borrow_mut().stale_returns += 1;
            old.mend();
            old
        }
        None => array.machine.new_disk(true),
    };
    array.world.counts.borrow_mut().replacements += 1;
    array.world.note(Note::Words(format!("  device {} goes to slot {slot}", disk.number)));
    for shard in &array.shards {
        if array.world.random().one_in(3) {
            array.world.sleep_up_to(20).await;
        }
        shard.set.attach(slot, Some(attach(&disk)));
    }
    array.machine.disks.borrow_mut()[slot as usize] = Some(disk);
    assert!(members.begin_recovery(slot, 0), "an empty slot");
    let (own, shard) = (Rc::clone(array), array.any_shard());
    begin_repair(array);
    array.spawn(shard, format!("recovery of slot {slot}"), async move {
        recover(&own, shard, slot).await;
        own.recovering.borrow_mut().remove(&slot);
        end_repair(&own);
    });
}

fn begin_repair(array: &Array) {
    array.repairs.set(array.repairs.get() + 1);
    array.machine.guard.exempt.set(array.machine.guard.exempt.get() + 1);
}

fn end_repair(array: &Array) {
    array.repairs.set(array.repairs.get() - 1);
    array.machine.guard.exempt.set(array.machine.guard.exempt.get() - 1);
}

async fn recover(array: &Rc<Array>, shard: usize, slot: u32) {
    let (set, members) = (&array.shards[shard].set, &array.shared.members);
    let striped = array.machine.geometry().level().is_striped();
    let parts = if striped { array.machine.geometry().stripes() } else { set.regions() };
    let mut at = 0;
    while at < parts {
        let end = if striped { (at + array.world.random().between(1, 8)).min(parts) } else { at + 1 };
        let result = match striped {
            true => set.recover_stripes(at, end, slot).await,
            false => set.copy_region(at, Some(slot)).await,
        };
        match result {
            Ok(()) => at = end,
            Err(error) if recovery_goes_on(array, slot, &error.to_string()) => {
                array.world.sleep_up_to(300).await;
            }
            Err(_) => return,
        }
        array.world.sleep_up_to(20).await;
    }
    // What the member was sent is durable before any superblock calls it in sync.
    if flush(array, shard).await && members.finish_recovery(slot) {
        array.world.counts.borrow_mut().recoveries += 1;
    } else if members.state(slot) == MemberState::Recovering {
        members.fail(slot, "it cannot be rebuilt");
    }
}

/// A recovery that has stopped is tried again now and then; else the member is failed.
fn recovery_goes_on(array: &Array, slot: u32, error: &str) -> bool {
    array.world.note(Note::Words(format!("  recovery of slot {slot} stopped: {error}")));
    let (members, excuses) = (&array.shared.members, &array.machine.excuses);
    if members.state(slot) != MemberState::Recovering {
        return false;
    }
    if !excuses.beyond.get() && !excuses.full.get() {
        array.world.fail(format!("recovery of slot {slot} failed within the level: {error}"));
    }
    let again = !array.world.random().one_in(3);
    if !again {
        members.fail(slot, "it cannot be rebuilt");
    }
    again
}

/// Makes a few stripes agree while clients write to them; that changes nothing a client sees.
fn start_resync(array: &Rc<Array>) {
    if array.machine.geometry().level() == Level::Raid0 || array.repairs.get() > 2 {
        return;
    }
    let (own, shard) = (Rc::clone(array), array.any_shard());
    begin_repair(array);
    array.spawn(shard, "resync of some stripes", async move {
        let hot = own.machine.scenario.load.hot.clone();
        for place in hot {
            resync_place(&own, shard, place).await;
        }
        end_repair(&own);
    });
}

async fn resync_place(array: &Rc<Array>, shard: usize, place: u64) {
    let set = &array.shards[shard].set;
    array.world.counts.borrow_mut().resyncs += 1;
    let result = match array.machine.geometry().level().is_striped() {
        true => set.resync_stripe(place).await,
        false => set.copy_region(place % set.regions(), None).await,
    };
    if let Err(error) = result {
        array.world.note(Note::Words(format!("  resync of {place}: {error}")));
    }
}

/// After a crash: everything agrees before anyone relies on it.
pub(crate) fn resync_all(array: &Rc<Array>) {
    let (own, shard) = (Rc::clone(array), array.any_shard());
    begin_repair(array);
    array.spawn(shard, "resync after a crash", async move {
        let striped = own.machine.geometry().level().is_striped();
        let parts = if striped { own.machine.geometry().stripes() } else { own.shards[shard].set.regions() };
        for place in 0..parts {
            resync_place(&own, shard, place).await;
        }
        flush(&own, shard).await;
        end_repair(&own);
    });
}
