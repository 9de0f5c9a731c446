//! Where every byte of an array lives: the geometry of md's levels and layouts, and md's on-disk formats.
//!
//! Everything here is a pure function of its arguments: no I/O, no clock, no randomness. The sources of truth are
//! the kernel (what it does with an array, recorded in `tests/data`) and `docs/formats.md`, which a test holds
//! against the structs of this crate.

#![forbid(unsafe_code)]

pub mod absences;
pub mod generations;
pub mod geometry;
pub mod headroom;
pub mod md_bitmap;
pub mod md_superblock;
pub mod redo_log;
pub mod units;
mod uuid;
pub mod zoned;

pub use byte_struct::Checksum;
pub use geometry::{
    Copies, CopyPlace, FarSets, Geometry, GeometryError, Layout, Level, Place, Raid10Layout, Role,
};
