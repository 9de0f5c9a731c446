//! Names of arrays: what may be one, and how it stands on the members.

use crate::exit::ExitKind;
use crate::failure::Failure;

/// Bytes that a superblock has for it.
const BYTES_MAX: usize = 32;

/// The name, if it may be one: it is part of paths, and a colon ends the host's name.
///
/// # Errors
/// [`ExitKind::Usage`].
pub fn checked(name: &str) -> Result<String, Failure> {
    let fits = !name.is_empty() && name.len() <= BYTES_MAX && !name.starts_with('.');
    let letters = name.chars().all(|letter| !letter.is_control() && !"/:".contains(letter));
    if fits && letters {
        return Ok(name.to_owned());
    }
    let message = format!("{name:?} is no name for an array");
    Err(Failure::new(ExitKind::Usage, message)
        .help("a name has 1 to 32 bytes without / and :, and does not start with a dot"))
}

/// `host:name`, as mdadm has it, where that fits.
pub fn with_host(host: &str, name: &str) -> String {
    let full = format!("{host}:{name}");
    if host.is_empty() || full.len() > BYTES_MAX { name.to_owned() } else { full }
}

/// `name` of `host:name`, as commands take it.
pub fn short(full: &str) -> &str {
    full.rsplit(':').next().unwrap_or_default()
}

/// The host of `host:name`, or nothing.
pub fn host(full: &str) -> &str {
    full.rsplit_once(':').map_or("", |(host, _)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_host_where_both_fit() {
        assert_eq!(with_host("server", "store"), "server:store");
        assert_eq!(with_host("", "store"), "store");
        assert_eq!(with_host("server", "a-name-of-twenty-six-bytes"), "a-name-of-twenty-six-bytes");
        assert_eq!((host("server:store"), short("server:store")), ("server", "store"));
        assert_eq!((host("store"), short("store")), ("", "store"));
        for name in ["", ".x", "a/b", "a:b", "a\nb", "a-name-that-is-longer-than-32-bytes"] {
            assert_eq!(checked(name).unwrap_err().kind, ExitKind::Usage, "{name}");
        }
    }
}
