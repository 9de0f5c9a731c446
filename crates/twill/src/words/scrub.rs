//! Checks and repairs.

use engine::array::scrub::{Phase, word};
use engine::mismatch::{BlockPlace, Mismatch, Outcome, Wrong};

use crate::bytes;
use crate::counted::{counted, counted_as};
use crate::plain::plain;
use crate::status::ScrubSummary;
use layout::units::Slot;

/// A check or repair in a line.
pub fn summary(scrub: &ScrubSummary) -> String {
    let sectors = counted_as(scrub.mismatch_sectors, "sector does", "sectors do");
    let mut text = format!("{} {}, {sectors} not agree", word(scrub.repair), phase(scrub.phase));
    if scrub.repair {
        text += &format!(", {} repaired, {} left", counted(scrub.repaired, "place"), scrub.left);
    }
    text
}

/// How far a check or repair is.
pub fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Running => "under way",
        Phase::Paused => "paused",
        Phase::Finished => "finished",
        Phase::Cancelled => "cancelled",
        Phase::Failed => "failed",
    }
}

/// A mismatch; `path` knows the members' paths.
pub fn mismatch(found: &Mismatch, path: &dyn Fn(Slot) -> Option<String>) -> String {
    let Mismatch { unit, row_bytes, bytes, wrong, blocks, array_offset_bytes, outcome } = found;
    let length = bytes::human(*bytes);
    let place = |place: &BlockPlace| {
        let name = path(place.member).map_or_else(String::new, |path| format!(" ({})", plain(&path)));
        format!("member {}{name} at byte {}", place.member, place.offset_bytes)
    };
    let places = blocks.iter().map(place).collect::<Vec<_>>().join(", ");
    let what = match wrong {
        Wrong::Data => format!("wrong data: {length} on {places}"),
        Wrong::P | Wrong::Q => format!("wrong parity {wrong:?}: {length} on {places}"),
        Wrong::Copy => format!("outvoted copy: {length} on {places}"),
        Wrong::Unreadable => {
            format!("unreadable, and the other members cannot make it: {length} on {places}")
        }
        Wrong::Unknown if blocks.is_empty() => {
            format!("{unit}, byte {row_bytes} of its chunks: data and parity of {length} do not agree")
        }
        Wrong::Unknown => format!("copies of {length} differ: {places}"),
    };
    let array = array_offset_bytes.map_or_else(String::new, |at| format!(", byte {at} of the array"));
    let done = match outcome {
        Outcome::Found => "",
        Outcome::BlockRewritten => "; rewritten from the others and read back",
        Outcome::ParityRewritten => "; parity made from the data",
        Outcome::Moved => "; what counts of its segment was made again elsewhere",
        Outcome::CopiesRewritten => "; the first copy was written over the others",
        Outcome::NotRepaired => "; COULD NOT be rewritten",
    };
    let unit = if blocks.is_empty() { String::new() } else { format!(" ({unit}{array})") };
    format!("{what}{unit}{done}")
}
