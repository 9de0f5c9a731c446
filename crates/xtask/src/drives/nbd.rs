//! As much of an NBD server as the kernel's client and nbd-client need (the protocol's `doc/proto.md`): fixed newstyle,
//! simple replies.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use anyhow::{Result, bail};
use parking_lot::RwLock;

use super::cache::{BLOCK_BYTES, Drive};

const FIXED_NEWSTYLE_NO_ZEROES: u16 = 0b11;
const OPT_EXPORT_NAME: u32 = 1;
const OPT_ABORT: u32 = 2;
const OPT_INFO: u32 = 6;
const OPT_GO: u32 = 7;
/// Flags, flush, FUA, trim, zeroes, several connections see each other's writes.
const EXPORT_FLAGS: u16 = 1 | 1 << 2 | 1 << 3 | 1 << 5 | 1 << 6 | 1 << 8;
const COMMAND_FUA: u16 = 1;
const EINVAL: u32 = 22;
/// Larger requests are no kernel's.
const REQUEST_BYTES_MAX: usize = 32 << 20;

/// Serves one connection until its client leaves. Each request shares `power` with others.
pub fn serve(drives: &[Drive], power: &RwLock<()>, mut stream: UnixStream) -> Result<()> {
    let Some(drive) = negotiate(drives, &mut stream)? else { return Ok(()) };
    loop {
        let head: [u8; 28] = take(&mut stream)?;
        if u32::from_be_bytes(head[..4].try_into()?) != 0x2560_9513 {
            bail!("no request");
        }
        let (flags, command) = (number(&head[4..6]), number(&head[6..8]));
        let (offset, bytes) =
            (usize::try_from(number(&head[16..24]))?, usize::try_from(number(&head[24..28]))?);
        if bytes > REQUEST_BYTES_MAX {
            bail!("a request of {bytes} bytes");
        }
        let data = if command == 1 { take_bytes(&mut stream, bytes)? } else { Vec::new() };
        let fua = flags as u16 & COMMAND_FUA != 0;
        let answer = {
            let _power = power.read();
            match command {
                0 => drive.read(offset, bytes),
                1 => drive.write(offset, data, fua).map(|()| Vec::new()),
                2 => return Ok(()),
                3 => {
                    drive.flush();
                    Some(Vec::new())
                }
                4 | 6 => drive.write(offset, vec![0; bytes], fua).map(|()| Vec::new()),
                _ => None,
            }
        };
        let error = if answer.is_some() { 0 } else { EINVAL };
        let mut reply = Vec::from(0x6744_6698_u32.to_be_bytes());
        reply.extend(error.to_be_bytes());
        reply.extend(&head[8..16]);
        reply.extend(answer.unwrap_or_default());
        stream.write_all(&reply)?;
    }
}

/// The drive that the client wants; `None` if it wants to leave.
fn negotiate<'a>(drives: &'a [Drive], stream: &mut UnixStream) -> Result<Option<&'a Drive>> {
    stream.write_all(b"NBDMAGICIHAVEOPT")?;
    stream.write_all(&FIXED_NEWSTYLE_NO_ZEROES.to_be_bytes())?;
    let no_zeroes = take::<4>(stream)?[3] & 2 != 0;
    loop {
        let head: [u8; 16] = take(stream)?;
        let option = u32::from_be_bytes(head[8..12].try_into()?);
        let data = take_bytes(stream, usize::try_from(number(&head[12..16]))?.min(REQUEST_BYTES_MAX))?;
        let name = if option == OPT_EXPORT_NAME { &data[..] } else { data.get(4..).unwrap_or_default() };
        let drive = find(drives, name);
        match (option, drive) {
            (OPT_EXPORT_NAME, Some(drive)) => {
                stream.write_all(&(drive.bytes() as u64).to_be_bytes())?;
                stream.write_all(&EXPORT_FLAGS.to_be_bytes())?;
                if !no_zeroes {
                    stream.write_all(&[0; 124])?;
                }
                return Ok(Some(drive));
            }
            (OPT_EXPORT_NAME, None) => bail!("no such drive"),
            (OPT_ABORT, _) => {
                reply(stream, option, Reply::Ack, &[])?;
                return Ok(None);
            }
            (OPT_INFO | OPT_GO, Some(drive)) => {
                let mut export = vec![0, 0];
                export.extend((drive.bytes() as u64).to_be_bytes());
                export.extend(EXPORT_FLAGS.to_be_bytes());
                reply(stream, option, Reply::Info, &export)?;
                let mut sizes = vec![0, 3];
                for bytes in [BLOCK_BYTES, BLOCK_BYTES, REQUEST_BYTES_MAX] {
                    sizes.extend(u32::try_from(bytes)?.to_be_bytes());
                }
                reply(stream, option, Reply::Info, &sizes)?;
                reply(stream, option, Reply::Ack, &[])?;
                if option == OPT_GO {
                    return Ok(Some(drive));
                }
            }
            (OPT_INFO | OPT_GO, None) => reply(stream, option, Reply::Unknown, &[])?,
            _ => reply(stream, option, Reply::Unsupported, &[])?,
        }
    }
}

/// `drive3`, alone or at the start of what an option carries.
fn find<'a>(drives: &'a [Drive], name: &[u8]) -> Option<&'a Drive> {
    let digits = name.strip_prefix(b"drive")?.iter().take_while(|byte| byte.is_ascii_digit());
    let number = digits.fold(None, |number: Option<usize>, digit| {
        Some(number.unwrap_or(0).saturating_mul(10).saturating_add(usize::from(digit - b'0')))
    })?;
    drives.get(number)
}

/// What a reply to an option says.
#[derive(Clone, Copy)]
#[repr(u32)]
enum Reply {
    Ack = 1,
    Info = 3,
    Unsupported = 0x8000_0001,
    Unknown = 0x8000_0006,
}

fn reply(stream: &mut UnixStream, option: u32, kind: Reply, data: &[u8]) -> Result<()> {
    const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
    let mut bytes = Vec::from(REPLY_MAGIC.to_be_bytes());
    for number in [option, kind as u32, u32::try_from(data.len())?] {
        bytes.extend(number.to_be_bytes());
    }
    bytes.extend(data);
    Ok(stream.write_all(&bytes)?)
}

fn take<const N: usize>(stream: &mut UnixStream) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn take_bytes(stream: &mut UnixStream, count: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::nbd_client::Connection;

    #[test]
    fn a_client_reads_what_it_wrote_and_is_refused_beyond_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nbd");
        let listener = UnixListener::bind(&socket).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (stream, _) = listener.accept().unwrap();
                let _hung_up = serve(&[Drive::new(4 * BLOCK_BYTES)], &RwLock::new(()), stream);
            });
            let mut client = Connection::open(&socket, "drive0").unwrap();
            assert_eq!(client.bytes, 4 * BLOCK_BYTES as u64);
            let (written, mut read) = ([7; BLOCK_BYTES], [1; 2 * BLOCK_BYTES]);
            client.write(2 * BLOCK_BYTES as u64, &written).unwrap();
            client.read(BLOCK_BYTES as u64, &mut read).unwrap();
            assert_eq!(read, [[0; BLOCK_BYTES], written].concat()[..]);
            client.write(4 * BLOCK_BYTES as u64, &written).unwrap_err();
        });
    }
}
