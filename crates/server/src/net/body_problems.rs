//! Lists everything that is wrong with the body of a rejected request. Handlers report the first problem that they meet; the rest
//! is found by the schema that the API's document has for the body. Accepted requests cost nothing but a reference to their bytes.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bytes::Bytes;
use http::Method;
use jsonschema::{
    JsonType, ValidationError, Validator,
    error::{TypeKind, ValidationErrorKind},
};
use ostler_protocol::{
    Failure, FailureKind,
    failures::{PROBLEMS, PROBLEMS_MAX},
    text::clip,
};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};

/// A larger body is not looked at again.
const BODY_BYTES_MAX: usize = 64 * 1024;
/// The most of a name that is quoted.
const NAME_CHARS_MAX: usize = 100;
const COMPONENTS: &str = "#/components/schemas/";

/// The body of a request as it was sent, kept until there is a response.
#[derive(Clone, Default)]
pub(super) struct SentBody(Arc<Mutex<Option<Bytes>>>);

impl SentBody {
    pub(super) fn store(&self, body: &Bytes) {
        if body.len() <= BODY_BYTES_MAX {
            *self.0.lock() = Some(body.clone());
        }
    }

    pub(super) fn take(&self) -> Option<Bytes> {
        self.0.lock().take()
    }
}

/// The schema of an operation's JSON body with the components that it refers to. `None` if it has none.
pub(super) fn body_schema(document: &Value, method: &Method, path: &str) -> Option<Value> {
    let operation = &document["paths"][path][method.as_str().to_lowercase()];
    let mut schema = operation["requestBody"]["content"]["application/json"]["schema"].clone();
    schema.as_object()?;
    let mut found = BTreeMap::new();
    collect_components(document, &schema, &mut found);
    schema["components"] = json!({"schemas": found});
    Some(schema)
}

fn collect_components(document: &Value, schema: &Value, found: &mut BTreeMap<String, Value>) {
    match schema {
        Value::Object(members) => {
            let name = members.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix(COMPONENTS));
            if let Some(name) = name.filter(|name| !found.contains_key(*name)) {
                let component = document["components"]["schemas"][name].clone();
                found.insert(name.to_owned(), component.clone());
                collect_components(document, &component, found);
            }
            members.values().for_each(|value| collect_components(document, value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| collect_components(document, item, found)),
        _ => {}
    }
}

/// Finds the schema of an operation's body.
type FindSchema = dyn Fn(&Method, &str) -> Option<Value> + Send + Sync;

/// `None` if the operation has no JSON body.
type OperationValidator = Option<Arc<Validator>>;

/// The validators of bodies, each made when a body of its operation is first rejected.
pub(super) struct BodyValidators {
    find_schema: Box<FindSchema>,
    by_operation: Mutex<HashMap<(Method, String), OperationValidator>>,
}

impl BodyValidators {
    pub(super) fn new(find_schema: impl Fn(&Method, &str) -> Option<Value> + Send + Sync + 'static) -> Self {
        Self { find_schema: Box::new(find_schema), by_operation: Mutex::default() }
    }

    fn get(&self, method: &Method, path: &str) -> Option<Arc<Validator>> {
        let key = (method.clone(), path.to_owned());
        if let Some(known) = self.by_operation.lock().get(&key) {
            return known.clone();
        }
        let schema = (self.find_schema)(method, path);
        let made = schema.and_then(|schema| jsonschema::draft202012::new(&schema).ok()).map(Arc::new);
        self.by_operation.lock().entry(key).or_insert(made).clone()
    }

    /// Adds the other problems of the body to a failure about its shape.
    pub(super) fn complete(&self, failure: Failure, method: &Method, path: &str, body: &[u8]) -> Failure {
        let Some(validator) = self.get(method, path) else { return failure };
        let Ok(body) = serde_json::from_slice::<Value>(body) else { return failure };
        let first = first_of(&failure);
        let mut problems = vec![first.clone()];
        let others = validator.iter_errors(&body).flat_map(|error| described(&error));
        problems.extend(others.filter(|problem| !is_same(&first, problem)).take(PROBLEMS_MAX));
        let has_more = problems.len() > PROBLEMS_MAX;
        problems.truncate(PROBLEMS_MAX);
        match (problems.len(), has_more) {
            (1, _) => failure,
            (_, false) => failure.detail(PROBLEMS, problems),
            (_, true) => failure.detail(PROBLEMS, problems).detail("hasMoreProblems", true),
        }
    }
}

/// Whether other fields of the body may be wrong as well, and are not listed yet.
pub(super) fn is_about_shape(failure: &Failure) -> bool {
    let is_listed = failure.details.as_ref().is_some_and(|details| details.contains_key(PROBLEMS));
    matches!(failure.kind, FailureKind::SchemaInvalid | FailureKind::RunInputInvalid) && !is_listed
}

/// The problem that the handler has reported.
fn first_of(failure: &Failure) -> Value {
    let mut first = failure.details.as_deref().cloned().unwrap_or_else(Map::new);
    first.insert("message".to_owned(), failure.message.clone().into());
    Value::Object(first)
}

/// Whether a problem is the one that the handler has reported: about the same field, by either of the names that it may have.
fn is_same(first: &Value, problem: &Value) -> bool {
    let field = problem["field"].as_str().unwrap_or_default();
    let last = field.rsplit(['.', '[']).next().unwrap_or_default();
    let message = first["message"].as_str().unwrap_or_default();
    // About an unknown field the message lists the known ones.
    let named = message.split(" expected ").next().unwrap_or_default();
    // A part of the body that has rules of its own names its places by pointers.
    let inner = first["pointer"].as_str().map(field_of).filter(|inner| !inner.is_empty());
    first["field"] == problem["field"]
        || inner.is_some_and(|inner| field.ends_with(&format!(".{inner}")))
        || message.starts_with(&format!("{field}:"))
        || message.starts_with(&format!("{field} "))
        || (!last.is_empty() && named.contains(&format!("`{last}`")))
}

/// The problems that an error of the schema consists of, each with its field.
fn described(error: &ValidationError<'_>) -> Vec<Value> {
    let at = field_of(error.instance_path().as_str());
    let inside = |name: &str| {
        let name = clip(name, NAME_CHARS_MAX);
        if at.is_empty() { name } else { format!("{at}.{name}") }
    };
    let problem = |field: String, what: String| {
        let shown = if field.is_empty() { "the body" } else { &field };
        json!({"field": field, "message": format!("{shown}: {what}")})
    };
    let text = match error.kind() {
        ValidationErrorKind::Required { property } => {
            return vec![problem(inside(property.as_str().unwrap_or_default()), "is missing".into())];
        }
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            let unknown = |name: &String| problem(inside(name), "there is no such field".into());
            return unexpected.iter().take(PROBLEMS_MAX).map(unknown).collect();
        }
        ValidationErrorKind::Type { kind: TypeKind::Single(kind) } => format!("must be {}", in_words(*kind)),
        ValidationErrorKind::Type { kind: TypeKind::Multiple(kinds) } => {
            let kinds: Vec<_> = kinds.iter().map(in_words).collect();
            format!("must be {}", kinds.join(" or "))
        }
        ValidationErrorKind::Enum { options } => {
            let words = options.as_array().into_iter().flatten().map(Value::to_string);
            format!("must be one of {}", clip(&words.collect::<Vec<_>>().join(", "), 200))
        }
        ValidationErrorKind::MaxLength { limit } => format!("has at most {limit} characters"),
        ValidationErrorKind::MinLength { limit } => format!("has at least {limit} characters"),
        ValidationErrorKind::MaxItems { limit } => format!("has at most {limit} items"),
        ValidationErrorKind::MinItems { limit } => format!("has at least {limit} items"),
        ValidationErrorKind::Maximum { limit } => format!("must be at most {limit}"),
        ValidationErrorKind::Minimum { limit } => format!("must be at least {limit}"),
        ValidationErrorKind::Pattern { pattern } => format!("must match {}", clip(pattern, 200)),
        ValidationErrorKind::OneOfNotValid { context } | ValidationErrorKind::AnyOf { context } => {
            match intended(context, error) {
                Some(errors) => return errors.iter().flat_map(described).take(PROBLEMS_MAX).collect(),
                None => "has none of the forms that it may have".to_owned(),
            }
        }
        // What holds for the body as a whole is reported by the handler.
        _ if at.is_empty() => return vec![],
        // The value is not quoted: it may be a secret.
        _ => clip(&error.masked().to_string(), 200),
    };
    vec![problem(at.clone(), text)]
}

/// The errors of the only alternative that allows a value of this type: of a field that may be null, those of its other form.
fn intended<'e>(
    alternatives: &'e [Vec<ValidationError<'static>>],
    error: &ValidationError<'_>,
) -> Option<&'e [ValidationError<'static>]> {
    let is_about_type = |inner: &ValidationError<'_>| {
        matches!(inner.kind(), ValidationErrorKind::Type { .. })
            && inner.instance_path().as_str() == error.instance_path().as_str()
    };
    let mut left = alternatives.iter().filter(|errors| !errors.iter().any(is_about_type));
    left.next().filter(|errors| !errors.is_empty() && left.next().is_none()).map(Vec::as_slice)
}

fn in_words(kind: JsonType) -> &'static str {
    match kind {
        JsonType::Array => "an array",
        JsonType::Boolean => "true or false",
        JsonType::Integer => "a whole number",
        JsonType::Null => "null",
        JsonType::Number => "a number",
        JsonType::Object => "an object",
        JsonType::String => "a string",
    }
}

/// A JSON pointer in the form that handlers name fields in: `command.steps[0].name`.
fn field_of(pointer: &str) -> String {
    let mut field = String::new();
    for part in pointer.split('/').skip(1) {
        let part = part.replace("~1", "/").replace("~0", "~");
        match part.parse::<usize>() {
            Ok(index) => field.push_str(&format!("[{index}]")),
            Err(_) if field.is_empty() => field = clip(&part, NAME_CHARS_MAX),
            Err(_) => field.push_str(&format!(".{}", clip(&part, NAME_CHARS_MAX))),
        }
    }
    field
}

#[cfg(test)]
mod tests {
    use ostler_protocol::Rule;

    use super::*;

    #[test]
    fn the_schema_lists_what_the_handler_did_not_reach() {
        let document = json!({
            "paths": {"/x": {"post": {"requestBody": {"content": {"application/json": {"schema":
                {"$ref": "#/components/schemas/X"}}}}}}},
            "components": {"schemas": {
                "X": {"type": "object", "required": ["a", "b"], "additionalProperties": false, "properties": {
                    "a": {"type": "string"}, "b": {"$ref": "#/components/schemas/Y"}, "c": {"maximum": 3}}},
                "Y": {"type": "array", "items": {"type": "object", "required": ["n"]}},
            }},
        });
        let validators = BodyValidators::new(move |method, path| body_schema(&document, method, path));
        let failure = Failure::invalid(Rule::BodyShape, "a: an integer, expected a string").detail("field", "a");
        let body = br#"{"a": 1, "b": [{}], "c": 4, "d": 5}"#;
        let failure = validators.complete(failure, &Method::POST, "/x", body);
        let listed = failure.details.unwrap()["problems"].clone();
        let mut messages: Vec<_> =
            listed.as_array().unwrap().iter().map(|one| one["message"].as_str().unwrap()).collect();
        assert_eq!(messages.remove(0), "a: an integer, expected a string");
        messages.sort_unstable();
        assert_eq!(messages, ["b[0].n: is missing", "c: must be at most 3", "d: there is no such field"]);
        let alone = Failure::invalid(Rule::BodyShape, "missing field `b`").detail("field", "the body");
        let alone = validators.complete(alone, &Method::POST, "/x", br#"{"a": "x"}"#);
        assert!(!alone.details.unwrap().contains_key(PROBLEMS));
        let document = json!({"paths": {"/y": {"post": {"requestBody": {"content": {"application/json": {"schema":
            {"properties": {"m": {"oneOf": [{"type": "null"}, {"type": "object", "required": ["v", "w"]}]}}}}}}}}}});
        let validators_of_optional = BodyValidators::new(move |method, path| body_schema(&document, method, path));
        let optional = Failure::invalid(Rule::BodyShape, "name: no").detail("field", "name");
        let optional = validators_of_optional.complete(optional, &Method::POST, "/y", br#"{"m": {}}"#);
        let listed = optional.details.unwrap()["problems"].clone();
        let messages: Vec<_> = listed.as_array().unwrap().iter().map(|one| one["message"].as_str().unwrap()).collect();
        assert_eq!(messages, ["name: no", "m.v: is missing", "m.w: is missing"]);
        let unknown = "d: unknown field `d`, expected one of `a`, `b`, `c`";
        let unknown = Failure::invalid(Rule::BodyShape, unknown).detail("field", "d");
        let unknown = validators.complete(unknown, &Method::POST, "/x", br#"{"a": 1, "b": [], "d": 5}"#);
        let listed = unknown.details.unwrap()["problems"].clone();
        assert_eq!(listed[1]["message"], "a: must be a string");
        let other = Failure::invalid(Rule::BodyShape, "no");
        let other = validators.complete(other, &Method::POST, "/nowhere", b"{}");
        assert!(!other.details.unwrap().contains_key(PROBLEMS));
    }
}
