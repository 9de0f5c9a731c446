//! Spares that arrays share, after mdadm's spare-group: a server whose array lacks a member and has no spare asks the
//! other servers of this machine for one.
//!
//! Each server acts for its own array, and only while that lacks a member, so there is no further daemon and no state to
//! keep. A spare has one owner at any time: it is taken out of one array and then added to the
//! other, by the control sockets, and given back if that fails.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use layout::md_superblock::display_uuid;
use serde_json::json;

use super::control::Controlled;
use crate::control::{Client, served};
use crate::failure::Failure;
use crate::probe::member_file::MemberFile;
use crate::probe::superblocks::superblock_of;
use crate::status::{ArrayStatus, MemberHealth, MemberStatus};

/// How often a server checks whether its array lacks a member.
const INTERVAL: Duration = Duration::from_secs(2);

/// How long a spare that was refused is not asked for again. After that it may fit: it is no longer locked, or another device
/// has its name.
const USELESS_FOR: Duration = Duration::from_secs(300);

/// Looks after the array until it is stopped.
///
/// # Errors
/// The system has no thread for it.
pub(super) fn share(controlled: Arc<Controlled>) -> std::io::Result<()> {
    let look = move || {
        let mut useless = Useless::default();
        while let Ok(own) = controlled.status() {
            if wants_spare(&own) {
                ask_others(&controlled, &own, &mut useless);
            }
            thread::sleep(INTERVAL);
        }
    };
    thread::Builder::new().name("spares".into()).spawn(look).map(drop)
}

/// Spares that were refused, and when.
#[derive(Default)]
struct Useless(HashMap<String, Instant>);

impl Useless {
    fn add(&mut self, spare: String, now: Instant) {
        self.0.retain(|_, since| now.duration_since(*since) < USELESS_FOR);
        self.0.insert(spare, now);
    }

    fn has(&self, spare: &str, now: Instant) -> bool {
        self.0.get(spare).is_some_and(|since| now.duration_since(*since) < USELESS_FOR)
    }
}

/// Takes a spare from the first array that can do without one. A refused spare is not tried again for a while.
fn ask_others(controlled: &Controlled, own: &ArrayStatus, useless: &mut Useless) {
    for (_, socket) in served() {
        // Not for long: another array may hang, and this one lacks a member.
        let Ok(theirs) = Client::ask_briefly::<ArrayStatus>(&socket, "status") else { continue };
        let is_of_use = |spare: &String| !useless.has(spare, Instant::now());
        let Some(spare) = spare_for(own, &theirs).filter(is_of_use) else { continue };
        let Ok(mut donor) = Client::connect(&socket) else { continue };
        match take(controlled, &mut donor, &theirs.uuid, &spare) {
            Ok(()) => {
                tracing::warn!(spare, from = theirs.name, "took a spare of the group");
                return;
            }
            Err(failure) => {
                tracing::warn!(spare, from = theirs.name, "a spare of the group was not taken: {failure}");
                useless.add(spare, Instant::now());
            }
        }
    }
}

fn take(controlled: &Controlled, donor: &mut Client, donor_uuid: &str, spare: &str) -> Result<(), Failure> {
    donor.call("remove", json!({ "member": spare }))?;
    let path = PathBuf::from(spare);
    // Only the other array's superblock may be overwritten; a device without it is another one that took the name.
    let is_theirs = || {
        let superblock = MemberFile::open(&path).and_then(|member| superblock_of(&member));
        superblock.is_ok_and(|superblock| display_uuid(&superblock.set_uuid()) == donor_uuid)
    };
    let added = controlled.add(&path, is_theirs()).map(drop);
    if added.is_err()
        && let Err(failure) = donor.call("add", json!({ "path": spare, "force": is_theirs() }))
    {
        tracing::warn!(spare, "it could not be given back: {failure}");
    }
    added
}

/// Whether the array lacks a member and has no spare.
fn wants_spare(status: &ArrayStatus) -> bool {
    let lacks = |member: &MemberStatus| {
        member.slot.is_some() && matches!(member.state, MemberHealth::Missing | MemberHealth::Failed)
    };
    let has_spare = status.members.iter().any(|member| member.state == MemberHealth::Spare);
    status.members.iter().any(lacks) && !has_spare && !status.failed && !status.read_only
}

/// The spare that another array of the group gives: one that is large enough, and only if that array is whole.
fn spare_for(own: &ArrayStatus, donor: &ArrayStatus) -> Option<String> {
    // A failed member without a slot was replaced: the array does not lack it.
    let mut with_slots = donor.members.iter().filter(|member| member.slot.is_some());
    let is_whole = with_slots.all(|member| member.state == MemberHealth::InSync);
    if own.uuid == donor.uuid
        || own.spare_group.is_none()
        || own.spare_group != donor.spare_group
        || !is_whole
    {
        return None;
    }
    let fits = |bytes: u64| bytes >= own.member_bytes;
    let mut spares = donor.members.iter().filter(|member| member.state == MemberHealth::Spare);
    spares.find(|spare| fits(spare.device_bytes))?.path.clone()
}

#[cfg(test)]
mod tests {
    use super::*;
    use MemberHealth::{Failed, InSync, Missing, Recovering, Spare};
    use layout::units::Slot;

    fn array(uuid: &str, group: Option<&str>, states: &[MemberHealth]) -> ArrayStatus {
        let member = |(slot, state): (Slot, &MemberHealth)| MemberStatus {
            slot: (*state != Spare).then_some(slot),
            path: Some(format!("/{uuid}/{slot}")),
            state: *state,
            device_bytes: 100 * (u64::from(slot.get()) + 1),
            ..MemberStatus::default()
        };
        ArrayStatus {
            uuid: uuid.into(),
            member_bytes: 300,
            spare_group: group.map(str::to_owned),
            members: Slot::all().zip(states).map(member).collect(),
            ..ArrayStatus::default()
        }
    }

    #[test]
    fn who_lacks_a_member_and_has_no_spare_wants_one() {
        for (states, wants) in [
            (&[InSync, InSync][..], false),
            (&[InSync, Missing], true),
            (&[InSync, Failed], true),
            (&[InSync, Recovering], false),
            (&[InSync, Failed, Spare], false),
        ] {
            assert_eq!(wants_spare(&array("a", Some("g"), states)), wants, "{states:?}");
        }
        let array = array("a", Some("g"), &[InSync, Missing]);
        assert!(!wants_spare(&ArrayStatus { read_only: true, ..array.clone() }));
        assert!(!wants_spare(&ArrayStatus { failed: true, ..array }));
    }

    #[test]
    fn a_spare_that_did_not_fit_is_asked_for_again_later() {
        let (start, mut useless) = (Instant::now(), Useless::default());
        useless.add("a".into(), start);
        assert!(useless.has("a", start + USELESS_FOR / 2) && !useless.has("b", start));
        assert!(!useless.has("a", start + USELESS_FOR));
        useless.add("b".into(), start + USELESS_FOR);
        assert!(useless.0.len() == 1 && useless.has("b", start + USELESS_FOR));
    }

    #[test]
    fn only_a_whole_array_of_the_same_group_gives_one_that_fits() {
        let own = array("a", Some("g"), &[InSync, Missing]);
        let given = |group, states: &[MemberHealth]| spare_for(&own, &array("b", group, states));
        assert_eq!(given(Some("g"), &[InSync, InSync, Spare]), Some("/b/2".into()));
        assert_eq!(given(Some("g"), &[InSync, Spare, Spare]), Some("/b/2".into()), "the first is too small");
        assert_eq!(given(Some("g"), &[InSync, Spare]), None, "too small");
        assert_eq!(given(Some("h"), &[InSync, InSync, Spare]), None);
        assert_eq!(given(None, &[InSync, InSync, Spare]), None);
        assert_eq!(given(Some("g"), &[InSync, Failed, Spare]), None, "it needs its own");
        assert_eq!(given(Some("g"), &[InSync, Recovering, Spare]), None);
        assert_eq!(spare_for(&own, &array("a", Some("g"), &[InSync, InSync, Spare])), None);
    }
}
