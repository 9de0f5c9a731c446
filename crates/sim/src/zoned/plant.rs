//! Bugs that are planted to see them found: what an engine would ask of its drives, or a start of its superblocks, that had
//! them. The seeds that find each are in docs/reliability.md; bugs inside of the engine are in crates/xtask/mutants.toml.

use clap::ValueEnum;

/// A planted bug of zoned arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Plant {
    /// A segment's headers are not durable before its first record.
    HeaderNotDurable,
    /// FUA is left out.
    FuaIgnored,
    /// Flushes return at once.
    FlushIgnored,
    /// A recovery does not flush: zones are reset before what superseded their blocks is durable.
    RecoveryNotFlushed,
    /// A segment of which a header is missing is reset, as the released prototype does.
    MissingHeaderResets,
    /// A start sees open and full zones only, as the released prototype does.
    ClosedZonesIgnored,
    /// A member that missed an epoch which never served is called stale.
    StaleByUnserved,
    /// Sequences begin where the run before began.
    EpochAgain,
    /// A start writes nothing down of what it decided: it finishes zones without footers and fences.
    NoFence,
    /// Appends return the place that the pointer had when they were sent.
    PlaceGuessed,
}
