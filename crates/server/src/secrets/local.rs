//! Secrets as files: each sealed under the server's key and its own name, mode 0600, replaced whole. A lock file orders
//! writers, also those of other servers that share the directory.

use std::{
    collections::BTreeMap,
    fs::{DirBuilder, File, OpenOptions},
    io::{ErrorKind, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use ostler_crypto::seal::{NONCE_BYTES, SealingKey};
use ostler_protocol::{Failure, FailureKind, Timestamp, json::hex, provider_profiles::Credential};
use rustix::fs::{FlockOperation, flock};
use secrecy::ExposeSecret;
use serde::{Deserialize, Serialize};

use super::{Secret, damaged};
use crate::clock;

/// What a sealed file begins with; another format gets another number.
const MAGIC: &[u8] = b"ostler secret 1\n";
const SUFFIX: &str = ".sealed";
const LOCK: &str = ".lock";
/// A file half written when its server died.
const UNFINISHED: &str = ".tmp";
/// More than the largest secret there can be.
const FILE_BYTES_MAX: u64 = 8 * 1024 * 1024;

#[derive(Clone)]
pub struct Local(Arc<Inner>);

struct Inner {
    directory: PathBuf,
    key: SealingKey,
}

/// What is sealed.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Kept {
    resource_version: String,
    updated_at: Timestamp,
    files: BTreeMap<String, String>,
}

impl Local {
    pub fn open(directory: PathBuf, key: SealingKey) -> Result<Self, Failure> {
        DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(broken)?;
        let inner = Inner { directory, key };
        let lock = inner.lock()?;
        for entry in std::fs::read_dir(&inner.directory).map_err(broken)? {
            let path = entry.map_err(broken)?.path();
            if path.to_string_lossy().ends_with(UNFINISHED) {
                std::fs::remove_file(path).map_err(broken)?;
            }
        }
        drop(lock);
        Ok(Self(Arc::new(inner)))
    }

    pub async fn get(&self, name: &str) -> Result<Option<Secret>, Failure> {
        let name = name.to_owned();
        self.aside(move |inner| inner.get(&name)).await
    }

    pub async fn list(&self) -> Result<Vec<String>, Failure> {
        self.aside(Inner::list).await
    }

    pub async fn update(
        &self,
        name: &str,
        change: impl FnOnce(Option<&Secret>) -> Result<Option<Secret>, Failure> + Send + 'static,
    ) -> Result<bool, Failure> {
        let name = name.to_owned();
        self.aside(move |inner| {
            let _lock = inner.lock()?;
            match change(inner.get(&name)?.as_ref())? {
                Some(secret) => inner.put(&name, &secret).map(|()| true),
                None => Ok(false),
            }
        })
        .await
    }

    pub async fn delete(&self, name: &str) -> Result<(), Failure> {
        let name = name.to_owned();
        self.aside(move |inner| {
            let _lock = inner.lock()?;
            match std::fs::remove_file(inner.file(&name)) {
                Ok(()) => inner.sync(),
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                Err(error) => Err(broken(error)),
            }
        })
        .await
    }

    /// Waits for disks and locks where nobody else has to.
    async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let inner = self.0.clone();
        tokio::task::spawn_blocking(move || work(&inner)).await.map_err(Failure::internal)?
    }
}

impl Inner {
    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}{SUFFIX}"))
    }

    /// Held until it is dropped.
    fn lock(&self) -> Result<File, Failure> {
        let path = self.directory.join(LOCK);
        let file =
            OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).map_err(broken)?;
        flock(&file, FlockOperation::LockExclusive).map_err(|error| broken(error.into()))?;
        Ok(file)
    }

    fn list(&self) -> Result<Vec<String>, Failure> {
        let mut names = vec![];
        for entry in std::fs::read_dir(&self.directory).map_err(broken)? {
            let file = entry.map_err(broken)?.file_name();
            names.extend(file.to_str().and_then(|file| file.strip_suffix(SUFFIX)).map(str::to_owned));
        }
        names.sort();
        Ok(names)
    }

    fn get(&self, name: &str) -> Result<Option<Secret>, Failure> {
        let mut bytes = vec![];
        match File::open(self.file(name)) {
            Ok(file) => file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(broken)?,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(broken(error)),
        };
        self.opened(name, &bytes).map(Some).ok_or_else(|| damaged(name))
    }

    fn opened(&self, name: &str, bytes: &[u8]) -> Option<Secret> {
        let text = self.key.open(name.as_bytes(), bytes.strip_prefix(MAGIC)?)?;
        let Kept { resource_version, updated_at, files } = serde_json::from_slice(&text).ok()?;
        let files = files.into_iter().map(|(name, text)| (name, text.into())).collect();
        Some(Secret { resource_version, updated_at, credential: Credential::new(files) })
    }

    /// Whole or not at all, also when the power fails: written aside, then renamed into its place.
    fn put(&self, name: &str, secret: &Secret) -> Result<(), Failure> {
        let files = secret.credential.files().iter();
        let kept = Kept {
            resource_version: secret.resource_version.clone(),
            updated_at: secret.updated_at,
            files: files.map(|(name, text)| (name.clone(), text.expose_secret().to_owned())).collect(),
        };
        let (mut nonce, mut mark) = ([0; NONCE_BYTES], [0; 8]);
        clock::fill(&mut nonce);
        clock::fill(&mut mark);
        let text = serde_json::to_vec(&kept).map_err(Failure::internal)?;
        let sealed = self.key.seal(nonce, name.as_bytes(), &text);
        let unfinished = self.directory.join(format!(".{}{UNFINISHED}", hex(&mark)));
        let written =
            write_new(&unfinished, &[MAGIC, &sealed]).and_then(|()| std::fs::rename(&unfinished, self.file(name)));
        if let Err(error) = written {
            let _ = std::fs::remove_file(&unfinished);
            return Err(broken(error));
        }
        self.sync()
    }

    fn sync(&self) -> Result<(), Failure> {
        File::open(&self.directory).and_then(|directory| directory.sync_all()).map_err(broken)
    }
}

fn write_new(path: &Path, parts: &[&[u8]]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    file.sync_all()
}

fn broken(error: std::io::Error) -> Failure {
    let mut failure = Failure::rule(FailureKind::InfraFailed, "secret-store", "the store of secrets did not answer");
    failure.cause = Some(error.to_string().into());
    failure
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use ostler_protocol::provider_profiles::{AUTH, CONFIG};

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
        Secret { resource_version, updated_at: Timestamp::UNIX_EPOCH, credential: Credential::new(files) }
    }

    async fn put(store: &Local, name: &str, version: &str) {
        let secret = secret(version);
        store.update(name, move |_| Ok(Some(secret))).await.unwrap();
    }

    fn files(directory: &Path) -> Vec<PathBuf> {
        std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[tokio::test]
    async fn a_secret_reads_back_and_lies_sealed_for_its_owner_alone() {
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
        // What cannot be read can still be removed, and then set again.
        other.delete("a").await.unwrap();
        put(&other, "a", "2").await;
    }

    #[tokio::test]
    async fn changes_at_once_come_one_after_the_other() {
        let scratch = tempfile::tempdir().unwrap();
        let stores = [0, 1].map(|_| Local::open(scratch.path().to_owned(), key(1)).unwrap());
        let counts = (0..40).map(|at| {
            let store = stores[at % 2].clone();
            tokio::spawn(async move {
                let next = |known: Option<&Secret>| {
                    let count: u32 = known.map_or(0, |known| known.resource_version.parse().unwrap());
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
    async fn what_a_killed_server_left_half_written_is_removed() {
        let scratch = tempfile::tempdir().unwrap();
        std::fs::write(scratch.path().join(".0123.tmp"), "half").unwrap();
        let store = Local::open(scratch.path().to_owned(), key(1)).unwrap();
        assert_eq!(store.list().await.unwrap(), [""; 0]);
        assert!(files(scratch.path()).iter().all(|file| !file.ends_with(".0123.tmp")));
    }
}
