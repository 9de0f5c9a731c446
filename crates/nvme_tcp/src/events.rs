//! Asynchronous events: requests of the host that wait, what happened meanwhile, and what the host reads of it.
//!
//! An event is told once. It is told again only after its log page was read, so a host that is slow gets one event and not a
//! thousand. What happened while it was not told is in the log page.

use std::collections::VecDeque;

use crate::log_page::page;
use crate::status::Status;

/// Requests that may wait.
pub const REQUESTS_MAX: usize = 4;

/// What a host may hear of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AsyncEvent {
    /// A namespace came, went, or changed.
    NamespaceChanged,
    /// Asymmetric access changed.
    AnaChanged,
    /// The discovery log page changed.
    DiscoveryChanged,
    /// Reliability is degraded.
    Unreliable,
    /// A notice of reservations waits.
    Reservation,
}

/// Event, type, information, log page, and the bit that turns it on; 0: it is always on.
const TABLE: [(AsyncEvent, u8, u8, u8, u32); 5] = [
    (AsyncEvent::NamespaceChanged, 2, 0x00, page::CHANGED_NAMESPACES, 1 << 8),
    (AsyncEvent::AnaChanged, 2, 0x03, page::ANA, 1 << 11),
    (AsyncEvent::DiscoveryChanged, 2, 0xf0, page::DISCOVERY, 1 << 31),
    (AsyncEvent::Unreliable, 1, 0x00, page::HEALTH, 1 << 2),
    (AsyncEvent::Reservation, 6, 0x00, page::RESERVATIONS, 0),
];

/// Where the type stands in the first byte.
const KIND: u8 = 0b111;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Told {
    No,
    /// It happened and was not told yet.
    Due,
    /// It was told; not again before its page is read.
    Masked,
}

/// The events of one controller.
#[derive(Clone, Debug)]
pub struct AsyncEvents {
    /// Which events the host wants, as bits of Asynchronous Event Configuration.
    enabled: u32,
    told: [Told; TABLE.len()],
    requests: VecDeque<u16>,
}

impl Default for AsyncEvents {
    fn default() -> AsyncEvents {
        AsyncEvents { enabled: 0, told: [Told::No; TABLE.len()], requests: VecDeque::new() }
    }
}

impl AsyncEvents {
    /// Bits of Asynchronous Event Configuration that mean something to a controller of namespaces.
    #[must_use]
    pub fn known(has_ana: bool) -> u32 {
        1 << 2 | 1 << 8 | if has_ana { 1 << 11 } else { 0 }
    }

    /// The same of a discovery controller.
    pub const KNOWN_BY_DISCOVERY: u32 = 1 << 31;

    /// Which events the host wants.
    #[must_use]
    pub fn enabled(&self) -> u32 {
        self.enabled
    }

    /// The host wants these events from now on.
    pub fn enable(&mut self, bits: u32) {
        self.enabled = bits;
    }

    /// A request with command id `command` waits.
    ///
    /// # Errors
    /// Asynchronous Event Request Limit Exceeded.
    pub fn wait(&mut self, command: u16) -> Result<(), Status> {
        if self.requests.len() == REQUESTS_MAX {
            return Err(Status::ASYNC_EVENT_LIMIT);
        }
        self.requests.push_back(command);
        Ok(())
    }

    /// The host gave a request up.
    ///
    /// Returns if it waited.
    pub fn abort(&mut self, command: u16) -> bool {
        let had = self.requests.len();
        self.requests.retain(|waiting| *waiting != command);
        self.requests.len() != had
    }

    /// Something happened.
    pub fn happened(&mut self, event: AsyncEvent) {
        for ((known, _, _, _, bit), told) in TABLE.iter().zip(&mut self.told) {
            let is_on = *bit == 0 || self.enabled & bit != 0;
            if *known == event && *told == Told::No && is_on {
                *told = Told::Due;
            }
        }
    }

    /// The host read a log page, and wants to hear of its event again.
    pub fn read(&mut self, page: u8) {
        for ((_, _, _, of, _), told) in TABLE.iter().zip(&mut self.told) {
            if *of == page {
                *told = Told::No;
            }
        }
    }

    /// The next request to complete: its command id and dword 0 of its completion.
    pub fn next_completion(&mut self) -> Option<(u16, u32)> {
        let (row, told) = TABLE.iter().zip(&mut self.told).find(|(_, told)| **told == Told::Due)?;
        let command = self.requests.pop_front()?;
        *told = Told::Masked;
        let (_, kind, information, page, _) = *row;
        Some((command, u32::from(kind) | u32::from(information) << 8 | u32::from(page) << 16))
    }
}

/// An event as a host hears of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heard {
    /// What happened; none: something that is not known here.
    pub event: Option<AsyncEvent>,
    /// The log page that says more. The event is not told again before it was read.
    pub page: u8,
}

impl Heard {
    /// What a completion with this dword 0 says.
    #[must_use]
    pub fn parse(dword0: u32) -> Heard {
        let [kind, information, page, _] = dword0.to_le_bytes();
        let is_it = |row: &&(AsyncEvent, u8, u8, u8, u32)| match row.0 {
            // Which notice it is stands in the page.
            AsyncEvent::Reservation => row.1 == kind & KIND,
            _ => (row.1, row.2) == (kind & KIND, information),
        };
        Heard { event: TABLE.iter().find(is_it).map(|row| row.0), page }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_hears_what_a_controller_tells() {
        for (event, kind, information, page, bit) in TABLE {
            let mut events = AsyncEvents::default();
            events.enable(bit);
            events.wait(1).unwrap();
            events.happened(event);
            let (_, dword0) = events.next_completion().unwrap();
            assert_eq!(Heard::parse(dword0), Heard { event: Some(event), page }, "{kind} {information}");
        }
        // Another target's: a reservation was released, an error of a kind that is not known here.
        assert_eq!(Heard::parse(0x0080_0206).event, Some(AsyncEvent::Reservation));
        assert_eq!(Heard::parse(0x0001_0300), Heard { event: None, page: page::ERRORS });
        assert_eq!(Heard::parse(u32::MAX).event, None);
    }

    #[test]
    fn an_event_is_told_once_until_its_page_is_read() {
        let mut events = AsyncEvents::default();
        events.enable(AsyncEvents::known(true));
        events.happened(AsyncEvent::NamespaceChanged);
        assert_eq!(events.next_completion(), None, "no request waits");
        events.wait(7).unwrap();
        events.wait(8).unwrap();
        assert_eq!(events.next_completion(), Some((7, 0x0004_0002)));
        events.happened(AsyncEvent::NamespaceChanged);
        assert_eq!(events.next_completion(), None, "masked");
        events.happened(AsyncEvent::AnaChanged);
        assert_eq!(events.next_completion(), Some((8, 0x000c_0302)));
        events.read(page::CHANGED_NAMESPACES);
        events.happened(AsyncEvent::NamespaceChanged);
        events.wait(9).unwrap();
        assert_eq!(events.next_completion(), Some((9, 0x0004_0002)));
    }

    #[test]
    fn what_is_not_wanted_is_not_told() {
        let mut events = AsyncEvents::default();
        events.wait(1).unwrap();
        events.happened(AsyncEvent::NamespaceChanged);
        events.happened(AsyncEvent::DiscoveryChanged);
        assert_eq!(events.next_completion(), None);
        events.happened(AsyncEvent::Reservation);
        assert_eq!(events.next_completion(), Some((1, 0x0080_0006)), "always on");
    }

    #[test]
    fn requests_have_a_limit_and_can_be_given_up() {
        let mut events = AsyncEvents::default();
        for command in 0..4 {
            events.wait(command).unwrap();
        }
        assert_eq!(events.wait(4), Err(Status::ASYNC_EVENT_LIMIT));
        assert!(events.abort(0) && !events.abort(0));
        events.happened(AsyncEvent::Reservation);
        assert_eq!(events.next_completion().map(|(command, _)| command), Some(1));
    }
}
