//! What happened to a served array.

use engine::array::scrub::word;
use engine::events::Event;

use crate::bytes;
use crate::counted::{counted, counted_as};
use crate::status::LoggedEvent;

/// An event, with the device of the member that it is about.
pub fn logged(logged: &LoggedEvent) -> String {
    let device = logged.device.as_ref().map_or_else(String::new, |device| format!(" [{device}]"));
    event_words(&logged.event) + &device
}

fn event_words(event: &Event) -> String {
    match event {
        Event::MemberError { member, error, .. } => format!("member {member}: {error}"),
        Event::BlockRewritten { member, offset_bytes, bytes } => format!(
            "member {member} could not read {bytes} bytes at byte {offset_bytes}: made from the others, written again \
             and read back"
        ),
        Event::BlockUnreadable { member, offset_bytes, bytes } => format!(
            "member {member} cannot read {bytes} bytes at byte {offset_bytes}, and the others cannot make them: the \
             request got an error"
        ),
        Event::BadBlockRecorded { member, offset_bytes, bytes } => format!(
            "{bytes} bytes at byte {offset_bytes} of member {member} could not be made from the others: they are in its bad-block \
             log, and reading them is an error until they are written"
        ),
        Event::MemberFailed { member, reason, working } => {
            let working = counted_as(u64::from(*working), "member still works", "members still work");
            format!("member {member} failed: {reason}; {working}")
        }
        Event::MemberKept { member, reason } => {
            format!("member {member} should have failed, but the array needs it: {reason}")
        }
        Event::MemberRemoved { member } => format!("member {member} was removed"),
        Event::RecoveryStarted { member, from_bytes } => {
            format!("member {member} is being rebuilt, from {}", bytes::human(*from_bytes))
        }
        Event::MemberReAdded { member } => format!("member {member} is back for what the bitmap marks"),
        Event::ReplacementStarted { .. }
        | Event::ReplacementFinished { .. }
        | Event::ReplacementFailed { .. } => replacement_words(event),
        Event::RecoveryFinished { member } => format!("member {member} is rebuilt and in sync"),
        Event::ResyncStarted { from_bytes } => {
            format!("resync started, from {}", bytes::human(*from_bytes))
        }
        Event::ResyncFinished {} => "resync finished".into(),
        Event::RebuildStopped { reason } => {
            format!(
                "resync or recovery stopped, and is tried again when members change or after a while: {reason}"
            )
        }
        Event::StripeSuspect { stripe, reason } => {
            format!(
                "stripe {stripe} was written half way and is made to agree before its next write: {reason}"
            )
        }
        Event::ScrubStarted { .. } | Event::ScrubFinished { .. } | Event::ScrubStopped { .. } => {
            scrub_words(event)
        }
        Event::Mismatch(found) => super::scrub::mismatch(found, &|_| None),
        Event::RedoLogInForce {} => {
            "stripe writes are logged first from here on, while members are missing".into()
        }
        Event::RedoLogOver {} => "the array is whole; stripe writes are no longer logged".into(),
        Event::RedoLogAbsent { reason } => format!(
            "members are missing and stripe writes cannot be logged, so a crash would leave stripes in doubt: {reason}"
        ),
        Event::RedoLogReplayed { records, stripes, members } => format!(
            "written out from the redo log to members {members:?}: {}; stripes {stripes:?} agree again",
            counted(*records, "record")
        ),
        Event::StripesInDoubt { first, end, reason } => format!(
            "stripes {first} to {} are in doubt: {reason}. Reading what missing members held there is an error until \
             it is overwritten",
            end - 1
        ),
        Event::MetadataError { member, reason } => {
            format!("the superblock of member {member} could not be written: {reason}")
        }
    }
}

fn scrub_words(event: &Event) -> String {
    match event {
        Event::ScrubStarted { repair, from_stripe: 0 } => format!("{} started", word(*repair)),
        Event::ScrubStarted { repair, from_stripe } => {
            format!("{} goes on from stripe {from_stripe}", word(*repair))
        }
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

fn replacement_words(event: &Event) -> String {
    match event {
        Event::ReplacementStarted { member, from_bytes } => format!(
            "member {member} is being copied to the device that is to replace it, from {}",
            bytes::human(*from_bytes)
        ),
        Event::ReplacementFinished { member } => {
            format!("member {member} was replaced: the device that was in its slot may be taken out")
        }
        Event::ReplacementFailed { member, reason } => {
            format!("member {member} stays, the device that was to replace it is not used any more: {reason}")
        }
        _ => unreachable!("an event of a replacement"),
    }
}
