//! Watches: changes in order, from a version, as a selector sees them.

use std::pin::pin;

use futures_util::{Stream, TryStreamExt};
use k8s_openapi::api::core::v1::Secret;
use kube::Error;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;

use crate::{PATIENCE, World, secret};

/// The next event that is not a bookmark: its type, and the object's name and version.
async fn next(
    events: &mut (impl Stream<Item = Result<WatchEvent<Secret>, Error>> + Unpin),
) -> (&'static str, String, u64) {
    let of = |kind, object: Secret| {
        let version = object.metadata.resource_version.unwrap().parse().unwrap();
        (kind, object.metadata.name.unwrap(), version)
    };
    loop {
        let event = tokio::time::timeout(PATIENCE, events.try_next()).await.expect("no event").unwrap();
        match event.expect("the watch ended") {
            WatchEvent::Added(object) => return of("ADDED", object),
            WatchEvent::Modified(object) => return of("MODIFIED", object),
            WatchEvent::Deleted(object) => return of("DELETED", object),
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => panic!("{status}"),
        }
    }
}

async fn version(secrets: &Api<Secret>) -> String {
    secrets.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap()
}

#[tokio::test]
async fn a_watch_reports_every_change_after_its_version_in_order() {
    let world = World::start().await;
    let secrets = world.api::<Secret>();
    secrets.create(&PostParams::default(), &secret("before", "x")).await.unwrap();
    let version = version(&secrets).await;
    secrets.create(&PostParams::default(), &secret("a", "x")).await.unwrap();
    let mut events = pin!(secrets.watch(&WatchParams::default(), &version).await.unwrap());
    let (kind, name, added) = next(&mut events).await;
    assert_eq!((kind, name.as_str()), ("ADDED", "a"), "a change between the list and the watch is not lost");
    assert!(added > version.parse().unwrap());
    let patch = Patch::Merge(json!({"data": {"more": "dg=="}}));
    secrets.patch("a", &PatchParams::default(), &patch).await.unwrap();
    let (kind, _, modified) = next(&mut events).await;
    assert_eq!(kind, "MODIFIED");
    secrets.delete("a", &DeleteParams::default()).await.unwrap();
    let (kind, _, deleted) = next(&mut events).await;
    assert_eq!(kind, "DELETED");
    assert!(added < modified && modified < deleted, "{added} {modified} {deleted}");
}

#[tokio::test]
async fn an_object_that_no_longer_matches_was_deleted_for_the_watch() {
    let world = World::start().await;
    let secrets = world.api::<Secret>();
    secrets.create(&PostParams::default(), &secret("a", "x")).await.unwrap();
    let version = version(&secrets).await;
    let params = WatchParams::default().labels("group=x");
    let mut events = pin!(secrets.watch(&params, &version).await.unwrap());
    let relabel = async |label: &str| {
        let patch = Patch::Merge(json!({"metadata": {"labels": {"group": label}}}));
        secrets.patch("a", &PatchParams::default(), &patch).await.unwrap();
    };
    relabel("y").await;
    assert_eq!(next(&mut events).await.0, "DELETED");
    relabel("x").await;
    assert_eq!(next(&mut events).await.0, "ADDED");
}

#[tokio::test]
async fn a_watch_ends_without_an_error_after_its_timeout() {
    let world = World::start().await;
    let secrets = world.api::<Secret>();
    let params = WatchParams::default().disable_bookmarks().timeout(1);
    let version = version(&secrets).await;
    let events = pin!(secrets.watch(&params, &version).await.unwrap());
    let all: Vec<WatchEvent<Secret>> = tokio::time::timeout(PATIENCE, events.try_collect()).await.unwrap().unwrap();
    assert!(all.is_empty());
}
