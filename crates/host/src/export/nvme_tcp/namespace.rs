//! A namespace: a volume of any type, from any shard, and what a command does with it.

use engine::buffer::Gather;
use engine::error::VolumeError;
use engine::volume::{Volume, VolumeInfo, ZeroFlags};
use nvme_tcp::status::Status;
use nvme_tcp::target::io::{Request, Shape, dataset_ranges};
use nvme_tcp::target::queue::Slot;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use super::connection_limits::TRANSFER_BYTES_MAX;
use super::link::Link;
use super::running::Ticket;
use crate::shard::ShardContext;

/// A volume of any type.
pub(super) trait Source: Send + Sync {
    fn open(&self, shard: &ShardContext) -> Rc<dyn Namespace>;
}

impl<V: Volume, F: Fn(&ShardContext) -> Rc<V> + Send + Sync> Source for F {
    fn open(&self, shard: &ShardContext) -> Rc<dyn Namespace> {
        Rc::new(Opened { volume: self(shard), shard: shard.clone() })
    }
}

/// A request that passed the gate: it is at work.
pub(super) struct Started {
    pub request: Request,
    pub shape: Shape,
    pub ticket: Ticket,
}

/// What a volume of any type is at.
pub(super) type Pending<T> = Pin<Box<dyn Future<Output = Result<T, VolumeError>>>>;

/// A namespace as one shard sees it.
pub(super) trait Namespace {
    fn info(&self) -> VolumeInfo;

    /// Reads for the fabric, whose orders know when they are at work.
    fn read(&self, offset: u64, bytes: u64) -> Pending<Gather>;

    /// Writes for the fabric.
    fn write(&self, offset: u64, data: Gather, fua: bool) -> Pending<()>;

    /// Carries a request out in a task of its own, which answers it. The command is at work until the volume has answered.
    fn carry_out(&self, link: Rc<Link>, slot: Slot, work: Started, data: Gather);
}

struct Opened<V> {
    volume: Rc<V>,
    shard: ShardContext,
}

impl<V: Volume> Namespace for Opened<V> {
    fn info(&self) -> VolumeInfo {
        self.volume.info()
    }

    fn read(&self, offset: u64, bytes: u64) -> Pending<Gather> {
        let volume = Rc::clone(&self.volume);
        Box::pin(async move { volume.read(offset, bytes).await })
    }

    fn write(&self, offset: u64, data: Gather, fua: bool) -> Pending<()> {
        let volume = Rc::clone(&self.volume);
        Box::pin(async move { volume.write(offset, data, fua).await })
    }

    fn carry_out(&self, link: Rc<Link>, slot: Slot, work: Started, data: Gather) {
        let Started { request, shape, ticket } = work;
        let volume = Rc::clone(&self.volume);
        self.shard.executor.spawn(async move {
            let (status, data) = match apply(&*volume, request, data, &shape).await {
                Ok(data) => (Status::SUCCESS, data),
                Err(status) => (status, Gather::new()),
            };
            // Before the answer, after which the slot may be another command's.
            drop(ticket);
            link.answer(slot, status, 0, data);
        });
    }
}

/// The request as the volume knows it. Only a read has data.
async fn apply<V: Volume>(
    volume: &V,
    request: Request,
    data: Gather,
    shape: &Shape,
) -> Result<Gather, Status> {
    let failed = |error: VolumeError| {
        tracing::debug!(?request, %error, "failed");
        status(&error, &request)
    };
    match request {
        Request::Read { offset, bytes } => {
            let data = volume.read(offset, u64::from(bytes)).await.map_err(failed)?;
            // Data of another length would be another command's; an error is the smaller harm.
            return if data.len() == bytes as usize { Ok(data) } else { Err(Status::INTERNAL_ERROR) };
        }
        Request::Write { offset, fua, .. } => volume.write(offset, data, fua).await.map_err(failed)?,
        Request::Flush => volume.flush().await.map_err(failed)?,
        Request::WriteZeroes { offset, bytes, may_unmap, fua } => {
            volume.write_zeroes(offset, bytes, ZeroFlags { may_unmap, fua }).await.map_err(failed)?;
        }
        Request::Dataset { ranges, discard, .. } if discard => {
            let mut list = vec![0; data.len()];
            data.copy_to(&mut list);
            for (offset, bytes) in dataset_ranges(&list, ranges, shape)? {
                volume.discard(offset, bytes).await.map_err(failed)?;
            }
        }
        Request::Dataset { .. } => {}
    }
    Ok(Gather::new())
}

fn status(error: &VolumeError, request: &Request) -> Status {
    match error {
        VolumeError::OutOfRange { .. } => Status::LBA_OUT_OF_RANGE,
        VolumeError::Misaligned { .. } => Status::INVALID_FIELD,
        VolumeError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED,
        VolumeError::NoSpace { .. } => Status::CAPACITY_EXCEEDED,
        VolumeError::Stopping => Status::NAMESPACE_NOT_READY,
        VolumeError::Fenced => Status::ANA_PERSISTENT_LOSS,
        VolumeError::Unreadable { .. } => Status::UNRECOVERED_READ,
        VolumeError::Io { .. } => match request {
            Request::Read { .. } => Status::UNRECOVERED_READ,
            _ => Status::WRITE_FAULT,
        },
    }
}

/// What commands are checked against.
pub(super) fn shape(info: &VolumeInfo) -> Shape {
    let block_shift = info.logical_block_bytes.trailing_zeros();
    Shape {
        blocks: info.size_bytes >> block_shift,
        block_shift,
        read_only: info.read_only,
        transfer_bytes_max: TRANSFER_BYTES_MAX,
    }
}
