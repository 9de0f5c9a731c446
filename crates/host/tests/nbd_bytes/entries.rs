//! The NBD server's readers neither panic nor take unbounded memory or answers, whatever bytes a client sends. The test
//! calls these with mutated bytes, the fuzzer with its own.

use host::export::nbd::check::{Command, REQUEST_BYTES, Rules, check, parse_request};
use host::export::nbd::negotiate::{Advance, Catalog, ExportInfo, Negotiation, OPTION_BYTES_MAX};
use host::export::nbd::protocol::OPTION_HEADER_BYTES;

struct OneExport;

impl Catalog for OneExport {
    type Export = ();

    fn find(&self, name: &str) -> Option<((), ExportInfo)> {
        let info = ExportInfo {
            name: "data".to_owned(),
            description: "four members".to_owned(),
            size_bytes: SIZE_BYTES,
            block_bytes: 512,
            preferred_bytes: 65536,
            read_only: false,
            fast_zero: true,
        };
        (name.is_empty() || name == "data").then_some(((), info))
    }

    fn list(&self) -> Vec<(String, String)> {
        vec![("data".into(), "four members".into())]
    }

    fn stopping(&self) -> bool {
        false
    }
}

const SIZE_BYTES: u64 = 1 << 30;

/// A connection's first bytes, in pieces as long as the first byte says; what follows the handshake is requests.
pub fn connection(bytes: &[u8]) {
    let Some((&step, bytes)) = bytes.split_first() else { return };
    let (mut negotiation, mut output, mut held) = (Negotiation::default(), Vec::new(), Vec::new());
    let mut answers = 1;
    for piece in bytes.chunks(usize::from(step) + 1) {
        held.extend_from_slice(piece);
        loop {
            let Ok((taken, advance)) = negotiation.advance(&OneExport, &held, &mut output) else { return };
            assert!(taken <= held.len());
            held.drain(..taken);
            match advance {
                Advance::More => break,
                Advance::Answered => answers += 1,
                _ => return requests(&held),
            }
        }
        assert!(held.len() <= OPTION_HEADER_BYTES + OPTION_BYTES_MAX + 256, "what is held is bounded");
        assert!(output.len() <= 4096 * (answers + 1), "answers are bounded");
    }
}

/// Requests one after another, each checked as the server does.
pub fn requests(mut bytes: &[u8]) {
    while let Ok(Some(request)) = parse_request(bytes) {
        for (read_only, structured) in [(false, false), (false, true), (true, true)] {
            let rules = Rules {
                size_bytes: SIZE_BYTES,
                block_bytes: 512,
                read_only,
                structured,
                allocation: structured,
                fast_zero: structured,
            };
            match check(&request, &rules) {
                // A goodbye has no range.
                Ok(Command::Disconnect) => {}
                Ok(_) => assert!(
                    request
                        .offset_bytes
                        .checked_add(u64::from(request.bytes))
                        .is_some_and(|end| end <= SIZE_BYTES)
                ),
                Err(refusal) => assert!(!refusal.message.is_empty()),
            }
        }
        let next = REQUEST_BYTES + request.payload_bytes() as usize;
        bytes = bytes.get(next..).unwrap_or_default();
    }
}
