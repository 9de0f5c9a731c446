//! Block traces: CSV lines `time_us,op,offset_bytes,length_bytes`, plain or zstd-compressed, as in `shared/traces`.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::Error;

const HEADER: &str = "time_us,op,offset_bytes,length_bytes";
const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// Requests are cut here: the largest that an export accepts.
const LENGTH_MAX: u64 = engine::limits::REQUEST_BYTES_MAX as u64;

/// A request of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRequest {
    /// Arrival after the start, in microseconds.
    pub time_us: u64,
    /// Write or read.
    pub write: bool,
    /// First byte.
    pub offset: u64,
    /// How many bytes, at least one.
    pub bytes: u64,
}

/// Reads a trace file.
///
/// # Errors
/// [`Error::Io`] if it cannot be read or decompressed, [`Error::Trace`] with the number of a line that is wrong, or 0
/// if there is no request.
pub fn read(path: &Path) -> Result<Vec<TraceRequest>, Error> {
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    let mut file = BufReader::new(File::open(path).map_err(io)?);
    let name = path.display().to_string();
    if file.fill_buf().map_err(io)?.starts_with(&ZSTD_MAGIC) {
        let decoder = ruzstd::decoding::StreamingDecoder::new(file);
        let decoder = decoder.map_err(|error| io(std::io::Error::other(error.to_string())))?;
        return parse(&name, BufReader::with_capacity(1 << 16, decoder));
    }
    parse(&name, file)
}

/// Reads a trace from text.
///
/// # Errors
/// As [`read`].
pub fn parse(name: &str, lines: impl BufRead) -> Result<Vec<TraceRequest>, Error> {
    let mut requests: Vec<TraceRequest> = Vec::new();
    for (number, line) in (1..).zip(lines.lines()) {
        let wrong = |reason: String| Error::Trace { name: name.to_string(), line: number, reason };
        let line = line.map_err(|error| wrong(error.to_string()))?;
        let text = line.trim_end();
        if text.is_empty() || (number == 1 && text == HEADER) {
            continue;
        }
        let request = parse_line(text).map_err(wrong)?;
        if requests.last().is_some_and(|last| last.time_us > request.time_us) {
            return Err(wrong("time runs backwards".to_string()));
        }
        requests.push(request);
    }
    if requests.is_empty() {
        return Err(Error::Trace { name: name.to_string(), line: 0, reason: "no requests".to_string() });
    }
    Ok(requests)
}

fn parse_line(text: &str) -> Result<TraceRequest, String> {
    let fields: Vec<&str> = text.split(',').collect();
    let &[time, op, offset, bytes] = &fields[..] else {
        return Err(format!("{} fields, but {HEADER} are 4", fields.len()));
    };
    let number =
        |name: &str, text: &str| text.parse::<u64>().map_err(|_| format!("{name} {text:?} is no number"));
    let write = match op {
        "W" | "w" => true,
        "R" | "r" => false,
        other => return Err(format!("op {other:?} is neither R nor W")),
    };
    let whole_us = time.split_once('.').map_or(time, |(whole, _)| whole);
    let request = TraceRequest {
        time_us: number("time", whole_us)?,
        write,
        offset: number("offset", offset)?,
        bytes: number("length", bytes)?,
    };
    match request.bytes {
        0 => Err("length 0".to_string()),
        _ if request.offset.checked_add(request.bytes).is_none() => {
            Err("its end is beyond 64 bits".to_string())
        }
        _ => Ok(request),
    }
}

impl TraceRequest {
    /// The request on an array of `size` bytes: rounded out to blocks of `unit`, its place modulo the size, cut at
    /// the end and at the largest request.
    pub(crate) fn fold(&self, size: u64, unit: u64) -> (u64, u64) {
        let start = self.offset / unit * unit;
        let end = (self.offset + self.bytes).div_ceil(unit).saturating_mul(unit);
        let at = start % (size / unit * unit);
        (at, (end - start).min(LENGTH_MAX).min(size / unit * unit - at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        let text = format!("{HEADER}\n0,R,4096,512\n5.5,W,8192,4096\n\n7,w,0,1\n");
        let requests = parse("t", text.as_bytes()).unwrap();
        let got: Vec<_> = requests.iter().map(|r| (r.time_us, r.write, r.offset, r.bytes)).collect();
        assert_eq!(got, [(0, false, 4096, 512), (5, true, 8192, 4096), (7, true, 0, 1)]);
    }

    #[test]
    fn a_wrong_line_is_named() {
        let cases = [
            ("0,R,0,512\n1,W,0\n", 2, "3 fields"),
            ("0,X,0,512\n", 1, "neither R nor W"),
            ("0,R,0,0\n", 1, "length 0"),
            ("0,R,zero,512\n", 1, "\"zero\" is no number"),
            ("0,R,0,512\n0,R,-1,512\n", 2, "\"-1\""),
            ("9,R,0,512\n1,R,0,512\n", 2, "backwards"),
            ("0,R,18446744073709551615,2\n", 1, "64 bits"),
            ("", 0, "no requests"),
        ];
        for (text, line, reason) in cases {
            let error = parse("a trace", text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with(&format!("a trace, line {line}: ")), "{error}");
            assert!(error.contains(reason), "{error}");
        }
    }

    #[test]
    fn requests_are_folded_onto_the_array() {
        let fold = |offset, bytes| TraceRequest { time_us: 0, write: true, offset, bytes }.fold(1 << 20, 512);
        assert_eq!(fold(100, 100), (0, 512));
        assert_eq!(fold(500, 100), (0, 1024));
        assert_eq!(fold((1 << 20) + 512, 512), (512, 512));
        assert_eq!(fold((1 << 20) - 512, 4096), ((1 << 20) - 512, 512));
    }
}
