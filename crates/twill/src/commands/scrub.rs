//! `check`, `repair` and `scrub`: whether the members' contents agree, and which block on which member does not.

use engine::array::scrub::{Phase, ScrubState, word};
use serde_json::{Value, json};

use super::output::Output;
use super::status::{Bars, INTERVAL, ask};
use crate::arguments::{CheckArguments, RepairArguments, ScrubArguments, ScrubWish};
use crate::control::{self, Client};
use crate::counted::{counted, counted_as};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::status::ArrayStatus;
use crate::words;
use layout::units::Slot;

/// Checks an array.
///
/// # Errors
/// [`ExitKind::Mismatch`] if something does not agree; no such array; it could not go on.
pub fn check(arguments: &CheckArguments, output: Output) -> Result<(), Failure> {
    start(arguments, json!({ "repair": false, "restart": arguments.restart }), output)
}

/// Repairs an array.
///
/// # Errors
/// [`ExitKind::Mismatch`] if something still does not agree; no such array; it could not go on.
pub fn repair(arguments: &RepairArguments, output: Output) -> Result<(), Failure> {
    let RepairArguments { check, trust_data } = arguments;
    start(check, json!({ "repair": true, "trust_data": trust_data, "restart": check.restart }), output)
}

/// Pauses, resumes or cancels a check or repair, or says what it found.
///
/// # Errors
/// No such array, or nothing is under way.
pub fn control(arguments: &ScrubArguments, output: Output) -> Result<(), Failure> {
    let mut client = control::connect(arguments.served.which())?;
    let (wish, done) = match arguments.wish {
        ScrubWish::Pause => ("pause", "paused; it goes on with twill scrub resume, also after a restart"),
        ScrubWish::Resume => ("resume", "it goes on"),
        ScrubWish::Cancel => ("cancel", "cancelled"),
        ScrubWish::Report => return report(&mut client, output),
    };
    client.call("scrub-wish", json!({ "wish": wish }))?;
    output.print(&json!({ "done": wish }), |_| done.to_owned())
}

fn report(client: &mut Client, output: Output) -> Result<(), Failure> {
    match state(client)? {
        Some(state) => {
            let status = ask(client)?;
            show(&state, &status, outcome(&state, &status), output)
        }
        None => {
            Err(Failure::new(ExitKind::NotFound, "the array was never checked").help("check it: twill check"))
        }
    }
}

fn start(arguments: &CheckArguments, params: Value, output: Output) -> Result<(), Failure> {
    let mut client = control::connect(arguments.served.which())?;
    client.call("scrub", params)?;
    if arguments.no_wait {
        return output.print(&json!({ "done": "started" }), |_| {
            "started; twill status shows how far it is, twill scrub report what it found".to_owned()
        });
    }
    let mut bars = Bars::new(Output { json: false });
    let state = loop {
        let state = state(&mut client)?.ok_or_else(unknown)?;
        if state.phase != Phase::Running {
            break state;
        }
        if !output.json {
            bars.show(&ask(&mut client)?)?;
        }
        std::thread::sleep(INTERVAL);
    };
    bars.finish();
    let status = ask(&mut client)?;
    let ended = not_done(&state).map_or_else(|| outcome(&state, &status), Err);
    show(&state, &status, ended, output)
}

fn unknown() -> Failure {
    Failure::new(ExitKind::Internal, "the server has no record of a check or repair")
}

fn state(client: &mut Client) -> Result<Option<ScrubState>, Failure> {
    client.ask("scrub-report", Value::Null)
}

fn show(
    state: &ScrubState,
    status: &ArrayStatus,
    ended: Result<(), Failure>,
    output: Output,
) -> Result<(), Failure> {
    output.print(state, |state| report_words(state, status))?;
    ended.map_err(Failure::answered)
}

/// Mismatches that are still there.
fn open(state: &ScrubState) -> u64 {
    if state.mode.repair { state.report.left } else { state.report.count() }
}

/// A check that was paused or cancelled before it found anything has not shown that all blocks agree.
fn not_done(state: &ScrubState) -> Option<Failure> {
    let how = match state.phase {
        Phase::Paused => "paused",
        Phase::Cancelled => "cancelled",
        Phase::Running | Phase::Finished | Phase::Failed => return None,
    };
    let message = format!("the {} was {how} before it was done", word(state.mode.repair));
    (open(state) == 0).then(|| Failure::new(ExitKind::Interrupted, message))
}

/// The exit code for what was found.
fn outcome(state: &ScrubState, status: &ArrayStatus) -> Result<(), Failure> {
    let what = word(state.mode.repair);
    let open = open(state);
    let mismatches = counted_as(open, "mismatch", "mismatches");
    match &state.failure {
        reason if state.phase == Phase::Failed => {
            let reason = reason.as_deref().unwrap_or("no reason was given; see twill events");
            Err(Failure::new(ExitKind::IoError, format!("the {what} could not go on: {reason}")))
        }
        _ if open == 0 && state.report.stripes_skipped > 0 => {
            let skipped = counted(state.report.stripes_skipped, unit(status));
            let failure = Failure::new(ExitKind::IoError, format!("{skipped} could not be compared"));
            Err(failure.help("twill events says why: members without space, or places that cannot be read"))
        }
        _ if open == 0 => Ok(()),
        _ if state.mode.repair => {
            let failure = Failure::new(ExitKind::Mismatch, format!("not repaired: {mismatches}"));
            Err(failure.help(if status.zoned.is_some() {
                "a segment that takes records still is left as it is: stop the array, start it, and repair again; what cannot be made from the other members is lost"
            } else {
                "where two blocks of a row are wrong, they cannot be told from the right ones; --trust-data makes parity agree with data"
            }))
        }
        _ => {
            let failure = Failure::new(ExitKind::Mismatch, mismatches);
            Err(failure.help(match status.zoned {
                None => "twill repair rewrites what is known to be wrong",
                Some(_) => "reads make these blocks from the other members, where the level can; twill repair makes them again elsewhere",
            }))
        }
    }
}

/// Mismatches that are printed as words; --json has all that the server lists.
const LISTED_MAX: usize = 20;

/// The word for what a check compares at a time.
fn unit(status: &ArrayStatus) -> &'static str {
    match status.level.as_str() {
        _ if status.zoned.is_some() => "segment",
        "raid1" | "raid10" => "region",
        _ => "stripe",
    }
}

fn report_words(state: &ScrubState, status: &ArrayStatus) -> String {
    let report = &state.report;
    let mut text = format!(
        "{} {}: {} compared, {} could not be; {} not agree\n",
        word(state.mode.repair),
        words::scrub::phase(state.phase),
        counted(report.stripes_checked, unit(status)),
        report.stripes_skipped,
        counted_as(report.mismatch_sectors, "sector does", "sectors do")
    );
    if state.mode.repair {
        text += &format!("  {} repaired, {} left\n", report.repaired, report.left);
    }
    for mismatch in report.found.iter().take(LISTED_MAX) {
        text += &format!("  {}\n", words::scrub::mismatch(mismatch, &|slot| path(status, slot)));
    }
    let more = report.count() - report.found.len().min(LISTED_MAX) as u64;
    if more > 0 {
        text += &format!("  and {more} more; --json lists {}\n", report.found.len());
    }
    text
}

fn path(status: &ArrayStatus, slot: Slot) -> Option<String> {
    status.members.iter().find(|member| member.slot == Some(slot))?.path.clone()
}
