//! Schemas and patterns of an attacker: each is refused, or dealt with, within a named budget.

use std::fmt::Write;

use serde_json::{Map, Value, json};

use super::{compare, scope, taking};
use crate::trust::manifest::{
    Checked, DiffRule,
    compare::REPORT_BYTES_MAX,
    schema::{PATTERN_BYTES_MAX, PATTERNS_BYTES_MAX, PATTERNS_MAX, SCHEMA_DEPTH_MAX},
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
    for nowhere in ["#/$defs/b", "#nobody", "#%74here", "#/type", "#/properties", "#/%ff", "#/$defs/a~b~1c%20d"] {
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

/// Where two readers would follow one reference to two schemas, there is no telling what a tool takes.
#[test]
fn a_reference_leads_every_reader_to_the_same_schema() {
    let twice = |one: &str, other: &str| json!({"type": "object", "$defs": {"p": {one: "x", "type": "string"}, "q": {other: "x"}}, "properties": {"a": {"$ref": "#x"}}});
    for one in ["$anchor", "$dynamicAnchor"] {
        for other in ["$anchor", "$dynamicAnchor"] {
            assert!(refusal(twice(one, other)).contains("already"), "{one} {other}");
        }
    }
    // One reader takes this for the first definition, another for the second.
    let tildes =
        json!({"type": "object", "$defs": {"~~01": true, "~~1": false}, "properties": {"a": {"$ref": "#/$defs/~~01"}}});
    assert!(refusal(tildes).contains("leads to no schema"));
    let index = |index: &str| json!({"type": "object", "allOf": [true, {"minProperties": 0}], "not": {"$ref": format!("#/allOf/{index}")}});
    accepted(index("1"));
    for index in ["01", "+1", "1%20"].map(index) {
        assert!(refusal(index).contains("leads to no schema"));
    }
    // Every reader has these in store, and may look there.
    let called = |id: &str| json!({"$id": id, "type": "object", "properties": {"a": {"$ref": "#/$defs/nonNegativeInteger"}}, "$defs": {"nonNegativeInteger": true}});
    accepted(called("https://example.com/arguments"));
    for id in [
        "https://json-schema.org/draft/2020-12/schema",
        "HTTPS://JSON-Schema.org/draft/2020-12/schema",
        "https://json%2dschema.org/x",
    ] {
        assert!(refusal(called(id)).contains("another schema's"), "{id}");
    }
    let dialect = |dialect: &str| json!({"$schema": dialect, "type": "object"});
    accepted(dialect("https://json-schema.org/draft/2020-12/schema#"));
    assert!(refusal(dialect("https://json-schema.org/draft/2020-12/schema##")).contains("dialect"));
    for outdated in [
        json!({"type": "object", "properties": {"a": {"items": [{}]}}}),
        json!({"type": "object", "properties": {"a": {"additionalItems": false}}}),
        json!({"type": "object", "$recursiveAnchor": true}),
        json!({"type": "object", "properties": {"a": {"$recursiveRef": "#"}}}),
    ] {
        refusal(outdated);
    }
}

/// Readers write out the location of each schema, and the text around all of them as often.
#[test]
fn long_names_do_not_stand_around_many_schemas() {
    let around = |bytes: usize| {
        let inner = with_properties(2_000, &json!({}), json!({}));
        json!({"type": "object", "properties": {"x".repeat(bytes): inner}})
    };
    accepted(around(2_000));
    assert!(refusal(around(50_000)).contains("places"));
}

/// An object with so many properties, each with the same schema; and something to refer to as `x`.
fn with_properties(count: usize, each: &Value, x: Value) -> Value {
    let properties: Map<_, _> = (0..count).map(|n| (format!("p{n}"), each.clone())).collect();
    json!({"type": "object", "properties": properties, "$defs": {"x": x}})
}

/// Each pair is small, and repeats something large very often.
#[test]
fn a_schema_that_is_referenced_often_is_not_compared_without_end() {
    let to_x = json!({"$ref": "#/$defs/x"});
    let numbers: Vec<_> = (10_000..15_000).collect();
    let words: Vec<_> = (0..2_500).map(|n| format!("word {n}")).collect();
    let long = "x".repeat(50_000);
    let small = json!({"enum": [10_000]});
    let any = json!({"anyOf": [true]});
    let times = |count: usize, value: &Value| vec![value.clone(); count];
    let spread = |old: &Value, x: Value| (with_properties(2_000, old, json!({})), with_properties(2_000, &to_x, x));
    let within = |keyword: &str, old: Value, new: Value| {
        let schema =
            |inner| json!({"type": "object", "properties": {"a": {keyword: inner}}, "$defs": {"x": {"enum": numbers}}});
        (schema(old), schema(new))
    };
    let by_name = |count: usize, each: &Value| (0..count).map(|n| (format!("p{n}"), each.clone())).collect::<Value>();
    let conditions = |then: &Value| (0..200).map(|n| json!({"if": {"const": n}, "then": then})).collect::<Value>();
    let deep_in = |name: &str, each: &Value| json!({"type": "object", "properties": {name: with_properties(2_000, each, json!({}))}});
    let shapes = [
        ("a list", spread(&json!(true), json!({"enum": numbers}))),
        ("one value", spread(&json!(true), json!({"const": long}))),
        ("a longer list", spread(&small, json!({"enum": numbers}))),
        ("names that must be there", spread(&json!(true), json!({"required": words}))),
        ("lists in branches", spread(&any, json!({"anyOf": [true, {"enum": numbers}, {"not": {"enum": words}}]}))),
        (
            "a condition",
            spread(
                &json!({"if": {"const": 1}, "then": false}),
                json!({"if": {"enum": numbers}, "then": {"enum": numbers}}),
            ),
        ),
        ("a text", spread(&json!({"title": "a"}), json!({"title": long}))),
        ("a property", spread(&json!({}), json!({"properties": {"y": {"default": long}}}))),
        ("what comes with a name", within("dependentSchemas", by_name(450, &json!(true)), by_name(450, &to_x))),
        ("items by their place", within("prefixItems", times(2_000, &json!(true)).into(), times(2_000, &to_x).into())),
        ("branches", within("anyOf", times(450, &small).into(), times(450, &to_x).into())),
        ("conditions", within("allOf", conditions(&small), conditions(&to_x))),
        (
            "a long name around it",
            (deep_in(&long[..2_000], &json!({})), deep_in(&long[..2_000], &json!({"minLength": 1}))),
        ),
    ];
    for (shape, (old, new)) in shapes {
        let found = compare(&taking(old), &taking(new));
        assert!(found.breaking, "{shape}");
        assert!(found.bytes() < REPORT_BYTES_MAX * 3 / 2, "{shape}: {} bytes to tell", found.bytes());
        assert_eq!(found.changes.last().unwrap().rule, DiffRule::Undecided, "{shape}");
        assert_eq!(found.scopes_requiring_reauth, ["filesystem:read"], "{shape}");
    }
}

#[test]
fn branches_that_must_stay_apart_are_so_within_the_budget() {
    let constants = |count: usize| (0..count).map(|n| json!({"const": n})).collect::<Value>();
    let schema = |count: usize| json!({"type": "object", "properties": {"a": {"oneOf": constants(count)}}});
    assert!(!compare(&taking(schema(20)), &taking(schema(40))).breaking);
    assert!(compare(&taking(schema(1)), &taking(schema(950))).breaking);
}

/// A tool that cannot be decided costs its own scope, and no other tool its answer.
#[test]
fn one_tool_beyond_the_budget_leaves_the_others_theirs() {
    let large = |each: &Value| with_properties(1_500, each, json!({"enum": (10_000..16_000).collect::<Vec<_>>()}));
    let manifest = |each: &Value, other: Value| {
        let mut manifest = taking(large(each));
        let mut tool = manifest["tools"][0].clone();
        (tool["name"], tool["input_schema"], tool["permission_scope"]) = (json!("zz"), other, json!("clipboard:read"));
        manifest["tools"].as_array_mut().unwrap().push(tool);
        manifest["permission_scopes"].as_array_mut().unwrap().push(scope("clipboard:read", "medium"));
        manifest
    };
    let (before, after) = (json!({"type": "object", "required": ["a"]}), json!({"type": "object"}));
    let found = compare(&manifest(&json!(true), before), &manifest(&json!({"$ref": "#/$defs/x"}), after));
    assert_eq!(found.scopes_requiring_reauth, ["filesystem:read"]);
    let last = found.changes.last().unwrap();
    assert_eq!((last.rule, last.pointer.as_str()), (DiffRule::RequiredRemoved, "/tools/1/input_schema/required"));
}

#[test]
fn unknown_fields_count_by_their_size() {
    let manifest = |value: i32| {
        let mut manifest = taking(json!({"type": "object"}));
        manifest["name"] = json!("x".repeat(50_000));
        (0..3_000).for_each(|n| manifest[format!("x-{n}")] = json!(value));
        manifest
    };
    let found = compare(&manifest(1), &manifest(2));
    assert_eq!((found.breaking, found.changes.len()), (false, 3_000));
    assert!(found.bytes() < REPORT_BYTES_MAX, "{} bytes to tell", found.bytes());
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
    assert_eq!((found.breaking, found.changes.len(), found.changes[0].rule), (true, 1, DiffRule::Undecided));
}

#[test]
fn patterns_are_short_few_and_linear() {
    let x = |pattern: &str| json!({"type": "object", "properties": {"x": {"pattern": pattern}}});
    accepted(x(&"a".repeat(PATTERN_BYTES_MAX)));
    assert!(refusal(x(&"a".repeat(PATTERN_BYTES_MAX + 1))).contains("bytes"));
    accepted(x(r"^[a-z][a-z0-9_]{1,31}$"));
    accepted(x(r"^\d{4}-\d{2}-\d{2}$"));
    // What needs backtracking, what is no pattern, and what is small only as text.
    let named = |pattern: &str| json!({"type": "object", "patternProperties": {pattern: true}});
    for (bad, why) in [
        (r"^(?=a)b", "backtracking"),
        (r"[(]a(?<!b)", "backtracking"),
        (r"(a)\1", "backtracking"),
        ("(", "no regular expression"),
        ("(((a{90}){90}){90}){90}", "once compiled"),
    ] {
        for schema in [x(bad), named(bad)] {
            assert!(refusal(schema).contains(why), "{bad}");
        }
    }
    // Folding the case of what a class holds takes milliseconds, and readers differ on whether a pattern may ask for it.
    for flags in [r"(?i)\pL", r"a(?i:b)", r"(?s-m)a", r"[](?i)a]", r"[[](?i)a]", r"\\(?i)a", "(?x)a"] {
        assert!(refusal(x(flags)).contains("flags"), "{flags}");
    }
    for none in [r"(?:a)", r"(?<year>\d{4})", r"\(?i", r"[(?i)]", r"a(b)?i", "\u{e9}(a)?"] {
        accepted(x(none));
    }
    let many = |count: usize, pattern: &dyn Fn(usize) -> String| {
        let mut properties = Map::new();
        (0..count).for_each(|n| drop(properties.insert(format!("p{n}"), json!({"pattern": pattern(n)}))));
        json!({"type": "object", "properties": properties})
    };
    accepted(many(PATTERNS_MAX, &|n| format!("a{n}")));
    assert!(refusal(many(PATTERNS_MAX + 1, &|n| format!("a{n}"))).contains("patterns"));
    let long = |n: usize| format!("{n:064}");
    accepted(many(PATTERNS_BYTES_MAX / 64, &long));
    assert!(refusal(many(PATTERNS_BYTES_MAX / 64, &|n| long(n) + "a")).contains("bytes"));
    // A pattern that is used everywhere is compiled once.
    accepted(many(2_000, &|_| r"^\pL+$".into()));
    let by_name = |count: usize| json!({"type": "object", "patternProperties": (0..count).map(|n| (format!("a{n}"), json!({}))).collect::<Value>()});
    accepted(by_name(PATTERNS_MAX));
    assert!(refusal(by_name(PATTERNS_MAX + 1)).contains("patterns"));
    let mut named = String::new();
    write!(named, "{}", "b".repeat(PATTERN_BYTES_MAX + 1)).unwrap();
    assert!(refusal(json!({"type": "object", "patternProperties": {named: {}}})).contains("bytes"));
}
