//! What a served array says of itself: everything that `status`, `detail` and `events` print, as it goes over the
//! control socket. Fields are only ever added.

use std::collections::BTreeMap;
use std::time::Duration;

use engine::array::scrub::{Phase, ScrubState, word};
use engine::counters::CounterTotals;
use engine::events::Event;
use engine::members::MemberState;
use serde::{Deserialize, Serialize};

use crate::bytes;
use crate::commands::scrub::mismatch_words;
use crate::counted::{counted, counted_as};

/// A served array.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArrayStatus {
    /// Its name, without the host's.
    pub name: String,
    /// Its identity, as mdadm prints it.
    pub uuid: String,
    /// Version of the superblock: 1.0, 1.1 or 1.2.
    pub metadata: String,
    /// `raid5` and so on.
    pub level: String,
    /// mdadm's word for the layout.
    pub layout: String,
    /// Bytes in a chunk; 0 for RAID-1.
    pub chunk_bytes: u32,
    /// Bytes a user sees.
    pub size_bytes: u64,
    /// Bytes of each member that the array uses.
    pub member_bytes: u64,
    /// Members, spares not counted.
    pub raid_devices: u32,
    /// When it was made, in seconds since 1970.
    pub created_unix_s: u64,
    /// When the superblocks were last written, in seconds since 1970.
    pub updated_unix_s: u64,
    /// Count of the superblocks' updates.
    pub events: u64,
    /// No write is under way: the superblocks say clean.
    pub clean: bool,
    /// No write is accepted.
    pub read_only: bool,
    /// Too many members are gone to serve all data.
    pub failed: bool,
    /// All slots in order, then spares, then failed members that have no slot any more.
    pub members: Vec<MemberStatus>,
    /// Resync, recovery or check under way, or waiting; the first of several.
    pub rebuild: Option<RebuildStatus>,
    /// All that is under way.
    #[serde(default)]
    pub works: Vec<RebuildStatus>,
    /// The last check or repair, or the one under way.
    #[serde(default)]
    pub scrub: Option<ScrubSummary>,
    /// Where clients connect.
    pub exports: Vec<ExportStatus>,
    /// The block device, if the array is served as one.
    #[serde(default)]
    pub block_device: Option<BlockDeviceStatus>,
    /// Sums over all shards since the start, by name.
    pub counters: BTreeMap<String, u64>,
    /// How the array agrees again after a crash: none, resync or bitmap.
    #[serde(default)]
    pub consistency_policy: String,
    /// The write-intent bitmap, if there is one.
    #[serde(default)]
    pub bitmap: Option<BitmapStatus>,
    /// How writes choose what to read for new parity: fewest-reads or adaptive.
    #[serde(default)]
    pub update_policy: String,
    /// Arrays of this group share their spares.
    #[serde(default)]
    pub spare_group: Option<String>,
    /// Reads of a member that is far slower than the others are reconstructed.
    #[serde(default)]
    pub avoid_slow: bool,
    /// While members are missing: `in-force` if stripe writes are logged first, `absent` if there is no room; `unused` if they
    /// never are (`--no-redo-log`), else `off`.
    #[serde(default)]
    pub redo_log: String,
    /// Stripes of which what missing members held may be wrong; reading it is an error.
    #[serde(default)]
    pub stripes_in_doubt: u64,
    /// Most bytes of a member in a second that a resync, recovery or check may do; 0 is no limit.
    #[serde(default)]
    pub rate_max: u64,
    /// Bytes a second that the clients' budget leaves it at least; 0 is md's 1 MB.
    #[serde(default)]
    pub rate_min: u64,
    /// The clients' 99th percentile above which it slows down; 0 is no budget.
    #[serde(default)]
    pub p99_budget_ns: u64,
    /// Shards, each a thread.
    pub shards: usize,
    /// Process that serves it.
    pub pid: u32,
    /// When it started to serve, in seconds since 1970.
    pub started_unix_s: u64,
}

/// A write-intent bitmap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BitmapStatus {
    /// Bytes of a member, or at RAID-10 of the array, that a bit stands for.
    pub chunk_bytes: u32,
    /// Bits in all.
    pub bits: u64,
    /// Bits that are set: their parts of the array are resynced after a crash.
    pub bits_set: u64,
    /// A member that comes back with this event count or a later one lacks only what is marked.
    pub events_cleared: u64,
    /// Memory that the bookkeeping takes, in bytes.
    pub memory_bytes: u64,
}

impl BitmapStatus {
    /// As `/proc/mdstat` has it: how many bits are set, and what they stand for.
    pub fn words(&self) -> String {
        let chunk = crate::bytes::short(u64::from(self.chunk_bytes));
        format!("{}/{} bits set, {chunk} chunks", self.bits_set, self.bits)
    }
}

/// A member, or a slot without one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its place in the array, from 0; none for a spare.
    pub slot: Option<u32>,
    /// Its path, if there is one.
    pub path: Option<String>,
    /// What it is to the array.
    pub state: MemberHealth,
    /// I/O errors since the start.
    pub errors: u64,
    /// Read errors that were corrected by writing, in all its time in the array.
    #[serde(default)]
    pub corrected_reads: u64,
    /// Bytes in its bad-block log: reading them is an error until they are written.
    #[serde(default)]
    pub bad_block_bytes: u64,
    /// Bytes of the data area that are in sync while recovering.
    pub recovered_bytes: u64,
    /// Its identity, as mdadm prints it.
    pub device_uuid: Option<String>,
    /// Size of the file or device in bytes.
    pub device_bytes: u64,
    /// Average of recent reads; 0 if unknown: only adaptive arrays, and those that avoid slow members, measure it.
    #[serde(default)]
    pub read_latency_ns: u64,
    /// Average of recent writes, likewise.
    #[serde(default)]
    pub write_latency_ns: u64,
    /// It is a file that has been deleted: what it holds is lost when the server ends.
    #[serde(default)]
    pub deleted: bool,
}

/// What a member that has been deleted means.
pub const DELETED: &str =
    "has been deleted: what it holds is lost when the server ends; copy it out, for example from the array";

impl MemberStatus {
    /// Whether anything ever went wrong with it.
    pub fn has_errors(&self) -> bool {
        self.errors > 0 || self.corrected_reads > 0 || self.bad_block_bytes > 0
    }
}

/// What a member is to its array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberHealth {
    /// Nobody is there.
    #[default]
    Missing,
    /// It is there and not used any more.
    Failed,
    /// It is being rebuilt.
    Recovering,
    /// It holds what it should.
    InSync,
    /// It waits to replace a member.
    Spare,
    /// It gets what the member in its slot holds, and then the slot.
    Replacing,
}

impl From<MemberState> for MemberHealth {
    fn from(state: MemberState) -> Self {
        match state {
            MemberState::Missing => MemberHealth::Missing,
            MemberState::Failed => MemberHealth::Failed,
            MemberState::Recovering => MemberHealth::Recovering,
            MemberState::InSync => MemberHealth::InSync,
        }
    }
}

impl MemberHealth {
    /// mdadm's words in `--detail`.
    pub const fn words(self) -> &'static str {
        match self {
            MemberHealth::Missing => "removed",
            MemberHealth::Failed => "faulty",
            MemberHealth::Recovering => "spare rebuilding",
            MemberHealth::InSync => "active sync",
            MemberHealth::Spare => "spare",
            MemberHealth::Replacing => "replacement rebuilding",
        }
    }
}

/// A check or repair in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScrubSummary {
    /// It repairs what it finds.
    pub repair: bool,
    /// How it is.
    pub phase: Phase,
    /// What did not agree, in sectors of a member, as md's `mismatch_cnt` counts.
    pub mismatch_sectors: u64,
    /// Mismatches that were repaired.
    pub repaired: u64,
    /// Mismatches that were to be repaired and are still there.
    pub left: u64,
}

impl From<&ScrubState> for ScrubSummary {
    fn from(state: &ScrubState) -> Self {
        let ScrubState { mode, phase, report, .. } = state;
        let (repaired, left) = (report.repaired, report.left);
        let mismatch_sectors = report.mismatch_sectors;
        ScrubSummary { repair: mode.repair, phase: *phase, mismatch_sectors, repaired, left }
    }
}

impl ScrubSummary {
    /// For people.
    pub fn words(&self) -> String {
        let phase = match self.phase {
            Phase::Running => "under way",
            Phase::Paused => "paused",
            Phase::Finished => "finished",
            Phase::Cancelled => "cancelled",
            Phase::Failed => "failed",
        };
        let sectors = counted_as(self.mismatch_sectors, "sector does", "sectors do");
        let mut text = format!("{} {phase}, {sectors} not agree", word(self.repair));
        if self.repair {
            text += &format!(", {} repaired, {} left", counted(self.repaired, "place"), self.left);
        }
        text
    }
}

/// Resync, recovery or check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RebuildStatus {
    /// Which of the two.
    pub kind: RebuildKind,
    /// The member that is rebuilt.
    pub slot: Option<u32>,
    /// Bytes done.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
    /// Mean speed since the start, in bytes a second; 0 while unknown.
    pub bytes_per_s: u64,
    /// Nothing is done before members are there that are missing, or the array may be written.
    #[serde(default)]
    pub pending: bool,
}

/// What is made to agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RebuildKind {
    /// Parity or copies with the data.
    Resync,
    /// A new member with the others.
    Recovery,
    /// A device that is to replace a member with that.
    Replacement,
    /// Nothing: it is looked whether all agree.
    Check,
    /// What a check finds.
    Repair,
}

impl RebuildKind {
    /// mdadm's word.
    pub const fn word(self) -> &'static str {
        match self {
            RebuildKind::Resync => "resync",
            RebuildKind::Recovery => "recovery",
            RebuildKind::Replacement => "replacement",
            RebuildKind::Check => "check",
            RebuildKind::Repair => "repair",
        }
    }
}

/// A place where clients connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportStatus {
    /// As a client is told it: `nbd+unix:///demo?socket=/run/x`, `nbd://10.0.0.1:10809/demo`.
    pub uri: String,
    /// Clients connected now.
    pub connections: u64,
}

/// A block device of this machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockDeviceStatus {
    /// `/dev/ublkb0` and so on.
    pub path: String,
    /// Queues, one a shard.
    pub queues: u16,
    /// Requests that each queue holds at once.
    pub depth: u16,
    /// Members put what is read where it is wanted; else it is copied there.
    pub zero_copy: bool,
    /// It was taken over from a server that had ended.
    pub recovered: bool,
    /// It is not served any more, though nobody stopped it.
    pub failed: bool,
    /// Requests answered with an error.
    pub errors: u64,
}

/// An event, with what the engine cannot know: when it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoggedEvent {
    /// Counts from 1 without gaps.
    pub sequence: u64,
    /// When, in milliseconds since 1970.
    pub unix_ms: u64,
    /// What.
    #[serde(flatten)]
    pub event: Event,
    /// The device of the member that it is about: its slot may be another's later.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

impl LoggedEvent {
    /// In words for a person.
    pub fn words(&self) -> String {
        let device = self.device.as_ref().map_or_else(String::new, |device| format!(" [{device}]"));
        event_words(&self.event) + &device
    }
}

/// The counters as they go over the control socket.
pub fn counters_by_name(totals: &CounterTotals) -> BTreeMap<String, u64> {
    let value = serde_json::to_value(totals).expect("counters are plain numbers");
    let counters = value.as_object().into_iter().flatten();
    counters.filter_map(|(name, count)| Some((name.clone(), count.as_u64()?))).collect()
}

impl ArrayStatus {
    /// Members that hold what they should.
    pub fn working(&self) -> usize {
        self.members.iter().filter(|member| member.state == MemberHealth::InSync).count()
    }

    /// Paths of members and spares that have been deleted.
    pub fn deleted(&self) -> impl Iterator<Item = &str> {
        self.members.iter().filter(|member| member.deleted).filter_map(|member| member.path.as_deref())
    }

    /// One letter a slot, as in /proc/mdstat: `UU_U`.
    pub fn slot_letters(&self) -> String {
        let is_member = |member: &&MemberStatus| {
            member.state != MemberHealth::Replacing && member.slot.is_some_and(|s| s < self.raid_devices)
        };
        let slots = self.members.iter().filter(is_member);
        slots.map(|member| if member.state == MemberHealth::InSync { 'U' } else { '_' }).collect()
    }

    /// mdadm's words for the state of the array: `clean, degraded, recovering`.
    pub fn state_words(&self) -> Vec<&'static str> {
        let mut words = vec![if self.clean { "clean" } else { "active" }];
        if self.failed {
            words.push("FAILED");
        } else if self.working() < self.raid_devices as usize {
            words.push("degraded");
        }
        words.extend(self.rebuild.as_ref().map(|rebuild| match rebuild.kind {
            RebuildKind::Resync if rebuild.pending => "resyncing (PENDING)",
            _ if rebuild.pending => "checking (PENDING)",
            RebuildKind::Resync => "resyncing",
            RebuildKind::Recovery | RebuildKind::Replacement => "recovering",
            RebuildKind::Check | RebuildKind::Repair => "checking",
        }));
        if self.read_only {
            words.push("read-only");
        }
        words
    }
}

impl ArrayStatus {
    /// All that is under way, or waits.
    pub fn all_works(&self) -> impl Iterator<Item = &RebuildStatus> {
        let waits = self.rebuild.iter().filter(|_| self.works.is_empty());
        self.works.iter().chain(waits)
    }

    /// What holds back a resync, recovery or check, if anything was set.
    pub fn limit_words(&self) -> Option<String> {
        let set = |value: u64| (value > 0).then_some(value);
        let words = limit_words(set(self.rate_max), set(self.rate_min), set(self.p99_budget_ns));
        (!words.is_empty()).then(|| words.join(", "))
    }

    /// What is not the default of how reads and writes choose members.
    pub fn choice_words(&self) -> Option<String> {
        let policy = (self.update_policy == "adaptive").then_some("adaptive");
        let words: Vec<&str> =
            policy.into_iter().chain(self.avoid_slow.then_some("avoids slow members")).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

/// Limits of a resync, recovery or check for a person; 0 takes one away.
pub fn limit_words(rate: Option<u64>, rate_min: Option<u64>, p99_budget_ns: Option<u64>) -> Vec<String> {
    let most = rate.map(|rate| match rate {
        0 => "no limit of resync, recovery and check".to_owned(),
        rate => format!("at most {}/s of resync, recovery and check", bytes::human(rate)),
    });
    let least = rate_min.map(|rate| format!("at least {}/s of them", bytes::human(rate)));
    let budget = p99_budget_ns.map(|ns| match ns {
        0 => "no budget for clients".to_owned(),
        ns => format!(
            "slower while a hundredth of requests takes more than {}",
            humantime::format_duration(Duration::from_nanos(ns))
        ),
    });
    most.into_iter().chain(least).chain(budget).collect()
}

impl BlockDeviceStatus {
    /// In a line for a person.
    pub fn words(&self) -> String {
        let BlockDeviceStatus { path, queues, depth, zero_copy, recovered, failed, errors } = self;
        let mut words = format!("{path} ({} of {depth})", counted(*queues, "queue"));
        for (said, word) in [(*zero_copy, "zero copy"), (*recovered, "taken over"), (*failed, "FAILED")] {
            words += &if said { format!(", {word}") } else { String::new() };
        }
        if *errors > 0 {
            words += &format!(", {}", counted(*errors, "error"));
        }
        words
    }
}

impl ArrayStatus {
    /// What a crash would mean, and what one has left, while members are missing.
    pub fn redo_words(&self) -> Option<String> {
        let log = match self.redo_log.as_str() {
            "in-force" => Some("in force".to_string()),
            "absent" => Some("no room: a crash leaves stripes in doubt".to_string()),
            "unused" => Some("unused: a crash with members missing leaves stripes in doubt".to_string()),
            _ => None,
        };
        let doubts = match self.stripes_in_doubt {
            0 => None,
            count => Some(format!("{} in doubt", counted(count, "stripe"))),
        };
        let words: Vec<String> = log.into_iter().chain(doubts).collect();
        (!words.is_empty()).then(|| words.join(", "))
    }
}

impl RebuildStatus {
    /// Share that is done, from 0 to 1.
    pub fn fraction(&self) -> f64 {
        if self.total_bytes == 0 { 1.0 } else { self.done_bytes as f64 / self.total_bytes as f64 }
    }

    /// Seconds that the rest takes at the present speed.
    pub fn seconds_left(&self) -> Option<u64> {
        self.total_bytes.saturating_sub(self.done_bytes).checked_div(self.bytes_per_s)
    }
}

/// The event in words, for people.
pub fn event_words(event: &Event) -> String {
    match event {
        Event::MemberError { member, error, .. } => format!("member {member}: {error}"),
        Event::BlockRewritten { member, offset_bytes, bytes } => format!(
            "member {member} could not read {bytes} bytes at byte {offset_bytes}: made from the others, written again \
             and read back"
        ),
        Event::BlockUnreadable { member, offset_bytes, bytes } => format!(
            "member {member} cannot read {bytes} bytes at byte {offset_bytes}, and the others cannot make them: the \
             request got an error"
        ),
        Event::BadBlockRecorded { member, offset_bytes, bytes } => format!(
            "{bytes} bytes at byte {offset_bytes} of member {member} could not be made from the others: they are in its bad-block \
             log, and reading them is an error until they are written"
        ),
        Event::MemberFailed { member, reason, working } => {
            let working = counted_as(u64::from(*working), "member still works", "members still work");
            format!("member {member} failed: {reason}; {working}")
        }
        Event::MemberKept { member, reason } => {
            format!("member {member} should have failed, but the array needs it: {reason}")
        }
        Event::MemberRemoved { member } => format!("member {member} was removed"),
        Event::RecoveryStarted { member, from_bytes } => {
            format!("member {member} is being rebuilt, from {}", crate::bytes::human(*from_bytes))
        }
        Event::MemberReAdded { member } => format!("member {member} is back for what the bitmap marks"),
        Event::ReplacementStarted { .. }
        | Event::ReplacementFinished { .. }
        | Event::ReplacementFailed { .. } => replacement_words(event),
        Event::RecoveryFinished { member } => format!("member {member} is rebuilt and in sync"),
        Event::ResyncStarted { from_bytes } => {
            format!("resync started, from {}", crate::bytes::human(*from_bytes))
        }
        Event::ResyncFinished {} => "resync finished".into(),
        Event::RebuildStopped { reason } => {
            format!(
                "resync or recovery stopped, and is tried again when members change or after a while: {reason}"
            )
        }
        Event::StripeSuspect { stripe, reason } => {
            format!(
                "stripe {stripe} was written half way and is made to agree before its next write: {reason}"
            )
        }
        Event::ScrubStarted { .. } | Event::ScrubFinished { .. } | Event::ScrubStopped { .. } => {
            scrub_words(event)
        }
        Event::Mismatch(mismatch) => mismatch_words(mismatch, &|_| None),
        Event::RedoLogInForce {} => {
            "stripe writes are logged first from here on, while members are missing".into()
        }
        Event::RedoLogOver {} => "the array is whole; stripe writes are no longer logged".into(),
        Event::RedoLogAbsent { reason } => format!(
            "members are missing and stripe writes cannot be logged, so a crash would leave stripes in doubt: {reason}"
        ),
        Event::RedoLogReplayed { records, stripes, members } => format!(
            "written out from the redo log to members {members:?}: {}; stripes {stripes:?} agree again",
            counted(*records, "record")
        ),
        Event::StripesInDoubt { first, end, reason } => format!(
            "stripes {first} to {} are in doubt: {reason}. Reading what missing members held there is an error until \
             it is overwritten",
            end - 1
        ),
        Event::MetadataError { member, reason } => {
            format!("the superblock of member {member} could not be written: {reason}")
        }
    }
}

fn scrub_words(event: &Event) -> String {
    match event {
        Event::ScrubStarted { repair, from_stripe: 0 } => format!("{} started", word(*repair)),
        Event::ScrubStarted { repair, from_stripe } => {
            format!("{} goes on from stripe {from_stripe}", word(*repair))
        }
        Event::ScrubFinished { repair: false, mismatch_sectors, .. } => {
            let sectors = counted_as(*mismatch_sectors, "sector does", "sectors do");
            format!("check finished: {sectors} not agree")
        }
        Event::ScrubFinished { repair: true, mismatch_sectors, repaired, left } => format!(
            "repair finished: {} did not agree; {} repaired, {left} left",
            counted(*mismatch_sectors, "sector"),
            counted(*repaired, "place")
        ),
        Event::ScrubStopped { reason } => format!("check or repair stopped: {reason}"),
        _ => unreachable!("an event of a check or repair"),
    }
}

fn replacement_words(event: &Event) -> String {
    match event {
        Event::ReplacementStarted { member, from_bytes } => format!(
            "member {member} is being copied to the device that is to replace it, from {}",
            crate::bytes::human(*from_bytes)
        ),
        Event::ReplacementFinished { member } => {
            format!("member {member} was replaced: the device that was in its slot may be taken out")
        }
        Event::ReplacementFailed { member, reason } => {
            format!("member {member} stays, the device that was to replace it is not used any more: {reason}")
        }
        _ => unreachable!("an event of a replacement"),
    }
}
