//! A dialect that the program does not have, made for these tests. It is whole in this folder: the engine and the other dialects
//! do not change for it.

mod dialect;

use ostler_protocol::FailureKind::NotFound;
use ostler_server::{
    Config,
    config::{Environment, Overrides, keys},
};
use serde_json::{Value, json};

use crate::harness::{Engine, Setup, TestServer, both_engines, dialects, eventually, one_engine};
use dialect::PagerSection;

fn with_pager(setup: &mut Setup) {
    setup.dialects = dialects().with(dialect::dialect());
    setup.config.change(|pager: &mut PagerSection| pager.prefix = "wake up".into());
}

#[both_engines]
async fn a_new_dialect_has_routes_configuration_and_a_worker(engine: Engine) {
    let server = TestServer::with(engine, with_pager).await;
    server.post("/pager/pages", &json!({"text": "disk full"})).await.with_status(202);
    eventually("the worker sends it", async || {
        let pages = server.get("/pager/pages").await.with_status(200);
        (pages["sent"] == json!(["wake up: disk full"])).then_some(())
    })
    .await;
}

#[one_engine]
async fn its_failures_have_its_own_form_and_others_keep_theirs(engine: Engine) {
    let server = TestServer::with(engine, with_pager).await;
    let empty = server.post("/pager/pages", &json!({"text": ""})).await.with_status(400);
    assert_eq!(empty, json!({"page_failed": "schema-invalid (page-empty): a page has a text"}));
    let stranger = server.with_token(None).get("/pager/pages").await.with_status(401);
    assert!(stranger["page_failed"].as_str().unwrap().starts_with("unauthenticated"), "{stranger}");
    // A path of no dialect has the engine's failures, whatever it begins with.
    server.get("/pager/nowhere").await.refused(NotFound);
    let other = server.get("/api/v1/runs/run_00000000000000000000000000000000").await;
    assert_eq!(other.body.get("page_failed"), None, "{}", other.text);
    let trust = server.get("/agents/agt_00000000000000000000000000000000").await;
    assert_eq!(trust.body["error"]["code"], "NOT_FOUND", "{}", trust.text);
}

#[both_engines]
async fn it_wakes_the_other_servers(engine: Engine) {
    if engine == Engine::Sqlite {
        // One process has one store.
        return;
    }
    let here = TestServer::with(engine, with_pager).await;
    let there = here.start_another(|_| ()).await;
    here.post("/pager/pages", &json!({"text": "full"})).await.with_status(202);
    eventually("the other server is woken", async || {
        let woken = there.get("/pager/pages").await.with_status(200)["woken"].clone();
        (woken == json!(["full", "full: frame"])).then_some(())
    })
    .await;
    assert_eq!(here.get("/pager/pages").await.with_status(200)["woken"], json!([]));
}

#[one_engine]
async fn clients_and_operators_see_it(engine: Engine) {
    let server = TestServer::with(engine, with_pager).await;
    let document = server.get("/openapi.json").await.with_status(200);
    assert!(document["paths"]["/pager/pages"]["post"].is_object());
    let failure = &document["paths"]["/pager/pages"]["post"]["responses"]["4XX"]["content"];
    assert_eq!(failure["application/problem+json"]["schema"]["$ref"], "#/components/schemas/PagerFailure");
    let readiness = &document["components"]["schemas"]["Readiness"]["properties"]["pager"]["$ref"];
    assert_eq!(readiness, "#/components/schemas/PagerReadiness");
    // Not held against the document of a server without this dialect.
    let readiness: Value = serde_json::from_slice(&server.bytes("/health/readiness").await).unwrap();
    assert_eq!(readiness["pager"], json!({"prefix": "wake up"}));
    let features = server.get("/capabilities").await.body["features"].clone();
    assert!(features.as_array().unwrap().contains(&json!("pager")), "{features}");
    assert!(server.get("/metrics").await.text.contains("\n# TYPE pager_pages gauge\npager_pages 0\n"));
}

#[test]
fn its_configuration_is_read_checked_and_listed() {
    let sections = dialects().with(dialect::dialect()).sections();
    let load = |name: &str, value: &str| {
        let environment = Environment::with_taken([(name.into(), value.into())]);
        Config::load(None, &environment, Overrides::default(), &sections)
    };
    assert_eq!(load("OSTLER_PAGER__PREFIX", "beep").unwrap().section::<PagerSection>().prefix, "beep");
    assert!(load("OSTLER_PAGER__PREFIX", "").unwrap_err().message.contains("pager.prefix"));
    assert!(load("OSTLER_PAGER__SUFFIX", "beep").unwrap_err().message.contains("suffix"));
    assert!(keys(&sections).iter().any(|key| key.name == "pager.prefix" && key.default == "page"));
    assert!(!keys(&dialects().sections()).iter().any(|key| key.name == "pager.prefix"));
}
