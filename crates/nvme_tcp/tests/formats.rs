//! Holds the tables of `docs/formats.md` against the structs of this crate: a table under a heading that names a constant lists
//! exactly that constant's fields, in order, with offset and size.

#[path = "../../layout/tests/formats/drawn.rs"]
mod drawn;

use nvme_tcp::status::Status;
use nvme_tcp::vendor::{admin_opcode, opcode};
use nvme_tcp::{reservation, vendor};

#[test]
fn docs_draw_what_the_code_writes() {
    drawn::check(&[
        ("reservation::HEADER_FIELDS", reservation::HEADER_FIELDS, 128),
        ("reservation::REGISTRANT_FIELDS", reservation::REGISTRANT_FIELDS, 256),
        ("vendor::ORDER_FIELDS", vendor::ORDER_FIELDS, 64),
        ("vendor::PEER_FIELDS", vendor::PEER_FIELDS, 64),
        ("vendor::SETTLE_FIELDS", vendor::SETTLE_FIELDS, 64),
        ("vendor::ATTACH_FIELDS", vendor::ATTACH_FIELDS, 64),
        ("vendor::ATTACH_MEMBER_FIELDS", vendor::ATTACH_MEMBER_FIELDS, 64),
        ("vendor::REPORT_FIELDS", vendor::REPORT_FIELDS, vendor::REPORT_BYTES),
        ("vendor::LEDGER_STEP_FIELDS", vendor::LEDGER_STEP_FIELDS, vendor::LEDGER_STEP_BYTES),
        ("vendor::LEDGER_FIELDS", vendor::LEDGER_FIELDS, 64),
        ("vendor::LEDGER_RANGE_FIELDS", vendor::LEDGER_RANGE_FIELDS, 16),
        ("vendor::CAPABILITY_FIELDS", vendor::CAPABILITY_FIELDS, vendor::CAPABILITY_BYTES),
    ]);
}

/// The rows of the vendor commands' section whose first cell is a number such as `C1h`: the number, and the second cell.
fn numbered() -> Vec<(u8, &'static str)> {
    let document = include_str!("../../../docs/formats.md");
    let (_, section) = document.split_once("## Vendor commands of the fabric").expect("the section");
    let cells = section.lines().filter_map(|row| row.strip_prefix("| ")?.split_once("h | "));
    cells
        .filter_map(|(number, rest)| Some((u8::from_str_radix(number, 16).ok()?, rest.split(" |").next()?)))
        .collect()
}

#[test]
fn docs_list_opcodes_and_statuses_as_the_code_has_them() {
    let mut expected = vec![
        (opcode::CONTRIBUTE_NEW, "Contribute, with new data"),
        (opcode::CONTRIBUTE, "Contribute"),
        (opcode::CONTRIBUTE_AND_READ, "Contribute and read"),
        (opcode::REDUCE_TO_DRIVE, "Reduce to drive"),
        (opcode::REDUCE_TO_HOST, "Reduce to host"),
        (opcode::PEER, "Peer"),
        (opcode::SETTLE, "Settle"),
        (opcode::DELTA, "Delta"),
        (admin_opcode::ATTACH, "Attach"),
        (admin_opcode::ATTACH_REPORT, "Attach report"),
        (admin_opcode::PEER_OPEN, "Peer open"),
        (admin_opcode::LEDGER_STEP, "Ledger step"),
        (admin_opcode::LEDGER, "Ledger"),
    ];
    let statuses = (1..=0x0a).map(|code| {
        let words = Status::vendor(code).words().expect("a status of Twill's");
        (code, words.strip_prefix("Twill: ").expect("whose status it is"))
    });
    expected.extend(statuses);
    assert_eq!(numbered(), expected);
}
