//! What a runner job request adds for its job. The values of short-lived variables are stored sealed, and only until the job has
//! ended. They are removed from what the run of the job reports, and from nothing else.

use std::collections::BTreeMap;

use ostler_crypto::{Zeroizing, mac::MacKey};
use ostler_protocol::{
    Failure, Rule,
    ids::{RunId, RunnerJobId},
    json::hex,
    kernel::{
        provider_profiles::AgentConfig,
        runner_jobs::{CreateRunnerJob, JobExtras, RunnerJob, check_names, image_repository},
    },
};
use ostler_store as store;
use secrecy::{ExposeSecret, SecretString};

use super::provider_profiles;
use crate::{
    app::{App, RunRef},
    secrets::SecretStore,
};

/// Rejects an image that comes from elsewhere than the operator expects images: it gets the credentials of its run's profile.
pub(super) fn check_image(app: &App, request: &CreateRunnerJob) -> Result<(), Failure> {
    let Some(image) = &request.backend_image_ref else { return Ok(()) };
    let section = &app.config.kubernetes;
    let repository = image.repository().unwrap_or_default();
    let own = section.image.as_deref().map(image_repository);
    if own == Some(repository) || section.image_repositories.iter().any(|listed| listed == repository) {
        return Ok(());
    }
    let message = format!("backendImageRef: images of {repository:?} may not be used");
    Err(Failure::rule(Rule::BackendImageDenied, message))
}

/// Rejects variables that the program of the run's agent would get itself, unless their names are those of credentials.
pub(super) async fn check_variables(app: &App, run: &RunRef, request: &CreateRunnerJob) -> Result<(), Failure> {
    let is_scripted = AgentConfig::of_profile(&run.backend_profile) == Some(AgentConfig::Scripted);
    if request.transient_env.is_empty() || is_scripted {
        return Ok(());
    }
    let furnishing = provider_profiles::furnish_run(app, &run.tenant_id, &run.backend_profile).await?;
    check_names(request.transient_env.keys().map(String::as_str), &furnishing.config.agent)
}

/// The extras of an order, as they are stored.
pub(super) fn seal(
    app: &App,
    run_id: RunId,
    job_id: RunnerJobId,
    request: &CreateRunnerJob,
) -> Result<JobExtras, Failure> {
    let image = request.backend_image_ref.as_ref().map(|image| image.image.clone());
    if request.transient_env.is_empty() {
        return Ok(JobExtras { image, ..JobExtras::default() });
    }
    let values: BTreeMap<_, _> =
        request.transient_env.iter().map(|(name, value)| (name.as_str(), value.expose_secret())).collect();
    let text = Zeroizing::new(serde_json::to_vec(&values).map_err(Failure::internal)?);
    let sealed = hex(&app.secrets.seal(&sealed_name(job_id), &text));
    let key = SecretStore::key_text(&app.config)?;
    let key = MacKey::derived(key.expose_secret().as_bytes(), "hashes of short-lived variables");
    let run = run_id.to_string();
    let tag = |name: &str, value: &str| key.tag(&[run.as_bytes(), name.as_bytes(), value.as_bytes()]);
    Ok(JobExtras { image, variables: request.shown_variables(tag), sealed: Some(sealed) })
}

/// The variables of a job's backend, with their values. From now on they are removed from what its run reports to this server.
pub(crate) fn open(app: &App, job: &RunnerJob, extras: &JobExtras) -> Result<BTreeMap<String, SecretString>, Failure> {
    let job_id = job.runner_job_id;
    let Some(sealed) = &extras.sealed else { return Ok(BTreeMap::new()) };
    let opened =
        ostler_protocol::json::unhex(sealed).and_then(|sealed| app.secrets.open_sealed(&sealed_name(job_id), &sealed));
    let values: Option<BTreeMap<String, SecretString>> = opened.and_then(|text| serde_json::from_slice(&text).ok());
    let values = values.ok_or_else(|| {
        let message = "transientEnv of the job cannot be opened: it was sealed under another key; order another runner";
        Failure::rule(Rule::SecretDamaged, message)
    })?;
    if !app.job_redactors.contains(job_id) {
        let exposed: Vec<&str> = values.values().map(ExposeSecret::expose_secret).collect();
        app.job_redactors.add(job.run_id, job_id, &exposed);
    }
    Ok(values)
}

/// Prepares the redaction of what the run of an accepted job reports.
pub(super) fn remember(app: &App, job: &RunnerJob) {
    if app.job_redactors.contains(job.runner_job_id) {
        return;
    }
    if let Err(failure) = open(app, job, &JobExtras::read(&job.extras)) {
        tracing::warn!(%failure, job = %job.runner_job_id, "the short-lived variables of a job cannot be redacted");
    }
}

/// Prepares the redaction of the tool calls of a run. Another server may have accepted its jobs, or this one before it was restarted.
pub(crate) async fn remember_of_run(app: &App, run_id: RunId) -> Result<(), Failure> {
    let jobs = store::kernel::runner_jobs::list_with_extras(&app.db, run_id).await?;
    jobs.iter().for_each(|job| remember(app, job));
    Ok(())
}

/// A text of a job's runner, redacted.
pub(crate) fn redact(app: &App, job: &RunnerJob, text: &str) -> String {
    remember(app, job);
    app.job_redactors.of_run(job.run_id).redact(app.redactor.redact(text).into_owned())
}

/// JSON about a job's runner, redacted for storage.
#[cfg(feature = "kubernetes")]
pub(crate) fn redact_json(
    app: &App,
    job: &RunnerJob,
    raw: &ostler_protocol::RawJson,
) -> Result<ostler_protocol::RawJson, Failure> {
    remember(app, job);
    Ok(app.job_redactors.of_run(job.run_id).redact_json(app.redacted_payload(raw)?))
}

fn sealed_name(job_id: RunnerJobId) -> String {
    format!("variables of {job_id}")
}
