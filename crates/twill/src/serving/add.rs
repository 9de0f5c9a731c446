//! `add`: a device comes to the array as a spare.

use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use engine::array::membership::NotAdded;
use engine::members::MemberState;
use host::device::{HostDevice, SharedDevice};
use host::killed_server::when_free;
use layout::md_superblock::{SUPERBLOCK_BYTES_MAX, Superblock, SuperblockError};

use super::doubt;
use super::managed::{ManagedArray, slot_of};
use super::manager::gone;
use super::open::open_free_device;
use crate::bytes;
use crate::counted::counted;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::probe::clearing::Clearing;
use crate::probe::contents::check_empty;
use crate::probe::member_file::MemberFile;
use crate::probe::signatures::{self, Signature};
use crate::probe::superblocks::{self, superblock_of};

/// Adds a device as a spare, which takes the slot of a missing member at once. With `force`, its contents are given
/// up; the answer says which of them were cleared.
///
/// # Errors
/// It cannot be opened, holds something, is too small, is in use, or its superblock could not be written.
pub fn add(array: &ManagedArray, path: &Path, force: bool) -> Result<Clearing, Failure> {
    let name = path.display().to_string();
    let problem = |kind, message: String| Failure::new(kind, format!("{name}: {message}"));
    if array.read_only {
        return Err(read_only(&name));
    }
    if array.host.shared.geometry.losses_survived() == 0 {
        let message = "a spare cannot help a RAID-0: the contents of a failed member are lost";
        let help = "twill create makes an array of another level; copy the data there";
        return Err(problem(ExitKind::BadGeometry, message.into()).help(help));
    }
    let refused = |wrong| Failure::from_problems("the device cannot be added", vec![wrong]);
    check_new(array, path).map_err(refused)?;
    let uuid = *uuid::Uuid::new_v4().as_bytes();
    check_size(array, path, uuid).map_err(refused)?;
    let found = former_contents(array, path, force).map_err(refused)?;
    let device = open_new(array, path).map_err(refused)?;
    check_blocks(array, &name, &device)?;
    let bytes = device.info().size_bytes;
    let clearing = match array.superblock().map(|own| own.for_new_device(0, uuid, bytes)) {
        Some(Ok(superblock)) => Clearing::of(&found, &superblock),
        Some(Err(error)) => return Err(refused(unfit(array, path, bytes, &error))),
        None => Clearing::default(),
    };
    clear(array, path, &clearing.ranges).map_err(refused)?;
    let manager = array.manager;
    let added = offer(array, device, async move |device| {
        let join = move |template: &Superblock, number| template.for_new_device(number, uuid, bytes);
        manager.here().membership().add_spare(device, join).await
    });
    match added? {
        Ok(_) => Ok(clearing),
        Err(NotAdded::Unfit(error)) => Err(refused(unfit(array, path, bytes, &error))),
        Err(error @ NotAdded::NoNumber) => Err(problem(ExitKind::BadGeometry, error.to_string())
            .help("remove failed members and spares first: twill remove")),
        Err(error) => Err(problem(ExitKind::IoError, error.to_string()).help("twill events says more")),
    }
}

/// An act that writes to members of an array that is served read-only.
pub(super) fn read_only(name: &str) -> Failure {
    let failure = Failure::new(ExitKind::MemberInUse, format!("{name}: the array is served read-only"));
    failure.help("stop the array and serve it without --read-only")
}

/// Refuses a device that is too small, before it is opened to be written.
fn check_size(array: &ManagedArray, path: &Path, uuid: [u8; 16]) -> Result<(), Problem> {
    let bytes = MemberFile::open(path)?.device_bytes;
    let Some(own) = array.superblock() else { return Ok(()) };
    own.for_new_device(0, uuid, bytes).map(drop).map_err(|error| unfit(array, path, bytes, &error))
}

/// Why a device cannot have what the array needs.
fn unfit(array: &ManagedArray, path: &Path, bytes: u64, error: &SuperblockError) -> Problem {
    let own = array.superblock();
    let needed = own.map(|own| own.data_offset().bytes() + own.size().bytes());
    let Some(needed) = needed.filter(|needed| bytes < *needed) else {
        return Problem::new(ExitKind::BadGeometry, path, error.to_string()).help("take a larger device");
    };
    let what = format!("has {}, needs at least {}", bytes::human(bytes), bytes::human(needed));
    Problem::new(ExitKind::BadGeometry, path, what)
        .help("take a larger device: the array uses as much of each")
}

/// What a device held before. Without `force` only a device without contents, or with a superblock of this array, is taken.
fn former_contents(array: &ManagedArray, path: &Path, force: bool) -> Result<Vec<Signature>, Problem> {
    let member = MemberFile::open(path)?;
    let own = array.superblock().map(|own| own.set_uuid());
    let is_own = superblock_of(&member).is_ok_and(|superblock| Some(superblock.set_uuid()) == own);
    if is_own && !force {
        return match doubt::stripes(array) {
            0 => Ok(Vec::new()),
            stripes => Err(only_copy(path, stripes)),
        };
    }
    let found = signatures::find(&member).map_err(|error| Problem::from_io(path, "read", &error))?;
    if force {
        return Ok(found);
    }
    let refused = check_empty(&member, &found);
    if refused.is_err() {
        // What --force cannot change is said first: another program may have it.
        when_free(
            |problem: &Problem| problem.kind == ExitKind::MemberInUse,
            || MemberFile::check_free(path),
        )?;
    }
    refused.map(|()| found)
}

/// Opens a device that comes to the array. A device that the array has already is refused at once, without waiting for it.
pub(super) fn open_new(array: &ManagedArray, path: &Path) -> Result<SharedDevice, Problem> {
    check_new(array, path)?;
    open_free_device(path)
}

/// Refuses a device that the array has already.
fn check_new(array: &ManagedArray, path: &Path) -> Result<(), Problem> {
    let identity = MemberFile::open(path)?.identity;
    let names: Vec<String> = array.known.lock().devices.keys().cloned().collect();
    let is_it =
        |name: &&String| MemberFile::open(Path::new(name)).is_ok_and(|known| known.identity == identity);
    let Some(name) = names.iter().find(is_it) else { return Ok(()) };
    let slot = slot_of(&array.known.lock().paths, name);
    let state = slot.map(|slot| (slot, array.host.shared.members.state(slot)));
    let of_path = if Path::new(name) == path { String::new() } else { format!(", as {name}") };
    let (what, help) = match state {
        Some((slot, MemberState::InSync | MemberState::Recovering)) => {
            (format!("is a member of this array already, in slot {slot}"), "name another device")
        }
        Some((slot, _)) => (
            format!("is a failed member of this array, in slot {slot}"),
            "remove it first: twill remove failed; then twill re-add or twill add takes it",
        ),
        None => (
            "is a spare or a former member of this array already".to_owned(),
            "twill detail lists it; if it is faulty, remove it first: twill remove failed",
        ),
    };
    Err(Problem::new(ExitKind::MemberInUse, path, what + &of_path).help(help))
}

/// A former member, while stripes are in doubt: parity does not tell what it holds there, and a rebuild writes over it.
fn only_copy(path: &Path, stripes: u64) -> Problem {
    let stripes = counted(stripes, "stripe");
    let what = format!(
        "was a member of this array, {stripes} are in doubt, and it may hold the only copy of what belongs there"
    );
    Problem::new(ExitKind::NeedsForce, path, what).help(
        "twill re-add takes it back with what it holds, if the array has a bitmap; else copy the device first (dd): --force gives up what it holds",
    )
}

/// Refuses a device with larger blocks than the array's: it could not take every write.
pub(super) fn check_blocks(array: &ManagedArray, name: &str, device: &SharedDevice) -> Result<(), Failure> {
    let (block, array) = (device.info().logical_block_bytes, array.host.logical_block_bytes);
    if block <= array {
        return Ok(());
    }
    let message = format!("{name}: its logical blocks are {block} bytes, those of the array {array} bytes");
    let help =
        "take another device, or format this one with smaller blocks, which erases it (nvme format --lbaf)";
    Err(Failure::new(ExitKind::BadGeometry, message).help(help))
}

/// Clears ranges outside the data area, and md's superblocks where this array keeps none: the next start would take one of
/// them if it were newer. The device is held, so no other program writes to it.
fn clear(array: &ManagedArray, path: &Path, ranges: &[Range<u64>]) -> Result<(), Problem> {
    let from_io = |error: std::io::Error| Problem::from_io(path, "clear the former contents", &error);
    let member = MemberFile::open_to_clear(path)?;
    let minor = array.superblock().map(|own| own.minor_version());
    let own = minor.and_then(|minor| minor.superblock_offset(member.device_bytes).ok());
    for found in superblocks::find_all(&member).map_err(from_io)? {
        if Some(found.offset) != own {
            member.write(found.offset, &[0; SUPERBLOCK_BYTES_MAX]).map_err(from_io)?;
        }
    }
    for range in ranges {
        let bytes = usize::try_from(range.end - range.start).expect("at most 1 MiB");
        member.write(range.start, &vec![0; bytes]).map_err(from_io)?;
    }
    member.sync().map_err(from_io)
}

/// Has the manager take a device. One that it refuses is closed again, or it would stay open and locked.
pub(super) fn offer<T: Send + 'static>(
    array: &ManagedArray,
    device: SharedDevice,
    take: impl AsyncFnOnce(Rc<HostDevice>) -> Result<T, NotAdded> + Send + 'static,
) -> Result<Result<T, NotAdded>, Failure> {
    let name = device.info().name.clone();
    {
        let mut known = array.known.lock();
        if known.devices.contains_key(&name) {
            let message = format!("{name}: a failed member with this path is still listed");
            let failure = Failure::new(ExitKind::MemberInUse, message);
            return Err(failure.help("remove it first: twill remove failed"));
        }
        known.devices.insert(name.clone(), device.clone());
    }
    array.remotes.follow(&device);
    let taken = array
        .shards
        .run_on(0, move |context| async move { take(Rc::new(device.attach(&context.ring))).await });
    let taken = taken.map_err(gone)?;
    if taken.is_err() {
        array.known.lock().devices.remove(&name);
    }
    Ok(taken)
}
