//! A device on another machine: what its target is asked to do, and by which host.

use std::cell::{Cell, RefCell};
use std::ops::Range;

use engine::buffer::{Buffer, Gather};
use engine::device::DeviceError;
use engine::fabric::epochs::EpochStamp;
use engine::fabric::ledger::{Ledger, Listed};

/// A host's way to a device on another machine.
pub(crate) trait SimLink {
    /// Has the target do something.
    fn send(&self, work: Work, reply: Reply);

    /// Whether it will fail what is sent, or does.
    fn is_failing(&self) -> bool;

    /// The device is connected anew, by the host with this number: what was sent on this one comes to nothing.
    fn is_replaced(&self, by: u64);

    /// Whether there is no connection now.
    fn is_away(&self) -> bool;

    /// The target wrote something for the host by itself, which a restart may lose.
    fn has_written(&self);

    /// Cuts the connection for so many ticks; with `restarts` the target's machine restarts meanwhile. A cut that fails the member is
    /// made only if it `may_fail`.
    fn cut(&self, away: u64, restarts: bool, may_fail: bool);
}

/// With what was read, if that was it.
pub(crate) type Done = Result<Option<Buffer>, DeviceError>;

/// Hears of the end of a command.
pub(crate) type Reply = Box<dyn FnOnce(Done)>;

/// What a target is asked to do.
#[derive(Clone)]
pub(crate) enum Work {
    Read { offset: u64, bytes: u64 },
    Write { offset: u64, data: Gather, fua: bool },
    Zeroes { offset: u64, bytes: u64 },
    Discard { offset: u64, bytes: u64 },
    Flush,
}

impl Work {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Work::Read { .. } => "read",
            Work::Write { .. } => "write",
            Work::Zeroes { .. } => "write zeroes",
            Work::Discard { .. } => "discard",
            Work::Flush => "flush",
        }
    }

    pub(crate) fn range(&self) -> (u64, u64) {
        match self {
            Work::Read { offset, bytes }
            | Work::Zeroes { offset, bytes }
            | Work::Discard { offset, bytes } => (*offset, *bytes),
            Work::Write { offset, data, .. } => (*offset, data.len() as u64),
            Work::Flush => (0, 0),
        }
    }

    /// The range that it changes, if it changes any.
    pub(crate) fn changed(&self) -> Option<Range<u64>> {
        let (offset, bytes) = self.range();
        let changes = !matches!(self, Work::Read { .. } | Work::Flush);
        changes.then(|| offset..offset + bytes)
    }

    /// Whether a restart of the target may lose it once it is answered.
    pub(crate) fn is_volatile(&self) -> bool {
        matches!(self, Work::Write { fua: false, .. } | Work::Zeroes { .. } | Work::Discard { .. })
    }
}

/// Who may send commands to a target: a host, and which of its associations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) host: u64,
    pub(crate) association: u64,
}

/// What a target knows of its hosts.
#[derive(Default)]
pub(crate) struct Gate {
    pub(crate) holder: Cell<Holder>,
    /// Commands that are being carried out.
    pub(crate) running: Cell<u64>,
    /// Its machine has restarted, and writes that were answered and not flushed are gone: until a host attaches anew.
    pub(crate) has_lost_writes: Cell<bool>,
    /// What it has recorded of its host.
    pub(crate) ledger: RefCell<Option<Ledger<Holder>>>,
}

impl Gate {
    /// A host is about to change a range (F-I14).
    pub(crate) fn record(&self, by: Holder, range: &Range<u64>, stamp: Option<EpochStamp>) {
        if let Some(ledger) = &mut *self.ledger.borrow_mut() {
            ledger.change(&by, range, stamp);
        }
    }

    /// What it has recorded, if that is complete.
    pub(crate) fn listed(&self) -> Option<Listed> {
        self.ledger.borrow().as_ref()?.listed()
    }

    /// The host's crash, or its target's, has ended all commands.
    pub(crate) fn clear(&self) {
        self.running.set(0);
    }
}
