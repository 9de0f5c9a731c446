//! Log-structured RAID over zones (ZapRAID): only whole stripes are written, to the ends of open segments.

mod append;
pub mod append_table;
mod batch;
pub mod checkpoint;
pub mod checkpoints;
pub mod config;
mod damage;
mod degraded;
pub mod dispatch;
pub mod encode;
pub mod engine;
pub mod flush;
pub mod footer;
mod footer_places;
pub mod health;
pub mod join;
pub mod map;
pub mod map_memory;
mod open;
pub mod page_out;
pub mod paging;
pub mod pins;
pub mod places;
pub mod places_memory;
pub mod port;
mod read;
pub mod read_places;
pub mod reclaim;
pub mod recover;
pub mod segment;
pub mod segment_table;
pub mod sequence;
pub mod shard;
pub mod shared;
pub mod space;
pub mod stripe_group;
pub mod valid_blocks;
mod write;
pub mod zeroed;
mod zeroes;
pub mod zone_budget;

#[cfg(all(test, not(feature = "model")))]
mod checkpoint_tests;
#[cfg(all(test, not(feature = "model")))]
mod crash_tests;
#[cfg(all(test, not(feature = "model")))]
pub(crate) mod failure_tests;
#[cfg(all(test, not(feature = "model")))]
mod grow_tests;
#[cfg(all(test, not(feature = "model")))]
mod join_tests;
#[cfg(all(test, not(feature = "model")))]
mod reclaim_tests;
#[cfg(all(test, not(feature = "model")))]
mod serve_tests;
#[cfg(all(test, not(feature = "model")))]
pub(crate) mod world;
#[cfg(all(test, not(feature = "model")))]
mod zone_state_tests;
