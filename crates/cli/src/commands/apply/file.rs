//! The file of `ostler apply`: its tables, and where each problem of them is. Names that do not exist and values of another type
//! are problems; no value is repeated in a message, because it may be a secret.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use ostler_protocol::{
    Failure, Rule, kernel::provider_profiles::ProfileConfigFile, problems::Problems, schema_documents::schema_document,
    trust::manifest::Manifest,
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
    commands::{explain::FormatField, profile_files::read},
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

/// A file that is TOML.
pub(super) struct ApplyDocument {
    /// As it is named in messages.
    pub name: String,
    /// Where relative paths in it begin.
    directory: PathBuf,
    text: String,
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
        let is_stdin = path == Path::new("-");
        let name = if is_stdin { "stdin".to_owned() } else { line(&path.to_string_lossy(), 400) };
        if path.is_dir() {
            return Err(Failure::invalid(Rule::ApplyFile, format!("{name} is a directory; name its files")));
        }
        let text = read(path, FILE_BYTES_MAX)?.expose_secret().to_owned();
        let directory = path.parent().filter(|_| !is_stdin).unwrap_or(Path::new(""));
        Ok(Self::new(name, directory, text))
    }

    fn new(name: String, directory: &Path, text: String) -> Self {
        let mut lines = BTreeMap::new();
        let (root, _) = DeTable::parse_recoverable(&text);
        let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
        collect_lines(&mut vec![], root.get_ref(), &ends, &mut lines);
        Self { name, directory: directory.to_owned(), text, lines }
    }

    /// The path of a file that the document names.
    pub(super) fn resolve(&self, path: &str) -> PathBuf {
        self.directory.join(path)
    }

    /// A problem at a place in the document, with the number of its line.
    pub(super) fn problem(&self, place: &[&str], message: &str) -> Failure {
        let number = self.line(place);
        Failure::invalid(Rule::ApplyFile, format!("{}, line {number}: {message}", self.name)).detail("line", number)
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
        let (_, errors) = DeTable::parse_recoverable(&self.text);
        if !errors.is_empty() {
            let ends: Vec<usize> = self.text.match_indices('\n').map(|(at, _)| at).collect();
            for error in errors {
                let number = line_at(&ends, error.span().map_or(0, |span| span.start));
                let message = format!("{}, line {number}: this is not TOML: {}", self.name, line(error.message(), 200));
                problems.note::<()>(Err(Failure::invalid(Rule::ApplyFile, message).detail("line", number)));
            }
            return AppliedEntries::default();
        }
        let root: Table = self.text.parse().unwrap_or_default();
        let file: ApplyFile = self.table(&root, &[], problems);
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
        let mut found = vec![];
        for (name, entry) in self.in_order(entries, &[section]) {
            let place = [section, name.as_str()];
            match entry.as_table() {
                Some(entry) => found.push((name.clone(), self.table(entry, &place, problems))),
                None => {
                    let message = format!("{} must be a table: write it below a line [{0}]", dotted(&place));
                    problems.note::<()>(Err(self.problem(&place, &message)));
                }
            }
        }
        found
    }

    /// Reads a table field by field, so that one that does not fit hides no other.
    fn table<T: DeserializeOwned + Default + ToSchema>(
        &self,
        table: &Table,
        place: &[&str],
        problems: &mut Problems,
    ) -> T {
        let schema = schema_document::<T>("");
        let fields = FormatField::whole(&schema).children();
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

/// A name that is no setting. A name that looks like that of a secret gets the way to give one.
fn unknown<'a>(place: &[&str], known: impl Iterator<Item = &'a str>) -> String {
    let (name, above) = place.split_last().map_or(("", place), |(name, above)| (*name, above));
    let message = format!("{} is no setting", dotted(place));
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
    use super::*;

    fn document(text: &str) -> ApplyDocument {
        ApplyDocument::new("a.toml".into(), Path::new("/etc/ostler"), text.into())
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
                "a.toml, line 1: profile is no setting; did you mean profiles?",
                "a.toml, line 3: profiles.fast.confg_file is no setting; did you mean profiles.fast.config_file?",
                "a.toml, line 4: profiles.fast.tenant must be a string",
                "a.toml, line 5: profiles.fast.config must be a table",
                "a.toml, line 7: profiles.slow must be a table: write it below a line [profiles.slow]",
                "a.toml, line 9: agents.\"my reader\".manifest_flie is no setting; did you mean agents.\"my reader\".manifest_file?",
                "a.toml, line 10: agents.\"my reader\".zzz is no setting",
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
                found[0].starts_with(&format!("a.toml, line 2: profiles.fast.{name} is no setting: a secret")),
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
        assert_eq!(document("").resolve("sub/model.toml"), Path::new("/etc/ostler/sub/model.toml"));
        assert_eq!(document("").resolve("/model.toml"), Path::new("/model.toml"));
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
