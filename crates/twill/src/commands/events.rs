//! `events`: what happened to a served array, one line an event.

use serde_json::{Value, json};

use super::{output::Output, status};
use crate::arguments::EventsArguments;
use crate::control;
use crate::failure::Failure;
use crate::words;

/// Prints events, with --json one object a line.
///
/// # Errors
/// No such array.
pub fn run(arguments: &EventsArguments, output: Output) -> Result<(), Failure> {
    let mut client = control::connect(arguments.served.which())?;
    let mut since = arguments.since;
    let mut first = true;
    loop {
        let events = match client.call("events", json!({ "since": since })) {
            Ok(events) => events,
            // It was stopped: the end of what there is to follow.
            Err(_) if arguments.follow && !first => return Ok(()),
            Err(failure) => return Err(failure),
        };
        for event in events.as_array().into_iter().flatten() {
            since = since.max(event["sequence"].as_u64().unwrap_or(0));
            output.line(&if output.json { event.to_string() } else { line(event) })?;
        }
        if !arguments.follow {
            return Ok(());
        }
        first = false;
        std::thread::sleep(status::INTERVAL);
    }
}

fn line(event: &Value) -> String {
    let time = words::time::milliseconds(event["unix_ms"].as_u64().unwrap_or(0));
    let text = event["text"].as_str().or_else(|| event["event"].as_str()).unwrap_or_default();
    format!("{time} {text}")
}
