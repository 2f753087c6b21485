//! Faults on demand: what a client sees of each, and whether its request was executed.

use std::pin::pin;
use std::time::Duration;

use futures_util::TryStreamExt;
use k8s_openapi::api::authorization::v1::SelfSubjectAccessReview;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::Client;
use kube::api::{Api, ListParams, PostParams, WatchEvent, WatchParams};
use ostler_testkit::kube::kubelet::client;
use ostler_testkit::kube::{ANY, KubeApi, KubeFault, NAMESPACE};
use ostler_testkit::proxy::{Direction, Proxy};
use serde_json::json;

use crate::{PATIENCE, code, eventually, from, refusal, secret};

async fn start() -> (KubeApi, Client, Api<Secret>) {
    let api = KubeApi::start().unwrap();
    let client = client(&api.kubeconfig()).await.unwrap();
    let secrets = Api::namespaced(client.clone(), NAMESPACE);
    (api, client, secrets)
}

#[tokio::test]
async fn a_request_that_is_turned_away_is_not_executed() {
    let (api, _client, secrets) = start().await;
    api.inject(KubeFault::TooManyRequests { retry_after_s: 7 }, "create", "secrets", 1);
    api.inject(KubeFault::InternalError, "create", ANY, 1);
    api.inject(KubeFault::CutBefore, ANY, "secrets", 1);
    let params = PostParams::default();
    let busy = secrets.create(&params, &secret("a", "x")).await.unwrap_err();
    let kube::Error::Api(status) = &busy else { panic!("{busy}") };
    assert_eq!((status.code, status.details.as_ref().unwrap().retry_after_seconds), (429, 7));
    assert_eq!(refusal(secrets.create(&params, &secret("a", "x")).await), (500, "InternalError".to_owned()));
    assert_eq!(code(&secrets.create(&params, &secret("a", "x")).await.unwrap_err()), 0, "no response");
    assert_eq!(api.faults_waiting(), 0);
    assert!(api.objects("secrets").is_empty());
    secrets.create(&params, &secret("a", "x")).await.unwrap();
    assert_eq!(api.count("create", "secrets"), 4);
}

#[tokio::test]
async fn a_request_with_a_lost_answer_was_executed() {
    let (api, _client, secrets) = start().await;
    api.inject(KubeFault::LostAnswer, "create", "secrets", 1);
    let lost = secrets.create(&PostParams::default(), &secret("a", "x")).await.unwrap_err();
    assert_eq!(code(&lost), 0, "no response: {lost}");
    let again = secrets.create(&PostParams::default(), &secret("a", "x")).await;
    assert_eq!(refusal(again), (409, "AlreadyExists".to_owned()));
}

#[tokio::test]
async fn a_delayed_request_is_answered_late() {
    let (api, _client, secrets) = start().await;
    api.inject(KubeFault::Delay(Duration::from_millis(200)), "list", "secrets", 1);
    let early = tokio::time::timeout(Duration::from_millis(50), secrets.list(&ListParams::default())).await;
    assert!(early.is_err());
    secrets.list(&ListParams::default()).await.unwrap();
}

#[tokio::test]
async fn a_watch_from_a_compacted_version_is_too_old() {
    let (api, _client, secrets) = start().await;
    let first = secrets.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    secrets.create(&PostParams::default(), &secret("a", "x")).await.unwrap();
    api.compact();
    let mut events = pin!(secrets.watch(&WatchParams::default(), &first).await.unwrap());
    let event = events.try_next().await.unwrap().unwrap();
    let WatchEvent::Error(status) = event else { panic!("{event:?}") };
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"));
    assert!(events.try_next().await.unwrap().is_none());
}

#[tokio::test]
async fn open_watches_expire_or_end_on_demand_and_get_bookmarks() {
    let (api, _client, secrets) = start().await;
    api.set_bookmark_interval(Duration::from_millis(20));
    let version = secrets.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut events = pin!(secrets.watch(&WatchParams::default(), &version).await.unwrap());
    api.create("namespaces", "", json!({"metadata": {"name": "other"}})).unwrap();
    let newer = eventually(async || match events.try_next().await.unwrap().unwrap() {
        WatchEvent::Bookmark(bookmark) => Some(bookmark.metadata.resource_version).filter(|newer| *newer != version),
        event => panic!("{event:?}"),
    })
    .await;
    api.end_watches();
    while let Some(event) = events.try_next().await.unwrap() {
        assert!(matches!(event, WatchEvent::Bookmark(_)));
    }

    let params = WatchParams::default().disable_bookmarks();
    let mut events = pin!(secrets.watch(&params, &newer).await.unwrap());
    api.expire_watches();
    let event = tokio::time::timeout(PATIENCE, events.try_next()).await.unwrap().unwrap();
    assert!(matches!(event, Some(WatchEvent::Error(status)) if status.code == 410));
    let mut events = pin!(secrets.watch(&params, &newer).await.unwrap());
    let event = events.try_next().await.unwrap();
    assert!(matches!(event, Some(WatchEvent::Error(status)) if status.code == 410), "the client must list again");
}

#[tokio::test]
async fn a_list_whose_snapshot_was_compacted_can_start_over() {
    let (api, _client, secrets) = start().await;
    for name in ["a", "b", "c"] {
        secrets.create(&PostParams::default(), &secret(name, "x")).await.unwrap();
    }
    let params = ListParams::default().limit(1);
    let first = secrets.list(&params).await.unwrap();
    api.compact();
    let token = first.metadata.continue_.unwrap();
    assert_eq!(refusal(secrets.list(&params.clone().continue_token(&token)).await), (410, "Expired".to_owned()));
    assert_eq!(secrets.list(&ListParams::default()).await.unwrap().items.len(), 3);
}

#[tokio::test]
async fn the_state_survives_a_restart_on_the_same_port() {
    let (mut api, _client, secrets) = start().await;
    let created = secrets.create(&PostParams::default(), &secret("a", "x")).await.unwrap();
    let address = api.address();
    api.stop();
    assert!(secrets.get("a").await.is_err());
    api.start_again().unwrap();
    assert_eq!(api.address(), address);
    let found = eventually(async || secrets.get("a").await.ok()).await;
    assert_eq!(found.metadata.resource_version, created.metadata.resource_version);
    let again = secrets.create(&PostParams::default(), &secret("b", "x")).await.unwrap();
    assert_ne!(again.metadata.uid, created.metadata.uid);
}

#[tokio::test]
async fn a_client_that_is_cut_off_gets_no_answer_until_it_is_connected_again() {
    let (api, _client, secrets) = start().await;
    let version = secrets.list(&ListParams::default()).await.unwrap().metadata.resource_version.unwrap();
    let mut events = pin!(secrets.watch(&WatchParams::default(), &version).await.unwrap());
    api.cut_off(true);
    let ended = tokio::time::timeout(PATIENCE, events.try_next()).await.unwrap();
    assert!(!matches!(ended, Ok(Some(_))), "the watch is cut");
    assert_eq!(code(&secrets.list(&ListParams::default()).await.unwrap_err()), 0);
    api.heal();
    eventually(async || secrets.list(&ListParams::default()).await.ok()).await;
}

#[tokio::test]
async fn a_proxy_cuts_a_response_in_the_middle() {
    let (api, _client, _secrets) = start().await;
    let proxy = Proxy::start(api.address()).unwrap();
    let client = client(&api.kubeconfig_via(proxy.address).unwrap()).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(client, NAMESPACE);
    secrets.create(&PostParams::default(), &secret("a", "x")).await.unwrap();
    proxy.cut_after(Direction::Down, 100);
    assert!(secrets.get("a").await.is_err());
    assert_eq!(proxy.cuts(), 1);
    secrets.get("a").await.unwrap();
}

#[tokio::test]
async fn the_account_of_a_server_is_refused_what_its_role_does_not_grant() {
    let api = KubeApi::start().unwrap();
    let client = client(&api.server_kubeconfig()).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    secrets.create(&PostParams::default(), &secret("ostler-run-a", "x")).await.unwrap();
    let forbidden = (403, "Forbidden".to_owned());
    let foreign = secrets.create(&PostParams::default(), &secret("ostler-keys", "x")).await;
    assert_eq!(refusal(foreign), forbidden, "the policy of Secrets' names");
    assert_eq!(refusal(secrets.list(&ListParams::default()).await), forbidden);
    let elsewhere: Api<Secret> = Api::namespaced(client.clone(), "other");
    assert_eq!(refusal(elsewhere.get("a").await), forbidden, "a role is one of its namespace");
    let classes: Api<StorageClass> = Api::all(client);
    assert_eq!(refusal(classes.list(&ListParams::default()).await), forbidden, "classes are outside of namespaces");
    assert_eq!((api.count("create", "secrets"), api.count("list", "secrets")), (2, 1), "refused calls count");
}

#[tokio::test]
async fn access_that_is_denied_is_forbidden_and_reviewed_as_such() {
    let (api, client, secrets) = start().await;
    api.deny("create", "secrets");
    let denied = secrets.create(&PostParams::default(), &secret("a", "x")).await;
    assert_eq!(refusal(denied), (403, "Forbidden".to_owned()));
    secrets.list(&ListParams::default()).await.unwrap();
    let reviews: Api<SelfSubjectAccessReview> = Api::all(client);
    let allowed = async |verb: &str| {
        let attributes = json!({"namespace": NAMESPACE, "verb": verb, "group": "", "resource": "secrets"});
        let review: SelfSubjectAccessReview = from(json!({"metadata": {}, "spec": {"resourceAttributes": attributes}}));
        reviews.create(&PostParams::default(), &review).await.unwrap().status.unwrap().allowed
    };
    assert!(!allowed("create").await);
    assert!(allowed("list").await);
    assert_eq!(api.count("create", "selfsubjectaccessreviews"), 2);
    api.reset_calls();
    assert!(api.calls().is_empty());
}
