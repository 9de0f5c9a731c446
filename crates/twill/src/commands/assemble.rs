//! `assemble`: which members make up an array, why each candidate is taken or not, and whether it would start.

mod answer;
pub mod in_use;
mod zoned;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use engine::array::assemble::{Assembly, Filter, Found, Verdict, assemble};
use engine::array::start::FoundRedo;
use engine::members::MemberState;
use layout::md_superblock::{DeviceRole, display_uuid};
use layout::redo_log::StripeRange;
use layout::units::{Slot, Stripe};

use super::output::Output;
use super::waiting;
use crate::arguments::{AssembleArguments, Choice};
use crate::array_uuid;
use crate::bytes;
use crate::counted::{counted, slots_words};
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::plain::plain;
use crate::probe::answering::answering;
use crate::probe::candidates::{self, Candidates};
use crate::probe::chosen::{may_start, nothing_found, stale_taken, stale_words};
use crate::probe::inspection::inspection;
use crate::{remote, words};
use answer::{Answer, AnswerArray, AnswerCandidate, AnswerRange, Basis};
use in_use::{check_none, in_use};
use zoned::Zoned;

/// Decides and says so. Nothing is written.
///
/// # Errors
/// Why the array, or the first of several, would not start.
pub fn run(arguments: &AssembleArguments, output: Output) -> Result<(), Failure> {
    remote::set(&arguments.choice.remote)?;
    let filter = filter(&arguments.choice)?;
    let look = || {
        let candidates = read(&arguments.choice)?;
        let found = assemble(&candidates.read, &filter);
        Ok((candidates, found))
    };
    let (candidates, found) = waiting::look_until_there(&arguments.choice, Duration::ZERO, look, missing)?;
    found.arrays.iter().try_for_each(|array| candidates.check_copies(array))?;
    let in_use: Vec<Vec<Problem>> = found.arrays.iter().map(|array| in_use(&candidates, array)).collect();
    let mut answer = answer(&candidates, &found, &in_use, &filter);
    let zoned = Zoned::find(&paths(&arguments.choice)?, arguments.choice.scan.is_some(), &filter);
    zoned.add_to(&mut answer);
    output.print(&answer, |answer| answer_words(answer, arguments.explain))?;
    if answer.arrays.is_empty() {
        return Err(nothing_found(&filter).answered());
    }
    let mut outcomes = found
        .arrays
        .iter()
        .zip(&in_use)
        .map(|(array, in_use)| may_start(&candidates, array).and_then(|()| check_none(in_use)));
    let outcome = outcomes.try_for_each(|outcome| outcome).and_then(|()| zoned.may_start());
    outcome.map_err(Failure::answered)
}

/// Members that superblocks name and that are not there, in words; with too few of them to start, as the refusal says it.
fn missing((candidates, found): &(Candidates, Found)) -> Option<String> {
    let of_array = |array: &Assembly| {
        let slots = missing_members(candidates, array);
        (!slots.is_empty()).then(|| format!("{}: no member in {}", array.name, slots_words(&slots)))
    };
    let words: Vec<String> = found.arrays.iter().filter_map(of_array).collect();
    (!words.is_empty()).then(|| words.join("; "))
}

/// Slots without a candidate that the newest superblock calls active. A member that is there and is not taken does not count:
/// there is nothing to wait for.
pub fn missing_members(candidates: &Candidates, array: &Assembly) -> Vec<Slot> {
    let superblock = |index: &usize| candidates.read[*index].superblock.as_ref().ok();
    let members = array.slots.iter().flatten().filter_map(superblock);
    let Some(newest) = members.max_by_key(|superblock| superblock.events()) else { return Vec::new() };
    let is_active = |slot: &Slot| newest.roles().any(|role| role == DeviceRole::Active(*slot));
    let is_there = |slot: &Slot| {
        let mut all = array.verdicts.iter().filter_map(|(index, _)| superblock(index));
        all.any(|superblock| superblock.role() == DeviceRole::Active(*slot))
    };
    let slots = Slot::all().zip(&array.slots);
    let empty = slots.filter(|(_, member)| member.is_none()).map(|(slot, _)| slot);
    empty.filter(is_active).filter(|slot| !is_there(slot)).collect()
}

/// The candidates that a command line means.
///
/// # Errors
/// Members that are not there, and members that are there twice.
pub fn read(choice: &Choice) -> Result<Candidates, Failure> {
    let paths = paths(choice)?;
    match &choice.scan {
        None => candidates::read_named(&paths),
        Some(_) => Ok(candidates::read_found(&paths)),
    }
}

/// The paths that a command line means.
///
/// # Errors
/// None are named, or a place that was named is not there.
pub fn paths(choice: &Choice) -> Result<Vec<PathBuf>, Failure> {
    let Some(places) = &choice.scan else {
        if choice.members.is_empty() {
            let failure = Failure::new(ExitKind::Usage, "no members are named");
            return Err(failure.help("name them, or give --scan"));
        }
        return Ok(choice.members.clone());
    };
    let mut paths: BTreeSet<PathBuf> = choice.members.iter().cloned().collect();
    if places.is_empty() {
        paths.extend(block_devices());
    }
    for place in places {
        // A place that was named must exist; only what is found in it may be skipped.
        place.metadata().map_err(|error| Failure::from_io("look at", place, &error))?;
        if place.is_dir() {
            paths.extend(files_in(place)?);
        } else {
            paths.insert(place.clone());
        }
    }
    Ok(paths.into_iter().collect())
}

/// The engine's filter for a command line.
///
/// # Errors
/// [`ExitKind::Usage`] for what is no UUID.
pub fn filter(choice: &Choice) -> Result<Filter, Failure> {
    let set_uuid = choice.uuid.as_deref().map(parse_uuid).transpose()?;
    Ok(Filter { set_uuid, name: choice.name.clone(), force: choice.force })
}

fn parse_uuid(text: &str) -> Result<[u8; 16], Failure> {
    array_uuid::parse(text).ok_or_else(|| {
        Failure::new(ExitKind::Usage, format!("{text:?} is no UUID")).help("a UUID has 32 hexadecimal digits")
    })
}

fn files_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder).map_err(|error| Failure::from_io("look into", folder, &error))?;
    Ok(entries.flatten().map(|entry| entry.path()).filter(|path| !path.is_dir()).collect())
}

/// Every block device that can hold data, but those that hang.
fn block_devices() -> Vec<PathBuf> {
    let entries = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let has_size = |path: &Path| fs::read_to_string(path.join("size")).is_ok_and(|size| size.trim() != "0");
    let paths = entries
        .filter(|entry| has_size(&entry.path()))
        // A slash in a device's name is an exclamation mark there.
        .map(|entry| Path::new("/dev").join(entry.file_name().to_string_lossy().replace('!', "/")));
    answering(paths.collect())
}

fn answer(candidates: &Candidates, found: &Found, in_use: &[Vec<Problem>], filter: &Filter) -> Answer {
    let candidate = |(index, verdict): &(usize, Verdict)| AnswerCandidate {
        path: candidates.paths[*index].display().to_string(),
        verdict: verdict.clone(),
        basis: candidates.read[*index].superblock.as_ref().ok().map(|superblock| Basis {
            events: superblock.events(),
            device_uuid: display_uuid(&superblock.device_uuid()),
            device_role: words::superblock::role(superblock.role()),
            update_unix_s: superblock.utime_s(),
            clean: superblock.resync_offset().is_none(),
            served_epoch: None,
        }),
    };
    let array = |(array, in_use): (&Assembly, &Vec<Problem>)| {
        let is_free = in_use.is_empty();
        let FoundRedo { repair, resync_from_bytes, .. } = found_redo(candidates, array, filter.force);
        let range = |range: &StripeRange| AnswerRange { first: range.first, end: range.end };
        AnswerArray {
            name: array.name.clone(),
            uuid: display_uuid(&array.set_uuid),
            level: array.geometry.map(|geometry| geometry.level().to_string()),
            layout: array.geometry.map(|geometry| geometry.layout().to_string()),
            chunk_bytes: array.geometry.map(|geometry| geometry.chunk_bytes()),
            size_bytes: array.array_bytes(),
            raid_devices: array.slots.len(),
            events: array.events,
            would_start: array.start.is_ok() && is_free,
            refusal: match &array.start {
                Err(refusal) => Some(refusal.to_string()),
                Ok(()) => (!is_free).then(|| "members are in use".to_owned()),
            },
            refusal_kind: match &array.start {
                Err(refusal) => Some(ExitKind::from(refusal)),
                Ok(()) => (!is_free).then_some(ExitKind::MemberInUse),
            },
            in_use: in_use.clone(),
            missing_slots: (0..array.slots.len()).filter(|slot| array.slots[*slot].is_none()).collect(),
            resync_from_bytes,
            redo_records: repair.records.len(),
            redo_stripes: array.geometry.as_ref().map_or_else(Vec::new, |geometry| repair.stripes(geometry)),
            in_doubt: repair.doubts.iter().map(range).collect(),
            in_doubt_reason: repair.reason,
            taken_by_force: stale_words(candidates, array, &stale_taken(candidates, array, filter)),
            candidates: array.verdicts.iter().map(candidate).collect(),
        }
    };
    Answer {
        arrays: found.arrays.iter().zip(in_use).map(array).collect(),
        others: found.others.iter().map(candidate).collect(),
    }
}

/// What the redo log would have a start do. If its bitmap cannot be read, the start reports it.
pub(super) fn found_redo(candidates: &Candidates, array: &Assembly, force: bool) -> FoundRedo {
    let inspection = inspection(&candidates.paths, &candidates.read, array);
    let bitmap = array.geometry.and_then(|geometry| inspection.bitmap(&geometry).ok().flatten());
    inspection.redo(bitmap.as_ref(), force, false)
}

fn answer_words(answer: &Answer, explain: bool) -> String {
    let mut text = String::new();
    for array in &answer.arrays {
        text += &array_words(array);
        for candidate in &array.candidates {
            text += &candidate_words(candidate, explain);
        }
        for slot in &array.missing_slots {
            text += &format!("  slot {slot}: empty\n");
        }
    }
    if !answer.others.is_empty() {
        text += "not taken:\n";
    }
    for candidate in &answer.others {
        text += &candidate_words(candidate, explain);
    }
    text
}

fn array_words(array: &AnswerArray) -> String {
    let mut text = plain(&array.name).into_owned();
    if let (Some(level), Some(size)) = (&array.level, array.size_bytes) {
        text += &format!(
            ": {level} over {}, {}",
            counted(array.raid_devices as u64, "member"),
            bytes::human(size)
        );
    }
    text += &match (&array.refusal, array.missing_slots.len()) {
        (Some(refusal), _) => format!("; would not start: {refusal}"),
        (None, 0) => "; would start".to_owned(),
        (None, missing) => format!("; would start degraded, {missing} missing"),
    };
    if array.would_start
        && let Some(from) = array.resync_from_bytes
    {
        text += &format!(", with a resync from {}", bytes::human(from));
    }
    text = format!("{text}\n  UUID {}, {}\n", array.uuid, counted(array.events, "event"));
    if array.redo_records > 0 {
        let (records, stripes) = (array.redo_records as u64, ranges_words(&array.redo_stripes));
        let records = counted(records, "record");
        text += &format!("  not stopped cleanly; the redo log repairs it: {records}, stripes {stripes}\n");
    }
    for taken in &array.taken_by_force {
        text += &format!("  {}\n", plain(taken));
    }
    for range in &array.in_doubt {
        let reason = array.in_doubt_reason.as_deref().unwrap_or_default();
        text += &format!("  stripes {} to {} are in doubt: {reason}\n", range.first, range.end - 1);
    }
    if !array.in_doubt.is_empty() {
        text += "    reads of what the missing members held there fail until it is overwritten; bring the members \
                 back, or accept what is there with --force\n";
    }
    text
}

/// `3, 7-9, 12`, the first few.
fn ranges_words(stripes: &[Stripe]) -> String {
    const RANGES_MAX: usize = 12;
    let mut ranges: Vec<(Stripe, Stripe)> = Vec::new();
    for &stripe in stripes {
        match ranges.last_mut().filter(|(_, last)| last.next() == stripe) {
            Some((_, last)) => *last = stripe,
            None => ranges.push((stripe, stripe)),
        }
    }
    let word = |(first, last): &(Stripe, Stripe)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    let mut words: Vec<String> = ranges.iter().take(RANGES_MAX).map(word).collect();
    if ranges.len() > RANGES_MAX {
        words.push("…".to_string());
    }
    words.join(", ")
}

fn candidate_words(candidate: &AnswerCandidate, explain: bool) -> String {
    let verdict = match &candidate.verdict {
        Verdict::Member { slot, state: MemberState::Recovering } => {
            format!("slot {slot}, its rebuild is not finished")
        }
        Verdict::Member { slot, .. } => format!("slot {slot}"),
        Verdict::Spare => "spare".to_owned(),
        Verdict::Replacement { slot } => format!("to replace the member in slot {slot}"),
        Verdict::Refused { reason } => format!("not taken: {reason}"),
    };
    let mut text = format!("  {}: {}\n", plain(&candidate.path), plain(&verdict));
    if let Some(basis) = candidate.basis.as_ref().filter(|_| explain) {
        text += &format!(
            "      says {}, {}, {}, last written {}, device UUID {}{}\n",
            basis.device_role,
            counted(basis.events, "event"),
            if basis.clean { "clean" } else { "active" },
            words::time::seconds(basis.update_unix_s),
            basis.device_uuid,
            basis
                .served_epoch
                .as_ref()
                .map_or_else(String::new, |epoch| format!(", last served epoch {epoch}"))
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stripes_are_named_as_ranges() {
        assert_eq!(ranges_words(&[3, 7, 8, 9, 12].map(Stripe::new)), "3, 7-9, 12");
        assert_eq!(
            ranges_words(&(0..40).map(|i| Stripe::new(i * 2)).collect::<Vec<_>>()).split(", ").count(),
            13
        );
    }

    #[test]
    fn uuids_are_read_in_every_grouping() {
        let bytes = *b"\x01\x23\x45\x67\x89\xab\xcd\xef\x01\x23\x45\x67\x89\xab\xcd\xef";
        for text in ["01234567:89abcdef:01234567:89ABCDEF", "01234567-89ab-cdef-0123-456789abcdef"] {
            assert_eq!(parse_uuid(text).unwrap(), bytes);
        }
        for text in ["", "0123", "g1234567:89abcdef:01234567:89abcdef", "+1234567:89abcdef:01234567:89abcdef"]
        {
            assert_eq!(parse_uuid(text).unwrap_err().kind, ExitKind::Usage, "{text}");
        }
    }
}
