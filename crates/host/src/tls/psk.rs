//! One connection of TLS 1.3 with a key that both ends share beforehand, without I/O: what was received goes in, what is to be
//! sent comes out.
//!
//! Invariants:
//! - A connection counts as made only if its key was used. An end without the key has at most a certificate to offer, and none
//!   is trusted.

use nvme_tcp::psk::TlsPsk;
use openssl::error::ErrorStack;
use openssl::ssl::{Error, ErrorCode, ShutdownState, Ssl, SslContext, SslStream};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::sync::{Arc, OnceLock};

use super::key_owner::{FindKey, PskPeer};
use super::openssl_keys;
use super::wire::Records;

/// Plain bytes of the longest record.
const RECORD_BYTES: usize = 16 << 10;

/// One end of a connection.
pub(crate) struct PskConnection {
    stream: SslStream<Pipe>,
    is_client: bool,
    /// Plain bytes on their way into one record.
    staged: Vec<u8>,
}

/// Both directions, in memory.
#[derive(Default)]
struct Pipe {
    received: VecDeque<u8>,
    has_ended: bool,
    to_send: VecDeque<u8>,
}

impl Read for Pipe {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        if self.received.is_empty() && !self.has_ended {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.received.read(bytes)
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.to_send.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What both contexts of this process are made of, once: a client's and a server's.
static CONTEXTS: OnceLock<(SslContext, SslContext)> = OnceLock::new();

fn contexts() -> io::Result<&'static (SslContext, SslContext)> {
    if CONTEXTS.get().is_none() {
        let made =
            openssl_keys::client_context().and_then(|client| Ok((client, openssl_keys::server_context()?)));
        let _first = CONTEXTS.set(made.map_err(|error| unusable(&error))?);
    }
    CONTEXTS.get().ok_or_else(|| io::Error::other("OpenSSL has no context"))
}

fn unusable(error: &ErrorStack) -> io::Error {
    io::Error::other(format!("this machine's OpenSSL has no TLS 1.3 with AES-GCM: {error}"))
}

impl PskConnection {
    /// A client's end that offers `key`. Its first message is to be sent after the first [`PskConnection::advance`].
    pub fn client(key: TlsPsk) -> io::Result<Self> {
        let ssl = openssl_keys::client(&contexts()?.0, key);
        PskConnection::new(ssl, true)
    }

    /// A server's end, which asks `find` for the key of each identity that the client offers.
    pub fn server(find: Arc<FindKey>) -> io::Result<Self> {
        let ssl = openssl_keys::server(&contexts()?.1, find);
        PskConnection::new(ssl, false)
    }

    fn new(ssl: Result<Ssl, ErrorStack>, is_client: bool) -> io::Result<Self> {
        let stream = ssl.and_then(|ssl| SslStream::new(ssl, Pipe::default()));
        let stream = stream.map_err(|error| unusable(&error))?;
        Ok(PskConnection { stream, is_client, staged: Vec::new() })
    }

    /// Goes on with the handshake, as far as what was received allows. Returns whether it is over.
    ///
    /// # Errors
    /// `PermissionDenied`: the other end has refused the key, or has none. `UnexpectedEof`: it has left. Else it broke a rule. The
    /// alert that tells it is among what is to be sent.
    pub fn advance(&mut self) -> io::Result<bool> {
        let step = if self.is_client { self.stream.connect() } else { self.stream.accept() };
        match step {
            Ok(()) if self.stream.ssl().session_reused() => Ok(true),
            Ok(()) => Err(io::Error::new(ErrorKind::PermissionDenied, "no key was used")),
            Err(error) if error.code() == ErrorCode::WANT_READ => Ok(false),
            Err(error) => Err(refusal(&error)),
        }
    }

    /// Whose key it is, once the handshake of a server is over.
    pub fn peer(&self) -> Option<&PskPeer> {
        openssl_keys::owner(self.stream.ssl())
    }

    /// All that is to be sent.
    pub fn take_to_send(&mut self) -> Vec<u8> {
        self.stream.get_mut().to_send.drain(..).collect()
    }

    fn seal(&mut self) -> io::Result<()> {
        if self.staged.is_empty() {
            return Ok(());
        }
        // Memory takes all of it.
        let written = self.stream.ssl_write(&self.staged).map_err(|error| refusal(&error))?;
        self.staged.drain(..written);
        Ok(())
    }
}

/// What OpenSSL says, in the words of an operator where the key may be meant.
fn refusal(error: &Error) -> io::Error {
    if let Some(error) = error.io_error() {
        return io::Error::new(error.kind(), error.to_string());
    }
    let Some(stack) = error.ssl_error().filter(|stack| !stack.errors().is_empty()) else {
        let kind = ErrorKind::UnexpectedEof;
        return match error.code() {
            ErrorCode::SYSCALL | ErrorCode::ZERO_RETURN => io::Error::new(kind, "the connection was closed"),
            _ => io::Error::new(ErrorKind::InvalidData, error.to_string()),
        };
    };
    let reason =
        stack.errors().first().and_then(openssl::error::Error::reason).unwrap_or("no reason is said");
    // How OpenSSL names the end of a stream within a handshake or a record.
    if reason.contains("unexpected eof") {
        return io::Error::new(ErrorKind::UnexpectedEof, "the connection was closed");
    }
    // OpenSSL's word for a proof that is shorter than the key's hash function makes it.
    if reason == "bad extension" {
        let reason = "its proof is no digest of the key's hash function: GnuTLS, which tlshd uses, knows SHA-256 alone; use a key of nvme gen-tls-key --hmac 1";
        return io::Error::new(ErrorKind::PermissionDenied, reason);
    }
    let is_of_key = ["alert", "binder", "psk", "certificate", "callback failed", "no suitable", "no shared"];
    let kind = match is_of_key.iter().any(|word| reason.contains(word)) {
        true => ErrorKind::PermissionDenied,
        false => ErrorKind::InvalidData,
    };
    io::Error::new(kind, reason.to_owned())
}

impl Records for PskConnection {
    fn take_sealed(&mut self, sealed: &[u8]) -> io::Result<usize> {
        self.stream.get_mut().received.extend(sealed);
        Ok(sealed.len())
    }

    fn end_sealed(&mut self) -> io::Result<()> {
        self.stream.get_mut().has_ended = true;
        Ok(())
    }

    fn read_plain(&mut self, plain: &mut [u8]) -> io::Result<usize> {
        match self.stream.ssl_read(plain) {
            Ok(count) => Ok(count),
            Err(error) if error.code() == ErrorCode::WANT_READ => Err(ErrorKind::WouldBlock.into()),
            Err(error) if error.code() == ErrorCode::ZERO_RETURN => Ok(0),
            Err(error) => Err(refusal(&error)),
        }
    }

    fn write_plain(&mut self, plain: &[IoSlice<'_>], limit: usize) -> io::Result<usize> {
        let mut taken = 0;
        for slice in plain {
            let mut rest = &slice[..slice.len().min(limit - taken)];
            taken += rest.len();
            while !rest.is_empty() {
                let now = rest.len().min(RECORD_BYTES - self.staged.len());
                self.staged.extend_from_slice(&rest[..now]);
                rest = &rest[now..];
                if self.staged.len() == RECORD_BYTES {
                    self.seal()?;
                }
            }
        }
        self.seal()?;
        Ok(taken)
    }

    fn give_sealed(&mut self, sealed: &mut [u8]) -> io::Result<usize> {
        self.stream.get_mut().to_send.read(sealed)
    }

    fn say_goodbye(&mut self) {
        if !self.stream.get_shutdown().contains(ShutdownState::SENT) {
            // What it has to say is in memory now; the other end's goodbye is not waited for.
            let _ = self.stream.shutdown();
        }
    }

    fn describe(&self) -> String {
        let cipher = self.stream.ssl().current_cipher().map_or("no cipher", |cipher| cipher.name());
        format!("{} {cipher}", self.stream.ssl().version_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::openssl::pkey::PKey;
    use ::openssl::ssl::{SslMethod, SslVerifyMode};
    use ::openssl::x509::X509;
    use nvme_tcp::HashFunction;
    use nvme_tcp::names::Nqn;
    use nvme_tcp::psk::{ConfiguredPsk, Derivation, IdentityVersion};

    fn name(name: &str) -> Nqn {
        Nqn::new(&format!("nqn.2026-11.test:{name}")).expect("a name")
    }

    fn key(function: HashFunction, first: u8) -> TlsPsk {
        let bytes = if function == HashFunction::Sha256 { 32 } else { 48 };
        let key = ConfiguredPsk::new(Some(function), &vec![first; bytes]).expect("a key");
        let (version, derivation) = (IdentityVersion::V1, Derivation::Rfc8446);
        key.tls_psk(name("h").as_str(), name("s").as_str(), version, derivation).expect("short names")
    }

    /// A server that knows these keys.
    fn server(keys: Vec<TlsPsk>) -> PskConnection {
        let find = move |identity: &[u8]| {
            let key = keys.iter().find(|key| key.identity.as_bytes() == identity)?;
            Some((key.clone(), PskPeer { host: name("h"), subsystem: name("s") }))
        };
        PskConnection::server(Arc::new(find)).expect("a connection")
    }

    /// Hands what one end has to say to the other, `piece` bytes at a time, until neither goes on. How each ends.
    fn talk(
        client: &mut PskConnection,
        server: &mut PskConnection,
        piece: usize,
    ) -> [Result<bool, ErrorKind>; 2] {
        let mut ends = [Ok(false), Ok(false)];
        loop {
            let mut said = 0;
            for at in 0..2 {
                let (one, other) =
                    if at == 0 { (&mut *client, &mut *server) } else { (&mut *server, &mut *client) };
                if ends[at] == Ok(false) {
                    ends[at] = one.advance().map_err(|error| error.kind());
                }
                let words = one.take_to_send();
                said += words.len();
                for words in words.chunks(piece) {
                    other.take_sealed(words).expect("memory");
                    if ends[1 - at] == Ok(false) {
                        ends[1 - at] = other.advance().map_err(|error| error.kind());
                    }
                }
            }
            if said == 0 {
                return ends;
            }
        }
    }

    fn read(connection: &mut PskConnection) -> Vec<u8> {
        let (mut all, mut bytes) = (Vec::new(), vec![0; 5000]);
        loop {
            match connection.read_plain(&mut bytes) {
                Ok(count) => all.extend_from_slice(&bytes[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return all,
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn keys_of_both_hash_functions_carry_data_both_ways() {
        for (function, cipher) in [
            (HashFunction::Sha256, "TLSv1.3 TLS_AES_128_GCM_SHA256"),
            (HashFunction::Sha384, "TLSv1.3 TLS_AES_256_GCM_SHA384"),
        ] {
            for piece in [1, 7, usize::MAX] {
                let mut client = PskConnection::client(key(function, 7)).expect("a connection");
                let mut server = server(vec![key(HashFunction::Sha384, 7), key(HashFunction::Sha256, 7)]);
                assert_eq!(talk(&mut client, &mut server, piece), [Ok(true), Ok(true)]);
                assert_eq!((client.describe(), server.describe()), (cipher.to_owned(), cipher.to_owned()));
                let peer = PskPeer { host: name("h"), subsystem: name("s") };
                assert_eq!((server.peer(), client.peer()), (Some(&peer), None));
                let data: Vec<u8> = (0..100_000).map(|at| (at % 251) as u8).collect();
                for (from, to) in [(0, 1), (1, 0)] {
                    let ends = [&mut client, &mut server];
                    let slices = [IoSlice::new(&data[..10]), IoSlice::new(&[]), IoSlice::new(&data[10..])];
                    assert_eq!(ends[from].write_plain(&slices, 99_999).expect("sealed"), 99_999);
                    let sealed = ends[from].take_to_send();
                    assert!(!sealed.windows(16).any(|words| words == &data[..16]));
                    ends[to].take_sealed(&sealed).expect("memory");
                    assert_eq!(read(ends[to]), data[..99_999]);
                }
            }
        }
    }

    #[test]
    fn the_end_is_told_apart_from_a_stream_that_is_cut() {
        let made = || {
            let mut client = PskConnection::client(key(HashFunction::Sha256, 7)).expect("a connection");
            let mut server = server(vec![key(HashFunction::Sha256, 7)]);
            assert_eq!(talk(&mut client, &mut server, usize::MAX), [Ok(true), Ok(true)]);
            (client, server)
        };
        let (mut client, mut server) = made();
        client.say_goodbye();
        server.take_sealed(&client.take_to_send()).expect("memory");
        assert_eq!(server.read_plain(&mut [0; 10]).expect("the end"), 0);
        let (mut client, mut server) = made();
        client.write_plain(&[IoSlice::new(b"one")], 3).expect("sealed");
        let sealed = client.take_to_send();
        server.take_sealed(&sealed[..sealed.len() - 1]).expect("memory");
        server.end_sealed().expect("the end");
        let error = server.read_plain(&mut [0; 10]).expect_err("a record is cut");
        assert_eq!(error.kind(), ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_record_that_was_changed_is_refused() {
        let mut client = PskConnection::client(key(HashFunction::Sha384, 7)).expect("a connection");
        let mut server = server(vec![key(HashFunction::Sha384, 7)]);
        assert_eq!(talk(&mut client, &mut server, usize::MAX), [Ok(true), Ok(true)]);
        client.write_plain(&[IoSlice::new(b"one")], 3).expect("sealed");
        let mut sealed = client.take_to_send();
        *sealed.last_mut().expect("a record") ^= 1;
        server.take_sealed(&sealed).expect("memory");
        assert!(server.read_plain(&mut [0; 10]).is_err());
    }

    #[test]
    fn a_wrong_key_and_an_unknown_identity_are_refused_at_both_ends() {
        let refused = [Err(ErrorKind::PermissionDenied), Err(ErrorKind::PermissionDenied)];
        let mut client = PskConnection::client(key(HashFunction::Sha256, 7)).expect("a connection");
        assert_eq!(talk(&mut client, &mut server(vec![key(HashFunction::Sha256, 8)]), usize::MAX), refused);
        assert_eq!(
            talk(
                &mut PskConnection::client(key(HashFunction::Sha384, 7)).expect("one"),
                &mut server(Vec::new()),
                1
            ),
            refused
        );
        // The same identity with other bytes: the binder shows it.
        let mut forged = key(HashFunction::Sha256, 8);
        forged.identity = key(HashFunction::Sha256, 7).identity;
        let mut client = PskConnection::client(forged).expect("a connection");
        assert_eq!(talk(&mut client, &mut server(vec![key(HashFunction::Sha256, 7)]), usize::MAX), refused);
    }

    #[test]
    fn what_is_no_tls_is_refused() {
        for bytes in [&[0; 128][..], b"\x16\x03\x01\x00\x05hello", b"GET / HTTP/1.1\r\n\r\n"] {
            let mut server = server(vec![key(HashFunction::Sha256, 7)]);
            server.take_sealed(bytes).expect("memory");
            assert!(server.advance().is_err(), "{bytes:?}");
        }
        let mut server = server(Vec::new());
        server.end_sealed().expect("the end");
        assert_eq!(server.advance().expect_err("the end").kind(), ErrorKind::UnexpectedEof);
    }

    /// One that stands in the way can make itself a certificate, but has no key.
    #[test]
    fn a_server_with_a_certificate_instead_of_the_key_is_refused() {
        let made = rcgen::generate_simple_self_signed(vec!["target".to_owned()]).expect("a certificate");
        let mut context = SslContext::builder(SslMethod::tls_server()).expect("a context");
        context.set_certificate(&X509::from_der(made.cert.der()).expect("a certificate")).expect("taken");
        let private = PKey::private_key_from_der(&made.signing_key.serialize_der()).expect("a key");
        context.set_private_key(&private).expect("taken");
        context.set_verify(SslVerifyMode::NONE);
        let ssl = Ssl::new(&context.build()).expect("a connection");
        let mut impostor = PskConnection::new(Ok(ssl), false).expect("a connection");
        let mut client = PskConnection::client(key(HashFunction::Sha256, 7)).expect("a connection");
        let [at_client, _] = talk(&mut client, &mut impostor, usize::MAX);
        assert_eq!(at_client, Err(ErrorKind::PermissionDenied));
    }
}
