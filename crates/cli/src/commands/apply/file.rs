//! The file of `ostler apply`: its tables, and where each problem of them is. Names that do not exist and values of another type
//! are problems; no value is repeated in a message, because it may be a secret.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use ostler_protocol::{
    Failure, Rule, failures::PROBLEMS, kernel::provider_profiles::ProfileConfigFile, problems::Problems,
    schema_documents::schema_document, trust::manifest::Manifest,
};
use secrecy::ExposeSecret;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use toml::{
    Table,
    de::{DeTable, DeValue},
};
use utoipa::ToSchema;

use crate::{
    commands::{
        explain::FormatField,
        profile_files::{STDIN, read},
    },
    suggestions::similar,
    terminal::output::line,
};

const FILE_BYTES_MAX: usize = 1024 * 1024;
/// Of a name in a message.
const NAME_CHARS_MAX: usize = 80;

/// Profiles and agents as they should be. What the file leaves out stays as it is, and nothing is deleted.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ApplyFile {
    /// Provider profiles by their names.
    #[schema(value_type = BTreeMap<String, AppliedProfile>)]
    profiles: Table,
    /// Agents by their names. The agent of this name that belongs to you is changed; if there is none, it is created.
    #[schema(value_type = BTreeMap<String, AppliedAgent>)]
    agents: Table,
}

/// A provider profile: its config, its credential, or both. The credential itself is never in this file.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AppliedProfile {
    /// The tenant that owns the profile. Left out: the operator, or the tenant of the token.
    pub tenant: Option<String>,
    /// The contents of its `config.toml` as a table, without secrets.
    #[schema(value_type = Option<ProfileConfigFile>)]
    pub config: Option<Table>,
    /// A file with its `config.toml`, in place of `config`. A relative path begins at this file's directory.
    pub config_file: Option<String>,
    /// The environment variable with its credential: the provider's key, or a whole `auth.json`.
    pub credential_env: Option<String>,
    /// A file with its credential, in place of `credential_env`.
    pub credential_file: Option<String>,
}

/// An agent. Its name is permanent: another name is another agent.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AppliedAgent {
    /// Its capability manifest as a table.
    #[schema(value_type = Option<Manifest>)]
    pub manifest: Option<Table>,
    /// A file with its capability manifest in JSON, in place of `manifest`.
    pub manifest_file: Option<String>,
    /// The backend profile that runs it.
    pub profile: Option<String>,
}

/// The schema of the file, for `ostler explain` and for editors.
pub(crate) fn schema() -> Value {
    schema_document::<ApplyFile>("Profiles and agents for `ostler apply`")
}

/// A file that should be TOML.
pub(super) struct ApplyDocument {
    /// As it is named in messages.
    pub name: String,
    /// Where relative paths in it begin.
    directory: PathBuf,
    /// Its contents. Empty if there are syntax errors.
    root: Table,
    /// The errors of its syntax, each with the number of its line.
    syntax_errors: Vec<(usize, String)>,
    /// The line of each key, and of each item of a list.
    lines: BTreeMap<Vec<String>, usize>,
}

/// The entries of a document that have the right shape.
#[derive(Default)]
pub(super) struct AppliedEntries {
    pub profiles: Vec<(String, AppliedProfile)>,
    pub agents: Vec<(String, AppliedAgent)>,
}

impl ApplyDocument {
    /// Reads a file; `-` is stdin, whose paths begin at the current directory.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let name = shown_name(path);
        if path.is_dir() {
            return Err(Failure::invalid(Rule::ApplyFile, format!("{name} is a directory; name its files")));
        }
        let text = read(path, FILE_BYTES_MAX)?;
        let directory = path.parent().filter(|_| path != Path::new(STDIN)).unwrap_or(Path::new(""));
        Ok(Self::new(name, directory, text.expose_secret()))
    }

    pub(super) fn new(name: String, directory: &Path, text: &str) -> Self {
        let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
        let (contents, errors) = DeTable::parse_recoverable(text);
        let mut lines = BTreeMap::new();
        collect_lines(&mut vec![], contents.get_ref(), &ends, &mut lines);
        let located = |error: &toml::de::Error, message: &str| {
            let start = error.span().map_or(0, |span| span.start);
            (line_at(&ends, start), line(message, 200))
        };
        let mut syntax_errors: Vec<_> = errors.iter().map(|error| located(error, error.message())).collect();
        let root = match text.parse::<Table>() {
            Ok(root) => root,
            Err(error) => {
                // The syntax allows numbers that no value can have. The parser's own message repeats the number.
                if syntax_errors.is_empty() {
                    syntax_errors.push(located(&error, "the value is out of range"));
                }
                Table::new()
            }
        };
        Self { name, directory: directory.to_owned(), root, syntax_errors, lines }
    }

    /// The path of a file that the document names at a place. Fails for stdin, which can only be the document itself.
    pub(super) fn resolve(&self, place: &[&str], path: &str) -> Result<PathBuf, Failure> {
        if path == STDIN {
            let message = format!("{}: stdin can only be the applied file itself; name a file", dotted(place));
            return Err(self.problem(place, &message));
        }
        Ok(self.directory.join(path))
    }

    /// A problem at a place in the document, with the number of its line.
    pub(super) fn problem(&self, place: &[&str], message: &str) -> Failure {
        let number = self.line(place);
        Failure::invalid(Rule::ApplyFile, format!("{}, line {number}: {message}", self.name)).detail("line", number)
    }

    /// A failure that the server, or the comparison with it, has reported about the entry at a place. It keeps its kind and
    /// details; each of its messages names the entry and its line.
    pub(super) fn located(&self, place: &[&str], mut failure: Failure) -> Failure {
        let number = self.line(place);
        let located = |message: &str| format!("{}, line {number}: {}: {message}", self.name, dotted(place));
        failure.message = located(&failure.message);
        let mut failure = failure.detail("line", number);
        let listed = failure.details.as_deref_mut().and_then(|details| details.get_mut(PROBLEMS)?.as_array_mut());
        for problem in listed.into_iter().flatten().filter_map(Value::as_object_mut) {
            let message = located(problem.get("message").and_then(Value::as_str).unwrap_or_default());
            problem.insert("message".to_owned(), message.into());
            problem.insert("line".to_owned(), number.into());
        }
        failure
    }

    /// The line of the deepest part of the place that exists.
    fn line(&self, place: &[&str]) -> usize {
        let lengths = (0..=place.len()).rev();
        let found = lengths.filter_map(|length| self.lines.get(&owned(&place[..length])).copied()).next();
        found.unwrap_or(1)
    }

    /// Whether a table has names below it other than these, also such that do not fit.
    pub(super) fn has_others(&self, place: &[&str], names: &[&str]) -> bool {
        let place = owned(place);
        let is_below = |path: &&Vec<String>| path.len() == place.len() + 1 && path.starts_with(&place);
        self.lines.keys().filter(is_below).any(|path| path.last().is_some_and(|name| !names.contains(&name.as_str())))
    }

    /// The entries of a table in the order of their lines.
    fn in_order<'t>(&self, table: &'t Table, place: &[&str]) -> Vec<(&'t String, &'t toml::Value)> {
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(name, _)| self.line(&[place, &[name.as_str()]].concat()));
        entries
    }

    /// Reads every entry, and notes whatever does not fit.
    pub(super) fn entries(&self, problems: &mut Problems) -> AppliedEntries {
        if !self.syntax_errors.is_empty() {
            for (number, error) in &self.syntax_errors {
                let message = format!("{}, line {number}: this is not TOML: {error}", self.name);
                problems.note::<()>(Err(Failure::invalid(Rule::ApplyFile, message).detail("line", *number)));
            }
            return AppliedEntries::default();
        }
        let schema = schema_document::<ApplyFile>("");
        let file: ApplyFile = self.table(&self.root, &[], &FormatField::whole(&schema).children(), problems);
        AppliedEntries {
            profiles: self.named(&file.profiles, "profiles", problems),
            agents: self.named(&file.agents, "agents", problems),
        }
    }

    fn named<T: DeserializeOwned + Default + ToSchema>(
        &self,
        entries: &Table,
        section: &str,
        problems: &mut Problems,
    ) -> Vec<(String, T)> {
        let schema = schema_document::<T>("");
        let fields = FormatField::whole(&schema).children();
        let mut found = vec![];
        for (name, entry) in self.in_order(entries, &[section]) {
            let place = [section, name.as_str()];
            match entry.as_table() {
                Some(entry) => found.push((name.clone(), self.table(entry, &place, &fields, problems))),
                None => {
                    let message = format!("{} must be a table: write it below a line [{0}]", dotted(&place));
                    problems.note::<()>(Err(self.problem(&place, &message)));
                }
            }
        }
        found
    }

    /// Reads a table field by field, so that one that does not fit hides no other.
    fn table<T: DeserializeOwned + Default>(
        &self,
        table: &Table,
        place: &[&str],
        fields: &[(&str, FormatField<'_>)],
        problems: &mut Problems,
    ) -> T {
        let mut fitting = Table::new();
        for (name, value) in self.in_order(table, place) {
            let place = [place, &[name.as_str()]].concat();
            let known = fields.iter().find(|(known, _)| known == name);
            let alone = Table::from_iter([(name.clone(), value.clone())]);
            let message = match known {
                None => unknown(&place, fields.iter().map(|(known, _)| *known)),
                Some((_, field)) if alone.try_into::<T>().is_err() => {
                    let kind = field.type_words().replace("objects by name", "table").replace("object", "table");
                    format!("{} must be a {kind}", dotted(&place))
                }
                Some(_) => {
                    fitting.insert(name.clone(), value.clone());
                    continue;
                }
            };
            problems.note::<()>(Err(self.problem(&place, &message)));
        }
        fitting.try_into().unwrap_or_default()
    }
}

/// How messages name a file.
pub(super) fn shown_name(path: &Path) -> String {
    if path == Path::new(STDIN) { "stdin".to_owned() } else { line(&path.to_string_lossy(), 400) }
}

/// The problem of a name that is not a setting. If it looks like the name of a secret, the message names the settings for secrets.
fn unknown<'a>(place: &[&str], known: impl Iterator<Item = &'a str>) -> String {
    let (name, above) = place.split_last().map_or(("", place), |(name, above)| (*name, above));
    let message = format!("{} is not a setting", dotted(place));
    let is_secret = ["credential", "key", "api_key", "apikey", "token", "secret", "password", "auth"].contains(&name);
    if is_secret && above.first() == Some(&"profiles") {
        return format!(
            "{message}: a secret does not belong in this file; name its variable with credential_env, or its file with credential_file"
        );
    }
    match similar(name, known) {
        Some(meant) => format!("{message}; did you mean {}?", dotted(&[above, &[meant]].concat())),
        None => message,
    }
}

/// The names as TOML writes them between dots.
pub(super) fn dotted(place: &[&str]) -> String {
    let is_bare =
        |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-".contains(&b));
    let part = |name: &&str| {
        let shown = line(name, NAME_CHARS_MAX);
        if is_bare(name) { shown } else { format!("{shown:?}") }
    };
    place.iter().map(part).collect::<Vec<_>>().join(".")
}

fn owned(place: &[&str]) -> Vec<String> {
    place.iter().map(|name| (*name).to_owned()).collect()
}

/// `ends` are the places of the line ends.
fn collect_lines(
    place: &mut Vec<String>,
    table: &DeTable<'_>,
    ends: &[usize],
    lines: &mut BTreeMap<Vec<String>, usize>,
) {
    for (key, value) in table {
        place.push(key.get_ref().to_string());
        lines.insert(place.clone(), line_at(ends, key.span().start));
        match value.get_ref() {
            DeValue::Table(inner) => collect_lines(place, inner, ends, lines),
            DeValue::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    place.push(index.to_string());
                    lines.insert(place.clone(), line_at(ends, item.span().start));
                    if let DeValue::Table(inner) = item.get_ref() {
                        collect_lines(place, inner, ends, lines);
                    }
                    place.pop();
                }
            }
            _ => {}
        }
        place.pop();
    }
}

fn line_at(ends: &[usize], at: usize) -> usize {
    ends.partition_point(|end| *end < at) + 1
}

#[cfg(test)]
mod tests {
    use ostler_protocol::FailureKind::StateConflict;
    use serde_json::json;

    use super::*;

    fn document(text: &str) -> ApplyDocument {
        ApplyDocument::new("a.toml".into(), Path::new("/etc/ostler"), text)
    }

    fn messages(text: &str) -> Vec<String> {
        let mut problems = Problems::default();
        document(text).entries(&mut problems);
        let Err(failure) = problems.check() else { return vec![] };
        let listed = crate::commands::trust::manifests::problems(&failure);
        listed.iter().map(|problem| problem["message"].as_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_name_and_type_that_does_not_fit_is_reported_with_its_line() {
        let text = "profile = 1\n[profiles.fast]\nconfg_file = \"a\"\ntenant = 7\nconfig = \"pl4nted\"\n[profiles]\nslow = \"pl4nted\"\n\
            [agents.\"my reader\"]\nmanifest_flie = \"b\"\nzzz = 1\n[agents.other]\nprofile = [\"pl4nted\"]\n";
        assert_eq!(
            messages(text),
            [
                "a.toml, line 1: profile is not a setting; did you mean profiles?",
                "a.toml, line 3: profiles.fast.confg_file is not a setting; did you mean profiles.fast.config_file?",
                "a.toml, line 4: profiles.fast.tenant must be a string",
                "a.toml, line 5: profiles.fast.config must be a table",
                "a.toml, line 7: profiles.slow must be a table: write it below a line [profiles.slow]",
                "a.toml, line 9: agents.\"my reader\".manifest_flie is not a setting; did you mean agents.\"my reader\".manifest_file?",
                "a.toml, line 10: agents.\"my reader\".zzz is not a setting",
                "a.toml, line 12: agents.other.profile must be a string",
            ]
        );
        assert_eq!(messages("agents = 7\n"), ["a.toml, line 1: agents must be a table"]);
    }

    #[test]
    fn a_secret_in_the_file_is_rejected_without_being_repeated() {
        for name in ["credential", "api_key", "token"] {
            let found = messages(&format!("[profiles.fast]\n{name} = \"sk-pl4nted\"\n"));
            assert!(
                found[0].starts_with(&format!("a.toml, line 2: profiles.fast.{name} is not a setting: a secret")),
                "{found:?}"
            );
            assert!(found[0].contains("credential_env") && !found[0].contains("pl4nted"), "{found:?}");
        }
    }

    #[test]
    fn every_error_of_the_syntax_is_reported_without_its_text() {
        let found = messages("[profiles.fast]\ntenant = sk-pl4nted\n[agents.a]\nprofile = \"x\n");
        assert!(found.len() >= 2, "{found:?}");
        assert!(
            found[0].starts_with("a.toml, line 2: this is not TOML: ") && found.concat().contains("line 4"),
            "{found:?}"
        );
        assert!(!found.concat().contains("pl4nted"), "{found:?}");
    }

    #[test]
    fn entries_that_fit_are_read_in_the_order_of_their_lines() {
        let text =
            "[agents.b]\n[agents.a]\nprofile = \"fast\"\n[profiles.fast]\nconfig = {ostler = {agent = \"codex\"}}\n";
        let mut problems = Problems::default();
        let entries = document(text).entries(&mut problems);
        assert!(problems.is_empty());
        assert_eq!(entries.agents.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["b", "a"]);
        assert_eq!(entries.agents[1].1.profile.as_deref(), Some("fast"));
        assert!(entries.profiles[0].1.config.as_ref().unwrap().contains_key("ostler"));
    }

    #[test]
    fn paths_begin_at_the_directory_of_the_file_and_stdin_is_a_problem() {
        let place = ["agents", "a", "manifest_file"];
        let document = document("[agents.a]\nmanifest_file = \"-\"\n");
        assert_eq!(document.resolve(&place, "sub/model.toml").unwrap(), Path::new("/etc/ostler/sub/model.toml"));
        assert_eq!(document.resolve(&place, "/model.toml").unwrap(), Path::new("/model.toml"));
        assert_eq!(
            document.resolve(&place, "-").unwrap_err().message,
            "a.toml, line 2: agents.a.manifest_file: stdin can only be the applied file itself; name a file"
        );
    }

    #[test]
    fn a_number_that_is_out_of_range_is_reported_and_nothing_is_read() {
        for number in ["99999999999999999999", "9999999999999999999", "1e999"] {
            let document = document(&format!("[agents.a]\n[agents.a.manifest]\ntimeout_ms = {number}\n[agents.b]\n"));
            let mut problems = Problems::default();
            let entries = document.entries(&mut problems);
            assert!(entries.agents.is_empty() && entries.profiles.is_empty(), "{number}");
            let failure = problems.check().unwrap_err();
            assert_eq!(failure.message, "a.toml, line 3: this is not TOML: the value is out of range", "{number}");
        }
    }

    #[test]
    fn a_located_failure_keeps_its_details_and_names_the_place_in_each_problem() {
        let rejected = |message: &str| Failure::rule(Rule::ResourceVersion, message).detail("traceId", "trc_1");
        let document = document("\n[profiles.fast]\n");
        let several = Failure::check_all(vec![rejected("one"), rejected("two")]).unwrap_err();
        let failure = document.located(&["profiles", "fast"], several);
        assert_eq!(failure.message, "a.toml, line 2: profiles.fast: one");
        assert_eq!((failure.kind, failure.broken_rule()), (StateConflict, Some(Rule::ResourceVersion)));
        let details = failure.details.unwrap();
        assert_eq!((&details["traceId"], &details["line"]), (&json!("trc_1"), &json!(2)));
        assert_eq!(details[PROBLEMS][1]["message"], "a.toml, line 2: profiles.fast: two");
    }

    #[test]
    fn a_place_in_a_list_has_its_line() {
        let document = document(
            "[agents.a.manifest]\n\n[[agents.a.manifest.tools]]\nname = \"x\"\n[[agents.a.manifest.tools]]\nname = \"Y\"\n",
        );
        assert_eq!(document.line(&["agents", "a", "manifest", "tools", "1", "name"]), 6);
        assert_eq!(document.line(&["agents", "a", "manifest", "agent_version"]), 1);
    }

    /// `OSTLER_BLESS=1` writes the file again.
    #[test]
    fn the_schema_is_also_a_file_for_editors() {
        let text = format!("{}\n", serde_json::to_string_pretty(&schema()).unwrap());
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/generated/apply.schema.json");
        if std::env::var_os("OSTLER_BLESS").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        assert!(std::fs::read_to_string(path).unwrap_or_default() == text, "run the test with OSTLER_BLESS=1");
    }
}
