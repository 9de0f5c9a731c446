//! `create`: all members are checked before the first byte is written. A refusal changes nothing; if a write fails half
//! way, the former contents are put back.

pub(in crate::commands) mod bitmap;
mod checks;
mod keep_from_md;
mod place;
mod plan;
mod wanted;
mod write;
mod zoned;

use layout::md_bitmap::BitmapSuper;
use layout::md_superblock::display_uuid;
use serde::Serialize;

use super::{output::Output, serve};
use crate::arguments::CreateArguments;
use crate::bytes;
use crate::counted::{counted, counted_as};
use crate::failure::Failure;
use crate::plain::plain;
use crate::probe::clearing::Clearing;
use crate::quoted::quoted;
use crate::serving::block_device;
use crate::{remote, words};
use keep_from_md::keep_from_md;
use plan::Plan;

/// What `create` answers.
#[derive(Debug, Serialize)]
struct Answer {
    name: String,
    uuid: String,
    level: String,
    layout: String,
    chunk_bytes: u32,
    metadata: String,
    size_bytes: u64,
    member_bytes: u64,
    raid_devices: u32,
    spare_devices: u32,
    /// How it agrees again after a crash: none, resync or bitmap.
    consistency_policy: &'static str,
    /// Bytes of a member, or at RAID-10 of the array, that a bit of the bitmap stands for.
    bitmap_chunk_bytes: Option<u32>,
    /// Whether a bit stands for such a chunk or for stripes all over: contiguous or dblock.
    bitmap_mapping: Option<&'static str>,
    /// Why no resync is needed, or that one is.
    resync: &'static str,
    members: Vec<AnswerMember>,
    /// The file that keeps md's rules for udev away from the members.
    #[serde(skip_serializing_if = "Option::is_none")]
    kept_from_md: Option<String>,
    /// The line that serves the array.
    next: String,
}

#[derive(Debug, Serialize)]
struct AnswerMember {
    path: String,
    role: String,
    device_uuid: String,
    /// What it held, and --force gave up.
    erased: Vec<String>,
    /// What stays in the data area, which is never cleared.
    stays: Vec<String>,
}

/// Makes an array.
///
/// # Errors
/// All reasons against it at once; nothing was written then.
pub fn run(arguments: &CreateArguments, output: Output) -> Result<(), Failure> {
    remote::set(&arguments.remote)?;
    if zoned::is_wanted(arguments) {
        return zoned::run(arguments, output);
    }
    zoned::check_not_given(&arguments.zoned)?;
    let wanted = wanted::wanted(arguments)?;
    let places = checks::look_at(arguments, &wanted)?;
    let plan = plan::make(arguments, wanted, places)?;
    let kept_from_md = keep_from_md(&plan).map(|path| path.display().to_string());
    let answer = Answer { kept_from_md, ..answer(&plan) };
    write::write(&plan)?;
    let Plan { set_uuid, places, .. } = plan;
    let paths: Vec<_> = places.iter().map(|place| place.path.clone()).collect();
    // The server that comes next locks the members.
    drop(places);
    if !arguments.wait || answer.resync != plan::RESYNC_NEEDED {
        return output.print(&answer, answer_words);
    }
    if output.json {
        return tell_after(&answer, serve::resync_and_stop(&paths, set_uuid, output), output);
    }
    let printed = output.print(&answer, answer_words);
    serve::resync_and_stop(&paths, set_uuid, output)?;
    printed
}

/// One document at the end: the array, and why its resync is not done.
fn tell_after(answer: &Answer, resynced: Result<(), Failure>, output: Output) -> Result<(), Failure> {
    let mut document = serde_json::to_value(answer).expect("answers are plain data");
    if let Err(failure) = &resynced {
        document["error"] = failure.to_json()["error"].take();
    }
    output.print(&document, |_| String::new())?;
    resynced.map_err(Failure::answered)
}

fn answer(plan: &Plan) -> Answer {
    let superblock = &plan.created.superblocks[0];
    let members = plan.places.iter().zip(&plan.created.superblocks).map(|(place, superblock)| {
        let Clearing { erased, stays, .. } = Clearing::of(&place.found, superblock);
        AnswerMember {
            path: place.path.display().to_string(),
            role: words::superblock::role(superblock.role()),
            device_uuid: display_uuid(&superblock.device_uuid()),
            erased,
            stays,
        }
    });
    let level = superblock.level().to_string();
    let raid_devices = superblock.raid_disks();
    Answer {
        name: superblock.set_name(),
        uuid: display_uuid(&plan.set_uuid),
        level,
        layout: superblock.layout().to_string(),
        chunk_bytes: superblock.chunk_bytes(),
        metadata: superblock.minor_version().to_string(),
        size_bytes: plan.geometry.array_bytes(),
        member_bytes: plan.geometry.member_bytes(),
        raid_devices,
        spare_devices: plan.spares,
        consistency_policy: match &plan.created.bitmap {
            Some(_) => "bitmap",
            None if plan.geometry.losses_survived() == 0 => "none",
            None => "resync",
        },
        bitmap_chunk_bytes: plan.created.bitmap.as_ref().map(BitmapSuper::chunk_bytes),
        bitmap_mapping: plan.created.bitmap.as_ref().map(words::superblock::mapping),
        resync: plan.resync,
        members: members.collect(),
        kept_from_md: None,
        next: next(plan),
    }
}

/// What an operator types next: root as a block device, which others may not make.
fn next(plan: &Plan) -> String {
    let how = if block_device::check().is_ok() { "--daemon --ublk" } else { "--daemon" };
    let members = plan.places.iter().map(|place| quoted(&place.path.to_string_lossy()).into_owned());
    format!("twill serve {how} {}", members.collect::<Vec<_>>().join(" "))
}

fn answer_words(answer: &Answer) -> String {
    let mut text = format!(
        "{}: {} over {}, {} usable",
        plain(&answer.name),
        answer.level,
        counted(answer.raid_devices, "member"),
        bytes::human(answer.size_bytes)
    );
    if answer.chunk_bytes > 0 {
        text += &format!(", chunk {}", bytes::short(u64::from(answer.chunk_bytes)));
    }
    if answer.layout != "default" {
        text += &format!(", {}", answer.layout);
    }
    if answer.spare_devices > 0 {
        text += &format!(", {}", counted(answer.spare_devices, "spare"));
    }
    if let Some(chunk) = answer.bitmap_chunk_bytes {
        text += &format!(", bitmap of {} chunks", bytes::short(u64::from(chunk)));
    }
    if answer.bitmap_mapping == Some("dblock") {
        text += " spread over the stripes, so md does not start this array";
    }
    text += &format!("\nUUID {}, metadata {}\n{}\n", answer.uuid, answer.metadata, answer.resync);
    for member in answer.members.iter().filter(|member| !member.erased.is_empty()) {
        text += &format!("{} is no longer {}\n", plain(&member.path), member.erased.join(" or "));
    }
    for member in answer.members.iter().filter(|member| !member.stays.is_empty()) {
        text += &words::clearing::stays(&member.path, &member.stays);
    }
    let present = answer.members.len() - answer.spare_devices as usize;
    let empty = (answer.raid_devices as usize).saturating_sub(present);
    if empty > 0 {
        text += &format!("{} empty: add members to it\n", counted_as(empty as u64, "slot is", "slots are"));
    }
    if let Some(file) = &answer.kept_from_md {
        text += &format!("md leaves the members to Twill while {file} is there\n");
    }
    text + &format!("next: {}\n", answer.next)
}
