//! The response of `/capabilities` as a whole.

use serde_json::json;

use crate::harness::{Engine, TestServer, one_engine};

#[one_engine]
async fn the_envelope_is_what_published_clients_read(engine: Engine) {
    let server = TestServer::start(engine).await;
    let anonymous = server.with_token(None).get("/capabilities").await.with_status(200);
    assert_eq!(anonymous["workspaceCwd"], "", "a path of this machine is for authenticated callers");
    let mut envelope = server.get("/capabilities").await.with_status(200);
    assert_eq!(anonymous["features"], envelope["features"]);
    let workspace = envelope["workspaceCwd"].take();
    assert_eq!(workspace, std::env::current_dir().unwrap().canonicalize().unwrap().to_str().unwrap());
    let features = envelope["features"].take();
    assert_eq!(features[0], "health");
    let versions = json!({"current": "v1", "supported": ["v1"]});
    let expected = json!({"v": 1, "mode": "http-bridge", "features": null, "workspaceCwd": null, "modelServices": [],
        "protocol": versions, "protocolVersions": versions, "policy": {"permission": "first-responder"},
        "eventSchemaVersion": 1, "ostlerVersion": env!("CARGO_PKG_VERSION")});
    assert_eq!(envelope, expected);
}
