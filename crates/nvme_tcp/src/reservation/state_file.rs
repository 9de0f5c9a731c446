//! The state file: what a target keeps of a namespace's reservations while it is off.
//!
//! F-I9: lost state serves no host. One image is the whole file, and it is replaced, never changed in place: written beside,
//! synced, renamed, and the directory synced. So a crash leaves the former image or the new one whole, and any other contents
//! mean that the state is lost. `docs/formats.md` draws the bytes.

use byte_struct::{Checksum, byte_struct};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::access::ReservationType;
use super::state::{Held, REGISTRANTS_MAX, Registrant, Reservations};
use crate::names::{Host, HostId, Nqn};

/// Name, offset and size of each field of the header, for the check of `docs/formats.md`.
pub const HEADER_FIELDS: &[(&str, usize, usize)] = RawHeader::FIELDS;
/// Name, offset and size of each field of a registrant, for the check of `docs/formats.md`.
pub const REGISTRANT_FIELDS: &[(&str, usize, usize)] = RawRegistrant::FIELDS;
/// The longest state file.
pub const STATE_FILE_BYTES_MAX: usize = HEADER_BYTES + REGISTRANTS_MAX * REGISTRANT_BYTES;

const MAGIC: [u8; 8] = *b"TwResrv\0";
const VERSION: u32 = 1;
const PERSISTS: u8 = 1;
const HEADER_BYTES: usize = size_of::<RawHeader>();
const REGISTRANT_BYTES: usize = size_of::<RawRegistrant>();
const CHECKSUM_AT: usize = 12;

byte_struct! {
    struct RawHeader, 128 bytes {
        0   8   magic: bytes,
        8   4   version: U32,
        12  4   checksum: U32,
        16  16  namespace: bytes,
        32  4   generation: U32,
        36  4   registrants: U32,
        40  1   kind: u8,
        41  1   flags: u8,
        42  6   reserve: bytes,
        48  16  holder: bytes,
        64  64  reserve2: bytes,
    }
}

byte_struct! {
    struct RawRegistrant, 256 bytes {
        0    16   host_id: bytes,
        16   8    key: U64,
        24   224  nqn: bytes,
        248  8    reserve: bytes,
    }
}

/// Why a file is not the state of the namespace's reservations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StateFileError {
    /// Shorter or longer than what it holds.
    #[error("it has {found} bytes, expected {expected}")]
    Length {
        /// Bytes there are.
        found: usize,
        /// Bytes there should be.
        expected: usize,
    },
    /// Another kind of file.
    #[error("it is no file of reservations")]
    Magic,
    /// A version to come.
    #[error("it has version {0}, this is {VERSION}")]
    Version(u32),
    /// Damaged.
    #[error("its checksum is {found:#010x}, expected {expected:#010x}")]
    Checksum {
        /// What it says.
        found: u32,
        /// What its bytes make.
        expected: u32,
    },
    /// Of another namespace.
    #[error("it belongs to namespace {}", HostId(*.0))]
    Foreign([u8; 16]),
    /// The checksum is right and a value makes no sense.
    #[error("{0} makes no sense")]
    Field(&'static str),
}

/// The caller's word that a state file is on stable storage.
#[derive(Clone, Debug)]
pub struct Synced {
    generation: u32,
    image: u32,
}

impl Synced {
    /// To be made when the image was written, synced, renamed over the former file, and the directory was synced.
    ///
    /// # Errors
    /// If these bytes are no image of this namespace's reservations.
    pub fn after_writing(image: &[u8], namespace: &[u8; 16]) -> Result<Synced, StateFileError> {
        let state = Reservations::parse(image, namespace)?;
        Ok(Synced { generation: state.generation(), image: digest(&state) })
    }

    pub(super) fn is_of(&self, state: &Reservations) -> bool {
        let durable = state.after_power_loss();
        self.generation == durable.generation() && self.image == digest(&durable)
    }
}

fn digest(state: &Reservations) -> u32 {
    Checksum::without(&state.encode(&[0; 16]), CHECKSUM_AT)
}

impl Reservations {
    /// The image of a namespace's state file: what a loss of power leaves.
    #[must_use]
    pub fn encode(&self, namespace: &[u8; 16]) -> Vec<u8> {
        let state = self.after_power_loss();
        state.self_check();
        let mut raw = RawHeader::new_zeroed();
        raw.magic = MAGIC;
        raw.version.set(VERSION);
        raw.namespace = *namespace;
        raw.generation.set(state.generation);
        raw.registrants.set(u32::try_from(state.registrants.len()).expect("a few registrants"));
        raw.flags = if state.persists { PERSISTS } else { 0 };
        if let Some(Held { kind, holder }) = state.held {
            raw.kind = kind.number();
            raw.holder = holder.map_or([0; 16], |holder| holder.0);
        }
        let mut image = raw.as_bytes().to_vec();
        for Registrant { host, key } in &state.registrants {
            let mut raw = RawRegistrant::new_zeroed();
            raw.host_id = host.id.0;
            raw.key.set(*key);
            raw.nqn = host.nqn.to_field();
            image.extend_from_slice(raw.as_bytes());
        }
        Checksum::seal(&mut image, CHECKSUM_AT);
        image
    }

    /// Reads a state file.
    ///
    /// # Errors
    /// [`StateFileError`] names the first thing that is wrong. The state is lost then, and the namespace is served to no host.
    pub fn parse(image: &[u8], namespace: &[u8; 16]) -> Result<Reservations, StateFileError> {
        let found = image.len();
        let (raw, rest) = RawHeader::ref_from_prefix(image)
            .map_err(|_| StateFileError::Length { found, expected: HEADER_BYTES })?;
        if raw.magic != MAGIC {
            return Err(StateFileError::Magic);
        }
        if raw.version.get() != VERSION {
            return Err(StateFileError::Version(raw.version.get()));
        }
        let count = raw.registrants.get() as usize;
        if count > REGISTRANTS_MAX {
            return Err(StateFileError::Field("the number of registrants"));
        }
        let expected = HEADER_BYTES + count * REGISTRANT_BYTES;
        if found != expected {
            return Err(StateFileError::Length { found, expected });
        }
        let (found, expected) = (raw.checksum.get(), Checksum::without(image, CHECKSUM_AT));
        if found != expected {
            return Err(StateFileError::Checksum { found, expected });
        }
        if raw.namespace != *namespace {
            return Err(StateFileError::Foreign(raw.namespace));
        }
        let (raw_registrants, _) =
            <[RawRegistrant]>::ref_from_prefix_with_elems(rest, count).expect("checked to fit");
        let registrants = raw_registrants.iter().map(registrant).collect::<Result<Vec<_>, _>>()?;
        let persists = raw.flags == PERSISTS;
        let held = held(raw)?;
        let state = Reservations { generation: raw.generation.get(), persists, registrants, held };
        state.check_read(raw)?;
        Ok(state)
    }

    /// What a state is that was read: one that `encode` writes.
    fn check_read(&self, raw: &RawHeader) -> Result<(), StateFileError> {
        let wrong = |field| Err(StateFileError::Field(field));
        for (at, registrant) in self.registrants.iter().enumerate() {
            if self.registrants[at + 1..].iter().any(|other| other.host.id == registrant.host.id) {
                return wrong("a host that is registered twice");
            }
        }
        if raw.flags & !PERSISTS != 0 || raw.reserve != [0; 6] || raw.reserve2 != [0; 64] {
            return wrong("what is reserved");
        }
        if !self.persists && (!self.registrants.is_empty() || self.held.is_some() || self.generation != 0) {
            return wrong("a reservation that was not to persist");
        }
        match self.held {
            Some(Held { holder: None, .. }) if self.registrants.is_empty() => {
                wrong("a reservation without registrants")
            }
            Some(Held { holder: Some(holder), .. }) if self.owner(holder).is_none() => {
                wrong("a holder that is no registrant")
            }
            _ => Ok(()),
        }
    }
}

fn registrant(raw: &RawRegistrant) -> Result<Registrant, StateFileError> {
    let nqn = Nqn::from_field(&raw.nqn).map_err(|_| StateFileError::Field("the name of a host"))?;
    if raw.nqn != nqn.to_field() || raw.reserve != [0; 8] {
        return Err(StateFileError::Field("what stands behind a name"));
    }
    if raw.key.get() == 0 {
        return Err(StateFileError::Field("a key of 0"));
    }
    Ok(Registrant { host: Host { id: HostId(raw.host_id), nqn }, key: raw.key.get() })
}

fn held(raw: &RawHeader) -> Result<Option<Held>, StateFileError> {
    let holder = HostId(raw.holder);
    let is_none = raw.holder == [0; 16];
    match (raw.kind, ReservationType::from_number(raw.kind)) {
        (0, _) if is_none => Ok(None),
        (_, Some(kind)) if kind.is_all_registrants() && is_none => Ok(Some(Held { kind, holder: None })),
        (_, Some(kind)) if !kind.is_all_registrants() => Ok(Some(Held { kind, holder: Some(holder) })),
        _ => Err(StateFileError::Field("the type of the reservation")),
    }
}
