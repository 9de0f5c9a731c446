//! Features: what a host may set and get.

use std::collections::BTreeMap;

use crate::events::AsyncEvents;
use crate::names::HostId;
use crate::reservation::NoticeKind;
use crate::status::Status;

/// Numbers of features.
pub mod feature {
    /// How commands of several queues take turns.
    pub const ARBITRATION: u8 = 0x01;
    /// Power states.
    pub const POWER: u8 = 0x02;
    /// When a temperature is an event.
    pub const TEMPERATURE: u8 = 0x04;
    /// How long to try, and what deallocated blocks read as.
    pub const ERROR_RECOVERY: u8 = 0x05;
    /// The volatile write cache.
    pub const VOLATILE_CACHE: u8 = 0x06;
    /// How many queues.
    pub const QUEUES: u8 = 0x07;
    /// Whether writes are whole or not at all beside others.
    pub const WRITE_ATOMICITY: u8 = 0x0a;
    /// Which asynchronous events.
    pub const ASYNC_EVENTS: u8 = 0x0b;
    /// After how long a silent host counts as gone.
    pub const KEEP_ALIVE: u8 = 0x0f;
    /// The host identifier.
    pub const HOST_ID: u8 = 0x81;
    /// Which notices of reservations are not wanted.
    pub const RESERVATION_MASK: u8 = 0x82;
    /// If reservations outlive a loss of power.
    pub const RESERVATION_PERSISTENCE: u8 = 0x83;
    /// Write protection of a namespace.
    pub const WRITE_PROTECTION: u8 = 0x84;
}

/// The longest keep-alive time that a host may ask for, in milliseconds: a host that is gone holds a controller as long.
pub const KEEP_ALIVE_MS_MAX: u32 = 3_600_000;

const NOTICE_BITS: u32 = 0b1110;
const SAVE: u32 = 1 << 31;
const HOST_ID_128: u32 = 1;
const ALL_NAMESPACES: u32 = u32::MAX;

/// What a controller has to know to answer about features.
#[derive(Clone, Copy, Debug)]
pub struct FeatureContext<'a> {
    /// A discovery controller knows few features.
    pub is_discovery: bool,
    /// The host.
    pub host_id: HostId,
    /// I/O queues that the host may have.
    pub queues_max: u16,
    /// If what is not flushed is lost with the power.
    pub volatile_cache: bool,
    /// Asymmetric access is reported.
    pub has_ana: bool,
    /// For each namespace: if its reservations outlive a loss of power, and if it is write protected.
    pub namespaces: &'a BTreeMap<u32, NamespaceFeatures>,
}

/// Features of one namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamespaceFeatures {
    /// Its reservations outlive a loss of power.
    pub persists: bool,
    /// No host writes to it.
    pub write_protected: bool,
}

/// What a host has set.
#[derive(Clone, Debug)]
pub struct Features {
    keep_alive_ms: u32,
    queues: Option<u16>,
    /// Notices that are not wanted, for each namespace.
    masks: BTreeMap<u32, u32>,
}

/// What has to follow from a feature that was set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureEffect {
    /// Nothing.
    None,
    /// The host counts as gone after so many milliseconds of silence; 0: never.
    KeepAlive(u32),
    /// Reservations of a namespace persist, or do not, from now on. It is answered when that is durable.
    Persistence {
        /// Which namespace.
        namespace: u32,
        /// What the host wants.
        persists: bool,
    },
}

/// The answer to Set Features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeatureSet {
    /// Dword 0 of the completion.
    pub dword0: u32,
    /// What has to follow.
    pub effect: FeatureEffect,
}

/// The answer to Get Features.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureGot {
    /// Dword 0 of the completion.
    pub dword0: u32,
    /// Data, of the few features that have some.
    pub data: Vec<u8>,
}

impl Features {
    /// As a controller begins, with the keep-alive time of its Connect command.
    #[must_use]
    pub fn new(keep_alive_ms: u32) -> Features {
        Features { keep_alive_ms: keep_alive_ms.min(KEEP_ALIVE_MS_MAX), queues: None, masks: BTreeMap::new() }
    }

    /// After how many milliseconds of silence the host counts as gone; 0: never.
    #[must_use]
    pub fn keep_alive_ms(&self) -> u32 {
        self.keep_alive_ms
    }

    /// I/O queues that the host was granted; `None`: it has not asked.
    #[must_use]
    pub fn queues(&self) -> Option<u16> {
        self.queues
    }

    /// If the host wants a notice about a namespace.
    #[must_use]
    pub fn wants(&self, kind: NoticeKind, namespace: u32) -> bool {
        let bit = match kind {
            NoticeKind::RegistrationPreempted => 1 << 1,
            NoticeKind::ReservationReleased => 1 << 2,
            NoticeKind::ReservationPreempted => 1 << 3,
        };
        self.masks.get(&namespace).is_none_or(|mask| mask & bit == 0)
    }

    /// Set Features: dwords 10 and 11.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn set(
        &mut self,
        context: FeatureContext<'_>,
        events: &mut AsyncEvents,
        namespace: u32,
        dwords: [u32; 2],
    ) -> Result<FeatureSet, Status> {
        let [dword10, value] = dwords;
        let id = (dword10 & 0xff) as u8;
        // Unknown features are invalid whatever else is asked for.
        let current = self.get_value(context, events, id, namespace)?;
        if dword10 & SAVE != 0 {
            return Err(Status::FEATURE_NOT_SAVEABLE);
        }
        let done = |dword0, effect| Ok(FeatureSet { dword0, effect });
        match id {
            feature::QUEUES => {
                let (submission, completion) = (value & 0xffff, value >> 16);
                if submission == 0xffff || completion == 0xffff {
                    return Err(Status::INVALID_FIELD);
                }
                let asked = u16::try_from(submission.min(completion) + 1).unwrap_or(u16::MAX);
                let granted = asked.min(context.queues_max);
                self.queues = Some(granted);
                done(queues_dword(granted), FeatureEffect::None)
            }
            feature::ASYNC_EVENTS => {
                if value & !known_events(context) != 0 {
                    return Err(Status::INVALID_FIELD);
                }
                events.enable(value);
                done(0, FeatureEffect::None)
            }
            feature::KEEP_ALIVE => {
                if value > KEEP_ALIVE_MS_MAX {
                    return Err(Status::KEEP_ALIVE_INVALID);
                }
                self.keep_alive_ms = value;
                done(0, FeatureEffect::KeepAlive(value))
            }
            feature::RESERVATION_MASK => {
                if value & !NOTICE_BITS != 0 {
                    return Err(Status::INVALID_FIELD);
                }
                let of = context.namespaces.keys().filter(|id| [**id, ALL_NAMESPACES].contains(&namespace));
                self.masks.extend(of.map(|id| (*id, value)));
                done(0, FeatureEffect::None)
            }
            feature::RESERVATION_PERSISTENCE => {
                if namespace == ALL_NAMESPACES || value > 1 {
                    return Err(Status::INVALID_FIELD);
                }
                done(0, FeatureEffect::Persistence { namespace, persists: value == 1 })
            }
            // The rest is as it is. To set it to that is no error.
            _ if value == current => done(0, FeatureEffect::None),
            _ => Err(Status::FEATURE_NOT_CHANGEABLE),
        }
    }

    /// Get Features: dwords 10 and 11.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn get(
        &self,
        context: FeatureContext<'_>,
        events: &AsyncEvents,
        namespace: u32,
        dwords: [u32; 2],
    ) -> Result<FeatureGot, Status> {
        let [dword10, dword11] = dwords;
        let id = (dword10 & 0xff) as u8;
        let current = self.get_value(context, events, id, namespace)?;
        let dword0 = match dword10 >> 8 & 0x7 {
            0 => current,
            // Nothing is saved, so what was saved is the default.
            1 | 2 => {
                let (features, events) = (Features::new(0), AsyncEvents::default());
                match id {
                    feature::QUEUES | feature::VOLATILE_CACHE | feature::RESERVATION_PERSISTENCE => current,
                    _ => features.get_value(context, &events, id, namespace)?,
                }
            }
            3 => capabilities(id),
            _ => return Err(Status::INVALID_FIELD),
        };
        if id != feature::HOST_ID {
            return Ok(FeatureGot { dword0, data: Vec::new() });
        }
        if dword11 & HOST_ID_128 == 0 {
            return Err(Status::INVALID_FIELD);
        }
        Ok(FeatureGot { dword0, data: context.host_id.0.to_vec() })
    }

    fn get_value(
        &self,
        context: FeatureContext<'_>,
        events: &AsyncEvents,
        id: u8,
        namespace: u32,
    ) -> Result<u32, Status> {
        let of_namespace = || context.namespaces.get(&namespace).ok_or(Status::INVALID_NAMESPACE);
        match id {
            feature::ASYNC_EVENTS => Ok(events.enabled()),
            feature::KEEP_ALIVE => Ok(self.keep_alive_ms),
            feature::HOST_ID => Ok(0),
            _ if context.is_discovery => Err(Status::INVALID_FIELD),
            feature::ARBITRATION | feature::POWER | feature::TEMPERATURE => Ok(0),
            feature::ERROR_RECOVERY | feature::WRITE_ATOMICITY => Ok(0),
            feature::VOLATILE_CACHE if context.volatile_cache => Ok(1),
            feature::QUEUES => Ok(queues_dword(self.queues.unwrap_or(context.queues_max))),
            feature::RESERVATION_MASK if namespace == ALL_NAMESPACES => Ok(0),
            feature::RESERVATION_MASK => {
                of_namespace()?;
                Ok(self.masks.get(&namespace).copied().unwrap_or(0))
            }
            feature::RESERVATION_PERSISTENCE => Ok(u32::from(of_namespace()?.persists)),
            feature::WRITE_PROTECTION => Ok(u32::from(of_namespace()?.write_protected)),
            _ => Err(Status::INVALID_FIELD),
        }
    }
}

fn known_events(context: FeatureContext<'_>) -> u32 {
    if context.is_discovery { AsyncEvents::KNOWN_BY_DISCOVERY } else { AsyncEvents::known(context.has_ana) }
}

/// Both numbers, less one.
fn queues_dword(queues: u16) -> u32 {
    let less_one = u32::from(queues.max(1) - 1);
    less_one << 16 | less_one
}

/// Bit 1: one of each namespace; bit 2: it can be changed.
fn capabilities(id: u8) -> u32 {
    let of_namespaces = matches!(
        id,
        feature::RESERVATION_MASK | feature::RESERVATION_PERSISTENCE | feature::WRITE_PROTECTION
    );
    let changeable = matches!(
        id,
        feature::QUEUES
            | feature::ASYNC_EVENTS
            | feature::KEEP_ALIVE
            | feature::RESERVATION_MASK
            | feature::RESERVATION_PERSISTENCE
    );
    u32::from(of_namespaces) << 1 | u32::from(changeable) << 2
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        features: Features,
        events: AsyncEvents,
        namespaces: BTreeMap<u32, NamespaceFeatures>,
    }

    impl Fixture {
        fn new() -> Fixture {
            let of = NamespaceFeatures { persists: true, write_protected: false };
            let namespaces = [(1, of), (2, of)].into();
            Fixture { features: Features::new(5000), events: AsyncEvents::default(), namespaces }
        }

        fn context(namespaces: &BTreeMap<u32, NamespaceFeatures>, is_discovery: bool) -> FeatureContext<'_> {
            let host_id = HostId([7; 16]);
            FeatureContext {
                is_discovery,
                host_id,
                queues_max: 8,
                volatile_cache: true,
                has_ana: true,
                namespaces,
            }
        }

        fn set(&mut self, id: u8, namespace: u32, value: u32) -> Result<FeatureSet, Status> {
            let context = Fixture::context(&self.namespaces, false);
            self.features.set(context, &mut self.events, namespace, [u32::from(id), value])
        }

        fn get(&self, dword10: u32, namespace: u32) -> Result<u32, Status> {
            let context = Fixture::context(&self.namespaces, false);
            self.features.get(context, &self.events, namespace, [dword10, 1]).map(|got| got.dword0)
        }
    }

    #[test]
    fn queues_are_granted_as_many_as_there_are() {
        let mut fixture = Fixture::new();
        for (asked, granted) in
            [(0x0003_0003, 0x0003_0003), (0x0001_00ff, 0x0001_0001), (0x00ff_00ff, 0x0007_0007)]
        {
            assert_eq!(fixture.set(feature::QUEUES, 0, asked).map(|set| set.dword0), Ok(granted));
            assert_eq!(fixture.get(feature::QUEUES.into(), 0), Ok(granted));
        }
        for bad in [0xffff_0000, 0x0000_ffff] {
            assert_eq!(fixture.set(feature::QUEUES, 0, bad), Err(Status::INVALID_FIELD));
        }
    }

    #[test]
    fn keep_alive_events_and_masks_are_kept() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.get(feature::KEEP_ALIVE.into(), 0), Ok(5000));
        let set = fixture.set(feature::KEEP_ALIVE, 0, 7000).unwrap();
        assert_eq!((set.effect, fixture.features.keep_alive_ms()), (FeatureEffect::KeepAlive(7000), 7000));
        assert_eq!(fixture.set(feature::KEEP_ALIVE, 0, u32::MAX), Err(Status::KEEP_ALIVE_INVALID));
        assert_eq!(fixture.get(0x100 | u32::from(feature::KEEP_ALIVE), 0), Ok(0), "the default");

        assert_eq!(fixture.set(feature::ASYNC_EVENTS, 0, 0x900).map(|set| set.dword0), Ok(0));
        assert_eq!(
            (fixture.get(feature::ASYNC_EVENTS.into(), 0), fixture.events.enabled()),
            (Ok(0x900), 0x900)
        );
        assert_eq!(fixture.set(feature::ASYNC_EVENTS, 0, 1 << 31), Err(Status::INVALID_FIELD));

        assert!(fixture.features.wants(NoticeKind::ReservationReleased, 1));
        fixture.set(feature::RESERVATION_MASK, 1, 0b100).unwrap();
        assert!(!fixture.features.wants(NoticeKind::ReservationReleased, 1));
        assert!(fixture.features.wants(NoticeKind::ReservationReleased, 2));
        fixture.set(feature::RESERVATION_MASK, u32::MAX, 0b1010).unwrap();
        assert_eq!((fixture.get(0x82, 1), fixture.get(0x82, 2)), (Ok(0b1010), Ok(0b1010)));
        assert_eq!(fixture.set(feature::RESERVATION_MASK, 1, 1), Err(Status::INVALID_FIELD));
        assert_eq!(fixture.set(feature::RESERVATION_MASK, 3, 2), Err(Status::INVALID_NAMESPACE));
    }

    #[test]
    fn what_cannot_be_changed_says_so() {
        let mut fixture = Fixture::new();
        assert_eq!(fixture.get(feature::VOLATILE_CACHE.into(), 0), Ok(1));
        assert!(fixture.set(feature::VOLATILE_CACHE, 0, 1).is_ok());
        assert_eq!(fixture.set(feature::VOLATILE_CACHE, 0, 0), Err(Status::FEATURE_NOT_CHANGEABLE));
        assert_eq!(fixture.set(feature::WRITE_PROTECTION, 1, 1), Err(Status::FEATURE_NOT_CHANGEABLE));
        assert_eq!(fixture.set(0x0e, 0, 0), Err(Status::INVALID_FIELD));
        let effect = FeatureEffect::Persistence { namespace: 1, persists: false };
        assert_eq!(fixture.set(feature::RESERVATION_PERSISTENCE, 1, 0).map(|set| set.effect), Ok(effect));
        assert_eq!(fixture.get(feature::RESERVATION_PERSISTENCE.into(), 9), Err(Status::INVALID_NAMESPACE));
        assert_eq!(fixture.get(0x300 | 0x83, 1), Ok(0b110));
        let context = Fixture::context(&fixture.namespaces, false);
        let (features, events) = (&mut fixture.features, &mut fixture.events);
        let saved = features.set(context, events, 0, [SAVE | u32::from(feature::KEEP_ALIVE), 1]);
        assert_eq!(saved, Err(Status::FEATURE_NOT_SAVEABLE));
    }

    #[test]
    fn a_host_reads_its_identifier_and_a_discovery_controller_knows_little() {
        let mut fixture = Fixture::new();
        let context = Fixture::context(&fixture.namespaces, false);
        let got = fixture.features.get(context, &fixture.events, 0, [feature::HOST_ID.into(), 1]);
        assert_eq!(got.map(|got| got.data), Ok(vec![7; 16]));
        let short = fixture.features.get(context, &fixture.events, 0, [feature::HOST_ID.into(), 0]);
        assert_eq!(short, Err(Status::INVALID_FIELD));
        let context = Fixture::context(&fixture.namespaces, true);
        let get = |id: u8| fixture.features.get(context, &fixture.events, 0, [id.into(), 1]).is_ok();
        let known: Vec<u8> = (0..=255).filter(|id| get(*id)).collect();
        assert_eq!(known, [feature::ASYNC_EVENTS, feature::KEEP_ALIVE, feature::HOST_ID]);
        let set =
            fixture.features.set(context, &mut fixture.events, 0, [feature::ASYNC_EVENTS.into(), 1 << 31]);
        assert!(set.is_ok());
    }
}
