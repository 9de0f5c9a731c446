//! What happened to a served array: kept in memory for `events` and `status`, and told to the log.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use engine::events::Event;
use parking_lot::Mutex;

use crate::status::{LoggedEvent, event_words};

/// Events kept. A member that fails in small steps makes thousands of errors; the oldest go first.
const EVENTS_MAX: usize = 10_000;

/// The log. Shards write, control threads read.
#[derive(Default)]
pub(super) struct EventLog {
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    events: VecDeque<LoggedEvent>,
    last: u64,
}

impl EventLog {
    /// Adds an event, with the time.
    pub(super) fn add(&self, event: Event) {
        let unix_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let words = event_words(&event);
        match &event {
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
        let sequence = kept.last;
        if kept.events.len() == EVENTS_MAX {
            kept.events.pop_front();
        }
        let unix_ms = u64::try_from(unix_ms).unwrap_or(u64::MAX);
        kept.events.push_back(LoggedEvent { sequence, unix_ms, event });
    }

    /// Events after the one with number `since`.
    pub(super) fn since(&self, since: u64) -> Vec<LoggedEvent> {
        self.kept.lock().events.iter().filter(|event| event.sequence > since).cloned().collect()
    }
}
