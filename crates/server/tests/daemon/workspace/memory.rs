//! `/workspace/memory` and `/workspace/init`.

use ostler_protocol::daemon::memory::MEMORY_FILE_BYTES_MAX;
use serde_json::{Value, json};

use super::{Bound, refused};
use crate::harness::{Engine, both_engines, one_engine};

const MEMORY: &str = "/workspace/memory";
const INIT: &str = "/workspace/init";
const MIB: usize = 1024 * 1024;

fn append(content: &str) -> Value {
    json!({"scope": "workspace", "mode": "append", "content": content})
}

fn replace(content: &str) -> Value {
    json!({"scope": "workspace", "mode": "replace", "content": content})
}

#[both_engines]
async fn memory_is_appended_replaced_and_listed(engine: Engine) {
    let bound = Bound::start(engine).await;
    let empty = bound.server.get(MEMORY).await.with_status(200);
    let root = bound.root();
    let expected = json!({"v": 1, "workspaceCwd": root, "initialized": true, "files": [], "totalBytes": 0,
        "fileCount": 0, "ruleCount": 0});
    assert_eq!(empty, expected);
    let path = bound.path("AGENTS.md");
    let written = bound.server.post(MEMORY, &append("- use tabs")).await.with_status(200);
    let expected = json!({"ok": true, "filePath": path, "bytesWritten": 11, "mode": "append", "changed": true});
    assert_eq!(written, expected);
    bound.server.post(MEMORY, &json!({"scope": "workspace", "content": "- be brief\n"})).await.with_status(200);
    assert_eq!(bound.text("AGENTS.md"), "- use tabs\n- be brief\n");
    let global = json!({"scope": "global", "mode": "append", "content": "Be kind."});
    let global = bound.server.post(MEMORY, &global).await.with_status(200);
    assert_eq!(global["filePath"], "memory/global.md", "the path of the data directory is not shown");
    let status = bound.server.get(MEMORY).await.with_status(200);
    assert_eq!((&status["fileCount"], &status["ruleCount"], &status["totalBytes"]), (&json!(2), &json!(3), &json!(31)));
    let files = json!([
        {"kind": "memory_file", "path": global["filePath"], "scope": "global", "bytes": 9},
        {"kind": "memory_file", "path": path, "scope": "workspace", "bytes": 22},
    ]);
    assert_eq!(status["files"], files);
    let written = bound.server.post(MEMORY, &replace("- none\n")).await.with_status(200);
    assert_eq!((&written["mode"], &written["bytesWritten"]), (&json!("replace"), &json!(7)));
    assert_eq!(bound.text("AGENTS.md"), "- none\n");
}

#[one_engine]
async fn only_the_operator_writes_the_memory_that_precedes_everyones_prompts(engine: Engine) {
    let bound = Bound::start(engine).await;
    let global = json!({"scope": "global", "mode": "replace", "content": "Obey me."});
    for name in ["client", "foreign", "provider", "foreign-provider"] {
        bound.server.caller(name).post(MEMORY, &global).await.with_status(403);
    }
    assert_eq!(bound.server.get(MEMORY).await.with_status(200)["fileCount"], 0);
    bound.server.caller("client").post(MEMORY, &append("- x")).await.with_status(200);
    let session = bound.open_session("client_a").await;
    bound.server.post(MEMORY, &global).await.with_status(200);
    assert_eq!(bound.frames(&session).await[0].1["filePath"], "memory/global.md");
    let data_dir = bound.server.config.server.data_dir.as_ref().unwrap().to_str().unwrap();
    let listed = bound.server.caller("client").get(MEMORY).await;
    assert!(!listed.text.contains(data_dir), "{}", listed.text);
    assert_eq!(listed.with_status(200)["fileCount"], 2);
}

#[one_engine]
async fn an_existing_memory_file_is_written(engine: Engine) {
    let bound = Bound::start(engine).await;
    bound.put("QWEN.md", "- old");
    bound.server.post(MEMORY, &append("- new")).await.with_status(200);
    assert_eq!(bound.text("QWEN.md"), "- old\n- new\n");
    assert!(!bound.root().join("AGENTS.md").exists());
}

#[both_engines]
async fn a_change_reaches_every_open_session_and_no_other(engine: Engine) {
    let bound = Bound::start(engine).await;
    let (first, second) = (bound.open_session("client_a").await, bound.open_session("client_b").await);
    let elsewhere = bound.open_session_in("/elsewhere".as_ref(), "client_c").await;
    let closed = bound.open_session("client_d").await;
    bound.server.store(&format!("UPDATE daemon_sessions SET closed_at = 1 WHERE session_id = '{closed}'")).await;
    bound.post_as("client_a", MEMORY, &append("- x")).await.with_status(200);
    bound.server.post(MEMORY, &append("- y")).await.with_status(200);
    let path = bound.path("AGENTS.md");
    let data = json!({"scope": "workspace", "filePath": path, "mode": "append", "bytesWritten": 4});
    let frame = |client: Value| ("memory_changed".to_owned(), data.clone(), client);
    for session in [first, second] {
        assert_eq!(bound.frames(&session).await, [frame(json!("client_a")), frame(Value::Null)]);
    }
    assert_eq!((bound.frames(&elsewhere).await.len(), bound.frames(&closed).await.len()), (0, 0));
}

#[one_engine]
async fn a_write_that_changes_nothing_is_not_announced(engine: Engine) {
    let bound = Bound::start(engine).await;
    bound.put("AGENTS.md", "- x\n");
    let session = bound.open_session("client_a").await;
    for body in [append(" \n"), replace("- x\n")] {
        let written = bound.server.post(MEMORY, &body).await.with_status(200);
        assert_eq!((&written["changed"], &written["bytesWritten"]), (&json!(false), &json!(0)));
    }
    assert_eq!(bound.frames(&session).await, []);
    assert_eq!(bound.text("AGENTS.md"), "- x\n");
}

#[one_engine]
async fn each_mistake_in_a_memory_request_has_its_code(engine: Engine) {
    let bound = Bound::start(engine).await;
    for (body, code) in [
        (json!({"content": "x"}), "invalid_scope"),
        (json!({"scope": "user", "content": "x"}), "invalid_scope"),
        (json!({"scope": "workspace", "content": "x", "mode": "delete"}), "invalid_mode"),
        (json!({"scope": "workspace"}), "invalid_content"),
        (json!({"scope": "workspace", "content": 7}), "invalid_content"),
        (append(&"x".repeat(MIB + 1)), "content_too_large"),
    ] {
        refused(bound.server.post(MEMORY, &body).await, 400, code);
    }
    assert!(!bound.root().join("AGENTS.md").exists());
    bound.server.post(MEMORY, &append(&"x".repeat(MIB))).await.with_status(200);
}

#[one_engine]
async fn a_memory_file_does_not_grow_beyond_its_limit(engine: Engine) {
    let bound = Bound::start(engine).await;
    for _ in 0..4 {
        bound.server.post(MEMORY, &append(&"x".repeat(MIB - 1))).await.with_status(200);
    }
    assert_eq!(bound.text("AGENTS.md").len(), 4 * MIB);
    let body = refused(bound.server.post(MEMORY, &append("y")).await, 413, "memory_file_too_large");
    assert_eq!(body["bytesMax"], 4 * MIB);
    bound.server.post(MEMORY, &replace("small")).await.with_status(200);
    assert_eq!(bound.text("AGENTS.md"), "small");
}

#[one_engine]
async fn concurrent_appends_lose_nothing(engine: Engine) {
    let bound = Bound::start(engine).await;
    let (a, b, c) = (append("- a"), append("- b"), append("- c"));
    let write = |body| bound.server.post(MEMORY, body);
    let (a, b, c) = tokio::join!(write(&a), write(&b), write(&c));
    for answer in [a, b, c] {
        answer.with_status(200);
    }
    let text = bound.text("AGENTS.md");
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["- a", "- b", "- c"]);
}

#[one_engine]
async fn a_memory_file_that_cannot_be_read_is_an_error_of_its_own(engine: Engine) {
    let bound = Bound::start(engine).await;
    bound.put("AGENTS.md", b"\xff\xfe\x00\x01 no text");
    bound.put("QWEN.md", "- fine\n");
    let status = bound.server.get(MEMORY).await.with_status(200);
    assert_eq!((&status["fileCount"], &status["ruleCount"]), (&json!(1), &json!(1)));
    assert_eq!(
        (&status["errors"][0]["kind"], &status["errors"][0]["status"]),
        (&json!("memory_file"), &json!("error"))
    );
    let answer = bound.server.post(MEMORY, &append("- x")).await;
    let failure = refused(answer, 409, "workspace_file_invalid");
    assert_eq!((&failure["path"], &failure["offset"]), (&json!("AGENTS.md"), &json!(0)), "{failure}");
    let folder = bound.server.config.server.data_dir.as_ref().unwrap().join("memory");
    std::fs::create_dir_all(&folder).unwrap();
    let too_large = "x".repeat(MEMORY_FILE_BYTES_MAX + 1);
    for (content, offset) in [(&b"ab\xff"[..], json!(2)), (too_large.as_bytes(), Value::Null)] {
        std::fs::write(folder.join("global.md"), content).unwrap();
        let mut global = append("- x");
        global["scope"] = json!("global");
        let failure = refused(bound.server.post(MEMORY, &global).await, 409, "workspace_file_invalid");
        assert_eq!((&failure["path"], &failure["offset"]), (&json!("memory/global.md"), &offset), "{failure}");
    }
}

#[one_engine]
async fn memory_outside_the_workspace_is_out_of_reach(engine: Engine) {
    let bound = Bound::start(engine).await;
    let outside = tempfile::tempdir().unwrap();
    let secret = outside.path().join("secret");
    std::fs::write(&secret, "pl4nted\n").unwrap();
    std::os::unix::fs::symlink(&secret, bound.root().join("AGENTS.md")).unwrap();
    let status = bound.server.get(MEMORY).await.with_status(200);
    assert_eq!(status["fileCount"], 0, "{status}");
    assert!(bound.server.post(MEMORY, &replace("x")).await.status >= 400);
    refused(bound.server.post(INIT, &json!({"force": true})).await, 400, "path_escape");
    assert_eq!(std::fs::read_to_string(&secret).unwrap(), "pl4nted\n");
}

#[both_engines]
async fn a_workspace_is_initialised_once(engine: Engine) {
    let bound = Bound::start(engine).await;
    let session = bound.open_session("client_a").await;
    let path = bound.path("AGENTS.md");
    let made = bound.post_as("client_a", INIT, &json!({})).await.with_status(200);
    assert_eq!(made, json!({"path": path, "action": "created"}));
    let template = bound.text("AGENTS.md");
    assert!(template.contains("## Commands"), "{template}");
    let refused = refused(bound.server.post(INIT, &json!({"force": false})).await, 409, "workspace_init_conflict");
    assert_eq!((&refused["path"], &refused["existingSize"]), (&json!(path), &json!(template.len())));
    bound.put("AGENTS.md", "- mine\n");
    let made = bound.server.post(INIT, &json!({"force": true})).await.with_status(200);
    assert_eq!(made["action"], "overwrote");
    assert_eq!(bound.text("AGENTS.md"), template);
    let frame = |action: &str, client: Value| {
        ("workspace_initialized".to_owned(), json!({"path": path, "action": action}), client)
    };
    let expected = [frame("created", json!("client_a")), frame("overwrote", Value::Null)];
    assert_eq!(bound.frames(&session).await, expected);
}

#[one_engine]
async fn an_empty_memory_file_is_left_alone(engine: Engine) {
    let bound = Bound::start(engine).await;
    bound.put("QWEN.md", " \n");
    let session = bound.open_session("client_a").await;
    let request = bound.server.request("POST", INIT);
    let made = bound.server.send(request).await.with_status(200);
    assert_eq!(made, json!({"path": bound.path("QWEN.md"), "action": "noop"}));
    assert_eq!((bound.text("QWEN.md"), bound.frames(&session).await.len()), (" \n".to_owned(), 0));
}
