//! Block traces: `time_us,op,offset_bytes,length_bytes`, plain or zstd-compressed.
//!
//! A time may have up to three decimals, since the intervals of the paper's Table IV go down to 0.1 us. Times must not
//! run backwards. Whatever is wrong in a file is reported with its line.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
};

use crate::Error;

/// First line of a trace file.
pub const HEADER: &str = "time_us,op,offset_bytes,length_bytes";

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xB5, 0x2F, 0xFD];

/// One request of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Arrival, in nanoseconds from the trace's start.
    pub time_ns: u64,
    /// First byte.
    pub offset: u64,
    /// Bytes, at least one.
    pub length: u32,
    /// Write or read.
    pub write: bool,
}

/// A whole trace with its name.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    /// Name in tables and figures.
    pub name: String,
    /// Requests by time of arrival.
    pub requests: Vec<Request>,
}

impl Trace {
    /// Reads a trace file, compressed or not, named after the file.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read or decompressed, [`Error::Trace`] with the line number if a line is wrong or
    /// there is no request at all.
    pub fn read(path: &Path) -> Result<Trace, Error> {
        let io = |source| Error::Io { path: path.to_path_buf(), source };
        let mut file = BufReader::new(File::open(path).map_err(io)?);
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let name = name.trim_end_matches(".zst").trim_end_matches(".csv").to_string();
        let requests = if file.fill_buf().map_err(io)?.starts_with(&ZSTD_MAGIC) {
            let decoder = ruzstd::decoding::StreamingDecoder::new(file)
                .map_err(|error| io(std::io::Error::other(error.to_string())))?;
            parse(BufReader::with_capacity(1 << 16, decoder), &name)?
        } else {
            parse(file, &name)?
        };
        Ok(Trace { name, requests })
    }

    /// Parses a trace from memory or any reader.
    ///
    /// # Errors
    /// As [`Trace::read`].
    pub fn parse(name: &str, text: impl Read) -> Result<Trace, Error> {
        Ok(Trace { name: name.to_string(), requests: parse(BufReader::new(text), name)? })
    }

    /// Writes the trace as CSV, zstd-compressed if the path ends in `.zst`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let mut text = Vec::with_capacity(self.requests.len() * 28);
        self.write_csv(&mut text).expect("writing to memory does not fail");
        if path.extension().is_some_and(|extension| extension == "zst") {
            text = ruzstd::encoding::compress_to_vec(&text[..], ruzstd::encoding::CompressionLevel::Fastest);
        }
        std::fs::write(path, text).map_err(|source| Error::Io { path: path.to_path_buf(), source })
    }

    fn write_csv(&self, out: &mut impl Write) -> std::io::Result<()> {
        writeln!(out, "{HEADER}")?;
        for request in &self.requests {
            let (us, ns) = (request.time_ns / 1000, request.time_ns % 1000);
            let op = if request.write { 'W' } else { 'R' };
            if ns == 0 {
                writeln!(out, "{us},{op},{},{}", request.offset, request.length)?;
            } else {
                writeln!(out, "{us}.{ns:03},{op},{},{}", request.offset, request.length)?;
            }
        }
        Ok(())
    }
}

fn parse(mut lines: impl BufRead, name: &str) -> Result<Vec<Request>, Error> {
    let mut requests: Vec<Request> = Vec::new();
    let mut line = String::new();
    for number in 1.. {
        line.clear();
        let wrong =
            |reason: &str| Error::Trace { name: name.to_string(), line: number, reason: reason.to_string() };
        if lines.read_line(&mut line).map_err(|error| wrong(&error.to_string()))? == 0 {
            break;
        }
        let text = line.trim_end_matches(['\n', '\r']);
        if text.is_empty() || (number == 1 && text == HEADER) {
            continue;
        }
        let request = parse_line(text).map_err(wrong)?;
        if requests.last().is_some_and(|last| last.time_ns > request.time_ns) {
            return Err(wrong("time runs backwards"));
        }
        requests.push(request);
    }
    if requests.is_empty() {
        return Err(Error::Trace {
            name: name.to_string(),
            line: 1,
            reason: "no request in the trace".into(),
        });
    }
    Ok(requests)
}

fn parse_line(text: &str) -> Result<Request, &'static str> {
    let mut fields = text.split(',');
    let mut next = || fields.next().ok_or("fewer than four fields");
    let (time, op, offset, length) = (next()?, next()?, next()?, next()?);
    if fields.next().is_some() {
        return Err("more than four fields");
    }
    let time_ns = parse_time(time).ok_or("time is not a number of microseconds")?;
    let write = match op {
        "W" | "w" => true,
        "R" | "r" => false,
        _ => return Err("op is neither R nor W"),
    };
    let offset: u64 = offset.parse().map_err(|_| "offset is not a number of bytes")?;
    let length: u32 = length.parse().map_err(|_| "length is not a number of bytes below 4 GiB")?;
    if length == 0 {
        return Err("length is zero");
    }
    offset.checked_add(u64::from(length)).ok_or("the request ends beyond the largest address")?;
    Ok(Request { time_ns, offset, length, write })
}

/// Microseconds with up to three decimals, as nanoseconds; at most 11 days, what an event's time can hold.
fn parse_time(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let us: u64 = whole.parse().ok()?;
    if part.len() > 3 || us > 1_000_000_000_000 || !part.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let ns: u64 = if part.is_empty() { 0 } else { part.parse().ok()? };
    Some(us * 1000 + ns * 10u64.pow(3 - part.len() as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(text: &str) -> String {
        Trace::parse("t", text.as_bytes()).expect_err("the text is wrong").to_string()
    }

    #[test]
    fn lines_become_requests() {
        let text = format!("{HEADER}\n0,W,4096,512\r\n1.25,R,0,8192\n\n");
        let trace = Trace::parse("t", text.as_bytes()).expect("the text is right");
        let write = Request { time_ns: 0, offset: 4096, length: 512, write: true };
        let read = Request { time_ns: 1250, offset: 0, length: 8192, write: false };
        assert_eq!(trace.requests, [write, read]);
    }

    #[test]
    fn a_wrong_line_is_named() {
        for (line, reason) in [
            ("0,W,1", "fewer than four fields"),
            ("0,W,1,1,1", "more than four"),
            ("x,W,1,1", "time is not"),
            ("-1,W,1,1", "time is not"),
            ("1.2345,W,1,1", "time is not"),
            ("99999999999999,W,1,1", "time is not"),
            ("5,D,1,1", "op is neither"),
            ("5,W,-1,1", "offset is not"),
            ("5,W,1,99999999999", "length is not"),
            ("5,W,1,0", "length is zero"),
            ("5,W,18446744073709551615,1", "beyond the largest"),
            ("4,W,1,1", "backwards"),
        ] {
            let error = error_of(&format!("{HEADER}\n5,R,0,1\n{line}\n"));
            assert!(error.contains("line 3") && error.contains(reason), "{line}: {error}");
        }
        assert!(error_of("").contains("no request"));
        assert!(
            Trace::parse("t", &b"0,W,1,1\n\xFF\xFE\n"[..])
                .expect_err("no text")
                .to_string()
                .contains("line 2")
        );
    }

    #[test]
    fn what_is_written_is_read_again() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let text = "0,W,0,512\n0.125,R,8192,4096\n77,W,123456789,65536\n";
        let trace = Trace::parse("t", text.as_bytes()).expect("the text is right");
        for name in ["t.csv", "t.csv.zst"] {
            let path = dir.path().join(name);
            trace.write(&path).expect("it is written");
            let again = Trace::read(&path).expect("it is read");
            assert_eq!((again.name.as_str(), &again.requests), ("t", &trace.requests));
        }
    }

    #[test]
    fn a_cut_compressed_file_is_an_error() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("t.csv.zst");
        let line = "0,W,0,512\n";
        Trace::parse("t", line.repeat(1000).as_bytes()).expect("right").write(&path).expect("written");
        let bytes = std::fs::read(&path).expect("read");
        std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
        assert!(Trace::read(&path).is_err());
    }
}
