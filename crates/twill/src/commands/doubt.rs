//! `accept-doubt`: an operator ends the doubt of stripes whose members do not come back.

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::output::Output;
use crate::arguments::AcceptDoubtArguments;
use crate::control::connect;
use crate::counted::counted;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::status::{ArrayStatus, DoubtRange};
use crate::words;

#[derive(Deserialize)]
struct Accepted {
    stripes: u64,
}

/// What `accept-doubt` answers.
#[derive(Serialize)]
struct Answer {
    done: &'static str,
    /// How many stripes were in doubt and are not any more.
    stripes: u64,
}

/// Ends the doubt of stripes.
///
/// # Errors
/// No such array, or nothing is in doubt there.
pub fn accept(arguments: &AcceptDoubtArguments, output: Output) -> Result<(), Failure> {
    let all = [DoubtRange { first: 0, last: u64::MAX }];
    let ranges: &[DoubtRange] = if arguments.all { &all } else { &arguments.stripes };
    let mut client = connect(arguments.served.which())?;
    let Accepted { stripes } = client.ask("accept-doubt", json!({ "ranges": ranges }))?;
    output.print(&Answer { done: "accepted", stripes }, |answer| match answer.stripes {
        0 => "none of these stripes was in doubt: nothing has changed".to_owned(),
        count => format!(
            "{} left doubt: what missing members held there is now what parity makes; compare it with a backup",
            counted(count, "stripe")
        ),
    })
}

/// That stripes are in doubt, and what helps, for those that wait for an array to be well.
///
/// # Errors
/// [`ExitKind::InDoubt`] if any are.
pub fn none_in_doubt(status: &ArrayStatus) -> Result<(), Failure> {
    let Some(doubts) = words::status::doubts(status) else { return Ok(()) };
    let failure = Failure::new(ExitKind::InDoubt, format!("{}: {doubts}", status.name));
    Err(failure.help(words::status::doubt_help(status)))
}
