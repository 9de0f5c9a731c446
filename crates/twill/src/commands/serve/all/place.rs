//! An array's place in a process that serves many: whether it is being started, served, stopped, or was not started, and what its
//! control socket answers meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use layout::md_superblock::display_uuid;
use parking_lot::{Condvar, Mutex};
use serde_json::Value;

use super::super::announcement::Announcement;
use super::super::control::{Controlled, NotStopped};
use super::super::ending::Ending;
use crate::control::{CallError, Handler, Identity, ServedState, Server};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::serving::Stopped;

/// How often to look whether the stop of another caller has ended or was refused.
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// An array's place.
pub struct Place {
    /// What it was asked for by: its name or UUID.
    pub key: String,
    inner: Mutex<Inner>,
    /// Notified when the state has changed.
    changed: Condvar,
}

struct Inner {
    state: State,
    name: String,
    uuid: Option<[u8; 16]>,
    /// Dropped when the array is stopped.
    server: Option<Server>,
}

#[derive(Clone)]
enum State {
    Starting {
        since: Instant,
    },
    Served {
        controlled: Arc<Controlled>,
        announcement: Announcement,
    },
    /// It is tried again if `again`.
    NotServed {
        failure: Failure,
        again: bool,
    },
    Stopping {
        controlled: Arc<Controlled>,
        since: Instant,
    },
    /// It was stopped, or taken out. What it came to, if it was served.
    Over(Option<Failure>),
}

/// What a start came to so far.
pub enum Begun {
    /// It is served.
    Served(Announcement),
    /// It is not.
    NotServed(Failure),
    /// It is still under way.
    StillStarting,
    /// It was stopped.
    Over(Option<Failure>),
}

impl Place {
    /// The place of an array that is about to be started.
    pub fn new(key: &str) -> Arc<Self> {
        let state = State::Starting { since: Instant::now() };
        let inner = Inner { state, name: key.to_owned(), uuid: None, server: None };
        Arc::new(Place { key: key.to_owned(), inner: Mutex::new(inner), changed: Condvar::new() })
    }

    /// Its name, or what it was asked for by while that is not known.
    pub fn name(&self) -> String {
        self.inner.lock().name.clone()
    }

    /// Its identity, once its members are found.
    pub fn uuid(&self) -> Option<[u8; 16]> {
        self.inner.lock().uuid
    }

    /// Its members are found.
    pub fn is_called(&self, name: &str, uuid: [u8; 16]) {
        let mut inner = self.inner.lock();
        name.clone_into(&mut inner.name);
        inner.uuid = Some(uuid);
    }

    /// Answers at this control socket from now on, and at no other.
    ///
    /// # Errors
    /// Another program answers there; what the system says.
    pub fn answer_at(self: &Arc<Self>, control: &Path) -> Result<(), Failure> {
        if self.inner.lock().server.as_ref().is_some_and(|server| server.path() == control) {
            return Ok(());
        }
        let server = Server::bind(control)?;
        server
            .start(Arc::clone(self) as _)
            .map_err(|error| Failure::from_io("answer at", control, &error))?;
        let before = self.inner.lock().server.replace(server);
        drop(before);
        Ok(())
    }

    /// Leaves a control socket to an array whose members are found, if those of this one are not.
    pub fn give_way(&self, control: &Path) {
        let mut inner = self.inner.lock();
        let has_it = inner.server.as_ref().is_some_and(|server| server.path() == control);
        let server = if has_it && inner.uuid.is_none() { inner.server.take() } else { None };
        drop(inner);
        drop(server);
    }

    /// An attempt to start it begins. False if it was taken out: nobody may start it here any more.
    pub fn begins(&self) -> bool {
        self.change_unless_over(State::Starting { since: Instant::now() })
    }

    /// Clients are served. False if it was taken out meanwhile.
    pub fn serves(&self, controlled: Arc<Controlled>, announcement: Announcement) -> bool {
        self.change_unless_over(State::Served { controlled, announcement })
    }

    /// It does not start. False if it was taken out meanwhile.
    pub fn fails(&self, failure: Failure, again: bool) -> bool {
        self.change_unless_over(State::NotServed { failure, again })
    }

    /// It is tried again. False if it was taken out meanwhile.
    pub fn tries_again(&self, after: Duration) -> bool {
        let end = Instant::now() + after;
        let mut inner = self.inner.lock();
        while !matches!(inner.state, State::Over(_)) {
            if self.changed.wait_until(&mut inner, end).timed_out() {
                return true;
            }
        }
        false
    }

    /// Hears from the array why it ends.
    pub fn hear(&self, ending: Ending) {
        match ending {
            Ending::Stopping => {
                let controlled = match &self.inner.lock().state {
                    State::Served { controlled, .. } => Arc::clone(controlled),
                    _ => return,
                };
                self.change(State::Stopping { controlled, since: Instant::now() });
            }
            Ending::Stopped(outcome) => self.end(outcome.err()),
            // The caller of the stop has them.
            Ending::Refused(_) | Ending::Signal { .. } => {}
        }
    }

    /// Takes it out: its socket goes.
    pub fn end(&self, failure: Option<Failure>) {
        if let Some(failure) = &failure {
            tracing::error!("{}: {failure}", self.name());
        }
        let server = self.inner.lock().server.take();
        drop(server);
        self.change(State::Over(failure));
    }

    /// Stops the array, for a signal; a stop that is under way is waited for, however long it takes. None: it was not served, or
    /// another caller has stopped it.
    ///
    /// # Errors
    /// It goes on, or what went wrong.
    pub fn stop(&self) -> Result<Option<Stopped>, NotStopped> {
        loop {
            match self.state() {
                State::Served { controlled, .. } => {
                    let outcome = controlled.stop(false, true);
                    match &outcome {
                        // Another caller stops it, and may yet be refused.
                        Err(NotStopped::GoesOn(failure)) if failure.kind == ExitKind::NotFound => {}
                        Err(NotStopped::GoesOn(_)) => return outcome.map(Some),
                        Err(NotStopped::Ended(failure)) => {
                            self.end(Some(failure.clone()));
                            return outcome.map(Some);
                        }
                        Ok(_) => {
                            self.end(None);
                            return outcome.map(Some);
                        }
                    }
                }
                State::Stopping { .. } => {}
                State::Over(Some(failure)) => return Err(NotStopped::Ended(failure)),
                State::Starting { .. } | State::NotServed { .. } | State::Over(None) => return Ok(None),
            }
            let _changed_or_not = self.changed.wait_for(&mut self.inner.lock(), LOOK_AGAIN);
        }
    }

    /// What the start has come to, waited for until `end`.
    pub fn begun(&self, end: Instant) -> Begun {
        let mut inner = self.inner.lock();
        loop {
            match &inner.state {
                State::Served { announcement, .. } => return Begun::Served(announcement.clone()),
                State::NotServed { failure, .. } => return Begun::NotServed(failure.clone()),
                State::Over(failure) => return Begun::Over(failure.clone()),
                State::Starting { .. } | State::Stopping { .. } => {}
            }
            if self.changed.wait_until(&mut inner, end).timed_out() {
                return Begun::StillStarting;
            }
        }
    }

    /// Whether nothing more is to be said of it.
    pub fn is_forgotten(&self) -> bool {
        matches!(self.inner.lock().state, State::Over(None))
    }

    /// Whether it may be asked for anew.
    pub fn is_not_served(&self) -> bool {
        matches!(self.inner.lock().state, State::NotServed { .. } | State::Over(_))
    }

    fn state(&self) -> State {
        self.inner.lock().state.clone()
    }

    /// Whether it is being started.
    pub fn is_starting(&self) -> bool {
        matches!(self.inner.lock().state, State::Starting { .. })
    }

    /// Nothing follows once it is over: another place may have the array.
    fn change_unless_over(&self, state: State) -> bool {
        let mut inner = self.inner.lock();
        let is_over = matches!(inner.state, State::Over(_));
        if !is_over {
            inner.state = state;
            self.changed.notify_all();
        }
        !is_over
    }

    fn change(&self, state: State) {
        self.inner.lock().state = state;
        self.changed.notify_all();
    }

    fn identity(&self) -> Identity {
        let (state, name, uuid) = {
            let inner = self.inner.lock();
            (inner.state.clone(), inner.name.clone(), inner.uuid)
        };
        let own = |state| Identity {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            name,
            uuid: uuid.map_or_else(String::new, |uuid| display_uuid(&uuid)),
            devices: Vec::new(),
            state,
        };
        match state {
            State::Served { controlled, .. } | State::Stopping { controlled, .. } => controlled.identity(),
            State::Starting { .. } => own(ServedState::Starting),
            State::NotServed { .. } => own(ServedState::NotServed),
            State::Over(_) => own(ServedState::Stopping),
        }
    }

    /// Takes an array out that is not served: it is not tried again.
    fn give_up(&self, failure: &Failure) -> Failure {
        self.end(None);
        let message = format!("{} was not served, and is not tried again: {}", self.name(), failure.message);
        Failure::new(ExitKind::NotFound, message).help("twill start tries it again")
    }
}

impl Handler for Place {
    fn call(&self, method: &str, params: &Value) -> Result<Value, CallError> {
        if method == "ping" {
            return Ok(serde_json::to_value(self.identity()).expect("plain data"));
        }
        let name = self.name();
        let pid = std::process::id();
        match self.state() {
            State::Served { controlled, .. } => controlled.call(method, params),
            State::Starting { since } => {
                let message =
                    format!("{name} is being started since {} s (pid {pid})", since.elapsed().as_secs());
                let failure = Failure::new(ExitKind::MemberInUse, message);
                Err(failure.help("a start waits for members that are late, and for one that hangs").into())
            }
            State::NotServed { failure, .. } if method == "stop" => Err(self.give_up(&failure).into()),
            State::NotServed { failure, again } => Err(not_served(&name, failure, again).into()),
            State::Stopping { since, .. } => {
                let message =
                    format!("{name} is being stopped since {} s (pid {pid})", since.elapsed().as_secs());
                Err(Failure::new(ExitKind::NotFound, message).into())
            }
            State::Over(_) => Err(Failure::new(ExitKind::NotFound, format!("{name} was stopped")).into()),
        }
    }

    fn answered(&self, method: &str) -> bool {
        match self.state() {
            State::Served { controlled, .. } | State::Stopping { controlled, .. } => {
                // After a stop the array is over by now, and its socket gone: the caller need not wait for the process.
                controlled.answered(method) && !matches!(self.state(), State::Over(_))
            }
            State::Starting { .. } | State::NotServed { .. } => true,
            State::Over(_) => false,
        }
    }
}

/// Why an array is not served, as commands on it are answered. A kind that says that there is none would be taken for an array that
/// is being stopped.
pub fn not_served(name: &str, failure: Failure, again: bool) -> Failure {
    let kind = if failure.kind == ExitKind::NotFound { ExitKind::NotAMember } else { failure.kind };
    let more = if again { "; it is tried again" } else { "" };
    let message = format!("{name} is not served: {}{more}", failure.message);
    let next = format!("twill start {name} tries it again");
    let help = failure.help.as_ref().map_or_else(|| next.clone(), |help| format!("{help}; then {next}"));
    Failure { kind, message, ..failure }.help(help)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another place has the array by then: what a late attempt comes to must not bring this one back.
    #[test]
    fn a_place_that_was_taken_out_stays_so() {
        let place = Place::new("store");
        let failure = || Failure::new(ExitKind::NotEnoughMembers, "members are missing");
        assert!(place.begins() && place.fails(failure(), true) && place.is_not_served());
        assert!(place.begins() && !place.is_not_served(), "nobody else starts it during the next attempt");
        place.end(None);
        assert!(!place.begins() && !place.fails(failure(), true));
        assert!(matches!(place.stop(), Ok(None)) && place.is_forgotten());
    }
}
