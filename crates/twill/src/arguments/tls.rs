//! Options of `serve` for clients that encrypt.

use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, ValueEnum};
use host::export::nbd::{Tls, TlsFiles, TlsMode};

use crate::exit::ExitKind;
use crate::failure::Failure;

/// Whether NBD clients encrypt, and with what.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct TlsArguments {
    /// Serve NBD over TLS with the certificates in this folder: server-cert.pem and server-key.pem, and with --tls-verify-peer
    /// ca-cert.pem and ca-crl.pem if there. Renewed files count from the next connection on.
    #[arg(long, alias = "tls-certificates", value_name = "FOLDER")]
    pub tls_certs: Option<PathBuf>,
    /// Whether NBD clients must encrypt (require), may (on) or cannot (off) [default: require with --tls-certs, else off].
    #[arg(long, value_name = "off|on|require")]
    pub tls: Option<TlsChoice>,
    /// NBD clients that encrypt need a certificate that the authority in ca-cert.pem has signed.
    #[arg(long, requires = "tls_certs")]
    pub tls_verify_peer: bool,
}

/// Whether NBD clients encrypt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TlsChoice {
    /// They cannot.
    Off,
    /// They may.
    On,
    /// They must.
    Require,
}

impl TlsArguments {
    /// Reads the certificates.
    ///
    /// # Errors
    /// Options that do not go together; the file that is no use.
    pub fn read(&self) -> Result<Option<Arc<Tls>>, Failure> {
        let mode = match (self.tls, &self.tls_certs) {
            (Some(TlsChoice::Off), _) | (None, None) => return Ok(None),
            (Some(TlsChoice::On), _) => TlsMode::On,
            (Some(TlsChoice::Require) | None, _) => TlsMode::Require,
        };
        let Some(folder) = &self.tls_certs else {
            return Err(Failure::new(ExitKind::Usage, "--tls needs the folder of the certificates")
                .help("add --tls-certs FOLDER"));
        };
        let files = TlsFiles { folder: folder.clone(), verify_peer: self.tls_verify_peer };
        let tls = Tls::start(mode, &files).map_err(|error| {
            Failure::new(ExitKind::from(error.kind), format!("TLS: {error}"))
                .help("nothing was written; put server-cert.pem and server-key.pem there, and ca-cert.pem for --tls-verify-peer")
        })?;
        Ok(Some(Arc::new(tls)))
    }

    /// Why it matters who reaches an address of the array. None: only clients with a certificate are served.
    pub fn openness(&self) -> Option<&'static str> {
        match (self.tls, &self.tls_certs, self.tls_verify_peer) {
            (Some(TlsChoice::Off), ..) | (None, None, _) => Some("NBD has no passwords"),
            (Some(TlsChoice::On), ..) => Some("clients need not use TLS (--tls on)"),
            (_, _, false) => Some("clients need no certificate (no --tls-verify-peer)"),
            _ => None,
        }
    }
}
