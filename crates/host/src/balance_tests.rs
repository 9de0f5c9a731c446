//! Which shard gets a write, and that a write done by another shard is as good as one done by its own.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use engine::array::volume::VolumeMode;
use engine::buffer::Gather;
use engine::executor::join_all;
use engine::members::{MemberState, Members};
use engine::stripe::Shared;
use engine::stripe::intent::Intent;
use engine::volume::Space;
use layout::geometry::{Geometry, Layout, Level};

use super::{BalancedVolume, Choice, KEPT_WRITES, ShardWrites};
use crate::array::{HostArray, MemberDevice};
use crate::device::{DeviceSpec, OpenOptions};
use crate::shard::{ShardContext, ShardOptions, Shards};
use layout::units::DeviceOffset;

const BLOCK: u64 = 4096;
const STRIPE: u64 = 3 * (64 << 10);

#[test]
fn a_shard_keeps_what_it_can_do() {
    let (choice, writes) = (Choice::new(0, 3, STRIPE), ShardWrites::new(3));
    let random = |block: u64, is_busy| choice.shard_for((2 * block + 1) * STRIPE, BLOCK, is_busy, &writes);
    let own: Vec<_> = (0..64).map(|_| writes.begin(0)).collect();
    assert_eq!((0..8).map(|block| random(block, false)).collect::<Vec<_>>(), [0; 8], "its core has time");
    assert_eq!((8..14).map(|block| random(block, true)).collect::<Vec<_>>(), [1, 2, 0, 1, 2, 0], "in turns");
    let others: Vec<_> = (0..49).map(|_| writes.begin(1)).collect();
    assert_eq!(
        (14..17).map(|block| random(block, true)).collect::<Vec<_>>(),
        [0, 2, 0],
        "1 has not a quarter fewer"
    );
    drop((own, others));
    let _few: Vec<_> = (1..KEPT_WRITES).map(|_| writes.begin(0)).collect();
    assert_eq!((17..20).map(|block| random(block, true)).collect::<Vec<_>>(), [0; 3], "so few it keeps");
}

#[test]
fn what_continues_a_stream_inside_a_stripe_stays() {
    let (choice, writes) = (Choice::new(0, 2, STRIPE), ShardWrites::new(2));
    let _own: Vec<_> = (0..64).map(|_| writes.begin(0)).collect();
    let small: Vec<_> =
        (1..9).map(|part| choice.shard_for(7 * STRIPE + part * BLOCK, BLOCK, true, &writes)).collect();
    assert_eq!(small, [1, 0, 0, 0, 0, 0, 0, 0], "the first is no stream yet");
    let whole: Vec<_> =
        (20..24).map(|stripe| choice.shard_for(stripe * STRIPE, STRIPE, true, &writes)).collect();
    assert_eq!(whole, [0, 1, 0, 1], "whole stripes wait for nothing");
    let mirror = Choice::new(0, 2, 0);
    let parts: Vec<_> = (1..5).map(|part| mirror.shard_for(part * BLOCK, BLOCK, true, &writes)).collect();
    assert_eq!(parts, [1, 0, 1, 0], "a mirror has no stripes, so nothing belongs together");
}

/// RAID-5 of four in memory, without intents.
fn array(shards: &Shards) -> HostArray {
    let layout = Layout::default_for(Level::Raid5);
    let geometry = Geometry::new(Level::Raid5, layout, 4, 64 << 10, 8 << 20).expect("a geometry");
    let open = |slot: usize| {
        let spec = DeviceSpec::Memory { bytes: 8 << 20, index: slot };
        let device = spec.open(&OpenOptions::default()).expect("memory");
        Some(MemberDevice { device, data_offset: DeviceOffset::START })
    };
    let members = Members::new(geometry, &[MemberState::InSync; 4], Box::new(|_| {}));
    let shared = Shared::new(geometry, members, Intent::new(2, false, true), 2, 1 << 20);
    let devices: Vec<_> = (0..4).map(open).collect();
    HostArray::start(shards.handle(), shared, Arc::new(VolumeMode::default()), &devices, 512)
        .expect("an array")
}

fn block(number: u64, round: u8) -> Vec<u8> {
    (0..BLOCK).map(|at| (at / 64) as u8 ^ number as u8 ^ round.wrapping_mul(37)).collect()
}

/// Writes every 37th block again and again from one shard, until `enough`; the round that each block was last written in.
async fn write(context: ShardContext, array: HostArray, enough: Arc<AtomicBool>) -> Vec<u8> {
    let volume = BalancedVolume::open(array.volumes(), &context, true);
    let tasks = (0..64u64).map(|task| {
        let (volume, context, enough) = (Rc::clone(&volume), context.clone(), Arc::clone(&enough));
        context.executor.clone().spawn_with_result(async move {
            let mut round = 0u8;
            while !enough.load(Relaxed) {
                round = round.wrapping_add(1);
                let mut buffer = context.pool.take(BLOCK as usize);
                buffer.bytes_mut().copy_from_slice(&block(task * 37, round));
                volume.write(task * 37 * BLOCK, Gather::from(buffer.freeze()), false).await.expect("written");
            }
            round
        })
    });
    join_all(tasks).await.into_iter().collect()
}

#[test]
fn a_busy_shard_gives_writes_away_and_all_are_there() {
    let shards =
        Shards::start(2, &ShardOptions { pin: false, ..ShardOptions::default() }, |_| {}).expect("started");
    let (array, enough) = (array(&shards), Arc::new(AtomicBool::new(false)));
    let handle = shards.handle();
    let writes = std::thread::spawn({
        let (array, enough) = (array.clone(), Arc::clone(&enough));
        move || handle.run_on(0, move |context| write(context, array, enough)).expect("ran")
    });
    let start = Instant::now();
    while array.shared.counters[1].writes.get() < 1000 {
        assert!(start.elapsed() < Duration::from_secs(120), "the other shard got nothing to do");
        std::thread::sleep(Duration::from_millis(5));
    }
    enough.store(true, Relaxed);
    let rounds = writes.join().expect("no panic");
    let read = array.clone();
    shards
        .run_on(1, move |_| async move {
            for (task, round) in (0..64u64).zip(rounds) {
                let data = read.volume().read(task * 37 * BLOCK, BLOCK).await.expect("read");
                let bytes: Vec<u8> = data.slices().iter().flat_map(|slice| slice.bytes().to_vec()).collect();
                assert!(bytes == block(task * 37, round), "block {}", task * 37);
            }
        })
        .expect("ran");
    array.close();
    shards.stop().expect("no panic");
}
