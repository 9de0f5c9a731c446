//! A client of the NBD protocol, as small as it can be: several requests on their way at once, in any order.

use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

pub const READ: u16 = 0;
pub const WRITE: u16 = 1;
pub const FLUSH: u16 = 3;
pub const FUA: u16 = 1;

/// Fixed newstyle, no zeroes after the handshake.
const CLIENT_FLAGS: u32 = 3;
const OPTION_EXPORT_NAME: u32 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// A connection. Errors of the socket are told: a server that was killed is what these tests are about.
pub struct Client {
    socket: UnixStream,
    pub size_bytes: u64,
}

impl Client {
    /// Connects to the default export.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let mut socket = UnixStream::connect(path)?;
        let mut hello = [0; 18];
        socket.read_exact(&mut hello)?;
        assert_eq!(&hello[..16], b"NBDMAGICIHAVEOPT");
        let mut answer = CLIENT_FLAGS.to_be_bytes().to_vec();
        answer.extend(b"IHAVEOPT");
        answer.extend(OPTION_EXPORT_NAME.to_be_bytes());
        answer.extend(0u32.to_be_bytes());
        socket.write_all(&answer)?;
        let mut export = [0; 10];
        socket.read_exact(&mut export)?;
        let size_bytes = u64::from_be_bytes(export[..8].try_into().expect("eight bytes"));
        Ok(Client { socket, size_bytes })
    }

    /// Sends a request; `data` only with a write.
    pub fn send(
        &mut self,
        (kind, flags): (u16, u16),
        id: u64,
        offset: u64,
        bytes: u32,
        data: &[u8],
    ) -> io::Result<()> {
        let mut request = REQUEST_MAGIC.to_be_bytes().to_vec();
        request.extend(flags.to_be_bytes());
        request.extend(kind.to_be_bytes());
        request.extend(id.to_be_bytes());
        request.extend(offset.to_be_bytes());
        request.extend(bytes.to_be_bytes());
        request.extend(data);
        self.socket.write_all(&request)
    }

    /// The next reply that comes: the request's number and the error, 0 for none. Not for reads.
    pub fn reply(&mut self) -> io::Result<(u64, u32)> {
        let mut reply = [0; 16];
        self.socket.read_exact(&mut reply)?;
        let word = |at: usize| u32::from_be_bytes(reply[at..at + 4].try_into().expect("four bytes"));
        assert_eq!(word(0), REPLY_MAGIC);
        Ok((u64::from(word(8)) << 32 | u64::from(word(12)), word(4)))
    }

    /// One write and its error.
    pub fn write(&mut self, offset: u64, data: &[u8], flags: u16) -> io::Result<u32> {
        let bytes = u32::try_from(data.len()).expect("a request");
        self.send((WRITE, flags), 0, offset, bytes, data)?;
        Ok(self.reply()?.1)
    }

    /// Makes what was written durable.
    pub fn flush(&mut self) -> io::Result<u32> {
        self.send((FLUSH, 0), 0, 0, 0, &[])?;
        Ok(self.reply()?.1)
    }

    /// One read.
    pub fn read(&mut self, offset: u64, bytes: u32) -> io::Result<Result<Vec<u8>, u32>> {
        self.send((READ, 0), 0, offset, bytes, &[])?;
        let (_, error) = self.reply()?;
        if error != 0 {
            return Ok(Err(error));
        }
        let mut data = vec![0; bytes as usize];
        self.socket.read_exact(&mut data)?;
        Ok(Ok(data))
    }
}
