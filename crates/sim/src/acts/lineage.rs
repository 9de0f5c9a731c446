//! What each device of an array whose members run apart may hold: the writes form a tree, and each device has a place in it.
//!
//! A write goes to one of a few cells. It is a node below the one that the running array is at, and the members in sync are
//! there from then on. So two sides that went on apart are two branches, and what a cell may hold is what the nearest node
//! above says of it. A write in flight when the power went may be there or not, and a start by force makes cells that differ
//! between the members it took hold anything.

use std::collections::BTreeMap;

use crate::pages::Content;

/// A place in the tree.
pub(super) type Head = usize;

/// Cells that are written and read, as bits.
pub(super) type Cells = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// An acknowledged write, durable.
    Written { cell: usize, content: Content },
    /// A write in flight when the power went.
    Torn { cell: usize, content: Content },
    /// A client read a cell that may have held one of several contents.
    Read { cell: usize, content: Content },
    /// A run that some members were not part of.
    Ran,
    /// An operator accepted whatever these cells hold.
    Accepted { cells: Cells },
}

#[derive(Clone, Copy, Debug)]
struct Node {
    above: Head,
    step: Step,
}

#[derive(Clone)]
pub(super) struct Lineage {
    /// The first one is a new array; it is its own parent.
    nodes: Vec<Node>,
    heads: BTreeMap<u32, Head>,
    writes: Vec<u32>,
}

impl Lineage {
    /// An array of zeroes on these devices.
    pub(super) fn new(devices: impl Iterator<Item = u32>, cells: usize) -> Self {
        let root = Node { above: 0, step: Step::Ran };
        Lineage {
            nodes: vec![root],
            heads: devices.map(|device| (device, 0)).collect(),
            writes: vec![0; cells],
        }
    }

    /// What the next write to a cell puts there: the same after as many writes, so that histories come to equal states.
    pub(super) fn next_content(&mut self, cell: usize) -> Content {
        self.writes[cell] += 1;
        self.writes[cell] * 16 + u32::try_from(cell).expect("a few cells")
    }

    pub(super) fn written(&mut self, head: Head, cell: usize, content: Content) -> Head {
        self.push(head, Step::Written { cell, content })
    }

    pub(super) fn torn(&mut self, head: Head, cell: usize, content: Content) -> Head {
        self.push(head, Step::Torn { cell, content })
    }

    /// What a client has read stays so until the next write.
    pub(super) fn read(&mut self, head: Head, cell: usize, content: Content) -> Head {
        self.push(head, Step::Read { cell, content })
    }

    pub(super) fn ran(&mut self, head: Head) -> Head {
        self.push(head, Step::Ran)
    }

    pub(super) fn accepted(&mut self, head: Head, cells: Cells) -> Head {
        self.push(head, Step::Accepted { cells })
    }

    fn push(&mut self, above: Head, step: Step) -> Head {
        self.nodes.push(Node { above, step });
        self.nodes.len() - 1
    }

    /// A member in sync is where the array is.
    pub(super) fn follow(&mut self, device: u32, head: Head) {
        self.heads.insert(device, head);
    }

    /// Where a device was last in sync; None: it never was.
    pub(super) fn head(&self, device: u32) -> Option<Head> {
        self.heads.get(&device).copied()
    }

    /// What a cell may hold at a place of the tree; None: anything.
    pub(super) fn may_hold(&self, head: Head, cell: usize) -> Option<Vec<Content>> {
        let mut contents = Vec::new();
        for at in self.up(head) {
            match self.nodes[at].step {
                Step::Written { cell: of, content } | Step::Read { cell: of, content } if of == cell => {
                    contents.push(content);
                    return Some(contents);
                }
                Step::Torn { cell: of, content } if of == cell => contents.push(content),
                Step::Accepted { cells } if cells & 1 << cell != 0 => return None,
                _ => {}
            }
        }
        contents.push(0);
        Some(contents)
    }

    /// Whether one place is above another or the same.
    pub(super) fn leads_to(&self, old: Head, new: Head) -> bool {
        self.up(new).any(|at| at == old)
    }

    /// Whether a write was acknowledged on the way to `head` that `other` has not.
    pub(super) fn wrote_without(&self, head: Head, other: Head) -> bool {
        let apart = self.up(head).take_while(|at| !self.leads_to(*at, other));
        apart.into_iter().any(|at| matches!(self.nodes[at].step, Step::Written { .. }))
    }

    /// Cells that were written when the power went, on the way to a place.
    pub(super) fn torn_above(&self, head: Head) -> Cells {
        self.up(head).fold(0, |cells, at| match self.nodes[at].step {
            Step::Torn { cell, .. } => cells | 1 << cell,
            _ => cells,
        })
    }

    /// Of some places the newest of the side that has most; the rest of it leads there.
    pub(super) fn newest(&self, heads: &[Head]) -> Option<Head> {
        heads.iter().copied().max_by_key(|head| (self.wrote(*head), *head))
    }

    fn wrote(&self, head: Head) -> usize {
        self.up(head).filter(|at| matches!(self.nodes[*at].step, Step::Written { .. })).count()
    }

    fn up(&self, head: Head) -> impl Iterator<Item = Head> + '_ {
        let above = move |at: &Head| (*at > 0).then(|| self.nodes[*at].above);
        std::iter::successors(Some(head), above)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sides_are_branches() {
        let mut lineage = Lineage::new(0..3, 2);
        let first = lineage.next_content(0);
        let both = lineage.written(0, 0, first);
        let second = lineage.next_content(1);
        let here = lineage.written(both, 1, second);
        let there = lineage.ran(both);
        assert!(lineage.leads_to(both, here) && !lineage.leads_to(here, there));
        assert!(lineage.wrote_without(here, there) && !lineage.wrote_without(there, here));
        assert_eq!(lineage.may_hold(there, 1), Some(vec![0]));
        assert_eq!(lineage.may_hold(here, 1), Some(vec![second]));
        assert_eq!(lineage.newest(&[both, here, there]), Some(here));
        let third = lineage.next_content(0);
        let torn = lineage.torn(here, 0, third);
        assert_eq!(lineage.may_hold(torn, 0), Some(vec![third, first]));
        let accepted = lineage.accepted(torn, 0b10);
        assert_eq!((lineage.may_hold(accepted, 1), lineage.may_hold(accepted, 0).is_some()), (None, true));
    }
}
