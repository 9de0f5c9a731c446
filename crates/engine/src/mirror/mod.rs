//! RAID-1 and RAID-10: the same bytes on several members. A write owns **regions** of the array; they have their owners in
//! the stripe table, and mirrors have no stripes.
//!
//! Two overlapping writes in flight must reach every copy in the same order, or the copies stay different. So a
//! write claims the regions that it touches, in ascending order, and owns them while it is in flight.
//!
//! A write that fails may have reached some copies only. Its regions are suspect until the next write or a resync has
//! written one copy over the others; the superblocks do not say clean before.
//!
//! A recovering member gets every write and serves no read. The recovery owns each region that it copies, so it never
//! overwrites a newer write.

mod agree;
pub(crate) mod check;
pub(crate) mod engine;
pub(crate) mod read;
pub(crate) mod region;
pub(crate) mod replace;
mod salvage;
pub(crate) mod write;

pub(crate) use agree::copy_region;
