//! One array: which members make it, its start, and what goes on beside it until it is stopped.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use engine::array::assemble::Filter;
use host::export::nbd::Tls;
use host::killed_server::when_free;
use layout::md_superblock::display_uuid;

use super::control::{Controlled, Hearer};
use super::metrics::Token;
use super::options::{check_options, check_places, nvme_tcp, options};
use super::picked::{Picked, absolute};
use super::{metrics, remotes, spares};
use crate::arguments::ServeArguments;
use crate::commands::{assemble as choose, waiting};
use crate::control::{Client, Server, file_name, own_folder};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::remote::{self, Attachment};
use crate::serving::{NvmeTcpOptions, Process, ServeOptions, Serving};
use crate::status::ArrayStatus;

/// The array that a command line means, not started yet.
pub struct ToServe {
    arguments: ServeArguments,
    nvme_tcp: Option<NvmeTcpOptions>,
    tls: Option<Arc<Tls>>,
    token: Option<Token>,
    chosen: Picked,
    members: Attachment,
    /// What an operator should know before.
    pub warnings: Vec<String>,
}

impl ToServe {
    /// Decides which members make the array, and waits for those that are late.
    ///
    /// # Errors
    /// Options that are not for it, or why it does not start. Nothing was written.
    pub fn choose(arguments: &ServeArguments) -> Result<Self, Failure> {
        check_options(arguments)?;
        let (nvme_tcp, tls) = (nvme_tcp(arguments)?, arguments.tls.read()?);
        let token = arguments.metrics_token.as_deref().map(Token::read).transpose()?;
        check_places(arguments, nvme_tcp.as_ref())?;
        let members = remote::attach(&arguments.choice.members, arguments.run)?;
        let mut arguments = arguments.clone();
        arguments.choice.members.retain(|member| !members.absent.contains(member));
        let (choice, filter) = (&arguments.choice, choose::filter(&arguments.choice)?);
        let patience = if choice.scan.is_some() { waiting::PATIENCE } else { Duration::ZERO };
        let decide = || Picked::decide(choice, &filter);
        let chosen = waiting::look_until_there(choice, patience, decide, Picked::missing)?;
        chosen.check(&arguments)?;
        let warnings = chosen.warnings();
        for warning in &warnings {
            tracing::warn!("{warning}");
        }
        Ok(ToServe { arguments, nvme_tcp, tls, token, chosen, members, warnings })
    }

    /// Its name, without the host's.
    pub fn name(&self) -> &str {
        self.chosen.name()
    }

    /// Its identity.
    pub fn set_uuid(&self) -> [u8; 16] {
        self.chosen.set_uuid()
    }

    /// Paths of all candidates.
    pub fn paths(&self) -> &[PathBuf] {
        self.chosen.paths()
    }

    /// Where its control socket is to be.
    ///
    /// # Errors
    /// There is no such place.
    pub fn control(&self) -> Result<PathBuf, Failure> {
        match &self.arguments.control {
            Some(path) => Ok(absolute(path)),
            None => Ok(own_folder()?.join(format!("{}.sock", file_name(self.name())))),
        }
    }

    /// Binds its control socket.
    ///
    /// # Errors
    /// The array is served already, or another one at this socket; what the system says.
    pub fn bind(&self) -> Result<Server, Failure> {
        let control = self.control()?;
        Server::bind(&control).map_err(|failure| self.is_served_already(failure, &control))
    }

    /// What it means that its control socket is in use, if this array is served there.
    pub fn is_served_already(&self, failure: Failure, control: &Path) -> Failure {
        served_already(failure, control, &self.chosen)
    }

    /// Starts it on shards of the process; `hear` hears why it ends. Its control socket is at `control`.
    ///
    /// # Errors
    /// Why it does not start.
    pub fn start(self, process: &Process, control: &Path, hear: Hearer) -> Result<Arc<Controlled>, Failure> {
        let ToServe { arguments, nvme_tcp, tls, token, chosen, members, .. } = self;
        let Attachment { attached, absent } = members;
        let (uuid, name) = (chosen.set_uuid(), chosen.name().to_owned());
        let filter = Filter { set_uuid: Some(uuid), name: None, force: arguments.choice.force };
        let options = options(&arguments, nvme_tcp, tls, &name, (control, process));
        let again = || Picked::decide(&arguments.choice, &filter).map(Picked::with_absolute_paths);
        let (chosen, serving) = start_when_free(chosen.with_absolute_paths(), &options, process, again)?;
        drop(attached); // the array has those that it uses
        if !arguments.read_only {
            take_back(&serving, &chosen.away(arguments.re_add));
            serving.array.expect(absent);
        }
        let controlled = Arc::new(Controlled::new(serving, (name, uuid), hear));
        look_after(&controlled, &arguments, token);
        Ok(controlled)
    }
}

/// What a control socket that is in use means, if the array there is the one that was chosen.
fn served_already(failure: Failure, control: &Path, chosen: &Picked) -> Failure {
    let Ok(status) = Client::ask_briefly::<ArrayStatus>(control, "status") else { return failure };
    if status.uuid != display_uuid(&chosen.set_uuid()) {
        return failure;
    }
    let members: Vec<&str> = status.members.iter().filter_map(|member| member.path.as_deref()).collect();
    let (name, pid, members) = (&status.name, status.pid, members.join(", "));
    let message = format!("the array {name} is served already, by process {pid}, with {members}");
    Failure::new(ExitKind::AlreadyExists, message)
        .help(format!("twill status {name} says how it is; twill add or twill re-add gives it a member; twill stop {name} ends it"))
}

/// Starts to serve, and waits for members that a killed server still holds. That server may have written after the choice was
/// made, so each further attempt chooses `again`.
///
/// # Errors
/// Why it does not start.
pub fn start_when_free(
    chosen: Picked,
    options: &ServeOptions,
    process: &Process,
    again: impl Fn() -> Result<Picked, Failure>,
) -> Result<(Picked, Serving), Failure> {
    let is_in_use = |failure: &Failure| failure.kind == ExitKind::MemberInUse;
    let mut first = Some(chosen);
    when_free(is_in_use, || {
        let chosen = first.take().map_or_else(&again, Ok)?;
        let serving = chosen.start(options, process)?;
        Ok((chosen, serving))
    })
}

fn take_back(serving: &Serving, members: &[PathBuf]) {
    for member in members {
        if let Err(failure) = serving.array.re_add(member) {
            tracing::warn!("not taken back: {failure}");
        }
    }
}

/// What goes on beside an array until it is stopped.
fn look_after(controlled: &Arc<Controlled>, arguments: &ServeArguments, token: Option<Token>) {
    if arguments.spare_group.is_some()
        && let Err(error) = spares::share(Arc::clone(controlled))
    {
        tracing::warn!("spares are not shared: {error}");
    }
    if let Err(error) = remotes::look_after(Arc::clone(controlled)) {
        tracing::warn!("members that come back are not taken back by themselves: {error}");
    }
    if let Some(address) = arguments.metrics
        && let Err(error) = metrics::answer(address, token, Arc::clone(controlled))
    {
        tracing::warn!(%address, "there are no metrics: {error}");
    }
}
