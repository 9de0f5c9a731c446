//! Messages of DH-HMAC-CHAP, as bytes. What arrives is parsed here before anything is believed (F-I15): lengths are checked
//! before bytes are taken, and nothing is allocated by what the peer says.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::group::DhGroup;
use crate::hash::HashFunction;

const TYPE_COMMON: u8 = 0x00;
const TYPE_DHCHAP: u8 = 0x01;
const ID_NEGOTIATE: u8 = 0x00;
const ID_CHALLENGE: u8 = 0x01;
const ID_REPLY: u8 = 0x02;
const ID_SUCCESS1: u8 = 0x03;
const ID_SUCCESS2: u8 = 0x04;
const ID_FAILURE2: u8 = 0xf0;
const ID_FAILURE1: u8 = 0xf1;
const PROTOCOL_DHCHAP: u8 = 0x01;
const REASON_FAILED: u8 = 0x01;
const IDS_MAX: usize = 30;

/// The longest message: a reply with two digests of 64 bytes and a value of the largest group.
pub const MESSAGE_BYTES_MAX: usize = size_of::<RawReply>() + 2 * 64 + 1024;

/// Why one side ends an authentication, as it tells the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// The response is not what the secret makes, or there is no secret.
    #[error("authentication failed: the secrets of both sides differ, or one side has none")]
    NotAuthentic,
    /// None of the offered protocols is DH-HMAC-CHAP.
    #[error("no authentication protocol in common")]
    ProtocolUnusable,
    /// TLS by a key that authentication makes was asked for, and is not done here.
    #[error("secure channel concatenation does not fit")]
    ConcatenationMismatch,
    /// None of the offered hash functions is allowed.
    #[error("no hash function in common")]
    HashFunctionUnusable,
    /// None of the offered groups is allowed.
    #[error("no Diffie-Hellman group in common")]
    GroupUnusable,
    /// Lengths, reserved values or a public value are wrong.
    #[error("a message with a wrong payload")]
    IncorrectPayload,
    /// A message that does not come now.
    #[error("a message out of order")]
    IncorrectMessage,
}

impl Failure {
    const BY_NUMBER: [(u8, Failure); 7] = [
        (1, Failure::NotAuthentic),
        (2, Failure::ProtocolUnusable),
        (3, Failure::ConcatenationMismatch),
        (4, Failure::HashFunctionUnusable),
        (5, Failure::GroupUnusable),
        (6, Failure::IncorrectPayload),
        (7, Failure::IncorrectMessage),
    ];

    fn number(self) -> u8 {
        let found = Failure::BY_NUMBER.iter().find(|(_, failure)| *failure == self);
        found.map_or(1, |(number, _)| *number)
    }

    fn from_number(number: u8) -> Failure {
        let found = Failure::BY_NUMBER.iter().find(|(known, _)| *known == number);
        found.map_or(Failure::NotAuthentic, |(_, failure)| *failure)
    }
}

/// A message that was parsed. Its contents are the peer's word until a response is verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Host: what it can do.
    Negotiate(Negotiate),
    /// Controller: prove that you have the secret.
    Challenge(Challenge<'a>),
    /// Host: the proof, and perhaps a challenge.
    Reply(Reply<'a>),
    /// Controller: the host is authentic; its own proof if it was challenged.
    Success1 {
        /// The hash function's; the kernel's host checks it also if there is no proof.
        digest_bytes: u8,
        /// The proof.
        response: Option<&'a [u8]>,
    },
    /// Host: the controller is authentic.
    Success2,
    /// Controller: the end.
    Failure1(Failure),
    /// Host: the end.
    Failure2(Failure),
}

/// What a host offers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Negotiate {
    /// If TLS is to follow with a key that authentication makes.
    pub concatenation: u8,
    /// Numbers of hash functions, also of those that are unknown here; `None` if DH-HMAC-CHAP is not offered.
    pub offer: Option<Offer>,
}

/// Hash functions and groups, in the host's order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Those known here.
    pub functions: Vec<HashFunction>,
    /// Those known here.
    pub groups: Vec<DhGroup>,
}

/// A controller's challenge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Challenge<'a> {
    /// Number of the hash function.
    pub function: HashFunction,
    /// Number of the group.
    pub group: DhGroup,
    /// Never 0.
    pub sequence: u32,
    /// As long as a digest.
    pub challenge: &'a [u8],
    /// The controller's public value; nothing of the null group.
    pub public: &'a [u8],
}

/// A host's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reply<'a> {
    /// The proof.
    pub response: &'a [u8],
    /// The host's challenge, if it wants proof, too.
    pub challenge: Option<&'a [u8]>,
    /// The number that goes with the host's challenge.
    pub sequence: u32,
    /// The host's public value; nothing of the null group.
    pub public: &'a [u8],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawStart {
    kind: u8,
    id: u8,
    reserve: [u8; 2],
    transaction: U16,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawNegotiate {
    start: RawStart,
    concatenation: u8,
    protocols: u8,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawProtocol {
    protocol: u8,
    reserve: u8,
    functions: u8,
    groups: u8,
    function_ids: [u8; IDS_MAX],
    group_ids: [u8; IDS_MAX],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawChallenge {
    start: RawStart,
    digest_bytes: u8,
    reserve: u8,
    function: u8,
    group: u8,
    public_bytes: U16,
    sequence: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawReply {
    start: RawStart,
    digest_bytes: u8,
    reserve: u8,
    has_challenge: u8,
    reserve2: u8,
    public_bytes: U16,
    sequence: U32,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuccess1 {
    start: RawStart,
    digest_bytes: u8,
    reserve: u8,
    has_response: u8,
    reserve2: [u8; 7],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawSuccess2 {
    start: RawStart,
    reserve: [u8; 10],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawFailure {
    start: RawStart,
    reason: u8,
    explanation: u8,
}

const _: () = {
    assert!(size_of::<RawNegotiate>() == 8 && size_of::<RawProtocol>() == 64);
    assert!(size_of::<RawChallenge>() == 16 && size_of::<RawReply>() == 16);
    assert!(size_of::<RawSuccess1>() == 16 && size_of::<RawSuccess2>() == 16 && size_of::<RawFailure>() == 8);
};

impl Message<'_> {
    /// The transaction and the message in `bytes`. What stands behind the message is not looked at: hosts send buffers of one
    /// length.
    ///
    /// # Errors
    /// The failure to tell the peer.
    pub fn parse(bytes: &[u8]) -> Result<(u16, Message<'_>), Failure> {
        let (start, _) = RawStart::ref_from_prefix(bytes).map_err(|_| Failure::IncorrectPayload)?;
        let message = match (start.kind, start.id) {
            (TYPE_COMMON, ID_NEGOTIATE) => Message::Negotiate(Negotiate::parse(bytes)?),
            (TYPE_DHCHAP, ID_CHALLENGE) => Message::Challenge(parse_challenge(bytes)?),
            (TYPE_DHCHAP, ID_REPLY) => Message::Reply(parse_reply(bytes)?),
            (TYPE_DHCHAP, ID_SUCCESS1) => parse_success1(bytes)?,
            (TYPE_DHCHAP, ID_SUCCESS2) => {
                prefix::<RawSuccess2>(bytes)?;
                Message::Success2
            }
            (TYPE_COMMON, ID_FAILURE1 | ID_FAILURE2) => {
                let (raw, _) = prefix::<RawFailure>(bytes)?;
                let failure = Failure::from_number(raw.explanation);
                if start.id == ID_FAILURE1 { Message::Failure1(failure) } else { Message::Failure2(failure) }
            }
            _ => return Err(Failure::IncorrectMessage),
        };
        Ok((start.transaction.get(), message))
    }

    /// The bytes to send.
    ///
    /// # Panics
    /// If a field has a length that the message has no room for.
    #[must_use]
    pub fn encode(&self, transaction: u16) -> Vec<u8> {
        let dhchap =
            |id| RawStart { kind: TYPE_DHCHAP, id, reserve: [0; 2], transaction: transaction.into() };
        let common =
            |id| RawStart { kind: TYPE_COMMON, id, reserve: [0; 2], transaction: transaction.into() };
        match self {
            Message::Negotiate(negotiate) => negotiate.encode(common(ID_NEGOTIATE)),
            Message::Challenge(challenge) => encode_challenge(challenge, dhchap(ID_CHALLENGE)),
            Message::Reply(reply) => encode_reply(reply, dhchap(ID_REPLY)),
            Message::Success1 { digest_bytes, response } => {
                let mut raw = RawSuccess1::new_zeroed();
                raw.start = dhchap(ID_SUCCESS1);
                raw.digest_bytes = *digest_bytes;
                raw.has_response = u8::from(response.is_some());
                [raw.as_bytes(), response.unwrap_or_default()].concat()
            }
            Message::Success2 => {
                RawSuccess2 { start: dhchap(ID_SUCCESS2), reserve: [0; 10] }.as_bytes().to_vec()
            }
            Message::Failure1(failure) => encode_failure(*failure, common(ID_FAILURE1)),
            Message::Failure2(failure) => encode_failure(*failure, common(ID_FAILURE2)),
        }
    }
}

impl Negotiate {
    fn parse(bytes: &[u8]) -> Result<Negotiate, Failure> {
        let (raw, rest) = prefix::<RawNegotiate>(bytes)?;
        let protocols = usize::from(raw.protocols);
        let (protocols, _) = <[RawProtocol]>::ref_from_prefix_with_elems(rest, protocols)
            .map_err(|_| Failure::IncorrectPayload)?;
        let Some(raw_offer) = protocols.iter().find(|protocol| protocol.protocol == PROTOCOL_DHCHAP) else {
            return Ok(Negotiate { concatenation: raw.concatenation, offer: None });
        };
        let ids = |ids: &'_ [u8; IDS_MAX], count: u8| {
            ids.get(..usize::from(count)).map(<[u8]>::to_vec).ok_or(Failure::IncorrectPayload)
        };
        let functions = ids(&raw_offer.function_ids, raw_offer.functions)?;
        let groups = ids(&raw_offer.group_ids, raw_offer.groups)?;
        let offer = Offer {
            functions: functions.into_iter().filter_map(HashFunction::from_id).collect(),
            groups: groups.into_iter().filter_map(DhGroup::from_id).collect(),
        };
        Ok(Negotiate { concatenation: raw.concatenation, offer: Some(offer) })
    }

    fn encode(&self, start: RawStart) -> Vec<u8> {
        let protocols = u8::from(self.offer.is_some());
        let raw = RawNegotiate { start, concatenation: self.concatenation, protocols };
        let mut bytes = raw.as_bytes().to_vec();
        if let Some(offer) = &self.offer {
            let mut raw = RawProtocol::new_zeroed();
            raw.protocol = PROTOCOL_DHCHAP;
            raw.functions = byte(offer.functions.len());
            raw.groups = byte(offer.groups.len());
            raw.function_ids.iter_mut().zip(&offer.functions).for_each(|(id, function)| *id = function.id());
            raw.group_ids.iter_mut().zip(&offer.groups).for_each(|(id, group)| *id = group.id());
            bytes.extend_from_slice(raw.as_bytes());
        }
        bytes
    }
}

fn parse_challenge(bytes: &[u8]) -> Result<Challenge<'_>, Failure> {
    let (raw, rest) = prefix::<RawChallenge>(bytes)?;
    let function = HashFunction::from_id(raw.function).ok_or(Failure::HashFunctionUnusable)?;
    let group = DhGroup::from_id(raw.group).ok_or(Failure::GroupUnusable)?;
    let (challenge, rest) = digest(rest, raw.digest_bytes)?;
    let public = rest.get(..usize::from(raw.public_bytes.get())).ok_or(Failure::IncorrectPayload)?;
    let sequence = raw.sequence.get();
    let lengths_fit = challenge.len() == function.digest_bytes() && public.len() == group.value_bytes();
    if !lengths_fit || sequence == 0 {
        return Err(Failure::IncorrectPayload);
    }
    Ok(Challenge { function, group, sequence, challenge, public })
}

fn encode_challenge(challenge: &Challenge<'_>, start: RawStart) -> Vec<u8> {
    let raw = RawChallenge {
        start,
        digest_bytes: byte(challenge.challenge.len()),
        reserve: 0,
        function: challenge.function.id(),
        group: challenge.group.id(),
        public_bytes: short(challenge.public.len()),
        sequence: challenge.sequence.into(),
    };
    [raw.as_bytes(), challenge.challenge, challenge.public].concat()
}

fn parse_reply(bytes: &[u8]) -> Result<Reply<'_>, Failure> {
    let (raw, rest) = prefix::<RawReply>(bytes)?;
    let (response, rest) = digest(rest, raw.digest_bytes)?;
    // The challenge has its place also if there is none.
    let (challenge, rest) = digest(rest, raw.digest_bytes)?;
    let public = rest.get(..usize::from(raw.public_bytes.get())).ok_or(Failure::IncorrectPayload)?;
    let challenge = match raw.has_challenge {
        0 => None,
        1 => Some(challenge),
        _ => return Err(Failure::IncorrectPayload),
    };
    Ok(Reply { response, challenge, sequence: raw.sequence.get(), public })
}

fn encode_reply(reply: &Reply<'_>, start: RawStart) -> Vec<u8> {
    let raw = RawReply {
        start,
        digest_bytes: byte(reply.response.len()),
        reserve: 0,
        has_challenge: u8::from(reply.challenge.is_some()),
        reserve2: 0,
        public_bytes: short(reply.public.len()),
        sequence: reply.sequence.into(),
    };
    let none = vec![0; reply.response.len()];
    [raw.as_bytes(), reply.response, reply.challenge.unwrap_or(&none), reply.public].concat()
}

fn parse_success1(bytes: &[u8]) -> Result<Message<'_>, Failure> {
    let (raw, rest) = prefix::<RawSuccess1>(bytes)?;
    let response = match raw.has_response {
        0 => None,
        1 => Some(digest(rest, raw.digest_bytes)?.0),
        _ => return Err(Failure::IncorrectPayload),
    };
    Ok(Message::Success1 { digest_bytes: raw.digest_bytes, response })
}

fn encode_failure(failure: Failure, start: RawStart) -> Vec<u8> {
    RawFailure { start, reason: REASON_FAILED, explanation: failure.number() }.as_bytes().to_vec()
}

fn prefix<T: FromBytes + Immutable + KnownLayout + Unaligned>(bytes: &[u8]) -> Result<(&T, &[u8]), Failure> {
    T::ref_from_prefix(bytes).map_err(|_| Failure::IncorrectPayload)
}

/// The next `length` bytes, which must be as many as some digest has.
fn digest(bytes: &[u8], length: u8) -> Result<(&[u8], &[u8]), Failure> {
    let length = usize::from(length);
    if !HashFunction::ALL.iter().any(|function| function.digest_bytes() == length) {
        return Err(Failure::IncorrectPayload);
    }
    bytes.split_at_checked(length).ok_or(Failure::IncorrectPayload)
}

fn byte(length: usize) -> u8 {
    u8::try_from(length).expect("at most 64")
}

fn short(length: usize) -> U16 {
    u16::try_from(length).expect("at most 1024").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_parses_to_the_same() {
        let digest = [7; 48];
        let public = [9; 384];
        let offer = Offer { functions: HashFunction::ALL.to_vec(), groups: DhGroup::BY_PREFERENCE.to_vec() };
        let (function, group) = (HashFunction::Sha384, DhGroup::Ffdhe3072);
        for message in [
            Message::Negotiate(Negotiate { concatenation: 0, offer: Some(offer) }),
            Message::Negotiate(Negotiate { concatenation: 1, offer: None }),
            Message::Challenge(Challenge {
                function,
                group,
                sequence: 5,
                challenge: &digest,
                public: &public,
            }),
            Message::Reply(Reply {
                response: &digest,
                challenge: Some(&[8; 48]),
                sequence: 6,
                public: &public,
            }),
            Message::Reply(Reply { response: &digest, challenge: None, sequence: 0, public: &[] }),
            Message::Success1 { digest_bytes: 48, response: Some(&digest) },
            Message::Success1 { digest_bytes: 32, response: None },
            Message::Success2,
            Message::Failure1(Failure::GroupUnusable),
            Message::Failure2(Failure::NotAuthentic),
        ] {
            let mut bytes = message.encode(0x1234);
            assert!(bytes.len() <= MESSAGE_BYTES_MAX);
            assert_eq!(Message::parse(&bytes), Ok((0x1234, message.clone())));
            for end in 0..bytes.len() {
                assert!(Message::parse(&bytes[..end]).is_err(), "{message:?} cut at {end}");
            }
            bytes.resize(4096, 0xee);
            assert_eq!(Message::parse(&bytes), Ok((0x1234, message)));
        }
    }

    /// Byte by byte as the specification has it.
    #[test]
    fn a_negotiate_message_is_72_bytes() {
        let offer =
            Offer { functions: vec![HashFunction::Sha256], groups: vec![DhGroup::Null, DhGroup::Ffdhe2048] };
        let bytes = Message::Negotiate(Negotiate { concatenation: 0, offer: Some(offer) }).encode(0x0102);
        assert_eq!(bytes.len(), 72);
        assert_eq!(bytes[..12], [0, 0, 0, 0, 2, 1, 0, 1, 1, 0, 1, 2]);
        assert_eq!((bytes[12], bytes[42], bytes[43]), (1, 0, 1));
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let digest = [7; 32];
        let (function, group) = (HashFunction::Sha256, DhGroup::Null);
        let challenge = Challenge { function, group, sequence: 5, challenge: &digest, public: &[] };
        let good = Message::Challenge(challenge).encode(1);
        // Digest length, hash function, group, length of the public value, sequence 0.
        for (at, value, failure) in [
            (6, 48, Failure::IncorrectPayload),
            (6, 0, Failure::IncorrectPayload),
            (6, 255, Failure::IncorrectPayload),
            (8, 2, Failure::IncorrectPayload),
            (8, 4, Failure::HashFunctionUnusable),
            (9, 1, Failure::IncorrectPayload),
            (9, 6, Failure::GroupUnusable),
            (10, 1, Failure::IncorrectPayload),
            (11, 255, Failure::IncorrectPayload),
            (12, 0, Failure::IncorrectPayload),
            (0, 2, Failure::IncorrectMessage),
            (1, 9, Failure::IncorrectMessage),
        ] {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert_eq!(Message::parse(&bytes), Err(failure), "byte {at} = {value}");
        }
        // More protocols than there are, more ids than fit.
        let offer = Offer { functions: vec![function], groups: vec![group] };
        let good = Message::Negotiate(Negotiate { concatenation: 0, offer: Some(offer) }).encode(1);
        for (at, value) in [(7, 2), (10, 31), (11, 255)] {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert_eq!(Message::parse(&bytes), Err(Failure::IncorrectPayload), "byte {at} = {value}");
        }
    }
}
