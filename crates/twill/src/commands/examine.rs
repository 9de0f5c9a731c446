//! `examine`: what a member's superblock says, in mdadm's words, or why it is not usable.

mod zoned;

use std::path::Path;

use layout::geometry::Level;
use layout::md_bitmap::{Bitmap, BitmapSuper};
use layout::md_superblock::{BadRange, DeviceRole, Features, Superblock, display_uuid};
use layout::units::{Sectors, Slot};
use serde::Serialize;

use super::output::Output;
use crate::arguments::ExamineArguments;
use crate::bytes;
use crate::counted::{counted, counted_as};
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::plain::plain;
use crate::probe::bad_blocks::bad_ranges_of;
use crate::probe::bitmap;
use crate::probe::member_file::MemberFile;
use crate::probe::superblocks::{self, superblock_of};
use crate::probe::zoned::{self as zoned_probe, FoundLog};
use crate::{remote, words};
use zoned::DescribedZones;

/// What `examine` answers.
#[derive(Debug, Serialize)]
struct Answer {
    members: Vec<Examined>,
}

/// One member.
#[derive(Debug, Serialize)]
struct Examined {
    path: String,
    device_bytes: Option<u64>,
    superblock: Option<Description>,
    /// What a member of a zoned array has instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    zoned_superblock: Option<zoned::Description>,
    /// What its zones hold, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    zones: Option<DescribedZones>,
    /// Superblocks at other places that are older or not usable.
    others: Vec<String>,
    problem: Option<Problem>,
}

/// A superblock in plain numbers and md's words.
#[derive(Debug, Serialize)]
struct Description {
    version: String,
    feature_map: u32,
    features: String,
    unsupported_features: Vec<String>,
    array_uuid: String,
    name: String,
    creation_unix_s: u64,
    level: String,
    layout: String,
    chunk_bytes: u32,
    raid_devices: u32,
    array_bytes: Option<u64>,
    used_member_bytes: u64,
    available_member_bytes: u64,
    data_offset_bytes: u64,
    super_offset_bytes: u64,
    unused_before_sectors: u64,
    unused_after_sectors: i64,
    clean: bool,
    resync_offset_bytes: Option<u64>,
    recovery_offset_bytes: Option<u64>,
    device_uuid: String,
    device_number: u32,
    /// md's flags of the device: write-mostly, failfast.
    device_flags: Vec<&'static str>,
    corrected_reads: u32,
    /// Recorded by md from Linux 6.19 on.
    logical_block_bytes: Option<u32>,
    device_role: String,
    slot: Option<Slot>,
    array_state: String,
    update_unix_s: u64,
    bitmap_sectors_from_superblock: Option<i64>,
    bitmap: Option<DescribedBitmap>,
    bad_block_log_entries: Option<u64>,
    bad_block_log_sectors_from_superblock: Option<i64>,
    /// What the log lists.
    bad_blocks: Vec<BadPlace>,
    /// Why it is not usable.
    #[serde(skip_serializing_if = "Option::is_none")]
    bad_blocks_problem: Option<String>,
    checksum: String,
    events: u64,
}

/// A range of the device that cannot be read, or whose contents are lost.
#[derive(Debug, Serialize)]
struct BadPlace {
    offset_bytes: u64,
    bytes: u64,
}

/// The bitmap beside a superblock, as mdadm --examine-bitmap describes it.
#[derive(Debug, Serialize)]
struct DescribedBitmap {
    /// Why it is not usable; all else is empty then.
    problem: Option<String>,
    events: Option<u64>,
    events_cleared: Option<u64>,
    chunk_bytes: Option<u32>,
    /// contiguous, or dblock: a bit stands for stripes all over.
    mapping: Option<&'static str>,
    daemon_sleep_s: Option<u32>,
    bits: Option<u64>,
    bits_set: Option<u64>,
    /// It is older than the superblock: all bits count as set.
    stale: Option<bool>,
}

/// Examines members.
///
/// # Errors
/// What is wrong with members without a usable superblock; the others are printed all the same.
pub fn run(arguments: &ExamineArguments, output: Output) -> Result<(), Failure> {
    remote::set(&arguments.of.remote)?;
    let members: Vec<Examined> =
        arguments.of.members.iter().map(|path| examine(path, arguments.segments)).collect();
    let problems: Vec<Problem> = members.iter().filter_map(|member| member.problem.clone()).collect();
    let answer = Answer { members };
    output
        .print(&answer, |answer| answer.members.iter().map(examined_words).collect::<Vec<_>>().join("\n"))?;
    if problems.is_empty() {
        return Ok(());
    }
    Err(Failure::from_problems("no usable superblock", problems).answered())
}

fn examine(path: &Path, segments: bool) -> Examined {
    let mut examined = Examined {
        path: path.display().to_string(),
        device_bytes: None,
        superblock: None,
        zoned_superblock: None,
        zones: None,
        others: Vec::new(),
        problem: None,
    };
    let member = match MemberFile::open(path) {
        Ok(member) => member,
        Err(problem) => return Examined { problem: Some(problem), ..examined },
    };
    examined.device_bytes = Some(member.device_bytes);
    match superblock_of(&member) {
        Ok(superblock) => {
            let chosen = superblock.offset().get();
            let found = superblocks::find_all(&member).unwrap_or_default();
            examined.others = found.iter().filter(|found| found.offset != chosen).map(other_words).collect();
            examined.superblock = Some(describe(&superblock, &member));
        }
        Err(problem) => examine_zoned(&member, segments, problem, &mut examined),
    }
    examined
}

/// Looks for a zoned array's superblock. Without one, `problem` stands: why there is none of md's.
fn examine_zoned(member: &MemberFile, segments: bool, problem: Problem, examined: &mut Examined) {
    let from_io = |error| Problem::from_io(&member.path, "read it", &error);
    let log = match zoned_probe::superblock_of(member) {
        Ok(log) => log,
        Err(error) => return examined.problem = Some(from_io(error)),
    };
    examined.zoned_superblock = log.as_ref().map(zoned::Description::of);
    if log.is_none() {
        examined.problem = Some(problem);
    }
    if !segments {
        return;
    }
    let zones = match log.as_ref().map(FoundLog::zones) {
        Some(zones) => Ok(Some(zones)),
        None => zoned_probe::zones_by_headers(member),
    };
    let described =
        zones.and_then(|zones| zones.map(|zones| DescribedZones::read(member, &zones)).transpose());
    match described {
        Err(error) => examined.problem = Some(from_io(error)),
        Ok(described) => {
            if log.is_none() && described.is_some() {
                let what = "has segments of a zoned array, and no usable superblock in zones 0 and 1";
                examined.problem = Some(Problem::new(ExitKind::Damaged, &member.path, what));
            }
            examined.zones = described;
        }
    }
}

fn other_words(found: &superblocks::Found) -> String {
    match &found.outcome {
        Ok(superblock) => format!(
            "older superblock {} of array {:?} at byte {}",
            found.version,
            superblock.set_name(),
            found.offset
        ),
        Err(error) => format!("superblock {} at byte {}: {error}", found.version, found.offset),
    }
}

fn describe_bitmap(superblock: &Superblock, member: &MemberFile) -> Option<DescribedBitmap> {
    let read = bitmap::read(member, superblock)?;
    let of = read.as_ref().ok().map(Bitmap::superblock);
    Some(DescribedBitmap {
        problem: read.as_ref().err().map(ToString::to_string),
        events: of.map(BitmapSuper::events),
        events_cleared: of.map(BitmapSuper::events_cleared),
        chunk_bytes: of.map(BitmapSuper::chunk_bytes),
        mapping: of.map(words::superblock::mapping),
        daemon_sleep_s: of.map(BitmapSuper::daemon_sleep_s),
        bits: of.map(BitmapSuper::bits),
        bits_set: read.as_ref().ok().map(|bitmap| bitmap.set_bits().count() as u64),
        stale: of.map(|bitmap| bitmap.is_stale(superblock.events())),
    })
}

impl DescribedBitmap {
    fn words(&self) -> String {
        if let Some(problem) = &self.problem {
            return format!("not usable: {problem}");
        }
        let number = |value: Option<u64>| value.unwrap_or(0);
        let spread = if self.mapping == Some("dblock") { " spread over the stripes" } else { "" };
        let stale = if self.stale == Some(true) { "; out of date, so all count as set" } else { "" };
        format!(
            "{} of {} bits set, {} chunks{spread}, events {}, cleared at {}{stale}",
            number(self.bits_set),
            number(self.bits),
            bytes::short(u64::from(self.chunk_bytes.unwrap_or(0))),
            number(self.events),
            number(self.events_cleared)
        )
    }
}

fn describe(superblock: &Superblock, member: &MemberFile) -> Description {
    let device_bytes = member.device_bytes;
    let at = |start: Sectors| start.0 as i64 - superblock.super_offset().0 as i64;
    let log = superblock.bad_block_log();
    let bad = bad_ranges_of(member, superblock);
    let (unused_before_sectors, unused_after_sectors) = unused(superblock, device_bytes);
    Description {
        version: superblock.minor_version().to_string(),
        feature_map: superblock.features().0,
        features: superblock.features().to_string(),
        unsupported_features: superblock.unsupported_features(),
        array_uuid: display_uuid(&superblock.set_uuid()),
        name: superblock.set_name(),
        creation_unix_s: superblock.ctime_s(),
        level: superblock.level().to_string(),
        layout: superblock.layout().to_string(),
        chunk_bytes: superblock.chunk_bytes(),
        raid_devices: superblock.raid_disks(),
        // A superblock of RAID-0 has only the size of its own member, which may differ from the others.
        array_bytes: superblock
            .geometry()
            .ok()
            .filter(|geometry| geometry.level() != Level::Raid0)
            .map(|geometry| geometry.array_bytes()),
        used_member_bytes: superblock.size().bytes(),
        available_member_bytes: superblock.data_size().bytes(),
        data_offset_bytes: superblock.data_offset().bytes(),
        super_offset_bytes: superblock.offset().get(),
        unused_before_sectors,
        unused_after_sectors,
        clean: superblock.resync_offset().is_none(),
        resync_offset_bytes: superblock.resync_offset().map(believable_bytes),
        recovery_offset_bytes: superblock.recovery_offset().map(believable_bytes),
        device_uuid: display_uuid(&superblock.device_uuid()),
        device_number: superblock.dev_number(),
        device_flags: words::superblock::device_flags(superblock),
        corrected_reads: superblock.corrected_reads(),
        logical_block_bytes: superblock.logical_block_bytes(),
        device_role: words::superblock::role(superblock.role()),
        slot: match superblock.role() {
            DeviceRole::Active(slot) => Some(slot),
            DeviceRole::Spare | DeviceRole::Faulty | DeviceRole::Journal => None,
        },
        array_state: array_state(superblock),
        update_unix_s: superblock.utime_s(),
        bitmap_sectors_from_superblock: superblock.bitmap_start().map(at),
        bitmap: describe_bitmap(superblock, member),
        bad_block_log_entries: log.map(|(_, length)| length.bytes() / 8),
        bad_block_log_sectors_from_superblock: log.map(|(start, _)| at(start)),
        bad_blocks: bad.iter().flatten().map(bad_place).collect(),
        bad_blocks_problem: bad.as_ref().err().map(|problem| problem.what.clone()),
        checksum: format!("{:x}", superblock.stored_checksum()),
        events: superblock.events(),
    }
}

fn bad_place(range: &BadRange) -> BadPlace {
    BadPlace { offset_bytes: believable_bytes(range.start), bytes: believable_bytes(range.length) }
}

/// Bytes of a number of sectors that was read from the member, and may be absurd.
fn believable_bytes(offset: Sectors) -> u64 {
    offset.checked_bytes().unwrap_or(u64::MAX)
}

/// One letter a slot: `A` active, `.` missing, `R` being replaced, `?` claimed twice.
fn array_state(superblock: &Superblock) -> String {
    let holders = |slot| superblock.roles().filter(|role| *role == DeviceRole::Active(slot)).count();
    let replacing = superblock.features().contains(Features::REPLACEMENT);
    let letter = |slot| match holders(slot) {
        0 => '.',
        1 => 'A',
        2 if replacing => 'R',
        _ => '?',
    };
    Slot::first(superblock.raid_disks()).map(letter).collect()
}

/// What mdadm leaves free behind a superblock, in sectors: the superblock and 32 KiB.
const SUPERBLOCK_ROOM: u64 = 72;

/// Sectors between superblock and data, and behind the data, that nothing uses, as mdadm counts them.
fn unused(superblock: &Superblock, device_bytes: u64) -> (u64, i64) {
    let used = if superblock.level() == Level::Raid0 { superblock.data_size() } else { superblock.size() };
    let data_end = superblock.data_offset().0 + used.0;
    let log = superblock.bad_block_log();
    if superblock.data_offset() < superblock.super_offset() {
        let starts = [log.map(|(start, _)| start), superblock.bitmap_start()];
        let next = starts.into_iter().flatten().min().unwrap_or(superblock.super_offset());
        return (0, next.0 as i64 - data_end as i64);
    }
    let log_end = log.map_or(0, |(start, length)| start.0 + length.0);
    let bitmap_end = superblock.bitmap_start().map_or(0, |start| start.0 + 8);
    let first_free = (superblock.super_offset().0 + SUPERBLOCK_ROOM).max(log_end).max(bitmap_end);
    let before = superblock.data_offset().0.saturating_sub(first_free);
    (before, (device_bytes / 512) as i64 - data_end as i64)
}

fn examined_words(examined: &Examined) -> String {
    let mut text = format!("{}:\n", plain(&examined.path));
    if let Some(problem) = &examined.problem {
        text += &row("Problem", &problem.what);
    }
    if let Some(description) = &examined.superblock {
        text += &description_words(description);
    }
    let zoned = examined.zoned_superblock.iter().flat_map(zoned::Description::rows);
    for (key, value) in zoned.chain(examined.zones.iter().flat_map(DescribedZones::rows)) {
        text += &row(&key, &value);
    }
    for other in &examined.others {
        text += &row("Also", other);
    }
    text
}

fn row(key: &str, value: &str) -> String {
    format!("{key:>15} : {}\n", plain(value))
}

/// As mdadm --examine-badblocks has them.
fn bad_block_rows(of: &Description) -> Vec<(&'static str, String)> {
    if let Some(problem) = &of.bad_blocks_problem {
        return vec![("Bad Blocks", problem.clone())];
    }
    let count = match of.bad_blocks.len() as u64 {
        0 => return Vec::new(),
        count => ("Bad Blocks", counted_as(count, "entry", "entries")),
    };
    let place = |BadPlace { offset_bytes, bytes }: &BadPlace| {
        ("", format!("{} for {}", offset_bytes / 512, counted(bytes / 512, "sector")))
    };
    [count].into_iter().chain(of.bad_blocks.iter().map(place)).collect()
}

fn description_words(of: &Description) -> String {
    let sectors = |bytes: u64| format!("{} sectors", bytes / 512);
    let sized = |amount: u64| format!("{} sectors ({})", amount / 512, bytes::mdadm(amount));
    let mut text = String::new();
    let mut add = |key: &str, value: String| text += &row(key, &value);
    add("Magic", "a92b4efc".into());
    add("Version", of.version.clone());
    add(
        "Feature Map",
        format!(
            "{:#x}{}",
            of.feature_map,
            if of.feature_map == 0 { String::new() } else { format!(" ({})", of.features) }
        ),
    );
    if !of.unsupported_features.is_empty() {
        add("Not run", format!("Twill does not run {}", of.unsupported_features.join(", ")));
    }
    add("Array UUID", of.array_uuid.clone());
    add("Name", of.name.clone());
    add("Creation Time", words::time::seconds(of.creation_unix_s));
    add("Raid Level", of.level.clone());
    add("Raid Devices", of.raid_devices.to_string());
    add("Avail Dev Size", sized(of.available_member_bytes));
    if let Some(size) = of.array_bytes {
        add("Array Size", format!("{} KiB ({})", size / 1024, bytes::mdadm(size)));
    }
    if of.used_member_bytes != 0 {
        add("Used Dev Size", sized(of.used_member_bytes));
    }
    if of.data_offset_bytes != 0 {
        add("Data Offset", sectors(of.data_offset_bytes));
    }
    add("Super Offset", sectors(of.super_offset_bytes));
    let (before, after) = (of.unused_before_sectors, of.unused_after_sectors);
    add("Unused Space", format!("before={before} sectors, after={after} sectors"));
    add("State", if of.clean { "clean".into() } else { "active".into() });
    if let Some(offset) = of.resync_offset_bytes {
        add("Resync Offset", sectors(offset));
    }
    if let Some(offset) = of.recovery_offset_bytes {
        add("Recovery Offset", sectors(offset));
    }
    add("Device UUID", of.device_uuid.clone());
    if let Some(block) = of.logical_block_bytes {
        add("Logical Block", format!("{block} bytes"));
    }
    if !of.device_flags.is_empty() {
        add("Flags", of.device_flags.join(" "));
    }
    if of.corrected_reads > 0 {
        add("Corrected", counted(u64::from(of.corrected_reads), "read"));
    }
    if let Some(from) = of.bitmap_sectors_from_superblock {
        add("Internal Bitmap", format!("{from} sectors from superblock"));
    }
    if let Some(bitmap) = &of.bitmap {
        add("Bitmap", bitmap.words());
    }
    add("Update Time", words::time::seconds(of.update_unix_s));
    if let (Some(entries), Some(from)) = (of.bad_block_log_entries, of.bad_block_log_sectors_from_superblock)
    {
        add("Bad Block Log", format!("{entries} entries available at offset {from} sectors"));
    }
    bad_block_rows(of).into_iter().for_each(|(key, value)| add(key, value));
    add("Checksum", format!("{} - correct", of.checksum));
    add("Events", of.events.to_string());
    if of.layout != "default" {
        add("Layout", of.layout.clone());
    }
    if of.chunk_bytes != 0 {
        add("Chunk Size", bytes::short(u64::from(of.chunk_bytes)));
    }
    add("Device Role", of.device_role.clone());
    add("Array State", format!("{} ('A' == active, '.' == missing, 'R' == replacing)", of.array_state));
    text
}
