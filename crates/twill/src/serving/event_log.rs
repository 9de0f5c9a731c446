//! What happened to a served array: kept in memory for `events`, and written to the log.

use std::collections::VecDeque;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use engine::events::Event;
use parking_lot::Mutex;

use super::platform::Known;
use crate::status::LoggedEvent;
use crate::words;

/// Events kept; the oldest are dropped first. A slowly failing member makes thousands of errors.
const EVENTS_MAX: usize = 10_000;

/// The log. Shards write, control threads read.
#[derive(Default)]
pub(super) struct EventLog {
    kept: Mutex<Kept>,
    known: OnceLock<Arc<Mutex<Known>>>,
}

#[derive(Default)]
struct Kept {
    events: VecDeque<LoggedEvent>,
    last: u64,
}

impl EventLog {
    /// Where to look up the members' devices.
    pub(super) fn ask(&self, known: &Arc<Mutex<Known>>) {
        assert!(self.known.set(Arc::clone(known)).is_ok(), "one array has one log");
    }

    /// The device of the member that an event is about. `try_lock`: a shard must not wait for a reader of the paths.
    fn device(&self, event: &Event) -> Option<String> {
        let known = self.known.get()?.try_lock()?;
        let paths = match event {
            Event::ReplacementStarted { .. } | Event::ReplacementFailed { .. } => &known.coming,
            Event::ReplacementFinished { .. } => &known.replaced,
            _ => &known.paths,
        };
        let path = paths.get(event.member()? as usize)?.as_ref()?;
        Some(path.display().to_string())
    }

    /// Adds an event, with the time.
    pub(super) fn add(&self, event: Event) {
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let device = self.device(&event);
        let unix_ms = u64::try_from(unix_ms).unwrap_or(u64::MAX);
        let logged = LoggedEvent { sequence: 0, unix_ms, event, device };
        let words = words::events::logged(&logged);
        match &logged.event {
            Event::RecoveryStarted { .. }
            | Event::MemberReAdded { .. }
            | Event::RecoveryFinished { .. }
            | Event::ReplacementStarted { .. }
            | Event::ReplacementFinished { .. }
            | Event::ResyncStarted { .. }
            | Event::ResyncFinished {}
            | Event::ScrubStarted { .. }
            | Event::ScrubFinished { .. }
            | Event::MemberRemoved { .. } => tracing::info!("{words}"),
            _ => tracing::warn!("{words}"),
        }
        let mut kept = self.kept.lock();
        kept.last += 1;
        let logged = LoggedEvent { sequence: kept.last, ..logged };
        if kept.events.len() == EVENTS_MAX {
            kept.events.pop_front();
        }
        kept.events.push_back(logged);
    }

    /// Events after the one with number `since`.
    pub(super) fn since(&self, since: u64) -> Vec<LoggedEvent> {
        self.kept.lock().events.iter().filter(|event| event.sequence > since).cloned().collect()
    }
}
