//! The fields of a manifest with their types, for a list of everything that does not fit. The types themselves report only the
//! first misfit.

use serde_json::{Map, Value, json};

/// What a field holds.
#[derive(Clone, Copy)]
pub(super) enum FieldKind {
    Text,
    Number,
    Flag,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// Any JSON; another check reads it.
    Any,
    Object(&'static [Field]),
    List(&'static [Field]),
}

pub(super) struct Field {
    pub name: &'static str,
    pub kind: FieldKind,
    pub is_required: bool,
}

const fn required(name: &'static str, kind: FieldKind) -> Field {
    Field { name, kind, is_required: true }
}

const fn optional(name: &'static str, kind: FieldKind) -> Field {
    Field { name, kind, is_required: false }
}

pub(super) const MANIFEST: &[Field] = &[
    required("schema_version", FieldKind::Text),
    required("agent_version", FieldKind::Text),
    required("tools", FieldKind::List(TOOL)),
    required("permission_scopes", FieldKind::List(SCOPE)),
    optional("capability_flags", FieldKind::Object(FLAGS)),
];

pub(super) const TOOL: &[Field] = &[
    required("name", FieldKind::Text),
    required("description_i18n_key", FieldKind::Text),
    optional("description_fallback", FieldKind::Text),
    required("input_schema", FieldKind::Any),
    required("permission_scope", FieldKind::Text),
    optional("required", FieldKind::Flag),
    optional("timeout_ms", FieldKind::Number),
];

pub(super) const SCOPE: &[Field] = &[
    required("id", FieldKind::Text),
    required("label_i18n_key", FieldKind::Text),
    optional("label_fallback", FieldKind::Text),
    optional("description_i18n_key", FieldKind::Text),
    optional("description_fallback", FieldKind::Text),
    required("sensitivity", FieldKind::OneOf(&["low", "medium", "high"])),
];

pub(super) const FLAGS: &[Field] = &[
    optional("supports_streaming", FieldKind::Flag),
    optional("supports_artifacts", FieldKind::Flag),
    optional("supports_voice", FieldKind::Flag),
    optional("supports_group_chat", FieldKind::Flag),
];

/// Reports each field that is missing or of another type, by its pointer, until `report` returns `false`.
pub(super) fn misfits(value: &Value, report: &mut dyn FnMut(String, String) -> bool) {
    object(value, MANIFEST, "", report);
}

/// Returns whether to go on.
fn object(value: &Value, fields: &[Field], at: &str, report: &mut dyn FnMut(String, String) -> bool) -> bool {
    let Value::Object(members) = value else { return report(at.to_owned(), "must be an object".to_owned()) };
    fields.iter().all(|field| check_field(members, field, at, report))
}

fn check_field(
    members: &Map<String, Value>,
    field: &Field,
    at: &str,
    report: &mut dyn FnMut(String, String) -> bool,
) -> bool {
    let at = format!("{at}/{}", field.name);
    let value = match members.get(field.name) {
        None if field.is_required => return report(at, "is missing".to_owned()),
        None => return true,
        // Texts may be null where they may be left out.
        Some(Value::Null) if !field.is_required && matches!(field.kind, FieldKind::Text) => return true,
        Some(value) => value,
    };
    match (field.kind, value) {
        (FieldKind::Object(fields), _) => object(value, fields, &at, report),
        (FieldKind::List(fields), Value::Array(items)) => {
            items.iter().enumerate().all(|(n, item)| object(item, fields, &format!("{at}/{n}"), report))
        }
        _ => scalar_misfit(value, field.kind).is_none_or(|expected| report(at, expected)),
    }
}

/// What a value that is not of its field's type must be. `None` if it is.
fn scalar_misfit(value: &Value, kind: FieldKind) -> Option<String> {
    let (fits, expected) = match kind {
        FieldKind::Any => return None,
        FieldKind::OneOf(texts) => {
            let is_listed = value.as_str().is_some_and(|text| texts.contains(&text));
            return (!is_listed).then(|| format!("must be one of {}", texts.join(", ")));
        }
        FieldKind::Text => (value.is_string(), "must be a string"),
        FieldKind::Number => (value.is_u64(), "must be a whole number, 1 or more"),
        FieldKind::Flag => (value.is_boolean(), "must be true or false"),
        FieldKind::Object(_) => (value.is_object(), "must be an object"),
        FieldKind::List(_) => (value.is_array(), "must be an array"),
    };
    (!fits).then(|| expected.to_owned())
}

/// A tool or scope with a stand-in for each field that is missing or of another type, so that the rest of it can be checked.
/// `None` if it is not an object.
pub(super) fn with_stand_ins(item: &Value, fields: &[Field]) -> Option<Value> {
    let members = item.as_object()?;
    let read = |field: &Field| {
        let value = members.get(field.name).filter(|value| scalar_misfit(value, field.kind).is_none());
        let value = value.cloned().or_else(|| field.is_required.then(|| stand_in(field.kind)))?;
        Some((field.name.to_owned(), value))
    };
    Some(Value::Object(fields.iter().filter_map(read).collect()))
}

/// A value that violates no rule of another field.
fn stand_in(kind: FieldKind) -> Value {
    match kind {
        FieldKind::Text => "".into(),
        FieldKind::Number => 1.into(),
        FieldKind::Flag => false.into(),
        // The last one is the strictest.
        FieldKind::OneOf(texts) => texts.last().copied().into(),
        FieldKind::Any => json!({"type": "object"}),
        FieldKind::Object(_) => json!({}),
        FieldKind::List(_) => json!([]),
    }
}

#[cfg(test)]
mod tests {
    use utoipa::PartialSchema;

    use super::*;
    use crate::trust::manifest::{CapabilityFlags, Manifest, Scope, Tool};

    #[test]
    fn the_fields_are_those_of_the_types() {
        let schemas = [
            (MANIFEST, Manifest::schema()),
            (TOOL, Tool::schema()),
            (SCOPE, Scope::schema()),
            (FLAGS, CapabilityFlags::schema()),
        ];
        for (fields, schema) in schemas {
            let schema = serde_json::to_value(schema).unwrap();
            let mut names: Vec<_> = fields.iter().map(|field| field.name).collect();
            let mut known: Vec<_> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
            names.sort_unstable();
            known.sort_unstable();
            assert_eq!(names, known);
            for field in fields {
                let is_required = schema["required"].as_array().is_some_and(|names| names.contains(&json!(field.name)));
                assert_eq!(field.is_required, is_required, "{}", field.name);
            }
        }
    }
}
