//! The record of who changed which profile. It names what was changed and never holds a value.

use serde::{Deserialize, Serialize};
use toml::{Table, Value};
use utoipa::{IntoParams, ToSchema};

use super::{CONFIG, Credential};
use crate::{Timestamp, ids::ProfileChangeId, redaction::Redactor, text::clip};

/// Fields that one record names; a last entry counts the others.
const FIELDS_MAX: usize = 50;
const FIELD_CHARS_MAX: usize = 200;

/// What was done to a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProfileAction {
    CredentialSet,
    ConfigSet,
    Deleted,
}

enum_words!(ProfileAction {
    CredentialSet => "credential-set",
    ConfigSet => "config-set",
    Deleted => "deleted",
});

/// One change of a profile. It is recorded before the change is made, so no change is without a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProfileChange {
    pub change_id: ProfileChangeId,
    pub profile: String,
    /// The tenant that owns the profile; null if it is the operator's.
    pub tenant_id: Option<String>,
    pub action: ProfileAction,
    /// Who made the change: `operator`, or `service:` and the id of a token.
    pub by: String,
    /// What changed: files by name, settings of `config.toml` by their path. Never a value.
    pub fields: Vec<String>,
    /// The stored credential was removed because the config names another destination.
    pub credential_dropped: bool,
    /// The version that the change made; null after a delete.
    pub resource_version: Option<String>,
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[into_params(parameter_in = Query)]
pub struct ListProfileChanges {
    /// Only changes of profiles of this name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// Only changes of this tenant's profiles.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProfileChangePage {
    pub changes: Vec<ProfileChange>,
    pub next_cursor: Option<String>,
}

/// The files that differ; of `config.toml` the paths of the settings that differ. The redactor is for names of settings:
/// a key that was pasted into the wrong place is one.
pub fn changed_fields(before: &Credential, after: &Credential, redactor: &Redactor) -> Vec<String> {
    let mut names: Vec<_> = [before.keys(), after.keys()].concat();
    names.sort();
    names.dedup();
    let mut fields = vec![];
    for name in names.into_iter().filter(|name| before.text(name) != after.text(name)) {
        let table = |of: &Credential| of.text(CONFIG).and_then(|text| text.parse::<Table>().ok()).unwrap_or_default();
        let known = fields.len();
        if name == CONFIG {
            differing(&table(before), &table(after), &name, &mut fields);
        }
        // Another file, or a change of comments and spaces alone.
        if fields.len() == known {
            fields.push(name);
        }
    }
    let rest = fields.len().saturating_sub(FIELDS_MAX);
    fields.truncate(FIELDS_MAX);
    let mut shown: Vec<_> = fields.iter().map(|field| clip(&redactor.redact(field), FIELD_CHARS_MAX)).collect();
    if rest > 0 {
        shown.push(format!("and {rest} more"));
    }
    shown
}

fn differing(before: &Table, after: &Table, place: &str, fields: &mut Vec<String>) {
    let keys: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    for key in keys {
        let place = if place == CONFIG { format!("{CONFIG}: {key}") } else { format!("{place}.{key}") };
        match (before.get(key), after.get(key)) {
            (Some(Value::Table(before)), Some(Value::Table(after))) => differing(before, after, &place, fields),
            (None, Some(Value::Table(only))) | (Some(Value::Table(only)), None) if !only.is_empty() => {
                differing(&Table::new(), only, &place, fields);
            }
            (before, after) if before != after => fields.push(place),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(files: &[(&str, &str)]) -> Credential {
        Credential::new(files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned().into())).collect())
    }

    #[test]
    fn a_record_names_what_changed_and_no_value() {
        let fields = |before: &[(&str, &str)], after: &[(&str, &str)]| {
            changed_fields(&credential(before), &credential(after), &Redactor::new(&["pl4nted-in-a-name"]))
        };
        let before = [("auth.json", "{\"K\":\"pl4nted\"}"), (CONFIG, "model = \"pl4nted\"\n[a.b]\nc = 1\nd = 1")];
        assert_eq!(fields(&before, &before), [""; 0]);
        assert_eq!(
            fields(&before, &[before[0], (CONFIG, "model = \"other\"\n[a.b]\nc = 2\nd = 1\n[e]\nf = 1")]),
            ["config.toml: a.b.c", "config.toml: e.f", "config.toml: model"]
        );
        assert_eq!(
            fields(&before, &[]),
            ["auth.json", "config.toml: a.b.c", "config.toml: a.b.d", "config.toml: model"]
        );
        assert_eq!(fields(&[(CONFIG, "a = 1")], &[(CONFIG, "a = 1 # why")]), ["config.toml"]);
        let named = fields(&[], &[(CONFIG, "pl4nted-in-a-name = 1")]);
        assert!(!named[0].contains("pl4nted"), "{named:?}");
        let many: String = (0..80).map(|at| format!("k{at} = 1\n")).collect();
        let named = fields(&[], &[(CONFIG, &many)]);
        assert_eq!((named.len(), named.last().unwrap().as_str()), (FIELDS_MAX + 1, "and 30 more"));
    }
}
