//! The calls of the API server. Each has a deadline, and fails with an error that names the next step. Nothing else of this server
//! calls it.

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use futures_util::Stream;
use k8s_openapi::api::{
    batch::v1::Job,
    core::v1::{PersistentVolumeClaim, Pod, Secret},
};
use kube::{
    Api, Client, Resource,
    api::{DeleteParams, ListParams, LogParams, ObjectList, PostParams, Preconditions, WatchEvent, WatchParams},
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
    core::NamespaceResourceScope,
};
use ostler_protocol::{Failure, Rule, text::clip};
use parking_lot::Mutex;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, timeout};

use super::{
    job_manifest::{JOB_NAME_LABEL, SELECTOR},
    rights::Right,
};
use crate::config::{Environment, KubernetesSection};

/// Where a pod finds the token of its account.
pub const ACCOUNT_TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";
/// Objects in one page of a list.
const PAGE_OBJECTS_MAX: u32 = 500;
/// How long one watch lasts. The API server ends it then, and it is continued. A connection that was cut without a sign is noticed
/// soon after that.
pub(super) const WATCH_S: u32 = 60;
const MESSAGE_CHARS_MAX: usize = 300;
/// How long after an outage calls may still be refused: an API server that has just started refuses them until it has read its roles.
/// A watch may last notice an outage ten seconds before the outage ends, which is its longest pause.
const RECOVERY: Duration = Duration::from_secs(20);
/// How the API server words a refusal by a ResourceQuota. It has no reason of its own.
const QUOTA_USED_UP: &str = "exceeded quota";

/// A call that failed, by what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClusterError {
    /// An object of this name exists.
    Exists,
    /// The object has changed since, or another change of the cluster is under way.
    Conflict,
    /// There is no such object.
    Absent,
    /// The API server no longer knows what happened since then: list again.
    Gone,
    /// Repeat the call, not earlier than after this time.
    Later { after: Option<Duration>, message: String },
    /// The object would exceed a quota of the namespace. Repeat the call when other objects are gone.
    Quota(String),
    /// Repeating the call does not help: the account may not do it, or the object is not valid.
    Refused(String),
}

impl ClusterError {
    fn later(message: impl fmt::Display) -> Self {
        Self::Later { after: None, message: clip(&message.to_string(), MESSAGE_CHARS_MAX) }
    }
}

impl fmt::Display for ClusterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exists => f.write_str("an object of this name exists"),
            Self::Conflict => f.write_str("the object was changed concurrently"),
            Self::Absent => f.write_str("there is no such object"),
            Self::Gone => f.write_str("the position of the watch is too old"),
            Self::Later { message, .. } => write!(f, "the API server is not available: {message}"),
            Self::Quota(message) => write!(f, "a quota of the cluster is used up: {message}"),
            Self::Refused(message) => write!(f, "the API server refused the call: {message}"),
        }
    }
}

/// Whether a failure means that the cluster did not respond or refused a call. The same call may succeed later.
pub fn is_of_cluster(failure: &Failure) -> bool {
    failure.broken_rule() == Some(Rule::ClusterCall)
}

impl From<ClusterError> for Failure {
    fn from(error: ClusterError) -> Self {
        Failure::rule(Rule::ClusterCall, error.to_string())
    }
}

impl From<kube::Error> for ClusterError {
    fn from(error: kube::Error) -> Self {
        let kube::Error::Api(status) = error else { return Self::later(error) };
        status_error(
            status.code,
            &status.reason,
            &status.message,
            status.details.as_ref().map(|d| d.retry_after_seconds),
        )
    }
}

/// What a status of the API server means for a caller.
pub(super) fn status_error(code: u16, reason: &str, message: &str, retry_after_s: Option<u32>) -> ClusterError {
    let message = clip(if message.is_empty() { reason } else { message }, MESSAGE_CHARS_MAX);
    match code {
        404 => ClusterError::Absent,
        409 if reason == "AlreadyExists" => ClusterError::Exists,
        409 => ClusterError::Conflict,
        410 => ClusterError::Gone,
        // The account's token is being replaced.
        401 => ClusterError::Later { after: None, message },
        403 if message.contains(QUOTA_USED_UP) => ClusterError::Quota(message),
        408 | 429 | 500.. => {
            let after = retry_after_s.filter(|seconds| *seconds > 0).map(|seconds| Duration::from_secs(seconds.into()));
            ClusterError::Later { after, message }
        }
        // A watch reports an expired position with this reason, and some servers without the code.
        _ if reason == "Expired" || reason == "Gone" => ClusterError::Gone,
        _ => ClusterError::Refused(message),
    }
}

/// One namespace of a cluster.
pub struct Cluster {
    client: Client,
    namespace: String,
    deadline: Duration,
    calls: Mutex<CallCounts>,
    /// When the API server last failed to respond, or ended a watch with an error.
    unavailable_at: Mutex<Option<Instant>>,
}

/// Calls by verb and resource.
pub type CallCounts = BTreeMap<(&'static str, &'static str), u64>;

impl Cluster {
    /// Reads where the cluster is and how to authenticate. Connects to nothing.
    pub async fn open(section: &KubernetesSection, environment: &Environment) -> Result<Self, Failure> {
        // If the process has already chosen a provider, that one stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut config = read_config(section, environment).await?;
        let deadline = Duration::from_millis(section.request_timeout_ms);
        config.connect_timeout = Some(deadline);
        config.write_timeout = Some(deadline);
        // The launcher repeats calls itself: it knows which of them are still wanted.
        config.default_retry = false;
        let namespace = section.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        let client = Client::try_from(config).map_err(|error| unusable(&error))?;
        Ok(Self { client, namespace, deadline, calls: Mutex::default(), unavailable_at: Mutex::default() })
    }

    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// How often this server has called the API server, failed calls included.
    pub fn calls(&self) -> CallCounts {
        self.calls.lock().clone()
    }

    /// Whether the API server was away a short time ago, so that a refused call may be granted soon.
    pub fn has_recovered_lately(&self) -> bool {
        self.unavailable_at.lock().is_some_and(|at| at.elapsed() <= RECOVERY)
    }

    pub(super) fn note_unavailable(&self) {
        *self.unavailable_at.lock() = Some(Instant::now());
    }

    pub async fn create_job(&self, job: &Job) -> Result<Job, ClusterError> {
        self.call(Right::CreateJobs, async { self.jobs().create(&PostParams::default(), job).await }).await
    }

    /// `None` if there is no such Job.
    pub async fn get_job(&self, name: &str) -> Result<Option<Job>, ClusterError> {
        self.call(Right::GetJobs, async { self.jobs().get_opt(name).await }).await
    }

    /// Deletes this Job and no other one of the same name, with its pod and its Secret.
    pub async fn delete_job(&self, name: &str, uid: &str) -> Result<(), ClusterError> {
        let preconditions = Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
        let params = DeleteParams::background().preconditions(preconditions);
        match self.call(Right::DeleteJobs, async { self.jobs().delete(name, &params).await }).await {
            // Another server was faster, or the cluster itself.
            Ok(_) | Err(ClusterError::Absent | ClusterError::Conflict) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The pods of a Job: one, unless the cluster replaces it.
    pub async fn pods_of(&self, job_name: &str) -> Result<Vec<Pod>, ClusterError> {
        let params = ListParams::default().labels(&format!("{JOB_NAME_LABEL}={job_name}")).limit(PAGE_OBJECTS_MAX);
        let pods = self.api::<Pod>();
        Ok(self.call(Right::ListPods, async { pods.list(&params).await }).await?.items)
    }

    pub async fn create_secret(&self, secret: &Secret) -> Result<(), ClusterError> {
        let params = PostParams::default();
        self.call(Right::CreateSecrets, async { self.secrets().create(&params, secret).await }).await.map(drop)
    }

    /// `None` if there is no such Secret.
    pub async fn get_secret(&self, name: &str) -> Result<Option<Secret>, ClusterError> {
        self.call(Right::GetSecrets, async { self.secrets().get_opt(name).await }).await
    }

    /// Whether there is such a Secret. Its values are not sent to the server.
    pub async fn has_secret(&self, name: &str) -> Result<bool, ClusterError> {
        let found = self.call(Right::GetSecrets, async { self.secrets().get_metadata_opt(name).await }).await?;
        Ok(found.is_some())
    }

    /// Replaces a Secret that still has the version of `secret`. Otherwise that is a conflict.
    pub async fn replace_secret(&self, name: &str, secret: &Secret) -> Result<(), ClusterError> {
        let params = PostParams::default();
        self.call(Right::UpdateSecrets, async { self.secrets().replace(name, &params, secret).await }).await.map(drop)
    }

    /// Idempotent.
    pub async fn delete_secret(&self, name: &str) -> Result<(), ClusterError> {
        let params = DeleteParams::default();
        match self.call(Right::DeleteSecrets, async { self.secrets().delete(name, &params).await }).await {
            Ok(_) | Err(ClusterError::Absent) => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub async fn create_claim(&self, claim: &PersistentVolumeClaim) -> Result<PersistentVolumeClaim, ClusterError> {
        let claims = self.api::<PersistentVolumeClaim>();
        let create = async { claims.create(&PostParams::default(), claim).await };
        self.call(Right::CreateClaims, create).await
    }

    /// `None` if there is no such claim.
    pub async fn get_claim(&self, name: &str) -> Result<Option<PersistentVolumeClaim>, ClusterError> {
        let claims = self.api::<PersistentVolumeClaim>();
        self.call(Right::GetClaims, async { claims.get_opt(name).await }).await
    }

    /// Deletes a claim, with its volume if its class prescribes that. A pod that uses it keeps it until the pod has ended.
    pub async fn delete_claim(&self, name: &str) -> Result<(), ClusterError> {
        let claims = self.api::<PersistentVolumeClaim>();
        let delete = async { claims.delete(name, &DeleteParams::background()).await };
        match self.call(Right::DeleteClaims, delete).await {
            // Another server was faster.
            Ok(_) | Err(ClusterError::Absent | ClusterError::Conflict) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// The end of a pod's log, with the time of each line, of about this many bytes.
    pub async fn pod_log(&self, pod: &str, mut params: LogParams) -> Result<String, ClusterError> {
        params.timestamps = true;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.namespace);
        self.call(Right::GetPodLogs, async { pods.logs(pod, &params).await }).await
    }

    /// One page of the objects of this server.
    pub(super) async fn list<K: Watched>(&self, next: Option<&str>) -> Result<ObjectList<K>, ClusterError> {
        let mut params = ListParams::default().labels(SELECTOR).limit(PAGE_OBJECTS_MAX);
        if let Some(next) = next {
            params = params.continue_token(next);
        }
        let api = self.api::<K>();
        self.call(K::LIST, async { api.list(&params).await }).await
    }

    /// The changes of the objects of this server since a version.
    pub(super) async fn watch<K: Watched>(
        &self,
        version: &str,
    ) -> Result<impl Stream<Item = Result<WatchEvent<K>, kube::Error>> + use<K>, ClusterError> {
        let params = WatchParams::default().labels(SELECTOR).timeout(WATCH_S);
        let api = self.api::<K>();
        self.call(K::WATCH, async { api.watch(&params, version).await }).await
    }

    fn jobs(&self) -> Api<Job> {
        self.api()
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    fn api<K: Watched>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// For calls that are not the server's own.
    pub(super) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Makes a call that needs this right.
    pub(super) async fn call<T>(
        &self,
        right: Right,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ClusterError> {
        self.call_ungranted(right.verb(), right.resource(), call).await
    }

    /// Makes a call that the role of a server does not grant. Only the doctor makes such calls: any account may review its own
    /// access, and the doctor continues without what it may not read.
    pub(super) async fn call_ungranted<T>(
        &self,
        verb: &'static str,
        resource: &'static str,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ClusterError> {
        tracing::trace!(verb, resource, "calling the API server");
        *self.calls.lock().entry((verb, resource)).or_default() += 1;
        let response = match timeout(self.deadline, call).await {
            Ok(response) => response.map_err(ClusterError::from),
            Err(_) => Err(ClusterError::later("it did not respond in time")),
        };
        if matches!(response, Err(ClusterError::Later { .. })) {
            self.note_unavailable();
        }
        response
    }
}

/// Objects that this server watches.
pub(super) trait Watched:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + fmt::Debug + DeserializeOwned + Send + 'static
{
    const LIST: Right;
    const WATCH: Right;
}

impl Watched for Job {
    const LIST: Right = Right::ListJobs;
    const WATCH: Right = Right::WatchJobs;
}

impl Watched for Pod {
    const LIST: Right = Right::ListPods;
    const WATCH: Right = Right::WatchPods;
}

impl Watched for PersistentVolumeClaim {
    const LIST: Right = Right::ListClaims;
    const WATCH: Right = Right::WatchClaims;
}

/// The kubeconfig that the settings or the environment name, or the account of this server's own pod, or the file in the home.
/// The variables are not read from the process, because they may have been removed from it.
async fn read_config(section: &KubernetesSection, environment: &Environment) -> Result<kube::Config, Failure> {
    let of_variable = || environment.get("KUBECONFIG").and_then(|paths| std::env::split_paths(&paths).next());
    let named = section.kubeconfig.clone().or_else(of_variable).filter(|path| !path.as_os_str().is_empty());
    if named.is_none() && Path::new(ACCOUNT_TOKEN).exists() {
        let mut config = kube::Config::incluster_dns().map_err(|error| unusable(&error))?;
        let part = |name: &str| environment.text(name);
        if let (Some(host), Some(port)) = (part("KUBERNETES_SERVICE_HOST"), part("KUBERNETES_SERVICE_PORT")) {
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            config.cluster_url = format!("https://{host}:{port}").parse().map_err(|error| unusable(&error))?;
        }
        return Ok(config);
    }
    let in_home = || Some(PathBuf::from(environment.get("HOME")?).join(".kube/config"));
    let path = named.or_else(in_home).ok_or_else(|| {
        Failure::invalid(Rule::ClusterConfig, "there is no kubeconfig: set kubernetes.kubeconfig or KUBECONFIG")
    })?;
    let file = Kubeconfig::read_from(&path).map_err(|error| unreadable(&error, &path))?;
    let options = KubeConfigOptions { context: section.context.clone(), ..KubeConfigOptions::default() };
    kube::Config::from_custom_kubeconfig(file, &options).await.map_err(|error| unusable(&error))
}

/// A parser's message quotes the file, which has tokens and keys.
fn unreadable(error: &KubeconfigError, path: &Path) -> Failure {
    match error {
        KubeconfigError::Parse(_) => unusable(&format_args!("{} is not a kubeconfig in valid YAML", path.display())),
        _ => unusable(error),
    }
}

fn unusable(error: &dyn fmt::Display) -> Failure {
    let message = format!("the cluster's settings cannot be used: {}", clip(&error.to_string(), MESSAGE_CHARS_MAX));
    Failure::invalid(Rule::ClusterConfig, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_kubeconfig_that_cannot_be_read_is_not_quoted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        std::fs::write(&path, "users: [{name: sa, user: {token: pl4nted}}]]").unwrap();
        let section = KubernetesSection { kubeconfig: Some(path), ..KubernetesSection::default() };
        let failure = read_config(&section, &Environment::default()).await.unwrap_err();
        assert!(failure.message.contains("is not a kubeconfig in valid YAML"), "{}", failure.message);
        assert!(!failure.message.contains("pl4nted"), "{}", failure.message);
    }

    #[test]
    fn a_status_decides_whether_the_call_is_repeated() {
        let of = |code, reason: &str| status_error(code, reason, "why", None);
        assert_eq!(of(409, "AlreadyExists"), ClusterError::Exists);
        assert_eq!(of(409, "Conflict"), ClusterError::Conflict, "a quota that is being changed, for example");
        assert_eq!(of(401, "Unauthorized"), ClusterError::later("why"));
        let quota = "jobs.batch \"n\" is forbidden: exceeded quota: jobs, requested: count/jobs.batch=1";
        assert_eq!(status_error(403, "Forbidden", quota, None), ClusterError::Quota(quota.into()));
        assert_eq!(of(404, "NotFound"), ClusterError::Absent);
        assert_eq!(of(410, "Expired"), ClusterError::Gone);
        assert_eq!(of(0, "Expired"), ClusterError::Gone);
        assert_eq!(of(403, "Forbidden"), ClusterError::Refused("why".into()));
        assert_eq!(of(422, "Invalid"), ClusterError::Refused("why".into()));
        assert_eq!(of(503, ""), ClusterError::later("why"));
        let throttled = status_error(429, "TooManyRequests", "", Some(7));
        assert_eq!(
            throttled,
            ClusterError::Later { after: Some(Duration::from_secs(7)), message: "TooManyRequests".into() }
        );
    }
}
