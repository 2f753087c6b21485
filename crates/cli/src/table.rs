//! Plain tables that fit the terminal: no rules, no colour, no line longer than the terminal is wide. Where there is no
//! terminal nothing is cut.

use comfy_table::{ContentArrangement, Table, presets};

use crate::output::{columns, shorten};

/// The narrowest a column may become.
const COLUMN_CHARS_MIN: usize = 8;
/// The narrowest a column of ids may become: its time and a little more, which is enough to name the thing.
const ID_CHARS_MIN: usize = 20;
const GAP: u16 = 2;

/// A plain table. Where it must fit a width, the columns named in `shrink` give way, the first one first; what is then still
/// too long is cut.
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

/// One that the server gave: `run_` and a long number.
fn is_id(text: &str) -> bool {
    text.split_once('_').is_some_and(|(_, body)| body.len() == 32 && body.bytes().all(|b| b.is_ascii_hexdigit()))
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
        assert_eq!(table(&["ID", "PROJECT", "AGE"], rows, &[1], Some(5)), "ID  …\nrun_…\n");
    }

    #[test]
    fn ids_give_way_last_and_stay_long_enough_to_name_the_thing() {
        let rows = vec![vec![format!("run_{:032x}", 7), "scripted".into()]];
        let text = |width| table(&["RUN", "PROFILE"], rows.clone(), &[1, 0], Some(width));
        assert_eq!(text(32), format!("{:<24}PROFILE\nrun_{}…  scripted\n", "RUN", "0".repeat(17)));
        assert!(text(25).contains(&format!("run_{}…  s", "0".repeat(15))), "{}", text(25));
    }
}
