//! Log-structured RAID over zones (ZapRAID): only whole stripes are written, to the ends of open segments.

pub mod dispatch;
pub mod map;
pub mod pins;
pub mod sequence;
pub mod stripe_group;
pub mod zone_budget;
