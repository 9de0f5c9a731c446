//! The redundancy of metadata: what the blocks of parity columns say of a row is coded from the entries of its data just as
//! their contents are coded from the data.

use super::columns::{ColumnRole, Columns};
use super::entry::{BlockEntry, ENTRY_BYTES};
use super::error::{Structure, ZonedError};

/// The entries of a row's data, coded for one column of parity or copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CodedEntry(pub [u8; ENTRY_BYTES]);

/// Why the entries of a row cannot be decoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CodedError {
    /// More columns are missing than the level survives.
    #[error("{missing} of {data} data columns are missing, and the others do not tell them")]
    TooFew {
        /// Data columns without an entry.
        missing: u8,
        /// Data columns in all.
        data: u8,
    },
    /// The columns do not go together.
    #[error("{0}")]
    Entry(#[from] ZonedError),
}

/// What one column says of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowPart {
    /// What the column holds.
    pub role: ColumnRole,
    /// Its entry, or the coded ones.
    pub bytes: [u8; ENTRY_BYTES],
}

/// Codes the entries of a row, by data index, for the column with this role.
///
/// # Panics
/// If the role is that of data, or a copy of data that is not there.
#[must_use]
pub fn code(role: ColumnRole, row: &[BlockEntry]) -> CodedEntry {
    match role {
        ColumnRole::Data(index) => panic!("the column holds data {index}, nothing coded"),
        ColumnRole::Copy(index) => CodedEntry(row[usize::from(index)].to_bytes()),
        ColumnRole::P => row
            .iter()
            .fold(CodedEntry([0; ENTRY_BYTES]), |sum, entry| CodedEntry(xor(sum.0, entry.to_bytes()))),
        // Horner's rule, from the last index down.
        ColumnRole::Q => row.iter().rev().fold(CodedEntry([0; ENTRY_BYTES]), |sum, entry| {
            CodedEntry(xor(sum.0.map(|byte| multiply(byte, 2)), entry.to_bytes()))
        }),
    }
}

/// All data entries of a row, by data index, from what some of its columns say. `structure` is where they stood.
///
/// # Errors
/// [`CodedError::TooFew`], or [`CodedError::Entry`] if the result is no entry.
pub fn recover(
    structure: Structure,
    columns: Columns,
    parts: &[RowPart],
) -> Result<Vec<BlockEntry>, CodedError> {
    let mut data: Vec<Option<[u8; ENTRY_BYTES]>> = vec![None; columns.data().into()];
    let (mut p, mut q) = (None, None);
    for part in parts {
        match part.role {
            ColumnRole::Data(index) | ColumnRole::Copy(index) => {
                *data.get_mut(usize::from(index)).expect("a data index of this width") = Some(part.bytes);
            }
            ColumnRole::P => p = Some(part.bytes),
            ColumnRole::Q => q = Some(part.bytes),
        }
    }
    fill(&mut data, p, q);
    let missing = data.iter().filter(|entry| entry.is_none()).count() as u8;
    if missing > 0 {
        return Err(CodedError::TooFew { missing, data: columns.data() });
    }
    let entries = data.into_iter().flatten().map(|bytes| BlockEntry::from_bytes(structure, &bytes));
    Ok(entries.collect::<Result<_, _>>()?)
}

/// Decodes the entries that are missing, as far as P and Q tell them.
fn fill(data: &mut [Option<[u8; ENTRY_BYTES]>], p: Option<[u8; ENTRY_BYTES]>, q: Option<[u8; ENTRY_BYTES]>) {
    let missing: Vec<usize> = (0..data.len()).filter(|index| data[*index].is_none()).collect();
    // What P and Q say of the missing ones alone.
    let known = || data.iter().enumerate().filter_map(|(index, entry)| Some((index, (*entry)?)));
    let p = p.map(|p| known().fold(p, |sum, (_, entry)| xor(sum, entry)));
    let q = q.map(|q| known().fold(q, |sum, (index, entry)| xor(sum, times(power(index), entry))));
    match (&missing[..], p, q) {
        (&[x], Some(p), _) => data[x] = Some(p),
        (&[x], None, Some(q)) => data[x] = Some(times(inverse(power(x)), q)),
        (&[x, y], Some(p), Some(q)) => {
            let own = times(inverse(power(x) ^ power(y)), xor(q, times(power(y), p)));
            data[x] = Some(own);
            data[y] = Some(xor(p, own));
        }
        _ => {}
    }
}

fn xor(a: [u8; ENTRY_BYTES], b: [u8; ENTRY_BYTES]) -> [u8; ENTRY_BYTES] {
    std::array::from_fn(|i| a[i] ^ b[i])
}

fn times(factor: u8, entry: [u8; ENTRY_BYTES]) -> [u8; ENTRY_BYTES] {
    entry.map(|byte| multiply(factor, byte))
}

/// The product in GF(256) over x^8 + x^4 + x^3 + x^2 + 1, as md and `parity` have it.
fn multiply(a: u8, b: u8) -> u8 {
    let mut product = 0;
    let mut power = a;
    for bit in 0..8 {
        if b >> bit & 1 == 1 {
            product ^= power;
        }
        power = power << 1 ^ if power & 0x80 == 0 { 0 } else { 0x1d };
    }
    product
}

/// 2 to the power of a data index.
fn power(index: usize) -> u8 {
    (0..index).fold(1, |product, _| multiply(product, 2))
}

/// `a` to the power of 254.
fn inverse(a: u8) -> u8 {
    (0..254).fold(1, |product, _| multiply(product, a))
}
