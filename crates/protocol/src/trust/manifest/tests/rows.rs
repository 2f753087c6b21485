//! Every row of the specification's table and of its completion: at the root, one and three objects deep, and behind a
//! reference.

use serde_json::{Value, json};

use super::{compare, read, scope, taking};
use crate::trust::manifest::{DiffRule, Sensitivity, diff::diff};

/// Both schemas are of one object, as it was and as it is.
struct Row {
    rule: DiffRule,
    breaking: bool,
    old: Value,
    new: Value,
}

fn row(rule: DiffRule, breaking: bool, old: Value, new: Value) -> Row {
    Row { rule, breaking, old, new }
}

/// An object with one property `x`.
fn of_x(x: Value) -> Value {
    json!({"type": "object", "properties": {"x": x}, "additionalProperties": false})
}

fn specified() -> Vec<Row> {
    let open = json!({"type": "object", "additionalProperties": true});
    let closed = json!({"type": "object", "additionalProperties": false});
    let named = |required: Value| json!({"type": "object", "properties": {"x": {}}, "required": required});
    let one_of = |values: Value| of_x(json!({"enum": values}));
    vec![
        row(DiffRule::RequiredAdded, true, named(json!([])), named(json!(["x"]))),
        row(DiffRule::TypeChanged, true, of_x(json!({"type": "string"})), of_x(json!({"type": "integer"}))),
        row(DiffRule::AdditionalClosed, true, open.clone(), closed.clone()),
        row(DiffRule::EnumValueRemoved, true, one_of(json!(["a", "b"])), one_of(json!(["a"]))),
        row(DiffRule::AdditionalOpened, false, closed, open),
        row(DiffRule::EnumValueAdded, false, one_of(json!(["a"])), one_of(json!(["a", "b"]))),
    ]
}

fn completed() -> Vec<Row> {
    let object = |rest: Value| {
        let mut schema = json!({"type": "object"});
        schema.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        schema
    };
    let x = |old: Value, new: Value| (of_x(old), of_x(new));
    let whole = |old: Value, new: Value| (object(old), object(new));
    let tag = |tag: &str| json!({"type": "object", "properties": {"k": {"const": tag}}, "required": ["k"]});
    let cases = [
        (DiffRule::TypeChanged, true, x(json!({"type": "integer"}), json!({"type": "number"}))),
        (
            DiffRule::RequiredAdded,
            true,
            whole(
                json!({"properties": {"x": {"default": 1}}}),
                json!({"properties": {"x": {"default": 1}}, "required": ["x"]}),
            ),
        ),
        (DiffRule::RequiredRemoved, false, whole(json!({"required": ["x"]}), json!({}))),
        (
            DiffRule::PropertyAdded,
            false,
            whole(
                json!({"additionalProperties": false}),
                json!({"additionalProperties": false, "properties": {"x": {"type": "string"}}}),
            ),
        ),
        (DiffRule::TypeChanged, true, whole(json!({}), json!({"properties": {"x": {"type": "string"}}}))),
        (
            DiffRule::PropertyForbidden,
            true,
            whole(
                json!({"additionalProperties": false, "properties": {"x": {}}}),
                json!({"additionalProperties": false}),
            ),
        ),
        (DiffRule::PropertyRemoved, false, whole(json!({"properties": {"x": {"type": "string"}}}), json!({}))),
        (DiffRule::EnumAdded, true, x(json!({}), json!({"enum": [1]}))),
        (DiffRule::EnumDropped, false, x(json!({"enum": [1]}), json!({}))),
        (DiffRule::ConstAdded, true, x(json!({}), json!({"const": 1}))),
        (DiffRule::ConstChanged, true, x(json!({"const": 2}), json!({"const": 1}))),
        (DiffRule::ConstDropped, false, x(json!({"const": 1}), json!({}))),
        (DiffRule::EnumValueAdded, false, x(json!({"const": 1}), json!({"enum": [2, 1]}))),
        (DiffRule::EnumValueRemoved, true, x(json!({"const": 1}), json!({"enum": [2]}))),
        (DiffRule::EnumValueRemoved, true, x(json!({"enum": [1, 2]}), json!({"const": 1}))),
        (DiffRule::Respelled, false, x(json!({"enum": [1]}), json!({"const": 1.0}))),
        (DiffRule::Respelled, false, x(json!({"const": 1}), json!({"enum": [1]}))),
        (DiffRule::BoundLoosened, false, x(json!({"exclusiveMinimum": 1}), json!({"minimum": 1}))),
        (DiffRule::BoundLoosened, false, x(json!({"exclusiveMaximum": 1}), json!({"maximum": 1}))),
        (DiffRule::BoundLoosened, false, x(json!({"minimum": 2}), json!({"exclusiveMinimum": 1}))),
        (DiffRule::BoundTightened, true, x(json!({"minimum": 1}), json!({"exclusiveMinimum": 1}))),
        (DiffRule::BoundTightened, true, x(json!({"maximum": 1}), json!({"exclusiveMaximum": 1}))),
        (DiffRule::Respelled, false, x(json!({"minimum": 0, "exclusiveMinimum": 1}), json!({"exclusiveMinimum": 1}))),
        (DiffRule::BoundTightened, true, x(json!({"minimum": 1}), json!({"minimum": 2}))),
        (DiffRule::BoundTightened, true, x(json!({}), json!({"maxLength": 2}))),
        (DiffRule::BoundTightened, true, x(json!({}), json!({"uniqueItems": true}))),
        (DiffRule::BoundTightened, true, x(json!({"multipleOf": 2}), json!({"multipleOf": 4}))),
        (DiffRule::BoundLoosened, false, x(json!({"maximum": 1}), json!({"maximum": 2}))),
        (DiffRule::BoundLoosened, false, x(json!({"minItems": 1}), json!({}))),
        (DiffRule::BoundLoosened, false, x(json!({"multipleOf": 4}), json!({"multipleOf": 2}))),
        (DiffRule::BoundChanged, true, x(json!({"multipleOf": 2}), json!({"multipleOf": 3}))),
        (DiffRule::BoundLoosened, false, x(json!({"multipleOf": 6.0}), json!({"multipleOf": 3}))),
        (DiffRule::BoundChanged, true, x(json!({"multipleOf": 0.3}), json!({"multipleOf": 0.1}))),
        (DiffRule::BoundChanged, true, x(json!({"multipleOf": 0.1}), json!({"multipleOf": 0.01}))),
        (DiffRule::BoundChanged, true, x(json!({"multipleOf": 2.25}), json!({"multipleOf": 0.01}))),
        (DiffRule::BoundChanged, true, x(json!({"multipleOf": 1}), json!({"multipleOf": 0.5}))),
        (DiffRule::BoundChanged, true, x(json!({"multipleOf": 0.01}), json!({"multipleOf": 1}))),
        (DiffRule::BoundChanged, true, x(json!({"not": {"multipleOf": 0.1}}), json!({"not": {"multipleOf": 0.3}}))),
        (DiffRule::BoundChanged, true, x(json!({"multipleOf": 0.6}), json!({"multipleOf": 0.3}))),
        (DiffRule::TextRuleAdded, true, x(json!({}), json!({"pattern": "a"}))),
        (DiffRule::TextRuleChanged, true, x(json!({"format": "date"}), json!({"format": "time"}))),
        (DiffRule::TextRuleDropped, false, x(json!({"pattern": "a"}), json!({}))),
        (DiffRule::DependencyAdded, true, whole(json!({}), json!({"dependentRequired": {"x": ["y"]}}))),
        (DiffRule::DependencyAdded, true, whole(json!({}), json!({"dependentSchemas": {"x": {"minProperties": 2}}}))),
        (DiffRule::DependencyRemoved, false, whole(json!({"dependentRequired": {"x": ["y"]}}), json!({}))),
        (DiffRule::BoundTightened, true, whole(json!({}), json!({"propertyNames": {"maxLength": 3}}))),
        (
            DiffRule::PatternPropertyAdded,
            true,
            whole(json!({}), json!({"patternProperties": {"^x": {"type": "string"}}})),
        ),
        (
            DiffRule::PatternPropertyOpened,
            false,
            whole(
                json!({"properties": {"a": {"type": "integer"}}, "additionalProperties": false}),
                json!({"properties": {"a": {"type": "integer"}}, "additionalProperties": false,
                    "patternProperties": {"^x": {"type": "string"}}}),
            ),
        ),
        (
            DiffRule::TypeChanged,
            true,
            whole(
                json!({"properties": {"a": {"type": "integer"}}, "additionalProperties": false}),
                json!({"properties": {"a": {"type": "integer"}}, "additionalProperties": false,
                    "patternProperties": {"^a": {"type": "string"}}}),
            ),
        ),
        (
            DiffRule::BoundTightened,
            true,
            whole(
                json!({"patternProperties": {"^a": {}}, "additionalProperties": false}),
                json!({"patternProperties": {"^a": {}, "b$": {"minimum": 1}}, "additionalProperties": false}),
            ),
        ),
        (DiffRule::PatternPropertyRemoved, false, whole(json!({"patternProperties": {"^x": {}}}), json!({}))),
        (
            DiffRule::PatternPropertyRemoved,
            false,
            whole(
                json!({"patternProperties": {"^x": {"minimum": 2}}, "additionalProperties": {"minimum": 1}}),
                json!({"additionalProperties": {"minimum": 1}}),
            ),
        ),
        (
            DiffRule::BoundTightened,
            true,
            whole(
                json!({"patternProperties": {"^x": {"minimum": 0}}, "additionalProperties": {"minimum": 1}}),
                json!({"additionalProperties": {"minimum": 1}}),
            ),
        ),
        (
            DiffRule::PatternPropertyClosed,
            true,
            whole(
                json!({"patternProperties": {"^x": {}}, "additionalProperties": false}),
                json!({"additionalProperties": false}),
            ),
        ),
        (DiffRule::TupleLengthChanged, true, x(json!({"prefixItems": [{}]}), json!({"prefixItems": [{}, {}]}))),
        (DiffRule::TypeChanged, true, x(json!({"prefixItems": [{}]}), json!({"prefixItems": [{"type": "string"}]}))),
        (DiffRule::TypeChanged, true, x(json!({"items": {}}), json!({"items": {"type": "string"}}))),
        (DiffRule::ContainsAdded, true, x(json!({}), json!({"contains": {"const": 1}}))),
        (DiffRule::ContainsDropped, false, x(json!({"contains": {"const": 1}}), json!({}))),
        (DiffRule::AllOfAdded, true, x(json!({}), json!({"allOf": [{"minimum": 1}]}))),
        (DiffRule::AllOfRemoved, false, x(json!({"allOf": [{"minimum": 1}]}), json!({}))),
        (
            DiffRule::AnyOfRemoved,
            true,
            x(json!({"anyOf": [{"const": 1}, {"const": 2}]}), json!({"anyOf": [{"const": 1}]})),
        ),
        (
            DiffRule::AnyOfAdded,
            false,
            x(json!({"anyOf": [{"const": 1}]}), json!({"anyOf": [{"const": 2}, {"const": 1}]})),
        ),
        (
            DiffRule::OneOfAdded,
            true,
            x(json!({"oneOf": [{"minimum": 1}]}), json!({"oneOf": [{"minimum": 1}, {"maximum": 9}]})),
        ),
        (DiffRule::OneOfAddedDisjoint, false, x(json!({"oneOf": [tag("a")]}), json!({"oneOf": [tag("a"), tag("b")]}))),
        (DiffRule::OneOfRemoved, true, x(json!({"oneOf": [tag("a"), tag("b")]}), json!({"oneOf": [tag("a")]}))),
        (
            DiffRule::OneOfRelaxed,
            false,
            x(json!({"oneOf": [{"minimum": 1}, {"maximum": 9}]}), json!({"anyOf": [{"maximum": 9}, {"minimum": 1}]})),
        ),
        (
            DiffRule::AnyOfRemoved,
            true,
            x(json!({"oneOf": [{"minimum": 1}, {"maximum": 9}]}), json!({"anyOf": [{"maximum": 9}]})),
        ),
        (
            DiffRule::OneOfRelaxed,
            true,
            x(json!({"not": {"oneOf": [{"minimum": 1}]}}), json!({"not": {"anyOf": [{"minimum": 1}]}})),
        ),
        (DiffRule::ChoiceAdded, true, x(json!({"anyOf": [{"minimum": 1}]}), json!({"oneOf": [{"minimum": 1}]}))),
        (DiffRule::NotAdded, true, x(json!({}), json!({"not": {"const": 1}}))),
        (DiffRule::NotDropped, false, x(json!({"not": {"const": 1}}), json!({}))),
        (DiffRule::EnumValueAdded, true, x(json!({"not": {"enum": [1]}}), json!({"not": {"enum": [1, 2]}}))),
        (DiffRule::BoundTightened, false, x(json!({"not": {"minimum": 1}}), json!({"not": {"minimum": 2}}))),
        (DiffRule::ConditionAdded, true, x(json!({}), json!({"if": {"const": 1}, "then": false}))),
        (DiffRule::ConditionDropped, false, x(json!({"if": {"const": 1}, "then": false}), json!({}))),
        (DiffRule::AnnotationChanged, false, x(json!({"if": {"const": 1}}), json!({"if": {"const": 2}, "then": true}))),
        (DiffRule::ConditionAdded, true, x(json!({"if": {"const": 1}}), json!({"if": {"const": 1}, "else": false}))),
        (DiffRule::ConditionDropped, false, x(json!({"if": {"const": 1}, "then": false}), json!({"if": {"const": 1}}))),
        (DiffRule::UnevaluatedAdded, true, whole(json!({}), json!({"unevaluatedProperties": false}))),
        (DiffRule::UnevaluatedDropped, false, whole(json!({"unevaluatedProperties": false}), json!({}))),
        (DiffRule::SchemaClosed, true, x(json!({}), json!(false))),
        (DiffRule::SchemaOpened, false, x(json!(false), json!({}))),
        (
            DiffRule::AnnotationChanged,
            false,
            x(json!({"title": "a", "default": 1}), json!({"description": "b", "default": 2})),
        ),
    ];
    cases.into_iter().map(|(rule, breaking, (old, new))| row(rule, breaking, old, new)).collect()
}

/// The object, so many objects deep.
fn within(inner: &Value, depth: usize) -> Value {
    (0..depth).fold(inner.clone(), |inner, _| json!({"type": "object", "properties": {"in": inner}}))
}

fn behind_a_reference(inner: &Value) -> Value {
    json!({"type": "object", "properties": {"in": {"$ref": "#/$defs/there"}}, "$defs": {"there": inner}})
}

#[test]
fn every_row_holds_at_every_depth_and_behind_a_reference() {
    for Row { rule, breaking, old, new } in specified().into_iter().chain(completed()) {
        let mut places: Vec<_> =
            [0, 1, 3].into_iter().map(|depth| (within(&old, depth), within(&new, depth))).collect();
        places.push((behind_a_reference(&old), behind_a_reference(&new)));
        // Only one of the two has it by a reference.
        places.push((within(&old, 1), behind_a_reference(&new)));
        for (old, new) in places {
            let (old, new) = (taking(old), taking(new));
            let found = compare(&old, &new);
            let change = found.changes.iter().find(|change| change.rule == rule);
            let change = change.unwrap_or_else(|| panic!("{rule:?} is not in {found:#?}\nof {old} and {new}"));
            assert_eq!(change.breaking, breaking, "{change:?}");
            assert_eq!(found.breaking, breaking, "{found:#?}");
            let at = if change.new.is_null() {
                new.pointer(&change.pointer).or(old.pointer(&change.pointer))
            } else {
                new.pointer(&change.pointer)
            };
            assert!(at.is_some(), "{} leads nowhere", change.pointer);
            let reauth_scopes: &[&str] = if breaking { &["filesystem:read"] } else { &[] };
            assert_eq!(found.scopes_requiring_reauth, reauth_scopes);
            assert!(!compare(&new, &new).breaking && compare(&new, &new).changes.is_empty(), "{new}");
        }
    }
}

#[test]
fn silent_rows_are_silent_in_positive_positions_only() {
    for Row { rule, old, new, .. } in specified().into_iter().filter(|row| !row.breaking) {
        let put: [fn(&Value) -> Value; 5] = [
            |inner| json!({"type": "object", "not": {"required": ["in"], "properties": {"in": inner}}}),
            |inner| json!({"type": "object", "if": {"properties": {"in": inner}}, "then": {"required": ["a"]}}),
            |inner| json!({"type": "object", "oneOf": [{"properties": {"in": inner}}, {"required": ["b"]}]}),
            |inner| json!({"type": "object", "allOf": [{"properties": {"in": inner}}], "unevaluatedProperties": false}),
            |inner| json!({"type": "object", "properties": {"in": {"contains": inner, "maxContains": 2}}}),
        ];
        for put in put {
            let found = compare(&taking(put(&old)), &taking(put(&new)));
            assert!(found.breaking, "{rule:?} in {}", put(&new));
        }
        let twice = |inner: &Value| json!({"type": "object", "not": {"not": {"properties": {"in": inner}}}});
        assert!(!compare(&taking(twice(&old)), &taking(twice(&new))).breaking, "{rule:?}");
    }
}

#[test]
fn what_a_condition_looked_at_counts_beside_unevaluated() {
    let with = |seen: Value| json!({"type": "object", "if": {"properties": seen}, "unevaluatedProperties": false});
    assert!(compare(&taking(with(json!({"a": true}))), &taking(with(json!({})))).breaking);
}

#[test]
fn a_recursive_schema_is_compared_once_round() {
    let tree = |leaf: Value| json!({"type": "object", "$defs": {"tree": {"properties": {"leaf": leaf, "next": {"$ref": "#/$defs/tree"}}}}, "$ref": "#/$defs/tree"});
    let found = compare(&taking(tree(json!({"enum": [1]}))), &taking(tree(json!({"enum": [1, 2]}))));
    assert_eq!(found.changes.len(), 1, "{found:#?}");
    assert!(!found.breaking);
    assert_eq!(found.changes[0].pointer, "/tools/0/input_schema/$defs/tree/properties/leaf/enum");
    assert!(compare(&taking(tree(json!({"enum": [1, 2]}))), &taking(tree(json!({"enum": [1]})))).breaking);
}

/// Tools and scopes as a list of (name, scope, required) and of (scope, sensitivity).
fn manifest(tools: &[(&str, &str, bool)], scopes: &[(&str, &str)]) -> Value {
    let mut manifest = taking(json!({"type": "object"}));
    let shape = manifest["tools"][0].clone();
    let tool = |(name, scope, required): &(&str, &str, bool)| {
        let mut tool = shape.clone();
        (tool["name"], tool["permission_scope"], tool["required"]) = (json!(name), json!(scope), json!(required));
        tool
    };
    manifest["tools"] = tools.iter().map(tool).collect();
    manifest["permission_scopes"] = scopes.iter().map(|(id, level)| scope(id, level)).collect();
    manifest
}

#[test]
fn more_power_breaks_and_less_is_silent() {
    let (a, b) = (("a:read", "medium"), ("b:read", "high"));
    let plain = manifest(&[("one", "a:read", false)], &[a, b]);
    let cases = [
        (DiffRule::ScopeAdded, manifest(&[("one", "a:read", false)], &[a, b, ("c:read", "low")]), "c:read"),
        (DiffRule::ScopeRaised, manifest(&[("one", "a:read", false)], &[("a:read", "high"), b]), "a:read"),
        (DiffRule::ToolScopeRaised, manifest(&[("one", "b:read", false)], &[a, b]), "b:read"),
        (DiffRule::ToolScopeMoved, manifest(&[("one", "b:read", false)], &[a, ("b:read", "low")]), "b:read"),
        (DiffRule::ToolMadeRequired, manifest(&[("one", "a:read", true)], &[a, b]), "a:read"),
        (DiffRule::ScopeRemoved, manifest(&[("one", "a:read", false)], &[a]), ""),
        (DiffRule::ScopeLowered, manifest(&[("one", "a:read", false)], &[("a:read", "low"), b]), ""),
        (DiffRule::ToolAdded, manifest(&[("two", "b:read", false), ("one", "a:read", false)], &[a, b]), ""),
        (DiffRule::ToolRemoved, manifest(&[], &[a, b]), ""),
    ];
    for (rule, changed, reauth_scopes) in cases {
        let found = compare(&plain, &changed);
        assert!(found.changes.iter().any(|change| change.rule == rule), "{rule:?} is not in {found:#?}");
        assert_eq!(found.breaking, !reauth_scopes.is_empty(), "{rule:?}");
        assert_eq!(found.scopes_requiring_reauth.join(" "), reauth_scopes, "{rule:?}");
    }
    let optional = compare(&manifest(&[("one", "a:read", true)], &[a, b]), &plain);
    assert_eq!((optional.breaking, optional.changes[0].rule), (false, DiffRule::ToolMadeOptional));
}

#[test]
fn each_change_names_its_tool_wherever_the_tools_stand() {
    let scopes = [("a:read", "medium")];
    let closed = |names: &[&str]| {
        let properties: serde_json::Map<_, _> = names.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
        json!({"type": "object", "properties": properties, "additionalProperties": false})
    };
    let mut old = manifest(&[("send_money", "a:read", false), ("look", "a:read", false)], &scopes);
    old["tools"][0]["input_schema"] = closed(&["to", "amount"]);
    // What is gone is pointed to in the old manifest, where it stood first.
    let mut new = manifest(&[("look", "a:read", false), ("send_money", "a:read", false)], &scopes);
    new["tools"][1]["input_schema"] = closed(&["to"]);
    let found = compare(&old, &new);
    let named: Vec<_> = found.changes.iter().map(|change| change.tool.as_deref()).collect();
    assert!(found.breaking && named == [Some("send_money")], "{found:#?}");
    let removed = compare(&old, &manifest(&[], &scopes));
    let named: Vec<_> = removed.changes.iter().map(|change| change.tool.as_deref()).collect();
    assert_eq!(named, [Some("look"), Some("send_money")]);
}

#[test]
fn changes_of_display_texts_are_silent_and_reported() {
    let old = taking(json!({"type": "object"}));
    for (pointer, value, rule) in [
        ("/agent_version", json!("2.0.0"), DiffRule::AgentVersionChanged),
        ("/tools/0/timeout_ms", json!(1), DiffRule::TimeoutChanged),
        ("/tools/0/description_i18n_key", json!("other.key"), DiffRule::TextChanged),
        ("/permission_scopes/0/label_fallback", json!("Harmless"), DiffRule::TextChanged),
        ("/capability_flags", json!({"supports_voice": true}), DiffRule::FlagChanged),
        ("/tools/0/x-icon", json!("file"), DiffRule::ExtensionChanged),
    ] {
        let mut new = old.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        new.pointer_mut(parent).unwrap()[key] = value;
        let found = compare(&old, &new);
        assert_eq!((found.breaking, found.changes.len(), found.changes[0].rule), (false, 1, rule));
        assert!(found.changes[0].pointer.starts_with(pointer), "{found:?}");
    }
}

#[test]
fn order_changes_the_hash_and_nothing_else() {
    let (a, b) = (("a:read", "low"), ("b:read", "low"));
    let tools = [("one", "a:read", false), ("two", "b:read", false)];
    let (old, new) = (manifest(&tools, &[a, b]), manifest(&[tools[1], tools[0]], &[b, a]));
    assert_eq!(compare(&old, &new).changes, []);
    assert_ne!(read(&old).canonical.hash, read(&new).canonical.hash);
}

#[test]
fn a_first_manifest_asks_for_every_scope() {
    let first = read(&manifest(&[], &[("b:read", "low"), ("a:read", "low")]));
    let found = diff(None, &first);
    assert!(found.breaking);
    assert_eq!(found.scopes_requiring_reauth, ["a:read", "b:read"]);
}

#[test]
fn an_owner_cannot_talk_a_scope_down_for_those_who_consented() {
    assert_eq!(Sensitivity::in_force(Sensitivity::High, Sensitivity::Low), Sensitivity::High);
    assert_eq!(Sensitivity::in_force(Sensitivity::Low, Sensitivity::High), Sensitivity::High);
}

/// `OSTLER_BLESS=1` writes the page again.
#[test]
fn the_generated_page_shows_the_rules() {
    let mut page = String::from(
        "# Rules of the manifest diff\n\nMade from the one table in `crates/protocol/src/manifest/rules.rs`. A change is *breaking* when people who consented\n\
         must consent again. What a rule does to the values that a schema accepts decides, together with where the change is:\n\n\
         | effect | plainly | under `not` | under `if`, `oneOf`, beside `unevaluated…`, under `contains` with `maxContains` |\n|---|---|---|---|\n\
         | breaks | breaking | breaking | breaking |\n| narrows | breaking | silent | breaking |\n| widens | silent | breaking | breaking |\n| notes | silent | silent | silent |\n\n\
         Whatever cannot be decided breaks. `spec` marks rows of the specification's table; the others complete it.\n\n\
         | rule | effect | whose | meaning |\n|---|---|---|---|\n",
    );
    for row in DiffRule::ALL {
        let whose = if row.origin == crate::trust::manifest::RuleOrigin::Specified { "spec" } else { "ours" };
        page +=
            &format!("| `{}` | {} | {whose} | {} |\n", row.id, format!("{:?}", row.effect).to_lowercase(), row.meaning);
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/generated/manifest-rules.md");
    if std::env::var_os("OSTLER_BLESS").is_some() {
        std::fs::write(path, &page).expect("the page can be written");
    }
    assert_eq!(std::fs::read_to_string(path).unwrap_or_default(), page, "run the test with OSTLER_BLESS=1");
}
