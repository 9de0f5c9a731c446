//! Ways in which clients reach a volume.

pub mod array;
pub mod nbd;
pub mod nvme_tcp;
mod outbox;
pub mod ublk;
pub mod vhost_user;
