//! The whole table, and its words in Markdown.

use std::fmt::Write as _;

use serde::Serialize;

use super::goals::Goal;
use super::peers::PeerCommand;
use super::plan::Method;
use super::rows::{Memcpy, Row};
use super::spread::Spread;
use crate::machine::Machine;

/// What a file has before and after the table.
pub(super) const MARKS: (&str, &str) =
    ("<!-- begin: twill bench table -->", "<!-- end: twill bench table -->");

const HEAD: &str = "| work | cores | kIOPS (least to greatest) | by floor (least to greatest) | by floor, CPU time | \
                    by memcpy | CPU ns/op | read amp. | hits | p99 us | load |";
const COLUMNS: usize = 11;

/// The whole table.
#[derive(Clone, Debug, Serialize)]
pub struct Table {
    /// The machine.
    pub machine: Machine,
    /// How it was measured.
    pub method: Method,
    /// Plain copies.
    pub memcpy: Memcpy,
    /// Other programs that were run in turns.
    pub peers: Vec<PeerCommand>,
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
             blocks of 4 KiB at {}, of 64 KiB at {}.{}\n",
            self.method.runs,
            self.method.runtime_s,
            self.method.member_bytes >> 20,
            gb(&self.memcpy.blocks_4k),
            gb(&self.memcpy.blocks_64k),
            self.peers_words(),
        );
        text.push_str(HEAD);
        let _infallible = self.peers.iter().try_for_each(|peer| {
            write!(text, " {}: kIOPS | ratio of runs in turns (least to greatest) |", peer.name)
        });
        text.push_str(&format!("\n|{}\n", "---|".repeat(COLUMNS + 2 * self.peers.len())));
        self.rows.iter().for_each(|row| text.push_str(&row.words(&self.peers)));
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

impl Table {
    /// What was run in turns, by its command.
    fn peers_words(&self) -> String {
        let words = |peer: &PeerCommand| format!("{} is `{}`", peer.name, peer.command);
        match self.peers.is_empty() {
            true => " No peer was run.".to_owned(),
            false => {
                let all: Vec<String> = self.peers.iter().map(words).collect();
                format!(" In turns: {}.", all.join("; "))
            }
        }
    }
}

impl Row {
    fn words(&self, peers: &[PeerCommand]) -> String {
        let ranged = |spread: &Spread, digits: usize| {
            let Spread { median, least, greatest } = spread;
            format!("{median:.digits$} ({least:.digits$} to {greatest:.digits$})")
        };
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_string());
        let peer = |of: &PeerCommand| match self.peers.iter().find(|peer| peer.name == of.name) {
            Some(peer) => format!(" {:.1} | {} |", peer.kiops.median, ranged(&peer.ratio, 2)),
            None => " - | - |".to_owned(),
        };
        format!(
            "| {} | {} | {} | {} | {} | {:.2} | {:.0} | {:.3} | {:.2} | {:.0} | {:.1} |{}\n",
            self.name,
            self.shards,
            ranged(&self.kiops, if self.kiops.median < 100.0 { 1 } else { 0 }),
            or_none(self.ratio.map(|ratio| ranged(&ratio, 2))),
            or_none(self.cpu_ratio.map(|ratio| format!("{:.2}", ratio.median))),
            self.memcpy_ratio.median,
            self.cpu_ns_per_op.median,
            self.read_amplification,
            self.hit_rate,
            self.p99_us.median,
            self.load,
            peers.iter().map(peer).collect::<String>()
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
