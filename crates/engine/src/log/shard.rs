//! One shard of a log engine: its way to the members, its open segments and its open stripes.

use std::cell::Cell;
use std::rc::Rc;

use layout::zoned::Class;

use super::batch::Batches;
use super::config::LogConfig;
use super::open::OpenSegments;
use super::port::LogPort;
use crate::buffer::{Gather, Slice};
use crate::limits::BLOCK_BYTES;
use crate::zone_device::ZoneDevice;

/// One shard's view of a zoned array.
pub struct LogEngine<D> {
    /// The way to the members.
    pub port: Rc<LogPort<D>>,
    /// The open segments of this shard.
    pub open: OpenSegments,
    batches: [Batches; 2],
    /// Requests of at least this many blocks go to large segments (the paper's Cl).
    large_from: usize,
    /// Whether the drives choose the places of small stripes, and of others.
    is_append: [bool; 2],
    sizes: Cell<Sizes>,
}

/// What segments over all members hold.
#[derive(Clone, Copy)]
struct Sizes {
    /// Members.
    width: usize,
    /// Data blocks of the longest stripe, small and large.
    stripe_blocks: [usize; 2],
    data_columns: usize,
    /// Data blocks that a segment holds, of the class that holds fewer.
    segment_blocks: u64,
}

impl Sizes {
    /// Over `width` members.
    fn of(config: &LogConfig, width: usize) -> Self {
        let columns = u8::try_from(width).expect("few members");
        let shape = |class| config.shape(class, columns).expect("the configuration was checked");
        let (small, large) = (shape(Class::Small), shape(Class::Large));
        let data_columns = usize::from(small.plan().columns.data());
        Sizes {
            width,
            stripe_blocks: [small, large].map(|shape| shape.rows_max() as usize * data_columns),
            data_columns,
            segment_blocks: u64::from(small.rows().min(large.rows())) * data_columns as u64,
        }
    }
}

impl<D: ZoneDevice> LogEngine<D> {
    /// The engine of a shard, once superblocks say that the epoch serves.
    ///
    /// # Panics
    /// If the configuration does not allow a segment over all members, which `create` and assembly check.
    pub fn new(port: LogPort<D>) -> Self {
        let config = &port.shared.config;
        let width = port.shared.members.width();
        let columns = u8::try_from(width).expect("few members");
        let shape = |class| config.shape(class, columns).expect("the configuration was checked");
        let (small, large) = (shape(Class::Small), shape(Class::Large));
        let is_append = [small.is_append(), large.is_append()];
        let sizes = Cell::new(Sizes::of(config, width));
        let batches = [Batches::new(config.fill_wait), Batches::new(config.fill_wait)];
        let large_from = match (config.open.small, config.open.large) {
            (0, _) => 0,
            (_, 0) => usize::MAX,
            _ => large.rows_max() as usize,
        };
        let open = OpenSegments::new(config);
        port.shared.members.serve();
        LogEngine { port: Rc::new(port), open, batches, large_from, is_append, sizes }
    }

    /// What segments over all members hold now: the array may have grown since.
    fn sizes(&self) -> Sizes {
        let sizes = self.sizes.get();
        let width = self.port.shared.members.width();
        if sizes.width == width {
            return sizes;
        }
        let sizes = Sizes::of(&self.port.shared.config, width);
        self.sizes.set(sizes);
        sizes
    }

    /// The class that a request of this many blocks is written to.
    pub(super) fn class_of(&self, blocks: usize) -> Class {
        if blocks < self.large_from { Class::Small } else { Class::Large }
    }

    /// Whether stripes of a class have all rows, with padding where there are too few blocks: of appended ones all are alike.
    /// Small ones that go to a segment that is written in order need no more rows than their blocks fill.
    pub(super) fn pads_to_whole(&self, class: Class) -> bool {
        self.is_append[usize::from(class != Class::Small)]
    }

    /// The batches of a class.
    pub(super) fn batches(&self, class: Class) -> &Batches {
        &self.batches[usize::from(class != Class::Small)]
    }

    /// Data blocks of the longest stripe of a class.
    pub(super) fn stripe_blocks(&self, class: Class) -> usize {
        self.sizes().stripe_blocks[usize::from(class != Class::Small)]
    }

    /// Data columns of a segment over all members.
    pub(super) fn data_columns(&self) -> usize {
        self.sizes().data_columns
    }

    /// Data blocks that a segment holds.
    pub(super) fn segment_blocks(&self) -> u64 {
        self.sizes().segment_blocks
    }

    /// A block of a request's data, in one piece.
    pub(super) fn block_of(&self, data: &Gather, block: usize) -> Slice {
        let part = data.part(block * BLOCK_BYTES, BLOCK_BYTES);
        if let [slice] = part.slices() {
            return slice.clone();
        }
        let mut buffer = self.port.pool.take(BLOCK_BYTES);
        part.copy_to(buffer.bytes_mut());
        buffer.freeze()
    }
}
