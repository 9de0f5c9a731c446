//! Durations as people type them.

use std::time::Duration;

/// Longest one that can be said: what is longer is a slip, and would be beyond what clocks count.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// `30s`, `2m` or `500ms`.
pub fn parse(text: &str) -> Result<Duration, String> {
    let duration = humantime::parse_duration(text).map_err(|error| format!("{error}; write it like 30s"))?;
    (duration <= LONGEST).then_some(duration).ok_or_else(|| "it is longer than a year".to_owned())
}

/// The same, or a number of seconds.
pub fn parse_or_seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<u32>() {
        Ok(_) => parse(&format!("{text}s")),
        Err(_) => parse(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_clock_counts_is_refused() {
        assert_eq!(parse("1500ms"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_or_seconds("30"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_or_seconds("2m"), Ok(Duration::from_secs(120)));
        for text in ["18446744073709551615s", "18446744073709551615", "400d", "4294967295", "soon"] {
            assert!(parse_or_seconds(text).is_err(), "{text}");
        }
    }
}
