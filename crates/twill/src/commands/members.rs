//! `fail`, `remove`, `add`, `re-add`, `replace`, `set` and `stop`: changes of an array while it is served.

use std::path::Path;

use engine::members::load::UpdatePolicy;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::output::Output;
use super::status::{ask, call};
use crate::arguments::{
    AddArguments, GrowArguments, MemberArguments, ReAddArguments, RemoveArguments, ReplaceArguments,
    SetArguments, StopArguments, member_path,
};
use crate::bytes;
use crate::control::connect;
use crate::counted::counted;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::plain::plain;
use crate::probe::member_file::MemberFile;
use crate::serving::Stopped;
use crate::{remote, words};

/// What a change answers.
#[derive(Serialize)]
struct Answer<'a> {
    done: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    member: Option<&'a str>,
}

/// Stops using a member.
///
/// # Errors
/// No such array or member, or the array would be lost.
pub fn fail(arguments: &MemberArguments, output: Output) -> Result<(), Failure> {
    let member = named(&arguments.member);
    call(arguments.served.which(), "fail", json!({ "member": member, "force": arguments.force }))?;
    let answer = Answer { done: "failed", member: Some(&arguments.member) };
    output.print(&answer, |_| format!("{} is no longer used", arguments.member))
}

#[derive(Deserialize)]
struct Removed {
    removed: u64,
    #[serde(default)]
    paths: Vec<String>,
}

/// Removes failed members or a spare.
///
/// # Errors
/// No such array or member, or it is in use.
pub fn remove(arguments: &RemoveArguments, output: Output) -> Result<(), Failure> {
    let member = named(&arguments.member);
    let Removed { removed, paths } =
        connect(arguments.served.which())?.ask("remove", json!({ "member": member }))?;
    let answer = json!({ "done": "removed", "member": arguments.member, "removed": removed, "paths": paths });
    output.print(&answer, |_| match removed {
        0 => "nothing is removed: no member has failed".to_owned(),
        1 if !is_word(&arguments.member) => format!("removed {}", arguments.member),
        _ => format!("removed {}: {}", counted(removed, "failed member"), paths.join(", ")),
    })
}

/// Whether a device can be opened. Only the server knows how those on other machines are reached.
fn look(path: &Path) -> Result<(), Problem> {
    if remote::address(path).is_some() { Ok(()) } else { MemberFile::open(path).map(drop) }
}

/// What became of the former contents of a device that was added.
#[derive(Default, Deserialize)]
struct Added {
    #[serde(default)]
    erased: Vec<String>,
    #[serde(default)]
    stays: Vec<String>,
}

/// Adds a member.
///
/// # Errors
/// No such array, or the device is refused.
pub fn add(arguments: &AddArguments, output: Output) -> Result<(), Failure> {
    // Checked here first, so that the reason names the path as it was typed.
    if let Err(problem) = look(&arguments.member) {
        return Err(Failure::from_problems("the member cannot be added", vec![problem]));
    }
    let path = arguments.member.display().to_string();
    let params = json!({ "path": named(&path), "force": arguments.force });
    // A server of an earlier version answers null.
    let added: Option<Added> = connect(arguments.served.which())?.ask("add", params)?;
    let Added { erased, stays } = added.unwrap_or_default();
    let answer = json!({ "done": "added", "member": path, "erased": erased, "stays": stays });
    output.print(&answer, |_| {
        let mut text = format!("{} is added\n", plain(&path));
        if !erased.is_empty() {
            text += &format!("{} is no longer {}\n", plain(&path), erased.join(" or "));
        }
        if !stays.is_empty() {
            text += &words::clearing::stays(&path, &stays);
        }
        text
    })
}

/// What became of the devices by which an array grew.
#[derive(Deserialize)]
struct Grown {
    raid_devices: u32,
    cleared: Vec<Added>,
}

/// Grows a served array by members.
///
/// # Errors
/// No such array, or why it does not grow.
pub fn grow(arguments: &GrowArguments, output: Output) -> Result<(), Failure> {
    let problems: Vec<Problem> = arguments.add.iter().filter_map(|path| look(path).err()).collect();
    if !problems.is_empty() {
        return Err(Failure::from_problems("the array does not grow", problems));
    }
    let paths: Vec<String> = arguments.add.iter().map(|path| path.display().to_string()).collect();
    let named: Vec<String> = paths.iter().map(|path| named(path)).collect();
    let params = json!({ "paths": named, "raid_devices": arguments.raid_devices, "force": arguments.force });
    let Grown { raid_devices, cleared } = connect(arguments.served.which())?.ask("grow", params)?;
    let answer = json!({ "done": "grown", "members": paths, "raid_devices": raid_devices });
    output.print(&answer, |_| {
        let all: Vec<_> = paths.iter().map(|path| plain(path)).collect();
        let mut text = format!(
            "{}: the array has {raid_devices} members now, and rewrites what was written before; twill status says how far it is\n",
            all.join(", ")
        );
        for (path, Added { erased, stays }) in all.iter().zip(&cleared) {
            if !erased.is_empty() {
                text += &format!("{path} is no longer {}\n", erased.join(" or "));
            }
            if !stays.is_empty() {
                text += &words::clearing::stays(path, stays);
            }
        }
        text
    })
}

/// Takes back a member that was away for a while.
///
/// # Errors
/// No such array, or why the member has to be rebuilt instead.
pub fn re_add(arguments: &ReAddArguments, output: Output) -> Result<(), Failure> {
    if let Err(problem) = look(&arguments.member) {
        return Err(Failure::from_problems("the member cannot be re-added", vec![problem]));
    }
    let path = arguments.member.display().to_string();
    call(arguments.served.which(), "re-add", json!({ "path": named(&path) }))?;
    let answer = Answer { done: "re-added", member: Some(&path) };
    output.print(&answer, |_| format!("{path} is back and gets what it lacks"))
}

/// Replaces a member that still works.
///
/// # Errors
/// No such array or member, the member is not in sync, or the device is refused.
pub fn replace(arguments: &ReplaceArguments, output: Output) -> Result<(), Failure> {
    if let Some(Err(problem)) = arguments.with.as_deref().map(look) {
        return Err(Failure::from_problems("the device cannot be added", vec![problem]));
    }
    let (member, with) = (named(&arguments.member), arguments.with.as_ref());
    let with = with.map(|path| named(&path.display().to_string()));
    let params = json!({ "member": member, "with": with, "force": arguments.force });
    call(arguments.served.which(), "replace", params)?;
    let answer = Answer { done: "replacing", member: Some(&arguments.member) };
    output.print(&answer, |_| format!("{} is being replaced", arguments.member))
}

/// Changes how an array works.
///
/// # Errors
/// No such array.
pub fn set(arguments: &SetArguments, output: Output) -> Result<(), Failure> {
    let policy = arguments.update_policy.map(UpdatePolicy::name);
    let SetArguments { avoid_slow, rate, rate_min, p99_budget, .. } = arguments;
    let p99_budget_ns = p99_budget.map(|budget| u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX));
    if let (Some(most @ 1..), Some(least)) = (*rate, *rate_min)
        && least > most
    {
        let (least, most) = (bytes::human(least), bytes::human(most));
        let message = format!("--rate-min {least} is more than --rate {most}");
        return Err(Failure::new(ExitKind::Usage, message).help("give a --rate-min up to --rate"));
    }
    let params = json!({
        "update_policy": policy, "avoid_slow": avoid_slow,
        "rate_max": rate, "rate_min": rate_min, "p99_budget_ns": p99_budget_ns,
    });
    call(arguments.served.which(), "set", params)?;
    let slow = arguments
        .avoid_slow
        .map(|avoid| if avoid { "avoids slow members" } else { "waits for slow members" });
    let policy = policy.map(|policy| format!("update policy {policy}"));
    let limits = words::status::limits_set(*rate, *rate_min, p99_budget_ns);
    let words: Vec<String> = policy.into_iter().chain(slow.map(str::to_owned)).chain(limits).collect();
    output.print(&Answer { done: "set", member: None }, |_| format!("set: {}", words.join(", ")))
}

/// Stops serving an array, and waits until its members are free.
///
/// # Errors
/// No such array, or it could not be made clean.
pub fn stop(arguments: &StopArguments, output: Output) -> Result<(), Failure> {
    let params = json!({ "keep_device": arguments.keep_device, "force": arguments.force });
    let mut client = connect(arguments.served.which())?;
    // Asked before the stop, which ends the process that knows. A server that does not answer is stopped all the same.
    let status = ask(&mut client);
    let deleted = status.iter().flat_map(|status| status.deleted().map(str::to_owned)).collect();
    let stopped = client.ask("stop", params)?;
    client.wait_for_end();
    let answer = StopAnswer { done: "stopped", stopped, keeps_device: arguments.keep_device, deleted };
    output.print(&answer, stop_words)
}

/// What `stop` answers.
#[derive(Serialize)]
struct StopAnswer {
    done: &'static str,
    #[serde(flatten)]
    stopped: Stopped,
    keeps_device: bool,
    /// Members that had been deleted: what they held is lost.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    deleted: Vec<String>,
}

fn stop_words(answer: &StopAnswer) -> String {
    let Stopped { clean, connections } = answer.stopped;
    let how = if clean {
        "the array is clean on its members"
    } else {
        "the array is not clean on its members: what is left to resync follows at the next start"
    };
    let cut_off = match connections {
        0 => String::new(),
        1 => "; a connection was cut off".to_owned(),
        many => format!("; {many} connections were cut off"),
    };
    let device = if answer.keeps_device { "; its block device waits for the next server" } else { "" };
    let deleted = |path: &String| format!("\n{path} had been deleted: what it held is lost");
    let deleted: String = answer.deleted.iter().map(deleted).collect();
    format!("stopped; {how}{cut_off}{device}{deleted}")
}

/// Whether `remove` takes all failed members for this word.
fn is_word(member: &str) -> bool {
    ["failed", "detached"].contains(&member)
}

/// A path that means the same to the server, which runs in another folder. Slots and words stay as they are.
fn named(member: &str) -> String {
    if member.parse::<u32>().is_ok() || is_word(member) {
        return member.to_owned();
    }
    let path = member_path(member).unwrap_or_else(|_| member.into());
    remote::absolute(&path).display().to_string()
}
