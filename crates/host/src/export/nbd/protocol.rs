//! The bytes of the NBD protocol: constants, options and replies, parsed and encoded. Requests are in [`check`](super::check).
//!
//! Every function here is pure and total: any bytes give a value or an error, nothing panics, and nothing allocates
//! more than the input is long. All numbers are big-endian. Names follow the protocol text
//! (NetworkBlockDevice/nbd, `doc/proto.md`) without its `NBD_` prefix.

use engine::limits::REQUEST_BYTES_MAX;

/// First word of the server's greeting, `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting and first of every option, `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of every reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// Bytes of the server's greeting.
pub const GREETING_BYTES: usize = 18;
/// Bytes of the flags with which a client answers the greeting.
pub const CLIENT_FLAGS_BYTES: usize = 4;
/// Bytes before an option's data.
pub const OPTION_HEADER_BYTES: usize = 16;
/// Bytes of a simple reply without data.
pub const SIMPLE_REPLY_BYTES: usize = 16;
/// Bytes of a structured reply's chunk before its payload.
pub const CHUNK_HEADER_BYTES: usize = 20;

/// Longest string the protocol allows: names, descriptions, error messages.
pub const STRING_BYTES_MAX: usize = 4096;

/// Flags of the greeting and of the client's answer.
pub mod handshake_flag {
    /// Server and client speak the fixed newstyle negotiation.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The 124 zero bytes after an `EXPORT_NAME` are left out.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Options of the negotiation.
pub mod option {
    /// Choose an export and start, without a way to refuse.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Begin to encrypt.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and start.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Types of a reply to an option.
pub mod option_reply {
    /// Done.
    pub const ACK: u32 = 1;
    /// An export.
    pub const SERVER: u32 = 2;
    /// A piece of information on an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option is not known.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The option's data make no sense.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// `STARTTLS` comes first.
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    /// No such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The server is stopping.
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    /// The option's data are too long.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Kinds of information on an export.
pub mod info {
    /// Size and transmission flags; always sent.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// A line for a person.
    pub const DESCRIPTION: u16 = 2;
    /// Least, preferred and largest size of a request.
    pub const BLOCK_SIZE: u16 = 3;
}

/// What an export can do, sent when the transmission starts.
pub mod transmission_flag {
    /// The other flags mean something.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// No writes.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `FLUSH` works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// `TRIM` works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `WRITE_ZEROES` works.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag works; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers what was acknowledged on all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `CACHE` works.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The `FAST_ZERO` flag works.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Commands of the transmission.
pub mod command {
    /// Read.
    pub const READ: u16 = 0;
    /// Write; the payload follows the request.
    pub const WRITE: u16 = 1;
    /// Goodbye; there is no reply.
    pub const DISC: u16 = 2;
    /// Make acknowledged writes durable.
    pub const FLUSH: u16 = 3;
    /// A range is no longer needed.
    pub const TRIM: u16 = 4;
    /// A range will be read soon.
    pub const CACHE: u16 = 5;
    /// Make a range read as zeroes.
    pub const WRITE_ZEROES: u16 = 6;
    /// Tell what is allocated.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of a request.
pub mod command_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// Zeroes must stay allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// The data come in one chunk.
    pub const DF: u16 = 1 << 2;
    /// One extent is enough.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail rather than be slower than writes.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Flag of the last chunk of a structured reply.
pub const CHUNK_DONE: u16 = 1;

/// Types of a structured reply's chunk.
pub mod chunk {
    /// Nothing more to say.
    pub const NONE: u16 = 0;
    /// Data with their offset.
    pub const OFFSET_DATA: u16 = 1;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error with a message.
    pub const ERROR: u16 = (1 << 15) + 1;
}

/// Name of the one metadata context served.
pub const ALLOCATION_CONTEXT: &str = "base:allocation";
/// Number of [`ALLOCATION_CONTEXT`] on the wire.
pub const ALLOCATION_CONTEXT_ID: u32 = 1;

/// Error numbers of replies. They are the protocol's, the same on every system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Errno {
    /// Not permitted: the export is read-only.
    Perm = 1,
    /// The volume failed.
    Io = 5,
    /// Not enough memory.
    NoMemory = 12,
    /// The request makes no sense.
    Invalid = 22,
    /// Outside the export, or no space below it.
    NoSpace = 28,
    /// Too long for one chunk.
    Overflow = 75,
    /// Not possible, or not fast.
    NotSupported = 95,
    /// The server is stopping.
    Shutdown = 108,
}

/// Bytes that do not follow the protocol. The connection cannot be saved: where the next message starts is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The client asked for handshake flags that do not exist.
    #[error("client flags {0:#x} contain unknown ones")]
    ClientFlags(u32),
    /// An option does not begin with its magic.
    #[error("option magic {0:#x}")]
    OptionMagic(u64),
    /// An option longer than anything sane.
    #[error("option {option} with {bytes} bytes of data")]
    OptionLength {
        /// The option.
        option: u32,
        /// Its claimed length.
        bytes: u32,
    },
    /// The client asked for an export that does not exist in a way that leaves no other answer.
    #[error("unknown export in EXPORT_NAME")]
    ExportName,
    /// The client asked for an export, in a way that leaves no other answer, before it encrypts.
    #[error("EXPORT_NAME before STARTTLS, and this server requires TLS")]
    NotEncrypted,
    /// A client without fixed newstyle sent anything but `EXPORT_NAME`.
    #[error("option {0} from a client without fixed newstyle")]
    OldClient(u32),
    /// A request does not begin with its magic.
    #[error("request magic {0:#x}")]
    RequestMagic(u32),
    /// A write with a payload longer than anything sane.
    #[error("write with {0} bytes of payload")]
    PayloadLength(u32),
}

/// Cuts the first `N` bytes off `input`.
pub(super) fn take<'a, const N: usize>(input: &mut &'a [u8]) -> Option<&'a [u8; N]> {
    let (head, rest) = input.split_first_chunk::<N>()?;
    *input = rest;
    Some(head)
}

pub(super) fn take_u16(input: &mut &[u8]) -> Option<u16> {
    take(input).map(|bytes| u16::from_be_bytes(*bytes))
}

pub(super) fn take_u32(input: &mut &[u8]) -> Option<u32> {
    take(input).map(|bytes| u32::from_be_bytes(*bytes))
}

pub(super) fn take_u64(input: &mut &[u8]) -> Option<u64> {
    take(input).map(|bytes| u64::from_be_bytes(*bytes))
}

/// A string with its length in front.
fn take_string<'a>(input: &mut &'a [u8]) -> Result<&'a str, OptionFault> {
    let bytes = take_u32(input).ok_or(OptionFault::Invalid("cut short"))? as usize;
    if bytes > STRING_BYTES_MAX {
        return Err(OptionFault::TooBig("a string is longer than 4096 bytes"));
    }
    let (text, rest) = input.split_at_checked(bytes).ok_or(OptionFault::Invalid("a string is cut short"))?;
    *input = rest;
    std::str::from_utf8(text).map_err(|_| OptionFault::Invalid("a string is not UTF-8"))
}

/// The server's greeting: fixed newstyle, no zeroes.
pub fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[..8].copy_from_slice(&GREETING_MAGIC.to_be_bytes());
    bytes[8..16].copy_from_slice(&OPTION_MAGIC.to_be_bytes());
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    bytes[16..].copy_from_slice(&flags.to_be_bytes());
    bytes
}

/// What the client answered to the greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientFlags {
    /// It speaks fixed newstyle.
    pub fixed_newstyle: bool,
    /// It wants no padding after `EXPORT_NAME`.
    pub no_zeroes: bool,
}

/// Parses the client's flags. `None` means that more bytes are needed.
pub fn parse_client_flags(mut input: &[u8]) -> Result<Option<ClientFlags>, Malformed> {
    let Some(flags) = take_u32(&mut input) else { return Ok(None) };
    let (fixed, zeroes) = (u32::from(handshake_flag::FIXED_NEWSTYLE), u32::from(handshake_flag::NO_ZEROES));
    if flags & !(fixed | zeroes) != 0 {
        return Err(Malformed::ClientFlags(flags));
    }
    Ok(Some(ClientFlags { fixed_newstyle: flags & fixed != 0, no_zeroes: flags & zeroes != 0 }))
}

/// An option's header; `data_bytes` bytes follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OptionHeader {
    /// One of [`option`], or unknown.
    pub option: u32,
    /// Length of the data.
    pub data_bytes: u32,
}

/// Parses an option's header. `None` means that more bytes are needed.
pub fn parse_option_header(mut input: &[u8]) -> Result<Option<OptionHeader>, Malformed> {
    if let Some(magic) = take_u64(&mut { input })
        && magic != OPTION_MAGIC
    {
        return Err(Malformed::OptionMagic(magic));
    }
    let Some(head) = take::<OPTION_HEADER_BYTES>(&mut input) else { return Ok(None) };
    let mut fields = &head[8..];
    let (option, data_bytes) = (take_u32(&mut fields), take_u32(&mut fields));
    Ok(option.zip(data_bytes).map(|(option, data_bytes)| OptionHeader { option, data_bytes }))
}

/// Why an option's data are refused. The connection lives on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OptionFault {
    /// `ERR_INVALID`, with a reason.
    Invalid(&'static str),
    /// `ERR_TOO_BIG`, with a reason.
    TooBig(&'static str),
}

/// The data of `INFO` and `GO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InfoQuery<'a> {
    /// The export asked for; empty for the default one.
    pub name: &'a str,
    /// The client wants the canonical name.
    pub wants_name: bool,
    /// The client wants the description.
    pub wants_description: bool,
}

/// Parses the data of `INFO` and `GO`. Unknown kinds of information are passed over, as the protocol asks.
pub fn parse_info_query(mut data: &[u8]) -> Result<InfoQuery<'_>, OptionFault> {
    let name = take_string(&mut data)?;
    let count = take_u16(&mut data).ok_or(OptionFault::Invalid("cut short"))?;
    if data.len() != usize::from(count) * 2 {
        return Err(OptionFault::Invalid("the number of information requests does not match the length"));
    }
    let mut query = InfoQuery { name, wants_name: false, wants_description: false };
    while let Some(kind) = take_u16(&mut data) {
        query.wants_name |= kind == info::NAME;
        query.wants_description |= kind == info::DESCRIPTION;
    }
    Ok(query)
}

/// The data of `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextQuery<'a> {
    /// The export asked for.
    pub name: &'a str,
    /// There was no query at all: "all" for a list, "none" for a choice.
    pub empty: bool,
    /// `base:allocation` was named.
    pub allocation: bool,
    /// `base:` was named: every context of that space, in a list.
    pub base: bool,
}

/// Parses the data of the two metadata context options. Contexts of other name spaces are passed over.
pub fn parse_context_query(mut data: &[u8]) -> Result<ContextQuery<'_>, OptionFault> {
    let name = take_string(&mut data)?;
    let count = take_u32(&mut data).ok_or(OptionFault::Invalid("cut short"))?;
    let mut query = ContextQuery { name, empty: count == 0, allocation: false, base: false };
    for _ in 0..count {
        let text = take_string(&mut data)?;
        query.allocation |= text == ALLOCATION_CONTEXT;
        query.base |= text == "base:";
        if !text.contains(':') {
            return Err(OptionFault::Invalid("a metadata context needs a name space"));
        }
    }
    if !data.is_empty() {
        return Err(OptionFault::Invalid("bytes are left after the last query"));
    }
    Ok(query)
}

/// Appends a reply to an option.
pub fn push_option_reply(output: &mut Vec<u8>, option: u32, reply: u32, data: &[&[u8]]) {
    let bytes = data.iter().map(|part| part.len()).sum::<usize>();
    let bytes = u32::try_from(bytes).expect("replies are built from strings of at most 4096 bytes");
    output.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    output.extend_from_slice(&option.to_be_bytes());
    output.extend_from_slice(&reply.to_be_bytes());
    output.extend_from_slice(&bytes.to_be_bytes());
    data.iter().for_each(|part| output.extend_from_slice(part));
}

/// What a reply says; the data of a read follow its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Head {
    /// Success without data.
    Done,
    /// Success of a read: `bytes` bytes of data follow.
    Data {
        /// Where the read started.
        offset_bytes: u64,
        /// Its length.
        bytes: u32,
    },
    /// `bytes` bytes from the start of the request on are allocated.
    Allocated {
        /// Length of the one extent.
        bytes: u32,
    },
    /// The request was not done.
    Error {
        /// Why, for a program.
        errno: Errno,
        /// Why, for a person.
        message: std::borrow::Cow<'static, str>,
    },
}

/// Longest error message sent.
const MESSAGE_BYTES_MAX: usize = 200;

/// Longest encoded head.
pub const HEAD_BYTES_MAX: usize = CHUNK_HEADER_BYTES + 6 + MESSAGE_BYTES_MAX;

/// Writes the head of a reply at the start of `output` and returns its length. `structured` says what was
/// negotiated; even then a success without data is a simple reply, which is shorter and allowed.
///
/// `output` has at least [`HEAD_BYTES_MAX`] bytes.
pub fn encode_head(head: &Head, cookie: u64, structured: bool, output: &mut [u8]) -> usize {
    let mut writer = Writer { output, at: 0 };
    match head {
        Head::Data { offset_bytes, bytes } if structured && *bytes > 0 => {
            let payload = bytes.checked_add(8).expect("reads are at most 32 MiB");
            writer.chunk(chunk::OFFSET_DATA, cookie, payload).put(&offset_bytes.to_be_bytes());
        }
        // The text wants a payload in every OFFSET_DATA: an empty read has no such chunk.
        Head::Data { .. } if structured => {
            writer.chunk(chunk::NONE, cookie, 0);
        }
        Head::Allocated { bytes } => {
            let extent = writer.chunk(chunk::BLOCK_STATUS, cookie, 12);
            extent.put(&ALLOCATION_CONTEXT_ID.to_be_bytes()).put(&bytes.to_be_bytes()).put(&[0; 4]);
        }
        Head::Error { errno, message } if structured => {
            let message = cut(message, MESSAGE_BYTES_MAX);
            let bytes = u16::try_from(message.len()).expect("messages are cut");
            let error = writer.chunk(chunk::ERROR, cookie, 6 + u32::from(bytes));
            error.put(&(*errno as u32).to_be_bytes()).put(&bytes.to_be_bytes()).put(message.as_bytes());
        }
        Head::Done | Head::Data { .. } => {
            writer.simple(0, cookie);
        }
        Head::Error { errno, .. } => {
            writer.simple(*errno as u32, cookie);
        }
    }
    writer.at
}

/// The longest start of `text` with at most `bytes_max` bytes.
fn cut(text: &str, bytes_max: usize) -> &str {
    let mut end = text.len().min(bytes_max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

struct Writer<'a> {
    output: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.output[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
        self
    }

    fn simple(&mut self, errno: u32, cookie: u64) -> &mut Self {
        self.put(&SIMPLE_REPLY_MAGIC.to_be_bytes()).put(&errno.to_be_bytes()).put(&cookie.to_be_bytes())
    }

    /// A chunk that is the whole reply.
    fn chunk(&mut self, kind: u16, cookie: u64, payload_bytes: u32) -> &mut Self {
        self.put(&STRUCTURED_REPLY_MAGIC.to_be_bytes()).put(&CHUNK_DONE.to_be_bytes());
        self.put(&kind.to_be_bytes()).put(&cookie.to_be_bytes()).put(&payload_bytes.to_be_bytes())
    }
}

const _: () = assert!(REQUEST_BYTES_MAX.is_power_of_two() && REQUEST_BYTES_MAX < u32::MAX - 8);

#[cfg(test)]
#[path = "protocol_tests.rs"]
mod tests;
