//! Provider profiles as rows of a table and as fields: whether they are ready, and how their last trial ended.

use jiff::SignedDuration;
use ostler_protocol::{
    Timestamp,
    kernel::provider_profiles::{AgentKind, ProviderProfile},
    limits::WAIT_MS_MAX,
};

use crate::{
    commands::list::Listing,
    terminal::{
        output::{self, line},
        table::Column,
        times::Times,
    },
};

pub(crate) const PROFILES: Listing<ProviderProfile> = Listing {
    nothing: "",
    columns: &[
        Column::whole("PROFILE"),
        Column::spare(2, "OWNER"),
        Column::spare(3, "AGENT"),
        Column::whole("READY"),
        Column::spare(4, "TRIED"),
        Column::spare(1, "SET"),
        Column::wrapped(5, "NOTE"),
    ],
    row: |profile, times, now| {
        vec![
            line(&profile.profile, 63),
            owner(profile.tenant_id.as_deref()),
            profile.agent.as_str().to_owned(),
            ready(profile, now).into(),
            tried(profile),
            profile.updated_at.map_or("-".into(), |at| times.ago(at, now)),
            profile.message.as_deref().map_or(String::new(), |message| shorten_message(message, &profile.profile)),
        ]
    },
};

/// A message about a profile without its beginning, which only names the profile again.
pub(crate) fn shorten_message(message: &str, profile: &str) -> String {
    let message = line(message, 200);
    let begins = [format!("the secret of the profile {profile:?} "), format!("the profile {profile:?} ")];
    let rest = begins.iter().find_map(|begin| message.strip_prefix(begin.as_str()));
    rest.map(|rest| rest.strip_prefix("is ").unwrap_or(rest).to_owned()).unwrap_or(message)
}

/// Whether a runner requested a job recently, given its last request. A request waits for at most [`WAIT_MS_MAX`], so the last
/// request of a runner that waits now is never older.
pub(crate) fn is_recent_claim(last_claim_at: Option<Timestamp>, now: Timestamp) -> bool {
    last_claim_at.is_some_and(|at| now.duration_since(at) <= SignedDuration::from_millis(2 * WAIT_MS_MAX as i64))
}

/// Whether a run of it can start, and whether one is known to fail. Callers who do not see trials cannot know the latter, so the
/// table does not show them `yes`. An external profile needs a runner, as in the list of backends.
fn ready(profile: &ProviderProfile, now: Timestamp) -> &'static str {
    let has_runner = profile.agent != AgentKind::External || is_recent_claim(profile.last_claim_at, now);
    match (profile.ready, profile.failure_kind) {
        (true, None) if !has_runner => "no runner",
        (true, None) if has_hidden_trials(profile) => "set up",
        (true, None) => "yes",
        (true, Some(_)) => "trial failed",
        (false, _) => "no",
    }
}

/// Whether the server leaves out how trials of the profile ended, because the caller may use the profile and not manage it. Then
/// it also leaves out the version of the secret, which every profile that is ready has. External profiles need no secret.
fn has_hidden_trials(profile: &ProviderProfile) -> bool {
    profile.ready && profile.resource_version.is_none() && profile.agent != AgentKind::External
}

/// The result of the last trial, if it was of the current version.
fn tried(profile: &ProviderProfile) -> String {
    match &profile.validation {
        None if has_hidden_trials(profile) => "not shown".into(),
        Some(trial) if trial.resource_version == profile.resource_version => trial.status.as_str().into(),
        Some(_) => "before the last change".into(),
        None => "-".into(),
    }
}

pub(crate) fn render_one(profile: &ProviderProfile, times: Times, now: Timestamp) -> String {
    let suffix = |suffix: &Option<String>| suffix.as_ref().map_or("-".to_owned(), |hash| format!("…{hash}"));
    let rows = [
        ("profile", line(&profile.profile, 63)),
        ("owner", owner(profile.tenant_id.as_deref())),
        ("agent", profile.agent.as_str().to_owned()),
        ("configured", if profile.configured { "yes" } else { "no" }.to_owned()),
        ("ready", ready(profile, now).to_owned()),
        ("secret", format!("{} ({})", profile.secret_ref.name, profile.secret_ref.keys.join(", "))),
        ("version", profile.resource_version.clone().unwrap_or_else(|| "-".into())),
        ("auth.json", suffix(&profile.credential_hash_suffix)),
        ("config.toml", suffix(&profile.config_hash_suffix)),
        ("set", profile.updated_at.map_or("-".into(), |at| times.ago(at, now))),
        ("tried", tried(profile)),
        ("note", profile.message.as_deref().map_or("-".into(), |message| line(message, 300))),
    ];
    let text: String = rows.into_iter().map(|(name, value)| format!("{name:<12} {value}\n")).collect();
    output::folded(&text, output::width())
}

pub(crate) fn owner(tenant_id: Option<&str>) -> String {
    tenant_id.map_or("operator".into(), |tenant_id| line(tenant_id, 200))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_trial_counts_only_for_the_version_it_tested() {
        let profile = |tried: &str| -> ProviderProfile {
            serde_json::from_value(json!({"profile": "codex", "builtIn": true, "agent": "codex", "configured": true,
                "secretRef": {"name": "agentrun-v01-provider-codex", "keys": ["auth.json"]}, "resourceVersion": "2",
                "credentialHashSuffix": "01234567", "configHashSuffix": null, "updatedAt": "2030-01-01T00:00:00Z",
                "validation": {"validationId": format!("val_{:032x}", 1), "status": "passed", "failureKind": null,
                    "resourceVersion": tried, "createdAt": "2030-01-01T00:00:00Z"}, "failureKind": null, "message": null}))
            .unwrap()
        };
        assert_eq!((tried(&profile("2")), tried(&profile("1"))), ("passed".into(), "before the last change".into()));
        let (times, now) = (Times::default(), "2030-01-01T01:00:00Z".parse().unwrap());
        let text = PROFILES.render(&[profile("2")], times, now, None);
        assert!(text.contains("codex") && text.contains("passed") && text.contains("1h"), "{text}");
        assert!(render_one(&profile("2"), times, now).contains("…01234567"));
    }

    #[test]
    fn a_profile_whose_trial_failed_is_not_called_ready() {
        let words = |is_ready: bool, failure: Option<&str>| {
            let profile = json!({"profile": "codex", "builtIn": true, "agent": "codex", "configured": is_ready,
                "ready": is_ready, "failureKind": failure, "secretRef": {"name": "s", "keys": []}, "resourceVersion": "1"});
            ready(&serde_json::from_value(profile).unwrap(), Timestamp::UNIX_EPOCH)
        };
        assert_eq!(words(true, None), "yes");
        assert_eq!(words(true, Some("provider-auth-failed")), "trial failed");
        assert_eq!(words(false, Some("secret-unavailable")), "no");
    }

    #[test]
    fn callers_who_see_no_trials_do_not_read_that_none_failed() {
        let words = |is_ready: bool, agent: &str, claimed: Option<&str>| {
            let profile = json!({"profile": "codex", "builtIn": true, "agent": agent, "configured": is_ready,
                "ready": is_ready, "failureKind": null, "secretRef": {"name": "s", "keys": []}, "resourceVersion": null,
                "lastClaimAt": claimed});
            let profile: ProviderProfile = serde_json::from_value(profile).unwrap();
            (ready(&profile, Timestamp::UNIX_EPOCH), tried(&profile))
        };
        assert_eq!(words(true, "codex", None), ("set up", "not shown".to_owned()));
        assert_eq!(words(false, "codex", None), ("no", "-".to_owned()));
        let claimed = words(true, "external", Some("1970-01-01T00:00:00Z"));
        assert_eq!(claimed, ("yes", "-".to_owned()), "it has no secret, and no trials");
        assert_eq!(words(true, "external", None).0, "no runner", "as in the list of backends");
    }
}
