//! The kinds of requests that a target is measured with.

/// One kind of request.
pub struct Row {
    /// `randread` or `randwrite`.
    pub work: &'static str,
    /// Bytes of a request.
    pub bytes: u32,
    /// Requests in flight.
    pub depth: u32,
}

/// The rows of the table.
pub fn rows(iodepth: u32) -> [Row; 4] {
    let row = |work, bytes, depth| Row { work, bytes, depth };
    [
        row("randread", 4 << 10, iodepth),
        row("randwrite", 4 << 10, iodepth),
        row("randread", 128 << 10, (iodepth / 4).max(1)),
        row("randwrite", 128 << 10, (iodepth / 4).max(1)),
    ]
}

impl Row {
    /// Its name in the table.
    pub fn name(&self) -> String {
        format!("{} {}K, {}", self.work.trim_start_matches("rand"), self.bytes >> 10, self.depth)
    }
}
