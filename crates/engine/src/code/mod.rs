//! The erasure code of a stripe as pure values: sets of chunks, the plan of a write, how parity is made, how lost data is
//! recovered, which block of a row is wrong. There is no I/O, so every case is a row of a table test, and another parity
//! engine can use the same arithmetic.

pub mod chunk_set;
pub(crate) mod combination;
pub mod cost;
pub(crate) mod image;
pub(crate) mod locate;
pub(crate) mod parity_step;
pub mod plan;
pub(crate) mod recover;
pub mod rows;
pub(crate) mod union;
