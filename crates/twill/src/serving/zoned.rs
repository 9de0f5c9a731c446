//! A zoned array that is served, as its operators see it.

mod members;
mod start;
mod status;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use engine::array::scrub::{ScrubRequest, ScrubState};
use engine::members::{Failing, MemberState};
use host::device::Closing;
use host::zoned_array::ZonedArray;
use parking_lot::Mutex;

use super::managed::slot_of;
use super::manager::gone;
use super::platform::Known;
use super::process::ArrayShards;
use crate::exit::ExitKind;
use crate::failure::Failure;
use layout::units::Slot;

pub use start::random;
pub(super) use status::gather;

/// A zoned array on its shards.
pub struct ManagedZones {
    pub(super) array: ZonedArray,
    pub(super) shards: ArrayShards,
    pub(super) known: Arc<Mutex<Known>>,
    /// Members are opened past the page cache.
    pub(super) direct: bool,
    /// Members that were opened.
    pub(super) held: Mutex<Vec<Closing>>,
}

impl ManagedZones {
    /// Stops using a member.
    pub(super) fn fail(&self, member: &str) -> Result<(), Failure> {
        let slot = self.slot(member)?;
        let needed = || {
            let member = self.words(member, slot);
            let message = format!("member {member} cannot fail: the array would be lost without it");
            Err(Failure::new(ExitKind::WouldLoseData, message)
                .help("bring back the members that are missing first: stop the array and serve it with them"))
        };
        // Asked here first: the engine takes an error of the member for the reason, and the array would be said to be failing.
        let shared = &self.array.shared;
        let out = shared.members.states().iter().filter(|state| **state != MemberState::InSync).count();
        if shared.members.state(slot) == MemberState::InSync && out >= shared.config.losses_survived() {
            return needed();
        }
        let failing = self
            .array
            .ask(move |running| async move { running.fail(slot, "an operator said so").await })
            .map_err(gone)?;
        match failing {
            Ok(Failing::Failed) => Ok(()),
            Ok(Failing::Needed) => needed(),
            Err(error) => Err(Failure::new(ExitKind::IoError, error.to_string())),
        }
    }

    /// Lets go of failed members, so that their devices can be pulled. Their slots stay theirs: segments name them.
    pub(super) fn remove(&self, member: &str) -> Result<Vec<PathBuf>, Failure> {
        let members = &self.array.shared.members;
        let states = members.states();
        let is_failed = |slot: &usize| states[*slot] == MemberState::Failed;
        let slots: Vec<usize> = if ["failed", "faulty", "detached"].contains(&member) {
            (0..states.len()).filter(is_failed).collect()
        } else {
            let slot = self.slot(member)?;
            if !is_failed(&slot) {
                let message = format!("member {} is in use", self.words(member, slot));
                return Err(Failure::new(ExitKind::MemberInUse, message).help("fail it first: twill fail"));
            }
            vec![slot]
        };
        let mut removed = Vec::new();
        for slot in slots {
            self.array.detach(slot).map_err(gone)?;
            removed.extend(self.known.lock().paths[slot].take());
        }
        Ok(removed)
    }

    /// Starts, pauses, resumes or cancels a check or repair.
    pub(super) fn scrub(&self, wish: ScrubRequest) -> Result<(), Failure> {
        if matches!(wish, ScrubRequest::Start { mode, .. } if mode.trust_data) {
            return Err(self.refuse("repair --trust-data"));
        }
        let asked = self.array.ask(move |running| async move { running.request_check(wish) });
        asked.map_err(gone)?.map_err(|refused| super::scrub::failure(&refused))
    }

    /// The last check or repair.
    pub(super) fn scrub_state(&self) -> Result<Option<ScrubState>, Failure> {
        self.array.ask(|running| async move { running.check_state() }).map_err(gone)
    }

    /// As [`ManagedZones::refuse`], of an act on a device.
    pub(super) fn refuse_device(&self, act: &str, device: &str) -> Failure {
        let failure = self.refuse(act);
        Failure { message: format!("{device}: {}", failure.message), ..failure }
    }

    /// Why an act that the engine of zoned arrays has no way to do yet is refused.
    pub(super) fn refuse(&self, act: &str) -> Failure {
        let help = match act {
            "replace" => "twill fail, then twill add; the array is degraded in between",
            "repair --trust-data" => "twill repair",
            _ => "twill status says how the array is",
        };
        let why = match act {
            "replace" => "the engine of zoned arrays makes no copy beside a member that serves yet",
            "repair --trust-data" => {
                "checksums tell which block of a row is wrong, so none has to be taken for right"
            }
            "set" => "there is no rebuild to be held back, and no parity to be read before a write",
            "accept-doubt" => "a write of a zoned array never leaves a stripe in doubt",
            _ => "the engine of zoned arrays does not do it yet",
        };
        Failure::new(ExitKind::Unsupported, format!("{act} is not for this zoned array: {why}")).help(help)
    }

    /// Finishes what is in flight and writes the last superblocks. Whether everything is durable.
    pub(super) fn stop(&self) -> Result<bool, Failure> {
        self.array.volumes().mode().stopping.store(true, Relaxed);
        match self.array.stop().map_err(gone)? {
            Ok(()) => Ok(true),
            Err(error) => {
                let message = format!("the array could not be stopped cleanly: {error}");
                Err(Failure::new(ExitKind::IoError, message)
                    .help("what was flushed is safe; the next start finds out what else is there"))
            }
        }
    }

    /// The member that an operator named, by its path.
    fn words(&self, member: &str, slot: usize) -> String {
        match &self.known.lock().paths[slot] {
            Some(path) if member.parse() == Ok(slot) => format!("{} (slot {slot})", path.display()),
            Some(_) => member.to_owned(),
            None => format!("in slot {slot}, which is empty,"),
        }
    }

    /// The slot that an operator names by number or path.
    fn slot(&self, member: &str) -> Result<usize, Failure> {
        let known = self.known.lock();
        let number = member.parse().ok().filter(|slot: &usize| *slot < known.paths.len());
        let by_path = || slot_of(&known.paths, member).map(Slot::index);
        number.or_else(by_path).ok_or_else(|| {
            let message = format!("{member} is not a member of the array");
            Failure::new(ExitKind::NotFound, message).help("name a slot or a path that `twill detail` lists")
        })
    }
}
