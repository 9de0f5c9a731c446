//! The ledgers of a subsystem's namespaces: what their hosts change, for the hosts after them ([`engine::fabric::ledger`]).

use engine::buffer::Gather;
use engine::fabric::epochs::EpochStamp;
use engine::fabric::ledger::{CHANGES_MAX, Ledger, Listed};
use nvme_tcp::names::Host;
use nvme_tcp::target::io::{Request, Shape, dataset_ranges};
use nvme_tcp::vendor::LEDGER_RANGES_MAX;
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// A report has room for all that a ledger lists.
const _: () = assert!(CHANGES_MAX <= LEDGER_RANGES_MAX);

/// The ledgers, by namespace.
#[derive(Default)]
pub(in super::super) struct Ledgers {
    /// Most servers keep none, and look no further.
    any: AtomicBool,
    namespaces: Mutex<BTreeMap<u32, Ledger<Host>>>,
}

impl Ledgers {
    /// A host has a namespace's changes listed from here on, in an area in bytes.
    pub fn begin(&self, namespace: u32, id: u64, host: &Host, area: Range<u64>) {
        let mut namespaces = self.namespaces.lock();
        namespaces.insert(namespace, Ledger::begin(id, host.clone(), area));
        self.any.store(true, Ordering::SeqCst);
    }

    /// Its ledger lists all that is under way. False: it has none by this id.
    pub fn complete(&self, namespace: u32, id: u64, host: &Host) -> bool {
        let mut namespaces = self.namespaces.lock();
        namespaces.get_mut(&namespace).is_some_and(|ledger| ledger.complete(id, host))
    }

    /// The ledger that is kept.
    pub fn id(&self, namespace: u32) -> Option<u64> {
        self.namespaces.lock().get(&namespace).and_then(Ledger::id)
    }

    /// What the ledger lists, if it is complete.
    pub fn listed(&self, namespace: u32) -> Option<Listed> {
        self.namespaces.lock().get(&namespace).and_then(Ledger::listed)
    }

    /// A host is about to change ranges of a namespace, in bytes. Called before the command goes to the drive, and while it counts as
    /// at work: a preempt waits for both.
    pub fn change(
        &self,
        namespace: u32,
        host: &Host,
        stamp: Option<EpochStamp>,
        ranges: impl FnOnce() -> SmallVec<[Range<u64>; 1]>,
    ) {
        if !self.any.load(Ordering::SeqCst) {
            return;
        }
        let mut namespaces = self.namespaces.lock();
        if let Some(ledger) = namespaces.get_mut(&namespace) {
            ranges().into_iter().for_each(|range| ledger.change(host, &range, stamp));
        }
    }
}

/// The ranges that a plain command changes.
pub(in super::super) fn changed_by(
    request: &Request,
    shape: &Shape,
    data: &Gather,
) -> SmallVec<[Range<u64>; 1]> {
    let mut changed = SmallVec::new();
    match request {
        Request::Write { offset, bytes, .. } => changed.push(*offset..*offset + u64::from(*bytes)),
        Request::WriteZeroes { offset, bytes, .. } => changed.push(*offset..*offset + *bytes),
        Request::Dataset { ranges, discard: true, .. } => {
            let mut named = vec![0; data.len()];
            data.copy_to(&mut named);
            // One that makes no sense is refused, and changes nothing.
            let discards = dataset_ranges(&named, *ranges, shape).unwrap_or_default();
            changed.extend(discards.into_iter().map(|(offset, bytes)| offset..offset + bytes));
        }
        Request::Dataset { .. } | Request::Read { .. } | Request::Flush => {}
    }
    changed
}
