//! What an operator has done to a served array and its members: set, fail, remove, add.

use std::path::{Path, PathBuf};
use std::rc::Rc;

use engine::array::state::NotAdded;
use engine::members::{Failing, MemberState};
use engine::stripe::load::UpdatePolicy;
use host::device::{HostDevice, SharedDevice};
use layout::md_superblock::{SUPERBLOCK_BYTES_MAX, Superblock, display_uuid};

use super::Serving;
use super::manager::{gone, manager};
use super::open::open_free_device;
use super::speed::NewLimits;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::probe::member_file::MemberFile;
use crate::probe::signatures;
use crate::probe::superblocks;
use crate::probe::superblocks::superblock_of;

impl Serving {
    /// Changes how writes choose and whether reads avoid slow members; what is None stays.
    ///
    /// # Errors
    /// Reads cannot avoid slow members here.
    pub fn set(
        &self,
        policy: Option<UpdatePolicy>,
        avoid_slow: Option<bool>,
        limits: &NewLimits,
    ) -> Result<(), Failure> {
        if avoid_slow == Some(true) && !self.array.shared.intent.is_used() {
            let message = "no slow member can be avoided: with --consistency-policy none parity may not agree after a crash";
            return Err(Failure::new(ExitKind::Unsupported, message));
        }
        let loads = &self.array.shared.loads;
        if let Some(policy) = policy {
            loads.set_policy(policy);
        }
        if let Some(avoid) = avoid_slow {
            loads.set_avoid_slow(avoid);
        }
        let limits = self.known.lock().speed.set(limits, &self.array.shared);
        tracing::info!(policy = %loads.policy(), avoid_slow = loads.avoid_slow(), ?limits, "set");
        Ok(())
    }

    /// Stops using a member.
    ///
    /// # Errors
    /// There is no such member, or the array needs it.
    pub fn fail(&self, member: &str) -> Result<(), Failure> {
        let slot = self.slot(member)?;
        let failing =
            self.shards.run_on(0, move |_| async move { manager().fail(slot, "an operator said so").await });
        match failing.map_err(gone)? {
            Failing::Needed => {
                let message = format!("member {member} cannot fail: the array would be lost without it");
                Err(Failure::new(ExitKind::WouldLoseData, message).help("rebuild onto a spare first"))
            }
            Failing::Failed => {
                self.array.shared.cache.clear();
                let array = self.array.clone();
                let settled =
                    self.shards.run_on(0, move |_| async move { array.shared.members.settled().await });
                let lost = |_| Failure::new(ExitKind::IoError, "the superblocks cannot be written");
                settled.map_err(gone)?.map_err(lost)
            }
        }
    }

    /// Takes a failed member or a spare out of the array, or with `failed` or `detached` all members that failed. How many
    /// there were.
    ///
    /// # Errors
    /// There is no such member, or it is in use.
    pub fn remove(&self, member: &str) -> Result<usize, Failure> {
        if self.remove_spare(member)? || self.remove_replacement(member)? {
            return Ok(1);
        }
        let members = &self.array.shared.members;
        let all_failed = ["failed", "faulty", "detached"].contains(&member);
        let is_named = named(member);
        let without_slot = self.known.lock().remove_faulty(|path| all_failed || is_named(path));
        let slots: Vec<u32> = match without_slot {
            _ if all_failed => {
                let all = 0..self.array.shared.geometry.members();
                all.filter(|&slot| members.state(slot) == MemberState::Failed).collect()
            }
            0 => vec![self.slot(member)?],
            _ => Vec::new(),
        };
        for &slot in &slots {
            let removed =
                self.shards.run_on(0, move |_| async move { manager().remove(slot).await }).map_err(gone)?;
            if !removed {
                let message = format!("member {member} is in use");
                return Err(Failure::new(ExitKind::MemberInUse, message).help("fail it first"));
            }
        }
        Ok(without_slot + slots.len())
    }

    /// Adds a device as a spare; it takes the place of a missing member at once. `force`: what is on it may go.
    ///
    /// # Errors
    /// It cannot be opened, holds something, is too small, is in use, or its superblock could not be written.
    pub fn add(&self, path: &Path, force: bool) -> Result<(), Failure> {
        let name = path.display().to_string();
        let problem = |kind, message: String| Failure::new(kind, format!("{name}: {message}"));
        if self.read_only {
            return Err(problem(ExitKind::MemberInUse, "the array is read-only".into()));
        }
        if self.array.shared.geometry.losses_survived() == 0 {
            let message = "a spare cannot help a RAID-0: what a member held that fails is lost";
            return Err(problem(ExitKind::BadGeometry, message.into()));
        }
        let refused = |wrong| Failure::from_problems("the device cannot be added", vec![wrong]);
        if !force {
            self.check_unused(path).map_err(refused)?;
        }
        let device = self.open_new(path).map_err(refused)?;
        self.check_blocks(&name, &device)?;
        self.clear_other_superblocks(path).map_err(refused)?;
        let bytes = device.info().size_bytes;
        let uuid = *uuid::Uuid::new_v4().as_bytes();
        let added = self.offer(device, async move |device| {
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

    /// Opens a device that is to come to the array. What the array has already is not waited for.
    pub(super) fn open_new(&self, path: &Path) -> Result<SharedDevice, Problem> {
        let identity = MemberFile::open(path)?.identity;
        let names: Vec<String> = self.known.lock().devices.keys().cloned().collect();
        let is_it =
            |name: &&String| MemberFile::open(Path::new(name)).is_ok_and(|known| known.identity == identity);
        let Some(name) = names.iter().find(is_it) else { return open_free_device(path) };
        let problem =
            Problem::new(ExitKind::MemberInUse, path, format!("this array has it already, as {name}"));
        Err(problem.help("if it, or what was there before it, has failed: twill remove failed"))
    }

    /// md's superblocks at places where this array has none: the next start might believe one that is newer. Nobody else
    /// writes to the device, which is held.
    fn clear_other_superblocks(&self, path: &Path) -> Result<(), Problem> {
        let from_io = |error: std::io::Error| Problem::from_io(path, "clear old superblocks of", &error);
        let minor = self.shards.run_on(0, async |_| {
            let keeper = Rc::clone(manager().keeper());
            (0..)
                .map_while(|slot| keeper.try_superblock(slot))
                .flatten()
                .next()
                .map(|own| own.minor_version())
        });
        let minor = minor.ok().flatten();
        let member = MemberFile::open_to_clear(path)?;
        let own = minor.and_then(|minor| minor.superblock_offset(member.device_bytes).ok());
        for found in superblocks::find_all(&member).map_err(from_io)? {
            if Some(found.offset) != own {
                member.write(found.offset, &[0; SUPERBLOCK_BYTES_MAX]).map_err(from_io)?;
            }
        }
        member.sync().map_err(from_io)
    }

    /// A device with larger blocks than the array's could not take every write.
    pub(super) fn check_blocks(&self, name: &str, device: &SharedDevice) -> Result<(), Failure> {
        let (block, array) = (device.info().logical_block_bytes, self.array.logical_block_bytes);
        if block <= array {
            return Ok(());
        }
        let message = format!("{name}: its logical blocks are {block} bytes, those of the array {array}");
        let help = "many NVMe drives can be formatted with smaller blocks (nvme format --lbaf); or stop the array and serve it \
                    with this device";
        Err(Failure::new(ExitKind::BadGeometry, message).help(help))
    }

    /// Has the manager take a device. One that it does not take is let go: else it would stay open and locked.
    pub(super) fn offer<T: Send + 'static>(
        &self,
        device: SharedDevice,
        take: impl AsyncFnOnce(Rc<HostDevice>) -> Result<T, NotAdded> + Send + 'static,
    ) -> Result<Result<T, NotAdded>, Failure> {
        let name = device.info().name.clone();
        {
            let mut known = self.known.lock();
            if known.devices.contains_key(&name) {
                let message = format!("{name}: a device that was a member under this name is still listed");
                let failure = Failure::new(ExitKind::MemberInUse, message);
                return Err(failure.help("let go of it first: twill remove failed"));
            }
            known.devices.insert(name.clone(), device.clone());
        }
        let taken = self
            .shards
            .run_on(0, move |context| async move { take(Rc::new(device.attach(&context.ring))).await });
        let taken = taken.map_err(gone)?;
        if taken.is_err() {
            self.known.lock().devices.remove(&name);
        }
        Ok(taken)
    }

    /// A device that holds nothing, or was a member of this array before, may be added without force.
    fn check_unused(&self, path: &Path) -> Result<(), Problem> {
        let member = MemberFile::open(path)?;
        let uuid = self.status().uuid;
        if superblock_of(&member).is_ok_and(|superblock| display_uuid(&superblock.set_uuid()) == uuid) {
            return Ok(());
        }
        let found = signatures::find(&member).map_err(|error| Problem::from_io(path, "read", &error))?;
        if found.is_empty() {
            return Ok(());
        }
        let problem = Problem::new(ExitKind::NeedsForce, path, format!("has {}", found.join(", ")));
        Err(problem.help("it would be overwritten: --force does it nevertheless"))
    }

    /// The slot that a person names by number or path.
    pub(super) fn slot(&self, member: &str) -> Result<u32, Failure> {
        let count = self.array.shared.geometry.members();
        if let Some(slot) = member.parse().ok().filter(|slot| *slot < count) {
            return Ok(slot);
        }
        slot_of(&self.known.lock().paths, member).ok_or_else(|| {
            let message = format!("{member} is no member of the array");
            Failure::new(ExitKind::NotFound, message).help("name a slot number or a path that `status` shows")
        })
    }
}

/// The slot with this path, however it is written.
pub(super) fn slot_of(paths: &[Option<PathBuf>], member: &str) -> Option<u32> {
    let is_named = named(member);
    let found = paths.iter().position(|path| path.as_ref().is_some_and(|path| is_named(path)));
    found.and_then(|slot| u32::try_from(slot).ok())
}

/// Whether a path is the one that a person names, however both are written.
pub(super) fn named(member: &str) -> impl Fn(&Path) -> bool + use<> {
    let given = PathBuf::from(member);
    let wanted = std::fs::canonicalize(&given).unwrap_or_else(|_| given.clone());
    move |path| path == given || std::fs::canonicalize(path).is_ok_and(|path| path == wanted)
}
