//! What happened to a served array.

use std::path::Path;

use engine::array::scrub::word;
use engine::events::Event;

use crate::bytes;
use crate::counted::{counted, counted_as};
use crate::plain::plain;
use crate::status::LoggedEvent;

/// An event about a member, with the member's path.
pub fn of_member(event: &Event, path: &Path) -> String {
    format!("{} [{}]", event_words(event), plain(&path.display().to_string()))
}

/// An event, with the device of the member that it is about.
pub fn logged(logged: &LoggedEvent) -> String {
    let device = logged.device.as_ref().map_or_else(String::new, |device| format!(" [{}]", plain(device)));
    let times = match (logged.count, logged.last_unix_ms) {
        (count, Some(last)) => format!(" ({count} times, last {})", super::time::milliseconds(last)),
        _ => String::new(),
    };
    event_words(&logged.event) + &device + &times
}

fn event_words(event: &Event) -> String {
    match event {
        Event::MemberError { member, error, .. } => format!("member {member}: {error}"),
        Event::BlockRewritten { .. }
        | Event::LogDamaged { .. }
        | Event::BlockUnreadable { .. }
        | Event::BadBlockRecorded { .. } => block_words(event),
        Event::MemberFailed { member, reason, working } => {
            let working = counted_as(u64::from(*working), "member still works", "members still work");
            format!("member {member} failed: {reason}; {working}")
        }
        Event::MemberKept { member, reason } => {
            format!(
                "member {member} stays in use in spite of an error, since the array would be lost without it: {reason}"
            )
        }
        Event::MemberAway { .. }
        | Event::MemberBack { .. }
        | Event::MemberEnded { .. }
        | Event::Fenced { .. } => remote_words(event),
        Event::MemberRemoved { member } => format!("member {member} was removed"),
        Event::RecoveryStarted { member, from_bytes } => {
            format!("member {member} is being rebuilt, from {}", bytes::human(*from_bytes))
        }
        Event::MemberReAdded { member } => format!("member {member} is back, and gets what the bitmap marks"),
        Event::ReplacementStarted { .. }
        | Event::ReplacementFinished { .. }
        | Event::ReplacementFailed { .. } => replacement_words(event),
        Event::RecoveryFinished { member } => format!("member {member} is rebuilt and in sync"),
        Event::ResyncStarted { .. } | Event::ResyncFinished {} | Event::RebuildStopped { .. } => {
            resync_words(event)
        }
        Event::StripeSuspect { stripe, reason } => {
            format!(
                "stripe {stripe} was partly written; its parity is corrected before its next write: {reason}"
            )
        }
        Event::RegionSuspect { region, offset_bytes, reason } => {
            format!(
                "region {region} of the mirror, from byte {offset_bytes} of the array, was partly written; its copies are made \
                 to agree before its next write: {reason}"
            )
        }
        Event::ScrubStarted { .. } | Event::ScrubFinished { .. } | Event::ScrubStopped { .. } => {
            scrub_words(event)
        }
        Event::Mismatch(found) => super::scrub::mismatch(found, &|_| None),
        Event::RedoLogInForce {}
        | Event::RedoLogOver {}
        | Event::RedoLogAbsent { .. }
        | Event::RedoLogReplayed { .. }
        | Event::StripesInDoubt { .. }
        | Event::DoubtAccepted { .. } => redo_words(event),
        Event::StaleMemberTaken { member, events, newest_events, written_unix_s, newest_written_unix_s } => {
            let behind = newest_written_unix_s.saturating_sub(*written_unix_s);
            format!(
                "member {member} was taken by --force although it is stale: it has {}, the newest member {newest_events}, and was \
                 last written at {}, {} earlier; what was written to the array since then may be lost or mixed with older data, so \
                 check the file systems on it",
                counted(*events, "event"),
                super::time::seconds(*written_unix_s),
                humantime::format_duration(std::time::Duration::from_secs(behind)),
            )
        }
        Event::LedgersUsed { stripes } => format!(
            "the former host's writes were on record at the members' targets: parity was made anew for {}, and no resync is due",
            counted(*stripes, "stripe")
        ),
        Event::SegmentsChanged { .. } | Event::GrowthStarted { .. } | Event::GrowthFinished { .. } => {
            segments_words(event)
        }
        Event::MetadataError { member, reason } => {
            format!("the superblock of member {member} could not be written: {reason}")
        }
    }
}

fn block_words(event: &Event) -> String {
    match event {
        Event::BlockRewritten { member, offset_bytes, bytes } => format!(
            "member {member} could not read {bytes} bytes at byte {offset_bytes}: they were made from the other members, \
             rewritten and read back"
        ),
        Event::LogDamaged { member, offset_bytes, what } => format!(
            "the block at byte {offset_bytes} of member {member} is not what was written there: {what}; it is made from the \
             other members, where the level can"
        ),
        Event::BlockUnreadable { member, offset_bytes, bytes } => format!(
            "member {member} cannot read {bytes} bytes at byte {offset_bytes}, and the other members cannot make them: the \
             request failed"
        ),
        Event::BadBlockRecorded { member, offset_bytes, bytes } => format!(
            "{bytes} bytes at byte {offset_bytes} of member {member} could not be made from the others: they are in its bad-block \
             log, and reading them is an error until they are written"
        ),
        _ => unreachable!("an event about blocks of a member"),
    }
}

fn resync_words(event: &Event) -> String {
    match event {
        Event::ResyncStarted { from_bytes } => {
            format!("resync started, from {}", bytes::human(*from_bytes))
        }
        Event::ResyncFinished {} => "resync finished".into(),
        Event::RebuildStopped { reason } => {
            format!(
                "resync or recovery stopped, and is retried when members change, or after 30 seconds and more: {reason}"
            )
        }
        _ => unreachable!("an event of a resync"),
    }
}

fn segments_words(event: &Event) -> String {
    match event {
        Event::SegmentsChanged { columns, left_out: 0 } => {
            let members = counted(*columns, "member");
            format!("new segments are over {members}, and as redundant as the level says")
        }
        Event::SegmentsChanged { columns, left_out } => format!(
            "new segments are over {}, and {} missing: the array is too full for narrower segments, so what is written is \
             less redundant; bring the missing members back",
            counted(*columns, "member"),
            counted_as(u64::from(*left_out), "column is", "columns are")
        ),
        Event::GrowthStarted { from, to } => format!(
            "the array has {} now, {} more: segments are rewritten over all of them",
            counted(*to, "member"),
            to.saturating_sub(*from)
        ),
        Event::GrowthFinished { size_bytes } => {
            format!("the array has grown: it is {} from the next start on", bytes::human(*size_bytes))
        }
        _ => unreachable!("an event of segments"),
    }
}

fn redo_words(event: &Event) -> String {
    match event {
        Event::RedoLogInForce {} => {
            "members are missing: stripe writes go to the redo log first from now on".into()
        }
        Event::RedoLogOver {} => "the array is whole: stripe writes no longer go to the redo log".into(),
        Event::RedoLogAbsent { reason } => format!(
            "members are missing and there is no redo log, so a crash would leave stripes in doubt: {reason}"
        ),
        Event::RedoLogReplayed { records, stripes, members } => format!(
            "the redo log was replayed: {} written to members {}; stripes {} are consistent again",
            counted(*records, "record"),
            listed(members),
            listed(stripes)
        ),
        Event::StripesInDoubt { first, end, reason } => format!(
            "stripes {first} to {} are in doubt: {reason}. Reads of what the missing members held there fail until it is \
             overwritten",
            end - 1
        ),
        Event::DoubtAccepted { first, end, stripes } => format!(
            "{} of {first} to {} left doubt by an operator's word: what parity makes of missing chunks there counts as right",
            counted(*stripes, "stripe"),
            end - 1
        ),
        _ => unreachable!("an event of the redo log"),
    }
}

/// `3, 7`.
fn listed(numbers: &[impl ToString]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn scrub_words(event: &Event) -> String {
    match event {
        Event::ScrubStarted { repair, from } if from.number() == 0 => format!("{} started", word(*repair)),
        Event::ScrubStarted { repair, from } => format!("{} goes on from {from}", word(*repair)),
        Event::ScrubFinished { repair: false, mismatch_sectors, .. } => {
            let sectors = counted_as(*mismatch_sectors, "sector does", "sectors do");
            format!("check finished: {sectors} not agree")
        }
        Event::ScrubFinished { repair: true, mismatch_sectors, repaired, left } => format!(
            "repair finished: {} did not agree; {} repaired, {left} left",
            counted(*mismatch_sectors, "sector"),
            counted(*repaired, "place")
        ),
        Event::ScrubStopped { reason } => format!("check or repair stopped: {reason}"),
        _ => unreachable!("an event of a check or repair"),
    }
}

/// Of members on other machines.
fn remote_words(event: &Event) -> String {
    match event {
        Event::MemberAway { member, reason } => {
            format!(
                "member {member} has lost its connection: {reason}; it is connected again as soon as possible"
            )
        }
        Event::MemberBack { member, after_ms } => {
            format!("member {member} is connected again after {:.1} s", *after_ms as f64 / 1000.0)
        }
        Event::MemberEnded { member, reason } => format!("member {member} cannot be used as it is: {reason}"),
        Event::Fenced { reason } => format!(
            "another host has taken the array over, and this one writes nothing more: {reason}; stop it here: twill stop"
        ),
        _ => unreachable!("an event of a member on another machine"),
    }
}

fn replacement_words(event: &Event) -> String {
    match event {
        Event::ReplacementStarted { member, from_bytes } => format!(
            "member {member} is being copied to the device that is to replace it, from {}",
            bytes::human(*from_bytes)
        ),
        Event::ReplacementFinished { member } => {
            format!(
                "member {member} was replaced by another device, which has its slot now: the one before can be pulled"
            )
        }
        Event::ReplacementFailed { member, reason } => {
            format!("member {member} stays; the device that was to replace it is no longer used: {reason}")
        }
        _ => unreachable!("an event of a replacement"),
    }
}
