//! The state of one namespace's reservations, and what may be asked of it.

use super::access::{AccessRule, CommandClass, ReservationType, Standing};
use crate::names::{Host, HostId};
use crate::status::Status;

/// Registrants that a namespace has room for.
pub const REGISTRANTS_MAX: usize = 128;

/// A host that is registered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Registrant {
    /// Which.
    pub host: Host,
    /// Its key, never 0.
    pub key: u64,
}

/// A reservation that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Held {
    pub(super) kind: ReservationType,
    /// `None`: every registrant holds it, as the type says.
    pub(super) holder: Option<HostId>,
}

/// Registrants and reservation of a namespace.
///
/// The holder is a registrant; a reservation that every registrant holds has at least one; no host is registered twice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Reservations {
    pub(super) generation: u32,
    pub(super) persists: bool,
    pub(super) registrants: Vec<Registrant>,
    pub(super) held: Option<Held>,
}

impl Held {
    /// Its type.
    #[must_use]
    pub fn kind(self) -> ReservationType {
        self.kind
    }

    /// The one host that holds it; `None` if every registrant does.
    #[must_use]
    pub fn holder(self) -> Option<HostId> {
        self.holder
    }
}

impl Reservations {
    /// No host is registered. What follows persists, as long as no host asks for something else.
    #[must_use]
    pub fn none() -> Reservations {
        Reservations { generation: 0, persists: true, registrants: Vec::new(), held: None }
    }

    /// Counts what registrants should notice: registrations, preempts, clears.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// If registrants and reservation outlive a loss of power.
    #[must_use]
    pub fn persists(&self) -> bool {
        self.persists
    }

    /// All registrants, in the order in which they came.
    #[must_use]
    pub fn registrants(&self) -> &[Registrant] {
        &self.registrants
    }

    /// The reservation, if one is held.
    #[must_use]
    pub fn held(&self) -> Option<Held> {
        self.held
    }

    /// What a host is. The same identifier under another name is a stranger.
    #[must_use]
    pub fn standing(&self, host: &Host) -> Standing {
        if self.registration(host).is_none() {
            return Standing::Stranger;
        }
        match self.held {
            Some(held) if held.holder.is_none_or(|holder| holder == host.id) => Standing::Holder,
            _ => Standing::Registrant,
        }
    }

    /// F-I6: whether a command of `host` may begin.
    ///
    /// # Errors
    /// Reservation Conflict.
    pub fn admit(&self, host: &Host, class: CommandClass) -> Result<(), Status> {
        match self.held {
            Some(held) if !AccessRule::allows(held.kind, self.standing(host), class) => {
                Err(Status::RESERVATION_CONFLICT)
            }
            _ => Ok(()),
        }
    }

    /// The host that an identifier belongs to here.
    #[must_use]
    pub fn owner(&self, id: HostId) -> Option<&Host> {
        self.registrants.iter().map(|registrant| &registrant.host).find(|host| host.id == id)
    }

    pub(super) fn registration(&self, host: &Host) -> Option<&Registrant> {
        self.registrants.iter().find(|registrant| registrant.host == *host)
    }

    /// The state as it is after a loss of power.
    #[must_use]
    pub fn after_power_loss(&self) -> Reservations {
        match self.persists {
            true => self.clone(),
            false => Reservations { persists: false, ..Reservations::none() },
        }
    }

    /// Checks what must always hold, after every change and before a state file is written.
    ///
    /// # Panics
    /// If it does not.
    pub(super) fn self_check(&self) {
        assert!(self.registrants.len() <= REGISTRANTS_MAX, "too many registrants");
        for (at, registrant) in self.registrants.iter().enumerate() {
            let twin = self.registrants[at + 1..].iter().find(|other| other.host.id == registrant.host.id);
            assert!(twin.is_none() && registrant.key != 0, "{registrant:?}, {twin:?}");
        }
        match self.held {
            None => {}
            Some(Held { kind, holder: None }) => {
                assert!(kind.is_all_registrants() && !self.registrants.is_empty(), "{self:?}");
            }
            Some(Held { kind, holder: Some(holder) }) => {
                assert!(!kind.is_all_registrants() && self.owner(holder).is_some(), "{self:?}");
            }
        }
    }
}
