//! The controller's side.

use super::group::{DhGroup, DhKeys};
use super::message::{Challenge, Failure, Message, Negotiate, Reply};
use super::response::{Exchange, Names, Prover, Randomness, session_key};
use super::secret::Secret;
use crate::hash::HashFunction;

/// What a controller authenticates with.
pub struct ControllerSettings {
    /// Both names.
    pub names: Names,
    /// The host's secret; a host without one fails as one with a wrong one does.
    pub host_secret: Option<Secret>,
    /// The subsystem's own secret, for hosts that want proof.
    pub secret: Option<Secret>,
    /// What may be used, best first.
    pub functions: Vec<HashFunction>,
    /// What may be used, best first.
    pub groups: Vec<DhGroup>,
}

/// One authentication of one queue. Authentication Send goes to [`ControllerExchange::receive`], Authentication Receive asks
/// [`ControllerExchange::answer`].
pub struct ControllerExchange {
    settings: ControllerSettings,
    randomness: Randomness,
    transaction: u16,
    state: State,
}

enum State {
    AwaitNegotiate,
    /// The challenge is made and not yet fetched, or fetched and not yet answered.
    Challenged {
        function: HashFunction,
        keys: Option<DhKeys>,
        fetched: Option<Vec<u8>>,
    },
    /// The host is authentic; it has to fetch the answer, and to approve of it if it asked for proof.
    Proved {
        answer: Option<Vec<u8>>,
        wants_proof: bool,
    },
    /// The host has to fetch the reason.
    Refused {
        answer: Option<Vec<u8>>,
        failure: Failure,
    },
    Ended(Result<(), Failure>),
}

impl ControllerExchange {
    /// Waits for the host's first message.
    #[must_use]
    pub fn new(settings: ControllerSettings, randomness: Randomness) -> ControllerExchange {
        ControllerExchange { settings, randomness, transaction: 0, state: State::AwaitNegotiate }
    }

    /// The end, once it is reached: authenticated, or why not.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<(), Failure>> {
        match &self.state {
            State::Ended(outcome) => Some(*outcome),
            State::Refused { failure, .. } => Some(Err(*failure)),
            State::AwaitNegotiate | State::Challenged { .. } | State::Proved { .. } => None,
        }
    }

    /// Takes the host's next message.
    pub fn receive(&mut self, bytes: &[u8]) {
        let refused = State::Refused { answer: None, failure: Failure::IncorrectMessage };
        let state = std::mem::replace(&mut self.state, refused);
        let taken = match (Message::parse(bytes), state) {
            // It is over, whatever else is said.
            (_, state @ (State::Ended(Err(_)) | State::Refused { .. })) => Ok(state),
            (Err(failure), _) => Err(failure),
            (Ok((transaction, Message::Negotiate(negotiate))), State::AwaitNegotiate) => {
                self.transaction = transaction;
                self.negotiate(&negotiate)
            }
            (Ok((transaction, _)), _) if transaction != self.transaction => Err(Failure::IncorrectMessage),
            (Ok((_, Message::Failure2(failure))), _) => Ok(State::Ended(Err(failure))),
            (Ok((_, Message::Reply(reply))), State::Challenged { function, keys, fetched: None }) => {
                self.verify(&reply, function, keys.as_ref())
            }
            (Ok((_, Message::Success2)), State::Proved { answer: None, wants_proof: true }) => {
                Ok(State::Ended(Ok(())))
            }
            (Ok(_), _) => Err(Failure::IncorrectMessage),
        };
        self.state = taken.unwrap_or_else(|failure| {
            let answer = Message::Failure1(failure).encode(self.transaction);
            State::Refused { answer: Some(answer), failure }
        });
    }

    /// The next message for the host; `None` if it is the host's turn, which is an error of its sequence of commands.
    pub fn answer(&mut self) -> Option<Vec<u8>> {
        match &mut self.state {
            State::Challenged { fetched, .. } => fetched.take(),
            State::Refused { answer, .. } => answer.take(),
            State::Proved { answer, wants_proof } => {
                let (answer, wants_proof) = (answer.take(), *wants_proof);
                if answer.is_some() && !wants_proof {
                    self.state = State::Ended(Ok(()));
                }
                answer
            }
            State::AwaitNegotiate | State::Ended(_) => None,
        }
    }

    fn negotiate(&self, negotiate: &Negotiate) -> Result<State, Failure> {
        if negotiate.concatenation != 0 {
            return Err(Failure::ConcatenationMismatch);
        }
        let offer = negotiate.offer.as_ref().ok_or(Failure::ProtocolUnusable)?;
        let function = self.settings.functions.iter().copied().find(|known| offer.functions.contains(known));
        let function = function.ok_or(Failure::HashFunctionUnusable)?;
        let group = self.settings.groups.iter().copied().find(|known| offer.groups.contains(known));
        let group = group.ok_or(Failure::GroupUnusable)?;
        let keys = DhKeys::new(group, &self.randomness.private);
        let challenge = Challenge {
            function,
            group,
            sequence: self.randomness.sequence(),
            challenge: self.randomness.challenge(function),
            public: keys.as_ref().map_or(&[], DhKeys::public),
        };
        let fetched = Some(Message::Challenge(challenge).encode(self.transaction));
        Ok(State::Challenged { function, keys, fetched })
    }

    fn verify(
        &self,
        reply: &Reply<'_>,
        function: HashFunction,
        keys: Option<&DhKeys>,
    ) -> Result<State, Failure> {
        let ControllerSettings { names, host_secret, secret, .. } = &self.settings;
        if reply.response.len() != function.digest_bytes() {
            return Err(Failure::IncorrectPayload);
        }
        let session_key = session_key(function, keys, reply.public)?;
        let session_key = session_key.as_ref().map(|key| key.as_slice());
        let transaction = self.transaction;
        // Without a secret a key of the moment stands in: the same is computed, and no response fits it.
        let key = match host_secret {
            Some(secret) => secret.key_of(&names.host),
            None => function.digest(self.randomness.private.as_slice()),
        };
        let (challenge, sequence) = (self.randomness.challenge(function), self.randomness.sequence());
        let exchange = Exchange { function, names, transaction, session_key };
        let proof = exchange.proof(Prover::Host, &key, challenge, sequence);
        if !proof.is(reply.response) || host_secret.is_none() {
            return Err(Failure::NotAuthentic);
        }
        let response = match (reply.challenge, secret) {
            (None, _) => None,
            // The host wants proof and there is nothing to prove with.
            (Some(_), None) => return Err(Failure::NotAuthentic),
            (Some(challenge), Some(secret)) => {
                let key = secret.key_of(&names.subsystem);
                Some(exchange.proof(Prover::Controller, &key, challenge, reply.sequence).response())
            }
        };
        let response = response.as_ref().map(|response| response.as_slice());
        let digest_bytes = u8::try_from(function.digest_bytes()).expect("at most 64");
        let answer = Some(Message::Success1 { digest_bytes, response }.encode(transaction));
        Ok(State::Proved { answer, wants_proof: reply.challenge.is_some() })
    }
}
