//! The program as a person runs it: the built binary on temporary files. What it refuses leaves every byte as it was.

mod assemble;
mod at_rest;
#[cfg(feature = "laboratory")]
mod bench;
mod bitmap;
#[path = "../control_lines/calls.rs"]
mod calls;
mod clients;
mod control_bytes;
mod create;
mod examine;
mod fabric_kills;
mod grow;
mod keeping;
mod kill;
mod load;
mod lost_in_resync;
mod many;
mod metrics;
mod monitor;
mod nbd;
mod output;
mod own_files;
mod proxy;
mod rate;
mod refusals;
mod remote;
mod remote_tls;
mod replacing;
mod scrub;
mod serve;
mod served_refusals;
mod service_manager;
mod space;
mod storage_server;
mod superblock_fields;
mod targets;
mod top;
mod waiting;
mod world;
mod zoned;
mod zoned_examine;
mod zoned_grow;
mod zoned_rebuild;
mod zoned_starts;
