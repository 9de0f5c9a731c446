//! The program as a person runs it: the built binary on temporary files. What it refuses leaves every byte as it was.

mod assemble;
mod at_rest;
mod bench;
mod bitmap;
#[path = "../control_lines/calls.rs"]
mod calls;
mod clients;
mod control_bytes;
mod create;
mod examine;
mod keeping;
mod kill;
mod nbd;
mod output;
mod own_files;
mod rate;
mod refusals;
mod remote;
mod replacing;
mod scrub;
mod serve;
mod service_manager;
mod space;
mod superblock_fields;
mod world;
mod zoned;
mod zoned_examine;
