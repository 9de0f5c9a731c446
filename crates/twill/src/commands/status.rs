//! `status` and `detail`: how served arrays are, in a few lines or in mdadm's many.

use std::io::IsTerminal as _;
use std::time::Duration;

use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

use super::doubt::none_in_doubt;
use super::output::Output;
use crate::arguments::{ServedArguments, StatusArguments};
use crate::bytes;
use crate::control::{self, Asked, Client, Which, ask_all};
use crate::counted::counted;
use crate::exit::ExitKind;
use crate::failure::{Failure, Problem};
use crate::plain::plain;
use crate::status::{ArrayStatus, MemberHealth, MemberStatus, RebuildKind, RebuildStatus};
use crate::words::{
    self,
    status::{DELETED, doubt_help, headline},
};

/// How often a watcher looks.
pub const INTERVAL: Duration = Duration::from_millis(500);

/// Says how one array, or every array, is.
///
/// # Errors
/// No such array.
pub fn run(arguments: &StatusArguments, output: Output) -> Result<(), Failure> {
    let (control, array) = (arguments.control.as_deref(), arguments.array.as_deref());
    let which = Which { control, array, by_option: false };
    if arguments.watch || arguments.wait {
        return watch(&mut control::connect(which)?, arguments, output);
    }
    let (arrays, unanswered) = if arguments.control.is_some() || arguments.array.is_some() {
        (vec![ask(&mut control::connect(which)?.briefly()?)?], Vec::new())
    } else {
        all()?
    };
    let answer = match unanswered.as_slice() {
        [] => json!({ "arrays": arrays }),
        some => json!({ "arrays": arrays, "unanswered": some }),
    };
    output.print(&answer, |_| arrays.iter().map(status_words).collect::<Vec<_>>().join("\n"))?;
    if !unanswered.is_empty() {
        return Err(Failure::from_problems("not every server answers", unanswered).answered());
    }
    judge(&arrays, arguments.test).map_err(Failure::answered)
}

/// What the exit code says of arrays that were shown: the worst of them.
fn judge(arrays: &[ArrayStatus], test: bool) -> Result<(), Failure> {
    let named = |is: fn(&ArrayStatus) -> bool| {
        let names: Vec<&str> =
            arrays.iter().filter(|array| is(array)).map(|array| array.name.as_str()).collect();
        (test && !names.is_empty()).then(|| names.join(", "))
    };
    if let Some(names) = named(|array| array.failed || array.failing) {
        let failure = Failure::new(ExitKind::Failed, format!("failed: {names}"));
        return Err(failure.help("twill detail and twill events say which members are gone, and why"));
    }
    arrays.iter().try_for_each(none_in_doubt)?;
    match named(|array| array.working() < array.raid_devices as usize) {
        None => Ok(()),
        Some(names) => Err(Failure::new(ExitKind::Degraded, format!("degraded: {names}"))
            .help("twill add gives it a new member, and twill status --watch follows the rebuild")),
    }
}

/// Says all about one array.
///
/// # Errors
/// No such array.
pub fn detail(arguments: &ServedArguments, output: Output) -> Result<(), Failure> {
    let mut client = control::connect(arguments.served.which())?.briefly()?;
    output.print(&ask(&mut client)?, detail_words)
}

/// The status of the array.
///
/// # Errors
/// What its server says.
pub fn ask(client: &mut Client) -> Result<ArrayStatus, Failure> {
    client.ask("status", Value::Null)
}

/// Every array that is served, and the servers that do not answer: one that hangs must not hide the others.
fn all() -> Result<(Vec<ArrayStatus>, Vec<Problem>), Failure> {
    let (mut arrays, mut unanswered) = (Vec::new(), Vec::new());
    for Asked { name, answer, .. } in ask_all("status") {
        match answer {
            Ok(status) => arrays.push(status),
            // One that is being stopped just now is no failure.
            Err(failure) if failure.kind == ExitKind::NotFound => tracing::debug!("{failure}"),
            Err(failure) => unanswered.push(Problem::of_array(&name, failure)),
        }
    }
    if arrays.is_empty() && unanswered.is_empty() {
        let failure = Failure::new(ExitKind::NotFound, "no array is served");
        return Err(failure.help("start one with twill serve, or name its socket with --control PATH"));
    }
    Ok((arrays, unanswered))
}

fn watch(client: &mut Client, arguments: &StatusArguments, output: Output) -> Result<(), Failure> {
    let for_ever = arguments.watch;
    let mut bars = Bars::new(output);
    loop {
        let status = match ask(client) {
            Ok(status) => status,
            // It was stopped: the end of what there is to see.
            Err(_) if for_ever => break,
            Err(failure) => return Err(failure),
        };
        let is_over = !for_ever && status.rebuild.as_ref().is_none_or(|rebuild| rebuild.pending);
        // --wait --json prints one document, at the end.
        if output.json && is_over {
            output.print(&json!({ "arrays": [status] }), |_| String::new())?;
            return judge(&[status], arguments.test).map_err(Failure::answered);
        }
        if for_ever || !output.json {
            bars.show(&status)?;
        }
        if is_over {
            bars.finish();
            return judge(&[status], arguments.test);
        }
        std::thread::sleep(INTERVAL);
    }
    bars.finish();
    Ok(())
}

/// Progress for a person at a terminal, lines for a file, JSON lines for a program.
pub struct Bars {
    output: Output,
    bar: Option<ProgressBar>,
    last: String,
}

impl Bars {
    /// Nothing is shown yet.
    pub fn new(output: Output) -> Self {
        Bars { output, bar: None, last: String::new() }
    }

    /// Shows how it is now.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn show(&mut self, status: &ArrayStatus) -> Result<(), Failure> {
        if self.output.json {
            let line = serde_json::to_string(status).expect("a status is plain data");
            return self.output.line(&line);
        }
        if std::io::stderr().is_terminal() {
            self.show_bar(status);
            return Ok(());
        }
        let line = one_line(status);
        if line != self.last {
            self.output.line(&line)?;
            self.last = line;
        }
        Ok(())
    }

    fn show_bar(&mut self, status: &ArrayStatus) {
        let bar = self.bar.get_or_insert_with(|| {
            let bar = ProgressBar::new(0);
            bar.enable_steady_tick(INTERVAL);
            bar
        });
        let template = if status.rebuild.is_some() {
            "{msg}\n[{wide_bar}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}, {eta} left"
        } else {
            "{msg}"
        };
        bar.set_style(
            ProgressStyle::with_template(template).expect("a fixed template").progress_chars("=> "),
        );
        if let Some(rebuild) = &status.rebuild {
            bar.set_length(rebuild.total_bytes);
            bar.set_position(rebuild.done_bytes);
        }
        bar.set_message(headline(status));
    }

    /// Leaves the terminal in order.
    pub fn finish(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.abandon();
        }
    }
}

fn one_line(status: &ArrayStatus) -> String {
    let Some(rebuild) = &status.rebuild else { return headline(status) };
    format!(
        "{}, {} {:.0} %",
        headline(status),
        words::status::rebuild(rebuild.kind),
        (rebuild.fraction() * 100.0).floor()
    )
}

fn status_words(status: &ArrayStatus) -> String {
    let mut text = format!("{}, {}\n", headline(status), bytes::human(status.size_bytes));
    for rebuild in status.all_works() {
        if rebuild.pending {
            let until = if status.read_only { "the array is not read-only" } else { "no member is missing" };
            text += &format!("  {} pending until {until}\n", words::status::rebuild(rebuild.kind));
            continue;
        }
        let slot = rebuild.slot.map_or_else(String::new, |slot| format!(" of slot {slot}"));
        text += &format!(
            "  {}{slot} {:.1} % ({} of {})",
            words::status::rebuild(rebuild.kind),
            rebuild.fraction() * 100.0,
            bytes::human(rebuild.done_bytes),
            bytes::human(rebuild.total_bytes)
        );
        if let Some(seconds) = rebuild.seconds_left() {
            let left = humantime::format_duration(Duration::from_secs(seconds));
            text += &format!(", {}/s, {left} left", bytes::human(rebuild.bytes_per_s));
        }
        text += "\n";
    }
    if let Some(scrub) = &status.scrub {
        text += &format!("  {}\n", words::scrub::summary(scrub));
    }
    if let Some(bitmap) = &status.bitmap {
        text += &format!("  bitmap: {}\n", words::status::bitmap(bitmap));
    }
    if let Some(zoned) = &status.zoned {
        text += &format!("  zones: {}\n", words::status::zones(zoned));
        if zoned.emptied_segments > 0 {
            text += &format!("  reclaim: {}\n", words::status::reclaimed(zoned));
        }
        text += &format!("  map: {}\n", words::status::map_of_zones(zoned));
    }
    if let Some(choice) = words::status::choice(status) {
        text += &format!("  update policy: {choice}\n");
    }
    if let Some(limits) = words::status::limits(status) {
        text += &format!("  limits: {limits}\n");
    }
    if let Some(device) = &status.block_device {
        text += &format!("  {}\n", words::status::block_device(device));
    }
    if let Some(redo) = words::status::redo_log(status) {
        text += &format!("  redo log: {redo}\n");
    }
    if let Some(fabric) = words::status::fabric(status) {
        text += &format!("  parity is made {fabric}\n");
    }
    if let Some(doubts) = words::status::doubts(status) {
        text += &format!("  {doubts}\n    {}\n", doubt_help(status));
    }
    for taken in &status.taken_by_force {
        text += &format!("  {}\n", plain(taken));
    }
    for export in &status.exports {
        text += &format!("  {} ({} connected)\n", export.uri, export.connections);
    }
    let needs_a_word = |member: &&MemberStatus| {
        member.state != MemberHealth::InSync
            || member.has_errors()
            || member.deleted
            || member.remote.is_some()
    };
    for member in status.members.iter().filter(needs_a_word) {
        text += &format!("  {}\n", member_line(member));
    }
    text
}

fn member_line(member: &MemberStatus) -> String {
    let slot = match (member.slot, member.state) {
        (Some(slot), _) => format!("slot {slot}"),
        (None, MemberHealth::Failed) => "no slot".to_owned(),
        (None, _) => "spare".to_owned(),
    };
    let Some(path) = &member.path else { return format!("{slot}: empty") };
    let count = |count: u64, noun: &str, more: &str| {
        if count > 0 { format!(", {}{more}", counted(count, noun)) } else { String::new() }
    };
    let errors =
        count(member.errors, "error", "") + &count(member.corrected_reads, "read error", " corrected");
    let bad = count(member.bad_block_bytes, "byte", " in the bad-block log");
    let deleted = if member.deleted { format!("; it {DELETED}") } else { String::new() };
    let remote = member.remote.as_ref().map_or_else(String::new, words::remote::connection);
    format!("{slot}: {}, {}{errors}{bad}{deleted}{remote}", plain(path), words::status::health(member.state))
}

fn detail_words(status: &ArrayStatus) -> String {
    let mut text = format!("{}:\n", plain(&status.name));
    let mut add = |key: &str, value: String| text += &format!("{key:>18} : {value}\n");
    let count = |health| status.members.iter().filter(|member| member.state == health).count();
    let failed = count(MemberHealth::Failed);
    let spares =
        count(MemberHealth::Spare) + count(MemberHealth::Recovering) + count(MemberHealth::Replacing);
    let total = status.members.iter().filter(|member| member.state != MemberHealth::Missing).count();
    add("Version", status.metadata.clone());
    add("Creation Time", words::time::seconds(status.created_unix_s));
    add("Raid Level", status.level.clone());
    add("Array Size", format!("{} ({})", status.size_bytes / 1024, bytes::mdadm(status.size_bytes)));
    add("Used Dev Size", format!("{} ({})", status.member_bytes / 1024, bytes::mdadm(status.member_bytes)));
    add("Raid Devices", status.raid_devices.to_string());
    add("Total Devices", total.to_string());
    add("Update Time", words::time::seconds(status.updated_unix_s));
    add("State", words::status::state(status).join(", "));
    add("Active Devices", status.working().to_string());
    add("Working Devices", (status.working() + spares).to_string());
    add("Failed Devices", failed.to_string());
    add("Spare Devices", spares.to_string());
    if status.layout != "default" {
        add("Layout", status.layout.clone());
    }
    if status.chunk_bytes != 0 {
        add("Chunk Size", bytes::short(u64::from(status.chunk_bytes)));
    }
    if status.logical_block_bytes != 0 {
        add("Logical Block", format!("{} bytes", status.logical_block_bytes));
    }
    if !status.consistency_policy.is_empty() {
        add("Consistency Policy", status.consistency_policy.clone());
    }
    if let Some(group) = &status.spare_group {
        add("Spare Group", plain(group).into_owned());
    }
    if let Some(bitmap) = &status.bitmap {
        add("Intent Bitmap", format!("Internal, {}", words::status::bitmap(bitmap)));
    }
    for (key, value) in status.zoned.iter().flat_map(words::status::zoned_rows) {
        add(key, value);
    }
    if let Some(rebuild) = &status.rebuild {
        let (key, value) = rebuild_words(rebuild);
        add(key, value);
    }
    if let Some(scrub) = &status.scrub {
        add("Last Check", words::scrub::summary(scrub));
    }
    let said = [
        ("Update Policy", words::status::choice(status)),
        ("Limits", words::status::limits(status)),
        ("Redo Log", words::status::redo_log(status)),
        ("Parity Made", words::status::fabric(status)),
        ("In Doubt", words::status::doubts(status)),
    ];
    for (key, value) in said {
        value.into_iter().for_each(|value| add(key, value));
    }
    add("Name", plain(&status.name).into_owned());
    add("UUID", status.uuid.clone());
    add("Events", status.events.to_string());
    if let Some(device) = &status.block_device {
        add("Block Device", words::status::block_device(device));
    }
    for (name, value) in status.exports.iter().flat_map(words::status::export) {
        add(name, value);
    }
    add("Served By", format!("process {} with {}", status.pid, counted(status.shards as u64, "shard")));
    add("Served Since", words::time::seconds(status.started_unix_s));
    text += &format!("\n{}", member_table(status));
    for path in status.deleted() {
        text += &format!("\n{} {DELETED}\n", plain(path));
    }
    for taken in &status.taken_by_force {
        text += &format!("\n{}\n", plain(taken));
    }
    text
}

fn rebuild_words(rebuild: &RebuildStatus) -> (&'static str, String) {
    let key = match rebuild.kind {
        RebuildKind::Resync => "Resync Status",
        RebuildKind::Recovery | RebuildKind::Replacement => "Rebuild Status",
        RebuildKind::Check | RebuildKind::Repair => "Check Status",
    };
    let words = match rebuild.pending {
        true => "PENDING".to_owned(),
        false => format!("{:.0}% complete", (rebuild.fraction() * 100.0).floor()),
    };
    (key, words)
}

fn member_table(status: &ArrayStatus) -> String {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_header(["RaidDevice", "State", "Errors", "Size", "Member"]);
    for member in &status.members {
        let here = member.state != MemberHealth::Missing;
        table.add_row([
            member.slot.map_or("-".into(), |slot| slot.to_string()),
            words::status::member_state(member),
            if here { member.errors.to_string() } else { String::new() },
            if here { bytes::human(member.device_bytes) } else { String::new() },
            member.path.as_deref().map_or_else(|| "-".into(), |path| plain(path).into_owned()),
        ]);
    }
    table.to_string() + "\n"
}

/// Calls a method on the array that a command line means.
///
/// # Errors
/// No such array, or what it says.
pub fn call(which: Which<'_>, method: &str, params: Value) -> Result<(), Failure> {
    control::connect(which)?.call(method, params).map(drop)
}
