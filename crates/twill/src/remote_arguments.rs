//! Arguments about members on other machines. Commands with arguments of their own have these, too.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use host::device::nvme_tcp::{RemoteAddress, SCHEME};
use nvme_tcp::names::Nqn;

const HEADING: &str = "Members on other machines";

/// How members on other machines are reached.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = HEADING)]
pub struct RemoteArguments {
    /// Take members that another host has reserved from it: its writes fail from then on.
    #[arg(long)]
    pub take_over: bool,
    /// Use members whose targets have no reservations: nothing keeps another host from writing to them.
    #[arg(long)]
    pub unfenced: bool,
    /// This host's name [default: what /etc/nvme/hostnqn says, else one made of the machine's identity].
    #[arg(long, value_name = "NQN", value_parser = nqn, hide_short_help = true)]
    pub hostnqn: Option<Nqn>,
    /// File with this host's secret, for targets that want it to authenticate (DH-HMAC-CHAP).
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub dhchap_secret: Option<PathBuf>,
    /// File with the secret that the targets have to prove they know.
    #[arg(long, value_name = "FILE", requires = "dhchap_secret", hide_short_help = true)]
    pub dhchap_ctrl_secret: Option<PathBuf>,
    /// File with the key of TLS that this host shares with the targets (NVMeTLSkey-1:…): nothing is sent to a target without it.
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    pub tls_secret: Option<PathBuf>,
    /// Ask for digests of headers.
    #[arg(long, hide_short_help = true)]
    pub hdr_digest: bool,
    /// Ask for digests of data.
    #[arg(long, hide_short_help = true)]
    pub data_digest: bool,
    /// Seconds after which a member fails that does not answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = seconds, hide_short_help = true)]
    pub member_time_limit: f64,
    /// Seconds after which targets give this host up if they see no sign of it.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=3600), hide_short_help = true)]
    pub keep_alive_tmo: u64,
}

/// Where the parity of members on other machines is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Fabric {
    /// Here: old data and parity cross the network.
    #[default]
    Host,
    /// At the members' targets, where these can: only new data crosses the network.
    Peer,
    /// Where a trial shows more throughput, repeated while there is load.
    Auto,
}

/// Which target puts a lost chunk together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Reducers {
    /// The one from which the chunk is expected first, by what this host has measured.
    #[default]
    Fastest,
    /// Any of them.
    Random,
}

/// Members of arrays that are not served, and how those on other machines are reached.
#[derive(Debug, Args)]
pub struct DeviceArguments {
    /// Files, block devices, or namespaces on other machines (nvme://ADDRESS/NQN).
    #[arg(required = true, value_name = "MEMBER", value_parser = member_path)]
    pub members: Vec<PathBuf>,
    /// How members on other machines are reached.
    #[command(flatten)]
    pub remote: RemoteArguments,
}

/// Arguments of `discover`.
#[derive(Debug, Args)]
#[command(after_help = "Example: what does this machine serve?
  twill discover 10.0.0.1
Each line is a member for create, assemble, serve and add, as nvme://ADDRESS:PORT/NQN[/NAMESPACE].")]
pub struct DiscoverArguments {
    /// Address of a target, or of a discovery controller. Without a port, 8009 and then 4420 are tried.
    #[arg(value_name = "ADDRESS[:PORT]")]
    pub address: String,
    /// As whom.
    #[command(flatten)]
    pub remote: RemoteArguments,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| (0.1..=600.0).contains(number));
    number.ok_or_else(|| format!("{text:?} is no number of seconds from 0.1 to 600"))
}

/// A member as it stands on a command line: a path, or a namespace on another machine, which gets its one spelling.
///
/// # Errors
/// What is wrong with the address.
pub fn member_path(text: &str) -> Result<PathBuf, String> {
    if text.is_empty() {
        return Err("an empty name is no member".into());
    }
    if !text.to_ascii_lowercase().starts_with(SCHEME) {
        return Ok(PathBuf::from(text));
    }
    let address = RemoteAddress::parse(&format!("{SCHEME}{}", &text[SCHEME.len()..]));
    address.map(|address| PathBuf::from(address.to_string())).map_err(|error| error.to_string())
}

/// A name of a host or subsystem.
pub(crate) fn nqn(words: &str) -> Result<Nqn, String> {
    Nqn::new(words).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_namespace_has_one_spelling() {
        let path = member_path("nvme://192.0.2.1/nqn.2026-11.test:a").unwrap();
        assert_eq!(path, Path::new("nvme://192.0.2.1:4420/nqn.2026-11.test:a/1"));
        assert_eq!(member_path("NVME://192.0.2.1/nqn.2026-11.test:a").unwrap(), path);
        assert_eq!(member_path("nvme0").unwrap(), Path::new("nvme0"));
        assert!(member_path("nvme://192.0.2.1").unwrap_err().contains("twill discover"));
    }
}
