//! What was to be reached, and what the rows say.

use serde::Serialize;

use super::rows::Row;
use super::works::{CACHED, GATHERED, NOT_CACHED, NOT_GATHERED, WORKS};

/// Something to reach.
#[derive(Clone, Debug, Serialize)]
pub struct Goal {
    /// What.
    pub name: String,
    /// The figure: at least this, or at most.
    pub wanted: f64,
    /// The row furthest from it.
    pub figure: f64,
    /// Which row that is.
    pub row: String,
    /// Whether it is reached.
    pub met: bool,
}

/// The goals that these rows tell of.
pub(super) fn of(rows: &[Row]) -> Vec<Goal> {
    let row = |name: &str, shards: usize| rows.iter().find(|row| row.name == name && row.shards == shards);
    let task = |row: &Row| WORKS.iter().find(|task| task.name == row.name).expect("a row of a task");
    let label = |row: &Row| format!("{}, {} cores", row.name, row.shards);
    let of_rows = |figure: &dyn Fn(&Row) -> Option<f64>| -> Vec<(String, f64)> {
        rows.iter().filter_map(|row| Some((label(row), figure(row)?))).collect()
    };
    let by_one_core =
        |two: &Row| (two.shards == 2).then_some(two.kiops.median / row(two.name, 1)?.kiops.median);
    let by_other = |name: &'static str, other: &'static str| {
        move |one: &Row| {
            let other = (one.name == name).then(|| row(other, one.shards))??;
            Some(one.kiops.median / other.kiops.median)
        }
    };
    let ratio = |is_large: bool| {
        move |row: &Row| {
            let is_right = (task(row).bs >= 64 << 10) == is_large && task(row).is_goal;
            is_right.then(|| row.ratio.map(|ratio| ratio.median))?
        }
    };
    let partial = |row: &Row| task(row).is_partial().then(|| row.by_better_peer())?;
    let small =
        |row: &Row| (task(row).is_partial() && task(row).bs == 4 << 10).then(|| row.by_better_peer())?;
    let gathered = |row: &Row| (row.name == GATHERED).then_some(row.read_amplification);
    let at_least: [(&str, f64, Vec<(String, f64)>); 8] = [
        ("each row by the better peer", 1.0, of_rows(&Row::by_better_peer)),
        ("each write of a part of a stripe by the better peer", 1.2, of_rows(&partial)),
        ("each write of 4 KiB by the better peer", 1.4, of_rows(&small)),
        ("two cores by one", 1.8, of_rows(&by_one_core)),
        ("64 KiB and larger by the floor", 0.8, of_rows(&ratio(true))),
        ("4 KiB by the floor", 0.5, of_rows(&ratio(false))),
        ("sequential 64 KiB with two-phase by without", 3.0, of_rows(&by_other(GATHERED, NOT_GATHERED))),
        ("skewed 4 KiB with a parity cache of 64 MiB by none", 1.16, of_rows(&by_other(CACHED, NOT_CACHED))),
    ];
    let mut goals: Vec<Goal> = Vec::new();
    for (name, wanted, figures) in at_least {
        let least = figures.into_iter().min_by(|a, b| a.1.total_cmp(&b.1));
        goals.extend(least.map(|(row, figure)| Goal::new(name, wanted, figure, row, figure >= wanted)));
    }
    let most = of_rows(&gathered).into_iter().max_by(|a, b| a.1.total_cmp(&b.1));
    let name = "sequential 64 KiB: bytes read by bytes written, at most";
    goals.extend(most.map(|(row, figure)| Goal::new(name, 0.05, figure, row, figure <= 0.05)));
    goals
}

impl Goal {
    fn new(name: &str, wanted: f64, figure: f64, row: String, met: bool) -> Self {
        Goal { name: name.to_string(), wanted, figure, row, met }
    }
}

#[cfg(test)]
mod tests {
    use super::super::peers::Peer;
    use super::super::spread::Spread;
    use super::*;

    fn same(value: f64) -> Spread {
        Spread { median: value, least: value, greatest: value }
    }

    fn row(name: &'static str, shards: usize, kiops: f64) -> Row {
        Row {
            name,
            shards,
            kiops: same(kiops),
            cpu_ns_per_op: same(0.0),
            ratio: Some(same(0.7)),
            cpu_ratio: None,
            memcpy_ratio: same(0.0),
            read_amplification: 0.04,
            write_amplification: 1.2,
            hit_rate: 0.0,
            p99_us: same(0.0),
            peers: vec![Peer { name: "A".to_owned(), kiops: same(50.0), ratio: same(kiops / 50.0) }],
            load: 0.0,
        }
    }

    #[test]
    fn the_row_furthest_from_a_goal_decides() {
        let names = ["RAID-5 randwrite 4K", GATHERED, NOT_GATHERED];
        let rows = [
            row(names[0], 1, 100.0),
            row(names[0], 2, 170.0),
            row(names[1], 1, 90.0),
            row(names[2], 1, 30.0),
        ];
        let goals = of(&rows);
        let found = |part: &str| goals.iter().find(|goal| goal.name.contains(part)).expect("a goal");
        assert_eq!((found("each row").figure, found("each row").met), (0.6, false));
        assert_eq!((found("part of a stripe").figure, found("part of a stripe").met), (2.0, true));
        assert_eq!((found("two cores").figure, found("two cores").met), (1.7, false));
        assert_eq!((found("two-phase").figure, found("two-phase").met), (3.0, true));
        assert_eq!((found("64 KiB and larger").met, found("4 KiB by").met), (false, true));
        assert!(found("bytes read").met && goals.len() == 8, "{goals:?}");
    }
}
