//! Words as a shell takes them.

use std::borrow::Cow;

/// The word, in quotes where a shell would read it otherwise.
pub fn quoted(word: &str) -> Cow<'_, str> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_./:=,+@%".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) {
        return Cow::Borrowed(word);
    }
    Cow::Owned(format!("'{}'", word.replace('\'', r"'\''")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_the_word_back() {
        for (word, line) in
            [("/dev/sda1", "/dev/sda1"), ("a b", "'a b'"), ("it's", r"'it'\''s'"), ("", "''"), ("$x", "'$x'")]
        {
            assert_eq!(quoted(word), line);
        }
    }
}
