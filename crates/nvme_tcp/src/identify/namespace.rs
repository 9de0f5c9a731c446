//! Identify Namespace, and the shorter structures that hosts ask for beside it.

use byte_struct::byte_struct;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::IDENTIFY_BYTES;

byte_struct! {
    struct RawNamespace, 4096 bytes {
        0    8     blocks: U64,
        8    8     capacity: U64,
        16   8     used: U64,
        24   1     features: u8,
        25   1     formats: u8,
        26   1     format: u8,
        27   1     metadata: u8,
        28   1     protection: u8,
        29   1     protection_set: u8,
        30   1     multi_path: u8,
        31   1     reservations: u8,
        32   1     format_progress: u8,
        33   1     deallocated: u8,
        34   2     atomic_blocks: U16,
        36   2     atomic_blocks_power_fail: U16,
        38   2     atomic_compare: U16,
        40   6     atomic_boundary: [U16; 3],
        46   2     boundary_blocks: U16,
        48   16    capacity_bytes: bytes,
        64   2     write_granularity: U16,
        66   2     write_alignment: U16,
        68   2     deallocate_granularity: U16,
        70   2     deallocate_alignment: U16,
        72   2     write_optimum: U16,
        74   18    reserve_74: bytes,
        92   4     ana_group: U32,
        96   3     reserve_96: bytes,
        99   1     attributes: u8,
        100  2     set: U16,
        102  2     endurance_group: U16,
        104  16    nguid: bytes,
        120  8     eui64: bytes,
        128  256   block_formats: [U32; 64],
        384  3712  vendor: bytes,
    }
}

byte_struct! {
    struct RawIndependent, 16 bytes {
        0   1  features: u8,
        1   1  multi_path: u8,
        2   1  reservations: u8,
        3   1  format_progress: u8,
        4   4  ana_group: U32,
        8   1  attributes: u8,
        9   1  reserve: u8,
        10  2  set: U16,
        12  2  endurance_group: U16,
        14  1  status: u8,
        15  1  reserve2: u8,
    }
}

byte_struct! {
    struct RawNvmController, 16 bytes {
        0  1  verify_log2: u8,
        1  1  write_zeroes_log2: u8,
        2  1  write_uncorrectable_log2: u8,
        3  1  dataset_ranges: u8,
        4  4  dataset_range_blocks: U32,
        8  8  dataset_blocks: U64,
    }
}

const SHARED: u8 = 1;
const FEATURE_ATOMICS: u8 = 1 << 1;
const FEATURE_OPTIMUM: u8 = 1 << 4;
/// All six types; persistence through a loss of power; Ignore Existing Key as version 1.3 has it.
const RESERVATIONS_ALL: u8 = 0xff;
const READS_ZEROES: u8 = 1;
const WRITE_ZEROES_DEALLOCATES: u8 = 1 << 3;
const WRITE_PROTECTED: u8 = 1;
const READY: u8 = 1;
const ID_EUI64: u8 = 1;
const ID_NGUID: u8 = 2;
const ID_UUID: u8 = 3;
const ID_COMMAND_SET: u8 = 4;
const FORMAT_INDEX: u8 = 0x0f;
const FORMAT_INDEX_HIGH: u8 = 0x60;

/// Block sizes that are served or used: 512 bytes to 64 KiB.
const BLOCK_LOG2: std::ops::RangeInclusive<u8> = 9..=16;

/// Sizes of writes that suit a namespace, in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteHints {
    /// Writes smaller than this, or not a multiple of it, cost more than they seem to.
    pub granularity: u16,
    /// Where writes begin best.
    pub alignment: u16,
    /// The best size: a whole stripe.
    pub optimum: u16,
    /// A command that crosses a multiple of this costs more; 0: nothing is told.
    pub boundary: u16,
}

/// What is true of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceFacts {
    /// Its size.
    pub blocks: u64,
    /// A block is 2 to the power of this many bytes.
    pub block_log2: u8,
    /// Which namespace it is, for all time: also of its state file.
    pub nguid: [u8; 16],
    /// The same as a UUID.
    pub uuid: [u8; 16],
    /// Blocks, less one, that are written whole or not at all when the power fails.
    pub atomic_blocks_power_fail: u16,
    /// Which sizes suit it.
    pub hints: Option<WriteHints>,
    /// Deallocated blocks read as zeroes.
    pub deallocated_reads_zeroes: bool,
    /// Write Zeroes may deallocate.
    pub write_zeroes_deallocates: bool,
    /// No host writes to it.
    pub write_protected: bool,
    /// Its group of asymmetric access; 0: none.
    pub ana_group: u32,
}

impl NamespaceFacts {
    /// The answer to Identify Namespace.
    ///
    /// # Panics
    /// If the block size is none that is served.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(BLOCK_LOG2.contains(&self.block_log2), "blocks of 2^{} bytes", self.block_log2);
        let mut raw = RawNamespace::new_zeroed();
        raw.blocks.set(self.blocks);
        raw.capacity.set(self.blocks);
        raw.used.set(self.blocks);
        raw.features = FEATURE_ATOMICS;
        raw.multi_path = SHARED;
        raw.reservations = RESERVATIONS_ALL;
        raw.deallocated = self.deallocated();
        raw.atomic_blocks.set(self.atomic_blocks_power_fail);
        raw.atomic_blocks_power_fail.set(self.atomic_blocks_power_fail);
        raw.capacity_bytes = (u128::from(self.blocks) << self.block_log2).to_le_bytes();
        if let Some(hints) = self.hints {
            raw.features |= FEATURE_OPTIMUM;
            // All but the boundary are one less than they say.
            raw.write_granularity.set(hints.granularity.saturating_sub(1));
            raw.write_alignment.set(hints.alignment.saturating_sub(1));
            raw.write_optimum.set(hints.optimum.saturating_sub(1));
            raw.boundary_blocks.set(hints.boundary);
        }
        raw.ana_group.set(self.ana_group);
        raw.attributes = if self.write_protected { WRITE_PROTECTED } else { 0 };
        raw.nguid = self.nguid;
        raw.block_formats[0].set(u32::from(self.block_log2) << 16);
        raw.as_bytes().to_vec()
    }

    fn deallocated(&self) -> u8 {
        let zeroes = if self.deallocated_reads_zeroes { READS_ZEROES } else { 0 };
        zeroes | if self.write_zeroes_deallocates { WRITE_ZEROES_DEALLOCATES } else { 0 }
    }
}

/// The answer that tells a namespace's identifiers.
#[must_use]
pub fn namespace_ids(facts: &NamespaceFacts) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(IDENTIFY_BYTES);
    let ids: [(u8, &[u8]); 3] = [(ID_NGUID, &facts.nguid), (ID_UUID, &facts.uuid), (ID_COMMAND_SET, &[0])];
    for (kind, id) in ids {
        bytes.extend_from_slice(&[kind, u8::try_from(id.len()).expect("at most 16"), 0, 0]);
        bytes.extend_from_slice(id);
    }
    bytes.resize(IDENTIFY_BYTES, 0);
    bytes
}

/// The answer to Identify Namespace that does not depend on the command set.
pub(crate) fn independent(facts: &NamespaceFacts) -> Vec<u8> {
    let mut raw = RawIndependent::new_zeroed();
    raw.multi_path = SHARED;
    raw.reservations = RESERVATIONS_ALL;
    raw.ana_group.set(facts.ana_group);
    raw.attributes = if facts.write_protected { WRITE_PROTECTED } else { 0 };
    raw.status = READY;
    let mut bytes = raw.as_bytes().to_vec();
    bytes.resize(IDENTIFY_BYTES, 0);
    bytes
}

/// What the NVM command set adds to a controller: limits of Write Zeroes (2 to the power of this many 4 KiB) and of Dataset
/// Management.
pub(crate) fn nvm_controller(write_zeroes_log2: u8, dataset_ranges: u8) -> Vec<u8> {
    let mut raw = RawNvmController::new_zeroed();
    raw.write_zeroes_log2 = write_zeroes_log2;
    raw.dataset_ranges = dataset_ranges;
    let mut bytes = raw.as_bytes().to_vec();
    bytes.resize(IDENTIFY_BYTES, 0);
    bytes
}

/// The ids above `after`, in ascending order, as many as fit.
pub(crate) fn active_list(ids: impl Iterator<Item = u32>, after: u32) -> Vec<u8> {
    let above = ids.filter(|id| *id > after).take(IDENTIFY_BYTES / 4);
    let mut bytes: Vec<u8> = above.flat_map(u32::to_le_bytes).collect();
    bytes.resize(IDENTIFY_BYTES, 0);
    bytes
}

/// What a target says of a namespace, as far as an initiator acts on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamespaceInfo {
    /// Its size.
    pub blocks: u64,
    /// A block is 2 to the power of this many bytes.
    pub block_log2: u8,
    /// Zeroes: not told.
    pub nguid: [u8; 16],
    /// Zeroes: not told.
    pub eui64: [u8; 8],
    /// Bit 0: reservations outlive a loss of power; bits 1 to 6: the types that are known.
    pub reservations: u8,
    /// Blocks that are written whole or not at all when the power fails; at least 1.
    pub atomic_blocks_power_fail: u32,
    /// A command that crosses a multiple of this costs more; 0: nothing is told.
    pub boundary_blocks: u16,
    /// Deallocated blocks read as zeroes.
    pub deallocated_reads_zeroes: bool,
    /// No host writes to it.
    pub write_protected: bool,
    /// Its group of asymmetric access; 0: none.
    pub ana_group: u32,
}

/// Why an initiator does not work with a namespace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NamespaceInfoError {
    /// Too few bytes.
    #[error("Identify Namespace has {found} bytes, expected {IDENTIFY_BYTES}")]
    Length {
        /// Bytes there are.
        found: usize,
    },
    /// There is no such namespace.
    #[error("there is no namespace of that id")]
    Absent,
    /// Blocks smaller or larger than any that are used.
    #[error("its blocks have 2^{0} bytes, expected 512 bytes to 64 KiB")]
    BlockSize(u8),
    /// Blocks with metadata.
    #[error("its blocks have {0} bytes of metadata each; format it without")]
    Metadata(u16),
    /// More bytes than a device may have.
    #[error("it has {0} blocks, which is more than a device may have")]
    Size(u64),
}

impl NamespaceInfo {
    /// Reads the answer to Identify Namespace.
    ///
    /// # Errors
    /// [`NamespaceInfoError`].
    pub fn parse(bytes: &[u8]) -> Result<NamespaceInfo, NamespaceInfoError> {
        let (raw, _) = RawNamespace::ref_from_prefix(bytes)
            .map_err(|_| NamespaceInfoError::Length { found: bytes.len() })?;
        let blocks = raw.blocks.get();
        if blocks == 0 {
            return Err(NamespaceInfoError::Absent);
        }
        let index = raw.format & FORMAT_INDEX | (raw.format & FORMAT_INDEX_HIGH) >> 1;
        let format = raw.block_formats[usize::from(index)].get();
        let (block_log2, metadata) = ((format >> 16) as u8, format as u16);
        if !BLOCK_LOG2.contains(&block_log2) {
            return Err(NamespaceInfoError::BlockSize(block_log2));
        }
        if metadata != 0 {
            return Err(NamespaceInfoError::Metadata(metadata));
        }
        // Offsets in bytes are signed in the kernel's interfaces.
        if blocks > i64::MAX as u64 >> block_log2 {
            return Err(NamespaceInfoError::Size(blocks));
        }
        let has_atomics = raw.features & FEATURE_ATOMICS != 0;
        let atomic = if has_atomics { u32::from(raw.atomic_blocks_power_fail.get()) + 1 } else { 1 };
        Ok(NamespaceInfo {
            blocks,
            block_log2,
            nguid: raw.nguid,
            eui64: raw.eui64,
            reservations: raw.reservations,
            atomic_blocks_power_fail: atomic,
            boundary_blocks: raw.boundary_blocks.get(),
            deallocated_reads_zeroes: raw.deallocated & 0b111 == READS_ZEROES,
            write_protected: raw.attributes & WRITE_PROTECTED != 0,
            ana_group: raw.ana_group.get(),
        })
    }

    /// The UUID in the answer that tells a namespace's identifiers, if there is one.
    #[must_use]
    pub fn uuid(descriptors: &[u8]) -> Option<[u8; 16]> {
        let mut rest = descriptors;
        while let [kind, length, _, _, after @ ..] = rest {
            let (id, next) = after.split_at_checked(usize::from(*length))?;
            match *kind {
                0 => return None,
                ID_UUID => return id.try_into().ok(),
                ID_EUI64 | ID_NGUID | ID_COMMAND_SET => rest = next,
                _ if *length == 0 => return None,
                _ => rest = next,
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_begins_after_an_id_and_is_as_long_as_it_may_be() {
        let list = |after| active_list([1u32, 2, 5].into_iter(), after);
        assert_eq!(list(0)[..16], [1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(list(2)[..8], [5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(active_list(1..5000, 0).len(), IDENTIFY_BYTES);
    }
}
