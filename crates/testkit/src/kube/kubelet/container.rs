//! What a pod's specification means for a process: program, arguments, environment and the directories of its volumes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

use crate::kube::store::{items, text};

/// Secrets by name; `None` if there is none of that name.
pub(super) type PodSecrets = BTreeMap<String, Option<Value>>;

/// Why a container cannot be started yet.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContainerWait {
    pub reason: &'static str,
    pub message: String,
}

/// A process to be started.
#[derive(Debug)]
pub(super) struct ContainerPlan {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub environment: BTreeMap<String, String>,
    /// Volumes that persist or start empty.
    directories: Vec<PathBuf>,
    /// Files of secrets, with their modes.
    files: Vec<(PathBuf, Vec<u8>, u32)>,
    /// Where the process may leave a message about its end.
    termination_log: PathBuf,
}

/// Where a container may leave a message, if its specification names no other path.
const TERMINATION_PATH: &str = "/dev/termination-log";

/// The file with the message that a pod's process leaves.
pub(super) fn termination_log(node_directory: &Path, pod: &Value) -> PathBuf {
    pod_directory(node_directory, pod).join("termination-log")
}

/// The directory of a claim's volume on a node that keeps its volumes in this directory.
pub fn find_claim_directory(node_directory: &Path, namespace: &str, claim: &str) -> PathBuf {
    node_directory.join("claims").join(namespace).join(claim)
}

/// The names of all secrets that a pod refers to.
pub(super) fn secret_names(pod: &Value) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for container in items(pod, "/spec/containers") {
        let sources = items(container, "/envFrom").iter().map(|source| text(source, "/secretRef/name"));
        let keys = items(container, "/env").iter().map(|variable| text(variable, "/valueFrom/secretKeyRef/name"));
        names.extend(sources.chain(keys).map(str::to_owned));
    }
    for volume in items(pod, "/spec/volumes") {
        names.insert(text(volume, "/secret/secretName").to_owned());
        names.extend(items(volume, "/projected/sources").iter().map(|source| text(source, "/secret/name").to_owned()));
    }
    names.remove("");
    names
}

/// Plans the first container of a pod.
pub(super) fn plan(
    pod: &Value,
    secrets: &PodSecrets,
    node_directory: &Path,
    images: &BTreeMap<String, PathBuf>,
) -> Result<ContainerPlan, ContainerWait> {
    let container = items(pod, "/spec/containers").first().unwrap_or(&Value::Null);
    let image = text(container, "/image");
    let Some(entry_point) = images.get(image) else {
        return Err(ContainerWait {
            reason: "ImagePullBackOff",
            message: format!("Back-off pulling image \"{image}\""),
        });
    };
    let mut plan = ContainerPlan {
        program: entry_point.clone(),
        arguments: vec![],
        environment: BTreeMap::new(),
        directories: vec![],
        files: vec![],
        termination_log: termination_log(node_directory, pod),
    };
    let mut mounts = mounts(pod, container, secrets, node_directory, &mut plan)?;
    let termination_path = match text(container, "/terminationMessagePath") {
        "" => TERMINATION_PATH,
        path => path,
    };
    mounts.insert(0, (termination_path.to_owned(), plan.termination_log.clone()));
    plan.environment = environment(pod, container, secrets)?;
    for value in plan.environment.values_mut() {
        *value = map_path(value, &mounts);
    }
    let words = |field: &str| {
        let words = items(container, field).iter().filter_map(Value::as_str);
        words.map(|word| map_path(&expand(word, &plan.environment), &mounts)).collect::<Vec<_>>()
    };
    let (command, arguments) = (words("/command"), words("/args"));
    if let Some((program, rest)) = command.split_first() {
        // The image's own program may be named by any path that it has inside the image.
        let is_entry_point = Path::new(program).file_name() == entry_point.file_name();
        if !is_entry_point {
            plan.program = PathBuf::from(program);
        }
        plan.arguments.extend_from_slice(rest);
    }
    plan.arguments.extend(arguments);
    Ok(plan)
}

impl ContainerPlan {
    /// Makes the directories and files of the volumes.
    pub(super) fn materialise(&self) -> io::Result<()> {
        for directory in &self.directories {
            fs::create_dir_all(directory)?;
        }
        for (path, content, mode) in &self.files {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            // A file that cannot be written may be left from an earlier attempt.
            let _ = fs::remove_file(path);
            fs::write(path, content)?;
            fs::set_permissions(path, fs::Permissions::from_mode(*mode))?;
        }
        self.termination_log.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::write(&self.termination_log, "")
    }
}

/// Mount paths with the directories that stand for them, the longest first.
type Mounts = Vec<(String, PathBuf)>;

fn mounts(
    pod: &Value,
    container: &Value,
    secrets: &PodSecrets,
    node_directory: &Path,
    plan: &mut ContainerPlan,
) -> Result<Mounts, ContainerWait> {
    let own = pod_directory(node_directory, pod).join("volumes");
    let mut mounts = Mounts::new();
    for mount in items(container, "/volumeMounts") {
        let name = text(mount, "/name");
        let found = items(pod, "/spec/volumes").iter().find(|volume| text(volume, "/name") == name);
        let volume = found.unwrap_or(&Value::Null);
        let claim = text(volume, "/persistentVolumeClaim/claimName");
        let directory = if claim.is_empty() {
            own.join(name)
        } else {
            find_claim_directory(node_directory, text(pod, "/metadata/namespace"), claim)
        };
        let projected = items(volume, "/projected/sources").iter().map(|source| &source["secret"]);
        for source in projected.chain([&volume["secret"]]).filter(|source| source.is_object()) {
            let mode = source["defaultMode"].as_u64().or_else(|| volume["projected"]["defaultMode"].as_u64());
            let mode = mode.and_then(|mode| u32::try_from(mode).ok()).unwrap_or(0o644);
            plan.files.extend(secret_files(source, secrets, &directory, mode)?);
        }
        // Joining an empty path would add a slash.
        let directory = match text(mount, "/subPath") {
            "" => directory,
            part => directory.join(part),
        };
        plan.directories.push(directory.clone());
        mounts.push((text(mount, "/mountPath").trim_end_matches('/').to_owned(), directory));
    }
    mounts.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
    Ok(mounts)
}

fn secret_files(
    source: &Value,
    secrets: &PodSecrets,
    directory: &Path,
    mode: u32,
) -> Result<Vec<(PathBuf, Vec<u8>, u32)>, ContainerWait> {
    let name = if source["secretName"].is_string() { text(source, "/secretName") } else { text(source, "/name") };
    let Some(secret) = secrets.get(name).and_then(Option::as_ref) else {
        if source["optional"].as_bool() == Some(true) {
            return Ok(vec![]);
        }
        let message = format!("MountVolume.SetUp failed: secret \"{name}\" not found");
        return Err(ContainerWait { reason: "ContainerCreating", message });
    };
    let data = secret["data"].as_object();
    let chosen = items(source, "/items");
    let mut files = vec![];
    for (key, value) in data.into_iter().flatten() {
        let item = chosen.iter().find(|item| text(item, "/key") == key);
        if item.is_some() || chosen.is_empty() {
            let path = item.map_or(key.as_str(), |item| text(item, "/path"));
            files.push((directory.join(path), decode(value), mode));
        }
    }
    Ok(files)
}

fn decode(value: &Value) -> Vec<u8> {
    BASE64.decode(value.as_str().unwrap_or_default()).unwrap_or_default()
}

fn environment(
    pod: &Value,
    container: &Value,
    secrets: &PodSecrets,
) -> Result<BTreeMap<String, String>, ContainerWait> {
    let as_text = |value: &Value| String::from_utf8_lossy(&decode(value)).into_owned();
    let refuse = |message: String| ContainerWait { reason: "CreateContainerConfigError", message };
    let mut found = BTreeMap::new();
    for source in items(container, "/envFrom") {
        let name = text(source, "/secretRef/name");
        let Some(secret) = secrets.get(name).and_then(Option::as_ref) else {
            if source["secretRef"]["optional"].as_bool() == Some(true) {
                continue;
            }
            return Err(refuse(format!("secret \"{name}\" not found")));
        };
        let data = secret["data"].as_object();
        for (key, value) in data.into_iter().flatten() {
            found.insert(format!("{}{key}", text(source, "/prefix")), as_text(value));
        }
    }
    for variable in items(container, "/env") {
        let reference = &variable["valueFrom"]["secretKeyRef"];
        let value = if reference.is_object() {
            let (name, key) = (text(reference, "/name"), text(reference, "/key"));
            let secret = secrets.get(name).and_then(Option::as_ref);
            match secret.and_then(|secret| secret["data"].get(key)) {
                Some(value) => as_text(value),
                None if reference["optional"].as_bool() == Some(true) => continue,
                None if secret.is_none() => return Err(refuse(format!("secret \"{name}\" not found"))),
                None => return Err(refuse(format!("couldn't find key {key} in Secret {name}"))),
            }
        } else if variable["valueFrom"]["fieldRef"].is_object() {
            field_of(pod, text(variable, "/valueFrom/fieldRef/fieldPath"))
        } else {
            expand(text(variable, "/value"), &found)
        };
        found.insert(text(variable, "/name").to_owned(), value);
    }
    Ok(found)
}

/// A field for the downward API: `metadata.name`, `metadata.labels['key']`.
fn field_of(pod: &Value, path: &str) -> String {
    let loopback = ["status.podIP", "status.hostIP"];
    if loopback.contains(&path) {
        return "127.0.0.1".to_owned();
    }
    let (path, key) = path.split_once("['").map_or((path, ""), |(path, key)| (path, key.trim_end_matches("']")));
    let field = pod.pointer(&format!("/{}", path.replace('.', "/"))).unwrap_or(&Value::Null);
    let field = if key.is_empty() { field } else { &field[key] };
    field.as_str().unwrap_or_default().to_owned()
}

/// Replaces `$(NAME)` by the variable's value. Unknown variables stay as they are.
fn expand(value: &str, environment: &BTreeMap<String, String>) -> String {
    let mut expanded = value.to_owned();
    for (name, value) in environment {
        expanded = expanded.replace(&format!("$({name})"), value);
    }
    expanded
}

/// Replaces a mount path at the start of a value, or after the `=` of an option.
fn map_path(value: &str, mounts: &Mounts) -> String {
    let (option, path) = match value.split_once('=') {
        Some((option, path)) if path.starts_with('/') => (format!("{option}="), path),
        _ => (String::new(), value),
    };
    for (mounted, directory) in mounts {
        if let Some(rest) = path.strip_prefix(mounted.as_str())
            && (rest.is_empty() || rest.starts_with('/'))
        {
            return format!("{option}{}{rest}", directory.display());
        }
    }
    value.to_owned()
}

/// Where a pod's own volumes and its log are.
pub(super) fn pod_directory(node_directory: &Path, pod: &Value) -> PathBuf {
    node_directory.join("pods").join(text(pod, "/metadata/uid"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Value {
        json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"run": "r"}},
            "spec": {
                "volumes": [
                    {"name": "token", "secret": {"secretName": "s", "items": [{"key": "k", "path": "token"}], "defaultMode": 256}},
                    {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}
                ],
                "containers": [{
                    "image": "i", "command": ["/usr/bin/true", "--token=/run/token/token"], "args": ["$(RUN)", "/data"],
                    "env": [
                        {"name": "RUN", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['run']"}}},
                        {"name": "HOME", "value": "/data/$(RUN)"},
                        {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
                        {"name": "REPORT", "value": "/dev/termination-log"}
                    ],
                    "envFrom": [{"secretRef": {"name": "s"}, "prefix": "P_"}],
                    "volumeMounts": [{"name": "token", "mountPath": "/run/token"}, {"name": "data", "mountPath": "/data"}]
                }]
            }
        })
    }

    #[test]
    fn paths_of_mounts_become_paths_of_directories() {
        let images = BTreeMap::from([("i".to_owned(), PathBuf::from("/opt/true"))]);
        let secrets = PodSecrets::from([("s".to_owned(), Some(json!({"data": {"k": "dg==", "other": "dg=="}})))]);
        assert_eq!(secret_names(&pod()), BTreeSet::from(["s".to_owned()]));
        let plan = plan(&pod(), &secrets, Path::new("/node"), &images).unwrap();
        assert_eq!(plan.program, Path::new("/opt/true"));
        assert_eq!(plan.arguments, ["--token=/node/pods/u/volumes/token/token", "r", "/node/claims/n/c"]);
        let variable = |name: &str| plan.environment[name].as_str();
        assert_eq!((variable("HOME"), variable("KEY"), variable("P_k")), ("/node/claims/n/c/r", "v", "v"));
        assert_eq!(variable("REPORT"), "/node/pods/u/termination-log");
        let files: Vec<_> =
            plan.files.iter().map(|(path, content, mode)| (path.as_path(), content.as_slice(), *mode)).collect();
        assert_eq!(files, [(Path::new("/node/pods/u/volumes/token/token"), b"v".as_slice(), 0o400)]);
    }

    #[test]
    fn a_missing_image_or_secret_keeps_the_container_waiting() {
        let images = BTreeMap::from([("i".to_owned(), PathBuf::from("/opt/true"))]);
        let node = Path::new("/node");
        assert_eq!(plan(&pod(), &PodSecrets::new(), node, &BTreeMap::new()).unwrap_err().reason, "ImagePullBackOff");
        assert_eq!(plan(&pod(), &PodSecrets::new(), node, &images).unwrap_err().reason, "ContainerCreating");
        let mut pod = pod();
        pod["spec"]["containers"][0]["volumeMounts"] = json!([]);
        let missing = plan(&pod, &PodSecrets::new(), node, &images).unwrap_err();
        assert_eq!(missing.reason, "CreateContainerConfigError");
    }
}
