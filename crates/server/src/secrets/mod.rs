//! The store of the secrets of provider profiles. One per server; secrets are read by name, and callers do not depend on where
//! they are stored, so that Kubernetes Secrets can replace local files. Values are read only into an agent's home.

mod local;
pub mod sealed;

use ostler_crypto::{Zeroizing, seal::SealingKey};
use ostler_protocol::{Failure, Rule, Timestamp, json::unhex, kernel::provider_profiles::Credential};
use secrecy::{ExposeSecret, SecretString};

use crate::{auth, config::Config};
use local::Local;

const KEY_FILE: &str = "secrets-key";

/// The secret of one profile.
#[derive(Clone, Debug)]
pub struct Secret {
    /// Changes with every change; has no other meaning.
    pub resource_version: String,
    pub updated_at: Timestamp,
    pub credential: Credential,
    /// A credential was removed because the config names another destination, and none was set since.
    pub credential_dropped: bool,
}

pub enum SecretStore {
    /// In a directory of this server only, or in a configured one that other servers can share.
    Local { local: Local, named: bool },
}

impl SecretStore {
    pub fn open(config: &Config) -> Result<Self, Failure> {
        let data_dir = config.data_dir()?;
        let section = &config.secrets;
        let directory = section.directory.clone().unwrap_or_else(|| data_dir.join("secrets"));
        let local = Local::open(directory, sealing_key(config)?)?;
        Ok(Self::Local { local, named: section.directory.is_some() })
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
        }
    }

    /// The names of all secrets, sorted.
    pub async fn list(&self) -> Result<Vec<String>, Failure> {
        match self {
            Self::Local { local, .. } => local.list().await,
        }
    }

    /// Changes or creates a secret, under a lock against concurrent changes. `change` returns `None` to leave it unchanged.
    /// Returns whether it was changed; the change is then durable.
    pub async fn update(
        &self,
        name: &str,
        change: impl FnOnce(Option<&Secret>) -> Result<Option<Secret>, Failure> + Send + 'static,
    ) -> Result<bool, Failure> {
        match self {
            Self::Local { local, .. } => local.update(name, change).await,
        }
    }

    /// Idempotent.
    pub async fn delete(&self, name: &str) -> Result<(), Failure> {
        match self {
            Self::Local { local, .. } => local.delete(name).await,
        }
    }

    /// Seals a text that is stored elsewhere, for this name.
    pub fn seal(&self, name: &str, text: &[u8]) -> Vec<u8> {
        match self {
            Self::Local { local, .. } => local.seal(name, text),
        }
    }

    /// `None` if the text was changed, sealed for another name, or sealed with another server's key.
    pub fn open_sealed(&self, name: &str, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        match self {
            Self::Local { local, .. } => local.open_sealed(name, sealed),
        }
    }

    /// The kind of the store, for readiness.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Local { named: false, .. } => "local-files",
            Self::Local { named: true, .. } => "local-files-shared",
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

/// The failure for a secret that exists and cannot be opened: to its users it is unavailable.
fn damaged(name: &str) -> Failure {
    let message = format!(
        "the secret {name} cannot be opened: it is damaged, or was sealed under another key; delete the profile and set it again"
    );
    Failure::rule(Rule::SecretDamaged, message)
}
