//! The formats that can be explained, and the fields that paths such as `manifest.tools.timeout_ms` name in them.

use ostler_protocol::{Failure, kernel::provider_profiles, trust::manifest};
use serde_json::Value;

use super::fields::{ANY_NAME, FormatField};
use crate::{commands::apply::file, errors, suggestions::similar, terminal::output::line};

/// How deep a field of a given name is looked for.
const LEVELS_MAX: usize = 8;

/// A format whose fields can be explained.
pub(crate) struct ExplainedFormat {
    pub name: &'static str,
    /// Other names that people try.
    aliases: &'static [&'static str],
    /// What is written in it, and where it is used.
    pub purpose: &'static str,
    /// Whether it is written in TOML, whose objects are tables.
    is_toml: bool,
    pub schema: fn() -> Value,
}

pub(crate) const FORMATS: [ExplainedFormat; 3] = [
    ExplainedFormat {
        name: "apply",
        aliases: &["file"],
        purpose: "the file of `ostler apply`, in TOML: profiles and agents",
        is_toml: true,
        schema: file::schema,
    },
    ExplainedFormat {
        name: "manifest",
        aliases: &["agent", "agents", "manifests"],
        purpose: "the manifest of an agent, in JSON: `ostler agents init` writes one, `ostler agents check` checks it",
        is_toml: false,
        schema: manifest::json_schema,
    },
    ExplainedFormat {
        name: "profile",
        aliases: &["profiles", "config"],
        purpose: "the config.toml of a profile: `ostler profiles config` prints and replaces it",
        is_toml: true,
        schema: provider_profiles::config_schema,
    },
];

impl ExplainedFormat {
    /// The type of a field in the words of the format.
    pub(crate) fn type_words(&self, field: FormatField<'_>) -> String {
        let words = field.type_words();
        if self.is_toml { words.replace("object", "table") } else { words }
    }
}

/// The format that a path begins with, and the rest of the path.
pub(crate) fn format_of(path: &str) -> Result<(&'static ExplainedFormat, Vec<&str>), Failure> {
    let mut segments = path.split('.').filter(|segment| !segment.is_empty());
    let word = segments.next().unwrap_or_default();
    let is_named = |format: &&ExplainedFormat| format.name == word || format.aliases.contains(&word);
    let found = FORMATS.iter().find(is_named).ok_or_else(|| {
        let meant = similar(word, FORMATS.iter().map(|format| format.name));
        let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
        let message = format!("there is no {:?} to explain{meant}", line(word, 60));
        errors::usage(
            message,
            "`ostler explain` lists what can be explained; `ostler COMMAND --help` explains commands",
        )
    })?;
    Ok((found, segments.collect()))
}

/// The field that a path names, and the whole path of it.
pub(crate) fn find<'a>(
    format: &ExplainedFormat,
    schema: &'a Value,
    segments: &[&str],
) -> Result<(String, FormatField<'a>), Failure> {
    let mut field = FormatField::whole(schema);
    let mut path = format.name.to_owned();
    for (at, segment) in segments.iter().enumerate() {
        let segment = segment.trim_end_matches("[]");
        // A place in a list, or a name that the user has chosen.
        let is_last = at + 1 == segments.len();
        if is_item(field, segment) || is_chosen_name(field, segment, is_last) {
            continue;
        }
        let (name, child) = child(field, segment).ok_or_else(|| unknown(format, &path, field, segment))?;
        path = child_path(&path, field, name);
        field = child;
    }
    Ok((path, field))
}

/// The path of a field below another one.
pub(crate) fn child_path(path: &str, field: FormatField<'_>, name: &str) -> String {
    if field.has_names() { format!("{path}.{ANY_NAME}.{name}") } else { format!("{path}.{name}") }
}

fn is_item(field: FormatField<'_>, segment: &str) -> bool {
    field.is_list() && (segment.is_empty() || segment.parse::<usize>().is_ok())
}

/// A word that looks like a misspelt field at the end of a path is not taken for a name.
fn is_chosen_name(field: FormatField<'_>, segment: &str, is_last: bool) -> bool {
    let looks_misspelt = || is_last && similar(segment, field.children().into_iter().map(|(name, _)| name)).is_some();
    field.has_names() && child(field, segment).is_none() && (segment == ANY_NAME || !looks_misspelt())
}

/// The field of this name, or the only one whose name ends with this word: `scopes` means `permission_scopes`.
fn child<'a>(field: FormatField<'a>, word: &str) -> Option<(&'a str, FormatField<'a>)> {
    let children = field.children();
    let exact = children.iter().find(|(name, _)| *name == word).copied();
    let ending = format!("_{word}");
    let mut ends = children.iter().filter(|(name, _)| name.ends_with(&ending)).copied();
    exact.or_else(|| ends.next().filter(|_| !word.is_empty() && ends.next().is_none()))
}

fn unknown(format: &ExplainedFormat, path: &str, field: FormatField<'_>, segment: &str) -> Failure {
    let shown = line(segment, 60);
    let children = field.children();
    if children.is_empty() {
        let hint = format!("`ostler explain {path}` explains it");
        return errors::usage(format!("{path} is a {} and has no fields", format.type_words(field)), hint);
    }
    let near = similar(segment, children.into_iter().map(|(name, _)| name)).map(|name| child_path(path, field, name));
    let meant = near.or_else(|| find_below(path, field, segment));
    let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    errors::usage(format!("{path} has no field {shown:?}{meant}"), format!("`ostler explain {path}` lists its fields"))
}

/// The nearest field of this name below another field.
fn find_below<'a>(path: &str, field: FormatField<'a>, name: &str) -> Option<String> {
    let mut level = vec![(path.to_owned(), field)];
    for _ in 0..LEVELS_MAX {
        let below = |(path, field): &(String, FormatField<'a>)| {
            let children = field.children().into_iter();
            children.map(|(name, child)| (child_path(path, *field, name), name, child)).collect::<Vec<_>>()
        };
        let next: Vec<_> = level.iter().flat_map(below).collect();
        if let Some((path, ..)) = next.iter().find(|(_, known, _)| *known == name) {
            return Some(path.clone());
        }
        level = next.into_iter().map(|(path, _, child)| (path, child)).collect();
    }
    None
}

/// Every path that continues what was typed, with the meaning of its field.
pub(crate) fn continued(typed: &str) -> Vec<(String, String)> {
    let Some((above, begun)) = typed.rsplit_once('.') else {
        let formats = FORMATS.iter().filter(|format| format.name.starts_with(typed));
        return formats.map(|format| (format.name.to_owned(), format.purpose.to_owned())).collect();
    };
    let Ok((format, segments)) = format_of(above) else { return vec![] };
    let schema = (format.schema)();
    let Ok((_, field)) = find(format, &schema, &segments) else { return vec![] };
    let children = field.children().into_iter().filter(|(name, _)| name.starts_with(begun));
    children.map(|(name, child)| (format!("{above}.{name}"), child.description())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str) -> Result<(String, String), Failure> {
        let (format, segments) = format_of(path)?;
        let schema = (format.schema)();
        let (path, field) = find(format, &schema, &segments)?;
        Ok((path, format.type_words(field)))
    }

    #[test]
    fn a_path_names_a_field_through_lists_and_names() {
        for (path, expected, kind) in [
            ("manifest", "manifest", "object"),
            ("agents", "manifest", "object"),
            ("manifest.tools", "manifest.tools", "list of objects"),
            ("manifest.tools.timeout_ms", "manifest.tools.timeout_ms", "integer"),
            ("manifest.tools.0.name", "manifest.tools.name", "string"),
            ("manifest.tools[].name", "manifest.tools.name", "string"),
            ("manifest.scopes", "manifest.permission_scopes", "list of objects"),
            ("manifest.permission_scopes.sensitivity", "manifest.permission_scopes.sensitivity", "string"),
            ("apply.profiles", "apply.profiles", "tables by name"),
            ("apply.profiles.NAME.tenant", "apply.profiles.NAME.tenant", "string"),
            ("apply.profiles.fast.config_file", "apply.profiles.NAME.config_file", "string"),
            ("apply.profiles.config_file", "apply.profiles.NAME.config_file", "string"),
            ("apply.agents.reader.manifest.tools.name", "apply.agents.NAME.manifest.tools.name", "string"),
            ("apply.agents.a.manifest.tools", "apply.agents.NAME.manifest.tools", "list of tables"),
            ("apply.profiles.x.config.ostler.model", "apply.profiles.NAME.config.ostler.model", "string"),
            ("profile.ostler.prices", "profile.ostler.prices", "tables by name"),
            ("profile.ostler.prices.gpt-5.input", "profile.ostler.prices.NAME.input", "number"),
        ] {
            assert_eq!(found(path).unwrap(), (expected.to_owned(), kind.to_owned()), "{path}");
        }
    }

    #[test]
    fn an_unknown_path_is_answered_with_the_similar_one() {
        for (path, message) in [
            ("manifst", "there is no \"manifst\" to explain; did you mean manifest?"),
            ("frobnicate", "there is no \"frobnicate\" to explain"),
            ("manifest.tols", "manifest has no field \"tols\"; did you mean manifest.tools?"),
            ("manifest.tools.nmae", "manifest.tools has no field \"nmae\"; did you mean manifest.tools.name?"),
            ("manifest.zzz", "manifest has no field \"zzz\""),
            (
                "manifest.sensitivity",
                "manifest has no field \"sensitivity\"; did you mean manifest.permission_scopes.sensitivity?",
            ),
            ("profile.model", "profile has no field \"model\"; did you mean profile.ostler.model?"),
            ("manifest.tools.name.x", "manifest.tools.name is a string and has no fields"),
            (
                "apply.profiles.confg_file",
                "apply.profiles has no field \"confg_file\"; did you mean apply.profiles.NAME.config_file?",
            ),
            ("profile.ostler.modle", "profile.ostler has no field \"modle\"; did you mean profile.ostler.model?"),
        ] {
            assert_eq!(found(path).unwrap_err().message, message);
        }
        assert_eq!(
            errors::hint_of(&found("manifest.zzz").unwrap_err()).as_deref(),
            Some("`ostler explain manifest` lists its fields")
        );
    }

    #[test]
    fn every_field_of_every_format_has_a_description() {
        fn check(path: &str, field: FormatField<'_>) {
            for (name, child) in field.children() {
                let path = child_path(path, field, name);
                let has_words = !child.description().is_empty() && child.type_words() != "value";
                assert!(has_words, "{path}: {} {:?}", child.type_words(), child.description());
                check(&path, child);
            }
        }
        for format in &FORMATS {
            let schema = (format.schema)();
            assert!(!FormatField::whole(&schema).children().is_empty(), "{}", format.name);
            check(format.name, FormatField::whole(&schema));
        }
    }

    #[test]
    fn a_shell_is_offered_what_continues_the_word() {
        let offered = |typed: &str| continued(typed).into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        assert_eq!(offered("m"), ["manifest"]);
        assert_eq!(offered("manifest.t"), ["manifest.tools"]);
        assert_eq!(
            offered("apply.profiles.fast.config"),
            ["apply.profiles.fast.config", "apply.profiles.fast.config_file"]
        );
        assert_eq!(offered("nothing."), [""; 0]);
    }
}
