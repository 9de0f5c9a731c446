//! `list`: which arrays are served, and which ones devices make.

use std::collections::BTreeSet;
use std::path::PathBuf;

use comfy_table::{Table, presets};
use engine::array::assemble::{Assembly, Filter, assemble};
use layout::md_superblock::display_uuid;
use serde::Serialize;

use super::assemble::{in_use::in_use, read};
use super::output::Output;
use crate::arguments::{Choice, ListArguments};
use crate::array_name;
use crate::bytes;
use crate::control::{Asked, ask_all};
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::plain::plain;
use crate::probe::candidates::Candidates;
use crate::remote;
use crate::status::ArrayStatus;
use crate::words::status::state;

/// What `list` answers.
#[derive(Debug, Serialize)]
struct Answer {
    served: Vec<ServedArray>,
    /// Arrays that members make.
    found: Vec<FoundArray>,
    /// Servers that do not answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unanswered: Vec<Problem>,
    #[serde(skip)]
    looked: bool,
}

#[derive(Debug, Serialize)]
struct ServedArray {
    name: String,
    uuid: String,
    level: String,
    size_bytes: u64,
    raid_devices: u32,
    working_devices: usize,
    /// mdadm's words.
    state: Vec<&'static str>,
    /// A block device, then URIs.
    exports: Vec<String>,
    control: PathBuf,
    pid: u32,
}

#[derive(Debug, Serialize)]
struct FoundArray {
    name: String,
    uuid: String,
    level: Option<String>,
    size_bytes: Option<u64>,
    raid_devices: usize,
    present_devices: usize,
    /// served, in-use, ready, degraded, or refused.
    state: &'static str,
    /// Why it would not start.
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
    members: Vec<String>,
}

/// Lists arrays. That there are none is an answer too.
///
/// # Errors
/// A server that does not answer, beside the answers of the others; members that cannot be looked at.
pub fn run(arguments: &ListArguments, output: Output) -> Result<(), Failure> {
    remote::set(&arguments.remote)?;
    let (mut served, mut unanswered) = (Vec::new(), Vec::new());
    for Asked { name, control, answer } in ask_all::<ArrayStatus>("status") {
        match answer {
            Ok(status) => served.push(served_array(&status, control)),
            // One that is being stopped just now is none.
            Err(failure) if failure.kind == ExitKind::NotFound => {}
            Err(failure) => unanswered.push(Problem::of_array(&name, failure)),
        }
    }
    if arguments.names {
        let words = words_for(&served);
        if output.json || !words.is_empty() {
            output.print(&words, |words| words.join("\n"))?;
        }
        return all_answered(unanswered);
    }
    let looked = arguments.scan.is_some() || !arguments.members.is_empty();
    let found = if looked { found(arguments, &served)? } else { Vec::new() };
    let answer = Answer { served, found, unanswered, looked };
    output.print(&answer, answer_words)?;
    all_answered(answer.unanswered)
}

fn all_answered(unanswered: Vec<Problem>) -> Result<(), Failure> {
    if unanswered.is_empty() {
        return Ok(());
    }
    Err(Failure::from_problems("not every server answers", unanswered).answered())
}

/// One word for each array, by which commands find it.
fn words_for(served: &[ServedArray]) -> Vec<&str> {
    let is_word =
        |name: &str| name.chars().all(|letter| letter.is_ascii_alphanumeric() || "-_.".contains(letter));
    let has = |name: &str| served.iter().filter(|array| array.name == name).count();
    let word = |array: &'_ ServedArray| is_word(&array.name) && has(&array.name) == 1;
    served.iter().map(|array| if word(array) { &array.name } else { &array.uuid }.as_str()).collect()
}

fn served_array(status: &ArrayStatus, control: PathBuf) -> ServedArray {
    let device = status.block_device.as_ref().map(|device| device.path.clone());
    ServedArray {
        name: status.name.clone(),
        uuid: status.uuid.clone(),
        level: status.level.clone(),
        size_bytes: status.size_bytes,
        raid_devices: status.raid_devices,
        working_devices: status.working(),
        state: state(status),
        exports: device.into_iter().chain(status.exports.iter().map(|export| export.uri.clone())).collect(),
        control,
        pid: status.pid,
    }
}

fn found(arguments: &ListArguments, served: &[ServedArray]) -> Result<Vec<FoundArray>, Failure> {
    let choice = Choice::among(&arguments.members, arguments.scan.as_deref(), &arguments.remote);
    let candidates = read(&choice)?;
    let uuids: BTreeSet<&str> = served.iter().map(|array| array.uuid.as_str()).collect();
    let arrays = assemble(&candidates.read, &Filter::default()).arrays;
    Ok(arrays.iter().map(|array| found_array(&candidates, array, &uuids)).collect())
}

fn found_array(candidates: &Candidates, array: &Assembly, served: &BTreeSet<&str>) -> FoundArray {
    let uuid = display_uuid(&array.set_uuid);
    let present_devices = array.slots.iter().flatten().count();
    let state = match &array.start {
        _ if served.contains(uuid.as_str()) => "served",
        Err(_) => "refused",
        Ok(()) if !in_use(candidates, array).is_empty() => "in-use",
        Ok(()) if present_devices < array.slots.len() => "degraded",
        Ok(()) => "ready",
    };
    let members = array.verdicts.iter().map(|(index, _)| candidates.paths[*index].display().to_string());
    FoundArray {
        name: array_name::short(&array.name).to_owned(),
        uuid,
        level: array.geometry.map(|geometry| geometry.level().to_string()),
        size_bytes: array.array_bytes(),
        raid_devices: array.slots.len(),
        present_devices,
        state,
        refusal: array.start.as_ref().err().filter(|_| state == "refused").map(ToString::to_string),
        members: members.collect(),
    }
}

fn answer_words(answer: &Answer) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["Name", "Level", "Devices", "Size", "State", "UUID", "Where"]);
    for array in &answer.served {
        table.add_row([
            plain(&array.name).into_owned(),
            array.level.clone(),
            format!("{}/{}", array.working_devices, array.raid_devices),
            bytes::human(array.size_bytes),
            format!("served, {}", array.state.join(", ")),
            array.uuid.clone(),
            array.exports.join(" "),
        ]);
    }
    for array in answer.found.iter().filter(|array| array.state != "served") {
        table.add_row([
            plain(&array.name).into_owned(),
            array.level.clone().unwrap_or_else(|| "-".into()),
            format!("{}/{}", array.present_devices, array.raid_devices),
            array.size_bytes.map_or_else(|| "-".into(), bytes::human),
            match array.state {
                "in-use" => "members in use".into(),
                "degraded" => "would start degraded".into(),
                "ready" => "would start".into(),
                _ => "would not start".into(),
            },
            array.uuid.clone(),
            array.members.iter().map(|member| plain(member)).collect::<Vec<_>>().join(" "),
        ]);
    }
    let mut text = if table.is_empty() { String::new() } else { format!("{}\n", table.trim_fmt()) };
    for array in answer.found.iter().filter(|array| array.refusal.is_some()) {
        let refusal = array.refusal.as_deref().unwrap_or_default();
        text += &format!("{} would not start: {}\n", plain(&array.name), plain(refusal));
    }
    if answer.served.is_empty() && answer.found.is_empty() {
        text += match answer.looked {
            true => "no array is served, and none was found\n",
            false => "no array is served; `twill list --scan` looks for arrays on all block devices\n",
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_a_word_for_an_array_where_it_is_one_and_no_other_has_it() {
        let array = |name: &str, uuid: &str| ServedArray {
            name: name.to_owned(),
            uuid: uuid.to_owned(),
            level: String::new(),
            size_bytes: 0,
            raid_devices: 0,
            working_devices: 0,
            state: Vec::new(),
            exports: Vec::new(),
            control: PathBuf::new(),
            pid: 0,
        };
        let served = [array("store-1", "a"), array("twice", "b"), array("my data", "c"), array("twice", "d")];
        assert_eq!(words_for(&served), ["store-1", "b", "c", "d"]);
    }
}
