//! Server-side apply.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::{World, refusal};

fn config(data: Value) -> Patch<Value> {
    Patch::Apply(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "data": data}))
}

#[tokio::test]
async fn an_apply_creates_once_and_changes_nothing_when_it_is_repeated() {
    let world = World::start().await;
    let secrets = world.api::<Secret>();
    let params = PatchParams::apply("first");
    let created = secrets.patch("a", &params, &config(json!({"k": "dg=="}))).await.unwrap();
    let again = secrets.patch("a", &params, &config(json!({"k": "dg=="}))).await.unwrap();
    assert_eq!(again.metadata.uid, created.metadata.uid);
    assert_eq!(again.metadata.resource_version, created.metadata.resource_version);
    let managers = again.metadata.managed_fields.unwrap();
    assert_eq!(managers.len(), 1);
    assert_eq!((managers[0].manager.as_deref(), managers[0].operation.as_deref()), (Some("first"), Some("Apply")));
}

#[tokio::test]
async fn a_field_of_another_manager_is_a_conflict_unless_it_is_forced() {
    let world = World::start().await;
    let secrets = world.api::<Secret>();
    secrets.patch("a", &PatchParams::apply("first"), &config(json!({"k": "dg==", "own": "dg=="}))).await.unwrap();
    let second = PatchParams::apply("second");
    assert_eq!(refusal(secrets.patch("a", &second, &config(json!({"k": "eg=="}))).await), (409, "Conflict".to_owned()));
    secrets.patch("a", &second, &config(json!({"k": "dg=="}))).await.expect("the same value is no conflict");
    let forced = secrets.patch("a", &second.clone().force(), &config(json!({"k": "eg=="}))).await.unwrap();
    assert_eq!(forced.data.unwrap()["k"].0, b"z");
    let left = secrets.patch("a", &PatchParams::apply("first"), &config(json!({}))).await.unwrap();
    let keys: Vec<String> = left.data.unwrap().into_keys().collect();
    assert_eq!(keys, ["k"], "a field that its only manager no longer names is removed");
}

#[tokio::test]
async fn a_change_by_an_update_is_a_conflict_for_the_next_apply() {
    let world = World::start().await;
    let secrets = world.api::<Secret>();
    let params = PatchParams::apply("first");
    secrets.patch("a", &params, &config(json!({"k": "dg=="}))).await.unwrap();
    let other = PatchParams { field_manager: Some("other".to_owned()), ..PatchParams::default() };
    secrets.patch("a", &other, &Patch::Merge(json!({"data": {"k": "eg=="}}))).await.unwrap();
    assert_eq!(refusal(secrets.patch("a", &params, &config(json!({"k": "dg=="}))).await), (409, "Conflict".to_owned()));
}

#[tokio::test]
async fn a_job_can_be_applied_twice_although_its_template_is_immutable() {
    let world = World::start().await;
    let jobs = world.api::<Job>();
    let job = |image: &str| {
        let container = json!({"name": "main", "image": image, "env": [{"name": "A", "value": "1"}]});
        let pod = json!({
            "restartPolicy": "Never", "nodeSelector": {"ostler.dev/none": "true"}, "containers": [container]
        });
        let spec = json!({"backoffLimit": 0, "suspend": true, "template": {"spec": pod}});
        Patch::Apply(json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": spec}))
    };
    let params = PatchParams::apply("first");
    let created = jobs.patch("j", &params, &job("example.test/image:1")).await.unwrap();
    let again = jobs.patch("j", &params, &job("example.test/image:1")).await.unwrap();
    assert_eq!(created.metadata.uid, again.metadata.uid);
    assert_eq!(again.metadata.generation, Some(1));
    assert_eq!(refusal(jobs.patch("j", &params, &job("example.test/image:2")).await), (422, "Invalid".to_owned()));
}
