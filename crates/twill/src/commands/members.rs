//! `fail`, `remove`, `add` and `stop`: changes of an array while it is served.

use serde::Serialize;
use serde_json::{Value, json};

use super::Output;
use super::status::call;
use crate::arguments::{AddArguments, MemberArguments, RemoveArguments, ServedArguments};
use crate::failure::Failure;
use crate::member_file::MemberFile;

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
    let (control, array) = (arguments.served.control.as_deref(), arguments.array.as_deref());
    call(control, array, "fail", json!({ "member": member }))?;
    let answer = Answer { done: "failed", member: Some(&arguments.member) };
    output.print(&answer, |_| format!("{} is no longer used", arguments.member));
    Ok(())
}

/// Lets go of a failed member.
///
/// # Errors
/// No such array or member, or it is in use.
pub fn remove(arguments: &RemoveArguments, output: Output) -> Result<(), Failure> {
    let member = named(&arguments.member);
    let (control, array) = (arguments.served.control.as_deref(), arguments.array.as_deref());
    call(control, array, "remove", json!({ "member": member }))?;
    let answer = Answer { done: "removed", member: Some(&arguments.member) };
    output.print(&answer, |_| format!("removed: {}", arguments.member));
    Ok(())
}

/// Adds a member.
///
/// # Errors
/// No such array, or what speaks against the member.
pub fn add(arguments: &AddArguments, output: Output) -> Result<(), Failure> {
    // Said here, the reason names the path as it was typed.
    if let Err(problem) = MemberFile::open(&arguments.member) {
        return Err(Failure::from_problems("the member cannot be added", vec![problem]));
    }
    let path = arguments.member.display().to_string();
    let (control, array) = (arguments.served.control.as_deref(), arguments.array.as_deref());
    call(control, array, "add", json!({ "path": named(&path), "force": arguments.force }))?;
    let answer = Answer { done: "added", member: Some(&path) };
    output.print(&answer, |_| format!("{path} is added"));
    Ok(())
}

/// Stops serving an array, and waits until its members are free.
///
/// # Errors
/// No such array, or it could not be made clean.
pub fn stop(arguments: &ServedArguments, output: Output) -> Result<(), Failure> {
    let (control, array) = (arguments.served.control.as_deref(), arguments.array.as_deref());
    call(control, array, "stop", Value::Null)?.wait_for_end();
    output.print(&Answer { done: "stopped", member: None }, |_| {
        "stopped; the array is clean on its members".into()
    });
    Ok(())
}

/// A path that the server, which runs elsewhere, understands. Slots and words stay as they are.
fn named(member: &str) -> String {
    let is_word = member.parse::<u32>().is_ok() || ["failed", "detached"].contains(&member);
    if is_word {
        return member.to_owned();
    }
    let full = std::path::absolute(member);
    full.map_or_else(|_| member.to_owned(), |path| path.display().to_string())
}
