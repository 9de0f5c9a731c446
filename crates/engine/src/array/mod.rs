//! Management of arrays: which members belong together, what the superblocks say, resync and recovery. How a new
//! array looks on disk is `layout::md_superblock::NewArray`.

pub mod assemble;
pub mod keeper;
pub mod rebuild;
pub mod state;
