//! Members on other machines: how this process reaches them, set once by the command line.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use host::device::OpenErrorKind;
use host::device::nvme_tcp::{Attached, RemoteAddress, RemoteOptions, look_at, open_error};
use nvme_tcp::HashFunction;
use nvme_tcp::KeyTextError;
use nvme_tcp::auth::Secret;
use nvme_tcp::names::Nqn;
use nvme_tcp::psk::ConfiguredPsk;

use crate::control::state_folder;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem, open_problem};
use crate::remote_arguments::RemoteArguments;

/// Where a Linux host has its name.
const HOST_NQN_FILE: &str = "/etc/nvme/hostnqn";

/// The bits of a file's mode that let any user read it.
const OTHERS_READ: u32 = 0o004;

static OPTIONS: OnceLock<RemoteOptions> = OnceLock::new();

/// Takes over what the command line says. Called once, before any member is opened.
///
/// # Errors
/// A secret that cannot be read, or is none.
pub fn set(arguments: &RemoteArguments) -> Result<(), Failure> {
    let defaults = options_of_this_host(arguments.hostnqn.as_ref());
    let options = RemoteOptions {
        time_limit: Duration::from_secs_f64(arguments.member_time_limit),
        keep_alive: Duration::from_secs(arguments.keep_alive_tmo),
        header_digest: arguments.hdr_digest,
        data_digest: arguments.data_digest,
        secret: arguments.dhchap_secret.as_deref().map(read_secret).transpose()?,
        target_secret: arguments.dhchap_ctrl_secret.as_deref().map(read_secret).transpose()?,
        tls_key: arguments.tls_secret.as_deref().map(read_tls_key).transpose()?,
        take_over: arguments.take_over,
        unfenced: arguments.unfenced,
        ..defaults
    };
    let _first = OPTIONS.set(options);
    Ok(())
}

/// How this process reaches members on other machines.
pub fn options() -> &'static RemoteOptions {
    OPTIONS.get_or_init(|| options_of_this_host(None))
}

/// How a target reaches the targets that its hosts name to it.
///
/// # Errors
/// A secret or key that cannot be read, or is none.
pub fn peer_options(
    host_nqn: Option<&Nqn>,
    secret: Option<&Path>,
    tls_key: Option<&Path>,
) -> Result<RemoteOptions, Failure> {
    let secret = secret.map(read_secret).transpose()?;
    let tls_key = tls_key.map(read_tls_key).transpose()?;
    Ok(RemoteOptions { secret, tls_key, ..options_of_this_host(host_nqn) })
}

/// Attaches the members on other machines that are named, before their superblocks are read: only under the reservation are
/// these believed (F-I8). In order of the namespaces' identities, so that of two hosts that begin at once one loses at the
/// first member. Members whose machines do not answer are refused, or with `run` left out.
///
/// # Errors
/// Which cannot be attached, and why.
pub fn attach(members: &[PathBuf], run: bool) -> Result<Attachment, Failure> {
    let (mut problems, mut found, mut absent) = (Vec::new(), Vec::new(), Vec::new());
    for path in members {
        let Some(address) = address(path) else { continue };
        match look_at(&address, options()).map_err(|error| open_error(&address.to_string(), &error)) {
            Ok(looked_at) => found.push((looked_at.identity, path, address)),
            Err(error) if run && error.kind == OpenErrorKind::Gone => {
                tracing::warn!("{}: left out: {}", path.display(), error.reason);
                absent.push(path.clone());
            }
            Err(error) => problems.push(open_problem(path, &error)),
        }
    }
    found.sort_by_key(|(identity, ..)| *identity);
    let mut attached = Vec::new();
    for (_, path, address) in found.iter().filter(|_| problems.is_empty()) {
        match Attached::open(address, options()) {
            Ok(member) => attached.push(member),
            Err(error) => return Err(not_attached(vec![open_problem(path, &error)])),
        }
    }
    if problems.is_empty() { Ok(Attachment { attached, absent }) } else { Err(not_attached(problems)) }
}

/// Members on other machines that were named for an array.
pub struct Attachment {
    /// Those that this process has now.
    pub attached: Vec<Arc<Attached>>,
    /// Those whose machines do not answer.
    pub absent: Vec<PathBuf>,
}

fn not_attached(problems: Vec<Problem>) -> Failure {
    let failure = Failure::from_problems("members on other machines cannot be used", problems);
    failure.help("serve --run starts without members whose machines are down, and takes them back when they are there again")
}

/// The address that a member's path is, if it is one.
pub fn address(path: &Path) -> Option<RemoteAddress> {
    let text = path.to_str().filter(|text| RemoteAddress::is_one(text))?;
    RemoteAddress::parse(text).ok()
}

/// A path that means the same in another folder.
pub fn absolute(path: &Path) -> PathBuf {
    if address(path).is_some() {
        return path.to_path_buf();
    }
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

fn options_of_this_host(wanted: Option<&Nqn>) -> RemoteOptions {
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let locks = state_folder();
    // Processes that do not share their locks are not one host to each other: neither takes what the other has for a leftover.
    let place = locks.as_deref().unwrap_or(Path::new("")).display().to_string();
    let digest = HashFunction::Sha256.digest(format!("twill host\0{}\0{place}", machine.trim()).as_bytes());
    let own = || {
        let digest = HashFunction::Sha256.digest(format!("twill host nqn\0{}", machine.trim()).as_bytes());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        let uuid = uuid::Builder::from_custom_bytes(bytes).into_uuid();
        Nqn::new(&format!("nqn.2014-08.org.nvmexpress:uuid:{uuid}")).expect("a short name")
    };
    let configured = || Nqn::new(std::fs::read_to_string(HOST_NQN_FILE).ok()?.trim()).ok();
    let nqn = wanted.cloned().or_else(configured).unwrap_or_else(own);
    // A machine without an identity has none that it could recognise: then nothing of it is taken back by itself.
    let mut half: [u8; 8] = digest[..8].try_into().expect("8 bytes");
    if machine.trim().is_empty() {
        half.copy_from_slice(&uuid::Uuid::new_v4().as_bytes()[..8]);
    }
    RemoteOptions { locks, ..RemoteOptions::new(nqn, half) }
}

/// Reads the secret of DH-HMAC-CHAP in a file.
///
/// # Errors
/// It cannot be read, or is none.
pub fn read_secret(path: &Path) -> Result<Secret, Failure> {
    read_private(
        path,
        "secret of DH-HMAC-CHAP",
        "nvme gen-dhchap-key makes one, which begins with DHHC-1",
        Secret::parse,
    )
}

/// Reads the key of TLS in a file.
///
/// # Errors
/// It cannot be read, or is none.
pub fn read_tls_key(path: &Path) -> Result<ConfiguredPsk, Failure> {
    read_private(
        path,
        "key of TLS",
        "nvme gen-tls-key makes one, which begins with NVMeTLSkey-1",
        ConfiguredPsk::parse,
    )
}

/// Reads a file that no user but its owner should.
fn read_private<S>(
    path: &Path,
    what: &str,
    help: &str,
    parse: fn(&str) -> Result<S, KeyTextError>,
) -> Result<S, Failure> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::from_io(&format!("read the {what} in"), path, &error))?;
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.mode() & OTHERS_READ != 0) {
        let path = path.display();
        tracing::warn!("{path}: every user of this machine can read this {what}; chmod 600 {path}");
    }
    parse(text.trim()).map_err(|error| {
        Failure::new(ExitKind::Usage, format!("{}: no {what}: {error}", path.display())).help(help)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_stays_where_it_is() {
        let path = Path::new("nvme://192.0.2.1:4420/nqn.2026-11.test:a/1");
        assert_eq!(absolute(path), path);
        assert!(address(path).is_some() && address(Path::new("/dev/nvme0n1")).is_none());
        assert!(absolute(Path::new("m0")).is_absolute());
    }
}
