//! What a pod gives its runner: the token, and the environment and credentials of its backend.

use std::{collections::BTreeMap, path::PathBuf};

use ostler_crypto::mac::MacKey;
use ostler_protocol::{
    Failure, FailureKind, Rule,
    kernel::{
        policy::{ToolCredential, tool_secret_name},
        provider_profiles::AgentConfig,
        runner_jobs::{JobExtras, RunnerJob, check_names, cluster_job_name},
        runs::Run,
        workspaces::WorkspaceRef,
    },
};
use ostler_runner::{BackendEnvironment, Unavailable, guard::Isolation};
use ostler_store::failures::is_of_store;
use secrecy::{ExposeSecret, SecretString};

use crate::{
    app::{App, RunRef},
    auth,
    kubernetes::{
        Cluster, ClusterError, is_of_cluster,
        job_manifest::{ClaimedStorage, JobOrder, JobSecrets, ToolMount},
    },
    launcher::{bundles, environment},
    secrets::SecretStore,
    service::job_extras,
};

/// The kind of the token with which a program calls the tools of its run, at its own runner.
const TOOLS: &str = "tool";
/// Where a pod has its secrets. A backend must not read them.
const HIDDEN_DIR: &str = "/var/run/ostler";
/// Total bytes of the files of a home. The cluster takes Secrets of up to 1 MiB.
const HOME_BYTES_MAX: usize = 768 * 1024;

/// Everything that is sent to a pod.
pub(super) struct PodContents {
    token: SecretString,
    backend: SecretString,
    ca: Option<String>,
    home: BTreeMap<String, SecretString>,
    tools: Vec<ToolMount>,
    /// The image that the order of the runner names.
    image: Option<String>,
    /// Whether the backend is a program, which keeps its own record of the session.
    keeps_files: bool,
}

/// What the backend of a pod is started with.
struct PreparedBackend {
    environment: BackendEnvironment,
    home: BTreeMap<String, SecretString>,
    tools: Vec<ToolMount>,
}

impl PreparedBackend {
    fn bare(environment: BackendEnvironment) -> Self {
        Self { environment, home: BTreeMap::new(), tools: vec![] }
    }
}

impl PodContents {
    /// Fails only if the store or the cluster does not respond, the tenant looks up too many refs at a time, or the server's own
    /// settings cannot be read. Whatever else is missing fails the turns of the run, with the reason.
    pub(super) async fn make(
        app: &App,
        cluster: &Cluster,
        run: &Run,
        job: &RunnerJob,
        owner: &str,
    ) -> Result<Self, Failure> {
        let extras = JobExtras::read(&job.extras);
        let PreparedBackend { environment, home, tools } = match prepare_backend(app, cluster, run, job, &extras).await
        {
            Ok(prepared) => prepared,
            Err(failure) if is_of_store(&failure) || is_of_cluster(&failure) => return Err(failure),
            // The start fails, and the next one tries again.
            Err(failure) if failure.kind == FailureKind::Overloaded => return Err(failure),
            Err(failure) => {
                tracing::warn!(%failure, job = %job.runner_job_id, "the agent could not be started; its turn fails with this reason");
                let agent = AgentConfig::of_profile(&run.backend_profile).unwrap_or_default();
                PreparedBackend::bare(unavailable(agent, failure))
            }
        };
        let ca = match &app.config.kubernetes.ca_file {
            Some(path) => Some(tokio::fs::read_to_string(path).await.map_err(|error| {
                Failure::invalid(Rule::ClusterConfig, format!("cannot read {}: {error}", path.display()))
            })?),
            None => None,
        };
        let backend = serde_json::to_string(&environment).map_err(Failure::internal)?;
        let keeps_files = environment.backend.is_program();
        Ok(Self {
            token: token(app, job, owner)?,
            backend: backend.into(),
            ca,
            home,
            tools,
            image: extras.image,
            keeps_files,
        })
    }

    pub(super) fn keeps_files(&self) -> bool {
        self.keeps_files
    }

    pub(super) fn token_hash(&self) -> String {
        auth::token_hash(self.token.expose_secret())
    }

    pub(super) fn secrets(&self) -> JobSecrets<'_> {
        let home = self.home.iter().map(|(path, text)| (path.as_str(), text.expose_secret()));
        JobSecrets {
            token: self.token.expose_secret(),
            backend: self.backend.expose_secret(),
            ca: self.ca.as_deref(),
            home: home.collect(),
        }
    }

    pub(super) fn order<'a>(
        &'a self,
        app: &'a App,
        run: &RunRef,
        job: &'a RunnerJob,
        storage: Option<ClaimedStorage>,
    ) -> JobOrder<'a> {
        let (section, runner) = (&app.config.kubernetes, &app.config.runner);
        JobOrder {
            name: cluster_job_name(&section.job_prefix, job.runner_job_id, job.starts),
            runner_job_id: job.runner_job_id,
            run_id: job.run_id,
            session: job.session,
            runner_id: &job.runner_id,
            image: self.image.as_deref().or(section.image.as_deref()).unwrap_or_default(),
            server_url: section.server_url.as_deref().unwrap_or_default(),
            resources: section.resources_of(&run.backend_profile),
            lease_ms: runner.lease_ms,
            idle_ms: runner.idle_ms,
            has_ca: self.ca.is_some(),
            home_files: self.home.keys().cloned().collect(),
            tools: self.tools.clone(),
            storage,
            section,
        }
    }
}

/// An environment that could not be prepared, without the rule of the failure: the image of a pod may have the runner of an earlier
/// release, which rejects fields that it does not have.
fn unavailable(agent: AgentConfig, failure: Failure) -> BackendEnvironment {
    let environment = BackendEnvironment::unavailable(agent, failure);
    let unavailable = environment.unavailable.map(|reason| Unavailable { rule: None, ..reason });
    BackendEnvironment { unavailable, ..environment }
}

/// Every server derives the same token for a start, so that a start can be continued by another server. Only its hash is stored.
fn token(app: &App, job: &RunnerJob, owner: &str) -> Result<SecretString, Failure> {
    let key = SecretStore::key_text(&app.config)?;
    let key = MacKey::derived(key.expose_secret().as_bytes(), "tokens of runners in pods");
    Ok(auth::derive(auth::RUN, &key, &[job.runner_job_id.to_string().as_bytes(), owner.as_bytes()]))
}

/// The environment of the backend in a pod, and the files of its home.
async fn prepare_backend(
    app: &App,
    cluster: &Cluster,
    run: &Run,
    job: &RunnerJob,
    extras: &JobExtras,
) -> Result<PreparedBackend, Failure> {
    let variables = job_extras::open(app, job, extras)?;
    if AgentConfig::of_profile(&run.backend_profile) == Some(AgentConfig::Scripted) {
        let environment = BackendEnvironment { variables, ..BackendEnvironment::bare(AgentConfig::Scripted) };
        let tools = tools_of(cluster, run).await?;
        return Ok(PreparedBackend { tools, ..PreparedBackend::bare(environment) });
    }
    let (mut environment, files) = environment::of_profile(app, &run.tenant_id, &run.backend_profile).await?;
    let bytes: usize = files.values().map(|text| text.expose_secret().len()).sum();
    if bytes > HOME_BYTES_MAX {
        let message = format!("the files of the profile have {bytes} bytes; a pod takes {HOME_BYTES_MAX}");
        return Err(Failure::new(FailureKind::SecretUnavailable, message));
    }
    // Again: the order may be from an earlier release, and the profile may have got another agent since.
    check_names(variables.keys().map(String::as_str), &environment.backend)?;
    environment.variables = variables;
    let tools = tools_of(cluster, run).await?;
    // The image has its own programs, and the runner in it its own guard.
    environment.program = None;
    environment.hidden = vec![PathBuf::from(HIDDEN_DIR)];
    if let Some(guard) = &mut environment.guard {
        (guard.program, guard.isolation) = (PathBuf::from("/proc/self/exe"), Isolation::None);
    }
    if environment.backend.is_program() {
        environment.tool_token = Some(auth::mint(TOOLS));
        if matches!(WorkspaceRef::read(&run.workspace_ref)?, WorkspaceRef::Local { .. }) {
            let message = "a runner in a pod cannot reach a directory of the server; use the kind \"git\" or \"none\"";
            return Err(Failure::new(FailureKind::InfraFailed, message));
        }
        environment.checkout = bundles::checkout(app, run).await?;
        environment.resource_bundle = bundles::order(app, run, None).await?;
        // The profile `RuntimeDefault` denies the namespaces of Codex's own sandbox.
        environment.landlock_tools = true;
    }
    Ok(PreparedBackend { environment, home: files, tools })
}

/// What every pod of the run has of its tools, whatever its backend is.
async fn tools_of(cluster: &Cluster, run: &Run) -> Result<Vec<ToolMount>, Failure> {
    mount_tools(cluster, &run.execution_policy.secret_scope.tool_credentials).await
}

/// The Secrets of a run's tools. The cluster gives them to the pod; the server only sees that they exist, because a pod without
/// one would wait for it.
async fn mount_tools(cluster: &Cluster, credentials: &[ToolCredential]) -> Result<Vec<ToolMount>, Failure> {
    let mut mounts: Vec<ToolMount> = vec![];
    for credential in credentials {
        if mounts.iter().any(|mount| mount.tool == credential.tool) {
            continue;
        }
        let (secret_name, keys) = match &credential.secret_ref {
            Some(secret) => (secret.name.clone(), secret.keys.clone()),
            None => (tool_secret_name(&credential.tool), vec![]),
        };
        let missing = |why: &str| {
            let message = format!("the credential of the tool {:?} is not available: {why}", credential.tool);
            Failure::rule(Rule::ToolSecretMissing, message).detail("tool", credential.tool.as_str())
        };
        match cluster.has_secret(&secret_name).await {
            Ok(true) => mounts.push(ToolMount { tool: credential.tool.clone(), secret_name, keys }),
            Ok(false) => return Err(missing(&format!("there is no Secret {secret_name}"))),
            Err(ClusterError::Refused(message)) => return Err(missing(&message)),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(mounts)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_runner_of_an_earlier_release_can_read_why_its_environment_is_unavailable() {
        let failure = Failure::rule(Rule::ToolSecretMissing, "there is no Secret s");
        let kind = failure.kind;
        let sent = serde_json::to_value(unavailable(AgentConfig::Codex, failure)).unwrap();
        assert_eq!(sent["lacks"], json!({"failureKind": kind, "message": "there is no Secret s"}));
    }
}
