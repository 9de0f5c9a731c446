//! Signals that end a server: the first one in order, a second one at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::ending::Ending;
use crate::commands::output::{Output, report};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::logging;

/// Signals this close together count as one: a closing terminal sends two, as does timeout(1).
const SAME_SIGNAL: Duration = Duration::from_millis(100);

/// How long after a refused stop another signal still ends the server at once. A later one asks for an orderly stop again.
pub(super) const SECOND_WITHIN: Duration = Duration::from_secs(30);

/// What a signal asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// A stop in order.
    Stop,
    /// The same signal, sent twice by a closing terminal.
    Same,
    /// An end at once.
    EndAtOnce,
}

/// The signals so far.
#[derive(Default)]
pub(super) struct Heard {
    first: Option<First>,
}

#[derive(Clone, Copy)]
struct First {
    at: Instant,
    /// The stop that it asked for was refused: the block device is in use.
    is_refused: bool,
}

impl Heard {
    pub(super) fn signal(&mut self, at: Instant) -> Meaning {
        match self.first {
            Some(first) if at.duration_since(first.at) < SAME_SIGNAL => Meaning::Same,
            Some(first) if !first.is_refused || at.duration_since(first.at) <= SECOND_WITHIN => {
                Meaning::EndAtOnce
            }
            _ => {
                self.first = Some(First { at, is_refused: false });
                Meaning::Stop
            }
        }
    }

    pub(super) fn refused(&mut self) {
        if let Some(first) = &mut self.first {
            first.is_refused = true;
        }
    }
}

/// A thread that waits for signals.
pub(super) struct Watch {
    /// The server receives what is sent; before that, the start is still under way.
    is_obeyed: Arc<AtomicBool>,
}

impl Watch {
    /// Sends signals from now on. Until [`Watch::begin_to_obey`] the first one waits for the end of the start, and a second one
    /// ends the process here: nothing is served yet, and the members are as after a crash.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn start(
        sender: &Sender<Ending>,
        output: Output,
        in_background: bool,
    ) -> Result<Self, Failure> {
        let failed = |error| Failure::new(ExitKind::Internal, format!("cannot wait for signals: {error}"));
        // A signal that nohup(1) or a shell has set to be ignored stays ignored. But a daemon's log can be rotated all the same.
        let is_heard = |signal: &i32| !is_ignored(*signal) || *signal == SIGHUP && in_background;
        let heard: Vec<i32> = [SIGINT, SIGTERM, SIGHUP].into_iter().filter(is_heard).collect();
        let mut signals = Signals::new(heard).map_err(failed)?;
        let is_obeyed = Arc::new(AtomicBool::new(false));
        let (sender, obeyed, mut during_start) = (sender.clone(), Arc::clone(&is_obeyed), Heard::default());
        let watch = move || {
            for signal in signals.forever() {
                let at = Instant::now();
                // In the foreground it means that the terminal is gone. A daemon has no terminal and no configuration, but a log.
                if signal == SIGHUP && in_background {
                    logging::reopen();
                    continue;
                }
                if !obeyed.load(SeqCst) {
                    match during_start.signal(at) {
                        Meaning::Stop => tracing::info!(
                            "signal {signal}: the server stops in order when the start is over; a second signal ends it at once"
                        ),
                        Meaning::Same => {}
                        Meaning::EndAtOnce => end_at_once(signal, output),
                    }
                }
                if sender.send(Ending::Signal { signal, at }).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("signals".into()).spawn(watch).map_err(failed)?;
        Ok(Watch { is_obeyed })
    }

    /// The start is over: the server receives what is sent from now on.
    pub(super) fn begin_to_obey(&self) {
        self.is_obeyed.store(true, SeqCst);
    }
}

fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask & 1 << (signal - 1) != 0
}

fn end_at_once(signal: i32, output: Output) -> ! {
    let message = format!("second signal {signal} before the start was over: ended at once");
    tracing::error!("{message}");
    let failure = Failure::new(ExitKind::Interrupted, message);
    report(&failure.help("the members are as after a crash; the next start recovers them"), output);
    std::process::exit(ExitKind::Interrupted.code().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Meaning::{EndAtOnce, Same, Stop};

    /// What signals at these seconds mean; with `refused` each stop is refused at once.
    fn meanings(refused: bool, seconds: &[f64]) -> Vec<Meaning> {
        let (start, mut heard) = (Instant::now(), Heard::default());
        let hear = |second: &f64| {
            let meaning = heard.signal(start + Duration::from_secs_f64(*second));
            if refused && meaning == Stop {
                heard.refused();
            }
            meaning
        };
        seconds.iter().map(hear).collect()
    }

    #[test]
    fn a_second_signal_ends_at_once_and_one_long_after_a_refusal_is_a_first() {
        for (refused, seconds, wanted) in [
            (false, &[0.0, 0.05, 0.2][..], &[Stop, Same, EndAtOnce][..]),
            (false, &[0.0, 300.0], &[Stop, EndAtOnce]), // that stop is still under way
            (true, &[0.0, 0.05, 1.0], &[Stop, Same, EndAtOnce]),
            (true, &[0.0, 29.0], &[Stop, EndAtOnce]),
            (true, &[0.0, 31.0, 32.0], &[Stop, Stop, EndAtOnce]),
            (true, &[0.0, 31.0, 62.0, 93.0], &[Stop, Stop, Stop, Stop]),
        ] {
            assert_eq!(meanings(refused, seconds), wanted, "refused: {refused}, at {seconds:?} s");
        }
    }
}
