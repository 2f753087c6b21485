//! What the handlers' types cannot say about requests, for the document: bounds, patterns and words. Two tests hold them to
//! what the server does: requests made at random from the document are not refused for their shape, and what the document
//! forbids is refused.

use ostler_protocol::{
    FailureKind,
    kernel::{events::EventType, session_storage::SWEEP_MAX},
    limits::*,
    mesh::{agent_md::AGENT_MD_BYTES_MAX, identities::INVITE_MS_MAX},
    run_input::{
        agui::input::{MESSAGES_MAX, RUN_ID_CHARS_MAX},
        runs::IDLE_LIMIT_S_MAX,
    },
    trust::{
        manifest::{MANIFEST_BYTES_MAX, SCOPE_ID_BYTES_MAX},
        relations::GRANT_LIFE_MS_MAX,
        webhooks::WEBHOOK_URL_BYTES_MAX,
    },
};
use serde_json::{Value, json};

/// Scopes that one answer names.
const SCOPES_MAX: usize = 1_000;
const CREDENTIALS_MAX: usize = 16;
const CURSOR_BYTES_MAX: usize = 1_024;
const AID_BYTES_MAX: usize = 253;
/// No white space at the ends, no control characters.
const NAME_PATTERN: &str =
    r"^[^\s\u0000-\u001f\u007f-\u009f]([^\u0000-\u001f\u007f-\u009f]*[^\s\u0000-\u001f\u007f-\u009f])?$";
const PRINTABLE_PATTERN: &str = r"^[^\u0000-\u001f\u007f-\u009f]*$";
const SLUG_PATTERN: &str = "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$";

fn name() -> Value {
    json!({"minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": NAME_PATTERN})
}

/// A name that people tell one agent from another by: without characters that cannot be seen.
fn shown_name() -> Value {
    json!({"minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": NAME_PATTERN, "format": "visible-text"})
}

fn slug() -> Value {
    json!({"minLength": 1, "maxLength": 63, "pattern": SLUG_PATTERN})
}

/// An id that is looked up or compared, and is unknown if it is anything else.
fn id() -> Value {
    json!({"maxLength": NAME_BYTES_MAX})
}

fn text(bytes_max: usize) -> Value {
    json!({"maxLength": bytes_max})
}

fn whole(least: i64, most: i64) -> Value {
    json!({"minimum": least, "maximum": most})
}

fn words<'a>(words: impl IntoIterator<Item = &'a str>) -> Value {
    json!({"enum": words.into_iter().collect::<Vec<_>>()})
}

fn title() -> Value {
    json!({"maxLength": SESSION_TITLE_BYTES_MAX, "pattern": PRINTABLE_PATTERN})
}

/// A JSON value of the caller's own, bounded as a whole.
fn free(bytes_max: usize) -> Value {
    json!({"description": format!("At most {bytes_max} bytes of JSON."), "x-bytesMax": bytes_max})
}

fn tenants() -> Value {
    json!({"minItems": 1, "maxItems": CALLER_TENANTS_MAX, "uniqueItems": true, "items": name()})
}

fn scopes() -> Value {
    json!({"maxItems": SCOPES_MAX, "uniqueItems": true, "items": text(SCOPE_ID_BYTES_MAX)})
}

type Shapes = Vec<(&'static str, Value)>;

/// Bounds of bodies' fields, as `Schema.field`.
fn fields() -> Shapes {
    [of_work(), of_runners(), of_sessions(), of_callers(), of_agents()].concat()
}

/// Of runs and commands.
fn of_work() -> Shapes {
    vec![
        ("CreateRun.tenantId", name()),
        ("CreateRun.projectId", name()),
        ("CreateRun.providerId", name()),
        ("CreateRun.backendProfile", slug()),
        ("CreateRun.idempotencyKey", name()),
        ("CreateRun.workspaceRef", free(WORKSPACE_REF_BYTES_MAX)),
        ("CreateRun.businessIntents", free(EVENT_BYTES_MAX)),
        ("CreateRun.resourceBundleRef", json!({"type": "null"})),
        ("SessionRef.sessionId", name()),
        ("AskedPolicy.timeoutMs", whole(1, i64::MAX)),
        ("AskedPolicy.maxTurns", whole(1, i64::MAX)),
        ("AskedPolicy.maxTokens", whole(1, i64::MAX)),
        ("AskedPolicy.maxToolCalls", whole(1, i64::MAX)),
        ("AskedPolicy.maxCostUsd", json!({"exclusiveMinimum": 0})),
        ("SecretScope.providerCredentials", json!({"maxItems": CREDENTIALS_MAX})),
        ("SecretScope.toolCredentials", json!({"maxItems": CREDENTIALS_MAX})),
        ("ProviderCredential.profile", slug()),
        ("ToolCredential.tool", id()),
        ("SecretRef.name", id()),
        ("SecretRef.keys", json!({"maxItems": CREDENTIALS_MAX, "items": name()})),
        ("CreateCommand.payload", free(COMMAND_PAYLOAD_BYTES_MAX)),
        ("CreateCommand.idempotencyKey", name()),
        ("Cancel.reason", text(REASON_BYTES_MAX)),
    ]
}

/// Of what runners send, and of jobs and permissions.
fn of_runners() -> Shapes {
    vec![
        ("PatchStatus.status", words(["running", "completed", "failed", "blocked", "cancelled"])),
        ("PatchStatus.message", text(REASON_BYTES_MAX)),
        ("AppendEvents.events", json!({"minItems": 1, "maxItems": APPEND_EVENTS_MAX})),
        ("AppendEvent.type", words(EventType::ALL.iter().filter(|t| !t.is_reserved()).map(|t| t.as_str()))),
        ("AppendEvent.commandId", id()),
        ("AppendEvent.payload", free(EVENT_BYTES_MAX)),
        ("ClaimRun.leaseMs", whole(LEASE_MS_MIN, LEASE_MS_MAX)),
        ("PatchLease.leaseMs", whole(LEASE_MS_MIN, LEASE_MS_MAX)),
        ("ClaimRun.runnerId", name()),
        ("PatchLease.runnerId", name()),
        ("RegisterRunner.runnerId", name()),
        ("RegisterRunner.runId", id()),
        ("RegisterRunner.backendProfile", slug()),
        ("RegisterRunner.capabilities", free(RUNNER_BYTES_MAX)),
        ("CreateRunnerJob.commandId", id()),
        ("CreateRunnerJob.idempotencyKey", name()),
        ("AnswerPermission.digest", id()),
        ("AnswerPermission.optionId", id()),
        ("AckCommand.runnerId", name()),
        ("AckCommand.attemptId", id()),
        ("PatchStatus.runnerId", name()),
        ("PatchStatus.attemptId", id()),
        ("PatchStatus.failureKind", words(FailureKind::ALL.iter().map(|row| row.name))),
        ("AppendEvents.runnerId", name()),
        ("AppendEvents.attemptId", id()),
    ]
}

/// Of sessions and provider profiles.
fn of_sessions() -> Shapes {
    vec![
        ("CreateSession.tenantId", name()),
        ("CreateSession.sessionId", name()),
        ("CreateSession.backendProfile", slug()),
        ("CreateSession.idempotencyKey", name()),
        ("CreateSession.title", title()),
        ("UpdateSession.title", title()),
        ("UpdateSession.tenantId", id()),
        ("ReadSession.readerId", name()),
        ("ReadSession.tenantId", id()),
        ("ReadSession.version", whole(0, i64::MAX)),
        ("ControlSession.action", words(["cancel", "close"])),
        ("ControlSession.reason", text(REASON_BYTES_MAX)),
        ("ControlSession.tenantId", id()),
        ("RefreshStorage.runId", id()),
        ("RefreshStorage.sizeBytes", whole(0, i64::MAX)),
        ("RefreshStorage.filesCount", whole(0, i64::MAX)),
        ("RefreshStorage.sha256", json!({"pattern": "^[0-9a-fA-F]{64}$", "maxLength": 64})),
        ("SweepStorage.limit", whole(1, i64::from(SWEEP_MAX))),
        ("PutConfig.config", json!({"maxLength": PROFILE_FILE_BYTES_MAX, "format": "toml"})),
        ("PutConfig.resourceVersion", id()),
        ("PutCredential.apiKey", json!({"minLength": 1, "maxLength": API_KEY_BYTES_MAX, "pattern": "^[!-~]+$"})),
        (
            "PutCredential.files",
            json!({"maxProperties": PROFILE_FILES_MAX,
            "additionalProperties": text(PROFILE_FILE_BYTES_MAX), "propertyNames": id()}),
        ),
        ("PutCredential.resourceVersion", id()),
        ("ValidateProfile.tenantId", name()),
        ("ValidateProfile.projectId", name()),
        ("ValidateProfile.providerId", name()),
        ("ValidateProfile.idempotencyKey", name()),
    ]
}

/// Of tokens, users, names of the mesh and run input.
fn of_callers() -> Shapes {
    vec![
        ("CreateToken.name", name()),
        ("CreateToken.tenants", tenants()),
        ("CreateToken.expiresInMs", whole(1, TOKEN_LIFE_MS_MAX)),
        ("CreateToken.idempotencyKey", name()),
        ("CreateUser.name", name()),
        ("CreateUser.issuer", text(WEBHOOK_URL_BYTES_MAX)),
        ("CreateUser.subject", name()),
        ("CreateUser.tenants", tenants()),
        ("CreateUser.timezone", json!({"maxLength": NAME_BYTES_MAX, "format": "timezone"})),
        ("UpdateUser.timezone", json!({"maxLength": NAME_BYTES_MAX, "format": "timezone"})),
        ("CreateUserToken.expiresInMs", whole(1, USER_TOKEN_LIFE_MS_MAX)),
        ("IssueCertificate.aid", json!({"maxLength": AID_BYTES_MAX, "format": "aid"})),
        ("IssueCertificate.publicKey", json!({"maxLength": 1_024, "format": "p256-spki-base64"})),
        ("CreateInvite.aid", json!({"maxLength": AID_BYTES_MAX, "format": "aid"})),
        ("CreateInvite.expiresInMs", whole(1, INVITE_MS_MAX)),
        ("RunAgentInput.threadId", json!({"format": "uuid", "maxLength": 36})),
        ("RunAgentInput.runId", run_id()),
        ("RunAgentInput.parentRunId", text(RUN_ID_CHARS_MAX)),
        ("RunAgentInput.messages", json!({"maxItems": MESSAGES_MAX})),
        ("ForwardedProps.runtime_mode", words(["chat"])),
    ]
}

/// Of agents and what people grant them.
fn of_agents() -> Shapes {
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

fn run_id() -> Value {
    json!({"minLength": 1, "maxLength": RUN_ID_CHARS_MAX, "pattern": PRINTABLE_PATTERN})
}

fn manifest() -> Value {
    json!({"schema_version": "1.0", "agent_version": "1.0.0", "tools": [], "permission_scopes": []})
}

/// What holds for a whole body.
fn bodies() -> Shapes {
    let needs = |field: &str| json!({"required": ["payload"], "properties": {"payload": {"required": [field]}}});
    let prompt = || json!({"type": "string", "minLength": 1, "maxLength": PROMPT_BYTES_MAX, "pattern": r"\S"});
    vec![
        (
            "CreateCommand",
            json!({
                "properties": {"payload": {"properties": {"prompt": prompt(), "message": prompt(), "text": prompt()}}},
                "anyOf": [
                    {"properties": {"type": {"const": "interrupt"}}},
                    needs("prompt"),
                    needs("message"),
                    needs("text"),
                ],
                "example": {"type": "turn", "payload": {"prompt": "Say hello."}},
            }),
        ),
        ("CreateRun", json!({"example": {"workspaceRef": {"kind": "none"}}})),
        (
            "CreateUser",
            json!({
                "dependentRequired": {"issuer": ["subject"], "subject": ["issuer"]},
                "properties": {"issuer": {"type": "string"}, "subject": {"type": "string"}},
            }),
        ),
        ("CreateAgent", json!({"example": {"capability_manifest": manifest()}})),
        (
            "UpdateAgent",
            json!({
                "minProperties": 1,
                "properties": {"name": {"type": "string"}, "capability_manifest": {"type": "object"}},
                "example": {"capability_manifest": manifest()},
            }),
        ),
        ("DiffManifest", json!({"example": {"capability_manifest": manifest()}})),
        ("UpdateSession", json!({"properties": {"title": {"type": "string"}}})),
        ("Answers", json!({"required": ["granted_scopes"], "properties": {"granted_scopes": {"type": "array"}}})),
        ("AppendEvent", json!({"example": {"type": "custom", "payload": {"name": "note", "value": 1}}})),
        (
            "RunAgentInput",
            json!({"example": {
                "threadId": "2c4f7d0e-5d3b-4f0e-9f5e-0d8a4c1b2a3f", "runId": "run-1", "state": {}, "tools": [], "context": [],
                "resume": [], "messages": [{"id": "m1", "role": "user", "content": "Say hello."}],
                "forwardedProps": {"runtime_mode": "chat"},
            }}),
        ),
        (
            "ForwardedProps",
            json!({"example": {"runtime_mode": "chat", "client_time": {"device_timezone": "Europe/Berlin",
                "client_now_iso": "2026-01-01T01:00:00+01:00", "client_epoch_ms": 1_767_225_600_000_i64}}}),
        ),
    ]
}

/// Bounds of parameters, by their name and, where it matters, the operation's path.
fn parameter(path: &str, name: &str) -> Option<Value> {
    let last_seen = || json!({"type": "integer", "minimum": 0});
    Some(match name {
        "limit" if path.ends_with("/gc") => whole(1, i64::from(SWEEP_MAX)),
        "limit" => whole(1, i64::from(PAGE_ITEMS_MAX)),
        "afterSeq" | "after_seq" => whole(0, i64::MAX),
        "waitMs" => whole(0, WAIT_MS_MAX as i64),
        "idle_limit" => whole(1, IDLE_LIMIT_S_MAX as i64),
        "cursor" => json!({"maxLength": CURSOR_BYTES_MAX, "format": "cursor"}),
        "status" if path == "/api/v1/runs" => {
            words(["pending", "claimed", "running", "completed", "failed", "blocked", "cancelled"])
        }
        "state" => words(["default", "all"]),
        "idPrefix" => {
            let kind = if path.contains("/sessions") { "ses_" } else { "run_" };
            json!({"pattern": format!("^({kind})?[0-9a-f]{{0,32}}$"), "maxLength": 36})
        }
        "before" => json!({"format": "date", "maxLength": 10}),
        "readerId" => self::name(),
        "tenantId" if path.contains("/provider-profile") => self::name(),
        "profile" if path.ends_with("/provider-profile-changes") => slug(),
        "Idempotency-Key" => json!({"minLength": 1, "maxLength": NAME_BYTES_MAX, "pattern": "^[!-~]([ -~]*[!-~])?$"}),
        "runId" if path.contains("/agent/") => run_id(),
        "threadId" => json!({"format": "uuid", "maxLength": 36}),
        "Last-Event-ID" if !path.contains("/agent/") => last_seen(),
        "Last-Event-ID" => json!({"maxLength": NAME_BYTES_MAX, "format": "event-id"}),
        _ => return None,
    })
}

/// A request of RFC 6960 for one certificate, in base64.
const OCSP_EXAMPLE: &str =
    "MEIwQDA+MDwwOjAJBgUrDgMCGgUABBQAAAAAAAAAAAAAAAAAAAAAAAAAAAQUAAAAAAAAAAAAAAAAAAAAAAAAAAACAQE=";

pub fn apply(document: &mut Value) {
    for (place, shape) in fields() {
        if let Some(field) = document.pointer_mut(&pointer(place)) {
            narrow(field, shape);
        }
    }
    for (schema, shape) in bodies() {
        if let Some(schema) = document.pointer_mut(&pointer(schema)) {
            merge(schema, shape);
        }
    }
    let schemas = &mut document["components"]["schemas"];
    first_command(&mut schemas["CreateRun"]["properties"]["command"]);
    // What was evicted cannot be asked for.
    merge(&mut schemas["CreateSession"]["properties"]["storageKind"]["oneOf"][0], words(["none", "local"]));
    for (path, item) in document["paths"].as_object_mut().into_iter().flatten() {
        for (method, operation) in item.as_object_mut().into_iter().flatten() {
            parameters(path, operation);
            body(operation);
            security(method, path, operation);
        }
    }
}

/// Where a schema or a `Schema.field` is in the document.
fn pointer(place: &str) -> String {
    format!("/components/schemas/{}", place.replace('.', "/properties/"))
}

/// Puts a bound into the schema of a field, which may also be null.
fn narrow(field: &mut Value, shape: Value) {
    if shape["type"] == "null" {
        *field = json!({"type": "null", "description": field["description"].clone()});
        return;
    }
    let mut shape = shape;
    let nullable = field["type"].as_array().is_some_and(|types| types.contains(&json!("null")));
    if let Some(words) = shape.get_mut("enum").and_then(Value::as_array_mut).filter(|_| nullable) {
        words.push(Value::Null);
    }
    // The handlers' own words come first.
    let said = field["description"].as_str().unwrap_or_default().to_owned();
    merge(field, shape);
    let added = field["description"].as_str().unwrap_or_default();
    if !said.is_empty() && said != added {
        field["description"] = format!("{said} {added}").into();
    }
}

/// A run begins with a turn.
fn first_command(command: &mut Value) {
    let turn = json!({"required": ["payload"], "properties": {"type": {"const": "turn"}}});
    let first = command["oneOf"][0].take();
    command["oneOf"][0] = json!({"allOf": [first, turn]});
}

fn parameters(path: &str, operation: &mut Value) {
    for parameter in operation["parameters"].as_array_mut().into_iter().flatten() {
        let name = parameter["name"].as_str().unwrap_or_default().to_owned();
        // A header or a parameter of the query is there or not; none is null.
        if let Some(types) = parameter["schema"]["type"].as_array() {
            let kind = types.iter().find(|kind| **kind != "null").cloned().unwrap_or_default();
            parameter["schema"]["type"] = kind;
        }
        if parameter["in"] == "path" {
            continue;
        }
        match self::parameter(path, &name) {
            Some(shape) => merge(&mut parameter["schema"], shape),
            None if parameter["schema"]["type"] == "string" && parameter["schema"]["enum"].is_null() => {
                merge(&mut parameter["schema"], text(CURSOR_BYTES_MAX));
            }
            None => {}
        }
    }
}

/// A body that may be left out is not null either.
fn body(operation: &mut Value) {
    let Some(body) = operation.get_mut("requestBody") else { return };
    let schema = &mut body["content"]["application/json"]["schema"];
    if schema["oneOf"][1]["type"] == "null" {
        *schema = schema["oneOf"][0].take();
        body["required"] = json!(false);
    }
    // Indexing has made what is not there.
    let content = body["content"].as_object_mut().into_iter();
    content.for_each(|content| content.retain(|_, media| !media["schema"].is_null()));
    if let Some(ocsp) = body["content"].get_mut("application/ocsp-request") {
        ocsp["schema"] = json!({"type": "string", "format": "binary", "maxLength": SMALL_BODY_BYTES_MAX});
        ocsp["examples"] = json!({"one certificate": {"summary": "DER, shown in base64", "value": OCSP_EXAMPLE}});
    }
    if let Some(markdown) = body["content"].get_mut("text/markdown") {
        merge(&mut markdown["schema"], text(AGENT_MD_BYTES_MAX));
    }
}

/// Of the mesh, everybody may read without a token; its one write needs one.
fn security(method: &str, path: &str, operation: &mut Value) {
    let is_mesh = operation["security"][0]["mesh"].is_array();
    if is_mesh && !(method == "put" && path == "/agent.md") {
        operation["security"] = json!([{"mesh": []}, {}]);
    }
}

/// Merges objects deeply; what is added wins.
fn merge(into: &mut Value, added: Value) {
    match (into, added) {
        (Value::Object(into), Value::Object(added)) => {
            added.into_iter().for_each(|(key, value)| merge(into.entry(key).or_insert(Value::Null), value));
        }
        (into, added) => *into = added,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bound_is_of_a_field_that_there_is() {
        let document = crate::openapi();
        for place in fields().iter().map(|(place, _)| place).chain(bodies().iter().map(|(place, _)| place)) {
            assert!(document.pointer(&pointer(place)).is_some(), "the document has no {place}");
        }
    }
}
