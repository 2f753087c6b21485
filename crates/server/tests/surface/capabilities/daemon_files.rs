//! Proofs of the tags of the workspace's files.

use ostler_protocol::daemon::files::content_hash;
use serde_json::json;

use crate::harness::{TestServer, id};

/// Whether the server serves files.
async fn has_files(server: &TestServer) -> bool {
    let answer = server.get("/list?path=.").await;
    assert!(answer.status == 200 || answer.body["errorKind"] == "no_workspace", "{}", answer.text);
    answer.status == 200
}

/// Writes a file, also if it exists.
async fn write(server: &TestServer) -> String {
    let body = json!({"path": "proof.txt", "content": "one\ntwo\n", "mode": "create"});
    if let Some(hash) = server.get("/file?path=proof.txt").await.body["hash"].as_str() {
        let body = json!({"path": "proof.txt", "content": "one\ntwo\n", "mode": "replace", "expectedHash": hash});
        return id(&server.post("/file/write", &body).await.with_status(200), "hash");
    }
    id(&server.post("/file/write", &body).await.with_status(201), "hash")
}

pub(crate) async fn reads(server: &TestServer) -> bool {
    if !has_files(server).await {
        return false;
    }
    let hash = write(server).await;
    let file = server.get("/file?path=proof.txt&line=2").await.with_status(200);
    assert_eq!((&file["content"], &file["hash"]), (&json!("two\n"), &json!(hash)));
    assert_eq!(server.get("/glob?pattern=proof.*").await.with_status(200)["matches"], json!(["proof.txt"]));
    assert_eq!(server.get("/stat?path=proof.txt").await.with_status(200)["type"], "file");
    assert_eq!(server.get("/file?path=../proof.txt").await.with_status(400)["errorKind"], "path_outside_workspace");
    true
}

pub(crate) async fn reads_bytes(server: &TestServer) -> bool {
    if !has_files(server).await {
        return false;
    }
    let hash = write(server).await;
    let bytes = server.get("/file/bytes?path=proof.txt").await.with_status(200);
    assert_eq!((&bytes["contentBase64"], &bytes["hash"]), (&json!("b25lCnR3bwo="), &json!(hash)));
    true
}

pub(crate) async fn writes(server: &TestServer) -> bool {
    if !has_files(server).await {
        return false;
    }
    let hash = write(server).await;
    let edit = json!({"path": "proof.txt", "oldText": "two", "newText": "three", "expectedHash": hash});
    let edited = server.post("/file/edit", &edit).await.with_status(200);
    assert_eq!(edited["hash"], content_hash(b"one\nthree\n"));
    assert_eq!(server.post("/file/edit", &edit).await.with_status(409)["errorKind"], "hash_mismatch");
    true
}
