//! The caller's side of the control socket, and how a served array is found.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::folders::{file_name, folders};
use super::identity::{Identity, ServedState};
use super::protocol::{LINE_BYTES_MAX, Request, Response};
use crate::array_uuid;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::status::ArrayStatus;

/// How long a server may take to say that it is there.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a command that asks every server waits for one of them.
const BRIEF: Duration = Duration::from_secs(3);

/// What ends the name of the control socket of an array.
const SOCKET: &str = "sock";

/// A connection to a server.
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
    calls: u64,
}

impl Client {
    /// Connects to a control socket.
    ///
    /// # Errors
    /// [`ExitKind::NotFound`] if no server listens there, and what the system says.
    pub fn connect(path: &Path) -> Result<Self, Failure> {
        match UnixStream::connect(path) {
            Ok(stream) => Ok(Client { path: path.to_path_buf(), stream: BufReader::new(stream), calls: 0 }),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
                    let message = format!("no array is served with the control socket {}", path.display());
                    let failure = Failure::new(ExitKind::NotFound, message);
                    Err(failure.help("twill list --json names the control sockets of served arrays"))
                }
                _ => {
                    let failure = Failure::from_io("connect to", path, &error);
                    Err(failure.help("it is the user that serves the array, or root, who may use its socket"))
                }
            },
        }
    }

    /// Calls a method without parameters of the server at a socket, and does not wait long for a server that hangs.
    ///
    /// # Errors
    /// [`ExitKind::NotFound`] if there is no server; [`ExitKind::IoError`] if it does not answer, or what it says.
    pub fn ask_briefly<T: DeserializeOwned>(path: &Path, method: &str) -> Result<T, Failure> {
        Self::ask_briefly_for(path, method, Value::Null)
    }

    /// The same of a method with parameters.
    ///
    /// # Errors
    /// As [`Client::ask_briefly`].
    pub fn ask_briefly_for<T: DeserializeOwned>(
        path: &Path,
        method: &str,
        params: Value,
    ) -> Result<T, Failure> {
        Self::connect(path)?.briefly()?.ask(method, params)
    }

    /// The same client, which does not wait long for a server that hangs.
    ///
    /// # Errors
    /// What the system says.
    pub fn briefly(self) -> Result<Self, Failure> {
        let stream = self.stream.get_ref();
        let limited =
            stream.set_read_timeout(Some(BRIEF)).and_then(|()| stream.set_write_timeout(Some(BRIEF)));
        limited.map_err(|error| Failure::from_io("ask", &self.path, &error))?;
        Ok(self)
    }

    /// The control socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Calls a method and waits for its answer as long as it takes.
    ///
    /// # Errors
    /// What the server says, and [`ExitKind::IoError`] if it has gone.
    pub fn call(&mut self, method: &str, params: Value) -> Result<Value, Failure> {
        self.calls += 1;
        let id = Some(self.calls.into());
        let request = Request { jsonrpc: "2.0".into(), id, method: method.into(), params };
        let response = self.exchange(&request).map_err(|error| self.gone(&error))?;
        match response {
            Response { error: Some(error), .. } => Err(error.into()),
            Response { result, .. } => Ok(result.unwrap_or(Value::Null)),
        }
    }

    /// [`Client::call`] with an answer of a known form.
    ///
    /// # Errors
    /// What the server says, or that it says something else.
    pub fn ask<T: DeserializeOwned>(&mut self, method: &str, params: Value) -> Result<T, Failure> {
        serde_json::from_value(self.call(method, params)?).map_err(|error| {
            let message = format!("the server's answer is not understood: {error}");
            Failure::new(ExitKind::Internal, message).help("is it another version of twill?")
        })
    }

    fn exchange(&mut self, request: &Request) -> io::Result<Response> {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        self.stream.get_mut().write_all(&line)?;
        let mut answer = Vec::new();
        (&mut self.stream).take(LINE_BYTES_MAX).read_until(b'\n', &mut answer)?;
        if answer.last() != Some(&b'\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_slice(&answer)?)
    }

    fn gone(&self, error: &io::Error) -> Failure {
        let path = self.path.display();
        if error.kind() != io::ErrorKind::WouldBlock {
            let message = format!("the server at {path} did not answer: {error}");
            return Failure::new(ExitKind::IoError, message).help("its log says why");
        }
        let process = match rustix::net::sockopt::socket_peercred(self.stream.get_ref()) {
            Ok(peer) => format!(" (pid {})", peer.pid.as_raw_nonzero()),
            Err(_) => String::new(),
        };
        let array = name_of(&self.path).unwrap_or_else(|| format!("the server at {path}"));
        let message = format!("{array} does not answer within {} s{process}", BRIEF.as_secs());
        Failure::new(ExitKind::IoError, message).help("a member may hang: its log says more")
    }

    /// Waits until the server has gone, and its members are free.
    pub fn wait_for_end(mut self) {
        let _patience = self.stream.get_ref().set_read_timeout(Some(PATIENCE));
        let _gone = self.stream.read_to_end(&mut Vec::new());
    }
}

/// Which served array a command line means: the one at a socket, the one with a name, or the only one.
#[derive(Clone, Copy, Debug)]
pub struct Which<'a> {
    /// Its control socket.
    pub control: Option<&'a Path>,
    /// Its name.
    pub array: Option<&'a str>,
    /// The name is given with --array, since what has no option is a member.
    pub by_option: bool,
}

/// Connects to the array that a command line means.
///
/// # Errors
/// [`ExitKind::NotFound`] and [`ExitKind::Ambiguous`], with what is served.
pub fn connect(Which { control, array, by_option }: Which<'_>) -> Result<Client, Failure> {
    if let Some(path) = control {
        let mut client = Client::connect(path)?;
        // A socket and a name were given: both must be right, or a command would hit the wrong array.
        if let Some(name) = array {
            let served = client.call("status", Value::Null)?["name"].as_str().map(ToOwned::to_owned);
            if served.as_deref().map(file_name) != Some(file_name(name)) {
                let (served, path) = (served.unwrap_or_default(), path.display());
                let message = format!("the array at {path} is {served:?}, not {name:?}");
                let failure = Failure::new(ExitKind::NotFound, message);
                return Err(failure.help("leave out the name or the socket, whichever is wrong"));
            }
        }
        return Ok(client);
    }
    let all = served();
    let names = || all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let help = || match all.is_empty() {
        true => "none is served; start one with twill serve".to_owned(),
        false if by_option => format!("served: {}; say which with --array NAME or --control PATH", names()),
        false => format!("served: {}; say which by its name, or with --control", names()),
    };
    match (array, all.as_slice()) {
        (Some(name), _) => {
            let by_name = all.iter().find(|(served, _)| *served == file_name(name));
            match by_name.map(|(_, path)| path.clone()).or_else(|| called(&all, name)) {
                Some(path) => Client::connect(&path),
                None => Err(Failure::new(ExitKind::NotFound, format!("no array named {name:?} is served"))
                    .help(help())),
            }
        }
        (None, []) => {
            let failure = Failure::new(ExitKind::NotFound, "no array is served");
            Err(failure.help("start one with twill serve, or name its socket with --control PATH"))
        }
        (None, [(_, path)]) => Client::connect(path),
        (None, _) => Err(Failure::new(ExitKind::Ambiguous, "several arrays are served").help(help())),
    }
}

/// The socket of the array with this UUID, this block device, or this member. All servers are asked at once: one that hangs holds
/// up no command on another array.
fn called(all: &[(String, PathBuf)], word: &str) -> Option<PathBuf> {
    let (sender, answers) = mpsc::channel();
    for (_, socket) in all.iter().cloned() {
        let (sender, word) = (sender.clone(), word.to_owned());
        thread::spawn(move || sender.send(is_called(&socket, &word).then_some(socket)));
    }
    drop(sender);
    answers.iter().flatten().next()
}

/// Whether the array at a socket has this UUID, this block device, or this member. A server that hangs has none of them.
fn is_called(socket: &Path, word: &str) -> bool {
    let Some(found) = identity(socket) else { return false };
    if !found.uuid.is_empty() && array_uuid::is_same(&found.uuid, word) {
        return true;
    }
    let path = fs::canonicalize(word).ok();
    let is_it = |device: &String| device == word || path.is_some() && fs::canonicalize(device).ok() == path;
    found.devices.iter().any(is_it)
}

/// What a server calls its array by. One of an earlier version says it only with the status.
fn identity(socket: &Path) -> Option<Identity> {
    let found: Identity = Client::ask_briefly(socket, "ping").ok()?;
    if !found.uuid.is_empty() || found.state != ServedState::Served {
        return Some(found);
    }
    let status: ArrayStatus = Client::ask_briefly(socket, "status").ok()?;
    let device = status.block_device.map(|device| device.path);
    let members = status.members.into_iter().filter_map(|member| member.path);
    Some(Identity {
        name: status.name,
        uuid: status.uuid,
        devices: device.into_iter().chain(members).collect(),
        ..found
    })
}

/// An array that is served, and what its server answered.
pub struct Asked<T> {
    /// The array's name, as its socket has it.
    pub name: String,
    /// Its control socket.
    pub control: PathBuf,
    /// The answer, or why there is none.
    pub answer: Result<T, Failure>,
}

/// Calls a method without parameters of every server, of all at once: those that hang are waited for together.
pub fn ask_all<T: DeserializeOwned + Send + 'static>(method: &'static str) -> Vec<Asked<T>> {
    let ask = |(name, control): (String, PathBuf)| {
        thread::spawn(move || Asked { answer: Client::ask_briefly(&control, method), name, control })
    };
    let asking: Vec<_> = served().into_iter().map(ask).collect();
    asking.into_iter().map(|asking| asking.join().expect("a call does not panic")).collect()
}

/// The name of the array with this control socket, if it is in a usual place.
fn name_of(socket: &Path) -> Option<String> {
    let is_socket = socket.extension().is_some_and(|extension| extension == SOCKET);
    Some(socket.file_stem().filter(|_| is_socket)?.to_string_lossy().into_owned())
}

/// Name and control socket of every array that is served where servers put their sockets.
pub fn served() -> Vec<(String, PathBuf)> {
    sockets().into_iter().filter(|(_, path)| answers(path)).collect()
}

/// Name and control socket of every array whose server put one there. One that was killed has left it.
pub fn sockets() -> Vec<(String, PathBuf)> {
    let mut sockets = Vec::new();
    for folder in folders() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if let Some(name) = name_of(&path) {
                sockets.push((name, path));
            }
        }
    }
    sockets.sort();
    sockets
}

/// Whether a server listens. A busy one counts: without it, a command that names no array would go to the only other server.
fn answers(path: &Path) -> bool {
    Client::connect(path).is_ok()
}
