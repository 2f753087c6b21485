//! The document against the server, in both directions: what is made at random from the document is never refused for its
//! shape, and what exceeds a bound of the document is refused and changes nothing. It is the same on every engine.

mod generator;

use std::collections::{BTreeMap, BTreeSet};

use ostler_protocol::bodies::BODIES;
use serde_json::{Value, json};

use self::generator::Generator;
use super::scene::{Scene, Write, body_schema};
use crate::{
    harness::{Engine, TestServer, openapi, run},
    operations::{self, OPERATIONS},
};

/// Requests for each operation.
const ROUNDS: usize = 25;
const SEED: u64 = 0x5eed;
/// Refusals that say something about the shape of a request.
const SHAPE_KINDS: [&str; 4] = ["schema-invalid", "payload-too-large", "unsupported-media-type", "run-input-invalid"];
/// Rules about what a request refers to, or about a language of its own inside a field: no schema can say them.
const SEMANTIC_RULES: &[&str] = &[
    // A cursor is good for the query that gave it out.
    "cursor-unknown",
    // A session's own history says which versions and numbers there are.
    "read-version",
    "after-beyond-end",
    // Ids that are given out by the server cannot be chosen.
    "session-id-reserved",
    // A profile, an agent and a run must fit each other.
    "agent-profile",
    "resource-bundle-profile",
    "backend-profile-mismatch",
    // The manifest declares the scopes, and terms are for what is granted.
    "scope-unknown",
    "scope-twice",
    "terms",
    "manifest-hash-missing",
    // A manifest's schemas are schemas themselves, its names are unique, and preset scopes have a floor.
    "manifest-invalid",
    "schema-invalid",
    "scope-reserved",
    // The payload of each event type.
    "event-field",
    "terminal-status",
    "command-unknown",
    "after-run-end",
    "permission-command",
    "permission-id-used",
    "permission-option",
    // Interrupts of the thread.
    "interrupts-open",
    "interrupt-unknown",
    // What the configuration names.
    "issuer",
    "aid-domain",
    "profile-scripted",
    "config-credential",
    // The launcher decides whether storage is a directory or a volume claim, and which fields of a job it knows.
    "storage-kind",
    "job-field-unsupported",
    // Positions in a log are given out by the server.
    "log-after",
    // The tools that there are.
    "automation-tools",
    // A period whose last day is before its first.
    "usage-period",
    // One body and query that say two things.
    "sweep-twice",
    // The provider's files.
    "credential-shape",
    "credential-json",
    "profile-config",
    "if-match",
    // Texts with a grammar of their own.
    "AGENT_INVALID_LAST_EVENT_ID",
    "AGENT_INVALID_RUN_ID",
    "AGENT_ATTACHMENT_INVALID",
    "name-credential",
    // Recurrence rules are a language of their own, and an event starts on the first date of its rule.
    "calendar-rule",
    // An automation must have started the thread.
    "AGENT_RUNTIME_MODE_INVALID",
];

/// Refusals that no schema can say, of rules whose other refusals the document expresses: each by a part of its message.
const SEMANTIC_REFUSALS: &[(&str, &str)] = &[
    // Whether a token has tenants depends on its role.
    ("tenants", "a token of the role metrics has no tenants"),
    // Weekdays are for weekly schedules, which need them.
    ("automation-schedule", "a daily schedule has no weekdays"),
    ("automation-schedule", "a weekly schedule needs weekdays"),
    // How long a window may be depends on its mode.
    ("automation-shape", "config.context.window_count"),
    // A field that is null is a field for the document, and none for a change.
    ("automation-shape", "a change needs a title"),
    ("calendar-shape", "a change needs at least one field"),
    // A pattern does not know the days of a month, nor whether the event lasts whole days.
    ("calendar-time", "is no date and time that exists"),
    ("calendar-time", "needs a time of day"),
    ("calendar-time", "starts and ends at midnight"),
    // A pattern does not know the days of a month.
    ("query-shape", "from must be a date"),
    // The end follows the start, or the fields of the event that is changed.
    ("calendar-time", "ends_at must be after starts_at"),
    ("calendar-time", "an event lasts at most"),
    // The year 0000 and the year 9999 exist, and their instants are not all representable.
    ("calendar-time", "out of range"),
];

fn is_semantic(rule: &str, message: &str) -> bool {
    SEMANTIC_RULES.contains(&rule) || SEMANTIC_REFUSALS.iter().any(|(of, part)| *of == rule && message.contains(part))
}

fn document() -> Value {
    openapi().clone()
}

#[test]
fn what_is_made_at_random_from_the_document_is_not_refused_for_its_shape() {
    run(async {
        let server = TestServer::start(Engine::Sqlite).await;
        let document = document();
        let mut generator = Generator::new(&document, SEED);
        let (mut sent, mut accepted, mut refused) = (0, BTreeSet::new(), BTreeMap::<String, String>::new());
        for round in 0..ROUNDS {
            let scene = operations::Scene::set(&server, &format!("ada-{round}")).await;
            for (method, template, _) in OPERATIONS {
                let operation = &document["paths"][template][method.to_lowercase()];
                let Some((query, headers, body)) = generator.request(operation) else { continue };
                let path = scene.path(template);
                let joint = if path.contains('?') { '&' } else { '?' };
                let mut request = server.request(method, &format!("{path}{joint}{query}"));
                for (name, value) in headers {
                    request = request.header(name, value);
                }
                if let Some(body) = &body {
                    request = request.header("content-type", "application/json").body(body.to_string());
                }
                let answer = server.send(request).await;
                sent += 1;
                assert!(answer.status < 500, "{method} {template} {query} {body:?}: {}", answer.text);
                if answer.status < 300 {
                    accepted.insert((method, template));
                }
                let kind = answer.body["failureKind"].as_str().unwrap_or_default();
                let rule = answer.body["details"]["rule"].as_str().unwrap_or_default();
                let message = answer.body["message"].as_str().unwrap_or_default();
                if SHAPE_KINDS.contains(&kind) && !is_semantic(rule, message) {
                    let said = format!("{} for ?{query} {body:?}", answer.body["message"]);
                    refused.insert(format!("{method} {template}: {rule}"), said);
                }
            }
        }
        assert!(refused.is_empty(), "{} of {sent} were refused for their shape: {refused:#?}", refused.len());
        assert!(sent > 1_000, "{sent} requests");
        assert!(accepted.len() > 40, "only {} operations accepted one: {accepted:?}", accepted.len());
    });
}

/// A field of a body's schema: where it is, and its description in the document.
struct Field {
    path: Vec<String>,
    schema: Value,
}

/// Every string, array and object of a body, without those in the caller's own free JSON.
fn fields(generator: &Generator<'_>, schema: &Value, path: &[String], found: &mut Vec<Field>) {
    let schema = generator.resolved(schema);
    if !path.is_empty() {
        found.push(Field { path: path.to_vec(), schema: schema.clone() });
    }
    for (name, inner) in schema["properties"].as_object().into_iter().flatten() {
        let path: Vec<_> = path.iter().cloned().chain([name.clone()]).collect();
        fields(generator, inner, &path, found);
    }
    if schema["items"].is_object() && !path.is_empty() {
        let path: Vec<_> = path.iter().cloned().chain(["0".to_owned()]).collect();
        fields(generator, &schema["items"], &path, found);
    }
}

fn is_of(schema: &Value, kind: &str) -> bool {
    schema["type"] == kind || schema["type"].as_array().is_some_and(|kinds| kinds.contains(&json!(kind)))
}

/// Values that are too large for the field, each with what it exceeds. Empty if nothing bounds it.
fn oversized(schema: &Value, body_bytes_max: usize) -> Vec<Value> {
    let is = |kind: &str| is_of(schema, kind);
    let mut values = vec![];
    if let Some(most) = schema["x-bytesMax"].as_u64() {
        values.push(json!({"kind": "none", "prompt": "x", "pad": "x".repeat(most as usize)}));
    }
    if is("string") && schema["enum"].is_array() {
        values.push(json!("no such word"));
    } else if is("string") {
        values.extend(schema["maxLength"].as_u64().map(|most| json!("x".repeat(most as usize + 1))));
    }
    if is("array") {
        values.extend(schema["maxItems"].as_u64().map(|most| (0..=most).map(|n| json!(format!("x{n}"))).collect()));
    }
    if is("object") {
        let most = schema["maxProperties"].as_u64();
        let members =
            |most: u64| -> serde_json::Map<_, _> { (0..=most).map(|n| (format!("x{n}"), json!("x"))).collect() };
        values.extend(most.map(|most| Value::Object(members(most))));
    }
    for (bound, step) in [("maximum", 1), ("minimum", -1)] {
        values.extend(schema[bound].as_i64().and_then(|bound| bound.checked_add(step)).map(Value::from));
    }
    // Whatever it is, the body has a bound.
    values.push(json!("x".repeat(body_bytes_max)));
    values
}

fn put(body: &mut Value, path: &[String], value: Value) {
    let place = path.iter().fold(body, |place, step| match step.parse::<usize>() {
        Ok(index) => {
            if !place.is_array() {
                *place = json!([]);
            }
            let items = place.as_array_mut().unwrap();
            while items.len() <= index {
                items.push(json!({}));
            }
            &mut items[index]
        }
        Err(_) => {
            if !place.is_object() {
                *place = json!({});
            }
            &mut place[step]
        }
    });
    *place = value;
}

#[test]
fn every_field_of_every_body_has_a_bound_and_one_past_it_changes_nothing() {
    run(async {
        let scene = Scene::set(Engine::Sqlite).await;
        let document = document();
        let generator = Generator::new(&document, SEED);
        let before = scene.state().await;
        let (mut tried, mut unbounded) = (0, vec![]);
        for Write { method, template, path, body } in scene.writes() {
            let Some(schema) = body_schema(method, template) else { continue };
            let name = schema["$ref"].as_str().and_then(|name| name.rsplit('/').next()).unwrap_or_default().to_owned();
            let bytes_max =
                BODIES.iter().find(|(body, ..)| *body == name).map_or(4 * 1024 * 1024, |(_, bytes, _)| *bytes);
            let mut found = vec![];
            fields(&generator, schema, &[], &mut found);
            for Field { path: place, schema } in found {
                let what = format!("{method} {template} {}", place.join("."));
                let bounds = ["maxLength", "enum", "pattern", "format"];
                if is_of(&schema, "string") && bounds.iter().all(|bound| schema[*bound].is_null()) {
                    unbounded.push(what.clone());
                }
                for value in oversized(&schema, bytes_max) {
                    let mut body = body.clone();
                    put(&mut body, &place, value.clone());
                    let answer = scene.server.send_text(method, &path, body.to_string()).await;
                    let short: String = value.to_string().chars().take(60).collect();
                    assert!((400..500).contains(&answer.status), "{what} = {short}: {} {}", answer.status, answer.text);
                    assert!(!answer.body["message"].as_str().unwrap_or_default().is_empty(), "{what}: {}", answer.text);
                    tried += 1;
                }
            }
            // The body as a whole.
            let padded = format!("{}{}", " ".repeat(bytes_max), body);
            let answer = scene.server.send_text(method, &path, padded).await;
            assert_eq!(answer.status, 413, "{method} {template}: {}", answer.text);
        }
        assert_eq!(unbounded, Vec::<String>::new(), "these have no bound in the document");
        assert!(tried > 200, "{tried} values");
        assert_eq!(scene.state().await, before);
    });
}

/// Every body type in the document has its own bounds, except the one with its own rules.
#[test]
fn every_body_of_the_document_is_listed_with_its_bounds() {
    let document = document();
    let mut named = BTreeSet::new();
    for item in document["paths"].as_object().unwrap().values() {
        for operation in item.as_object().unwrap().values() {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"]["$ref"];
            named.extend(schema.as_str().and_then(|name| name.rsplit('/').next()).map(str::to_owned));
        }
    }
    let listed: BTreeSet<_> = BODIES.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let missing: Vec<_> = named.difference(&listed).collect();
    assert_eq!(missing, ["RunAgentInput"]);
}
