//! Whenever the comparison is silent, nothing that the old schema accepts is refused by the new one. Pairs of schemas and
//! values are made up; `jsonschema`, which we did not write, judges them.
//!
//! Everything is made from a row of dice rolls, so that a counterexample shrinks by itself. The vocabulary is tiny on
//! purpose: schemas and values must meet.

use std::{cell::RefCell, collections::BTreeMap};

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, RngAlgorithm, RngSeed, TestRunner},
};
use serde_json::{Map, Value, json};

use crate::trust::manifest::{
    Canonical, DiffRule,
    changes::Change,
    compare::{
        Budget, ToolSchema, compare,
        groups::{KEYWORDS as COMPARED, group},
    },
    pointer::Pointer,
    rules::Effect,
    schema,
};

const PAIRS: u32 = 6_000;
const VALUES: usize = 60;

struct Dice<'a>(std::slice::Iter<'a, u32>);

impl Dice<'_> {
    /// One of so many; the first when the rolls are used up, so that everything comes to an end.
    fn roll(&mut self, sides: usize) -> usize {
        self.0.next().map_or(0, |roll| *roll as usize % sides)
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len())].clone()
    }
}

const NAMES: [&str; 3] = ["a", "b", "ab"];
const PATTERNS: [&str; 3] = ["^a", "b$", "^[ab]$"];
const STEPS: [f64; 8] = [1.0, 2.0, 4.0, 3.0, 0.5, 0.1, 0.3, 0.01];

/// Writes one keyword, or a few that belong together, into a schema.
type Write = fn(&mut Dice<'_>, usize, &mut Map<String, Value>);

fn set(object: &mut Map<String, Value>, keyword: &str, value: impl Into<Value>) {
    object.insert(keyword.into(), value.into());
}

/// Every keyword that can refuse a value, and some that cannot.
const KEYWORDS: [(&str, Write); 43] = [
    ("type", |d, _, s| {
        let types = ["string", "integer", "number", "object", "array", "null", "boolean"];
        let one = json!(d.pick(&types));
        let value = if d.roll(3) == 0 { json!([d.pick(&types[..3]), d.pick(&types[3..])]) } else { one };
        set(s, "type", value);
    }),
    ("enum", |d, _, s| {
        let mut values = vec![value(d, 1), value(d, 1)];
        if d.roll(2) == 0 {
            values.push(value(d, 0));
        }
        values.dedup();
        set(s, "enum", values);
    }),
    ("const", |d, _, s| set(s, "const", value(d, 1))),
    ("multipleOf", |d, _, s| set(s, "multipleOf", d.pick(&STEPS.map(Value::from)))),
    ("minimum", |d, _, s| set(s, "minimum", number(d))),
    ("maximum", |d, _, s| set(s, "maximum", number(d))),
    ("exclusiveMinimum", |d, _, s| set(s, "exclusiveMinimum", number(d))),
    ("exclusiveMaximum", |d, _, s| set(s, "exclusiveMaximum", number(d))),
    ("minLength", |d, _, s| set(s, "minLength", d.roll(4))),
    ("maxLength", |d, _, s| set(s, "maxLength", d.roll(4))),
    ("pattern", |d, _, s| set(s, "pattern", d.pick(&PATTERNS))),
    ("format", |d, _, s| set(s, "format", d.pick(&["date", "ipv4"]))),
    ("contentEncoding", |d, _, s| set(s, "contentEncoding", d.pick(&["base64", "base16"]))),
    ("contentMediaType", |d, _, s| set(s, "contentMediaType", d.pick(&["text/plain", "application/json"]))),
    ("minItems", |d, _, s| set(s, "minItems", d.roll(3))),
    ("maxItems", |d, _, s| set(s, "maxItems", d.roll(4))),
    ("uniqueItems", |d, _, s| set(s, "uniqueItems", d.roll(2) == 0)),
    ("prefixItems", |d, n, s| {
        let items: Vec<_> = (0..=d.roll(2)).map(|_| schema_of(d, n)).collect();
        set(s, "prefixItems", items);
    }),
    ("items", |d, n, s| set(s, "items", schema_of(d, n))),
    ("contains", |d, n, s| set(s, "contains", schema_of(d, n))),
    ("minContains", |d, n, s| {
        set(s, "contains", schema_of(d, n));
        set(s, "minContains", d.roll(3));
    }),
    ("maxContains", |d, n, s| {
        set(s, "contains", schema_of(d, n));
        set(s, "maxContains", 1 + d.roll(2));
    }),
    ("minProperties", |d, _, s| set(s, "minProperties", d.roll(3))),
    ("maxProperties", |d, _, s| set(s, "maxProperties", d.roll(3))),
    ("required", |d, _, s| set(s, "required", names(d))),
    ("dependentRequired", |d, _, s| set(s, "dependentRequired", json!({d.pick(&NAMES): names(d)}))),
    ("dependentSchemas", |d, n, s| set(s, "dependentSchemas", json!({d.pick(&NAMES): schema_of(d, n)}))),
    ("properties", |d, n, s| set(s, "properties", properties(d, n))),
    ("additionalProperties", |d, n, s| {
        set(s, "properties", properties(d, n));
        let value = if d.roll(2) == 0 { json!(d.roll(2) == 0) } else { schema_of(d, n) };
        set(s, "additionalProperties", value);
    }),
    ("patternProperties", |d, n, s| {
        set(s, "patternProperties", json!({d.pick(&PATTERNS): schema_of(d, n)}));
        if d.roll(2) == 0 {
            set(s, "additionalProperties", schema_of(d, n));
        }
    }),
    ("propertyNames", |d, n, s| set(s, "propertyNames", schema_of(d, n))),
    ("unevaluatedProperties", |d, n, s| {
        set(s, "allOf", json!([{"properties": properties(d, n)}]));
        set(s, "unevaluatedProperties", schema_of(d, n));
    }),
    ("unevaluatedItems", |d, n, s| {
        set(s, "prefixItems", json!([schema_of(d, n)]));
        set(s, "unevaluatedItems", schema_of(d, n));
    }),
    ("allOf", |d, n, s| set(s, "allOf", branches(d, n))),
    ("anyOf", |d, n, s| set(s, "anyOf", branches(d, n))),
    ("oneOf", |d, n, s| set(s, "oneOf", branches(d, n))),
    ("oneOf", |d, n, s| {
        let branches: Vec<_> = NAMES[..=d.roll(2)].iter().map(|tag| tagged(d, n, tag)).collect();
        set(s, "oneOf", branches);
    }),
    ("not", |d, n, s| set(s, "not", schema_of(d, n))),
    ("if", |d, n, s| set(s, "if", schema_of(d, n))),
    ("then", |d, n, s| {
        set(s, "if", schema_of(d, n));
        let keyword = d.pick(&["then", "else"]);
        set(s, keyword, schema_of(d, n));
    }),
    ("$ref", |d, _, s| set(s, "$ref", d.pick(&["#/$defs/p", "#/$defs/q", "#here"]))),
    ("$dynamicRef", |_, _, s| set(s, "$dynamicRef", "#here")),
    ("title", |d, _, s| set(s, d.pick(&["title", "description", "x-note"]), d.pick(&NAMES))),
];

fn number(d: &mut Dice<'_>) -> Value {
    d.pick(&[json!(0), json!(1), json!(2), json!(3), json!(1.5), json!(-1), json!(0.3), json!(2.25)])
}

fn names(d: &mut Dice<'_>) -> Value {
    let first = d.roll(3);
    json!(NAMES[first..(first + 1 + d.roll(2)).min(3)])
}

fn properties(d: &mut Dice<'_>, nesting: usize) -> Value {
    (0..=d.roll(2)).map(|_| (d.pick(&NAMES).to_owned(), schema_of(d, nesting))).collect()
}

/// A branch that no other tag's branch shares a value with.
fn tagged(d: &mut Dice<'_>, nesting: usize, tag: &str) -> Value {
    json!({"type": "object", "required": ["a"], "properties": {"a": {"const": tag}, "b": schema_of(d, nesting)}})
}

fn branches(d: &mut Dice<'_>, nesting: usize) -> Value {
    (0..=d.roll(3)).map(|_| schema_of(d, nesting)).collect()
}

fn schema_of(d: &mut Dice<'_>, nesting: usize) -> Value {
    match d.roll(8) {
        0 => json!(true),
        1 => json!(d.roll(3) != 0),
        _ => {
            let mut object = Map::new();
            for _ in 0..=d.roll(2) {
                write_keyword(d, nesting, &mut object);
            }
            Value::Object(object)
        }
    }
}

fn write_keyword(d: &mut Dice<'_>, nesting: usize, object: &mut Map<String, Value>) {
    // Deep down only what needs no schema inside.
    let (_, write) = if nesting == 0 { KEYWORDS[d.roll(17)] } else { d.pick(&KEYWORDS) };
    write(d, nesting.saturating_sub(1), object);
}

/// The root, with something to refer to.
fn root(d: &mut Dice<'_>) -> Value {
    let mut object = Map::new();
    for _ in 0..=d.roll(3) {
        write_keyword(d, 3, &mut object);
    }
    let mut there = schema_of(d, 1);
    if let Some(there) = there.as_object_mut() {
        set(there, "$dynamicAnchor", "here");
    }
    set(&mut object, "$defs", json!({"p": schema_of(d, 2), "q": there}));
    as_read(&Value::Object(object))
}

/// As manifests are read: a number is written in one way.
fn as_read(schema: &Value) -> Value {
    Canonical::read("it", &schema.to_string()).unwrap().0
}

/// Says something in another way, or a little more generously.
fn respell(d: &mut Dice<'_>, object: &mut Map<String, Value>) {
    for (from, to) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        if let Some(bound) = object.remove(from) {
            set(object, to, bound);
        }
    }
    match (object.remove("const"), object.remove("enum")) {
        (Some(one), None) if d.roll(2) == 0 => set(object, "enum", vec![one]),
        (Some(one), None) => set(object, "enum", vec![value(d, 0), one]),
        (None, Some(Value::Array(several))) if several.len() == 1 => set(object, "const", several[0].clone()),
        (one, several) => {
            one.into_iter().for_each(|one| set(object, "const", one));
            several.into_iter().for_each(|several| set(object, "enum", several));
        }
    }
    if object.contains_key("multipleOf") {
        set(object, "multipleOf", d.pick(&[1.0, 2.0, 0.1, 0.01]));
    }
    if !object.contains_key("anyOf")
        && let Some(branches) = object.remove("oneOf")
    {
        set(object, "anyOf", branches);
    }
    if object.get("additionalProperties") == Some(&json!(false)) {
        let mut patterns = object.get("patternProperties").and_then(Value::as_object).cloned().unwrap_or_default();
        patterns.entry(d.pick(&PATTERNS)).or_insert_with(|| schema_of(d, 1));
        set(object, "patternProperties", patterns);
    }
}

/// Changes something somewhere: a keyword is written, dropped, respelled, or handed to a schema inside.
fn change(d: &mut Dice<'_>, schema: &mut Value) {
    let Value::Object(object) = schema else {
        *schema = schema_of(d, 1);
        return;
    };
    let inner: Vec<String> =
        object.iter().filter(|(_, v)| v.is_object() || v.is_array()).map(|(k, _)| k.clone()).collect();
    match d.roll(7) {
        0 | 1 => write_keyword(d, 1, object),
        6 => respell(d, object),
        2 if !object.is_empty() => {
            let keywords: Vec<String> = object.keys().filter(|key| *key != "$defs").cloned().collect();
            if !keywords.is_empty() {
                object.remove(&d.pick(&keywords));
            }
        }
        _ if inner.is_empty() => write_keyword(d, 1, object),
        _ => {
            let keyword = d.pick(&inner);
            change_within(d, &keyword, object.get_mut(&keyword).unwrap());
        }
    }
}

fn change_within(d: &mut Dice<'_>, keyword: &str, held: &mut Value) {
    match (keyword, held) {
        ("properties" | "$defs" | "patternProperties" | "dependentSchemas", Value::Object(map)) => {
            let keys: Vec<String> = map.keys().cloned().collect();
            match d.roll(4) {
                0 if keyword == "properties" => set(map, d.pick(&NAMES), schema_of(d, 1)),
                1 if keyword != "$defs" && !keys.is_empty() => drop(map.remove(&d.pick(&keys))),
                _ if keys.is_empty() => {}
                _ => {
                    let key = d.pick(&keys);
                    change(d, map.get_mut(&key).unwrap());
                }
            }
        }
        ("allOf" | "anyOf" | "oneOf", Value::Array(list)) => match d.roll(5) {
            0 => list.push(schema_of(d, 1)),
            4 => list.push(tagged(d, 1, NAMES[2])),
            1 if list.len() > 1 => drop(list.remove(d.roll(list.len()))),
            2 => list.reverse(),
            _ => {
                let index = d.roll(list.len());
                change(d, &mut list[index]);
            }
        },
        ("prefixItems", Value::Array(list)) => {
            let index = d.roll(list.len());
            change(d, &mut list[index]);
        }
        ("enum", Value::Array(list)) if d.roll(3) != 0 || list.len() == 1 => list.push(value(d, 1)),
        ("enum" | "required" | "type", Value::Array(list)) if list.len() > 1 => drop(list.pop()),
        ("required" | "type" | "const" | "dependentRequired", _) => {}
        (_, schema) if schema.is_object() => change(d, schema),
        _ => {}
    }
}

fn value(d: &mut Dice<'_>, nesting: usize) -> Value {
    match d.roll(if nesting == 0 { 5 } else { 9 }) {
        0 => number(d),
        1 | 2 => json!(d.pick(&["", "a", "b", "ab", "ba", "YQ=="])),
        3 => json!(d.roll(2) == 0),
        4 => d.pick(&[Value::Null, json!(1.0), json!(4)]),
        5 | 6 => (0..d.roll(4)).map(|_| value(d, nesting - 1)).collect(),
        _ => (0..d.roll(4)).map(|_| (d.pick(&NAMES).to_owned(), value(d, nesting - 1))).collect(),
    }
}

/// A schema of ours that is also valid and within its budget.
fn is_sound(schema: &Value) -> bool {
    schema::check(schema, &Pointer::from(""), &mut schema::SchemaAllowance::default()).is_ok()
}

fn compared(old: &Value, new: &Value) -> Vec<Change> {
    let mut changes = vec![];
    let schema = |root| ToolSchema { root, at: String::new(), scope: "" };
    compare(&schema(old), &schema(new), &mut Budget::default(), &mut changes);
    changes
}

fn judge(schema: &Value) -> jsonschema::Validator {
    jsonschema::options().with_draft(jsonschema::Draft::Draft202012).build(schema).unwrap()
}

/// What the pairs had to say: how often each rule was met, and how often in a pair that was silent and refuted by nothing
/// though some value was accepted.
#[derive(Default)]
struct Tally {
    pairs: u32,
    silent: u32,
    met: BTreeMap<DiffRule, u32>,
    let_through: BTreeMap<DiffRule, u32>,
    /// Those of [`WIDENINGS`].
    widened: [u32; WIDENINGS.len()],
}

/// Whether a change, from one root to another, is one of a kind.
type IsMet = fn(&Change, &Value, &Value) -> bool;

/// Widenings that share a rule with others. Each has to be met in a pair that was silent.
const WIDENINGS: [(&str, IsMet); 7] = [
    ("a `const` became an `enum` of more", |change, old, _| {
        change.rule == DiffRule::EnumValueAdded && old.pointer(&change.pointer).is_none()
    }),
    ("a `const` became an `enum`, or an `enum` a `const`", |change, _, _| {
        change.rule == DiffRule::Respelled && ["enum", "const"].iter().any(|keyword| change.pointer.ends_with(keyword))
    }),
    ("an exclusive bound became an inclusive one", |change, _, _| {
        change.rule == DiffRule::BoundLoosened && change.pointer.ends_with("imum") && change.old == change.new
    }),
    ("a step became a whole part of itself", |change, _, _| {
        change.rule == DiffRule::BoundLoosened && change.pointer.ends_with("/multipleOf") && change.new.is_number()
    }),
    ("a pattern that refuses something was added beside listed properties", |change, _, new| {
        let at = change.pointer.rsplit_once("/patternProperties/").map_or("", |(at, _)| at);
        let has_listed = new.pointer(&format!("{at}/properties")).is_some();
        change.rule == DiffRule::PatternPropertyOpened
            && has_listed
            && change.new.as_object().is_some_and(|s| !s.is_empty())
    }),
    ("a condition that nothing hangs on changed", |change, _, _| {
        change.rule == DiffRule::AnnotationChanged && change.pointer.ends_with("/if")
    }),
    ("what a pattern held is left to a schema for others", |change, _, new| {
        let at = change.pointer.rsplit_once("/patternProperties/").map_or("", |(at, _)| at);
        let others = new.pointer(&format!("{at}/additionalProperties"));
        change.rule == DiffRule::PatternPropertyRemoved && others.is_some_and(|others| others != &json!(true))
    }),
];

#[test]
fn silence_never_costs_a_value() {
    let pairs = std::env::var("OSTLER_SOUNDNESS_PAIRS").ok().and_then(|n| n.parse().ok()).unwrap_or(PAIRS);
    let config = Config {
        cases: pairs,
        rng_algorithm: RngAlgorithm::ChaCha,
        rng_seed: RngSeed::Fixed(6),
        failure_persistence: None,
        max_global_rejects: pairs * 4,
        ..Config::default()
    };
    let tally = RefCell::new(Tally::default());
    let rolls = (vec(any::<u32>(), 80), vec(any::<u32>(), 24), vec(any::<u32>(), VALUES * 6));
    let outcome = TestRunner::new(config).run(&rolls, |(made, changed, valued)| {
        let old = root(&mut Dice(made.iter()));
        let mut new = old.clone();
        let dice = &mut Dice(changed.iter());
        (0..=dice.roll(3)).for_each(|_| change(dice, &mut new));
        let new = as_read(&new);
        prop_assume!(old != new && is_sound(&old) && is_sound(&new));
        let changes = compared(&old, &new);
        let mut tally = tally.borrow_mut();
        tally.pairs += 1;
        changes.iter().for_each(|change| *tally.met.entry(change.rule).or_default() += 1);
        if changes.iter().any(|change| change.breaking) {
            return Ok(());
        }
        tally.silent += 1;
        let (before, now) = (judge(&old), judge(&new));
        let dice = &mut Dice(valued.iter());
        let values: Vec<_> = (0..VALUES).map(|_| value(dice, 3)).filter(|value| before.is_valid(value)).collect();
        for value in &values {
            prop_assert!(
                now.is_valid(value),
                "{value}\nwas accepted by {old}\nand is refused by {new}\nafter {changes:#?}"
            );
        }
        if !values.is_empty() {
            changes.iter().for_each(|change| *tally.let_through.entry(change.rule).or_default() += 1);
            for (count, (_, is_met)) in tally.widened.iter_mut().zip(WIDENINGS) {
                *count += u32::from(changes.iter().any(|change| is_met(change, &old, &new)));
            }
        }
        Ok(())
    });
    outcome.unwrap_or_else(|failure| panic!("{failure}"));
    assert_exercised(&tally.into_inner());
}

/// A property that is never put to the test proves nothing.
fn assert_exercised(tally: &Tally) {
    assert!(tally.silent * 5 > tally.pairs, "{} of {} pairs were silent", tally.silent, tally.pairs);
    let first = DiffRule::RequiredAdded as usize;
    for row in &DiffRule::ALL[first..] {
        let count = |of: &BTreeMap<DiffRule, u32>| of.get(&row.rule).copied().unwrap_or_default();
        // Only a schema too large for the budget is left undecided.
        assert!(row.rule == DiffRule::Undecided || count(&tally.met) > 0, "no pair met {}", row.id);
        assert!(row.effect != Effect::Widens || count(&tally.let_through) > 0, "no silent pair had {}", row.id);
    }
    for ((widening, _), count) in WIDENINGS.iter().zip(tally.widened) {
        assert!(count > 0, "no silent pair had it that {widening}");
    }
}

/// A change of `multipleOf` that is silent costs no value, whichever way a validator counts: by decimals, as `jsonschema`
/// does, or by dividing doubles.
#[test]
fn a_silent_change_of_step_costs_no_multiple() {
    let steps = [0.01, 0.1, 0.25, 0.3, 0.5, 0.6, 0.7, 1.0, 1.5, 2.0, 2.25, 3.0, 4.0, 6.0, 12.5, 30.0, 99_999.0, 1e15];
    let of = |step: f64| as_read(&json!({"type": "object", "properties": {"x": {"multipleOf": step}}}));
    let divides = |number: f64, step: f64| (number / step).fract() == 0.0;
    let (mut silent, mut fractional) = (0, 0);
    for (from, to) in steps.iter().flat_map(|from| steps.map(|to| (*from, to))).filter(|(from, to)| from != to) {
        if compared(&of(from), &of(to)).iter().any(|change| change.breaking) {
            continue;
        }
        silent += 1;
        fractional += usize::from(from.fract() != 0.0 || to.fract() != 0.0);
        let (before, now) = (judge(&of(from)), judge(&of(to)));
        let many = (0..2_000_u32).map(|n| f64::from(n.wrapping_mul(2_654_435_761) >> (n % 30)) * from);
        let written =
            (0..2_000).map(|n: u32| format!("{}.{:03}", n.wrapping_mul(40_503) % 99_991, n % 1_000).parse().unwrap());
        for number in many.chain(written).filter(|number: &f64| number.abs() < 9e15) {
            let value = json!({"x": number});
            assert!(!before.is_valid(&value) || now.is_valid(&value), "{number} is a multiple of {from}, not of {to}");
            assert!(
                !divides(number, from) || divides(number, to),
                "divided, {number} is a multiple of {from}, not of {to}"
            );
        }
    }
    assert!(silent > 15, "{silent} pairs were silent");
    assert_eq!(fractional, 0);
    // The reason for the rule.
    assert!(divides(0.3, 0.3) && !divides(0.3, 0.1));
}

#[test]
fn every_keyword_that_refuses_is_made_up() {
    let (mut rolls, mut made) =
        ((0..20_000_u32).map(|n| n.wrapping_mul(2_654_435_761) >> 7).collect::<Vec<_>>(), Map::new());
    rolls.retain(|roll| roll % 11 != 0);
    let dice = &mut Dice(rolls.iter());
    for (_, write) in KEYWORDS.iter().cycle().take(KEYWORDS.len() * 8) {
        write(dice, 1, &mut made);
    }
    for keyword in COMPARED.iter().filter(|keyword| group(keyword).refuses()) {
        // The shape of an embedded document is not asserted by validators.
        assert!(made.contains_key(*keyword) || *keyword == "contentSchema", "{keyword}");
    }
}
