//! Writes the members of new, empty arrays as sparse files, one folder an array: for `tests/assemble.sh`, which
//! shows them to the kernel. Usage: `new_array DIR`

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use layout::md_superblock::{Created, DeviceRole, MinorVersion, NewArray, NewMember};
use layout::units::Slot;
use layout::{Layout, Level};

const MEMBER_BYTES: u64 = 48 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args().nth(1).ok_or("usage: new_array DIR")?;
    let arrays = [
        ("raid5-1.2", MinorVersion::V1_2, Level::Raid5, Layout::LeftSymmetric, 3, 512 << 10),
        ("raid6-1.1", MinorVersion::V1_1, Level::Raid6, Layout::DdfNContinue, 5, 64 << 10),
        ("raid10-1.0", MinorVersion::V1_0, Level::Raid10, Layout::near(2), 4, 4096),
        ("raid10-far", MinorVersion::V1_2, Level::Raid10, Layout::far(2), 3, 64 << 10),
        ("raid1-1.2", MinorVersion::V1_2, Level::Raid1, Layout::Unset, 2, 0),
        ("raid1-1.0", MinorVersion::V1_0, Level::Raid1, Layout::Unset, 3, 0),
        ("raid4-1.2", MinorVersion::V1_2, Level::Raid4, Layout::Unset, 3, 64 << 10),
        ("raid0-1.2", MinorVersion::V1_2, Level::Raid0, Layout::Unset, 2, 512 << 10),
        ("raid0-zones", MinorVersion::V1_2, Level::Raid0, Layout::Raid0Alternate, 2, 12 << 10),
    ];
    for (number, (name, minor, level, layout, raid_disks, chunk_bytes)) in (1u8..).zip(arrays) {
        let of_level = NewArray::new([number; 16], level, raid_disks);
        let array =
            NewArray { minor, name: name.into(), ctime_s: 1_760_000_000, layout, chunk_bytes, ..of_level };
        let longer = |member: Slot| if name == "raid0-zones" { u64::from(member.get()) << 20 } else { 0 };
        let devices: Vec<NewMember> = Slot::first(raid_disks)
            .map(|member| NewMember {
                device_bytes: MEMBER_BYTES + longer(member),
                device_uuid: [number << 4 | member.get() as u8; 16],
                role: DeviceRole::Active(member),
            })
            .collect();
        write(&Path::new(&directory).join(name), &array.create(&devices)?, &devices)?;
    }
    Ok(())
}

fn write(directory: &Path, created: &Created, devices: &[NewMember]) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(directory)?;
    for (member, (superblock, device)) in created.superblocks.iter().zip(devices).enumerate() {
        let file = File::create(directory.join(format!("member{member}")))?;
        file.set_len(device.device_bytes)?;
        if let (Some(bitmap), Some(start)) = (&created.bitmap, superblock.bitmap_start()) {
            let mut bytes = bitmap.encode().to_vec();
            bytes.resize(bitmap.bitmap_bytes().next_multiple_of(4096) as usize, 0xff);
            file.write_all_at(&bytes, start.bytes())?;
        }
        file.write_all_at(&superblock.encode(4096), superblock.offset().get())?;
    }
    let geometry = created.superblocks[0].geometry()?;
    std::fs::write(directory.join("bytes"), format!("{}\n", geometry.array_bytes()))?;
    Ok(())
}
