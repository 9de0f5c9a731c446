//! A client of NBD over a unix socket: the handshake, and one request at a time with simple replies.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail};

const READ: u16 = 0;
const WRITE: u16 = 1;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;

/// A connection to an export.
pub struct Connection {
    pub stream: UnixStream,
    pub bytes: u64,
    /// The transmission flags that the server sent.
    pub flags: u16,
}

impl Connection {
    /// The handshake, fixed newstyle, up to the transmission.
    pub fn open(socket: &Path, export: &str) -> Result<Self> {
        const OPTION_MAGIC: &[u8; 8] = b"IHAVEOPT";
        const GO: u32 = 7;
        const ACKNOWLEDGED: u32 = 1;
        const INFO: u32 = 3;
        let mut stream = UnixStream::connect(socket).with_context(|| socket.display().to_string())?;
        let greeting: [u8; 18] = read(&mut stream)?;
        if &greeting[..8] != b"NBDMAGIC" || &greeting[8..16] != OPTION_MAGIC {
            bail!("{}: no NBD server", socket.display());
        }
        let name_bytes = u32::try_from(export.len())?;
        let mut words = 3u32.to_be_bytes().to_vec(); // fixed newstyle, no zeroes
        words.extend(OPTION_MAGIC);
        words.extend(GO.to_be_bytes());
        words.extend((name_bytes + 6).to_be_bytes());
        words.extend(name_bytes.to_be_bytes());
        words.extend(export.as_bytes());
        words.extend([0; 2]); // no information is asked for
        stream.write_all(&words)?;
        let (mut bytes, mut flags) = (0, 0);
        loop {
            let header: [u8; 20] = read(&mut stream)?;
            let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
            let mut data = vec![0; word(16).min(1 << 16) as usize];
            stream.read_exact(&mut data)?;
            match (word(12), data.as_slice()) {
                (ACKNOWLEDGED, _) => return Ok(Self { stream, bytes, flags }),
                (INFO, [0, 0, rest @ ..]) if rest.len() == 10 => {
                    bytes = u64::from_be_bytes(rest[..8].try_into().expect("eight bytes"));
                    flags = u16::from_be_bytes(rest[8..].try_into().expect("two bytes"));
                }
                (INFO, _) => {}
                (refusal, words) => {
                    bail!("{export}: refused with {refusal:#x} {}", String::from_utf8_lossy(words))
                }
            }
        }
    }

    /// Fills `data` from this place of the export.
    pub fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<()> {
        self.request(READ, offset, data.len())?;
        self.reply()?;
        self.stream.read_exact(data).context("the server hung up")
    }

    /// Writes `data` to this place of the export.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        self.request(WRITE, offset, data.len())?;
        self.stream.write_all(data)?;
        self.reply()
    }

    fn request(&mut self, command: u16, offset: u64, bytes: usize) -> Result<()> {
        let mut words = REQUEST_MAGIC.to_be_bytes().to_vec();
        words.extend([0; 2]); // no flags
        words.extend(command.to_be_bytes());
        words.extend([0; 8]); // one request at a time needs no cookie
        words.extend(offset.to_be_bytes());
        words.extend(u32::try_from(bytes)?.to_be_bytes());
        Ok(self.stream.write_all(&words)?)
    }

    fn reply(&mut self) -> Result<()> {
        let header: [u8; 16] = read(&mut self.stream)?;
        let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().expect("four bytes"));
        if word(0) != REPLY_MAGIC {
            bail!("the server's reply is none of NBD");
        }
        match word(4) {
            0 => Ok(()),
            error => bail!("the server answered with error {error}"),
        }
    }
}

fn read<const N: usize>(stream: &mut UnixStream) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).context("the server hung up")?;
    Ok(bytes)
}
