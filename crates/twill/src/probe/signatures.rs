//! What is on a member that somebody may want to keep: file systems, partition tables, volumes. Own checks of the
//! usual ones first, then util-linux's `blkid`, where it is installed, which knows many more.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::process::{Command, Stdio};

use super::member_file::MemberFile;
use super::superblocks;

/// Bytes at the start of a member that the table below looks at.
const HEAD_BYTES: usize = 72 << 10;

/// Name, offset and bytes of signatures at fixed places.
const TABLE: &[(&str, usize, &[u8])] = &[
    ("an XFS file system", 0, b"XFSB"),
    ("an encrypted volume (LUKS)", 0, b"LUKS\xba\xbe"),
    ("a squashfs image", 0, b"hsqs"),
    ("a qcow2 image", 0, b"QFI\xfb"),
    ("an NTFS file system", 3, b"NTFS    "),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("a FAT file system", 54, b"FAT1"),
    ("a FAT file system", 82, b"FAT32   "),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 1024, b"LABELONE"),
    ("an LVM physical volume", 1536, b"LABELONE"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("an F2FS file system", 1024, b"\x10\x20\xf5\xf2"),
    ("an EROFS file system", 1024, b"\xe2\xe1\xf5\xe0"),
    ("an ext2, ext3 or ext4 file system", 1080, b"\x53\xef"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("bcache", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    ("an ISO 9660 image", 32769, b"CD001"),
    ("a btrfs file system", 65600, b"_BHRfS_M"),
];

/// Everything found on a member, each in words that follow "has".
///
/// # Errors
/// What the system says.
pub fn find(member: &MemberFile) -> io::Result<Vec<String>> {
    let mut found: Vec<String> = superblocks::find_all(member)?.iter().map(md_words).collect();
    let head = member.read(0, HEAD_BYTES)?;
    for (name, offset, bytes) in TABLE {
        if head.get(*offset..offset + bytes.len()) == Some(bytes) {
            found.push((*name).to_owned());
        }
    }
    if has_partitions(&head) {
        found.push("a partition table".to_owned());
    }
    let last = member.device_bytes.saturating_sub(member.logical_block_bytes as u64);
    if member.read(last, 8)? == b"EFI PART" {
        found.push("the backup of a GPT partition table".to_owned());
    }
    if found.is_empty() {
        found.extend(blkid(member));
    }
    found.dedup();
    Ok(found)
}

fn md_words(found: &superblocks::Found) -> String {
    match &found.outcome {
        Ok(superblock) => format!(
            "an md superblock {} of array {:?} ({})",
            found.version,
            superblock.set_name(),
            superblock.level()
        ),
        Err(error) => format!("an md superblock {} that is damaged: {error}", found.version),
    }
}

/// An MBR with an entry in use. A boot sector alone has the same two last bytes.
fn has_partitions(head: &[u8]) -> bool {
    const ENTRIES: std::ops::Range<usize> = 446..510;
    if head.get(510..512) != Some(&[0x55, 0xaa]) {
        return false;
    }
    head[ENTRIES].chunks(16).all(|entry| entry[0] & 0x7f == 0)
        && head[ENTRIES].chunks(16).any(|entry| entry[4] != 0)
}

fn blkid(member: &MemberFile) -> Option<String> {
    // Of a file what this program knows itself will do; a block device may hold what only blkid knows.
    let unknown = || {
        let is_device =
            std::fs::metadata(&member.path).is_ok_and(|metadata| metadata.file_type().is_block_device());
        is_device
            .then(|| "something that nobody looked for: blkid of util-linux does not work here".to_owned())
    };
    let paths = ["/usr/sbin/blkid", "/sbin/blkid", "/usr/bin/blkid"];
    let Some(path) = paths.into_iter().find(|path| std::fs::exists(path).unwrap_or(false)) else {
        return unknown();
    };
    let output = Command::new(path)
        .args(["-p", "-o", "export", "--"])
        .arg(&member.path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let Ok(output) = output else { return unknown() };
    /// blkid found nothing.
    const NOTHING: i32 = 2;
    /// blkid found several, and does not choose.
    const AMBIVALENT: i32 = 8;
    match output.status.code() {
        Some(0) => blkid_words(&String::from_utf8_lossy(&output.stdout)),
        Some(AMBIVALENT) => Some("signatures of more than one kind (see wipefs)".to_owned()),
        Some(NOTHING) => None,
        _ => unknown(),
    }
}

fn blkid_words(text: &str) -> Option<String> {
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
    let mut words = match (value("TYPE"), value("PTTYPE")) {
        (Some(kind), _) if value("USAGE") == Some("filesystem") => format!("a file system ({kind})"),
        (Some(kind), _) => format!("a signature ({kind})"),
        (None, Some(kind)) => format!("a partition table ({kind})"),
        (None, None) => return None,
    };
    if let Some(label) = value("LABEL") {
        words += &format!(" labelled {label:?}");
    }
    Some(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt as _;

    fn found_in(bytes: &[(usize, &[u8])]) -> Vec<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        file.as_file().set_len(1 << 20).unwrap();
        for (offset, bytes) in bytes {
            file.as_file().write_all_at(bytes, *offset as u64).unwrap();
        }
        find(&MemberFile::open(file.path()).unwrap()).unwrap()
    }

    #[test]
    fn every_row_of_the_table_is_found() {
        for (name, offset, bytes) in TABLE {
            assert!(found_in(&[(*offset, bytes)]).contains(&(*name).to_owned()), "{name}");
        }
    }

    #[test]
    fn partition_tables_are_found_and_blank_members_are_blank() {
        assert_eq!(found_in(&[]), Vec::<String>::new());
        assert_eq!(found_in(&[(450, &[0x83]), (510, &[0x55, 0xaa])]), ["a partition table"]);
        let end = (1 << 20) - 512;
        assert_eq!(found_in(&[(end, b"EFI PART")]), ["the backup of a GPT partition table"]);
    }

    #[test]
    fn words_of_blkid() {
        assert_eq!(blkid_words("DEVNAME=x\nTYPE=zfs_member\n").unwrap(), "a signature (zfs_member)");
        let text = "LABEL=home\nTYPE=reiserfs\nUSAGE=filesystem\n";
        assert_eq!(blkid_words(text).unwrap(), "a file system (reiserfs) labelled \"home\"");
        assert_eq!(blkid_words("PTTYPE=sun\n").unwrap(), "a partition table (sun)");
        assert_eq!(blkid_words("DEVNAME=x\n"), None);
    }
}
