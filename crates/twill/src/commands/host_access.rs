//! Which NVMe/TCP hosts may connect, from the command line.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use host::export::nvme_tcp::HostKeys;
use nvme_tcp::auth::Secret;
use nvme_tcp::names::Nqn;
use nvme_tcp::psk::ConfiguredPsk;
use nvme_tcp::subsystem::AllowList;

use crate::arguments::{HostArguments, HostSecret, SecretSource};
use crate::exit::ExitKind;
use crate::failure::Failure;
use crate::remote;
use crate::serving::hosts::HostAccess;

/// Who may connect at these addresses. `peers` may connect as other targets, and are hosts only if they are named as such.
///
/// # Errors
/// No host may, or plain TCP would go beyond this machine.
pub fn host_access(
    arguments: &HostArguments,
    peers: &[Nqn],
    listen: &[SocketAddr],
) -> Result<HostAccess, Failure> {
    let keys = keys(arguments)?;
    let allow = allow_list(arguments, peers, &keys)?;
    check_addresses(arguments, peers, &keys, listen)?;
    if arguments.allow_any {
        tracing::warn!("--allow-any: every host that reaches the address reads and writes what is served");
    }
    let HostArguments { reservations_new, require_digests: digests_required, .. } = *arguments;
    Ok(HostAccess { allow, keys, reservations_new, digests_required })
}

fn keys(arguments: &HostArguments) -> Result<HostKeys, Failure> {
    let (secrets, keys) = (&arguments.dhchap_key, &arguments.tls_key);
    Ok(HostKeys {
        hosts: by_host(secrets, "secrets: --dhchap-key", read_secret)?,
        controller: arguments.dhchap_ctrl_key.as_ref().map(read_secret).transpose()?,
        tls: by_host(keys, "keys: --tls-key", read_tls_key)?,
    })
}

fn by_host<S>(
    named: &[HostSecret<S>],
    what: &str,
    read: fn(&SecretSource<S>) -> Result<S, Failure>,
) -> Result<BTreeMap<Nqn, S>, Failure> {
    let mut secrets = BTreeMap::new();
    for HostSecret { host, secret } in named {
        if secrets.insert(host.clone(), read(secret)?).is_some() {
            return Err(Failure::new(ExitKind::Usage, format!("{host} has two {what} names it twice")));
        }
    }
    Ok(secrets)
}

fn read_secret(source: &SecretSource) -> Result<Secret, Failure> {
    match source {
        SecretSource::Text(secret) => Ok(secret.clone()),
        SecretSource::File(path) => remote::read_secret(path),
    }
}

fn read_tls_key(source: &SecretSource<ConfiguredPsk>) -> Result<ConfiguredPsk, Failure> {
    match source {
        SecretSource::Text(key) => Ok(key.clone()),
        SecretSource::File(path) => remote::read_tls_key(path),
    }
}

fn allow_list(arguments: &HostArguments, peers: &[Nqn], keys: &HostKeys) -> Result<AllowList, Failure> {
    if arguments.allow_any {
        return Ok(AllowList::Any);
    }
    let keyed = keys.hosts.keys().chain(keys.tls.keys()).filter(|host| !peers.contains(host));
    let named: BTreeSet<_> = arguments.allow_host.iter().chain(keyed).cloned().collect();
    if named.is_empty() {
        let message = "no NVMe/TCP host may connect: none is named";
        let help = "--allow-host NQN names one; a Linux host has its name in /etc/nvme/hostnqn";
        return Err(Failure::new(ExitKind::Usage, message).help(help));
    }
    Ok(AllowList::Named(named))
}

/// A server is reached from beyond this machine only if every host and peer uses TLS or authenticates, or if that was asked for
/// by name.
fn check_addresses(
    arguments: &HostArguments,
    peers: &[Nqn],
    keys: &HostKeys,
    listen: &[SocketAddr],
) -> Result<(), Failure> {
    let is_keyed = |host: &Nqn| keys.hosts.contains_key(host) || keys.tls.contains_key(host);
    let all_prove = !arguments.allow_any && arguments.allow_host.iter().chain(peers).all(is_keyed);
    let beyond = listen.iter().find(|address| !address.ip().is_loopback());
    match beyond {
        Some(address) if !arguments.insecure && !all_prove => {
            let message = format!(
                "{address} is reached by other machines: anybody on the way reads and changes what is sent, and any machine may call itself by an allowed name"
            );
            let help = "--tls-key for every host that may connect has it encrypt, --dhchap-key has it prove its name; --insecure serves there as it is";
            Err(Failure::new(ExitKind::Usage, message).help(help))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const TEXT: &str = "DHHC-1:00:AQIDBAUGBwgJCgsMDQ4PEBESExQVFhcYGRobHB0eHyAl7OaH:";

    fn host(name: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.test:{name}")).expect("a name")
    }

    fn keyed(name: &str) -> HostSecret {
        let secret = Secret::parse(TEXT).expect("a secret");
        HostSecret { host: host(name), secret: SecretSource::Text(secret) }
    }

    fn tls_keyed(name: &str) -> HostSecret<ConfiguredPsk> {
        let key = ConfiguredPsk::new(None, &[7; 32]).expect("a key");
        HostSecret { host: host(name), secret: SecretSource::Text(key) }
    }

    fn kind(arguments: &HostArguments, listen: &str) -> Result<AllowList, ExitKind> {
        let listen = [listen.parse().expect("an address")];
        host_access(arguments, &[], &listen).map(|access| access.allow).map_err(|failure| failure.kind)
    }

    #[test]
    fn no_host_is_served_before_it_is_named_and_none_beyond_this_machine_that_proves_nothing() {
        const HERE: &str = "127.0.0.1:4420";
        const BEYOND: &str = "0.0.0.0:4420";
        let named = |names: &[&str]| AllowList::Named(names.iter().map(|name| host(name)).collect());
        let nothing = HostArguments::default();
        assert_eq!(kind(&nothing, HERE), Err(ExitKind::Usage));
        let a = HostArguments { allow_host: vec![host("a")], ..nothing.clone() };
        assert_eq!(kind(&a, HERE), Ok(named(&["a"])));
        assert_eq!(kind(&a, BEYOND), Err(ExitKind::Usage));
        let insecure = HostArguments { insecure: true, ..a.clone() };
        assert_eq!(kind(&insecure, BEYOND), Ok(named(&["a"])));
        let b_proves = HostArguments { dhchap_key: vec![keyed("b")], ..a.clone() };
        assert_eq!(kind(&b_proves, HERE), Ok(named(&["a", "b"])));
        assert_eq!(kind(&b_proves, BEYOND), Err(ExitKind::Usage), "a proves nothing");
        let both_prove = HostArguments { dhchap_key: vec![keyed("a"), keyed("b")], ..a.clone() };
        assert_eq!(kind(&both_prove, BEYOND), Ok(named(&["a", "b"])));
        let any = HostArguments { allow_any: true, dhchap_key: vec![keyed("a")], ..nothing };
        assert_eq!(kind(&any, BEYOND), Err(ExitKind::Usage));
        assert_eq!(kind(&any, HERE), Ok(AllowList::Any));
        let twice = HostArguments { dhchap_key: vec![keyed("a"), keyed("a")], ..a.clone() };
        assert_eq!(kind(&twice, HERE), Err(ExitKind::Usage));
        let b_encrypts = HostArguments { tls_key: vec![tls_keyed("b")], ..a.clone() };
        assert_eq!(kind(&b_encrypts, HERE), Ok(named(&["a", "b"])));
        assert_eq!(kind(&b_encrypts, BEYOND), Err(ExitKind::Usage), "a does not");
        let one_each = HostArguments { dhchap_key: vec![keyed("a")], ..b_encrypts };
        assert_eq!(kind(&one_each, BEYOND), Ok(named(&["a", "b"])));
        let twice = HostArguments { tls_key: vec![tls_keyed("a"), tls_keyed("a")], ..a };
        assert_eq!(kind(&twice, HERE), Err(ExitKind::Usage));
    }

    #[test]
    fn a_peer_is_no_host_because_it_has_a_key() {
        let listen = ["0.0.0.0:4420".parse().expect("an address")];
        let keys = vec![keyed("a"), keyed("peer")];
        let arguments = HostArguments { dhchap_key: keys, ..HostArguments::default() };
        let allowed = |arguments: &HostArguments, peers: &[Nqn]| {
            host_access(arguments, peers, &listen).map(|access| access.allow).map_err(|failure| failure.kind)
        };
        assert_eq!(allowed(&arguments, &[host("peer")]), Ok(AllowList::Named([host("a")].into())));
        assert_eq!(allowed(&arguments, &[host("other")]), Err(ExitKind::Usage), "that one proves nothing");
        let both = HostArguments { allow_host: vec![host("peer")], ..arguments };
        let named = AllowList::Named([host("a"), host("peer")].into());
        assert_eq!(allowed(&both, &[host("peer")]), Ok(named));
    }

    #[test]
    fn a_secret_is_read_from_its_file_and_never_printed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        let read = || read_secret(&SecretSource::File(path.clone()));
        assert_eq!(read().map_err(|failure| failure.kind), Err(ExitKind::NotFound));
        fs::write(&path, format!("{TEXT}\n")).expect("written");
        assert_eq!(read().expect("a secret"), Secret::parse(TEXT).expect("the same"));
        fs::write(&path, &TEXT[..30]).expect("written");
        let message = read().expect_err("it is cut short").to_string();
        assert!(!message.contains("AQID"), "{message}");
    }
}
