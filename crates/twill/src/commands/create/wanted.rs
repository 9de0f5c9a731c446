//! What the command line asks for, as far as it can be judged without members.

use std::path::Path;

use engine::array::assemble::check_width;
use layout::geometry::{Geometry, GeometryError, Layout, Level};
use layout::md_superblock::{DeviceRole, MinorVersion};
use layout::units::Slot;

use crate::arguments::CreateArguments;
use crate::array_name;
use crate::bytes;
use crate::counted::counted;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// Chunk by default. mdadm takes 512 KiB; with smaller chunks, less data fills a stripe, which then needs no reads.
const CHUNK_BYTES_DEFAULT: u64 = 64 << 10;

/// What the command line asks for, as far as it can be judged without members.
pub struct Wanted {
    pub level: Level,
    pub layout: Layout,
    pub chunk_bytes: u32,
    pub minor: MinorVersion,
    pub name: Option<String>,
    /// Slots and spares in the order of the command line; `None` where a member is missing.
    pub roles: Vec<DeviceRole>,
    pub raid_disks: u32,
}

/// Judges the words of the command line.
///
/// # Errors
/// [`ExitKind::BadGeometry`] and [`ExitKind::Usage`].
pub fn wanted(arguments: &CreateArguments) -> Result<Wanted, Failure> {
    let bad = bad_geometry;
    let level: Level = arguments.level.parse().map_err(|error| {
        bad(&error).help("levels are 0, 1, 4, 5, 6 and 10; 5 survives one lost member, 6 two")
    })?;
    let layout = match &arguments.layout {
        Some(word) => Layout::parse(level, word).map_err(|error| bad(&error).help(layout_help(level)))?,
        None => Layout::default_for(level),
    };
    let chunk_bytes = chunk(arguments, level)?;
    let minor = match arguments.metadata.as_deref().unwrap_or("default") {
        "1" | "1.2" | "default" => MinorVersion::V1_2,
        "1.1" => MinorVersion::V1_1,
        "1.0" => MinorVersion::V1_0,
        other => {
            let message = format!("metadata {other}: Twill writes 1.2, 1.1, 1.0 and zoned");
            return Err(Failure::new(ExitKind::Unsupported, message).help("leave --metadata out for 1.2"));
        }
    };
    let name = arguments.name.as_deref().map(array_name::checked).transpose()?;
    check_spares(arguments, level)?;
    let (roles, raid_disks) = roles(arguments)?;
    // Wrong numbers of members and wrong chunks are found before any member is opened.
    let enough = u64::from(chunk_bytes).max(bytes_per_member_least(level));
    let geometry =
        Geometry::new(level, layout, raid_disks, chunk_bytes, enough).map_err(|error| bad(&error))?;
    check_width(&geometry).map_err(|refusal| {
        let failure = Failure::new(ExitKind::BadGeometry, refusal.to_string());
        failure.help("name fewer members, or make several arrays")
    })?;
    Ok(Wanted { level, layout, chunk_bytes, minor, name, roles, raid_disks })
}

/// A size that is enough for any array of the level: RAID-10 far needs more than one chunk of each member.
fn bytes_per_member_least(level: Level) -> u64 {
    if level == Level::Raid10 { 1 << 40 } else { 1 << 20 }
}

fn chunk(arguments: &CreateArguments, level: Level) -> Result<u32, Failure> {
    if level == Level::Raid1 {
        if arguments.chunk.is_some_and(|chunk| chunk != 0) {
            let failure = Failure::new(ExitKind::BadGeometry, "RAID-1 has no chunks");
            return Err(failure.help("leave out --chunk"));
        }
        return Ok(0);
    }
    let chunk = arguments.chunk.unwrap_or(CHUNK_BYTES_DEFAULT);
    u32::try_from(chunk).map_err(|_| {
        let message = format!("chunk of {}: a power of two from 4K to 64M is wanted", bytes::human(chunk));
        Failure::new(ExitKind::BadGeometry, message).help(CHUNK_HELP)
    })
}

const CHUNK_HELP: &str = "leave --chunk out for 64K, or give another power of two";

/// Level, layout, chunk and members that make no array.
pub(super) fn bad_geometry(error: &GeometryError) -> Failure {
    Failure::new(ExitKind::BadGeometry, error.to_string()).help(match error {
        GeometryError::Members { .. } => {
            "name as many members as the level takes, `missing` for one that is to come later; or choose another --level"
        }
        GeometryError::Chunk { .. } => CHUNK_HELP,
        _ => "twill create --help says which levels, layouts and sizes there are",
    })
}

fn layout_help(level: Level) -> String {
    match level {
        Level::Raid10 => "layouts of RAID-10: n2, f2, o2, with the number of copies".into(),
        Level::Raid0 => {
            "layouts of RAID-0: none is needed; where members differ in size alternate is taken, or original"
                .into()
        }
        _ => {
            let names: Vec<String> = Layout::parity_layouts(level).map(|layout| layout.to_string()).collect();
            if names.is_empty() {
                format!("{level} has one layout only; leave out --layout")
            } else {
                format!("layouts of {level}: {}", names.join(", "))
            }
        }
    }
}

/// Refuses spares at RAID-0, and spares without members.
fn check_spares(arguments: &CreateArguments, level: Level) -> Result<(), Failure> {
    let (spares, given) = (arguments.spare_devices as usize, arguments.members.len());
    if spares == 0 {
        return Ok(());
    }
    if level == Level::Raid0 {
        let message = "a spare cannot help a RAID-0: the contents of a failed member are lost";
        return Err(Failure::new(ExitKind::BadGeometry, message).help("leave out --spare-devices"));
    }
    if spares >= given {
        let message =
            format!("{spares} of {given} members are to be spares, which leaves none for the array");
        return Err(
            Failure::new(ExitKind::BadGeometry, message).help("name the members first, then the spares")
        );
    }
    Ok(())
}

fn roles(arguments: &CreateArguments) -> Result<(Vec<DeviceRole>, u32), Failure> {
    let given = arguments.members.len();
    let spares = arguments.spare_devices as usize;
    let active = given.saturating_sub(spares);
    if let Some(wanted) = arguments.raid_devices
        && wanted as usize != active
    {
        let message = format!(
            "--raid-devices {wanted} and --spare-devices {spares} want {}, {given} given",
            counted(u64::from(wanted) + spares as u64, "member")
        );
        return Err(
            Failure::new(ExitKind::Usage, message).help("write `missing` for a member that comes later")
        );
    }
    let too_many = |_| Failure::new(ExitKind::BadGeometry, format!("{given} members are too many"));
    let count = u16::try_from(active).map_err(too_many)?; // as many roles as md has
    let mut roles = Vec::with_capacity(given);
    for (i, path) in arguments.members.iter().enumerate() {
        if i < active {
            roles.push(DeviceRole::Active(Slot::of_index(i)));
        } else if is_missing(path) {
            return Err(Failure::new(ExitKind::Usage, "a spare cannot be missing; leave it out"));
        } else {
            roles.push(DeviceRole::Spare);
        }
    }
    Ok((roles, count.into()))
}

/// mdadm's word for a slot without a member.
pub fn is_missing(path: &Path) -> bool {
    path.as_os_str() == "missing"
}
