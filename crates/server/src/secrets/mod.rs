//! Where the secrets of provider profiles lie. One store per server, reached by name; whoever asks cannot tell where it
//! keeps them, so that Kubernetes Secrets can take the place of local files. Values leave it only towards an agent's home.

mod local;
pub mod sealed;

use ostler_crypto::{Zeroizing, seal::SealingKey};
use ostler_protocol::{Failure, FailureKind, Timestamp, json::unhex, kernel::provider_profiles::Credential};
use secrecy::{ExposeSecret, SecretString};

use crate::{auth, config::Config};
use local::Local;

const KEY_FILE: &str = "secrets-key";

/// The secret of one profile.
#[derive(Clone, Debug)]
pub struct Secret {
    /// Changes with every change; says nothing else.
    pub resource_version: String,
    pub updated_at: Timestamp,
    pub credential: Credential,
    /// A credential was removed because the config names another destination, and none was set since.
    pub credential_dropped: bool,
}

pub enum SecretStore {
    /// With a directory of this server alone, or one that was named so that others can share it.
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

    /// The key that everything is sealed with, as it stands in the configuration or in its file.
    pub fn key_text(config: &Config) -> Result<SecretString, Failure> {
        let section = &config.secrets;
        match (&section.key, &section.key_file) {
            (Some(key), _) => Ok(key.clone()),
            (None, Some(file)) => auth::random_secret_file(file),
            (None, None) => auth::random_secret_file(&config.data_dir()?.join(KEY_FILE)),
        }
    }

    /// Whether the key is there; else whoever asks for it next makes one.
    pub fn has_key(config: &Config) -> Result<bool, Failure> {
        let section = &config.secrets;
        Ok(match (&section.key, &section.key_file) {
            (Some(_), _) => true,
            (None, Some(file)) => file.exists(),
            (None, None) => config.data_dir()?.join(KEY_FILE).exists(),
        })
    }

    /// `None`: there is no such secret. One that cannot be opened is a failure of its own kind.
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

    /// Changes a secret, or makes it; nobody else changes it meanwhile. The change answers `None` to leave it as it is.
    /// What is answered, whether it was changed, is durable.
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

    /// Seals what is kept elsewhere, for this name.
    pub fn seal(&self, name: &str, text: &[u8]) -> Vec<u8> {
        match self {
            Self::Local { local, .. } => local.seal(name, text),
        }
    }

    /// `None`: it was changed, sealed for another name, or under another server's key.
    pub fn open_sealed(&self, name: &str, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        match self {
            Self::Local { local, .. } => local.open_sealed(name, sealed),
        }
    }

    /// For readiness: what it is, never what is in it.
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
        Failure::rule(FailureKind::InfraFailed, "secrets-key", message)
    })
}

/// A secret that is there and cannot be read: whoever needs it has none.
fn damaged(name: &str) -> Failure {
    let message = format!(
        "the secret {name} cannot be opened: it is damaged, or was sealed under another key; delete the profile and set it again"
    );
    Failure::rule(FailureKind::SecretUnavailable, "secret-damaged", message)
}
