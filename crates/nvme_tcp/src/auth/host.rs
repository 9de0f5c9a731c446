//! The host's side.

use super::group::{DhGroup, DhKeys};
use super::message::{Challenge, Failure, Message, Negotiate, Offer, Reply};
use super::response::{Exchange, Names, Prover, Randomness, session_key};
use super::secret::Secret;
use crate::hash::HashFunction;

/// What a host authenticates with.
pub struct HostSettings {
    /// Both names.
    pub names: Names,
    /// The host's secret.
    pub secret: Secret,
    /// The subsystem's secret, if the controller has to prove that it has it.
    pub subsystem_secret: Option<Secret>,
    /// What may be used.
    pub functions: Vec<HashFunction>,
    /// What may be used.
    pub groups: Vec<DhGroup>,
}

/// What a host does after a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostStep {
    /// The message to send, if any.
    pub send: Option<Vec<u8>>,
    /// Set at the end: authenticated, or why not.
    pub end: Option<Result<(), Failure>>,
}

/// One authentication of one queue.
pub struct HostExchange {
    settings: HostSettings,
    randomness: Randomness,
    transaction: u16,
    state: State,
}

enum State {
    AwaitChallenge,
    /// `expected` is the controller's response, if it was challenged.
    AwaitSuccess {
        expected: Option<zeroize::Zeroizing<Vec<u8>>>,
        function: HashFunction,
    },
    Ended,
}

impl HostExchange {
    /// Begins; the message is the first to send.
    #[must_use]
    pub fn begin(
        settings: HostSettings,
        randomness: Randomness,
        transaction: u16,
    ) -> (HostExchange, Vec<u8>) {
        let offer = Offer { functions: settings.functions.clone(), groups: settings.groups.clone() };
        let first =
            Message::Negotiate(Negotiate { concatenation: 0, offer: Some(offer) }).encode(transaction);
        (HostExchange { settings, randomness, transaction, state: State::AwaitChallenge }, first)
    }

    /// Takes the controller's next message.
    pub fn receive(&mut self, bytes: &[u8]) -> HostStep {
        let state = std::mem::replace(&mut self.state, State::Ended);
        let taken = match Message::parse(bytes) {
            Err(failure) => Err(failure),
            // The controller's word that it is over needs no answer.
            Ok((_, Message::Failure1(failure))) => return HostStep { send: None, end: Some(Err(failure)) },
            Ok((transaction, _)) if transaction != self.transaction => Err(Failure::IncorrectMessage),
            Ok((_, message)) => self.take(state, &message),
        };
        taken.unwrap_or_else(|failure| HostStep {
            send: Some(Message::Failure2(failure).encode(self.transaction)),
            end: Some(Err(failure)),
        })
    }

    fn take(&mut self, state: State, message: &Message<'_>) -> Result<HostStep, Failure> {
        match (state, message) {
            (State::AwaitChallenge, Message::Challenge(challenge)) => {
                let send = self.reply(challenge)?;
                Ok(HostStep { send: Some(send), end: None })
            }
            (State::AwaitSuccess { expected: None, .. }, Message::Success1 { .. }) => {
                Ok(HostStep { send: None, end: Some(Ok(())) })
            }
            (
                State::AwaitSuccess { expected: Some(expected), function },
                Message::Success1 { response, .. },
            ) => {
                // Compared as codes of a key of the moment, so that time says nothing of where they differ.
                let response = response.ok_or(Failure::NotAuthentic)?;
                let key = &self.randomness.challenge;
                if !function.hmac_is(key, &[response], &function.hmac(key, &[&expected])) {
                    return Err(Failure::NotAuthentic);
                }
                let send = Message::Success2.encode(self.transaction);
                Ok(HostStep { send: Some(send), end: Some(Ok(())) })
            }
            _ => Err(Failure::IncorrectMessage),
        }
    }

    fn reply(&mut self, challenge: &Challenge<'_>) -> Result<Vec<u8>, Failure> {
        let HostSettings { names, secret, subsystem_secret, functions, groups } = &self.settings;
        let function = challenge.function;
        if !functions.contains(&function) {
            return Err(Failure::HashFunctionUnusable);
        }
        if !groups.contains(&challenge.group) {
            return Err(Failure::GroupUnusable);
        }
        let own_challenge = self.randomness.challenge(function);
        // A controller that is challenged with its own challenge could let the host answer for it.
        if own_challenge == challenge.challenge {
            return Err(Failure::IncorrectPayload);
        }
        let keys = DhKeys::new(challenge.group, &self.randomness.private);
        let session_key = session_key(function, keys.as_ref(), challenge.public)?;
        let session_key = session_key.as_ref().map(|key| key.as_slice());
        let transaction = self.transaction;
        let exchange = Exchange { function, names, transaction, session_key };
        let key = secret.key_of(&names.host);
        let response = exchange.proof(Prover::Host, &key, challenge.challenge, challenge.sequence).response();

        let expected = subsystem_secret.as_ref().map(|secret| {
            let key = secret.key_of(&names.subsystem);
            exchange.proof(Prover::Controller, &key, own_challenge, self.randomness.sequence()).response()
        });
        let wants_proof = expected.is_some();
        let reply = Reply {
            response: &response,
            challenge: wants_proof.then_some(own_challenge),
            sequence: if wants_proof { self.randomness.sequence() } else { 0 },
            public: keys.as_ref().map_or(&[], DhKeys::public),
        };
        let bytes = Message::Reply(reply).encode(transaction);
        self.state = State::AwaitSuccess { expected, function };
        Ok(bytes)
    }
}
