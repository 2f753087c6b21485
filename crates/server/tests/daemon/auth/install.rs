//! `/workspace/auth/provider(s)`.

use ostler_stand_ins::chat_with_key;
use serde_json::{Value, json};

use super::{Bound, INSTALL, PROVIDERS, refused};
use crate::{
    daemon::scene::attached,
    harness::{Engine, both_engines, eventually, one_engine},
};

const KEY: &str = "pl4nted-key-0123456789";

fn custom(base_url: &str) -> Value {
    json!({"providerId": "custom-openai-compatible", "apiKey": KEY, "baseUrl": base_url, "modelIds": ["My/Model"]})
}

/// The models of all providers.
async fn models(bound: &Bound) -> Vec<String> {
    let status = bound.server.get("/workspace/providers").await.with_status(200);
    let providers = status["providers"].as_array().unwrap().iter();
    let models = providers.flat_map(|provider| provider["models"].as_array().unwrap());
    models.map(|model| model["modelId"].as_str().unwrap().to_owned()).collect()
}

#[one_engine]
async fn the_catalog_has_the_shape_that_clients_expect(engine: Engine) {
    let bound = Bound::start(engine).await;
    let catalog = bound.server.get(PROVIDERS).await.with_status(200);
    assert_eq!((&catalog["v"], &catalog["workspaceCwd"]), (&json!(1), &json!(bound.root())));
    let providers = catalog["providers"].as_array().unwrap();
    for provider in providers {
        for name in ["id", "label", "description", "protocol"] {
            assert!(provider[name].is_string(), "{provider}");
        }
        assert!(provider["steps"].as_array().unwrap().contains(&json!("apiKey")), "{provider}");
    }
    let found = |id: &str| providers.iter().find(|provider| provider["id"] == id).unwrap();
    assert_eq!(found("deepseek")["baseUrl"], "https://api.deepseek.com");
    assert!(found("minimax")["baseUrl"][1]["url"].is_string());
    assert_eq!(found("custom-openai-compatible")["baseUrl"], Value::Null);
    let groups: Vec<_> = catalog["groups"].as_array().unwrap().iter().map(|group| group["id"].clone()).collect();
    assert_eq!(groups, ["alibaba", "third-party", "custom"]);
}

/// From the key to the answer of a model, without a restart.
#[both_engines]
async fn an_installed_model_handles_the_next_prompt(engine: Engine) {
    let endpoint = chat_with_key(KEY);
    let bound = Bound::with(engine, |setup| {
        setup.config.outgoing.allow = vec!["127.0.0.0/8".into()];
        setup.config.runner.slots = 4;
    })
    .await;
    let session = attached(&bound.server).await;
    let installed = bound.server.post(INSTALL, &custom(&endpoint.base_url())).await;
    assert!(!installed.text.contains("pl4nted"), "{}", installed.text);
    let installed = installed.with_status(200);
    let expected = json!({"v": 1, "providerId": "custom-openai-compatible", "providerLabel": "Custom provider",
        "authType": "model", "modelId": installed["modelId"], "baseUrl": endpoint.base_url(),
        "message": installed["message"]});
    assert_eq!(installed, expected);
    let model_id = installed["modelId"].as_str().unwrap();
    assert!(model_id.starts_with("custom-my-model-"), "{model_id}");
    assert!(models(&bound).await.contains(&model_id.to_owned()));
    let context = session.get("context").await.with_status(200);
    assert!(context["state"]["models"]["availableModels"].to_string().contains(model_id), "{context}");
    session.post("model", &json!({"modelId": model_id})).await.with_status(200);
    session.prompt_to_end("hello there").await;
    let logged = json!(bound.server.logged(&session.id).await).to_string();
    assert!(logged.contains("hello there") && logged.contains("assistant_message"), "{logged}");
    assert!(!logged.contains(KEY), "the key is in the log");
    assert_eq!(endpoint.seen()[0].body["model"], "My/Model");
}

#[both_engines]
async fn an_installation_is_recorded_like_other_changes_of_profiles(engine: Engine) {
    let bound = Bound::start(engine).await;
    let install = async |key: &str| {
        let body = json!({"providerId": "deepseek", "apiKey": key, "modelIds": ["deepseek-v4-pro"]});
        bound.server.caller("provider").post(INSTALL, &body).await.with_status(200)
    };
    let changes = async || {
        let page = bound.server.get("/api/v1/provider-profile-changes").await;
        assert!(!page.text.contains("pl4nted"), "{}", page.text);
        page.with_status(200)["changes"].as_array().unwrap().clone()
    };
    assert_eq!(install(KEY).await["modelId"], "deepseek-deepseek-v4-pro");
    install(KEY).await;
    let recorded = changes().await;
    assert_eq!(recorded.len(), 1, "the same installation again changes nothing: {recorded:?}");
    assert_eq!((&recorded[0]["tenantId"], &recorded[0]["action"]), (&json!("local"), &json!("credential-set")));
    install("pl4nted-second-key-0123").await;
    assert_eq!(changes().await.len(), 2);
    let kept = bound.server.everything_kept();
    let has_key = |bytes: &[u8]| bytes.windows(KEY.len()).any(|window| window == KEY.as_bytes());
    assert!(kept.iter().all(|(_, bytes)| !has_key(bytes)), "the key is stored in the clear");
    let profile = bound.server.get("/api/v1/provider-profiles/deepseek-deepseek-v4-pro?tenantId=local").await;
    assert_eq!(profile.with_status(200)["ready"], true);
    assert!(models(&bound).await.contains(&"deepseek-deepseek-v4-pro".to_owned()));
}

#[one_engine]
async fn a_key_is_sent_to_public_hosts_only_unless_the_operator_allows_others(engine: Engine) {
    let bound = Bound::with(engine, |setup| setup.config.outgoing.allow = vec!["10.1.0.0/16".into()]).await;
    for bad in [
        "http://127.0.0.1:1/v1",
        "http://localhost/v1",
        "https://[::1]/v1",
        "https://169.254.169.254/latest",
        "https://10.2.0.1/v1",
        "https://0x7f.1/v1",
        "http://models.example/v1",
        "https://user:secret@models.example/v1",
        "ftp://models.example",
        "models.example",
    ] {
        // Also for the operator: the caller chooses where the server connects to.
        for caller in
            [bound.server.with_token(Some(&bound.server.operator_token())), bound.server.caller("provider").clone()]
        {
            let body = refused(caller.post(INSTALL, &custom(bad)).await, 400, "invalid_base_url");
            assert!(!body.to_string().contains("pl4nted"), "{body}");
        }
    }
    bound.server.post(INSTALL, &custom("http://10.1.2.3/v1")).await.with_status(200);
    bound.server.post(INSTALL, &custom("https://models.example/v1")).await.with_status(200);
}

#[one_engine]
async fn each_mistake_in_an_installation_has_its_code(engine: Engine) {
    let bound = Bound::start(engine).await;
    for (body, status, code) in [
        (json!({}), 400, "invalid_request"),
        (json!({"providerId": "deepseek"}), 400, "invalid_request"),
        (json!({"providerId": "nobody", "apiKey": KEY}), 400, "unsupported_provider"),
        (json!({"providerId": "deepseek", "apiKey": KEY, "protocol": "gemini"}), 400, "unsupported_protocol"),
        (json!({"providerId": "deepseek", "apiKey": KEY, "advancedConfig": {"maxTokens": 5}}), 501, "not_implemented"),
        (json!({"providerId": "deepseek", "apiKey": KEY, "baseUrl": "https://x.example"}), 400, "invalid_base_url"),
        (json!({"providerId": "deepseek", "apiKey": format!("{KEY} two")}), 400, "credential_shape"),
    ] {
        let answer = bound.server.post(INSTALL, &body).await;
        assert!(!answer.text.contains("pl4nted"), "{}", answer.text);
        refused(answer, status, code);
    }
    assert!(!models(&bound).await.iter().any(|model| model.starts_with("deepseek-")));
    let unknown = bound.server.post(INSTALL, &json!({"providerId": "nobody", "apiKey": KEY})).await.body;
    assert!(unknown["supportedProviders"].as_array().unwrap().contains(&json!("custom")), "{unknown}");
    for url in ["http://models.example/v1", "https://127.0.0.1:9/v1"] {
        let failure = refused(bound.server.post(INSTALL, &custom(url)).await, 400, "invalid_base_url");
        assert!(failure["error"].as_str().unwrap().contains("outgoing.allow"), "the remedy: {failure}");
    }
}

#[one_engine]
async fn an_installation_needs_a_token_with_the_right_to_provide(engine: Engine) {
    let bound = Bound::with(engine, |setup| {
        setup.config.server.open_loopback = true;
        setup.token("operators", "provide", &[]);
    })
    .await;
    let body = json!({"providerId": "deepseek", "apiKey": KEY, "modelIds": ["m"]});
    refused(bound.server.with_token(None).post(INSTALL, &body).await, 401, "token_required");
    let denied = refused(bound.server.caller("client").post(INSTALL, &body).await, 403, "role");
    assert_eq!(denied["error"], "this needs the operator's token or a token of the role provide");
    refused(bound.server.caller("foreign-provider").post(INSTALL, &body).await, 403, "tenant");
    refused(bound.post_as("client_x", INSTALL, &body).await, 400, "invalid_client_id");
    refused(bound.server.caller("foreign").get(PROVIDERS).await, 403, "tenant");
    assert!(!models(&bound).await.contains(&"deepseek-m".to_owned()));
    // A token for the operator's profiles alone makes the profile the operator's.
    bound.server.caller("operators").post(INSTALL, &body).await.with_status(200);
    let profile = bound.server.get("/api/v1/provider-profiles/deepseek-m").await.with_status(200);
    assert_eq!(profile["tenantId"], Value::Null);
    eventually("it is listed", async || models(&bound).await.contains(&"deepseek-m".to_owned()).then_some(())).await;
}
