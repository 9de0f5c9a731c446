//! The devices that are to be members: what is on them, how they are cut into zones, and whether they may be taken.

use std::collections::HashMap;
use std::fs::{self, OpenOptions as FileOptions};
use std::path::{Path, PathBuf};

use engine::array::zoned::plan::DeviceZones;
use engine::device::{Device as _, DeviceError};
use engine::zone_device::{Zone, ZoneAccess, ZoneDevice as _, ZoneState, ZonedInfo};
use host::device::OpenOptions;
use host::device::zoned::{AccessChoice, SharedZones, look};
use host::shard::{ShardOptions, Shards};

use super::super::checks::{future_path, same_as};
use crate::arguments::{CreateArguments, MemberAccess};
use crate::bytes;
use crate::counted::counted;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem, open_problem};
use crate::probe::contents::check_empty;
use crate::probe::member_file::MemberFile;
use crate::probe::signatures::{self, Signature};
use crate::serving::open_device;

/// Software zones by default: a member has as many, or fewer and larger ones.
const ZONES_DEFAULT: u64 = 64;
/// The largest software zone by default.
const ZONE_BYTES_DEFAULT_MAX: u64 = 256 << 20;
/// Software zones that an operator may ask for.
const ZONE_BYTES: std::ops::RangeInclusive<u64> = 256 << 10..=2 << 30;

/// Whether a path is a zoned block device.
pub fn is_zoned_drive(path: &Path) -> bool {
    look(path).is_ok()
}

/// What was named, judged without a look into zones.
pub struct Members {
    /// As they were named.
    pub paths: Vec<PathBuf>,
    /// What each held.
    found: Vec<Vec<Signature>>,
    /// Sizes of those that are ordinary devices or files; none of zoned drives.
    ordinary_bytes: Vec<Option<u64>>,
    /// Those that are files to be made.
    missing: Vec<PathBuf>,
}

/// Files that were made, to be taken back if no array comes of them.
pub struct Made(Vec<PathBuf>);

impl Made {
    /// Removes them.
    pub fn take_back(self) {
        for path in self.0 {
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!("cannot remove {}: {error}", path.display());
            }
        }
    }
}

impl Members {
    /// Looks at every member.
    ///
    /// # Errors
    /// All problems of all members.
    pub fn look_at(arguments: &CreateArguments) -> Result<Self, Failure> {
        let mut problems = Vec::new();
        let mut seen = HashMap::new();
        let mut members =
            Members { paths: Vec::new(), found: Vec::new(), ordinary_bytes: Vec::new(), missing: Vec::new() };
        for path in &arguments.members {
            if let Some(first) = same_as(path, &mut seen) {
                let what = format!("is the same file or device as {}", first.display());
                problems.push(Problem::new(ExitKind::Ambiguous, path, what).help("name each member once"));
                continue;
            }
            match members.look_at_one(path, arguments) {
                Ok(()) => members.paths.push(path.clone()),
                Err(problem) => problems.push(problem),
            }
        }
        if problems.is_empty() {
            return Ok(members);
        }
        let all = counted(arguments.members.len() as u64, "member");
        let message = format!("no array was made: {} of {all} cannot be taken", problems.len());
        Err(Failure::from_problems(message, problems))
    }

    fn look_at_one(&mut self, path: &Path, arguments: &CreateArguments) -> Result<(), Problem> {
        let member = match MemberFile::open_held(path) {
            Ok(member) => member,
            Err(problem) if problem.kind == ExitKind::NotFound => {
                let folder_is_there = future_path(path).is_some() && path.symlink_metadata().is_err();
                return match arguments.create_files {
                    Some(bytes) if folder_is_there => {
                        self.missing.push(path.to_path_buf());
                        self.found.push(Vec::new());
                        self.ordinary_bytes.push(Some(bytes));
                        Ok(())
                    }
                    Some(_) => Err(problem.help("its folder is not there, or it is a link to nothing")),
                    None => Err(problem.help("--create-files SIZE makes it as a sparse file")),
                };
            }
            Err(problem) => return Err(problem),
        };
        let is_drive = is_zoned_drive(path);
        let found = signatures::find(&member)
            .map_err(|error| Problem::from_io(path, "look at what is on it", &error))?;
        // Of a drive what its zones hold counts, by their pointers: contents beyond them mean nothing.
        if !is_drive && !arguments.force {
            check_empty(&member, &found)?;
        }
        self.ordinary_bytes.push((!is_drive).then_some(member.device_bytes));
        self.found.push(if is_drive { Vec::new() } else { found });
        Ok(())
    }

    /// Makes the files that are not there yet.
    ///
    /// # Errors
    /// [`ExitKind::IoError`]; none is left.
    pub fn make_files(&self, arguments: &CreateArguments) -> Result<Made, Failure> {
        let mut made = Made(Vec::new());
        for path in &self.missing {
            let file = FileOptions::new()
                .write(true)
                .create_new(true)
                .open(path)
                .inspect(|_| made.0.push(path.clone()));
            let sized = file.and_then(|file| file.set_len(arguments.create_files.unwrap_or(0)));
            if let Err(error) = sized {
                made.take_back();
                let problem = Problem::from_io(path, "make the file", &error);
                return Err(Failure::from_problems("no array was made", vec![problem]));
            }
        }
        Ok(made)
    }

    /// What a member held.
    pub fn erased(&self, slot: usize) -> Vec<String> {
        let mut words: Vec<String> = self.found[slot].iter().map(|found| found.words.clone()).collect();
        words.dedup();
        words
    }

    /// Opens and locks all of them, cut into zones, on a shard.
    ///
    /// # Errors
    /// What is wrong with which.
    pub fn open(&self, arguments: &CreateArguments) -> Result<OpenMembers, Failure> {
        let zone_bytes = self.zone_bytes(arguments)?;
        let mut problems = Vec::new();
        let mut shared = Vec::new();
        for (path, ordinary) in self.paths.iter().zip(&self.ordinary_bytes) {
            match open_one(path, ordinary.is_some(), zone_bytes, arguments) {
                Ok(zones) => shared.push(zones),
                Err(problem) => problems.push(problem),
            }
        }
        if !problems.is_empty() {
            return Err(Failure::from_problems("no array was made", problems));
        }
        let shards = Shards::start(1, &ShardOptions::default(), |_| {});
        let shards = shards
            .map_err(|error| Failure::new(ExitKind::IoError, format!("cannot start a thread: {error}")))?;
        let paths = self.paths.clone();
        let found = self.found.clone();
        let opened = shared.clone();
        let looked = shards.run_on(0, move |context| async move {
            let mut looked = Vec::new();
            for device in &opened {
                let Some(device) = device.attach(&context.ring) else { return Err(None) };
                let zones = device.report(0..device.zoned().zones).await.map_err(Some)?;
                looked.push((device.zoned().clone(), device.info().logical_block_bytes, zones));
            }
            Ok::<_, Option<DeviceError>>(looked)
        });
        let looked = looked.map_err(|error| Failure::new(ExitKind::Internal, error.to_string()))?;
        let looked = looked.map_err(|error: Option<DeviceError>| match error {
            None => Failure::new(ExitKind::NoDriver, "this system carries no commands of NVMe")
                .help("write the zones in order: --member-access write"),
            Some(error) => Failure::new(ExitKind::IoError, format!("no array was made: {error}")),
        })?;
        Ok(OpenMembers { paths, found, shared, looked, shards })
    }

    fn zone_bytes(&self, arguments: &CreateArguments) -> Result<u64, Failure> {
        let ordinary: Vec<u64> = self.ordinary_bytes.iter().flatten().copied().collect();
        let Some(smallest) = ordinary.iter().min() else {
            return match arguments.zoned.zone_size {
                None => Ok(0),
                Some(_) => {
                    let message = "--zone-size makes software zones, and all members are zoned drives, which have their own";
                    Err(Failure::new(ExitKind::Usage, message).help("leave out --zone-size"))
                }
            };
        };
        let wanted = arguments.zoned.zone_size.unwrap_or_else(|| {
            let size = (smallest / ZONES_DEFAULT).clamp(*ZONE_BYTES.start(), ZONE_BYTES_DEFAULT_MAX);
            1 << size.ilog2()
        });
        if ZONE_BYTES.contains(&wanted) && wanted.is_power_of_two() {
            return Ok(wanted);
        }
        let message =
            format!("software zones of {}: a power of two from 256K to 2G is wanted", bytes::human(wanted));
        Err(Failure::new(ExitKind::BadGeometry, message))
    }
}

fn open_one(
    path: &Path,
    is_ordinary: bool,
    zone_bytes: u64,
    arguments: &CreateArguments,
) -> Result<SharedZones, Problem> {
    let opened = if is_ordinary {
        SharedZones::place(open_device(path, false, true)?, zone_bytes)
    } else {
        let access = match arguments.zoned.member_access {
            None | Some(MemberAccess::Auto) => AccessChoice::Auto,
            Some(MemberAccess::Append) => AccessChoice::Append,
            Some(MemberAccess::Write) => AccessChoice::InOrder,
        };
        SharedZones::open(path, &OpenOptions::default(), access)
    };
    opened.map_err(|error| open_problem(path, &error))
}

/// Members that are open and locked, and a shard for their I/O.
pub struct OpenMembers {
    /// As they were named.
    pub paths: Vec<PathBuf>,
    /// What each held.
    pub found: Vec<Vec<Signature>>,
    /// The devices.
    pub shared: Vec<SharedZones>,
    /// Their zones.
    looked: Vec<(ZonedInfo, u32, Vec<Zone>)>,
    /// The shard.
    pub shards: Shards,
}

impl OpenMembers {
    /// How they are cut.
    pub fn zones(&self) -> Vec<DeviceZones> {
        let zones = |(path, (zoned, unit, _)): (&PathBuf, &(ZonedInfo, u32, Vec<Zone>))| DeviceZones {
            name: path.display().to_string(),
            logical_block_bytes: *unit,
            zoned: zoned.clone(),
        };
        self.paths.iter().zip(&self.looked).map(zones).collect()
    }

    /// Refuses drives whose zones hold something, unless forced, and those whose first zones cannot hold a superblock log.
    ///
    /// # Errors
    /// [`ExitKind::NeedsForce`], or what is wrong with which drive.
    pub fn check_contents(&self, force: bool) -> Result<(), Failure> {
        let drives =
            self.paths.iter().zip(&self.looked).filter(|(_, (zoned, ..))| zoned.access != ZoneAccess::Placed);
        let problems: Vec<Problem> =
            drives.filter_map(|(path, (_, _, zones))| problem_of(path, zones, force)).collect();
        match problems.is_empty() {
            true => Ok(()),
            false => Err(Failure::from_problems("no array was made", problems)),
        }
    }
}

fn problem_of(path: &Path, zones: &[Zone], force: bool) -> Option<Problem> {
    let conventional = zones.iter().filter(|zone| zone.state == ZoneState::NoPointer).count();
    if conventional > 0 {
        let zones = counted(conventional as u64, "conventional zone");
        let what = format!(
            "has {zones}, which no write pointer guards: only drives whose zones are all sequential are taken"
        );
        return Some(Problem::new(ExitKind::Unsupported, path, what));
    }
    let is_worn = |zone: &&Zone| matches!(zone.state, ZoneState::ReadOnly | ZoneState::Offline);
    if let Some(zone) = zones.iter().take(2).find(is_worn) {
        let what = format!(
            "its zone {} is {}, and the first two hold the superblocks",
            zone.number,
            zone.state.words()
        );
        return Some(Problem::new(ExitKind::Unsupported, path, what));
    }
    let held = zones.iter().filter(|zone| zone.state != ZoneState::Empty && !is_worn(zone)).count();
    if held > 0 && !force {
        let what = format!("{held} of its zones hold something");
        return Some(
            Problem::new(ExitKind::NeedsForce, path, what)
                .help("--force empties them: what is there is lost"),
        );
    }
    None
}
