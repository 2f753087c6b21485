//! The manifests of `deploy/kubernetes`: `cargo xtask kubernetes` renders the overlays, and `cargo xtask test --kubernetes` has
//! a real API server validate every manifest without storing it.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use ostler_testkit::manifests::{OVERLAYS, SINGLE_FILES, directory, mark, rendered};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::debian;
use crate::process::{Running, find_on_path, in_workspace, interrupted, workspace_root};

/// The configuration of a cluster to test on. Tests read it, too.
pub(crate) const KUBECONFIG_VARIABLE: &str = "OSTLER_TEST_KUBECONFIG";
/// A folder with the scripts `start DIR` and `stop DIR`. The first one starts a control plane whose files are below DIR, and prints
/// `{"kubeconfig": PATH, "pids": […]}` when it is ready.
const BINARIES_VARIABLE: &str = "OSTLER_KUBE_BIN";
const CRD_FILE: &str = "xtask/kubernetes/service-monitor-crd.yaml";
const CRD_NAME: &str = "servicemonitors.monitoring.coreos.com";
/// What kubectl prints for each manifest that the server accepted.
const ACCEPTED: &str = "(server dry run)";
/// A new admission policy is in force after a second or so.
const POLICY_ATTEMPTS_MAX: u32 = 40;
/// The processes of a control plane end within a few seconds.
const STOP_ATTEMPTS_MAX: u32 = 40;
const PAUSE: Duration = Duration::from_millis(250);

/// `cargo xtask kubernetes`: writes the rendered overlays again.
pub(crate) fn render(arguments: &[String]) -> Result<(), String> {
    if let Some(unknown) = arguments.first() {
        return Err(format!("`kubernetes` does not know `{unknown}`"));
    }
    let (kubectl, root) = (find_or_install_kubectl()?, workspace_root()?);
    let mark = mark(&root).map_err(|e| format!("cannot read the manifests: {e}"))?;
    for overlay in OVERLAYS {
        let mut command = in_workspace(&kubectl)?;
        command.arg("kustomize").arg(directory(&root).join(overlay));
        let output = output_of(&mut command)?;
        if !output.status.success() {
            return Err(format!("cannot render {overlay}: {}", text(&output.stderr)));
        }
        let path = rendered(&root, overlay);
        fs::write(&path, format!("{mark}\n{}", text(&output.stdout)))
            .map_err(|e| format!("cannot write {}: {e}", path.display()))?;
        eprintln!("==> {}", path.display());
    }
    Ok(())
}

/// Finds kubectl, or installs Debian's.
fn find_or_install_kubectl() -> Result<PathBuf, String> {
    const SCRIPT: &str = "\
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get update -q
apt-get install -q -y --no-install-recommends kubernetes-client
";
    if let Some(kubectl) = find_on_path("kubectl") {
        return Ok(kubectl);
    }
    debian::install("kubernetes-client", SCRIPT).map_err(|reason| format!("kubectl is needed: {reason}"))?;
    find_on_path("kubectl").ok_or_else(|| "Debian's kubernetes-client is installed, but has no kubectl".into())
}

/// An API server that tests may use.
pub(crate) struct ControlPlane {
    kubectl: PathBuf,
    kubeconfig: PathBuf,
    /// Set if it was started for this run. Otherwise it is the user's, and gets everything back as it was.
    started: Option<Started>,
}

struct Started {
    stop: PathBuf,
    directory: TempDir,
    processes: Vec<Pid>,
}

impl Drop for Started {
    fn drop(&mut self) {
        let stopped = Command::new(&self.stop).arg(self.directory.path()).stdin(Stdio::null()).status();
        if !stopped.as_ref().is_ok_and(std::process::ExitStatus::success) {
            eprintln!("    the API server was not stopped: {stopped:?}");
        }
        for _ in 0..STOP_ATTEMPTS_MAX {
            if !self.processes.iter().any(|process| test_kill_process(*process).is_ok()) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        // An API server whose etcd has ended first waits for it for a long time. One that has ended in the meantime is no error.
        for process in &self.processes {
            let _ = kill_process(*process, Signal::KILL);
        }
    }
}

impl ControlPlane {
    /// Whether the environment names a cluster, or the programs of one.
    pub(crate) fn is_named() -> bool {
        [KUBECONFIG_VARIABLE, BINARIES_VARIABLE].into_iter().any(|variable| std::env::var_os(variable).is_some())
    }

    /// Uses the cluster that `OSTLER_TEST_KUBECONFIG` names, or starts the API server that `OSTLER_KUBE_BIN` names.
    pub(crate) fn find_or_start() -> Result<Self, String> {
        let kubectl = find_or_install_kubectl()?;
        if let Some(kubeconfig) = std::env::var_os(KUBECONFIG_VARIABLE) {
            return Ok(Self { kubectl, kubeconfig: kubeconfig.into(), started: None });
        }
        let binaries = std::env::var_os(BINARIES_VARIABLE).map(PathBuf::from).ok_or_else(|| {
            format!("no cluster to test on\nhint: set {KUBECONFIG_VARIABLE} to a kubeconfig, or {BINARIES_VARIABLE}")
        })?;
        let made = tempfile::Builder::new().prefix("ostler-kube-").tempdir();
        let scratch = made.map_err(|e| format!("cannot make a scratch directory: {e}"))?;
        let mut start = Command::new(binaries.join("start"));
        start.arg(scratch.path()).stdin(Stdio::null()).stdout(Stdio::piped());
        // From here on the script `stop` runs in any case: a start that failed may have left processes behind.
        let mut started = Started { stop: binaries.join("stop"), directory: scratch, processes: vec![] };
        let mut running = Running::start(&mut start)?;
        let mut ready = String::new();
        let read = running.0.stdout.take().ok_or("the script has no stdout")?.read_to_string(&mut ready);
        let status = running.wait()?;
        interrupted()?;
        read.map_err(|e| format!("cannot read from the script: {e}"))?;
        let failed = || format!("the API server did not start ({status}): {ready}");
        let printed: Value = serde_json::from_str(&ready).map_err(|_| failed())?;
        started.processes = processes(&printed);
        let kubeconfig = printed["kubeconfig"].as_str().filter(|_| status.success()).ok_or_else(failed)?.into();
        Ok(Self { kubectl, kubeconfig, started: Some(started) })
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// The current context of the kubeconfig in JSON, with the contents of all files that it refers to.
    pub(crate) fn flat_kubeconfig(&self) -> Result<String, String> {
        Ok(self.expect(&["config", "view", "--raw", "--minify", "--flatten", "-o", "json"], "")?.0)
    }

    /// The version of the API server.
    pub(crate) fn version(&self) -> Result<String, String> {
        let printed = self.expect(&["version", "-o", "json"], "")?;
        let version = serde_json::from_str(&printed.0)
            .ok()
            .and_then(|printed: Value| Some(printed.get("serverVersion")?.get("gitVersion")?.as_str()?.to_owned()));
        version.ok_or_else(|| "the API server does not tell its version".into())
    }

    /// Runs kubectl with a text on its stdin.
    fn kubectl(&self, arguments: &[&str], input: &str) -> Result<Output, String> {
        let mut command = in_workspace(&self.kubectl)?;
        command.arg("--kubeconfig").arg(&self.kubeconfig).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|e| format!("cannot start kubectl: {e}"))?;
        let mut stdin = child.stdin.take().ok_or("kubectl has no stdin")?;
        // It may end before it has read everything, which its status then explains.
        let _ = stdin.write_all(input.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().map_err(|e| format!("cannot wait for kubectl: {e}"))?;
        interrupted()?;
        Ok(output)
    }

    /// Its stdout and stderr, if it succeeds.
    fn expect(&self, arguments: &[&str], input: &str) -> Result<(String, String), String> {
        let output = self.kubectl(arguments, input)?;
        let (printed, problems) = (text(&output.stdout), text(&output.stderr));
        if output.status.success() {
            return Ok((printed, problems));
        }
        Err(format!("kubectl {} failed ({}): {problems}", arguments.join(" "), output.status))
    }

    fn exists(&self, kind: &str, name: &str) -> Result<bool, String> {
        Ok(self.kubectl(&["get", kind, name, "-o", "name"], "")?.status.success())
    }
}

/// What a dry run needs and the cluster lacked. Deleted afterwards.
struct Prepared<'a> {
    plane: &'a ControlPlane,
    created: Vec<(&'static str, String)>,
}

impl Prepared<'_> {
    fn create(&mut self, kind: &'static str, name: &str, manifest: &str) -> Result<(), String> {
        if !self.plane.exists(kind, name)? {
            self.plane.expect(&["create", "-f", "-"], manifest)?;
            self.created.push((kind, name.to_owned()));
        }
        Ok(())
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        // A control plane of our own ends anyway.
        let created = if self.plane.started.is_some() { vec![] } else { std::mem::take(&mut self.created) };
        for (kind, name) in created {
            if let Err(message) = self.plane.expect(&["delete", kind, &name, "--wait=false"], "") {
                eprintln!("    {kind} {name} was not deleted: {message}");
            }
        }
    }
}

/// Has the API server validate every manifest as kubectl renders it and as it is in the repository. Nothing is stored,
/// except for missing namespaces and the definition of service monitors. Returns the number of manifests.
pub(crate) fn dry_run(plane: &ControlPlane) -> Result<usize, String> {
    let root = workspace_root()?;
    let mut prepared = Prepared { plane, created: vec![] };
    let definition = read(&root.join(CRD_FILE))?;
    prepared.create("customresourcedefinition", CRD_NAME, &definition)?;
    plane.expect(&["wait", "--for=condition=Established", "--timeout=30s", &format!("crd/{CRD_NAME}")], "")?;
    for overlay in OVERLAYS {
        let manifests = read(&rendered(&root, overlay))?;
        for namespace in documents(&manifests).filter(|manifest| kind_of(manifest) == Some("Namespace")) {
            let name = name_of(namespace).ok_or("a namespace has no name")?;
            prepared.create("namespace", name, namespace)?;
        }
    }
    let mut accepted = 0;
    for overlay in OVERLAYS {
        let path = rendered(&root, overlay).display().to_string();
        let count = documents(&read(Path::new(&path))?).count();
        let folder = directory(&root).join(overlay).display().to_string();
        for source in [["-f", path.as_str()], ["-k", folder.as_str()]] {
            let mut arguments = vec!["apply", "--server-side", "--force-conflicts", "--field-manager=ostler-dry-run"];
            arguments.extend(["--dry-run=server", "--validate=true"]);
            arguments.extend(source);
            let (printed, problems) = plane.expect(&arguments, "")?;
            // What the namespace's pod security level would reject is a warning at this point.
            if let Some(warning) = problems.lines().find(|line| line.starts_with("Warning: would violate")) {
                return Err(format!("{overlay}: {warning}"));
            }
            let answered = printed.lines().filter(|line| line.ends_with(ACCEPTED)).count();
            if answered != count {
                return Err(format!("{overlay}: {answered} of {count} manifests were accepted:\n{printed}{problems}"));
            }
        }
        accepted += count;
    }
    for file in SINGLE_FILES {
        let path = directory(&root).join(file).display().to_string();
        let (_, problems) =
            plane.expect(&["apply", "--server-side", "--dry-run=server", "--validate=true", "-f", &path], "")?;
        if let Some(warning) = problems.lines().find(|line| line.starts_with("Warning: would violate")) {
            return Err(format!("{file}: {warning}"));
        }
    }
    Ok(accepted + SINGLE_FILES.len())
}

/// What an overlay calls the objects that the check of Secrets' names needs.
struct Installation {
    overlay: &'static str,
    namespace: &'static str,
    account: &'static str,
    /// `kubernetes.job_prefix` of its server.
    job_prefix: &'static str,
    /// Secrets of the server itself, which it may not write.
    own_secrets: [&'static str; 2],
}

/// The policy of `small` is that of `production`.
const INSTALLATIONS: [Installation; 2] = [
    Installation {
        overlay: "production",
        namespace: "ostler",
        account: "ostler",
        job_prefix: "ostler-run",
        own_secrets: ["ostler-keys", "ostler-db"],
    },
    Installation {
        overlay: "agentrun",
        namespace: "agentrun-v01",
        account: "agentrun-mgr",
        job_prefix: "agentrun-v01-run",
        own_secrets: ["agentrun-v01-mgr-keys", "agentrun-v01-mgr-db"],
    },
];
/// Everything that decides what the server may do with Secrets.
const ACCESS_KINDS: [&str; 6] = [
    "Namespace",
    "ServiceAccount",
    "Role",
    "RoleBinding",
    "ValidatingAdmissionPolicy",
    "ValidatingAdmissionPolicyBinding",
];

/// On a control plane of our own: the role and the policy of an overlay let its server write its own Secrets, and no other.
pub(crate) fn check_secret_names(plane: &ControlPlane) -> Result<(), String> {
    if plane.started.is_none() {
        eprintln!("    skipped: it would change the cluster");
        return Ok(());
    }
    let root = workspace_root()?;
    for installation in INSTALLATIONS {
        let manifests = read(&rendered(&root, installation.overlay))?;
        let access = documents(&manifests).filter(|one| kind_of(one).is_some_and(|kind| ACCESS_KINDS.contains(&kind)));
        plane.expect(&["apply", "-f", "-"], &access.collect::<Vec<_>>().join("\n---\n"))?;
        check_writes(plane, &installation).map_err(|problem| format!("{}: {problem}", installation.overlay))?;
    }
    Ok(())
}

fn check_writes(plane: &ControlPlane, installation: &Installation) -> Result<(), String> {
    let Installation { namespace, account, job_prefix, own_secrets: [keys, database], .. } = installation;
    let server = format!("--as=system:serviceaccount:{namespace}:{account}");
    let (place, server) = (format!("--namespace={namespace}"), server.as_str());
    let create = |name: &str, more: &[&str]| {
        let arguments = ["create", "secret", "generic", name, &place, "--from-literal=a=b"];
        plane.kubectl(&[&arguments[..], more].concat(), "")
    };
    for _ in 0..POLICY_ATTEMPTS_MAX {
        if !create(keys, &[server, "--dry-run=server"])?.status.success() {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    let of_job = format!("{job_prefix}-1");
    let foreign_job = if *job_prefix == "ostler-run" { "agentrun-v01-run-1" } else { "ostler-run-1" };
    for (name, is_own) in [
        (*keys, false),
        (foreign_job, false),
        ("agentrun-v01-tool-github", false),
        (&of_job, true),
        ("agentrun-v01-provider-codex", true),
        ("agentrun-v01-provider-all.index", true),
        ("agentrun-v01-tenant-0-mine", true),
    ] {
        let output = create(name, &[server])?;
        if output.status.success() != is_own {
            return Err(format!("Secret {name}: {}{}", text(&output.stdout), text(&output.stderr)));
        }
    }
    create(database, &[])?;
    // The role has `update`, which is what `replace` sends; `patch` would be rejected under every policy.
    let replace = |name: &str| {
        let metadata = format!("\"metadata\":{{\"name\":\"{name}\",\"namespace\":\"{namespace}\"}}");
        let changed =
            format!("{{\"apiVersion\":\"v1\",\"kind\":\"Secret\",{metadata},\"stringData\":{{\"a\":\"c\"}}}}");
        plane.kubectl(&["replace", "-f", "-", server], &changed)
    };
    if replace(database)?.status.success() {
        return Err(format!("the server could replace the Secret {database}"));
    }
    if plane.kubectl(&["delete", "secret", database, &place, server], "")?.status.success() {
        return Err(format!("the server could delete the Secret {database}"));
    }
    let replaced = replace("agentrun-v01-provider-codex")?;
    if !replaced.status.success() {
        return Err(format!("the server could not replace a Secret of its own: {}", text(&replaced.stderr)));
    }
    if plane.kubectl(&["get", "secrets", &place, server], "")?.status.success() {
        return Err("the server could list the Secrets of its namespace".into());
    }
    for verb in ["get", "delete"] {
        let output = plane.kubectl(&[verb, "secret", &of_job, &place, server], "")?;
        if !output.status.success() {
            return Err(format!("the server could not {verb} a Secret of its own: {}", text(&output.stderr)));
        }
    }
    Ok(())
}

/// The processes of a control plane, as its script has printed them.
fn processes(printed: &Value) -> Vec<Pid> {
    let ids = printed["pids"].as_array().into_iter().flatten().filter_map(Value::as_i64);
    ids.filter_map(|id| Pid::from_raw(i32::try_from(id).ok()?)).collect()
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn output_of(command: &mut Command) -> Result<Output, String> {
    command.stdin(Stdio::null()).output().map_err(|e| format!("cannot start kubectl: {e}"))
}

/// The manifests of a file that kubectl wrote.
fn documents(text: &str) -> impl Iterator<Item = &str> {
    text.split("\n---\n")
}

fn kind_of(manifest: &str) -> Option<&str> {
    manifest.lines().find_map(|line| line.strip_prefix("kind: "))
}

/// The name in the metadata. Labels and annotations are indented further.
fn name_of(manifest: &str) -> Option<&str> {
    manifest.lines().find_map(|line| line.strip_prefix("  name: "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn manifests_are_distinguished_by_kind_and_name() {
        let file =
            "# mark\napiVersion: v1\nkind: Namespace\nmetadata:\n  labels:\n    a: b\n  name: x\n---\nkind: Job\n";
        let found: Vec<_> = documents(file).map(|manifest| (kind_of(manifest), name_of(manifest))).collect();
        assert_eq!(found, [(Some("Namespace"), Some("x")), (Some("Job"), None)]);
    }
}
