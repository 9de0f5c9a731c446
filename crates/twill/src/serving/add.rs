//! `add`: a device comes to the array as a spare.

use std::path::Path;
use std::rc::Rc;

use engine::array::state::NotAdded;
use host::device::{HostDevice, SharedDevice};
use layout::md_superblock::{SUPERBLOCK_BYTES_MAX, Superblock};

use super::managed::ManagedArray;
use super::manager::{gone, manager};
use super::open::open_free_device;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::probe::member_file::MemberFile;
use crate::probe::signatures;
use crate::probe::superblocks::{self, superblock_of};

/// Adds a device as a spare; it takes the place of a missing member at once. `force`: what is on it may go.
///
/// # Errors
/// It cannot be opened, holds something, is too small, is in use, or its superblock could not be written.
pub fn add(array: &ManagedArray, path: &Path, force: bool) -> Result<(), Failure> {
    let name = path.display().to_string();
    let problem = |kind, message: String| Failure::new(kind, format!("{name}: {message}"));
    if array.read_only {
        return Err(problem(ExitKind::MemberInUse, "the array is read-only".into()));
    }
    if array.host.shared.geometry.losses_survived() == 0 {
        let message = "a spare cannot help a RAID-0: what a member held that fails is lost";
        return Err(problem(ExitKind::BadGeometry, message.into()));
    }
    let refused = |wrong| Failure::from_problems("the device cannot be added", vec![wrong]);
    if !force {
        check_unused(array, path).map_err(refused)?;
    }
    let device = open_new(array, path).map_err(refused)?;
    check_blocks(array, &name, &device)?;
    clear_other_superblocks(array, path).map_err(refused)?;
    let bytes = device.info().size_bytes;
    let uuid = *uuid::Uuid::new_v4().as_bytes();
    let added = offer(array, device, async move |device| {
        let join = move |template: &Superblock, number| template.for_new_device(number, uuid, bytes);
        manager().add_spare(device, join).await
    });
    added?.map(drop).map_err(|error| {
        let kind = match error {
            NotAdded::NoNumber | NotAdded::Unfit(_) => ExitKind::BadGeometry,
            _ => ExitKind::IoError,
        };
        problem(kind, error.to_string())
    })
}

/// A device that holds nothing, or was a member of this array before, may be added without force.
fn check_unused(array: &ManagedArray, path: &Path) -> Result<(), Problem> {
    let member = MemberFile::open(path)?;
    let own = array.superblock().map(|own| own.set_uuid());
    if superblock_of(&member).is_ok_and(|superblock| Some(superblock.set_uuid()) == own) {
        return Ok(());
    }
    let found = signatures::find(&member).map_err(|error| Problem::from_io(path, "read", &error))?;
    if found.is_empty() {
        return Ok(());
    }
    let problem = Problem::new(ExitKind::NeedsForce, path, format!("has {}", found.join(", ")));
    Err(problem.help("it would be overwritten: --force does it nevertheless"))
}

/// Opens a device that is to come to the array. What the array has already is not waited for.
pub(super) fn open_new(array: &ManagedArray, path: &Path) -> Result<SharedDevice, Problem> {
    let identity = MemberFile::open(path)?.identity;
    let names: Vec<String> = array.known.lock().devices.keys().cloned().collect();
    let is_it =
        |name: &&String| MemberFile::open(Path::new(name)).is_ok_and(|known| known.identity == identity);
    let Some(name) = names.iter().find(is_it) else { return open_free_device(path) };
    let problem = Problem::new(ExitKind::MemberInUse, path, format!("this array has it already, as {name}"));
    Err(problem.help("if it, or what was there before it, has failed: twill remove failed"))
}

/// A device with larger blocks than the array's could not take every write.
pub(super) fn check_blocks(array: &ManagedArray, name: &str, device: &SharedDevice) -> Result<(), Failure> {
    let (block, array) = (device.info().logical_block_bytes, array.host.logical_block_bytes);
    if block <= array {
        return Ok(());
    }
    let message = format!("{name}: its logical blocks are {block} bytes, those of the array {array}");
    let help = "many NVMe drives can be formatted with smaller blocks (nvme format --lbaf); or stop the array and serve it \
                with this device";
    Err(Failure::new(ExitKind::BadGeometry, message).help(help))
}

/// md's superblocks at places where this array has none: the next start might believe one that is newer. Nobody else
/// writes to the device, which is held.
fn clear_other_superblocks(array: &ManagedArray, path: &Path) -> Result<(), Problem> {
    let from_io = |error: std::io::Error| Problem::from_io(path, "clear old superblocks of", &error);
    let member = MemberFile::open_to_clear(path)?;
    let minor = array.superblock().map(|own| own.minor_version());
    let own = minor.and_then(|minor| minor.superblock_offset(member.device_bytes).ok());
    for found in superblocks::find_all(&member).map_err(from_io)? {
        if Some(found.offset) != own {
            member.write(found.offset, &[0; SUPERBLOCK_BYTES_MAX]).map_err(from_io)?;
        }
    }
    member.sync().map_err(from_io)
}

/// Has the manager take a device. One that it does not take is let go: else it would stay open and locked.
pub(super) fn offer<T: Send + 'static>(
    array: &ManagedArray,
    device: SharedDevice,
    take: impl AsyncFnOnce(Rc<HostDevice>) -> Result<T, NotAdded> + Send + 'static,
) -> Result<Result<T, NotAdded>, Failure> {
    let name = device.info().name.clone();
    {
        let mut known = array.known.lock();
        if known.devices.contains_key(&name) {
            let message = format!("{name}: a device that was a member under this name is still listed");
            let failure = Failure::new(ExitKind::MemberInUse, message);
            return Err(failure.help("let go of it first: twill remove failed"));
        }
        known.devices.insert(name.clone(), device.clone());
    }
    let taken = array
        .shards
        .run_on(0, move |context| async move { take(Rc::new(device.attach(&context.ring))).await });
    let taken = taken.map_err(gone)?;
    if taken.is_err() {
        array.known.lock().devices.remove(&name);
    }
    Ok(taken)
}
