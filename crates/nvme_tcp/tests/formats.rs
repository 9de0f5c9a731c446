//! Holds the tables of `docs/formats.md` against the structs of this crate: a table under a heading that names a constant lists
//! exactly that constant's fields, in order, with offset and size.

#[path = "../../layout/tests/formats/drawn.rs"]
mod drawn;

use nvme_tcp::reservation;

#[test]
fn docs_draw_what_the_code_writes() {
    drawn::check(&[
        ("reservation::HEADER_FIELDS", reservation::HEADER_FIELDS, 128),
        ("reservation::REGISTRANT_FIELDS", reservation::REGISTRANT_FIELDS, 256),
    ]);
}
