//! The write-intent bitmap of a benchmark. A bit costs what it costs a served array: its page is durable on every
//! member before the write goes ahead, and idle bits are cleared every five seconds. The bitmap lies behind the data
//! area; the array has no superblock, so that it is never read again.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use engine::buffer::Slice;
use engine::device::{Device, DeviceError};
use engine::executor::join_all;
use engine::stripe::Shared;
use host::device::{HostDevice, SharedDevice};
use host::shard::ShardContext;
use layout::geometry::Geometry;
use layout::md_bitmap::Mapping;
use layout::units::{DeviceOffset, MemberOffset, Slot};

use crate::setting::{BitmapMapping, Setting};

/// What a bit stands for: md's default for members of this size and larger.
pub(crate) const CHUNK_BYTES: u32 = 64 << 20;

/// Which bit stands for what.
pub(crate) fn mapping(setting: &Setting, geometry: &Geometry) -> Mapping {
    match setting.bitmap_mapping {
        BitmapMapping::Contiguous => Mapping::contiguous(CHUNK_BYTES),
        BitmapMapping::Dblock => {
            Mapping::spread(geometry.chunk_bytes(), CHUNK_BYTES, geometry.member_bytes())
        }
    }
}

/// Room behind the data area of each member.
pub(crate) const ROOM_BYTES: u64 = 1 << 20;

/// The unit of writing.
const PAGE_BYTES: usize = 4096;

/// Seconds between two rounds of clearing bits, md's default: a bit is cleared after one to two rounds without a write.
const SLEEP: Duration = Duration::from_secs(5);

/// The bits, and the members that they are written to.
struct Bitmap {
    shared: Arc<Shared>,
    devices: Vec<HostDevice>,
    bytes: Vec<u8>,
}

/// Keeps the bitmap until the shard stops.
pub(crate) async fn keep(context: ShardContext, shared: Arc<Shared>, devices: Vec<SharedDevice>) {
    let (stopping, of_stopped) = (context.stopping(), Arc::clone(&shared));
    context.executor.spawn(async move {
        stopping.await;
        of_stopped.intent.stop_flusher();
    });
    let devices = devices.iter().map(|device| device.attach(&context.ring)).collect();
    let intent = &shared.intent;
    let mut bitmap = Bitmap { shared: Arc::clone(&shared), devices, bytes: vec![0; ROOM_BYTES as usize] };
    let mut idle = context.ring.sleep(SLEEP);
    loop {
        let mut wanted = std::pin::pin!(intent.bits_wanted());
        let next = std::future::poll_fn(|task| {
            if let Poll::Ready(chunks) = wanted.as_mut().poll(task) {
                return Poll::Ready(Some(chunks));
            }
            Pin::new(&mut idle).poll(task).map(|()| None)
        });
        match next.await {
            Some(None) => return,
            Some(Some(chunks)) => match bitmap.write(&chunks, true).await {
                Ok(()) => intent.bits_written(&chunks),
                Err(_) => return intent.lost(),
            },
            None => {
                let chunks = intent.take_idle_bits(false);
                if bitmap.flush().await.is_err() || bitmap.write(&chunks, false).await.is_err() {
                    return intent.lost();
                }
                idle = context.ring.sleep(SLEEP);
            }
        }
    }
}

impl Bitmap {
    /// Changes bits and writes the pages that they are in to every member.
    async fn write(&mut self, chunks: &[u64], on: bool) -> Result<(), DeviceError> {
        let mut pages = Vec::new();
        for chunk in chunks {
            let at = (chunk / 8) as usize;
            let bit = 1u8 << (chunk % 8);
            self.bytes[at] = if on { self.bytes[at] | bit } else { self.bytes[at] & !bit };
            pages.push(at / PAGE_BYTES);
        }
        pages.dedup();
        let mut writes = Vec::new();
        for page in pages {
            let bytes = Slice::from_bytes(&self.bytes[page * PAGE_BYTES..(page + 1) * PAGE_BYTES]);
            for device in self.in_use() {
                let size = device.info().size_bytes / ROOM_BYTES * ROOM_BYTES;
                let offset = size - ROOM_BYTES + (page * PAGE_BYTES) as u64;
                writes.push(device.write(DeviceOffset::new(offset), bytes.clone().into(), on));
            }
        }
        join_all(writes).await.into_iter().collect()
    }

    async fn flush(&self) -> Result<(), DeviceError> {
        let flushes: Vec<_> = self.in_use().map(Device::flush).collect();
        join_all(flushes).await.into_iter().collect()
    }

    fn in_use(&self) -> impl Iterator<Item = &HostDevice> {
        let in_use = |slot: Slot| self.shared.members.in_sync_to(slot, MemberOffset::new(u64::MAX));
        Slot::all().zip(&self.devices).filter(move |(slot, _)| in_use(*slot)).map(|(_, device)| device)
    }
}
