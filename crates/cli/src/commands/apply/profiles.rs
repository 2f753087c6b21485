//! The profiles of `ostler apply`: checked on this machine, compared with those of the server, and changed. A config and a
//! credential that change together are sent together, because a new destination removes a credential.

use std::collections::BTreeMap;

use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, Rule,
    callers::CallerView,
    ids::slug,
    kernel::provider_profiles::{
        AUTH, CONFIG, Credential, Destination, ProfileConfig, ProfileScope, ProviderProfile, PutConfig, PutCredential,
    },
    limits::PROFILE_FILE_BYTES_MAX,
    problems::Problems,
};
use secrecy::{ExposeSecret, SecretString};
use toml::Table;

use super::{
    file::{AppliedProfile, ApplyDocument, dotted},
    outcome::{AppliedObject, ObjectKind, ObjectOutcome},
};
use crate::{
    commands::{
        profile_files::{in_file, read, read_unnamed},
        profiles::report_missing,
        trust::manifests,
    },
    connection::Connection,
    environment,
    terminal::output::line,
};

const SECTION: &str = "profiles";
const SCRIPTED: &str = "scripted";
/// The action that a caller needs to set profiles.
const PROVIDE: &str = "provide";

/// A profile as the file wants it. Everything that can be checked without a server is right.
pub(super) struct WantedProfile {
    pub name: String,
    pub tenant: Option<String>,
    config: Option<WantedConfig>,
    credential: Option<WantedCredential>,
}

struct WantedConfig {
    text: String,
    /// Of a config in the file itself, which has no comments and no order that could differ.
    table: Option<Table>,
}

struct WantedCredential {
    request: PutCredential,
    /// The end of the hash that the stored credential will have.
    hash_suffix: Option<String>,
}

/// What has to be changed at the server for a wanted profile.
pub(super) struct ProfilePlan<'a> {
    wanted: &'a WantedProfile,
    scope: ProfileScope,
    exists: bool,
    /// The version that the plan was made for. Empty if the profile did not exist.
    version: String,
    changes: Vec<&'static str>,
    /// The config sends the stored credential elsewhere, and the file has no new one.
    removes_credential: bool,
}

/// Checks an entry. `None` if it has problems, which are noted.
pub(super) fn check(
    document: &ApplyDocument,
    name: &str,
    entry: &AppliedProfile,
    problems: &mut Problems,
) -> Option<WantedProfile> {
    let place = [SECTION, name];
    let has_name =
        problems.note(slug(&dotted(&place), name).map_err(|failure| document.problem(&place, &failure.message)));
    let mut note = |field: &str, message: String| {
        problems.note::<()>(Err(document.problem(&[SECTION, name, field], &message)));
    };
    let shown = dotted(&place);
    if name == SCRIPTED {
        note("", format!("{shown}: the scripted backend has neither a config nor a credential"));
        return None;
    }
    for (one, other, has_both) in [
        ("config", "config_file", entry.config.is_some() && entry.config_file.is_some()),
        ("credential_env", "credential_file", entry.credential_env.is_some() && entry.credential_file.is_some()),
    ] {
        if has_both {
            note(other, format!("{shown} has both {one} and {other}; give one of them"));
        }
    }
    let gives_config = entry.config.is_some() || entry.config_file.is_some();
    let gives_credential = entry.credential_env.is_some() || entry.credential_file.is_some();
    if !gives_config && !gives_credential {
        // What does not fit was reported, and may be what was meant.
        if !document.has_others(&place, &["tenant"]) {
            note("", format!("{shown} sets nothing: give it config, config_file, credential_env or credential_file"));
        }
        return None;
    }
    let config = config(document, name, entry, problems);
    let credential = credential(document, name, entry, problems);
    has_name?;
    let is_whole = config.is_some() == gives_config && credential.is_some() == gives_credential;
    is_whole.then(|| WantedProfile { name: name.to_owned(), tenant: entry.tenant.clone(), config, credential })
}

/// Reads and checks the config, by the same rules as the server.
fn config(
    document: &ApplyDocument,
    name: &str,
    entry: &AppliedProfile,
    problems: &mut Problems,
) -> Option<WantedConfig> {
    if let Some(file) = &entry.config_file {
        let place = [SECTION, name, "config_file"];
        let path = problems.note(document.resolve(&place, file))?;
        let text = read(&path, PROFILE_FILE_BYTES_MAX).map_err(|failure| document.problem(&place, &failure.message));
        let text = problems.note(text)?.expose_secret().to_owned();
        problems.note(ProfileConfig::read_new(&text).map_err(|failure| in_file(failure, &path)))?;
        return Some(WantedConfig { text, table: None });
    }
    let table = entry.config.as_ref()?;
    let place = [SECTION, name, "config"];
    let text = problems.note(toml::to_string(table).map_err(Failure::internal))?;
    problems.note(ProfileConfig::read_new(&text).map_err(|failure| in_document(document, &place, &failure)))?;
    let files = BTreeMap::from([(CONFIG.to_owned(), SecretString::from(text.clone()))]);
    if !Credential::new(files).values().is_empty() {
        let message = format!(
            "{} has a secret in it; put it into the credential, or write the config to a file of its own (config_file)",
            dotted(&place)
        );
        problems.note::<()>(Err(document.problem(&place, &message)));
        return None;
    }
    Some(WantedConfig { text, table: Some(table.clone()) })
}

/// The problems of a config that is part of the document, each at its line there.
fn in_document(document: &ApplyDocument, place: &[&str], failure: &Failure) -> Failure {
    let mut located = Problems::default();
    for problem in manifests::problems(failure) {
        let message = problem["message"].as_str().unwrap_or_default();
        let named = problem["field"].as_str().or_else(|| message.split(' ').next()).unwrap_or_default();
        let place: Vec<&str> = place.iter().copied().chain(named.split('.')).collect();
        let above = dotted(&place[..3]);
        located.note::<()>(Err(document.problem(&place, &format!("{above}: {message}"))));
    }
    located.into_failure()
}

/// Reads and checks the credential: a key, or a whole `auth.json`, which is a JSON object.
fn credential(
    document: &ApplyDocument,
    name: &str,
    entry: &AppliedProfile,
    problems: &mut Problems,
) -> Option<WantedCredential> {
    let place = [SECTION, name, if entry.credential_env.is_some() { "credential_env" } else { "credential_file" }];
    let at_place = |message: String| document.problem(&place, &format!("{}: {message}", dotted(&place)));
    // No message repeats the name of the variable or file: it may be the key itself, pasted into the wrong place.
    let text = match (&entry.credential_env, &entry.credential_file) {
        (Some(variable), _) => variable_text(variable).map_err(at_place),
        (None, Some(file)) => document.resolve(&place, file).and_then(|path| {
            let text = read_unnamed(&path, PROFILE_FILE_BYTES_MAX);
            text.map_err(|failure| at_place(format!("the file cannot be read: {}", failure.message)))
        }),
        (None, None) => return None,
    };
    let text = problems.note(text)?;
    let is_file = text.expose_secret().trim_start().starts_with('{');
    let request = match is_file {
        true => PutCredential { files: Some(BTreeMap::from([(AUTH.to_owned(), text)])), ..PutCredential::default() },
        false => {
            PutCredential { api_key: Some(text.expose_secret().trim().to_owned().into()), ..PutCredential::default() }
        }
    };
    let stored = Credential::default().put(name, &request).map_err(|failure| at_place(failure.message));
    let hash_suffix = problems.note(stored)?.hash_suffix(AUTH);
    Some(WantedCredential { request, hash_suffix })
}

fn variable_text(variable: &str) -> Result<SecretString, String> {
    let text = environment::current().text(variable).filter(|text| !text.trim().is_empty());
    text.map(SecretString::from).ok_or_else(|| "no variable of this name is set".to_owned())
}

impl WantedProfile {
    /// Compares the profile with that of the server. A failure is a problem of the entry.
    pub(super) async fn plan(&self, client: &Client, caller: &CallerView) -> Result<ProfilePlan<'_>, Failure> {
        let scope = ProfileScope { tenant_id: self.owner(caller)? };
        let found = match client.get_provider_profile(&self.name, &scope).await {
            Ok(found) => Some(found),
            Err(failure) if failure.kind == FailureKind::NotFound => None,
            // Several tenants have such a profile, and the operator has none.
            Err(failure) if failure.broken_rule() == Some(Rule::TenantIdRequired) => None,
            Err(failure) => return Err(failure),
        };
        // A read without a tenant finds a tenant's profile, too; a write does not.
        let found = found.filter(|found| found.tenant_id == scope.tenant_id && found.resource_version.is_some());
        let stored = match &found {
            Some(found) if found.config_hash_suffix.is_some() && self.config.is_some() => {
                Some(client.get_profile_config(&self.name, &scope).await?.config)
            }
            _ => None,
        };
        let has_config = self.config.as_ref().is_none_or(|wanted| wanted.is_same(stored.as_deref()));
        let stored_suffix = found.as_ref().and_then(|found| found.credential_hash_suffix.clone());
        let has_credential = self.credential.as_ref().is_none_or(|wanted| wanted.hash_suffix == stored_suffix);
        let is_elsewhere = self
            .config
            .as_ref()
            .is_some_and(|wanted| destination(&wanted.text) != stored.as_deref().and_then(destination));
        Ok(ProfilePlan {
            wanted: self,
            scope,
            exists: found.is_some(),
            version: found.as_ref().and_then(|found| found.resource_version.clone()).unwrap_or_default(),
            changes: [(!has_config, "config"), (!has_credential, "credential")]
                .into_iter()
                .filter_map(|(changes, what)| changes.then_some(what))
                .collect(),
            removes_credential: self.credential.is_none() && is_elsewhere && stored_suffix.is_some(),
        })
    }

    /// The tenant whose profile is written. `None` for the operator's.
    fn owner(&self, caller: &CallerView) -> Result<Option<String>, Failure> {
        let refused = |message: String| Failure::rule(Rule::ApplyFile, message).with_kind(FailureKind::Forbidden);
        if let Some(action) = caller.actions.iter().find(|action| action.action == PROVIDE && !action.allowed) {
            let reason = action.reason.as_deref().unwrap_or("the token may not set profiles");
            return Err(refused(format!("the token may not set profiles: {reason}")));
        }
        match (&self.tenant, caller.tenants.as_deref()) {
            (Some(tenant), _) if !caller.known_tenants.contains(tenant) => {
                Err(refused(format!("the tenant {:?} does not exist, or the token is not for it", line(tenant, 80))))
            }
            (Some(tenant), _) => Ok(Some(tenant.clone())),
            (None, None | Some([])) => Ok(None),
            (None, Some([only])) => Ok(Some(only.clone())),
            (None, Some(_)) => Err(refused("the token is for several tenants; name the owner with tenant".to_owned())),
        }
    }
}

impl WantedConfig {
    fn is_same(&self, stored: Option<&str>) -> bool {
        match (&self.table, stored) {
            (_, None) => false,
            (None, Some(stored)) => self.text == stored,
            (Some(table), Some(stored)) => stored.parse::<Table>().is_ok_and(|stored| stored == *table),
        }
    }
}

/// Where a config sends its credential.
fn destination(config: &str) -> Option<Destination> {
    ProfileConfig::read(config).ok().map(|config| Destination::of(&config))
}

impl ProfilePlan<'_> {
    /// The tenant that owns the profile. `None` for the operator's.
    pub(super) fn tenant(&self) -> Option<&str> {
        self.scope.tenant_id.as_deref()
    }

    /// The object as it will be.
    pub(super) fn preview(&self) -> AppliedObject {
        let outcome = match (self.changes.is_empty(), self.exists) {
            (true, _) => ObjectOutcome::Unchanged,
            (false, true) => ObjectOutcome::Configured,
            (false, false) => ObjectOutcome::Created,
        };
        AppliedObject {
            tenant_id: self.scope.tenant_id.clone(),
            changes: self.changes.clone(),
            credential_removed: self.removes_credential,
            ..AppliedObject::new(ObjectKind::Profile, &self.wanted.name, outcome)
        }
    }

    /// Makes the changes, unless another client has created or changed the profile since the plan was made.
    pub(super) async fn apply(&self, connection: &Connection, client: &Client) -> Result<AppliedObject, Failure> {
        let mut object = self.preview();
        if let Some(set) = self.send(client).await? {
            object.credential_removed = set.credential_dropped;
            report_missing(connection, &set);
        }
        Ok(object)
    }

    async fn send(&self, client: &Client) -> Result<Option<ProviderProfile>, Failure> {
        let WantedProfile { name, config, credential, .. } = self.wanted;
        let changed = |what: &str| self.changes.contains(&what);
        // A credential that is sent with its config is for the new destination, also if it stays the same.
        let set = match (credential, config) {
            (Some(credential), config) if changed("credential") || changed("config") => {
                let resource_version = Some(self.version.clone());
                let mut request = PutCredential { resource_version, ..credential.request.clone() };
                if let Some(config) = config.as_ref().filter(|_| changed("config")) {
                    request.files.get_or_insert_default().insert(CONFIG.to_owned(), config.text.clone().into());
                }
                client.put_credential(name, &self.scope, &request).await?
            }
            (None, Some(config)) if changed("config") => {
                let request = PutConfig { config: config.text.clone(), resource_version: Some(self.version.clone()) };
                client.put_profile_config(name, &self.scope, &request).await?
            }
            _ => return Ok(None),
        };
        Ok(Some(set))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_key_in_the_place_of_its_variable_or_file_is_not_repeated() {
        for (field, reason) in [
            ("credential_env", "no variable of this name is set"),
            ("credential_file", "the file cannot be read: No such file or directory (os error 2)"),
        ] {
            let text = format!("[profiles.fast]\n{field} = \"sk-pl4nted\"\n");
            let document = ApplyDocument::new("a.toml".into(), Path::new(""), &text);
            let mut problems = Problems::default();
            let entries = document.entries(&mut problems);
            assert!(check(&document, "fast", &entries.profiles[0].1, &mut problems).is_none());
            let message = problems.into_failure().message;
            assert_eq!(message, format!("a.toml, line 2: profiles.fast.{field}: {reason}"));
        }
    }
}
