//! Looks for md superblocks at every place that md keeps one, and chooses as mdadm does.

use layout::md_superblock::{
    DEVICE_BYTES_MIN, MAGIC, MinorVersion, SUPERBLOCK_BYTES_MAX, Superblock, SuperblockError,
    superblock_0_90_offset,
};

use layout::units::Sectors;

use super::member_file::MemberFile;
use crate::bytes;
use crate::exit::ExitKind;
use crate::failure::Problem;

/// More than any device has.
const DEVICE_BYTES_MAX: u64 = 1 << 62;

/// A place with md's magic number.
#[derive(Debug)]
pub struct Found {
    /// Where on the device, in bytes.
    pub offset: u64,
    /// 0.90, 1.0, 1.1 or 1.2.
    pub version: String,
    /// The superblock, or what is wrong with it.
    pub outcome: Result<Superblock, SuperblockError>,
}

/// The usable superblock of a member, of several the newest.
///
/// # Errors
/// Why there is none.
pub fn superblock_of(member: &MemberFile) -> Result<Superblock, Problem> {
    let problem = |kind, what: String| Problem::new(kind, &member.path, what);
    let found =
        find_all(member).map_err(|error| Problem::from_io(&member.path, "read its superblock", &error))?;
    match choose(found) {
        Some(found) => found.outcome.map_err(|error| {
            let what = match needed_bytes(&error).filter(|needed| *needed > member.device_bytes) {
                Some(needed) => {
                    let has = bytes::human(member.device_bytes);
                    format!("has {has}, needs {}: was it cut short?", bytes::human(needed))
                }
                None => format!("its superblock {} is not usable: {error}", found.version),
            };
            let problem = problem(ExitKind::Damaged, what);
            match resized(member) {
                Ok(Some((superblock, _))) => problem.help(format!(
                    "the array uses only {} of it, all of which is there: twill correct-size {} makes the superblock say so",
                    bytes::human(superblock.size().bytes()),
                    member.path.display()
                )),
                _ => problem,
            }
        }),
        None if is_too_small(member) => Err(problem(
            ExitKind::Damaged,
            format!("has {} bytes, too few for a superblock: was it cut short?", member.device_bytes),
        )),
        None => Err(problem(ExitKind::NotAMember, "has no md superblock".into())),
    }
}

/// The member's superblock with the size that the device has now, and the size of the data area that it names. None where the
/// device lacks a part that the array uses.
///
/// # Errors
/// What the system says.
pub fn resized(member: &MemberFile) -> std::io::Result<Option<(Superblock, Sectors)>> {
    for minor in MinorVersion::PROBE_ORDER {
        let Ok(offset) = minor.superblock_offset(member.device_bytes) else { continue };
        let bytes = member.read(offset, SUPERBLOCK_BYTES_MAX)?;
        // Larger than any device: what the superblock names is not held against this one's size.
        let Ok(former) = Superblock::parse(&bytes, minor, DEVICE_BYTES_MAX) else { continue };
        if let Ok(superblock) = Superblock::parse_resized(&bytes, minor, member.device_bytes) {
            return Ok(Some((superblock, former.data_size())));
        }
    }
    Ok(None)
}

/// Where the data of a superblock would end, if that is what is wrong with it.
fn needed_bytes(error: &SuperblockError) -> Option<u64> {
    match error {
        SuperblockError::DataBeyondEnd { data_offset, data_size, .. } => {
            data_offset.checked_bytes()?.checked_add(data_size.checked_bytes()?)
        }
        _ => None,
    }
}

/// Every place of a member with md's magic number, the likeliest first.
///
/// # Errors
/// What the system says.
pub fn find_all(member: &MemberFile) -> std::io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for minor in MinorVersion::PROBE_ORDER {
        let Ok(offset) = minor.superblock_offset(member.device_bytes) else { break };
        let bytes = member.read(offset, SUPERBLOCK_BYTES_MAX)?;
        let outcome = match Superblock::parse(&bytes, minor, member.device_bytes) {
            Err(error @ SuperblockError::NoSuperblock { .. }) => {
                if !is_whole_but_for_magic(bytes, minor, member.device_bytes) {
                    continue;
                }
                Err(error)
            }
            // Version 0.90 at the place of 1.0 is found below.
            Err(SuperblockError::Version090) => continue,
            Err(SuperblockError::Truncated { .. }) if !has_magic(&bytes) => continue,
            other => other,
        };
        found.push(Found { offset, version: minor.to_string(), outcome });
    }
    if let Some(offset) = superblock_0_90_offset(member.device_bytes) {
        let bytes = member.read(offset, SUPERBLOCK_BYTES_MAX)?;
        if has_magic(&bytes) && bytes.get(4..8) == Some(&[0; 4]) {
            found.push(Found { offset, version: "0.90".into(), outcome: Err(SuperblockError::Version090) });
        }
    }
    Ok(found)
}

/// The superblock to use: of several valid ones the newest, else the first invalid one.
pub fn choose(found: Vec<Found>) -> Option<Found> {
    let newest = found
        .iter()
        .enumerate()
        .filter_map(|(i, found)| Some((found.outcome.as_ref().ok()?.ctime_s(), std::cmp::Reverse(i))))
        .max()
        .map_or(0, |(_, std::cmp::Reverse(i))| i);
    found.into_iter().nth(newest)
}

/// Whether a member is too small for any superblock.
pub fn is_too_small(member: &MemberFile) -> bool {
    member.device_bytes < DEVICE_BYTES_MIN
}

fn has_magic(bytes: &[u8]) -> bool {
    bytes.get(..4) == Some(&MAGIC.to_le_bytes())
}

/// Whether only the magic number is damaged: with it put right, the checksum agrees.
fn is_whole_but_for_magic(mut bytes: Vec<u8>, minor: MinorVersion, device_bytes: u64) -> bool {
    match bytes.get_mut(..4) {
        Some(magic) => magic.copy_from_slice(&MAGIC.to_le_bytes()),
        None => return false,
    }
    Superblock::parse(&bytes, minor, device_bytes).is_ok()
}
