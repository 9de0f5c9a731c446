//! `discover`: what an NVMe/TCP target serves, as members are named.

use comfy_table::{Table, presets};
use host::device::nvme_tcp::{DISCOVERY_PORT, PORT, Portal, SCHEME, discover, open_error};
use nvme_tcp::discovery::{DiscoveryEntry, DiscoveryLog, SubsystemType};
use serde::Serialize;

use super::output::Output;
use crate::arguments::DiscoverArguments;
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::plain::plain;
use crate::remote;

/// What `discover` answers.
#[derive(Debug, Serialize)]
struct Answer {
    /// Who was asked.
    address: String,
    subsystems: Vec<Subsystem>,
    /// What is wrong with entries that are left out.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Subsystem {
    /// As it stands before /NAMESPACE in the name of a member.
    member: String,
    address: String,
    port: u16,
    nqn: String,
    /// nvm, discovery or referral.
    kind: &'static str,
    tls: bool,
}

/// Asks and prints.
///
/// # Errors
/// No answer, or one that makes no sense.
pub fn run(arguments: &DiscoverArguments, output: Output) -> Result<(), Failure> {
    remote::set(&arguments.remote)?;
    let (portal, log) = ask(&arguments.address)?;
    let answer = Answer {
        address: portal.to_string(),
        subsystems: log.entries.iter().map(subsystem).collect(),
        left_out: log.left_out.iter().map(ToString::to_string).collect(),
    };
    output.print(&answer, words)
}

/// Without a port the discovery controller's own is tried first, and then that of subsystems, where most targets answer, too.
fn ask(text: &str) -> Result<(Portal, DiscoveryLog), Failure> {
    let parse = |port| {
        let wrong =
            |error: host::device::nvme_tcp::AddressError| Failure::new(ExitKind::Usage, error.to_string());
        Portal::parse(text, port).map_err(wrong)
    };
    let (first, second) = (parse(DISCOVERY_PORT)?, parse(PORT)?);
    let ports = if first == second { vec![first] } else { vec![first, second] };
    let mut failures = Vec::new();
    for portal in ports {
        match discover(&portal, remote::options()) {
            Ok(log) => return Ok((portal, log)),
            Err(error) => failures.push(format!("{portal}: {}", open_error("", &error).reason)),
        }
    }
    Err(Failure::new(ExitKind::NotFound, failures.join("; "))
        .help("name the port that the target listens at"))
}

fn subsystem(entry: &DiscoveryEntry) -> Subsystem {
    let portal = Portal { host: entry.address.to_string(), port: entry.service };
    Subsystem {
        member: format!("{SCHEME}{portal}/{}", entry.nqn),
        address: entry.address.to_string(),
        port: entry.service,
        nqn: entry.nqn.to_string(),
        kind: match entry.subsystem_type {
            SubsystemType::Nvm => "nvm",
            SubsystemType::CurrentDiscovery => "discovery",
            SubsystemType::Referral => "referral",
        },
        tls: entry.tls,
    }
}

fn words(answer: &Answer) -> String {
    let served: Vec<&Subsystem> = answer.subsystems.iter().filter(|one| one.kind == "nvm").collect();
    if served.is_empty() {
        return format!("{} serves nothing to this host\n", answer.address);
    }
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["Member", "TLS"]);
    for one in served {
        table.add_row([plain(&one.member).into_owned(), if one.tls { "required" } else { "-" }.into()]);
    }
    table.to_string() + "\n"
}
