//! What happened since the last look: to arrays that are served on this machine, and to their servers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::alert::{Alert, is_alert};
use super::seen::Seen;
use crate::control::{self, Client, Identity, ServedState, ask_all};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::serving::now_unix_ms;
use crate::status::ArrayStatus;
use crate::words::status::state;

/// The arrays of this machine.
pub struct Watch {
    host: String,
    /// By control socket.
    arrays: BTreeMap<PathBuf, Watched>,
    /// Why others did not start, by control socket.
    not_served: BTreeMap<PathBuf, String>,
    seen: Seen,
}

struct Watched {
    name: String,
    uuid: String,
    /// It did not answer the last time.
    hangs: bool,
}

impl Watch {
    /// None was looked at yet. `seen`: what an earlier monitor has told.
    pub fn new(host: &str, seen: Seen) -> Self {
        Watch { host: host.to_owned(), arrays: BTreeMap::new(), not_served: BTreeMap::new(), seen }
    }

    /// What happened, by array, in order.
    pub fn look(&mut self) -> Vec<Alert> {
        let mut alerts = Vec::new();
        let sockets: BTreeSet<PathBuf> = control::sockets().into_iter().map(|(_, path)| path).collect();
        // All at once: several servers that hang delay alerts about the others no longer than one does.
        let asked = ask_all::<Identity>("ping").into_iter();
        let hanging: BTreeMap<PathBuf, Failure> =
            asked.filter_map(|asked| Some((asked.control, asked.answer.err()?))).collect();
        for path in &sockets {
            let looked = match hanging.get(path) {
                Some(failure) => Err(failure.clone()),
                None => self.look_at(path, &mut alerts),
            };
            if let Err(failure) = looked {
                self.failed(path, &failure, &mut alerts);
            }
        }
        let ended: Vec<PathBuf> =
            self.arrays.keys().filter(|path| !sockets.contains(*path)).cloned().collect();
        for path in ended {
            let array = self.arrays.remove(&path).expect("it is watched");
            alerts.push(self.own(&array, "array-stopped", "it is not served any more: it was stopped"));
        }
        self.not_served.retain(|path, _| sockets.contains(path) && !self.arrays.contains_key(path));
        self.seen.keep();
        alerts
    }

    fn look_at(&mut self, path: &Path, alerts: &mut Vec<Alert>) -> Result<(), Failure> {
        if !self.arrays.contains_key(path) {
            self.meet(path, alerts)?;
        }
        let array = &self.arrays[path];
        let since = self.seen.last(&array.uuid).unwrap_or(0);
        let events: Vec<Value> = Client::ask_briefly_for(path, "events", json!({ "since": since }))?;
        for event in &events {
            alerts.push(self.told(array, event));
            self.seen.set(&array.uuid, &array.name, event["sequence"].as_u64().unwrap_or(since));
        }
        self.arrays.get_mut(path).expect("it is watched").hangs = false;
        Ok(())
    }

    /// A server that is new to this monitor. Of an array that no monitor knew, only its state is told, not its history.
    fn meet(&mut self, path: &Path, alerts: &mut Vec<Alert>) -> Result<(), Failure> {
        let status: ArrayStatus = Client::ask_briefly(path, "status")?;
        let all: Vec<Value> = Client::ask_briefly_for(path, "events", json!({ "since": 0 }))?;
        let last = all.iter().filter_map(|event| event["sequence"].as_u64()).max().unwrap_or(0);
        let array = Watched { name: status.name.clone(), uuid: status.uuid.clone(), hangs: false };
        match self.seen.last(&array.uuid) {
            // The server has no such events any more: it counts from the start again.
            Some(seen) if seen > last => self.seen.set(&array.uuid, &array.name, 0),
            Some(_) => {}
            None => {
                self.seen.set(&array.uuid, &array.name, last);
                let words = state(&status).join(", ");
                if status.degraded {
                    let text =
                        format!("{words}: {} of {} members work", status.working(), status.raid_devices);
                    alerts.push(self.own(&array, "degraded", &text));
                }
            }
        }
        self.arrays.insert(path.to_path_buf(), array);
        Ok(())
    }

    /// A server that does not answer. One that was stopped takes its socket with it; one that was killed does not.
    fn failed(&mut self, path: &Path, failure: &Failure, alerts: &mut Vec<Alert>) {
        if failure.kind == ExitKind::NotFound {
            if let Some(array) = self.arrays.remove(path).filter(|_| path.exists()) {
                let text =
                    "its server has ended without stopping it: look at the server's log, and serve it again";
                alerts.push(self.own(&array, "server-gone", text));
            }
            return;
        }
        let Some(array) = self.arrays.get_mut(path) else { return self.not_served(path, failure, alerts) };
        if !std::mem::replace(&mut array.hangs, true) {
            let array = &self.arrays[path];
            alerts.push(self.own(array, "server-hangs", &failure.message));
        }
    }

    /// An array of `serve --all` that did not start: one alert for each reason.
    fn not_served(&mut self, path: &Path, failure: &Failure, alerts: &mut Vec<Alert>) {
        let Ok(found) = Client::ask_briefly::<Identity>(path, "ping") else { return };
        if found.state != ServedState::NotServed {
            return;
        }
        let said = self.not_served.insert(path.to_path_buf(), failure.message.clone());
        if said.as_ref() != Some(&failure.message) {
            let array = Watched { name: found.name, uuid: found.uuid, hangs: false };
            alerts.push(self.own(&array, "not-served", &failure.to_string()));
        }
    }

    fn told(&self, array: &Watched, event: &Value) -> Alert {
        let name = event["event"].as_str().unwrap_or_default();
        Alert {
            is_alert: is_alert(event),
            device: event["device"].as_str().map(ToOwned::to_owned),
            unix_ms: event["unix_ms"].as_u64().unwrap_or(0),
            ..self.own(array, name, event["text"].as_str().unwrap_or(name))
        }
    }

    fn own(&self, array: &Watched, event: &str, text: &str) -> Alert {
        Alert {
            host: self.host.clone(),
            array: array.name.clone(),
            uuid: array.uuid.clone(),
            event: event.to_owned(),
            is_alert: is_alert(&json!({ "event": event })),
            device: None,
            text: text.to_owned(),
            unix_ms: now_unix_ms(),
        }
    }
}
