//! The whole table, and its words in Markdown.

use std::fmt::Write as _;

use serde::Serialize;

use super::goals::Goal;
use super::plan::Method;
use super::rows::{Memcpy, Peer, Row, Spread};
use crate::machine::Machine;

/// What a file has before and after the table.
pub(super) const MARKS: (&str, &str) =
    ("<!-- begin: twill bench table -->", "<!-- end: twill bench table -->");

const HEAD: &str = "| work | cores | kIOPS (least to greatest) | by floor (least to greatest) | by floor, CPU time | \
                    by memcpy | peer A (scaled): ratio | peer B (scaled): ratio | CPU ns/op | read amp. | hits | \
                    p99 us | load |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";

/// The whole table.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The machine.
    pub machine: Machine,
    /// How it was measured.
    pub method: Method,
    /// Plain copies.
    pub memcpy: Memcpy,
    /// Rows, each for one number of cores.
    pub rows: Vec<Row>,
    /// What was to be reached, as far as the rows tell.
    pub goals: Vec<Goal>,
}

impl Table {
    /// The table in Markdown.
    pub fn words(&self) -> String {
        let mut text = String::new();
        let Machine { cpu, cores, kernel, parity_kernel, .. } = &self.machine;
        let gb = |spread: &Spread| {
            let Spread { median, least, greatest } = spread;
            format!("{:.1} GB/s ({:.1} to {:.1})", median / 1e9, least / 1e9, greatest / 1e9)
        };
        let _infallible = writeln!(
            text,
            "{cpu}, {cores} cores, Linux {kernel}, parity by {parity_kernel}; {} runs of {} s, six members of {} MiB in \
             memory, chunk 64 KiB, 32 requests in flight on each core, no crash consistency. One core copies random \
             blocks of 4 KiB at {}, of 64 KiB at {}; the peers' machine 16 and 23.6 GB/s, by which their figures are \
             scaled.\n",
            self.method.runs,
            self.method.runtime_s,
            self.method.member_bytes >> 20,
            gb(&self.memcpy.blocks_4k),
            gb(&self.memcpy.blocks_64k),
        );
        text.push_str(HEAD);
        self.rows.iter().for_each(|row| text.push_str(&row.words()));
        if !self.goals.is_empty() {
            text.push_str("\n| to reach | wanted | found | at |\n|---|---|---|---|\n");
        }
        for goal in &self.goals {
            let met = if goal.met { "" } else { ", **not met**" };
            let _infallible = writeln!(
                text,
                "| {} | {:.2} | {:.3}{met} | {} |",
                goal.name, goal.wanted, goal.figure, goal.row
            );
        }
        text
    }
}

impl Row {
    fn words(&self) -> String {
        let ranged = |spread: &Spread, digits: usize| {
            let Spread { median, least, greatest } = spread;
            format!("{median:.digits$} ({least:.digits$} to {greatest:.digits$})")
        };
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
        let peer = |name: &str| {
            let peer = self.peers.iter().find(|peer| peer.name == name);
            or_none(peer.map(|Peer { kiops, scaled_kiops, ratio, .. }| {
                format!("{kiops:.0} ({scaled_kiops:.0}): {ratio:.2}")
            }))
        };
        format!(
            "| {} | {} | {} | {} | {} | {:.2} | {} | {} | {:.0} | {:.3} | {:.2} | {:.0} | {:.1} |\n",
            self.name,
            self.shards,
            ranged(&self.kiops, if self.kiops.median < 100.0 { 1 } else { 0 }),
            or_none(self.ratio.map(|ratio| ranged(&ratio, 2))),
            or_none(self.cpu_ratio.map(|ratio| format!("{:.2}", ratio.median))),
            self.memcpy_ratio.median,
            peer("A"),
            peer("B"),
            self.cpu_ns_per_op.median,
            self.read_amplification,
            self.hit_rate,
            self.p99_us.median,
            self.load
        )
    }
}

/// `text` with `words` between the marks, or None if it has none.
pub(super) fn between_marks(text: &str, words: &str) -> Option<String> {
    let (before, rest) = text.split_once(MARKS.0)?;
    let (_, after) = rest.split_once(MARKS.1)?;
    Some(format!("{before}{}\n\n{}\n{}{after}", MARKS.0, words.trim_end(), MARKS.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_between_the_marks_changes() {
        let text = format!("a\n{}\nold\n{}\nb\n", MARKS.0, MARKS.1);
        let new = between_marks(&text, "| new |\n").expect("marks");
        assert_eq!(new, format!("a\n{}\n\n| new |\n{}\nb\n", MARKS.0, MARKS.1));
        assert_eq!(between_marks(&new, "| new |\n"), Some(new));
        assert_eq!(between_marks("no marks", "x"), None);
        assert_eq!(between_marks(&format!("{}\n{}", MARKS.1, MARKS.0), "x"), None);
    }
}
