//! What a schema says about a value by itself: its type, the values listed, bounds, and rules for text.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{Comparison, Pair};
use crate::manifest::{canonical::canonical_text, rules::Rule};

/// A bound, and what it means to leave it out.
struct Bound {
    keyword: &'static str,
    is_lower: bool,
    absent: f64,
}

const fn at_least(keyword: &'static str, absent: f64) -> Bound {
    Bound { keyword, is_lower: true, absent }
}

const fn at_most(keyword: &'static str) -> Bound {
    Bound { keyword, is_lower: false, absent: f64::INFINITY }
}

const BOUNDS: [Bound; 10] = [
    at_least("minimum", f64::NEG_INFINITY),
    at_least("exclusiveMinimum", f64::NEG_INFINITY),
    at_least("minLength", 0.0),
    at_least("minItems", 0.0),
    at_least("minProperties", 0.0),
    at_most("maximum"),
    at_most("exclusiveMaximum"),
    at_most("maxLength"),
    at_most("maxItems"),
    at_most("maxProperties"),
];

/// Bounds of `contains`, which mean nothing without it.
const CONTAINS_BOUNDS: [Bound; 2] = [at_least("minContains", 1.0), at_most("maxContains")];

/// Rules about text that cannot be compared with each other.
const TEXT_RULES: [&str; 5] = ["pattern", "format", "contentEncoding", "contentMediaType", "contentSchema"];

impl<'a> Comparison<'a, '_> {
    pub(super) fn values(&mut self, pair: Pair<'a, '_>) {
        let (old, new) = pair.get("type");
        if types(old) != types(new) {
            self.report(Rule::TypeChanged, pair.position, pair.place("type"), old, new);
        }
        self.listed_values(pair);
        BOUNDS.iter().for_each(|bound| self.bound(pair, bound));
        self.multiples(pair);
        self.text_rules(pair);
    }

    fn listed_values(&mut self, pair: Pair<'a, '_>) {
        match pair.get("enum") {
            (Some(Value::Array(old)), Some(Value::Array(new))) => {
                let (old, new) = (by_meaning(old), by_meaning(new));
                for (_, value) in old.iter().filter(|(text, _)| !new.contains_key(*text)) {
                    self.report(Rule::EnumValueRemoved, pair.position, pair.place("enum"), Some(value), None);
                }
                for (_, value) in new.iter().filter(|(text, _)| !old.contains_key(*text)) {
                    self.report(Rule::EnumValueAdded, pair.position, pair.place("enum"), None, Some(value));
                }
            }
            _ => self.report_presence(pair, "enum", Rule::EnumAdded, Rule::EnumDropped),
        }
        match pair.get("const") {
            (Some(old), Some(new)) if canonical_text(old) != canonical_text(new) => {
                self.report(Rule::ConstChanged, pair.position, pair.place("const"), Some(old), Some(new));
            }
            _ => self.report_presence(pair, "const", Rule::ConstAdded, Rule::ConstDropped),
        }
    }

    pub(super) fn contains_bounds(&mut self, pair: Pair<'a, '_>) {
        CONTAINS_BOUNDS.iter().for_each(|bound| self.bound(pair, bound));
    }

    fn bound(&mut self, pair: Pair<'a, '_>, bound: &Bound) {
        let (old, new) = pair.get(bound.keyword);
        let number = |value: Option<&Value>| value.and_then(Value::as_f64).unwrap_or(bound.absent);
        let (before, now) = (number(old), number(new));
        if before != now {
            let rule = if (now > before) == bound.is_lower { Rule::BoundTightened } else { Rule::BoundLoosened };
            self.report(rule, pair.position, pair.place(bound.keyword), old, new);
        }
    }

    /// `multipleOf`, and `uniqueItems`, which is a bound of one step.
    fn multiples(&mut self, pair: Pair<'a, '_>) {
        let (old, new) = pair.get("multipleOf");
        let rule = match (old.and_then(Value::as_f64), new.and_then(Value::as_f64)) {
            (None, Some(_)) => Some(Rule::BoundTightened),
            (Some(_), None) => Some(Rule::BoundLoosened),
            (Some(old), Some(new)) if old == new => None,
            (Some(old), Some(new)) if is_multiple(new, old) => Some(Rule::BoundTightened),
            (Some(old), Some(new)) if is_multiple(old, new) => Some(Rule::BoundLoosened),
            (Some(_), Some(_)) => Some(Rule::BoundChanged),
            (None, None) => None,
        };
        if let Some(rule) = rule {
            self.report(rule, pair.position, pair.place("multipleOf"), old, new);
        }
        let (old, new) = pair.get("uniqueItems");
        let is_on = |value: Option<&Value>| value == Some(&Value::Bool(true));
        if is_on(old) != is_on(new) {
            let rule = if is_on(new) { Rule::BoundTightened } else { Rule::BoundLoosened };
            self.report(rule, pair.position, pair.place("uniqueItems"), old, new);
        }
    }

    fn text_rules(&mut self, pair: Pair<'a, '_>) {
        for keyword in TEXT_RULES {
            match pair.get(keyword) {
                (Some(old), Some(new)) if old != new => {
                    self.report(Rule::TextRuleChanged, pair.position, pair.place(keyword), Some(old), Some(new));
                }
                _ => self.report_presence(pair, keyword, Rule::TextRuleAdded, Rule::TextRuleDropped),
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

/// Values by what they mean: 1 and 1.0 are one value.
pub(super) fn by_meaning(values: &[Value]) -> BTreeMap<String, &Value> {
    values.iter().map(|value| (canonical_text(value), value)).collect()
}

/// Only whole numbers are compared: the rest is a matter of rounding.
fn is_multiple(number: f64, of: f64) -> bool {
    number.fract() == 0.0 && of.fract() == 0.0 && of != 0.0 && number % of == 0.0
}
