//! The tables of `docs/formats.md`, for the tests that hold them against structs.

/// A constant's name in the document, its fields by name, offset and size, and the bytes of the struct.
pub type Table = (&'static str, &'static [(&'static str, usize, usize)], usize);

/// Checks that the document draws each struct as it is, without a hole.
pub fn check(tables: &[Table]) {
    let document = include_str!("../../../../docs/formats.md");
    for (constant, fields, bytes) in tables {
        let fields: Vec<(String, usize, usize)> =
            fields.iter().map(|(name, offset, size)| ((*name).to_owned(), *offset, *size)).collect();
        assert_eq!(drawn(document, constant), fields, "{constant}");
        let mut end = 0;
        for (name, offset, size) in &fields {
            assert_eq!(*offset, end, "{constant}: a hole before {name}");
            end = offset + size;
        }
        assert_eq!(end, *bytes, "{constant}");
    }
}

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
            let name = cells[3].trim_matches('`').to_string();
            (name, cells[1].parse().expect(row), cells[2].parse().expect(row))
        })
        .collect()
}
