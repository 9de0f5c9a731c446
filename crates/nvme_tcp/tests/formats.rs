//! Holds the tables of `docs/formats.md` against the structs of this crate: a table under a heading that names a constant lists
//! exactly that constant's fields, in order, with offset and size.

use nvme_tcp::reservation;

/// Rows `| offset | size | name | … |` of the table after the heading that has `constant` in it.
fn drawn(document: &str, constant: &str) -> Vec<(String, usize, usize)> {
    let heading = format!("(`{constant}`)");
    let (_, after) = document
        .split_once(&heading)
        .unwrap_or_else(|| panic!("docs/formats.md has no heading with {heading}"));
    after
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|row| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            (
                cells[3].trim_matches('`').to_owned(),
                cells[1].parse().expect(row),
                cells[2].parse().expect(row),
            )
        })
        .collect()
}

#[test]
fn docs_draw_what_the_code_writes() {
    let document = include_str!("../../../docs/formats.md");
    for (constant, fields, bytes) in [
        ("reservation::HEADER_FIELDS", reservation::HEADER_FIELDS, 128),
        ("reservation::REGISTRANT_FIELDS", reservation::REGISTRANT_FIELDS, 256),
    ] {
        let fields: Vec<(String, usize, usize)> =
            fields.iter().map(|(name, offset, size)| ((*name).to_owned(), *offset, *size)).collect();
        assert_eq!(drawn(document, constant), fields, "{constant}");
        let mut end = 0;
        for (name, offset, size) in &fields {
            assert_eq!(*offset, end, "{constant}: a hole before {name}");
            end = offset + size;
        }
        assert_eq!(end, bytes, "{constant}");
    }
}
