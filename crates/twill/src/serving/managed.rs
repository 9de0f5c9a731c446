//! An array on its shards, with its manager and the devices that it has: what each act of an operator needs.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use engine::members::MemberState;
use host::array::HostArray;
use layout::md_superblock::Superblock;
use layout::units::Slot;
use parking_lot::Mutex;

use super::manager::{ArrayManager, HostManager};
use super::platform::Known;
use super::process::ArrayShards;
use super::remote::Remotes;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// An array that is served, as its operators see it.
pub struct ManagedArray {
    pub(super) host: HostArray,
    pub(super) shards: ArrayShards,
    pub(super) manager: ArrayManager,
    pub(super) known: Arc<Mutex<Known>>,
    pub(super) read_only: bool,
    pub(super) remotes: Arc<Remotes>,
}

impl ManagedArray {
    /// Asks the manager, on its shard.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(Rc<HostManager>) -> T + Send + 'static,
    ) -> Result<T, Failure> {
        self.manager.ask(&self.shards, question)
    }

    /// A superblock of the array, for the fields that all members share; none while no member has one.
    pub(super) fn superblock(&self) -> Option<Superblock> {
        let superblock = self.ask(|manager| {
            let writer = manager.writer();
            Slot::all().map_while(|slot| writer.superblocks().try_superblock(slot)).flatten().next()
        });
        superblock.ok().flatten()
    }

    /// The slot that an operator names by number or path.
    pub(super) fn slot(&self, member: &str) -> Result<Slot, Failure> {
        let count = self.host.shared.geometry.members();
        if let Some(slot) = member.parse().ok().filter(|slot: &Slot| slot.get() < count) {
            return Ok(slot);
        }
        slot_of(&self.known.lock().paths, member).ok_or_else(|| {
            let message = format!("{member} is not a member of the array");
            Failure::new(ExitKind::NotFound, message).help("name a slot or a path that `twill detail` lists")
        })
    }

    /// The member that an operator named, by its path: a slot alone says nothing about which drive it is.
    pub(super) fn words(&self, member: &str, slot: Slot) -> String {
        let path = self.known.lock().paths.get(slot.index()).cloned().flatten();
        match path {
            Some(_) if member.parse() != Ok(slot) => member.to_owned(),
            Some(path) => format!("{} (slot {slot})", path.display()),
            None => format!("in slot {slot}, which is empty,"),
        }
    }

    /// Paths of members that failed, and empty slots; empty while the array is whole.
    pub(super) fn missing_words(&self) -> String {
        let known = self.known.lock();
        let states = self.host.shared.members.states();
        let missing =
            (0..).zip(&states).filter_map(|(slot, state): (usize, _)| match (state, &known.paths[slot]) {
                (MemberState::Failed | MemberState::Missing, Some(path)) => {
                    Some(format!("{} (slot {slot})", path.display()))
                }
                (MemberState::Failed | MemberState::Missing, None) => Some(format!("slot {slot} (empty)")),
                _ => None,
            });
        missing.collect::<Vec<_>>().join(", ")
    }

    /// What an operator does about a member without which the array would be lost.
    pub(super) fn needed_help(&self) -> String {
        let missing = self.missing_words();
        match self.host.shared.geometry.losses_survived() {
            0 => format!(
                "a {} has no redundancy: copy what it holds elsewhere while the member can be read",
                self.level()
            ),
            _ if missing.is_empty() => "replace it instead: twill replace".to_owned(),
            _ => format!(
                "bring back or replace what is missing first ({missing}): twill re-add, or twill add DEVICE and twill status --wait"
            ),
        }
    }

    /// The level as operators write it: RAID-5.
    pub(super) fn level(&self) -> String {
        self.host.shared.geometry.level().to_string().replace("raid", "RAID-")
    }
}

/// The slot of the device with this path, or with another name of it.
pub(super) fn slot_of(paths: &[Option<PathBuf>], member: &str) -> Option<Slot> {
    let is_named = named(member);
    let mut members = Slot::all().zip(paths);
    members.find(|(_, path)| path.as_ref().is_some_and(|path| is_named(path))).map(|(slot, _)| slot)
}

/// Whether a path names the same file or device as the operator's.
pub(super) fn named(member: &str) -> impl Fn(&Path) -> bool + use<> {
    let given = PathBuf::from(member);
    let wanted = std::fs::canonicalize(&given).unwrap_or_else(|_| given.clone());
    move |path| path == given || std::fs::canonicalize(path).is_ok_and(|path| path == wanted)
}
