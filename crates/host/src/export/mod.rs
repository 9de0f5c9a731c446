//! Ways in which clients reach a volume.

pub mod nbd;
pub mod ublk;
