//! The installation in `deploy/kubernetes` is consistent: manifests refer to what exists, every container is confined, and the
//! role grants what the server uses. No cluster is needed; `cargo xtask test --kubernetes` has an API server validate the same
//! manifests.

mod confinement;
mod kustomizations;
pub(crate) mod manifests;
mod network;
mod references;
mod restore;
mod settings;

use std::collections::BTreeSet;

#[cfg(feature = "kubernetes")]
use ostler_server::kubernetes::Right;
use ostler_testkit::manifests::{OVERLAYS, mark, rendered};

use manifests::{Overlay, root};

#[test]
fn rendered_overlays_are_up_to_date() {
    let mark = mark(&root()).unwrap();
    for overlay in OVERLAYS {
        let text = std::fs::read_to_string(rendered(&root(), overlay)).unwrap();
        assert_eq!(text.lines().next(), Some(mark.as_str()), "{overlay}: run `cargo xtask kubernetes`");
    }
}

#[test]
fn no_two_manifests_of_an_overlay_have_the_same_name() {
    for overlay in Overlay::all() {
        let names: BTreeSet<_> = overlay
            .manifests
            .iter()
            .map(|one| (one["kind"].to_string(), one["metadata"]["name"].to_string()))
            .collect();
        assert_eq!(names.len(), overlay.manifests.len(), "{}", overlay.name);
        assert!(overlay.manifests.iter().all(|one| one["apiVersion"].is_string()), "{}", overlay.name);
    }
}

/// The namespace that the manifests of an overlay are in.
fn namespace(overlay: &Overlay) -> &'static str {
    if overlay.name == "agentrun" { "agentrun-v01" } else { "ostler" }
}

#[test]
fn every_manifest_is_in_the_namespace_of_its_overlay() {
    const OUTSIDE: [&str; 3] = ["Namespace", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"];
    for overlay in Overlay::all() {
        for manifest in &overlay.manifests {
            let kind = manifest["kind"].as_str().unwrap();
            let expected = (!OUTSIDE.contains(&kind)).then(|| namespace(&overlay));
            assert_eq!(manifest["metadata"]["namespace"].as_str(), expected, "{}: {kind}", overlay.name);
        }
    }
}

/// Group, resource and verb of everything that calls of the server need.
#[cfg(feature = "kubernetes")]
fn needed() -> BTreeSet<(String, String, String)> {
    let parts = |right: &Right| (right.group().to_owned(), right.resource().to_owned(), right.verb().to_owned());
    Right::ALL.iter().map(parts).collect()
}

#[cfg(feature = "kubernetes")]
#[test]
fn the_role_grants_what_the_server_calls_and_nothing_else() {
    let expected = needed();
    for overlay in Overlay::all().iter().filter(|overlay| overlay.name != "migration") {
        let mut granted = BTreeSet::new();
        for rule in overlay.of("Role").flat_map(|role| role["rules"].as_array().unwrap()) {
            assert_eq!(rule.as_object().unwrap().len(), 3, "{}: {rule}", overlay.name);
            for group in manifests::strings(&rule["apiGroups"]) {
                for resource in manifests::strings(&rule["resources"]) {
                    let verbs = manifests::strings(&rule["verbs"]);
                    granted.extend(verbs.into_iter().map(|verb| (group.clone(), resource.clone(), verb)));
                }
            }
        }
        assert_eq!(granted, expected, "{}", overlay.name);
        for kind in ["ClusterRole", "ClusterRoleBinding"] {
            assert_eq!(
                overlay.of(kind).count(),
                0,
                "{}: the server needs nothing outside of its namespace",
                overlay.name
            );
        }
    }
}

#[cfg(feature = "kubernetes")]
#[test]
fn the_guide_lists_the_rights_of_the_role() {
    let guide = std::fs::read_to_string(root().join("docs/kubernetes.md")).unwrap();
    let (_, section) = guide.split_once("## What the server may do in the cluster").unwrap();
    let rows = section.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let mut listed = BTreeSet::new();
    for row in rows.take_while(|line| line.starts_with('|')) {
        let cells: Vec<_> = row.trim_matches('|').split('|').map(str::trim).collect();
        let (resource, group) = cells[0].split_once(' ').unwrap_or((cells[0], ""));
        let (resource, group) = (resource.trim_matches('`'), group.trim_matches(['(', ')']));
        listed.extend(cells[1].split(", ").map(|verb| (group.to_owned(), resource.to_owned(), verb.to_owned())));
    }
    assert_eq!(listed, needed());
    // Every prefix of a Secret that the server may write is in the guide, as the policy has it.
    for overlay in Overlay::all().iter().filter(|overlay| overlay.name != "migration") {
        for prefix in settings::writable_prefixes(overlay) {
            assert!(section.contains(&format!("`{prefix}…`")), "{}: {prefix}", overlay.name);
        }
    }
}

#[test]
fn the_overlay_of_agentrun_has_its_names() {
    let overlay = Overlay::read("agentrun");
    for (kind, name) in [
        ("Namespace", "agentrun-v01"),
        ("Deployment", "agentrun-mgr"),
        ("Service", "agentrun-mgr"),
        ("StatefulSet", "agentrun-v01-postgres"),
        ("Service", "agentrun-v01-postgres"),
        ("PersistentVolumeClaim", "agentrun-v01-postgres-data"),
    ] {
        assert!(overlay.find(kind, name).is_some(), "{kind} {name}");
    }
    let text = overlay.find("StatefulSet", "agentrun-v01-postgres").unwrap().to_string();
    assert!(text.contains("agentrun_v01"), "the database and its user");
}
