//! UUIDs of arrays as people type them.

/// The UUID that a word is: mdadm's four groups of eight hexadecimal digits, or any other grouping of 32.
pub fn parse(word: &str) -> Option<[u8; 16]> {
    let digits: String = word.chars().filter(|letter| !":-.".contains(*letter)).collect();
    let is_whole = digits.len() == 32 && digits.chars().all(|letter| letter.is_ascii_hexdigit());
    u128::from_str_radix(&digits, 16).ok().filter(|_| is_whole).map(u128::to_be_bytes)
}

/// Whether two words name the same array: the same word, or the same UUID.
pub fn is_same(one: &str, other: &str) -> bool {
    one == other || parse(one).is_some_and(|uuid| parse(other) == Some(uuid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_grouping_is_the_same_uuid() {
        let spellings = [
            "00112233:44556677:8899aabb:ccddeeff",
            "00112233-4455-6677-8899-AABBCCDDEEFF",
            "00112233445566778899aabbccddeeff",
        ];
        assert!(spellings.iter().all(|other| is_same(spellings[0], other)));
        assert!(parse("0011223344556677").is_none() && parse("+0112233445566778899aabbccddeeff").is_none());
        assert!(is_same("store", "store") && !is_same("store", spellings[0]));
    }
}
