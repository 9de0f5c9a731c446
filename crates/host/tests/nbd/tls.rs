//! Encrypted clients, byte by byte: what they may do to a connection, and what they cannot do to the server. The clients people
//! use are in `tests/clients/tls.sh`.

use crate::memory::Memory;
use crate::serving::{MIB, Serving};
use host::export::nbd::protocol::command;
use host::export::nbd::{ServerOptions, Tls, TlsFiles, TlsMode};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A server that requires TLS and the certificates of its clients.
struct Safe {
    serving: Serving,
    client: Arc<ClientConfig>,
    _folder: tempfile::TempDir,
}

impl Safe {
    fn start(options: ServerOptions) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let client = Arc::new(certificates(folder.path()));
        let files = TlsFiles { folder: folder.path().to_owned(), verify_peer: true };
        let tls = Tls::start(TlsMode::Require, &files).expect("certificates");
        let memory = Memory::new(64 * MIB, 512);
        memory.fill();
        let serving = Serving::with_tls(memory, options, Some(Arc::new(tls)));
        Safe { serving, client, _folder: folder }
    }

    /// A socket on which the handshake of TLS comes next.
    fn socket(&self) -> UnixStream {
        let mut stream = UnixStream::connect(&self.serving.socket).expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time limit");
        assert_eq!(received(&mut stream, 18), b"NBDMAGICIHAVEOPT\x00\x03");
        stream.write_all(b"\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x05\x00\x00\x00\x00").expect("sent");
        assert_eq!(received(&mut stream, 20)[12..16], [0, 0, 0, 1], "STARTTLS is accepted");
        stream
    }

    /// A client of "data" with simple replies.
    fn client<S: Read + Write>(&self, socket: S) -> Encrypted<S> {
        let name = ServerName::try_from("localhost").expect("a name");
        let connection = ClientConnection::new(Arc::clone(&self.client), name).expect("a client");
        let mut stream = StreamOwned::new(connection, socket);
        stream.write_all(b"IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x04data").expect("sent");
        assert_eq!(received(&mut stream, 10)[..8], (64 * MIB as u64).to_be_bytes());
        Encrypted { stream }
    }
}

/// Writes the server's files, and returns what a client needs.
fn certificates(folder: &Path) -> ClientConfig {
    let mut authority = CertificateParams::default();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().expect("a key"));
    let authority = authority.expect("an authority");
    let signed = |purpose: ExtendedKeyUsagePurpose| {
        let mut params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.extended_key_usages = vec![purpose];
        let key = KeyPair::generate().expect("a key");
        (params.signed_by(&key, &authority).expect("signed").pem(), key.serialize_pem())
    };
    let (server, key) = signed(ExtendedKeyUsagePurpose::ServerAuth);
    for (name, text) in
        [("ca-cert.pem", &authority.pem()), ("server-cert.pem", &server), ("server-key.pem", &key)]
    {
        std::fs::write(folder.join(name), text).expect("written");
    }
    let (client, key) = signed(ExtendedKeyUsagePurpose::ClientAuth);
    let mut roots = RootCertStore::empty();
    roots.add(authority.der().clone()).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_client_auth_cert(
            vec![CertificateDer::from_pem_slice(client.as_bytes()).expect("a certificate")],
            PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key"),
        )
        .expect("a key for its certificate")
}

struct Encrypted<S: Read + Write> {
    stream: StreamOwned<ClientConnection, S>,
}

impl<S: Read + Write> Encrypted<S> {
    fn request(&mut self, command: u16, cookie: u64, offset: u64, bytes: usize, payload: &[u8]) {
        let mut request = b"\x25\x60\x95\x13\x00\x00".to_vec();
        request.extend(command.to_be_bytes());
        request.extend(cookie.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(u32::try_from(bytes).expect("short").to_be_bytes());
        request.extend(payload);
        self.stream.write_all(&request).expect("the server reads");
    }

    fn reply(&mut self, cookie: u64) {
        let bytes = received(&mut self.stream, 16);
        assert_eq!(bytes, [b"\x67\x44\x66\x98\x00\x00\x00\x00".as_slice(), &cookie.to_be_bytes()].concat());
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        self.request(command::WRITE, offset, offset, data.len(), data);
        self.reply(offset);
    }

    fn read(&mut self, offset: u64, bytes: usize) -> Vec<u8> {
        self.request(command::READ, offset, offset, bytes, &[]);
        self.reply(offset);
        received(&mut self.stream, bytes)
    }
}

fn received(from: &mut impl Read, bytes: usize) -> Vec<u8> {
    let mut buffer = vec![0; bytes];
    from.read_exact(&mut buffer).expect("the server writes");
    buffer
}

/// A socket that takes and gives a few bytes at a time.
struct Slow(UnixStream);

impl Read for Slow {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let most = buffer.len().min(700);
        self.0.read(&mut buffer[..most])
    }
}

impl Write for Slow {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.write(&bytes[..bytes.len().min(5)])
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

#[test]
fn records_of_any_length_and_new_keys_in_between() {
    let safe = Safe::start(ServerOptions::default());
    let mut client = safe.client(safe.socket());
    let data: Vec<u8> = (0..8 * MIB).map(|at| (at / 512 + at) as u8).collect();
    client.write(0, &data);
    for round in 0..4 {
        client.stream.conn.refresh_traffic_keys().expect("TLS 1.3");
        // Many small requests at once, a whole record of them, are answered each.
        for cookie in 0..1000 {
            client.request(command::READ, cookie, cookie * 512, 512, &[]);
        }
        let mut seen = vec![false; 1000];
        for _ in 0..1000 {
            let head = received(&mut client.stream, 16);
            let cookie = u64::from_be_bytes(head[8..].try_into().expect("eight bytes")) as usize;
            assert!(!std::mem::replace(&mut seen[cookie], true), "one reply to each");
            assert!(received(&mut client.stream, 512) == data[cookie * 512..][..512], "round {round}");
        }
    }
    assert!(client.read(0, data.len()) == data);
    assert!(safe.serving.memory.contents()[..data.len()] == data[..]);
    assert!(safe.serving.server.status().connections[0].encrypted);
    // A goodbye is answered by TLS's own.
    client.request(command::DISC, 0, 0, 0, &[]);
    assert_eq!(client.stream.read(&mut [0]).expect("close_notify before the end"), 0);
    safe.serving.wait_until_idle();
}

#[test]
fn bytes_in_whatever_pieces() {
    let safe = Safe::start(ServerOptions::default());
    let mut client = safe.client(Slow(safe.socket()));
    let data: Vec<u8> = (0..100_000 / 512 * 512).map(|at| (at * 7) as u8).collect();
    client.write(1024, &data);
    assert!(client.read(1024, data.len()) == data);
}

#[test]
fn a_client_that_stops_in_the_middle_leaves_nothing() {
    let safe = Safe::start(ServerOptions::default());
    let mut client = safe.client(safe.socket());
    // The head of a write, and a part of its payload.
    client.request(command::WRITE, 1, 0, MIB, &[1; 100_000]);
    drop(client);
    let client = safe.client(safe.socket());
    let mut socket = client.stream.sock;
    socket.write_all(&[23, 3, 3, 0x40, 0, 1, 2, 3]).expect("the beginning of a record");
    drop(socket);
    safe.serving.wait_until_idle();
}

/// What a server says before it ends the connection.
fn ending(mut socket: UnixStream) -> Vec<u8> {
    let mut all = Vec::new();
    match socket.read_to_end(&mut all) {
        Ok(_) => all,
        Err(error) if error.kind() == ErrorKind::ConnectionReset => all,
        Err(error) => panic!("the connection stays: {error}"),
    }
}

#[test]
fn what_is_no_tls_ends_the_connection() {
    let safe = Safe::start(ServerOptions::default());
    let junk: [&[u8]; 4] = [
        b"IHAVEOPT\x00\x00\x00\x01\x00\x00\x00\x04data",
        &[0x16, 3, 1, 0xff, 0xff, 1, 0, 0, 0],
        &[0; 70_000],
        &[0x16, 3, 1, 0, 5, 1, 0xff, 0xff, 0xff, 0],
    ];
    for bytes in junk {
        let mut socket = safe.socket();
        // It may end before it has read all.
        let _ = socket.write_all(bytes);
        let _ = socket.shutdown(std::net::Shutdown::Write);
        let said = ending(socket);
        assert!(said.is_empty() || said[0] == 21, "an alert or nothing, never an export: {said:?}");
    }
    // A record that was changed on its way.
    let client = safe.client(safe.socket());
    let mut socket = client.stream.sock;
    socket.write_all(&[&[23, 3, 3, 0, 64][..], &[0; 64]].concat()).expect("sent");
    assert_eq!(ending(socket).first(), Some(&23), "an alert, encrypted");
    let mut client = safe.client(safe.socket());
    client.read(0, 4096);
}

#[test]
fn handshakes_that_do_not_end_are_ended() {
    let limit = Duration::from_millis(500);
    let safe = Safe::start(ServerOptions {
        handshake_limit: limit,
        connections_max: 64,
        ..ServerOptions::default()
    });
    let since = Instant::now();
    let silent: Vec<UnixStream> = (0..20).map(|_| safe.socket()).collect();
    let mut trickles = safe.socket();
    let dribble = [0x16, 3, 1, 0x40, 0];
    while trickles.write_all(&dribble[..1]).is_ok() {
        assert!(since.elapsed() < Duration::from_secs(10), "a slow handshake goes on for ever");
        std::thread::sleep(Duration::from_millis(20));
    }
    for socket in silent {
        assert!(ending(socket).is_empty());
    }
    assert!(since.elapsed() >= limit);
    safe.serving.wait_until_idle();
    safe.client(safe.socket()).read(0, 4096);
}
