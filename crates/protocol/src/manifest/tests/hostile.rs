//! Schemas and patterns of somebody who means harm: each is refused, or dealt with, within a named budget.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::{compare, taking};
use crate::manifest::{
    Checked, Rule,
    schema::{PATTERN_BYTES_MAX, PATTERNS_MAX, SCHEMA_DEPTH_MAX},
};

fn refusal(schema: Value) -> String {
    let failure = Checked::read(&taking(schema).to_string()).unwrap_err();
    assert_eq!(failure.rule_name(), Some("schema-invalid"), "{failure}");
    failure.message
}

fn accepted(schema: Value) {
    Checked::read(&taking(schema).to_string()).unwrap();
}

fn nested(depth: usize) -> Value {
    (0..depth).fold(json!({}), |inner, _| json!({"type": "object", "properties": {"a": inner}}))
}

#[test]
fn schemas_stand_in_each_other_so_deep_and_no_deeper() {
    accepted(nested(SCHEMA_DEPTH_MAX));
    assert!(refusal(nested(SCHEMA_DEPTH_MAX + 1)).contains("deep"));
}

#[test]
fn a_reference_stays_inside() {
    let to = |reference: &str| json!({"type": "object", "properties": {"a": {"$ref": reference}}, "$defs": {"a~b/c d": {"$anchor": "there"}}});
    accepted(to("#/$defs/a~0b~1c%20d"));
    accepted(to("#there"));
    accepted(to("#"));
    for outside in ["https://example.com/schema", "file:///etc/passwd", "other.json", "other.json#/a", "//host/x"] {
        assert!(refusal(to(outside)).contains("stays inside"), "{outside}");
    }
    for nowhere in ["#/$defs/b", "#nobody", "#/type", "#/properties", "#/%ff"] {
        assert!(refusal(to(nowhere)).contains("leads to no schema"), "{nowhere}");
    }
    let inside = |key: &str| json!({"type": "object", "properties": {"a": {key: "https://json-schema.org/draft/2020-12/schema"}}});
    assert!(refusal(inside("$id")).contains("inside"));
    assert!(refusal(inside("$schema")).contains("inside"));
    assert!(
        refusal(json!({"type": "object", "$schema": "http://json-schema.org/draft-07/schema#"})).contains("dialect")
    );
    assert!(refusal(json!({"type": "object", "dependencies": {}})).contains("2020-12"));
}

#[test]
fn what_leads_back_to_itself_for_the_same_value_is_refused() {
    let with = |defs: Value| json!({"type": "object", "$ref": "#/$defs/a", "$defs": defs});
    for defs in [
        json!({"a": {"$ref": "#/$defs/a"}}),
        json!({"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"not": {"$ref": "#/$defs/a"}}]}}),
        json!({"a": {"anyOf": [true, {"$ref": "#"}]}}),
    ] {
        assert!(refusal(with(defs.clone())).contains("leads back"), "{defs}");
    }
    accepted(with(json!({"a": {"properties": {"child": {"$ref": "#/$defs/a"}}}})));
}

/// Each definition refers twice to the next.
fn doubling(levels: usize, twice: fn(Value) -> Value) -> Value {
    let mut defs = Map::new();
    for level in 0..levels {
        defs.insert(format!("d{level}"), twice(json!({"$ref": format!("#/$defs/d{}", level + 1)})));
    }
    defs.insert(format!("d{levels}"), json!({"type": "object"}));
    json!({"type": "object", "$ref": "#/$defs/d0", "$defs": defs})
}

#[test]
fn doubling_for_one_value_is_refused_and_for_its_parts_costs_nothing() {
    assert!(refusal(doubling(40, |next| json!({"allOf": [next, next]}))).contains("look at one value"));
    let parts = || doubling(200, |next| json!({"properties": {"a": next, "b": next}}));
    accepted(parts());
    let mut changed = parts();
    changed["$defs"]["d60"] = json!({"type": "object", "title": "the end"});
    let found = compare(&taking(parts()), &taking(changed));
    assert!(found.breaking || found.changes.len() < 10, "{}", found.changes.len());
}

#[test]
fn long_chains_of_references_do_not_run_off_the_stack() {
    let mut defs = Map::new();
    for level in 0..900 {
        defs.insert(format!("d{level}"), json!({"$ref": format!("#/$defs/d{}", level + 1)}));
    }
    defs.insert("d900".into(), json!({}));
    let chain = json!({"type": "object", "$ref": "#/$defs/d0", "$defs": defs});
    accepted(chain.clone());
    let found = compare(&taking(json!({"type": "object", "allOf": [{}]})), &taking(chain));
    assert!(found.breaking, "{found:?}");
}

#[test]
fn two_circles_of_different_length_end_within_the_budget() {
    let circle = |length: usize| {
        let mut defs = Map::new();
        for at in 0..length {
            let next = format!("#/$defs/d{}", (at + 1) % length);
            defs.insert(format!("d{at}"), json!({"properties": {"next": {"$ref": next}}}));
        }
        taking(json!({"type": "object", "$ref": "#/$defs/d0", "$defs": defs}))
    };
    let found = compare(&circle(997), &circle(991));
    assert_eq!((found.breaking, found.changes.len(), found.changes[0].rule), (true, 1, Rule::Undecided));
}

#[test]
fn patterns_are_short_few_and_linear() {
    let x = |pattern: &str| json!({"type": "object", "properties": {"x": {"pattern": pattern}}});
    accepted(x(&"a".repeat(PATTERN_BYTES_MAX)));
    assert!(refusal(x(&"a".repeat(PATTERN_BYTES_MAX + 1))).contains("bytes"));
    accepted(x(r"^[a-z][a-z0-9_]{1,31}$"));
    accepted(x(r"^\d{4}-\d{2}-\d{2}$"));
    // What needs backtracking, what is no pattern, and what is small only as text.
    for bad in [r"^(?=a)b", r"(a)\1", "(", "(((a{90}){90}){90}){90}"] {
        refusal(x(bad));
    }
    let many = |count: usize| {
        let mut properties = Map::new();
        (0..count).for_each(|n| drop(properties.insert(format!("p{n}"), json!({"pattern": "a"}))));
        json!({"type": "object", "properties": properties})
    };
    accepted(many(PATTERNS_MAX));
    assert!(refusal(many(PATTERNS_MAX + 1)).contains("patterns"));
    let mut named = String::new();
    write!(named, "{}", "b".repeat(PATTERN_BYTES_MAX + 1)).unwrap();
    assert!(refusal(json!({"type": "object", "patternProperties": {named: {}}})).contains("bytes"));
}
