//! Memory does not grow with capacity, but for a word for each bit of the bitmap. Alone in its process: other tests' memory would count.

use bench::footprint::{Plan, measure};

#[test]
fn a_petabyte_takes_no_more_memory_than_a_terabyte() {
    let plan = Plan {
        sizes: [1u64, 100, 1000].map(|terabytes| terabytes * 1_000_000_000_000).to_vec(),
        writes: 40_000,
        parity_cache: 4 << 20,
    };
    let found = measure(&plan, &|_| {}).expect("arrays of any size");
    assert_eq!(found.arrays.len(), 3);
    let (first, last) = (&found.arrays[0], &found.arrays[2]);
    assert!(last.stripes > 900 * first.stripes);
    let counters = last.bitmap.counters_bytes - first.bitmap.counters_bytes;
    let growth = last.resident_bytes.saturating_sub(first.resident_bytes + counters);
    assert!(growth < 2 << 20, "{growth} bytes more: {found:?}");
    for array in &found.arrays {
        assert_eq!(array.table, first.table);
        assert!(array.table.entries < 40 << 10, "StRAID 4.2: under 40 KB: {:?}", array.table);
        let bitmap = array.bitmap;
        assert!(bitmap.bits <= 1 << 20 && bitmap.member_bytes <= 128 << 10, "mdadm's room: {bitmap:?}");
        assert!(bitmap.counters_bytes < 8 * bitmap.bits + (1 << 18), "a word a bit: {bitmap:?}");
    }
    assert!(found.words().contains("| 1000.0 TB |"), "{}", found.words());
}
