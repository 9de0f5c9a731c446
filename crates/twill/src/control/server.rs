//! The server's side of the control socket: plain threads, away from the shards.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::thread;

use host::socket::{self, SocketAccess, SocketName};
use rustix::net::Shutdown;
use serde_json::Value;

use super::protocol::{
    CallError, INVALID_REQUEST, LINE_BYTES_MAX, PARSE_ERROR, Request, Response, RpcError, SERVER_ERROR,
};
use crate::exit::ExitKind;
use crate::failure::Failure;

/// Connections at a time, of people and their scripts. A further one gets an error.
const CONNECTIONS_MAX: usize = 64;

/// Callers that may wait to be accepted.
const BACKLOG: i32 = 128;

/// Does what callers ask for.
pub trait Handler: Send + Sync + 'static {
    /// A call.
    ///
    /// # Errors
    /// Why it was not done.
    fn call(&self, method: &str, params: &Value) -> Result<Value, CallError>;

    /// The caller of `method` has its answer. False: there is nothing more to be said on this connection.
    fn answered(&self, method: &str) -> bool;
}

/// A bound control socket. Dropping it removes it, and no further caller is answered.
#[derive(Debug)]
pub struct Server {
    /// Dropped first.
    name: SocketName,
    listener: UnixListener,
    is_over: Arc<AtomicBool>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, SeqCst);
        // Ends the accept that waits on it.
        let _ended = rustix::net::shutdown(&self.listener, Shutdown::Both);
    }
}

impl Server {
    /// Binds the socket; callers wait until [`Server::start`]. A socket without a listener is replaced.
    ///
    /// # Errors
    /// [`ExitKind::AlreadyExists`] if a server listens there or the path is no socket, and what the system says.
    pub fn bind(path: &Path) -> Result<Self, Failure> {
        let failed = |error: io::Error| Failure::from_io("make the control socket", path, &error);
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed)?;
        }
        let (name, socket) =
            socket::listen(path, SocketAccess::OWNER, BACKLOG).map_err(|error| match error.kind() {
                io::ErrorKind::AddrInUse => in_use(path),
                _ => failed(error),
            })?;
        Ok(Server { name, listener: UnixListener::from(socket), is_over: Arc::default() })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.name.path()
    }

    /// Answers callers from now on, on threads of its own, until it is dropped; whom it is talking with then, it goes on to answer.
    ///
    /// # Errors
    /// What the system says.
    pub fn start(&self, handler: Arc<dyn Handler>) -> io::Result<()> {
        let (listener, is_over) = (self.listener.try_clone()?, Arc::clone(&self.is_over));
        let accept = move || accept(&listener, &is_over, &handler);
        thread::Builder::new().name("control".into()).spawn(accept)?;
        Ok(())
    }
}

/// Why the path of a control socket cannot be taken.
fn in_use(path: &Path) -> Failure {
    let taken = |what: &str| Failure::new(ExitKind::AlreadyExists, format!("{} {what}", path.display()));
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            taken("is there and is no socket").help("choose another place with --control PATH")
        }
        _ => taken("is the control socket of an array that is served")
            .help("stop that one first, or choose another place with --control PATH"),
    }
}

fn accept(listener: &UnixListener, is_over: &AtomicBool, handler: &Arc<dyn Handler>) {
    let connections = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        if is_over.load(SeqCst) {
            return;
        }
        let Ok(stream) = stream else {
            // Out of descriptors or the like: it may pass.
            thread::sleep(std::time::Duration::from_millis(100));
            continue;
        };
        let (handler, connections) = (Arc::clone(handler), Arc::clone(&connections));
        if connections.fetch_add(1, SeqCst) >= CONNECTIONS_MAX {
            connections.fetch_sub(1, SeqCst);
            let message = format!("there are {CONNECTIONS_MAX} callers already");
            let error = RpcError { code: SERVER_ERROR, message, data: None };
            let _gone = send(&stream, &failed(Value::Null, error));
            continue;
        }
        let on_thread = Arc::clone(&connections);
        let spawned = thread::Builder::new().name("control".into()).spawn(move || {
            if let Err(error) = converse(&stream, handler.as_ref()) {
                tracing::debug!("control connection: {error}");
            }
            on_thread.fetch_sub(1, SeqCst);
        });
        if spawned.is_err() {
            connections.fetch_sub(1, SeqCst);
        }
    }
}

fn converse(stream: &UnixStream, handler: &dyn Handler) -> io::Result<()> {
    let mut lines = BufReader::new(stream);
    loop {
        let mut line = Vec::new();
        (&mut lines).take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        if line.len() as u64 == LINE_BYTES_MAX && line.last() != Some(&b'\n') {
            let message = "the line is too long".into();
            let error = RpcError { code: INVALID_REQUEST, message, data: None };
            return send(stream, &failed(Value::Null, error));
        }
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        let (method, response) = answer(&line, handler);
        // Even if the caller is gone: what the call began goes on.
        let sent = response.map_or(Ok(()), |response| send(stream, &response));
        let goes_on = method.is_none_or(|method| handler.answered(&method));
        sent?;
        if !goes_on {
            return Ok(());
        }
    }
}

/// What a line is answered, as bytes with the line's end.
pub fn answer_line(line: &[u8], handler: &dyn Handler) -> Option<Vec<u8>> {
    answer(line, handler).1.map(|response| encoded(&response).expect("an answer is plain data"))
}

/// The method that was called, and what to answer; nothing to a notification.
fn answer(line: &[u8], handler: &dyn Handler) -> (Option<String>, Option<Response>) {
    let refused =
        |code, message: String| (None, Some(failed(Value::Null, RpcError { code, message, data: None })));
    let value: Value = match serde_json::from_slice(line) {
        Ok(value) => value,
        Err(error) => return refused(PARSE_ERROR, format!("not JSON: {error}")),
    };
    let request: Request = match serde_json::from_value(value) {
        Ok(request) => request,
        Err(error) => return refused(INVALID_REQUEST, format!("no request: {error}")),
    };
    if request.jsonrpc != "2.0" {
        return refused(INVALID_REQUEST, format!("JSON-RPC {:?}, should be \"2.0\"", request.jsonrpc));
    }
    tracing::debug!(method = request.method, "control");
    let outcome = handler.call(&request.method, &request.params);
    let response = request.id.map(|id| match outcome {
        Ok(result) => Response { jsonrpc: "2.0".into(), id, result: Some(result), error: None },
        Err(error) => failed(id, error.into()),
    });
    (Some(request.method), response)
}

fn failed(id: Value, error: RpcError) -> Response {
    Response { jsonrpc: "2.0".into(), id, result: None, error: Some(error) }
}

fn send(mut stream: &UnixStream, response: &Response) -> io::Result<()> {
    stream.write_all(&encoded(response)?)
}

fn encoded(response: &Response) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    Ok(line)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use serde_json::json;

    use super::*;

    struct Echo;

    impl Handler for Echo {
        fn call(&self, method: &str, params: &Value) -> Result<Value, CallError> {
            match method {
                "echo" => Ok(params.clone()),
                "params" => Err(CallError::Params("wants more".into())),
                "fail" => Err(Failure::new(ExitKind::WouldLoseData, "no").into()),
                _ => Err(CallError::NoSuchMethod),
            }
        }

        fn answered(&self, _method: &str) -> bool {
            true
        }
    }

    fn ask(line: &str) -> Value {
        answer(line.as_bytes(), &Echo)
            .1
            .map_or(Value::Null, |response| serde_json::to_value(response).unwrap())
    }

    #[test]
    fn calls_are_answered_as_json_rpc_has_it() {
        let answer = ask(r#"{"jsonrpc":"2.0","id":"a","method":"echo","params":{"x":1}}"#);
        assert_eq!(answer, json!({"jsonrpc": "2.0", "id": "a", "result": {"x": 1}}));
        assert_eq!(ask(r#"{"jsonrpc":"2.0","method":"echo"}"#), Value::Null);
        let codes = [
            ("{", -32700),
            ("[]", -32600),
            ("7", -32600),
            (r#"{"jsonrpc":"1.0","id":1,"method":"echo"}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":1}"#, -32600),
            (r#"{"jsonrpc":"2.0","id":1,"method":"x"}"#, -32601),
            (r#"{"jsonrpc":"2.0","id":1,"method":"params"}"#, -32602),
            (r#"{"jsonrpc":"2.0","id":1,"method":"fail"}"#, -32014),
        ];
        for (line, code) in codes {
            assert_eq!(ask(line)["error"]["code"], code, "{line}");
        }
    }

    #[test]
    fn a_socket_is_its_owners_and_is_taken_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("new/control.sock");
        let server = Server::bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Server::bind(&path).unwrap_err().kind, ExitKind::AlreadyExists);
        drop(server);
        assert!(!path.exists());
        // What a killed server left behind is replaced, what is no socket is not.
        drop(UnixListener::bind(&path).unwrap());
        drop(Server::bind(&path).unwrap());
        fs::write(&path, "text").unwrap();
        assert_eq!(Server::bind(&path).unwrap_err().kind, ExitKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"text");
    }
}
