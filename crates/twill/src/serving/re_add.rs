//! `re-add`: a member that was away for a while comes back and gets only what the bitmap marks.

use std::path::Path;

use engine::array::membership::NotAdded;
use engine::array::re_add::Refused;
use engine::members::MemberState;

use super::acts::remove;
use super::add::{check_blocks, offer, open_new};
use super::managed::ManagedArray;
use super::manager::manager;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::probe::bad_blocks::bad_blocks_of;
use crate::probe::generations::record_of;
use crate::probe::member_file::MemberFile;
use crate::probe::superblocks::superblock_of;

/// Takes back a member that was away for a while. A failed one that still has its slot is removed first.
///
/// # Errors
/// It cannot be opened, is no member of this array, its slot is taken, or the bitmap does not say what it lacks.
pub fn re_add(array: &ManagedArray, path: &Path) -> Result<(), Failure> {
    let name = path.display().to_string();
    if array.read_only {
        return Err(Failure::new(ExitKind::MemberInUse, format!("{name}: the array is read-only")));
    }
    let cannot = |problem| Failure::from_problems("the member cannot be re-added", vec![problem]);
    // Held until the array has it: a namespace that this process has reserved stays reserved.
    let looked_at = MemberFile::open(path).map_err(cannot)?;
    let superblock = superblock_of(&looked_at).map_err(cannot)?;
    let record = record_of(&looked_at, &superblock);
    remove_failed(array, &name)?;
    // Asked before it is locked, so that a refused device is not touched.
    let judged = array.ask(move |manager| {
        let generations = record.as_ref().map(|record| &record.generations);
        manager.membership().may_re_add(&superblock, generations)
    })?;
    judged.map_err(|refused| cannot(problem(path, &refused)))?;
    let device = open_new(array, path).map_err(cannot)?;
    check_blocks(array, &name, &device)?;
    // Locked now: no other program changes it from here on.
    let member = MemberFile::open(path).map_err(cannot)?;
    let superblock = superblock_of(&member).map_err(cannot)?;
    let bad = bad_blocks_of(&member, &superblock).map_err(cannot)?;
    let record = record_of(&member, &superblock);
    let re_added = offer(array, device, async move |device| {
        manager().membership().re_add(device, superblock, record, bad).await
    });
    match re_added? {
        Ok(slot) => {
            tracing::info!(member = name, slot = slot.get(), "re-added");
            Ok(())
        }
        Err(NotAdded::Refused(refused)) => Err(cannot(problem(path, &refused))),
        Err(NotAdded::Device(error)) => Err(Failure::new(
            ExitKind::IoError,
            format!("{name}: the member is not re-added: its superblock cannot be written: {error}"),
        )),
        Err(error) => Err(Failure::new(ExitKind::IoError, error.to_string())),
    }
}

/// A failed member still holds its slot, and comes back only once it is removed.
fn remove_failed(array: &ManagedArray, name: &str) -> Result<(), Failure> {
    match array.slot(name) {
        Ok(slot) if array.host.shared.members.state(slot) == MemberState::Failed => {
            remove(array, name).map(drop)
        }
        _ => Ok(()),
    }
}

fn problem(path: &Path, refused: &Refused) -> Problem {
    let kind = match refused {
        Refused::NotOurs(_) => ExitKind::NotAMember,
        Refused::Taken(_) => ExitKind::MemberInUse,
        Refused::LacksMore(_) => ExitKind::LacksMore,
    };
    let problem = Problem::new(kind, path, refused.to_string());
    match refused {
        Refused::LacksMore(_) => problem.help("`twill add` rebuilds all of it"),
        Refused::NotOurs(_) | Refused::Taken(_) => problem,
    }
}
