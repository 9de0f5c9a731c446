//! A number with its noun, as people write it.

/// `1 member`, `2 members`.
pub fn counted(count: impl Into<u64>, noun: &str) -> String {
    counted_as(count.into(), noun, &format!("{noun}s"))
}

/// `1 mismatch`, `2 mismatches`: of a noun whose plural takes more than an s.
pub fn counted_as(count: u64, one: &str, many: &str) -> String {
    let noun = if count == 1 { one } else { many };
    format!("{count} {noun}")
}

/// `slot 2`, `slots 2, 3`.
pub fn slots_words(slots: &[impl ToString]) -> String {
    let numbers: Vec<String> = slots.iter().map(ToString::to_string).collect();
    format!("slot{} {}", if slots.len() == 1 { "" } else { "s" }, numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_not_several() {
        assert_eq!(counted(1u32, "member"), "1 member");
        assert_eq!(counted(0u64, "member"), "0 members");
        assert_eq!(counted_as(1, "mismatch", "mismatches"), "1 mismatch");
        assert_eq!(counted_as(12, "mismatch", "mismatches"), "12 mismatches");
    }
}
