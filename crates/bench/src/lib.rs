//! What Twill's arrays do, measured: workloads in process on the real shards, the floor below which no RAID of the
//! same plan can go, and reports with plots.
//!
//! Read [`setting`] for what can be asked, [`run`] for how it is measured, [`roofline`] for what it is compared with,
//! [`figures`] for what comes out.
#![forbid(unsafe_code)]

mod array;
pub mod beside;
mod bitmap;
pub mod ceiling;
mod clock;
mod drive;
mod error;
pub mod figures;
pub mod footprint;
pub mod histogram;
mod limits;
pub mod locks;
pub mod machine;
pub mod operations;
mod random;
pub mod rebuild;
mod redundancy;
pub mod report;
pub mod roofline;
pub mod run;
pub mod setting;
mod shard;
mod stages;
pub mod table;
pub mod trace;
mod verify;
mod workload;
pub mod zoned;

pub use error::Error;
pub use random::Zipf;
