//! Atomics, a lock and a queue, from which everything that cores share is built. In the product they are re-exports; with the
//! feature `model` they are the stand-ins that the model checkers drive (docs/decisions/2026-11-21-model-checking.md).
//!
//! Two kinds, by the argument for their correctness:
//! - [`sequential`]: every access is `SeqCst` or under a lock, so only interleavings matter. Shuttle checks it, on larger
//!   histories; it knows interleavings only, and a test holds the files to that.
//! - [`weak`]: fences and weaker orders, for the path of every wake. Loom checks it, on small histories; it knows stale
//!   loads.

/// For code whose every access is `SeqCst` or under a lock.
#[cfg(not(feature = "model"))]
pub mod sequential {
    pub use crossbeam::queue::SegQueue;
    pub use parking_lot::Mutex;
    pub use std::hint::spin_loop;
    pub use std::sync::atomic;
}

/// For code with fences and weaker orders.
#[cfg(not(feature = "model"))]
pub mod weak {
    pub use crossbeam::queue::SegQueue;
    pub use std::sync::OnceLock;
    pub use std::sync::atomic;
    pub(crate) use std::thread_local;
}

#[cfg(all(test, feature = "model"))]
pub(crate) mod models;
#[cfg(feature = "model")]
pub mod sequential;
#[cfg(feature = "model")]
pub mod weak;

#[cfg(test)]
mod tests {
    /// Shuttle treats every order as `SeqCst`, so it would not notice a weaker one in these files.
    #[test]
    fn files_that_shuttle_checks_are_sequential() {
        let files = [
            ("stages.rs", include_str!("stages.rs")),
            ("stripe_table.rs", include_str!("stripe/stripe_table.rs")),
            ("stripe_table/words.rs", include_str!("stripe/stripe_table/words.rs")),
            ("stripe_table/segments.rs", include_str!("stripe/stripe_table/segments.rs")),
            ("intent/mod.rs", include_str!("stripe/intent/mod.rs")),
            ("intent/bits.rs", include_str!("stripe/intent/bits.rs")),
            ("intent/words.rs", include_str!("stripe/intent/words.rs")),
            ("intent/pages.rs", include_str!("stripe/intent/pages.rs")),
            ("fabric/epochs.rs", include_str!("fabric/epochs.rs")),
            ("members/health.rs", include_str!("members/health.rs")),
            ("members/metadata.rs", include_str!("members/metadata.rs")),
            ("log/map.rs", include_str!("log/map.rs")),
            ("log/map/pending.rs", include_str!("log/map/pending.rs")),
            ("log/pins.rs", include_str!("log/pins.rs")),
            ("log/sequence.rs", include_str!("log/sequence.rs")),
            ("log/stripe_group.rs", include_str!("log/stripe_group.rs")),
        ];
        for (name, text) in files {
            assert!(text.contains("sync::sequential::"), "{name} is built from what shuttle knows");
            let mut words = text.split(|c: char| !c.is_alphanumeric());
            let weaker = words.find(|word| matches!(*word, "Relaxed" | "Acquire" | "Release" | "AcqRel"));
            assert_eq!(weaker, None, "{name}: weaker orders are for code on sync::weak, with a loom model");
        }
    }
}
