//! The variables by which `ostler runner` is started where no person types arguments, as in a pod. Each has a name of ours;
//! where the published run manager has a name for the same purpose, that one works too. Ours wins.

use std::{
    fs::{DirBuilder, OpenOptions},
    io::Write,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::Duration,
};

use ostler_protocol::{
    Failure,
    kernel::{provider_profiles::AgentConfig, session_storage::CODEX_ROLLOUT_SUBDIR},
    limits::{LEASE_MS_MAX, LEASE_MS_MIN},
};
use ostler_runner::{BackendEnvironment, RunnerOrder, StorageClaim};
use ostler_server::config::Environment;

use crate::errors;

/// Longest time that a variable may set: a day.
const TIME_MS_MAX: u64 = 86_400_000;
/// Time to close the backend and to release the lease after a signal. Pods get 30 s by default.
const GRACE_MS_DEFAULT: u64 = 20_000;
const IN_POD: &str = "kubernetes-job";
const PLACEMENTS: [&str; 2] = ["host-process", IN_POD];

/// Names of one setting, the most important first.
type Names = &'static [&'static str];

const RUN_ID: Names = &["OSTLER_RUNNER_RUN_ID", "AGENTRUN_RUN_ID"];
const RUNNER_ID: Names = &["OSTLER_RUNNER_ID", "AGENTRUN_RUNNER_ID"];
const PLACEMENT: Names = &["OSTLER_RUNNER_PLACEMENT", "AGENTRUN_RUNNER_PLACEMENT"];
const LEASE_MS: Names = &["OSTLER_RUNNER_LEASE_MS", "AGENTRUN_RUNNER_LEASE_MS"];
const IDLE_MS: Names = &["OSTLER_RUNNER_IDLE_TIMEOUT_MS", "AGENTRUN_RUNNER_IDLE_TIMEOUT_MS"];
const CLAIM_WAIT_MS: Names = &["OSTLER_RUNNER_CLAIM_RETRY_TIMEOUT_MS", "AGENTRUN_RUNNER_CLAIM_RETRY_TIMEOUT_MS"];
const CLAIM_RETRY_MS: Names = &["OSTLER_RUNNER_CLAIM_RETRY_INTERVAL_MS", "AGENTRUN_RUNNER_CLAIM_RETRY_INTERVAL_MS"];
const ONE_SHOT: Names = &["OSTLER_RUNNER_ONE_SHOT", "AGENTRUN_RUNNER_ONE_SHOT"];
const GRACE_MS: Names = &["OSTLER_RUNNER_GRACE_MS"];
/// Where the runner writes its outcome, beside its output.
const REPORT_FILE: Names = &["OSTLER_RUNNER_REPORT_FILE"];
/// The environment of the backend, as JSON. It may hold secrets.
const BACKEND: Names = &["OSTLER_RUNNER_SECRET_BACKEND"];
/// Files that are copied into the home of the backend.
const HOME_SOURCE: Names = &["OSTLER_RUNNER_HOME_SOURCE"];
const HOME: Names = &["OSTLER_RUNNER_HOME"];
const CODEX_HOME: Names = &["CODEX_HOME"];
const WORKSPACE: Names = &["OSTLER_RUNNER_WORKSPACE"];
const STORAGE: Names = &["OSTLER_RUNNER_STORAGE", "AGENTRUN_SESSION_PVC_MOUNT_PATH"];
const CLAIM_NAME: Names = &["AGENTRUN_SESSION_PVC_NAME"];
const CLAIM_NAMESPACE: Names = &["AGENTRUN_SESSION_PVC_NAMESPACE"];
const ROLLOUT_SUBDIR: Names = &["AGENTRUN_CODEX_ROLLOUT_SUBDIR"];
/// How the published run manager's names begin.
const MANAGER_PREFIX: &str = "AGENTRUN_";
/// Settings of the published runner that this one does not have.
const WITHOUT_EFFECT: Names = &["AGENTRUN_CODEX_ARGS", "AGENTRUN_RUNNER_POLL_INTERVAL_MS"];

pub(crate) struct RunnerVariables(Environment);

impl RunnerVariables {
    pub(crate) fn new(environment: Environment) -> Self {
        Self(environment)
    }

    pub(crate) fn run_id(&self) -> Option<String> {
        self.text(RUN_ID).map(|(_, value)| value)
    }

    pub(crate) fn runner_id(&self) -> Option<String> {
        self.text(RUNNER_ID).map(|(_, value)| value)
    }

    /// The environment of the backend that whatever started the runner has prepared. `None` if it prepared none.
    pub(crate) fn backend(&self) -> Result<Option<BackendEnvironment>, Failure> {
        let Some((name, json)) = self.text(BACKEND) else { return Ok(None) };
        let read = serde_json::from_str(&json).map(Some);
        // The message must not quote it.
        read.map_err(|_| errors::usage(format!("{name} is not the environment of a backend"), "let the server set it"))
    }

    /// Where the outcome is written, beside the output.
    pub(crate) fn report_file(&self) -> Option<PathBuf> {
        self.path(REPORT_FILE)
    }

    /// Copies files into the home of the backend, readable by their owner only. A pod has them in a read-only volume.
    pub(crate) fn fill_home(&self) -> Result<(), Failure> {
        let (Some(source), Some(home)) = (self.path(HOME_SOURCE), self.path(HOME)) else { return Ok(()) };
        copy_files(&source, &home).map_err(|error| {
            let message = format!("cannot copy {} into {}: {error}", source.display(), home.display());
            errors::usage(message, format!("{} and {} name directories", HOME_SOURCE[0], HOME[0]))
        })
    }

    /// Makes the workspace in a pod, where only the volume for it exists.
    pub(crate) fn make_workspace(&self) -> Result<(), Failure> {
        let Some(workspace) = self.path(WORKSPACE) else { return Ok(()) };
        if self.placement()?.as_deref() != Some(IN_POD) {
            return Ok(());
        }
        DirBuilder::new().recursive(true).mode(0o700).create(&workspace).map_err(|error| {
            let message = format!("cannot create {}: {error}", workspace.display());
            errors::usage(message, format!("{} names a directory", WORKSPACE[0]))
        })
    }

    /// How long a runner that receives a stop signal may take to hand back its run.
    pub(crate) fn grace(&self) -> Result<Duration, Failure> {
        Ok(Duration::from_millis(self.number(GRACE_MS, 0, TIME_MS_MAX)?.unwrap_or(GRACE_MS_DEFAULT)))
    }

    /// The order with what the variables set.
    pub(crate) fn apply(&self, order: RunnerOrder) -> Result<RunnerOrder, Failure> {
        self.check_subdir()?;
        let without_effect = self.without_effect().join(", ");
        if !without_effect.is_empty() {
            tracing::warn!(variables = without_effect, "accepted for compatibility, without effect");
        }
        let lease_ms = self.number(LEASE_MS, LEASE_MS_MIN.unsigned_abs(), LEASE_MS_MAX.unsigned_abs())?;
        let idle_ms = match self.flag(ONE_SHOT)? {
            true => Some(0),
            false => self.number(IDLE_MS, 0, TIME_MS_MAX)?,
        };
        let environment = BackendEnvironment {
            home: self.home(&order.environment.backend).or(order.environment.home),
            workspace: self.path(WORKSPACE).or(order.environment.workspace),
            storage: self.path(STORAGE).or(order.environment.storage),
            ..order.environment
        };
        Ok(RunnerOrder {
            placement: self.placement()?.unwrap_or(order.placement),
            lease_ms: lease_ms.and_then(|ms| i64::try_from(ms).ok()).unwrap_or(order.lease_ms),
            claim_wait_ms: self.number(CLAIM_WAIT_MS, 0, TIME_MS_MAX)?.unwrap_or(order.claim_wait_ms),
            claim_retry_ms: self.number(CLAIM_RETRY_MS, 1, TIME_MS_MAX)?.unwrap_or(order.claim_retry_ms),
            idle_timeout_ms: idle_ms.unwrap_or(order.idle_timeout_ms),
            storage_claim: self.storage_claim(),
            environment,
            run_id: order.run_id,
            runner_id: order.runner_id,
            backend_profile: order.backend_profile,
            register: order.register,
        })
    }

    /// The variables that are set and do nothing. Codex is started with fixed arguments, because others could undo its confinement,
    /// and the runner waits for commands with a long poll, which has no interval.
    fn without_effect(&self) -> Vec<&'static str> {
        WITHOUT_EFFECT.iter().copied().filter(|name| self.0.text(name).is_some()).collect()
    }

    /// The backend's home. The published run manager sets `CODEX_HOME` to the home that it made for the run. Elsewhere the variable
    /// names a person's own home, whose login must not be used for the runs of others.
    fn home(&self, agent: &AgentConfig) -> Option<PathBuf> {
        let has_codex_home = *agent == AgentConfig::Codex && self.is_from_manager();
        self.path(HOME).or_else(|| self.path(CODEX_HOME).filter(|_| has_codex_home))
    }

    /// Whether the published run manager names the run or the placement.
    fn is_from_manager(&self) -> bool {
        let is_managers = |names| self.text(names).is_some_and(|(name, _)| name.starts_with(MANAGER_PREFIX));
        is_managers(RUN_ID) || is_managers(PLACEMENT)
    }

    /// The claim that the storage is on, if all of it is named.
    fn storage_claim(&self) -> Option<StorageClaim> {
        let text = |names| self.text(names).map(|(_, value)| value);
        Some(StorageClaim { name: text(CLAIM_NAME)?, namespace: text(CLAIM_NAMESPACE)?, mount_path: text(STORAGE)? })
    }

    /// Codex looks for its rollouts in one folder, whatever is configured elsewhere.
    fn check_subdir(&self) -> Result<(), Failure> {
        match self.text(ROLLOUT_SUBDIR) {
            Some((name, value)) if value != CODEX_ROLLOUT_SUBDIR => Err(errors::usage(
                format!("{name} must be {CODEX_ROLLOUT_SUBDIR:?}"),
                "leave it out; Codex stores its rollouts there",
            )),
            _ => Ok(()),
        }
    }

    fn placement(&self) -> Result<Option<String>, Failure> {
        match self.text(PLACEMENT) {
            Some((name, value)) if !PLACEMENTS.contains(&value.as_str()) => {
                Err(errors::usage(format!("{name} is {value:?}"), format!("use one of {}", PLACEMENTS.join(", "))))
            }
            found => Ok(found.map(|(_, value)| value)),
        }
    }

    fn path(&self, names: Names) -> Option<PathBuf> {
        self.text(names).map(|(_, value)| PathBuf::from(value))
    }

    fn flag(&self, names: Names) -> Result<bool, Failure> {
        match self.text(names) {
            None => Ok(false),
            Some((_, value)) if ["1", "true"].contains(&value.as_str()) => Ok(true),
            Some((_, value)) if ["0", "false"].contains(&value.as_str()) => Ok(false),
            Some((name, value)) => Err(errors::usage(format!("{name} is {value:?}"), "use true or false")),
        }
    }

    fn number(&self, names: Names, min: u64, max: u64) -> Result<Option<u64>, Failure> {
        let Some((name, value)) = self.text(names) else { return Ok(None) };
        match value.parse::<u64>() {
            Ok(number) if (min..=max).contains(&number) => Ok(Some(number)),
            _ => Err(errors::usage(
                format!("{name} is {value:?}"),
                format!("use a whole number of milliseconds from {min} to {max}"),
            )),
        }
    }

    /// The first of the variables that is set, with its name.
    fn text(&self, names: Names) -> Option<(&'static str, String)> {
        names.iter().find_map(|name| Some((*name, self.0.text(name)?)))
    }
}

fn copy_files(from: &Path, to: &Path) -> std::io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(to)?;
    for entry in std::fs::read_dir(from)? {
        let name = entry?.file_name();
        // The volume's own links and directories.
        if name.as_encoded_bytes().starts_with(b"..") {
            continue;
        }
        let (source, target) = (from.join(&name), to.join(&name));
        // Follows links, which a volume consists of.
        match std::fs::metadata(&source)?.is_dir() {
            true => copy_files(&source, &target)?,
            false => {
                let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&target)?;
                file.write_all(&std::fs::read(&source)?)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ostler_protocol::ids::RunId;

    use super::*;

    fn variables(set: &[(&str, &str)]) -> RunnerVariables {
        let taken = set.iter().map(|(name, value)| ((*name).into(), (*value).into()));
        RunnerVariables::new(Environment::with_taken(taken))
    }

    fn order() -> RunnerOrder {
        order_of(AgentConfig::Codex)
    }

    fn order_of(agent: AgentConfig) -> RunnerOrder {
        let run_id: RunId = format!("run_{:032x}", 1).parse().unwrap();
        RunnerOrder::host_process(run_id, "r".into(), "profile".into(), BackendEnvironment::bare(agent))
    }

    #[test]
    fn the_names_of_the_published_runner_set_the_order() {
        let order = variables(&[
            ("AGENTRUN_RUNNER_PLACEMENT", "kubernetes-job"),
            ("AGENTRUN_RUNNER_LEASE_MS", "45000"),
            ("AGENTRUN_RUNNER_IDLE_TIMEOUT_MS", "7000"),
            ("AGENTRUN_RUNNER_CLAIM_RETRY_TIMEOUT_MS", "8000"),
            ("AGENTRUN_RUNNER_CLAIM_RETRY_INTERVAL_MS", "900"),
            ("CODEX_HOME", "/home/agent"),
            ("AGENTRUN_SESSION_PVC_NAME", "claim"),
            ("AGENTRUN_SESSION_PVC_NAMESPACE", "agents"),
            ("AGENTRUN_SESSION_PVC_MOUNT_PATH", "/storage"),
            ("AGENTRUN_CODEX_ROLLOUT_SUBDIR", "sessions"),
        ])
        .apply(order())
        .unwrap();
        assert_eq!((order.placement.as_str(), order.lease_ms), ("kubernetes-job", 45_000));
        assert_eq!((order.idle_timeout_ms, order.claim_wait_ms, order.claim_retry_ms), (7_000, 8_000, 900));
        assert_eq!(order.environment.home, Some(PathBuf::from("/home/agent")));
        assert_eq!(order.environment.storage, Some(PathBuf::from("/storage")));
        let claim = StorageClaim { name: "claim".into(), namespace: "agents".into(), mount_path: "/storage".into() };
        assert_eq!(order.storage_claim, Some(claim));
    }

    #[test]
    fn variables_without_effect_are_named() {
        assert_eq!(variables(&[("AGENTRUN_RUN_ID", "run_1")]).without_effect(), [""; 0]);
        let set = variables(&[("AGENTRUN_CODEX_ARGS", "--help"), ("AGENTRUN_RUNNER_POLL_INTERVAL_MS", "500")]);
        assert_eq!(set.without_effect(), ["AGENTRUN_CODEX_ARGS", "AGENTRUN_RUNNER_POLL_INTERVAL_MS"]);
    }

    #[test]
    fn a_persons_codex_home_is_not_used_for_runs() {
        let home = |set: &[(&str, &str)], agent: AgentConfig| {
            let order = variables(set).apply(order_of(agent)).unwrap();
            order.environment.home.map(|home| home.display().to_string())
        };
        let (own, managed) = (("CODEX_HOME", "/home/me/.codex"), ("AGENTRUN_RUN_ID", "run_1"));
        assert_eq!(home(&[own], AgentConfig::Codex), None);
        assert_eq!(home(&[own, ("OSTLER_RUNNER_RUN_ID", "run_1")], AgentConfig::Codex), None);
        assert_eq!(home(&[own, managed], AgentConfig::Scripted), None, "it is a home of Codex");
        assert_eq!(home(&[own, managed], AgentConfig::Codex).as_deref(), Some("/home/me/.codex"));
        let ours = ("OSTLER_RUNNER_HOME", "/home/agent");
        assert_eq!(home(&[own, managed, ours], AgentConfig::Codex).as_deref(), Some("/home/agent"));
    }

    #[test]
    fn our_names_win_and_what_is_not_set_stays() {
        let set = variables(&[
            ("AGENTRUN_RUN_ID", "theirs"),
            ("OSTLER_RUNNER_RUN_ID", "ours"),
            ("AGENTRUN_RUNNER_ID", "their-runner"),
            ("AGENTRUN_RUNNER_ONE_SHOT", "true"),
            ("OSTLER_RUNNER_IDLE_TIMEOUT_MS", "7000"),
            ("OSTLER_RUNNER_STORAGE", "/storage"),
        ]);
        assert_eq!((set.run_id().as_deref(), set.runner_id().as_deref()), (Some("ours"), Some("their-runner")));
        let (plain, set) = (order(), set.apply(order()).unwrap());
        assert_eq!(set.idle_timeout_ms, 0, "a runner for one shot waits for no other turn");
        assert_eq!((&set.placement, set.lease_ms), (&plain.placement, plain.lease_ms));
        assert_eq!(set.storage_claim, None, "a directory is no claim");
        assert_eq!(variables(&[]).grace().unwrap(), Duration::from_secs(20));
    }

    #[test]
    fn files_of_a_volume_are_copied_into_a_private_home() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let scratch = tempfile::tempdir().unwrap();
        let (source, home) = (scratch.path().join("source"), scratch.path().join("home"));
        std::fs::create_dir_all(source.join("..data/.q")).unwrap();
        std::fs::write(source.join("..data/auth.json"), "a").unwrap();
        std::fs::write(source.join("..data/.q/settings.json"), "b").unwrap();
        symlink("..data/auth.json", source.join("auth.json")).unwrap();
        symlink("..data/.q", source.join(".q")).unwrap();
        let set = variables(&[
            ("OSTLER_RUNNER_HOME_SOURCE", source.to_str().unwrap()),
            ("OSTLER_RUNNER_HOME", home.to_str().unwrap()),
        ]);
        set.fill_home().unwrap();
        set.fill_home().unwrap();
        assert_eq!(std::fs::read_to_string(home.join(".q/settings.json")).unwrap(), "b");
        assert_eq!(std::fs::metadata(home.join("auth.json")).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(!home.join("..data").exists());
    }

    #[test]
    fn the_workspace_is_made_in_a_pod_only() {
        let scratch = tempfile::tempdir().unwrap();
        let workspace = scratch.path().join("volume/work");
        let named = ("OSTLER_RUNNER_WORKSPACE", workspace.to_str().unwrap());
        variables(&[named]).make_workspace().unwrap();
        assert!(!workspace.exists(), "elsewhere a name that is wrong must not become a directory");
        for _ in 0..2 {
            variables(&[named, ("AGENTRUN_RUNNER_PLACEMENT", "kubernetes-job")]).make_workspace().unwrap();
            assert!(workspace.is_dir());
        }
    }

    #[test]
    fn the_backend_is_what_the_server_prepared() {
        let json = serde_json::to_string(&BackendEnvironment::bare(AgentConfig::Codex)).unwrap();
        let set = variables(&[("OSTLER_RUNNER_SECRET_BACKEND", &json)]);
        assert_eq!(set.backend().unwrap().unwrap().backend, AgentConfig::Codex);
        assert!(variables(&[]).backend().unwrap().is_none());
        let failure = variables(&[("OSTLER_RUNNER_SECRET_BACKEND", "pl4nted")]).backend().unwrap_err();
        assert!(!failure.message.contains("pl4nted"), "{}", failure.message);
    }

    #[test]
    fn values_that_cannot_work_are_refused_by_their_name() {
        for (name, value) in [
            ("AGENTRUN_RUNNER_LEASE_MS", "9"),
            ("AGENTRUN_RUNNER_LEASE_MS", "soon"),
            ("OSTLER_RUNNER_CLAIM_RETRY_INTERVAL_MS", "0"),
            ("AGENTRUN_RUNNER_ONE_SHOT", "perhaps"),
            ("AGENTRUN_RUNNER_PLACEMENT", "moon"),
            ("AGENTRUN_CODEX_ROLLOUT_SUBDIR", "elsewhere"),
        ] {
            let failure = variables(&[(name, value)]).apply(order()).unwrap_err();
            assert!(failure.message.starts_with(name), "{name}: {}", failure.message);
        }
        assert!(variables(&[("OSTLER_RUNNER_GRACE_MS", "-1")]).grace().is_err());
    }
}
