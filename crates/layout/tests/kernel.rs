//! Geometry and Q against what the kernel's md wrote: `data/kernel-map.txt`, made by `make_data.py`.

use std::collections::HashMap;

use layout::geometry::Raid0Zones;
use layout::units::{ArrayOffset, Slot, Stripe};
use layout::{Geometry, Layout, Level, Role};

const BLOCK: u64 = 4096;

/// What a member holds in one row of chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Cell {
    /// All of this array chunk.
    Data(u64),
    /// The first 16 bytes of something else.
    Other([u8; 16]),
    /// Zeroes.
    Empty,
}

struct Array {
    head: String,
    level: Level,
    layout_word: u32,
    chunk_bytes: u32,
    array_bytes: u64,
    member_bytes: Vec<u64>,
    rows: Vec<Vec<Cell>>,
}

fn arrays() -> Vec<Array> {
    let mut arrays: Vec<Array> = Vec::new();
    for line in include_str!("data/kernel-map.txt").lines().filter(|line| !line.starts_with('#')) {
        if let Some(head) = line.strip_prefix("array ") {
            let words: Vec<&str> = head.split(' ').collect();
            let member_bytes: Vec<u64> = words[5..].iter().map(|word| word.parse().unwrap()).collect();
            assert_eq!(words[2].parse(), Ok(member_bytes.len()));
            arrays.push(Array {
                head: head.into(),
                level: words[0].parse().unwrap(),
                layout_word: u32::from_str_radix(words[1].trim_start_matches("0x"), 16).unwrap(),
                chunk_bytes: words[3].parse().unwrap(),
                array_bytes: words[4].parse().unwrap(),
                member_bytes,
                rows: Vec::new(),
            });
            continue;
        }
        let (_, cells) = line.split_once(": ").unwrap();
        arrays.last_mut().unwrap().rows.push(cells.split(' ').map(cell).collect());
    }
    arrays
}

fn cell(word: &str) -> Cell {
    match word.split_at(1) {
        ("d", number) => Cell::Data(number.parse().unwrap()),
        ("x", hex) => {
            let byte = |i: usize| u8::from_str_radix(&hex[i * 2..i * 2 + 2], 16).unwrap();
            Cell::Other(std::array::from_fn(byte))
        }
        _ => Cell::Empty,
    }
}

impl Array {
    fn geometry(&self) -> Result<Geometry, layout::GeometryError> {
        let layout = match self.level {
            Level::Raid0 => Layout::Unset,
            level => Layout::from_md_word(level, self.layout_word)?,
        };
        let members = self.member_bytes.len() as u32;
        Geometry::new(self.level, layout, members, self.chunk_bytes, self.member_bytes[0])
    }

    fn is_raid0_zones(&self) -> bool {
        self.level == Level::Raid0 && self.member_bytes.iter().any(|bytes| *bytes != self.member_bytes[0])
    }

    /// The mark at the start of an array chunk, as `make_data.py` writes it.
    fn mark(&self, chunk: u64) -> [u8; 16] {
        let number = chunk * u64::from(self.chunk_bytes) / BLOCK + 1;
        let mut mark = [0; 16];
        mark[..8].copy_from_slice(&number.to_le_bytes());
        mark[8..].copy_from_slice(&split_mix(number).to_le_bytes());
        mark
    }

    fn bytes(&self, cell: &Cell) -> [u8; 16] {
        match cell {
            Cell::Data(chunk) => self.mark(*chunk),
            Cell::Other(bytes) => *bytes,
            Cell::Empty => [0; 16],
        }
    }
}

fn split_mix(number: u64) -> u64 {
    let mut n = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

fn gf_power_of_2(exponent: u32) -> u8 {
    (0..exponent).fold(1u8, |x, _| (x << 1) ^ if x & 0x80 != 0 { 0x1d } else { 0 })
}

fn gf_multiply(a: u8, b: u8) -> u8 {
    let mut product = 0;
    for bit in (0..8).rev() {
        product = (product << 1) ^ if product & 0x80 != 0 { 0x1d } else { 0 };
        if b & (1 << bit) != 0 {
            product ^= a;
        }
    }
    product
}

fn check_parity_array(array: &Array) {
    let geometry = array.geometry().unwrap();
    assert_eq!(geometry.array_bytes(), array.array_bytes, "{}", array.head);
    assert_eq!(geometry.stripes(), array.rows.len() as u64, "{}", array.head);
    for (stripe, cells) in Stripe::first(geometry.stripes()).zip(&array.rows) {
        let (mut p, mut q) = ([0; 16], [0; 16]);
        for index in 0..geometry.data_chunks() {
            let offset = geometry.array_offset(stripe, index, 0).get();
            if offset >= geometry.array_bytes() {
                assert!(!array.chunk_bytes.is_power_of_two(), "{}", array.head);
                continue;
            }
            let chunk = offset / u64::from(array.chunk_bytes);
            let member = geometry.data_member(stripe, index);
            assert_eq!(
                cells[member.index()],
                Cell::Data(chunk),
                "{}: stripe {stripe} data {index}",
                array.head
            );
            let factor = gf_power_of_2(geometry.syndrome_index(stripe, index));
            for (i, byte) in array.mark(chunk).into_iter().enumerate() {
                p[i] ^= byte;
                q[i] ^= gf_multiply(byte, factor);
            }
        }
        for (member, cell) in Slot::all().zip(cells) {
            let expected = match geometry.role(stripe, member) {
                Role::Data(_) => continue,
                Role::P => p,
                Role::Q => q,
            };
            assert_eq!(array.bytes(cell), expected, "{}: stripe {stripe} member {member}", array.head);
        }
    }
}

fn check_raid0_zones(array: &Array) {
    let layout = Layout::from_md_word(Level::Raid0, array.layout_word).unwrap();
    let zones = Raid0Zones::new(layout, array.chunk_bytes, &array.member_bytes).unwrap();
    assert_eq!(zones.array_bytes(), array.array_bytes, "{}", array.head);
    for chunk in 0..array.array_bytes / u64::from(array.chunk_bytes) {
        let (member, offset, _) = zones.locate(ArrayOffset::new(chunk * u64::from(array.chunk_bytes)));
        let row = (offset.get() / u64::from(array.chunk_bytes)) as usize;
        assert_eq!(array.rows[row][member.index()], Cell::Data(chunk), "{}: {chunk}", array.head);
    }
}

fn check_raid10(array: &Array, geometry: &Geometry) {
    assert_eq!(geometry.array_bytes(), array.array_bytes, "{}", array.head);
    let chunk_bytes = u64::from(array.chunk_bytes);
    let mut used = HashMap::new();
    for chunk in 0..array.array_bytes / chunk_bytes {
        for place in geometry.copies(ArrayOffset::new(chunk * chunk_bytes), chunk_bytes).places {
            let row = (place.member_offset.get() / chunk_bytes) as usize;
            used.insert((row, place.member), chunk);
        }
    }
    for (row, cells) in array.rows.iter().enumerate() {
        for (member, cell) in Slot::all().zip(cells) {
            let expected = used.get(&(row, member)).map_or(Cell::Empty, |chunk| Cell::Data(*chunk));
            assert_eq!(*cell, expected, "{}: row {row} member {member}", array.head);
        }
    }
}

#[test]
fn the_kernel_puts_everything_where_the_geometry_says() {
    let mut checked: HashMap<Level, usize> = HashMap::new();
    for array in arrays() {
        match array.level {
            Level::Raid0 if array.is_raid0_zones() => check_raid0_zones(&array),
            Level::Raid10 => match array.geometry() {
                Ok(geometry) => check_raid10(&array, &geometry),
                Err(layout::GeometryError::CopiesCollide { .. }) => check_collision(&array),
                Err(error) => panic!("{}: {error}", array.head),
            },
            _ => check_parity_array(&array),
        }
        *checked.entry(array.level).or_default() += 1;
    }
    let least = [(Level::Raid0, 7), (Level::Raid4, 2), (Level::Raid5, 25), (Level::Raid6, 57)];
    for (level, least) in least.into_iter().chain([(Level::Raid10, 30)]) {
        assert!(checked[&level] >= least, "{level}: only {} arrays", checked[&level]);
    }
}

/// What the geometry refuses as losing data did lose data: some array chunk is on fewer members than it has copies.
fn check_collision(array: &Array) {
    let Layout::Raid10(layout) = Layout::from_md_word(Level::Raid10, array.layout_word).unwrap() else {
        panic!("RAID-10")
    };
    let mut copies: HashMap<u64, u32> = HashMap::new();
    for cells in &array.rows {
        for cell in cells {
            if let Cell::Data(chunk) = cell {
                *copies.entry(*chunk).or_default() += 1;
            }
        }
    }
    let chunks = array.array_bytes / u64::from(array.chunk_bytes);
    let short = (0..chunks).any(|chunk| copies.get(&chunk).copied().unwrap_or(0) < layout.copies());
    assert!(short, "{}: refused, but every copy is there", array.head);
}
