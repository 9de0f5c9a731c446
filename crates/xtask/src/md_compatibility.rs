//! `cargo xtask vm md-compatibility`: runs tests/vm/md-compatibility.sh over its whole table and writes what came out into
//! docs/md-compatibility.md.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{figures, machine};

const SCRIPT: &str = "tests/vm/md-compatibility.sh";
const TABLE: &str = "tests/vm/md-compatibility.table";
const PAGE: &str = "docs/md-compatibility.md";

/// Arguments of `cargo xtask vm md-compatibility`.
#[derive(clap::Args)]
#[command(after_help = "Example: only RAID-6 made by md\n  cargo xtask vm md-compatibility 'md 6'")]
pub struct Arguments {
    /// Only rows that contain one of these; the page keeps what it says of the others
    rows: Vec<String>,
    /// The program under test; without it target/release/twill, built first
    #[arg(long)]
    twill: Option<PathBuf>,
    /// Write nothing; fail if the page says something else than this run
    #[arg(long)]
    check: bool,
    /// Also write all results here, as JSON, after each row
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Only with the mdadm of this version, like 4.2; else with this machine's and with a newer one
    #[arg(long, value_name = "VERSION")]
    mdadm: Option<String>,
    /// Run nothing; take the results that --json wrote
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rows", "json", "mdadm"])]
    from: Option<PathBuf>,
}

/// What a run found.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Report {
    machines: Vec<Machine>,
    rows: Vec<Row>,
}

/// What it ran on: one kernel, and each mdadm in turn.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Machine {
    kernel: String,
    mdadm: String,
}

/// One row of the table and what came of it.
#[derive(Debug, Serialize, Deserialize)]
struct Row {
    /// The words of the table, from maker to the second state.
    row: String,
    /// The version of mdadm.
    mdadm: String,
    /// works, refused, in doubt or failed.
    outcome: String,
    /// The reason of what is not works; else the event count and how many members have it.
    words: String,
    seconds: u64,
}

/// Runs the rows and writes the page, or compares it.
pub fn run(root: &Path, arguments: &Arguments) -> Result<ExitCode> {
    let table = std::fs::read_to_string(root.join(TABLE)).context(TABLE)?;
    let (report, status) = match &arguments.from {
        Some(path) => (figures::read(path)?, 0),
        None => try_rows(root, arguments)?,
    };
    publish(&root.join(PAGE), &rows_of(&table), &report, arguments.check)?;
    Ok(if status == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the rows in a machine; what came out, and the script's status.
fn try_rows(root: &Path, arguments: &Arguments) -> Result<(Report, i32)> {
    let twill = machine::program(root, arguments.twill.as_deref())?;
    let words = if arguments.rows.is_empty() { vec![" ".to_owned()] } else { arguments.rows.clone() };
    let mut report = Report::default();
    let only = arguments.mdadm.as_ref().map(|version| format!("ONLY_MDADM={version}"));
    let variables: Vec<&str> = only.iter().map(String::as_str).collect();
    let (status, _) = machine::run_script(root, (SCRIPT, &words), &twill, &variables, "", |json| {
        report.take(json)?;
        // After each row: a run of an hour that is broken off is not lost.
        arguments.json.as_ref().map_or(Ok(()), |path| figures::write(path, &report))
    })?;
    Ok((report, status))
}

impl Report {
    fn take(&mut self, json: &str) -> Result<()> {
        match serde_json::from_str(json) {
            Ok(row) => self.rows.push(row),
            Err(_) => self.machines.push(serde_json::from_str(json).context(SCRIPT)?),
        }
        Ok(())
    }
}

/// The rows of the table, each with one space between its words.
fn rows_of(table: &str) -> Vec<String> {
    let lines = table.lines().filter(|line| !line.starts_with('#'));
    let words = |line: &str| {
        let words = line.split('|').next().unwrap_or_default().split_whitespace().skip(1);
        words.collect::<Vec<_>>().join(" ")
    };
    lines.map(words).filter(|row| !row.is_empty()).collect()
}

/// What came of each row, by the version of mdadm.
type Outcomes = BTreeMap<String, BTreeMap<String, String>>;

/// Writes the page: rows of this run as they went, others as the page has them.
fn publish(page: &Path, rows: &[String], report: &Report, check: bool) -> Result<()> {
    let old = std::fs::read_to_string(page).unwrap_or_default();
    let mut outcomes = outcomes_of(&old);
    let mut changed = Vec::new();
    for row in &report.rows {
        let outcome = outcome(row);
        let of_row = outcomes.entry(row.row.clone()).or_default();
        if of_row.get(&row.mdadm) != Some(&outcome) {
            changed.push(format!("{}, mdadm {}: {outcome}", row.row, row.mdadm));
        }
        of_row.insert(row.mdadm.clone(), outcome);
    }
    if !check {
        let new = text(&machines(&old, report), rows, &outcomes);
        return std::fs::write(page, new).with_context(|| page.display().to_string());
    }
    if !changed.is_empty() {
        let changed = changed.join("\n  ");
        bail!("{} says something else; run this without --check\n  {changed}", page.display());
    }
    Ok(())
}

/// The line that says what the rows ran on: that of the page, unless this run has newer words for each version on it.
fn machines(old: &str, report: &Report) -> String {
    let on = |machine: &Machine| format!("{} on Linux {}", machine.mdadm, machine.kernel);
    let mut lines: BTreeMap<String, String> = old
        .lines()
        .filter_map(|line| line.strip_prefix(LAST_RUN))
        .filter_map(|line| Some((version_of(line)?, line.to_owned())))
        .collect();
    for machine in &report.machines {
        lines.extend(version_of(&machine.mdadm).map(|version| (version, on(machine))));
    }
    lines.values().map(|line| format!("{LAST_RUN}{line}\n")).collect()
}

/// What a line begins with that says what the rows ran on.
const LAST_RUN: &str = "- ";

/// `4.2`, from the words of `mdadm --version`.
fn version_of(words: &str) -> Option<String> {
    let version = words.strip_prefix("mdadm - v")?;
    Some(version.chars().take_while(|letter| letter.is_ascii_digit() || *letter == '.').collect())
}

/// The outcomes that a page has, by row.
fn outcomes_of(page: &str) -> Outcomes {
    let mut outcomes = Outcomes::new();
    let (mut maker, mut versions) = ("", Vec::new());
    for line in page.lines() {
        maker = SECTIONS
            .iter()
            .find(|(_, title)| line == format!("## {title}"))
            .map_or(maker, |(maker, _)| maker);
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        if cells.len() > COLUMNS.len() && cells[..COLUMNS.len()] == COLUMNS {
            let names = cells[COLUMNS.len()..].iter();
            versions = names.map(|name| name.trim_start_matches("mdadm ").to_owned()).collect();
        }
        if cells.len() == COLUMNS.len() + versions.len()
            && let Some((row, of_versions)) = cells.split_at_checked(COLUMNS.len())
            && let [level, members, layout, chunk, rest @ ..] = row
            && level.parse::<u32>().is_ok()
        {
            let chunk = chunk.trim_end_matches('K');
            let row = [&[maker, level, members, layout, chunk], rest].concat().join(" ");
            let known = versions.iter().cloned().zip(of_versions.iter().map(|&outcome| outcome.to_owned()));
            outcomes.insert(row, known.filter(|(_, outcome)| outcome != NOT_RUN).collect());
        }
    }
    outcomes
}

/// The columns of a table before those of the outcomes: the words of a row, its maker left out.
const COLUMNS: [&str; 10] =
    ["level", "members", "layout", "chunk", "metadata", "bitmap", "spares", "drives", "first", "second"];

/// The outcome of a row that a version has not run.
const NOT_RUN: &str = "not run yet";

/// Makers, and the headings of their tables.
const SECTIONS: &[(&str, &str)] = &[("md", "Made by mdadm"), ("twill", "Made by Twill")];

const INTRODUCTION: &str = "\
# Arrays that md and Twill leave to each other

`cargo xtask vm md-compatibility` writes this page. With `--check` it compares the page with a new run; with words it runs
only the rows that contain one. The rows are those of
[tests/vm/md-compatibility.table](../tests/vm/md-compatibility.table); `./test` runs the rows with a star there.

Each row is an array on drives in memory, in a real kernel. Twill and then md run an array that md made; md, Twill and md
run an array that Twill made. Twill serves it to the kernel's NBD client over two connections. Each of them first reads
**every block** and then writes at random, eight requests at a time, 4 to 256 KiB, one in five a read that is compared. A
block must hold what was acknowledged last or what was issued after that. At the end md's `check` finds `mismatch_cnt` 0,
exactly the members that should be missing are missing, and the event counts of all others are equal.

How one leaves the array to the other (`first`: its maker, `second`: the one that runs it next):

| state | what it means |
|---|---|
| clean | stopped cleanly |
| cut | under load; md: all members are copied as they are at one moment; Twill: killed with SIGKILL |
| degraded | member 1 failed under load and was removed, writes continued, stopped cleanly; the next one is given all members; 2-degraded: members 1 and 3 |
| resync | stopped cleanly in mid-resync: md's resync waits at the middle of members with other contents; Twill's comes from a cut under load |
| recovery | stopped cleanly while member 1, failed and replaced by one with other contents, is being rebuilt |
| +cut | the same, but cut |

The `drives` are of the `same` size, or `odd`: each smaller than the one before, and by odd numbers of sectors. `unequal` ones differ
by a quarter or half: a RAID-0 has zones. Those of `4kn` have logical blocks of 4096 bytes; of `mixed` every second one has, and each is smaller than the one before.

*Refused*: the one that runs the array next refuses it before it writes anything, and gives this reason. *In doubt*: the
write hole. The program that had the array crashed while members were missing, and left no redo log (Twill's closes the
hole; md keeps none here). Twill starts the array and names the stripes. It returns the right data of every block that it
can read, and an error for what the missing member held in those stripes. There the row ends.

**Generations.** Beside its superblock Twill keeps a [record of generations](formats.md#generations) in space that md leaves
alone. md does not know it, and each superblock that md writes voids it. After that md's rules count: a member that was away
while md ran the others is re-added by delta only if its own record names all members that are in sync, or, without a record, if its
superblock calls all of them active. Otherwise Twill refuses the re-add, and `twill add` rebuilds the member.

**Versions of mdadm.** Each row runs with the mdadm of this machine and with a newer one, which is unpacked beside it
(`scripts/vm/fetch-mdadm`). It is the kernel's md that runs an array, so a version of mdadm may differ in how it makes one and in what
it refuses to assemble: columns that differ say so. No outcome has differed yet; how many blocks of an array in doubt cannot be read
differs from run to run. Linux 7.3 warns that mdadm before 4.5 removes devices in a way that is going to end,
and that what it makes itself is not assembled by kernels before 6.19, which do not know `logical_block_size`; Twill writes that field
only where it finds it.

";

fn text(machines: &str, rows: &[String], outcomes: &Outcomes) -> String {
    let versions: BTreeSet<&String> = outcomes.values().flat_map(BTreeMap::keys).collect();
    let outcome = |row: &String, version: &String| {
        outcomes.get(row).and_then(|of_row| of_row.get(version)).map_or(NOT_RUN, String::as_str)
    };
    let mut text = format!("{INTRODUCTION}Last run with\n\n{machines}\n");
    for version in &versions {
        let count = |word: &str| {
            let is = |row: &&String| outcome(row, version).trim_start_matches('*').starts_with(word);
            rows.iter().filter(is).count()
        };
        let (works, refused, in_doubt) = (count("works"), count("refused"), count("in doubt"));
        let run = rows.len() - count(NOT_RUN);
        text += &format!(
            "mdadm {version}: {run} of {} rows: {works} work, {refused} are refused, {in_doubt} in doubt, {} are neither.\n",
            rows.len(),
            run - works - refused - in_doubt,
        );
    }
    let heads: Vec<String> = versions.iter().map(|version| format!("mdadm {version}")).collect();
    for (maker, title) in SECTIONS {
        text += &format!("\n## {title}\n\n");
        text += &format!("| {} | {} |\n", COLUMNS.join(" | "), heads.join(" | "));
        text += &format!("|{}\n", "---|".repeat(COLUMNS.len() + heads.len()));
        for row in rows {
            let words: Vec<&str> = row.split(' ').collect();
            if let [by, level, members, layout, chunk, rest @ ..] = words.as_slice()
                && by == maker
            {
                let unit = if *chunk == "-" { "" } else { "K" };
                let (rest, said) = (rest.join(" | "), versions.iter().map(|version| outcome(row, version)));
                let said: Vec<&str> = said.collect();
                let said = said.join(" | ");
                text += &format!("| {level} | {members} | {layout} | {chunk}{unit} | {rest} | {said} |\n");
            }
        }
    }
    text
}

fn outcome(row: &Row) -> String {
    match row.outcome.as_str() {
        "works" => "works".into(),
        outcome => format!("**{outcome}**: {}", row.words.replace('|', "/")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: [&str; 2] =
        ["md 5 4 left-symmetric 64 1.2 none 0 same clean cut", "twill 1 2 - - 1.2 none 0 odd cut cut"];

    fn report(row: usize, mdadm: &str, outcome: &str) -> Report {
        let row = Row {
            row: ROWS[row].into(),
            mdadm: mdadm.into(),
            outcome: outcome.into(),
            words: "twill: no | never".into(),
            seconds: 1,
        };
        let machine = Machine { kernel: "7".into(), mdadm: format!("mdadm - v{mdadm} - today") };
        Report { machines: vec![machine], rows: vec![row] }
    }

    #[test]
    fn a_run_changes_its_rows_and_leaves_the_others() {
        let folder = tempfile::tempdir().unwrap();
        let page = folder.path().join("page.md");
        let rows = ROWS.map(str::to_owned);
        publish(&page, &rows, &report(0, "4.2", "works"), false).unwrap();
        publish(&page, &rows, &report(1, "4.4", "refused"), false).unwrap();
        publish(&page, &rows, &report(0, "4.4", "works"), false).unwrap();
        let text = std::fs::read_to_string(&page).unwrap();
        let row = "| 5 | 4 | left-symmetric | 64K | 1.2 | none | 0 | same | clean | cut | works | works |";
        assert!(text.contains(row), "{text}");
        let row = "| cut | cut | not run yet | **refused**: twill: no / never |";
        assert!(text.contains(row), "a bar ends no cell: {text}");
        assert!(
            text.contains("mdadm 4.4: 2 of 2 rows: 1 work, 1 are refused, 0 in doubt, 0 are neither"),
            "{text}"
        );
        assert!(
            text.contains("- mdadm - v4.2 - today on Linux 7\n- mdadm - v4.4 - today on Linux 7\n"),
            "{text}"
        );
        publish(&page, &rows, &report(0, "4.2", "works"), true).unwrap();
        let differs = publish(&page, &rows, &report(1, "4.4", "works"), true);
        assert!(differs.is_err(), "--check sees another outcome");
    }

    #[test]
    fn the_page_has_the_rows_of_the_table() {
        let root = crate::root();
        let table = std::fs::read_to_string(root.join(TABLE)).unwrap();
        let page = outcomes_of(&std::fs::read_to_string(root.join(PAGE)).unwrap());
        let (mut listed, shown): (Vec<String>, Vec<String>) = (rows_of(&table), page.into_keys().collect());
        listed.sort();
        assert_eq!(listed, shown, "run cargo xtask vm md-compatibility");
    }
}
