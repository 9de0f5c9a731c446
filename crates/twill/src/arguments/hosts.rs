//! Arguments about NVMe/TCP hosts: what is served to them, and which may connect.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use host::device::DeviceSpec;
use nvme_tcp::KeyTextError;
use nvme_tcp::auth::Secret;
use nvme_tcp::names::Nqn;
use nvme_tcp::psk::ConfiguredPsk;

use crate::bytes;
use crate::remote_arguments::nqn;

/// Where hosts of NVMe/TCP look for namespaces.
const NVME_TCP_PORT: u16 = 4420;

/// A file, a block device or memory that `target` serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServedDevice {
    /// What it is.
    pub device: DeviceSpec,
    /// The name of its subsystem.
    pub nqn: Option<Nqn>,
}

/// A secret on the command line: of DH-HMAC-CHAP, or a key of TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecretSource<S = Secret> {
    /// Itself.
    Text(S),
    /// A file that holds it.
    File(PathBuf),
}

/// The secret of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostSecret<S = Secret> {
    /// Which host.
    pub host: Nqn,
    /// Where its secret is.
    pub secret: SecretSource<S>,
}

/// Which NVMe/TCP hosts may connect, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct HostArguments {
    /// An NVMe/TCP host that may connect, by its name; may be repeated. No other host may.
    #[arg(long, visible_alias = "allow", value_name = "NQN", value_parser = nqn, conflicts_with = "allow_any")]
    pub allow_host: Vec<Nqn>,
    /// Every NVMe/TCP host may connect.
    #[arg(long)]
    pub allow_any: bool,
    /// A host that may connect if it proves by DH-HMAC-CHAP that it has this secret, DHHC-1:… as nvme gen-dhchap-key makes it, or
    /// a file with it; may be repeated. Every user of this machine sees a secret in the command line: prefer a file.
    #[arg(long, value_name = "NQN=SECRET|FILE", value_parser = host_secret)]
    pub dhchap_key: Vec<HostSecret>,
    /// The secret by which this end proves itself to hosts that ask for it, or a file with it.
    #[arg(long, value_name = "SECRET|FILE", requires = "dhchap_key", value_parser = secret)]
    pub dhchap_ctrl_key: Option<SecretSource>,
    /// A host that may connect over TLS 1.3 with this key, NVMeTLSkey-1:… as nvme gen-tls-key makes it, or a file with it, and
    /// in no other way; may be repeated. Prefer a file: every user of this machine sees a command line.
    #[arg(long, value_name = "NQN=KEY|FILE", value_parser = host_tls_key)]
    pub tls_key: Vec<HostSecret<ConfiguredPsk>>,
    /// Listen for NVMe/TCP hosts also at addresses that other machines reach, although of hosts without --tls-key nothing is
    /// encrypted, and those without --dhchap-key or --tls-key prove nothing.
    #[arg(long)]
    pub insecure: bool,
    /// Refuse NVMe/TCP hosts that connect without digests of headers and data.
    #[arg(long)]
    pub require_digests: bool,
    /// Begin without reservations where the file that keeps them is missing or damaged: at the first start, and when no host
    /// that may have held one still runs.
    #[arg(long)]
    pub reservations_new: bool,
}

impl<S> SecretSource<S> {
    fn file(&mut self) -> Option<&mut PathBuf> {
        match self {
            SecretSource::File(path) => Some(path),
            SecretSource::Text(_) => None,
        }
    }
}

impl HostArguments {
    /// Files that are named here.
    pub fn files(&mut self) -> impl Iterator<Item = &mut PathBuf> {
        let secrets = self.dhchap_key.iter_mut().map(|key| &mut key.secret);
        let secrets = secrets.chain(&mut self.dhchap_ctrl_key).filter_map(SecretSource::file);
        secrets.chain(self.tls_key.iter_mut().filter_map(|key| key.secret.file()))
    }
}

/// Arguments of `target`.
#[derive(Debug, Args)]
#[command(after_help = "Example: a drive for one host of this network
  twill target --reservations-new --listen 10.0.0.1:4420 --insecure \\
    --allow nqn.2026-11.example:host0 \\
    /dev/nvme0n1=nqn.2026-11.example:drive0
and on that host, whose NQN is in /etc/nvme/hostnqn
  nvme connect-all -t tcp -a 10.0.0.1 -s 4420
Later starts go without --reservations-new: which host holds the drive is kept in the state folder, and outlives them.

Example: the same over TLS, with a key that both machines have (nvme gen-tls-key)
  twill target --listen 10.0.0.1:4420 \\
    --tls-key nqn.2026-11.example:host0=/etc/twill/host0.key \\
    /dev/nvme0n1=nqn.2026-11.example:drive0

Example: one of two targets that make parity among themselves for a host; the other one has these names the other way around
  twill target --listen 10.0.0.1:4420 --insecure \\
    --allow nqn.2026-11.example:host0 \\
    --peer-hostnqn nqn.2026-11.example:target1 \\
    --peer-allow nqn.2026-11.example:target2 \\
    /dev/nvme0n1=nqn.2026-11.example:drive1

Ctrl-C and SIGTERM end it.")]
pub struct TargetArguments {
    /// Address to listen at, and port [default: 4420]; may be repeated.
    #[arg(long, value_name = "ADDRESS[:PORT]", value_parser = nvme_address, default_value = "127.0.0.1:4420")]
    pub listen: Vec<SocketAddr>,
    /// Which hosts may connect.
    #[command(flatten)]
    pub hosts: HostArguments,
    /// Another target that may connect, by its name, and send parts of parity: no reads, no writes. May be repeated.
    #[arg(long, value_name = "NQN", value_parser = nqn)]
    pub peer_allow: Vec<Nqn>,
    /// This target's name towards other targets [default: what /etc/nvme/hostnqn says, else one made of the machine's identity].
    #[arg(long, value_name = "NQN", value_parser = nqn)]
    pub peer_hostnqn: Option<Nqn>,
    /// File with the secret by which this target proves its name to other targets (DH-HMAC-CHAP).
    #[arg(long, value_name = "FILE")]
    pub peer_dhchap_secret: Option<PathBuf>,
    /// File with the key of TLS by which this target connects to other targets.
    #[arg(long, value_name = "FILE")]
    pub peer_tls_secret: Option<PathBuf>,
    /// Memory at each namespace for parity that is made here, of which a host gets as much as it can use.
    #[arg(long, value_parser = bytes::parse_with_unit, value_name = "SIZE", default_value = "128M")]
    pub peer_memory: u64,
    /// No host may write.
    #[arg(long)]
    pub read_only: bool,
    /// Threads that serve, each with a core of its own [default: as many as cores].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub shards: Option<u16>,
    /// What to serve, and the name of its subsystem [default: one made of this machine and the path]. Those with one name are
    /// namespaces of one subsystem. memory:SIZE is memory, for trials: what it holds is gone when the target ends.
    #[arg(required = true, value_name = "FILE[=NQN]", value_parser = parse_served)]
    pub served: Vec<ServedDevice>,
}

/// FILE or FILE=NQN.
///
/// # Errors
/// What is wrong with it.
fn parse_served(text: &str) -> Result<ServedDevice, String> {
    let (path, nqn) = match text.rsplit_once("=nqn.") {
        Some((path, rest)) => {
            let nqn = Nqn::new(&format!("nqn.{rest}")).map_err(|error| format!("the name: {error}"))?;
            (path, Some(nqn))
        }
        None => (text, None),
    };
    if path.is_empty() {
        return Err("there is no path".to_owned());
    }
    let devices = DeviceSpec::parse(path).map_err(|error| error.to_string())?;
    let [device] = <[DeviceSpec; 1]>::try_from(devices)
        .map_err(|_| "several devices in one: name each, like memory:1G memory:1G".to_owned())?;
    Ok(ServedDevice { device, nqn })
}

fn host_secret(words: &str) -> Result<HostSecret, String> {
    let form = "it is NQN=SECRET or NQN=FILE, like nqn.2026-11.example:host0=DHHC-1:…";
    let (host, rest) = words.split_once('=').ok_or(form)?;
    Ok(HostSecret { host: host_name(host)?, secret: secret(rest)? })
}

fn host_tls_key(words: &str) -> Result<HostSecret<ConfiguredPsk>, String> {
    let form = "it is NQN=KEY or NQN=FILE, like nqn.2026-11.example:host0=NVMeTLSkey-1:…";
    let (host, rest) = words.split_once('=').ok_or(form)?;
    Ok(HostSecret { host: host_name(host)?, secret: source(rest, "NVMeTLSkey-1", ConfiguredPsk::parse)? })
}

fn host_name(words: &str) -> Result<Nqn, String> {
    nqn(words).map_err(|error| format!("the name: {error}"))
}

fn secret(words: &str) -> Result<SecretSource, String> {
    source(words, "DHHC-1", Secret::parse)
}

/// A word that begins as a secret does is one, and never a file whose name a message would print.
fn source<S>(
    words: &str,
    beginning: &str,
    parse: fn(&str) -> Result<S, KeyTextError>,
) -> Result<SecretSource<S>, String> {
    match words {
        "" => Err("there is no secret".to_owned()),
        words if words.starts_with(beginning) => {
            parse(words).map(SecretSource::Text).map_err(|error| format!("the secret: {error}"))
        }
        path => Ok(SecretSource::File(path.into())),
    }
}

/// An address with a port, or with the port of NVMe/TCP.
pub(super) fn nvme_address(words: &str) -> Result<SocketAddr, &'static str> {
    let bare = words.strip_prefix('[').and_then(|words| words.strip_suffix(']')).unwrap_or(words);
    match (words.parse(), bare.parse::<IpAddr>()) {
        (Ok(address), _) => Ok(address),
        (_, Ok(address)) => Ok(SocketAddr::new(address, NVME_TCP_PORT)),
        _ => Err(
            "it is an address in digits, with a port or without, like 10.0.0.1, 127.0.0.1:4420 or [::1]:4420",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_may_have_a_name() {
        let parse = |text| {
            parse_served(text).map(|served| (served.device.to_string(), served.nqn.map(|n| n.to_string())))
        };
        assert_eq!(parse("a=b"), Ok(("a=b".into(), None)));
        let named = ("/dev/x=y".into(), Some("nqn.2026-11.test:a".to_owned()));
        assert_eq!(parse("/dev/x=y=nqn.2026-11.test:a"), Ok(named));
        assert!(parse("").is_err() && parse("=nqn.2026-11.test:a").is_err());
        assert!(parse("a=nqn.with space").is_err());
        let memory = ("memory:0".into(), Some("nqn.2026-11.test:a".to_owned()));
        assert_eq!(parse("memory:1G=nqn.2026-11.test:a"), Ok(memory));
        assert!(parse("memory:2x1G").is_err_and(|said| said.contains("name each")));
        assert!(parse("memory:1Q").is_err());
    }

    #[test]
    fn an_address_of_nvme_tcp_may_leave_its_port_out() {
        let parse = |words| nvme_address(words).map(|address| address.to_string());
        for (words, address) in [
            ("10.0.0.1", "10.0.0.1:4420"),
            ("10.0.0.1:9", "10.0.0.1:9"),
            ("::1", "[::1]:4420"),
            ("[::1]", "[::1]:4420"),
            ("[::1]:9", "[::1]:9"),
        ] {
            assert_eq!(parse(words).as_deref(), Ok(address));
        }
        assert!(["", "host0", "host0:4420", "[10.0.0.1", ":4420"].map(parse).iter().all(Result::is_err));
    }

    #[test]
    fn a_secret_is_itself_or_in_a_file_and_a_wrong_one_is_in_no_message() {
        const TEXT: &str = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";
        let given = host_secret(&format!("nqn.2026-11.test:a={TEXT}")).expect("a secret");
        assert_eq!(given.host.to_string(), "nqn.2026-11.test:a");
        assert_eq!(given.secret, SecretSource::Text(Secret::parse(TEXT).expect("a secret")));
        let in_file = host_secret("nqn.2026-11.test:a=/etc/secret=1").expect("a file");
        assert_eq!(in_file.secret, SecretSource::File("/etc/secret=1".into()));
        for words in ["", "nqn.2026-11.test:a", "nqn.2026-11.test:a=", "=x"] {
            assert!(host_secret(words).is_err(), "{words}");
        }
        let message = host_secret(&format!("nqn.2026-11.test:a={}", &TEXT[..40])).expect_err("cut short");
        assert!(!message.contains("AQID"), "{message}");
    }

    #[test]
    fn a_key_of_tls_is_itself_or_in_a_file_and_a_wrong_one_is_in_no_message() {
        const TEXT: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
        let given = host_tls_key(&format!("nqn.2026-11.test:a={TEXT}")).expect("a key");
        assert_eq!(given.secret, SecretSource::Text(ConfiguredPsk::parse(TEXT).expect("a key")));
        let in_file = host_tls_key("nqn.2026-11.test:a=/etc/key").expect("a file");
        assert_eq!(in_file.secret, SecretSource::File("/etc/key".into()));
        assert!(host_tls_key("nqn.2026-11.test:a=").is_err() && host_tls_key("/etc/key").is_err());
        let wrong = TEXT.replace("VRLb", "WRLb");
        let message = host_tls_key(&format!("nqn.2026-11.test:a={wrong}")).expect_err("its CRC is wrong");
        assert!(!message.contains("tnN9"), "{message}");
    }
}
