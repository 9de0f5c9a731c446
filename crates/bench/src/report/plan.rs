//! What of the report is run, and how much.

use std::path::PathBuf;
use std::str::FromStr;

use crate::setting::named;

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A few minutes.
    Quick,
    /// An hour.
    Full,
}

impl FromStr for Extent {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        named(text, &[("quick", Extent::Quick), ("full", Extent::Full)])
    }
}

/// What to run, and where the page goes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How much.
    pub extent: Extent,
    /// Only these experiments; all if there are none.
    pub only: Vec<String>,
    /// Folder of traces.
    pub traces: Option<PathBuf>,
    /// Folder for the page and the raw figures.
    pub output: PathBuf,
    /// Seconds of each run, if not those of the extent.
    pub runtime: Option<f64>,
    /// Bytes of each member, if not those of the extent.
    pub member_bytes: Option<u64>,
}
