//! Reservation Report: who is registered and who holds. Only its extended form, since host identifiers have 128 bits here.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::access::{ReservationType, Standing};
use super::state::{Held, Reservations};
use crate::names::HostId;
use crate::status::Status;

byte_struct! {
    struct RawReport, 64 bytes {
        0   4   generation: U32,
        4   1   kind: u8,
        5   2   registrants: U16,
        7   2   reserve: bytes,
        9   1   persists: u8,
        10  54  reserve2: bytes,
    }
}

byte_struct! {
    struct RawReported, 64 bytes {
        0   2   controller: U16,
        2   1   status: u8,
        3   5   reserve: bytes,
        8   8   key: U64,
        16  16  host_id: bytes,
        32  32  reserve2: bytes,
    }
}

const HOLDS: u8 = 1;
const EXTENDED: u32 = 1;
/// A controller that a host got when it connected.
const DYNAMIC: u16 = 0xffff;

/// Who is registered and who holds: made of the state, or the word of another target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Counts registrations, preempts and clears.
    pub generation: u32,
    /// The type of the reservation, if one is held.
    pub kind: Option<ReservationType>,
    /// If it outlives a loss of power.
    pub persists: bool,
    /// All registrants.
    pub registrants: Vec<ReportedRegistrant>,
}

/// A registrant as a target reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReportedRegistrant {
    /// Which host.
    pub host: HostId,
    /// Its key.
    pub key: u64,
    /// If it holds the reservation.
    pub holds: bool,
}

/// Why bytes are no report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportError {
    /// The report goes on beyond what was read: ask for this many bytes.
    #[error("the report has {bytes} bytes, more than were asked for")]
    Longer {
        /// Bytes of the whole report.
        bytes: usize,
    },
    /// A type that is not known.
    #[error("the reservation has type {0}, which is not known")]
    Type(u8),
}

impl Report {
    /// The answer to a command with dwords 10 and 11, at most as long as they say.
    ///
    /// # Errors
    /// The status to answer with.
    pub fn answer(state: &Reservations, dword10: u32, dword11: u32) -> Result<Vec<u8>, Status> {
        if dword11 & EXTENDED == 0 {
            return Err(Status::HOST_ID_INCONSISTENT);
        }
        let asked = (u64::from(dword10) + 1) * 4;
        if asked < size_of::<RawReport>() as u64 {
            return Err(Status::INVALID_FIELD);
        }
        let mut bytes = Report::of(state).encode();
        bytes.truncate(usize::try_from(asked).unwrap_or(usize::MAX));
        Ok(bytes)
    }

    /// What a state looks like.
    #[must_use]
    pub fn of(state: &Reservations) -> Report {
        let registrants = state.registrants().iter().map(|registrant| ReportedRegistrant {
            host: registrant.host.id,
            key: registrant.key,
            holds: state.standing(&registrant.host) == Standing::Holder,
        });
        Report {
            generation: state.generation(),
            kind: state.held().map(Held::kind),
            persists: state.persists(),
            registrants: registrants.collect(),
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut raw = RawReport::new_zeroed();
        raw.generation.set(self.generation);
        raw.kind = self.kind.map_or(0, ReservationType::number);
        raw.registrants.set(u16::try_from(self.registrants.len()).expect("a few registrants"));
        raw.persists = u8::from(self.persists);
        let mut bytes = raw.as_bytes().to_vec();
        for registrant in &self.registrants {
            let mut raw = RawReported::new_zeroed();
            raw.controller.set(DYNAMIC);
            raw.status = if registrant.holds { HOLDS } else { 0 };
            raw.key.set(registrant.key);
            raw.host_id = registrant.host.0;
            bytes.extend_from_slice(raw.as_bytes());
        }
        bytes
    }

    /// Reads an extended report.
    ///
    /// # Errors
    /// [`ReportError`].
    pub fn parse(bytes: &[u8]) -> Result<Report, ReportError> {
        let longer = |bytes| ReportError::Longer { bytes };
        let (raw, rest) = RawReport::ref_from_prefix(bytes).map_err(|_| longer(size_of::<RawReport>()))?;
        let count = usize::from(raw.registrants.get());
        let (reported, _) = <[RawReported]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| longer(size_of::<RawReport>() + count * size_of::<RawReported>()))?;
        let kind = match raw.kind {
            0 => None,
            number => Some(ReservationType::from_number(number).ok_or(ReportError::Type(number))?),
        };
        let registrants = reported.iter().map(|raw| ReportedRegistrant {
            host: HostId(raw.host_id),
            key: raw.key.get(),
            holds: raw.status & HOLDS != 0,
        });
        let (generation, persists) = (raw.generation.get(), raw.persists & 1 != 0);
        Ok(Report { generation, kind, persists, registrants: registrants.collect() })
    }

    /// Dwords 10 and 11 of the command that asks for `bytes` bytes.
    ///
    /// # Panics
    /// If `bytes` is not a multiple of 4, or 0.
    #[must_use]
    pub fn request(bytes: usize) -> (u32, u32) {
        assert!(bytes > 0 && bytes.is_multiple_of(4), "{bytes} bytes are no dwords");
        (u32::try_from(bytes / 4 - 1).expect("a short report"), EXTENDED)
    }
}
