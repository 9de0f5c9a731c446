//! Whether a new array gets a bitmap: mdadm's options and mdadm's default.

use layout::geometry::{Geometry, Level};
use layout::md_superblock::NewBitmap;

use crate::arguments::{self, BitmapMapping, CreateArguments, Policy};
use crate::bytes;
use crate::exit::ExitKind;
use crate::failure::Failure;

/// mdadm gives a bitmap to arrays that use more than this of each member.
const DEFAULT_ABOVE_BYTES: u64 = 100 << 30;

/// The bitmap that the command line asks for, or mdadm's choice.
///
/// # Errors
/// [`ExitKind::Usage`] for words that contradict each other, [`ExitKind::BadGeometry`] for a level or a chunk that goes
/// with no bitmap.
pub fn choose(arguments: &CreateArguments, geometry: &Geometry) -> Result<NewBitmap, Failure> {
    let usage = |message: &str| Err(Failure::new(ExitKind::Usage, message));
    let level = geometry.level();
    let is_striped = level == Level::Raid0;
    let wants = match (arguments.bitmap, arguments.consistency_policy) {
        (Some(arguments::NewBitmap::None), Some(Policy::Bitmap)) => {
            return usage("--consistency-policy bitmap wants a bitmap, and --bitmap none forbids it");
        }
        (Some(arguments::NewBitmap::Internal), Some(Policy::Resync | Policy::None)) => {
            return usage("--bitmap internal is the policy bitmap: leave out --consistency-policy");
        }
        (_, Some(Policy::None)) if !is_striped => {
            let message =
                format!("{level} has redundancy, and a superblock has no word for leaving it to chance");
            return Err(Failure::new(ExitKind::Unsupported, message)
                .help("serve the array with --consistency-policy none if its contents may be lost"));
        }
        (_, Some(Policy::Resync)) if is_striped => return usage("RAID-0 has nothing to resync"),
        (Some(arguments::NewBitmap::Internal), _) | (_, Some(Policy::Bitmap)) => Some(true),
        (Some(arguments::NewBitmap::None), _) | (_, Some(_)) => Some(false),
        (None, None) => None,
    };
    if arguments.bitmap_chunk.is_some() && wants != Some(true) {
        return usage("--bitmap-chunk wants --bitmap internal");
    }
    if arguments.bitmap_mapping.is_some() && wants != Some(true) {
        return usage("--bitmap-mapping wants --bitmap internal");
    }
    let wants = wants.unwrap_or(!is_striped && geometry.member_bytes() > DEFAULT_ABOVE_BYTES);
    if !wants {
        return Ok(NewBitmap::None);
    }
    let chunk = arguments.bitmap_chunk.map(checked_chunk).transpose()?;
    match arguments.bitmap_mapping {
        Some(BitmapMapping::Dblock) => Ok(NewBitmap::Spread(chunk)),
        Some(BitmapMapping::Contiguous) | None => Ok(NewBitmap::Internal(chunk)),
    }
}

/// A chunk of a bitmap that mdadm takes, too.
///
/// # Errors
/// [`ExitKind::BadGeometry`]
pub fn checked_chunk(bytes: u64) -> Result<u32, Failure> {
    let chunk = u32::try_from(bytes).ok().filter(|chunk| chunk.is_power_of_two() && *chunk >= 4096);
    chunk.ok_or_else(|| {
        let message =
            format!("--bitmap-chunk {}: a power of two from 4K to 2G is wanted", bytes::human(bytes));
        Failure::new(ExitKind::BadGeometry, message)
    })
}
