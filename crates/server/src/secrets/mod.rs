//! The store of the secrets of provider profiles. One per server; secrets are read by name, and callers do not depend on where
//! they are stored: in sealed local files, or in Kubernetes Secrets. Values are read only into an agent's home.

#[cfg(feature = "kubernetes")]
mod cluster;
mod local;
pub mod sealed;
mod secret;

#[cfg(feature = "kubernetes")]
use std::sync::Arc;

use ostler_crypto::{Zeroizing, seal::SealingKey};
use ostler_protocol::{Failure, Rule, json::unhex};
use secrecy::{ExposeSecret, SecretString};

use crate::{auth, config::Config};
#[cfg(feature = "kubernetes")]
use crate::{config::SecretsPlace, kubernetes::Cluster};
#[cfg(feature = "kubernetes")]
use cluster::ClusterSecrets;
use local::Local;

pub use secret::Secret;

const KEY_FILE: &str = "secrets-key";

pub enum SecretStore {
    /// In a directory of this server only, or in a configured one that other servers can share.
    Local { local: Local, named: bool },
    /// In Secrets of the cluster, which all servers of it share. What is sealed and stored elsewhere is sealed by this server.
    #[cfg(feature = "kubernetes")]
    Cluster { secrets: ClusterSecrets, sealer: Local },
}

impl SecretStore {
    pub async fn open(config: &Config) -> Result<Self, Failure> {
        #[cfg(feature = "kubernetes")]
        if config.secrets_place() == SecretsPlace::Kubernetes {
            let cluster = Cluster::open(&config.kubernetes, &config.environment).await?;
            let sealer = Local::sealer(config.data_dir()?.join("secrets"), sealing_key(config)?);
            return Ok(Self::Cluster { secrets: ClusterSecrets::new(Arc::new(cluster)), sealer });
        }
        Self::open_files(config)
    }

    /// The secrets in local files, whether or not the server uses them.
    pub fn open_files(config: &Config) -> Result<Self, Failure> {
        let data_dir = config.data_dir()?;
        let section = &config.secrets;
        let directory = section.directory.clone().unwrap_or_else(|| data_dir.join("secrets"));
        let local = Local::open(directory, sealing_key(config)?)?;
        Ok(Self::Local { local, named: section.directory.is_some() })
    }

    /// The cluster that has the secrets. `None` if they are in files.
    #[cfg(feature = "kubernetes")]
    pub fn cluster(&self) -> Option<&Cluster> {
        match self {
            Self::Local { .. } => None,
            Self::Cluster { secrets, .. } => Some(secrets.cluster()),
        }
    }

    /// The sealing key, as written in the configuration or in its file.
    pub fn key_text(config: &Config) -> Result<SecretString, Failure> {
        let section = &config.secrets;
        match (&section.key, &section.key_file) {
            (Some(key), _) => Ok(key.clone()),
            (None, Some(file)) => auth::random_secret_file(file),
            (None, None) => auth::random_secret_file(&config.data_dir()?.join(KEY_FILE)),
        }
    }

    /// Whether the key exists. If not, the next read of it creates one.
    pub fn has_key(config: &Config) -> Result<bool, Failure> {
        let section = &config.secrets;
        Ok(match (&section.key, &section.key_file) {
            (Some(_), _) => true,
            (None, Some(file)) => file.exists(),
            (None, None) => config.data_dir()?.join(KEY_FILE).exists(),
        })
    }

    /// `None` if there is no such secret. A secret that cannot be opened is a failure of its own kind.
    pub async fn get(&self, name: &str) -> Result<Option<Secret>, Failure> {
        match self {
            Self::Local { local, .. } => local.get(name).await,
            #[cfg(feature = "kubernetes")]
            Self::Cluster { secrets, .. } => secrets.get(name).await,
        }
    }

    /// The names of all secrets, sorted.
    pub async fn list(&self) -> Result<Vec<String>, Failure> {
        match self {
            Self::Local { local, .. } => local.list().await,
            #[cfg(feature = "kubernetes")]
            Self::Cluster { secrets, .. } => secrets.list().await,
        }
    }

    /// Changes or creates a secret, under a lock against concurrent changes. `change` returns `None` to leave it unchanged. It may
    /// block, and it is called again if another server was faster. Returns whether the secret was changed; the change is then
    /// durable.
    pub async fn update(
        &self,
        name: &str,
        change: impl FnMut(Option<&Secret>) -> Result<Option<Secret>, Failure> + Send + 'static,
    ) -> Result<bool, Failure> {
        match self {
            Self::Local { local, .. } => local.update(name, change).await,
            #[cfg(feature = "kubernetes")]
            Self::Cluster { secrets, .. } => secrets.update(name, change).await,
        }
    }

    /// Idempotent.
    pub async fn delete(&self, name: &str) -> Result<(), Failure> {
        match self {
            Self::Local { local, .. } => local.delete(name).await,
            #[cfg(feature = "kubernetes")]
            Self::Cluster { secrets, .. } => secrets.delete(name).await,
        }
    }

    /// Seals a text that is stored elsewhere, for this name.
    pub fn seal(&self, name: &str, text: &[u8]) -> Vec<u8> {
        match self {
            Self::Local { local, .. } => local.seal(name, text),
            #[cfg(feature = "kubernetes")]
            Self::Cluster { sealer, .. } => sealer.seal(name, text),
        }
    }

    /// `None` if the text was changed, sealed for another name, or sealed with another server's key.
    pub fn open_sealed(&self, name: &str, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        match self {
            Self::Local { local, .. } => local.open_sealed(name, sealed),
            #[cfg(feature = "kubernetes")]
            Self::Cluster { sealer, .. } => sealer.open_sealed(name, sealed),
        }
    }

    /// The kind of the store, for readiness.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Local { named: false, .. } => "local-files",
            Self::Local { named: true, .. } => "local-files-shared",
            #[cfg(feature = "kubernetes")]
            Self::Cluster { .. } => "kubernetes-secrets",
        }
    }
}

/// The key that everything on this server's disk is sealed with.
pub fn sealing_key(config: &Config) -> Result<SealingKey, Failure> {
    let text = SecretStore::key_text(config)?;
    unhex(text.expose_secret().trim()).and_then(|bytes| SealingKey::new(&bytes)).ok_or_else(|| {
        let message = "secrets.key, or the file secrets.key_file, must hold 64 hexadecimal digits";
        Failure::rule(Rule::SecretsKey, message)
    })
}
