//! Writes tables as CSV that is safe to open in a spreadsheet.

use bytes::Bytes;

/// Encodes rows as CSV. An apostrophe is put before a cell that a spreadsheet would evaluate as a formula.
///
/// # Errors
/// The message of the CSV writer. It writes to memory, so none is expected.
pub(crate) fn encode_rows<const N: usize>(
    rows: impl IntoIterator<Item = [String; N]>,
) -> Result<Bytes, String> {
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(Vec::new());
    for row in rows {
        writer.write_record(row.map(escape_formula)).map_err(|error| error.to_string())?;
    }
    writer.into_inner().map(Bytes::from).map_err(|error| error.to_string())
}

/// A cell that no spreadsheet evaluates. Some skip white space and control characters before they look for a formula.
fn escape_formula(cell: String) -> String {
    let begins = |c: char| matches!(c, '=' | '+' | '-' | '@' | '＝' | '＋' | '－' | '＠' | '|' | '%');
    let first = cell.chars().find(|c| !c.is_whitespace() && !c.is_control() && *c != '\u{feff}');
    let starts_oddly = cell.starts_with(['\t', '\r', '\n']);
    if first.is_some_and(begins) || starts_oddly { format!("'{cell}") } else { cell }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_formula_becomes_a_text() {
        for formula in [
            "=1+1",
            "+1",
            "-1",
            "@SUM(A1)",
            "\t=1",
            "\r=1",
            " =1",
            "\n=1",
            "\u{feff}=1",
            "＝1",
            "\tx",
            "\u{0}=1",
        ] {
            assert_eq!(escape_formula(formula.to_owned()), format!("'{formula}"));
        }
        for plain in ["", "ada@example.com", "a=b", "x", "1", "süß"] {
            assert_eq!(escape_formula(plain.to_owned()), plain);
        }
    }

    proptest! {
        #[test]
        fn rows_round_trip(cells in prop::collection::vec(any::<[String; 3]>(), 1..8)) {
            let text = encode_rows(cells.clone()).unwrap();
            let mut reader = csv::ReaderBuilder::new().has_headers(false).from_reader(&text[..]);
            let read: Vec<Vec<String>> =
                reader.records().map(|r| r.unwrap().iter().map(str::to_owned).collect()).collect();
            let written: Vec<Vec<String>> =
                cells.into_iter().map(|row| row.map(escape_formula).into()).collect();
            prop_assert_eq!(read, written);
        }
    }
}
