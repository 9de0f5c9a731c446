//! The control socket of a served array: JSON-RPC 2.0, one object a line, over a unix socket that only its owner may
//! use. What the methods are is in `docs/cli.md`.

mod client;
mod server;

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exit::ExitKind;
use crate::failure::Failure;

pub use client::{Client, connect, served};
pub use server::{Handler, Server, answer_line};

/// Longest request or answer line: status of the largest array and ten thousand events fit.
const LINE_BYTES_MAX: u64 = 16 << 20;

/// A call. Without an `id` nobody waits for the answer.
#[derive(Debug, Serialize, Deserialize)]
struct Request {
    jsonrpc: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    id: Option<Value>,
    method: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    params: Value,
}

/// An answer: a result or an error.
#[derive(Debug, Serialize, Deserialize)]
struct Response {
    jsonrpc: String,
    id: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    error: Option<RpcError>,
}

/// An error as JSON-RPC has it. Errors of Twill's own have the code -32000 less the exit code, and the failure as
/// `data`.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct RpcError {
    code: i64,
    message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<Value>,
}

/// JSON-RPC's own codes.
const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
/// The first code that is left to servers.
const SERVER_ERROR: i64 = -32000;

/// Why a call was not done.
#[derive(Debug)]
pub enum CallError {
    /// There is no such method.
    NoSuchMethod,
    /// The parameters are not what the method takes.
    Params(String),
    /// The array said no.
    Failed(Failure),
}

impl From<Failure> for CallError {
    fn from(failure: Failure) -> Self {
        CallError::Failed(failure)
    }
}

impl From<CallError> for RpcError {
    fn from(error: CallError) -> Self {
        match error {
            CallError::NoSuchMethod => {
                RpcError { code: METHOD_NOT_FOUND, message: "no such method".into(), data: None }
            }
            CallError::Params(message) => RpcError { code: INVALID_PARAMS, message, data: None },
            CallError::Failed(failure) => RpcError {
                code: SERVER_ERROR - i64::from(failure.kind.code()),
                message: failure.message.clone(),
                data: serde_json::to_value(failure).ok(),
            },
        }
    }
}

impl From<RpcError> for Failure {
    fn from(error: RpcError) -> Self {
        let failure = error.data.and_then(|data| serde_json::from_value(data).ok());
        failure.unwrap_or_else(|| {
            let message = format!("the server answered: {} ({})", error.message, error.code);
            Failure::new(ExitKind::Internal, message).help("is it another version of twill?")
        })
    }
}

/// Overrides where sockets are.
const FOLDER_VARIABLE: &str = "TWILL_RUNTIME_DIR";
const FOLDER_OF_ROOT: &str = "/run/twill";

/// Where this user's server puts its sockets.
///
/// # Errors
/// [`ExitKind::Usage`] if there is no such place.
pub fn own_folder() -> Result<PathBuf, Failure> {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return Ok(folder.into());
    }
    if rustix::process::geteuid().is_root() {
        return Ok(FOLDER_OF_ROOT.into());
    }
    let folder = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("twill"));
    folder.ok_or_else(|| {
        Failure::new(ExitKind::Usage, "there is no place for the control socket: XDG_RUNTIME_DIR is not set")
            .help("give one with --control PATH")
    })
}

/// Overrides where servers keep what outlives them.
const STATE_VARIABLE: &str = "TWILL_STATE_DIR";
const STATE_OF_ROOT: &str = "/var/lib/twill";

/// Where this user's servers keep what outlives them and is not on the members; `None` if there is no such place.
pub fn state_folder() -> Option<PathBuf> {
    if let Some(folder) = std::env::var_os(STATE_VARIABLE) {
        return Some(folder.into());
    }
    if rustix::process::geteuid().is_root() {
        return Some(STATE_OF_ROOT.into());
    }
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
    Some(state.or_else(home)?.join("twill"))
}

/// Where servers of this machine may have put their sockets.
fn folders() -> Vec<PathBuf> {
    if let Some(folder) = std::env::var_os(FOLDER_VARIABLE) {
        return vec![folder.into()];
    }
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(|folder| Path::new(&folder).join("twill"));
    own.into_iter().chain([FOLDER_OF_ROOT.into()]).collect()
}

/// An array's name as the name of a file: md allows more than a file system does.
pub fn file_name(array: &str) -> String {
    let short = array.rsplit(':').next().unwrap_or_default();
    let safe = |letter: char| if letter == '/' || letter.is_control() { '_' } else { letter };
    let name: String = short.chars().map(safe).collect();
    if name.is_empty() || name.starts_with('.') { format!("_{name}") } else { name }
}
