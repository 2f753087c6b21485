//! Whatever a manifest names exists: in the same overlay, or among the Secrets that the guide has the operator create.

use std::collections::{BTreeMap, BTreeSet};

use ostler_testkit::manifests::{OVERLAYS, SINGLE_FILES, directory};
use serde_json::Value;

use super::manifests::{Overlay, Pod, items, root, selects};

/// The Secrets that an operator creates, with their keys.
const SECRETS: [(&str, &[&str]); 9] = [
    ("ostler-db", &["DATABASE_URL"]),
    ("ostler-keys", &["operator-token", "secrets-key"]),
    ("ostler-metrics", &["token"]),
    ("ostler-postgres", &["password"]),
    ("ostler-tls", &["ca.crt", "tls.crt", "tls.key"]),
    ("ostler-ingress-tls", &["tls.crt", "tls.key"]),
    ("agentrun-v01-mgr-db", &["DATABASE_URL"]),
    ("agentrun-v01-mgr-keys", &["operator-token", "secrets-key"]),
    ("agentrun-v01-postgres", &["password"]),
];

/// Adds the Secrets that a manifest names, with the keys that it names.
fn collect_secrets(manifest: &Value, found: &mut BTreeMap<String, BTreeSet<String>>) {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    if let Some(name) = text(&manifest["secretName"]) {
        let keys = items(&manifest["items"]).filter_map(|item| text(&item["key"]));
        found.entry(name).or_default().extend(keys);
    }
    // `secretKeyRef`, and what a service monitor names.
    if let (Some(name), Some(key)) = (text(&manifest["name"]), text(&manifest["key"])) {
        found.entry(name).or_default().insert(key);
    }
    let members = manifest.as_object().into_iter().flat_map(|object| object.values());
    members.chain(items(manifest)).for_each(|member| collect_secrets(member, found));
}

#[test]
fn every_secret_is_one_that_the_guide_creates() {
    let mut found = BTreeMap::new();
    for overlay in Overlay::all().into_iter().chain(Overlay::single_files()) {
        overlay.manifests.iter().for_each(|manifest| collect_secrets(manifest, &mut found));
        assert_eq!(overlay.of("Secret").count(), 0, "{}: a repository is no place for secrets", overlay.name);
    }
    let guide = std::fs::read_to_string(root().join("docs/kubernetes.md")).unwrap();
    let names: BTreeSet<&str> = SECRETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(found.keys().map(String::as_str).collect::<BTreeSet<_>>(), names);
    for (name, keys) in SECRETS {
        let unknown: Vec<_> = found[name].iter().filter(|key| !keys.contains(&key.as_str())).collect();
        assert!(unknown.is_empty(), "{name}: {unknown:?}");
        for word in keys.iter().chain(&[name]) {
            assert!(guide.contains(&format!("`{word}`")), "docs/kubernetes.md does not name {word} of {name}");
        }
    }
}

#[test]
fn every_volume_and_account_of_a_pod_exists() {
    for overlay in Overlay::all() {
        for pod in overlay.pods() {
            let exists = |kind: &str, name: &Value| {
                let found = name.is_null() || overlay.find(kind, name.as_str().unwrap()).is_some();
                assert!(found, "{}: {kind} {name}", pod.owner);
            };
            exists("ServiceAccount", &pod.spec["serviceAccountName"]);
            for volume in pod.volumes() {
                exists("ConfigMap", &volume["configMap"]["name"]);
                exists("PersistentVolumeClaim", &volume["persistentVolumeClaim"]["claimName"]);
                assert_eq!(volume.as_object().unwrap().len(), 2, "{}: a name and one source: {volume}", pod.owner);
            }
            let volumes: BTreeSet<_> = pod.volumes().map(|volume| volume["name"].to_string()).collect();
            let mounts = pod.containers().flat_map(|container| items(&container["volumeMounts"]));
            let mounted: BTreeSet<_> = mounts.map(|mount| mount["name"].to_string()).collect();
            assert_eq!(mounted, volumes, "{}: every volume is mounted, and nothing else", pod.owner);
        }
    }
}

/// Whether a container of the pod has a port of this name or number.
fn has_port(pod: &Pod<'_>, port: &Value) -> bool {
    pod.containers()
        .flat_map(|container| items(&container["ports"]))
        .any(|own| own["name"] == *port || own["containerPort"] == *port)
}

#[test]
fn probes_and_services_use_ports_that_exist() {
    for overlay in Overlay::all() {
        for pod in overlay.pods() {
            for container in pod.containers() {
                for probe in ["startupProbe", "readinessProbe", "livenessProbe"].map(|name| &container[name]) {
                    let port = &probe["httpGet"]["port"];
                    assert!(port.is_null() || has_port(&pod, port), "{}: {probe}", pod.owner);
                }
            }
        }
        for service in overlay.of("Service") {
            let spec = &service["spec"];
            let labels = spec["selector"].as_object().unwrap();
            let pods = overlay.pods();
            let pods: Vec<_> = pods.iter().filter(|pod| labels.iter().all(|(k, v)| pod.labels[k] == *v)).collect();
            assert_eq!(pods.len(), 1, "{}: {service}", overlay.name);
            for port in items(&spec["ports"]) {
                assert!(has_port(pods[0], &port["targetPort"]), "{}: {port}", overlay.name);
            }
        }
    }
}

#[test]
fn manifests_that_name_others_find_them() {
    for overlay in Overlay::all() {
        let exists = |kind: &Value, name: &Value| {
            let found = overlay.find(kind.as_str().unwrap(), name.as_str().unwrap()).is_some();
            assert!(found, "{}: {kind} {name}", overlay.name);
        };
        for binding in overlay.of("RoleBinding") {
            exists(&binding["roleRef"]["kind"], &binding["roleRef"]["name"]);
            for subject in items(&binding["subjects"]) {
                exists(&subject["kind"], &subject["name"]);
                assert_eq!(subject["namespace"], binding["metadata"]["namespace"], "{}", overlay.name);
            }
        }
        for autoscaler in overlay.of("HorizontalPodAutoscaler") {
            exists(&autoscaler["spec"]["scaleTargetRef"]["kind"], &autoscaler["spec"]["scaleTargetRef"]["name"]);
        }
        for set in overlay.of("StatefulSet") {
            exists(&"Service".into(), &set["spec"]["serviceName"]);
        }
        for binding in overlay.of("ValidatingAdmissionPolicyBinding") {
            exists(&"ValidatingAdmissionPolicy".into(), &binding["spec"]["policyName"]);
        }
        let rules = overlay.of("Ingress").flat_map(|ingress| items(&ingress["spec"]["rules"]));
        for path in rules.flat_map(|rule| items(&rule["http"]["paths"])) {
            let target = &path["backend"]["service"];
            let service = overlay.find("Service", target["name"].as_str().unwrap()).unwrap();
            assert!(items(&service["spec"]["ports"]).any(|port| port["name"] == target["port"]["name"]), "{path}");
        }
    }
}

#[test]
fn selectors_select_the_pods_of_their_overlay() {
    for overlay in Overlay::all() {
        let pods = overlay.pods();
        for kind in ["Deployment", "StatefulSet", "PodDisruptionBudget"] {
            for manifest in overlay.of(kind) {
                let selected = pods.iter().filter(|pod| selects(&manifest["spec"]["selector"], pod.labels)).count();
                assert_eq!(selected, 1, "{}: {kind}", overlay.name);
            }
        }
        for monitor in overlay.of("ServiceMonitor") {
            let monitored = |service: &&Value| selects(&monitor["spec"]["selector"], &service["metadata"]["labels"]);
            let service = overlay.of("Service").find(monitored).unwrap();
            for endpoint in items(&monitor["spec"]["endpoints"]) {
                assert!(items(&service["spec"]["ports"]).any(|port| port["name"] == endpoint["port"]), "{endpoint}");
            }
        }
    }
}

/// The files of a folder of `deploy/kubernetes`, by their paths below it.
fn files_in(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(directory(&root()).join(folder)).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    files.map(|entry| format!("{folder}{}", entry.file_name().to_str().unwrap())).collect()
}

#[test]
fn every_manifest_is_part_of_an_overlay_or_applied_by_itself() {
    let single: BTreeSet<String> = files_in("").into_iter().chain(files_in("restore/")).collect();
    assert_eq!(single, SINGLE_FILES.into_iter().map(str::to_owned).collect::<BTreeSet<_>>());
    let rendered: BTreeSet<String> = files_in("rendered/").into_iter().collect();
    let expected: BTreeSet<String> = OVERLAYS.into_iter().map(|overlay| format!("rendered/{overlay}.yaml")).collect();
    assert_eq!(rendered, expected);
}

#[test]
fn every_path_in_the_guide_exists() {
    let pages = ["docs/kubernetes.md", "docs/kubernetes-clients.md"];
    let guide = pages.map(|page| std::fs::read_to_string(root().join(page)).unwrap()).join("\n");
    let words = guide.split(|letter: char| letter.is_whitespace() || "`()[]|'\"#,;".contains(letter));
    let paths: BTreeSet<&str> = words
        .map(|word| word.trim_start_matches("../").trim_end_matches(['.', ':']))
        .filter(|word| ["deploy/", "crates/", "xtask/"].iter().any(|folder| word.starts_with(folder)))
        .collect();
    assert!(paths.len() > 5, "{paths:?}");
    let missing: Vec<_> = paths.iter().filter(|path| !root().join(path).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
