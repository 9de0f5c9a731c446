//! The control socket of a process that serves many arrays: it is asked to serve further ones.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::announcement::Started;
use super::arrays::Arrays;
use super::command_line::serve_of;
use super::place::{Begun, Place};
use super::wanted::Wanted;
use crate::arguments::{ServeArguments, member_path};
use crate::control::{CallError, Handler, own_folder};
use crate::exit::ExitKind;
use crate::failure::Failure;

/// How long a caller waits for a start. Redo logs are replayed, and members may be late.
const STARTS_WITHIN: Duration = Duration::from_secs(600);

/// The control socket, in the folder of those of arrays.
const NAME: &str = "daemon.control";

/// Where a process that serves all arrays of this user has its control socket.
///
/// # Errors
/// There is no such place.
pub fn path() -> Result<PathBuf, Failure> {
    Ok(own_folder()?.join(NAME))
}

/// What is asked for: everything that is wanted and not served, one array, or what a `serve` would serve.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Start {
    /// The array with this name, UUID or member.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub array: Option<String>,
    /// The words of a command line with `serve`, without the program's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub words: Option<Vec<String>>,
    /// Where relative paths in the words begin.
    #[serde(default)]
    pub folder: PathBuf,
}

/// Answers at the control socket.
pub struct Control {
    /// What is asked for.
    pub arrays: Arc<Arrays>,
}

impl Control {
    fn start(&self, start: Start) -> Result<Started, Failure> {
        let end = Instant::now() + STARTS_WITHIN;
        let wanted = match start {
            Start { array: Some(word), .. } => self.arrays.source().one(&word)?,
            Start { words: Some(words), folder, .. } => wanted(words, &folder)?,
            _ => return Ok(Arrays::begun(&self.arrays.start_all()?, end)),
        };
        let is_listed = wanted.is_listed;
        let place = self.arrays.start(wanted)?;
        let begun = place.begun(end);
        if !is_listed && matches!(begun, Begun::NotServed(_)) {
            place.end(None); // its caller has the reason, and may have misspelt it
        }
        one(&place, begun)
    }
}

/// The one array that was asked for.
fn one(place: &Place, begun: Begun) -> Result<Started, Failure> {
    match begun {
        Begun::Served(announcement) => Ok(Started { arrays: vec![announcement], ..Started::default() }),
        Begun::StillStarting => Ok(Started { starting: vec![place.name()], ..Started::default() }),
        Begun::NotServed(failure) => Err(failure),
        Begun::Over(failure) => Err(failure.unwrap_or_else(|| {
            Failure::new(ExitKind::NotFound, format!("{} was stopped before it was served", place.name()))
        })),
    }
}

impl Handler for Control {
    fn call(&self, method: &str, params: &Value) -> Result<Value, CallError> {
        match method {
            "ping" => Ok(json!({ "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id() })),
            "start" => {
                let params = if params.is_null() { json!({}) } else { params.clone() };
                let start = serde_json::from_value(params);
                let start = start.map_err(|error| CallError::Params(error.to_string()))?;
                Ok(serde_json::to_value(self.start(start)?).expect("plain data"))
            }
            _ => Err(CallError::NoSuchMethod),
        }
    }

    fn answered(&self, _method: &str) -> bool {
        true
    }
}

/// What a `serve --join` wants that was called in this folder.
fn wanted(words: Vec<String>, folder: &Path) -> Result<Wanted, Failure> {
    let usage = |message: String| Failure::new(ExitKind::Usage, message);
    let arguments = serve_of(words.into_iter().map(OsString::from));
    let arguments = arguments.map_err(|error| usage(error.to_string()))?;
    let mut arguments = arguments.ok_or_else(|| usage("the words are those of another command".into()))?;
    in_folder(&mut arguments, folder);
    let choice = &arguments.choice;
    let mut places = choice.members.iter().chain(choice.scan.iter().flatten());
    let mut place = || Some(places.next()?.display().to_string());
    let key = choice.name.clone().or_else(|| choice.uuid.clone()).or_else(&mut place);
    let key = key.unwrap_or_else(|| "array".to_owned());
    Ok(Wanted { key, arguments, is_listed: false })
}

/// Makes paths whole that begin in the caller's folder.
fn in_folder(arguments: &mut ServeArguments, folder: &Path) {
    let whole = |path: &mut PathBuf| {
        let is_remote = path
            .to_str()
            .and_then(|text| member_path(text).ok())
            .is_some_and(|path| crate::remote::address(&path).is_some());
        if !is_remote {
            *path = folder.join(&*path);
        }
    };
    let choice = &mut arguments.choice;
    choice.members.iter_mut().chain(choice.scan.iter_mut().flatten()).for_each(whole);
    let sockets = arguments.unix.nbd.iter_mut().chain(&mut arguments.unix.vhost_user);
    let files = sockets.chain(&mut arguments.control).chain(&mut arguments.tls.tls_certs);
    let files = files.chain(&mut arguments.metrics_token);
    files.chain(arguments.hosts.files()).for_each(whole);
}
