//! JSON-RPC 2.0 as both sides of the control socket speak it.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::exit::ExitKind;
use crate::failure::Failure;

/// Longest request or answer line: status of the largest array and ten thousand events fit.
pub(super) const LINE_BYTES_MAX: u64 = 16 << 20;

/// A call. Without an `id` it is a notification, and gets no answer.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Request {
    pub(super) jsonrpc: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<Value>,
    pub(super) method: String,
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) params: Value,
}

/// An answer: a result or an error.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Response {
    pub(super) jsonrpc: String,
    pub(super) id: Value,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) result: Option<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<RpcError>,
}

/// An error as JSON-RPC has it. Errors of Twill's own have the code -32000 less the exit code, and the failure as
/// `data`.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<Value>,
}

/// JSON-RPC's own codes.
pub(super) const PARSE_ERROR: i64 = -32700;
pub(super) const INVALID_REQUEST: i64 = -32600;
pub(super) const METHOD_NOT_FOUND: i64 = -32601;
pub(super) const INVALID_PARAMS: i64 = -32602;
/// The first code that is left to servers.
pub(super) const SERVER_ERROR: i64 = -32000;

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
