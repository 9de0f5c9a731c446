//! Where alerts go: mail, addresses of the web, programs. Each has a thread, so that one that hangs holds nothing up.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lettre::message::{Mailbox, SinglePart};
use lettre::{Message, SendmailTransport, Transport as _};
use serde::Serialize;
use ureq::tls::{RootCerts, TlsConfig};

use super::alert::Alert;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::plain::plain;
use crate::words;

/// How long an address of the web may take.
const WEB_TIME_LIMIT: Duration = Duration::from_secs(10);
/// Waits before one more try: the last is taken again and again.
const WAITS: [Duration; 4] =
    [Duration::from_secs(5), Duration::from_secs(30), Duration::from_secs(120), Duration::from_secs(600)];
/// Tries: about two hours.
const TRIES_MAX: usize = 16;

/// What happened to one array between two looks, and how many alerts about it were held back before.
#[derive(Clone, Debug, Serialize)]
pub struct Batch {
    /// In order.
    pub alerts: Vec<Alert>,
    /// Alerts that were too many.
    pub held_back: u64,
}

/// One way out.
#[derive(Debug)]
pub enum Channel {
    /// Mail to an address, by a program that takes it.
    Mail {
        /// To whom.
        to: Mailbox,
        /// As sendmail.
        sendmail: PathBuf,
    },
    /// An address that JSON is posted to.
    Webhook(String),
    /// A program that is run for each event.
    Program(PathBuf),
}

impl Channel {
    /// Whether events that are no alerts go there as well.
    pub fn takes_all(&self) -> bool {
        matches!(self, Channel::Program(_))
    }

    fn deliver(&self, batch: &Batch) -> Result<(), String> {
        match self {
            Channel::Mail { to, sendmail } => mail(to, sendmail, batch),
            Channel::Webhook(url) => post(url, batch),
            Channel::Program(program) => batch.alerts.iter().try_for_each(|alert| run(program, alert)),
        }
    }

    fn words(&self) -> String {
        match self {
            Channel::Mail { to, .. } => format!("mail to {to}"),
            Channel::Webhook(url) => url.clone(),
            Channel::Program(program) => program.display().to_string(),
        }
    }
}

/// The channels of a monitor.
pub struct Channels {
    running: Vec<Running>,
}

struct Running {
    takes_all: bool,
    sender: Sender<Arc<Batch>>,
    thread: JoinHandle<Result<(), String>>,
}

impl Channels {
    /// Starts a thread for each. `tries`: how often one batch is tried; `None`: for two hours.
    pub fn start(channels: Vec<Channel>, tries: Option<usize>) -> Self {
        let start = |channel: Channel| {
            let (sender, receiver) = mpsc::channel();
            let takes_all = channel.takes_all();
            let thread = thread::spawn(move || serve(&channel, &receiver, tries.unwrap_or(TRIES_MAX)));
            Running { takes_all, sender, thread }
        };
        Channels { running: channels.into_iter().map(start).collect() }
    }

    /// Hands over what happened to one array. `alerts`: those that may be sent; `all`: with those that are no alerts.
    pub fn send(&self, alerts: &Batch, all: &Batch) {
        for Running { takes_all, sender, .. } in &self.running {
            let batch = if *takes_all { all } else { alerts };
            if !batch.alerts.is_empty() {
                _ = sender.send(Arc::new(batch.clone())); // its thread ends with the monitor only
            }
        }
    }

    /// Waits until everything was delivered.
    ///
    /// # Errors
    /// What could not be.
    pub fn finish(self) -> Result<(), Failure> {
        let mut failed = Vec::new();
        for Running { sender, thread, .. } in self.running {
            drop(sender);
            failed.extend(thread.join().expect("a channel does not panic").err());
        }
        match failed.is_empty() {
            true => Ok(()),
            false => {
                Err(Failure::new(ExitKind::IoError, failed.join("; ")).help("nothing else will tell of it"))
            }
        }
    }
}

/// Delivers batches until the sender is dropped. Returns the last error.
fn serve(channel: &Channel, receiver: &Receiver<Arc<Batch>>, tries: usize) -> Result<(), String> {
    let mut outcome = Ok(());
    while let Ok(batch) = receiver.recv() {
        for time in 1..=tries {
            let Err(error) = channel.deliver(&batch) else { break };
            let error = format!("{}: {error}", channel.words());
            if time == tries {
                tracing::error!("an alert was not delivered, and is given up: {error}");
                outcome = Err(error);
            } else {
                tracing::warn!("an alert was not delivered, and is tried again: {error}");
                thread::sleep(WAITS[(time - 1).min(WAITS.len() - 1)]);
            }
        }
    }
    outcome
}

fn mail(to: &Mailbox, sendmail: &Path, batch: &Batch) -> Result<(), String> {
    let first = batch.alerts.first().expect("a batch is not empty");
    let more = match batch.alerts.len() {
        1 => String::new(),
        count => format!(" (and {} more)", count - 1),
    };
    let subject = format!("twill: {} on {}: {}{more}", plain(&first.array), first.host, plain(&first.text));
    let from: Mailbox = format!("Twill on {} <root@{}>", first.host, first.host)
        .parse()
        .or_else(|_| "Twill <root@localhost>".parse())
        .map_err(|error| format!("a sender's address: {error}"))?;
    let message = Message::builder()
        .from(from)
        .to(to.clone())
        .subject(subject)
        .singlepart(SinglePart::plain(text(batch)))
        .map_err(|error| error.to_string())?;
    SendmailTransport::new_with_command(sendmail)
        .send(&message)
        .map_err(|error| format!("{}: {error}", sendmail.display()))
}

/// A batch for a person.
fn text(batch: &Batch) -> String {
    let first = batch.alerts.first().expect("a batch is not empty");
    let mut text = format!("Array {} ({}) on {}:\n\n", plain(&first.array), first.uuid, first.host);
    for alert in &batch.alerts {
        let device = alert.device.as_ref().filter(|device| !alert.text.contains(device.as_str()));
        let device = device.map_or_else(String::new, |device| format!(" [{}]", plain(device)));
        text += &format!("{} {}{device}\n", words::time::milliseconds(alert.unix_ms), plain(&alert.text));
    }
    if batch.held_back > 0 {
        text += &format!("\nBefore these, {} more were held back: there were too many.\n", batch.held_back);
    }
    text + "\n`twill status` says how the array is now, and what to do next; `twill events` says what happened.\n"
}

fn post(url: &str, batch: &Batch) -> Result<(), String> {
    // The machine's own certificates: a server at home may have one that no list of the web knows.
    let tls = TlsConfig::builder()
        .root_certs(RootCerts::PlatformVerifier)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build();
    let config = ureq::Agent::config_builder().timeout_global(Some(WEB_TIME_LIMIT)).tls_config(tls).build();
    let agent = ureq::Agent::from(config);
    agent.post(url).send_json(batch).map(|_| ()).map_err(|error| error.to_string())
}

fn run(program: &Path, alert: &Alert) -> Result<(), String> {
    let mut child = Command::new(program)
        .args([&alert.event, &alert.array])
        .args(&alert.device)
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let json = serde_json::to_vec(alert).expect("plain data");
    if let Some(mut input) = child.stdin.take() {
        _ = input.write_all(&json); // it need not read them
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    if status.success() { Ok(()) } else { Err(format!("it ended with {status}")) }
}
