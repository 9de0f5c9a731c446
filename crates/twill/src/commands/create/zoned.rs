//! `create --metadata zoned`: a log-structured array over zoned drives, or over ordinary devices and files that are cut into
//! software zones. Everything is judged before the first byte is written.

mod members;
mod write;

use engine::array::zoned::plan::{DeviceZones, NewZonedArray, PlanRefusal, RESERVE_PERCENT, Wanted, plan};
use engine::log::config::OpenCounts;
use layout::geometry::Level;
use layout::md_superblock::display_uuid;
use layout::zoned::{Access, BLOCK_BYTES, Carrier, Columns, MapEntryBytes};
use serde::Serialize;
use uuid::Uuid;

use crate::arguments::{CarrierChoice, CreateArguments, ZonedArguments};
use crate::array_name;
use crate::bytes;
use crate::commands::output::Output;
use crate::counted::counted;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::plain::plain;
use crate::serving::{now_unix_s, random};
use members::Members;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// What `create` answers of a zoned array.
#[derive(Debug, Serialize)]
struct Answer {
    name: String,
    uuid: String,
    level: String,
    metadata: &'static str,
    size_bytes: u64,
    reserve_bytes: u64,
    raid_devices: u8,
    access: &'static str,
    carrier: &'static str,
    zone_bytes: u64,
    zones: u32,
    small_record_bytes: u64,
    large_record_bytes: u64,
    members: Vec<AnswerMember>,
    /// `--metadata zoned` was not given: all members are zoned drives.
    implied: bool,
}

#[derive(Debug, Serialize)]
struct AnswerMember {
    path: String,
    device_uuid: String,
    /// What it held, and --force gave up.
    erased: Vec<String>,
    /// Zones that held something and were emptied.
    zones_reset: u32,
}

/// Whether a zoned array is meant: by name, or because all members are zoned drives.
pub fn is_wanted(arguments: &CreateArguments) -> bool {
    match arguments.metadata.as_deref() {
        Some(metadata) => metadata == "zoned",
        None => {
            !arguments.members.is_empty()
                && arguments.members.iter().all(|path| members::is_zoned_drive(path))
        }
    }
}

/// Refuses options of zoned arrays for others.
///
/// # Errors
/// [`ExitKind::Usage`] names the option.
pub fn check_not_given(zoned: &ZonedArguments) -> Result<(), Failure> {
    let given = [
        ("--zone-size", zoned.zone_size.is_some()),
        ("--small-chunk", zoned.small_chunk.is_some()),
        ("--large-chunk", zoned.large_chunk.is_some()),
        ("--group", zoned.group.is_some()),
        ("--open-small", zoned.open_small.is_some()),
        ("--open-large", zoned.open_large.is_some()),
        ("--reserve", zoned.reserve.is_some()),
        ("--map-entry", zoned.map_entry.is_some()),
        ("--carrier", zoned.carrier.is_some()),
        ("--member-access", zoned.member_access.is_some()),
    ];
    match given.into_iter().find(|(_, is_given)| *is_given) {
        None => Ok(()),
        Some((option, _)) => {
            let failure = Failure::new(ExitKind::Usage, format!("{option} is for zoned arrays only"));
            Err(failure.help("add --metadata zoned, or leave it out"))
        }
    }
}

/// Makes a zoned array.
///
/// # Errors
/// Why not; nothing was written then, or the error says what was.
pub fn run(arguments: &CreateArguments, output: Output) -> Result<(), Failure> {
    let wanted = wanted(arguments)?;
    let name = arguments.name.as_deref().map(array_name::checked).transpose()?;
    let members = Members::look_at(arguments)?;
    let made = members.make_files(arguments)?;
    let result = make(arguments, &wanted, name, &members);
    match result {
        Ok(answer) => output.print(&answer, words),
        Err(failure) => {
            made.take_back();
            Err(failure)
        }
    }
}

fn make(
    arguments: &CreateArguments,
    wanted: &Wanted,
    name: Option<String>,
    members: &Members,
) -> Result<Answer, Failure> {
    let opened = members.open(arguments)?;
    let devices: Vec<DeviceZones> = opened.zones();
    opened.check_contents(arguments.force)?;
    let (plan, zones) = plan(wanted, &devices).map_err(|refusal| refused(&refusal))?;
    let set_uuid = *Uuid::new_v4().as_bytes();
    let new = NewZonedArray {
        set_uuid,
        name: name.unwrap_or_else(|| display_uuid(&set_uuid)[..8].to_owned()),
        devices: devices.iter().map(|_| *Uuid::new_v4().as_bytes()).collect(),
        plan,
        zones,
        now_unix_s: now_unix_s(),
        random: random(),
    };
    let reset = write::write(&opened, &new)?;
    let member = |(slot, zones_reset): (usize, u32)| AnswerMember {
        path: members.paths[slot].display().to_string(),
        device_uuid: display_uuid(&new.devices[slot]),
        erased: members.erased(slot),
        zones_reset,
    };
    Ok(Answer {
        name: new.name.clone(),
        uuid: display_uuid(&set_uuid),
        level: new.plan.columns.level().to_string(),
        metadata: "zoned",
        size_bytes: new.plan.logical_blocks * BLOCK,
        reserve_bytes: new.plan.reserve_blocks * BLOCK,
        raid_devices: new.plan.columns.width(),
        access: match zones.access {
            Access::Append => "append",
            Access::Sequential => "sequential",
            Access::Placed => "placed",
        },
        carrier: if new.plan.carrier == Carrier::Oob { "oob" } else { "inband" },
        zone_bytes: u64::from(zones.zone_blocks) * BLOCK,
        zones: zones.zones,
        small_record_bytes: u64::from(new.plan.small_blocks) * BLOCK,
        large_record_bytes: u64::from(new.plan.large_blocks) * BLOCK,
        members: reset.into_iter().enumerate().map(member).collect(),
        implied: arguments.metadata.is_none(),
    })
}

/// Judges the words of the command line.
fn wanted(arguments: &CreateArguments) -> Result<Wanted, Failure> {
    check_others_not_given(arguments)?;
    let bad = |message: String| Failure::new(ExitKind::BadGeometry, message);
    let level: Level = arguments.level.parse().map_err(|error| bad(format!("{error}")))?;
    let count = arguments.members.len();
    if let Some(given) = arguments.raid_devices.filter(|wanted| *wanted as usize != count) {
        let message = format!("--raid-devices {given} wants {}, {count} given", counted(given, "member"));
        return Err(Failure::new(ExitKind::Usage, message));
    }
    let columns = u8::try_from(count).ok().and_then(|width| Columns::new(level, width));
    let columns = columns.ok_or_else(|| {
        let message = format!("{level} over {} makes no zoned array", counted(count as u64, "member"));
        bad(message).help(
            "level 0 takes 1 member or more, 4 and 5 take 2, 6 takes 3, 10 an even number (over 2 it is RAID-1); 64 at most",
        )
    })?;
    let blocks = |size: Option<u64>, option: &str| {
        let Some(size) = size else { return Ok(None) };
        let blocks = u16::try_from(size / BLOCK).ok().filter(|_| size.is_multiple_of(BLOCK) && size > 0);
        blocks.map(Some).ok_or_else(|| bad(format!("{option} is a multiple of 4K, below 256M")))
    };
    let zoned = &arguments.zoned;
    let open = OpenCounts {
        small: zoned.open_small.unwrap_or(OpenCounts::ONE.small),
        large: zoned.open_large.unwrap_or(OpenCounts::ONE.large),
        ..OpenCounts::ONE
    };
    if open.total() == 0 {
        let failure =
            Failure::new(ExitKind::Usage, "--open-small 0 and --open-large 0: nothing could be written");
        return Err(failure.help("leave one of them out"));
    }
    Ok(Wanted {
        columns,
        small_blocks: blocks(zoned.small_chunk, "--small-chunk")?,
        large_blocks: blocks(zoned.large_chunk, "--large-chunk")?,
        group: zoned.group,
        open,
        reserve_percent: zoned.reserve.unwrap_or(RESERVE_PERCENT),
        map_entry: match zoned.map_entry {
            Some(4) => MapEntryBytes::Four,
            None | Some(8) => MapEntryBytes::Eight,
            Some(_) => return Err(Failure::new(ExitKind::Usage, "--map-entry is 4 or 8")),
        },
        carrier: match zoned.carrier {
            None | Some(CarrierChoice::Auto) => None,
            Some(CarrierChoice::Oob) => Some(Carrier::Oob),
            Some(CarrierChoice::Inband) => Some(Carrier::Inband),
        },
    })
}

/// Refuses options of md arrays, which a zoned one has no use for.
fn check_others_not_given(arguments: &CreateArguments) -> Result<(), Failure> {
    let is_mirror = arguments.layout.as_deref() == Some("n2");
    let given = [
        ("--layout", arguments.layout.is_some() && !is_mirror, "where parity lies follows from the level"),
        ("--chunk", arguments.chunk.is_some(), "see --small-chunk and --large-chunk"),
        ("--size", arguments.size.is_some(), "all zones of a member are used"),
        (
            "--data-offset",
            arguments.data_offset.is_some(),
            "two zones hold superblocks, and data is in the others",
        ),
        (
            "--spare-devices",
            arguments.spare_devices > 0,
            "there is no rebuild of zoned arrays yet, so a spare would be of no use",
        ),
        ("--bitmap", arguments.bitmap.is_some(), "there is nothing to resync"),
        ("--bitmap-chunk", arguments.bitmap_chunk.is_some(), "there is nothing to resync"),
        ("--bitmap-mapping", arguments.bitmap_mapping.is_some(), "there is nothing to resync"),
        (
            "--consistency-policy",
            arguments.consistency_policy.is_some(),
            "only whole stripes are written, so a crash leaves nothing to resync",
        ),
        ("--assume-clean", arguments.assume_clean, "a new array holds nothing"),
        (
            "missing",
            arguments.members.iter().any(|path| path.as_os_str() == "missing"),
            "all members are there when a zoned array is made",
        ),
    ];
    match given.into_iter().find(|(_, is_given, _)| *is_given) {
        None => Ok(()),
        Some((option, _, why)) => {
            let failure = Failure::new(ExitKind::Usage, format!("{option} is not for a zoned array: {why}"));
            Err(failure.help(format!("leave out {option}")))
        }
    }
}

fn refused(refusal: &PlanRefusal) -> Failure {
    let failure = Failure::new(ExitKind::BadGeometry, format!("no array was made: {refusal}"));
    match refusal {
        PlanRefusal::TooFewZones { .. } => failure.help("take larger members, or smaller zones: --zone-size"),
        PlanRefusal::Limit { .. } => {
            failure.help("the drive cannot keep enough zones open for a log; `twill zones` prints its limits")
        }
        PlanRefusal::Differs { .. } => {
            failure.help("leave out the member that differs; drives that append and others agree with --member-access write")
        }
        _ => failure,
    }
}

fn words(answer: &Answer) -> String {
    let how = match answer.access {
        "append" => "written by appends",
        "sequential" => "written in order",
        _ => "of software",
    };
    let mut text = format!(
        "{}: {} over {}, {} usable and {} in reserve, {} zones of {} {how}, metadata {}\n",
        plain(&answer.name),
        answer.level,
        counted(answer.raid_devices, "member"),
        bytes::human(answer.size_bytes),
        bytes::human(answer.reserve_bytes),
        answer.zones,
        bytes::human(answer.zone_bytes),
        if answer.carrier == "oob" { "out of band" } else { "in band" },
    );
    if answer.implied {
        text += "all members are zoned drives, so the metadata is zoned: md's cannot be on them\n";
    }
    text += &format!("UUID {}, metadata {}\n", answer.uuid, answer.metadata);
    for member in &answer.members {
        if !member.erased.is_empty() {
            text += &format!("{} is no longer {}\n", plain(&member.path), member.erased.join(" or "));
        }
        if member.zones_reset > 0 {
            let zones = counted(member.zones_reset, "zone");
            text += &format!("{}: {zones} held something and were emptied\n", plain(&member.path));
        }
    }
    text
}
