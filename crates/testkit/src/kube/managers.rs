//! `managedFields`: which writer owns which field, and server-side apply, which depends on it.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::failures::ApiFailure;
use super::fields::{FieldPath, from_fields_v1, path_text, paths_of, remove_at, to_fields_v1, value_at};
use super::patch::merge_applied;

/// Who writes, and through which subresource.
#[derive(Clone, Debug, Default)]
pub(super) struct FieldWriter {
    pub manager: String,
    pub subresource: Option<String>,
}

/// One row of `managedFields`.
struct FieldOwnership {
    manager: String,
    operation: String,
    subresource: Option<String>,
    time: String,
    paths: BTreeSet<FieldPath>,
}

impl FieldOwnership {
    fn belongs_to(&self, writer: &FieldWriter, operation: &str) -> bool {
        self.manager == writer.manager && self.operation == operation && self.subresource == writer.subresource
    }
}

fn read(object: &Value) -> Vec<FieldOwnership> {
    let rows = object.pointer("/metadata/managedFields").and_then(Value::as_array).into_iter().flatten();
    let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
    rows.map(|row| FieldOwnership {
        manager: text(row, "manager"),
        operation: text(row, "operation"),
        subresource: row["subresource"].as_str().map(str::to_owned),
        time: text(row, "time"),
        paths: from_fields_v1(&row["fieldsV1"]),
    })
    .collect()
}

fn write(object: &mut Value, rows: &[FieldOwnership]) {
    let api_version = object["apiVersion"].clone();
    let rows: Vec<Value> = rows
        .iter()
        .filter(|row| !row.paths.is_empty())
        .map(|row| {
            let mut written = json!({
                "manager": row.manager, "operation": row.operation, "apiVersion": api_version, "time": row.time,
                "fieldsType": "FieldsV1", "fieldsV1": to_fields_v1(&row.paths)
            });
            if let Some(subresource) = &row.subresource {
                written["subresource"] = json!(subresource);
            }
            written
        })
        .collect();
    object["metadata"]["managedFields"] = json!(rows);
}

/// Gives the fields that differ between two states of an object to their writer.
pub(super) fn record_update(before: &Value, after: &mut Value, writer: &FieldWriter, now: &str) {
    let changed: BTreeSet<FieldPath> =
        paths_of(after).into_iter().filter(|path| value_at(before, path) != value_at(after, path)).collect();
    let mut rows = read(before);
    for row in &mut rows {
        row.paths.retain(|path| !changed.contains(path) && value_at(after, path).is_some());
    }
    own(&mut rows, writer, "Update", now, |paths| paths.extend(changed));
    write(after, &rows);
}

/// Changes what a writer owns, adding a row for it if there is none.
fn own(
    rows: &mut Vec<FieldOwnership>,
    writer: &FieldWriter,
    operation: &str,
    now: &str,
    change: impl FnOnce(&mut BTreeSet<FieldPath>),
) {
    let at = rows.iter().position(|row| row.belongs_to(writer, operation)).unwrap_or_else(|| {
        rows.push(FieldOwnership {
            manager: writer.manager.clone(),
            operation: operation.to_owned(),
            subresource: writer.subresource.clone(),
            time: now.to_owned(),
            paths: BTreeSet::new(),
        });
        rows.len() - 1
    });
    let before = rows[at].paths.clone();
    change(&mut rows[at].paths);
    if rows[at].paths != before {
        rows[at].time = now.to_owned();
    }
}

/// Applies a configuration to an object: fields that it no longer names are removed unless another writer owns them.
/// Without `force`, a field that another writer set to another value is a conflict.
pub(super) fn apply(
    live: &Value,
    applied: &Value,
    writer: &FieldWriter,
    force: bool,
    now: &str,
) -> Result<Value, ApiFailure> {
    let named = paths_of(applied);
    let mut rows = read(live);
    let mut conflicts = vec![];
    for row in rows.iter_mut().filter(|row| !row.belongs_to(writer, "Apply")) {
        let differs = |path: &&FieldPath| named.contains(*path) && value_at(live, path) != value_at(applied, path);
        let in_conflict: Vec<FieldPath> = row.paths.iter().filter(differs).cloned().collect();
        if force {
            row.paths.retain(|path| !in_conflict.contains(path));
        } else {
            conflicts.extend(in_conflict.iter().map(|path| (row.manager.clone(), path_text(path))));
        }
    }
    if !conflicts.is_empty() {
        return Err(ApiFailure::apply_conflict(&conflicts));
    }
    let mut merged = live.clone();
    let owned: Vec<FieldPath> = rows
        .iter()
        .filter(|row| row.belongs_to(writer, "Apply"))
        .flat_map(|row| row.paths.difference(&named).cloned())
        .collect();
    let of_others =
        |path: &FieldPath| rows.iter().any(|row| !row.belongs_to(writer, "Apply") && row.paths.contains(path));
    for path in owned.iter().filter(|path| !of_others(path)) {
        remove_at(&mut merged, path);
    }
    merge_applied(&mut merged, applied);
    own(&mut rows, writer, "Apply", now, |paths| *paths = named);
    write(&mut merged, &rows);
    Ok(merged)
}
