//! How lists are printed: as a table, whole or fitted to the terminal, by names alone, by chosen fields, or as JSON.

use clap::builder::{ArgPredicate, PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::Serialize;
use serde_json::Value;

use crate::terminal::{
    output::{Format, Output, data, line, message, more_note, whole},
    output_flags::FilterFlag,
    table::{Column, table},
};

const CELL_CHARS_MAX: usize = 400;

/// Flattened into the arguments of every command that prints a list.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct ListOutput {
    #[arg(
        short = 'o',
        long = "output",
        default_value = "text",
        default_value_if("jq", ArgPredicate::IsPresent, "json"),
        value_name = "FORMAT",
        hide_possible_values = true,
        conflicts_with = "columns",
        value_parser = formats(),
        help = "How to print it: text, wide (nothing shortened), name, json, or jsonl (one object per line)"
    )]
    format: ListFormat,
    /// Print these fields of each, as `-o json` names them: --columns runId,usage.costUsd
    #[arg(long, value_name = "FIELDS", value_delimiter = ',', conflicts_with = "jq")]
    columns: Vec<String>,
    #[command(flatten)]
    filter: FilterFlag,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListFormat {
    Wide,
    Name,
    Plain(Format),
}

fn formats() -> impl TypedValueParser<Value = ListFormat> {
    let names = ["text", "wide", "name", "json", "jsonl"].map(PossibleValue::new);
    PossibleValuesParser::new(names).map(|name| match name.as_str() {
        "wide" => ListFormat::Wide,
        "name" => ListFormat::Name,
        "json" => ListFormat::Plain(Format::Json),
        "jsonl" => ListFormat::Plain(Format::Jsonl),
        _ => ListFormat::Plain(Format::Text),
    })
}

impl ListOutput {
    /// Whether a table of the command's own columns is printed.
    pub(crate) fn is_table(&self) -> bool {
        self.columns.is_empty() && matches!(self.format, ListFormat::Wide | ListFormat::Plain(Format::Text))
    }

    /// Prints a list. An empty list prints nothing as text, so the caller should print a message instead.
    pub(crate) fn many<T: Serialize>(&self, values: &[T], text: impl FnOnce() -> String) {
        match self.format {
            _ if !self.columns.is_empty() => data(&fields_table(values, &self.columns)),
            ListFormat::Plain(format) => Output::new(format, self.filter.clone()).many(values, text),
            ListFormat::Wide | ListFormat::Name if values.is_empty() => {}
            ListFormat::Wide => data(&whole(text)),
            ListFormat::Name => data(&first_cells(&whole(text))),
        }
    }

    /// Prints a page of a list. Notes on stderr that there is more, or, if the list is empty, `nothing`.
    pub(crate) fn page<T: Serialize>(
        &self,
        values: &[T],
        has_more: bool,
        nothing: &str,
        text: impl FnOnce() -> String,
    ) {
        self.many(values, text);
        if values.is_empty() {
            message(nothing);
        } else if has_more {
            message(&more_note(values.len()));
        }
    }
}

/// The first column of a table, without its header.
fn first_cells(table: &str) -> String {
    let cell = |line: &str| line.split("  ").next().unwrap_or_default().trim_end().to_owned() + "\n";
    table.lines().skip(1).map(cell).collect()
}

/// A table of the fields. A path of names separated by dots leads into objects. A field that a value does not have is `-`.
fn fields_table<T: Serialize>(values: &[T], paths: &[String]) -> String {
    let rows = values.iter().map(|value| {
        let value = serde_json::to_value(value).unwrap_or_default();
        paths.iter().map(|path| field(&value, path)).collect::<Vec<_>>()
    });
    let rows: Vec<_> = rows.collect();
    let unknown = paths.iter().enumerate().filter(|(at, _)| rows.iter().all(|row| row[*at] == "-"));
    for (_, path) in unknown.filter(|_| !rows.is_empty()) {
        message(&format!("none of them has a field {path:?}; `-o json` shows the fields\n"));
    }
    if paths.len() == 1 {
        return rows.into_iter().map(|row| row.concat() + "\n").collect();
    }
    let header = |path: &String| Column::whole(path.to_uppercase().leak());
    table(&paths.iter().map(header).collect::<Vec<_>>(), rows, None)
}

fn field(value: &Value, path: &str) -> String {
    let found = path.split('.').try_fold(value, |value, name| match value {
        Value::Array(items) => items.get(name.parse::<usize>().ok()?),
        _ => value.get(name),
    });
    match found {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) => line(text, CELL_CHARS_MAX),
        Some(other) => line(&other.to_string(), CELL_CHARS_MAX),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_found_by_their_path() {
        let paths = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
        let runs = [
            json!({"runId": "run_1", "usage": {"costUsd": 0.5}, "labels": ["a"]}),
            json!({"runId": "run_2", "usage": null}),
        ];
        assert_eq!(fields_table(&runs, &paths(&["runId"])), "run_1\nrun_2\n");
        let table = "RUNID  USAGE.COSTUSD  LABELS.0\nrun_1  0.5            a\nrun_2  -              -\n";
        assert_eq!(fields_table(&runs, &paths(&["runId", "usage.costUsd", "labels.0"])), table);
    }

    #[test]
    fn names_are_the_first_column() {
        assert_eq!(first_cells("RUN    STATE\nrun_1  waiting for permission\nrun 2  done\n"), "run_1\nrun 2\n");
    }
}
