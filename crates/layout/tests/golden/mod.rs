//! Reads the files of `data/superblocks`: what mdadm and the kernel wrote, and what mdadm says of it.

use std::path::PathBuf;

use layout::md_superblock::MinorVersion;

/// One member's superblock and what lies beside it.
pub struct Golden {
    /// The file's name without its ending.
    pub name: String,
    pub device_bytes: u64,
    /// The device's logical block.
    pub sector_bytes: usize,
    pub read_at: u64,
    pub superblock: Vec<u8>,
    pub bitmap: Option<Vec<u8>>,
    pub bad_blocks: Option<Vec<u8>>,
    pub examine: String,
    pub examine_bitmap: String,
}

impl Golden {
    pub fn all() -> Vec<Self> {
        let directory = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/superblocks");
        let mut paths: Vec<PathBuf> =
            std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        assert!(paths.len() >= 40, "only {} superblocks", paths.len());
        paths.iter().map(Self::read).collect()
    }

    pub fn named(name: &str) -> Self {
        Self::all().into_iter().find(|golden| golden.name == name).expect(name)
    }

    fn read(path: &PathBuf) -> Self {
        let text = std::fs::read_to_string(path).unwrap();
        let (head, rest) = text.split_once('\n').unwrap();
        let number = |word: &str| -> u64 {
            let after = head.split_once(word).unwrap().1.trim_start();
            after.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
        };
        let section = |name: &str| {
            let start = format!("== {name}\n");
            let (_, text) = rest.split_once(&start)?;
            Some(text.split("\n== ").next().unwrap())
        };
        Self {
            name: path.file_stem().unwrap().to_string_lossy().into_owned(),
            device_bytes: number("device "),
            sector_bytes: number("sector ") as usize,
            read_at: number("superblock at "),
            superblock: undump(section("superblock").unwrap()),
            bitmap: section("bitmap").map(undump),
            bad_blocks: section("bad blocks").map(undump),
            examine: section("examine").unwrap().into(),
            examine_bitmap: section("examine-bitmap").unwrap_or("").into(),
        }
    }

    /// Twill runs arrays with superblocks like this.
    pub fn is_supported(&self) -> bool {
        !self.name.starts_with("refused-")
    }

    pub fn minor(&self) -> MinorVersion {
        match self.read_at {
            0 => MinorVersion::V1_1,
            4096 => MinorVersion::V1_2,
            _ => MinorVersion::V1_0,
        }
    }

    /// The value of a line of `mdadm --examine`, such as `Raid Level`.
    pub fn examined(&self, key: &str) -> Option<&str> {
        value(&self.examine, key)
    }

    /// The same of `mdadm --examine-bitmap`.
    pub fn examined_bitmap(&self, key: &str) -> Option<&str> {
        value(&self.examine_bitmap, key)
    }
}

fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.trim().strip_prefix(key)?.trim_start().strip_prefix(": "))
}

/// Undoes hexdump: `*` stands for more lines like the one before.
fn undump(text: &str) -> Vec<u8> {
    let mut bytes: Vec<u8> = Vec::new();
    let mut repeated = false;
    for line in text.lines() {
        if line == "*" {
            repeated = true;
            continue;
        }
        let (address, row) = line.split_once(':').unwrap();
        let address = usize::from_str_radix(address, 16).unwrap();
        while repeated && bytes.len() < address {
            bytes.extend_from_within(bytes.len() - 16..);
        }
        repeated = false;
        assert_eq!(bytes.len(), address);
        bytes.extend(row.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()));
    }
    bytes
}
