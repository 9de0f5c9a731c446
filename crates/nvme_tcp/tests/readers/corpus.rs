//! What `cargo xtask fuzz` has kept: inputs that reach code which others do not, and every one that ever failed.

use std::fs;
use std::path::Path;

/// Feeds `entry` all that is kept under `name`. With `TWILL_FUZZ_SEEDS` a fuzzer wants `seeds` as files to begin with.
pub fn run(name: &str, seeds: &[Vec<u8>], entry: fn(&[u8])) {
    if let Some(folder) = std::env::var_os("TWILL_FUZZ_SEEDS") {
        let folder = Path::new(&folder).join(name);
        fs::create_dir_all(&folder).expect("a folder for seeds");
        for (number, seed) in seeds.iter().enumerate() {
            fs::write(folder.join(format!("seed-{number}")), seed).expect("a seed");
        }
    }
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
    for file in fs::read_dir(&kept).expect("a corpus for each entry").flatten() {
        entry(&fs::read(file.path()).expect("a file"));
    }
}
