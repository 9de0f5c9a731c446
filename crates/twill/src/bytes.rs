//! Sizes as people write and read them. Units are binary, as in mdadm: 64K is 65536 bytes.

/// Units by their letter.
const UNITS: [(char, u32); 6] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50), ('E', 60)];

/// Reads `65536`, `64K`, `64k`, `64KiB`, `1.5G`. A trailing `B` or `iB` changes nothing.
///
/// # Errors
/// Words that say what is wrong, for clap.
pub fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is no size; write bytes, or K, M, G, T, P for powers of 1024, like 64K");
    let bare = text.trim();
    let digits_end =
        bare.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(bare.len());
    let (number, unit) = bare.split_at(digits_end);
    let shift = unit_shift(unit).ok_or_else(wrong)?;
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift).ok_or_else(|| format!("{text} is too large"));
    }
    let (whole, fraction) = number.split_once('.').ok_or_else(wrong)?;
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    if fraction.is_empty() || fraction.len() > 9 || shift == 0 {
        return Err(wrong());
    }
    let part: u64 = fraction.parse().map_err(|_| wrong())?;
    let part = (u128::from(part) << shift) / 10u128.pow(fraction.len() as u32);
    let total = (u128::from(whole) << shift) + part;
    u64::try_from(total).map_err(|_| format!("{text} is too large"))
}

/// As [`parse`], for sizes that mdadm takes in KiB where they have no unit: a bare number could mean either, and is refused.
///
/// # Errors
/// Words with both spellings, for clap.
pub fn parse_with_unit(text: &str) -> Result<u64, String> {
    let bytes = parse(text)?;
    let bare = text.trim();
    if bytes == 0 || !bare.ends_with(|letter: char| letter.is_ascii_digit()) {
        return Ok(bytes);
    }
    Err(format!("it has no unit: write {bare}K, as mdadm would take it, or {bare}B if it is bytes"))
}

fn unit_shift(unit: &str) -> Option<u32> {
    let unit = unit.trim().to_ascii_uppercase();
    let letters = unit.strip_suffix("IB").or_else(|| unit.strip_suffix('B')).unwrap_or(&unit);
    let mut letters = letters.chars();
    match (letters.next(), letters.next()) {
        (None, None) if unit != "IB" => Some(0),
        (Some(letter), None) => UNITS.iter().find(|(known, _)| *known == letter).map(|(_, shift)| *shift),
        _ => None,
    }
}

/// `1.50 GiB`, `64 KiB`, `17 B`.
pub fn human(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, shift)| bytes >> shift > 0);
    let Some((letter, shift)) = unit else { return format!("{bytes} B") };
    if bytes.trailing_zeros() >= *shift {
        return format!("{} {letter}iB", bytes >> shift);
    }
    let text = format!("{:.2}", bytes as f64 / (1u64 << shift) as f64);
    // A little less than the next unit rounds to one of it.
    let next = UNITS.iter().find(|(_, next)| next > shift).filter(|_| text == "1024.00");
    next.map_or_else(|| format!("{text} {letter}iB"), |(next, _)| format!("1.00 {next}iB"))
}

/// mdadm's way for chunks: `64K`, `1M`.
pub fn short(bytes: u64) -> String {
    let unit = UNITS.iter().rev().find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| bytes.to_string(), |(letter, shift)| format!("{}{letter}", bytes >> shift))
}

/// mdadm's way for sizes: `1.50 GiB 1.61 GB`. Each unit goes to twice the next, as there, but for the last, which mdadm has not.
pub fn mdadm(bytes: u64) -> String {
    let mib = bytes as f64 / f64::from(1 << 20);
    let mb = bytes as f64 / 1e6;
    if bytes < 2 << 30 {
        return format!("{mib:.2} MiB {mb:.2} MB");
    }
    let (gib, gb) = (mib / 1024.0, mb / 1e3);
    if bytes < 2 << 40 {
        return format!("{gib:.2} GiB {gb:.2} GB");
    }
    let (tib, tb) = (gib / 1024.0, gb / 1e3);
    if bytes < 1 << 50 {
        return format!("{tib:.2} TiB {tb:.2} TB");
    }
    format!("{:.2} PiB {:.2} PB", tib / 1024.0, tb / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let good = [
            ("0", 0),
            ("512", 512),
            ("64K", 65536),
            ("64k", 65536),
            ("64KiB", 65536),
            ("64KB", 65536),
            ("2G", 2 << 30),
            ("1.5M", 3 << 19),
            ("3 T", 3 << 40),
            ("12B", 12),
        ];
        for (text, bytes) in good {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for text in ["", "K", "-1", "64X", "1.5", "1..5K", "64KK", "99999999E", "iB", "0x10", "1.K", ".5K"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_number_that_mdadm_would_take_as_kib_needs_a_unit() {
        let said = parse_with_unit("102400").unwrap_err();
        assert!(said.contains("102400K") && said.contains("102400B"), "{said}");
        for (text, bytes) in [("102400K", 102_400 << 10), ("102400B", 102_400), ("0", 0), ("1.5M", 3 << 19)] {
            assert_eq!(parse_with_unit(text), Ok(bytes), "{text}");
        }
        assert!(parse_with_unit("64X").unwrap_err().contains("no size"));
    }

    #[test]
    fn sizes_are_written() {
        assert_eq!(human(17), "17 B");
        assert_eq!(human(65536), "64 KiB");
        assert_eq!(human(3 << 29), "1.50 GiB");
        assert_eq!(human(1 << 50), "1 PiB");
        assert_eq!(human((1 << 50) - (1 << 20)), "1.00 PiB");
        assert_eq!(human(u64::MAX), "16.00 EiB");
        assert_eq!(mdadm(1 << 40), "1024.00 GiB 1099.51 GB");
        assert_eq!(mdadm(1 << 50), "1.00 PiB 1.13 PB");
        assert_eq!(short(65536), "64K");
        assert_eq!(short(65537), "65537");
        assert_eq!(mdadm(100 << 20), "100.00 MiB 104.86 MB");
    }
}
