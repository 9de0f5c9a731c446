//! Whether what the members hold agrees, read past the engine: parity with data, copy with copy.

use engine::buffer::Buffer;
use engine::device::Device;
use host::device::HostDevice;
use host::shard::ShardContext;
use layout::geometry::{Geometry, Level};
use layout::units::{ArrayOffset, DeviceOffset, Stripe};

use crate::Error;
use crate::array::{Array, shards_failed};

/// Bytes of mirrors that are compared at once.
const MIRROR_STEP: u64 = 1 << 20;

/// Compares all redundancy of an array whose members are all in use. Returns how many stripes, or pieces of mirrors,
/// agreed; none on a level without redundancy.
pub(crate) fn check(array: &Array) -> Result<u64, Error> {
    let (geometry, devices) = (array.geometry, array.devices.clone());
    let job = async move |context: ShardContext| {
        let members: Vec<HostDevice> = devices.iter().map(|device| device.attach(&context.ring)).collect();
        match geometry.level() {
            Level::Raid0 => Ok(0),
            Level::Raid1 | Level::Raid10 => check_copies(&geometry, &members).await,
            Level::Raid4 | Level::Raid5 | Level::Raid6 => check_stripes(&geometry, &members).await,
        }
    };
    array.shards.run_on(0, job).map_err(shards_failed)?
}

async fn check_stripes(geometry: &Geometry, members: &[HostDevice]) -> Result<u64, Error> {
    let chunk = geometry.chunk_bytes() as usize;
    let (mut p, mut q) = (vec![0; chunk], vec![0; chunk]);
    for stripe in Stripe::first(geometry.stripes()) {
        let offset = geometry.member_offset(stripe);
        let mut data = vec![Vec::new(); geometry.data_chunks() as usize];
        for index in 0..geometry.data_chunks() {
            let member = &members[geometry.data_member(stripe, index).index()];
            data[geometry.syndrome_index(stripe, index) as usize] = read(member, offset.get(), chunk).await?;
        }
        let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let parity = [("P", geometry.p_member(stripe)), ("Q", geometry.q_member(stripe))];
        match parity[1].1 {
            Some(_) => parity::encode_pq(&data, &mut p, &mut q),
            None => parity::encode_p(&data, &mut p),
        }
        for ((name, slot), expected) in parity.into_iter().zip([&p, &q]) {
            let Some(slot) = slot else { continue };
            let found = read(&members[slot.index()], offset.get(), chunk).await?;
            if let Some(at) = (0..chunk).find(|at| found[*at] != expected[*at]) {
                let reason =
                    format!("{name} of stripe {stripe} (slot {slot}) is not that of its data at byte {at}");
                return Err(Error::Contents(reason));
            }
        }
    }
    Ok(geometry.stripes())
}

async fn check_copies(geometry: &Geometry, members: &[HostDevice]) -> Result<u64, Error> {
    let (mut at, mut pieces) = (0, 0);
    while at < geometry.array_bytes() {
        let copies = geometry.copies(ArrayOffset::new(at), MIRROR_STEP.min(geometry.array_bytes() - at));
        let bytes = usize::try_from(copies.len).expect("a small piece");
        let mut first: Option<Vec<u8>> = None;
        for place in &copies.places {
            let found = read(&members[place.member.index()], place.member_offset.get(), bytes).await?;
            if first.get_or_insert_with(|| found.clone()) != &found {
                let reason = format!("the copies of {bytes} bytes at {at} differ (slot {})", place.member);
                return Err(Error::Contents(reason));
            }
        }
        (at, pieces) = (at + copies.len, pieces + 1);
    }
    Ok(pieces)
}

async fn read(member: &HostDevice, offset: u64, bytes: usize) -> Result<Vec<u8>, Error> {
    let (buffer, result) = member.read(DeviceOffset::new(offset), Buffer::new(bytes)).await;
    result.map_err(|error| Error::Request(format!("at a member: {error}")))?;
    Ok(buffer.bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::array::OpenMembers;
    use crate::setting::Setting;

    #[test]
    fn one_wrong_byte_of_any_member_is_found() {
        for (level, places) in [("5", 6), ("6", 6), ("4", 6), ("10", 6), ("1", 6)] {
            let setting =
                Setting { members: vec!["memory:6x1M".into()], level: level.into(), ..Setting::default() };
            let members = OpenMembers::open(&setting).expect("members");
            let array = Array::start(&setting, &members).expect("an array");
            assert!(check(&array).expect("zeroes agree") > 0);
            for memory in &array.memories().expect("memory")[..places] {
                let (copier, at) = (memory.copier(), (1 << 19) - 1);
                let mut byte = [0];
                copier.read(at, &mut byte);
                copier.write(at, &[byte[0] ^ 0x40]);
                let error = check(&array).expect_err("a wrong byte");
                assert!(matches!(error, Error::Contents(_)), "RAID-{level}: {error}");
                copier.write(at, &byte);
            }
            assert!(check(&array).expect("it agrees again") > 0);
        }
    }
}
