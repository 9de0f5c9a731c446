//! The code of a stripe as pure values: which chunks, what to read and write, how parity is made, what a row says of who is
//! wrong. Nothing here reads or waits, so every case is a row of a table test, and an engine with parity of another kind
//! uses the same arithmetic.

pub mod chunk_set;
pub mod cost;
pub(crate) mod image;
pub(crate) mod locate;
pub(crate) mod parity_step;
pub mod plan;
pub(crate) mod recover;
pub mod rows;
pub(crate) mod union;
