//! `monitor`: tells people and programs what happens to the arrays of this machine, as `mdadm --monitor` does.

mod alert;
mod channels;
mod seen;
mod watch;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;

use self::alert::{Alert, Allowance};
use self::channels::{Batch, Channel, Channels};
use self::seen::Seen;
use self::watch::Watch;
use super::output::Output;
use crate::duration;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::plain::plain;
use crate::service_manager;
use crate::serving::now_unix_ms;

/// Arguments of `monitor`.
#[derive(Debug, Args)]
#[command(after_help = "Example: mail root, and tell a service, when something is wrong
  twill monitor --mail root --webhook https://alerts.example.org/twill
Example: whether alerts arrive
  twill monitor --mail root --test")]
pub struct MonitorArguments {
    /// Mail alerts to this address.
    #[arg(long, value_name = "ADDRESS")]
    pub mail: Vec<String>,
    /// The program that takes mail, as sendmail does.
    #[arg(long, value_name = "PATH", default_value = "/usr/sbin/sendmail")]
    pub sendmail: PathBuf,
    /// Post alerts to this address, as JSON.
    #[arg(long, value_name = "URL")]
    pub webhook: Vec<String>,
    /// Run this program for each event, also for those that are no alert, within --hourly: with the event's name, the array and the member's device,
    /// and the event as JSON on its standard input.
    #[arg(long, value_name = "PATH")]
    pub program: Vec<PathBuf>,
    /// How often arrays are looked at.
    #[arg(long, value_name = "TIME", value_parser = duration::parse, default_value = "1s")]
    pub interval: Duration,
    /// Most alerts about one array in an hour; what is more is counted, and said with the next one.
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub hourly: u32,
    /// Look once, and end when alerts are delivered.
    #[arg(long)]
    pub once: bool,
    /// Send an alert that says that it is a test, and end when it is delivered.
    #[arg(long)]
    pub test: bool,
}

/// Least time between two looks.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Watches arrays until it is ended; with --once or --test until all is delivered.
///
/// # Errors
/// An address or program is wrong; with --once or --test, an alert that could not be delivered.
pub fn run(arguments: &MonitorArguments, output: Output) -> Result<(), Failure> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let is_short = arguments.once || arguments.test;
    let channels = channels(arguments, output)?;
    let reporter = Reporter { output, channels: Channels::start(channels, is_short.then_some(1)) };
    if arguments.test {
        reporter.report(vec![test(&host)], 0)?;
        return reporter.channels.finish();
    }
    let mut watch = Watch::new(&host, Seen::read()?);
    let mut allowances: BTreeMap<String, Allowance> = BTreeMap::new();
    let interval = arguments.interval.max(INTERVAL_MIN);
    let mut is_ready = false;
    loop {
        let now = Instant::now();
        let mut by_array: BTreeMap<String, (Vec<Alert>, u64)> = BTreeMap::new();
        for alert in watch.look() {
            let uuid = alert.uuid.clone();
            let allowance =
                allowances.entry(uuid.clone()).or_insert_with(|| Allowance::new(arguments.hourly, now));
            if alert.is_alert {
                let Some(held_back) = allowance.take(now) else { continue };
                by_array.entry(uuid.clone()).or_default().1 += held_back;
            }
            by_array.entry(uuid).or_default().0.push(alert);
        }
        for (alerts, held_back) in by_array.into_values() {
            reporter.report(alerts, held_back)?;
        }
        if arguments.once {
            return reporter.channels.finish();
        }
        if !std::mem::replace(&mut is_ready, true) {
            service_manager::ready("watching the arrays of this machine");
        }
        thread::sleep(interval.saturating_sub(now.elapsed()));
    }
}

/// Where alerts are reported: standard output and the channels.
struct Reporter {
    output: Output,
    channels: Channels,
}

impl Reporter {
    /// Reports what happened to one array.
    fn report(&self, all: Vec<Alert>, held_back: u64) -> Result<(), Failure> {
        for alert in &all {
            let line = if self.output.json {
                serde_json::to_string(alert).expect("plain data")
            } else {
                format!("{}: {}", plain(&alert.array), plain(&alert.text))
            };
            self.output.line(&line)?;
        }
        let alerts = all.iter().filter(|alert| alert.is_alert).cloned().collect();
        self.channels.send(&Batch { alerts, held_back }, &Batch { alerts: all, held_back });
        Ok(())
    }
}

fn channels(arguments: &MonitorArguments, output: Output) -> Result<Vec<Channel>, Failure> {
    let mut channels = Vec::new();
    for address in &arguments.mail {
        // A user of this machine is an address too.
        let full = if address.contains('@') { address.clone() } else { format!("{address}@localhost") };
        let to = full.parse().map_err(|error| {
            Failure::new(ExitKind::Usage, format!("{address} is no address for mail: {error}"))
        })?;
        channels.push(Channel::Mail { to, sendmail: arguments.sendmail.clone() });
    }
    if !arguments.mail.is_empty() && !arguments.sendmail.exists() {
        let message = format!("there is no {}, which would take mail", arguments.sendmail.display());
        return Err(Failure::new(ExitKind::NotFound, message)
            .help("install a mail server or msmtp-mta, or name another program with --sendmail"));
    }
    for url in &arguments.webhook {
        if !url.starts_with("http://") && !url.starts_with("https://") {
            let message = format!("{url} is no address of the web: it begins with http:// or https://");
            return Err(Failure::new(ExitKind::Usage, message));
        }
        channels.push(Channel::Webhook(url.clone()));
    }
    for program in &arguments.program {
        if !program.exists() {
            let message = format!("there is no program {}", program.display());
            return Err(Failure::new(ExitKind::NotFound, message));
        }
        channels.push(Channel::Program(program.clone()));
    }
    if channels.is_empty() && !output.json && arguments.test {
        let message = "there is nobody to tell: give --mail, --webhook or --program";
        return Err(Failure::new(ExitKind::Usage, message.to_owned()));
    }
    Ok(channels)
}

fn test(host: &str) -> Alert {
    Alert {
        host: host.to_owned(),
        array: "test".to_owned(),
        uuid: String::new(),
        event: "test".to_owned(),
        is_alert: true,
        device: None,
        text: "this is a test: alerts of arrays arrive here".to_owned(),
        unix_ms: now_unix_ms(),
    }
}
