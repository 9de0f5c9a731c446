//! What it costs to start an array on md's format without some of its members.

use layout::redo_log::StripeRange;

use super::super::assemble as choose;
use crate::bytes;
use crate::counted::{counted, slots_words};
use crate::probe::chosen::Chosen;

/// What a start without some members costs.
pub struct Cost {
    slots: Vec<usize>,
    stripes: u64,
    chunk_bytes: u64,
}

/// What it costs to start without the members that are not there. None: nothing that parity does not tell.
pub fn cost(chosen: &Chosen) -> Option<Cost> {
    let array = &chosen.array;
    let slots: Vec<usize> = (0..array.slots.len()).filter(|slot| array.slots[*slot].is_none()).collect();
    if slots.is_empty() || array.resync_from_bytes.is_none() {
        return None;
    }
    let doubts = choose::found_redo(&chosen.candidates, array, chosen.force).repair.doubts;
    let stripes = doubts.iter().map(|range: &StripeRange| range.end - range.first).sum();
    let chunk_bytes = array.geometry.as_ref().map_or(0, |geometry| u64::from(geometry.chunk_bytes()));
    (stripes > 0).then_some(Cost { slots, stripes, chunk_bytes })
}

impl Cost {
    /// The cost for a person.
    pub fn words(&self) -> String {
        let Cost { slots, stripes, chunk_bytes } = self;
        format!(
            "no member in {}, and {} in doubt since the last stop was not clean: up to {} that each missing member holds there \
             cannot be read until it is back",
            slots_words(slots),
            match stripes {
                1 => "1 stripe is".to_owned(),
                many => format!("{} are", counted(*many, "stripe")),
            },
            bytes::human(stripes.saturating_mul(*chunk_bytes)),
        )
    }
}
