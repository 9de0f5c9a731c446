//! `add`: a device comes to the array as a spare.

use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use engine::array::membership::NotAdded;
use host::device::{HostDevice, SharedDevice};
use layout::md_superblock::{SUPERBLOCK_BYTES_MAX, Superblock};

use super::managed::ManagedArray;
use super::manager::{gone, manager};
use super::open::open_free_device;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::probe::clearing::Clearing;
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
        return Err(problem(ExitKind::MemberInUse, "the array is read-only".into()));
    }
    if array.host.shared.geometry.losses_survived() == 0 {
        let message = "a spare cannot help a RAID-0: the contents of a failed member are lost";
        return Err(problem(ExitKind::BadGeometry, message.into()));
    }
    let refused = |wrong| Failure::from_problems("the device cannot be added", vec![wrong]);
    let found = former_contents(array, path, force).map_err(refused)?;
    let device = open_new(array, path).map_err(refused)?;
    check_blocks(array, &name, &device)?;
    let bytes = device.info().size_bytes;
    let uuid = *uuid::Uuid::new_v4().as_bytes();
    let clearing = match array.superblock().map(|own| own.for_new_device(0, uuid, bytes)) {
        Some(Ok(superblock)) => Clearing::of(&found, &superblock),
        Some(Err(error)) => return Err(problem(ExitKind::BadGeometry, error.to_string())),
        None => Clearing::default(),
    };
    clear(array, path, &clearing.ranges).map_err(refused)?;
    let added = offer(array, device, async move |device| {
        let join = move |template: &Superblock, number| template.for_new_device(number, uuid, bytes);
        manager().membership().add_spare(device, join).await
    });
    match added? {
        Ok(_) => Ok(clearing),
        Err(error @ (NotAdded::NoNumber | NotAdded::Unfit(_))) => {
            Err(problem(ExitKind::BadGeometry, error.to_string()))
        }
        Err(error) => Err(problem(ExitKind::IoError, error.to_string())),
    }
}

/// What a device held before. Without `force` only a device without contents, or with a superblock of this array, is taken.
fn former_contents(array: &ManagedArray, path: &Path, force: bool) -> Result<Vec<Signature>, Problem> {
    let member = MemberFile::open(path)?;
    let own = array.superblock().map(|own| own.set_uuid());
    let is_own = superblock_of(&member).is_ok_and(|superblock| Some(superblock.set_uuid()) == own);
    if is_own && !force {
        return Ok(Vec::new());
    }
    let found = signatures::find(&member).map_err(|error| Problem::from_io(path, "read", &error))?;
    if force || found.is_empty() {
        return Ok(found);
    }
    let words: Vec<&str> = found.iter().map(|signature| signature.words.as_str()).collect();
    let problem = Problem::new(ExitKind::NeedsForce, path, format!("has {}", words.join(", ")));
    Err(problem.help("--force overwrites what is there"))
}

/// Opens a device that comes to the array. A device that the array has already is refused at once, without waiting for it.
pub(super) fn open_new(array: &ManagedArray, path: &Path) -> Result<SharedDevice, Problem> {
    let identity = MemberFile::open(path)?.identity;
    let names: Vec<String> = array.known.lock().devices.keys().cloned().collect();
    let is_it =
        |name: &&String| MemberFile::open(Path::new(name)).is_ok_and(|known| known.identity == identity);
    let Some(name) = names.iter().find(is_it) else { return open_free_device(path) };
    let problem =
        Problem::new(ExitKind::MemberInUse, path, format!("is a device of this array already, as {name}"));
    Err(problem.help("if it is a failed member, remove it first: twill remove failed"))
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
