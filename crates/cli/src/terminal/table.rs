//! Plain tables that fit the terminal: no borders, no line wider than the terminal. Without a terminal nothing is shortened
//! or left out.
//!
//! On a terminal ids are shortened to what is unique in their column. If the table is still too wide, columns give way in
//! the order of their ranks: some are left out, some are shortened. Columns that are kept are never shortened, so that the
//! state of each row stays readable.

use std::collections::BTreeSet;

use comfy_table::{ContentArrangement, Table, presets};
use ostler_protocol::kernel::runs::RunState;

use crate::terminal::{
    output::{columns, shorten},
    paint::Paint,
};

/// The minimum width of a shortened column.
const COLUMN_CHARS_MIN: usize = 8;
/// The fewest digits of a shortened id: the time at which it was made, to the millisecond.
const ID_DIGITS_MIN: usize = 12;
const GAP: usize = 2;

/// A column, and what happens to it if the terminal is too narrow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    header: &'static str,
    gives: Gives,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Gives {
    Nothing,
    /// It is left out. The lowest rank gives way first.
    Way(u8),
    /// It is shortened, as far as necessary.
    Room(u8),
}

impl Column {
    /// Always shown whole. For states, and for ids, which are shortened to what is unique.
    pub(crate) const fn whole(header: &'static str) -> Self {
        Self { header, gives: Gives::Nothing }
    }

    /// Left out if there is no room. The lowest rank is left out first.
    pub(crate) const fn spare(rank: u8, header: &'static str) -> Self {
        Self { header, gives: Gives::Way(rank) }
    }

    /// Shortened if there is no room. The lowest rank is shortened first.
    pub(crate) const fn text(rank: u8, header: &'static str) -> Self {
        Self { header, gives: Gives::Room(rank) }
    }

    fn rank(self) -> Option<u8> {
        match self.gives {
            Gives::Nothing => None,
            Gives::Way(rank) | Gives::Room(rank) => Some(rank),
        }
    }
}

/// A plain table that is at most this wide.
pub(crate) fn table(columns: &[Column], rows: Vec<Vec<String>>, width: Option<usize>) -> String {
    lines(columns, rows, width).into_iter().map(|line| line + "\n").collect()
}

/// A table whose rows begin or continue with a state, in the colour of that state. `states` has one for each row.
pub(crate) fn table_of_states(
    columns: &[Column],
    rows: Vec<Vec<String>>,
    states: &[Option<RunState>],
    width: Option<usize>,
    paint: Paint,
) -> String {
    let words: Vec<_> = columns
        .iter()
        .position(|column| column.header == "STATE")
        .map_or_else(Vec::new, |state| rows.iter().map(|row| row[state].clone()).collect());
    let lines = lines(columns, rows, width);
    let painted = lines.into_iter().enumerate().map(|(index, line)| {
        let row = index.checked_sub(1);
        let state = row.and_then(|row| *states.get(row)?);
        match (state, row.and_then(|row| words.get(row))) {
            (Some(state), Some(words)) => {
                line.replacen(&format!("  {words}"), &format!("  {}", paint.state(state, words)), 1)
            }
            _ => line,
        }
    });
    painted.map(|line| line + "\n").collect()
}

fn lines(columns: &[Column], mut rows: Vec<Vec<String>>, width: Option<usize>) -> Vec<String> {
    let mut columns = columns.to_vec();
    if let Some(width) = width {
        let id_widths = shorten_ids(&mut rows, columns.len());
        fit(&mut columns, &mut rows, id_widths, width);
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(columns.iter().map(|column| column.header));
    table.add_rows(rows);
    for column in table.column_iter_mut() {
        column.set_padding((0, GAP as u16));
    }
    let text = table.trim_fmt();
    text.lines().map(|line| width.map_or_else(|| line.to_owned(), |width| shorten(line, width))).collect()
}

fn fit(all: &mut Vec<Column>, rows: &mut [Vec<String>], mut id_widths: Vec<usize>, width: usize) {
    let widest = |all: &[Column], rows: &[Vec<String>], column: usize| {
        rows.iter().map(|row| columns(&row[column])).max().unwrap_or(0).max(columns(all[column].header))
    };
    loop {
        let total: usize = (0..all.len()).map(|column| widest(all, rows, column) + GAP).sum();
        let over = total.saturating_sub(width + GAP);
        let next = (0..all.len()).filter_map(|column| Some((all[column].rank()?, column))).min();
        let Some((_, column)) = next.filter(|_| over > 0) else { return };
        if let Gives::Way(_) = all[column].gives {
            all.remove(column);
            id_widths.remove(column);
            rows.iter_mut().for_each(|row| drop(row.remove(column)));
            continue;
        }
        all[column].gives = Gives::Nothing;
        let wide = widest(all, rows, column);
        // A shorter id would identify nothing.
        let least = COLUMN_CHARS_MIN.max(id_widths[column]).min(wide).max(columns(all[column].header));
        let narrow = wide.saturating_sub(over).max(least);
        rows.iter_mut().for_each(|row| row[column] = shorten(&row[column], narrow));
    }
}

/// Shortens generated ids to what is unique in their column. Every command takes the beginning of an id. Returns the width of
/// the widest one of each column, 0 where there are none.
fn shorten_ids(rows: &mut [Vec<String>], number: usize) -> Vec<usize> {
    let mut widths = vec![0; number];
    for (column, width) in widths.iter_mut().enumerate() {
        let ids: BTreeSet<String> =
            rows.iter().map(|row| row[column].clone()).filter(|cell| id_start(cell).is_some()).collect();
        for row in rows.iter_mut() {
            let short = short_id(&row[column], ids.iter().map(String::as_str));
            if id_start(&row[column]).is_some() {
                *width = columns(&short).max(*width);
            }
            row[column] = short;
        }
    }
    widths
}

/// The beginning of an id that no other of these begins with. Other text is unchanged.
pub(crate) fn short_id<'a>(id: &str, others: impl Iterator<Item = &'a str>) -> String {
    let Some(start) = id_start(id) else { return id.to_owned() };
    let shared = |other: &str| id.bytes().zip(other.bytes()).take_while(|(one, two)| one == two).count();
    let unique = others.filter(|other| *other != id).map(|other| shared(other) + 1).max().unwrap_or(0);
    id[..unique.max(start + ID_DIGITS_MIN).min(id.len())].to_owned()
}

/// Where the digits of a generated id begin: behind `run_`, or at the start of a UUID. `None` for other text.
fn id_start(text: &str) -> Option<usize> {
    let start = text.find('_').map_or(0, |at| at + 1);
    let digits = text.get(start..)?.bytes().filter(|b| *b != b'-');
    let is_id = digits.clone().count() == 32 && digits.clone().all(|b| b.is_ascii_hexdigit());
    is_id.then_some(start)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: [Column; 3] = [Column::whole("ID"), Column::text(1, "PROJECT"), Column::whole("AGE")];

    #[test]
    fn columns_are_aligned_without_trailing_spaces() {
        let rows = vec![vec!["a".into(), "one".into()], vec!["long".into(), "2".into()]];
        let columns = [Column::whole("ID"), Column::whole("NAME")];
        assert_eq!(table(&columns, rows, None), "ID    NAME\na     one\nlong  2\n");
    }

    #[test]
    fn a_table_is_shortened_to_the_terminal() {
        let rows = vec![vec!["run_1".into(), "a-very-long-project-name".into(), "3s".into()]];
        let text = table(&PLAIN, rows.clone(), Some(24));
        assert_eq!(text, "ID     PROJECT       AGE\nrun_1  a-very-long…  3s\n");
        assert_eq!(table(&PLAIN, rows, Some(5)), "ID  …\nrun_…\n");
    }

    #[test]
    fn a_spare_column_is_left_out_before_a_text_is_shortened() {
        let columns =
            [Column::whole("STATE"), Column::spare(1, "EVENTS"), Column::spare(2, "AGE"), Column::text(3, "TITLE")];
        let rows = vec![["waiting for permission", "12", "3s", "Tuesday's review"].map(str::to_owned).to_vec()];
        assert_eq!(
            table(&columns, rows.clone(), Some(46)),
            "STATE                   AGE  TITLE\nwaiting for permission  3s   Tuesday's review\n"
        );
        assert_eq!(
            table(&columns, rows, Some(34)),
            "STATE                   TITLE\nwaiting for permission  Tuesday's…\n"
        );
    }

    #[test]
    fn ids_are_shortened_to_what_is_unique_on_a_terminal() {
        let id = |last: u128| format!("run_{:032x}", 0x01a1_e240_0160_7a4c_0000_0000_0000_0000_u128 + last);
        let rows = |ids: &[String]| ids.iter().map(|id| vec![id.clone()]).collect::<Vec<_>>();
        let columns = [Column::whole("RUN")];
        assert_eq!(table(&columns, rows(&[id(1)]), Some(80)), "RUN\nrun_01a1e2400160\n");
        let text = table(&columns, rows(&[id(1), id(0x20 << 56)]), Some(80));
        assert_eq!(text, "RUN\nrun_01a1e24001607a4c0\nrun_01a1e24001607a4c2\n");
        assert_eq!(table(&columns, rows(&[id(1)]), None), format!("RUN\n{}\n", id(1)));
    }

    #[test]
    fn an_id_is_not_shortened_further_than_to_what_is_unique() {
        let columns = [Column::text(1, "SESSION"), Column::whole("STATE"), Column::text(2, "TITLE")];
        let id = format!("ses_{:032x}", 0x01a1_e240_0160_7a4c_0000_0000_0000_0000_u128);
        let rows = vec![vec![id, "completed, unread".into(), "The review of Tuesday, with everything".into()]];
        assert_eq!(
            table(&columns, rows, Some(60)).lines().nth(1),
            Some("ses_01a1e2400160  completed, unread  The review of Tuesday,…")
        );
    }

    #[test]
    fn a_state_has_its_colour() {
        let columns = [Column::whole("SESSION"), Column::whole("STATE")];
        let rows = vec![vec!["failed".into(), "failed, unread".into()]];
        let states = [Some(RunState::Failed)];
        let text = table_of_states(&columns, rows.clone(), &states, Some(80), Paint::COLOURED);
        assert_eq!(text.lines().nth(1), Some("failed   \x1b[1;31mfailed, unread\x1b[0m"));
        let plain = table_of_states(&columns, rows, &states, Some(80), Paint::PLAIN);
        assert_eq!(plain.lines().nth(1), Some("failed   failed, unread"));
    }
}
