//! The floor of writes to a zoned array: for each stripe a checksum of every block, parity, and a copy of every record to its
//! member, descriptors included, one stripe after the other. No map, no ring, no waiting.

use std::ops::Range;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use engine::buffer::{Buffer, Slice};
use host::device::memory::{Copier, Memory};
use layout::zoned::{ArrayPlan, BLOCK_BYTES, Checksum, ColumnRole};

use super::array::{Array, ZonedMemory, random_data};
use crate::Error;
use crate::array::shards_failed;
use crate::clock::{now_ns, thread_cpu_ns};
use crate::setting::Setting;

/// How long it is measured.
const TIME: Duration = Duration::from_millis(200);
/// Stripes between two readings of the clock.
const BATCH: usize = 16;

/// Processor time of the shards for each request, in nanoseconds. What the members hold is lost.
pub(super) fn measure(memory: &ZonedMemory, array: &Array, setting: &Setting) -> Result<f64, Error> {
    let (sender, results) = mpsc::channel();
    for shard in 0..setting.shards {
        let (sender, plan, memories) = (sender.clone(), memory.plan().clone(), memory.memories().to_vec());
        let (bs, depth) = (setting.bs as usize, setting.iodepth);
        // Shards share no memory, as their open segments do not.
        let share =
            memories[0].info().size_bytes / setting.shards as u64 / BLOCK_BYTES as u64 * BLOCK_BYTES as u64;
        let part = shard as u64 * share..(shard as u64 + 1) * share;
        array.shards.handle().spawn_on(shard, async move |_| {
            let mut stripes = Stripes::new(&plan, &memories, part, bs, depth);
            stripes.write_for(TIME / 4); // until every shard works and the buffers are warm
            let _ = sender.send(stripes.write_for(TIME)); // fails only if the caller has given up
        });
    }
    drop(sender);
    let done: Vec<(u64, u64)> = results.iter().collect();
    if done.len() < setting.shards {
        return Err(shards_failed("a shard has ended"));
    }
    let (bytes, cpu_ns) = done.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    Ok(cpu_ns as f64 * setting.bs as f64 / bytes.max(1) as f64)
}

struct Stripes {
    copiers: Vec<Copier>,
    roles: Vec<ColumnRole>,
    /// The data of as many requests as are in flight, in blocks.
    data: Vec<Slice>,
    next: usize,
    rows: usize,
    parity: [Buffer; 2],
    descriptor: Buffer,
    /// Where the next records go, and the shard's part of the members.
    at: u64,
    part: Range<u64>,
    sum: u32,
}

impl Stripes {
    fn new(plan: &ArrayPlan, memories: &[Arc<Memory>], part: Range<u64>, bs: usize, depth: usize) -> Self {
        let columns = plan.columns;
        let record = if bs / BLOCK_BYTES < usize::from(plan.large_blocks) {
            plan.small_blocks
        } else {
            plan.large_blocks
        };
        let rows = plan.carrier.rows_in(record.into(), columns.data()) as usize;
        let descriptor_blocks = usize::from(record) - rows;
        let data = (0..depth).flat_map(|_| {
            let request = random_data(bs);
            (0..bs / BLOCK_BYTES)
                .map(move |block| request.part(block * BLOCK_BYTES, BLOCK_BYTES))
                .collect::<Vec<_>>()
        });
        Stripes {
            copiers: memories.iter().map(Memory::copier).collect(),
            roles: (0..columns.width()).map(|column| columns.role(column, 0)).collect(),
            data: data.collect(),
            next: 0,
            rows,
            parity: [Buffer::new(rows * BLOCK_BYTES), Buffer::new(rows * BLOCK_BYTES)],
            descriptor: Buffer::new(descriptor_blocks * BLOCK_BYTES),
            at: part.start,
            part,
            sum: 0,
        }
    }

    /// Bytes of data, and processor time.
    fn write_for(&mut self, time: Duration) -> (u64, u64) {
        let (end_ns, cpu_ns, mut bytes) = (now_ns() + time.as_nanos() as u64, thread_cpu_ns(), 0);
        while now_ns() < end_ns {
            (0..BATCH).for_each(|_| bytes += self.write());
        }
        std::hint::black_box(self.sum);
        (bytes, thread_cpu_ns() - cpu_ns)
    }

    /// One stripe; returns its bytes of data.
    fn write(&mut self) -> u64 {
        let data_columns = self.roles.iter().filter(|role| role.is_data()).count();
        let blocks: Vec<Slice> = (0..self.rows * data_columns)
            .map(|at| self.data[(self.next + at) % self.data.len()].clone())
            .collect();
        self.next = (self.next + blocks.len()) % self.data.len();
        for block in &blocks {
            self.sum ^= Checksum::of(block.bytes());
        }
        let has = |wanted: ColumnRole| self.roles.contains(&wanted);
        let (with_p, with_q) = (has(ColumnRole::P), has(ColumnRole::Q));
        let [p, q] = &mut self.parity;
        for row in 0..self.rows {
            let part = row * BLOCK_BYTES..(row + 1) * BLOCK_BYTES;
            let of_row: Vec<&[u8]> =
                (0..data_columns).map(|column| blocks[column * self.rows + row].bytes()).collect();
            match (with_p, with_q) {
                (true, true) => parity::encode_pq(
                    &of_row,
                    &mut p.bytes_mut()[part.clone()],
                    &mut q.bytes_mut()[part.clone()],
                ),
                (true, false) => parity::encode_p(&of_row, &mut p.bytes_mut()[part.clone()]),
                _ => {}
            }
            if with_q {
                self.sum ^= Checksum::of(&q.bytes()[part]); // that of P follows from those of its data
            }
        }
        let total = self.descriptor.len() + self.rows * BLOCK_BYTES;
        let record = total as u64;
        for (copier, role) in self.copiers.iter().zip(&self.roles) {
            self.sum ^= Checksum::of(self.descriptor.bytes());
            copier.write_part(self.at, self.descriptor.bytes(), total);
            let mut at = self.at + self.descriptor.len() as u64;
            match role {
                ColumnRole::Data(index) | ColumnRole::Copy(index) => {
                    let first = usize::from(*index) * self.rows;
                    for block in &blocks[first..first + self.rows] {
                        copier.write_part(at, block.bytes(), total);
                        at += BLOCK_BYTES as u64;
                    }
                }
                ColumnRole::P => copier.write_part(at, self.parity[0].bytes(), total),
                ColumnRole::Q => copier.write_part(at, self.parity[1].bytes(), total),
            }
        }
        self.at += record;
        if self.at + record > self.part.end {
            self.at = self.part.start;
        }
        (blocks.len() * BLOCK_BYTES) as u64
    }
}
