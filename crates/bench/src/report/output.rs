//! Files of the report.

use std::path::Path;

use crate::Error;

/// Writes one of them.
pub(super) fn write_file(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    std::fs::write(path, bytes).map_err(|source| Error::Io { path: path.to_path_buf(), source })
}
