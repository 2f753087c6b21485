//! What `ostler apply` did with an object, or would do, as a line and as JSON.

use ostler_protocol::ids::AgentId;
use serde::Serialize;

use crate::{commands::trust::agents::effect_on_people, terminal::output::line};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ObjectKind {
    Profile,
    Agent,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum ObjectOutcome {
    Created,
    Configured,
    /// Of an agent: it has another manifest.
    NewVersion,
    Unchanged,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AppliedObject {
    pub kind: ObjectKind,
    pub name: String,
    /// The tenant that owns a profile. `None` for the operator's profiles and for agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
    /// Of an agent that exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<AgentId>,
    pub outcome: ObjectOutcome,
    /// What differed: `config` and `credential` of a profile, `manifest` and `profile` of an agent.
    pub changes: Vec<&'static str>,
    /// The config names another destination than the credential was set for.
    #[serde(skip_serializing_if = "is_false")]
    pub credential_removed: bool,
    /// Of an agent with a manifest that is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub breaking: Option<bool>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scopes_requiring_reauth: Vec<String>,
    pub dry_run: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}

impl AppliedObject {
    pub(super) fn new(kind: ObjectKind, name: &str, outcome: ObjectOutcome) -> Self {
        Self {
            kind,
            name: name.to_owned(),
            tenant_id: None,
            id: None,
            outcome,
            changes: vec![],
            credential_removed: false,
            version: None,
            breaking: None,
            scopes_requiring_reauth: vec![],
            dry_run: false,
        }
    }

    /// `profile model`, `profile mine of acme`, `agent reader`.
    pub(super) fn title(&self) -> String {
        let kind = match self.kind {
            ObjectKind::Profile => "profile",
            ObjectKind::Agent => "agent",
        };
        let tenant = self.tenant_id.as_ref().map(|tenant| format!(" of {}", line(tenant, 80))).unwrap_or_default();
        format!("{kind} {}{tenant}", line(&self.name, 80))
    }

    pub(super) fn text(&self) -> String {
        let what = match (self.outcome, self.dry_run) {
            (ObjectOutcome::Unchanged, _) => "unchanged".to_owned(),
            (ObjectOutcome::Created, false) => "created".to_owned(),
            (ObjectOutcome::Created, true) => format!("would be created{}", self.listed_changes()),
            (ObjectOutcome::Configured, false) => "configured".to_owned(),
            (ObjectOutcome::Configured, true) => format!("would be configured{}", self.listed_changes()),
            (ObjectOutcome::NewVersion, is_dry) => {
                let verb = if is_dry { "would get a new version" } else { "new version" };
                let number = self.version.map(|version| format!(" {version}")).unwrap_or_default();
                let profile = if self.changes.contains(&"profile") { " and another profile" } else { "" };
                let effect = effect_on_people(self.breaking.unwrap_or_default(), &self.scopes_requiring_reauth);
                format!("{verb}{number}{profile}, {effect}")
            }
        };
        let removed = match (self.credential_removed, self.dry_run) {
            (true, true) => ", and lose its credential: the config names another server or command",
            (true, false) => ", credential removed",
            (false, _) => "",
        };
        format!("{} {what}{removed}\n", self.title())
    }

    fn listed_changes(&self) -> String {
        if self.changes.is_empty() { String::new() } else { format!(" ({})", self.changes.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(kind: ObjectKind, outcome: ObjectOutcome, dry_run: bool) -> AppliedObject {
        let changes = vec!["config", "credential"];
        AppliedObject { dry_run, changes, ..AppliedObject::new(kind, "x", outcome) }
    }

    #[test]
    fn each_outcome_has_a_line() {
        use ObjectKind::{Agent, Profile};
        use ObjectOutcome::{Configured, Created, NewVersion, Unchanged};
        let both = vec!["manifest", "profile"];
        for (object, text) in [
            (object(Profile, Created, false), "profile x created\n"),
            (object(Profile, Created, true), "profile x would be created (config, credential)\n"),
            (object(Profile, Configured, false), "profile x configured\n"),
            (object(Profile, Unchanged, true), "profile x unchanged\n"),
            (
                AppliedObject { tenant_id: Some("acme".into()), ..object(Profile, Configured, false) },
                "profile x of acme configured\n",
            ),
            (
                AppliedObject { credential_removed: true, ..object(Profile, Configured, false) },
                "profile x configured, credential removed\n",
            ),
            (
                AppliedObject {
                    version: Some(2),
                    breaking: Some(true),
                    scopes_requiring_reauth: vec!["a:b".into()],
                    ..object(Agent, NewVersion, false)
                },
                "agent x new version 2, breaking: people are asked again about 1 scope, a:b\n",
            ),
            (
                AppliedObject { version: Some(3), breaking: Some(false), ..object(Agent, NewVersion, true) },
                "agent x would get a new version 3, silent: no one is asked again\n",
            ),
            (
                AppliedObject { version: Some(2), changes: both.clone(), ..object(Agent, NewVersion, false) },
                "agent x new version 2 and another profile, silent: no one is asked again\n",
            ),
            (
                AppliedObject { version: Some(2), changes: both, ..object(Agent, NewVersion, true) },
                "agent x would get a new version 2 and another profile, silent: no one is asked again\n",
            ),
        ] {
            assert_eq!(object.text(), text);
        }
    }

    #[test]
    fn json_leaves_out_what_does_not_concern_the_object() {
        let value =
            serde_json::to_value(AppliedObject::new(ObjectKind::Agent, "x", ObjectOutcome::NewVersion)).unwrap();
        let expected =
            serde_json::json!({"kind": "agent", "name": "x", "outcome": "new-version", "changes": [], "dryRun": false});
        assert_eq!(value, expected);
    }
}
