//! What a served array says of itself: everything that `status`, `detail` and `events` print, as it goes over the
//! control socket. Fields are only ever added.

use std::collections::BTreeMap;

use engine::counters::CounterTotals;
use engine::events::Event;
use engine::members::MemberState;
use serde::{Deserialize, Serialize};

/// A served array.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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
    /// Resync or recovery under way, or waiting.
    pub rebuild: Option<RebuildStatus>,
    /// Where clients connect.
    pub exports: Vec<ExportStatus>,
    /// Sums over all shards since the start, by name.
    pub counters: BTreeMap<String, u64>,
    /// How writes choose what to read for new parity: fewest-reads or adaptive.
    #[serde(default)]
    pub update_policy: String,
    /// Reads of a member that is far slower than the others are reconstructed.
    #[serde(default)]
    pub avoid_slow: bool,
    /// Shards, each a thread.
    pub shards: usize,
    /// Process that serves it.
    pub pid: u32,
    /// When it started to serve, in seconds since 1970.
    pub started_unix_s: u64,
}

/// A member, or a slot without one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its place in the array, from 0; none for a spare.
    pub slot: Option<u32>,
    /// Its path, if there is one.
    pub path: Option<String>,
    /// What it is to the array.
    pub state: MemberHealth,
    /// I/O errors since the start.
    pub errors: u64,
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
}

/// What a member is to its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemberHealth {
    /// Nobody is there.
    Missing,
    /// It is there and not used any more.
    Failed,
    /// It is being rebuilt.
    Recovering,
    /// It holds what it should.
    InSync,
    /// It waits to replace a member.
    Spare,
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
        }
    }
}

/// Resync or recovery.
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
}

/// What is made to agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RebuildKind {
    /// Parity or copies with the data.
    Resync,
    /// A new member with the others.
    Recovery,
}

impl RebuildKind {
    /// mdadm's word.
    pub const fn word(self) -> &'static str {
        match self {
            RebuildKind::Resync => "resync",
            RebuildKind::Recovery => "recovery",
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

    /// One letter a slot, as in /proc/mdstat: `UU_U`.
    pub fn slot_letters(&self) -> String {
        let slots = self.members.iter().filter(|member| member.slot.is_some_and(|s| s < self.raid_devices));
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
            RebuildKind::Resync => "resyncing",
            RebuildKind::Recovery => "recovering",
        }));
        if self.read_only {
            words.push("read-only");
        }
        words
    }
}

impl ArrayStatus {
    /// What is not the default of how reads and writes choose members.
    pub fn choice_words(&self) -> Option<String> {
        let policy = (self.update_policy == "adaptive").then_some("adaptive");
        let words: Vec<&str> =
            policy.into_iter().chain(self.avoid_slow.then_some("avoids slow members")).collect();
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
        Event::MemberFailed { member, reason, working } => {
            format!("member {member} failed: {reason}; {working} members still work")
        }
        Event::MemberKept { member, reason } => {
            format!("member {member} should have failed, but the array needs it: {reason}")
        }
        Event::MemberRemoved { member } => format!("member {member} was removed"),
        Event::RecoveryStarted { member, from_bytes } => {
            format!("member {member} is being rebuilt, from {}", crate::bytes::human(*from_bytes))
        }
        Event::RecoveryFinished { member } => format!("member {member} is rebuilt and in sync"),
        Event::ResyncStarted { from_bytes } => {
            format!("resync started, from {}", crate::bytes::human(*from_bytes))
        }
        Event::ResyncFinished {} => "resync finished".into(),
        Event::RebuildStopped { reason } => format!("resync or recovery stopped: {reason}"),
        Event::StripeSuspect { stripe, reason } => {
            format!(
                "stripe {stripe} was written half way and is made to agree before its next write: {reason}"
            )
        }
        Event::MetadataError { member, reason } => {
            format!("the superblock of member {member} could not be written: {reason}")
        }
    }
}
