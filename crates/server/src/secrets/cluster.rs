//! Secrets as Kubernetes Secrets: one for each profile, with its files as keys. The version of the object is the optimistic lock:
//! a change is written only over the version that it was made from. Objects that were made with other tools are read as well.
//!
//! The server may not list Secrets, because a right to list cannot be limited to a prefix of names. An object of its own has the
//! names of all profiles that were set through it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use k8s_openapi::{ByteString, api::core::v1::Secret as SecretObject};
use ostler_protocol::{
    Failure, Rule, Timestamp,
    kernel::provider_profiles::{AUTH, BUILT_IN, CONFIG, Credential, MODEL_CATALOG, secret_name},
};
use ostler_store::attempts::Attempts;
use parking_lot::Mutex;
use secrecy::ExposeSecret;
use tokio::time::Instant;

use super::secret::{Secret, damaged};
use crate::kubernetes::{Cluster, ClusterError};

/// The object with the names. No profile has such a name, because names of profiles have no dot.
const INDEX: &str = "agentrun-v01-provider-all.index";
/// Keys that are read. Others are left alone.
const FILES: [&str; 3] = [AUTH, CONFIG, MODEL_CATALOG];
const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "ostler");
const COMPONENT: (&str, &str) = ("app.kubernetes.io/component", "provider-profile");
/// When the profile was changed through a server, and the version under which the record of changes has that change.
const UPDATED_AT: &str = "ostler.dev/updated-at";
const CHANGE: &str = "ostler.dev/change";
const CREDENTIAL_DROPPED: &str = "ostler.dev/credential-dropped";
/// How often one change is attempted. Each attempt is several calls of the API server.
const ATTEMPTS_MAX: usize = 10;
/// How long a secret that was read is used again. A run reads it several times.
const FRESH: Duration = Duration::from_secs(1);
/// Secrets that are remembered. Callers can ask for any name.
const REMEMBERED_MAX: usize = 1_000;

pub struct ClusterSecrets {
    cluster: Arc<Cluster>,
    remembered: Mutex<Remembered>,
}

#[derive(Default)]
struct Remembered {
    secrets: HashMap<String, (Instant, Option<Secret>)>,
    /// Counts the writes of this server: what was read before one is not remembered after it.
    writes: u64,
}

impl ClusterSecrets {
    pub fn new(cluster: Arc<Cluster>) -> Self {
        Self { cluster, remembered: Mutex::default() }
    }

    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    pub async fn get(&self, name: &str) -> Result<Option<Secret>, Failure> {
        let writes = {
            let remembered = self.remembered.lock();
            if let Some((_, secret)) = remembered.secrets.get(name).filter(|(at, _)| at.elapsed() < FRESH) {
                return Ok(secret.clone());
            }
            remembered.writes
        };
        let found = self.cluster.get_secret(name).await.map_err(|error| unavailable(name, error))?;
        let secret = found.as_ref().map(|object| read(name, object)).transpose()?;
        let mut remembered = self.remembered.lock();
        if remembered.writes == writes {
            if remembered.secrets.len() >= REMEMBERED_MAX {
                remembered.secrets.clear();
            }
            remembered.secrets.insert(name.to_owned(), (Instant::now(), secret.clone()));
        }
        Ok(secret)
    }

    /// The names of the profiles that come with the product, and of all others that were set through a server.
    pub async fn list(&self) -> Result<Vec<String>, Failure> {
        let index = self.cluster.get_secret(INDEX).await.map_err(|error| unavailable(INDEX, error))?;
        let mut names: BTreeSet<String> = BUILT_IN.iter().map(|profile| secret_name(profile)).collect();
        names.extend(index.and_then(|index| index.data).into_iter().flatten().map(|(name, _)| name));
        Ok(names.into_iter().collect())
    }

    pub async fn update(
        &self,
        name: &str,
        mut change: impl FnMut(Option<&Secret>) -> Result<Option<Secret>, Failure> + Send + 'static,
    ) -> Result<bool, Failure> {
        let mut attempts = Attempts::at_most(ATTEMPTS_MAX, contended);
        loop {
            attempts.start_next()?;
            let found = self.cluster.get_secret(name).await.map_err(|error| unavailable(name, error))?;
            let existing = found.as_ref().map(|object| read(name, object)).transpose()?;
            // The change may block: it is recorded before it is made.
            let changing = tokio::task::spawn_blocking(move || {
                let changed = change(existing.as_ref());
                (change, changed)
            });
            let (again, changed) = changing.await.map_err(Failure::internal)?;
            change = again;
            let secret = match changed {
                Ok(Some(secret)) => secret,
                // A caller whose change was rejected reads the current version next, and not what was read before this.
                unchanged => {
                    self.forget();
                    return unchanged.map(|_| false);
                }
            };
            // First the name: a secret whose name is missing could not be listed, a name without a secret is none.
            self.add_to_index(name).await?;
            let is_new = found.is_none();
            match self.write(name, found, |object| fill(object, &secret)).await {
                // A concurrent deletion may have removed the name before the secret existed.
                Ok(()) if is_new => return self.add_to_index(name).await.map(|()| true),
                Ok(()) => return Ok(true),
                Err(ClusterError::Exists | ClusterError::Conflict | ClusterError::Absent) => {}
                Err(error) => return Err(unavailable(name, error)),
            }
        }
    }

    pub async fn delete(&self, name: &str) -> Result<(), Failure> {
        let deleted = self.cluster.delete_secret(name).await;
        self.forget();
        deleted.map_err(|error| unavailable(name, error))?;
        self.change_index(|names| names.remove(name).is_some()).await?;
        // A concurrent update may have found the name and created the secret since. Its write and this read cannot miss each other: a
        // secret that is created after this read gets its name from the update, which adds the name again.
        match self.cluster.get_secret(name).await.map_err(|error| unavailable(name, error))? {
            Some(_) => self.add_to_index(name).await,
            None => Ok(()),
        }
    }

    async fn add_to_index(&self, name: &str) -> Result<(), Failure> {
        self.change_index(|names| names.insert(name.to_owned(), ByteString::default()).is_none()).await
    }

    /// Changes the names of profiles. `change` returns false if there is nothing to change.
    async fn change_index(&self, change: impl Fn(&mut BTreeMap<String, ByteString>) -> bool) -> Result<(), Failure> {
        let mut attempts = Attempts::at_most(ATTEMPTS_MAX, contended);
        loop {
            attempts.start_next()?;
            let found = self.cluster.get_secret(INDEX).await.map_err(|error| unavailable(INDEX, error))?;
            let mut names = found.as_ref().and_then(|index| index.data.clone()).unwrap_or_default();
            if !change(&mut names) {
                return Ok(());
            }
            match self.write(INDEX, found, |index| index.data = Some(names)).await {
                Ok(()) => return Ok(()),
                Err(ClusterError::Exists | ClusterError::Conflict | ClusterError::Absent) => {}
                Err(error) => return Err(unavailable(INDEX, error)),
            }
        }
    }

    /// Creates an object, or replaces the one that was found. A conflict if there is another version by now.
    async fn write(
        &self,
        name: &str,
        found: Option<SecretObject>,
        change: impl FnOnce(&mut SecretObject),
    ) -> Result<(), ClusterError> {
        let is_new = found.is_none();
        let mut object = found.unwrap_or_default();
        object.metadata.name = Some(name.to_owned());
        // The server's own record of who changed what is not sent back.
        object.metadata.managed_fields = None;
        let labels = object.metadata.labels.get_or_insert_default();
        labels.extend([MANAGED_BY, COMPONENT].map(|(label, value)| (label.to_owned(), value.to_owned())));
        change(&mut object);
        let written = match is_new {
            true => self.cluster.create_secret(&object).await,
            false => self.cluster.replace_secret(name, &object).await,
        };
        // Also after an error: the write may have been carried out all the same.
        self.forget();
        written
    }

    fn forget(&self) {
        let mut remembered = self.remembered.lock();
        remembered.writes += 1;
        remembered.secrets.clear();
    }
}

/// The secret of a profile, as its object has it.
fn read(name: &str, object: &SecretObject) -> Result<Secret, Failure> {
    let mut files = BTreeMap::new();
    for (key, bytes) in object.data.iter().flatten().filter(|(key, _)| FILES.contains(&key.as_str())) {
        let text = String::from_utf8(bytes.0.clone()).map_err(|_| damaged(name))?;
        files.insert(key.clone(), text.into());
    }
    let annotation = |key: &str| object.metadata.annotations.as_ref()?.get(key);
    let created_at = || object.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
    Ok(Secret {
        resource_version: object.metadata.resource_version.clone().unwrap_or_default(),
        updated_at: annotation(UPDATED_AT).and_then(|at| at.parse().ok()).unwrap_or_else(created_at),
        credential: Credential::new(files),
        credential_dropped: annotation(CREDENTIAL_DROPPED).is_some_and(|dropped| dropped == "true"),
    })
}

/// Puts the secret of a profile into its object. Keys and annotations of others stay.
fn fill(object: &mut SecretObject, secret: &Secret) {
    let data = object.data.get_or_insert_default();
    data.retain(|key, _| !FILES.contains(&key.as_str()));
    let files = secret.credential.files().iter();
    data.extend(files.map(|(key, text)| (key.clone(), ByteString(text.expose_secret().as_bytes().to_vec()))));
    object.metadata.annotations.get_or_insert_default().extend([
        (UPDATED_AT.to_owned(), secret.updated_at.to_string()),
        (CHANGE.to_owned(), secret.resource_version.clone()),
        (CREDENTIAL_DROPPED.to_owned(), secret.credential_dropped.to_string()),
    ]);
}

/// A cluster that does not respond is called again later. One that refuses makes the secret unavailable to its users.
fn unavailable(name: &str, error: ClusterError) -> Failure {
    match error {
        ClusterError::Refused(message) => {
            Failure::rule(Rule::SecretDenied, format!("the cluster refused a call for the Secret {name}: {message}"))
        }
        error => error.into(),
    }
}

fn contended() -> Failure {
    Failure::rule(Rule::ResourceVersion, "the profile is being changed by others at the same time; try again")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: serde_json::Value) -> SecretObject {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn an_object_that_was_made_by_hand_is_read() {
        // `{}` and `a = 1`.
        let made = object(json!({
            "metadata": {"name": "n", "resourceVersion": "7", "creationTimestamp": "2030-01-01T00:00:00Z"},
            "data": {"auth.json": "e30=", "config.toml": "YSA9IDE=", "other": "AAE="},
        }));
        let secret = read("n", &made).unwrap();
        assert_eq!(
            (secret.resource_version.as_str(), secret.updated_at.to_string().as_str()),
            ("7", "2030-01-01T00:00:00Z")
        );
        assert_eq!(secret.credential.keys(), [AUTH, CONFIG]);
        assert_eq!((secret.credential.text(CONFIG), secret.credential_dropped), (Some("a = 1"), false));
    }

    #[test]
    fn a_written_secret_reads_back_and_keeps_what_others_put_there() {
        let mut kept = object(
            json!({"metadata": {"annotations": {"theirs": "1"}}, "data": {"other": "AAE=", "auth.json": "e30="}}),
        );
        let files = BTreeMap::from([(CONFIG.to_owned(), "a = 1".to_owned().into())]);
        let secret = Secret {
            resource_version: "ours".into(),
            updated_at: "2030-01-02T03:04:05.678Z".parse().unwrap(),
            credential: Credential::new(files),
            credential_dropped: true,
        };
        fill(&mut kept, &secret);
        assert_eq!(kept.metadata.annotations.as_ref().unwrap()["theirs"], "1");
        assert!(kept.data.as_ref().unwrap().contains_key("other"));
        let read = read("n", &kept).unwrap();
        assert_eq!((read.credential.keys(), read.updated_at), (vec![CONFIG.to_owned()], secret.updated_at));
        assert!(read.credential_dropped);
    }

    #[test]
    fn a_file_that_is_not_text_is_damaged() {
        let binary = object(json!({"metadata": {}, "data": {"auth.json": "/w=="}}));
        assert_eq!(read("n", &binary).unwrap_err().rule_name(), Some("secret-damaged"));
    }

    #[test]
    fn a_refused_call_makes_the_secret_unavailable_and_a_late_response_does_not() {
        let refused = unavailable("n", ClusterError::Refused("forbidden".into()));
        assert_eq!(
            (refused.kind, refused.rule_name()),
            (ostler_protocol::FailureKind::SecretUnavailable, Some("secret-denied"))
        );
        let late = unavailable("n", ClusterError::Later { after: None, message: "slow".into() });
        assert_eq!(late.rule_name(), Some("cluster-call"));
    }
}
