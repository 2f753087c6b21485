//! Secrets as files: each sealed under the server's key and its own name, mode 0600, replaced whole. A lock file orders
//! writers, also those of other servers that share the directory.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use ostler_crypto::{Zeroizing, seal::SealingKey};
use ostler_protocol::{Failure, Timestamp, kernel::provider_profiles::Credential};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use super::{
    sealed::{Found, SealedFiles},
    secret::{Secret, damaged},
};

#[derive(Clone)]
pub struct Local(Arc<SealedFiles>);

/// The sealed contents of a file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredSecret {
    resource_version: String,
    updated_at: Timestamp,
    files: BTreeMap<String, String>,
    /// Absent in files of earlier versions.
    #[serde(default)]
    credential_dropped: bool,
}

impl Local {
    pub fn open(directory: PathBuf, key: SealingKey) -> Result<Self, Failure> {
        Ok(Self(Arc::new(SealedFiles::open(directory, key)?)))
    }

    /// Only for sealing what is stored elsewhere: no directory is created.
    #[cfg(feature = "kubernetes")]
    pub fn sealer(directory: PathBuf, key: SealingKey) -> Self {
        Self(Arc::new(SealedFiles::existing(directory, key)))
    }

    pub async fn get(&self, name: &str) -> Result<Option<Secret>, Failure> {
        let name = name.to_owned();
        self.spawn_blocking(move |files| get(files, &name)).await
    }

    pub async fn list(&self) -> Result<Vec<String>, Failure> {
        self.spawn_blocking(SealedFiles::list).await
    }

    pub async fn update(
        &self,
        name: &str,
        change: impl FnOnce(Option<&Secret>) -> Result<Option<Secret>, Failure> + Send + 'static,
    ) -> Result<bool, Failure> {
        let name = name.to_owned();
        self.spawn_blocking(move |files| {
            let _lock = files.lock()?;
            match change(get(files, &name)?.as_ref())? {
                Some(secret) => put(files, &name, &secret).map(|()| true),
                None => Ok(false),
            }
        })
        .await
    }

    pub async fn delete(&self, name: &str) -> Result<(), Failure> {
        let name = name.to_owned();
        self.spawn_blocking(move |files| {
            let _lock = files.lock()?;
            files.delete(&name)
        })
        .await
    }

    pub fn seal(&self, name: &str, text: &[u8]) -> Vec<u8> {
        self.0.seal(name, text)
    }

    pub fn open_sealed(&self, name: &str, sealed: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        self.0.open_sealed(name, sealed)
    }

    /// Runs blocking work on disks and locks outside the threads of the async runtime.
    async fn spawn_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&SealedFiles) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let files = self.0.clone();
        tokio::task::spawn_blocking(move || work(&files)).await.map_err(Failure::internal)?
    }
}

fn get(files: &SealedFiles, name: &str) -> Result<Option<Secret>, Failure> {
    match files.get(name)? {
        Found::Nothing => Ok(None),
        Found::Text(text) => read(&text).map(Some).ok_or_else(|| damaged(name)),
        Found::Damaged => Err(damaged(name)),
    }
}

fn read(text: &[u8]) -> Option<Secret> {
    let StoredSecret { resource_version, updated_at, files, credential_dropped } = serde_json::from_slice(text).ok()?;
    let files = files.into_iter().map(|(name, text)| (name, text.into())).collect();
    Some(Secret { resource_version, updated_at, credential: Credential::new(files), credential_dropped })
}

fn put(files: &SealedFiles, name: &str, secret: &Secret) -> Result<(), Failure> {
    let credential = secret.credential.files().iter();
    let stored = StoredSecret {
        resource_version: secret.resource_version.clone(),
        updated_at: secret.updated_at,
        files: credential.map(|(name, text)| (name.clone(), text.expose_secret().to_owned())).collect(),
        credential_dropped: secret.credential_dropped,
    };
    files.put(name, &Zeroizing::new(serde_json::to_vec(&stored).map_err(Failure::internal)?))
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::PermissionsExt, path::Path};

    use ostler_protocol::{
        FailureKind,
        kernel::provider_profiles::{AUTH, CONFIG},
    };

    use super::*;

    fn key(byte: u8) -> SealingKey {
        SealingKey::new(&[byte; 32]).unwrap()
    }

    fn secret(version: &str) -> Secret {
        let files = BTreeMap::from([
            (AUTH.to_owned(), format!("{{\"key\":\"pl4nted-{version}\"}}").into()),
            (CONFIG.to_owned(), format!("pl4nted = \"{version}\"").into()),
        ]);
        let resource_version = version.to_owned();
        let credential = Credential::new(files);
        Secret { resource_version, updated_at: Timestamp::UNIX_EPOCH, credential, credential_dropped: false }
    }

    async fn put(store: &Local, name: &str, version: &str) {
        let secret = secret(version);
        store.update(name, move |_| Ok(Some(secret))).await.unwrap();
    }

    fn files(directory: &Path) -> Vec<PathBuf> {
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[tokio::test]
    async fn a_secret_reads_back_and_its_file_is_sealed_and_private() {
        let scratch = tempfile::tempdir().unwrap();
        let directory = scratch.path().join("secrets");
        let store = Local::open(directory.clone(), key(1)).unwrap();
        assert!(store.get("a").await.unwrap().is_none());
        put(&store, "a", "1").await;
        let again = Local::open(directory.clone(), key(1)).unwrap();
        let read = again.get("a").await.unwrap().unwrap();
        assert_eq!((read.resource_version.as_str(), read.credential.text(CONFIG)), ("1", Some("pl4nted = \"1\"")));
        assert_eq!(again.list().await.unwrap(), ["a"]);
        assert_eq!(std::fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
        for file in files(&directory) {
            assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600, "{}", file.display());
            let bytes = std::fs::read(&file).unwrap();
            assert!(!bytes.windows(7).any(|part| part == b"pl4nted"), "{}", file.display());
        }
        again.delete("a").await.unwrap();
        again.delete("a").await.unwrap();
        assert!(store.get("a").await.unwrap().is_none());
    }

    #[tokio::test]
    async fn a_secret_that_was_changed_moved_or_sealed_under_another_key_is_not_opened() {
        let scratch = tempfile::tempdir().unwrap();
        let store = Local::open(scratch.path().to_owned(), key(1)).unwrap();
        put(&store, "a", "1").await;
        std::fs::copy(store.0.file("a"), store.0.file("moved")).unwrap();
        std::fs::write(store.0.file("empty"), "").unwrap();
        let mut bytes = std::fs::read(store.0.file("a")).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(store.0.file("changed"), bytes).unwrap();
        for name in ["moved", "empty", "changed"] {
            let failure = store.get(name).await.unwrap_err();
            assert_eq!((failure.kind, failure.rule_name()), (FailureKind::SecretUnavailable, Some("secret-damaged")));
        }
        let other = Local::open(scratch.path().to_owned(), key(2)).unwrap();
        assert_eq!(other.get("a").await.unwrap_err().rule_name(), Some("secret-damaged"));
        // A secret that cannot be opened can still be deleted, and then set again.
        other.delete("a").await.unwrap();
        put(&other, "a", "2").await;
    }

    #[tokio::test]
    async fn files_of_earlier_versions_are_read() {
        let scratch = tempfile::tempdir().unwrap();
        let store = Local::open(scratch.path().to_owned(), key(1)).unwrap();
        let text = r#"{"resourceVersion":"1","updatedAt":"2026-01-01T00:00:00Z","files":{"config.toml":"a = 1"}}"#;
        store.0.put("a", text.as_bytes()).unwrap();
        let read = store.get("a").await.unwrap().unwrap();
        assert_eq!((read.credential.text(CONFIG), read.credential_dropped), (Some("a = 1"), false));
    }

    #[tokio::test]
    async fn concurrent_changes_are_serialized() {
        let scratch = tempfile::tempdir().unwrap();
        let stores = [0, 1].map(|_| Local::open(scratch.path().to_owned(), key(1)).unwrap());
        let counts = (0..40).map(|at| {
            let store = stores[at % 2].clone();
            tokio::spawn(async move {
                let next = |existing: Option<&Secret>| {
                    let count: u32 = existing.map_or(0, |existing| existing.resource_version.parse().unwrap());
                    Ok(Some(secret(&(count + 1).to_string())))
                };
                store.update("a", next).await.unwrap();
            })
        });
        for count in counts.collect::<Vec<_>>() {
            count.await.unwrap();
        }
        let last = stores[0].get("a").await.unwrap().unwrap();
        assert_eq!(last.resource_version, "40");
        assert_eq!(last.credential.text(CONFIG), Some("pl4nted = \"40\""));
        assert_eq!(files(scratch.path()).len(), 2, "the secret and the lock");
    }

    #[tokio::test]
    async fn half_written_files_of_a_killed_server_are_removed() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join(".0123.tmp"), "half").unwrap();
        let store = Local::open(scratch.path().to_owned(), key(1)).unwrap();
        assert_eq!(store.list().await.unwrap(), [""; 0]);
        assert!(files(scratch.path()).iter().all(|file| !file.ends_with(".0123.tmp")));
    }
}
