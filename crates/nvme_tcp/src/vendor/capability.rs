//! What a Twill target says of itself in the vendor's area of Identify Controller. Other targets are asked for nothing here.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U64};

use super::VERSION;

/// Bytes of the capability.
pub const CAPABILITY_BYTES: usize = size_of::<RawCapability>();
/// Name, offset and size of each of its fields, for the check of `docs/formats.md`.
pub const CAPABILITY_FIELDS: &[(&str, usize, usize)] = RawCapability::FIELDS;

const MAGIC: [u8; 8] = *b"TwFab\0\0\0";

byte_struct! {
    struct RawCapability, 24 bytes {
        0   8  magic: bytes,
        8   2  version: U16,
        10  2  ops_in_flight: U16,
        12  2  retained_mib: U16,
        14  2  peers_max: U16,
        16  8  boot_id: U64,
    }
}

/// What a Twill target says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capability {
    /// Of the commands that it knows; 0: none.
    pub version: u16,
    /// Ops of one attach that may be out at a time.
    pub ops_in_flight: u16,
    /// MiB of memory that it gives an attach at each member for deltas and sums; 0: it does not count them, and is asked for none.
    pub retained_mib: u16,
    /// Other targets that it connects to.
    pub peers_max: u16,
    /// Of its machine and drives (upper half) and of its process; 0: not told.
    pub boot_id: u64,
}

impl Capability {
    /// The capability's bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; CAPABILITY_BYTES] {
        let raw = RawCapability {
            magic: MAGIC,
            version: self.version.into(),
            ops_in_flight: self.ops_in_flight.into(),
            retained_mib: self.retained_mib.into(),
            peers_max: self.peers_max.into(),
            boot_id: self.boot_id.into(),
        };
        zerocopy::transmute!(raw)
    }

    /// Reads the beginning of a vendor's area; none if the target is not Twill's.
    #[must_use]
    pub fn parse(bytes: &[u8; CAPABILITY_BYTES]) -> Option<Capability> {
        let raw: RawCapability = zerocopy::transmute!(*bytes);
        (raw.magic == MAGIC).then(|| Capability {
            version: raw.version.get(),
            ops_in_flight: raw.ops_in_flight.get(),
            retained_mib: raw.retained_mib.get(),
            peers_max: raw.peers_max.get(),
            boot_id: raw.boot_id.get(),
        })
    }

    /// If it knows these commands in the version known here.
    #[must_use]
    pub fn knows_commands(&self) -> bool {
        self.version == VERSION
    }
}
