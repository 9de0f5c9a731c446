//! Asymmetric namespace access: by which controllers a namespace can be used, and how well. Groups of namespaces have one
//! state together; the log page tells all groups.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use crate::status::Status;

byte_struct! {
    struct RawHeader, 16 bytes {
        0   8  changes: U64,
        8   2  groups: U16,
        10  6  reserve: bytes,
    }
}

byte_struct! {
    struct RawGroup, 32 bytes {
        0   4   id: U32,
        4   4   namespaces: U32,
        8   8   changes: U64,
        16  1   state: u8,
        17  15  reserve: bytes,
    }
}

/// How a group can be used by one controller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AnaState {
    /// The best way.
    Optimized,
    /// A way, but not the best.
    NonOptimized,
    /// Not this way now.
    Inaccessible,
    /// Never this way again.
    PersistentLoss,
    /// It is being decided.
    Change,
}

const STATES: [(u8, AnaState); 5] = [
    (0x1, AnaState::Optimized),
    (0x2, AnaState::NonOptimized),
    (0x3, AnaState::Inaccessible),
    (0x4, AnaState::PersistentLoss),
    (0xf, AnaState::Change),
];

impl AnaState {
    /// Its number.
    #[must_use]
    pub fn number(self) -> u8 {
        STATES.iter().find(|(_, state)| *state == self).map_or(0, |(number, _)| *number)
    }

    /// The state of a number.
    #[must_use]
    pub fn from_number(number: u8) -> Option<AnaState> {
        STATES.iter().find(|(known, _)| *known == number & 0xf).map(|(_, state)| *state)
    }

    /// Whether a command that needs the namespace may begin.
    ///
    /// # Errors
    /// The status that tells the host to take another way, or to wait.
    pub fn admit(self) -> Result<(), Status> {
        match self {
            AnaState::Optimized | AnaState::NonOptimized => Ok(()),
            AnaState::Inaccessible => Err(Status::ANA_INACCESSIBLE),
            AnaState::PersistentLoss => Err(Status::ANA_PERSISTENT_LOSS),
            AnaState::Change => Err(Status::ANA_TRANSITION),
        }
    }
}

/// A group, as one controller sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaGroup {
    /// Its number, not 0.
    pub id: u32,
    /// How its namespaces can be used.
    pub state: AnaState,
    /// Counts changes of the state.
    pub changes: u64,
    /// Its namespaces, ascending.
    pub namespaces: Vec<u32>,
}

/// The log page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnaLog {
    /// Counts changes of the whole page.
    pub changes: u64,
    /// All groups, ascending.
    pub groups: Vec<AnaGroup>,
}

/// Why bytes are no log page of asymmetric access.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AnaError {
    /// The page goes on beyond what was read: read more of it.
    #[error("the page goes on beyond the {found} bytes that were read")]
    Longer {
        /// Bytes there are.
        found: usize,
    },
    /// A state that is not known.
    #[error("group {group} has state {state}, which is not known")]
    State {
        /// Which group.
        group: u32,
        /// Its state.
        state: u8,
    },
}

/// Bytes of a page of so many groups that have so many namespaces together.
#[must_use]
pub fn log_bytes(groups: usize, namespaces: usize) -> usize {
    size_of::<RawHeader>() + groups * size_of::<RawGroup>() + namespaces * size_of::<u32>()
}

impl AnaLog {
    /// The page; without the namespaces of its groups if `groups_only`.
    #[must_use]
    pub fn encode(&self, groups_only: bool) -> Vec<u8> {
        let mut raw = RawHeader::new_zeroed();
        raw.changes.set(self.changes);
        raw.groups.set(u16::try_from(self.groups.len()).unwrap_or(u16::MAX));
        let mut bytes = raw.as_bytes().to_vec();
        for group in self.groups.iter().take(usize::from(u16::MAX)) {
            let namespaces: &[u32] = if groups_only { &[] } else { &group.namespaces };
            let mut raw = RawGroup::new_zeroed();
            raw.id.set(group.id);
            raw.namespaces.set(u32::try_from(namespaces.len()).expect("namespace ids have 32 bits"));
            raw.changes.set(group.changes);
            raw.state = group.state.number();
            bytes.extend_from_slice(raw.as_bytes());
            bytes.extend(namespaces.iter().flat_map(|id| id.to_le_bytes()));
        }
        bytes
    }

    /// Reads the page.
    ///
    /// # Errors
    /// [`AnaError`].
    pub fn parse(bytes: &[u8]) -> Result<AnaLog, AnaError> {
        let longer = AnaError::Longer { found: bytes.len() };
        let (header, mut rest) = RawHeader::ref_from_prefix(bytes).map_err(|_| longer)?;
        let mut groups = Vec::new();
        for _ in 0..header.groups.get() {
            let (raw, after) = RawGroup::ref_from_prefix(rest).map_err(|_| longer)?;
            let count = usize::try_from(raw.namespaces.get()).map_err(|_| longer)?;
            let (ids, after) = <[U32]>::ref_from_prefix_with_elems(after, count).map_err(|_| longer)?;
            let (group, state) = (raw.id.get(), raw.state & 0xf);
            groups.push(AnaGroup {
                id: group,
                state: AnaState::from_number(state).ok_or(AnaError::State { group, state })?,
                changes: raw.changes.get(),
                namespaces: ids.iter().map(|id| id.get()).collect(),
            });
            rest = after;
        }
        Ok(AnaLog { changes: header.changes.get(), groups })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn log() -> AnaLog {
        let group = |id, state, namespaces: &[u32]| AnaGroup {
            id,
            state,
            changes: 7,
            namespaces: namespaces.to_vec(),
        };
        AnaLog {
            changes: 9,
            groups: vec![
                group(1, AnaState::Optimized, &[1, 2]),
                group(2, AnaState::Inaccessible, &[3]),
                group(3, AnaState::Change, &[]),
            ],
        }
    }

    #[test]
    fn what_is_encoded_parses_to_the_same() {
        let bytes = log().encode(false);
        assert_eq!((bytes.len(), bytes.len()), (16 + 3 * 32 + 3 * 4, log_bytes(3, 3)));
        assert_eq!((bytes[0], bytes[8], bytes[16], bytes[20], bytes[32]), (9, 3, 1, 2, 1));
        assert_eq!(AnaLog::parse(&bytes), Ok(log()));
        for end in 0..bytes.len() {
            assert_eq!(AnaLog::parse(&bytes[..end]), Err(AnaError::Longer { found: end }));
        }
        let groups_only = AnaLog::parse(&log().encode(true)).unwrap();
        assert_eq!(groups_only.groups.iter().map(|group| group.namespaces.len()).sum::<usize>(), 0);
        assert_eq!(groups_only.groups[1].state, AnaState::Inaccessible);
    }

    #[test]
    fn counts_and_states_that_lie_are_refused() {
        let mut bytes = log().encode(false);
        bytes[20..24].copy_from_slice(&[0xff; 4]);
        assert_eq!(AnaLog::parse(&bytes), Err(AnaError::Longer { found: bytes.len() }));
        let mut bytes = log().encode(false);
        bytes[32] = 5;
        assert_eq!(AnaLog::parse(&bytes), Err(AnaError::State { group: 1, state: 5 }));
    }

    #[test]
    fn a_way_that_is_closed_says_so() {
        for (number, state) in STATES {
            assert_eq!(AnaState::from_number(state.number()), Some(state));
            assert_eq!(state.admit().is_ok(), number <= 2);
        }
    }
}
