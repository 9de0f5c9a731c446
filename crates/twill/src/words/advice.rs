//! What an operator does next about an array, from how it is. Every line names the device by its path and a command to type.

use serde::{Deserialize, Serialize};

use super::status::{DELETED, doubt_help, doubts, rebuild};
use crate::bytes;
use crate::counted::counted;
use crate::plain::plain;
use crate::quoted::quoted;
use crate::status::{ArrayStatus, MemberHealth, MemberStatus};

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// How soon.
    pub urgency: Urgency,
    /// What is the matter, and what it means.
    pub text: String,
    /// The command that helps, if there is one; words in capitals are the operator's to fill in.
    pub command: Option<String>,
}

/// How soon something is to be done. The first is the most urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Urgency {
    /// Data is lost, or out of reach.
    Failed,
    /// The next failure may lose data.
    Degraded,
    /// It can wait.
    Notice,
}

/// What is to be done about an array, the most urgent first.
pub fn advice(status: &ArrayStatus) -> Vec<Advice> {
    let mut all = of_the_array(status);
    all.extend(status.members.iter().filter_map(|member| of_a_member(status, member)));
    all.extend(of_background_work(status));
    all.sort_by_key(|advice| advice.urgency);
    all
}

fn say(urgency: Urgency, text: impl Into<String>, command: impl Into<Option<String>>) -> Advice {
    Advice { urgency, text: text.into(), command: command.into() }
}

fn of_the_array(status: &ArrayStatus) -> Vec<Advice> {
    let name = quoted(&status.name);
    let mut all = Vec::new();
    if status.failed {
        let text = "Too many members are gone: what they held cannot be read. Bring them back (cables, power, enclosure), then serve the array again; the events say what happened to each.";
        all.push(say(Urgency::Failed, text, format!("twill events {name}")));
    }
    if status.failing {
        let text = "A member has errors and stays in use, since the array would be lost without it. Copy the data out first.";
        all.push(say(Urgency::Failed, text, format!("twill events {name}")));
    }
    if let Some(doubts) = doubts(status) {
        all.push(say(Urgency::Failed, format!("{doubts}: {}", doubt_help(status)), None));
    }
    if let Some(device) = status.block_device.as_ref().filter(|device| device.failed) {
        let text = format!("{} has failed: stop the array and serve it again", plain(&device.path));
        all.push(say(Urgency::Failed, text, format!("twill stop {name}")));
    }
    if matches!(status.redo_log.as_str(), "absent" | "unused") && status.degraded {
        let text = "Members are missing and no redo log is kept: a crash would leave stripes in doubt.";
        all.push(say(Urgency::Degraded, text, None));
    }
    all
}

fn of_a_member(status: &ArrayStatus, member: &MemberStatus) -> Option<Advice> {
    let by_name = format!("--array {}", quoted(&status.name));
    let path = member.path.as_deref().unwrap_or_default();
    let (shown, word) = (plain(path), quoted(path));
    let slot = member.slot.map_or_else(String::new, |slot| format!("slot {slot}: "));
    if member.deleted {
        return Some(say(Urgency::Failed, format!("{shown} {DELETED}"), None));
    }
    Some(match member.state {
        MemberHealth::Failed if member.slot.is_none() => {
            let text = format!("{shown} failed and its slot is another's; let go of it");
            say(Urgency::Notice, text, format!("twill remove {by_name} {word}"))
        }
        MemberHealth::Failed if status.bitmap.is_some() => {
            let text = format!(
                "{slot}{shown} failed. If it was only away, take it back: it gets what was written since. Else remove it and add another device."
            );
            say(
                Urgency::Degraded,
                text,
                format!("twill remove {by_name} {word} && twill re-add {by_name} {word}"),
            )
        }
        MemberHealth::Failed => {
            let text = format!("{slot}{shown} failed. Remove it and add another device, which is rebuilt.");
            say(
                Urgency::Degraded,
                text,
                format!("twill remove {by_name} {word} && twill add {by_name} DEVICE"),
            )
        }
        MemberHealth::Missing => {
            let text = format!("{slot}no member. Add a device, which is rebuilt.");
            say(Urgency::Degraded, text, format!("twill add {by_name} DEVICE"))
        }
        MemberHealth::InSync if member.bad_block_bytes > 0 => {
            let bad = bytes::human(member.bad_block_bytes);
            let text = format!("{slot}{shown} lacks {bad} that it could not read or write. Replace it.");
            say(Urgency::Notice, text, format!("twill replace {by_name} {word} --with DEVICE"))
        }
        MemberHealth::InSync if member.errors > 0 => {
            let errors = counted(member.errors, "error");
            let text =
                format!("{slot}{shown} had {errors} since the array is served. Replace it before it fails.");
            say(Urgency::Notice, text, format!("twill replace {by_name} {word} --with DEVICE"))
        }
        MemberHealth::Recovering => {
            let text = format!(
                "{slot}{shown} is being rebuilt. Nothing to do but to wait: until then the array lacks a member."
            );
            say(Urgency::Notice, text, format!("twill status --watch {}", quoted(&status.name)))
        }
        MemberHealth::InSync | MemberHealth::Spare | MemberHealth::Replacing => return None,
    })
}

fn of_background_work(status: &ArrayStatus) -> Vec<Advice> {
    let name = quoted(&status.name);
    let mut all = Vec::new();
    if let Some(scrub) = status.scrub.as_ref().filter(|scrub| scrub.mismatch_sectors > 0) {
        let found = counted(scrub.mismatch_sectors, "sector");
        if !scrub.repair {
            let text = format!("The last check found {found} that do not agree. See which, then repair.");
            let command = format!("twill scrub report {name} && twill repair {name}");
            all.push(say(Urgency::Notice, text, command));
        } else if scrub.left > 0 {
            let left = counted(scrub.left, "mismatch");
            let text = format!("The last repair left {left} that it could not decide. See which.");
            all.push(say(Urgency::Notice, text, format!("twill scrub report {name}")));
        }
    }
    for work in status.all_works().filter(|work| work.pending) {
        let until = if status.read_only { "the array is not read-only" } else { "no member is missing" };
        all.push(say(Urgency::Notice, format!("The {} waits until {until}.", rebuild(work.kind)), None));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::units::Slot;

    fn array(states: &[MemberHealth]) -> ArrayStatus {
        let member = |(slot, state): (Slot, &MemberHealth)| MemberStatus {
            slot: Some(slot),
            path: (*state != MemberHealth::Missing).then(|| format!("/dev/disk {slot}")),
            state: *state,
            ..MemberStatus::default()
        };
        ArrayStatus {
            name: "store".into(),
            raid_devices: states.len() as u32,
            members: Slot::all().zip(states).map(member).collect(),
            ..ArrayStatus::default()
        }
    }

    #[test]
    fn an_array_that_is_well_needs_nothing() {
        let mut status = array(&[MemberHealth::InSync, MemberHealth::InSync]);
        assert_eq!(advice(&status), []);
        status.members[0].corrected_reads = 3; // they were put right
        assert_eq!(advice(&status), []);
    }

    #[test]
    fn a_failed_member_is_named_with_what_helps() {
        let mut status = array(&[MemberHealth::InSync, MemberHealth::Failed, MemberHealth::Missing]);
        let commands = |status: &ArrayStatus| -> Vec<String> {
            advice(status).into_iter().filter_map(|advice| advice.command).collect()
        };
        assert_eq!(
            commands(&status),
            [
                "twill remove --array store '/dev/disk 1' && twill add --array store DEVICE",
                "twill add --array store DEVICE"
            ]
        );
        status.bitmap = Some(crate::status::BitmapStatus {
            chunk_bytes: 1 << 26,
            bits: 1,
            bits_set: 0,
            events_cleared: 0,
            memory_bytes: 0,
        });
        assert!(commands(&status)[0].ends_with("twill re-add --array store '/dev/disk 1'"));
        assert!(advice(&status)[0].text.contains("/dev/disk 1"));
    }

    #[test]
    fn lost_data_comes_first() {
        let mut status = array(&[MemberHealth::InSync, MemberHealth::Missing]);
        status.members[0].errors = 2;
        (status.failed, status.stripes_in_doubt) = (true, 3);
        let urgencies: Vec<Urgency> = advice(&status).iter().map(|advice| advice.urgency).collect();
        use Urgency::{Degraded, Failed, Notice};
        assert_eq!(urgencies, [Failed, Failed, Degraded, Notice]);
    }
}
