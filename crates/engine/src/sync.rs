//! What cores share is built from these: atomics, a lock, a queue. In the product each is the thing itself, re-exported;
//! with the feature `model` they are what the model checkers drive (docs/decisions/2026-11-21-model-checking.md).
//!
//! Two kinds, by the argument for their correctness:
//! - [`sequential`]: every access is `SeqCst` or under a lock, so interleavings are all there is. Checked by shuttle,
//!   which knows nothing else, on larger histories. A test holds the files to it.
//! - [`weak`]: fences and weaker orders, for paths that every wake takes. Checked by loom, which knows stale loads, on
//!   small histories.

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
    /// Shuttle takes every order for `SeqCst`: a weaker one here would pass unseen.
    #[test]
    fn what_shuttle_checks_is_sequential() {
        let files = [
            ("stages.rs", include_str!("stages.rs")),
            ("stripe_table.rs", include_str!("stripe/stripe_table.rs")),
            ("stripe_table/words.rs", include_str!("stripe/stripe_table/words.rs")),
            ("stripe_table/segments.rs", include_str!("stripe/stripe_table/segments.rs")),
            ("intent/mod.rs", include_str!("stripe/intent/mod.rs")),
            ("intent/bits.rs", include_str!("stripe/intent/bits.rs")),
            ("intent/words.rs", include_str!("stripe/intent/words.rs")),
            ("intent/pages.rs", include_str!("stripe/intent/pages.rs")),
            ("members/health.rs", include_str!("members/health.rs")),
            ("members/metadata.rs", include_str!("members/metadata.rs")),
        ];
        for (name, text) in files {
            assert!(text.contains("sync::sequential::"), "{name} is built from what shuttle knows");
            let mut words = text.split(|c: char| !c.is_alphanumeric());
            let weaker = words.find(|word| matches!(*word, "Relaxed" | "Acquire" | "Release" | "AcqRel"));
            assert_eq!(weaker, None, "{name}: weaker orders are for code on sync::weak, with a loom model");
        }
    }
}
