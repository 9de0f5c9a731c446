//! A device as a volume: what a target serves that has no array.

use engine::buffer::{Buffer, Gather, Pool};
use engine::device::{Device, DeviceError, DeviceErrorKind};
use engine::error::VolumeError;
use engine::limits::BLOCK_BYTES;
use engine::volume::{Space, Volume, VolumeInfo, ZeroFlags};
use layout::units::{DeviceOffset, Slot};
use std::sync::Arc;

/// A device as one shard sees it, with the contract of a volume.
pub struct DeviceVolume<D> {
    device: D,
    pool: Arc<Pool>,
    read_only: bool,
}

impl<D: Device> DeviceVolume<D> {
    /// A device whose reads get their buffers from `pool`.
    pub fn new(device: D, pool: Arc<Pool>, read_only: bool) -> Self {
        DeviceVolume { device, pool, read_only }
    }

    fn check(&self, offset_bytes: u64, bytes: u64) -> Result<(), VolumeError> {
        let info = self.device.info();
        let (size_bytes, block) = (info.size_bytes, info.logical_block_bytes);
        if offset_bytes.checked_add(bytes).is_none_or(|end| end > size_bytes) {
            return Err(VolumeError::OutOfRange { offset_bytes, bytes, size_bytes });
        }
        if !(offset_bytes | bytes).is_multiple_of(u64::from(block)) {
            return Err(VolumeError::Misaligned { offset_bytes, bytes, logical_block_bytes: block });
        }
        Ok(())
    }

    fn check_change(&self, offset_bytes: u64, bytes: u64) -> Result<(), VolumeError> {
        if self.read_only { Err(VolumeError::ReadOnly) } else { self.check(offset_bytes, bytes) }
    }
}

fn volume_error(error: &DeviceError) -> VolumeError {
    match error.kind {
        DeviceErrorKind::NoSpace => VolumeError::NoSpace { member: Slot::FIRST }, // of no array: the client sees the kind only
        _ => VolumeError::Io { reason: error.to_string() },
    }
}

impl<D: Device> Space for DeviceVolume<D> {
    async fn read(&self, offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        self.check(offset_bytes, bytes)?;
        let buffer: Buffer = self.pool.take(bytes as usize);
        let (buffer, read) = self.device.read(DeviceOffset::new(offset_bytes), buffer).await;
        read.map_err(|error| volume_error(&error))?;
        Ok(buffer.freeze().into())
    }

    async fn write(&self, offset_bytes: u64, data: Gather, fua: bool) -> Result<(), VolumeError> {
        self.check_change(offset_bytes, data.len() as u64)?;
        self.device
            .write(DeviceOffset::new(offset_bytes), data, fua)
            .await
            .map_err(|error| volume_error(&error))
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        self.device.flush().await.map_err(|error| volume_error(&error))
    }

    async fn write_zeroes(&self, offset_bytes: u64, bytes: u64, how: ZeroFlags) -> Result<(), VolumeError> {
        self.check_change(offset_bytes, bytes)?;
        let done = self.device.write_zeroes(DeviceOffset::new(offset_bytes), bytes, how.may_unmap).await;
        done.map_err(|error| volume_error(&error))?;
        if how.fua { self.flush().await } else { Ok(()) }
    }

    async fn discard(&self, offset_bytes: u64, bytes: u64) -> Result<(), VolumeError> {
        self.check_change(offset_bytes, bytes)?;
        match self.device.discard(DeviceOffset::new(offset_bytes), bytes).await {
            // It is a hint, and a device without that ability keeps the contents.
            Err(error) if error.kind == DeviceErrorKind::Unsupported => Ok(()),
            done => done.map_err(|error| volume_error(&error)),
        }
    }
}

impl<D: Device> Volume for DeviceVolume<D> {
    fn info(&self) -> VolumeInfo {
        let info = self.device.info();
        VolumeInfo {
            size_bytes: info.size_bytes,
            logical_block_bytes: info.logical_block_bytes,
            physical_block_bytes: BLOCK_BYTES as u32,
            io_min_bytes: BLOCK_BYTES as u32,
            io_opt_bytes: 0,
            read_only: self.read_only,
        }
    }
}
