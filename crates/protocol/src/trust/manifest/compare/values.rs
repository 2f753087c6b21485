//! Constraints on a value by itself: its type, the values listed, bounds, and rules for text.

use std::{
    cmp::Ordering,
    collections::{BTreeSet, HashSet},
};

use serde_json::{Map, Value};

use super::{Comparison, SchemaPair};
use crate::trust::manifest::rules::DiffRule;

/// A bound, and what it means to leave it out.
struct NumberBound {
    keyword: &'static str,
    is_lower: bool,
    absent: f64,
}

const fn at_least(keyword: &'static str, absent: f64) -> NumberBound {
    NumberBound { keyword, is_lower: true, absent }
}

const fn at_most(keyword: &'static str) -> NumberBound {
    NumberBound { keyword, is_lower: false, absent: f64::INFINITY }
}

const BOUNDS: [NumberBound; 6] = [
    at_least("minLength", 0.0),
    at_least("minItems", 0.0),
    at_least("minProperties", 0.0),
    at_most("maxLength"),
    at_most("maxItems"),
    at_most("maxProperties"),
];

/// Bounds of `contains`, which mean nothing without it.
const CONTAINS_BOUNDS: [NumberBound; 2] = [at_least("minContains", 1.0), at_most("maxContains")];

/// Bounds of numbers: the one that still accepts its own value, and the one that does not. What they refuse is turned
/// round for the upper ones, so that more is always tighter.
const RANGES: [(&str, &str, f64); 2] = [("minimum", "exclusiveMinimum", 1.0), ("maximum", "exclusiveMaximum", -1.0)];

/// Rules about text that cannot be compared with each other.
const TEXT_RULES: [&str; 5] = ["pattern", "format", "contentEncoding", "contentMediaType", "contentSchema"];

impl<'a> Comparison<'a, '_> {
    pub(super) fn values(&mut self, pair: SchemaPair<'a, '_>) {
        let (old, new) = pair.get("type");
        if types(old) != types(new) {
            self.report(DiffRule::TypeChanged, pair.position, &pair.place("type"), old, new);
        }
        self.listed_values(pair);
        RANGES.iter().for_each(|range| self.range(pair, *range));
        BOUNDS.iter().for_each(|bound| self.bound(pair, bound));
        self.multiples(pair);
        self.text_rules(pair);
    }

    fn listed_values(&mut self, pair: SchemaPair<'a, '_>) {
        let (before, now) = (spelling(pair.old), spelling(pair.new));
        // A `const` is an `enum` of one value.
        if let (Some((was, old)), Some((is, new))) = (before, now)
            && was != is
        {
            return self.lists(pair, is, old, new);
        }
        match pair.get("enum") {
            (Some(Value::Array(old)), Some(Value::Array(new))) => self.lists(pair, "enum", old, new),
            _ => self.report_presence(pair, "enum", DiffRule::EnumAdded, DiffRule::EnumDropped),
        }
        match pair.get("const") {
            (Some(old), Some(new)) if old != new => {
                self.report(DiffRule::ConstChanged, pair.position, &pair.place("const"), Some(old), Some(new));
            }
            _ => self.report_presence(pair, "const", DiffRule::ConstAdded, DiffRule::ConstDropped),
        }
    }

    fn lists(&mut self, pair: SchemaPair<'a, '_>, keyword: &str, old: &'a [Value], new: &'a [Value]) {
        let (known, kept): (HashSet<_>, HashSet<_>) = (old.iter().collect(), new.iter().collect());
        if known == kept && !pair.old.contains_key(keyword) {
            self.report(DiffRule::Respelled, pair.position, &pair.place(keyword), None, pair.new.get(keyword));
        }
        for value in old.iter().filter(|value| !kept.contains(value)) {
            self.report(DiffRule::EnumValueRemoved, pair.position, &pair.place(keyword), Some(value), None);
        }
        for value in new.iter().filter(|value| !known.contains(value)) {
            self.report(DiffRule::EnumValueAdded, pair.position, &pair.place(keyword), None, Some(value));
        }
    }

    pub(super) fn contains_bounds(&mut self, pair: SchemaPair<'a, '_>) {
        CONTAINS_BOUNDS.iter().for_each(|bound| self.bound(pair, bound));
    }

    fn bound(&mut self, pair: SchemaPair<'a, '_>, bound: &NumberBound) {
        let (old, new) = pair.get(bound.keyword);
        let number = |value: Option<&Value>| value.and_then(Value::as_f64).unwrap_or(bound.absent);
        let (before, now) = (number(old), number(new));
        if before != now {
            let rule =
                if (now > before) == bound.is_lower { DiffRule::BoundTightened } else { DiffRule::BoundLoosened };
            self.report(rule, pair.position, &pair.place(bound.keyword), old, new);
        }
    }

    /// Both bounds of numbers on one side count as one: whichever refuses more.
    fn range(&mut self, pair: SchemaPair<'a, '_>, (inclusive, exclusive, sign): (&str, &str, f64)) {
        let keywords = [inclusive, exclusive];
        if keywords.iter().all(|keyword| pair.old.get(*keyword) == pair.new.get(*keyword)) {
            return;
        }
        // How much is refused, by the value and then by whether that is refused too; and the keyword that refuses it.
        let tightest = |schema: &Map<String, Value>| {
            let mut tightest = (f64::NEG_INFINITY, false, inclusive);
            for (keyword, excludes) in [(inclusive, false), (exclusive, true)] {
                let Some(number) = schema.get(keyword).and_then(Value::as_f64) else { continue };
                if number * sign > tightest.0 || (number * sign == tightest.0 && excludes) {
                    tightest = (number * sign, excludes, keyword);
                }
            }
            tightest
        };
        let (before, now) = (tightest(pair.old), tightest(pair.new));
        let rule = match (now.0, now.1).partial_cmp(&(before.0, before.1)) {
            Some(Ordering::Greater) => DiffRule::BoundTightened,
            Some(Ordering::Less) => DiffRule::BoundLoosened,
            Some(Ordering::Equal) => DiffRule::Respelled,
            None => DiffRule::BoundChanged,
        };
        let keyword = if now.0 == f64::NEG_INFINITY { before.2 } else { now.2 };
        self.report(rule, pair.position, &pair.place(keyword), pair.old.get(before.2), pair.new.get(now.2));
    }

    /// `multipleOf`, and `uniqueItems`, which is a bound of one step.
    fn multiples(&mut self, pair: SchemaPair<'a, '_>) {
        let (old, new) = pair.get("multipleOf");
        let rule = match (old.and_then(Value::as_f64), new.and_then(Value::as_f64)) {
            (None, Some(_)) => Some(DiffRule::BoundTightened),
            (Some(_), None) => Some(DiffRule::BoundLoosened),
            (Some(old), Some(new)) if old == new => None,
            (Some(old), Some(new)) if is_multiple(new, old) => Some(DiffRule::BoundTightened),
            (Some(old), Some(new)) if is_multiple(old, new) => Some(DiffRule::BoundLoosened),
            (Some(_), Some(_)) => Some(DiffRule::BoundChanged),
            (None, None) => None,
        };
        if let Some(rule) = rule {
            self.report(rule, pair.position, &pair.place("multipleOf"), old, new);
        }
        let (old, new) = pair.get("uniqueItems");
        let is_on = |value: Option<&Value>| value == Some(&Value::Bool(true));
        if is_on(old) != is_on(new) {
            let rule = if is_on(new) { DiffRule::BoundTightened } else { DiffRule::BoundLoosened };
            self.report(rule, pair.position, &pair.place("uniqueItems"), old, new);
        }
    }

    fn text_rules(&mut self, pair: SchemaPair<'a, '_>) {
        for keyword in TEXT_RULES {
            match pair.get(keyword) {
                (Some(old), Some(new)) if old != new => {
                    self.report(DiffRule::TextRuleChanged, pair.position, &pair.place(keyword), Some(old), Some(new));
                }
                _ => self.report_presence(pair, keyword, DiffRule::TextRuleAdded, DiffRule::TextRuleDropped),
            }
        }
    }
}

/// The types a schema accepts; `None`: all of them. Every whole number is a number.
pub(super) fn types(value: Option<&Value>) -> Option<BTreeSet<&str>> {
    let mut types: BTreeSet<_> = match value? {
        Value::String(one) => [one.as_str()].into(),
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => return None,
    };
    if types.contains("number") {
        types.remove("integer");
    }
    Some(types)
}

/// The values a schema lists, and the keyword that does. `None`: it lists none, or does so twice.
fn spelling(schema: &Map<String, Value>) -> Option<(&'static str, &[Value])> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(one), None) => Some(("const", std::slice::from_ref(one))),
        (None, Some(Value::Array(several))) => Some(("enum", several)),
        _ => None,
    }
}

pub(super) fn listed(schema: &Map<String, Value>) -> Option<&[Value]> {
    schema.get("const").map(std::slice::from_ref).or_else(|| schema.get("enum")?.as_array().map(Vec::as_slice))
}

/// Whether every multiple of `number` is a multiple of `of` for every validator. Only whole numbers qualify: validators
/// disagree about fractional steps. Some count decimals, others divide doubles, and for those 0.3 is not a multiple of 0.1.
fn is_multiple(number: f64, of: f64) -> bool {
    number.fract() == 0.0 && of.fract() == 0.0 && of != 0.0 && number % of == 0.0
}
