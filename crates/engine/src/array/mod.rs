//! Management of arrays: which members belong together, what the superblocks say, resync and recovery. How a new
//! array looks on disk is `layout::md_superblock::NewArray`.

mod absences;
pub mod assemble;
#[cfg(test)]
mod assemble_tests;
pub mod bad_block_log;
pub mod bitmap;
pub mod bitmap_change;
mod device_numbers;
pub mod doubt;
mod due;
mod generation_records;
pub mod generations;
#[cfg(test)]
mod generations_tests;
#[cfg(test)]
mod histories;
pub mod ledgers;
mod managed;
pub mod manager;
pub mod membership;
mod mend;
pub mod platform;
pub mod progress;
pub mod re_add;
pub mod rebuild;
#[cfg(test)]
mod rebuild_tests;
pub mod redo;
pub mod replace;
#[cfg(test)]
mod replace_tests;
mod retry;
pub mod running;
pub mod scrub;
mod split;
pub mod start;
pub mod start_bitmap;
mod superblock_write;
pub mod superblock_writer;
pub mod superblocks;
pub mod throttle;
mod turn;
pub mod volume;
mod window;
#[cfg(test)]
mod window_tests;
pub mod works;
pub mod zoned;
