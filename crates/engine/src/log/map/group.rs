//! One group of the map: the entries of one mapping block, in memory or in the log, and the writes of its blocks that are in
//! flight.

use layout::zoned::{MapEntry, MapShape, MappingBlock};

use super::pending::PendingBlocks;

/// The place of a mapping block where there is none.
pub(super) const NO_PLACE: u64 = u64::MAX;

/// What a group's entries are.
#[derive(Default)]
pub(super) enum Entries {
    /// All zeroes.
    #[default]
    Zeroes,
    /// In memory, of 4 bytes.
    Narrow(Box<[u32]>),
    /// In memory, of 8 bytes.
    Wide(Box<[u64]>),
    /// In the log, where the group's place says.
    Out,
}

impl Entries {
    /// Entries of these words.
    pub(super) fn of(shape: &MapShape, words: &[u64]) -> Entries {
        match shape.entry_bytes() {
            4 => Entries::Narrow(words.iter().map(|word| *word as u32).collect()),
            _ => Entries::Wide(words.into()),
        }
    }

    fn zeroes(shape: &MapShape) -> Entries {
        Entries::of(shape, &vec![shape.word(MapEntry::Zeroes); shape.entries_per_block() as usize])
    }

    /// An entry. None: it is in the log.
    pub(super) fn get(&self, shape: &MapShape, at: usize) -> Option<MapEntry> {
        let word = match self {
            Entries::Zeroes => return Some(MapEntry::Zeroes),
            Entries::Narrow(entries) => entries[at].into(),
            Entries::Wide(entries) => entries[at],
            Entries::Out => return None,
        };
        Some(shape.entry(word).expect("an entry that was set, or read and checked"))
    }

    /// An entry as it is kept, of whatever: for a look that brings it into a cache.
    pub(super) fn touch(&self, at: usize) -> u64 {
        match self {
            Entries::Zeroes | Entries::Out => 0,
            Entries::Narrow(entries) => entries[at].into(),
            Entries::Wide(entries) => entries[at],
        }
    }

    /// Whether they take memory.
    pub(super) fn is_in_memory(&self) -> bool {
        matches!(self, Entries::Narrow(_) | Entries::Wide(_))
    }

    fn words(&self) -> Vec<u64> {
        match self {
            Entries::Zeroes | Entries::Out => Vec::new(),
            Entries::Narrow(entries) => entries.iter().map(|word| u64::from(*word)).collect(),
            Entries::Wide(entries) => entries.to_vec(),
        }
    }
}

/// See the file's header. Its lock is held for a few entries at a time.
pub(super) struct Group {
    pub(super) entries: Entries,
    pub(super) pending: PendingBlocks,
    /// The word of the place of its newest mapping block, which is what it is unless `is_dirty`.
    pub(super) place: u64,
    /// The last checkpoint that has it.
    pub(super) cycle: u32,
    /// Its mapping block is older than its entries.
    pub(super) is_dirty: bool,
    /// It was changed since the last checkpoint that has it.
    pub(super) is_changed: bool,
    /// It was, when that took it.
    pub(super) was_changed: bool,
    /// A mapping block of it is being written.
    pub(super) is_writing: bool,
    /// A task reads it from the log.
    pub(super) is_loading: bool,
    /// It was used since the clock's hand passed.
    pub(super) was_used: bool,
}

impl Default for Group {
    fn default() -> Self {
        Group {
            entries: Entries::Zeroes,
            pending: PendingBlocks::default(),
            place: NO_PLACE,
            cycle: 0,
            is_dirty: false,
            is_changed: false,
            was_changed: false,
            is_writing: false,
            is_loading: false,
            was_used: false,
        }
    }
}

impl Group {
    /// Sets an entry of a group that is in memory, or all zeroes; the second value says whether it takes memory since.
    ///
    /// # Panics
    /// If it is in the log.
    pub(super) fn set(&mut self, shape: &MapShape, at: usize, entry: MapEntry) -> (MapEntry, bool) {
        let old = self.entries.get(shape, at).expect("a group that is changed is in memory");
        let is_new = matches!(self.entries, Entries::Zeroes) && entry != MapEntry::Zeroes;
        if is_new {
            self.entries = Entries::zeroes(shape);
        }
        let word = shape.word(entry);
        match &mut self.entries {
            Entries::Narrow(entries) => entries[at] = word as u32,
            Entries::Wide(entries) => entries[at] = word,
            Entries::Zeroes | Entries::Out => {}
        }
        self.is_dirty = true;
        (old, is_new)
    }

    /// Whether it takes memory, and nothing is under way that needs it there.
    pub(super) fn is_idle(&self) -> bool {
        self.entries.is_in_memory() && self.pending.is_empty() && !self.is_writing
    }

    /// The mapping block of a group that takes memory.
    pub(super) fn block(&self, shape: &MapShape) -> Vec<u8> {
        MappingBlock::encode(&self.entries.words(), shape)
    }
}
