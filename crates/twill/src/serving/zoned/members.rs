//! `add` and `re-add` of a zoned array: a device comes into the slot of a member that is out of use, as a new one or as one that
//! was away.

use std::path::{Path, PathBuf};

use engine::array::zoned::fit::OtherZones;
use engine::array::zoned::running::NotJoined;
use engine::limits::BLOCK_BYTES;
use engine::members::MemberState;
use host::device::zoned::SharedZones;
use layout::md_superblock::SUPERBLOCK_BYTES_MAX;
use layout::zoned::{MemberZones, Superblock};
use uuid::Uuid;

use super::super::manager::gone;
use super::ManagedZones;
use super::start::open_zones;
use crate::bytes;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::probe::clearing::Clearing;
use crate::probe::contents::check_empty;
use crate::probe::member_file::MemberFile;
use crate::probe::signatures::{self, Signature};
use crate::probe::superblocks;
use crate::probe::zoned::superblock_of;

impl ManagedZones {
    /// Adds a device in the place of a member that is out of use. What it lacks is made from the others. With `force` its
    /// contents are given up.
    ///
    /// # Errors
    /// It cannot be opened, holds something, does not fit, or no slot is free.
    pub fn add(&self, path: &Path, force: bool) -> Result<Clearing, Failure> {
        let refused = |problem| Failure::from_problems("the device cannot be added", vec![problem]);
        if self.array.shared.config.losses_survived() == 0 {
            let message = "a new member cannot help a RAID-0: the contents of one that is lost are lost";
            let failure = Failure::new(ExitKind::BadGeometry, message);
            return Err(failure.help("make a new array and restore the data: twill create"));
        }
        self.check_not_used(path).map_err(refused)?;
        let found = self.former_contents(path, force).map_err(refused)?;
        let said = self.said()?;
        let device = open_zones(path, &said.zones, self.direct).map_err(refused)?;
        has_space(&device, &said.zones)
            .map_err(|other| failure(NOT_JOINED, path, &NotJoined::OtherZones(other)))?;
        erase(path, &found).map_err(refused)?;
        self.join(path, &device, *Uuid::new_v4().as_bytes(), None)?;
        Ok(clearing(found))
    }

    /// Grows by devices: new segments are over all members, older ones are rewritten, and the size follows. With `force` the
    /// contents of the devices are given up.
    ///
    /// # Errors
    /// One cannot be opened, holds something or does not fit, or the array cannot have so many members or is not whole. The array
    /// is as it was then.
    pub fn grow(&self, paths: &[PathBuf], force: bool) -> Result<Vec<Clearing>, Failure> {
        let refused = |problem| Failure::from_problems(NOT_GROWN, vec![problem]);
        let said = self.said()?;
        let mut opened = Vec::new();
        for (index, path) in paths.iter().enumerate() {
            if paths[..index].contains(path) {
                return Err(refused(Problem::new(ExitKind::Usage, path, "is named twice")));
            }
            self.check_not_used(path).map_err(refused)?;
            let found = self.former_contents(path, force).map_err(refused)?;
            let device = open_zones(path, &said.zones, self.direct).map_err(refused)?;
            has_space(&device, &said.zones)
                .map_err(|other| failure(NOT_GROWN, path, &NotJoined::OtherZones(other)))?;
            opened.push((path, device, found));
        }
        for (path, _, found) in &opened {
            erase(path, found).map_err(refused)?;
        }
        let members: Vec<_> =
            opened.iter().map(|(_, device, _)| (device.clone(), *Uuid::new_v4().as_bytes())).collect();
        let grown = self.array.grow(&members).map_err(gone)?;
        let first = grown.map_err(|(index, why)| failure(NOT_GROWN, &paths[index], &why))?;
        let mut known = self.known.lock();
        let width = first + paths.len();
        known.paths.resize(width, None);
        known.coming.resize(width, None);
        known.replaced.resize(width, None);
        for (slot, (path, device, _)) in (first..).zip(&opened) {
            self.held.lock().push(device.closing());
            known.paths[slot] = Some((*path).clone());
            tracing::info!(member = %path.display(), slot, "the array has one more member");
        }
        Ok(opened.into_iter().map(|(_, _, found)| clearing(found)).collect())
    }

    /// Takes back a member that was away. A failed one that still has its slot is removed first.
    ///
    /// # Errors
    /// It cannot be opened, is no member of this array, or its slot is taken.
    pub fn re_add(&self, path: &Path) -> Result<(), Failure> {
        let refused = |problem| Failure::from_problems("the member cannot be re-added", vec![problem]);
        let said = self.said()?;
        let looked_at = MemberFile::open(path).map_err(refused)?;
        let own =
            superblock_of(&looked_at).map_err(|error| refused(Problem::from_io(path, "read", &error)))?;
        let Some(own) = own else {
            let problem = Problem::new(ExitKind::NotAMember, path, "has no superblock of a zoned array");
            return Err(refused(problem.help("`twill add` takes it as a new member")));
        };
        drop(looked_at);
        if own.superblock.set_uuid != said.set_uuid {
            let problem = Problem::new(ExitKind::NotAMember, path, "belongs to another array");
            return Err(refused(problem.help("twill examine says which")));
        }
        // Only what may come back is let go of.
        self.let_go(path)?;
        self.check_not_used(path).map_err(refused)?;
        let device = open_zones(path, &said.zones, self.direct).map_err(refused)?;
        let uuid = own.superblock.device_uuid;
        self.join(path, &device, uuid, Some(own.superblock))
    }

    /// What the superblocks say.
    fn said(&self) -> Result<Superblock, Failure> {
        self.array.ask(|running| async move { running.said().superblock() }).map_err(gone)
    }

    fn join(
        &self,
        path: &Path,
        device: &SharedZones,
        uuid: [u8; 16],
        own: Option<Superblock>,
    ) -> Result<(), Failure> {
        self.held.lock().push(device.closing());
        let joined = self.array.join(device, uuid, own).map_err(gone)?;
        let (slot, adopted) = joined.map_err(|why| failure(NOT_JOINED, path, &why))?;
        self.known.lock().paths[slot] = Some(path.to_path_buf());
        tracing::info!(member = %path.display(), slot, adopted, "the member takes part, and gets what it lacks");
        Ok(())
    }

    /// A failed member holds its device until it is removed.
    fn let_go(&self, path: &Path) -> Result<(), Failure> {
        match self.slot(&path.display().to_string()) {
            Ok(slot) if self.array.shared.members.state(slot) == MemberState::Failed => {
                self.remove(&slot.to_string()).map(drop)
            }
            _ => Ok(()),
        }
    }

    fn check_not_used(&self, path: &Path) -> Result<(), Problem> {
        let identity = MemberFile::open(path)?.identity;
        let paths: Vec<_> = self.known.lock().paths.iter().flatten().cloned().collect();
        let is_it = |known: &&std::path::PathBuf| {
            MemberFile::open(known).is_ok_and(|known| known.identity == identity)
        };
        let Some(known) = paths.iter().find(is_it) else { return Ok(()) };
        let what = format!("is a device of this array already, as {}", known.display());
        let problem = Problem::new(ExitKind::MemberInUse, path, what);
        Err(problem.help("if it is a failed member, remove it first: twill remove failed"))
    }

    /// What a device held before. Without `force` only one without contents is taken, or a former member of this array.
    fn former_contents(&self, path: &Path, force: bool) -> Result<Vec<Signature>, Problem> {
        let member = MemberFile::open(path)?;
        let own = superblock_of(&member).ok().flatten();
        if own.is_some_and(|own| own.superblock.set_uuid == self.array.shared.config.set_uuid) {
            return Ok(Vec::new());
        }
        let found = signatures::find(&member).map_err(|error| Problem::from_io(path, "read", &error))?;
        if !force {
            check_empty(&member, &found)?;
        }
        Ok(found)
    }
}

/// What was erased of a device, and what stays.
fn clearing(found: Vec<Signature>) -> Clearing {
    let (erased, stays) = found.into_iter().partition(|found| found.is_md || found.place.is_some());
    let words = |found: Vec<Signature>| found.into_iter().map(|found| found.words).collect();
    Clearing { ranges: Vec::new(), erased: words(erased), stays: words(stays) }
}

/// Whether a device is as large as the members are, asked before what it holds is given up; what its zones are like is asked when it
/// joins.
fn has_space(device: &SharedZones, zones: &MemberZones) -> Result<(), OtherZones> {
    let expected = u64::from(zones.zones) * u64::from(zones.zone_blocks) * BLOCK_BYTES as u64;
    let found = device.info().size_bytes;
    match found < expected {
        true => Err(OtherZones { found: bytes::human(found), expected: bytes::human(expected) }),
        false => Ok(()),
    }
}

/// Overwrites the marks of what an ordinary device held.
fn erase(path: &Path, found: &[Signature]) -> Result<(), Problem> {
    if found.is_empty() {
        return Ok(());
    }
    let of_io = |error: std::io::Error| Problem::from_io(path, "clear the former contents", &error);
    let member = MemberFile::open_to_clear(path)?;
    for found in superblocks::find_all(&member).map_err(of_io)? {
        member.write(found.offset, &[0; SUPERBLOCK_BYTES_MAX]).map_err(of_io)?;
    }
    for place in found.iter().filter_map(|found| found.place.clone()) {
        let bytes = usize::try_from(place.end - place.start).unwrap_or(0);
        member.write(place.start, &vec![0; bytes]).map_err(of_io)?;
    }
    member.sync().map_err(of_io)
}

const NOT_JOINED: &str = "the device does not join the array";
const NOT_GROWN: &str = "the array does not grow";

/// Why a device did not join, with its path.
fn failure(what: &str, path: &Path, why: &NotJoined) -> Failure {
    let (kind, help) = match why {
        NotJoined::NotOurs(_) => (ExitKind::NotAMember, Some("`twill add` takes it as a new member")),
        NotJoined::NoSlot => {
            (ExitKind::MemberInUse, Some("fail the member whose place it is to have first: twill fail"))
        }
        NotJoined::InUse { .. } => (
            ExitKind::MemberInUse,
            Some("twill status lists the members; twill fail takes that one out of use"),
        ),
        NotJoined::Another => (ExitKind::MemberInUse, Some("try again once twill status shows that one")),
        NotJoined::NoSuperblock => (ExitKind::Damaged, Some("`twill add` takes it as a new member")),
        NotJoined::OtherZones(_) => {
            (ExitKind::BadGeometry, Some("take a device with at least as many zones of the same size"))
        }
        NotJoined::Limit(_) | NotJoined::ShortRecords { .. } => (ExitKind::BadGeometry, None),
        NotJoined::Device(_) | NotJoined::NotSettled(_) => (ExitKind::IoError, None),
        NotJoined::NoNvme => (ExitKind::NoDriver, None),
        NotJoined::NotWhole => {
            let help = "twill status says which member: twill add takes a device in its place";
            return Failure::new(ExitKind::NotEnoughMembers, format!("{what}: {why}")).help(help);
        }
        NotJoined::Growing => {
            let help = "twill status says how many segments are left; grow it again when none is";
            return Failure::new(ExitKind::MemberInUse, format!("{what}: {why}")).help(help);
        }
        NotJoined::Plan(_) => return Failure::new(ExitKind::BadGeometry, format!("{what}: {why}")),
        NotJoined::NotAdded => {
            let help = "twill events says which one and why; name others";
            return Failure::new(ExitKind::IoError, format!("{what}: {why}")).help(help);
        }
    };
    let problem = Problem::new(kind, path, why.to_string());
    let problem = match help {
        Some(help) => problem.help(help),
        None => problem,
    };
    Failure::from_problems(what, vec![problem])
}
