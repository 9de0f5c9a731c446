//! What is proved, and the bytes that it is computed from.

use zeroize::Zeroizing;

use super::group::{DhKeys, PRIVATE_BYTES};
use super::message::Failure;
use crate::hash::HashFunction;

/// Random bytes of a challenge; a shorter digest uses the first of them.
pub const CHALLENGE_BYTES: usize = 64;

/// The names of both sides, as they stand in the queue's Connect command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Of the host.
    pub host: String,
    /// Of the subsystem.
    pub subsystem: String,
}

/// Random bytes for one exchange, never used twice.
pub struct Randomness {
    /// The challenge.
    pub challenge: [u8; CHALLENGE_BYTES],
    /// The private Diffie-Hellman value.
    pub private: Zeroizing<[u8; PRIVATE_BYTES]>,
    /// The number that goes with the challenge; 0 becomes 1.
    pub sequence: u32,
}

impl Randomness {
    /// Made of bytes that `fill` draws.
    ///
    /// # Errors
    /// What `fill` says.
    pub fn draw<E>(mut fill: impl FnMut(&mut [u8]) -> Result<(), E>) -> Result<Randomness, E> {
        let (mut challenge, mut private) = ([0; CHALLENGE_BYTES], Zeroizing::new([0; PRIVATE_BYTES]));
        let mut sequence = [0; 4];
        fill(&mut challenge)?;
        fill(private.as_mut_slice())?;
        fill(&mut sequence)?;
        Ok(Randomness { challenge, private, sequence: u32::from_le_bytes(sequence) })
    }

    /// The number of the challenge, which is never 0: 0 says that there is no challenge.
    pub(super) fn sequence(&self) -> u32 {
        self.sequence.max(1)
    }

    /// As much of the challenge as a digest of `function` is long.
    pub(super) fn challenge(&self, function: HashFunction) -> &[u8] {
        &self.challenge[..function.digest_bytes()]
    }
}

/// Which side proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prover {
    Host,
    Controller,
}

/// What is the same for both proofs of an exchange.
#[derive(Clone, Copy)]
pub(super) struct Exchange<'a> {
    pub(super) function: HashFunction,
    pub(super) names: &'a Names,
    pub(super) transaction: u16,
    /// Hashed value of the Diffie-Hellman exchange, if there was one.
    pub(super) session_key: Option<&'a [u8]>,
}

/// One proof: the response to a challenge, by the key of `prover`.
pub(super) struct Proof<'a> {
    exchange: Exchange<'a>,
    prover: Prover,
    key: &'a [u8],
    challenge: &'a [u8],
    sequence: u32,
}

impl<'a> Exchange<'a> {
    /// `key` is the prover's secret as its name transforms it; `sequence` goes with the challenge.
    pub(super) fn proof(
        self,
        prover: Prover,
        key: &'a [u8],
        challenge: &'a [u8],
        sequence: u32,
    ) -> Proof<'a> {
        Proof { exchange: self, prover, key, challenge, sequence }
    }
}

impl Proof<'_> {
    pub(super) fn response(&self) -> Zeroizing<Vec<u8>> {
        self.with_parts(|parts| self.exchange.function.hmac(self.key, parts))
    }

    /// If `response` is right, found out in the same time for each wrong one.
    pub(super) fn is(&self, response: &[u8]) -> bool {
        self.with_parts(|parts| self.exchange.function.hmac_is(self.key, parts, response))
    }

    fn with_parts<R>(&self, run: impl FnOnce(&[&[u8]]) -> R) -> R {
        let Exchange { function, names, transaction, session_key } = self.exchange;
        let augmented = session_key.map(|key| function.hmac(key, &[self.challenge]));
        let challenge = augmented.as_ref().map_or(self.challenge, |augmented| augmented.as_slice());
        let (role, prover, other): (&[u8], _, _) = match self.prover {
            Prover::Host => (b"HostHost", &names.host, &names.subsystem),
            Prover::Controller => (b"Controller", &names.subsystem, &names.host),
        };
        let (sequence, transaction) = (self.sequence.to_le_bytes(), transaction.to_le_bytes());
        // The zero before the role says that no secure channel is made of this.
        let zero = [0];
        run(&[challenge, &sequence, &transaction, &zero, role, prover.as_bytes(), &zero, other.as_bytes()])
    }
}

/// The session key: the digest of what both sides' values make. `None` of the null group.
pub(super) fn session_key(
    function: HashFunction,
    keys: Option<&DhKeys>,
    public: &[u8],
) -> Result<Option<Zeroizing<Vec<u8>>>, Failure> {
    match keys {
        None if public.is_empty() => Ok(None),
        None => Err(Failure::IncorrectPayload),
        Some(keys) => {
            let shared = keys.agree(public).map_err(|_| Failure::IncorrectPayload)?;
            Ok(Some(function.digest(&shared)))
        }
    }
}
