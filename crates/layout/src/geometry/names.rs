//! Levels and layouts by md's numbers and mdadm's words.

use std::str::FromStr;

use super::error::GeometryError;
use super::level::{Layout, Level, PARITY_LAYOUTS, Raid10Layout};

impl Level {
    /// The level with md's number.
    ///
    /// # Errors
    /// [`GeometryError::UnknownLevel`] for linear, multipath, faulty, container and numbers md does not have.
    pub fn from_md_number(number: i32) -> Result<Self, GeometryError> {
        Self::ALL
            .into_iter()
            .find(|level| level.md_number() == number)
            .ok_or_else(|| GeometryError::UnknownLevel(md_level_word(number)))
    }
}

fn md_level_word(number: i32) -> String {
    match number {
        -1 => "linear".into(),
        -4 => "multipath".into(),
        -5 => "faulty".into(),
        -100 => "container".into(),
        other => other.to_string(),
    }
}

impl FromStr for Level {
    type Err = GeometryError;

    /// mdadm's words: `raid5`, `5`, and the aliases `stripe` and `mirror`.
    fn from_str(word: &str) -> Result<Self, GeometryError> {
        match word.to_ascii_lowercase().as_str() {
            "raid0" | "0" | "stripe" => Ok(Self::Raid0),
            "raid1" | "1" | "mirror" => Ok(Self::Raid1),
            "raid4" | "4" => Ok(Self::Raid4),
            "raid5" | "5" => Ok(Self::Raid5),
            "raid6" | "6" => Ok(Self::Raid6),
            "raid10" | "10" => Ok(Self::Raid10),
            _ => Err(GeometryError::UnknownLevel(word.into())),
        }
    }
}

impl Layout {
    /// The layout that md's word means for `level`. md ignores the word for RAID-1 and RAID-4.
    ///
    /// # Errors
    /// [`GeometryError::UnknownLayout`] if md has no such layout for the level.
    pub fn from_md_word(level: Level, word: u32) -> Result<Self, GeometryError> {
        let unknown = || GeometryError::UnknownLayout { level, layout: format!("{word:#x}") };
        match level {
            Level::Raid1 | Level::Raid4 => Ok(Self::Unset),
            Level::Raid0 => match word {
                0 => Ok(Self::Unset),
                1 => Ok(Self::Raid0Original),
                2 => Ok(Self::Raid0Alternate),
                _ => Err(unknown()),
            },
            Level::Raid5 | Level::Raid6 => PARITY_LAYOUTS
                .iter()
                .find(|(layout, number, ..)| *number == word && layout.fits(level))
                .map(|(layout, ..)| *layout)
                .ok_or_else(unknown),
            Level::Raid10 => Raid10Layout::from_md_word(word).map(Self::Raid10).ok_or_else(unknown),
        }
    }

    /// The layout with mdadm's name: `left-symmetric` or `ls`, `n2`, `f2`, `o2`, `near=2`, `original`, …
    ///
    /// # Errors
    /// [`GeometryError::UnknownLayout`] if the level has no layout of that name.
    pub fn parse(level: Level, name: &str) -> Result<Self, GeometryError> {
        let unknown = || GeometryError::UnknownLayout { level, layout: name.into() };
        if name == "default" {
            return Ok(Self::default_for(level));
        }
        match level {
            Level::Raid1 | Level::Raid4 => Err(unknown()),
            Level::Raid0 => match name {
                "original" => Ok(Self::Raid0Original),
                "alternate" => Ok(Self::Raid0Alternate),
                _ => Err(unknown()),
            },
            Level::Raid5 | Level::Raid6 => PARITY_LAYOUTS
                .iter()
                .find(|(_, _, long, short)| *long == name || *short == name)
                .map(|(layout, ..)| *layout)
                .filter(|layout| layout.fits(level))
                .ok_or_else(unknown),
            Level::Raid10 => Raid10Layout::parse(name).map(Self::Raid10).ok_or_else(unknown),
        }
    }
}

impl Raid10Layout {
    /// mdadm's `n2`, `f2`, `o2`, and `near=2`, `far=2`, `offset=2` as it prints them.
    fn parse(name: &str) -> Option<Self> {
        let digits = name.find(|c: char| c.is_ascii_digit())?;
        let (kind, count) = name.split_at(digits);
        let count: u8 = count.parse().ok().filter(|count| *count > 0)?;
        let layout = match kind {
            "n" | "near=" => Layout::near(count),
            "f" | "far=" => Layout::far(count),
            "o" | "offset=" => Layout::offset(count),
            _ => return None,
        };
        match layout {
            Layout::Raid10(raid10) => Some(raid10),
            _ => None,
        }
    }
}
