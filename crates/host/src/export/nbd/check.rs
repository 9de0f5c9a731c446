//! From the bytes of a request to a command that the volume can be given: parsing, and every rule of the protocol on
//! flags, lengths, bounds and alignment. All of it is pure.

use super::protocol::{self, Errno, Malformed, command, command_flag};
use engine::limits::REQUEST_BYTES_MAX;

/// First word of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// Bytes of a request without its payload.
pub const REQUEST_BYTES: usize = 28;

/// A request as it came, nothing checked but its magic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// [`command_flag`] bits, or unknown ones.
    pub flags: u16,
    /// One of [`command`], or unknown.
    pub command: u16,
    /// What the reply must carry, opaque.
    pub cookie: u64,
    /// Start in bytes.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub bytes: u32,
}

impl Request {
    /// Length of the payload that follows the request on the wire.
    pub fn payload_bytes(&self) -> u32 {
        if self.command == command::WRITE { self.bytes } else { 0 }
    }
}

/// Parses a request. `None` means that more bytes are needed; a wrong magic is an error from its first four bytes on.
pub fn parse_request(mut input: &[u8]) -> Result<Option<Request>, Malformed> {
    if let Some(magic) = protocol::take_u32(&mut { input })
        && magic != REQUEST_MAGIC
    {
        return Err(Malformed::RequestMagic(magic));
    }
    let Some(head) = protocol::take::<REQUEST_BYTES>(&mut input) else { return Ok(None) };
    let mut fields = &head[4..];
    let mut parse = || {
        Some(Request {
            flags: protocol::take_u16(&mut fields)?,
            command: protocol::take_u16(&mut fields)?,
            cookie: protocol::take_u64(&mut fields)?,
            offset_bytes: protocol::take_u64(&mut fields)?,
            bytes: protocol::take_u32(&mut fields)?,
        })
    };
    Ok(parse())
}

/// What a request is checked against; fixed for the life of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Size of the export in bytes.
    pub size_bytes: u64,
    /// Offsets and lengths are multiples of this.
    pub block_bytes: u32,
    /// No writes.
    pub read_only: bool,
    /// Zeroes are written faster than data.
    pub fast_zero: bool,
    /// Structured replies were negotiated.
    pub structured: bool,
    /// `base:allocation` was negotiated.
    pub allocation: bool,
}

/// A request that makes sense: inside the export, aligned, permitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read; the reply carries the data in one piece.
    Read,
    /// Write the payload.
    Write {
        /// Durable before the reply.
        fua: bool,
    },
    /// Make acknowledged writes durable.
    Flush,
    /// A range is no longer needed.
    Trim {
        /// Durable before the reply.
        fua: bool,
    },
    /// Make a range read as zeroes.
    WriteZeroes {
        /// The space may be freed.
        may_unmap: bool,
        /// Durable before the reply.
        fua: bool,
    },
    /// A range will be read soon: accepted and passed over.
    Cache,
    /// Tell what is allocated.
    BlockStatus,
    /// Goodbye.
    Disconnect,
}

/// A request that is answered with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// For the program.
    pub errno: Errno,
    /// For the person.
    pub message: &'static str,
}

const fn refuse<T>(errno: Errno, message: &'static str) -> Result<T, Refusal> {
    Err(Refusal { errno, message })
}

/// Checks a request. An error is the reply; the payload of a refused write is still on the wire.
pub fn check(request: &Request, rules: &Rules) -> Result<Command, Refusal> {
    let flags = request.flags;
    let fua = flags & command_flag::FUA != 0;
    let (checked, flags_allowed) = match request.command {
        command::READ => (Command::Read, if rules.structured { command_flag::DF } else { 0 }),
        command::WRITE => (Command::Write { fua }, 0),
        command::DISC => return Ok(Command::Disconnect),
        command::FLUSH => (Command::Flush, 0),
        command::TRIM => (Command::Trim { fua }, 0),
        command::CACHE => (Command::Cache, 0),
        command::WRITE_ZEROES => {
            let may_unmap = flags & command_flag::NO_HOLE == 0;
            (Command::WriteZeroes { may_unmap, fua }, command_flag::NO_HOLE | command_flag::FAST_ZERO)
        }
        command::BLOCK_STATUS => (Command::BlockStatus, command_flag::REQ_ONE),
        _ => return refuse(Errno::Invalid, "unknown command"),
    };
    // FUA is allowed on every command, also where it means nothing.
    if flags & !(flags_allowed | command_flag::FUA) != 0 {
        return refuse(Errno::Invalid, "a flag that this command does not have");
    }
    check_permission(checked, rules)?;
    check_range(request, checked, rules)?;
    if flags & command_flag::FAST_ZERO != 0 && !rules.fast_zero {
        return refuse(Errno::NotSupported, "zeroes are not faster than data here");
    }
    Ok(checked)
}

fn check_permission(checked: Command, rules: &Rules) -> Result<(), Refusal> {
    match checked {
        Command::Write { .. } | Command::Trim { .. } | Command::WriteZeroes { .. } if rules.read_only => {
            refuse(Errno::Perm, "the export is read-only")
        }
        Command::BlockStatus if !rules.allocation => {
            refuse(Errno::Invalid, "no metadata context was negotiated")
        }
        _ => Ok(()),
    }
}

fn check_range(request: &Request, checked: Command, rules: &Rules) -> Result<(), Refusal> {
    let block = u64::from(rules.block_bytes);
    let end = request.offset_bytes.checked_add(u64::from(request.bytes));
    let payload = matches!(checked, Command::Read | Command::Write { .. });
    if checked == Command::Flush {
        let reserved = request.offset_bytes != 0 || request.bytes != 0;
        return if reserved { refuse(Errno::Invalid, "a flush has no offset and no length") } else { Ok(()) };
    }
    if payload && request.bytes > REQUEST_BYTES_MAX {
        // The text keeps EOVERFLOW for reads with DF and wants EINVAL for the rest.
        let df = checked == Command::Read && request.flags & command_flag::DF != 0;
        return refuse(if df { Errno::Overflow } else { Errno::Invalid }, "longer than 32 MiB");
    }
    if end.is_none_or(|end| end > rules.size_bytes) {
        let grows = matches!(checked, Command::Write { .. } | Command::WriteZeroes { .. });
        return refuse(if grows { Errno::NoSpace } else { Errno::Invalid }, "outside the export");
    }
    if !request.offset_bytes.is_multiple_of(block) || !u64::from(request.bytes).is_multiple_of(block) {
        return refuse(Errno::Invalid, "not a multiple of the least block size");
    }
    if checked == Command::BlockStatus && request.bytes == 0 {
        return refuse(Errno::Invalid, "an empty range has no status");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use Errno::{Invalid, NoSpace, NotSupported, Overflow, Perm};
    use command::{BLOCK_STATUS, CACHE, DISC, FLUSH, READ, TRIM, WRITE, WRITE_ZEROES};
    use command_flag::{DF, FAST_ZERO, FUA, NO_HOLE, REQ_ONE};
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const RULES: Rules = Rules {
        size_bytes: 64 * MIB,
        block_bytes: 512,
        read_only: false,
        fast_zero: false,
        structured: true,
        allocation: true,
    };

    fn verdict(rules: &Rules, command: u16, flags: u16, offset: u64, bytes: u64) -> Result<Command, Errno> {
        let bytes = u32::try_from(bytes).expect("a length on the wire");
        let request = Request { flags, command, cookie: 7, offset_bytes: offset, bytes };
        check(&request, rules).map_err(|refusal| refusal.errno)
    }

    #[test]
    fn commands_inside_the_export_pass() {
        let table = [
            (READ, 0, Command::Read),
            (READ, DF, Command::Read),
            (READ, FUA, Command::Read),
            (WRITE, 0, Command::Write { fua: false }),
            (WRITE, FUA, Command::Write { fua: true }),
            (TRIM, FUA, Command::Trim { fua: true }),
            (WRITE_ZEROES, 0, Command::WriteZeroes { may_unmap: true, fua: false }),
            (WRITE_ZEROES, NO_HOLE | FUA, Command::WriteZeroes { may_unmap: false, fua: true }),
            (CACHE, 0, Command::Cache),
            (BLOCK_STATUS, REQ_ONE, Command::BlockStatus),
        ];
        for (command, flags, expected) in table {
            assert_eq!(verdict(&RULES, command, flags, 512, 1024), Ok(expected), "{command} {flags:#x}");
            assert_eq!(
                verdict(&RULES, command, flags, 64 * MIB - 512, 512),
                Ok(expected),
                "{command} at the end"
            );
        }
        assert_eq!(verdict(&RULES, FLUSH, 0, 0, 0), Ok(Command::Flush));
        assert_eq!(verdict(&RULES, DISC, 0xffff, u64::MAX, 77), Ok(Command::Disconnect));
        assert_eq!(verdict(&RULES, READ, 0, 0, 32 * MIB), Ok(Command::Read));
        assert_eq!(
            verdict(&RULES, TRIM, 0, 0, 64 * MIB),
            Ok(Command::Trim { fua: false }),
            "no payload, no limit"
        );
    }

    #[test]
    fn a_request_that_the_text_forbids_is_refused_with_its_error() {
        let table = [
            (99, 0, 0, 512, Invalid),
            (READ, NO_HOLE, 0, 512, Invalid),
            (READ, 1 << 9, 0, 512, Invalid),
            (WRITE, DF, 0, 512, Invalid),
            (WRITE_ZEROES, REQ_ONE, 0, 512, Invalid),
            (FLUSH, 0, 512, 0, Invalid),
            (FLUSH, 0, 0, 512, Invalid),
            (READ, 0, 0, 32 * MIB + 512, Invalid),
            (READ, DF, 0, 32 * MIB + 512, Overflow),
            (WRITE, 0, 0, 32 * MIB + 512, Invalid),
            (READ, 0, 64 * MIB, 512, Invalid),
            (READ, 0, u64::MAX - 511, 512, Invalid),
            (WRITE, 0, 64 * MIB - 512, 1024, NoSpace),
            (WRITE_ZEROES, 0, u64::MAX - 511, 1024, NoSpace),
            (TRIM, 0, 64 * MIB, 512, Invalid),
            (CACHE, 0, 64 * MIB, 512, Invalid),
            (READ, 0, 1, 512, Invalid),
            (WRITE, 0, 0, 511, Invalid),
            (BLOCK_STATUS, 0, 0, 0, Invalid),
            (WRITE_ZEROES, FAST_ZERO, 0, 512, NotSupported),
        ];
        for (command, flags, offset, bytes, errno) in table {
            assert_eq!(
                verdict(&RULES, command, flags, offset, bytes),
                Err(errno),
                "{command} {offset}+{bytes}"
            );
        }
    }

    #[test]
    fn the_rules_of_the_connection_decide() {
        let read_only = Rules { read_only: true, ..RULES };
        for command in [WRITE, TRIM, WRITE_ZEROES] {
            assert_eq!(verdict(&read_only, command, 0, 0, 512), Err(Perm));
        }
        assert_eq!(verdict(&read_only, FLUSH, 0, 0, 0), Ok(Command::Flush));
        let simple = Rules { structured: false, allocation: false, ..RULES };
        assert_eq!(verdict(&simple, READ, DF, 0, 512), Err(Invalid));
        assert_eq!(verdict(&simple, BLOCK_STATUS, 0, 0, 512), Err(Invalid));
        let fast = Rules { fast_zero: true, ..RULES };
        let zeroes = Command::WriteZeroes { may_unmap: true, fua: false };
        assert_eq!(verdict(&fast, WRITE_ZEROES, FAST_ZERO, 0, 512), Ok(zeroes));
    }

    fn request_bytes(request: &Request) -> Vec<u8> {
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend(request.flags.to_be_bytes());
        bytes.extend(request.command.to_be_bytes());
        bytes.extend(request.cookie.to_be_bytes());
        bytes.extend(request.offset_bytes.to_be_bytes());
        bytes.extend(request.bytes.to_be_bytes());
        bytes
    }

    #[test]
    fn request_by_its_bytes() {
        let request = Request { flags: 1, command: 1, cookie: 0xdead_beef, offset_bytes: 4096, bytes: 512 };
        let bytes = request_bytes(&request);
        assert_eq!(bytes.len(), REQUEST_BYTES);
        assert_eq!(parse_request(&bytes), Ok(Some(request)));
        assert_eq!(parse_request(&bytes[..27]), Ok(None));
        assert_eq!(parse_request(&[1, 2, 3, 4]), Err(Malformed::RequestMagic(0x0102_0304)));
    }

    proptest! {
        #[test]
        fn every_request_is_parsed_back(
            flags: u16, command: u16, cookie: u64, offset_bytes: u64, bytes: u32, tail in 0..40usize
        ) {
            let request = Request { flags, command, cookie, offset_bytes, bytes };
            let mut wire = request_bytes(&request);
            wire.resize(REQUEST_BYTES + tail, 0xaa);
            prop_assert_eq!(parse_request(&wire), Ok(Some(request)));
        }

        #[test]
        fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_request(&bytes);
        }
    }
}
