//! What a server does until it ends: it hears signals, and what became of stops.

use std::sync::mpsc::Receiver;

use super::ending::Ending;
use super::signals::{Heard, Meaning, SECOND_WITHIN};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::service_manager;
use crate::serving::Stopped;

/// Waits for `twill stop`, or a signal, on which `stop` begins to stop what is served.
///
/// # Errors
/// What is served was not stopped in order.
pub fn until_end(endings: &Receiver<Ending>, stop: &dyn Fn()) -> Result<(), Failure> {
    let mut heard = Heard::default();
    loop {
        match endings.recv() {
            Ok(Ending::Stopped(outcome)) => {
                let Stopped { clean, connections } = outcome?;
                tracing::info!(clean, connections, "stopped");
                return Ok(());
            }
            Ok(Ending::Stopping) => service_manager::stopping(),
            Ok(Ending::Refused(failure)) => {
                let seconds = SECOND_WITHIN.as_secs();
                tracing::warn!("not stopped: {failure}");
                tracing::warn!("a second signal within {seconds} s of the first one ends the server at once");
                heard.refused();
            }
            Ok(Ending::Signal { signal, at }) => match heard.signal(at) {
                Meaning::Same => tracing::debug!("signal {signal} a second time within 0.1 s counts as one"),
                Meaning::EndAtOnce => {
                    let message = format!(
                        "second signal {signal}: ended at once, and the array is not clean on its members"
                    );
                    return Err(Failure::new(ExitKind::Interrupted, message)
                        .help("no acknowledged write is lost; a resync follows at the next start"));
                }
                Meaning::Stop => {
                    tracing::info!(
                        "signal {signal}: stopping in order; a second signal ends the server at once"
                    );
                    stop();
                }
            },
            Err(_) => {
                return Err(Failure::new(
                    ExitKind::Internal,
                    "the threads that would end the server are gone",
                ));
            }
        }
    }
}
