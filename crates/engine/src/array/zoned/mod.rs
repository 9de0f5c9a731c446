//! Management of zoned arrays: which members belong together, the superblock log of each, start and stop. What is written into
//! segments is `log/`'s matter.

pub mod assemble;
#[cfg(test)]
mod assemble_tests;
pub mod check;
pub mod fit;
#[cfg(all(test, not(feature = "model")))]
mod grow_tests;
pub mod keeper;
pub mod plan;
pub mod running;
pub mod start;
#[cfg(all(test, not(feature = "model")))]
mod start_tests;
pub mod superblock_log;
