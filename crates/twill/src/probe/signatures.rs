//! Contents of a member that its owner may want to keep: file systems, partition tables, volumes. Own checks of the usual
//! ones come first, then util-linux's `wipefs`, or `blkid`, which know many more.

use std::io;
use std::ops::Range;
use std::process::{Command, Stdio};

use layout::md_superblock::SUPERBLOCK_BYTES_MAX;
use layout::units::SECTOR_BYTES;

use super::member_file::MemberFile;
use super::superblocks;

/// Bytes at the start of a member that the table below looks at.
const HEAD_BYTES: usize = 72 << 10;

/// Where an MBR has its mark.
const MBR_MARK: usize = 510;

/// The mark of a GPT partition table.
const GPT_MARK: &[u8] = b"EFI PART";

/// Name, offset and bytes of signatures at fixed places.
const TABLE: &[(&str, usize, &[u8])] = &[
    ("a superblock of a zoned array", 0, b"TwZonSb\0"),
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
    ("a GPT partition table", 512, GPT_MARK),
    ("a GPT partition table", 4096, GPT_MARK),
    ("an F2FS file system", 1024, b"\x10\x20\xf5\xf2"),
    ("an EROFS file system", 1024, b"\xe2\xe1\xf5\xe0"),
    ("an ext2, ext3 or ext4 file system", 1080, b"\x53\xef"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("bcache", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
    ("an ISO 9660 image", 32769, b"CD001"),
    ("a btrfs file system", 65600, b"_BHRfS_M"),
];

/// Something found on a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// What it is, in words that follow "has".
    pub words: String,
    /// Where its mark is, in bytes of the device; none if a tool names it without the place.
    pub place: Option<Range<u64>>,
    /// It is an md superblock, which the next start could take for the array's.
    pub is_md: bool,
}

/// Everything found on a member.
///
/// # Errors
/// What the system says.
pub fn find(member: &MemberFile) -> io::Result<Vec<Signature>> {
    let at = |words: &str, offset: u64, bytes: usize| Signature {
        words: words.to_owned(),
        place: Some(offset..offset + bytes as u64),
        is_md: false,
    };
    let md = superblocks::find_all(member)?;
    let md =
        md.iter().map(|md| Signature { is_md: true, ..at(&md_words(md), md.offset, SUPERBLOCK_BYTES_MAX) });
    let mut found: Vec<Signature> = md.collect();
    let head = member.read(0, HEAD_BYTES)?;
    for (name, offset, bytes) in TABLE {
        if head.get(*offset..offset + bytes.len()) == Some(bytes) {
            found.push(at(name, *offset as u64, bytes.len()));
        }
    }
    if has_partitions(&head) {
        found.push(at("a partition table", MBR_MARK as u64, 2));
    }
    let last = member.device_bytes.saturating_sub(member.logical_block_bytes as u64);
    if member.read(last, GPT_MARK.len())? == GPT_MARK {
        found.push(at("the backup of a GPT partition table", last, GPT_MARK.len()));
    }
    if member.is_remote() {
        return Ok(found); // other programs do not reach it
    }
    match wipefs(member) {
        Some(listed) => add_unknown(&mut found, listed),
        None if found.is_empty() => {
            found.extend(blkid(member).map(|words| Signature { words, place: None, is_md: false }));
        }
        None => {}
    }
    Ok(found)
}

/// Adds what has no name yet: two marks in one sector are of one kind of contents.
fn add_unknown(found: &mut Vec<Signature>, listed: Vec<Signature>) {
    let sectors = |of: &Signature| {
        let place = of.place.clone().unwrap_or_default();
        place.start / SECTOR_BYTES..=place.end.saturating_sub(1) / SECTOR_BYTES
    };
    for signature in listed {
        let of = sectors(&signature);
        let is_known =
            found.iter().map(sectors).any(|known| known.start() <= of.end() && of.start() <= known.end());
        if !is_known {
            found.push(signature);
        }
    }
}

/// All that util-linux's `wipefs` lists, with places; none where it does not work.
fn wipefs(member: &MemberFile) -> Option<Vec<Signature>> {
    let path = installed(&["/usr/sbin/wipefs", "/sbin/wipefs", "/usr/bin/wipefs"])?;
    let output = Command::new(path)
        .args(["--no-act", "--parsable", "--output", "OFFSET,LENGTH,TYPE,LABEL", "--"])
        .arg(&member.path)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter(|line| !line.starts_with('#')).map(wipefs_line).collect()
}

/// `0x438,2,ext4,home`.
fn wipefs_line(line: &str) -> Option<Signature> {
    let mut fields = line.splitn(4, ',');
    let (offset, length, kind) = (fields.next()?, fields.next()?, fields.next()?);
    let start = u64::from_str_radix(offset.strip_prefix("0x")?, 16).ok()?;
    let label = fields.next().filter(|label| !label.is_empty());
    let label = label.map_or_else(String::new, |label| format!(" labelled {label:?}"));
    let place = Some(start..start.checked_add(length.parse().ok()?)?);
    Some(Signature { words: format!("a signature ({kind}){label}"), place, is_md: false })
}

fn installed(paths: &[&'static str]) -> Option<&'static str> {
    paths.iter().copied().find(|path| std::fs::exists(path).unwrap_or(false))
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
    if head.get(MBR_MARK..MBR_MARK + 2) != Some(&[0x55, 0xaa]) {
        return false;
    }
    head[ENTRIES].chunks(16).all(|entry| entry[0] & 0x7f == 0)
        && head[ENTRIES].chunks(16).any(|entry| entry[4] != 0)
}

fn blkid(member: &MemberFile) -> Option<String> {
    // For a file, the own checks are enough; a block device may hold what only blkid recognises.
    let unknown = || {
        member
            .is_block_device()
            .then(|| "contents that could not be checked: blkid of util-linux does not work here".to_owned())
    };
    let Some(path) = installed(&["/usr/sbin/blkid", "/sbin/blkid", "/usr/bin/blkid"]) else {
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
        let found = find(&MemberFile::open(file.path()).unwrap()).unwrap();
        found.into_iter().map(|signature| signature.words).collect()
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
    fn lines_of_wipefs() {
        let listed = wipefs_line("0x438,2,ext4,a,b").unwrap();
        assert_eq!(listed.words, "a signature (ext4) labelled \"a,b\"");
        assert_eq!(listed.place, Some(0x438..0x43a));
        assert_eq!(wipefs_line("0x1fe,2,PMBR,").unwrap().words, "a signature (PMBR)");
        assert_eq!(wipefs_line("1fe,2"), None);
    }

    #[test]
    fn what_wipefs_lists_too_is_named_once() {
        let signature =
            |words: &str, place| Signature { words: words.into(), place: Some(place), is_md: false };
        let mut found = vec![signature("an LVM physical volume", 512..520)];
        let listed = vec![signature("LVM2_member", 536..544), signature("gpt", 4096..4104)];
        add_unknown(&mut found, listed.clone());
        assert_eq!(found, [signature("an LVM physical volume", 512..520), listed[1].clone()]);
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
