//! `ostler doctor --kubernetes`: what a server whose runners are Kubernetes Jobs needs of its cluster. Reads the settings of a
//! server that would be started here, so it is best run in the server's pod.

use std::path::Path;

use ostler_client::Client;
use ostler_protocol::{
    Failure, FailureKind,
    health::SERVICE_ID,
    kernel::runner_jobs::{BackendImageRef, Launcher, is_image_name},
};
use ostler_server::{
    Config,
    config::{KubernetesSection, Overrides},
    kubernetes::{ACCOUNT_TOKEN, ClaimClass, Cluster, ClusterError, ImagePulls, Right},
};

use super::checks::{Check, CheckState, DoctorReport, of_failure, within};
use crate::{commands::serve::dialects, connection::Connection, environment, terminal::output::line};

pub(super) async fn run_checks(connection: &Connection, file: Option<&Path>, report: &mut DoctorReport) {
    let overrides = Overrides { data_dir: connection.data_dir_flag().cloned(), ..Overrides::default() };
    let config = match Config::load(file, &environment::current(), overrides, &dialects().sections()) {
        Ok(config) => config,
        Err(failure) => return report.extend([of_failure("settings", &failure)]),
    };
    let section = &config.kubernetes;
    let cluster = match Cluster::open(section, &config.environment).await {
        Ok(cluster) => cluster,
        Err(failure) => return report.extend([of_failure("cluster", &failure)]),
    };
    report.extend([launcher(config.runner.launcher, cluster.namespace())]);
    report.extend([rights(cluster.missing_rights().await, cluster.namespace())]);
    let class = section.storage_class.as_deref();
    report.extend([match cluster.find_storage_class(class).await {
        // The server's own account may not: the cluster shows the class by a claim.
        Err(ClusterError::Refused(_)) => claim_class(class, cluster.claim_class(section).await),
        found => storage(class, found),
    }]);
    let image_name = section.image.as_deref().unwrap_or_default();
    report.extend([image(image_name, &cluster.image_pulls(image_name).await)]);
    report.extend([server_address(section, Path::new(ACCOUNT_TOKEN).exists()).await]);
}

fn launcher(launcher: Launcher, namespace: &str) -> Check {
    let namespace = line(namespace, 100);
    if launcher == Launcher::Kubernetes {
        return Check::ok("launcher", format!("runners are Jobs in the namespace {namespace}"));
    }
    let found = format!("runners are not Jobs: runner.launcher is {:?}", launcher.as_str());
    let fix = "set runner.launcher = \"kubernetes\", or name the server's configuration file with --config";
    Check::of("launcher", CheckState::Warn, found, fix)
}

fn rights(missing: Result<Vec<Right>, ClusterError>, namespace: &str) -> Check {
    let missing = match missing {
        Ok(missing) => missing,
        Err(error) => return unreachable("rights", &error),
    };
    if missing.is_empty() {
        let found = format!("this account has every right that the server needs in {}", line(namespace, 100));
        return Check::ok("rights", found);
    }
    let names: Vec<_> = missing.iter().map(Right::to_string).collect();
    let found = format!("this account lacks: {}", names.join(", "));
    Check::of("rights", CheckState::Fail, found, "apply the Role and RoleBinding of deploy/kubernetes/base/access.yaml")
}

const STORAGE_FIX: &str = "set kubernetes.storage_class to one that `kubectl get storageclass` lists";
const NO_DEFAULT_CLASS: &str =
    "no storage class is named, and the cluster has no default: volume claims would wait for ever";

/// What claims show of the class, if classes cannot be read. A cluster accepts a claim whose class does not exist, so a class that
/// is named is only known to exist once a claim of it has a volume.
fn claim_class(wanted: Option<&str>, shown: Result<ClaimClass, ClusterError>) -> Check {
    match (shown, wanted) {
        (Ok(ClaimClass { assigned: Some(name), bound: 1.. }), _) => {
            Check::ok("storage", format!("claims of the storage class {} have volumes", line(&name, 100)))
        }
        (Ok(ClaimClass { assigned: Some(name), .. }), None) => {
            Check::ok("storage", format!("the default storage class is {}", line(&name, 100)))
        }
        (Ok(ClaimClass { assigned: None, .. }), None) => {
            Check::of("storage", CheckState::Fail, NO_DEFAULT_CLASS, STORAGE_FIX)
        }
        (Ok(_), Some(wanted)) => {
            let found = format!(
                "unknown: this account may not read storage classes, and no claim of the class {} has a volume yet",
                line(wanted, 100)
            );
            Check::of("storage", CheckState::Skip, found, "run this once with an administrator's kubeconfig")
        }
        (Err(ClusterError::Refused(why)), _) => {
            let found = format!("the cluster refuses a volume claim: {}", line(&why, 300));
            Check::of(
                "storage",
                CheckState::Fail,
                found,
                "check the rights of this account and the quota of the namespace",
            )
        }
        (Err(error), _) => unreachable("storage", &error),
    }
}

fn storage(wanted: Option<&str>, found: Result<Option<String>, ClusterError>) -> Check {
    let fix = STORAGE_FIX;
    match (found, wanted) {
        (Ok(Some(name)), Some(_)) => Check::ok("storage", format!("the storage class {} exists", line(&name, 100))),
        (Ok(Some(name)), None) => Check::ok("storage", format!("the default storage class is {}", line(&name, 100))),
        (Ok(None), Some(wanted)) => {
            let found = format!("there is no storage class {}", line(wanted, 100));
            Check::of("storage", CheckState::Fail, found, fix)
        }
        (Ok(None), None) => Check::of("storage", CheckState::Fail, NO_DEFAULT_CLASS, fix),
        (Err(error), _) => unreachable("storage", &error),
    }
}

/// Whether the image can be pulled is known only to nodes, which show it in pods.
fn image(image: &str, pulls: &Result<ImagePulls, ClusterError>) -> Check {
    let shown = line(image, 200);
    let is_pinned = BackendImageRef { image: image.to_owned() }.check().is_ok();
    if image.is_empty() || !(is_pinned || is_image_name(image)) {
        let found = if image.is_empty() { "none is set".into() } else { format!("not the name of an image: {shown}") };
        return Check::of("image", CheckState::Fail, found, "set kubernetes.image to NAME@sha256:DIGEST");
    }
    let (is_pulled, seen) = match pulls {
        Ok(ImagePulls { failure: Some(why), .. }) => {
            let found = format!("{shown}: a node could not pull it: {}", line(why, 300));
            let fix = "check the name, and whether nodes may pull from that registry (imagePullSecrets of the account)";
            return Check::of("image", CheckState::Fail, found, fix);
        }
        Ok(ImagePulls { pulled: 1.., .. }) => (true, "nodes have pulled it"),
        Ok(_) => (false, "no pod shows whether nodes can pull it"),
        Err(error) => return unreachable("image", error),
    };
    if is_pinned {
        let found = format!("{shown}, pinned; {seen}");
        return match is_pulled {
            true => Check::ok("image", found),
            false => Check::of("image", CheckState::Skip, found, "execute a run, then check again"),
        };
    }
    let found = format!("{shown}, not pinned: its tag can be moved to another image; {seen}");
    Check::of("image", CheckState::Warn, found, "set kubernetes.image to NAME@sha256:DIGEST")
}

/// Whether the address under which pods reach the server answers from here.
async fn server_address(section: &KubernetesSection, is_in_pod: bool) -> Check {
    let Some(url) = section.server_url.as_deref().filter(|url| !url.is_empty()) else {
        let fix = "set kubernetes.server_url to the address of the server's Service";
        return Check::of("server address", CheckState::Fail, "kubernetes.server_url is not set", fix);
    };
    let health = match client(url, section.ca_file.as_deref()) {
        Ok(client) => within(client.health_and_clock()).await.map(|(health, _)| health.service_id),
        Err(failure) => return of_failure("server address", &failure),
    };
    judge_server_address(url, health, is_in_pod)
}

fn client(url: &str, ca_file: Option<&Path>) -> Result<Client, Failure> {
    let Some(path) = ca_file else { return Client::http(url, None) };
    let authorities = std::fs::read(path).map_err(|error| {
        let message = format!("cannot read kubernetes.ca_file, {}: {error}", path.display());
        Failure::new(FailureKind::SchemaInvalid, message)
    })?;
    Client::http_with_authorities(url, None, &authorities)
}

fn judge_server_address(url: &str, health: Result<String, Failure>, is_in_pod: bool) -> Check {
    let url = line(url, 200);
    match health {
        Ok(service_id) if service_id == SERVICE_ID => {
            Check::ok("server address", format!("{url} responds from here; a pod may see another network"))
        }
        Err(failure) if failure.kind == FailureKind::Unauthenticated => Check::ok(
            "server address",
            format!("{url} responds from here, and requires a token; a pod may see another network"),
        ),
        Ok(service_id) => {
            let found = format!("{url} responds, but it is not Ostler: it is {:?}", line(&service_id, 80));
            Check::of(
                "server address",
                CheckState::Fail,
                found,
                "set kubernetes.server_url to the address of the server's Service",
            )
        }
        Err(failure) if is_in_pod => {
            let found = format!("{url} does not respond: {}", line(&failure.message, 300));
            let fix = "check the Service, its NetworkPolicies, and kubernetes.server_url and ca_file";
            Check::of("server address", CheckState::Fail, found, fix)
        }
        Err(failure) => {
            let found = format!("{url} does not respond from here: {}", line(&failure.message, 300));
            let fix = "pods may see another network: run `ostler doctor --kubernetes` in the server's pod";
            Check::of("server address", CheckState::Warn, found, fix)
        }
    }
}

fn unreachable(name: &'static str, error: &ClusterError) -> Check {
    let fix = "check the kubeconfig, kubernetes.context, and whether the API server is up";
    Check::of(name, CheckState::Fail, line(&error.to_string(), 400), fix)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn late() -> ClusterError {
        ClusterError::Later { after: None, message: "slow".into() }
    }

    #[test]
    fn a_missing_right_is_named() {
        assert_eq!(rights(Ok(vec![]), "agents").state, CheckState::Ok);
        let lacking = rights(Ok(vec![Right::CreateJobs, Right::GetPodLogs]), "agents");
        assert_eq!(
            (lacking.state, lacking.found.as_str()),
            (CheckState::Fail, "this account lacks: create jobs.batch, get pods/log")
        );
        assert_eq!(rights(Err(late()), "agents").state, CheckState::Fail);
    }

    #[test]
    fn a_storage_class_exists_is_missing_or_cannot_be_read() {
        assert_eq!(storage(Some("fast"), Ok(Some("fast".into()))).state, CheckState::Ok);
        assert_eq!(storage(None, Ok(Some("standard".into()))).state, CheckState::Ok);
        assert_eq!(storage(Some("fast"), Ok(None)).state, CheckState::Fail);
        assert_eq!(storage(None, Ok(None)).state, CheckState::Fail);
        assert_eq!(storage(None, Err(late())).state, CheckState::Fail);
        let shown = |assigned: Option<&str>, bound| Ok(ClaimClass { assigned: assigned.map(str::to_owned), bound });
        assert_eq!(claim_class(None, shown(Some("standard"), 0)).state, CheckState::Ok);
        assert_eq!(claim_class(None, shown(None, 0)).state, CheckState::Fail);
        assert_eq!(claim_class(Some("fast"), shown(Some("fast"), 2)).state, CheckState::Ok);
        assert_eq!(claim_class(Some("fast"), shown(Some("fast"), 0)).state, CheckState::Skip);
        assert_eq!(claim_class(None, Err(ClusterError::Refused("quota".into()))).state, CheckState::Fail);
    }

    #[test]
    fn an_image_should_be_pinned_and_pullable() {
        let pinned = format!("registry.example/ostler@sha256:{}", "0123456789abcdef".repeat(4));
        let unknown = Ok(ImagePulls::default());
        assert_eq!(image(&pinned, &Ok(ImagePulls { pulled: 1, failure: None })).state, CheckState::Ok);
        assert_eq!(image(&pinned, &unknown).state, CheckState::Skip);
        assert_eq!(image("ostler:0.1.0", &unknown).state, CheckState::Warn);
        assert_eq!(image("ostler@sha256:12", &unknown).state, CheckState::Fail);
        assert_eq!(image("", &unknown).state, CheckState::Fail);
        let failed = Ok(ImagePulls { pulled: 1, failure: Some("no such image".into()) });
        assert_eq!(image(&pinned, &failed).state, CheckState::Fail);
        assert_eq!(image(&pinned, &Err(late())).state, CheckState::Fail);
    }

    #[test]
    fn an_address_that_only_pods_see_is_a_warning_outside_of_the_cluster() {
        let judge = |health, is_in_pod| judge_server_address("http://ostler.ostler.svc:4747", health, is_in_pod).state;
        let failed = || Err(Failure::new(FailureKind::InfraFailed, "no such host"));
        assert_eq!(judge(Ok(SERVICE_ID.to_owned()), false), CheckState::Ok);
        assert_eq!(judge(Ok("nginx".to_owned()), false), CheckState::Fail);
        assert_eq!((judge(failed(), false), judge(failed(), true)), (CheckState::Warn, CheckState::Fail));
    }

    #[test]
    fn another_launcher_is_a_warning() {
        assert_eq!(launcher(Launcher::Kubernetes, "agents").state, CheckState::Ok);
        assert_eq!(launcher(Launcher::Process, "agents").state, CheckState::Warn);
    }
}
