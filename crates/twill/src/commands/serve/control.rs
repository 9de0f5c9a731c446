//! The methods of the control socket of a served array.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use engine::array::scrub::ScrubRequest;
use engine::foreground::Latencies;
use engine::mismatch::ScrubMode;
use layout::md_superblock::display_uuid;
use parking_lot::{Mutex, RwLock};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::ending::Ending;
use crate::control::{CallError, Handler, Identity, ServedState};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::overview::Overview;
use crate::probe::clearing::Clearing;
use crate::serving::take_back::Tried;
use crate::serving::{Exports, NewLimits, Serving, Stopped};
use crate::status::{ArrayStatus, DoubtRange};

/// Hears why an array ends. False: it is not heard any more.
pub type Hearer = Box<dyn Fn(Ending) -> bool + Send + Sync>;

/// How often a stop looks whether the calls under way have ended.
const LOOK: Duration = Duration::from_millis(1);

/// A served array that callers reach.
pub struct Controlled {
    /// None once it is being stopped. A call holds the array, never the lock: one that waits for a member that hangs would hold up
    /// a stop, and that in turn the status.
    serving: RwLock<Option<Arc<Serving>>>,
    name: String,
    uuid: [u8; 16],
    hear: Hearer,
    /// The outcome of the stop, until its caller has the answer.
    stopped: Mutex<Option<Result<Stopped, Failure>>>,
}

/// Why an array was not stopped in order.
pub enum NotStopped {
    /// Nothing was ended: it is served as before.
    GoesOn(Failure),
    /// It is not served any more.
    Ended(Failure),
}

impl From<NotStopped> for Failure {
    fn from((NotStopped::GoesOn(failure) | NotStopped::Ended(failure)): NotStopped) -> Self {
        failure
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FailParams {
    member: String,
    #[serde(default)]
    force: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct MemberParams {
    member: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AcceptDoubtParams {
    ranges: Vec<DoubtRange>,
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
struct GrowParams {
    paths: Vec<PathBuf>,
    #[serde(default)]
    raid_devices: Option<u32>,
    #[serde(default)]
    force: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReAddParams {
    path: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReplaceParams {
    member: String,
    with: Option<String>,
    #[serde(default)]
    force: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SetParams {
    update_policy: Option<String>,
    avoid_slow: Option<bool>,
    rate_max: Option<u64>,
    rate_min: Option<u64>,
    p99_budget_ns: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ScrubParams {
    #[serde(default)]
    repair: bool,
    #[serde(default)]
    trust_data: bool,
    #[serde(default)]
    restart: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WishParams {
    wish: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StopParams {
    #[serde(default)]
    keep_device: bool,
    #[serde(default)]
    force: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsParams {
    #[serde(default)]
    since: u64,
}

impl Controlled {
    /// An array that is served, by its name and identity.
    pub fn new(serving: Serving, (name, uuid): (String, [u8; 16]), hear: Hearer) -> Self {
        let serving = RwLock::new(Some(Arc::new(serving)));
        Controlled { serving, name, uuid, hear, stopped: Mutex::new(None) }
    }

    /// One that has stopped.
    pub fn stopped() -> Self {
        let hear = Box::new(|_| false);
        let (serving, stopped) = (RwLock::new(None), Mutex::new(None));
        Controlled { serving, name: String::new(), uuid: [0; 16], hear, stopped }
    }

    /// What it is called by, without asking the array: one that does not answer is found all the same.
    pub fn identity(&self) -> Identity {
        let serving = self.serving.read().clone();
        let state = if serving.is_some() { ServedState::Served } else { ServedState::Stopping };
        Identity {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            name: self.name.clone(),
            uuid: display_uuid(&self.uuid),
            devices: serving.map_or_else(Vec::new, |serving| serving.devices()),
            state,
        }
    }

    /// How it is.
    ///
    /// # Errors
    /// [`ExitKind::NotFound`] once it is being stopped.
    pub fn status(&self) -> Result<ArrayStatus, Failure> {
        self.with(|serving| Ok(serving.status()))
    }

    /// Whether it is being stopped, or was.
    pub fn is_over(&self) -> bool {
        self.serving.read().is_none()
    }

    /// What people watch.
    ///
    /// # Errors
    /// [`ExitKind::NotFound`] once it is being stopped.
    pub fn overview(&self) -> Result<Overview, Failure> {
        self.with(|serving| Ok(serving.overview()))
    }

    /// Measures from now on how long requests take.
    pub fn show_latencies(&self) {
        let _stopped = self.with(|serving| {
            serving.show_latencies();
            Ok(())
        });
    }

    /// How long requests took since then. None: it is being stopped, or this kind of array does not measure it.
    pub fn latencies(&self) -> Option<Latencies> {
        self.with(|serving| Ok(serving.latencies())).ok().flatten()
    }

    /// Takes back members on other machines that were lost and are there again.
    ///
    /// # Errors
    /// [`ExitKind::NotFound`] once it is being stopped.
    pub fn take_back(&self, tried: &mut Tried) -> Result<(), Failure> {
        self.with(|serving| {
            serving.array.take_back(tried);
            Ok(())
        })
    }

    /// Stops it in order. With `keep_device` its block device is left to the next server; with `force` clients that are
    /// connected are cut off.
    ///
    /// # Errors
    /// Why it goes on, [`ExitKind::NotFound`] if it is being stopped already; or what went wrong.
    pub fn stop(&self, keep_device: bool, force: bool) -> Result<Stopped, NotStopped> {
        if !force {
            self.with(|serving| serving.exports.check_unused()).map_err(NotStopped::GoesOn)?;
        }
        // First of all: while the block device is in use, everything must go on.
        let let_go = if keep_device { Exports::leave_device } else { Exports::take_device_away };
        self.with(|serving| let_go(&serving.exports)).map_err(NotStopped::GoesOn)?;
        // Calls that are under way are finished first.
        let mut serving = self.serving.write().take().ok_or_else(|| NotStopped::GoesOn(stopping()))?;
        self.tell(Ending::Stopping);
        let serving = loop {
            match Arc::try_unwrap(serving) {
                Ok(serving) => break serving,
                Err(used) => serving = used,
            }
            thread::sleep(LOOK);
        };
        serving.stop().map_err(NotStopped::Ended)
    }

    /// Stops it and ends the server, for a signal: the system that shuts down cannot ask its clients to leave.
    pub fn stop_and_tell(&self) {
        match self.stop(false, true) {
            // Another caller stops it already and reports the outcome.
            Err(NotStopped::GoesOn(failure)) if failure.kind == ExitKind::NotFound => {}
            Err(NotStopped::GoesOn(failure)) => self.tell(Ending::Refused(failure)),
            Err(NotStopped::Ended(failure)) => self.tell(Ending::Stopped(Err(failure))),
            Ok(stopped) => self.tell(Ending::Stopped(Ok(stopped))),
        }
    }

    /// Adds a device as a spare.
    ///
    /// # Errors
    /// [`ExitKind::NotFound`] once it is being stopped, and why the device is not taken.
    pub fn add(&self, path: &Path, force: bool) -> Result<Clearing, Failure> {
        self.with(|serving| serving.array.add(path, force))
    }

    /// Whether so many devices more make as many members as a caller counts on.
    fn check_width(&self, wanted: Option<u32>, added: usize) -> Result<(), Failure> {
        let Some(wanted) = wanted else { return Ok(()) };
        let now = self.status()?.raid_devices;
        if u64::from(now) + added as u64 == u64::from(wanted) {
            return Ok(());
        }
        let message = format!("the array has {now} members, and {added} more do not make {wanted}");
        Err(Failure::new(ExitKind::Usage, message).help("leave out --raid-devices, or name as many devices"))
    }

    fn tell(&self, ending: Ending) {
        if !(self.hear)(ending) {
            tracing::debug!("the server has ended already");
        }
    }

    fn with<T>(&self, act: impl FnOnce(&Serving) -> Result<T, Failure>) -> Result<T, Failure> {
        let serving = self.serving.read().clone();
        act(serving.ok_or_else(stopping)?.as_ref())
    }

    /// Stops it for the caller of `stop`. The outcome ends the server only after its caller has the answer.
    fn stop_for_caller(&self, params: &Value) -> Result<Value, CallError> {
        let StopParams { keep_device, force } = parse(params)?;
        let outcome = match self.stop(keep_device, force) {
            Err(NotStopped::GoesOn(failure)) => return Err(failure.into()),
            Err(NotStopped::Ended(failure)) => Err(failure),
            Ok(stopped) => Ok(stopped),
        };
        *self.stopped.lock() = Some(outcome.clone());
        Ok(serde_json::to_value(outcome?).expect("plain data"))
    }

    fn events(&self, since: u64) -> Result<Value, Failure> {
        self.with(|serving| Ok(serving.events(since).into()))
    }
}

impl Handler for Controlled {
    fn call(&self, method: &str, params: &Value) -> Result<Value, CallError> {
        match method {
            "ping" => Ok(serde_json::to_value(self.identity()).expect("plain data")),
            "status" => Ok(serde_json::to_value(self.status()?).expect("a status is plain data")),
            "overview" => Ok(serde_json::to_value(self.overview()?).expect("plain data")),
            "events" => {
                let EventsParams { since } = parse(params)?;
                Ok(self.events(since)?)
            }
            "fail" => {
                let FailParams { member, force } = parse(params)?;
                self.with(|serving| serving.array.fail(&member, force))?;
                Ok(Value::Null)
            }
            "accept-doubt" => {
                let AcceptDoubtParams { ranges } = parse(params)?;
                let stripes = self.with(|serving| serving.array.accept_doubt(&ranges))?;
                Ok(json!({ "stripes": stripes }))
            }
            "remove" => {
                let MemberParams { member } = parse(params)?;
                let removed = self.with(|serving| serving.array.remove(&member))?;
                let paths: Vec<String> = removed.iter().map(|path| path.display().to_string()).collect();
                Ok(json!({ "removed": paths.len(), "paths": paths }))
            }
            "add" => {
                let AddParams { path, force } = parse(params)?;
                let Clearing { erased, stays, .. } = self.add(Path::new(&path), force)?;
                Ok(json!({ "erased": erased, "stays": stays }))
            }
            "grow" => {
                let GrowParams { paths, raid_devices, force } = parse(params)?;
                self.check_width(raid_devices, paths.len())?;
                let cleared = self.with(|serving| serving.array.grow(&paths, force))?;
                let cleared = cleared.into_iter();
                let cleared =
                    cleared.map(|Clearing { erased, stays, .. }| json!({ "erased": erased, "stays": stays }));
                let raid_devices = self.status()?.raid_devices;
                Ok(json!({ "raid_devices": raid_devices, "cleared": cleared.collect::<Vec<_>>() }))
            }
            "re-add" => {
                let ReAddParams { path } = parse(params)?;
                self.with(|serving| serving.array.re_add(Path::new(&path)))?;
                Ok(Value::Null)
            }
            "replace" => {
                let ReplaceParams { member, with, force } = parse(params)?;
                self.with(|serving| serving.array.replace(&member, with.as_deref().map(Path::new), force))?;
                Ok(Value::Null)
            }
            "scrub" => {
                let ScrubParams { repair, trust_data, restart } = parse(params)?;
                let mode = ScrubMode { repair, trust_data };
                self.with(|serving| serving.array.scrub(ScrubRequest::Start { mode, restart }))?;
                Ok(Value::Null)
            }
            "scrub-wish" => {
                let wish = scrub_wish(params)?;
                self.with(|serving| serving.array.scrub(wish))?;
                Ok(Value::Null)
            }
            "scrub-report" => {
                let state = self.with(|serving| serving.array.scrub_state())?;
                Ok(serde_json::to_value(state).expect("a report is plain data"))
            }
            "set" => {
                let SetParams { update_policy, avoid_slow, rate_max, rate_min, p99_budget_ns } =
                    parse(params)?;
                let limits = NewLimits { rate_max, rate_min, p99_budget_ns };
                let policy = update_policy.map(|policy| policy.parse()).transpose();
                let policy = policy.map_err(CallError::Params)?;
                self.with(|serving| serving.array.set(policy, avoid_slow, &limits))?;
                Ok(Value::Null)
            }
            "stop" => self.stop_for_caller(params),
            _ => Err(CallError::NoSuchMethod),
        }
    }

    fn answered(&self, method: &str) -> bool {
        // The process ends only when the caller of `stop` has the answer.
        let outcome = if method == "stop" { self.stopped.lock().take() } else { None };
        outcome.into_iter().for_each(|outcome| self.tell(Ending::Stopped(outcome)));
        // The caller waits for the end of the connection: with that of the process its socket is gone, and its members are free.
        true
    }
}

fn scrub_wish(params: &Value) -> Result<ScrubRequest, CallError> {
    let WishParams { wish } = parse(params)?;
    match wish.as_str() {
        "pause" => Ok(ScrubRequest::Pause),
        "resume" => Ok(ScrubRequest::Resume),
        "cancel" => Ok(ScrubRequest::Cancel),
        _ => Err(CallError::Params(format!("{wish:?} is not pause, resume or cancel"))),
    }
}

/// A call may leave its parameters out, as JSON-RPC has it: then none is given.
fn parse<T: DeserializeOwned>(params: &Value) -> Result<T, CallError> {
    let params = if params.is_null() { json!({}) } else { params.clone() };
    serde_json::from_value(params).map_err(|error| CallError::Params(error.to_string()))
}

fn stopping() -> Failure {
    Failure::new(ExitKind::NotFound, "the array is being stopped")
}
