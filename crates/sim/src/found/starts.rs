//! Starts that are unlike the run before: without the log that was in force, and without a write.

use std::cell::Cell;
use std::rc::Rc;

use layout::geometry::Level;
use layout::redo_log::StripeRange;
use layout::units::{Slot, Stripe};

use super::{BLOCKS, assemble, assemble_as, disk, fail, finish, logged, quiet, read, start, write};
use crate::array::Array;
use crate::disk::cache::Survivors;
use crate::machine::Machine;
use crate::reading;
use crate::scenario::Support;
use crate::start::How;
use crate::workload::{self, Kind};
use crate::world::Ended;

/// A degraded array whose log is in force and names a stripe in doubt: what was redone does not make it clean.
fn degraded_with_log() -> Rc<Array> {
    let array = start(logged(quiet(Level::Raid5, 4, Support::None, 8, 4096)));
    write(&array, 0..8 * 3 * BLOCKS);
    fail(&array, array.machine.geometry().data_member(Stripe::new(0), 1));
    array.shared.consistency.doubt(StripeRange { first: 7, end: 8 });
    write(&array, 3 * BLOCKS..6 * BLOCKS);
    array
}

/// Writes with FUA; the power goes as soon as that is acknowledged.
fn write_and_cut(array: &Rc<Array>, blocks: std::ops::Range<u64>) {
    let (own, acknowledged) = (Rc::clone(array), Rc::new(Cell::new(false)));
    let ended = Rc::clone(&acknowledged);
    array.spawn(0, "a write", async move {
        workload::write(&own, 0, Kind::Write, blocks, true).await;
        ended.set(true);
    });
    while !acknowledged.get() {
        assert_eq!(array.run(1), Ended::Steps);
    }
    array.kill();
    array.world.cut();
    array.machine.cut_power(|blocks, random| Survivors::some(blocks, 0, random));
}

/// The log was in force, and the next run neither logs nor marks its writes. After that the log must be old: else its records
/// are made again over what was acknowledged since.
#[test]
fn a_log_that_is_not_kept_is_void() {
    let array = degraded_with_log();
    write_and_cut(&array, 0..BLOCKS);
    let machine: Rc<Machine> = Rc::clone(&array.machine);
    let counts = || *machine.world.counts.borrow();
    let bare = How { unmarked: true, unlogged: true, ..How::usual(&machine.scenario) };
    let array = assemble_as(&machine, bare);
    assert_eq!((counts().logs_replayed, counts().logs_voided), (1, 1));
    write_and_cut(&array, 0..BLOCKS);
    let array = assemble(&machine);
    assert_eq!(counts().logs_replayed, 1, "it is old");
    read(&array, 0..BLOCKS);
    finish(&array);
}

/// A read-only start replays nothing: what the log would repair is refused where a member is missing, the rest is right.
/// Nothing is written, so the next start still finds all that it needs.
#[test]
fn a_read_only_start_writes_nothing() {
    let array = degraded_with_log();
    write_and_cut(&array, 0..3 * BLOCKS);
    let machine: Rc<Machine> = Rc::clone(&array.machine);
    let counts = || *machine.world.counts.borrow();
    let refused_before = counts().request_errors;
    reading::look(&machine);
    assert_eq!(machine.world.failure(), None);
    assert_eq!(counts().started_read_only, 1);
    assert!(counts().request_errors > refused_before, "the missing chunk of a stripe in the log was read");
    let array = assemble(&machine);
    assert_eq!(counts().logs_replayed, 1);
    read(&array, 0..3 * BLOCKS);
    finish(&array);
}

/// A stale member is taken by force for one that is away. The start is not over before superblocks say so: a power cut right after it
/// leaves an array that starts without force (invariant 8).
#[test]
fn what_force_chose_is_on_the_members_when_the_start_is_over() {
    let array = start(quiet(Level::Raid5, 4, Support::None, 8, 4096));
    write(&array, 0..3 * BLOCKS);
    let away = disk(&array, Slot::new(0));
    fail(&array, Slot::new(1));
    let machine: Rc<Machine> = Rc::clone(&array.machine);
    let cut = |array: &Array| {
        array.kill();
        array.world.cut();
        machine.cut_power(|blocks, random| Survivors::some(blocks, 0, random));
    };
    cut(&array);
    away.plug(false);
    let usual = How::usual(&machine.scenario);
    assert!(matches!(Array::assemble(&machine, usual), Some(Err(_))), "one is away, and one is stale");
    cut(&assemble_as(&machine, How { force: true, ..usual }));
    let array = assemble(&machine);
    finish(&array);
    read(&array, 0..3 * BLOCKS);
}
