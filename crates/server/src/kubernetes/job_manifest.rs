//! The manifests of a runner's Job and of its Secret. Pure: the same order gives the same manifests on every server.

use std::collections::BTreeMap;

use k8s_openapi::api::{batch::v1::Job, core::v1::Secret};
use ostler_protocol::{
    Failure,
    ids::{RunId, RunnerJobId, SessionId},
    kernel::session_storage::CODEX_ROLLOUT_SUBDIR,
};
use serde_json::{Map, Value, json};

use crate::config::{KubernetesSection, PodResources};

/// Label of everything that this server creates.
pub(super) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "ostler");
/// The objects of this server.
pub(super) const SELECTOR: &str = "app.kubernetes.io/managed-by=ostler";
/// Labels with the ids of the runner job, its run and its session.
pub const JOB_LABEL: &str = "ostler.dev/job";
const RUN_LABEL: &str = "ostler.dev/run";
pub(crate) const SESSION_LABEL: &str = "ostler.dev/session";
/// The label by which the cluster names the Job of a pod.
pub const JOB_NAME_LABEL: &str = "batch.kubernetes.io/job-name";
/// The container of the runner.
pub const CONTAINER: &str = "runner";

/// Directories of the container. All else is read-only.
const SECRETS_DIR: &str = "/var/run/ostler";
/// Folders of tools, by name.
const TOOLS_DIR: &str = "/var/run/ostler-tools";
const HOME_DIR: &str = "/home/agent";
const WORKSPACE_DIR: &str = "/workspace";
const TERMINATION_LOG: &str = "/dev/termination-log";
/// Keys of the Secret.
const TOKEN_KEY: &str = "token";
const BACKEND_KEY: &str = "backend";
const CA_KEY: &str = "ca.crt";
/// Seconds of the pod's grace period that remain for the container's end after the runner has handed back its run.
const GRACE_REST_S: u32 = 5;

/// What a Job is created for.
#[derive(Clone, Debug)]
pub struct JobOrder<'a> {
    /// The name of the Job and of its Secret.
    pub name: String,
    pub runner_job_id: RunnerJobId,
    pub run_id: RunId,
    pub session: SessionId,
    pub runner_id: &'a str,
    pub image: &'a str,
    pub server_url: &'a str,
    pub resources: PodResources,
    pub lease_ms: i64,
    pub idle_ms: u64,
    /// Whether pods get a certificate authority of ours.
    pub has_ca: bool,
    /// Files of the backend's home, by their paths in it. They are in the Secret.
    pub home_files: Vec<String>,
    /// Secrets of tools that the backend may use. The server does not read them.
    pub tools: Vec<ToolMount>,
    /// A volume claim with the session's storage, and where it is mounted.
    pub storage: Option<ClaimedStorage>,
    pub section: &'a KubernetesSection,
}

/// The Secret of a tool's credential, which a pod has as files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolMount {
    pub tool: String,
    pub secret_name: String,
    /// All keys if empty.
    pub keys: Vec<String>,
}

/// A volume claim that is mounted into a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedStorage {
    pub claim_name: String,
    pub namespace: String,
    pub mount_path: String,
}

/// What the Secret of a Job holds. Only the runner of the Job reads it.
pub struct JobSecrets<'a> {
    pub token: &'a str,
    /// The environment of the backend, as JSON.
    pub backend: &'a str,
    pub ca: Option<&'a str>,
    /// Files of the backend's home: path and content.
    pub home: BTreeMap<&'a str, &'a str>,
}

impl JobOrder<'_> {
    pub fn job(&self) -> Result<Job, Failure> {
        serde_json::from_value(self.job_manifest()).map_err(Failure::internal)
    }

    /// The Secret of a Job that exists: the Job owns it, and it is deleted with the Job.
    pub fn secret(&self, job_uid: &str, secrets: &JobSecrets<'_>) -> Result<Secret, Failure> {
        serde_json::from_value(self.secret_manifest(job_uid, secrets)).map_err(Failure::internal)
    }

    fn labels(&self) -> Value {
        let mut labels = Map::new();
        labels.insert(MANAGED_BY.0.into(), MANAGED_BY.1.into());
        labels.insert("app.kubernetes.io/component".into(), CONTAINER.into());
        labels.insert(JOB_LABEL.into(), self.runner_job_id.to_string().into());
        labels.insert(RUN_LABEL.into(), self.run_id.to_string().into());
        labels.insert(SESSION_LABEL.into(), self.session.to_string().into());
        Value::Object(labels)
    }

    fn job_manifest(&self) -> Value {
        let section = self.section;
        let mut spec = json!({
            // The kernel decides whether a runner is started again; the cluster never does.
            "backoffLimit": 0,
            "completions": 1,
            "parallelism": 1,
            "podReplacementPolicy": "Failed",
            "ttlSecondsAfterFinished": section.finished_ttl_s,
            "template": {"metadata": {"labels": self.labels()}, "spec": self.pod_spec()},
        });
        if let Some(seconds) = section.deadline_s {
            spec["activeDeadlineSeconds"] = seconds.into();
        }
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": self.name, "labels": self.labels()},
            "spec": spec,
        })
    }

    fn pod_spec(&self) -> Value {
        let user = self.section.user_id;
        let mut spec = json!({
            "restartPolicy": "Never",
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "terminationGracePeriodSeconds": self.section.grace_s,
            "securityContext": {
                "runAsNonRoot": true,
                "runAsUser": user,
                "runAsGroup": user,
                "fsGroup": user,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [self.container()],
            "volumes": self.volumes(),
        });
        if let Some(account) = &self.section.service_account {
            spec["serviceAccountName"] = account.as_str().into();
        }
        let KubernetesSection { image_pull_secrets, node_selector, tolerations, .. } = self.section;
        if !image_pull_secrets.is_empty() {
            spec["imagePullSecrets"] = image_pull_secrets.iter().map(|name| json!({"name": name})).collect();
        }
        if !node_selector.is_empty() {
            spec["nodeSelector"] = json!(node_selector);
        }
        if !tolerations.is_empty() {
            spec["tolerations"] = json!(tolerations);
        }
        spec
    }

    fn container(&self) -> Value {
        json!({
            "name": CONTAINER,
            "image": self.image,
            "args": ["runner"],
            "env": self.variables(),
            "workingDir": WORKSPACE_DIR,
            "terminationMessagePath": TERMINATION_LOG,
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": self.resources(),
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "capabilities": {"drop": ["ALL"]},
                "privileged": false,
                "readOnlyRootFilesystem": true,
                "runAsNonRoot": true,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumeMounts": self.mounts(),
        })
    }

    fn resources(&self) -> Value {
        let PodResources { cpu_request, cpu_limit, memory_request, memory_limit, .. } = &self.resources;
        let limits = [("cpu", cpu_limit), ("memory", memory_limit)];
        let limits = limits.into_iter().filter_map(|(name, limit)| Some((name.to_owned(), json!(limit.as_ref()?))));
        json!({
            "requests": {"cpu": cpu_request, "memory": memory_request},
            "limits": Value::Object(limits.collect()),
        })
    }

    /// The variables by which the runner is started. Where the published run manager has a name, that one is used.
    fn variables(&self) -> Value {
        let grace_ms = u64::from(self.section.grace_s.saturating_sub(GRACE_REST_S).max(1)) * 1_000;
        let plain = [
            ("AGENTRUN_MANAGER_URL", self.server_url.to_owned()),
            ("AGENTRUN_RUN_ID", self.run_id.to_string()),
            ("AGENTRUN_RUNNER_ID", self.runner_id.to_owned()),
            ("AGENTRUN_RUNNER_PLACEMENT", "kubernetes-job".to_owned()),
            ("AGENTRUN_RUNNER_LEASE_MS", self.lease_ms.to_string()),
            ("AGENTRUN_RUNNER_IDLE_TIMEOUT_MS", self.idle_ms.to_string()),
            ("OSTLER_RUNNER_GRACE_MS", grace_ms.to_string()),
            ("OSTLER_RUNNER_HOME", HOME_DIR.to_owned()),
            // In the volume, whose own directory belongs to root: git trusts no repository of another user.
            ("OSTLER_RUNNER_WORKSPACE", format!("{WORKSPACE_DIR}/work")),
            ("OSTLER_RUNNER_REPORT_FILE", TERMINATION_LOG.to_owned()),
            ("HOME", HOME_DIR.to_owned()),
            ("TMPDIR", "/tmp".to_owned()),
        ];
        let mut variables: Vec<_> =
            plain.into_iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        let of_secret = |name: &str, key: &str| json!({"name": name, "valueFrom": {"secretKeyRef": {"name": self.name, "key": key}}});
        variables.push(of_secret("OSTLER_TOKEN", TOKEN_KEY));
        variables.push(of_secret("OSTLER_RUNNER_SECRET_BACKEND", BACKEND_KEY));
        if self.has_ca {
            variables.push(json!({"name": "OSTLER_CA_FILE", "value": format!("{SECRETS_DIR}/{CA_KEY}")}));
        }
        if !self.home_files.is_empty() {
            variables.push(json!({"name": "OSTLER_RUNNER_HOME_SOURCE", "value": format!("{SECRETS_DIR}/home")}));
        }
        if let Some(storage) = &self.storage {
            let named = [
                ("AGENTRUN_SESSION_PVC_NAME", &storage.claim_name),
                ("AGENTRUN_SESSION_PVC_NAMESPACE", &storage.namespace),
                ("AGENTRUN_SESSION_PVC_MOUNT_PATH", &storage.mount_path),
            ];
            variables.extend(named.map(|(name, value)| json!({"name": name, "value": value})));
            variables.push(json!({"name": "AGENTRUN_CODEX_ROLLOUT_SUBDIR", "value": CODEX_ROLLOUT_SUBDIR}));
        }
        Value::Array(variables)
    }

    fn mounts(&self) -> Value {
        let mut mounts = vec![
            json!({"name": "home", "mountPath": HOME_DIR}),
            json!({"name": "workspace", "mountPath": WORKSPACE_DIR}),
            json!({"name": "tmp", "mountPath": "/tmp"}),
        ];
        if self.has_files() {
            mounts.push(json!({"name": "secrets", "mountPath": SECRETS_DIR, "readOnly": true}));
        }
        mounts.extend(self.tools.iter().enumerate().map(|(number, tool)| {
            json!({"name": tool_volume(number), "mountPath": format!("{TOOLS_DIR}/{}", tool.tool), "readOnly": true})
        }));
        if let Some(storage) = &self.storage {
            mounts.push(json!({"name": "storage", "mountPath": storage.mount_path}));
        }
        Value::Array(mounts)
    }

    fn volumes(&self) -> Value {
        let scratch = |name: &str| json!({"name": name, "emptyDir": {"sizeLimit": self.resources.disk_limit}});
        let mut volumes = vec![scratch("home"), scratch("workspace"), scratch("tmp")];
        if self.has_files() {
            let ca = self.has_ca.then(|| json!({"key": CA_KEY, "path": CA_KEY}));
            let files = self.home_files.iter().enumerate();
            let files = files.map(|(number, path)| json!({"key": home_key(number), "path": format!("home/{path}")}));
            let items: Vec<_> = ca.into_iter().chain(files).collect();
            let secret = json!({"secretName": self.name, "defaultMode": 0o440, "items": items});
            volumes.push(json!({"name": "secrets", "secret": secret}));
        }
        volumes.extend(self.tools.iter().enumerate().map(|(number, tool)| {
            let mut secret = json!({"secretName": tool.secret_name, "defaultMode": 0o440});
            if !tool.keys.is_empty() {
                secret["items"] = tool.keys.iter().map(|key| json!({"key": key, "path": key})).collect();
            }
            json!({"name": tool_volume(number), "secret": secret})
        }));
        if let Some(storage) = &self.storage {
            volumes.push(json!({"name": "storage", "persistentVolumeClaim": {"claimName": storage.claim_name}}));
        }
        Value::Array(volumes)
    }

    fn has_files(&self) -> bool {
        self.has_ca || !self.home_files.is_empty()
    }

    fn secret_manifest(&self, job_uid: &str, secrets: &JobSecrets<'_>) -> Value {
        let mut texts = Map::new();
        texts.insert(TOKEN_KEY.into(), secrets.token.into());
        texts.insert(BACKEND_KEY.into(), secrets.backend.into());
        if let Some(ca) = secrets.ca {
            texts.insert(CA_KEY.into(), ca.into());
        }
        for (number, path) in self.home_files.iter().enumerate() {
            texts.insert(home_key(number), secrets.home.get(path.as_str()).copied().unwrap_or_default().into());
        }
        let owner = json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": self.name,
            "uid": job_uid,
            "controller": true,
            "blockOwnerDeletion": false,
        });
        json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.name, "labels": self.labels(), "ownerReferences": [owner]},
            "type": "Opaque",
            "immutable": true,
            "stringData": texts,
        })
    }
}

/// The key of a file of the home. A path may have characters that a key may not.
fn home_key(number: usize) -> String {
    format!("home-{number}")
}

/// The name of a tool's volume. The name of a tool may have characters that a volume's may not.
fn tool_volume(number: usize) -> String {
    format!("tool-{number}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{PodToleration, TaintEffect};

    fn section() -> KubernetesSection {
        let effect = Some(TaintEffect::NoSchedule);
        KubernetesSection {
            service_account: Some("runner".into()),
            image_pull_secrets: vec!["registry".into()],
            node_selector: BTreeMap::from([("pool".to_owned(), "agents".to_owned())]),
            tolerations: vec![PodToleration { key: Some("agents".into()), effect, ..PodToleration::default() }],
            deadline_s: Some(60),
            ..Default::default()
        }
    }

    fn order(section: &KubernetesSection) -> JobOrder<'_> {
        JobOrder {
            name: "ostler-run-1".into(),
            runner_job_id: format!("job_{:032x}", 1).parse().unwrap(),
            run_id: format!("run_{:032x}", 2).parse().unwrap(),
            session: SessionId::unset(),
            runner_id: "runner-1",
            image: "registry.example/ostler@sha256:0",
            server_url: "https://ostler.example:4747",
            resources: PodResources { cpu_limit: None, ..PodResources::default() },
            lease_ms: 60_000,
            idle_ms: 1_000,
            has_ca: true,
            home_files: vec!["auth.json".into(), ".q/deep/settings.json".into()],
            tools: vec![],
            storage: None,
            section,
        }
    }

    fn variable(job: &Value, name: &str) -> Value {
        let all = job["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap();
        all.iter().find(|variable| variable["name"] == name).cloned().unwrap_or_default()
    }

    /// A field that the types of the API do not have is lost on the way through them.
    fn assert_kept(manifest: &Value, read: &Value, path: &str) {
        match manifest {
            Value::Object(fields) => {
                fields.iter().for_each(|(name, value)| assert_kept(value, &read[name], &format!("{path}.{name}")));
            }
            Value::Array(items) => {
                items.iter().enumerate().for_each(|(at, item)| assert_kept(item, &read[at], &format!("{path}[{at}]")));
            }
            value => assert_eq!(read, value, "{path}"),
        }
    }

    #[test]
    fn every_field_of_a_manifest_is_one_of_the_api() {
        let section = section();
        let storage = ClaimedStorage { claim_name: "c".into(), namespace: "n".into(), mount_path: "/storage".into() };
        let tool = |keys: &[&str]| ToolMount {
            tool: "github".into(),
            secret_name: "agentrun-v01-tool-github".into(),
            keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        };
        let order = JobOrder { storage: Some(storage), tools: vec![tool(&["token"]), tool(&[])], ..order(&section) };
        assert_kept(&order.job_manifest(), &serde_json::to_value(order.job().unwrap()).unwrap(), "job");
        let home = BTreeMap::from([("auth.json", "a"), (".q/deep/settings.json", "b")]);
        let secrets = JobSecrets { token: "t", backend: "{}", ca: Some("pem"), home };
        let manifest = order.secret_manifest("uid-1", &secrets);
        assert_kept(&manifest, &serde_json::to_value(order.secret("uid-1", &secrets).unwrap()).unwrap(), "secret");
        assert_eq!(manifest["metadata"]["ownerReferences"][0]["uid"], "uid-1");
        assert_eq!(manifest["stringData"]["home-1"], "b");
    }

    #[test]
    fn a_pod_has_no_rights_and_is_never_started_again_by_the_cluster() {
        let section = section();
        let job = order(&section).job_manifest();
        let pod = &job["spec"]["template"]["spec"];
        assert_eq!((&job["spec"]["backoffLimit"], &pod["restartPolicy"]), (&json!(0), &json!("Never")));
        assert_eq!(pod["automountServiceAccountToken"], false);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true);
        assert_eq!(pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
        let container = &pod["containers"][0];
        let context = &container["securityContext"];
        assert_eq!(
            (&context["readOnlyRootFilesystem"], &context["allowPrivilegeEscalation"]),
            (&json!(true), &json!(false))
        );
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
        assert_eq!(
            (&pod["nodeSelector"]["pool"], &pod["imagePullSecrets"]),
            (&json!("agents"), &json!([{"name": "registry"}]))
        );
        assert_eq!(pod["tolerations"], json!([{"key": "agents", "operator": "Equal", "effect": "NoSchedule"}]));
        assert_eq!(container["resources"]["requests"]["cpu"], "100m");
        assert_eq!(container["resources"]["limits"], json!({"memory": "2Gi"}), "no limit where none is set");
    }

    #[test]
    fn credentials_of_tools_are_read_only_files_that_the_server_does_not_read() {
        let section = section();
        let github = ToolMount {
            tool: "github".into(),
            secret_name: "agentrun-v01-tool-github".into(),
            keys: vec!["token".into()],
        };
        let job = JobOrder { tools: vec![github], ..order(&section) }.job_manifest();
        let pod = &job["spec"]["template"]["spec"];
        let find = |list: &Value| list.as_array().unwrap().iter().find(|one| one["name"] == "tool-0").cloned().unwrap();
        let (volume, mount) = (find(&pod["volumes"]), find(&pod["containers"][0]["volumeMounts"]));
        assert_eq!(volume["secret"]["secretName"], "agentrun-v01-tool-github");
        assert_eq!(volume["secret"]["items"], json!([{"key": "token", "path": "token"}]));
        assert_eq!((&mount["mountPath"], &mount["readOnly"]), (&json!("/var/run/ostler-tools/github"), &json!(true)));
    }

    #[test]
    fn the_runner_is_started_by_its_environment_and_secrets_are_references() {
        let section = section();
        let job = order(&section).job_manifest();
        assert_eq!(variable(&job, "AGENTRUN_RUN_ID")["value"], format!("run_{:032x}", 2));
        assert_eq!(variable(&job, "AGENTRUN_RUNNER_PLACEMENT")["value"], "kubernetes-job");
        assert_eq!(variable(&job, "OSTLER_RUNNER_GRACE_MS")["value"], "25000");
        assert_eq!(variable(&job, "OSTLER_CA_FILE")["value"], "/var/run/ostler/ca.crt");
        let token = variable(&job, "OSTLER_TOKEN");
        assert_eq!(token["valueFrom"]["secretKeyRef"], json!({"name": "ostler-run-1", "key": "token"}));
        assert!(token["value"].is_null());
        let plain = JobOrder { has_ca: false, home_files: vec![], ..order(&section) }.job_manifest();
        assert!(variable(&plain, "OSTLER_CA_FILE").is_null());
        assert_eq!(plain["spec"]["template"]["spec"]["volumes"].as_array().unwrap().len(), 3);
        assert!(variable(&plain, "AGENTRUN_SESSION_PVC_NAME").is_null());
    }

    #[test]
    fn a_claim_is_mounted_and_named_to_the_runner() {
        let section = section();
        let storage = ClaimedStorage { claim_name: "c".into(), namespace: "n".into(), mount_path: "/storage".into() };
        let job = JobOrder { storage: Some(storage), ..order(&section) }.job_manifest();
        for (name, value) in [
            ("AGENTRUN_SESSION_PVC_NAME", "c"),
            ("AGENTRUN_SESSION_PVC_NAMESPACE", "n"),
            ("AGENTRUN_SESSION_PVC_MOUNT_PATH", "/storage"),
            ("AGENTRUN_CODEX_ROLLOUT_SUBDIR", "sessions"),
        ] {
            assert_eq!(variable(&job, name)["value"], value, "{name}");
        }
        let pod = &job["spec"]["template"]["spec"];
        let volume = json!({"name": "storage", "persistentVolumeClaim": {"claimName": "c"}});
        assert!(pod["volumes"].as_array().unwrap().contains(&volume));
        let mount = json!({"name": "storage", "mountPath": "/storage"});
        assert!(pod["containers"][0]["volumeMounts"].as_array().unwrap().contains(&mount));
    }
}
