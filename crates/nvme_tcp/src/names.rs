//! Names of hosts and subsystems, and host identifiers.

use std::fmt;

/// Bytes that the longest name may have.
pub const NQN_BYTES_MAX: usize = 223;
/// Bytes of the field that a name stands in, with zeroes behind it.
pub const NQN_FIELD_BYTES: usize = 256;
/// The name of every discovery subsystem.
pub const DISCOVERY_NQN: &str = "nqn.2014-08.org.nvmexpress.discovery";

/// A qualified name, as short as it may be and of printable characters: it goes into messages, file names and TLS identities,
/// where a space would end it.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nqn(String);

/// Why bytes are no name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NqnError {
    /// Longer than a name may be, or not ended by a zero.
    #[error("it has more than {NQN_BYTES_MAX} bytes")]
    Length,
    /// Another beginning.
    #[error("it does not begin with nqn.")]
    Beginning,
    /// A space, a control character, or not UTF-8.
    #[error("it has a space, a control character, or is not UTF-8")]
    Character,
}

impl Nqn {
    /// A name.
    ///
    /// # Errors
    /// [`NqnError`].
    pub fn new(text: &str) -> Result<Nqn, NqnError> {
        if text.len() > NQN_BYTES_MAX {
            return Err(NqnError::Length);
        }
        if !text.starts_with("nqn.") {
            return Err(NqnError::Beginning);
        }
        if text.chars().any(|letter| letter.is_whitespace() || letter.is_control()) {
            return Err(NqnError::Character);
        }
        Ok(Nqn(text.to_owned()))
    }

    /// The name in a field of a command or data structure, which ends at its first zero.
    ///
    /// # Errors
    /// [`NqnError`].
    pub fn from_field(field: &[u8]) -> Result<Nqn, NqnError> {
        let end = field.iter().position(|byte| *byte == 0).ok_or(NqnError::Length)?;
        Nqn::new(std::str::from_utf8(&field[..end]).map_err(|_| NqnError::Character)?)
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name as a field of `N` bytes, zeroes behind it.
    ///
    /// # Panics
    /// If the field is shorter than a name may be.
    #[must_use]
    pub fn to_field<const N: usize>(&self) -> [u8; N] {
        const { assert!(N > NQN_BYTES_MAX, "the field is too short for a name") };
        let mut field = [0; N];
        field[..self.0.len()].copy_from_slice(self.0.as_bytes());
        field
    }
}

impl fmt::Display for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Nqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// 128 bits by which reservations know a host.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostId(pub [u8; 16]);

impl fmt::Display for HostId {
    /// As a UUID.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for HostId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A host as a controller knows it. A host identifier belongs to the name that came with it: the same identifier under
/// another name is another host.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host {
    /// Its identifier.
    pub id: HostId,
    /// Its name, which authentication proved if that is on.
    pub nqn: Nqn,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_and_stand_in_fields() {
        let longest = format!("nqn.{}", "x".repeat(NQN_BYTES_MAX - 4));
        for good in ["nqn.2026-11.test:a", DISCOVERY_NQN, &longest, "nqn.2026-11.test:\u{e4}"] {
            let name = Nqn::new(good).expect(good);
            let field: [u8; NQN_FIELD_BYTES] = name.to_field();
            assert_eq!(Nqn::from_field(&field), Ok(name.clone()));
            let short: [u8; 224] = name.to_field();
            assert_eq!(Nqn::from_field(&short), Ok(name));
        }
        let too_long = format!("{longest}x");
        for (bad, error) in [
            ("", NqnError::Beginning),
            ("iqn.2026-11.test:a", NqnError::Beginning),
            (&too_long, NqnError::Length),
            ("nqn.a b", NqnError::Character),
            ("nqn.a\n", NqnError::Character),
            ("nqn.a\u{7f}", NqnError::Character),
        ] {
            assert_eq!(Nqn::new(bad), Err(error), "{bad}");
        }
        assert_eq!(Nqn::from_field(&[b'n'; NQN_FIELD_BYTES]), Err(NqnError::Length));
        assert_eq!(Nqn::from_field(b"nqn.\xff\0"), Err(NqnError::Character));
        assert_eq!(Nqn::from_field(&[]), Err(NqnError::Length));
    }

    #[test]
    fn a_host_id_reads_as_a_uuid() {
        let id = HostId(std::array::from_fn(|at| u8::try_from(at * 17).unwrap()));
        assert_eq!(id.to_string(), "00112233-4455-6677-8899-aabbccddeeff");
    }
}
