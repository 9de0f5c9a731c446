//! What a reservation command changes: decided first, installed when the change is durable.

use super::access::{ReservationType, Standing};
use super::command::{Acquisition, Persistence, Registration, ReservationCommand};
use super::state::{Held, REGISTRANTS_MAX, Registrant, Reservations};
use super::state_file::Synced;
use crate::names::{Host, HostId};
use crate::status::Status;

/// What a registrant hears of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NoticeKind {
    /// Its registration was taken by a preempt.
    RegistrationPreempted,
    /// The reservation was released, or has another type now.
    ReservationReleased,
    /// Its registration was taken by a clear.
    ReservationPreempted,
}

/// A notice for every controller of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Notice {
    /// For which host.
    pub host: HostId,
    /// What happened.
    pub kind: NoticeKind,
}

/// What a command changes. It has no effect before it is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    next: Reservations,
    /// If the state file has to be written before the change is installed.
    pub must_be_durable: bool,
    /// Registrants that a preempt removed. F-I6: once the change is installed, their running commands end before the preempt is
    /// answered.
    pub victims: Vec<Registrant>,
    /// If the victims' running commands are to be aborted rather than waited for.
    pub abort: bool,
    /// Who hears of it.
    pub notices: Vec<Notice>,
}

impl Change {
    /// The state that the change leads to.
    #[must_use]
    pub fn next(&self) -> &Reservations {
        &self.next
    }
}

impl Reservations {
    /// What `command` of `host` changes.
    ///
    /// # Errors
    /// The status to answer with; nothing changes.
    pub fn decide(&self, host: &Host, command: &ReservationCommand) -> Result<Change, Status> {
        let mut draft = Draft::new(self);
        match *command {
            ReservationCommand::Register { registration, persistence } => {
                draft.register(host, registration)?;
                match persistence {
                    Persistence::Unchanged => {}
                    Persistence::Off => draft.next.persists = false,
                    Persistence::On => draft.next.persists = true,
                }
            }
            ReservationCommand::Acquire { key, kind, acquisition } => {
                draft.must_have(host, key)?;
                match acquisition {
                    Acquisition::Acquire => draft.acquire(host, kind)?,
                    Acquisition::Preempt { victims_key, abort } => {
                        draft.preempt(host, kind, victims_key)?;
                        draft.abort = abort;
                    }
                }
            }
            ReservationCommand::Release { key, kind } => {
                draft.must_have(host, key)?;
                draft.release(host, kind)?;
            }
            ReservationCommand::Clear { key } => {
                draft.must_have(host, key)?;
                draft.clear(host);
            }
        }
        Ok(draft.finish(self))
    }

    /// What turning persistence on or off changes, by the feature rather than by a registration.
    #[must_use]
    pub fn decide_persistence(&self, persists: bool) -> Change {
        let mut draft = Draft::new(self);
        draft.next.persists = persists;
        draft.finish(self)
    }

    /// Installs a change. F-I9: one that has to be durable is so by now.
    ///
    /// # Panics
    /// If it has to be durable and `synced` does not say that its state file is, or if it was decided on another state.
    pub fn install(&mut self, change: &Change, synced: Option<&Synced>) {
        let durable = synced.is_some_and(|synced| synced.is_of(&change.next));
        assert!(!change.must_be_durable || durable, "F-I9: a change is durable before it is installed");
        change.next.self_check();
        self.clone_from(&change.next);
    }
}

struct Draft {
    next: Reservations,
    victims: Vec<Registrant>,
    abort: bool,
    notices: Vec<Notice>,
}

impl Draft {
    fn new(now: &Reservations) -> Draft {
        Draft { next: now.clone(), victims: Vec::new(), abort: false, notices: Vec::new() }
    }

    fn finish(mut self, now: &Reservations) -> Change {
        self.notices.sort_unstable();
        self.next.self_check();
        // With persistence off only its end matters: the file then says that there is nothing.
        let must_be_durable = self.next != *now && (self.next.persists || now.persists);
        let Draft { next, victims, abort, notices } = self;
        Change { next, must_be_durable, victims, abort, notices }
    }

    /// Only a registrant with this key goes on.
    fn must_have(&self, host: &Host, key: u64) -> Result<(), Status> {
        match self.next.registration(host) {
            Some(registrant) if registrant.key == key => Ok(()),
            _ => Err(Status::RESERVATION_CONFLICT),
        }
    }

    fn register(&mut self, host: &Host, registration: Registration) -> Result<(), Status> {
        let own = self.next.registrants.iter().position(|registrant| registrant.host == *host);
        let has = |key: Option<u64>, at: usize| key.is_none_or(|key| self.next.registrants[at].key == key);
        match (registration, own) {
            (Registration::Register { new_key }, Some(at)) if has(Some(new_key), at) => {}
            // Replace without regard to the key is without regard to the registration, too.
            (Registration::Register { new_key } | Registration::Replace { key: None, new_key }, None) => {
                // The identifier is another name's: with it this host would be that one.
                if self.next.owner(host.id).is_some() {
                    return Err(Status::RESERVATION_CONFLICT);
                }
                if self.next.registrants.len() == REGISTRANTS_MAX {
                    return Err(Status::INTERNAL_ERROR.without_retry());
                }
                self.next.registrants.push(Registrant { host: host.clone(), key: new_key });
            }
            (Registration::Unregister { key }, Some(at)) if has(key, at) => self.unregister(host.id),
            (Registration::Replace { key, new_key }, Some(at)) if has(key, at) => {
                self.next.registrants[at].key = new_key;
            }
            _ => return Err(Status::RESERVATION_CONFLICT),
        }
        self.count();
        Ok(())
    }

    fn acquire(&mut self, host: &Host, kind: ReservationType) -> Result<(), Status> {
        match self.next.held {
            None => self.hold(host, kind),
            Some(held) if held.kind == kind && self.next.standing(host) == Standing::Holder => {}
            Some(_) => return Err(Status::RESERVATION_CONFLICT),
        }
        Ok(())
    }

    fn preempt(&mut self, host: &Host, kind: ReservationType, victims_key: u64) -> Result<(), Status> {
        let holders_key = self.next.held.and_then(|held| held.holder).and_then(|holder| self.key_of(holder));
        let is_all = self.next.held.is_some_and(|held| held.holder.is_none());
        match holders_key {
            // The reservation itself is preempted; the host keeps its registration, also if it has the same key.
            Some(holders_key) if holders_key == victims_key => {
                self.take(|registrant| registrant.key == victims_key && registrant.host != *host);
                self.hold_instead(host, kind);
            }
            Some(_) if victims_key == 0 => return Err(Status::INVALID_FIELD),
            None if is_all && victims_key == 0 => {
                self.take(|registrant| registrant.host != *host);
                self.hold_instead(host, kind);
            }
            // Only registrations are preempted, perhaps the host's own.
            _ => {
                let had = self.next.registrants.len();
                self.take(|registrant| registrant.key == victims_key);
                if self.next.registrants.len() == had {
                    return Err(Status::RESERVATION_CONFLICT);
                }
            }
        }
        self.victims.retain(|victim| victim.host != *host);
        let to_victims = self.victims.iter().map(|victim| victim.host.id);
        let kind = NoticeKind::RegistrationPreempted;
        self.notices.extend(to_victims.map(|host| Notice { host, kind }));
        self.count();
        Ok(())
    }

    fn release(&mut self, host: &Host, kind: u8) -> Result<(), Status> {
        let Some(held) = self.next.held.filter(|_| self.next.standing(host) == Standing::Holder) else {
            return Ok(());
        };
        if held.kind.number() != kind {
            return Err(Status::INVALID_FIELD);
        }
        self.next.held = None;
        if held.kind.is_registrants_only() || held.kind.is_all_registrants() {
            self.notify_registrants_but(host.id);
        }
        Ok(())
    }

    fn clear(&mut self, host: &Host) {
        self.next.held = None;
        let others = self.next.registrants.drain(..).map(|registrant| registrant.host.id);
        let kind = NoticeKind::ReservationPreempted;
        self.notices.extend(others.filter(|id| *id != host.id).map(|host| Notice { host, kind }));
        self.count();
    }

    /// Registrants that fit are victims, and no registrants any more.
    fn take(&mut self, fits: impl Fn(&Registrant) -> bool) {
        let (victims, stay) = self.next.registrants.drain(..).partition(fits);
        self.next.registrants = stay;
        self.victims = victims;
        if self.next.registrants.is_empty() {
            self.next.held = None;
        }
    }

    fn unregister(&mut self, id: HostId) {
        self.next.registrants.retain(|registrant| registrant.host.id != id);
        match self.next.held {
            Some(held) if held.holder == Some(id) => {
                self.next.held = None;
                // The others lose what they could do as registrants.
                if held.kind.is_registrants_only() {
                    self.notify_registrants_but(id);
                }
            }
            Some(held) if held.holder.is_none() && self.next.registrants.is_empty() => self.next.held = None,
            _ => {}
        }
    }

    fn hold(&mut self, host: &Host, kind: ReservationType) {
        let holder = (!kind.is_all_registrants()).then_some(host.id);
        self.next.held = Some(Held { kind, holder });
    }

    /// Holds instead of those that held before; the other registrants hear of another type.
    fn hold_instead(&mut self, host: &Host, kind: ReservationType) {
        let before = self.next.held.map(|held| held.kind);
        self.hold(host, kind);
        if before != Some(kind) {
            self.notify_registrants_but(host.id);
        }
    }

    fn notify_registrants_but(&mut self, id: HostId) {
        let kind = NoticeKind::ReservationReleased;
        let others = self.next.registrants.iter().map(|registrant| registrant.host.id);
        self.notices.extend(others.filter(|other| *other != id).map(|host| Notice { host, kind }));
    }

    fn key_of(&self, id: HostId) -> Option<u64> {
        self.next
            .registrants
            .iter()
            .find(|registrant| registrant.host.id == id)
            .map(|registrant| registrant.key)
    }

    fn count(&mut self) {
        self.next.generation = self.next.generation.wrapping_add(1);
    }
}
