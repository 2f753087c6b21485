use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use jsonschema::Keyword;
use proptest::prelude::*;
use serde_json::json;

use super::{
    copy::{PATTERNS_MAX, SCHEMA_NODES_MAX},
    keywords::{KeywordValue, keyword_value},
    *,
};
use crate::mcp::tools::SCHEMA_BYTES_MAX;

fn rules(schema: Value) -> Result<ArgumentRules, SchemaProblem> {
    let rules = ArgumentRules::read(schema.as_object().unwrap())?;
    rules.compile().map(|()| rules)
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
    let doubled = json!({"$ref": "#/$defs/l0", "$defs": doubling("/$defs")});
    assert_eq!(rules(doubled).unwrap_err(), SchemaProblem::TooLarge);
}

/// Schemas of which each refers twice to the next one.
fn doubling(place: &str) -> Map<String, Value> {
    let level = |level: usize| {
        let next = json!({"$ref": format!("#{place}/l{}", level + 1)});
        (format!("l{level}"), json!({"allOf": [next, next]}))
    };
    (0..40).map(level).chain([("l40".to_owned(), json!({}))]).collect()
}

#[test]
fn references_of_dependencies_are_counted() {
    let doubled = json!({"dependencies": {"a": {"$ref": "#/x/l0"}}, "x": doubling("/x")});
    assert_eq!(rules(doubled).unwrap_err(), SchemaProblem::TooLarge);
    let patterns: Vec<_> = (0..=PATTERNS_MAX).map(|number| json!({"pattern": format!("^a{{{number}}}$")})).collect();
    let many = json!({"dependencies": {"a": {"properties": {"a": {"allOf": patterns}}}}});
    assert_eq!(rules(many).unwrap_err(), SchemaProblem::TooLarge);
    let nodes = json!({"dependencies": {"a": {"allOf": vec![json!({}); SCHEMA_NODES_MAX]}}});
    assert_eq!(rules(nodes).unwrap_err(), SchemaProblem::TooLarge);
    for wrong in [json!([]), json!({"a": 7}), json!({"a": "b"}), json!({"a": ["b", "b"]})] {
        assert_eq!(rules(json!({"dependencies": wrong})).unwrap_err(), SchemaProblem::Invalid, "{wrong}");
    }
}

#[test]
fn dependencies_of_older_drafts_are_checked() {
    let schema = json!({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object",
        "dependencies": {"card": ["address"], "gift": {"$ref": "#/definitions/gift"}}, "allOf": [{"minProperties": 1}],
        "definitions": {"gift": {"required": ["message"]}}});
    let rules = rules(schema).unwrap();
    for (arguments, expected) in [
        (r#"{"card": 1, "address": "x"}"#, None),
        (r#"{"gift": true, "message": "x"}"#, None),
        (r#"{"other": 1}"#, None),
        (r#"{"card": 1}"#, Some("\"address\" is a required property")),
        (r#"{"gift": true}"#, Some("\"message\" is a required property")),
        ("{}", Some("less than 1 property")),
    ] {
        let problem = rules.check(arguments).err();
        assert_eq!(problem.is_some(), expected.is_some(), "{arguments}: {problem:?}");
        assert!(problem.unwrap_or_default().contains(expected.unwrap_or_default()), "{arguments}");
    }
}

#[test]
fn keywords_that_a_check_does_not_read_are_not_copied() {
    let reference = json!({"$ref": "#/x/l0"});
    for keyword in
        ["additionalItems", "contentSchema", "default", "discriminator", "examples", "extends", "format", "x"]
    {
        let schema = json!({"properties": {"a": {(keyword): reference}}, "x": doubling("/x")});
        let (copy, _) = copy_bounded(&schema).unwrap();
        assert_eq!(copy, json!({"properties": {"a": {}}}), "{keyword}");
    }
    for keyword in
        ["allOf", "anyOf", "dependentSchemas", "items", "not", "patternProperties", "prefixItems", "properties"]
    {
        for wrong in [json!(7), json!([{"$ref": 7}]), json!({"$ref": 7})] {
            assert!(copy_bounded(&json!({(keyword): wrong})).is_err(), "{keyword}: {wrong}");
        }
    }
}

/// The problem of arguments whose member `a` is this, if the schema of `a` is that one.
fn problem(schema: &Value, value: &Value) -> Option<String> {
    let rules = rules(json!({"properties": {"a": schema}})).unwrap();
    rules.check(&json!({"a": value}).to_string()).err()
}

const NOT_CHECKED: &str = "the arguments are too large to be checked against the tool's schema";

#[test]
fn a_check_that_would_take_too_long_is_not_made() {
    let numbers: Vec<_> = (0..30_000).map(|_| json!(1)).collect();
    let many_rules = json!({"items": {"allOf": vec![json!({"type": "number"}); SCHEMA_NODES_MAX - 100]}});
    let options: Vec<_> = (0..6_000).map(|number| json!(number)).chain([json!("x")]).collect();
    let large_enum = json!({"items": {"not": {"enum": options}}});
    let divided: Vec<_> = (0..9_000).map(|_| json!(1e300)).collect();
    let fraction = json!({"items": {"multipleOf": 1e-300}});
    let matched = |count: usize| json!({"allOf": vec![json!({"pattern": "x$"}); count]});
    let text = json!("x".repeat(60_000));
    let nested = (0..20).fold(json!({}), |inner, _| json!({"anyOf": [inner], "unevaluatedProperties": true}));
    let nested_items = (0..20).fold(json!({}), |inner, _| json!({"oneOf": [inner], "unevaluatedItems": true}));
    let names = (0..6_000).map(|number| (format!("m{number}"), json!(1))).collect::<serde_json::Map<_, _>>();
    let own =
        json!({"allOf": vec![json!({"properties": {"z": true}}); 900], "anyOf": [{}], "unevaluatedProperties": true});
    let wide = (0..6).fold(own, |inner, _| json!({"anyOf": [inner], "unevaluatedProperties": true}));
    let own = json!({"allOf": vec![json!({"type": "array"}); 900], "anyOf": [{}], "unevaluatedItems": true});
    let long = (0..6).fold(own, |inner, _| json!({"anyOf": [inner], "unevaluatedItems": true}));
    for (name, schema, value) in [
        ("unevaluated members of a wide object", &wide, &json!(names)),
        ("unevaluated items of a long array", &long, &json!(vec![1; 7_500])),
        ("many rules", &many_rules, &json!(numbers)),
        ("a large enum", &large_enum, &json!(vec![-1; 20_000])),
        ("fractions", &fraction, &json!(divided)),
        ("patterns", &matched(5), &text),
        ("unevaluated members", &nested, &json!({"b": 1})),
        ("unevaluated items", &nested_items, &json!([1])),
    ] {
        assert_eq!(problem(schema, value).as_deref(), Some(NOT_CHECKED), "{name}");
    }
    assert_eq!(problem(&many_rules, &json!([1, 2, 3])), None);
    assert_eq!(problem(&matched(4), &text), None);
}

#[test]
fn large_arguments_of_ordinary_schemas_are_checked() {
    let point = json!({"type": "object", "required": ["x", "y"], "properties": {"x": {"type": "number", "minimum": 0},
        "y": {"type": "number", "multipleOf": 0.5}}, "additionalProperties": false});
    let points: Vec<_> = (0..4_000).map(|_| json!({"x": 1, "y": 0.5})).collect();
    assert_eq!(problem(&json!({"type": "array", "items": point}), &json!(points)), None);
    let nested = (0..4).fold(
        json!({}),
        |inner, _| json!({"properties": {"a": inner}, "allOf": [{"type": "object"}], "unevaluatedProperties": false}),
    );
    assert_eq!(problem(&nested, &json!({"a": {"a": {"a": {}}}})), None);
    assert!(problem(&nested, &json!({"a": {"b": {}}})).unwrap().contains("'b' was unexpected"));
    let text = json!({"type": "string", "maxLength": 100_000, "pattern": r"^[\s\S]+$"});
    assert_eq!(problem(&text, &json!("x".repeat(65_000))), None);
}

#[test]
fn problems_are_described_only_if_there_cannot_be_many() {
    let of = |rules: usize, items: usize, outer: fn(Value) -> Value| {
        let items: Vec<_> = (0..items).map(|_| json!(1)).collect();
        let schema = json!({"items": {"allOf": vec![json!({"type": "string"}); rules]}});
        problem(&outer(schema), &json!(items)).unwrap()
    };
    assert_eq!(of(500, 2_000, |schema| schema), "the arguments do not fit the tool's schema");
    let alternatives: fn(Value) -> Value = |schema| json!({"anyOf": [schema, {"type": "string"}]});
    assert_eq!(of(500, 2_000, alternatives), "the arguments do not fit the tool's schema");
    assert_eq!(of(10, 100, |schema| schema).matches("is not of type").count(), PROBLEMS_MAX);
    assert!(of(10, 100, alternatives).contains("not valid under any of the schemas"));
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
        "$defs",
        "$dynamicRef",
        "$ref",
        "a",
        "additionalProperties",
        "allOf",
        "anyOf",
        "const",
        "contains",
        "definitions",
        "dependencies",
        "dependentRequired",
        "dependentSchemas",
        "else",
        "enum",
        "if",
        "items",
        "maxContains",
        "multipleOf",
        "not",
        "oneOf",
        "pattern",
        "patternProperties",
        "prefixItems",
        "properties",
        "propertyNames",
        "required",
        "then",
        "type",
        "unevaluatedItems",
        "unevaluatedProperties",
        "uniqueItems",
    ]);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        prop::sample::select(vec!["object", "string", "#", "#/properties/a", "#/$defs/a", "x"]).prop_map(Value::from),
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

/// Schemas in which most keywords hold what they should, so that most of them can be compiled.
fn any_schema() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(Value::from),
        Just(json!({"type": "object"})),
        Just(json!({"minimum": 0, "multipleOf": 2})),
        Just(json!({"enum": [1, "a", {}]})),
        Just(json!({"pattern": "a", "maxLength": 3})),
        Just(json!({"uniqueItems": true})),
        prop::sample::select(vec!["#", "#/properties/a", "#/$defs/a"]).prop_map(|place| json!({"$ref": place})),
    ];
    let schema = leaf.prop_recursive(5, 48, 4, |inner| {
        let one = prop::sample::select(vec![
            "additionalProperties",
            "contains",
            "else",
            "if",
            "items",
            "not",
            "propertyNames",
            "then",
            "unevaluatedItems",
            "unevaluatedProperties",
        ]);
        let list = prop::sample::select(vec!["allOf", "anyOf", "oneOf", "prefixItems"]);
        let named = prop::sample::select(vec!["dependencies", "dependentSchemas", "patternProperties", "properties"]);
        let held = prop_oneof![
            (one, inner.clone()).prop_map(|(keyword, schema)| (keyword, schema)),
            (list, prop::collection::vec(inner.clone(), 1..3))
                .prop_map(|(keyword, schemas)| (keyword, Value::from(schemas))),
            (named, prop::collection::btree_map("[ab]", inner, 0..3))
                .prop_map(|(keyword, schemas)| (keyword, schemas.into_iter().collect())),
        ];
        prop::collection::vec(held, 1..4).prop_map(|members| members.into_iter().collect())
    });
    (schema.clone(), schema).prop_map(|(schema, target)| json!({"allOf": [schema], "$defs": {"a": target}}))
}

fn any_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![(-3..4_i32).prop_map(Value::from), "[ab]{0,3}".prop_map(Value::from), Just(Value::Null),];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[ab]", inner, 0..3).prop_map(|members| members.into_iter().collect()),
        ]
    })
}

/// Counts how often the validator reaches a schema.
struct Visits(Arc<AtomicU64>);

impl<'a> Keyword<'a> for Visits {
    fn validate(&self, value: &'a Value) -> Result<(), ValidationError<'a>> {
        self.is_valid(value);
        Ok(())
    }

    fn is_valid(&self, _: &'a Value) -> bool {
        self.0.fetch_add(1, Relaxed);
        true
    }
}

/// Adds the keyword `visits` to every schema of a copy.
fn with_visits(schema: &Value) -> Value {
    let Value::Object(members) = schema else { return schema.clone() };
    let held = |(keyword, value): (&String, &Value)| {
        let value = match (keyword_value(keyword).unwrap(), value) {
            (KeywordValue::Data, value) => value.clone(),
            (KeywordValue::Schema(_), schema) => with_visits(schema),
            (_, Value::Array(list)) => list.iter().map(with_visits).collect(),
            (_, named) => named.as_object().unwrap().iter().map(|(name, schema)| (name, with_visits(schema))).collect(),
        };
        (keyword.clone(), value)
    };
    members.iter().map(held).chain([("visits".to_owned(), Value::Null)]).collect()
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

    #[test]
    fn a_check_takes_at_most_the_steps_that_were_counted(schema in any_schema(), value in any_value()) {
        let Ok((copy, _)) = copy_bounded(&schema) else { return Ok(()) };
        let visits = Arc::new(AtomicU64::new(0));
        let counted = visits.clone();
        let options = jsonschema::draft202012::options().with_keyword("visits", move |_, _, _| Ok(Box::new(Visits(counted.clone()))));
        let validator = options.with_pattern_options(PatternOptions::regex()).build(&with_visits(&copy)).unwrap();
        let steps = steps_of(&copy, &value).unwrap_or(u64::MAX);
        let is_valid = validator.is_valid(&value);
        prop_assert!(visits.swap(0, Relaxed) <= steps, "{copy}");
        let errors = validator.iter_errors(&value).count();
        prop_assert_eq!(errors == 0, is_valid, "{}", copy);
        prop_assert!(u64::try_from(errors).unwrap() <= steps, "{copy}");
    }
}
