//! Every operation belongs to a capability. The kept table holds the shape of each, so that new behaviour under an old tag
//! shows.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use ostler_protocol::{json::hex, kernel::chain};
use serde_json::{Value, json};

use super::documented;
use crate::harness::{dialects, openapi};

#[test]
fn every_operation_belongs_to_a_capability_and_every_proof_to_an_operation() {
    let known: BTreeSet<String> = documented().into_iter().map(|(method, path)| format!("{method} {path}")).collect();
    let promised: BTreeSet<String> =
        dialects().capabilities().flat_map(|row| row.operations).map(|operation| (*operation).to_owned()).collect();
    assert_eq!(promised, known, "give each operation a row in its dialect's capabilities.rs");
}

/// `OSTLER_BLESS=1` writes the page again.
#[test]
fn the_stored_table_of_capabilities_is_up_to_date() {
    let document = openapi().clone();
    let rows: Vec<_> = dialects().capabilities().collect();
    let mut page = String::from(
        "# Capabilities\n\nMade from the tables in `capabilities.rs` of each dialect. A server advertises a tag in `GET \
         /capabilities` exactly\nwhile its behaviour is there. Each operation is followed by a digest of its parameters and \
         bodies: where one changes, clients that\nrely on the old tag would meet new behaviour. Give that a new tag, unless it \
         is a mere correction.\n\n| tag | since | modes | advertised | promise |\n|---|---|---|---|---|\n",
    );
    for row in &rows {
        let switches: Vec<_> = row.when.iter().map(|toggle| format!("`{}`", toggle.switch)).collect();
        let when = if switches.is_empty() { "always".into() } else { format!("with {}", switches.join(" and ")) };
        let (tag, since, modes) = (row.tag, row.since.as_str(), row.modes.join(", "));
        page += &format!("| `{tag}` | {since} | {modes} | {when} | {} |\n", row.promise);
    }
    page += "\n## Operations\n\nThe first of each tag proves it.\n";
    for row in &rows {
        page += &format!("\n### `{}`\n\n", row.tag);
        for operation in row.operations {
            page += &format!("- `{operation}` {}\n", shape(&document, operation));
        }
    }
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/generated/capabilities.md");
    if std::env::var_os("OSTLER_BLESS").is_some_and(|value| value == "1") {
        std::fs::write(&path, &page).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    let why = "an operation changed under its tag: new behaviour needs a new tag; else run this with OSTLER_BLESS=1";
    similar(&kept, &page, why);
}

#[track_caller]
fn similar(kept: &str, page: &str, why: &str) {
    let changed: Vec<_> = page.lines().filter(|line| !kept.lines().any(|old| old == *line)).collect();
    assert!(kept == page, "{why}\n{}", changed.join("\n"));
}

/// A digest of all that a caller sends and gets, without the words about it. How it fails is in another table.
fn shape(document: &Value, operation: &str) -> String {
    let (method, path) = operation.split_once(' ').unwrap();
    let mut operation = document["paths"][path][method.to_lowercase()].clone();
    operation["responses"].as_object_mut().unwrap().retain(|status, _| !status.starts_with('4'));
    let mut schemas = BTreeMap::new();
    gather(document, &operation, &mut schemas);
    let text = json!([bare(&operation), schemas]).to_string();
    hex(&chain::payload_digest(&text)[..4])
}

/// Every schema that is named, directly or by another.
fn gather(document: &Value, value: &Value, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| gather(document, item, found)),
        Value::Object(fields) => {
            if let Some(name) = fields.get("$ref").and_then(Value::as_str)
                && !found.contains_key(name)
            {
                let schema = document.pointer(name.trim_start_matches('#')).unwrap();
                found.insert(name.to_owned(), bare(schema));
                gather(document, schema, found);
            }
            fields.values().for_each(|field| gather(document, field, found));
        }
        _ => {}
    }
}

/// Without the words.
fn bare(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(bare).collect(),
        Value::Object(fields) => {
            let words = |key: &str| ["description", "summary", "tags", "operationId"].contains(&key);
            // A property may be called `description`; a description is a string.
            let kept = fields.iter().filter(|(key, value)| !words(key) || value.is_object());
            kept.map(|(key, value)| (key.clone(), bare(value))).collect()
        }
        other => other.clone(),
    }
}
