//! Facts of a served array: everything that `status`, `detail` and `events` print, as it goes over the control socket. Fields
//! are only ever added. How they are printed is in `words/`.

use std::collections::BTreeMap;

use engine::array::scrub::{Phase, ScrubState};
use engine::counters::CounterTotals;
use engine::events::Event;
use engine::members::MemberState;
use host::device::nvme_tcp::RemoteStatus;
use host::export::ublk::UblkStatus;
use layout::units::Slot;
use serde::{Deserialize, Serialize};

/// A served array.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArrayStatus {
    /// Its name, without the host's.
    pub name: String,
    /// Its identity, as mdadm prints it.
    pub uuid: String,
    /// Version of the superblock: 1.0, 1.1 or 1.2; or zoned.
    pub metadata: String,
    /// `raid5` and so on.
    pub level: String,
    /// mdadm's word for the layout.
    pub layout: String,
    /// Bytes in a chunk; 0 for RAID-1.
    pub chunk_bytes: u32,
    /// Unit of addressing in bytes: the largest of its members', or what the superblocks record.
    #[serde(default)]
    pub logical_block_bytes: u32,
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
    /// A member had errors that should have failed it, and stays since the array would be lost without it: data is being lost.
    #[serde(default)]
    pub failing: bool,
    /// Members are missing or being rebuilt; the data is all there.
    #[serde(default)]
    pub degraded: bool,
    /// mdadm's words for the array: `clean, degraded, recovering`.
    #[serde(default)]
    pub state: String,
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
    pub block_device: Option<UblkStatus>,
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
    /// Where `--fabric` has parity made that members on other machines can make: `host`, `peer`, or `auto`.
    #[serde(default)]
    pub fabric: String,
    /// It is made at the members' targets now, as far as these can. With `auto` this changes with the load.
    #[serde(default)]
    pub parity_at_targets: bool,
    /// The members' targets have on record which writes are under way: the host after this one, should it die, makes no other
    /// stripes agree.
    #[serde(default)]
    pub writes_recorded: bool,
    /// There is room for a record of what a member that fails holds of stripes in doubt: it can come back with that.
    #[serde(default)]
    pub absence_record: bool,
    /// Stripes of which what missing members held may be wrong; reading it is an error.
    #[serde(default)]
    pub stripes_in_doubt: u64,
    /// Where they are, ascending; if there are more than a hundred ranges those with the smallest gaps are joined.
    #[serde(default)]
    pub doubts: Vec<DoubtRange>,
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
    /// Stale members that `--force` took at the start: which, how old, and what may be lost.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taken_by_force: Vec<String>,
    /// Of a zoned array: its zones and segments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zoned: Option<ZonedStatus>,
}

/// Zones and segments of a zoned array.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ZonedStatus {
    /// How zones are written: append, sequential or placed.
    pub access: String,
    /// Where metadata lies: oob or inband.
    pub carrier: String,
    /// From one zone to the next, in bytes.
    pub zone_bytes: u64,
    /// Zones of each member.
    pub zones: u32,
    /// Zones that are free, of the member with the fewest.
    pub free_zones: u64,
    /// Zones that are open or closed, of the member with the most.
    pub open_zones: u32,
    /// Segments that hold something.
    pub segments: u64,
    /// What the map names, in bytes.
    pub live_bytes: u64,
    /// Room that clients do not see.
    pub reserve_bytes: u64,
    /// The map, if each of its blocks were there, in bytes.
    pub map_bytes: u64,
    /// What of it is in memory.
    pub map_in_memory_bytes: u64,
    /// What of it memory has room for; none for all.
    pub map_memory_bytes: Option<u64>,
    /// Blocks of it that were read from the log since the start.
    pub map_blocks_read: u64,
    /// Blocks of it that were written into the log since the start.
    pub map_blocks_written: u64,
    /// What of it changed since the newest checkpoint, which a start after a crash reads again.
    pub map_changed_bytes: u64,
    /// As of which write the newest checkpoint is, if there is one.
    pub checkpoint: Option<String>,
    /// Checkpoints since the start.
    pub checkpoints_written: u64,
    /// Blocks that were written for each that clients wrote, in hundredths, since the start: what reclaim moved, and mapping blocks, are
    /// beyond 100.
    pub write_amplification_percent: u64,
    /// Blocks of 4 KiB that clients wrote since the start.
    #[serde(default)]
    pub client_blocks: u64,
    /// Blocks of 4 KiB that reclaim moved since the start.
    #[serde(default)]
    pub moved_blocks: u64,
    /// Segments that reclaim emptied since the start.
    pub emptied_segments: u64,
    /// What reclaim does now: `nothing`, `for writers` or `while idle`.
    #[serde(default)]
    pub reclaiming: String,
    /// Which segments it empties first: `greedy` or `cost-benefit`.
    #[serde(default)]
    pub reclaim_policy: String,
    /// What it moved while clients wrote nothing, since the start.
    #[serde(default)]
    pub idle_moved_bytes: u64,
    /// Segments that lack a column of a member that is out of use.
    pub degraded_segments: u64,
    /// Segments over fewer members than the array has, which are rewritten since members were added; 0 unless it is growing.
    #[serde(default)]
    pub narrow_segments: u64,
    /// Whether members were added, and the size of the array is to follow.
    #[serde(default)]
    pub growing: bool,
    /// The size that clients see from the next start on, after it has grown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_size_bytes: Option<u64>,
    /// Columns of missing members that are left out of new segments, since the array is too full for narrower ones: what is
    /// written has less redundancy by this number.
    pub columns_left_out: u64,
    /// This run of the array.
    pub epoch: String,
    /// Whether every read is verified by a checksum.
    pub reads_verified: bool,
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

/// A member, or a slot without one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its place in the array, from 0; none for a spare.
    pub slot: Option<Slot>,
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
    /// Average of recent reads; 0 if unknown: only adaptive arrays, those that avoid slow members, and those that are watched
    /// (`--metrics`, `twill top`) measure it.
    #[serde(default)]
    pub read_latency_ns: u64,
    /// Average of recent writes, likewise.
    #[serde(default)]
    pub write_latency_ns: u64,
    /// Bytes read there while this was measured, likewise.
    #[serde(default)]
    pub read_bytes: u64,
    /// Bytes written there, likewise.
    #[serde(default)]
    pub write_bytes: u64,
    /// It is a file that has been deleted: what it holds is lost when the server ends.
    #[serde(default)]
    pub deleted: bool,
    /// Its superblock has md's flag: reads should go to other members.
    #[serde(default)]
    pub write_mostly: bool,
    /// Its superblock has md's flag: the device should report errors without retrying.
    #[serde(default)]
    pub failfast: bool,
    /// Of a member on another machine: its connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteStatus>,
}

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
    /// The slot is empty.
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

/// Resync, recovery or check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RebuildStatus {
    /// Which of them.
    pub kind: RebuildKind,
    /// The member that is rebuilt.
    pub slot: Option<Slot>,
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
    /// Nothing is changed: mismatches are only found.
    Check,
    /// What a check finds.
    Repair,
}

/// A place where clients connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExportStatus {
    /// As a client takes it: `nbd+unix:///demo?socket=/run/x`, `nbd://10.0.0.1:10809/demo`. For NVMe/TCP
    /// `nvme+tcp://10.0.0.1:4420/NQN`, and for a virtual machine `vhost-user:/run/x.sock`.
    pub uri: String,
    /// Clients connected now.
    pub connections: u64,
    /// Names of the NVMe/TCP hosts that are connected, one for each controller.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
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
    /// How often: the same error at the same place is one event.
    pub count: u64,
    /// When it was last, if more than once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_unix_ms: Option<u64>,
}

/// The counters as they go over the control socket.
pub fn counters_by_name(totals: &CounterTotals) -> BTreeMap<String, u64> {
    let value = serde_json::to_value(totals).expect("counters are plain numbers");
    let counters = value.as_object().into_iter().flatten();
    counters.filter_map(|(name, count)| Some((name.clone(), count.as_u64()?))).collect()
}

/// Stripes in doubt that stand side by side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoubtRange {
    /// The first stripe.
    pub first: u64,
    /// The last stripe.
    pub last: u64,
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

    /// All that is under way, or waits.
    pub fn all_works(&self) -> impl Iterator<Item = &RebuildStatus> {
        let waits = self.rebuild.iter().filter(|_| self.works.is_empty());
        self.works.iter().chain(waits)
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
