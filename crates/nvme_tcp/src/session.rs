//! One connection as a stream of PDUs: bytes in, events out; and the bytes of the PDUs that this end sends.
//!
//! The caller holds the bytes that were received and not yet consumed, hands them to [`Session::receive`] and drops as many as
//! it says. Data is not among them: when a PDU with data has begun, [`Session::body_bytes`] says how many of the next bytes
//! are data. The caller brings them to where they belong, part out of what it holds and the rest straight from the socket,
//! and shows them to [`Session::placed`], which looks at them only if data has digests. So data is copied at most once, and
//! never if the caller receives it where it belongs.
//!
//! What is sent works the same way round: the functions with `encode` in their names write headers and digests; data is sent
//! from where it is.
//!
//! Invariants:
//! - F-I15: events carry [`Unverified`] values, and no event asks for memory whose length was not checked.
//! - The first PDU of each direction is the one that begins a connection, and there is one of them.
//! - After an error, or the other end's termination request, nothing is received any more.

use byte_struct::Checksum;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::command::{Cqe, Sqe};
use crate::pdu::{
    ALIGNMENT_MAX, Agreement, BEFORE_DATA_BYTES_MAX, COMMON_BYTES, CommandCapsule, DIGEST_BYTES, Data,
    Extent, Fatal, FatalStatus, H2C_DATA_BYTES_MIN, HEADER_BYTES_MAX, IcReq, IcResp, PduHeader, R2t,
    ResponseCapsule, Side, TERM_BYTES_MAX, Term, Unverified, digests, flag, kind,
};

/// Room that a caller needs for what was received and not consumed: a header with its digest and padding.
pub const STAGED_BYTES_MAX: usize = BEFORE_DATA_BYTES_MAX;

/// What an end wants of a connection before it knows the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// A host asks for digests of headers; a controller allows them.
    pub header_digest: bool,
    /// A host asks for digests of data; a controller allows them.
    pub data_digest: bool,
    /// Alignment of the data that this end receives, in dwords from 0 to [`ALIGNMENT_MAX`].
    pub alignment: u8,
    /// Bytes of data that a controller takes in a capsule.
    pub in_capsule_bytes_max: u32,
    /// Bytes of data that a controller takes in one data PDU.
    pub h2c_data_bytes_max: u32,
    /// R2Ts for one command that a host takes at a time.
    pub r2ts_max: u32,
}

/// What has been received.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// Not enough for anything: the caller receives more.
    More,
    /// The connection has begun. A controller now sends [`Session::encode_ic_resp`].
    Begun,
    /// A command; if [`Session::body_bytes`] is not 0, its data follows.
    Command(Unverified<Sqe>),
    /// The end of a command.
    Response(Unverified<Cqe>),
    /// The controller wants data.
    R2t(Unverified<R2t>),
    /// Data, which follows.
    Data(Unverified<Data>),
    /// The data that followed is complete; false: its digest is wrong.
    BodyEnd {
        /// If the data is what was sent.
        intact: bool,
    },
    /// The other end ends the connection.
    Terminated {
        /// Why, by the transport's numbers.
        status: u16,
        /// More about it.
        information: u32,
    },
}

/// An event, and how many of the bytes are consumed.
#[derive(Debug, PartialEq, Eq)]
pub struct Received {
    /// Bytes that are not needed any more.
    pub consumed: usize,
    /// What they were.
    pub event: Event,
}

/// What comes next on the stream.
#[derive(Debug)]
enum Next {
    /// The first PDU.
    First,
    /// A header.
    Header,
    /// Data, and its digest: see [`Body`].
    Body,
    /// Nothing: the connection ends.
    Nothing,
}

/// The data that is on its way.
#[derive(Debug, Default)]
struct Body {
    bytes_left: u32,
    digest: Option<Checksum>,
}

/// A connection.
#[derive(Debug)]
pub struct Session {
    side: Side,
    offer: Offer,
    agreed: Agreement,
    /// R2Ts for one command that the host takes at a time.
    r2ts_max: u32,
    next: Next,
    body: Body,
    /// The header of the last PDU, for a termination request.
    last: [u8; HEADER_BYTES_MAX],
    last_bytes: usize,
}

impl Session {
    /// A connection that was just opened.
    ///
    /// # Panics
    /// If the offer is not one that may be made.
    #[must_use]
    pub fn new(side: Side, offer: Offer) -> Self {
        assert!(offer.alignment <= ALIGNMENT_MAX, "an alignment that the transport knows");
        assert!(
            offer.h2c_data_bytes_max >= H2C_DATA_BYTES_MIN || side == Side::Host,
            "a controller takes 4096 bytes at least"
        );
        let agreed = Agreement {
            header_digest: false,
            data_digest: false,
            receive_alignment: offer.alignment,
            send_alignment: 0,
            in_capsule_bytes_max: offer.in_capsule_bytes_max,
            h2c_data_bytes_max: offer.h2c_data_bytes_max,
        };
        Session {
            side,
            offer,
            agreed,
            r2ts_max: offer.r2ts_max.max(1),
            next: Next::First,
            body: Body::default(),
            last: [0; HEADER_BYTES_MAX],
            last_bytes: 0,
        }
    }

    /// What the ends agreed on.
    #[must_use]
    pub fn agreement(&self) -> &Agreement {
        &self.agreed
    }

    /// R2Ts for one command that may be outstanding.
    #[must_use]
    pub fn r2ts_max(&self) -> u32 {
        self.r2ts_max
    }

    /// Which end this is.
    #[must_use]
    pub fn side(&self) -> Side {
        self.side
    }

    /// Changes how much data the other end may send in a capsule: once Connect says which queue this is.
    pub fn set_in_capsule_bytes_max(&mut self, bytes: u32) {
        self.agreed.in_capsule_bytes_max = bytes;
    }

    /// How many of the next bytes are data.
    #[must_use]
    pub fn body_bytes(&self) -> u32 {
        self.body.bytes_left
    }

    /// These bytes of data have been brought to where they belong, or were passed over.
    ///
    /// # Panics
    /// If they are more than [`Session::body_bytes`].
    pub fn placed(&mut self, bytes: &[u8]) {
        assert!(bytes.len() <= self.body.bytes_left as usize, "only data is placed");
        self.body.bytes_left -= bytes.len() as u32;
        if let Some(digest) = &mut self.body.digest {
            digest.add(bytes);
        }
    }

    /// Takes the next event from what was received. Must not be called while data is to be placed.
    ///
    /// # Errors
    /// Why the connection must end: the caller sends [`Session::encode_term`] and closes it.
    ///
    /// # Panics
    /// If [`Session::body_bytes`] is not 0.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Received, Fatal> {
        let received = match &self.next {
            Next::Body => {
                assert!(self.body.bytes_left == 0, "data is placed before what follows is received");
                return Ok(self.receive_data_digest(bytes));
            }
            Next::Nothing => return Ok(Received { consumed: bytes.len(), event: Event::More }),
            Next::First | Next::Header => self.receive_header(bytes),
        };
        if received.is_err() {
            self.end();
        }
        received
    }

    /// Receives nothing any more: something that follows from an event breaks the rules.
    pub fn end(&mut self) {
        (self.next, self.body) = (Next::Nothing, Body::default());
    }

    fn receive_data_digest(&mut self, bytes: &[u8]) -> Received {
        let Some(digest) = &self.body.digest else {
            self.next = Next::Header;
            return Received { consumed: 0, event: Event::BodyEnd { intact: true } };
        };
        let Some((received, _)) = bytes.split_first_chunk::<DIGEST_BYTES>() else {
            return Received { consumed: 0, event: Event::More };
        };
        let intact = u32::from_le_bytes(*received) == digest.value();
        self.next = Next::Header;
        Received { consumed: DIGEST_BYTES, event: Event::BodyEnd { intact } }
    }

    fn receive_header(&mut self, bytes: &[u8]) -> Result<Received, Fatal> {
        const MORE: Received = Received { consumed: 0, event: Event::More };
        let Some((common, _)) = bytes.split_first_chunk::<COMMON_BYTES>() else { return Ok(MORE) };
        self.keep_last(bytes, COMMON_BYTES);
        let header = PduHeader::read_from_bytes(common).expect("its size");
        let extent = header.check(self.side, &self.agreed)?;
        self.check_sequence(extent.kind)?;
        let is_term = matches!(extent.kind, kind::H2C_TERM | kind::C2H_TERM);
        let wanted = if is_term {
            extent.before_data_bytes + extent.data_bytes as usize
        } else {
            extent.before_data_bytes
        };
        let Some(head) = bytes.get(..wanted) else { return Ok(MORE) };
        self.keep_last(head, extent.header_bytes);
        check_header_digest(head, &extent)?;
        let event = self.event(head, &extent)?;
        Ok(Received { consumed: wanted, event })
    }

    fn keep_last(&mut self, bytes: &[u8], most: usize) {
        self.last_bytes = most.min(bytes.len()).min(HEADER_BYTES_MAX);
        self.last[..self.last_bytes].copy_from_slice(&bytes[..self.last_bytes]);
    }

    fn check_sequence(&self, kind: u8) -> Result<(), Fatal> {
        let is_first = matches!(kind, kind::IC_REQ | kind::IC_RESP);
        let is_term = matches!(kind, kind::H2C_TERM | kind::C2H_TERM);
        let expected = match self.next {
            Next::First => is_first || is_term,
            _ => !is_first,
        };
        if expected { Ok(()) } else { Err(FatalStatus::Sequence.at(0)) }
    }

    /// Makes an event of a whole header.
    fn event(&mut self, head: &[u8], extent: &Extent) -> Result<Event, Fatal> {
        let event = match extent.kind {
            kind::IC_REQ => {
                let request = parse::<IcReq>(head);
                self.begin(request.version.get(), request.alignment, request.digests)?;
                // One more than a u32 holds is no limit that is ever reached.
                self.r2ts_max = request.r2ts_less_one.get().saturating_add(1);
                Event::Begun
            }
            kind::IC_RESP => {
                let response = parse::<IcResp>(head);
                self.begin(response.version.get(), response.alignment, response.digests)?;
                let most = response.h2c_data_bytes_max.get();
                if most < H2C_DATA_BYTES_MIN || !most.is_multiple_of(4) {
                    return Err(
                        FatalStatus::InvalidHeaderField.at(core::mem::offset_of!(IcResp, h2c_data_bytes_max))
                    );
                }
                self.agreed.h2c_data_bytes_max = most;
                Event::Begun
            }
            kind::H2C_TERM | kind::C2H_TERM => {
                let term = parse::<Term>(head);
                self.next = Next::Nothing;
                return Ok(Event::Terminated {
                    status: term.status.get(),
                    information: term.information.get(),
                });
            }
            kind::COMMAND => Event::Command(Unverified::new(parse::<CommandCapsule>(head).sqe)),
            kind::RESPONSE => Event::Response(Unverified::new(parse::<ResponseCapsule>(head).cqe)),
            kind::R2T => Event::R2t(Unverified::new(parse::<R2t>(head))),
            _ => {
                let data = parse::<Data>(head);
                if data.bytes.get() != extent.data_bytes {
                    return Err(FatalStatus::InvalidHeaderField.at(core::mem::offset_of!(Data, bytes)));
                }
                Event::Data(Unverified::new(data))
            }
        };
        self.next = if extent.data_bytes == 0 { Next::Header } else { Next::Body };
        let digest = (extent.data_bytes > 0 && extent.data_digest).then(Checksum::default);
        self.body = Body { bytes_left: extent.data_bytes, digest };
        Ok(event)
    }

    /// Notes what the other end asked for (as a controller) or chose (as a host).
    fn begin(&mut self, version: u16, alignment: u8, wanted: u8) -> Result<(), Fatal> {
        if version != 0 {
            return Err(FatalStatus::UnsupportedParameter.at(core::mem::offset_of!(IcReq, version)));
        }
        if alignment > ALIGNMENT_MAX {
            return Err(FatalStatus::InvalidHeaderField.at(core::mem::offset_of!(IcReq, alignment)));
        }
        let (header, data) = (wanted & digests::HEADER != 0, wanted & digests::DATA != 0);
        let unknown = wanted & !(digests::HEADER | digests::DATA) != 0;
        // A controller may turn down what a host asks for; it does not choose what the host did not ask for.
        let unasked = header && !self.offer.header_digest || data && !self.offer.data_digest;
        if unknown || self.side == Side::Host && unasked {
            return Err(FatalStatus::InvalidHeaderField.at(core::mem::offset_of!(IcReq, digests)));
        }
        self.agreed.header_digest = header && self.offer.header_digest;
        self.agreed.data_digest = data && self.offer.data_digest;
        self.agreed.send_alignment = alignment;
        Ok(())
    }

    /// Writes a host's first PDU.
    #[must_use]
    pub fn encode_ic_req(&self, out: &mut [u8]) -> usize {
        let request = IcReq {
            header: first_header(kind::IC_REQ),
            version: U16::ZERO,
            alignment: self.offer.alignment,
            digests: digest_bits(self.offer.header_digest, self.offer.data_digest),
            r2ts_less_one: U32::new(self.offer.r2ts_max.max(1) - 1),
            reserved: [0; 112],
        };
        write(out, request.as_bytes())
    }

    /// Writes a controller's first PDU, after the host's has been received.
    #[must_use]
    pub fn encode_ic_resp(&self, out: &mut [u8]) -> usize {
        let response = IcResp {
            header: first_header(kind::IC_RESP),
            version: U16::ZERO,
            alignment: self.offer.alignment,
            digests: digest_bits(self.agreed.header_digest, self.agreed.data_digest),
            h2c_data_bytes_max: U32::new(self.offer.h2c_data_bytes_max),
            reserved: [0; 112],
        };
        write(out, response.as_bytes())
    }

    /// Writes the request to end the connection, with the header that was wrong behind it.
    #[must_use]
    pub fn encode_term(&self, fatal: Fatal, out: &mut [u8]) -> usize {
        let kind = if self.side == Side::Host { kind::H2C_TERM } else { kind::C2H_TERM };
        let mut term = Term::new_zeroed();
        let bytes = size_of::<Term>() + self.last_bytes;
        term.header = PduHeader {
            kind,
            flags: 0,
            header_bytes: size_of::<Term>() as u8,
            data_offset: 0,
            pdu_bytes: U32::new(bytes as u32),
        };
        term.status = U16::new(fatal.status as u16);
        term.information = U32::new(fatal.information);
        let at = write(out, term.as_bytes());
        at + write(&mut out[at..], &self.last[..self.last_bytes])
    }
}

impl Agreement {
    /// Writes a command and the header's padding; if `data_bytes` is not 0, that much data follows, and then what
    /// [`Agreement::encode_data_end`] writes.
    #[must_use]
    pub fn encode_command(&self, sqe: &Sqe, data_bytes: u32, out: &mut [u8]) -> usize {
        let header = self.header(kind::COMMAND, 0, size_of::<CommandCapsule>(), data_bytes);
        self.encode_header(CommandCapsule { header, sqe: *sqe }.as_bytes(), data_bytes, out)
    }

    /// Writes the end of a command.
    #[must_use]
    pub fn encode_response(&self, cqe: &Cqe, out: &mut [u8]) -> usize {
        let header = self.header(kind::RESPONSE, 0, size_of::<ResponseCapsule>(), 0);
        self.encode_header(ResponseCapsule { header, cqe: *cqe }.as_bytes(), 0, out)
    }

    /// Writes a wish for data.
    #[must_use]
    pub fn encode_r2t(&self, cid: u16, tag: u16, offset: u32, bytes: u32, out: &mut [u8]) -> usize {
        let (cid, tag) = (U16::new(cid), U16::new(tag));
        let (offset, bytes) = (U32::new(offset), U32::new(bytes));
        let header = self.header(kind::R2T, 0, size_of::<R2t>(), 0);
        self.encode_header(R2t { header, cid, tag, offset, bytes, reserved: [0; 4] }.as_bytes(), 0, out)
    }

    /// Writes the header of data; the data follows, and then what [`Agreement::encode_data_end`] writes. `flags`:
    /// [`flag::LAST`], [`flag::SUCCESS`].
    #[must_use]
    pub fn encode_data(&self, side: Side, data: &DataPart, flags: u8, out: &mut [u8]) -> usize {
        let kind = if side == Side::Host { kind::H2C_DATA } else { kind::C2H_DATA };
        let header = Data {
            header: self.header(kind, flags & (flag::LAST | flag::SUCCESS), size_of::<Data>(), data.bytes),
            cid: U16::new(data.cid),
            tag: U16::new(data.tag),
            offset: U32::new(data.offset),
            bytes: U32::new(data.bytes),
            reserved: [0; 4],
        };
        self.encode_header(header.as_bytes(), data.bytes, out)
    }

    /// Writes what follows data: its digest, if data has digests. Otherwise `pieces` are not looked at.
    #[must_use]
    pub fn encode_data_end<'a>(&self, pieces: impl Iterator<Item = &'a [u8]>, out: &mut [u8]) -> usize {
        if !self.data_digest {
            return 0;
        }
        let mut digest = Checksum::default();
        pieces.for_each(|piece| digest.add(piece));
        write(out, &digest.value().to_le_bytes())
    }

    fn encode_header(&self, header: &[u8], data_bytes: u32, out: &mut [u8]) -> usize {
        let mut at = write(out, header);
        if self.header_digest {
            at += write(&mut out[at..], &Checksum::of(header).to_le_bytes());
        }
        if data_bytes > 0 {
            let start = self.data_offset(header.len());
            out[at..start].fill(0);
            at = start;
        }
        at
    }
}

/// Where a piece of a command's data belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataPart {
    /// The command.
    pub cid: u16,
    /// Of the R2T that is answered; 0 from a controller.
    pub tag: u16,
    /// Offset in the data of the command.
    pub offset: u32,
    /// Length in bytes.
    pub bytes: u32,
}

fn parse<T: FromBytes>(head: &[u8]) -> T {
    T::read_from_prefix(head).expect("the length of the header was checked").0
}

fn check_header_digest(head: &[u8], extent: &Extent) -> Result<(), Fatal> {
    if !extent.header_digest {
        return Ok(());
    }
    let (header, rest) = head.split_at(extent.header_bytes);
    let received = rest.first_chunk().map_or(0, |digest| u32::from_le_bytes(*digest));
    if received == Checksum::of(header) {
        return Ok(());
    }
    Err(Fatal { status: FatalStatus::HeaderDigest, information: received })
}

fn first_header(kind: u8) -> PduHeader {
    let bytes = size_of::<IcReq>();
    PduHeader { kind, flags: 0, header_bytes: bytes as u8, data_offset: 0, pdu_bytes: U32::new(bytes as u32) }
}

fn digest_bits(header: bool, data: bool) -> u8 {
    let header = if header { digests::HEADER } else { 0 };
    let data = if data { digests::DATA } else { 0 };
    header | data
}

fn write(out: &mut [u8], bytes: &[u8]) -> usize {
    out[..bytes.len()].copy_from_slice(bytes);
    bytes.len()
}

const _: () = assert!(TERM_BYTES_MAX <= STAGED_BYTES_MAX && size_of::<IcReq>() == size_of::<IcResp>());
