//! Constraints on an object's properties. `properties`, `patternProperties` and `additionalProperties` are one rule
//! together: which of them a property falls under depends on the others.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{ANYTHING, Comparison, SchemaPair, Spot, matcher::Matcher, refuses_all};
use crate::trust::manifest::{rules::DiffRule, schema::PATTERN_PROGRAM_BYTES_MAX};

impl<'a> Comparison<'a, '_> {
    pub(super) fn objects(&mut self, pair: SchemaPair<'a, '_>) {
        self.required(pair);
        self.dependencies(pair);
        let (old, new) = pair.schemas("propertyNames");
        self.schemas(old, new, &pair.spot.key("propertyNames"), pair.position);
        self.listed_properties(pair);
        self.patterns(pair);
        self.other_properties(pair);
    }

    fn required(&mut self, pair: SchemaPair<'a, '_>) {
        let (old, new) = pair.get("required");
        let (old, new) = (names(old), names(new));
        let name = |name: &&str| Value::from(*name);
        for added in new.difference(&old).map(name) {
            self.report(DiffRule::RequiredAdded, pair.position, &pair.place("required"), None, Some(&added));
        }
        for removed in old.difference(&new).map(name) {
            self.report(DiffRule::RequiredRemoved, pair.position, &pair.place("required"), Some(&removed), None);
        }
    }

    fn dependencies(&mut self, pair: SchemaPair<'a, '_>) {
        let spot = pair.spot.key("dependentRequired");
        let (old, new) = (entries(pair.old, "dependentRequired"), entries(pair.new, "dependentRequired"));
        for (property, old, new) in both(old, new) {
            let (before, now) = (names(old), names(new));
            let spot = spot.key(property);
            if !now.is_subset(&before) {
                self.report(DiffRule::DependencyAdded, pair.position, spot.place(new), old, new);
            }
            if !before.is_subset(&now) {
                self.report(DiffRule::DependencyRemoved, pair.position, spot.place(new), old, new);
            }
        }
        let spot = pair.spot.key("dependentSchemas");
        let (old, new) = (entries(pair.old, "dependentSchemas"), entries(pair.new, "dependentSchemas"));
        for (property, old, new) in both(old, new) {
            let spot = spot.key(property);
            match (old, new) {
                (Some(old), Some(new)) => self.schemas(old, new, &spot, pair.position),
                (None, _) => self.report(DiffRule::DependencyAdded, pair.position, &spot.new, old, new),
                (_, None) => self.report(DiffRule::DependencyRemoved, pair.position, &spot.old, old, new),
            }
        }
    }

    fn listed_properties(&mut self, pair: SchemaPair<'a, '_>) {
        let spot = pair.spot.key("properties");
        let (others_before, others_now) = pair.schemas(OTHERS);
        // A pattern may have held the property before, so nothing is known of what it accepted.
        let free = if entries(pair.old, "patternProperties").is_some() { &ANYTHING } else { others_before };
        for (name, old, new) in both(entries(pair.old, "properties"), entries(pair.new, "properties")) {
            let spot = spot.key(name);
            match (old, new) {
                (Some(old), Some(new)) => self.schemas(old, new, &spot, pair.position),
                (None, Some(new)) => {
                    self.report(DiffRule::PropertyAdded, pair.position, &spot.new, None, Some(new));
                    if !refuses_all(free) {
                        self.schemas(free, new, &spot, pair.position);
                    }
                }
                (Some(old), _) if refuses_all(others_now) => {
                    self.report(DiffRule::PropertyForbidden, pair.position, &spot.old, Some(old), None);
                }
                (Some(old), _) => {
                    self.report(DiffRule::PropertyRemoved, pair.position, &spot.old, Some(old), None);
                    self.left_to_others(pair, &spot, old);
                }
                (None, None) => {}
            }
        }
    }

    /// What was spoken of by itself falls under `additionalProperties` now.
    fn left_to_others(&mut self, pair: SchemaPair<'a, '_>, spot: &Spot<'_>, old: &'a Value) {
        let (_, others) = pair.schemas(OTHERS);
        if !accepts_all(others) {
            self.schemas(old, others, &Spot { old: spot.old, new: pair.spot.new.key(OTHERS) }, pair.position);
        }
    }

    fn patterns(&mut self, pair: SchemaPair<'a, '_>) {
        let spot = pair.spot.key("patternProperties");
        let (others_before, others) = pair.schemas(OTHERS);
        for (pattern, old, new) in both(entries(pair.old, "patternProperties"), entries(pair.new, "patternProperties"))
        {
            let spot = spot.key(pattern);
            match (old, new) {
                (Some(old), Some(new)) => self.schemas(old, new, &spot, pair.position),
                (Some(_), None) if refuses_all(others) => {
                    self.report(DiffRule::PatternPropertyClosed, pair.position, &spot.old, old, new);
                }
                (Some(was), None) => {
                    self.report(DiffRule::PatternPropertyRemoved, pair.position, &spot.old, old, new);
                    self.left_to_others(pair, &spot, was);
                }
                (None, Some(added)) if refuses_all(others_before) => {
                    self.report(DiffRule::PatternPropertyOpened, pair.position, &spot.new, old, new);
                    self.newly_matched(pair, &spot, pattern, added);
                }
                (None, _) => self.report(DiffRule::PatternPropertyAdded, pair.position, &spot.new, old, new),
            }
        }
    }

    /// Compares what the object accepted with a new pattern's schema, where the pattern may match. The object was closed,
    /// so it accepted listed properties, and those that an old pattern matched. Whether two patterns overlap is not decided.
    fn newly_matched(&mut self, pair: SchemaPair<'a, '_>, spot: &Spot<'_>, pattern: &str, added: &'a Value) {
        if accepts_all(added) {
            return;
        }
        if !self.budget.looks_at(PATTERN_PROGRAM_BYTES_MAX) {
            return self.give_up(&spot.new);
        }
        let matcher = Matcher::new(pattern);
        for keyword in ["properties", "patternProperties"] {
            let place = pair.spot.old.key(keyword);
            for (name, old) in entries(pair.old, keyword).into_iter().flatten() {
                if keyword == "patternProperties" || matcher.may_match(name) {
                    self.schemas(old, added, &Spot { old: place.key(name), new: spot.new }, pair.position);
                }
            }
        }
    }

    fn other_properties(&mut self, pair: SchemaPair<'a, '_>) {
        let (old, new) = pair.schemas(OTHERS);
        let rule = match (refuses_all(old), refuses_all(new)) {
            (true, true) => return,
            (false, true) => DiffRule::AdditionalClosed,
            (true, false) => DiffRule::AdditionalOpened,
            (false, false) => {
                self.report_presence(pair, OTHERS, DiffRule::EvaluationChanged, DiffRule::EvaluationChanged);
                return self.schemas(old, new, &pair.spot.key(OTHERS), pair.position);
            }
        };
        let (old, new) = pair.get(OTHERS);
        self.report(rule, pair.position, &pair.place(OTHERS), old, new);
    }
}

/// Applies to properties that neither a name nor a pattern matches.
const OTHERS: &str = "additionalProperties";

pub(super) fn accepts_all(schema: &Value) -> bool {
    *schema == Value::Bool(true) || schema.as_object().is_some_and(Map::is_empty)
}

pub(super) fn names(value: Option<&Value>) -> BTreeSet<&str> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

/// A keyword that maps names to something. `None`: it is not there, or empty.
fn entries<'a>(schema: &'a Map<String, Value>, keyword: &str) -> Option<&'a Map<String, Value>> {
    schema.get(keyword)?.as_object().filter(|entries| !entries.is_empty())
}

type PropertyEntry<'a> = (&'a str, Option<&'a Value>, Option<&'a Value>);

/// Every name of either side, with the schema each side has for it.
fn both<'a>(old: Option<&'a Map<String, Value>>, new: Option<&'a Map<String, Value>>) -> Vec<PropertyEntry<'a>> {
    let keys: BTreeSet<&str> = old.into_iter().chain(new).flat_map(Map::keys).map(String::as_str).collect();
    keys.into_iter().map(|key| (key, old.and_then(|m| m.get(key)), new.and_then(|m| m.get(key)))).collect()
}
