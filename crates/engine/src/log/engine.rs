//! The log engine of one shard: what a volume asks of an engine, served from segments.

use std::rc::Rc;

use layout::zoned::Class;

use super::batch::Batches;
use super::flush::flush_members;
use super::open::OpenSegments;
use super::port::LogPort;
use super::read::read_blocks;
use super::write::write_blocks;
use super::zeroes::zero_blocks;
use crate::buffer::{Gather, Slice};
use crate::counters::Counters;
use crate::error::VolumeError;
use crate::limits::BLOCK_BYTES;
use crate::volume::{Engine, EngineShape, Space};
use crate::zone_device::ZoneDevice;

/// One shard's view of a zoned array.
pub struct LogEngine<D> {
    /// The way to the members.
    pub port: Rc<LogPort<D>>,
    /// The open segments of this shard.
    pub open: OpenSegments,
    batches: [Batches; 2],
    /// Requests of so many blocks go to large segments (the paper's Cl).
    pub large_from: usize,
    /// Whether the drives choose places.
    pub is_append: bool,
    stripe_blocks: [usize; 2],
    data_columns: usize,
}

impl<D: ZoneDevice> LogEngine<D> {
    /// The engine of a shard.
    ///
    /// # Panics
    /// If the configuration does not allow a segment over all members, which `create` and assembly check.
    pub fn new(port: LogPort<D>) -> Self {
        let config = &port.shared.config;
        let width = u8::try_from(config.devices.len()).expect("few members");
        let shape = |class| config.shape(class, width).expect("the configuration was checked");
        let (small, large) = (shape(Class::Small), shape(Class::Large));
        let data_columns = usize::from(small.plan().columns.data());
        let stripe_blocks = [small, large].map(|shape| shape.rows_max() as usize * data_columns);
        let is_append = small.is_append();
        let batches = [Batches::new(config.fill_wait), Batches::new(config.fill_wait)];
        let large_from = large.rows_max() as usize;
        let open = OpenSegments::default();
        LogEngine { port: Rc::new(port), open, batches, large_from, is_append, stripe_blocks, data_columns }
    }

    /// The batches of a class.
    pub(super) fn batches(&self, class: Class) -> &Batches {
        &self.batches[usize::from(class != Class::Small)]
    }

    /// Data blocks of the longest stripe of a class.
    pub(super) fn stripe_blocks(&self, class: Class) -> usize {
        self.stripe_blocks[usize::from(class != Class::Small)]
    }

    /// Data columns of a segment over all members.
    pub(super) fn data_columns(&self) -> usize {
        self.data_columns
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

    /// Seals the open segments and makes everything durable. Called when no request is in flight; the array can then be
    /// started without reading records.
    ///
    /// # Errors
    /// A member that the array needs failed.
    pub async fn stop(&self) -> Result<(), VolumeError> {
        self.open.close_all(&self.port).await;
        flush_members(&self.port).await
    }
}

/// One shard's log engine as an engine of a volume. A handle: tasks of the engine hold others.
pub struct LogSet<D>(pub Rc<LogEngine<D>>);

impl<D: ZoneDevice> Engine for LogSet<D> {
    fn shape(&self) -> EngineShape {
        let engine = &self.0;
        let stripe = (engine.stripe_blocks[1] * BLOCK_BYTES) as u64;
        EngineShape {
            size_bytes: engine.port.shared.config.logical_blocks * BLOCK_BYTES as u64,
            io_min_bytes: BLOCK_BYTES as u32,
            io_opt_bytes: stripe,
        }
    }

    fn counters(&self) -> &Counters {
        self.0.port.counters()
    }

    /// Latencies of clients are not measured yet: background work of this engine has no budget to keep.
    fn begin(&self) -> Option<u64> {
        None
    }

    fn end(&self, _began_ns: Option<u64>) {}
}

impl<D: ZoneDevice> Space for LogSet<D> {
    async fn read(&self, offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        read_blocks(&self.0, offset_bytes, bytes).await
    }

    async fn write(&self, offset_bytes: u64, data: Gather, fua: bool) -> Result<(), VolumeError> {
        write_blocks(&self.0, offset_bytes, data, fua).await
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        flush_members(&self.0.port).await
    }

    /// Frees the space: zeroes always may.
    async fn write_zeroes(
        &self,
        offset_bytes: u64,
        bytes: u64,
        _may_unmap: bool,
        fua: bool,
    ) -> Result<(), VolumeError> {
        zero_blocks(&self.0, offset_bytes, bytes, fua).await
    }

    async fn discard(&self, offset_bytes: u64, bytes: u64) -> Result<(), VolumeError> {
        zero_blocks(&self.0, offset_bytes, bytes, false).await
    }
}
