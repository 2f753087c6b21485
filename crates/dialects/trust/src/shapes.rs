//! What the types of requests cannot express in the OpenAPI document: bounds, patterns and examples.

use ostler_protocol::{
    limits::TOKEN_LIFE_MS_MAX,
    trust::{
        manifest::{MANIFEST_BYTES_MAX, SCOPE_ID_BYTES_MAX},
        relations::GRANT_LIFE_MS_MAX,
        webhooks::WEBHOOK_URL_BYTES_MAX,
    },
};
use ostler_server::net::shapes::{Shapes, free, id, name, shown_name, slug, text, whole};
use serde_json::{Value, json};

/// Scopes in one request.
const SCOPES_MAX: usize = 1_000;

pub(crate) const SHAPES: Shapes = Shapes { fields, bodies, parameter: |_, _| None, finish: |_| {} };

fn fields() -> Vec<(&'static str, Value)> {
    vec![
        ("CreateAgentToken.name", shown_name()),
        ("CreateAgentToken.expires_in_ms", whole(1, TOKEN_LIFE_MS_MAX)),
        ("CreateRelation.granted_scopes", scopes()),
        ("CreateRelation.denied_scopes", scopes()),
        ("CreateRelation.manifest_hash", id()),
        ("CreateRelation.terms", json!({"maxProperties": SCOPES_MAX, "propertyNames": text(SCOPE_ID_BYTES_MAX)})),
        ("Answers.granted_scopes", scopes()),
        ("Answers.denied_scopes", scopes()),
        ("Answers.manifest_hash", id()),
        ("Answers.terms", json!({"maxProperties": SCOPES_MAX, "propertyNames": text(SCOPE_ID_BYTES_MAX)})),
        ("Terms.expires_in_ms", whole(1, GRANT_LIFE_MS_MAX)),
        ("UseScope.scope", text(SCOPE_ID_BYTES_MAX)),
        ("UseScope.call_id", name()),
        ("PutWebhook.url", json!({"maxLength": WEBHOOK_URL_BYTES_MAX, "format": "uri", "pattern": "^https?://"})),
        ("CreateAgent.name", shown_name()),
        ("CreateAgent.backend_profile", slug()),
        ("CreateAgent.capability_manifest", free(MANIFEST_BYTES_MAX)),
        ("UpdateAgent.name", shown_name()),
        ("UpdateAgent.backend_profile", slug()),
        ("UpdateAgent.capability_manifest", free(MANIFEST_BYTES_MAX)),
        ("DiffManifest.capability_manifest", free(MANIFEST_BYTES_MAX)),
    ]
}

fn bodies() -> Vec<(&'static str, Value)> {
    vec![
        ("CreateAgent", json!({"example": {"capability_manifest": manifest()}})),
        (
            "UpdateAgent",
            json!({
                "minProperties": 1,
                "properties": {"name": {"type": "string"}},
                "example": {"capability_manifest": manifest()},
            }),
        ),
        ("DiffManifest", json!({"example": {"capability_manifest": manifest()}})),
        ("Answers", json!({"required": ["granted_scopes"], "properties": {"granted_scopes": {"type": "array"}}})),
    ]
}

fn manifest() -> Value {
    json!({"schema_version": "1.0", "agent_version": "1.0.0", "tools": [], "permission_scopes": []})
}

fn scopes() -> Value {
    json!({"maxItems": SCOPES_MAX, "uniqueItems": true, "items": text(SCOPE_ID_BYTES_MAX)})
}
