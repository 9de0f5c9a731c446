//! The recovery of every level is measured: tiny, so that the benchmark cannot rot.

use bench::rebuild::{Plan, measure};
use bench::setting::Setting;

#[test]
fn every_level_is_rebuilt_and_compared() {
    let members = vec!["memory:6x4M".to_string()];
    let levels = ["5", "6", "10", "1"].map(str::to_string).to_vec();
    let plan = Plan { runs: 2, levels, array: Setting { members, ..Setting::default() } };
    let found = measure(&plan, &|_| {}).expect("all levels");
    assert_eq!(found.levels.len(), 4);
    for level in &found.levels {
        assert!(level.recovery.mb_per_s.least > 0.0 && level.ratio > 0.0, "{level:?}");
        assert!(level.same_io.mb_per_s.least > 0.0 && level.ratio_to_same_io > 0.0, "{level:?}");
    }
    assert!(found.words().contains("| RAID-10 |"), "{}", found.words());
}
