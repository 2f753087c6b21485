//! The store: SQLite in the data directory, or Postgres, with a replica for reads if there is one.

use std::{path::PathBuf, time::Duration};

use ostler_protocol::{Failure, Rule};
use ostler_store::{ReplicaConfig, StoreConfig, Synchronous, database_url_problem};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    environment::{Environment, with_password},
    places::KEY,
    values::{check_range, hidden},
};

const READ_DATABASE_URL: &str = "store.read_database_url";

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StoreSection {
    /// The URL of a Postgres database; by default `DATABASE_URL`, or else SQLite in the data directory. It may list
    /// several hosts: the server uses the one that takes writes.
    #[schema(value_type = Option<String>, default = json!(null))]
    #[serde(serialize_with = "hidden")]
    pub database_url: Option<SecretString>,
    /// The URL of a standby of that database; if set, it answers lists of runs and sessions and pages of a
    /// session's history, which then may be stale.
    #[schema(value_type = Option<String>, default = json!(null))]
    #[serde(serialize_with = "hidden")]
    pub read_database_url: Option<SecretString>,
    /// How stale an answer from `read_database_url` may be; while that standby lags more or is away, the
    /// primary answers.
    pub read_lag_max_ms: u64,
    /// Start even if the store could lose an acknowledged write in a power cut.
    pub unsafe_durability: bool,
    /// How SQLite waits for the disk: `off`, `normal` or `full`. With less than `full`, acknowledged writes can
    /// be lost in a power cut.
    #[schema(value_type = String)]
    pub sqlite_synchronous: Synchronous,
}

impl Default for StoreSection {
    fn default() -> Self {
        Self {
            database_url: None,
            read_database_url: None,
            read_lag_max_ms: 5_000,
            unsafe_durability: false,
            sqlite_synchronous: Synchronous::default(),
        }
    }
}

impl StoreSection {
    pub(super) fn problems(&self) -> Vec<Failure> {
        let mut problems = vec![];
        problems.extend(check_range("store.read_lag_max_ms", self.read_lag_max_ms, 100..=3_600_000).err());
        let Some(url) = &self.read_database_url else { return problems };
        let url = url.expose_secret();
        let problem = if self.database_url.is_none() {
            Some("it needs store.database_url")
        } else if is_postgres(url) {
            database_url_problem(url, false)
        } else {
            Some("it must begin with postgres:// or postgresql://")
        };
        let failure =
            |problem: &str| Failure::invalid(Rule::Config, format!("{READ_DATABASE_URL} cannot be used: {problem}"));
        problems.extend(problem.map(|problem| failure(problem).detail(KEY, READ_DATABASE_URL)));
        problems
    }

    /// The store that is configured. SQLite needs the data directory.
    pub(super) fn store(
        &self,
        data_dir: impl FnOnce() -> Result<PathBuf, Failure>,
        environment: &Environment,
    ) -> Result<StoreConfig, Failure> {
        let Some(url) = &self.database_url else {
            let file = data_dir()?.join("ostler.db");
            return Ok(StoreConfig::Sqlite { file, synchronous: self.sqlite_synchronous });
        };
        let url = url.expose_secret().to_owned();
        if !is_postgres(&url) {
            let message = "the database URL must begin with postgres:// or postgresql://; without one, SQLite in \
                           the data directory is used";
            return Err(Failure::invalid(Rule::DatabaseUrl, message));
        }
        if let Some(problem) = database_url_problem(&url, true) {
            return Err(Failure::invalid(Rule::DatabaseUrl, problem));
        }
        Ok(StoreConfig::Postgres { url: with_password(url, environment) })
    }

    /// The standby that answers reads which tolerate staleness.
    pub(super) fn read_replica(&self, environment: &Environment) -> Option<ReplicaConfig> {
        let url = self.read_database_url.as_ref()?.expose_secret().to_owned();
        let url = with_password(url, environment);
        Some(ReplicaConfig { url, lag_max: Duration::from_millis(self.read_lag_max_ms) })
    }
}

fn is_postgres(url: &str) -> bool {
    ["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme))
}

/// The hosts and ports of a database URL, which has a password as well.
pub(crate) fn address_of(url: &str) -> String {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let with_port = |host: &str| match host {
        "" => "its default address".to_owned(),
        host if host.ends_with(']') || !host.contains(':') => format!("{host}:5432"),
        host => host.to_owned(),
    };
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    hosts.split(',').map(with_port).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(section: &StoreSection) -> Result<StoreConfig, Failure> {
        section.store(|| Ok(PathBuf::new()), &Environment::default())
    }

    #[test]
    fn a_database_url_of_another_kind_is_refused() {
        let mut section = StoreSection::default();
        for url in [
            "mysql://root@127.0.0.1/x",
            "sqlite://x.db",
            "x",
            "postgres://me:planted@h1,,h2/x",
            "postgres://me:planted@h1,h2/x?target_session_attrs=standby",
        ] {
            section.database_url = Some(url.to_owned().into());
            let failure = store(&section).unwrap_err();
            assert_eq!(failure.rule_name(), Some("database-url"), "{url}");
            assert!(!failure.message.contains("planted"), "{}", failure.message);
        }
        for url in ["postgresql:///x", "postgres://h1:1,h2:2/x?target_session_attrs=read-write"] {
            section.database_url = Some(url.to_owned().into());
            assert!(store(&section).is_ok(), "{url}");
        }
    }

    #[test]
    fn a_replica_needs_a_primary_and_a_usable_url() {
        let mut section = StoreSection::default();
        assert!(section.read_replica(&Environment::default()).is_none());
        section.read_database_url = Some("postgres://h2/x".to_owned().into());
        assert!(section.problems()[0].message.contains("store.database_url"));
        section.database_url = Some("postgres://h1,h2/x".to_owned().into());
        assert!(section.problems().is_empty());
        let replica = section.read_replica(&Environment::default()).unwrap();
        assert_eq!((replica.url.as_str(), replica.lag_max), ("postgres://h2/x", Duration::from_secs(5)));
        for url in ["mysql://me:planted@h/x", "postgres://me:planted@h1,,h2/x"] {
            section.read_database_url = Some(url.to_owned().into());
            let problems = section.problems();
            assert_eq!(problems.len(), 1, "{url}");
            assert!(!problems[0].message.contains("planted"), "{}", problems[0].message);
        }
        section.read_database_url = None;
        section.read_lag_max_ms = 1;
        assert_eq!(section.problems().len(), 1);
    }
}
