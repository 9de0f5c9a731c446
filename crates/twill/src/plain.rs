//! Names and paths as they may be printed.

use std::borrow::Cow;
use std::fmt::Write as _;

/// A text without characters that move the cursor, colour the terminal, begin a new line or reverse the direction of what follows:
/// an array's name and a file's path may hold any of them. They are printed as Rust writes them: `\n`, `\u{1b}`.
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(is_control) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 8);
    for letter in text.chars() {
        if is_control(letter) {
            let _infallible = write!(escaped, "{}", letter.escape_default());
        } else {
            escaped.push(letter);
        }
    }
    Cow::Owned(escaped)
}

/// As [`plain`], of a text of several lines.
pub fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

fn is_control(letter: char) -> bool {
    letter.is_control()
        || ('\u{202a}'..='\u{202e}').contains(&letter)
        || ('\u{2066}'..='\u{2069}').contains(&letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_escaped() {
        for (text, printed) in [
            ("store", "store"),
            ("große Platte", "große Platte"),
            ("a\nb", "a\\nb"),
            ("\u{1b}[2Jgone", "\\u{1b}[2Jgone"),
            ("a\u{9b}31mb\u{7f}", "a\\u{9b}31mb\\u{7f}"),
            ("a\u{202e}b", "a\\u{202e}b"),
        ] {
            assert_eq!(plain(text), printed);
        }
        assert_eq!(plain_lines("a\n\tb\n"), "a\n\\tb\n");
    }
}
