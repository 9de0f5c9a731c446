//! Why level, layout, chunk and members make no array.

use super::level::{Level, Raid10Layout};

/// Why there is no such array.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// No level that Twill runs has this name or md number.
    #[error("unknown or unsupported level {0}")]
    UnknownLevel(String),
    /// The level has no such layout.
    #[error("{level} has no layout {layout}")]
    UnknownLayout {
        /// The level asked for.
        level: Level,
        /// The layout's name or number.
        layout: String,
    },
    /// Too few or too many members for the level.
    #[error("{level} takes {least} to {most} members, not {members}")]
    Members {
        /// The level asked for.
        level: Level,
        /// The members asked for.
        members: u32,
        /// The fewest it takes.
        least: u32,
        /// The most it takes.
        most: u32,
    },
    /// The chunk is outside the level's range, or not a multiple that the level takes.
    #[error("chunk of {chunk_bytes} bytes: {level} wants {wanted}")]
    Chunk {
        /// The level asked for.
        level: Level,
        /// The chunk asked for, in bytes.
        chunk_bytes: u32,
        /// What the level takes, in words.
        wanted: &'static str,
    },
    /// The members are smaller than one chunk.
    #[error("members of {member_bytes} bytes are smaller than a chunk of {chunk_bytes} bytes")]
    MemberTooSmall {
        /// The member's size, in bytes.
        member_bytes: u64,
        /// The chunk, in bytes.
        chunk_bytes: u32,
    },
    /// The array would reach beyond 2^63 bytes.
    #[error("the array would be larger than 2^63 bytes")]
    TooLarge,
    /// RAID-10 with fewer than two copies, or more copies than members.
    #[error("RAID-10 with {copies} copies on {members} members: wants at least 2 and at most one a member")]
    Copies {
        /// near * far.
        copies: u32,
        /// Members of the array.
        members: u32,
    },
    /// md would put two chunks of this RAID-10 in the same place.
    #[error(
        "RAID-10 layout {layout} on {members} members puts two chunks in the same place; md would lose data"
    )]
    CopiesCollide {
        /// The layout asked for.
        layout: Raid10Layout,
        /// Members of the array.
        members: u32,
    },
    /// The members of a RAID-0 differ in size, and none of md's two zone layouts was named.
    #[error("members of RAID-0 differ in size: layout must be original or alternate")]
    ZonesNeedLayout,
}
