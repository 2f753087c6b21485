//! Arguments of a call against the schema of its tool. A schema may come from a server that is not trusted, so it is copied first:
//! references within it are replaced by what they refer to, up to a number of nodes and bytes and a depth, and references to other
//! documents are refused. A copy without references takes time in proportion to its size and that of the arguments.

use std::{fmt, sync::LazyLock};

use jsonschema::{PatternOptions, Validator};
use serde_json::{Map, Value};

use crate::{json::text_of, mcp::tools::SCHEMA_BYTES_MAX, text::clip};

/// Most bytes of a call's arguments.
pub const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;
/// How deeply arguments may nest.
pub const ARGUMENTS_DEPTH_MAX: usize = 32;
/// How deeply schemas may nest. What a recursive schema says below that is not checked.
const SCHEMA_DEPTH_MAX: usize = 24;
/// Most schemas in a copy.
const SCHEMA_NODES_MAX: usize = 2_000;
/// Most bytes in a copy, which has what several references refer to as often as they do.
const SCHEMA_COPY_BYTES_MAX: usize = 4 * SCHEMA_BYTES_MAX;
/// Most patterns in a copy, and most bytes of each when it is compiled, and of the cache that matching it uses.
const PATTERNS_MAX: usize = 32;
const PATTERN_BYTES_MAX: usize = 256 * 1024;
/// How many problems of one call are described to the model.
const PROBLEMS_MAX: usize = 5;
const PROBLEM_CHARS_MAX: usize = 300;

/// Keywords whose value is a schema.
const ONE: &[&str] = &[
    "additionalItems",
    "additionalProperties",
    "contains",
    "contentSchema",
    "else",
    "if",
    "items",
    "not",
    "propertyNames",
    "then",
    "unevaluatedItems",
    "unevaluatedProperties",
];
/// Keywords whose value is a list of schemas.
const LIST: &[&str] = &["allOf", "anyOf", "items", "oneOf", "prefixItems"];
/// Keywords whose value is an object of schemas.
const NAMED: &[&str] = &["dependentSchemas", "patternProperties", "properties"];
/// What references refer to. The copy has none.
const DEFINITIONS: &[&str] = &["$defs", "definitions"];
/// Keywords that would make a reference mean something else than a place in the same document, or that cannot be copied.
const REFUSED: &[&str] = &["$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"];
/// Keywords that mean nothing in the copy.
const LEFT_OUT: &[&str] = &["$comment", "$id", "$schema", "$vocabulary", "id"];

/// Why the schema of a tool cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaProblem {
    TooLarge,
    NotAnObject,
    Reference,
    Invalid,
}

impl fmt::Display for SchemaProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLarge => "is too large",
            Self::NotAnObject => "is not that of an object",
            Self::Reference => "refers to something outside of it",
            Self::Invalid => "is not a JSON schema",
        })
    }
}

/// The rules for the arguments of one tool.
pub struct ArgumentRules {
    /// `None`: the schema is not a JSON schema.
    validator: LazyLock<Option<Validator>, Compile>,
}

/// Compiles a schema when it is first needed, and is dropped then.
type Compile = Box<dyn FnOnce() -> Option<Validator> + Send + Sync>;

impl fmt::Debug for ArgumentRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ArgumentRules")
    }
}

impl ArgumentRules {
    /// The rules of a schema that may come from elsewhere.
    pub fn read(schema: &Map<String, Value>) -> Result<Self, SchemaProblem> {
        let rules = Self::read_own(schema)?;
        if rules.validator.is_none() { Err(SchemaProblem::Invalid) } else { Ok(rules) }
    }

    /// The rules of a schema of this program, compiled when a call is first checked. The first schema that a process compiles
    /// takes half a megabyte, because it is checked itself.
    pub(super) fn read_own(schema: &Map<String, Value>) -> Result<Self, SchemaProblem> {
        if schema.get("type").is_some_and(|kind| kind != "object") {
            return Err(SchemaProblem::NotAnObject);
        }
        let copied = copy_bounded(&Value::Object(schema.clone()))?;
        let compile: Compile = Box::new(move || {
            // Expressions that can go back would let a schema take any amount of time.
            let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
            jsonschema::draft202012::options().with_pattern_options(patterns).build(&copied).ok()
        });
        Ok(Self { validator: LazyLock::new(compile) })
    }

    /// The arguments, if they are an object that the schema allows. Empty arguments are an empty object, as some models send them.
    /// The error is for the model.
    pub fn check(&self, arguments: &str) -> Result<Map<String, Value>, String> {
        if arguments.len() > ARGUMENTS_BYTES_MAX {
            return Err(format!("the arguments are longer than {ARGUMENTS_BYTES_MAX} bytes"));
        }
        let text = if arguments.trim().is_empty() { "{}" } else { arguments };
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("the arguments are not JSON: {error}"))?;
        if depth(&value) > ARGUMENTS_DEPTH_MAX {
            return Err(format!("the arguments nest more than {ARGUMENTS_DEPTH_MAX} levels deep"));
        }
        if !value.is_object() {
            return Err("the arguments are not a JSON object".into());
        }
        let Some(validator) = self.validator.as_ref() else { return Err("the tool's schema is not one".into()) };
        // Cheaper than a search for problems, which most arguments do not have.
        let is_valid = validator.is_valid(&value);
        match value {
            Value::Object(members) if is_valid => Ok(members),
            value => {
                let problems: Vec<_> =
                    validator.iter_errors(&value).take(PROBLEMS_MAX).map(|error| described(&error)).collect();
                Err(problems.join("; "))
            }
        }
    }
}

/// A copy of a schema without references, of bounded size.
pub(crate) fn copy_bounded(schema: &Value) -> Result<Value, SchemaProblem> {
    if text_of(schema).len() > SCHEMA_BYTES_MAX {
        return Err(SchemaProblem::TooLarge);
    }
    Copier { whole: schema, nodes: 0, bytes: 0, patterns: 0 }.schema(schema, 0)
}

fn described(error: &jsonschema::ValidationError<'_>) -> String {
    let (place, message) = (error.instance_path().to_string(), clip(&error.to_string(), PROBLEM_CHARS_MAX));
    if place.is_empty() { message } else { format!("{}: {message}", clip(&place, PROBLEM_CHARS_MAX)) }
}

/// How deeply arrays and objects nest.
pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Copies a schema without its references.
struct Copier<'a> {
    whole: &'a Value,
    nodes: usize,
    bytes: usize,
    patterns: usize,
}

impl<'a> Copier<'a> {
    fn schema(&mut self, schema: &Value, depth: usize) -> Result<Value, SchemaProblem> {
        self.nodes += 1;
        if self.nodes > SCHEMA_NODES_MAX {
            return Err(SchemaProblem::TooLarge);
        }
        let Value::Object(members) = schema else {
            return if schema.is_boolean() { Ok(schema.clone()) } else { Err(SchemaProblem::Invalid) };
        };
        if depth > SCHEMA_DEPTH_MAX {
            return Ok(Value::Bool(true));
        }
        let mut copy = Map::new();
        for (keyword, value) in members {
            let name = keyword.as_str();
            if REFUSED.contains(&name) {
                return Err(SchemaProblem::Reference);
            }
            if name == "$ref" || DEFINITIONS.contains(&name) || LEFT_OUT.contains(&name) {
                continue;
            }
            self.count(name.len(), usize::from(name == "pattern"))?;
            copy.insert(keyword.clone(), self.value(name, value, depth + 1)?);
        }
        if let Some(reference) = members.get("$ref") {
            let target = self.schema(self.target(reference)?, depth + 1)?;
            // Keywords beside a reference apply as well.
            let mut all = vec![target];
            all.extend(copy.remove("allOf").and_then(|list| list.as_array().cloned()).unwrap_or_default());
            copy.insert("allOf".into(), all.into());
        }
        Ok(Value::Object(copy))
    }

    /// Counts what is added to the copy.
    fn count(&mut self, bytes: usize, patterns: usize) -> Result<(), SchemaProblem> {
        self.bytes += bytes;
        self.patterns += patterns;
        let fits = self.bytes <= SCHEMA_COPY_BYTES_MAX && self.patterns <= PATTERNS_MAX;
        if fits { Ok(()) } else { Err(SchemaProblem::TooLarge) }
    }

    fn value(&mut self, keyword: &str, value: &Value, depth: usize) -> Result<Value, SchemaProblem> {
        match value {
            Value::Array(list) if LIST.contains(&keyword) => {
                list.iter().map(|item| self.schema(item, depth)).collect::<Result<Vec<_>, _>>().map(Value::from)
            }
            Value::Object(named) if NAMED.contains(&keyword) => {
                let is_pattern = usize::from(keyword == "patternProperties");
                let copied = named.iter().map(|(name, schema)| {
                    self.count(name.len(), is_pattern)?;
                    Ok((name.clone(), self.schema(schema, depth)?))
                });
                copied.collect::<Result<Map<_, _>, _>>().map(Value::Object)
            }
            _ if ONE.contains(&keyword) => self.schema(value, depth),
            // Data, such as that of `enum`, or a keyword that validation reads as it is.
            _ => {
                self.count(text_of(value).len(), 0)?;
                Ok(value.clone())
            }
        }
    }

    /// What a reference within the document refers to.
    fn target(&self, reference: &Value) -> Result<&'a Value, SchemaProblem> {
        let place = reference.as_str().and_then(|text| text.strip_prefix('#')).ok_or(SchemaProblem::Reference)?;
        self.whole.pointer(place).ok_or(SchemaProblem::Reference)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn rules(schema: Value) -> Result<ArgumentRules, SchemaProblem> {
        ArgumentRules::read(schema.as_object().unwrap())
    }

    fn city() -> ArgumentRules {
        let unit = json!({"type": "string", "enum": ["celsius", "fahrenheit"]});
        let schema = json!({"type": "object", "properties": {"city": {"type": "string"}, "unit": {"$ref": "#/$defs/unit"}},
            "required": ["city"], "additionalProperties": false, "$defs": {"unit": unit}});
        rules(schema).unwrap()
    }

    #[test]
    fn arguments_are_checked_and_their_problems_described() {
        assert_eq!(city().check(r#"{"city": "Oslo", "unit": "celsius"}"#).unwrap().len(), 2);
        for (arguments, expected) in [
            ("", "\"city\" is a required property"),
            ("{}", "\"city\" is a required property"),
            (r#"{"city": 7}"#, "/city: 7 is not of type"),
            (r#"{"city": "Oslo", "unit": "kelvin"}"#, "/unit: \"kelvin\" is not one of"),
            (r#"{"city": "Oslo", "day": 1}"#, "'day' was unexpected"),
            ("[]", "not a JSON object"),
            ("{", "not JSON"),
        ] {
            let message = city().check(arguments).unwrap_err();
            assert!(message.contains(expected), "{arguments}: {message}");
        }
        let nested = format!("{{\"city\": {}{}}}", "[".repeat(40), "]".repeat(40));
        assert!(city().check(&nested).unwrap_err().contains("nest"));
        assert!(city().check(&"x".repeat(ARGUMENTS_BYTES_MAX + 1)).unwrap_err().contains("longer"));
    }

    #[test]
    fn a_schema_that_refers_elsewhere_or_is_none_is_refused() {
        for (schema, expected) in [
            (json!({"type": "string"}), SchemaProblem::NotAnObject),
            (json!({"properties": {"a": {"$ref": "https://schemas.example/a.json"}}}), SchemaProblem::Reference),
            (json!({"properties": {"a": {"$ref": "file:///etc/passwd"}}}), SchemaProblem::Reference),
            (json!({"properties": {"a": {"$ref": "#/$defs/absent"}}}), SchemaProblem::Reference),
            (json!({"properties": {"a": {"$ref": 7}}}), SchemaProblem::Reference),
            (json!({"$dynamicRef": "#a"}), SchemaProblem::Reference),
            (json!({"properties": {"a": {"type": "nonsense"}}}), SchemaProblem::Invalid),
            (json!({"properties": {"a": 7}}), SchemaProblem::Invalid),
            (json!({"properties": {"a": {"pattern": "("}}}), SchemaProblem::Invalid),
            (json!({"description": "x".repeat(SCHEMA_BYTES_MAX)}), SchemaProblem::TooLarge),
        ] {
            assert_eq!(rules(schema.clone()).unwrap_err(), expected, "{schema}");
        }
    }

    #[test]
    fn data_of_a_schema_is_not_taken_for_a_schema() {
        let schema = json!({"properties": {"$ref": {"const": {"$ref": "x"}}, "items": {"enum": [{"$dynamicRef": 1}]}}});
        let rules = rules(schema).unwrap();
        assert!(rules.check(r#"{"$ref": {"$ref": "x"}, "items": {"$dynamicRef": 1}}"#).is_ok());
        assert!(rules.check(r#"{"$ref": {"$ref": "y"}}"#).is_err());
    }

    #[test]
    fn schemas_that_refer_to_themselves_end() {
        let endless = rules(json!({"allOf": [{"$ref": "#"}]}));
        assert!(endless.is_ok_and(|rules| rules.check("{}").is_ok()));
        let tree = json!({"type": "object", "properties": {"left": {"$ref": "#"}, "value": {"type": "integer"}}});
        let tree = rules(tree).unwrap();
        assert!(tree.check(r#"{"left": {"left": {"value": 1}}}"#).is_ok());
        assert!(tree.check(r#"{"left": {"left": {"value": "x"}}}"#).is_err());
        // Each level refers to the next one twice.
        let mut levels: Map<String, Value> = (0..40)
            .map(|level| {
                let next = json!({"$ref": format!("#/$defs/l{}", level + 1)});
                (format!("l{level}"), json!({"allOf": [next, next]}))
            })
            .collect();
        levels.insert("l40".into(), json!({}));
        assert_eq!(rules(json!({"$ref": "#/$defs/l0", "$defs": levels})).unwrap_err(), SchemaProblem::TooLarge);
    }

    #[test]
    fn copies_and_patterns_are_bounded() {
        let refers = |count: usize, target: Value| {
            let names = (0..count).map(|number| (format!("p{number}"), json!({"$ref": "#/$defs/a"})));
            let properties: Map<String, Value> = names.collect();
            rules(json!({"properties": properties, "$defs": {"a": target}})).err()
        };
        let long = json!({"enum": ["x".repeat(20_000)]});
        assert_eq!(refers(2, long.clone()), None);
        assert_eq!(refers(500, long), Some(SchemaProblem::TooLarge));
        let pattern = json!({"pattern": "^[a-z]+$"});
        assert_eq!(refers(PATTERNS_MAX, pattern.clone()), None);
        assert_eq!(refers(PATTERNS_MAX + 1, pattern), Some(SchemaProblem::TooLarge));
        assert_eq!(refers(1, json!({"pattern": "(a{1000}){1000}"})), Some(SchemaProblem::Invalid));
        assert_eq!(refers(1, json!({"pattern": r"^[\p{L}\w]+$"})), None);
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let keywords = prop::sample::select(vec![
            "type",
            "properties",
            "items",
            "allOf",
            "anyOf",
            "not",
            "$ref",
            "$defs",
            "enum",
            "pattern",
            "required",
            "a",
        ]);
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            prop::sample::select(vec!["object", "string", "#", "#/properties/a", "#/$defs/a", "x"])
                .prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 48, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(keywords.clone(), inner, 0..4).prop_map(|members| {
                    Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
                }),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]
        #[test]
        fn whatever_the_schema_and_the_arguments_a_check_ends(schema in any_json(), arguments in any_json()) {
            if let Value::Object(schema) = schema
                && let Ok(rules) = ArgumentRules::read(&schema)
            {
                let _ = rules.check(&arguments.to_string());
            }
        }
    }
}
