//! Where the records of an append segment are, as far as memory has it: of a segment that takes records all of them, of one that
//! is sealed what its footers said when they were read last, or nothing. So places are no memory cost of an array.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use layout::zoned::{BlockName, Sequence};
use smallvec::SmallVec;

use super::append_table::AppendTable;
use crate::sync::sequential::Mutex;

/// A stripe of an append segment: its group, and its id there.
pub type StripeInGroup = (u32, u16);

/// A data block of a column that cannot be read, as the other columns' footers tell it together: what it is, not where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostBlock {
    /// Which block of its record it is, descriptors counted.
    pub in_record: u16,
    /// Its name, as the number on disk.
    pub name: u64,
    /// The sequence of its write.
    pub sequence: Sequence,
    /// The id of its stripe in the group.
    pub id: u16,
}

/// A column of which no place is known: its blocks by name.
#[derive(Debug)]
struct LostColumn {
    column: u8,
    /// Where each group ends in `blocks`.
    ends: Vec<u32>,
    /// In each group by place in the record and name, the oldest of the same name first.
    blocks: Vec<NamedBlock>,
}

/// As [`LostBlock`], without what only sorts: a zone of 256 MiB has 65 536 of them.
#[derive(Clone, Copy, Debug)]
struct NamedBlock {
    name: u64,
    in_record: u16,
    id: u16,
}

/// Where the records of a segment are.
#[derive(Debug)]
pub struct Places {
    /// Those that are known.
    pub table: AppendTable,
    lost: SmallVec<[LostColumn; 1]>,
}

impl Places {
    /// All of them.
    pub fn all(table: AppendTable) -> Self {
        Places { table, lost: SmallVec::new() }
    }

    /// Those of all columns but these.
    pub fn without(table: AppendTable, lost: &[u8]) -> Self {
        let column = |column: &u8| LostColumn { column: *column, ends: Vec::new(), blocks: Vec::new() };
        Places { table, lost: lost.iter().map(column).collect() }
    }

    /// What the next group of a lost column holds.
    pub fn add_group(&mut self, column: u8, mut blocks: Vec<LostBlock>) {
        blocks.sort_unstable();
        let own = self.lost.iter_mut().find(|own| own.column == column).expect("a lost column");
        let named = |LostBlock { in_record, name, id, .. }| NamedBlock { name, in_record, id };
        own.blocks.extend(blocks.into_iter().map(named));
        own.ends.push(own.blocks.len() as u32);
    }

    /// Columns of which no place is known.
    pub fn lost(&self) -> impl Iterator<Item = u8> {
        self.lost.iter().map(|own| own.column)
    }

    /// Bytes of memory that they take, about.
    pub fn bytes(&self) -> usize {
        let blocks: usize = self.lost.iter().map(|own| own.blocks.len()).sum();
        self.table.bytes() + blocks * size_of::<NamedBlock>()
    }

    /// The stripe to which blocks side by side in one record belong, the first at a block of the data region of a column. Where the
    /// place tells nothing their names do, within the group and at that place of a record. More than one may have them: the map names the
    /// newest, which comes first.
    pub fn stripes_at(&self, column: u8, block: u32, names: &[BlockName]) -> SmallVec<[StripeInGroup; 2]> {
        let Some(lost) = self.lost.iter().find(|own| own.column == column) else {
            let stripe = self.table.stripe_at(column, block);
            return stripe.map(|(group, id, _)| (group, id)).into_iter().collect();
        };
        let (group, in_record) = self.table.in_group(block);
        let mut numbered = (in_record..).zip(names);
        let Some((first, name)) = numbered.next() else { return SmallVec::new() };
        let rest: SmallVec<[(u16, &BlockName); 8]> = numbered.collect();
        let has_all = |own: &&NamedBlock| {
            rest.iter().all(|(at, name)| lost.named(group, *at, **name).iter().any(|of| of.id == own.id))
        };
        let found = lost.named(group, first, *name).iter().rev().filter(has_all);
        found.map(|own| (group, own.id)).collect()
    }
}

impl LostColumn {
    /// The blocks with a name at one place of the records of a group.
    fn named(&self, group: u32, in_record: u16, name: BlockName) -> &[NamedBlock] {
        let end_of = |group: u32| self.ends.get(group as usize).map(|end| *end as usize);
        let Some(end) = end_of(group) else { return &[] };
        let first = group.checked_sub(1).and_then(end_of).unwrap_or(0);
        let (blocks, key) = (&self.blocks[first..end], (in_record, name.to_word()));
        let of = |own: &NamedBlock| (own.in_record, own.name);
        let blocks = &blocks[blocks.partition_point(|own| of(own) < key)..];
        &blocks[..blocks.partition_point(|own| of(own) == key)]
    }
}

/// The places of one segment in memory.
pub struct HeldPlaces {
    held: Mutex<Held>,
}

enum Held {
    /// They stay: it takes records, or its footers do not say all of them.
    Kept(Arc<Places>),
    /// Its footers say them. None: they are read when they are needed.
    InFooters(InFooters),
}

#[derive(Default)]
struct InFooters {
    read: Option<Arc<Places>>,
    is_reading: bool,
    /// Counts how often they were let go.
    version: u64,
    waiting: Vec<Waker>,
}

/// What a task that needs places does.
pub enum Asked<'a> {
    /// They are there.
    There(Arc<Places>),
    /// It reads them.
    Read(Reading<'a>),
}

/// A task reads the places of a segment; no other does until this is dropped.
pub struct Reading<'a> {
    of: &'a HeldPlaces,
    version: u64,
}

impl HeldPlaces {
    /// They stay in memory.
    pub fn kept(table: AppendTable) -> Self {
        HeldPlaces { held: Mutex::new(Held::Kept(Arc::new(Places::all(table)))) }
    }

    /// They are in footers.
    pub fn in_footers() -> Self {
        HeldPlaces { held: Mutex::new(Held::InFooters(InFooters::default())) }
    }

    /// What memory has of them.
    pub fn in_memory(&self) -> Option<Arc<Places>> {
        match &*self.held.lock() {
            Held::Kept(places) => Some(Arc::clone(places)),
            Held::InFooters(own) => own.read.clone(),
        }
    }

    /// Those that stay in memory.
    pub fn that_stay(&self) -> Option<Arc<Places>> {
        match &*self.held.lock() {
            Held::Kept(places) => Some(Arc::clone(places)),
            Held::InFooters(_) => None,
        }
    }

    /// Every column has its footer: from here on memory may let go of them.
    pub fn may_go(&self) {
        let mut held = self.held.lock();
        if let Held::Kept(places) = &*held {
            let read = Some(Arc::clone(places));
            *held = Held::InFooters(InFooters { read, ..InFooters::default() });
        }
    }

    /// Lets go of what footers say.
    pub fn let_go(&self) {
        if let Held::InFooters(own) = &mut *self.held.lock() {
            own.read = None;
            own.version += 1;
        }
    }

    /// Lets go of what footers say, unless it was read again since.
    pub fn let_go_of(&self, places: &Arc<Places>) {
        if let Held::InFooters(own) = &mut *self.held.lock()
            && own.read.as_ref().is_some_and(|read| Arc::ptr_eq(read, places))
        {
            own.read = None;
        }
    }

    /// Waits while another task reads them.
    pub async fn ask(&self) -> Asked<'_> {
        std::future::poll_fn(|context| self.poll_ask(context)).await
    }

    fn poll_ask(&self, context: &Context<'_>) -> Poll<Asked<'_>> {
        let mut held = self.held.lock();
        let own = match &mut *held {
            Held::Kept(places) => return Poll::Ready(Asked::There(Arc::clone(places))),
            Held::InFooters(own) => own,
        };
        if let Some(places) = &own.read {
            return Poll::Ready(Asked::There(Arc::clone(places)));
        }
        if own.is_reading {
            own.waiting.push(context.waker().clone());
            return Poll::Pending;
        }
        own.is_reading = true;
        Poll::Ready(Asked::Read(Reading { of: self, version: own.version }))
    }
}

impl Reading<'_> {
    /// They were read, and stay until they are let go. False: they were meanwhile, since a member was exchanged.
    pub fn found(self, places: &Arc<Places>) -> bool {
        match &mut *self.of.held.lock() {
            Held::InFooters(own) if own.version == self.version => {
                own.read = Some(Arc::clone(places));
                true
            }
            _ => false,
        }
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let waiting = match &mut *self.of.held.lock() {
            Held::Kept(_) => Vec::new(),
            Held::InFooters(own) => {
                own.is_reading = false;
                std::mem::take(&mut own.waiting)
            }
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}
