//! What is on files and devices before an array is served: their superblocks, bitmaps and logs, whatever else is there, and which
//! array they make.

pub mod answering;
pub mod bad_blocks;
pub mod bitmap;
pub mod candidates;
pub mod chosen;
pub mod clearing;
pub mod contents;
pub mod generations;
pub mod inspection;
pub mod member_file;
pub mod signatures;
pub mod superblocks;
pub mod zoned;
pub mod zoned_candidates;
