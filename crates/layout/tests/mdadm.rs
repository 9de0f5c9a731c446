//! Superblocks that Twill makes, shown to the mdadm of this machine: it reads files as well as devices.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use layout::md_bitmap::BitmapSuper;
use layout::md_superblock::{
    Created, DeviceRole, MinorVersion, NewArray, NewMember, Superblock, display_uuid,
};
use layout::units::Slot;
use layout::{Layout, Level};

fn mdadm(argument: &str, path: &Path) -> Option<String> {
    let places = ["mdadm", "/usr/sbin/mdadm", "/sbin/mdadm"];
    let output =
        places.iter().find_map(|program| Command::new(program).arg(argument).arg(path).output().ok())?;
    assert!(output.status.success(), "mdadm {argument}: {}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn line<'a>(text: &'a str, key: &str) -> &'a str {
    text.lines()
        .find_map(|line| line.trim().strip_prefix(key)?.trim_start().strip_prefix(": "))
        .unwrap_or_else(|| panic!("no {key} in {text}"))
}

const SET_UUID: [u8; 16] = *b"0123456789abcdef";
const DEVICE_BYTES: u64 = 3 << 30;

fn new_array(
    (minor, level, layout, raid_disks, chunk_bytes): (MinorVersion, Level, Layout, u32, u32),
) -> (NewArray, Created) {
    let array = NewArray {
        minor,
        name: "somehost:backup".into(),
        ctime_s: 1_760_000_000,
        layout,
        chunk_bytes,
        clean: false,
        ..NewArray::new(SET_UUID, level, raid_disks)
    };
    let device = |member: Slot| NewMember {
        device_bytes: DEVICE_BYTES,
        device_uuid: [member.get() as u8 + 1; 16],
        role: DeviceRole::Active(member),
    };
    let devices: Vec<NewMember> = Slot::first(raid_disks).map(device).collect();
    let created = array.create(&devices).unwrap();
    (array, created)
}

fn bitmap_bytes(bitmap: &BitmapSuper) -> Vec<u8> {
    let mut bytes = bitmap.encode().to_vec();
    bytes.resize(bitmap.bitmap_bytes().next_multiple_of(4096) as usize, 0xff);
    bytes
}

#[test]
fn mdadm_reads_what_twill_makes() {
    let directory = tempfile::tempdir().unwrap();
    let cases = [
        (MinorVersion::V1_2, Level::Raid5, Layout::LeftSymmetric, 3, 512 << 10),
        (MinorVersion::V1_1, Level::Raid6, Layout::RightAsymmetric, 5, 64 << 10),
        (MinorVersion::V1_0, Level::Raid10, Layout::near(2), 4, 4096),
        (MinorVersion::V1_2, Level::Raid10, Layout::offset(2), 3, 512 << 10),
        (MinorVersion::V1_0, Level::Raid1, Layout::Unset, 2, 0),
        (MinorVersion::V1_2, Level::Raid4, Layout::Unset, 3, 64 << 10),
        (MinorVersion::V1_2, Level::Raid0, Layout::Raid0Alternate, 2, 512 << 10),
    ];
    for case in cases {
        let (array, created) = new_array(case);
        for (member, superblock) in created.superblocks.iter().enumerate() {
            let path = directory.path().join("member");
            write_member(&path, &created, superblock);
            let Some(examined) = mdadm("--examine", &path) else {
                eprintln!("skipped: mdadm not installed");
                return;
            };
            check_examined(&examined, &array, superblock);
            assert_eq!(line(&examined, "Device Role"), format!("Active device {member}"));
        }
        if let Some(bitmap) = &created.bitmap {
            // mdadm takes a file for a bitmap that is not on a member.
            let path = directory.path().join("bitmap");
            std::fs::write(&path, bitmap_bytes(bitmap)).unwrap();
            let examined = mdadm("--examine-bitmap", &path).unwrap();
            assert_eq!(line(&examined, "State"), "OK");
            let bits = bitmap.bits();
            assert_eq!(line(&examined, "Bitmap"), format!("{bits} bits (chunks), {bits} dirty (100.0%)"));
        }
    }
}

fn write_member(path: &Path, created: &Created, superblock: &Superblock) {
    let file = File::create(path).unwrap();
    file.set_len(DEVICE_BYTES).unwrap();
    file.write_all_at(&superblock.encode(4096), superblock.offset().get()).unwrap();
    if let (Some(bitmap), Some(start)) = (&created.bitmap, superblock.bitmap_start()) {
        file.write_all_at(&bitmap_bytes(bitmap), start.bytes()).unwrap();
    }
}

fn check_examined(examined: &str, array: &NewArray, superblock: &Superblock) {
    assert_eq!(line(examined, "Version"), array.minor.to_string());
    assert_eq!(line(examined, "Raid Level"), array.level.to_string());
    assert_eq!(line(examined, "Array UUID"), display_uuid(&SET_UUID));
    assert!(line(examined, "Checksum").ends_with(" - correct"), "{examined}");
    if !matches!(array.level, Level::Raid1 | Level::Raid4) {
        assert_eq!(line(examined, "Layout"), array.layout.to_string());
    }
    // mdadm gives no size for RAID-0, whose superblock has none.
    if array.level != Level::Raid0 {
        let kib = superblock.geometry().unwrap().array_bytes() >> 10;
        assert!(line(examined, "Array Size").starts_with(&format!("{kib} KiB")), "{examined}");
    }
}
