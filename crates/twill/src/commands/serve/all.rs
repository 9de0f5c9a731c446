//! `serve --all`: one process serves the arrays of this machine, and further ones that it is asked for.
//!
//! Each array has a control socket of its own, as if it had a process of its own: commands find it in the same way, and one that
//! hangs holds up none of the others. The shards are the same for all.

mod arrays;
mod command_line;
mod configuration;
mod control;
mod place;
mod settings;
mod wanted;

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::{Duration, Instant};

use crate::arguments::ServeArguments;
use crate::commands::output::Output;
use crate::control::{Client, Identity, Server};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::own_files::PidFile;
use crate::remote;
use crate::service_manager;
use crate::serving::{Process, shards_default};

use super::announcement::{AllAnnouncement, Announced, all_summary, all_words};
use super::background;
use super::ending::Ending;
use super::options::remote_arguments;
use super::picked::absolute;
use super::signals::Watch;
use super::until_end::until_end;
use arrays::Arrays;
use control::Control;
pub use control::{Start, path};
use wanted::Source;

/// How long the start of the process waits for the starts of its arrays. Those that take longer go on; file systems on the others
/// are not to wait for them.
const READY_WITHIN: Duration = Duration::from_secs(90);

/// Serves all arrays until a signal ends it.
///
/// # Errors
/// The configuration is wrong, another process serves all arrays already; or at the end which arrays were not served.
pub fn run(arguments: &ServeArguments, output: Output) -> Result<(), Failure> {
    let source = Source::of_command_line(arguments)?;
    source.check()?;
    remote::set(&remote_arguments(arguments))?;
    let (sender, endings) = mpsc::channel();
    let watch = Watch::start(&sender, output, arguments.in_background)?;
    let at = arguments.control.as_deref().map_or_else(path, |path| Ok(absolute(path)))?;
    let server = Server::bind(&at).map_err(|failure| is_there(failure, &at))?;
    let pid_file = arguments.pid_file.as_deref().map(|path| PidFile::at(path, &[])).transpose()?;
    pid_file.as_ref().map(PidFile::write).transpose()?;
    let shards = arguments.shards.map_or_else(shards_default, usize::from);
    let arrays = Arrays::new(Process::of_arrays(shards, arguments.poll), source);
    let started = Arrays::begun(&arrays.start_all()?, Instant::now() + READY_WITHIN);
    let control = Arc::new(Control { arrays: Arc::clone(&arrays) });
    server.start(control).map_err(|error| Failure::from_io("answer at", server.path(), &error))?;
    let announcement = AllAnnouncement { started, control: at, pid: std::process::id() };
    if arguments.in_background {
        background::announce(&Announced::All(announcement.clone()))?;
    } else if let Err(failure) = output.print(&announcement, all_words) {
        tracing::warn!("{failure}"); // it serves all the same
    }
    watch.begin_to_obey();
    service_manager::ready(&all_summary(&announcement.started));
    arrays.is_ready();
    let stopping = Arc::clone(&arrays);
    let outcome = until_end(&endings, &|| stop(&stopping, &sender)).and_then(|()| arrays.verdict());
    if let (Err(failure), true) = (&outcome, arguments.in_background) {
        tracing::error!("{failure}");
    }
    drop(server);
    drop(pid_file);
    outcome
}

/// Stops all arrays on a thread of its own, and tells what it came to.
fn stop(arrays: &Arc<Arrays>, sender: &Sender<Ending>) {
    let (arrays, sender) = (Arc::clone(arrays), sender.clone());
    thread::spawn(move || {
        let endings = match arrays.stop() {
            Ok(stopped) => vec![Ending::Stopping, Ending::Stopped(Ok(stopped))],
            Err(failure) => vec![Ending::Refused(failure)],
        };
        let sent = endings.into_iter().try_for_each(|ending| sender.send(ending));
        if sent.is_err() {
            tracing::debug!("the server has ended already");
        }
    });
}

/// What a control socket that is in use means.
fn is_there(failure: Failure, at: &Path) -> Failure {
    let Ok(Identity { pid, .. }) = Client::ask_briefly(at, "ping") else { return failure };
    Failure::new(ExitKind::AlreadyExists, format!("process {pid} serves all arrays already"))
        .help("twill start --all has it serve what it does not serve yet; twill start NAME one array")
}
