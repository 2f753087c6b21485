//! Plain tables that fit the terminal: no borders, no colour, no line wider than the terminal. Without a terminal nothing is
//! shortened.

use comfy_table::{ContentArrangement, Table, presets};

use crate::terminal::output::{columns, shorten};

/// The minimum width of a shortened column.
const COLUMN_CHARS_MIN: usize = 8;
/// The minimum width of a column of ids: the time in an id and a little more, which is enough to identify it.
const ID_CHARS_MIN: usize = 20;
const GAP: u16 = 2;

/// A plain table. To fit a width, the columns in `shrink` are shortened, the first one first; lines that are still too long
/// are shortened as well.
pub(crate) fn table(headers: &[&str], mut rows: Vec<Vec<String>>, shrink: &[usize], width: Option<usize>) -> String {
    if let Some(width) = width {
        fit(headers, &mut rows, shrink, width);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(headers.to_vec());
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP));
    }
    let lines = table.trim_fmt();
    lines.lines().map(|line| width.map_or_else(|| line.to_owned(), |width| shorten(line, width)) + "\n").collect()
}

fn fit(headers: &[&str], rows: &mut [Vec<String>], shrink: &[usize], width: usize) {
    let widest = |rows: &[Vec<String>], column: usize| {
        rows.iter().map(|row| columns(&row[column])).max().unwrap_or(0).max(columns(headers[column]))
    };
    let total: usize = (0..headers.len()).map(|column| widest(rows, column) + usize::from(GAP)).sum();
    let mut over = total.saturating_sub(width + usize::from(GAP));
    for &column in shrink {
        let wide = widest(rows, column);
        let holds_ids = rows.iter().any(|row| is_id(&row[column]));
        let least = if holds_ids { ID_CHARS_MIN } else { COLUMN_CHARS_MIN };
        let narrow = wide.saturating_sub(over).max(least.min(wide)).max(columns(headers[column]));
        if narrow < wide {
            rows.iter_mut().for_each(|row| row[column] = shorten(&row[column], narrow));
            over -= wide - narrow;
        }
    }
}

/// Whether this is a generated id: a prefix and 32 hexadecimal digits.
fn is_id(text: &str) -> bool {
    text.split_once('_').is_some_and(|(_, body)| body.len() == 32 && body.bytes().all(|b| b.is_ascii_hexdigit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_without_trailing_spaces() {
        let rows = vec![vec!["a".into(), "one".into()], vec!["long".into(), "2".into()]];
        assert_eq!(table(&["ID", "NAME"], rows, &[], None), "ID    NAME\na     one\nlong  2\n");
    }

    #[test]
    fn a_table_is_shortened_to_the_terminal() {
        let rows = vec![vec!["run_1".into(), "a-very-long-project-name".into(), "3s".into()]];
        let text = table(&["ID", "PROJECT", "AGE"], rows.clone(), &[1], Some(24));
        assert_eq!(text, "ID     PROJECT       AGE\nrun_1  a-very-long…  3s\n");
        assert_eq!(table(&["ID", "PROJECT", "AGE"], rows, &[1], Some(5)), "ID  …\nrun_…\n");
    }

    #[test]
    fn ids_are_shortened_last_and_stay_unambiguous() {
        let rows = vec![vec![format!("run_{:032x}", 7), "scripted".into()]];
        let text = |width| table(&["RUN", "PROFILE"], rows.clone(), &[1, 0], Some(width));
        assert_eq!(text(32), format!("{:<24}PROFILE\nrun_{}…  scripted\n", "RUN", "0".repeat(17)));
        assert!(text(25).contains(&format!("run_{}…  s", "0".repeat(15))), "{}", text(25));
    }
}
