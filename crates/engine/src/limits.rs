//! Every limit of the engine in one place, with where the number comes from and how limits relate.

/// The block: what a file system and a page cache use, and the granularity of the parity cache (StRAID 4.4).
pub const BLOCK_BYTES: usize = 4096;

/// Largest pooled buffer in blocks: 1 MiB. Larger requests are rare and pay for their own allocation.
pub const POOL_CLASS_BLOCKS_MAX: usize = 256;

/// Largest request an export accepts: NBD's customary limit, 32 MiB. Larger ones are refused, not split.
pub const REQUEST_BYTES_MAX: u32 = 32 << 20;

/// Entries of the stripe state table (StRAID 4.2: 4096 active stripes in under 40 KB).
pub const STRIPE_TABLE_ENTRIES: usize = 4096;

/// Entries of one bucket: one cache line of words. Models take fewer, so that a full bucket is among the cases they try.
pub const STRIPE_TABLE_WAYS: usize = if cfg!(feature = "model") { 2 } else { 8 };

/// Most data chunks of a stripe with parity: RAID-6 allows no more, and a chunk's number is a byte with two values for parity. md
/// runs wider RAID-4 and 5.
pub const DATA_CHUNKS_MAX: u32 = 254;

/// Bytes of each chunk that a resync, recovery or scrub works on at once: what fits in a core's cache.
pub const CHUNK_WINDOW_BYTES: u32 = 256 << 10;

/// A region, the unit that a write of a mirror owns: large enough that a large write claims few, small enough that small
/// writes rarely meet in one.
pub const REGION_BYTES: u64 = 256 << 10;

/// Reads of a mirror move on to the next copy after this many bytes, so that every member works and reads stay sequential.
pub const READ_TURN_BYTES: u64 = 1 << 20;

/// Parity cache by default: 64 MiB (StRAID 4.4).
pub const PARITY_CACHE_BYTES_DEFAULT: usize = 64 << 20;

/// A new latency has this reciprocal weight in a member's average, which so covers some ten operations.
pub const LATENCY_WEIGHT: u64 = 8;

/// A member's latency halves for each of these intervals in which no read there ended. Long against the time between
/// reads under any load that matters, short against what a person notices.
pub const LATENCY_FADE_NS: u64 = 100_000_000;

/// A member that is silent for this many times its usual latency is stalled; a stall enters an average as at most this many
/// times that average.
pub const STALL_FACTOR: u64 = 4;

/// Shorter silence is no stall: the host itself may take that long to reap completions.
pub const STALL_NS_MIN: u64 = 500_000;

/// A member is slow if it takes more than this many times as long as any other: reconstruction waits for the slowest of
/// those.
pub const SLOW_FACTOR: u64 = 3;

/// A member that answers faster is not slow: such reads are not worth reconstructing.
pub const SLOW_NS_MIN: u64 = 200_000;

/// Extra member reads that avoiding a slow member may cost, in percent of all reads.
pub const AVOID_EXTRA_PERCENT: u64 = 25;

/// Most of that allowance that a shard may save up, in hundredths of a read: enough to avoid a pause of some milliseconds
/// whole.
pub const AVOID_ALLOWANCE_MAX: u64 = 100 * 512;

/// Most recent corrected read errors of a member before it fails: md's default (`MD_DEFAULT_MAX_CORRECTED_READ_ERRORS`).
pub const CORRECTED_READS_MAX: u64 = 20;

/// The count of recent read errors halves for each of these intervals without one: md's hour.
pub const READ_ERRORS_HALVE_NS: u64 = 3_600_000_000_000;

/// Most events that a member may be behind the newest: superblocks are written side by side.
pub const EVENTS_BEHIND_MAX: u64 = 1;

/// Time between two rounds of the manager.
pub const LOOK_NS: u64 = 200_000_000;

/// Longest time between two rounds that clear bits of a bitmap, in seconds: an hour, whatever its superblock says.
pub const BITMAP_CLEAR_S_MAX: u32 = 3600;

/// Time without a write after which the superblocks say clean. (md: 0.2 s.)
pub const QUIET_NS: u64 = 1_000_000_000;

/// Time that a member has to answer when an operator takes it out of use.
pub const ANSWER_NS: u64 = 800_000_000;

/// Time that the redo log has to come into force before an operator's member is taken out of use.
pub const LOG_IN_FORCE_NS: u64 = 2_000_000_000;

/// The manager tries to make suspect stripes agree after a second, then after twice as long each time, up to five minutes.
pub const MEND_NS_MIN: u64 = 1_000_000_000;
/// See [`MEND_NS_MIN`].
pub const MEND_NS_MAX: u64 = 300_000_000_000;

/// A resync, recovery or replacement that stopped is tried again after half a minute, then after twice as long each time,
/// up to ten minutes.
pub const RETRY_NS_MIN: u64 = 30_000_000_000;
/// See [`RETRY_NS_MIN`].
pub const RETRY_NS_MAX: u64 = 600_000_000_000;

const _: () = assert!(CHUNK_WINDOW_BYTES.is_multiple_of(BLOCK_BYTES as u32));
const _: () = assert!(REGION_BYTES.is_multiple_of(BLOCK_BYTES as u64));
const _: () = assert!(ANSWER_NS + LOOK_NS / 2 < QUIET_NS, "closing a quiet array waits for every member");
const _: () = assert!(2 * LOOK_NS <= ANSWER_NS, "a shorter time could pass between two rounds");
const _: () = assert!(LOOK_NS < MEND_NS_MIN && MEND_NS_MIN < MEND_NS_MAX);
const _: () = assert!(LOOK_NS < RETRY_NS_MIN && RETRY_NS_MIN < RETRY_NS_MAX);
const _: () = assert!(SLOW_NS_MIN <= STALL_NS_MIN, "a stalled member is slow");
const _: () = assert!(STRIPE_TABLE_ENTRIES.is_multiple_of(STRIPE_TABLE_WAYS));
const _: () = assert!((STRIPE_TABLE_ENTRIES / STRIPE_TABLE_WAYS).is_power_of_two());
const _: () = assert!(POOL_CLASS_BLOCKS_MAX.is_power_of_two());
const _: () = assert!(STRIPE_TABLE_ENTRIES * 8 < 40 << 10, "StRAID 4.2: under 40 KB");
