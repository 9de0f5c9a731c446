//! The operator with bad luck: members break, and devices are added, replaced and taken back.

use std::rc::Rc;

use engine::device::DeviceErrorKind;
use engine::members::load::UpdatePolicy;
use engine::members::{Failing, MemberState};
use layout::geometry::Level;
use layout::md_superblock::{SUPERBLOCK_BYTES_MAX, Superblock};
use layout::units::{Slot, Stripe};

use crate::array::Array;
use crate::disk::{Disk, SimDevice};
use crate::drawer;
use crate::lost::may_lose;
use crate::network;
use crate::start::{bad_blocks, record};
use crate::trace::Note;

/// Waiting spares at most.
const SPARES_MAX: usize = 2;
const INTERVENTIONS_MAX: u64 = 500;

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

async fn intervene(array: &Rc<Array>) {
    let plan = &array.machine.scenario.faults;
    let roll = array.world.random().below(12);
    match roll {
        0 | 1 if plan.deaths => break_member(array),
        2 if plan.deaths => fail_by_hand(array).await,
        3 if array.world.random().one_in(2) => replace_working(array).await,
        3..6 => replace_any(array).await,
        6 if plan.full => fill_up(array),
        7 => slow_down(array),
        8 => array.writer.want_close(),
        9 | 10 => start_resync(array),
        11 if plan.metadata_lost => lose_superblocks(array),
        _ => {}
    }
}

/// A member breaks, if the array survives that or the plan goes beyond the level.
fn break_member(array: &Rc<Array>) {
    let machine = &array.machine;
    let slot = array.world.random().slot(machine.geometry());
    let coming = machine.coming.borrow()[slot.index()].clone().filter(|_| array.world.random().one_in(2));
    let Some(disk) = coming.or_else(|| machine.disks.borrow()[slot.index()].clone()) else { return };
    if !expendable(array, slot) {
        if !machine.scenario.faults.beyond || disk.faults.borrow().hard() {
            return;
        }
        machine.excuses.beyond.set(true);
        array.world.counts.borrow_mut().beyond_the_level += 1;
    }
    let what = array.world.random().below(7);
    inflict(array, &disk, what);
    let unknown = is_in_doubt(array);
    may_lose(machine, &disk, |stripe| unknown || array.shared.consistency.is_in_doubt(stripe));
    array.world.note(Note::Words(format!("  fault {what} at member {slot} (device {})", disk.number)));
}

/// Whether a resync has yet to reach stripes: what one of their members holds may be lost with it.
pub(crate) fn is_in_doubt(array: &Array) -> bool {
    array.shared.consistency.suspects() > 0 || array.writer.resync_from_bytes().is_some()
}

fn inflict(array: &Array, disk: &Disk, what: u64) {
    let counts = &mut *array.world.counts.borrow_mut();
    let random = array.world.random();
    let faults = &mut *disk.faults.borrow_mut();
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
        5 => {
            faults.no_superblocks = true;
            counts.superblocks_refused += 1;
        }
        _ => {
            let unit = u64::from(disk.places.block);
            let blocks = array.machine.geometry().member_bytes() / unit;
            let first = disk.places.data.get() / unit;
            let bad = (0..random.between(1, 40)).map(|_| first + random.below(blocks));
            faults.bad.extend(bad.collect::<Vec<_>>());
            counts.bad_places += 1;
        }
    }
}

/// Whether the array survives without this member, given all that is broken already.
pub(crate) fn expendable(array: &Array, slot: Slot) -> bool {
    let (disks, coming) = (array.machine.disks.borrow(), array.machine.coming.borrow());
    let is_cut_off = |disk: &Disk| disk.link.borrow().as_ref().is_some_and(|link| link.is_failing());
    let hard = |disk: &Rc<Disk>| disk.faults.borrow().hard() || is_cut_off(disk);
    let broken = |other: Slot| {
        let (disk, coming) = (&disks[other.index()], &coming[other.index()]);
        let in_sync = array.shared.members.state(other) == MemberState::InSync;
        // What is to replace a member may have become that by the time it is used.
        let to_be_broken = coming.as_ref().is_some_and(hard);
        other == slot || !in_sync || to_be_broken || disk.as_ref().is_none_or(hard)
    };
    array.machine.geometry().survives(broken)
}

/// A member is failed: by the operator through the manager, or at once as after an error of its device.
async fn fail_by_hand(array: &Rc<Array>) {
    let slot = array.world.random().slot(array.machine.geometry());
    if !expendable(array, slot) {
        return;
    }
    let failing = if array.world.random().one_in(2) {
        array.shared.members.fail(slot, "failed by hand")
    } else {
        array.machine.is_failing_one.set(true);
        let failing = array.manager.membership().fail(slot, "an operator said so").await;
        array.machine.is_failing_one.set(false);
        failing
    };
    if failing == Failing::Failed {
        array.world.counts.borrow_mut().failed_by_hand += 1;
    }
}

fn fill_up(array: &Rc<Array>) {
    let disks = array.machine.disks.borrow();
    let full = array.world.random().one_in(2);
    for disk in disks.iter().flatten() {
        let hit = array.world.random().one_in(2);
        disk.faults.borrow_mut().full_one_in = if full && hit { 2 } else { 0 };
    }
    if full {
        array.machine.excuses.full.set(true);
        array.world.counts.borrow_mut().full_members += 1;
    }
}

fn slow_down(array: &Rc<Array>) {
    let slot = array.world.random().slot(array.machine.geometry());
    if let Some(disk) = &array.machine.disks.borrow()[slot.index()] {
        disk.faults.borrow_mut().slow = array.world.random().pick(&[1, 1, 20]);
        array.world.counts.borrow_mut().slow_members += 1;
    }
    // The operator tries other settings against it.
    array.shared.loads.set_policy(array.world.random().pick(&UpdatePolicy::ALL));
    array.shared.loads.set_avoid_slow(array.world.random().one_in(2));
}

/// No member takes superblocks any more, so that later writes cannot be acknowledged.
fn lose_superblocks(array: &Array) {
    array.machine.excuses.beyond.set(true);
    if array.world.random().one_in(2) {
        array.world.counts.borrow_mut().metadata_lost += 1;
        for disk in array.machine.disks.borrow().iter().flatten() {
            disk.faults.borrow_mut().no_superblocks = true;
        }
    }
}

/// A free slot gets a device: a new one, or the old one with its contents. With no free slot a spare is added now and then.
async fn replace_any(array: &Rc<Array>) {
    if array.machine.geometry().losses_survived() == 0 {
        return;
    }
    let members = &array.shared.members;
    let out = |slot: &Slot| matches!(members.state(*slot), MemberState::Failed | MemberState::Missing);
    let slots: Vec<Slot> = array.machine.geometry().slots().filter(out).collect();
    let waiting = array.writer.superblocks().spares().borrow().len();
    if waiting >= SPARES_MAX || (slots.is_empty() && !array.world.random().one_in(4)) {
        return;
    }
    if slots.is_empty() {
        add_spare(array, &array.machine.new_disk(true)).await;
        return;
    }
    let slot = array.world.random().pick(&slots);
    replace(array, slot).await;
}

/// Takes a failed member out and adds a spare, which the manager puts in its place.
pub(crate) async fn replace(array: &Rc<Array>, slot: Slot) {
    let old = array.machine.disks.borrow()[slot.index()].clone();
    if !array.manager.membership().remove(slot).await {
        return; // a spare has taken the slot meanwhile
    }
    let comes_back = |_: &Rc<Disk>| array.world.random().one_in(3);
    let re_adds = array.machine.scenario.faults.re_adds;
    let disk = match old.filter(|old| (re_adds && array.world.random().one_in(2)) || comes_back(old)) {
        Some(old) => {
            array.world.counts.borrow_mut().stale_returns += 1;
            old.mend();
            if re_adds && re_add(array, &old).await {
                return;
            }
            old
        }
        None => array.machine.new_disk(true),
    };
    add_spare(array, &disk).await;
}

/// Waits as long as a target does before a host that attaches again may use it, and connects. False: another host is taking the
/// members, and has this one reserved, or will have.
async fn attach_again(array: &Array, disk: &Rc<Disk>) -> bool {
    let is_own = || array.machine.hosts.is_current(array.host);
    if !is_own() {
        return false;
    }
    disk.end_ops().await;
    network::end_commands(disk, &array.world).await;
    if is_own() {
        array.machine.connect(disk);
    }
    is_own()
}

/// Takes a member back with what it held, as `twill re-add` does. False if the array does not want it so.
pub(crate) async fn re_add(array: &Rc<Array>, disk: &Rc<Disk>) -> bool {
    let mut bytes = vec![0; SUPERBLOCK_BYTES_MAX];
    disk.peek_device(disk.places.superblock, &mut bytes);
    let parsed = Superblock::parse(&bytes, array.machine.scenario.metadata, disk.places.size);
    let Ok(superblock) = parsed else { return false };
    if !attach_again(array, disk).await {
        return false;
    }
    let device = Rc::new(SimDevice::new(disk));
    let bad = bad_blocks(disk, &superblock);
    let record = record(disk, &superblock);
    let result = array.manager.membership().re_add(device, superblock, record, bad).await;
    if result.is_ok() {
        array.world.counts.borrow_mut().re_added += 1;
    }
    let said =
        result.as_ref().map_or_else(ToString::to_string, |slot| format!("taken back into slot {slot}"));
    array.world.note(Note::Words(format!("  device {}: {said}", disk.number)));
    result.is_ok()
}

/// A member that works is replaced by a new device.
async fn replace_working(array: &Rc<Array>) {
    let slot = array.world.random().slot(array.machine.geometry());
    begin_replacement(array, slot).await;
}

/// Begins to replace the member in a slot, as `twill replace` does.
pub(crate) async fn begin_replacement(array: &Rc<Array>, slot: Slot) {
    if array.manager.replacements().may_replace(slot).is_err() {
        return;
    }
    let Some(number) = add_spare(array, &array.machine.new_disk(true)).await else { return };
    match array.manager.replacements().replace(slot, number).await {
        Ok(()) => array.world.counts.borrow_mut().replaced_working += 1,
        Err(refused) => array.world.note(Note::Words(format!("  member {slot} is not replaced: {refused}"))),
    }
}

/// Adds a device as a spare, as `twill add` does. Its device number.
pub(crate) async fn add_spare(array: &Rc<Array>, disk: &Rc<Disk>) -> Option<u32> {
    add_spare_with(array, disk, |number| number).await
}

/// The same with another device number than the array would have it: a bug that is planted.
pub(crate) async fn add_spare_with(
    array: &Rc<Array>,
    disk: &Rc<Disk>,
    number_for: impl FnOnce(u32) -> u32,
) -> Option<u32> {
    array.world.counts.borrow_mut().replacements += 1;
    if !attach_again(array, disk).await {
        return None;
    }
    let device = Rc::new(SimDevice::new(disk));
    let added = array.manager.membership().add_spare(device, |template, number| {
        let number = number_for(number);
        array
            .world
            .note(Note::Words(format!("  device {} becomes a spare with number {number}", disk.number)));
        Ok(drawer::join(template, number, disk))
    });
    match added.await {
        Ok(number) => Some(number),
        Err(error) => {
            array.world.note(Note::Words(format!("  no spare: {error}")));
            None
        }
    }
}

/// Resyncs a few stripes while clients write to them, which no client may notice.
fn start_resync(array: &Rc<Array>) {
    if array.machine.geometry().level() == Level::Raid0 || array.resyncs.get() > 2 {
        return;
    }
    let (own, shard) = (Rc::clone(array), array.any_shard());
    array.resyncs.set(array.resyncs.get() + 1);
    array.spawn(shard, "resync of some stripes", async move {
        let hot = own.machine.scenario.load.hot.clone();
        for place in hot {
            resync_place(&own, shard, place).await;
        }
        own.resyncs.set(own.resyncs.get() - 1);
    });
}

async fn resync_place(array: &Rc<Array>, shard: usize, place: u64) {
    let set = &array.shards[shard].set;
    array.world.counts.borrow_mut().stripes_resynced += 1;
    let result = match array.machine.geometry().level().is_striped() {
        true => set.resync_stripe(Stripe::new(place)).await,
        false => set.copy_region(place % set.regions(), None).await,
    };
    if let Err(error) = result {
        array.world.note(Note::Words(format!("  resync of {place}: {error}")));
    }
}
