//! Configuration: one struct, unknown keys refused, one TOML file, environment overrides `OSTLER_SECTION__KEY`.

mod environment;
mod execution;
mod file_scalars;
mod keys;
mod kubernetes;
mod limits;
mod mcp;
mod names;
mod origins;
mod outgoing;
mod places;
mod reading;
mod retention;
mod sections;
pub mod settings;
mod store;
mod tls;
mod tools;
mod values;

use std::{ops::RangeInclusive, path::PathBuf};

use ostler_protocol::{
    Failure, Rule,
    capabilities::{Toggle, Toggles},
    json::value_of,
    kernel::{policy::TenantPolicy, runner_jobs::Launcher},
    limits::{LEASE_MS_MAX, LEASE_MS_MIN, SESSION_PARTICIPANTS_MAX},
};
use ostler_store::{ReplicaConfig, StoreConfig};
use secrecy::SecretString;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use self::{origins::check_origin, values::hidden};
use crate::net::{forwarded::TrustedProxies, rates::Rates};

pub use environment::Environment;
pub use execution::{AgentsSection, ConfinementSection, RunnerSection, SessionsSection, WorkspacesSection};
pub use keys::{Key, keys};
pub use kubernetes::{KubernetesSection, PodResources, PodToleration, TaintEffect, TolerationOperator};
pub use limits::LimitsSection;
pub use mcp::McpSection;
pub(crate) use origins::EVERY_ORIGIN;
pub use outgoing::{OutgoingSection, ProfilesSection};
pub use reading::Overrides;
pub use retention::{RetentionSection, TenantRetention};
pub use sections::{Section, SectionType, Sections};
pub use store::StoreSection;
pub(crate) use store::address_of;
pub use tools::{ALL_TOOLS, HttpRequestSection, RunAgentSection, ToolsSection, WebFetchSection};
pub use values::{MS_MAX, check_range};

/// The default address to listen on.
pub const DEFAULT_LISTEN: &str = "127.0.0.1:4747";

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Config {
    pub server: ServerSection,
    pub auth: AuthSection,
    pub store: StoreSection,
    pub secrets: SecretsSection,
    pub profiles: ProfilesSection,
    pub policy: TenantPolicy,
    pub runner: RunnerSection,
    pub kubernetes: KubernetesSection,
    pub agents: AgentsSection,
    pub sessions: SessionsSection,
    pub workspaces: WorkspacesSection,
    pub retention: RetentionSection,
    pub confinement: ConfinementSection,
    pub limits: LimitsSection,
    pub outgoing: OutgoingSection,
    pub mcp: McpSection,
    pub tools: ToolsSection,
    pub log: LogSection,
    pub rate_limit: Rates,
    /// The sections of dialects.
    #[serde(skip)]
    sections: Sections,
    /// The environment that it was read from; some variables are needed later.
    #[serde(skip)]
    pub environment: Environment,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct ServerSection {
    /// The address and port to listen on; port 0 picks a free port.
    pub listen: String,
    /// Serve TLS with this certificate chain (PEM). Requires `tls_key`.
    #[schema(value_type = Option<String>)]
    pub tls_cert: Option<PathBuf>,
    /// The private key of `tls_cert` (PEM).
    #[schema(value_type = Option<String>)]
    pub tls_key: Option<PathBuf>,
    /// The directory for the operator's token, keys, secrets and the SQLite store. `OSTLER_DATA_DIR` also sets
    /// it; the default is `~/.local/share/ostler`.
    #[schema(value_type = Option<String>)]
    pub data_dir: Option<PathBuf>,
    /// Admit callers on loopback without a token. For experiments.
    pub open_loopback: bool,
    /// Require a token everywhere, including `/health*` and `/capabilities`.
    pub require_auth: bool,
    /// Host names that this server accepts in addition to loopback names, if it listens on loopback.
    pub hosts: Vec<String>,
    /// Addresses and networks of proxies in front of this server. A request of one of them counts for the
    /// client that the proxy names in `X-Forwarded-For`.
    pub trusted_proxies: Vec<String>,
    /// Origins of web pages that may call this server. `*` means every origin and needs `require_auth`.
    pub allow_origins: Vec<String>,
    /// The directory that this server is bound to: agents of editors and SDKs work in it, and their clients
    /// read and write its files. An absolute path; it may not contain the data directory, or be inside it. By default
    /// the server is bound to none.
    #[schema(value_type = Option<String>)]
    pub workspace: Option<PathBuf>,
    /// Serve `/metrics` without a token. Otherwise it requires the operator's token, or one of the role `metrics`.
    pub open_metrics: bool,
    /// How long runners get to finish their turns when the server stops. Unfinished work is handed over.
    pub drain_ms: u64,
    /// The commit that the program was built from, if the program knows it. Cannot be set in a file.
    #[serde(skip)]
    pub source_commit: Option<String>,
}

impl Default for ServerSection {
    fn default() -> Self {
        Self {
            listen: DEFAULT_LISTEN.into(),
            tls_cert: None,
            tls_key: None,
            data_dir: None,
            open_loopback: false,
            require_auth: false,
            hosts: vec![],
            trusted_proxies: vec![],
            allow_origins: vec![],
            workspace: None,
            open_metrics: false,
            drain_ms: 10_000,
            source_commit: None,
        }
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct AuthSection {
    /// External issuers of users' tokens: objects with `issuer`, `audience` and `jwks_url` or `jwks_file`.
    pub issuers: Vec<IssuerSection>,
}

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct IssuerSection {
    /// The `iss` of its tokens, compared exactly.
    pub issuer: String,
    /// The audience that its tokens must have in `aud`.
    pub audience: String,
    /// Where its public keys are: exactly one of `jwks_url` and `jwks_file`.
    pub jwks_url: Option<String>,
    #[schema(value_type = Option<String>)]
    pub jwks_file: Option<PathBuf>,
}

/// The secrets of provider profiles.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct SecretsSection {
    /// Where the secrets of provider profiles are stored: `files`, sealed in `directory`, or `kubernetes`, as Secrets of the
    /// namespace of `[kubernetes]`; by default `kubernetes` if `runner.launcher` is that and `directory` is not set.
    #[schema(value_type = Option<String>)]
    pub store: Option<SecretsPlace>,
    /// The directory of the sealed secrets; by default `secrets` in the data directory. Servers that share a
    /// Postgres must share it.
    #[schema(value_type = Option<String>)]
    pub directory: Option<PathBuf>,
    /// The key that seals the secrets, 64 hexadecimal digits. Prefer `key_file`, because other processes may
    /// read the environment.
    #[schema(value_type = Option<String>, default = json!(null))]
    #[serde(serialize_with = "hidden")]
    pub key: Option<SecretString>,
    /// The file with the key, if `key` is not set; by default `secrets-key` in the data directory, made at the
    /// first start.
    #[schema(value_type = Option<String>)]
    pub key_file: Option<PathBuf>,
}

/// Where the secrets of provider profiles are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SecretsPlace {
    Files,
    Kubernetes,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct LogSection {
    /// Format of the log on stderr: `text`, or `json` with one object per line.
    pub format: LogFormat,
    /// OpenTelemetry collector that receives traces over OTLP/HTTP, for example `http://127.0.0.1:4318`; if
    /// unset, no traces are sent.
    pub otlp_endpoint: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    #[default]
    Text,
    Json,
}

impl Config {
    /// Rejects numbers out of range, instead of clamping them where they are used.
    fn number_problems(&self) -> Vec<Failure> {
        const WORK_BYTES: RangeInclusive<u64> = 1_048_576..=1_099_511_627_776;
        let (runner, limits) = (&self.runner, &self.limits);
        let lease = LEASE_MS_MIN as u64..=LEASE_MS_MAX as u64;
        let counted = 1..=1_000_000;
        let quorum = self.policy.consensus_quorum.map_or(1, |quorum| u64::try_from(quorum).unwrap_or(0));
        let ranges = [
            ("server.drain_ms", self.server.drain_ms, 0..=MS_MAX),
            ("policy.consensus_quorum", quorum, 1..=SESSION_PARTICIPANTS_MAX as u64),
            ("runner.slots", runner.slots as u64, 0..=100_000),
            ("runner.lease_ms", u64::try_from(runner.lease_ms).unwrap_or(0), lease),
            ("runner.sweep_interval_ms", runner.sweep_interval_ms, 1..=MS_MAX),
            ("runner.idle_ms", runner.idle_ms, 0..=MS_MAX),
            ("runner.job_silence_ms", u64::try_from(runner.job_silence_ms).unwrap_or(0), 1..=MS_MAX),
            ("limits.followers_max", limits.followers_max as u64, counted.clone()),
            ("limits.followers_per_caller_max", limits.followers_per_caller_max as u64, counted.clone()),
            ("limits.readmit_ms", limits.readmit_ms, 1..=MS_MAX),
            ("limits.slow_reader_ms", limits.slow_reader_ms, 1..=MS_MAX),
            ("limits.head_ms", limits.head_ms, 1..=MS_MAX),
            ("limits.idle_ms", limits.idle_ms, 1..=MS_MAX),
            ("limits.silent_per_address_max", limits.silent_per_address_max as u64, counted.clone()),
            ("limits.work_bytes_max", limits.work_bytes_max as u64, WORK_BYTES),
            ("limits.work_per_caller_bytes_max", limits.work_per_caller_bytes_max as u64, WORK_BYTES),
            ("limits.body_ms", limits.body_ms, 1..=MS_MAX),
            ("limits.heartbeat_ms", limits.heartbeat_ms, 1..=MS_MAX),
            ("limits.connections_max", limits.connections_max as u64, counted.clone()),
            ("limits.sockets_max", limits.sockets_max as u64, counted.clone()),
            ("limits.sockets_fresh_max", limits.sockets_fresh_max as u64, counted.clone()),
            ("limits.sockets_fresh_per_address_max", limits.sockets_fresh_per_address_max as u64, counted.clone()),
            ("limits.sockets_per_caller_max", limits.sockets_per_caller_max as u64, counted),
            ("limits.socket_auth_ms", limits.socket_auth_ms, 1..=MS_MAX),
            ("limits.socket_ping_ms", limits.socket_ping_ms, 1..=MS_MAX),
            ("limits.socket_dead_ms", limits.socket_dead_ms, 1..=MS_MAX),
            ("limits.socket_probe_ms", limits.socket_probe_ms, 1..=MS_MAX),
            ("limits.socket_readmit_ms", limits.socket_readmit_ms, 1..=MS_MAX),
            ("limits.socket_reread_ms", limits.socket_reread_ms, 1..=MS_MAX),
            ("limits.recheck_ms", limits.recheck_ms, 1..=MS_MAX),
            ("mcp.client_budget", self.mcp.client_budget.unwrap_or(1).into(), 1..=10_000),
            ("mcp.drain_ms", self.mcp.drain_ms, 0..=MS_MAX),
            ("mcp.idle_ms", self.mcp.idle_ms, 1..=MS_MAX),
            ("mcp.list_wait_ms", self.mcp.list_wait_ms, 1..=MS_MAX),
            ("mcp.reconnect_ms", self.mcp.reconnect_ms, 1..=MS_MAX),
            ("retention.sweep_ms", self.retention.sweep_ms, 1..=MS_MAX),
            ("retention.step_rows", self.retention.step_rows.into(), 1..=10_000),
            ("retention.pause_ms", self.retention.pause_ms, 0..=60_000),
        ];
        ranges.into_iter().filter_map(|(key, value, range)| check_range(key, value, range).err()).collect()
    }

    /// Where the secrets of provider profiles are stored.
    pub fn secrets_place(&self) -> SecretsPlace {
        let is_in_cluster = self.runner.launcher == Launcher::Kubernetes && self.secrets.directory.is_none();
        let by_default = if is_in_cluster { SecretsPlace::Kubernetes } else { SecretsPlace::Files };
        self.secrets.store.unwrap_or(by_default)
    }

    fn secrets_problem(&self) -> Option<Failure> {
        let message = match (self.secrets.store?, &self.secrets.directory) {
            (SecretsPlace::Kubernetes, _) if !cfg!(feature = "kubernetes") => {
                "this build of the server cannot use Kubernetes Secrets; build it with `--features kubernetes`"
            }
            (SecretsPlace::Kubernetes, Some(_)) => {
                "secrets.directory is without effect if secrets.store is \"kubernetes\"; remove one of them"
            }
            _ => return None,
        };
        Some(Failure::invalid(Rule::Config, message).detail(places::KEY, "secrets.store"))
    }

    /// Everything that is wrong with the configuration in itself, before anything is opened.
    fn problems(&self) -> Vec<Failure> {
        let mut problems = vec![];
        if self.server.open_loopback && self.server.require_auth {
            let message = "server.open_loopback and server.require_auth contradict each other; set one";
            problems.push(Failure::invalid(Rule::Config, message));
        }
        if self.server.open_loopback && !self.server.trusted_proxies.is_empty() {
            let message = "server.open_loopback and server.trusted_proxies cannot be used together: a request that a proxy \
                           passes on could name a loopback address and would need no token; remove one of them";
            problems.push(Failure::invalid(Rule::Config, message));
        }
        problems.extend(self.rate_limit.check().err());
        problems.extend(self.runner.check().err());
        problems.extend(self.store.problems());
        problems.extend(self.kubernetes.problems(&self.runner));
        problems.extend(self.secrets_problem());
        problems.extend(self.number_problems());
        problems.extend(self.retention.problems(&self.policy));
        problems.extend(self.tls_files().err());
        problems.extend(self.sections.problems(self));
        problems.extend(self.outgoing.rules().err());
        problems.extend(self.mcp.problems());
        problems.extend(self.tools.problems());
        problems.extend(TrustedProxies::read(&self.server.trusted_proxies).err());
        let requires_tokens = self.server.require_auth;
        let origins = self.server.allow_origins.iter();
        problems.extend(origins.filter_map(|origin| check_origin(origin, requires_tokens).err()));
        problems
    }

    pub fn store(&self) -> Result<StoreConfig, Failure> {
        self.store.store(|| self.data_dir(), &self.environment)
    }

    /// Where the server's data is, for people: its data directory, and on Postgres the hosts of the database.
    pub fn location(&self) -> Result<String, Failure> {
        let data_dir = self.data_dir()?;
        Ok(match self.store()? {
            StoreConfig::Sqlite { .. } => data_dir.display().to_string(),
            StoreConfig::Postgres { url } => format!("{} and Postgres at {}", data_dir.display(), address_of(&url)),
        })
    }

    /// The standby that answers reads which tolerate staleness.
    pub fn read_replica(&self) -> Option<ReplicaConfig> {
        self.store.read_replica(&self.environment)
    }

    /// The whole configuration, secrets hidden.
    pub fn json(&self) -> serde_json::Value {
        let mut json = value_of(self);
        self.sections.json().for_each(|(name, section)| json[name] = section);
        json
    }

    /// The engine's own toggles. Those of dialects are added by [`Dialects::toggles`](crate::dialect::Dialects::toggles).
    pub(crate) fn toggles(&self) -> Toggles {
        let states = [
            (Toggle::REQUIRE_AUTH, self.server.require_auth),
            (Toggle::ALLOW_ORIGIN, !self.server.allow_origins.is_empty()),
            (Toggle::RATE_LIMIT, self.rate_limit.on),
            (Toggle::MCP_POOL, !self.mcp.no_pool),
        ];
        states.into_iter().filter(|(_, is_on)| *is_on).map(|(toggle, _)| toggle).collect()
    }

    pub fn data_dir(&self) -> Result<PathBuf, Failure> {
        let from_home = || {
            let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute());
            absolute("XDG_DATA_HOME")
                .or_else(|| Some(absolute("HOME")?.join(".local/share")))
                .map(|base| base.join("ostler"))
        };
        let chosen = self
            .server
            .data_dir
            .clone()
            .or_else(from_home)
            .ok_or_else(|| Failure::rule(Rule::DataDir, "no data directory: give --data-dir or set HOME"))?;
        // Absolute, because messages print the path and it must work from any directory.
        std::path::absolute(&chosen).map_err(|error| Failure::rule(Rule::DataDir, format!("{chosen:?}: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_environment(pairs: &[(&str, &str)]) -> Result<Config, Failure> {
        Config::read(None, pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())), &[], &[])
    }

    #[test]
    fn secrets_are_in_the_cluster_if_runners_are_unless_a_directory_is_named() {
        let mut config = Config::default();
        assert_eq!(config.secrets_place(), SecretsPlace::Files);
        config.runner.launcher = Launcher::Kubernetes;
        assert_eq!(config.secrets_place(), SecretsPlace::Kubernetes);
        config.secrets.directory = Some("/shared".into());
        assert_eq!(config.secrets_place(), SecretsPlace::Files);
        assert!(config.secrets_problem().is_none());
        config.secrets.store = Some(SecretsPlace::Kubernetes);
        assert!(config.secrets_problem().is_some(), "the directory would be without effect");
    }

    #[test]
    fn the_environment_overrides_by_section_and_key() {
        let config = from_environment(&[("runner__lease_ms", "1500"), ("token", "not a key")]).unwrap();
        assert_eq!(config.runner.lease_ms, 1500);
        assert_eq!(config.server.listen, DEFAULT_LISTEN);
    }

    #[test]
    fn every_origin_is_allowed_only_where_every_request_needs_a_token() {
        let mut config = Config::default();
        config.server.allow_origins = vec!["*".into()];
        let problems = config.problems();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].message.contains("--require-auth"), "{}", problems[0].message);
        config.server.require_auth = true;
        assert!(config.problems().is_empty());
    }

    #[test]
    fn a_server_cannot_be_open_and_closed() {
        let mut config = Config::default();
        config.server.open_loopback = true;
        assert!(config.problems().is_empty());
        config.server.require_auth = true;
        assert_eq!(config.problems().len(), 1);
    }

    #[test]
    fn a_server_behind_a_proxy_cannot_be_open() {
        let mut config = Config::default();
        config.server.trusted_proxies = vec!["127.0.0.1".into()];
        assert!(config.problems().is_empty());
        config.server.open_loopback = true;
        let problems = config.problems();
        assert_eq!(problems.len(), 1);
        assert!(problems[0].message.contains("server.trusted_proxies"), "{}", problems[0].message);
    }

    #[test]
    fn numbers_out_of_range_are_rejected_with_their_key() {
        assert!(Config::default().problems().is_empty());
        let refused = |change: fn(&mut Config)| {
            let mut config = Config::default();
            change(&mut config);
            config.problems().remove(0).message
        };
        assert!(refused(|config| config.runner.lease_ms = 5).contains("runner.lease_ms"));
        assert!(refused(|config| config.runner.job_silence_ms = -1).contains("runner.job_silence_ms"));
        assert!(refused(|config| config.limits.heartbeat_ms = 0).contains("limits.heartbeat_ms"));
        assert!(refused(|config| config.limits.connections_max = usize::MAX).contains("limits.connections_max"));
    }

    #[test]
    fn the_data_directory_is_absolute() {
        let mut config = Config::default();
        config.server.data_dir = Some("data".into());
        assert!(config.data_dir().unwrap().is_absolute());
    }

    #[test]
    fn an_unknown_key_is_refused() {
        assert!(from_environment(&[("runner__leese_ms", "1")]).is_err());
    }
}
