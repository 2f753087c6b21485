//! No container of an installation has more rights than it needs.

use serde_json::{Value, json};

use super::manifests::Overlay;

/// All overlays, and the Jobs that restore a backup.
fn installations() -> Vec<Overlay> {
    Overlay::all().into_iter().chain(Overlay::single_files()).collect()
}

#[test]
fn every_pod_runs_as_an_unprivileged_user() {
    for pod in installations().iter().flat_map(Overlay::pods) {
        let context = &pod.spec["securityContext"];
        assert_eq!(context["runAsNonRoot"], true, "{}", pod.owner);
        assert!(context["runAsUser"].as_i64().is_some_and(|user| user > 0), "{}", pod.owner);
        assert_eq!(context["seccompProfile"]["type"], "RuntimeDefault", "{}", pod.owner);
        for shared in ["hostNetwork", "hostPID", "hostIPC", "hostUsers", "shareProcessNamespace"] {
            assert_eq!(pod.spec[shared], Value::Null, "{}: {shared}", pod.owner);
        }
        assert!(pod.spec["automountServiceAccountToken"].is_boolean(), "{}: states whether it gets a token", pod.owner);
        assert!(pod.volumes().all(|volume| volume["hostPath"].is_null()), "{}: uses a path of the machine", pod.owner);
    }
}

#[test]
fn every_container_has_a_read_only_system_and_no_capability() {
    let mut seen = 0;
    for pod in installations().iter().flat_map(Overlay::pods) {
        for container in pod.containers() {
            let (context, place) = (&container["securityContext"], format!("{}: {}", pod.owner, container["name"]));
            assert_eq!(context["allowPrivilegeEscalation"], false, "{place}");
            assert_eq!(context["readOnlyRootFilesystem"], true, "{place}");
            assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}), "{place}");
            assert_eq!(context["privileged"], Value::Null, "{place}");
            assert!(container["resources"]["requests"]["memory"].is_string(), "{place}");
            assert!(container["resources"]["limits"]["memory"].is_string(), "{place}");
            seen += 1;
        }
    }
    assert!(seen >= 12, "{seen}");
}

/// Only the server talks to the API server of Kubernetes.
#[test]
fn only_the_server_gets_a_token_of_the_cluster() {
    for overlay in installations() {
        for pod in overlay.pods() {
            let is_server = pod.labels["app.kubernetes.io/component"] == "server";
            assert_eq!(pod.spec["automountServiceAccountToken"], is_server, "{}", pod.owner);
        }
        for account in overlay.of("ServiceAccount") {
            assert_eq!(account["automountServiceAccountToken"], false, "{}: {account}", overlay.name);
        }
    }
}

#[test]
fn namespaces_reject_pods_with_more_rights() {
    for namespace in Overlay::all().iter().flat_map(|overlay| overlay.of("Namespace")) {
        assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    }
}
