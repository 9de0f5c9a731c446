//! Dialogues with the handshake, byte by byte, and arbitrary ones.

use super::*;
use proptest::prelude::*;

struct TwoExports {
    stopping: bool,
}

impl Catalog for TwoExports {
    type Export = usize;

    fn find(&self, name: &str) -> Option<(usize, ExportInfo)> {
        let index = match name {
            "" | "data" => 0,
            "logs" => 1,
            _ => return None,
        };
        let info = ExportInfo {
            name: ["data", "logs"][index].to_owned(),
            description: ["six members", ""][index].to_owned(),
            size_bytes: 1 << 30,
            block_bytes: 512,
            preferred_bytes: 65536,
            read_only: index == 1,
            fast_zero: false,
        };
        Some((index, info))
    }

    fn list(&self) -> Vec<(String, String)> {
        vec![("data".into(), "six members".into()), ("logs".into(), String::new())]
    }

    fn stopping(&self) -> bool {
        self.stopping
    }
}

const CATALOG: TwoExports = TwoExports { stopping: false };

fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"IHAVEOPT".to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend(u32::try_from(data.len()).expect("short").to_be_bytes());
    bytes.extend(data);
    bytes
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len()).expect("short").to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

fn go(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut data = string(name);
    data.extend(u16::try_from(kinds.len()).expect("short").to_be_bytes());
    kinds.iter().for_each(|kind| data.extend(kind.to_be_bytes()));
    data
}

fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name);
    data.extend(u32::try_from(queries.len()).expect("short").to_be_bytes());
    queries.iter().for_each(|query| data.extend(string(query)));
    data
}

/// Feeds `input` in pieces of `step` bytes and returns the end, all output, and what was left of the input.
fn converse(
    catalog: &TwoExports,
    input: &[u8],
    step: usize,
) -> (Result<Advance<usize>, Malformed>, Vec<u8>, Vec<u8>) {
    converse_with(&mut Negotiation::default(), catalog, input, step)
}

/// As [`converse`], from where `negotiation` stands.
fn converse_with(
    negotiation: &mut Negotiation,
    catalog: &TwoExports,
    input: &[u8],
    step: usize,
) -> (Result<Advance<usize>, Malformed>, Vec<u8>, Vec<u8>) {
    let (mut output, mut held) = (Vec::new(), Vec::new());
    for piece in input.chunks(step) {
        held.extend_from_slice(piece);
        loop {
            let (taken, progress) = match negotiation.advance(catalog, &held, &mut output) {
                Ok(advanced) => advanced,
                Err(error) => return (Err(error), output, held),
            };
            held.drain(..taken);
            match progress {
                Advance::More => break,
                Advance::Answered => {}
                decided => return (Ok(decided), output, held),
            }
        }
        assert!(held.len() <= OPTION_HEADER_BYTES + OPTION_BYTES_MAX + step, "bounded");
    }
    (Ok(Advance::More), output, held)
}

fn client(options: &[Vec<u8>]) -> Vec<u8> {
    [vec![0, 0, 0, 3], options.concat()].concat()
}

/// The replies in `output`: option, type, data.
fn replies(mut output: &[u8]) -> Vec<(u32, u32, Vec<u8>)> {
    let mut all = Vec::new();
    while !output.is_empty() {
        assert_eq!(output[..8], protocol::OPTION_REPLY_MAGIC.to_be_bytes());
        let number = |at: usize| u32::from_be_bytes(output[at..at + 4].try_into().expect("four bytes"));
        let end = 20 + number(16) as usize;
        all.push((number(8), number(12), output[20..end].to_vec()));
        output = &output[end..];
    }
    all
}

fn types(output: &[u8]) -> Vec<u32> {
    replies(output).into_iter().map(|(_, kind, _)| kind).collect()
}

#[test]
fn go_tells_all_and_starts() {
    let kinds = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 77];
    let input =
        client(&[option_bytes(option::STRUCTURED_REPLY, &[]), option_bytes(option::GO, &go("", &kinds))]);
    for step in [1, 7, 1000] {
        let (end, output, _) = converse(&CATALOG, &input, step);
        let Ok(Advance::Transmission(0, about, agreed)) = end else { panic!("{end:?}") };
        assert_eq!((about.name.as_str(), agreed), ("data", Agreed { structured: true, allocation: false }));
        let replies = replies(&output);
        let data: Vec<&[u8]> = replies.iter().map(|(_, _, data)| data.as_slice()).collect();
        assert_eq!(types(&output), [1, 3, 3, 3, 3, 1]);
        assert_eq!(data[1], [0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0b1101, 0b1110_1101], "size and flags");
        assert_eq!(data[2], b"\x00\x01data");
        assert_eq!(data[3], b"\x00\x02six members");
        assert_eq!(data[4], [0, 3, 0, 0, 2, 0, 0, 1, 0, 0, 2, 0, 0, 0]);
    }
}

#[test]
fn read_only_and_unstructured_show_in_the_flags() {
    let (end, output, _) = converse(&CATALOG, &client(&[option_bytes(option::GO, &go("logs", &[]))]), 100);
    assert!(matches!(end, Ok(Advance::Transmission(1, ..))));
    assert_eq!(replies(&output)[0].2[10..], [0b101, 0b0000_0111]);
}

#[test]
fn info_stays_and_requests_may_follow_go_at_once() {
    let options = [option_bytes(option::INFO, &go("data", &[])), option_bytes(option::GO, &go("data", &[]))];
    let input = [client(&options), b"request".to_vec()].concat();
    let (end, output, left) = converse(&CATALOG, &input, 1000);
    assert!(matches!(end, Ok(Advance::Transmission(0, ..))));
    assert_eq!((types(&output).len(), left.as_slice()), (6, b"request".as_slice()));
}

#[test]
fn export_name_with_and_without_zeroes() {
    let option = option_bytes(option::EXPORT_NAME, b"data");
    let (end, output, _) = converse(&CATALOG, &[&[0, 0, 0, 1], option.as_slice()].concat(), 3);
    assert!(matches!(end, Ok(Advance::Transmission(..))));
    assert_eq!(output.len(), 134);
    let (_, output, _) = converse(&CATALOG, &client(std::slice::from_ref(&option)), 3);
    assert_eq!(output.len(), 10);
    let (end, ..) = converse(&CATALOG, &[&[0, 0, 0, 0], option.as_slice()].concat(), 3);
    assert!(matches!(end, Ok(Advance::Transmission(..))), "a client of the first newstyle");
    let (end, ..) = converse(&CATALOG, &client(&[option_bytes(option::EXPORT_NAME, b"none")]), 100);
    assert_eq!(end, Err(Malformed::ExportName));
}

#[test]
fn lists_and_goodbye() {
    let input = client(&[option_bytes(option::LIST, &[]), option_bytes(option::ABORT, &[])]);
    let (end, output, _) = converse(&CATALOG, &input, 100);
    assert_eq!(end, Ok(Advance::Ended));
    let replies = replies(&output);
    assert_eq!(replies[0], (3, 2, b"\x00\x00\x00\x04datasix members".to_vec()));
    assert_eq!(types(&output), [2, 2, 1, 1]);
}

#[test]
fn what_cannot_be_done_is_refused_and_the_talk_goes_on() {
    let queries = contexts("data", &["base:allocation"]);
    let table: [(u32, &[u8], u32); 10] = [
        (option::LIST, b"x", option_reply::ERR_INVALID),
        (4, b"", option_reply::ERR_UNSUP),
        (5, b"", option_reply::ERR_UNSUP),
        (11, b"", option_reply::ERR_UNSUP),
        (0xffff_ffff, b"abc", option_reply::ERR_UNSUP),
        (option::GO, &go("none", &[]), option_reply::ERR_UNKNOWN),
        (option::INFO, b"", option_reply::ERR_INVALID),
        (option::STRUCTURED_REPLY, b"x", option_reply::ERR_INVALID),
        (option::SET_META_CONTEXT, &queries, option_reply::ERR_INVALID),
        (option::GO, &[0x55; 70_000], option_reply::ERR_TOO_BIG),
    ];
    for (option, data, reply) in table {
        let options = [option_bytes(option, data), option_bytes(option::ABORT, &[])];
        let (end, output, _) = converse(&CATALOG, &client(&options), 4096);
        assert_eq!((end, types(&output)), (Ok(Advance::Ended), vec![reply, 1]), "option {option}");
    }
    let stopping = TwoExports { stopping: true };
    let options = [option_bytes(option::GO, &go("data", &[])), option_bytes(option::ABORT, &[])];
    let (end, output, _) = converse(&stopping, &client(&options), 4096);
    assert_eq!((end, types(&output)), (Ok(Advance::Ended), vec![option_reply::ERR_SHUTDOWN, 1]));
}

#[test]
fn metadata_context_belongs_to_the_export_it_was_chosen_for() {
    let allocation = |chosen: &[u8], name: &str| {
        let options = [
            option_bytes(option::STRUCTURED_REPLY, &[]),
            option_bytes(option::SET_META_CONTEXT, &contexts("data", &["base:allocation", "x-a:b"])),
            chosen.to_vec(),
            option_bytes(option::GO, &go(name, &[])),
        ];
        match converse(&CATALOG, &client(&options), 4096).0 {
            Ok(Advance::Transmission(_, _, agreed)) => agreed.allocation,
            other => panic!("{other:?}"),
        }
    };
    assert!(allocation(b"", "data"));
    assert!(!allocation(b"", "logs"));
    assert!(!allocation(&option_bytes(option::SET_META_CONTEXT, &contexts("data", &[])), "data"));
    assert!(!allocation(&option_bytes(option::SET_META_CONTEXT, b"junk"), "data"), "a failed choice clears");
    assert!(allocation(&option_bytes(option::LIST_META_CONTEXT, &contexts("data", &[])), "data"));
}

#[test]
fn context_lists() {
    for (queries, count) in [(vec![], 1), (vec!["base:"], 1), (vec!["base:allocation"], 1), (vec!["x-a:"], 0)]
    {
        let options = [
            option_bytes(option::STRUCTURED_REPLY, &[]),
            option_bytes(option::LIST_META_CONTEXT, &contexts("data", &queries)),
        ];
        let (_, output, _) = converse(&CATALOG, &client(&options), 4096);
        assert_eq!(types(&output).iter().filter(|kind| **kind == 4).count(), count, "{queries:?}");
    }
}

#[test]
fn nonsense_ends_the_connection() {
    let ends = |bytes: &[u8]| converse(&CATALOG, bytes, 5).0;
    assert_eq!(ends(&[0, 0, 1, 3]), Err(Malformed::ClientFlags(0x103)));
    assert!(matches!(ends(b"\x00\x00\x00\x03GET / HTTP/1.1"), Err(Malformed::OptionMagic(_))));
    let huge = b"\x00\x00\x00\x03IHAVEOPT\x00\x00\x00\x07\xff\xff\xff\xff";
    assert_eq!(ends(huge), Err(Malformed::OptionLength { option: 7, bytes: u32::MAX }));
    let old = [vec![0; 4], option_bytes(option::LIST, &[])].concat();
    assert_eq!(ends(&old), Err(Malformed::OldClient(option::LIST)));
}

#[test]
fn a_server_that_requires_tls_answers_nothing_else() {
    let first = [
        option_bytes(option::LIST, &[]),
        option_bytes(option::GO, &go("data", &[])),
        option_bytes(option::STRUCTURED_REPLY, &[]),
        option_bytes(0xffff, &[1]),
        option_bytes(option::GO, &[0x55; 70_000]),
        option_bytes(option::STARTTLS, b"x"),
        option_bytes(option::STARTTLS, &[]),
    ];
    let mut negotiation = Negotiation::new(TlsMode::Require);
    let input = [client(&first), b"hello of TLS".to_vec()].concat();
    let (end, output, left) = converse_with(&mut negotiation, &CATALOG, &input, 100_000);
    assert_eq!((end, left), (Ok(Advance::StartTls), b"hello of TLS".to_vec()));
    let refused = option_reply::ERR_TLS_REQD;
    assert_eq!(types(&output), [refused, refused, refused, refused, refused, option_reply::ERR_INVALID, 1]);
    // From here on all is as without TLS, but for a second STARTTLS.
    let second = [option_bytes(option::STARTTLS, &[]), option_bytes(option::LIST, &[])];
    let (_, output, _) = converse_with(&mut negotiation, &CATALOG, &second.concat(), 100);
    assert_eq!(types(&output), [option_reply::ERR_INVALID, 2, 2, 1]);
    let (end, ..) =
        converse_with(&mut negotiation, &CATALOG, &option_bytes(option::EXPORT_NAME, b"data"), 100);
    assert!(matches!(end, Ok(Advance::Transmission(0, ..))));

    let by_name = client(&[option_bytes(option::EXPORT_NAME, b"data")]);
    let mut negotiation = Negotiation::new(TlsMode::Require);
    assert_eq!(converse_with(&mut negotiation, &CATALOG, &by_name, 100).0, Err(Malformed::NotEncrypted));
    let goodbye = client(&[option_bytes(option::ABORT, &[])]);
    let mut negotiation = Negotiation::new(TlsMode::Require);
    assert_eq!(converse_with(&mut negotiation, &CATALOG, &goodbye, 100).0, Ok(Advance::Ended));
}

#[test]
fn what_was_agreed_in_the_open_counts_no_longer() {
    let open = client(&[
        option_bytes(option::STRUCTURED_REPLY, &[]),
        option_bytes(option::SET_META_CONTEXT, &contexts("data", &["base:allocation"])),
        option_bytes(option::STARTTLS, &[]),
    ]);
    let mut negotiation = Negotiation::new(TlsMode::On);
    assert_eq!(converse_with(&mut negotiation, &CATALOG, &open, 7).0, Ok(Advance::StartTls));
    let go = option_bytes(option::GO, &go("data", &[]));
    match converse_with(&mut negotiation, &CATALOG, &go, 7).0 {
        Ok(Advance::Transmission(0, _, agreed)) => {
            assert_eq!(agreed, Agreed { structured: false, allocation: false });
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn where_clients_may_encrypt_they_need_not() {
    let go = client(&[option_bytes(option::GO, &go("data", &[]))]);
    let mut negotiation = Negotiation::new(TlsMode::On);
    assert!(matches!(converse_with(&mut negotiation, &CATALOG, &go, 7).0, Ok(Advance::Transmission(0, ..))));
}

proptest! {
    #[test]
    fn any_dialogue_is_answered_within_bounds(
        options in proptest::collection::vec((0..14u32, proptest::collection::vec(any::<u8>(), 0..60)), 0..12),
        junk in proptest::collection::vec(any::<u8>(), 0..40),
        step in 1..100usize,
    ) {
        let options: Vec<_> = options.iter().map(|(option, data)| option_bytes(*option, data)).collect();
        let input = [client(&options), junk].concat();
        let whole = converse(&CATALOG, &input, input.len());
        let (end, output, _) = converse(&CATALOG, &input, step);
        prop_assert!(output.len() <= 4096 * (options.len() + 1));
        // The pieces in which bytes come decide nothing, but an error may be seen before the rest is read.
        prop_assert_eq!(&end, &whole.0);
        prop_assert_eq!(output, whole.1);
    }

    #[test]
    fn any_names_and_queries_are_answered(
        option in proptest::sample::select(vec![1u32, 6, 7, 9, 10]),
        name in ".{0,20}",
        queries in proptest::collection::vec("(base:|x-)?[a-z:]{0,12}", 0..5),
    ) {
        let data = match option {
            1 => name.clone().into_bytes(),
            6 | 7 => go(&name, &[1, 2, 3]),
            _ => contexts(&name, &queries.iter().map(String::as_str).collect::<Vec<_>>()),
        };
        let options = [option_bytes(option::STRUCTURED_REPLY, &[]), option_bytes(option, &data)];
        let _ = converse(&CATALOG, &client(&options), 9);
    }
}
