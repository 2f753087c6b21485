//! The configuration that an overlay installs is one that the server accepts, and fits the manifests around it.

use ostler_protocol::kernel::provider_profiles::ProfileOwner;
use ostler_server::{
    Config,
    config::{DEFAULT_LISTEN, LimitsSection},
};
use serde_json::{Value, json};

use super::{
    manifests::{Overlay, items, root},
    namespace,
};
use crate::harness::dialects;

/// The text of the configuration file, of an overlay that has one.
fn settings(overlay: &Overlay) -> Option<String> {
    let map = overlay.of("ConfigMap").next()?;
    Some(map["data"]["ostler.toml"].as_str().unwrap().to_owned())
}

/// A value of the configuration file that is a text. `None` if the file does not have it, or the overlay has no file.
pub(crate) fn setting(overlay: &Overlay, section: &str, key: &str) -> Option<String> {
    let all: toml::Table = settings(overlay)?.parse().unwrap();
    Some(all.get(section)?.get(key)?.as_str().unwrap().to_owned())
}

/// The port that the server of an overlay listens on. `None` if the overlay has no server.
pub(crate) fn listen_port(overlay: &Overlay) -> Option<i64> {
    let listen = setting(overlay, "server", "listen")?;
    Some(listen.rsplit_once(':').unwrap().1.parse().unwrap())
}

/// The settings of the launcher, which only a program with that feature knows.
fn split(text: &str) -> (toml::Table, toml::Table) {
    let mut all: toml::Table = text.parse().unwrap();
    let runner = all.get_mut("runner").and_then(toml::Value::as_table_mut).unwrap();
    assert_eq!(runner.remove("launcher").unwrap().as_str(), Some("kubernetes"));
    let Some(toml::Value::Table(cluster)) = all.remove("kubernetes") else { panic!("no section of the launcher") };
    (all, cluster)
}

fn read(text: &str) -> Config {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ostler.toml");
    std::fs::write(&file, text).unwrap();
    Config::read(Some(&file), std::iter::empty(), &[], &dialects().sections()).unwrap()
}

#[test]
fn every_installed_configuration_is_valid() {
    for overlay in Overlay::all() {
        let Some(text) = settings(&overlay) else {
            assert_eq!(overlay.name, "migration");
            continue;
        };
        let (general, _) = split(&text);
        let config = read(&general.to_string());
        assert_eq!(config.server.listen, "0.0.0.0:4747", "{}", overlay.name);
        assert!(!config.server.open_loopback && !config.server.open_metrics, "{}", overlay.name);
        #[cfg(feature = "kubernetes")]
        read(&text);
    }
}

#[test]
fn files_of_the_configuration_are_in_mounted_volumes() {
    for overlay in Overlay::all() {
        let Some(text) = settings(&overlay) else { continue };
        let pods = overlay.pods();
        let server = pods.iter().find(|pod| pod.labels["app.kubernetes.io/component"] == "server").unwrap();
        let container = items(&server.spec["containers"]).next().unwrap();
        let mounts: Vec<&str> =
            items(&container["volumeMounts"]).map(|mount| mount["mountPath"].as_str().unwrap()).collect();
        let paths: Vec<&str> = text.split('"').filter(|word| word.starts_with('/')).collect();
        assert!(!paths.is_empty(), "{}", overlay.name);
        for path in paths {
            assert!(mounts.iter().any(|mount| path.starts_with(&format!("{mount}/"))), "{}: {path}", overlay.name);
        }
    }
}

#[test]
fn runners_have_the_servers_image_its_address_and_an_account() {
    for overlay in Overlay::all() {
        let Some(text) = settings(&overlay) else { continue };
        let (general, cluster) = split(&text);
        let text = |key: &str| cluster[key].as_str().unwrap();
        let pods = overlay.pods();
        let server = pods.iter().find(|pod| pod.labels["app.kubernetes.io/component"] == "server").unwrap();
        assert!(server.containers().all(|container| container["image"] == text("image")), "{}", overlay.name);
        assert!(overlay.find("ServiceAccount", text("service_account")).is_some(), "{}", overlay.name);
        let of_server = |service: &&Value| service["metadata"]["labels"]["app.kubernetes.io/component"] == "server";
        let service = overlay.of("Service").find(of_server).unwrap()["metadata"]["name"].as_str().unwrap();
        let scheme = if general["server"].get("tls_cert").is_some() { "https" } else { "http" };
        let address = format!("{scheme}://{service}.{}.svc:4747", namespace(&overlay));
        assert_eq!(text("server_url"), address, "{}", overlay.name);
        assert_eq!(cluster.contains_key("ca_file"), scheme == "https", "{}", overlay.name);
    }
    let restores = Overlay::single_files().into_iter().filter(|single| !single.pods().is_empty());
    let images: Vec<_> = Overlay::all().into_iter().chain(restores).collect();
    let image = |overlay: &Overlay| {
        let pods = overlay.pods();
        let images = pods.iter().flat_map(|pod| pod.containers()).map(|container| container["image"].to_string());
        images.filter(|image| !image.contains("postgres")).collect::<std::collections::BTreeSet<_>>()
    };
    assert!(images.iter().all(|overlay| image(overlay) == image(&images[0])), "all of them use the same version");
}

/// `kubectl exec` of `ostler doctor` needs neither a flag nor a token.
#[test]
fn commands_in_the_pod_of_a_server_reach_it_on_loopback() {
    for overlay in Overlay::all() {
        let Some(port) = listen_port(&overlay) else { continue };
        let pods = overlay.pods();
        let server = pods.iter().find(|pod| pod.labels["app.kubernetes.io/component"] == "server").unwrap();
        let container = items(&server.spec["containers"]).next().unwrap();
        let variable = |name: &str| {
            let found = items(&container["env"]).find(|one| one["name"] == name)?;
            Some(found["value"].as_str().unwrap().to_owned())
        };
        let (address, authority) = (variable("OSTLER_SERVER"), variable("OSTLER_CA_FILE"));
        if setting(&overlay, "server", "tls_cert").is_none() {
            assert_eq!((address, authority), (None, None), "{}", overlay.name);
            assert!(DEFAULT_LISTEN.ends_with(&format!(":{port}")), "{}: the default of commands", overlay.name);
            continue;
        }
        assert_eq!(address, Some(format!("https://localhost:{port}")), "{}", overlay.name);
        assert_eq!(authority, setting(&overlay, "kubernetes", "ca_file"), "{}", overlay.name);
        let guide = std::fs::read_to_string(root().join("docs/kubernetes-clients.md")).unwrap();
        for names in ["DNS:ostler.ostler.svc,DNS:localhost", "dnsNames: [ostler.ostler.svc, localhost]"] {
            assert!(guide.contains(names), "the guide has a certificate made with {names}");
        }
    }
}

#[test]
fn the_autoscaler_uses_metrics_that_the_server_has() {
    let overlay = Overlay::read("production");
    let metrics: Vec<&str> = dialects().metrics().map(|(name, ..)| name).collect();
    let autoscaler = overlay.of("HorizontalPodAutoscaler").next().unwrap();
    let used: Vec<&str> =
        items(&autoscaler["spec"]["metrics"]).map(|one| one["pods"]["metric"]["name"].as_str().unwrap()).collect();
    assert!(!used.is_empty() && used.iter().all(|name| metrics.contains(name)), "{used:?}");
    let streams = items(&autoscaler["spec"]["metrics"]).find(|one| one["pods"]["metric"]["name"] == "ostler_followers");
    let target: usize = streams.unwrap()["pods"]["target"]["averageValue"].as_str().unwrap().parse().unwrap();
    let limit = LimitsSection::default().followers_max;
    assert!(target * 2 <= limit, "one server can carry the streams of another that ends");
}

/// How the names of Secrets begin that the policy of an overlay lets its server write.
pub(crate) fn writable_prefixes(overlay: &Overlay) -> Vec<String> {
    let policy = overlay.of("ValidatingAdmissionPolicy").next().unwrap();
    let variable = items(&policy["spec"]["variables"]).find(|one| one["name"] == "prefixes").unwrap();
    serde_json::from_str(variable["expression"].as_str().unwrap()).unwrap()
}

/// The names of Secrets are limited by a policy, because a role cannot do it.
#[test]
fn the_policy_of_secret_names_in_each_overlay_is_about_its_server() {
    for overlay in Overlay::all().iter().filter(|overlay| overlay.name != "migration") {
        let [policy] = overlay.of("ValidatingAdmissionPolicy").collect::<Vec<_>>()[..] else {
            panic!("{}: one policy", overlay.name)
        };
        let [binding] = overlay.of("ValidatingAdmissionPolicyBinding").collect::<Vec<_>>()[..] else {
            panic!("{}: one binding", overlay.name)
        };
        assert_eq!(binding["spec"]["policyName"], policy["metadata"]["name"], "{}", overlay.name);
        assert_eq!(binding["spec"]["validationActions"], json!(["Deny"]), "{}", overlay.name);
        let account = &overlay.of("RoleBinding").next().unwrap()["subjects"][0];
        let [space, name] = ["namespace", "name"].map(|field| account[field].as_str().unwrap());
        let pods = overlay.pods();
        let server = pods.iter().find(|pod| pod.labels["app.kubernetes.io/component"] == "server").unwrap();
        assert_eq!(server.spec["serviceAccountName"], name, "{}", overlay.name);
        let user = format!("request.userInfo.username == \"system:serviceaccount:{space}:{name}\"");
        let conditions = &policy["spec"]["matchConditions"];
        assert_eq!(conditions, &json!([{"name": "by-the-server", "expression": user}]), "{}", overlay.name);

        let jobs = setting(overlay, "kubernetes", "job_prefix").unwrap_or_else(|| "ostler-run".into());
        let prefixes = writable_prefixes(overlay);
        assert_eq!(
            prefixes,
            ["agentrun-v01-provider-", "agentrun-v01-tenant-", &format!("{jobs}-")],
            "{}",
            overlay.name
        );
        for owner in [ProfileOwner::Operator, ProfileOwner::of(Some("hwlab"))] {
            let name = owner.stored_name("codex");
            assert!(prefixes.iter().any(|prefix| name.starts_with(prefix)), "{}: {name}", overlay.name);
        }
        // Two installations of one cluster have two policies.
        let prefix = if overlay.name == "agentrun" { "agentrun-v01" } else { "ostler" };
        assert_eq!(policy["metadata"]["name"], format!("{prefix}-secret-names"));
    }
    #[cfg(feature = "kubernetes")]
    assert_eq!(ostler_server::config::KubernetesSection::default().job_prefix, "ostler-run");
}

#[test]
fn a_changed_configuration_gets_another_name() {
    for overlay in Overlay::all() {
        let Some(map) = overlay.of("ConfigMap").next() else { continue };
        let name = map["metadata"]["name"].as_str().unwrap();
        let digest = name.strip_prefix("ostler-config-").unwrap();
        assert_eq!(digest.len(), 10, "{}: {name}", overlay.name);
    }
    // The pod waits longer for the server than the server for its work.
    let text = std::fs::read_to_string(root().join("deploy/kubernetes/production/ostler.toml")).unwrap();
    let config = read(&split(&text).0.to_string());
    let overlay = Overlay::read("production");
    let spec = &overlay.of("Deployment").next().unwrap()["spec"]["template"]["spec"];
    let pause = spec["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"].as_u64().unwrap();
    let grace = spec["terminationGracePeriodSeconds"].as_u64().unwrap();
    assert!(pause * 1_000 + config.server.drain_ms + 10_000 <= grace * 1_000);
}
