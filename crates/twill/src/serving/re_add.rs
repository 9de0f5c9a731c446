//! `re-add`: a member that was away for a while comes back and gets what the bitmap marks, or everything but what it alone may tell.

use std::path::Path;

use engine::array::membership::NotAdded;
use engine::array::re_add::Refused;
use engine::members::MemberState;

use super::acts::remove;
use super::add::{check_blocks, offer, open_new, read_only};
use super::managed::ManagedArray;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::probe::bad_blocks::bad_blocks_of;
use crate::probe::generations::record_of;
use crate::probe::member_file::MemberFile;
use crate::probe::superblocks::superblock_of;

/// Takes back a member that was away for a while. A failed one that still has its slot is removed first.
///
/// # Errors
/// It cannot be opened, is no member of this array, its slot is taken, or nothing says what it lacks.
pub fn re_add(array: &ManagedArray, path: &Path) -> Result<(), Failure> {
    let name = path.display().to_string();
    if array.read_only {
        return Err(read_only(&name));
    }
    let cannot = |problem| Failure::from_problems("the member cannot be re-added", vec![problem]);
    // Held until the array has it: a namespace that this process has reserved stays reserved.
    let looked_at = MemberFile::open(path).map_err(cannot)?;
    let superblock = superblock_of(&looked_at).map_err(|problem| cannot(not_a_member(problem)))?;
    let record = record_of(&looked_at, &superblock);
    // Asked before it is locked or removed, so that a refused device is not touched.
    let judged = array.ask(move |manager| {
        let generations = record.as_ref().map(|record| &record.generations);
        manager.membership().may_return(&superblock, generations)
    })?;
    judged.map_err(|refused| cannot(problem(path, &refused)))?;
    remove_failed(array, &name)?;
    let device = open_new(array, path).map_err(cannot)?;
    check_blocks(array, &name, &device)?;
    // Locked now: no other program changes it from here on.
    let member = MemberFile::open(path).map_err(cannot)?;
    let superblock = superblock_of(&member).map_err(cannot)?;
    let bad = bad_blocks_of(&member, &superblock).map_err(cannot)?;
    let record = record_of(&member, &superblock);
    let manager = array.manager;
    let re_added = offer(array, device, async move |device| {
        manager.here().membership().re_add(device, superblock, record, bad).await
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
        )
        .help("take another device: twill add")),
        Err(error) => {
            let failure =
                Failure::new(ExitKind::IoError, format!("{name}: the member is not re-added: {error}"));
            Err(failure.help("twill events says more"))
        }
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
    problem.help(match refused {
        Refused::LacksMore(_) => {
            "twill add rebuilds all of it, after twill remove failed if it is still listed; what it holds is lost then"
        }
        Refused::NotOurs(_) => {
            "twill examine says what it belongs to; twill add --force takes it as a new member, and what it holds is lost"
        }
        Refused::Taken(_) => {
            "twill detail lists the members; to have this one in the place of another: twill fail that, twill remove failed, twill re-add"
        }
    })
}

/// What has no superblock may still come as a new member.
fn not_a_member(problem: Problem) -> Problem {
    match problem.kind {
        ExitKind::NotAMember if problem.help.is_none() => problem.help("twill add takes it as a new member"),
        _ => problem,
    }
}
