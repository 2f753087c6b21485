//! `ostler explain`: the fields of the formats that people write, from the schemas in this program. Works without a server.

mod fields;
mod paths;

use std::ffi::OsStr;

use clap_complete::{ArgValueCompleter, CompletionCandidate};
use ostler_protocol::Failure;
use serde::Serialize;

pub(crate) use fields::FormatField;
use paths::{ExplainedFormat, FORMATS, child_path, continued, find, format_of};

use crate::{
    exit_codes,
    terminal::{
        output::{self, Output},
        table::{Column, table},
    },
};

/// Explain the fields of a manifest, of the file of `apply`, or of a profile's config
///
/// Without a path it lists the formats. In a path, the items of a list need no number, and any word matches a name of your
/// choice. The end of a field's name is enough: `scopes` means `permission_scopes`. Works without a server.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  ostler explain\n  ostler explain manifest\n  ostler explain manifest.scopes\n  \
    ostler explain apply.profiles\n  ostler explain profile.ostler -o json")]
pub(crate) struct ExplainArgs {
    /// A format, or a field of one, such as `manifest.tools.timeout_ms`
    #[arg(value_name = "PATH", add = ArgValueCompleter::new(candidates))]
    path: Option<String>,
    #[command(flatten)]
    output: Output,
}

/// A field, and what it contains.
#[derive(Debug, Serialize)]
struct Explanation {
    path: String,
    #[serde(rename = "type")]
    type_words: String,
    required: bool,
    description: String,
    #[serde(skip_serializing_if = "serde_json::Map::is_empty")]
    rules: serde_json::Map<String, serde_json::Value>,
    fields: Vec<FieldSummary>,
}

#[derive(Debug, Serialize)]
struct FieldSummary {
    name: String,
    path: String,
    #[serde(rename = "type")]
    type_words: String,
    required: bool,
    description: String,
}

/// A format in the list of them.
#[derive(Debug, Serialize)]
struct FormatSummary {
    name: &'static str,
    purpose: &'static str,
}

pub(crate) fn explain(args: &ExplainArgs) -> Result<u8, Failure> {
    let Some(path) = &args.path else {
        let of = |format: &ExplainedFormat| FormatSummary { name: format.name, purpose: format.purpose };
        let all: Vec<_> = FORMATS.iter().map(of).collect();
        args.output.many(&all, || render_formats(output::width()));
        return Ok(exit_codes::OK);
    };
    let (format, segments) = format_of(path)?;
    let schema = (format.schema)();
    let (path, field) = find(format, &schema, &segments)?;
    let purpose = segments.is_empty().then_some(format.purpose);
    let explanation = explanation(format, path, field);
    args.output.one(&explanation, || render(&explanation, purpose, output::width()));
    Ok(exit_codes::OK)
}

fn explanation(format: &ExplainedFormat, path: String, field: FormatField<'_>) -> Explanation {
    let summary = |(name, child): (&str, FormatField<'_>)| FieldSummary {
        name: name.to_owned(),
        path: child_path(&path, field, name),
        type_words: format.type_words(child),
        required: child.is_required(),
        description: child.description(),
    };
    Explanation {
        fields: field.children().into_iter().map(summary).collect(),
        type_words: format.type_words(field),
        required: field.is_required(),
        description: field.description(),
        rules: field.rules().into_iter().map(|(name, rule)| (name.to_owned(), rule.into())).collect(),
        path,
    }
}

fn render_formats(width: Option<usize>) -> String {
    let rows = FORMATS.iter().map(|format| vec![format.name.to_owned(), format.purpose.to_owned()]);
    table(&[Column::whole("FORMAT"), Column::wrapped(1, "WHAT IT IS")], rows.collect(), width)
}

/// `purpose` is that of a whole format, which is not required by anything.
fn render(found: &Explanation, purpose: Option<&str>, width: Option<usize>) -> String {
    let required = match (purpose, found.required) {
        (Some(_), _) => "",
        (None, true) => ", required",
        (None, false) => ", optional",
    };
    let mut text = format!("{}: {}{required}\n", found.path, found.type_words);
    for (name, rule) in &found.rules {
        text += &format!("  {name:<8} {}\n", rule.as_str().unwrap_or_default());
    }
    for paragraph in [found.description.as_str(), purpose.unwrap_or_default()] {
        if !paragraph.is_empty() {
            let mut sentence = paragraph.to_owned();
            sentence.get_mut(..1).unwrap_or_default().make_ascii_uppercase();
            text += &format!("\n{sentence}\n");
        }
    }
    let text = output::folded(&text, width);
    if found.fields.is_empty() {
        return text;
    }
    let row = |field: &FieldSummary| {
        let required = if field.required { "yes" } else { "no" };
        vec![field.name.clone(), field.type_words.clone(), required.to_owned(), field.description.clone()]
    };
    let columns =
        [Column::whole("FIELD"), Column::spare(1, "TYPE"), Column::spare(2, "REQUIRED"), Column::wrapped(3, "MEANING")];
    format!("{text}\n{}", table(&columns, found.fields.iter().map(row).collect(), width))
}

fn candidates(word: &OsStr) -> Vec<CompletionCandidate> {
    let typed = word.to_str().unwrap_or_default();
    let one = |(path, meaning): (String, String)| CompletionCandidate::new(path).help(Some(meaning.into()));
    continued(typed).into_iter().map(one).collect()
}
