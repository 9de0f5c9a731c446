//! Which column of a segment holds data, parity or copies: by its level, its width and the band, without a look at a member.

use super::error::{Structure, ZonedError};
use crate::geometry::Level;

/// The most columns that a segment can have.
pub const COLUMNS_MAX: u8 = 64;

/// What a column holds of a stripe.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColumnRole {
    /// The data with this index.
    Data(u8),
    /// The XOR of the data.
    P,
    /// The Reed-Solomon syndrome of the data, each times 2 to the power of its index.
    Q,
    /// The same as the data with this index.
    Copy(u8),
}

impl ColumnRole {
    /// Whether it holds what clients wrote, once.
    #[must_use]
    pub fn is_data(self) -> bool {
        matches!(self, ColumnRole::Data(_))
    }
}

/// The level and width of a segment, checked: at least one column has data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Columns {
    level: Level,
    width: u8,
}

impl Columns {
    /// The columns of a segment. `None` for RAID-1 (it is level 10 over two columns), for mirrors of an odd width, for more
    /// than [`COLUMNS_MAX`] columns, and where no column is left for data.
    #[must_use]
    pub fn new(level: Level, width: u8) -> Option<Columns> {
        let fits = match level {
            Level::Raid0 => width >= 1,
            Level::Raid1 => false,
            Level::Raid4 | Level::Raid5 => width >= 2,
            Level::Raid6 => width >= 3,
            Level::Raid10 => width >= 2 && width.is_multiple_of(2),
        };
        (fits && width <= COLUMNS_MAX).then_some(Columns { level, width })
    }

    /// The columns that a structure names by md's number of a level, a width and a number of parity columns.
    pub(super) fn read(
        structure: Structure,
        level: i32,
        width: u16,
        parity: u8,
    ) -> Result<Columns, ZonedError> {
        let known = Level::from_md_number(level).ok();
        let columns = known.and_then(|level| Columns::new(level, u8::try_from(width).ok()?));
        let found = || format!("{level} of {width} columns");
        let expected = || format!("0, 4, 5, 6 or 10 with columns for data, {COLUMNS_MAX} at most");
        let columns = structure.known(columns, "level", found, expected)?;
        let (found, expected) =
            (|| format!("{parity} columns"), || format!("{} at level {level}", columns.parity()));
        structure.require(parity == columns.parity(), "parity", found, expected)?;
        Ok(columns)
    }

    /// The level.
    #[must_use]
    pub const fn level(self) -> Level {
        self.level
    }

    /// Columns in all.
    #[must_use]
    pub const fn width(self) -> u8 {
        self.width
    }

    /// Columns of a stripe with parity or copies. A stripe survives that many failures, a mirror only one of each pair.
    #[must_use]
    pub const fn parity(self) -> u8 {
        match self.level {
            Level::Raid10 => self.width / 2,
            level => level.parity_chunks() as u8,
        }
    }

    /// Columns of a stripe with data.
    #[must_use]
    pub const fn data(self) -> u8 {
        self.width - self.parity()
    }

    /// What a column holds of the stripes that begin in `band`.
    ///
    /// Parity of RAID-5 and 6 moves up by one column with each band, Q follows P, data follows parity, around. RAID-4 has it
    /// in its last column. A mirror has the copy in the column after the data, as md's near=2.
    ///
    /// # Panics
    /// If there is no such column.
    #[must_use]
    pub fn role(self, column: u8, band: u32) -> ColumnRole {
        assert!(column < self.width, "column {column} of {}", self.width);
        if self.level == Level::Raid10 {
            let index = column / 2;
            return if column.is_multiple_of(2) { ColumnRole::Data(index) } else { ColumnRole::Copy(index) };
        }
        let behind_p = u32::from(column) + u32::from(self.width) - self.p_column(band);
        match ((behind_p % u32::from(self.width)) as u8, self.parity()) {
            (0, 1 | 2) => ColumnRole::P,
            (1, 2) => ColumnRole::Q,
            (behind, parity) => ColumnRole::Data(behind - parity),
        }
    }

    /// The column that holds the data with this index in the stripes that begin in `band`.
    ///
    /// # Panics
    /// If there is no such index.
    #[must_use]
    pub fn data_column(self, index: u8, band: u32) -> u8 {
        assert!(index < self.data(), "data {index} of {}", self.data());
        if self.level == Level::Raid10 {
            return index * 2;
        }
        let column = self.p_column(band) + u32::from(self.parity()) + u32::from(index);
        (column % u32::from(self.width)) as u8
    }

    /// The column of P, or where the data begins at RAID-0.
    fn p_column(self, band: u32) -> u32 {
        match self.level {
            Level::Raid5 | Level::Raid6 => band % u32::from(self.width),
            Level::Raid4 => u32::from(self.width) - 1,
            Level::Raid0 | Level::Raid1 | Level::Raid10 => 0,
        }
    }
}
