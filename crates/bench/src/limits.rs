//! What bounds a run: copies and parity passes where members are memory, else the members themselves.

use std::sync::Arc;

use crate::array::Array;
use crate::ceiling::Raw;
use crate::roofline::Floor;
use crate::setting::Setting;
use crate::workload::Replay;
use crate::{Error, ceiling, roofline};

/// The bound of a run, as far as it was measured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Limits {
    pub(crate) floor: Option<Floor>,
    pub(crate) raw: Option<Raw>,
}

impl Limits {
    /// Measures the bound that holds for these members.
    pub(crate) fn measure(
        array: &Array,
        setting: &Setting,
        replay: Option<&Arc<Replay>>,
    ) -> Result<Self, Error> {
        if setting.is_memory() && setting.member_read_us == 0 && setting.member_rate == 0 {
            return Ok(Limits { floor: roofline::measure(array, setting, replay)?, raw: None });
        }
        Ok(Limits { floor: None, raw: ceiling::measure(array, setting, replay)? })
    }
}
