//! rustls as a wire under TLS wants it.

use rustls::ServerConnection;
use std::io::{self, ErrorKind, IoSlice, Read as _, Write as _};

use crate::tls::wire::Records;

impl Records for ServerConnection {
    fn take_sealed(&mut self, mut sealed: &[u8]) -> io::Result<usize> {
        let bytes = sealed.len();
        while !sealed.is_empty() {
            if self.read_tls(&mut sealed)? == 0 {
                return Ok(bytes); // after the client's goodbye nothing counts
            }
            let state = self.process_new_packets();
            let state = state.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
            if state.plaintext_bytes_to_read() > 0 {
                break;
            }
        }
        Ok(bytes - sealed.len())
    }

    fn end_sealed(&mut self) -> io::Result<()> {
        self.read_tls(&mut io::empty()).map(drop)
    }

    fn read_plain(&mut self, plain: &mut [u8]) -> io::Result<usize> {
        self.reader().read(plain)
    }

    /// The connection's buffer has a limit of its own.
    fn write_plain(&mut self, plain: &[IoSlice<'_>], _limit: usize) -> io::Result<usize> {
        self.writer().write_vectored(plain)
    }

    fn give_sealed(&mut self, mut sealed: &mut [u8]) -> io::Result<usize> {
        let room = sealed.len();
        while self.wants_write() && !sealed.is_empty() {
            self.write_tls(&mut sealed)?;
        }
        Ok(room - sealed.len())
    }

    fn say_goodbye(&mut self) {
        self.send_close_notify();
    }

    fn describe(&self) -> String {
        let suite = self.negotiated_cipher_suite().map(|suite| suite.suite());
        format!("{:?} {suite:?}", self.protocol_version())
    }
}
