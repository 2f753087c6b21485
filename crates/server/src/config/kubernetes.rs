//! The cluster whose Jobs are runners, with `runner.launcher = "kubernetes"`.

use std::{collections::BTreeMap, path::PathBuf};

use ostler_protocol::{
    Failure, Rule,
    kernel::runner_jobs::{JobCleanup, JobRetention, Launcher, is_cluster_name_part},
};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{
    execution::RunnerSection,
    places::KEY,
    values::{MS_MAX, check_range},
};

/// The resources of profiles without their own entry.
const OTHER_PROFILES: &str = "default";
/// Longest name of a cluster's object.
const NAME_CHARS_MAX: usize = 63;

#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KubernetesSection {
    /// The kubeconfig file; by default `KUBECONFIG`, or else the account of the server's own pod, or else
    /// `~/.kube/config`.
    #[schema(value_type = Option<String>)]
    pub kubeconfig: Option<PathBuf>,
    /// The context of the kubeconfig; by default its current one.
    pub context: Option<String>,
    /// The namespace of Jobs; by default that of the context, or of the server's own pod.
    pub namespace: Option<String>,
    /// The image of runners, pinned by its digest or at least a tag. Required for `runner.launcher = "kubernetes"`.
    pub image: Option<String>,
    /// Repositories of images that a runner job may name, beside that of `image`. Such an image gets the credentials of
    /// its run.
    pub image_repositories: Vec<String>,
    /// How the names of Jobs begin. Installations that share a namespace need different ones.
    pub job_prefix: String,
    /// The service account of pods, which get no token of it.
    pub service_account: Option<String>,
    /// Secrets with credentials for the registry of `image`.
    pub image_pull_secrets: Vec<String>,
    /// Labels that a node must have to get pods of runners. In the environment a JSON object.
    pub node_selector: BTreeMap<String, String>,
    /// Taints of nodes that pods of runners tolerate, each with `key`, `operator`, `value` and `effect`.
    pub tolerations: Vec<PodToleration>,
    /// The URL under which pods reach this server. Required for `runner.launcher = "kubernetes"`.
    pub server_url: Option<String>,
    /// The certificate authority (PEM) that pods trust for `server_url`, beside those of their image.
    #[schema(value_type = Option<String>)]
    pub ca_file: Option<PathBuf>,
    /// Finished Jobs to keep. Above this, the oldest are deleted, also to make room for Jobs that are about to be created.
    pub finished_jobs_max: u32,
    /// The cluster deletes a Job this long after it has finished, in seconds.
    pub finished_ttl_s: u32,
    /// With this many unfinished Jobs, further ones are refused.
    pub active_jobs_max: u32,
    /// Time limit of each call of the API server.
    pub request_timeout_ms: u64,
    /// How often every started Job is compared with the cluster, whatever the watches have reported.
    pub resync_ms: u64,
    /// A pod that does not run after this long is deleted, and the start of its job counts as failed. So does a start that still exceeds a quota.
    pub start_timeout_ms: u64,
    /// How long a pod may take to end after SIGTERM, in seconds.
    pub grace_s: u32,
    /// Time limit of a Job, in seconds; if unset, none.
    pub deadline_s: Option<u32>,
    /// The user and group that runners have in their pods. Not 0.
    pub user_id: u32,
    /// The storage class of volume claims with the storage of sessions; by default the cluster's own default.
    pub storage_class: Option<String>,
    /// How the names of volume claims begin. Installations that share a namespace need different ones.
    pub storage_prefix: String,
    /// The size of a volume claim, in the cluster's notation.
    pub storage_size: String,
    /// Requests and limits of pods by profile: `[kubernetes.resources.NAME]`, in the environment a JSON object. The name
    /// `default` means all other profiles.
    pub resources: BTreeMap<String, PodResources>,
}

/// A taint that pods tolerate, as the cluster defines it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PodToleration {
    /// All taints if unset, with the operator `Exists`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    #[serde(default)]
    pub operator: TolerationOperator,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// All effects if unset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect: Option<TaintEffect>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum TolerationOperator {
    #[default]
    Equal,
    Exists,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub enum TaintEffect {
    NoSchedule,
    PreferNoSchedule,
    NoExecute,
}

/// The resources of a pod, in the cluster's notation: `500m`, `2`, `512Mi`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PodResources {
    pub cpu_request: String,
    pub cpu_limit: Option<String>,
    pub memory_request: String,
    pub memory_limit: Option<String>,
    /// Space for the workspace, the home and temporary files, each.
    pub disk_limit: String,
}

impl Default for PodResources {
    fn default() -> Self {
        Self {
            cpu_request: "100m".into(),
            cpu_limit: Some("2".into()),
            memory_request: "256Mi".into(),
            memory_limit: Some("2Gi".into()),
            disk_limit: "4Gi".into(),
        }
    }
}

impl PodResources {
    fn quantities(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let limits = [("cpu_limit", &self.cpu_limit), ("memory_limit", &self.memory_limit)];
        let limits = limits.into_iter().filter_map(|(key, limit)| Some((key, limit.as_deref()?)));
        let others = [
            ("cpu_request", self.cpu_request.as_str()),
            ("memory_request", &self.memory_request),
            ("disk_limit", &self.disk_limit),
        ];
        others.into_iter().chain(limits)
    }
}

/// Whether the cluster reads the text as a quantity: a number with a suffix of thousands or of powers of two, or with a power of
/// ten such as `e3`. `E` alone is a suffix.
fn is_quantity(text: &str) -> bool {
    const SUFFIXES: [&str; 16] = ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let end = text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let is_power = suffix.strip_prefix(['e', 'E']).is_some_and(|power| power.parse::<i8>().is_ok());
    number.parse::<f64>().is_ok() && (is_power || SUFFIXES.contains(&suffix))
}

fn is_http_url(text: &str) -> bool {
    text.parse::<http::Uri>()
        .is_ok_and(|url| matches!(url.scheme_str(), Some("http" | "https")) && url.host().is_some())
}

/// A colon before the last slash is that of the registry's port.
fn has_tag_or_digest(image: &str) -> bool {
    image.rsplit('/').next().is_some_and(|name| name.contains([':', '@']))
}

impl Default for KubernetesSection {
    fn default() -> Self {
        Self {
            kubeconfig: None,
            context: None,
            namespace: None,
            image: None,
            image_repositories: vec![],
            job_prefix: "ostler-run".into(),
            service_account: None,
            image_pull_secrets: vec![],
            node_selector: BTreeMap::new(),
            tolerations: vec![],
            server_url: None,
            ca_file: None,
            finished_jobs_max: 100,
            finished_ttl_s: 3_600,
            active_jobs_max: 500,
            request_timeout_ms: 10_000,
            resync_ms: 5_000,
            start_timeout_ms: 600_000,
            grace_s: 30,
            deadline_s: None,
            user_id: 65_532,
            storage_class: None,
            storage_prefix: "ostler-session".into(),
            storage_size: "1Gi".into(),
            resources: BTreeMap::new(),
        }
    }
}

impl KubernetesSection {
    /// The resources of pods of a profile.
    pub fn resources_of(&self, profile: &str) -> PodResources {
        self.resources.get(profile).or_else(|| self.resources.get(OTHER_PROFILES)).cloned().unwrap_or_default()
    }

    /// How long Jobs are kept, as it is reported with each.
    pub fn retention(&self, runner: &RunnerSection) -> JobRetention {
        JobRetention {
            ttl_seconds_after_finished: self.finished_ttl_s,
            ttl_policy: "ttl-after-finished".into(),
            runner_idle_timeout_ms: runner.idle_ms,
            pre_create_cleanup: JobCleanup {
                finished_jobs_max: self.finished_jobs_max,
                active_jobs_max: self.active_jobs_max,
            },
        }
    }

    pub(super) fn problems(&self, runner: &RunnerSection) -> Vec<Failure> {
        let problem = |key: &str, message: String| {
            Failure::invalid(Rule::Config, message).detail(KEY, format!("kubernetes.{key}"))
        };
        let ranges = [
            ("kubernetes.active_jobs_max", u64::from(self.active_jobs_max), 1..=100_000),
            ("kubernetes.finished_jobs_max", u64::from(self.finished_jobs_max), 1..=100_000),
            ("kubernetes.finished_ttl_s", u64::from(self.finished_ttl_s), 0..=31_536_000),
            ("kubernetes.request_timeout_ms", self.request_timeout_ms, 100..=600_000),
            ("kubernetes.resync_ms", self.resync_ms, 10..=600_000),
            ("kubernetes.start_timeout_ms", self.start_timeout_ms, 1_000..=MS_MAX),
            ("kubernetes.grace_s", u64::from(self.grace_s), 1..=3_600),
            ("kubernetes.deadline_s", self.deadline_s.unwrap_or(1).into(), 1..=31_536_000),
            ("kubernetes.user_id", self.user_id.into(), 1..=4_294_967_294),
        ];
        let mut problems: Vec<_> =
            ranges.into_iter().filter_map(|(key, value, range)| check_range(key, value, range).err()).collect();
        for (key, prefix) in [("job_prefix", &self.job_prefix), ("storage_prefix", &self.storage_prefix)] {
            if !is_cluster_name_part(prefix) {
                let message = "must be 1 to 20 lower-case letters, digits and dashes, a letter first";
                problems.push(problem(key, format!("kubernetes.{key} {message}")));
            }
        }
        let names = [
            ("namespace", &self.namespace),
            ("service_account", &self.service_account),
            ("storage_class", &self.storage_class),
        ];
        let names = names.into_iter().flat_map(|(key, name)| name.iter().map(move |name| (key, name)));
        let secrets = self.image_pull_secrets.iter().map(|name| ("image_pull_secrets", name));
        for (key, name) in names.chain(secrets) {
            let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
            if !(1..=NAME_CHARS_MAX).contains(&name.len()) || !name.bytes().all(is_plain) {
                problems.push(problem(key, format!("kubernetes.{key} is not the name of an object of a cluster")));
            }
        }
        for toleration in &self.tolerations {
            let message = match (&toleration.key, toleration.operator, &toleration.value) {
                (None, TolerationOperator::Equal, _) => "needs a key, or the operator Exists",
                (_, TolerationOperator::Exists, Some(_)) => "with the operator Exists has no value",
                _ => continue,
            };
            problems.push(problem("tolerations", format!("an entry of kubernetes.tolerations {message}")));
        }
        if self.server_url.as_deref().is_some_and(|url| !url.is_empty() && !is_http_url(url)) {
            problems.push(problem("server_url", "kubernetes.server_url must be an http or https URL".into()));
        }
        if self.image.as_deref().is_some_and(|image| !image.is_empty() && !has_tag_or_digest(image)) {
            problems.push(problem("image", "kubernetes.image needs a tag or, better, a digest".into()));
        }
        let quantities = self.resources.iter().flat_map(|(profile, resources)| {
            resources.quantities().map(move |(key, quantity)| (format!("resources.{profile}.{key}"), quantity))
        });
        for (key, quantity) in quantities.chain([("storage_size".to_owned(), self.storage_size.as_str())]) {
            if !is_quantity(quantity) {
                problems.push(problem(&key, format!("kubernetes.{key} is not a quantity such as 500m, 2 or 512Mi")));
            }
        }
        if runner.launcher == Launcher::Kubernetes {
            problems.extend(self.missing().map(|key| problem(key, format!("kubernetes.{key} must be set"))));
        }
        problems
    }

    /// The keys without which no Job can be created.
    fn missing(&self) -> impl Iterator<Item = &'static str> {
        let is_empty = |text: &Option<String>| text.as_ref().is_none_or(String::is_empty);
        let keys = [("image", is_empty(&self.image)), ("server_url", is_empty(&self.server_url))];
        keys.into_iter().filter(|(_, is_missing)| *is_missing).map(|(key, _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(change: impl FnOnce(&mut KubernetesSection)) -> Vec<String> {
        let mut section = KubernetesSection::default();
        change(&mut section);
        section.problems(&RunnerSection::default()).into_iter().map(|failure| failure.message).collect()
    }

    #[test]
    fn settings_that_no_job_could_be_created_with_are_refused() {
        assert_eq!(problems(|_| {}), [""; 0]);
        assert!(problems(|section| section.user_id = 0)[0].contains("kubernetes.user_id"));
        assert!(problems(|section| section.job_prefix = "Runs".into())[0].contains("kubernetes.job_prefix"));
        assert!(problems(|section| section.namespace = Some("a/b".into()))[0].contains("kubernetes.namespace"));
        assert!(problems(|section| section.storage_prefix = "a_".into())[0].contains("kubernetes.storage_prefix"));
        assert!(problems(|section| section.storage_class = Some("".into()))[0].contains("kubernetes.storage_class"));
        assert_eq!(problems(|section| section.storage_prefix = "agentrun-v01-session".into()), [""; 0]);
        let pull = problems(|section| section.image_pull_secrets = vec!["my-registry".into(), "My".into()]);
        assert!(pull.len() == 1 && pull[0].contains("kubernetes.image_pull_secrets"), "{pull:?}");
        let exists = PodToleration { operator: TolerationOperator::Exists, ..PodToleration::default() };
        let both = PodToleration { value: Some("agents".into()), ..exists.clone() };
        let tolerations = problems(|section| section.tolerations = vec![exists, PodToleration::default(), both]);
        assert_eq!(tolerations.len(), 2, "{tolerations:?}");
        for size in ["1Gi", "500m", "2", "1.5G", "5n", "100u", "1E", "1Ei", "1e9", "1E6", "1500e-3"] {
            assert_eq!(problems(|section| section.storage_size = size.into()), [""; 0], "{size}");
        }
        for size in ["", "lots", "1gi", "-1", "1 Gi", "1e", "e9", "1e1.5", "1e9Ki", "1U"] {
            assert!(problems(|section| section.storage_size = size.into())[0].contains("storage_size"), "{size}");
        }
        let many = PodResources { cpu_request: "many".into(), ..PodResources::default() };
        let resources = problems(|section| section.resources = BTreeMap::from([("codex".into(), many)]));
        assert!(resources[0].contains("kubernetes.resources.codex.cpu_request"), "{resources:?}");
        assert!(problems(|section| section.server_url = Some("nope".into()))[0].contains("kubernetes.server_url"));
        for (image, is_good) in [("r.example:5000/ostler", false), ("ostler", false), ("r.example:5000/ostler:1", true)]
        {
            assert_eq!(problems(|section| section.image = Some(image.into())).is_empty(), is_good, "{image}");
        }
        let runner = RunnerSection { launcher: Launcher::Kubernetes, ..RunnerSection::default() };
        assert_eq!(KubernetesSection::default().problems(&runner).len(), 2, "an image and a URL are needed");
    }

    #[test]
    fn a_profile_has_its_own_resources_or_those_of_all_others() {
        let large = PodResources { cpu_request: "4".into(), ..PodResources::default() };
        let other = PodResources { cpu_request: "1".into(), ..PodResources::default() };
        let resources = BTreeMap::from([("codex".to_owned(), large.clone()), ("default".to_owned(), other.clone())]);
        let section = KubernetesSection { resources, ..KubernetesSection::default() };
        assert_eq!((section.resources_of("codex"), section.resources_of("scripted")), (large, other));
        assert_eq!(KubernetesSection::default().resources_of("x"), PodResources::default());
    }
}
