//! A block device through ublk with nothing behind it: writes are dropped, reads give what buffers held. What it reaches
//! is what no array on this transport can pass. `cargo xtask vm bench-md` measures it; it ends when it is killed.
//!
//! `ublk-null NUMBER BYTES SHARDS`

use std::rc::Rc;
use std::sync::Arc;

use engine::buffer::{Gather, Pool};
use engine::error::VolumeError;
use engine::foreign_buffer::Lease;
use engine::volume::{ReadInto, Space, Volume, VolumeInfo, ZeroFlags};
use host::export::ublk::{Control, UblkDevice, UblkOptions};
use host::shard::{ShardOptions, Shards};

struct NullVolume {
    info: VolumeInfo,
    pool: Arc<Pool>,
}

impl Volume for NullVolume {
    fn info(&self) -> VolumeInfo {
        self.info.clone()
    }
}

impl Space for NullVolume {
    async fn read(&self, _offset_bytes: u64, bytes: u64) -> Result<Gather, VolumeError> {
        let bytes = usize::try_from(bytes).expect("a request");
        Ok(std::iter::once(self.pool.take(bytes).freeze()).collect())
    }

    async fn write(&self, _offset_bytes: u64, _data: Gather, _fua: bool) -> Result<(), VolumeError> {
        Ok(())
    }

    async fn flush(&self) -> Result<(), VolumeError> {
        Ok(())
    }

    async fn write_zeroes(&self, _: u64, _: u64, _how: ZeroFlags) -> Result<(), VolumeError> {
        Ok(())
    }

    async fn discard(&self, _: u64, _: u64) -> Result<(), VolumeError> {
        Ok(())
    }
}

impl ReadInto for NullVolume {
    async fn read_into(&self, _offset_bytes: u64, _bytes: u64, _target: &Lease) -> bool {
        false
    }
}

fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let [number, size_bytes, shards] = numbers[..] else {
        eprintln!("usage: ublk-null NUMBER BYTES SHARDS");
        std::process::exit(2);
    };
    let info = VolumeInfo {
        size_bytes,
        logical_block_bytes: 4096,
        physical_block_bytes: 4096,
        io_min_bytes: 64 << 10,
        io_opt_bytes: 256 << 10,
        read_only: false,
    };
    let shards = usize::try_from(shards).expect("a few");
    let shards = Shards::start(shards, &ShardOptions::default(), |_| {}).expect("shards");
    let number = Some(u32::try_from(number).expect("a number of a device"));
    let options = UblkOptions { number, identity: 0x6c6c_756e, zero_copy: false };
    let control = Control::open().unwrap_or_else(|error| panic!("no ublk here: {error}"));
    let volume_info = info.clone();
    let device = UblkDevice::start(control, &shards.handle(), &options, &info, move |shard| {
        Rc::new(NullVolume { info: volume_info.clone(), pool: Arc::clone(&shard.pool) })
    });
    let device = device.unwrap_or_else(|error| panic!("no device: {error}"));
    println!("{}", device.status().path);
    loop {
        std::thread::park();
    }
}
