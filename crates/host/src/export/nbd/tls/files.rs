//! What a server proves itself with, in the files that nbdkit and QEMU read too: `server-cert.pem` (its certificate, and those
//! between it and the authority), `server-key.pem`, and to verify clients `ca-cert.pem` and, if there, `ca-crl.pem`.
//!
//! The files are looked at for each connection, so that a renewed certificate needs no restart. Files that make no sense, as
//! between the renewal of the certificate and that of its key, leave what was read before in force.

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

const AUTHORITY: &str = "ca-cert.pem";
const REVOKED: &str = "ca-crl.pem";
const CERTIFICATE: &str = "server-cert.pem";
const KEY: &str = "server-key.pem";

/// The longest file that is read: thousands of certificates.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Where a server's certificates are, and what clients need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The folder.
    pub folder: PathBuf,
    /// Clients need a certificate of the authority in `ca-cert.pem`.
    pub verify_peer: bool,
}

/// A file that is no use.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct TlsError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong, in words. No part of a key is among them.
    pub reason: String,
    /// Whether it is not there, may not be read, or makes no sense.
    pub kind: ErrorKind,
}

/// What was read, and of which files.
pub(super) struct Credentials {
    files: TlsFiles,
    config: Arc<ServerConfig>,
    /// The state of the files of `config`, or of files that made no sense since.
    seen: FilesState,
}

/// Device, inode, size and time of change of each file that is there.
type FilesState = [Option<(u64, u64, u64, i64, i64)>; 4];

impl Credentials {
    /// Reads the files.
    ///
    /// # Errors
    /// The first file that is no use.
    pub fn read(files: &TlsFiles) -> Result<Self, TlsError> {
        let seen = files.state();
        Ok(Credentials { config: Arc::new(files.config()?), files: files.clone(), seen })
    }

    /// What counts for a connection that begins now.
    pub fn current(&mut self) -> Arc<ServerConfig> {
        let state = self.files.state();
        if state != self.seen {
            self.seen = state;
            match self.files.config() {
                Ok(config) => {
                    self.config = Arc::new(config);
                    tracing::info!(folder = %self.files.folder.display(), "the certificates of TLS are read again");
                }
                Err(error) => {
                    tracing::warn!("TLS goes on with the certificates that were read before: {error}");
                }
            }
        }
        Arc::clone(&self.config)
    }
}

impl TlsFiles {
    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    fn state(&self) -> FilesState {
        [AUTHORITY, REVOKED, CERTIFICATE, KEY].map(|name| {
            let found = fs::metadata(self.path(name)).ok()?;
            Some((found.dev(), found.ino(), found.size(), found.mtime(), found.mtime_nsec()))
        })
    }

    fn config(&self) -> Result<ServerConfig, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder =
            builder.with_safe_default_protocol_versions().expect("ring has what each version needs");
        let certificates = self.certificates(CERTIFICATE)?;
        let key = self.key()?;
        let builder = builder.with_client_cert_verifier(self.verifier(provider)?);
        let mut config = builder.with_single_cert(certificates, key).map_err(|error| {
            let reason = format!("it cannot be used with {CERTIFICATE}: {error}");
            TlsError { path: self.path(KEY), reason, kind: ErrorKind::InvalidData }
        })?;
        // Every connection proves itself anew: what was revoked since would otherwise come back with an old session.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(config)
    }

    fn verifier(
        &self,
        provider: Arc<rustls::crypto::CryptoProvider>,
    ) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
        if !self.verify_peer {
            return Ok(WebPkiClientVerifier::no_client_auth());
        }
        let path = self.path(AUTHORITY);
        let useless = |reason: String| TlsError { path: path.clone(), reason, kind: ErrorKind::InvalidData };
        let mut roots = RootCertStore::empty();
        for certificate in self.certificates(AUTHORITY)? {
            roots.add(certificate).map_err(|error| useless(error.to_string()))?;
        }
        // As GnuTLS has it: a certificate counts as revoked where a list says so, and only there.
        let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .with_crls(self.revoked()?)
            .allow_unknown_revocation_status();
        builder.build().map_err(|error| useless(error.to_string()))
    }

    fn certificates(&self, name: &str) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let path = self.path(name);
        let text = read(&path)?;
        let all: Result<Vec<_>, PemError> = CertificateDer::pem_slice_iter(&text).collect();
        match all {
            Ok(all) if !all.is_empty() => Ok(all),
            Ok(_) => Err(useless(&path, "there is no certificate in it (BEGIN CERTIFICATE)")),
            Err(error) => Err(useless(&path, &format!("it is not in PEM: {error}"))),
        }
    }

    fn revoked(&self) -> Result<Vec<CertificateRevocationListDer<'static>>, TlsError> {
        let path = self.path(REVOKED);
        let text = match read(&path) {
            Err(error) if error.kind == ErrorKind::NotFound => return Ok(Vec::new()),
            other => other?,
        };
        let all: Result<Vec<_>, PemError> = CertificateRevocationListDer::pem_slice_iter(&text).collect();
        all.map_err(|error| useless(&path, &format!("it is not in PEM: {error}")))
    }

    fn key(&self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let path = self.path(KEY);
        let text = read(&path)?;
        if fs::metadata(&path).is_ok_and(|found| found.mode() & 0o004 != 0) {
            tracing::warn!("{}: every user can read this private key: chmod 600 it", path.display());
        }
        let is_locked = text.windows(9).any(|window| window == b"ENCRYPTED");
        PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
            PemError::NoItemsFound if is_locked => {
                useless(&path, "the key has a password, which a server cannot type: store it without one")
            }
            PemError::NoItemsFound => useless(&path, "there is no private key in it (BEGIN PRIVATE KEY)"),
            _ => useless(&path, "it is not in PEM"),
        })
    }
}

fn useless(path: &Path, reason: &str) -> TlsError {
    TlsError { path: path.to_owned(), reason: reason.to_owned(), kind: ErrorKind::InvalidData }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    let cannot =
        |error: &io::Error| TlsError { path: path.to_owned(), reason: error.to_string(), kind: error.kind() };
    let found = fs::metadata(path).map_err(|error| cannot(&error))?;
    if !found.is_file() || found.len() > FILE_BYTES_MAX {
        return Err(useless(path, "it is no file of certificates or keys"));
    }
    fs::read(path).map_err(|error| cannot(&error))
}
