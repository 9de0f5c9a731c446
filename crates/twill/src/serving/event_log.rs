//! What happened to a served array: kept in memory for `events` and on disk for the next server, and written to the log.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

use engine::events::Event;
use parking_lot::Mutex;
use serde_json::Value;

use super::clock::now_unix_ms;
use super::event_file::EventFile;
use super::platform::Known;
use crate::status::LoggedEvent;
use crate::words;

/// Events kept; the oldest are dropped first.
const EVENTS_MAX: usize = 10_000;

/// How far back an event is looked for that happens again. A slowly failing member makes thousands of errors at few places.
const AGAIN_WITHIN: usize = 256;

/// The log. Shards write, control threads read.
pub(super) struct EventLog {
    kept: Mutex<Kept>,
    known: OnceLock<Arc<Mutex<Known>>>,
    file: EventFile,
    /// A member stays although it fails: the array would be lost without it.
    is_failing: AtomicBool,
}

struct Kept {
    /// Those of earlier servers, as they were on disk, then those of this one.
    events: VecDeque<KeptEvent>,
    last: u64,
}

struct KeptEvent {
    sequence: u64,
    /// None: of an earlier server.
    own: Option<LoggedEvent>,
    value: Value,
}

impl EventLog {
    /// The log of the array with this identity, with what earlier servers have kept.
    pub(super) fn of(set_uuid: &[u8; 16]) -> Self {
        let (file, earlier) = EventFile::open(set_uuid);
        let last = earlier.keys().next_back().copied().unwrap_or(0);
        let events = earlier.into_iter().map(|(sequence, value)| KeptEvent { sequence, own: None, value });
        let mut events: VecDeque<KeptEvent> = events.collect();
        events.drain(..events.len().saturating_sub(EVENTS_MAX));
        EventLog {
            kept: Mutex::new(Kept { events, last }),
            known: OnceLock::new(),
            file,
            is_failing: AtomicBool::new(false),
        }
    }

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
        let path = paths.get(event.member()?.index())?.as_ref()?;
        Some(path.display().to_string())
    }

    /// Adds an event, with the time. An error that happened at the same place a moment ago counts there.
    pub(super) fn add(&self, event: Event) {
        let unix_ms = now_unix_ms();
        let device = self.device(&event);
        if matches!(event, Event::MemberKept { .. }) {
            self.is_failing.store(true, Relaxed);
        }
        let mut kept = self.kept.lock();
        let logged = match kept.again(&event, unix_ms) {
            Some(again) => again,
            None => {
                kept.push(LoggedEvent { sequence: 0, unix_ms, event, device, count: 1, last_unix_ms: None })
            }
        };
        // Half of what is said, and less and less, says as much.
        if logged.count.is_power_of_two() {
            say(&logged);
            self.file.keep(value(&logged));
        }
    }

    /// Whether a member has failed that the array cannot do without, since the server started.
    pub(super) fn is_failing(&self) -> bool {
        self.is_failing.load(Relaxed)
    }

    /// The newest events, at most `most`, the oldest of them first.
    pub(super) fn newest(&self, most: usize) -> Vec<Value> {
        let kept = self.kept.lock();
        let earlier = kept.events.len().saturating_sub(most);
        kept.events.range(earlier..).map(|event| event.value.clone()).collect()
    }

    /// Events after the one with number `since`.
    pub(super) fn since(&self, since: u64) -> Vec<Value> {
        let kept = self.kept.lock();
        let later = kept.events.iter().filter(|event| event.sequence > since);
        later.map(|event| event.value.clone()).collect()
    }
}

impl Kept {
    /// The event that this one repeats, counted once more.
    fn again(&mut self, event: &Event, unix_ms: u64) -> Option<LoggedEvent> {
        if !is_repeated(event) {
            return None;
        }
        let is_it = |kept: &&mut KeptEvent| kept.own.as_ref().is_some_and(|own| own.event == *event);
        let kept = self.events.iter_mut().rev().take(AGAIN_WITHIN).find(is_it)?;
        let own = kept.own.as_mut()?;
        own.count += 1;
        own.last_unix_ms = Some(unix_ms);
        kept.value = value(own);
        Some(own.clone())
    }

    fn push(&mut self, logged: LoggedEvent) -> LoggedEvent {
        self.last += 1;
        let logged = LoggedEvent { sequence: self.last, ..logged };
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
        }
        let (sequence, value) = (logged.sequence, value(&logged));
        self.events.push_back(KeptEvent { sequence, own: Some(logged.clone()), value });
        logged
    }
}

/// Whether an event may happen again and again, with nothing new in it.
fn is_repeated(event: &Event) -> bool {
    matches!(
        event,
        Event::MemberError { .. }
            | Event::BlockRewritten { .. }
            | Event::LogDamaged { .. }
            | Event::BlockUnreadable { .. }
            | Event::BadBlockRecorded { .. }
            | Event::MemberKept { .. }
            | Event::RebuildStopped { .. }
            | Event::StripeSuspect { .. }
            | Event::RegionSuspect { .. }
            | Event::MetadataError { .. }
    )
}

/// An event as callers get it, with its words: what it was called stays, whatever later versions call it.
fn value(logged: &LoggedEvent) -> Value {
    let mut value = serde_json::to_value(logged).expect("events are plain data");
    value["text"] = words::events::logged(logged).into();
    value
}

fn say(logged: &LoggedEvent) {
    let words = words::events::logged(logged);
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
        | Event::GrowthStarted { .. }
        | Event::GrowthFinished { .. }
        | Event::MemberRemoved { .. } => tracing::info!("{words}"),
        _ => tracing::warn!("{words}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layout::units::{DeviceOffset, Slot};

    fn add(kept: &mut Kept, event: Event, unix_ms: u64) -> LoggedEvent {
        kept.again(&event, unix_ms).unwrap_or_else(|| {
            kept.push(LoggedEvent { sequence: 0, unix_ms, event, device: None, count: 1, last_unix_ms: None })
        })
    }

    #[test]
    fn an_error_at_the_same_place_is_counted_and_others_are_events() {
        let mut kept = Kept { events: VecDeque::new(), last: 0 };
        let at = |offset| {
            let offset_bytes = DeviceOffset::new(offset);
            Event::BlockUnreadable { member: Slot::new(1), offset_bytes, bytes: 4096 }
        };
        for time in 0..1000 {
            add(&mut kept, at(4096), time);
            add(&mut kept, at(8192), time);
        }
        assert_eq!(kept.events.len(), 2);
        let value = &kept.events[1].value;
        assert_eq!((&value["count"], &value["last_unix_ms"]), (&1000.into(), &999.into()));
        assert!(
            value["text"].as_str().is_some_and(|text| text.contains("(1000 times, last 1970-")),
            "{value}"
        );
        // A member that fails twice has failed twice.
        for _ in 0..2 {
            add(&mut kept, Event::MemberRemoved { member: Slot::new(1) }, 0);
        }
        assert_eq!((kept.events.len(), kept.last), (4, 4));
    }
}
