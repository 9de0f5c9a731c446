//! The groups of a map. Those of a block of the root are made together, when one of them is written first: so an array costs memory
//! for what was written of it, not for its size, and so does a checkpoint.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use layout::zoned::{ROOT_ENTRIES, RootEntry};

use super::group::Group;
use crate::sync::sequential::Mutex;
use crate::sync::sequential::atomic::{AtomicU32, Ordering::SeqCst};

/// Groups that a block of the root names.
pub const ROOT_BLOCK_GROUPS: u64 = ROOT_ENTRIES as u64;

/// The root of a checkpoint, by block. Groups of a block that is not there are zeroes.
pub type Root = BTreeMap<u32, Vec<RootEntry>>;

/// The block of the root that a group is in, and its place there.
pub fn in_root(group: u64) -> (u32, usize) {
    ((group / ROOT_BLOCK_GROUPS) as u32, (group % ROOT_BLOCK_GROUPS) as usize)
}

/// See the file's header.
pub(super) struct Groups {
    count: u64,
    root_blocks: Box<[OnceLock<Box<[Mutex<Group>]>>]>,
    /// Counts checkpoints that have begun.
    cycle: AtomicU32,
    /// Held while some are made, and while a checkpoint begins: it has those that are there then, and no others.
    making: Mutex<()>,
}

impl Groups {
    /// A map of `count` groups, none of them written yet.
    pub(super) fn new(count: u64) -> Self {
        let root_blocks = (0..count.div_ceil(ROOT_BLOCK_GROUPS)).map(|_| OnceLock::new()).collect();
        let groups = Groups { count, root_blocks, cycle: AtomicU32::new(0), making: Mutex::new(()) };
        groups.made(0); // no root is without a block
        groups
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Blocks of the root, whether or not any of their groups was written.
    pub(super) fn root_blocks(&self) -> u64 {
        self.root_blocks.len() as u64
    }

    /// Checkpoints that have begun.
    pub(super) fn cycle(&self) -> u32 {
        self.cycle.load(SeqCst)
    }

    /// A group. None: it is all zeroes, as are all others of its block of the root.
    pub(super) fn get(&self, group: u64) -> Option<&Mutex<Group>> {
        assert!(group < self.count, "group {group} is in the map");
        let groups = self.root_blocks[(group / ROOT_BLOCK_GROUPS) as usize].get()?;
        Some(&groups[(group % ROOT_BLOCK_GROUPS) as usize])
    }

    /// A group that is about to be written. Called with no group locked.
    pub(super) fn made(&self, group: u64) -> &Mutex<Group> {
        if let Some(there) = self.get(group) {
            return there;
        }
        let number = group / ROOT_BLOCK_GROUPS;
        {
            let _making = self.making.lock();
            // A checkpoint that has begun does not have them: all their changes come later.
            let own = || Mutex::new(Group { cycle: self.cycle(), ..Group::default() });
            let groups = ROOT_BLOCK_GROUPS.min(self.count - number * ROOT_BLOCK_GROUPS);
            self.root_blocks[number as usize].get_or_init(|| (0..groups).map(|_| own()).collect());
        }
        self.get(group).expect("it was made")
    }

    /// The first group from this one on that is there, around the end.
    pub(super) fn next(&self, from: u64) -> u64 {
        let from = from % self.count;
        let first = from / ROOT_BLOCK_GROUPS;
        let is_there = |number: &u64| self.root_blocks[*number as usize].get().is_some();
        match is_there(&first) {
            true => from,
            false => {
                let next = (first + 1..self.root_blocks()).find(is_there);
                next.unwrap_or(0) * ROOT_BLOCK_GROUPS
            }
        }
    }

    /// The groups that are there, by block of the root.
    pub(super) fn there(&self) -> impl Iterator<Item = (u64, &[Mutex<Group>])> {
        (0..).zip(&self.root_blocks).filter_map(|(number, groups)| Some((number, &**groups.get()?)))
    }

    /// A checkpoint begins: no group is in it yet. On return no task changes an entry that has not seen it. `counted` is called
    /// before any change can come that the checkpoint does not have. Returns the blocks of the root that it has.
    pub(super) fn begin_checkpoint(&self, counted: impl FnOnce()) -> (u32, Vec<u64>) {
        let _making = self.making.lock();
        let cycle = self.cycle.fetch_add(1, SeqCst) + 1;
        self.there().flat_map(|(_, groups)| groups).for_each(|group| drop(group.lock()));
        counted();
        (cycle, self.there().map(|(number, _)| number).collect())
    }
}

#[cfg(all(test, not(feature = "model")))]
mod tests {
    use super::*;

    #[test]
    fn what_was_never_written_takes_nothing() {
        let groups = Groups::new(1 << 30);
        let far = 1000 * ROOT_BLOCK_GROUPS + 3;
        let there = || groups.there().map(|(number, groups)| (number, groups.len())).collect::<Vec<_>>();
        assert_eq!(there(), [(0, 252)], "a root of one block");
        assert!(groups.get(far).is_none());
        groups.made(far);
        groups.made((1 << 30) - 1);
        assert!(groups.get(far).is_some() && groups.get(far + ROOT_BLOCK_GROUPS).is_none());
        let last = (1 << 30) / ROOT_BLOCK_GROUPS;
        assert_eq!(there(), [(0, 252), (1000, 252), (last, ((1 << 30) % ROOT_BLOCK_GROUPS) as usize)]);
        let next =
            [251, 252, far, 1001 * ROOT_BLOCK_GROUPS, (1 << 30) - 1, 1 << 30].map(|from| groups.next(from));
        let first = 1000 * ROOT_BLOCK_GROUPS;
        assert_eq!(next, [251, first, far, last * ROOT_BLOCK_GROUPS, (1 << 30) - 1, 0]);
    }

    /// What is written to a group that a checkpoint does not have comes after it, also if the group is made meanwhile.
    #[test]
    fn groups_that_are_made_after_a_checkpoint_began_are_not_in_it() {
        let groups = Groups::new(10 * ROOT_BLOCK_GROUPS);
        let is_late = |group: u64| groups.made(group).lock().cycle == groups.cycle();
        groups.made(0);
        let (cycle, has) = groups.begin_checkpoint(|| {});
        assert_eq!((cycle, has), (1, vec![0]));
        assert_eq!((is_late(0), is_late(5 * ROOT_BLOCK_GROUPS)), (false, true));
        assert_eq!(groups.begin_checkpoint(|| {}).1, [0, 5]);
        assert!(!is_late(5 * ROOT_BLOCK_GROUPS), "the next one has it");
    }
}
