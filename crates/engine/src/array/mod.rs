//! Management of arrays: which members belong together, what the superblocks say, resync and recovery. How a new
//! array looks on disk is `layout::md_superblock::NewArray`.

pub mod assemble;
#[cfg(test)]
mod assemble_tests;
pub mod bad_block_log;
pub mod bitmap;
mod device_numbers;
mod fail;
mod generation_records;
pub mod generations;
#[cfg(test)]
mod generations_tests;
#[cfg(test)]
mod histories;
pub mod keeper;
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
pub mod replacement;
mod retry;
pub mod running;
pub mod scrub;
mod split;
pub mod start;
pub mod start_bitmap;
pub mod state;
pub mod throttle;
mod turn;
mod window;
#[cfg(test)]
mod window_tests;
