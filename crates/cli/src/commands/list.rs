//! What the list commands have in common: their flags, their table, the hint when there is nothing to list, and reading
//! every page.

use ostler_protocol::{Failure, Timestamp};
use serde::Serialize;

use crate::{
    exit_codes,
    terminal::{
        list_output::ListOutput,
        output,
        table::{Column, table},
        times::{Times, now},
    },
};

/// Flattened into the arguments of a list command.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ListFlags {
    /// Show at most this many
    #[arg(short = 'n', long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    pub limit: u32,
    #[command(flatten)]
    pub times: Times,
    #[command(flatten)]
    pub output: ListOutput,
}

impl ListFlags {
    pub(crate) fn parts(&self) -> (u32, Times, &ListOutput) {
        (self.limit, self.times, &self.output)
    }
}

/// How a list of `T` is printed.
pub(crate) struct Listing<T> {
    /// Printed to stderr if there is nothing to list, with what to do about it.
    pub nothing: &'static str,
    pub columns: &'static [Column],
    pub row: fn(&T, Times, Timestamp) -> Vec<String>,
}

impl<T: Serialize> Listing<T> {
    /// Prints one page, newest first, and notes on stderr if there is more.
    pub(crate) fn print(&self, page: &[T], has_more: bool, times: Times, output: &ListOutput) -> Result<u8, Failure> {
        output.page(page, has_more, self.nothing, || self.render(page, times, now(), output::width()));
        Ok(exit_codes::OK)
    }

    pub(crate) fn render(&self, page: &[T], times: Times, now: Timestamp, width: Option<usize>) -> String {
        let mut rows: Vec<_> = page.iter().map(|one| (self.row)(one, times, now)).collect();
        let text = table(self.columns, rows.clone(), width);
        let commands = take_commands(self.columns, &mut rows);
        if width.is_none() || commands.iter().all(|command| text.contains(command)) {
            return text;
        }
        // A command to copy is not broken: it has a line of its own.
        let lines: String = commands.iter().map(|command| format!("  {command}\n")).collect();
        table(self.columns, rows, width) + &lines
    }
}

/// Takes the commands with which wrapped cells end out of these rows.
fn take_commands(columns: &[Column], rows: &mut [Vec<String>]) -> Vec<String> {
    let mut commands = vec![];
    for row in rows {
        for (_, cell) in columns.iter().zip(row).filter(|(column, _)| column.is_wrapped()) {
            let Some((before, command)) = output::split_command(cell) else { continue };
            commands.push(command.to_owned());
            *cell = before.trim_end().trim_end_matches(':').to_owned();
        }
    }
    commands
}

/// Reads every page of a list. `read` takes a cursor and returns the items of a page and the next cursor.
pub(crate) async fn all_pages<T>(
    mut read: impl AsyncFnMut(Option<String>) -> Result<(Vec<T>, Option<String>), Failure>,
) -> Result<Vec<T>, Failure> {
    let (mut all, mut cursor) = (vec![], None);
    loop {
        let (items, next) = read(cursor).await?;
        all.extend(items);
        cursor = next;
        if cursor.is_none() {
            return Ok(all);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTES: Listing<&str> = Listing {
        nothing: "",
        columns: &[Column::whole("NAME"), Column::wrapped(1, "NOTE")],
        row: |note, _, _| vec!["a".to_owned(), (*note).to_owned()],
    };

    #[test]
    fn a_command_in_a_note_is_not_broken() {
        let render = |note, width| NOTES.render(&[note], Times::default(), Timestamp::UNIX_EPOCH, width);
        let note = "not set up: ostler profiles set codex < key.txt";
        let whole = format!("NAME  NOTE\na     {note}\n");
        assert_eq!([render(note, Some(80)), render(note, None)], [whole.clone(), whole]);
        assert_eq!(render(note, Some(40)), "NAME  NOTE\na     not set up\n  ostler profiles set codex < key.txt\n");
        assert_eq!(render("a note without commands", Some(20)), "NAME  NOTE\na     a note without\n      commands\n");
    }

    #[tokio::test]
    async fn every_page_is_read_in_order() {
        let all = all_pages(async |cursor: Option<String>| {
            let page: i32 = cursor.map_or(0, |cursor| cursor.parse().unwrap());
            Ok((vec![page * 2, page * 2 + 1], (page < 2).then(|| (page + 1).to_string())))
        });
        assert_eq!(all.await.unwrap(), [0, 1, 2, 3, 4, 5]);
    }
}
