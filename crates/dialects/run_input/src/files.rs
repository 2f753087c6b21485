//! The storage of attachments, and their signed URLs. The bytes are in an object store: a directory of this server, or a bucket.
//! A URL contains its own proof, so that a page can show a picture without a token; it expires.

use std::sync::Arc;

use bytes::Bytes;
use object_store::{Error, ObjectStore, ObjectStoreExt, local::LocalFileSystem, path::Path};
use ostler_crypto::mac::MacKey;
use ostler_protocol::{
    Failure, Rule, Timestamp,
    json::{hex, unhex},
    run_input::attachments::{ObjectPath, Proof},
};
use secrecy::ExposeSecret;

use crate::config::attachments::AttachmentsSection;
use ostler_server::{
    auth::Principal,
    config::Config,
    directories,
    net::permits::{Permit, PermitPool, UPLOADS},
    secrets::SecretStore,
    startup::not_started,
};

/// The path of signed URLs, before the bucket.
pub(crate) const ROUTE: &str = "/api/v1/agent/attachments/object";
/// Concurrent uploads: each is held in memory, whole.
const UPLOADS_MAX: usize = 16;
/// Concurrent uploads of one user.
const UPLOADS_PER_USER_MAX: usize = 4;
/// The purpose that the signing key is derived for. Another version of the scheme has another name.
const PURPOSE: &str = "ostler attachment urls 1";
/// The bucket name of a local directory.
const LOCAL_BUCKET: &str = "local";

pub(crate) struct Attachments {
    store: Arc<dyn ObjectStore>,
    pub bucket: String,
    base_url: String,
    key: MacKey,
    uploads: Arc<PermitPool>,
}

impl Attachments {
    /// Opens the store. Servers that share `secrets.key` accept each other's URLs.
    pub(crate) fn open(config: &Config, section: &AttachmentsSection) -> Result<Self, Failure> {
        let (store, bucket) = match &section.s3_bucket {
            Some(bucket) => (s3(bucket, config, section)?, bucket.clone()),
            None => (local(config, section)?, LOCAL_BUCKET.to_owned()),
        };
        let secret = SecretStore::key_text(config)?;
        let key = MacKey::derived(secret.expose_secret().trim().as_bytes(), PURPOSE);
        let base_url =
            section.base_url.clone().unwrap_or_else(|| format!("{}://{}", config.scheme(), config.server.listen));
        let base_url = base_url.trim_end_matches('/').to_owned();
        Ok(Self { store, bucket, base_url, key, uploads: PermitPool::new(UPLOADS) })
    }

    /// A permit for one more upload. Fails if the server or the caller has too many.
    pub(crate) fn admit(&self, caller: &Principal) -> Result<Permit, Failure> {
        self.uploads.admit(caller, UPLOADS_MAX, UPLOADS_PER_USER_MAX)
    }

    pub(crate) async fn put(&self, path: &ObjectPath, bytes: Bytes) -> Result<(), Failure> {
        self.store.put(&at(path), bytes.into()).await.map(drop).map_err(failed)
    }

    /// The bytes of a file. `None` if it does not exist.
    pub(crate) async fn get(&self, path: &ObjectPath) -> Result<Option<Bytes>, Failure> {
        let found = match self.store.get(&at(path)).await {
            Err(Error::NotFound { .. }) => return Ok(None),
            found => found.map_err(failed)?,
        };
        found.bytes().await.map(Some).map_err(failed)
    }

    /// Idempotent.
    pub(crate) async fn delete(&self, path: &ObjectPath) -> Result<(), Failure> {
        match self.store.delete(&at(path)).await {
            Err(Error::NotFound { .. }) => Ok(()),
            deleted => deleted.map_err(failed),
        }
    }

    /// A URL that serves this file to any client until the given time.
    pub(crate) fn url(&self, path: &ObjectPath, until: Timestamp) -> String {
        let expires = until.as_second();
        let signature = hex(&self.key.tag(&self.signed(path, expires).each_ref().map(Vec::as_slice)));
        format!("{}{ROUTE}/{}/{path}?expires={expires}&signature={signature}", self.base_url, self.bucket)
    }

    /// Whether the proof is for this file, and has not expired.
    pub(crate) fn proves(&self, bucket: &str, path: &ObjectPath, proof: &Proof, now: Timestamp) -> bool {
        let parts = self.signed(path, proof.expires);
        let tag = unhex(&proof.signature).unwrap_or_default();
        let signed = self.key.verify(&parts.each_ref().map(Vec::as_slice), &tag);
        signed && bucket == self.bucket && now.as_second() < proof.expires
    }

    fn signed(&self, path: &ObjectPath, expires: i64) -> [Vec<u8>; 4] {
        let text = |text: &str| text.as_bytes().to_vec();
        [text(&self.bucket), text(&path.to_string()), text(&path.owner), expires.to_be_bytes().to_vec()]
    }

    /// The file of a URL that this server signed, whatever host name it contains. `None` if the URL is not valid, or has expired.
    pub(crate) fn read_url(&self, url: &str, now: Timestamp) -> Option<ObjectPath> {
        let (location, query) = url.split_once('?')?;
        let (_, location) = location.split_once("://")?.1.split_once(ROUTE)?;
        let (bucket, path) = location.strip_prefix('/')?.split_once('/')?;
        let path: ObjectPath = path.parse().ok()?;
        let (expires, signature) = query.strip_prefix("expires=")?.split_once("&signature=")?;
        let proof = Proof { expires: expires.parse().ok()?, signature: signature.to_owned() };
        self.proves(bucket, &path, &proof, now).then_some(path)
    }
}

/// The path has plain characters only, so it is the same in every object store.
fn at(path: &ObjectPath) -> Path {
    Path::from(path.to_string())
}

fn local(config: &Config, section: &AttachmentsSection) -> Result<Arc<dyn ObjectStore>, Failure> {
    let directory = match &section.directory {
        Some(directory) => directory.clone(),
        None => config.data_dir()?.join("attachments"),
    };
    directories::make(&directory)?;
    let opened = LocalFileSystem::new_with_prefix(&directory).map_err(|error| not_started(Rule::Attachments, error))?;
    // A successful upload must survive a power cut. An empty directory is deleted with its last file.
    Ok(Arc::new(opened.with_fsync(true).with_automatic_cleanup(true)))
}

/// Credentials and region come from the environment, as in other S3 clients.
#[cfg(feature = "s3")]
fn s3(bucket: &str, config: &Config, section: &AttachmentsSection) -> Result<Arc<dyn ObjectStore>, Failure> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = object_store::aws::AmazonS3Builder::from_env().with_bucket_name(bucket);
    // The secrets among them were removed from the process's environment.
    for (name, value) in
        config.environment.taken_variables().filter_map(|(name, value)| Some((name.to_str()?, value.to_str()?)))
    {
        if let Ok(key) = name.to_ascii_lowercase().parse() {
            builder = builder.with_config(key, value);
        }
    }
    if let Some(endpoint) = &section.s3_endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(endpoint.starts_with("http://"));
    }
    let opened = builder.build().map_err(|error| not_started(Rule::Attachments, error))?;
    Ok(Arc::new(opened))
}

#[cfg(not(feature = "s3"))]
fn s3(_: &str, _: &Config, _: &AttachmentsSection) -> Result<Arc<dyn ObjectStore>, Failure> {
    Err(not_started(Rule::Attachments, "attachments.s3_bucket needs a build with the feature s3"))
}

fn failed(error: Error) -> Failure {
    let mut failure = Failure::rule(Rule::AttachmentStore, "the store of attachments did not answer");
    failure.cause = Some(error.to_string().into());
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATH: &str = "agent-inputs/usr_1/550e8400-e29b-41d4-a716-446655440000/run/file.png";

    fn opened(dir: &std::path::Path) -> Attachments {
        let mut config = Config::default();
        config.server.data_dir = Some(dir.to_owned());
        Attachments::open(&config, &AttachmentsSection::default()).unwrap()
    }

    fn second(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn a_url_is_valid_for_its_file_until_it_expires() {
        let dir = tempfile::tempdir().unwrap();
        let attachments = opened(dir.path());
        let path: ObjectPath = PATH.parse().unwrap();
        let url = attachments.url(&path, second(100));
        assert_eq!(attachments.read_url(&url, second(99)), Some(path.clone()));
        assert_eq!(attachments.read_url(&url, second(100)), None);
        // Behind a proxy the server has another name; the signature covers the file only.
        let elsewhere = url.replace("http://127.0.0.1:4747", "https://chat.example/prefix");
        assert_eq!(attachments.read_url(&elsewhere, second(99)), Some(path.clone()));
        // Only a server of the same directory accepts it.
        assert!(opened(dir.path()).read_url(&url, second(99)).is_some());
        assert!(opened(tempfile::tempdir().unwrap().path()).read_url(&url, second(99)).is_none());
    }

    #[test]
    fn a_url_that_was_altered_anywhere_is_invalid() {
        let dir = tempfile::tempdir().unwrap();
        let attachments = opened(dir.path());
        let url = attachments.url(&PATH.parse().unwrap(), second(100));
        let start = url.find(ROUTE).unwrap();
        for at in start..url.len() {
            let mut bytes = url.clone().into_bytes();
            bytes[at] = if bytes[at] == b'1' { b'2' } else { b'1' };
            let altered = String::from_utf8(bytes).unwrap();
            assert_eq!(attachments.read_url(&altered, second(1)), None, "{altered}");
            assert_eq!(attachments.read_url(&url[..at], second(1)), None, "cut at {at}");
        }
        for altered in [
            url.replace("usr_1", "usr_2"),
            url.replace("/local/", "/other/"),
            url.replace("/run/", "/../run/run/"),
            url.replace("expires=100", "expires=1000"),
            format!("{url}00"),
            url.replace('?', "?x=1&"),
        ] {
            assert_eq!(attachments.read_url(&altered, second(1)), None, "{altered}");
        }
    }
}
