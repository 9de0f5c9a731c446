//! Each message by its bytes, and arbitrary bytes at every parser.

use super::*;
use proptest::prelude::*;

fn encoded(head: &Head, structured: bool) -> Vec<u8> {
    let mut bytes = vec![0; HEAD_BYTES_MAX];
    let length = encode_head(head, 0x0102_0304_0506_0708, structured, &mut bytes);
    bytes.truncate(length);
    bytes
}

#[test]
fn greeting_is_the_one_of_the_text() {
    assert_eq!(greeting(), *b"NBDMAGICIHAVEOPT\x00\x03");
}

#[test]
fn client_flags() {
    let parse = |flags: u32| parse_client_flags(&flags.to_be_bytes());
    assert_eq!(parse(3), Ok(Some(ClientFlags { fixed_newstyle: true, no_zeroes: true })));
    assert_eq!(parse(0), Ok(Some(ClientFlags { fixed_newstyle: false, no_zeroes: false })));
    assert_eq!(parse(4), Err(Malformed::ClientFlags(4)));
    assert_eq!(parse_client_flags(&[0, 0, 0]), Ok(None));
}

#[test]
fn option_header_needs_its_magic_as_soon_as_it_is_there() {
    let whole = b"IHAVEOPT\x00\x00\x00\x07\x00\x00\x01\x00";
    assert_eq!(parse_option_header(whole), Ok(Some(OptionHeader { option: 7, data_bytes: 256 })));
    assert_eq!(parse_option_header(&whole[..15]), Ok(None));
    assert!(matches!(parse_option_header(b"GET / HT"), Err(Malformed::OptionMagic(_))));
    assert_eq!(parse_option_header(b"GET / H"), Ok(None));
}

#[test]
fn info_query() {
    let data = b"\x00\x00\x00\x01a\x00\x03\x00\x01\x00\x03\xff\xff";
    let query = parse_info_query(data);
    assert_eq!(query, Ok(InfoQuery { name: "a", wants_name: true, wants_description: false }));
    for length in 0..data.len() {
        assert!(parse_info_query(&data[..length]).is_err(), "cut at {length}");
    }
    assert!(matches!(parse_info_query(b"\x00\x00\x10\x01"), Err(OptionFault::TooBig(_))));
    assert!(matches!(parse_info_query(b"\xff\xff\xff\xff"), Err(OptionFault::TooBig(_))));
    assert!(matches!(parse_info_query(b"\x00\x00\x00\x01\xff\x00\x00"), Err(OptionFault::Invalid(_))));
}

#[test]
fn context_query() {
    let data = b"\x00\x00\x00\x01a\x00\x00\x00\x02\x00\x00\x00\x0fbase:allocation\x00\x00\x00\x06x-y:zz";
    let expected = ContextQuery { name: "a", empty: false, allocation: true, base: false };
    assert_eq!(parse_context_query(data), Ok(expected));
    assert!(parse_context_query(&[data.as_slice(), b"!"].concat()).is_err());
    let nothing = b"\x00\x00\x00\x00\x00\x00\x00\x00";
    assert_eq!(
        parse_context_query(nothing),
        Ok(ContextQuery { name: "", empty: true, allocation: false, base: false })
    );
    // Four billion queries in eight bytes end at the first missing one.
    assert!(parse_context_query(b"\x00\x00\x00\x00\xff\xff\xff\xff").is_err());
}

#[test]
fn simple_replies() {
    let done = [0x67, 0x44, 0x66, 0x98, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(encoded(&Head::Done, false), done);
    assert_eq!(encoded(&Head::Done, true), done);
    assert_eq!(encoded(&Head::Data { offset_bytes: 0, bytes: 512 }, false), done);
    let error = encoded(&Head::Error { errno: Errno::NoSpace, message: "full".into() }, false);
    assert_eq!(error, [&done[..7], &[28], &done[8..]].concat());
}

#[test]
fn structured_replies() {
    let cookie = [1, 2, 3, 4, 5, 6, 7, 8];
    let start = |kind: u16, payload: u8| {
        let [high, low] = kind.to_be_bytes();
        [&[0x66, 0x8e, 0x33, 0xef, 0, 1, high, low], cookie.as_slice(), &[0, 0, 0, payload]].concat()
    };
    let data = encoded(&Head::Data { offset_bytes: 0x1000, bytes: 5 }, true);
    assert_eq!(data, [start(1, 13), vec![0, 0, 0, 0, 0, 0, 0x10, 0]].concat());
    assert_eq!(encoded(&Head::Data { offset_bytes: 0x1000, bytes: 0 }, true), start(0, 0));
    let status = encoded(&Head::Allocated { bytes: 0x10000 }, true);
    assert_eq!(status, [start(5, 12), vec![0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0]].concat());
    let error = encoded(&Head::Error { errno: Errno::Io, message: "bad".into() }, true);
    assert_eq!(error, [start(0x8001, 9), vec![0, 0, 0, 5, 0, 3], b"bad".to_vec()].concat());
}

#[test]
fn long_messages_are_cut_at_a_character() {
    let message = "ü".repeat(500);
    let error = encoded(&Head::Error { errno: Errno::Io, message: format!("x{message}").into() }, true);
    assert!(error.len() <= HEAD_BYTES_MAX);
    assert!(std::str::from_utf8(&error[CHUNK_HEADER_BYTES + 6..]).is_ok());
}

proptest! {
    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse_client_flags(&bytes);
        let _ = parse_option_header(&bytes);
        let _ = parse_info_query(&bytes);
        let _ = parse_context_query(&bytes);
    }

    #[test]
    fn every_head_fits(offset_bytes: u64, bytes in 0..=REQUEST_BYTES_MAX, message in ".{0,300}", structured: bool) {
        let heads = [
            Head::Done,
            Head::Data { offset_bytes, bytes },
            Head::Allocated { bytes },
            Head::Error { errno: Errno::Io, message: message.into() },
        ];
        for head in heads {
            let length = encoded(&head, structured).len();
            prop_assert!((SIMPLE_REPLY_BYTES..=HEAD_BYTES_MAX).contains(&length));
        }
    }
}
