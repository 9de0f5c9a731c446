//! How facts are printed for people.

pub mod advice;
pub mod clearing;
pub mod events;
pub mod remote;
pub mod scrub;
pub mod status;
pub mod superblock;
pub mod time;
