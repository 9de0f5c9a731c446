//! How a served array is.

use std::time::Duration;

use host::export::ublk::UblkStatus;

use crate::bytes;
use crate::counted::counted;
use crate::plain::plain;
use crate::status::{
    ArrayStatus, BitmapStatus, DoubtRange, ExportStatus, MemberHealth, MemberStatus, RebuildKind, ZonedStatus,
};

/// What a member file without a name means for the operator.
pub const DELETED: &str =
    "has been deleted: what it holds is lost when the server ends; copy it out, for example from the array";

/// Name, level, slots and state in one line.
pub fn headline(status: &ArrayStatus) -> String {
    format!(
        "{}: {} [{}/{}] [{}] {}",
        plain(&status.name),
        status.level,
        status.raid_devices,
        status.working(),
        slot_letters(status),
        state(status).join(", ")
    )
}

/// One letter a slot, as in /proc/mdstat: `UU_U`.
fn slot_letters(status: &ArrayStatus) -> String {
    let is_member = |member: &&MemberStatus| {
        member.state != MemberHealth::Replacing
            && member.slot.is_some_and(|slot| slot.get() < status.raid_devices)
    };
    let slots = status.members.iter().filter(is_member);
    slots.map(|member| if member.state == MemberHealth::InSync { 'U' } else { '_' }).collect()
}

/// mdadm's words for the state of the array: `clean, degraded, recovering`.
pub fn state(status: &ArrayStatus) -> Vec<&'static str> {
    // An array that has lost data is not clean, whatever is left to write.
    let mut words = vec![match () {
        () if status.failed => "FAILED",
        () if status.failing => "FAILING",
        () if status.clean => "clean",
        () => "active",
    }];
    if !status.failed && status.working() < status.raid_devices as usize {
        words.push("degraded");
    }
    words.extend(status.rebuild.as_ref().map(|rebuild| match rebuild.kind {
        RebuildKind::Resync if rebuild.pending => "resyncing (PENDING)",
        _ if rebuild.pending => "checking (PENDING)",
        RebuildKind::Resync => "resyncing",
        RebuildKind::Recovery | RebuildKind::Replacement => "recovering",
        RebuildKind::Check | RebuildKind::Repair => "checking",
    }));
    if status.read_only {
        words.push("read-only");
    }
    words
}

/// mdadm's word for what is made to agree.
pub const fn rebuild(kind: RebuildKind) -> &'static str {
    match kind {
        RebuildKind::Resync => "resync",
        RebuildKind::Recovery => "recovery",
        RebuildKind::Replacement => "replacement",
        RebuildKind::Check => "check",
        RebuildKind::Repair => "repair",
    }
}

/// mdadm's words in `--detail` for what a member is to its array.
pub const fn health(state: MemberHealth) -> &'static str {
    match state {
        MemberHealth::Missing => "removed",
        MemberHealth::Failed => "faulty",
        MemberHealth::Recovering => "spare rebuilding",
        MemberHealth::InSync => "active sync",
        MemberHealth::Spare => "spare",
        MemberHealth::Replacing => "replacement rebuilding",
    }
}

/// What a member is, with the flags that md sets: `active sync writemostly`.
pub fn member_state(member: &MemberStatus) -> String {
    let flags = [(member.write_mostly, " writemostly"), (member.failfast, " failfast")];
    let set = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, word)| word);
    std::iter::once(health(member.state)).chain(set).collect()
}

/// As `/proc/mdstat` has it: how many bits are set, and what they stand for.
pub fn bitmap(bitmap: &BitmapStatus) -> String {
    let chunk = bytes::short(u64::from(bitmap.chunk_bytes));
    format!("{}/{} bits set, {chunk} chunks", bitmap.bits_set, bitmap.bits)
}

/// How far the zones of a zoned array are used.
pub fn zones(zoned: &ZonedStatus) -> String {
    let ZonedStatus {
        free_zones,
        zones,
        open_zones,
        segments,
        live_bytes,
        reads_verified,
        columns_left_out,
        degraded_segments,
        narrow_segments,
        growing,
        next_size_bytes,
        ..
    } = zoned;
    let less = match columns_left_out {
        0 => String::new(),
        left_out => format!(", new segments lack {}", counted(*left_out, "column")),
    };
    let less = match degraded_segments {
        0 => less,
        degraded => format!(", {} without a member's column{less}", counted(*degraded, "segment")),
    };
    let grows = match (growing, next_size_bytes) {
        (true, _) if *narrow_segments > 0 => {
            format!(", growing: {} to be rewritten", counted(*narrow_segments, "segment"))
        }
        (true, _) => ", growing".to_owned(),
        (false, Some(size)) => format!(", {} from the next start on", bytes::human(*size)),
        (false, None) => String::new(),
    };
    let verified = if *reads_verified { "" } else { ", reads are not verified" };
    format!(
        "{free_zones} of {zones} free, {open_zones} open, {} with {} live{less}{grows}{verified}",
        counted(*segments, "segment"),
        bytes::human(*live_bytes)
    )
}

/// What `detail` says of a zoned array beside the rest.
pub fn zoned_rows(zoned: &ZonedStatus) -> [(&'static str, String); 6] {
    let how = zones_written(zoned);
    [
        ("Zones", format!("{} of {}, {how}", zoned.zones, bytes::human(zoned.zone_bytes))),
        ("Zones In Use", zones(zoned)),
        ("Reserve", bytes::human(zoned.reserve_bytes)),
        ("Reclaim", reclaimed(zoned)),
        ("Map", map_of_zones(zoned)),
        ("Epoch", zoned.epoch.clone()),
    ]
}

/// What reclaim did since the start.
pub fn reclaimed(zoned: &ZonedStatus) -> String {
    let percent = zoned.write_amplification_percent;
    let emptied = counted(zoned.emptied_segments, "segment");
    let now = match zoned.reclaiming.as_str() {
        "" | "nothing" => String::new(),
        now => format!(", working {now}"),
    };
    format!("{emptied} emptied, write amplification {}.{:02}{now}", percent / 100, percent % 100)
}

/// Where the map of a zoned array is, and what a start after a crash would read of it.
pub fn map_of_zones(zoned: &ZonedStatus) -> String {
    let memory = bytes::human(zoned.map_in_memory_bytes);
    let changed = bytes::human(zoned.map_changed_bytes);
    let checkpoint = match &zoned.checkpoint {
        None => "no checkpoint".to_owned(),
        Some(as_of) => format!("checkpoint {as_of}, {changed} changed since"),
    };
    format!("{memory} of {} in memory, {checkpoint}", bytes::human(zoned.map_bytes))
}

/// How the zones of a zoned array are written.
fn zones_written(zoned: &ZonedStatus) -> String {
    let how = match zoned.access.as_str() {
        "append" => "written by appends",
        "sequential" => "written in order",
        _ => "of software",
    };
    let metadata = if zoned.carrier == "oob" { "out of band" } else { "in band" };
    format!("{how}, metadata {metadata}")
}

/// How reads and writes choose members, where that is not the default.
pub fn choice(status: &ArrayStatus) -> Option<String> {
    let policy = (status.update_policy == "adaptive").then_some("adaptive");
    joined(policy.into_iter().chain(status.avoid_slow.then_some("avoids slow members")))
}

/// What holds back a resync, recovery or check, if anything was set.
pub fn limits(status: &ArrayStatus) -> Option<String> {
    let set = |value: u64| (value > 0).then_some(value);
    joined(limits_set(set(status.rate_max), set(status.rate_min), set(status.p99_budget_ns)).into_iter())
}

/// Limits of a resync, recovery or check that were set; 0 takes one away.
pub fn limits_set(rate: Option<u64>, rate_min: Option<u64>, p99_budget_ns: Option<u64>) -> Vec<String> {
    let most = rate.map(|rate| match rate {
        0 => "no limit of resync, recovery and check".to_owned(),
        rate => format!("at most {}/s of resync, recovery and check", bytes::human(rate)),
    });
    let least = rate_min.map(|rate| format!("at least {}/s of them", bytes::human(rate)));
    let budget = p99_budget_ns.map(|ns| match ns {
        0 => "no budget for clients".to_owned(),
        ns => format!(
            "slower while 1 % of requests take more than {}",
            humantime::format_duration(Duration::from_nanos(ns))
        ),
    });
    most.into_iter().chain(least).chain(budget).collect()
}

/// Where clients connect, and which NVMe/TCP hosts have: names and values of `detail`.
pub fn export(export: &ExportStatus) -> Vec<(&'static str, String)> {
    let at = ("Export", format!("{} ({} connected)", export.uri, export.connections));
    let hosts = export.hosts.iter().map(|host| ("Host", plain(host).into_owned()));
    std::iter::once(at).chain(hosts).collect()
}

/// The block device in a line.
pub fn block_device(device: &UblkStatus) -> String {
    let UblkStatus { path, queues, depth, zero_copy, recovered, failed, errors } = device;
    let mut words = format!("{path} ({} of {depth})", counted(*queues, "queue"));
    for (said, word) in [(*zero_copy, "zero copy"), (*recovered, "taken over"), (*failed, "FAILED")] {
        words += &if said { format!(", {word}") } else { String::new() };
    }
    if *errors > 0 {
        words += &format!(", {}", counted(*errors, "error"));
    }
    words
}

/// While members are missing: what a crash would do.
pub fn redo_log(status: &ArrayStatus) -> Option<String> {
    let log = match status.redo_log.as_str() {
        "in-force" => Some("in force".to_string()),
        "absent" => Some("no room: a crash leaves stripes in doubt".to_string()),
        "unused" => Some("unused: a crash with members missing leaves stripes in doubt".to_string()),
        _ => None,
    };
    joined(log.into_iter())
}

/// Where parity is made, if not at this host as a matter of course.
pub fn fabric(status: &ArrayStatus) -> Option<String> {
    let place = if status.parity_at_targets { "at its members' targets" } else { "at this host" };
    let why = match (status.fabric.as_str(), status.parity_at_targets) {
        ("auto", _) => "as a trial under load decides",
        ("peer", false) => "no targets are attached yet",
        ("peer", true) => "as far as these can",
        _ => return None,
    };
    let recorded = if status.writes_recorded { "; these have on record what is under way" } else { "" };
    Some(format!("{place}, {why}{recorded}"))
}

/// What ends doubt, best first. A member that failed comes back with what it holds if there is room for a record of that, and only
/// while no other has its slot.
pub fn doubt_help(status: &ArrayStatus) -> String {
    let other = status.members.iter().find(|member| member.state == MemberHealth::Recovering);
    let back = match (status.absence_record, other.and_then(|member| member.path.as_deref())) {
        (false, _) => "there is no room for a record of what a member that failed holds: overwrite these stripes".to_owned(),
        (true, None) => {
            "bring the missing member back: twill re-add, or serve the array with it; or overwrite these stripes".to_owned()
        }
        (true, Some(other)) => {
            let other = plain(other);
            format!(
                "bring the missing member back: twill fail {other}, which has its slot, twill remove failed, then twill re-add; or \
                 overwrite these stripes"
            )
        }
    };
    format!("{back}; or, if it does not come back, let what parity makes count as right: twill accept-doubt")
}

/// Which stripes are in doubt, and what that means, if any are.
pub fn doubts(status: &ArrayStatus) -> Option<String> {
    const LISTED: usize = 5;
    if status.stripes_in_doubt == 0 {
        return None;
    }
    let range = |range: &DoubtRange| match range.first == range.last {
        true => range.first.to_string(),
        false => format!("{} to {}", range.first, range.last),
    };
    let mut listed: Vec<String> = status.doubts.iter().take(LISTED).map(range).collect();
    listed.extend((status.doubts.len() > LISTED).then(|| "more".to_owned()));
    let which = if listed.is_empty() { String::new() } else { format!(" ({})", listed.join(", ")) };
    let stripes = counted(status.stripes_in_doubt, "stripe");
    Some(format!("{stripes} in doubt{which}: what missing members held there cannot be read, nor be rebuilt"))
}

fn joined(words: impl Iterator<Item = impl Into<String>>) -> Option<String> {
    let words: Vec<String> = words.map(Into::into).collect();
    (!words.is_empty()).then(|| words.join(", "))
}
