//! The methods of the control socket, on the array that is served.

use std::path::Path;
use std::sync::mpsc::Sender;

use parking_lot::{Mutex, RwLock};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::Ending;
use crate::control::{CallError, Handler};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::serving::Serving;
use crate::status::{ArrayStatus, event_words};

/// A served array that callers reach.
pub struct Controlled {
    /// None once it is being stopped.
    serving: RwLock<Option<Serving>>,
    endings: Mutex<Sender<Ending>>,
    /// How the stop went, until its caller has the answer.
    stopped: Mutex<Option<Result<(), Failure>>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberParams {
    member: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AddParams {
    path: String,
    #[serde(default)]
    force: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetParams {
    update_policy: Option<String>,
    avoid_slow: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsParams {
    #[serde(default)]
    since: u64,
}

impl Controlled {
    /// An array that is served.
    pub fn new(serving: Serving, endings: Sender<Ending>) -> Self {
        Controlled {
            serving: RwLock::new(Some(serving)),
            endings: Mutex::new(endings),
            stopped: Mutex::new(None),
        }
    }

    /// How it is.
    ///
    /// # Errors
    /// [`ExitKind::NotFound`] once it is being stopped.
    pub fn status(&self) -> Result<ArrayStatus, Failure> {
        self.with(|serving| Ok(serving.status()))
    }

    /// Stops it in order.
    ///
    /// # Errors
    /// [`ExitKind::NotFound`] if it is being stopped already, and what went wrong.
    pub fn stop(&self) -> Result<(), Failure> {
        // Calls that are under way are finished first.
        let serving = self.serving.write().take().ok_or_else(stopping)?;
        serving.stop()
    }

    /// Stops it and ends the server.
    pub fn stop_and_tell(&self) {
        let outcome = self.stop();
        // Somebody else stops it already, and will tell.
        if !outcome.as_ref().is_err_and(|failure| failure.kind == ExitKind::NotFound) {
            self.tell(outcome);
        }
    }

    fn tell(&self, outcome: Result<(), Failure>) {
        if self.endings.lock().send(Ending::Stopped(outcome)).is_err() {
            tracing::debug!("the server has ended already");
        }
    }

    fn with<T>(&self, act: impl FnOnce(&Serving) -> Result<T, Failure>) -> Result<T, Failure> {
        act(self.serving.read().as_ref().ok_or_else(stopping)?)
    }

    fn events(&self, since: u64) -> Result<Value, Failure> {
        let logged = self.with(|serving| Ok(serving.events(since)))?;
        let with_text = logged.iter().map(|logged| {
            let mut value = serde_json::to_value(logged).expect("events are plain data");
            value["text"] = event_words(&logged.event).into();
            value
        });
        Ok(with_text.collect())
    }
}

impl Handler for Controlled {
    fn call(&self, method: &str, params: &Value) -> Result<Value, CallError> {
        match method {
            "ping" => Ok(json!({ "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id() })),
            "status" => Ok(serde_json::to_value(self.status()?).expect("a status is plain data")),
            "events" => {
                let EventsParams { since } =
                    if params.is_null() { EventsParams::default() } else { parse(params)? };
                Ok(self.events(since)?)
            }
            "fail" => {
                let MemberParams { member } = parse(params)?;
                self.with(|serving| serving.fail(&member))?;
                Ok(Value::Null)
            }
            "remove" => {
                let MemberParams { member } = parse(params)?;
                self.with(|serving| serving.remove(&member))?;
                Ok(Value::Null)
            }
            "add" => {
                let AddParams { path, force } = parse(params)?;
                self.with(|serving| serving.add(Path::new(&path), force))?;
                Ok(Value::Null)
            }
            "set" => {
                let SetParams { update_policy, avoid_slow } = parse(params)?;
                let policy = update_policy.map(|policy| policy.parse()).transpose();
                let policy = policy.map_err(CallError::Params)?;
                self.with(|serving| {
                    serving.set(policy, avoid_slow);
                    Ok(())
                })?;
                Ok(Value::Null)
            }
            "stop" => {
                let outcome = self.stop();
                if outcome.as_ref().is_err_and(|failure| failure.kind == ExitKind::NotFound) {
                    return Err(stopping().into());
                }
                *self.stopped.lock() = Some(outcome.clone());
                outcome?;
                Ok(Value::Null)
            }
            _ => Err(CallError::NoSuchMethod),
        }
    }

    fn answered(&self, method: &str) {
        // The process ends only when the caller of `stop` has the answer.
        if method == "stop"
            && let Some(outcome) = self.stopped.lock().take()
        {
            self.tell(outcome);
        }
    }
}

fn parse<T: DeserializeOwned>(params: &Value) -> Result<T, CallError> {
    serde_json::from_value(params.clone()).map_err(|error| CallError::Params(error.to_string()))
}

fn stopping() -> Failure {
    Failure::new(ExitKind::NotFound, "the array is being stopped")
}
