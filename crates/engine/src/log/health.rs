//! The health of a zoned array's members, shared by all shards. A failure is durable in the superblocks of the others before
//! any acknowledgement relies on it (invariant 8, Z-I2): hence [`LogMembers::settled`] before every acknowledgement.

use crate::device::DeviceError;
use crate::error::MetadataLost;
use crate::events::{Event, EventSink};
use crate::members::metadata::Metadata;
use crate::members::{Failing, MemberState};
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use layout::units::Slot;

/// All members of a zoned array.
pub struct LogMembers {
    states: Mutex<Vec<MemberState>>,
    losses_survived: usize,
    /// Errors of each member since the start.
    errors: Vec<AtomicU64>,
    /// Columns of the newest segment, and how many more are left out of it.
    columns: Mutex<(usize, usize)>,
    /// Counts changes of a state: the write path compares one number.
    changes: AtomicU64,
    metadata: Metadata,
    /// Whether the start is over: until then no superblock calls a member failed, and nothing waits for one.
    serving: AtomicBool,
    /// A member that the array needs failed to flush, or segment numbers have run out.
    read_only: AtomicBool,
    events: EventSink,
}

impl LogMembers {
    /// Members in these states.
    pub fn new(states: Vec<MemberState>, losses_survived: usize, events: EventSink) -> Self {
        LogMembers {
            columns: Mutex::new((states.len(), 0)),
            errors: states.iter().map(|_| AtomicU64::new(0)).collect(),
            states: Mutex::new(states),
            losses_survived,
            changes: AtomicU64::new(0),
            metadata: Metadata::new(),
            serving: AtomicBool::new(false),
            read_only: AtomicBool::new(false),
            events,
        }
    }

    /// State of a slot.
    pub fn state(&self, slot: usize) -> MemberState {
        self.states.lock()[slot]
    }

    /// States of all slots.
    pub fn states(&self) -> Vec<MemberState> {
        self.states.lock().clone()
    }

    /// Slots whose members are in sync (Z-I15: new stripes go to these only).
    pub fn in_sync(&self) -> Vec<usize> {
        let states = self.states.lock();
        (0..states.len()).filter(|&slot| states[slot] == MemberState::InSync).collect()
    }

    /// Counts changes of states.
    pub fn changes(&self) -> u64 {
        self.changes.load(SeqCst)
    }

    /// Takes a member out of use, if the array can do without it.
    pub fn fail(&self, slot: usize, reason: &str) -> Failing {
        let mut states = self.states.lock();
        if states[slot] != MemberState::InSync {
            return Failing::Failed;
        }
        let out = states.iter().filter(|state| **state != MemberState::InSync).count();
        let member = Slot::of_index(slot);
        if out >= self.losses_survived {
            drop(states);
            self.report(Event::MemberKept { member, reason: reason.to_owned() });
            return Failing::Needed;
        }
        // Counted as not on disk before any shard sees it: no write that relies on it is acknowledged too early.
        self.metadata.change();
        states[slot] = MemberState::Failed;
        self.changes.fetch_add(1, SeqCst);
        let working = states.len() - out - 1;
        drop(states);
        self.metadata.wake_writer();
        let working = u32::try_from(working).expect("few members");
        self.report(Event::MemberFailed { member, reason: reason.to_owned(), working });
        Failing::Failed
    }

    /// Reports an error of a member.
    pub fn note_error(&self, slot: usize, error: &DeviceError) {
        self.errors[slot].fetch_add(1, SeqCst);
        let member = Slot::of_index(slot);
        self.report(Event::MemberError { member, kind: error.kind, error: error.to_string() });
    }

    /// New segments have `columns` columns, without the `left_out` ones of missing members. Reports a change.
    pub fn note_columns(&self, columns: usize, left_out: usize) {
        if std::mem::replace(&mut *self.columns.lock(), (columns, left_out)) != (columns, left_out) {
            let number = |count: usize| u32::try_from(count).expect("few members");
            self.report(Event::SegmentsChanged { columns: number(columns), left_out: number(left_out) });
        }
    }

    /// Columns that are left out of the newest segment: the redundancy of what is written is smaller by their number.
    pub fn left_out(&self) -> usize {
        self.columns.lock().1
    }

    /// Errors of a member since the start.
    pub fn errors(&self, slot: usize) -> u64 {
        self.errors[slot].load(SeqCst)
    }

    /// Passes an event to the sink.
    pub fn report(&self, event: Event) {
        (self.events)(event);
    }

    /// The start is over, and the superblocks say that the epoch serves: from here on acknowledgements wait for them.
    pub fn serve(&self) {
        self.serving.store(true, SeqCst);
    }

    /// Waits until every change so far is in the superblocks. A member that fails in a recovery is called failed by the
    /// superblocks that say *served*, before the first request: nothing writes others before.
    ///
    /// # Errors
    /// They cannot be written any more.
    pub async fn settled(&self) -> Result<(), MetadataLost> {
        if self.metadata.is_settled() || !self.serving.load(SeqCst) {
            return Ok(());
        }
        self.metadata.settled().await
    }

    /// Asks for superblocks, and counts what they will say as not on disk until then.
    pub fn want_metadata(&self) {
        self.metadata.change();
        self.metadata.wake_writer();
    }

    /// For the superblock writer: waits until there is a change to write, and returns its version.
    pub async fn metadata_wanted(&self) -> u64 {
        std::future::poll_fn(|context| self.metadata.poll_wanted(context)).await
    }

    /// The superblocks of `version` are on disk.
    pub fn metadata_written(&self, version: u64) {
        self.metadata.written(version);
    }

    /// The superblocks can no longer be written: requests that wait for them fail.
    pub fn metadata_lost(&self) {
        self.metadata.lost();
    }

    /// Refuses writes from now on.
    pub fn set_read_only(&self) {
        self.read_only.store(true, SeqCst);
    }

    /// Whether writes are refused.
    pub fn is_read_only(&self) -> bool {
        self.read_only.load(SeqCst)
    }
}
