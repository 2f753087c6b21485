//! Plain tables that fit the terminal: no rules, no colour, ids never cut.

use comfy_table::{ContentArrangement, Table, presets};

use crate::output::shorten;

/// The narrowest a column may become.
const COLUMN_CHARS_MIN: usize = 8;
const GAP: u16 = 2;

/// A plain table. Where it must fit a width, the columns named in `shrink` give way, the first one first.
pub fn table(headers: &[&str], mut rows: Vec<Vec<String>>, shrink: &[usize], width: Option<usize>) -> String {
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
    let mut out = table.trim_fmt();
    out.push('\n');
    out
}

fn fit(headers: &[&str], rows: &mut [Vec<String>], shrink: &[usize], width: usize) {
    let chars = |text: &str| text.chars().count();
    let widest = |rows: &[Vec<String>], column: usize| {
        rows.iter().map(|row| chars(&row[column])).max().unwrap_or(0).max(chars(headers[column]))
    };
    let total: usize = (0..headers.len()).map(|column| widest(rows, column) + usize::from(GAP)).sum();
    let mut over = total.saturating_sub(width + usize::from(GAP));
    for &column in shrink {
        let wide = widest(rows, column);
        let narrow = wide.saturating_sub(over).max(COLUMN_CHARS_MIN.min(wide)).max(chars(headers[column]));
        if narrow < wide {
            rows.iter_mut().for_each(|row| row[column] = shorten(&row[column], narrow));
            over -= wide - narrow;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_aligns_and_ends_without_blanks() {
        let rows = vec![vec!["a".into(), "one".into()], vec!["long".into(), "2".into()]];
        assert_eq!(table(&["ID", "NAME"], rows, &[], None), "ID    NAME\na     one\nlong  2\n");
    }

    #[test]
    fn a_table_fits_the_terminal_where_it_may_shrink() {
        let rows = vec![vec!["run_1".into(), "a-very-long-project-name".into(), "3s".into()]];
        let text = table(&["ID", "PROJECT", "AGE"], rows.clone(), &[1], Some(24));
        assert_eq!(text, "ID     PROJECT       AGE\nrun_1  a-very-long…  3s\n");
        assert!(table(&["ID", "PROJECT", "AGE"], rows, &[1], Some(5)).contains("run_1  a-very-…  3s"));
    }
}
