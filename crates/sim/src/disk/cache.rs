//! The volatile write cache of a device, and what is durable below it.

use std::ops::Range;

use engine::buffer::Gather;

use crate::pages::Pages;
use crate::random::Random;

/// Contents of a device. Offsets are bytes of the device; a power cut keeps or loses whole logical blocks.
#[derive(Clone)]
pub(crate) struct Cache {
    /// What a read finds.
    volatile: Pages,
    /// What survives a power cut for certain.
    durable: Pages,
    /// Applied since, in order.
    log: Vec<Logged>,
    /// Counts operations and their returns.
    clock: u64,
    block_bytes: u64,
}

#[derive(Clone)]
struct Logged {
    operation: u64,
    offset: u64,
    written: Written,
    /// When its operation returned.
    returned: Option<u64>,
    /// It survives a power cut: its operation had FUA and returned.
    kept: bool,
}

#[derive(Clone)]
pub(crate) enum Written {
    Data(Gather),
    Zeroes(u64),
}

impl Written {
    pub(crate) fn bytes(&self) -> u64 {
        match self {
            Written::Data(data) => data.len() as u64,
            Written::Zeroes(bytes) => *bytes,
        }
    }

    fn part(&self, start: u64, bytes: u64) -> Written {
        match self {
            Written::Data(data) => Written::Data(data.part(start as usize, bytes as usize)),
            Written::Zeroes(_) => Written::Zeroes(bytes),
        }
    }

    pub(super) fn copy_to(&self, target: &mut [u8]) {
        match self {
            Written::Data(data) => data.copy_to(target),
            Written::Zeroes(_) => target.fill(0),
        }
    }

    fn apply(&self, pages: &mut Pages, offset: u64) {
        match self {
            Written::Data(data) => {
                let mut at = offset;
                for slice in data.slices() {
                    pages.write(at, slice.bytes());
                    at += slice.len() as u64;
                }
            }
            Written::Zeroes(bytes) => pages.zero(offset, *bytes),
        }
    }
}

impl Cache {
    pub(crate) fn new(contents: Pages, block_bytes: u32) -> Self {
        Cache {
            volatile: contents.clone(),
            durable: contents,
            log: Vec::new(),
            clock: 0,
            block_bytes: u64::from(block_bytes),
        }
    }

    /// What a read finds.
    pub(crate) fn read(&self, offset: u64, target: &mut [u8]) {
        self.volatile.read(offset, target);
    }

    /// Where reads of two devices find different contents.
    pub(crate) fn differs(&self, other: &Cache) -> Option<u64> {
        self.volatile.differs(&other.volatile)
    }

    /// Whether this range was never written and is zeroes.
    pub(crate) fn untouched(&self, offset: u64, bytes: u64) -> bool {
        self.volatile.untouched(offset, bytes)
    }

    /// Whether a write would change what a read of a range finds.
    pub(crate) fn changes(&self, offset: u64, written: &Written, range: Range<u64>) -> bool {
        let (start, end) = (range.start.max(offset), range.end.min(offset + written.bytes()));
        let mut held = vec![0; end.saturating_sub(start) as usize];
        self.read(start, &mut held);
        let mut new = vec![0; held.len()];
        written.part(start - offset, held.len() as u64).copy_to(&mut new);
        held != new
    }

    /// The number of an operation that begins.
    pub(crate) fn begin(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Applies the blocks `from` to `to` of a write to what reads find, and remembers them as not durable.
    pub(crate) fn apply(&mut self, operation: u64, offset: u64, written: &Written, (from, to): (u64, u64)) {
        if from >= to {
            return;
        }
        let unit = self.block_bytes;
        let written = written.part(from * unit, (to - from) * unit);
        let offset = offset + from * unit;
        written.apply(&mut self.volatile, offset);
        self.log.push(Logged { operation, offset, written, returned: None, kept: false });
    }

    /// An operation returned; with `kept` it was one with FUA that succeeded.
    pub(crate) fn returned(&mut self, operation: u64, kept: bool) {
        self.clock += 1;
        for logged in self.log.iter_mut().filter(|logged| logged.operation == operation) {
            (logged.returned, logged.kept) = (Some(self.clock), kept);
        }
    }

    /// What had returned when the flush was sent becomes durable. Where the flush failed, `lost` says of each write
    /// whether it is gone: it is neither durable nor will it ever be.
    pub(crate) fn flushed(&mut self, sent: u64, mut lost: impl FnMut() -> bool) {
        for logged in std::mem::take(&mut self.log) {
            if logged.returned.is_none_or(|returned| returned > sent) {
                self.log.push(logged);
            } else if logged.kept || !lost() {
                logged.written.apply(&mut self.durable, logged.offset);
            }
        }
    }

    /// The first place of these at which a power cut now need not leave what a read finds.
    pub(crate) fn first_volatile(&self, range: Range<u64>) -> Option<u64> {
        let places = self.log.iter().filter(|logged| !logged.kept).filter_map(|logged| {
            let (start, end) =
                (logged.offset.max(range.start), (logged.offset + logged.written.bytes()).min(range.end));
            let (mut found, mut left) = (vec![0; end.saturating_sub(start) as usize], Vec::new());
            self.volatile.read(start, &mut found);
            left.resize(found.len(), 0);
            self.durable.read(start, &mut left);
            (found != left).then_some(start)
        });
        places.min()
    }

    /// Every content that a power cut now could leave in one logical block, newest first.
    pub(crate) fn may_leave(&self, offset: u64, block: &mut [u8], mut visit: impl FnMut(&[u8])) {
        let bytes = block.len() as u64;
        for logged in self.log.iter().rev() {
            let start = logged.offset;
            if offset < start || start + logged.written.bytes() < offset + bytes {
                continue;
            }
            logged.written.part(offset - start, bytes).copy_to(block);
            visit(block);
            if logged.kept {
                return;
            }
        }
        self.durable.read(offset, block);
        visit(block);
    }

    /// The power is gone. Of each write that is not durable `survives` says which blocks are there; it is asked in the
    /// order in which they were applied, with the number of blocks.
    pub(crate) fn cut(&mut self, mut survives: impl FnMut(u64) -> Survivors) {
        let unit = self.block_bytes;
        for logged in std::mem::take(&mut self.log) {
            let blocks = logged.written.bytes() / unit;
            let survivors = if logged.kept { Survivors::All } else { survives(blocks) };
            match survivors {
                Survivors::All => logged.written.apply(&mut self.durable, logged.offset),
                Survivors::None => {}
                Survivors::Some(some) => {
                    for (block, _) in (0..).zip(some).filter(|(_, survives)| *survives) {
                        let part = logged.written.part(block * unit, unit);
                        part.apply(&mut self.durable, logged.offset + block * unit);
                    }
                }
            }
        }
        self.volatile = self.durable.clone();
    }
}

/// Which blocks of a write survive a power cut.
pub(crate) enum Survivors {
    All,
    None,
    /// Those that are true.
    Some(Vec<bool>),
}

impl Survivors {
    /// Each block with this chance, in percent, or the whole write with it.
    pub(crate) fn some(blocks: u64, percent: u64, random: &Random) -> Self {
        if percent == 100 {
            return Survivors::All;
        }
        let whole = random.one_in(2); // or a part of it
        let all = random.percent(percent);
        match (whole, all) {
            (true, true) => Survivors::All,
            (true, false) => Survivors::None,
            (false, _) => Survivors::Some((0..blocks).map(|_| random.percent(percent)).collect()),
        }
    }
}
