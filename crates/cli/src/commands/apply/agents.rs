//! The agents of `ostler apply`: checked on this machine, compared with those of the server, and created or changed. An agent is
//! found by its name among those of the caller.

use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind, RawJson, Rule,
    callers::CallerView,
    ids::{AgentId, slug},
    limits::PAGE_ITEMS_MAX,
    problems::Problems,
    trust::{
        agents::{Agent, CreateAgent, DiffManifest, ListAgents, SavedAgent, TriedManifest, UpdateAgent},
        manifest::{Checked, MANIFEST_BYTES_MAX},
    },
};
use secrecy::ExposeSecret;
use serde_json::Value;

use super::{
    file::{AppliedAgent, ApplyDocument, dotted},
    outcome::{AppliedObject, ObjectKind, ObjectOutcome},
};
use crate::{
    commands::{
        list::all_pages,
        profile_files::read,
        trust::{agents::warn, manifests},
    },
    terminal::output::line,
};

const SECTION: &str = "agents";
/// The action that a caller needs to own agents.
const OWN: &str = "own";
/// Of the file with a manifest: white space and escapes do not count against the limit of the manifest itself.
const MANIFEST_FILE_BYTES_MAX: usize = 8 * MANIFEST_BYTES_MAX;

/// An agent as the file wants it. Everything that can be checked without a server is right.
pub(super) struct WantedAgent {
    pub name: String,
    profile: Option<String>,
    manifest: Option<WantedManifest>,
}

struct WantedManifest {
    /// As it was written.
    text: RawJson,
    hash: String,
}

/// What has to be changed at the server for a wanted agent.
pub(super) struct AgentPlan<'a> {
    wanted: &'a WantedAgent,
    existing: Option<Agent>,
    changes: Vec<&'static str>,
    /// The effect of a manifest that differs.
    tried: Option<TriedManifest>,
}

/// Checks an entry. `None` if it has problems, which are noted.
pub(super) fn check(
    document: &ApplyDocument,
    name: &str,
    entry: &AppliedAgent,
    problems: &mut Problems,
) -> Option<WantedAgent> {
    let place = [SECTION, name];
    let request = CreateAgent { name: name.to_owned(), backend_profile: None, capability_manifest: None };
    let at_name = |failure: Failure| document.problem(&place, &format!("{}: {}", dotted(&place), failure.message));
    let has_name = problems.note(request.check().map_err(at_name));
    let at = [SECTION, name, "profile"];
    let profile = entry.profile.as_deref().map(|profile| slug(&dotted(&at), profile)).transpose();
    let has_profile = problems.note(profile.map_err(|failure| document.problem(&at, &failure.message)));
    if entry.manifest.is_some() && entry.manifest_file.is_some() {
        let message = format!("{} has both manifest and manifest_file; give one of them", dotted(&place));
        problems.note::<()>(Err(document.problem(&[SECTION, name, "manifest_file"], &message)));
        return None;
    }
    let gives_manifest = entry.manifest.is_some() || entry.manifest_file.is_some();
    let manifest = manifest(document, name, entry, problems);
    has_name?;
    has_profile?;
    (manifest.is_some() == gives_manifest).then(|| WantedAgent {
        name: name.to_owned(),
        profile: entry.profile.clone(),
        manifest,
    })
}

/// Reads and checks the manifest, by the same rules as the server.
fn manifest(
    document: &ApplyDocument,
    name: &str,
    entry: &AppliedAgent,
    problems: &mut Problems,
) -> Option<WantedManifest> {
    let (text, checked) = if let Some(file) = &entry.manifest_file {
        let place = [SECTION, name, "manifest_file"];
        let path = problems.note(document.resolve(&place, file))?;
        let shown = line(&path.to_string_lossy(), 400);
        let text = read(&path, MANIFEST_FILE_BYTES_MAX).and_then(|text| {
            let not_json = |error: serde_json::Error| Failure::invalid(Rule::ManifestFile, format!("{shown}: {error}"));
            RawJson::parse(text.expose_secret().to_owned()).map_err(not_json)
        });
        let text = problems.note(text.map_err(|failure| document.problem(&place, &failure.message)))?;
        let located = |problem: &Value| {
            let message = format!("{shown}: {}", manifests::problem_text(problem));
            Failure::invalid(Rule::ManifestInvalid, message)
        };
        (text.clone(), Checked::read(text.as_str()).map_err(|failure| each(&failure, located)))
    } else {
        let table = entry.manifest.as_ref()?;
        let place = [SECTION, name, "manifest"];
        if has_date(&toml::Value::Table(table.clone())) {
            let message = format!("{} has a date; a manifest has strings, numbers and tables only", dotted(&place));
            problems.note::<()>(Err(document.problem(&place, &message)));
            return None;
        }
        let text = RawJson::of(table);
        let located = |problem: &Value| {
            let pointer = problem["pointer"].as_str().unwrap_or_default();
            let below: Vec<&str> = place.into_iter().chain(pointer.split('/').skip(1)).collect();
            document.problem(&below, &format!("{}: {}", dotted(&place), manifests::problem_text(problem)))
        };
        (text.clone(), Checked::read(text.as_str()).map_err(|failure| each(&failure, located)))
    };
    let checked = problems.note(checked)?;
    Some(WantedManifest { text, hash: checked.canonical.hash })
}

/// One failure for the problems of another one.
fn each(failure: &Failure, located: impl Fn(&Value) -> Failure) -> Failure {
    let mut problems = Problems::default();
    for problem in manifests::problems(failure) {
        problems.note::<()>(Err(located(&problem)));
    }
    problems.into_failure()
}

fn has_date(value: &toml::Value) -> bool {
    match value {
        toml::Value::Datetime(_) => true,
        toml::Value::Array(items) => items.iter().any(has_date),
        toml::Value::Table(table) => table.values().any(has_date),
        _ => false,
    }
}

impl WantedAgent {
    /// Compares the agent with that of the server. A failure is a problem of the entry.
    pub(super) async fn plan(&self, client: &Client, caller: &CallerView) -> Result<AgentPlan<'_>, Failure> {
        let existing = self.find(client, caller).await?;
        let stored = existing.as_ref();
        let stored_hash = stored.and_then(|agent| agent.capability_manifest_hash.as_ref());
        let other_manifest = self.manifest.as_ref().filter(|manifest| Some(&manifest.hash) != stored_hash);
        let stored_profile = stored.and_then(|agent| agent.backend_profile.as_ref());
        let has_other_profile = self.profile.is_some() && self.profile.as_ref() != stored_profile;
        let tried = match (stored, other_manifest) {
            (Some(agent), Some(manifest)) => {
                let request = DiffManifest { capability_manifest: manifest.text.clone() };
                Some(client.diff_manifest(&agent.id.to_string(), &request).await?)
            }
            _ => None,
        };
        let changes = [(other_manifest.is_some(), "manifest"), (has_other_profile, "profile")];
        let changes = changes.into_iter().filter_map(|(changes, what)| changes.then_some(what)).collect();
        Ok(AgentPlan { wanted: self, existing, changes, tried })
    }

    /// The caller's agent of this name.
    async fn find(&self, client: &Client, caller: &CallerView) -> Result<Option<Agent>, Failure> {
        let Some(owner_id) = &caller.owner_id else {
            let reason = caller.actions.iter().find(|action| action.action == OWN).and_then(|own| own.reason.clone());
            let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            let message = format!("the token may not own agents{reason}");
            return Err(Failure::rule(Rule::ApplyFile, message).with_kind(FailureKind::Forbidden));
        };
        let all = all_pages(async |cursor| {
            let query = ListAgents { name: Some(self.name.clone()), limit: Some(PAGE_ITEMS_MAX), cursor };
            let page = client.list_agents(&query).await?;
            Ok((page.agents, page.next_cursor))
        });
        let is_own = |agent: &Agent| agent.name == self.name && agent.owner_id == *owner_id;
        let mut own: Vec<Agent> = all.await?.into_iter().filter(is_own).collect();
        if own.len() > 1 {
            let ids: Vec<_> = own.iter().map(|agent| agent.id.to_string()).collect();
            let message =
                format!("{} agents of yours have this name; retire all but one: {}", ids.len(), ids.join(", "));
            return Err(Failure::rule(Rule::ApplyFile, line(&message, 2_000)).with_kind(FailureKind::StateConflict));
        }
        Ok(own.pop())
    }
}

impl AgentPlan<'_> {
    /// The object as it will be.
    pub(super) fn preview(&self) -> AppliedObject {
        let outcome = match (self.changes.is_empty(), &self.existing, &self.tried) {
            (_, None, _) => ObjectOutcome::Created,
            (true, Some(_), _) => ObjectOutcome::Unchanged,
            (false, Some(_), Some(_)) => ObjectOutcome::NewVersion,
            (false, Some(_), None) => ObjectOutcome::Configured,
        };
        let tried = self.tried.as_ref();
        AppliedObject {
            id: self.existing.as_ref().map(|agent| agent.id),
            changes: self.changes.clone(),
            version: tried.map(|tried| tried.capability_manifest_version),
            breaking: tried.map(|tried| tried.diff.breaking),
            scopes_requiring_reauth: tried.map(|tried| tried.diff.scopes_requiring_reauth.clone()).unwrap_or_default(),
            ..AppliedObject::new(ObjectKind::Agent, &self.wanted.name, outcome)
        }
    }

    pub(super) async fn apply(&self, client: &Client) -> Result<AppliedObject, Failure> {
        let object = self.preview();
        if object.outcome == ObjectOutcome::Unchanged {
            return Ok(object);
        }
        let saved = match &self.existing {
            Some(agent) => self.update(client, agent.id).await?,
            None => self.create(client).await?,
        };
        warn(&saved.warnings);
        // Another client may have published a manifest since the plan was made.
        let is_new_version = object.outcome == ObjectOutcome::NewVersion;
        Ok(AppliedObject {
            id: Some(saved.agent.id),
            version: (saved.agent.capability_manifest_version > 0).then_some(saved.agent.capability_manifest_version),
            breaking: is_new_version.then_some(saved.breaking),
            scopes_requiring_reauth: saved.scopes_requiring_reauth,
            ..object
        })
    }

    async fn create(&self, client: &Client) -> Result<SavedAgent, Failure> {
        let request = CreateAgent {
            name: self.wanted.name.clone(),
            backend_profile: self.wanted.profile.clone(),
            capability_manifest: self.wanted.manifest.as_ref().map(|manifest| manifest.text.clone()),
        };
        client.create_agent(&request).await
    }

    async fn update(&self, client: &Client, id: AgentId) -> Result<SavedAgent, Failure> {
        let changed = |what: &str| self.changes.contains(&what);
        let manifest = self.wanted.manifest.as_ref().filter(|_| changed("manifest"));
        let change = UpdateAgent {
            name: None,
            backend_profile: self.wanted.profile.clone().filter(|_| changed("profile")).map(Some),
            capability_manifest: manifest.map(|manifest| manifest.text.clone()),
        };
        client.update_agent(&id.to_string(), &change).await
    }
}
