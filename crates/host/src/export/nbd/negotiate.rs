//! The handshake as a pure state machine: bytes in, bytes out, and in the end an export and what was agreed.
//!
//! - Memory is bounded: an option's data are parsed when all of them have arrived, at most [`OPTION_BYTES_MAX`]. Longer
//!   options are passed over piece by piece and refused.
//! - Whatever a client sends is answered, or the connection ends.

use super::protocol::{
    self, ALLOCATION_CONTEXT, ALLOCATION_CONTEXT_ID, CLIENT_FLAGS_BYTES, ClientFlags, Malformed,
    OPTION_HEADER_BYTES, OptionFault, OptionHeader, STRING_BYTES_MAX, info, option, option_reply,
    push_option_reply, transmission_flag,
};
use engine::limits::REQUEST_BYTES_MAX;

/// Longest data of an option that is parsed: a name and a dozen queries of the longest kind.
pub const OPTION_BYTES_MAX: usize = 60 << 10;

/// Longest data of an option that is passed over. A peer that announces more is no NBD client.
const OPTION_SKIP_BYTES_MAX: u32 = REQUEST_BYTES_MAX;

/// What a client learns of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Canonical name.
    pub name: String,
    /// A line for a person, may be empty.
    pub description: String,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Offsets and lengths are multiples of this.
    pub block_bytes: u32,
    /// The size from which on requests are efficient: a power of two.
    pub preferred_bytes: u32,
    /// No writes.
    pub read_only: bool,
    /// Zeroes are written faster than data.
    pub fast_zero: bool,
}

impl ExportInfo {
    fn transmission_flags(&self, structured: bool) -> u16 {
        use transmission_flag as flag;
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::CAN_MULTI_CONN | flag::SEND_CACHE;
        flags |= if self.read_only {
            flag::READ_ONLY
        } else {
            flag::SEND_FUA | flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO
        };
        flags | if structured { flag::SEND_DF } else { 0 }
    }
}

/// Where the negotiation looks exports up.
pub trait Catalog {
    /// What the caller gets when the client has chosen.
    type Export;

    /// The export of that name; the empty name is the default export.
    fn find(&self, name: &str) -> Option<(Self::Export, ExportInfo)>;

    /// Name and description of every export that may be listed.
    fn list(&self) -> Vec<(String, String)>;

    /// Whether the server is stopping, so that options are refused.
    fn stopping(&self) -> bool;
}

/// Whether clients encrypt: the protocol text's NOTLS, SELECTIVETLS (with exports for all) and FORCEDTLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// They cannot.
    #[default]
    Off,
    /// They may.
    On,
    /// They must, before anything else.
    Require,
}

/// What was agreed at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Structured replies.
    pub structured: bool,
    /// `base:allocation` for the chosen export.
    pub allocation: bool,
}

/// Where the handshake stands after some bytes.
#[derive(Debug, PartialEq, Eq)]
pub enum Advance<Export> {
    /// More bytes are needed.
    More,
    /// An option was answered. Send the output, then call again with the rest.
    Answered,
    /// The client encrypts from now on. Send the output, then make the handshake of TLS with the bytes after the consumed ones.
    StartTls,
    /// The client chose; the bytes after the consumed ones are requests.
    Transmission(Export, ExportInfo, Agreed),
    /// The client said goodbye. Send the output, then close.
    Ended,
}

/// The server's side of a handshake.
#[derive(Debug, Default)]
pub struct Negotiation {
    client: Option<ClientFlags>,
    /// Bytes left to pass over of an option that was refused for its length.
    skip_bytes: usize,
    mode: TlsMode,
    is_encrypted: bool,
    structured: bool,
    /// The export for which `base:allocation` was chosen.
    allocation_of: Option<String>,
}

impl Negotiation {
    /// Nothing agreed yet.
    pub fn new(mode: TlsMode) -> Self {
        Negotiation { mode, ..Negotiation::default() }
    }

    /// Takes at most one option from the start of `input`, appends the answer to `output`, and returns how many
    /// bytes it took. One at a time, so that a client that sends a thousand options has to read the answers.
    ///
    /// The caller sends [`protocol::greeting`] first. `input` must be able to hold [`OPTION_HEADER_BYTES`] and
    /// [`OPTION_BYTES_MAX`] together.
    pub fn advance<C: Catalog>(
        &mut self,
        catalog: &C,
        input: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(usize, Advance<C::Export>), Malformed> {
        let mut taken = 0;
        if self.client.is_none() {
            let Some(flags) = protocol::parse_client_flags(input)? else { return Ok((0, Advance::More)) };
            self.client = Some(flags);
            taken = CLIENT_FLAGS_BYTES;
        }
        let skip = self.skip_bytes.min(input.len() - taken);
        (taken, self.skip_bytes) = (taken + skip, self.skip_bytes - skip);
        let rest = &input[taken..];
        let Some(header) = protocol::parse_option_header(rest)? else { return Ok((taken, Advance::More)) };
        let data_bytes = header.data_bytes as usize;
        if data_bytes > OPTION_BYTES_MAX {
            self.refuse_length(header, output)?;
            return Ok((taken + OPTION_HEADER_BYTES, Advance::Answered));
        }
        let end = OPTION_HEADER_BYTES + data_bytes;
        let Some(data) = rest.get(OPTION_HEADER_BYTES..end) else { return Ok((taken, Advance::More)) };
        Ok((taken + end, self.answer(catalog, header.option, data, output)?))
    }

    fn refuse_length(&mut self, header: OptionHeader, output: &mut Vec<u8>) -> Result<(), Malformed> {
        let OptionHeader { option, data_bytes } = header;
        if data_bytes > OPTION_SKIP_BYTES_MAX || option == option::EXPORT_NAME {
            return Err(Malformed::OptionLength { option, bytes: data_bytes });
        }
        let (reply, message) = if self.must_encrypt() {
            TLS_REQUIRED
        } else {
            (option_reply::ERR_TOO_BIG, "the option is too long")
        };
        push_option_reply(output, option, reply, &[message.as_bytes()]);
        self.skip_bytes = data_bytes as usize;
        Ok(())
    }

    fn answer<C: Catalog>(
        &mut self,
        catalog: &C,
        option: u32,
        data: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Advance<C::Export>, Malformed> {
        let client = self.client.expect("options come after the client's flags");
        if option == option::EXPORT_NAME {
            if self.must_encrypt() {
                return Err(Malformed::NotEncrypted);
            }
            return self.start_by_name(catalog, data, client, output);
        }
        if !client.fixed_newstyle {
            return Err(Malformed::OldClient(option));
        }
        if option == option::ABORT {
            push_option_reply(output, option, option_reply::ACK, &[]);
            return Ok(Advance::Ended);
        }
        if self.must_encrypt() && option != option::STARTTLS {
            push_option_reply(output, option, TLS_REQUIRED.0, &[TLS_REQUIRED.1.as_bytes()]);
            return Ok(Advance::Answered);
        }
        if catalog.stopping() {
            push_option_reply(output, option, option_reply::ERR_SHUTDOWN, &[b"the server is stopping"]);
            return Ok(Advance::Answered);
        }
        let answered = match option {
            option::STARTTLS => self.encrypt(data, output).map(|()| Advance::StartTls),
            option::LIST => list(catalog, data, output).map(|()| Advance::Answered),
            option::INFO | option::GO => self.describe(catalog, option, data, output),
            option::STRUCTURED_REPLY => self.use_structured(data, output).map(|()| Advance::Answered),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.contexts(catalog, option, data, output).map(|()| Advance::Answered)
            }
            _ => Err((option_reply::ERR_UNSUP, "this option is not supported")),
        };
        Ok(answered.unwrap_or_else(|(reply, message)| {
            push_option_reply(output, option, reply, &[message.as_bytes()]);
            Advance::Answered
        }))
    }

    fn must_encrypt(&self) -> bool {
        self.mode == TlsMode::Require && !self.is_encrypted
    }

    /// `STARTTLS`. What was agreed in the open may be an attacker's word, so it counts no longer.
    fn encrypt(&mut self, data: &[u8], output: &mut Vec<u8>) -> Result<(), OptionError> {
        if self.mode == TlsMode::Off {
            return Err((option_reply::ERR_UNSUP, "this server has no certificate"));
        }
        if self.is_encrypted {
            return Err((option_reply::ERR_INVALID, "the connection is encrypted already"));
        }
        if !data.is_empty() {
            return Err((option_reply::ERR_INVALID, "this option has no data"));
        }
        (self.is_encrypted, self.structured, self.allocation_of) = (true, false, None);
        push_option_reply(output, option::STARTTLS, option_reply::ACK, &[]);
        Ok(())
    }

    /// `EXPORT_NAME`: the old way, which has no reply for an error.
    fn start_by_name<C: Catalog>(
        &self,
        catalog: &C,
        data: &[u8],
        client: ClientFlags,
        output: &mut Vec<u8>,
    ) -> Result<Advance<C::Export>, Malformed> {
        let name = std::str::from_utf8(data).ok().filter(|name| name.len() <= STRING_BYTES_MAX);
        let found = name.filter(|_| !catalog.stopping()).and_then(|name| Some((name, catalog.find(name)?)));
        let Some((name, (export, info))) = found else { return Err(Malformed::ExportName) };
        output.extend_from_slice(&info.size_bytes.to_be_bytes());
        output.extend_from_slice(&info.transmission_flags(self.structured).to_be_bytes());
        if !client.no_zeroes {
            output.extend_from_slice(&[0; 124]);
        }
        Ok(Advance::Transmission(export, info, self.agreed(name)))
    }

    fn agreed(&self, name: &str) -> Agreed {
        let allocation = self.allocation_of.as_deref() == Some(name);
        Agreed { structured: self.structured, allocation }
    }

    /// `INFO` and `GO`.
    fn describe<C: Catalog>(
        &self,
        catalog: &C,
        option: u32,
        data: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<Advance<C::Export>, OptionError> {
        let query = protocol::parse_info_query(data).map_err(fault)?;
        let (export, about) =
            catalog.find(query.name).ok_or((option_reply::ERR_UNKNOWN, "no export has this name"))?;
        let flags = about.transmission_flags(self.structured).to_be_bytes();
        let mut push = |kind: u16, parts: [&[u8]; 3]| {
            let [first, second, third] = parts;
            push_option_reply(
                output,
                option,
                option_reply::INFO,
                &[&kind.to_be_bytes(), first, second, third],
            );
        };
        push(info::EXPORT, [&about.size_bytes.to_be_bytes(), &flags, &[]]);
        if query.wants_name {
            push(info::NAME, [about.name.as_bytes(), &[], &[]]);
        }
        if query.wants_description && !about.description.is_empty() {
            push(info::DESCRIPTION, [about.description.as_bytes(), &[], &[]]);
        }
        // Sent also without a request for it: clients ignore information that they do not know.
        let (least, preferred) = (about.block_bytes.to_be_bytes(), about.preferred_bytes.to_be_bytes());
        push(info::BLOCK_SIZE, [&least, &preferred, &REQUEST_BYTES_MAX.to_be_bytes()]);
        push_option_reply(output, option, option_reply::ACK, &[]);
        if option == option::INFO {
            return Ok(Advance::Answered);
        }
        let agreed = self.agreed(query.name);
        Ok(Advance::Transmission(export, about, agreed))
    }

    fn use_structured(&mut self, data: &[u8], output: &mut Vec<u8>) -> Result<(), OptionError> {
        if !data.is_empty() {
            return Err((option_reply::ERR_INVALID, "this option has no data"));
        }
        self.structured = true;
        push_option_reply(output, option::STRUCTURED_REPLY, option_reply::ACK, &[]);
        Ok(())
    }

    /// `LIST_META_CONTEXT` and `SET_META_CONTEXT`.
    fn contexts<C: Catalog>(
        &mut self,
        catalog: &C,
        option: u32,
        data: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(), OptionError> {
        let choose = option == option::SET_META_CONTEXT;
        if choose {
            self.allocation_of = None; // a failed choice clears the one before, too
        }
        if !self.structured {
            return Err((option_reply::ERR_INVALID, "structured replies come first"));
        }
        let query = protocol::parse_context_query(data).map_err(fault)?;
        if catalog.find(query.name).is_none() {
            return Err((option_reply::ERR_UNKNOWN, "no export has this name"));
        }
        let matches = query.allocation || (!choose && (query.empty || query.base));
        if choose && matches {
            self.allocation_of = Some(query.name.to_owned());
        }
        if matches {
            let id = if choose { ALLOCATION_CONTEXT_ID } else { 0 };
            let data: [&[u8]; 2] = [&id.to_be_bytes(), ALLOCATION_CONTEXT.as_bytes()];
            push_option_reply(output, option, option_reply::META_CONTEXT, &data);
        }
        push_option_reply(output, option, option_reply::ACK, &[]);
        Ok(())
    }
}

/// An option that is refused: the reply's type and a message.
type OptionError = (u32, &'static str);

const TLS_REQUIRED: OptionError =
    (option_reply::ERR_TLS_REQD, "this server requires TLS: the client must be told to use it");

fn fault(fault: OptionFault) -> OptionError {
    match fault {
        OptionFault::Invalid(message) => (option_reply::ERR_INVALID, message),
        OptionFault::TooBig(message) => (option_reply::ERR_TOO_BIG, message),
    }
}

fn list<C: Catalog>(catalog: &C, data: &[u8], output: &mut Vec<u8>) -> Result<(), OptionError> {
    if !data.is_empty() {
        return Err((option_reply::ERR_INVALID, "this option has no data"));
    }
    for (name, description) in catalog.list() {
        let bytes = u32::try_from(name.len()).expect("names have at most 4096 bytes").to_be_bytes();
        let data: [&[u8]; 3] = [&bytes, name.as_bytes(), description.as_bytes()];
        push_option_reply(output, option::LIST, option_reply::SERVER, &data);
    }
    push_option_reply(output, option::LIST, option_reply::ACK, &[]);
    Ok(())
}

#[cfg(test)]
#[path = "negotiate_tests.rs"]
mod tests;
