//! The flags by which every command prints data: `-o` chooses the format, `--jq` filters the JSON.

use std::io::IsTerminal;

use clap::{
    ArgMatches, ValueEnum,
    builder::ArgPredicate,
    error::{Error, ErrorKind},
    parser::ValueSource,
};
use ostler_protocol::Failure;
use serde::Serialize;

use crate::{
    errors,
    terminal::{
        jq::JqFilter,
        output::{data, fold_sentence, json, json_line, message, more_note, width},
        paint::Paint,
    },
};

/// Flattened into the arguments of every command that prints data.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Output {
    #[arg(
        short = 'o',
        long = "output",
        value_enum,
        default_value = "text",
        default_value_if("jq", ArgPredicate::IsPresent, "json"),
        value_name = "FORMAT",
        hide_possible_values = true,
        help = "How to print it: text, json, or jsonl (one object per line)"
    )]
    pub format: Format,
    #[command(flatten)]
    filter: FilterFlag,
}

/// Filters JSON before it is printed.
#[derive(clap::Args, Clone, Debug, Default)]
pub(crate) struct FilterFlag {
    /// Filter the JSON by this expression of jq; strings are printed raw
    #[arg(long, value_name = "EXPR", value_parser = JqFilter::parse)]
    jq: Option<JqFilter>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON document.
    Json,
    /// One JSON object per line.
    Jsonl,
}

impl Output {
    /// Prints in this format, with a filter for JSON.
    pub(crate) fn new(format: Format, filter: FilterFlag) -> Self {
        Self { format, filter }
    }

    /// Prints one value.
    pub(crate) fn one<T: Serialize>(&self, value: &T, text: impl FnOnce() -> String) {
        match self.format {
            Format::Text => data(&fold_sentence(text(), width())),
            Format::Json => self.document(value),
            Format::Jsonl => self.record(value, data),
        }
    }

    /// Prints a list. An empty list prints nothing as text, so the caller should print a message instead.
    pub(crate) fn many<T: Serialize>(&self, values: &[T], text: impl FnOnce() -> String) {
        exit_if_failed(self.try_many(values, text));
    }

    /// As [`many`](Self::many), for a command that has a failure of its own to report. Fails if the filter cannot handle a
    /// value; its results before that value are printed.
    pub(crate) fn try_many<T: Serialize>(&self, values: &[T], text: impl FnOnce() -> String) -> Result<(), Failure> {
        match self.format {
            Format::Text if values.is_empty() => {}
            Format::Text => data(&text()),
            Format::Json => self.try_document(&values)?,
            Format::Jsonl => values.iter().try_for_each(|value| self.try_record(value, data))?,
        }
        Ok(())
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

    /// Prints a value as one JSON document, or what the filter makes of it.
    pub(crate) fn document<T: Serialize>(&self, value: &T) {
        exit_if_failed(self.try_document(value));
    }

    fn try_document<T: Serialize>(&self, value: &T) -> Result<(), Failure> {
        match &self.filter.jq {
            None => data(&json(value)),
            Some(filter) => filtered(filter, value, data)?,
        }
        Ok(())
    }

    /// Writes a value as a line of JSON, or what the filter makes of it.
    pub(crate) fn record<T: Serialize>(&self, value: &T, write: impl FnMut(&str)) {
        exit_if_failed(self.try_record(value, write));
    }

    fn try_record<T: Serialize>(&self, value: &T, mut write: impl FnMut(&str)) -> Result<(), Failure> {
        match &self.filter.jq {
            None => write(&json_line(value)),
            Some(filter) => filtered(filter, value, write)?,
        }
        Ok(())
    }

    pub(crate) fn is_text(&self) -> bool {
        self.format == Format::Text
    }

    /// Whether JSON is filtered, so that a document must be complete before any of it is written.
    pub(crate) fn is_filtered(&self) -> bool {
        self.filter.jq.is_some()
    }
}

/// Writes the results of a filter. Fails at a value that it cannot handle; the results before it are written.
fn filtered<T: Serialize>(filter: &JqFilter, value: &T, write: impl FnMut(&str)) -> Result<(), Failure> {
    let is_terminal = std::io::stdout().is_terminal();
    let hint = "the same command with `-o json` shows what it filters";
    filter.run(&json_of(value), is_terminal, write).map_err(|why| errors::usage(format!("--jq: {why}"), hint))
}

/// A filter that fails ends the program: like output that cannot be written, it is found when there is nothing left to do but
/// print.
fn exit_if_failed(printed: Result<(), Failure>) {
    let Err(failure) = printed else { return };
    message(&errors::render(&failure, Paint::stderr()));
    std::process::exit(failure.kind.row().exit_code.into());
}

#[expect(clippy::expect_used, reason = "wire types have string keys and no serializer that fails")]
fn json_of<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("wire types serialise")
}

/// Rejects `--jq` beside a format that is no JSON.
pub(crate) fn check_filter(matches: &ArgMatches) -> Result<(), Error> {
    if let Some((_, below)) = matches.subcommand() {
        return check_filter(below);
    }
    let has = |id: &str| matches.try_contains_id(id).is_ok_and(|is_given| is_given);
    if !has("jq") || !has("format") || matches.value_source("format") != Some(ValueSource::CommandLine) {
        return Ok(());
    }
    let format = matches.get_raw("format").and_then(|mut values| values.next()?.to_str()).unwrap_or_default();
    match format {
        "json" | "jsonl" => Ok(()),
        other => {
            let text = format!("`--jq` filters JSON, so it cannot be used with `-o {other}`; leave `-o` out\n");
            Err(Error::raw(ErrorKind::ArgumentConflict, text))
        }
    }
}
