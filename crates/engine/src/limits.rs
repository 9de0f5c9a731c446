//! Every limit of the engine in one place, with where the number comes from and how limits relate.

/// The block: what a file system and a page cache use, and the granularity of the parity cache (StRAID 4.4).
pub const BLOCK_BYTES: usize = 4096;

/// Largest pooled buffer in blocks: 1 MiB. Larger requests are rare and pay for their own allocation.
pub const POOL_CLASS_BLOCKS_MAX: usize = 256;

/// Largest request an export accepts: NBD's customary limit, 32 MiB. Larger ones are refused, not split.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// Entries of the stripe state table (StRAID 4.2: 4096 active stripes in under 40 KB).
pub const STRIPE_TABLE_ENTRIES: usize = 4096;

/// Entries of one bucket: one cache line of words.
pub const STRIPE_TABLE_WAYS: usize = 8;

/// Most member devices of one array: md's own limit for superblock 1.x with parity levels is 384 roles, but the
/// health of all members is one atomic word pair here and RAID-6 allows 254 data chunks.
pub const MEMBERS_MAX: usize = 256;

/// Parity cache by default: 64 MiB (StRAID 4.4).
pub const PARITY_CACHE_BYTES_DEFAULT: usize = 64 << 20;

const _: () = assert!(STRIPE_TABLE_ENTRIES.is_multiple_of(STRIPE_TABLE_WAYS));
const _: () = assert!((STRIPE_TABLE_ENTRIES / STRIPE_TABLE_WAYS).is_power_of_two());
const _: () = assert!(POOL_CLASS_BLOCKS_MAX.is_power_of_two());
const _: () = assert!(STRIPE_TABLE_ENTRIES * 8 < 40 << 10, "StRAID 4.2: under 40 KB");
