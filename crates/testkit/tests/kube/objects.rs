//! Objects: created, read, listed, changed and deleted.

use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;

use crate::{World, from, refusal, secret};

/// Bound to no node, so that no kubelet interferes.
fn pod(name: &str) -> Pod {
    from(json!({
        "metadata": {"name": name, "labels": {"app": "a"}},
        "spec": {
            "nodeSelector": {"ostler.dev/none": "true"}, "restartPolicy": "Never",
            "containers": [{"name": "main", "image": "example.test/image:1"}]
        }
    }))
}

#[tokio::test]
async fn a_created_object_gets_an_identity_a_version_and_defaults() {
    let world = World::start().await;
    let created = world.api::<Secret>().create(&PostParams::default(), &secret("a", "x")).await.unwrap();
    assert!(created.metadata.uid.is_some() && created.metadata.creation_timestamp.is_some());
    assert!(created.metadata.resource_version.is_some());
    assert_eq!(created.data.unwrap()["key"].0, b"value");
    assert_eq!((created.string_data, created.type_.as_deref()), (None, Some("Opaque")));

    let created = world.api::<Pod>().create(&PostParams::default(), &pod("p")).await.unwrap();
    assert_eq!(created.metadata.generation, Some(1));
    assert_eq!(created.status.unwrap().phase.as_deref(), Some("Pending"));
    assert_eq!(created.spec.unwrap().termination_grace_period_seconds, Some(30));
}

#[tokio::test]
async fn a_name_is_given_once_and_generated_names_have_their_prefix() {
    let world = World::start().await;
    let secrets = world.api::<Secret>();
    secrets.create(&PostParams::default(), &secret("a", "x")).await.unwrap();
    let again = secrets.create(&PostParams::default(), &secret("a", "x")).await;
    assert_eq!(refusal(again), (409, "AlreadyExists".to_owned()));
    let generated: Secret = from(json!({"metadata": {"generateName": "prefix-"}}));
    let first = secrets.create(&PostParams::default(), &generated).await.unwrap().metadata.name.unwrap();
    let second = secrets.create(&PostParams::default(), &generated).await.unwrap().metadata.name.unwrap();
    assert!(first.starts_with("prefix-") && second.starts_with("prefix-") && first != second);
}

#[tokio::test]
async fn objects_that_break_the_rules_are_refused() {
    let world = World::start().await;
    let secrets = world.api::<Secret>();
    let invalid = secrets.create(&PostParams::default(), &secret("Not_A_Name", "x")).await;
    assert_eq!(refusal(invalid), (422, "Invalid".to_owned()));
    let elsewhere: Api<Secret> = Api::namespaced(world.client.clone(), "ostler-no-such-namespace");
    assert_eq!(
        refusal(elsewhere.create(&PostParams::default(), &secret("a", "x")).await),
        (404, "NotFound".to_owned())
    );
    let empty: Pod = from(json!({"metadata": {"name": "p"}, "spec": {"containers": []}}));
    assert_eq!(refusal(world.api::<Pod>().create(&PostParams::default(), &empty).await).0, 422);
    let claim: PersistentVolumeClaim =
        from(json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"]}}));
    assert_eq!(refusal(world.api::<PersistentVolumeClaim>().create(&PostParams::default(), &claim).await).0, 422);
}

#[tokio::test]
async fn a_dry_run_stores_nothing() {
    let world = World::start().await;
    let secrets = world.api::<Secret>();
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let created = secrets.create(&params, &secret("a", "x")).await.unwrap();
    assert_eq!(created.data.unwrap()["key"].0, b"value");
    assert_eq!(secrets.get_opt("a").await.unwrap(), None);
}

#[tokio::test]
async fn a_replace_with_an_old_version_is_a_conflict_and_one_without_a_change_keeps_the_version() {
    let world = World::start().await;
    let secrets = world.api::<Secret>();
    let first = secrets.create(&PostParams::default(), &secret("a", "x")).await.unwrap();
    let unchanged = secrets.replace("a", &PostParams::default(), &first).await.unwrap();
    assert_eq!(unchanged.metadata.resource_version, first.metadata.resource_version);

    let mut changed = first.clone();
    changed.metadata.labels.get_or_insert_default().insert("group".to_owned(), "y".to_owned());
    let second = secrets.replace("a", &PostParams::default(), &changed).await.unwrap();
    assert_ne!(second.metadata.resource_version, first.metadata.resource_version);
    assert_eq!(second.metadata.uid, first.metadata.uid);
    let late = secrets.replace("a", &PostParams::default(), &changed).await;
    assert_eq!(refusal(late), (409, "Conflict".to_owned()));
    let version = first.metadata.resource_version.unwrap();
    let patch = json!({"metadata": {"resourceVersion": version}, "data": {"more": "dg=="}});
    let late = secrets.patch("a", &PatchParams::default(), &Patch::Merge(&patch)).await;
    assert_eq!(refusal(late), (409, "Conflict".to_owned()));
    let none = secrets.replace("none", &PostParams::default(), &secret("none", "x")).await;
    assert_eq!(refusal(none), (404, "NotFound".to_owned()));
}

#[tokio::test]
async fn the_status_is_written_only_through_its_subresource() {
    let world = World::start().await;
    let pods = world.api::<Pod>();
    pods.create(&PostParams::default(), &pod("p")).await.unwrap();
    let params = PatchParams::default();
    let status = json!({"status": {
        "phase": "Running", "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{
            "name": "main", "image": "i", "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
        }]
    }});
    pods.patch_status("p", &params, &Patch::Strategic(&status)).await.unwrap();
    let more = json!({"status": {"conditions": [{"type": "Other", "status": "False"}]}});
    let status = pods.patch_status("p", &params, &Patch::Strategic(&more)).await.unwrap().status.unwrap();
    let conditions = status.conditions.unwrap();
    assert!(["Ready", "Other"].iter().all(|kind| conditions.iter().any(|one| one.type_ == *kind)), "{conditions:?}");

    let both = json!({"status": {"phase": "Failed"}, "metadata": {"labels": {"app": "b"}}});
    let patched = pods.patch("p", &params, &Patch::Merge(&both)).await.unwrap();
    assert_eq!(patched.status.unwrap().phase.as_deref(), Some("Running"), "the status was not changed");
    assert_eq!(patched.metadata.labels.unwrap()["app"], "b");
    assert_eq!(patched.metadata.generation, Some(1));
    let moved = json!({"spec": {"restartPolicy": "Always"}});
    assert_eq!(refusal(pods.patch("p", &params, &Patch::Merge(&moved)).await).0, 422);
}

#[tokio::test]
async fn lists_come_in_chunks_of_one_snapshot() {
    let world = World::start().await;
    let secrets = world.api::<Secret>();
    for name in ["a", "b", "c", "d", "e"] {
        secrets.create(&PostParams::default(), &secret(name, "x")).await.unwrap();
    }
    let params = ListParams::default().labels("group=x").limit(2);
    let first = secrets.list(&params).await.unwrap();
    secrets.delete("d", &DeleteParams::default()).await.unwrap();
    secrets.create(&PostParams::default(), &secret("cc", "x")).await.unwrap();
    let mut names: Vec<String> = first.items.iter().map(|one| one.metadata.name.clone().unwrap()).collect();
    assert_eq!(names, ["a", "b"]);
    let mut token = first.metadata.continue_;
    while let Some(next) = token.filter(|token| !token.is_empty()) {
        let chunk = secrets.list(&params.clone().continue_token(&next)).await.unwrap();
        assert_eq!(chunk.metadata.resource_version, first.metadata.resource_version);
        names.extend(chunk.items.iter().map(|one| one.metadata.name.clone().unwrap()));
        token = chunk.metadata.continue_;
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    let invalid = secrets.list(&ListParams::default().limit(2).continue_token("bad")).await;
    assert_eq!(refusal(invalid), (400, "BadRequest".to_owned()));
}

#[tokio::test]
async fn selectors_choose_by_labels_and_fields() {
    let world = World::start().await;
    let secrets = world.api::<Secret>();
    for (name, label) in [("a", "x"), ("b", "y"), ("c", "z")] {
        secrets.create(&PostParams::default(), &secret(name, label)).await.unwrap();
    }
    for (labels, fields, expected) in [
        ("group=x", "", vec!["a"]),
        ("group in (x,y)", "", vec!["a", "b"]),
        ("group notin (x),group", "", vec!["b", "c"]),
        ("group", "metadata.name!=a", vec!["b", "c"]),
        ("!group", "type=Opaque", vec![]),
    ] {
        let found = secrets.list(&ListParams::default().labels(labels).fields(fields)).await.unwrap();
        let names: Vec<_> = found.items.iter().map(|one| one.metadata.name.as_deref().unwrap()).collect();
        assert_eq!(names, expected, "{labels} {fields}");
    }
    let unknown = secrets.list(&ListParams::default().fields("spec.unknown=1")).await;
    assert_eq!(refusal(unknown), (400, "BadRequest".to_owned()));
}

#[tokio::test]
async fn a_deletion_can_require_the_object_that_was_read() {
    let world = World::start().await;
    let secrets = world.api::<Secret>();
    let created = secrets.create(&PostParams::default(), &secret("a", "x")).await.unwrap();
    let of = |uid: &str| {
        DeleteParams::default().preconditions(Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() })
    };
    let other = secrets.delete("a", &of("00000000-0000-0000-0000-000000000000")).await.map(drop);
    assert_eq!(refusal(other), (409, "Conflict".to_owned()));
    let deleted = secrets.delete("a", &of(created.metadata.uid.as_deref().unwrap())).await.unwrap();
    assert!(deleted.is_right(), "nothing waits for a secret, so the answer is a status");
    assert_eq!(refusal(secrets.delete("a", &DeleteParams::default()).await.map(drop)), (404, "NotFound".to_owned()));
}

#[tokio::test]
async fn a_claim_that_no_pod_uses_is_deleted_after_its_finalizer() {
    let world = World::start().await;
    let claims = world.api::<PersistentVolumeClaim>();
    let claim = from(json!({
        "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    }));
    let created: PersistentVolumeClaim = claims.create(&PostParams::default(), &claim).await.unwrap();
    assert_eq!(created.metadata.finalizers.unwrap(), ["kubernetes.io/pvc-protection"]);
    let deleted = claims.delete("c", &DeleteParams::default()).await.unwrap();
    assert!(deleted.left().is_some_and(|claim| claim.metadata.deletion_timestamp.is_some()));
    crate::eventually(async || claims.get_opt("c").await.unwrap().is_none().then_some(())).await;
}

#[tokio::test]
async fn a_client_discovers_the_server_and_its_own_access() {
    let world = World::start().await;
    assert_eq!(world.client.apiserver_version().await.unwrap().major, "1");
    let groups = world.client.list_api_groups().await.unwrap();
    assert!(groups.groups.iter().any(|group| group.name == "batch"));
    let jobs = world.client.list_api_group_resources("batch/v1").await.unwrap();
    assert!(jobs.resources.iter().any(|resource| resource.name == "jobs/status"));
    let core = world.client.list_core_api_resources("v1").await.unwrap();
    assert!(core.resources.iter().any(|resource| resource.name == "pods/log"));
    let attributes = json!({"namespace": world.namespace, "verb": "create", "group": "batch", "resource": "jobs"});
    let review: SelfSubjectAccessReview = from(json!({"metadata": {}, "spec": {"resourceAttributes": attributes}}));
    let reviews: Api<SelfSubjectAccessReview> = Api::all(world.client.clone());
    let reviewed = reviews.create(&PostParams::default(), &review).await.unwrap();
    assert!(reviewed.status.unwrap().allowed);
}
