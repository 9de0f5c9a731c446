//! What of the report is run, and how much.

use std::path::PathBuf;
use std::str::FromStr;

use crate::setting::named;

/// Which experiments are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// Those of the StRAID and ScalaRAID papers on this machine.
    OnMachine(Extent),
    /// Those of the dRAID paper at its own scale, in virtual time.
    Draid,
    /// Those of the ZapRAID paper, in virtual time.
    Zapraid,
}

/// How much is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    /// A few minutes.
    Quick,
    /// An hour.
    Full,
}

impl FromStr for Set {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (quick, full) = (Set::OnMachine(Extent::Quick), Set::OnMachine(Extent::Full));
        named(text, &[("quick", quick), ("full", full), ("draid", Set::Draid), ("zapraid", Set::Zapraid)])
    }
}

/// What to run, and where the page goes.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which.
    pub set: Set,
    /// Only these experiments; all if there are none.
    pub only: Vec<String>,
    /// Of `draid`: what `cargo xtask bench-draid --json` has measured over sockets, to stand beside it.
    pub measured: Vec<PathBuf>,
    /// Folder of traces.
    pub traces: Option<PathBuf>,
    /// Folder for the page and the raw figures.
    pub output: PathBuf,
    /// Seconds of each run, if not those of the extent.
    pub runtime: Option<f64>,
    /// Bytes of each member, if not those of the extent.
    pub member_bytes: Option<u64>,
}
