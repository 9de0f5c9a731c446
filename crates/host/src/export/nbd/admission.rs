//! Which clients get a connection, so that no client can keep out the others.
//!
//! No peer holds more connections than it leaves free: one alone gets half, a second one half of the rest, and the last ones are
//! for peers with few. Where a peer, or all together, have as many as they may, the oldest connection that has chosen no export
//! makes room; one that serves is never closed for a newcomer, however idle it is.

use std::net::IpAddr;

/// What connections are counted by: a host, or on this machine a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A host. Of IPv6 a network of 64 bits: a host has as many addresses there as it likes.
    Host(IpAddr),
    /// A process of this machine, by its number.
    Process(i32),
    /// The system does not say.
    Unknown,
}

impl Peer {
    /// The host with this address.
    pub fn host(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V6(address) => Peer::Host(IpAddr::V6((address.to_bits() >> 64 << 64).into())),
            address @ IpAddr::V4(_) => Peer::Host(address),
        }
    }
}

/// An open connection, as far as it matters here. They come in the order of their age, the oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub id: u64,
    pub peer: Peer,
    /// It has chosen no export yet.
    pub in_handshake: bool,
}

/// What becomes of a newcomer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Welcome,
    /// Once this connection has been closed.
    InsteadOf(u64),
    TurnedAway,
}

/// Decides about a newcomer from `peer`.
pub(super) fn decide(most: usize, held: &(impl Iterator<Item = Held> + Clone), peer: Peer) -> Verdict {
    let all = held.clone().count();
    let own = held.clone().filter(|held| held.peer == peer).count();
    if all < most && own < most - all {
        return Verdict::Welcome;
    }
    let undecided = |held: &Held| held.in_handshake;
    // A peer with more than its part makes room by its own connections only.
    let is_its_own = |held: &Held| held.in_handshake && held.peer == peer;
    let oldest = held.clone().find(is_its_own).or_else(|| {
        let is_its_turn = own == 0 || own < most.saturating_sub(all.saturating_sub(1));
        held.clone().find(undecided).filter(|_| is_its_turn)
    });
    oldest.map_or(Verdict::TurnedAway, |held| Verdict::InsteadOf(held.id))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the connections of these peers, in turn, come to; a lower-case letter never chooses an export.
    fn verdicts(most: usize, peers: &str) -> String {
        let mut held: Vec<Held> = Vec::new();
        let peer = |letter: char| Peer::Process(letter.to_ascii_lowercase() as i32);
        let mut come = |(id, letter): (u64, char)| {
            let verdict = decide(most, &held.iter().copied(), peer(letter));
            let new = Held { id, peer: peer(letter), in_handshake: letter.is_lowercase() };
            match verdict {
                Verdict::TurnedAway => return '-',
                Verdict::InsteadOf(oldest) => held.retain(|held| held.id != oldest),
                Verdict::Welcome => {}
            }
            held.push(new);
            assert!(held.len() <= most);
            if verdict == Verdict::Welcome { '+' } else { '!' }
        };
        (0..).zip(peers.chars()).map(&mut come).collect()
    }

    #[test]
    fn one_peer_gets_half_and_the_rest_is_for_others() {
        assert_eq!(verdicts(8, "AAAAAAAAAA"), "++++------");
        assert_eq!(verdicts(8, "AAAABBBBCCCDE"), "++++++--+--+-", "each leaves as much as it holds");
        assert_eq!(verdicts(1, "AA"), "+-");
    }

    #[test]
    fn the_oldest_that_has_not_chosen_makes_room() {
        assert_eq!(verdicts(8, "aaaaaaaa"), "++++!!!!", "its own");
        assert_eq!(verdicts(4, "abcdE"), "++++!", "of anyone, where all are taken");
        assert_eq!(verdicts(4, "ABCDE"), "++++-", "never one that serves");
        assert_eq!(verdicts(8, "AAAAa"), "++++-", "nor for the handshake of a peer with its part");
    }

    #[test]
    fn a_network_is_one_peer() {
        let host = |text: &str| Peer::host(text.parse().expect("an address"));
        assert_eq!(host("2001:db8:0:1::1"), host("2001:db8:0:1:ffff::2"));
        assert_ne!(host("2001:db8:0:1::1"), host("2001:db8:0:2::1"));
        assert_ne!(host("10.0.0.1"), host("10.0.0.2"));
        assert_eq!(host("::ffff:10.0.0.1"), host("10.0.0.1"));
    }
}
