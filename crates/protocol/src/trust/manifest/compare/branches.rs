//! Schemas that are put together from others: all of them, any, exactly one, none, or one upon a condition.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::{
    Budget, Comparison, PAIR_BYTES, SchemaPair, SchemaPosition, Spot,
    arrays::list,
    objects::{accepts_all, names},
    refuses_all,
    values::{listed, types},
};
use crate::trust::manifest::rules::DiffRule;

/// How deep a proof goes that two branches share no value.
const PROOF_DEPTH_MAX: usize = 4;

impl<'a> Comparison<'a, '_> {
    pub(super) fn branches(&mut self, pair: SchemaPair<'a, '_>) {
        self.all_of(pair);
        if is_relaxed(pair) {
            self.relaxed(pair);
        } else {
            self.any_of(pair);
            self.one_of(pair);
        }
        match pair.get("not") {
            (Some(old), Some(new)) => self.schemas(old, new, &pair.spot.key("not"), pair.position.under_not()),
            _ => self.report_presence(pair, "not", DiffRule::NotAdded, DiffRule::NotDropped),
        }
        self.condition(pair);
    }

    fn all_of(&mut self, pair: SchemaPair<'a, '_>) {
        let keywords = Keywords::same("allOf");
        let fates = self.paired(pair, keywords, pair.position);
        self.report_branches(pair, keywords, &fates.gone, DiffRule::AllOfRemoved, &fates.fresh, DiffRule::AllOfAdded);
    }

    fn any_of(&mut self, pair: SchemaPair<'a, '_>) {
        if !has_both(pair, "anyOf") {
            return self.report_presence(pair, "anyOf", DiffRule::ChoiceAdded, DiffRule::ChoiceDropped);
        }
        self.alternatives(pair, Keywords::same("anyOf"));
    }

    /// Branches of which the new schema wants at least one.
    fn alternatives(&mut self, pair: SchemaPair<'a, '_>, keywords: Keywords) {
        let fates = self.paired(pair, keywords, pair.position);
        self.report_branches(pair, keywords, &fates.gone, DiffRule::AnyOfRemoved, &fates.fresh, DiffRule::AnyOfAdded);
    }

    /// `oneOf` became `anyOf`. A value that matched exactly one branch still matches at least that one.
    fn relaxed(&mut self, pair: SchemaPair<'a, '_>) {
        let (old, new) = (pair.old.get("oneOf"), pair.new.get("anyOf"));
        self.report(DiffRule::OneOfRelaxed, pair.position, &pair.spot.new.key("anyOf"), old, new);
        self.alternatives(pair, Keywords { old: "oneOf", new: "anyOf" });
    }

    fn one_of(&mut self, pair: SchemaPair<'a, '_>) {
        if !has_both(pair, "oneOf") {
            return self.report_presence(pair, "oneOf", DiffRule::ChoiceAdded, DiffRule::ChoiceDropped);
        }
        let keywords = Keywords::same("oneOf");
        let fates = self.paired(pair, keywords, SchemaPosition::Fixed);
        let branches = list(pair.new.get("oneOf"));
        let (apart, overlapping): (Vec<_>, Vec<_>) = fates.fresh.into_iter().partition(|&fresh| {
            let mut others = branches.iter().enumerate().filter(|(index, _)| *index != fresh);
            others.all(|(_, other)| self.are_disjoint(&branches[fresh], other, 0))
        });
        self.report_branches(pair, keywords, &fates.gone, DiffRule::OneOfRemoved, &overlapping, DiffRule::OneOfAdded);
        self.report_branches(pair, keywords, &[], DiffRule::OneOfRemoved, &apart, DiffRule::OneOfAddedDisjoint);
    }

    fn condition(&mut self, pair: SchemaPair<'a, '_>) {
        // A condition that nothing hangs on refuses nothing. What it looked at, `unevaluated…` still sees.
        let is_idle = |schema: &Map<String, Value>| {
            let follows = |keyword: &str| schema.get(keyword).is_some_and(|schema| !accepts_all(schema));
            pair.position != SchemaPosition::Fixed && !follows("then") && !follows("else")
        };
        let [old, new] = [pair.old, pair.new].map(|schema| schema.get("if").filter(|_| !is_idle(schema)));
        match (old, new) {
            (Some(old), Some(new)) => {
                self.schemas(old, new, &pair.spot.key("if"), SchemaPosition::Fixed);
                for keyword in ["then", "else"] {
                    let (old, new) = pair.schemas(keyword);
                    self.schemas(old, new, &pair.spot.key(keyword), pair.position);
                }
            }
            (None, Some(_)) => self.report(DiffRule::ConditionAdded, pair.position, &pair.place("if"), None, new),
            (Some(_), None) => self.report(DiffRule::ConditionDropped, pair.position, &pair.place("if"), old, None),
            (None, None) if pair.old.get("if") != pair.new.get("if") => {
                let (old, new) = pair.get("if");
                self.report(DiffRule::AnnotationChanged, pair.position, &pair.place("if"), old, new);
            }
            (None, None) => {}
        }
    }

    /// Compares the branches that belong together: equal ones first, the rest in their order.
    fn paired(&mut self, pair: SchemaPair<'a, '_>, keywords: Keywords, position: SchemaPosition) -> Fates {
        let (old, new) = (list(pair.old.get(keywords.old)), list(pair.new.get(keywords.new)));
        let (pairs, fates) = pair_up(old, new);
        let spot = keywords.spot(pair.spot);
        for (before, now) in pairs {
            self.schemas(&old[before], &new[now], &spot.indices(before, now), position);
        }
        fates
    }

    fn report_branches(
        &mut self,
        pair: SchemaPair<'a, '_>,
        keywords: Keywords,
        gone: &[usize],
        lost: DiffRule,
        fresh: &[usize],
        won: DiffRule,
    ) {
        let spot = keywords.spot(pair.spot);
        for &index in gone {
            let place = spot.old.index(index);
            self.report(lost, pair.position, &place, list(pair.old.get(keywords.old)).get(index), None);
        }
        for &index in fresh {
            let place = spot.new.index(index);
            self.report(won, pair.position, &place, None, list(pair.new.get(keywords.new)).get(index));
        }
    }

    /// Whether it can be shown, without trying hard, that no value fits both schemas of the new manifest.
    fn are_disjoint(&mut self, one: &'a Value, other: &'a Value, depth: usize) -> bool {
        let (first, second) = (self.new.part(one), self.new.part(other));
        let is_affordable = |budget: &mut Budget| budget.looks_at(PAIR_BYTES + first.weight + second.weight);
        if depth > PROOF_DEPTH_MAX || !is_affordable(self.budget) {
            return false;
        }
        if refuses_all(one) || refuses_all(other) {
            return true;
        }
        for (part, rest) in [(first, other), (second, one)] {
            if let Some((target, _)) = part.only_reference.and_then(|reference| self.new.find(reference)) {
                return self.are_disjoint(target, rest, depth + 1);
            }
        }
        let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else { return false };
        have_no_type_in_common(one, other)
            || have_no_value_in_common(one, other)
            || self.have_different_tags(one, other, depth)
    }

    /// Both ask for a property, and no value of it fits both.
    fn have_different_tags(
        &mut self,
        one: &'a Map<String, Value>,
        other: &'a Map<String, Value>,
        depth: usize,
    ) -> bool {
        let only_objects = |schema: &Map<String, Value>| schema.get("type").is_some_and(|t| t == "object");
        if !only_objects(one) && !only_objects(other) {
            return false;
        }
        let (required, also_required) = (names(one.get("required")), names(other.get("required")));
        required.intersection(&also_required).any(|tag| match (property(one, tag), property(other, tag)) {
            (Some(one), Some(other)) => self.are_disjoint(one, other, depth + 1),
            _ => false,
        })
    }
}

fn property<'s>(schema: &'s Map<String, Value>, name: &str) -> Option<&'s Value> {
    schema.get("properties")?.get(name)
}

fn have_no_type_in_common(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let (Some(one), Some(other)) = (types(one.get("type")), types(other.get("type"))) else { return false };
    let overlap = |a: &str, b: &str| a == b || matches!((a, b), ("integer", "number") | ("number", "integer"));
    !one.iter().any(|a| other.iter().any(|b| overlap(a, b)))
}

fn have_no_value_in_common(one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
    let (Some(one), Some(other)) = (listed(one), listed(other)) else { return false };
    let one: HashSet<_> = one.iter().collect();
    !other.iter().any(|value| one.contains(value))
}

fn has_both(pair: SchemaPair<'_, '_>, keyword: &str) -> bool {
    pair.old.contains_key(keyword) && pair.new.contains_key(keyword)
}

/// Whether the old schema's only choice is a `oneOf` and the new schema's only choice is an `anyOf`.
fn is_relaxed(pair: SchemaPair<'_, '_>) -> bool {
    let has = |schema: &Map<String, Value>| (schema.contains_key("oneOf"), schema.contains_key("anyOf"));
    has(pair.old) == (true, false) && has(pair.new) == (false, true)
}

/// The keywords whose branches are compared, on each side.
#[derive(Clone, Copy)]
struct Keywords {
    old: &'static str,
    new: &'static str,
}

impl Keywords {
    const fn same(keyword: &'static str) -> Self {
        Self { old: keyword, new: keyword }
    }

    fn spot<'p>(self, at: &'p Spot<'p>) -> Spot<'p> {
        Spot { old: at.old.key(self.old), new: at.new.key(self.new) }
    }
}

/// Branches without a partner, by their indices.
struct Fates {
    gone: Vec<usize>,
    fresh: Vec<usize>,
}

fn pair_up(old: &[Value], new: &[Value]) -> (Vec<(usize, usize)>, Fates) {
    let mut waiting: HashMap<&Value, Vec<usize>> = HashMap::new();
    for (index, branch) in old.iter().enumerate().rev() {
        waiting.entry(branch).or_default().push(index);
    }
    let (mut pairs, mut fresh) = (vec![], vec![]);
    for (index, branch) in new.iter().enumerate() {
        match waiting.get_mut(branch).and_then(Vec::pop) {
            Some(partner) => pairs.push((partner, index)),
            None => fresh.push(index),
        }
    }
    let mut gone: Vec<_> = waiting.into_values().flatten().collect();
    gone.sort_unstable();
    let changed = gone.len().min(fresh.len());
    pairs.extend(gone.drain(..changed).zip(fresh.drain(..changed)));
    (pairs, Fates { gone, fresh })
}
