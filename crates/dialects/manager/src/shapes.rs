//! What the types of requests cannot express in the OpenAPI document: bounds, patterns and examples.

use ostler_protocol::{
    FailureKind,
    kernel::{
        events::EventType,
        runner_jobs::{IMAGE_BYTES_MAX, TRANSIENT_NAME_BYTES_MAX, TRANSIENT_VALUE_BYTES_MAX, TRANSIENT_VARIABLES_MAX},
        runs::{RunSort, RunState},
        session_storage::SWEEP_MAX,
        usage::UsageBy,
    },
    limits::{
        API_KEY_BYTES_MAX, APPEND_EVENTS_MAX, COMMAND_PAYLOAD_BYTES_MAX, EVENT_BYTES_MAX, HOLD_REASON_BYTES_MAX,
        JOB_PROFILES_MAX, JOB_SUMMARY_BYTES_MAX, LABEL_KEY_BYTES_MAX, LABEL_VALUE_BYTES_MAX, LABELS_MAX, LEASE_MS_MAX,
        LEASE_MS_MIN, NAME_BYTES_MAX, PERMISSIONS_OPEN_CEILING, PROFILE_FILE_BYTES_MAX, PROFILE_FILES_MAX,
        PROMPT_BYTES_MAX, REASON_BYTES_MAX, RUNNER_BYTES_MAX, SESSION_METADATA_BYTES_MAX, SESSION_TITLE_BYTES_MAX,
        TOKEN_LIFE_MS_MAX, USER_TOKEN_LIFE_MS_MAX, WAIT_MS_MAX, WORKSPACE_REF_BYTES_MAX,
    },
    tools::{
        calls::{CALL_ID_BYTES_MAX, REPLY_CALLS_MAX},
        schema::ARGUMENTS_BYTES_MAX,
    },
};
use ostler_server::net::shapes::{
    self, PRINTABLE_PATTERN, Shapes, free, id, merge, name, slug, tenants, text, whole, words,
};
use serde_json::{Value, json};

const CREDENTIALS_MAX: usize = 16;
const ISSUER_BYTES_MAX: usize = 2_048;

pub(crate) const SHAPES: Shapes = Shapes { fields, bodies, parameter, finish };

fn fields() -> Vec<(&'static str, Value)> {
    [run_fields(), runner_fields(), session_fields(), caller_fields()].concat()
}

fn bundle_example() -> Value {
    json!({"kind": "gitbundle", "repoUrl": "https://git.example/shared.git", "ref": "main",
        "bundles": [{"subpath": "skills", "targetPath": ".agents/skills"}]})
}

/// Fields of runs and commands.
fn run_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("CreateRun.tenantId", name()),
        ("CreateRun.projectId", name()),
        ("CreateRun.providerId", name()),
        ("CreateRun.backendProfile", slug()),
        ("CreateRun.idempotencyKey", name()),
        ("CreateRun.labels", labels(LABELS_MAX)),
        ("UpdateRun.labels", label_patch()),
        ("CreateRun.workspaceRef", free(WORKSPACE_REF_BYTES_MAX)),
        ("CreateRun.businessIntents", free(EVENT_BYTES_MAX)),
        ("CreateRun.resourceBundleRef", free(WORKSPACE_REF_BYTES_MAX)),
        ("CreateRun.backendImageRef", json!({"type": "null"})),
        ("CreateRun.transientEnv", json!({"type": "null"})),
        ("SessionRef.sessionId", name()),
        ("AskedPolicy.timeoutMs", whole(1, i64::MAX)),
        ("AskedPolicy.permissionTimeoutMs", whole(1, i64::MAX)),
        ("AskedPolicy.maxOpenPermissions", whole(1, PERMISSIONS_OPEN_CEILING as i64)),
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

fn call_id() -> Value {
    json!({"minLength": 1, "maxLength": CALL_ID_BYTES_MAX, "pattern": "^[A-Za-z0-9_.:-]+$"})
}

/// Fields of the requests of runners, and of jobs and permissions.
fn runner_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("PatchStatus.status", words(["running", "completed", "failed", "blocked", "cancelled"])),
        ("PatchStatus.message", text(REASON_BYTES_MAX)),
        ("AppendEvents.events", json!({"minItems": 1, "maxItems": APPEND_EVENTS_MAX})),
        ("AppendEvent.type", words(EventType::ALL.iter().filter(|t| !t.is_reserved()).map(|t| t.as_str()))),
        ("AppendEvent.commandId", id()),
        ("CallTool.runnerId", name()),
        ("CallTool.attemptId", id()),
        ("AppendEvents.jobSummary", free(JOB_SUMMARY_BYTES_MAX)),
        ("CallTool.callId", call_id()),
        ("CallTool.replyCalls", json!({"maxItems": REPLY_CALLS_MAX, "items": call_id()})),
        ("CallTool.name", text(NAME_BYTES_MAX)),
        ("CallTool.arguments", text(ARGUMENTS_BYTES_MAX)),
        ("CallTool.waitMs", whole(0, WAIT_MS_MAX as i64)),
        ("AppendEvent.payload", free(EVENT_BYTES_MAX)),
        ("ClaimRun.leaseMs", whole(LEASE_MS_MIN, LEASE_MS_MAX)),
        ("PatchLease.leaseMs", whole(LEASE_MS_MIN, LEASE_MS_MAX)),
        ("ClaimRun.runnerId", name()),
        ("PatchLease.runnerId", name()),
        ("RegisterRunner.runnerId", name()),
        ("RegisterRunner.runId", id()),
        ("RegisterRunner.backendProfile", slug()),
        ("RegisterRunner.capabilities", free(RUNNER_BYTES_MAX)),
        ("ClaimRunnerJob.runnerId", name()),
        ("ClaimRunnerJob.profiles", json!({"minItems": 1, "maxItems": JOB_PROFILES_MAX, "items": slug()})),
        ("ClaimRunnerJob.waitMs", whole(0, WAIT_MS_MAX as i64)),
        ("CreateRunnerJob.commandId", id()),
        ("CreateRunnerJob.idempotencyKey", name()),
        (
            "CreateRunnerJob.transientEnv",
            json!({
                "maxProperties": TRANSIENT_VARIABLES_MAX,
                "propertyNames": {"pattern": "^[A-Za-z_][A-Za-z0-9_]*$", "maxLength": TRANSIENT_NAME_BYTES_MAX},
                "additionalProperties": {"type": "string", "maxLength": TRANSIENT_VALUE_BYTES_MAX},
            }),
        ),
        (
            "BackendImageRef.image",
            json!({"maxLength": IMAGE_BYTES_MAX, "pattern": "^[A-Za-z0-9].*@sha256:[0-9a-f]{64}$"}),
        ),
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

/// Fields of sessions and provider profiles.
fn session_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("CreateSession.tenantId", name()),
        ("CreateSession.sessionId", name()),
        ("CreateSession.backendProfile", slug()),
        ("CreateSession.idempotencyKey", name()),
        ("CreateSession.title", title()),
        ("CreateSession.conversationId", name()),
        ("CreateSession.metadata", free(SESSION_METADATA_BYTES_MAX)),
        ("CreateSession.labels", labels(LABELS_MAX)),
        ("UpdateSession.labels", label_patch()),
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

/// Fields of tokens and users.
fn caller_fields() -> Vec<(&'static str, Value)> {
    vec![
        ("CreateToken.name", name()),
        ("CreateToken.tenants", tenants()),
        ("CreateToken.expiresInMs", whole(1, TOKEN_LIFE_MS_MAX)),
        ("CreateToken.idempotencyKey", name()),
        ("CreateUser.name", name()),
        ("CreateUser.issuer", text(ISSUER_BYTES_MAX)),
        ("CreateUser.subject", name()),
        ("CreateUser.tenants", tenants()),
        ("CreateUser.timezone", json!({"maxLength": NAME_BYTES_MAX, "format": "timezone"})),
        ("SweepRetention.tenantId", name()),
        ("PlaceHold.tenantId", name()),
        ("PlaceHold.sessionId", id()),
        ("PlaceHold.identity", name()),
        ("PlaceHold.reason", reason()),
        ("UpdateUser.timezone", json!({"maxLength": NAME_BYTES_MAX, "format": "timezone"})),
        ("CreateUserToken.expiresInMs", whole(1, USER_TOKEN_LIFE_MS_MAX)),
    ]
}

fn bodies() -> Vec<(&'static str, Value)> {
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
        ("CreateRun", json!({"example": {"workspaceRef": {"kind": "none"}, "resourceBundleRef": bundle_example()}})),
        (
            "CreateUser",
            json!({
                "dependentRequired": {"issuer": ["subject"], "subject": ["issuer"]},
                "properties": {"issuer": {"type": "string"}, "subject": {"type": "string"}},
            }),
        ),
        (
            "PlaceHold",
            json!({
                "anyOf": [
                    {"required": ["tenantId"], "properties": {"tenantId": {"type": "string"}, "identity": {"type": "null"}}},
                    {"required": ["sessionId"], "properties": {"sessionId": {"type": "string"}, "identity": {"type": "null"}}},
                    {
                        "required": ["identity"],
                        "properties": {
                            "identity": {"type": "string"},
                            "tenantId": {"type": "null"},
                            "sessionId": {"type": "null"},
                        },
                    },
                ],
                "example": {"tenantId": "local", "reason": "case 7"},
            }),
        ),
        // One of them must be there, and is not null then.
        (
            "UpdateSession",
            json!({
                "anyOf": [
                    {"required": ["title"], "properties": {"title": {"type": "string"}}},
                    {"required": ["labels"], "properties": {"labels": {"type": "object"}}},
                ],
                "example": {"title": "Release notes"},
            }),
        ),
        ("AppendEvent", json!({"example": {"type": "custom", "payload": {"name": "note", "value": 1}}})),
    ]
}

fn parameter(path: &str, name: &str) -> Option<Value> {
    if path.contains("/agent/") {
        return None;
    }
    Some(match name {
        "limit" if path.ends_with("/gc") => whole(1, i64::from(SWEEP_MAX)),
        "afterSeq" | "after_seq" => whole(0, i64::MAX),
        "waitMs" => whole(0, WAIT_MS_MAX as i64),
        "status" if path == "/api/v1/runs" => {
            words(["pending", "claimed", "running", "completed", "failed", "blocked", "cancelled"])
        }
        "state" => {
            let state = RunState::ALL.map(RunState::as_str).join("|");
            let others = if path == "/api/v1/runs" { "" } else { "default|all|" };
            // All six, each once, fit; more words than there are states say nothing more.
            json!({"pattern": format!("^({others}({state})(,({state})){{0,5}})$"), "maxLength": 60, "example": "failed,blocked"})
        }
        "label" => {
            let pair = format!("{LABEL_KEY_PATTERN}={LABEL_VALUE_PATTERN}");
            json!({"pattern": format!("^{pair}(,{pair}){{0,15}}$"), "maxLength": LABEL_FILTER_CHARS_MAX, "example": "team=search"})
        }
        "sort" => words(RunSort::ALL.map(RunSort::as_str)),
        "by" if path.ends_with("/usage") => words(UsageBy::ALL.map(UsageBy::as_str)),
        "idPrefix" => {
            let kind = if path.contains("/sessions") { "ses_" } else { "run_" };
            json!({"pattern": format!("^({kind})?[0-9a-f]{{0,32}}$"), "maxLength": 36})
        }
        "readerId" => shapes::name(),
        "tenantId" if path.contains("/provider-profile") => shapes::name(),
        "profile" if path.ends_with("/provider-profile-changes") => slug(),
        "Last-Event-ID" => json!({"type": "integer", "minimum": 0}),
        _ => return None,
    })
}

fn finish(document: &mut Value) {
    let schemas = &mut document["components"]["schemas"];
    first_command(&mut schemas["CreateRun"]["properties"]["command"]);
    // A client cannot request evicted storage.
    merge(&mut schemas["CreateSession"]["properties"]["storageKind"]["oneOf"][0], words(["none", "local", "pvc"]));
}

/// The first command of a run is a turn.
fn first_command(command: &mut Value) {
    let turn = json!({"required": ["payload"], "properties": {"type": {"const": "turn"}}});
    let first = command["oneOf"][0].take();
    command["oneOf"][0] = json!({"allOf": [first, turn]});
}

/// A key of a label, and its value: of 128 ASCII characters, or of any 32, which are not more than 128 bytes.
const LABEL_KEY_PATTERN: &str = "[a-z0-9][a-z0-9._/-]{0,62}";
const LABEL_VALUE_PATTERN: &str = r"([\x20-\x2b\x2d-\x7e]{0,128}|[^,\x00-\x1f\x7f-\x9f]{0,32})";
/// All labels that there may be, with an equals sign in each and a comma between them.
const LABEL_FILTER_CHARS_MAX: usize = LABELS_MAX * (LABEL_KEY_BYTES_MAX + LABEL_VALUE_BYTES_MAX + 2);

fn labels(max: usize) -> Value {
    json!({
        "maxProperties": max,
        "propertyNames": {"pattern": format!("^{LABEL_KEY_PATTERN}$"), "maxLength": LABEL_KEY_BYTES_MAX},
        "additionalProperties": label_value("string".into()),
    })
}

/// All labels can be removed and as many set.
fn label_patch() -> Value {
    let mut patch = labels(2 * LABELS_MAX);
    patch["additionalProperties"] = label_value(json!(["string", "null"]));
    patch
}

fn label_value(kind: Value) -> Value {
    json!({"type": kind, "pattern": format!("^{LABEL_VALUE_PATTERN}$"), "maxLength": LABEL_VALUE_BYTES_MAX})
}

fn title() -> Value {
    json!({"maxLength": SESSION_TITLE_BYTES_MAX, "pattern": PRINTABLE_PATTERN})
}

/// As a name, and longer.
fn reason() -> Value {
    let mut reason = name();
    merge(&mut reason, json!({"maxLength": HOLD_REASON_BYTES_MAX}));
    reason
}
