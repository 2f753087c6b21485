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
    output::{columns, folded, shorten, wrapped},
    paint::Paint,
};

/// The minimum width of a shortened column.
const COLUMN_CHARS_MIN: usize = 8;
/// The width up to which words of a wrapped column stay whole.
const WORD_CHARS_MAX: usize = 24;
/// The fewest digits of a shortened id: the time at which it was made, to the millisecond.
const ID_DIGITS_MIN: usize = 12;
const GAP: usize = 2;

/// A column, and what happens to it if the terminal is too narrow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    header: &'static str,
    narrowing: Narrowing,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Narrowing {
    Never,
    /// It is left out. The column with the lowest rank is narrowed first.
    LeaveOut(u8),
    /// It is shortened, as far as necessary.
    Shorten(u8),
    /// It is shortened to no less than a width at first, and as far as necessary at a later rank.
    ShortenTo {
        rank: u8,
        least: usize,
        rest: u8,
    },
    /// It is wrapped between words, over as many lines as necessary.
    Wrap(u8),
    /// It was shortened as far as possible. It is left out if even that is not enough.
    Done,
}

impl Column {
    /// Always shown whole. For states, and for ids, which are shortened to what is unique.
    pub(crate) const fn whole(header: &'static str) -> Self {
        Self { header, narrowing: Narrowing::Never }
    }

    /// Left out if there is no room. The lowest rank is left out first.
    pub(crate) const fn spare(rank: u8, header: &'static str) -> Self {
        Self { header, narrowing: Narrowing::LeaveOut(rank) }
    }

    /// Shortened if there is no room. The lowest rank is shortened first.
    pub(crate) const fn text(rank: u8, header: &'static str) -> Self {
        Self { header, narrowing: Narrowing::Shorten(rank) }
    }

    /// Shortened in two steps: at `rank` to no less than `least` columns, and at the rank `rest` as far as necessary. For
    /// texts whose beginning is enough, beside columns that would otherwise be left out because of one long text.
    pub(crate) const fn long_text(rank: u8, least: usize, rest: u8, header: &'static str) -> Self {
        Self { header, narrowing: Narrowing::ShortenTo { rank, least, rest } }
    }

    /// Wrapped over several lines if there is no room. For sentences, whose end matters. Not in a table of states.
    pub(crate) const fn wrapped(rank: u8, header: &'static str) -> Self {
        Self { header, narrowing: Narrowing::Wrap(rank) }
    }

    pub(crate) fn is_wrapped(self) -> bool {
        matches!(self.narrowing, Narrowing::Wrap(_))
    }

    pub(crate) fn header(self) -> &'static str {
        self.header
    }

    /// The same column, never left out.
    pub(crate) const fn never_left_out(self) -> Self {
        Self::whole(self.header)
    }

    fn rank(self) -> Option<u8> {
        match self.narrowing {
            Narrowing::Never | Narrowing::Done => None,
            Narrowing::LeaveOut(rank)
            | Narrowing::Shorten(rank)
            | Narrowing::ShortenTo { rank, .. }
            | Narrowing::Wrap(rank) => Some(rank),
        }
    }
}

/// A plain table that is at most this wide.
pub(crate) fn table(columns: &[Column], rows: Vec<Vec<String>>, width: Option<usize>) -> String {
    let lines = lines(columns, rows, width).into_iter();
    lines.map(|line| width.map_or_else(|| line.clone(), |width| shorten(&line, width)) + "\n").collect()
}

/// A table whose rows begin or continue with a state, in the colour of that state. `states` has one for each row. A row that
/// is still too wide is wrapped, so that the state is never cut.
pub(crate) fn table_of_states(
    columns: &[Column],
    rows: Vec<Vec<String>>,
    states: &[Option<RunState>],
    width: Option<usize>,
    paint: Paint,
) -> String {
    state_rows(columns, rows, states, width, paint).concat()
}

/// The header and the rows of [`table_of_states`], for a caller that adds lines below a row.
pub(crate) fn state_rows(
    columns: &[Column],
    rows: Vec<Vec<String>>,
    states: &[Option<RunState>],
    width: Option<usize>,
    paint: Paint,
) -> Vec<String> {
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
    painted.map(|line| folded(&without_padding(line, width), width) + "\n").collect()
}

/// A line that is too wide has no columns to align, so its cells are separated by one gap each.
fn without_padding(line: String, width: Option<usize>) -> String {
    if width.is_none_or(|width| columns(&line) <= width) {
        return line;
    }
    let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
    cells.collect::<Vec<_>>().join("  ")
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
    table.trim_fmt().lines().map(str::to_owned).collect()
}

fn fit(all: &mut Vec<Column>, rows: &mut [Vec<String>], mut id_widths: Vec<usize>, width: usize) {
    let widest = |all: &[Column], rows: &[Vec<String>], column: usize| {
        let lines = rows.iter().flat_map(|row| row[column].lines());
        lines.map(columns).max().unwrap_or(0).max(columns(all[column].header))
    };
    // The cells of shortened columns as they were, by header, the last one shortened at the end.
    let mut whole: Vec<(&str, Vec<String>)> = vec![];
    loop {
        let total: usize = (0..all.len()).map(|column| widest(all, rows, column) + GAP).sum();
        let over = total.saturating_sub(width + GAP);
        let next = (0..all.len()).filter_map(|column| Some((all[column].rank()?, column))).min();
        // The first column names the row.
        let last_resort = || (1..all.len()).rev().find(|column| all[*column].narrowing == Narrowing::Done);
        let next = next.map(|(_, column)| column).or_else(last_resort);
        let Some(column) = next.filter(|_| over > 0) else {
            // A column that was left out afterwards may have made room.
            let mut room = (width + GAP).saturating_sub(total);
            for (header, cells) in whole.iter().rev() {
                let Some(column) = all.iter().position(|column| column.header == *header) else { continue };
                let before = widest(all, rows, column);
                rows.iter_mut().zip(cells).for_each(|(row, cell)| row[column] = shorten(cell, before + room));
                room -= widest(all, rows, column).saturating_sub(before).min(room);
            }
            return;
        };
        if matches!(all[column].narrowing, Narrowing::LeaveOut(_) | Narrowing::Done) {
            all.remove(column);
            id_widths.remove(column);
            rows.iter_mut().for_each(|row| drop(row.remove(column)));
            continue;
        }
        let is_wrapped = matches!(all[column].narrowing, Narrowing::Wrap(_));
        let (narrowing, least) = match all[column].narrowing {
            Narrowing::Wrap(_) => (Narrowing::Never, COLUMN_CHARS_MIN),
            Narrowing::ShortenTo { least, rest, .. } => (Narrowing::Shorten(rest), least),
            _ => (Narrowing::Done, COLUMN_CHARS_MIN),
        };
        all[column].narrowing = narrowing;
        if !is_wrapped && !whole.iter().any(|(header, _)| *header == all[column].header) {
            whole.push((all[column].header, rows.iter().map(|row| row[column].clone()).collect()));
        }
        let wide = widest(all, rows, column);
        let widest_word = || rows.iter().flat_map(|row| row[column].split(' ')).map(columns).max().unwrap_or(0);
        let words = if is_wrapped { widest_word().min(WORD_CHARS_MAX) } else { 0 };
        // A shorter id would identify nothing.
        let least = least.max(words).max(id_widths[column]).min(wide).max(columns(all[column].header));
        let narrow = wide.saturating_sub(over).max(least);
        let fitted = |text: &str| if is_wrapped { wrapped(text, narrow).join("\n") } else { shorten(text, narrow) };
        rows.iter_mut().for_each(|row| row[column] = fitted(&row[column]));
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
    fn a_long_text_is_shortened_before_a_column_is_left_out() {
        let columns = [Column::whole("ID"), Column::long_text(1, 10, 3, "NAME"), Column::spare(2, "AGE")];
        let rows = vec![["1", "a name that is rather long", "3s"].map(str::to_owned).to_vec()];
        assert_eq!(table(&columns, rows.clone(), Some(20)), "ID  NAME         AGE\n1   a name tha…  3s\n");
        assert_eq!(table(&columns, rows.clone(), Some(16)), "ID  NAME\n1   a name that…\n");
        assert_eq!(table(&columns, rows, Some(12)), "ID  NAME\n1   a name …\n");
    }

    #[test]
    fn a_sentence_is_wrapped_below_its_header() {
        let columns = [Column::whole("PROFILE"), Column::wrapped(1, "NOTE")];
        let rows = vec![["model", "it needs config.toml with base_url"].map(str::to_owned).to_vec()];
        assert_eq!(
            table(&columns, rows.clone(), Some(30)),
            "PROFILE  NOTE\nmodel    it needs config.toml\n         with base_url\n"
        );
        assert_eq!(table(&columns, rows, None), "PROFILE  NOTE\nmodel    it needs config.toml with base_url\n");
    }

    #[test]
    fn a_state_is_wrapped_where_it_does_not_fit() {
        let columns = [Column::whole("RUN"), Column::whole("STATE"), Column::text(1, "SESSION")];
        let rows =
            vec![["run_1", "waiting for permission, cancelling", "a-rather-long-name"].map(str::to_owned).to_vec()];
        for width in 14..60 {
            let text = table_of_states(&columns, rows.clone(), &[None], Some(width), Paint::PLAIN);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
            let words: Vec<_> = text.split_whitespace().collect();
            assert!(words.join(" ").contains("run_1 waiting for permission, cancelling"), "{text}");
        }
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
