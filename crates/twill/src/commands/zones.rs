//! `zones`: how the zones of a device are, as `blkzone report` says it, and whether a device keeps to the rules of zones.

use std::ops::Range;

use engine::device::Device as _;
use engine::zone_device::conformance::{self, conforms, worn_zone_conforms};
use engine::zone_device::{Zone, ZoneAccess, ZoneDevice as _, ZoneState, ZonedInfo};
use host::device::zoned::{AccessChoice, HostZones, SharedZones, look};
use host::device::{DeviceSpec, OpenError, OpenErrorKind, OpenOptions};
use host::shard::{ShardOptions, Shards};
use serde::Serialize;

use super::output::Output;
use crate::arguments::{MemberAccess, ZonesArguments};
use crate::bytes;
use crate::counted::counted;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// What `zones` answers.
#[derive(Debug, Serialize)]
struct Answer {
    path: String,
    zone_bytes: u64,
    capacity_bytes: u64,
    open_max: Option<u32>,
    active_max: Option<u32>,
    zones: Vec<Zone>,
}

/// What a trial answers.
#[derive(Debug, Serialize)]
struct Tried {
    path: String,
    access: ZoneAccess,
    metadata_bytes: u32,
    /// The first zone that was written, and how many.
    first_zone: u32,
    zones: u32,
    /// Read-only and offline zones that were tried as such.
    worn_zones: Vec<u32>,
}

/// Prints zones, or tries them.
///
/// # Errors
/// It is no zoned device, its zones hold something, or it does not keep to the rules of zones.
pub fn run(arguments: &ZonesArguments, output: Output) -> Result<(), Failure> {
    let path = &arguments.member;
    if arguments.is_trial {
        let tried = trial(arguments)?;
        return output.print(&tried, tried_words);
    }
    let (ZonedInfo { zone_bytes, capacity_bytes, open_max, active_max, .. }, zones) =
        look(path).map_err(|error| not_opened(&error))?;
    let path = path.display().to_string();
    output.print(&Answer { path, zone_bytes, capacity_bytes, open_max, active_max, zones }, words)
}

fn words(answer: &Answer) -> String {
    let limit = |limit: Option<u32>, what: &str| match limit {
        Some(most) => format!("at most {most} {what}"),
        None => format!("any number {what}"),
    };
    let mut text = format!(
        "{}: {} of {}, capacity {}; {}, {}\n",
        answer.path,
        counted(answer.zones.len() as u64, "zone"),
        bytes::human(answer.zone_bytes),
        bytes::human(answer.capacity_bytes),
        limit(answer.open_max, "open"),
        limit(answer.active_max, "active"),
    );
    for zones in answer.zones.chunk_by(is_like) {
        let (first, last) = (zones[0], zones[zones.len() - 1]);
        let numbers = match zones.len() {
            1 => format!("zone {}", first.number),
            _ => format!("zones {} to {}", first.number, last.number),
        };
        let written = match first.pointer_bytes {
            Some(pointer) if first.state != ZoneState::Empty => {
                format!(", written to {} of {}", bytes::human(pointer), bytes::human(first.capacity_bytes))
            }
            _ => String::new(),
        };
        text += &format!("{numbers}: {}{written}\n", first.state.words());
    }
    text
}

/// Whether two zones are said in one line: those that differ in nothing but their number, and hold nothing or all.
fn is_like(one: &Zone, next: &Zone) -> bool {
    let is_plain = !one.state.is_active();
    is_plain && one.state == next.state && one.capacity_bytes == next.capacity_bytes
}

/// Tries a device.
fn trial(arguments: &ZonesArguments) -> Result<Tried, Failure> {
    let path = &arguments.member;
    let shared = open(arguments).map_err(|error| not_opened(&error))?;
    let not_started = |error: std::io::Error| Failure::from_io("start a thread for", path, &error);
    let shards = Shards::start(1, &ShardOptions::default(), |_| {}).map_err(not_started)?;
    let (force, name) = (arguments.force, path.display().to_string());
    let tried = shards.run_on(0, move |context| async move {
        match shared.attach(&context.ring) {
            Some(device) => try_device(&device, name, force).await,
            None => Err(Failure::new(ExitKind::NoDriver, "this system carries no commands of NVMe")
                .help("try --member-access write")),
        }
    });
    tried.map_err(|error| Failure::new(ExitKind::Internal, error.to_string()))?
}

fn open(arguments: &ZonesArguments) -> Result<SharedZones, OpenError> {
    let options = OpenOptions::default();
    let access = match arguments.member_access {
        MemberAccess::Auto => AccessChoice::Auto,
        MemberAccess::Append => AccessChoice::Append,
        MemberAccess::Write => AccessChoice::InOrder,
    };
    match arguments.zone_size {
        None => SharedZones::open(&arguments.member, &options, access),
        Some(zone_bytes) => {
            let device = DeviceSpec::Path(arguments.member.clone()).open(&options)?;
            SharedZones::place(device, zone_bytes)
        }
    }
}

async fn try_device(device: &HostZones, path: String, force: bool) -> Result<Tried, Failure> {
    let info = device.zoned().clone();
    let zones = device
        .report(0..info.zones)
        .await
        .map_err(|error| Failure::new(ExitKind::IoError, format!("{path}: {error}")))?;
    let range = range_to_try(&info, &zones).ok_or_else(|| {
        let what = format!("{path}: too few zones side by side that can be written");
        Failure::new(ExitKind::BadGeometry, what)
    })?;
    let holds_something =
        zones[range.start as usize..range.end as usize].iter().any(|zone| zone.state != ZoneState::Empty);
    if holds_something && !force {
        let what = format!(
            "{path}: a trial empties zones {} to {}, which may hold something",
            range.start,
            range.end - 1
        );
        return Err(Failure::new(ExitKind::NeedsForce, what).help("--force tries them all the same"));
    }
    let worn = zones.iter().filter(|zone| matches!(zone.state, ZoneState::ReadOnly | ZoneState::Offline));
    let worn: Vec<Zone> = worn.copied().collect();
    let broken = |what: String| {
        let message = format!("{path} does not keep to the rules of zones: {what}");
        Failure::new(ExitKind::Unsupported, message)
            .help("an array on it could lose data: do not use it as a member in this way")
    };
    conforms(device, range.start).await.map_err(broken)?;
    for zone in &worn {
        worn_zone_conforms(device, zone.number, zone.state).await.map_err(broken)?;
    }
    device.flush().await.map_err(|error| broken(error.to_string()))?;
    Ok(Tried {
        path,
        access: info.access,
        metadata_bytes: info.metadata_bytes,
        first_zone: range.start,
        zones: range.end - range.start,
        worn_zones: worn.iter().map(|zone| zone.number).collect(),
    })
}

/// The first zones side by side that a trial can write: as many as it needs, one more than may be active included, if there are
/// as many.
fn range_to_try(info: &ZonedInfo, zones: &[Zone]) -> Option<Range<u32>> {
    let can_write = |zone: &Zone| match info.access {
        ZoneAccess::Placed => true,
        _ => !matches!(zone.state, ZoneState::ReadOnly | ZoneState::Offline | ZoneState::NoPointer),
    };
    let all = info.active_max.map_or(conformance::ZONES, |most| (most + 1).max(conformance::ZONES));
    [all, conformance::ZONES].into_iter().find_map(|count| {
        let found = zones.windows(count as usize).find(|zones| zones.iter().all(can_write))?;
        // Without room for one more than may be active, the limit must lie beyond the last zone.
        let first = found[0].number;
        let is_whole = count == all || info.active_max.is_none_or(|most| first + most >= info.zones);
        is_whole.then_some(first..first + count)
    })
}

fn tried_words(tried: &Tried) -> String {
    let how = match tried.access {
        ZoneAccess::Append => "appends",
        ZoneAccess::Sequential => "writes in order",
        ZoneAccess::Placed => "software zones",
    };
    let metadata = match tried.metadata_bytes {
        0 => String::new(),
        bytes => format!(" with {bytes} bytes of metadata a block"),
    };
    let worn = match tried.worn_zones.len() as u64 {
        0 => String::new(),
        count => format!(" and {}", counted(count, "worn zone")),
    };
    let zones = counted(tried.zones, "zone");
    format!("{} keeps to the rules of zones: {how}{metadata}, tried on {zones}{worn}", tried.path)
}

fn not_opened(error: &OpenError) -> Failure {
    let kind = match error.kind {
        OpenErrorKind::NotFound => ExitKind::NotFound,
        OpenErrorKind::Permission => ExitKind::Permission,
        OpenErrorKind::InUse => ExitKind::MemberInUse,
        OpenErrorKind::WrongType => ExitKind::NotAMember,
        OpenErrorKind::TooSmall => ExitKind::BadGeometry,
        _ => ExitKind::IoError,
    };
    Failure::new(kind, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones(states: &[ZoneState]) -> Vec<Zone> {
        let zone = |(number, state): (u32, &ZoneState)| Zone {
            number,
            state: *state,
            capacity_bytes: 1 << 20,
            pointer_bytes: state.is_active().then_some(8192),
        };
        (0..).zip(states).map(zone).collect()
    }

    fn info(count: u32, active_max: Option<u32>) -> ZonedInfo {
        ZonedInfo {
            access: ZoneAccess::Append,
            zones: count,
            zone_bytes: 2 << 20,
            capacity_bytes: 1 << 20,
            record_bytes_max: 4096,
            metadata_bytes: 0,
            open_max: None,
            active_max,
        }
    }

    #[test]
    fn a_trial_takes_zones_that_can_be_written() {
        use ZoneState::{Closed, Empty, Full, NoPointer, Offline, ReadOnly};
        let states = [NoPointer, Empty, ReadOnly, Full, Empty, Closed, Empty, Offline];
        for (active_max, expected) in [
            (None, Some(3..6)),
            (Some(3), Some(3..7)),
            (Some(2), Some(3..6)),
            (Some(4), None), // five are not side by side, and one more than four would be
            (Some(14), Some(3..6)),
        ] {
            assert_eq!(range_to_try(&info(8, active_max), &zones(&states)), expected, "{active_max:?}");
        }
    }

    #[test]
    fn zones_that_are_alike_share_a_line() {
        use ZoneState::{Empty, Full, ImplicitlyOpen};
        let zones = zones(&[Full, Full, ImplicitlyOpen, ImplicitlyOpen, Empty]);
        let (zone_bytes, capacity_bytes) = (2 << 20, 1 << 20);
        let answer = Answer {
            path: "/dev/nvme0n1".to_owned(),
            zone_bytes,
            capacity_bytes,
            open_max: Some(14),
            active_max: None,
            zones,
        };
        let expected = "/dev/nvme0n1: 5 zones of 2 MiB, capacity 1 MiB; at most 14 open, any number active
zones 0 to 1: full
zone 2: implicitly open, written to 8 KiB of 1 MiB
zone 3: implicitly open, written to 8 KiB of 1 MiB
zone 4: empty
";
        assert_eq!(words(&answer), expected);
    }
}
