//! Profiles that the server leaves to runners elsewhere (`runner.external_profiles`): the runner has all that its backend needs.

use jiff::SignedDuration;
use ostler_protocol::{
    Timestamp,
    kernel::{
        liveness::Liveness,
        provider_profiles::{AgentKind, ProviderProfile},
    },
};

use crate::{app::App, auth::Principal};

pub fn is_external(app: &App, profile: &str) -> bool {
    app.config.runner.external_profiles.iter().any(|name| name == profile)
}

/// The profile as one that needs nothing on this server.
pub(super) fn described(profile: ProviderProfile) -> ProviderProfile {
    ProviderProfile {
        agent: AgentKind::External,
        configured: true,
        ready: true,
        failure_kind: None,
        message: None,
        ..profile
    }
}

/// An external profile with a note on when a runner last requested a job of it; other profiles as they are.
pub(super) fn with_note(app: &App, caller: &Principal, profile: ProviderProfile) -> ProviderProfile {
    if profile.agent != AgentKind::External {
        return profile;
    }
    let last_claim_at = app.job_queues.last_claim_at(&profile.profile, caller.tenants());
    ProviderProfile { message: Some(note(app, last_claim_at)), last_claim_at, ..profile }
}

/// When a runner last requested a job of an external profile.
pub fn note(app: &App, last_claim_at: Option<Timestamp>) -> String {
    let last_claim = match last_claim_at {
        Some(at) => format!("a runner last requested a job {}", ago(app.now().duration_since(at))),
        None => "no runner has requested a job since this server started".to_owned(),
    };
    format!("external profile; {last_claim}")
}

fn ago(age: SignedDuration) -> String {
    match age.as_secs().max(0) {
        secs @ 0..=119 => format!("{secs} s ago"),
        secs @ 120..=7199 => format!("{} min ago", secs / 60),
        secs => format!("{} h ago", secs / 3600),
    }
}

/// Marks the liveness of a run of an external profile as waiting for a runner elsewhere, if no runner has claimed the run.
pub fn set_external_profile(app: &App, profile: &str, liveness: &mut Liveness) {
    if is_external(app, profile) {
        liveness.wait_for_external(profile);
    }
}
