//! What an instruction is spent on, by the source file that it comes from.

use serde::{Serialize, Serializer};

/// A part of the way of a request, in the order of [`STAGES`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stage(usize);

/// Names, and parts of the paths of their files. The first that fits counts.
const STAGES: &[(&str, &[&str])] = &[
    ("requests", &["crates/bench/", "crates/twill/"]),
    ("tasks", &["engine/src/executor", "engine/src/sync", "host/src/shard", "host/src/busy"]),
    (
        "claims",
        &["engine/src/stripe/stripe_table", "engine/src/stripe/unit_number", "engine/src/stripe/locks"],
    ),
    ("parity cache", &["engine/src/stripe/parity_cache"]),
    ("stripe", &["engine/src/stripe/", "engine/src/code/", "engine/src/stages"]),
    ("members", &["engine/src/members/", "engine/src/counters"]),
    (
        "volume",
        &["crates/engine/src/array/", "engine/src/in_place", "engine/src/volume", "engine/src/foreground"],
    ),
    ("layout", &["crates/layout/"]),
    ("buffers", &["engine/src/buffer"]),
    ("ring", &["host/src/ring/", "host/src/device/"]),
    ("parity", &["crates/parity/"]),
    ("our others", &["crates/engine/", "crates/host/", "crates/byte_struct/", "crates/nvme_tcp/"]),
    ("allocator", &["malloc/"]),
    ("memcpy", &["multiarch/mem"]),
    ("std and libraries", &[""]),
];

impl Stage {
    /// The stage of a source file.
    pub fn of(path: &str) -> Stage {
        let fits = |(_, parts): &(_, &[&str])| parts.iter().any(|part| path.contains(part));
        Stage(STAGES.iter().position(fits).expect("the last fits everything"))
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        STAGES[self.0].0
    }
}

impl Serialize for Stage {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_belongs_to_the_first_stage_that_fits() {
        for (path, stage) in [
            ("/home/a/twill/crates/engine/src/stripe/write.rs", "stripe"),
            ("/home/a/twill/crates/engine/src/stripe/stripe_table/words.rs", "claims"),
            ("/home/a/twill/crates/engine/src/array/volume.rs", "volume"),
            ("/home/a/twill/crates/host/src/ring/core.rs", "ring"),
            ("/home/a/twill/crates/host/src/balance.rs", "our others"),
            ("./malloc/./malloc/malloc.c", "allocator"),
            ("./string/../sysdeps/x86_64/multiarch/memmove-vec-unaligned-erms.S", "memcpy"),
            ("/rustc/0123/library/core/src/ptr/mod.rs", "std and libraries"),
            ("???", "std and libraries"),
        ] {
            assert_eq!(Stage::of(path).name(), stage, "{path}");
        }
    }
}
