//! The commands, one file each, and what they print.

pub mod assemble;
pub mod bench;
pub mod create;
pub mod discover;
pub mod doubt;
pub mod events;
pub mod examine;
pub mod members;
pub mod output;
pub mod scrub;
pub mod serve;
pub mod ssdsim;
pub mod status;
pub mod target;
pub mod zones;
