//! The array that comes of what the command line asks for and of the members. No I/O.

use std::time::{SystemTime, UNIX_EPOCH};

use engine::limits::BLOCK_BYTES;
use layout::geometry::{Geometry, GeometryError, Layout, Level};
use layout::md_bitmap::Bitmap;
use layout::md_superblock::{
    CreateError, Created, DeviceRole, MinorVersion, NewArray, NewBitmap, NewMember, default_data_offset,
    raid0_zones,
};
use layout::units::{SECTOR_BYTES, Sectors, Slot};
use uuid::Uuid;

use super::bitmap;
use super::place::Place;
use super::wanted::{Wanted, bad_geometry};
use crate::arguments::CreateArguments;
use crate::array_name;
use crate::bytes;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};

/// How much the largest member may exceed the smallest without --force: mdadm's one percent.
const UNEQUAL_PERCENT: u64 = 1;

/// The least offset of data behind md's metadata: what mdadm takes for the smallest member. Superblock, bad-block log and any bitmap
/// that it makes room for fit.
const DATA_OFFSET_LEAST: u64 = 1 << 20;

/// What the superblocks say when parity is still to be made.
pub const RESYNC_NEEDED: &str = "parity or copies are made to agree when the array is first served (resync)";
/// The same where a member is missing.
const RESYNC_NEEDED_DEGRADED: &str = "parity is made to agree when the array is first served (resync), which \
     wants --force, since a member is missing";
const RESYNC_NONE_LEVEL: &str = "no resync: the level keeps nothing that could disagree";
const RESYNC_ASSUMED: &str = "no resync: --assume-clean says that parity or copies agree";
const RESYNC_BLANK: &str = "no resync: nothing was ever written on the members, so they are zeroes and agree";
const RESYNC_DEGRADED: &str = "no resync: with these members missing nothing is left that could disagree";

/// An array that can be made.
pub struct Plan {
    pub set_uuid: [u8; 16],
    pub geometry: Geometry,
    pub created: Created,
    /// One for each superblock.
    pub places: Vec<Place>,
    pub spares: u32,
    pub resync: &'static str,
}

impl Plan {
    /// The bitmap of every member: all bits are set if a resync is to come, as mdadm has it.
    pub fn bitmap(&self) -> Option<Bitmap> {
        let is_dirty = self.created.superblocks.iter().any(|superblock| superblock.resync_offset().is_some());
        Some(Bitmap::new(self.created.bitmap.clone()?, is_dirty))
    }
}

/// The array that these members make.
///
/// # Errors
/// [`ExitKind::BadGeometry`], and [`ExitKind::NeedsForce`] for members of unequal size.
pub fn make(arguments: &CreateArguments, wanted: Wanted, places: Vec<Place>) -> Result<Plan, Failure> {
    let set_uuid = Uuid::new_v4().into_bytes();
    let devices: Vec<NewMember> = places
        .iter()
        .map(|place| NewMember {
            device_bytes: place.device_bytes,
            device_uuid: Uuid::new_v4().into_bytes(),
            role: place.role,
        })
        .collect();
    if devices.is_empty() {
        return Err(Failure::new(ExitKind::NotEnoughMembers, "every member is missing"));
    }
    let data_offset = data_offset(arguments.data_offset, &wanted, &devices)?;
    let array = NewArray {
        minor: wanted.minor,
        set_uuid,
        name: full_name(wanted.name, &set_uuid),
        ctime_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        level: wanted.level,
        layout: wanted.layout,
        chunk_bytes: wanted.chunk_bytes,
        raid_disks: wanted.raid_disks,
        bitmap: NewBitmap::None,
        member_bytes: arguments.size,
        data_offset: Some(data_offset),
        clean: true,
    };
    let array = NewArray { layout: layout(&array, &devices, &places)?, ..array };
    let (_, geometry) = create(&array, &devices, &places)?;
    check_sizes(arguments, wanted.level, &places)?;
    let resync = resync(arguments, &geometry, &places, data_offset);
    let clean = ![RESYNC_NEEDED, RESYNC_NEEDED_DEGRADED].contains(&resync);
    let bitmap = bitmap::choose(arguments, &geometry)?;
    let array = NewArray { clean, bitmap, ..array };
    let (created, geometry) = create(&array, &devices, &places)?;
    let spares = places.iter().filter(|place| place.role == DeviceRole::Spare).count() as u32;
    Ok(Plan { set_uuid, geometry, created, places, spares, resync })
}

fn create(array: &NewArray, devices: &[NewMember], places: &[Place]) -> Result<(Created, Geometry), Failure> {
    let created = array.create(devices).map_err(|error| explained(error, places, array.member_bytes))?;
    let geometry = match array.level {
        Level::Raid0 => raid0_zones(&created.superblocks).map(|zones| zones.geometry()).map_err(Into::into),
        _ => created.superblocks[0].geometry(),
    };
    let geometry = geometry.map_err(|error| Failure::new(ExitKind::BadGeometry, error.to_string()))?;
    Ok((created, geometry))
}

/// As was asked for. Where the members of a RAID-0 differ in size and nothing was, by the rule of kernels from 3.14 on.
fn layout(array: &NewArray, devices: &[NewMember], places: &[Place]) -> Result<Layout, Failure> {
    if array.level != Level::Raid0 {
        return Ok(array.layout);
    }
    let created = array.create(devices).map_err(|error| explained(error, places, array.member_bytes))?;
    let needs_one = raid0_zones(&created.superblocks) == Err(GeometryError::ZonesNeedLayout);
    Ok(if needs_one { Layout::Raid0Alternate } else { array.layout })
}

/// Where data begins: as was asked for, or by the smallest member; of a large one the headroom could be all a small one has.
fn data_offset(asked: Option<u64>, wanted: &Wanted, devices: &[NewMember]) -> Result<Sectors, Failure> {
    let smallest = devices.iter().map(|device| device.device_bytes).min().unwrap_or(0);
    let Some(asked) = asked else {
        return Ok(default_data_offset(wanted.minor, smallest, wanted.chunk_bytes));
    };
    let least = match wanted.minor {
        MinorVersion::V1_0 => 0,
        MinorVersion::V1_1 | MinorVersion::V1_2 => DATA_OFFSET_LEAST,
    };
    if asked.is_multiple_of(BLOCK_BYTES as u64) && asked >= least {
        return Ok(Sectors(asked / SECTOR_BYTES));
    }
    let message = format!("--data-offset {}: data cannot begin there", bytes::human(asked));
    Err(Failure::new(ExitKind::BadGeometry, message).help(format!(
        "take a multiple of 4K, {} or more: md's metadata stands before it",
        bytes::human(least)
    )))
}

/// The name on the members: the one that was asked for, or the start of the UUID.
fn full_name(name: Option<String>, set_uuid: &[u8; 16]) -> String {
    let start = || set_uuid[..4].iter().map(|byte| format!("{byte:02x}")).collect();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    array_name::with_host(host.split('.').next().unwrap_or_default(), &name.unwrap_or_else(start))
}

fn explained(error: CreateError, places: &[Place], size: Option<u64>) -> Failure {
    match error {
        CreateError::DeviceTooSmall { device, device_bytes, data_offset } => {
            let what = format!(
                "has {}, and data would begin only at {}",
                bytes::human(device_bytes),
                bytes::human(data_offset.bytes())
            );
            let problem = Problem::new(ExitKind::BadGeometry, &places[device].path, what);
            Failure::from_problems("a member is too small", vec![problem.help("take a larger one")])
        }
        CreateError::Size { asked, most } => Failure::new(
            ExitKind::BadGeometry,
            format!("--size {} is more than the smallest member has", bytes::human(asked)),
        )
        .help(format!("the most is {most} bytes ({})", bytes::human(most))),
        CreateError::TooManyMissing { .. } => Failure::new(ExitKind::NotEnoughMembers, error.to_string())
            .help("give more members, or take a level that survives more losses"),
        CreateError::BitmapChunk { chunk_bytes, least } => Failure::new(
            ExitKind::BadGeometry,
            format!(
                "a bitmap of {} chunks does not fit beside the superblock",
                bytes::human(chunk_bytes.into())
            ),
        )
        .help(format!("take --bitmap-chunk {} or more", bytes::short(least.into()))),
        CreateError::Geometry(layout::geometry::GeometryError::MemberTooSmall { .. }) => {
            if let Some(asked) = size {
                let what = format!("--size {} is too little for a chunk", bytes::human(asked));
                return Failure::new(ExitKind::BadGeometry, what)
                    .help("take a larger --size, or leave it out");
            }
            let smallest = places.iter().min_by_key(|place| place.device_bytes).expect("there are members");
            let what = format!("has {}: too little for a chunk", bytes::human(smallest.device_bytes));
            let problem = Problem::new(ExitKind::BadGeometry, &smallest.path, what);
            Failure::from_problems("a member is too small", vec![problem.help("take a larger one")])
        }
        CreateError::Geometry(error) => bad_geometry(&error),
        other => Failure::new(ExitKind::BadGeometry, other.to_string())
            .help("twill create --help says which levels, layouts and sizes there are"),
    }
}

/// Unequal members waste space, but at RAID-0. Without --size, they may be devices that were mixed up.
fn check_sizes(arguments: &CreateArguments, level: Level, places: &[Place]) -> Result<(), Failure> {
    let sizes = || places.iter().map(|place| place.device_bytes);
    let (least, most) = (sizes().min().unwrap_or(0), sizes().max().unwrap_or(0));
    let is_wanted = level == Level::Raid0 || arguments.force || arguments.size.is_some();
    if is_wanted || most - least <= most / 100 * UNEQUAL_PERCENT {
        return Ok(());
    }
    let smallest = places.iter().find(|place| place.device_bytes == least).expect("there is a smallest");
    let problems = places.iter().filter(|place| place.device_bytes - least > most / 100 * UNEQUAL_PERCENT);
    let problems = problems.map(|place| {
        let what = format!(
            "has {}, of which {} would not be used: {} limits the array with {}",
            bytes::human(place.device_bytes),
            bytes::human(place.device_bytes - least),
            smallest.path.display(),
            bytes::human(least)
        );
        Problem::new(ExitKind::NeedsForce, &place.path, what)
    });
    Err(Failure::from_problems("members differ in size by more than 1 %", problems.collect())
        .help("say how much to use of each with --size, or accept it with --force"))
}

/// Whether parity or copies agree already, and why.
fn resync(
    arguments: &CreateArguments,
    geometry: &Geometry,
    places: &[Place],
    data_offset: Sectors,
) -> &'static str {
    if geometry.level() == Level::Raid0 {
        return RESYNC_NONE_LEVEL;
    }
    if arguments.assume_clean {
        return RESYNC_ASSUMED;
    }
    let there = |slot: Slot| places.iter().any(|place| place.role == DeviceRole::Active(slot));
    let present: Vec<Slot> = geometry.slots().filter(|slot| there(*slot)).collect();
    let without = |lost: Slot| geometry.survives(|slot| slot == lost || !there(slot));
    if !present.iter().any(|slot| without(*slot)) {
        return RESYNC_DEGRADED;
    }
    let blank = |place: &Place| match &place.member {
        Some(member) => member.is_hole(data_offset.bytes(), geometry.member_bytes()),
        None => true,
    };
    let active = |place: &&Place| matches!(place.role, DeviceRole::Active(_));
    if places.iter().filter(active).all(blank) {
        RESYNC_BLANK
    } else if present.len() < geometry.members() as usize && geometry.parity_chunks() > 0 {
        RESYNC_NEEDED_DEGRADED
    } else {
        RESYNC_NEEDED
    }
}
