//! Prompts of up to 10 MB: stored beside their commands, and handed to backends as they were sent.

use ostler_protocol::{daemon::files::FILE_BODY_BYTES_MAX, limits::EVENT_BYTES_MAX};
use ostler_stand_ins::chat;
use serde_json::{Value, json};

use super::{configure, refused, scene::attached, shell_agent, states};
use crate::{
    harness::{Engine, TestServer, both_engines, eventually, one_engine},
    retention::verify,
};

const MB: usize = 1_000_000;

/// Base64 that is not the same everywhere.
fn image(bytes: usize) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    (0..bytes).map(|at| char::from(DIGITS[(at * 7 + at / 4_099) % DIGITS.len()])).collect()
}

/// Text that is not the same everywhere.
fn text(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 32);
    while text.len() < bytes {
        text += &format!("line {} of \"ä\\n\"\n", text.len());
    }
    text
}

fn with_image(text: &str, data: &str) -> Value {
    json!({"prompt": [{"type": "text", "text": text}, {"type": "image", "mimeType": "image/png", "data": data}]})
}

#[both_engines]
async fn a_large_prompt_reaches_the_model_as_it_was_sent_also_after_a_restart(engine: Engine) {
    let endpoint = chat();
    let mut server =
        TestServer::with(engine, |setup| configure(setup, |section| section.profile = "model".into())).await;
    let config = format!("[ostler]\nagent = \"model\"\nbase_url = \"{}\"\nmodel = \"small\"\n", endpoint.base_url());
    server.call("PUT", "/api/v1/provider-profiles/model/config", &json!({"config": config})).await.with_status(200);
    let session_id = server.open_own().await;
    // The marker asks the model for a short reply.
    let (text, data) = (format!("[[think]] {}", text(3 * MB)), image(6 * MB));
    let path = format!("/session/{session_id}/prompt");
    server.post(&path, &with_image(&text, &data)).await.with_status(202);

    // What is listed, polled and followed is short.
    let events = server.logged(&session_id).await;
    assert!(events.iter().all(|event| event.to_string().len() < EVENT_BYTES_MAX));
    let event = events.iter().find(|event| event["type"] == "user_message").unwrap();
    let noted = event["payload"]["content"][0]["text"].as_str().unwrap();
    assert!(text.starts_with(noted.trim_end_matches('…')) && noted.ends_with('…'), "{} bytes", noted.len());
    assert_eq!(
        event["payload"]["content"][1],
        json!({"type": "image", "mimeType": "image/png", "bytes": data.len() / 4 * 3})
    );
    let stored = server.store("SELECT CAST(octet_length(payload) AS TEXT) FROM commands").await;
    assert!(stored[0].parse::<usize>().unwrap() < EVENT_BYTES_MAX, "{stored:?}");

    server.config.runner.slots = 4;
    server.restart().await;
    states(&server, &session_id, &["completed"]).await;
    let seen = endpoint.seen();
    let content = &seen[0].body["messages"].as_array().unwrap().last().unwrap()["content"];
    assert!(content[0]["text"].as_str().is_some_and(|sent| sent.ends_with(&text)), "the text arrives whole");
    assert!(content[1]["image_url"]["url"] == format!("data:image/png;base64,{data}"), "the image arrives whole");
}

#[both_engines]
async fn a_body_over_the_limit_is_refused_by_name(engine: Engine) {
    let server = TestServer::start(engine).await;
    let session_id = server.open_own().await;
    let path = format!("/session/{session_id}/prompt");
    let around = with_image("look", "").to_string().len();
    let over = with_image("look", &image(FILE_BODY_BYTES_MAX + 1 - around));
    assert_eq!(over.to_string().len(), FILE_BODY_BYTES_MAX + 1);
    refused(server.post(&path, &over).await, 413, "body_size");
    assert_eq!(server.store("SELECT command_id FROM command_payloads").await, [""; 0]);
    let most = with_image("look", &image(FILE_BODY_BYTES_MAX - around));
    server.post(&path, &most).await.with_status(202);
}

#[both_engines]
async fn large_prompts_that_wait_are_bounded_together(engine: Engine) {
    let server = TestServer::start(engine).await;
    let session_id = server.open_own().await;
    let path = format!("/session/{session_id}/prompt");
    let prompt = with_image("look", &image(9 * MB));
    for _ in 0..3 {
        server.post(&path, &prompt).await.with_status(202);
    }
    refused(server.post(&path, &prompt).await, 503, "commands_unfinished_bytes");
    assert_eq!(server.store("SELECT CAST(COUNT(*) AS TEXT) FROM command_payloads").await, ["3"]);
    server.prompt(&session_id, "a small one").await;
}

#[both_engines]
async fn secrets_in_a_large_prompt_are_not_stored(engine: Engine) {
    let server = TestServer::start(engine).await;
    let session_id = server.open_own().await;
    let secret = "sk-0123456789abcdef0123456789abcdef";
    server.prompt(&session_id, &format!("{} {secret}", "x ".repeat(150 * 1024))).await;
    let stored = server.store("SELECT payload FROM command_payloads").await.join("");
    assert!(stored.len() > 600 * 1024 && !stored.contains(secret));
}

#[both_engines]
async fn a_stored_prompt_that_was_changed_or_is_missing_is_reported(engine: Engine) {
    let server = TestServer::start(engine).await;
    let session_id = server.open_own().await;
    server.prompt(&session_id, &"x ".repeat(150 * 1024)).await;
    let ids = server.store("SELECT run_id || '/commands/' || command_id FROM commands").await;
    let path = format!("/api/v1/runs/{}/payload", ids[0]);
    server.get(&path).await.with_status(200);
    assert_eq!(verify(&server, engine).await.broken, vec![]);
    for (damage, reason) in [
        (
            "UPDATE command_payloads SET payload = '{\"prompt\":\"y\"}' RETURNING command_id",
            "is not the one that was written",
        ),
        ("DELETE FROM command_payloads RETURNING command_id", "is missing"),
    ] {
        server.store(damage).await;
        server.get(&path).await.with_status(500);
        let broken = verify(&server, engine).await.broken;
        assert!(broken.len() == 1 && broken[0].reason.contains(reason), "{broken:?}");
    }
}

/// An agent that accepts images and writes down the request with its prompt.
const AGENT: &str = r#"
reply() { printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$1"; }
while read -r l; do
    id=${l#*\"id\":}; id=${id%%[,\}]*}
    case $l in
    *'"initialize"'*) reply '{"protocolVersion":1,"agentInfo":{"name":"acted"},"agentCapabilities":{"promptCapabilities":{"image":true}}}' ;;
    *session/new*) reply '{"sessionId":"s1"}' ;;
    *session/prompt*) printf '%s' "$l" > received; mv received prompt; reply '{"stopReason":"end_turn"}' ;;
    esac
done
"#;

/// A shell reads a byte at a time, so that the prompt is no larger than it must be.
#[one_engine]
async fn a_large_prompt_reaches_an_acp_agent_as_it_was_sent(engine: Engine) {
    let mut workspace = None;
    let server = TestServer::with(engine, |setup| {
        setup.config.runner.slots = 4;
        shell_agent::choose(setup);
        workspace = setup.config.server.workspace.clone();
    })
    .await;
    shell_agent::install_command(&server, &format!("[\"/bin/sh\", \"-c\", '''{AGENT}''', \"--acp\"]")).await;
    let session = attached(&server).await;
    let (text, data) = (text(100), image(600 * 1024));
    session.post("prompt", &with_image(&text, &data)).await.with_status(202);
    let file = workspace.unwrap().join("prompt");
    let received = eventually("the agent has the prompt", async || std::fs::read_to_string(&file).ok()).await;
    let request: Value = serde_json::from_str(&received).unwrap();
    let blocks = &request["params"]["prompt"];
    assert!(blocks[0]["text"].as_str().unwrap().ends_with(&text), "{}", blocks[0]);
    assert!(blocks[1] == json!({"type": "image", "mimeType": "image/png", "data": data}), "the image arrives whole");
}
