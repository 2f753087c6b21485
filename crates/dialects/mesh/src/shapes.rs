//! What the types of requests cannot express in the OpenAPI document: bounds, formats and examples.

use ostler_protocol::{
    limits::SMALL_BODY_BYTES_MAX,
    mesh::{agent_md::AGENT_MD_BYTES_MAX, identities::INVITE_MS_MAX},
};
use ostler_server::net::shapes::{Shapes, merge, text, whole};
use serde_json::{Value, json};

const AID_BYTES_MAX: usize = 253;
/// A request of RFC 6960 for one certificate, in base64.
const OCSP_EXAMPLE: &str =
    "MEIwQDA+MDwwOjAJBgUrDgMCGgUABBQAAAAAAAAAAAAAAAAAAAAAAAAAAAQUAAAAAAAAAAAAAAAAAAAAAAAAAAACAQE=";

pub(crate) const SHAPES: Shapes = Shapes { fields, bodies: || vec![], parameter: |_, _| None, finish };

fn fields() -> Vec<(&'static str, Value)> {
    vec![
        ("IssueCertificate.aid", json!({"maxLength": AID_BYTES_MAX, "format": "aid"})),
        ("IssueCertificate.publicKey", json!({"maxLength": 1_024, "format": "p256-spki-base64"})),
        ("CreateInvite.aid", json!({"maxLength": AID_BYTES_MAX, "format": "aid"})),
        ("CreateInvite.expiresInMs", whole(1, INVITE_MS_MAX)),
    ]
}

fn finish(document: &mut Value) {
    for (path, item) in document["paths"].as_object_mut().into_iter().flatten() {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            body(operation);
            security(method, path, operation);
        }
    }
}

fn body(operation: &mut Value) {
    let Some(content) = operation.get_mut("requestBody").map(|body| &mut body["content"]) else { return };
    if let Some(ocsp) = content.get_mut("application/ocsp-request") {
        ocsp["schema"] = json!({"type": "string", "format": "binary", "maxLength": SMALL_BODY_BYTES_MAX});
        ocsp["examples"] = json!({"one certificate": {"summary": "DER, shown in base64", "value": OCSP_EXAMPLE}});
    }
    if let Some(markdown) = content.get_mut("text/markdown") {
        merge(&mut markdown["schema"], text(AGENT_MD_BYTES_MAX));
    }
}

/// Every client may read without a token; only the one write needs a token.
fn security(method: &str, path: &str, operation: &mut Value) {
    let is_mesh = operation["security"][0]["mesh"].is_array();
    if is_mesh && !(method == "put" && path == "/agent.md") {
        operation["security"] = json!([{"mesh": []}, {}]);
    }
}
