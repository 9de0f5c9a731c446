//! The commands, one file each, and what they print.

pub mod assemble;
#[cfg(feature = "laboratory")]
pub mod bench;
pub mod correct_size;
pub mod create;
pub mod discover;
pub mod doubt;
pub mod events;
pub mod examine;
pub mod fabric;
pub mod grow;
mod host_access;
pub mod list;
pub mod members;
pub mod monitor;
pub mod output;
pub mod pages;
pub mod rename;
pub mod scrub;
pub mod serve;
#[cfg(feature = "laboratory")]
pub mod ssdsim;
pub mod status;
pub mod target;
pub mod top;
mod waiting;
pub mod zero_superblock;
pub mod zones;
