//! Two schemas of a tool's arguments: what changed, and whether a value that was accepted may be refused now.
//!
//! A schema is a conjunction of keywords, so the comparison goes keyword by keyword, each in its own group with those
//! it works together with. A change is silent only if the rule it falls under proves that nothing is lost at its
//! position; whatever is not understood breaks. The property test in `tests/soundness.rs` checks this against an
//! independent validator.

mod arrays;
mod branches;
pub(super) mod groups;
mod matcher;
mod objects;
mod values;

use std::{
    collections::{BTreeSet, HashSet},
    sync::LazyLock,
};

use serde_json::{Map, Value};

use self::groups::{Group, group};
use super::{
    changes::Change,
    keywords::REFERENCES,
    outline::{Outline, SchemaPart},
    pointer::Pointer,
    rules::{DiffRule, Effect},
};

/// What the comparison of two manifests may look at, in bytes of their memory: a subschema counts, with everything in
/// it, each time it is compared with another one.
pub(super) const COMPARED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The fixed cost of comparing two subschemas, whatever they contain.
const PAIR_BYTES: usize = 256;
/// The size limit of the report on two manifests' schemas.
pub(super) const REPORT_BYTES_MAX: usize = 1024 * 1024;
/// How deep the comparison goes, references followed.
pub(super) const COMPARED_DEPTH_MAX: usize = 96;

/// The remaining budget of comparing two manifests. When it is exhausted, the change is reported as breaking.
pub(super) struct Budget {
    compared_bytes_left: usize,
    report_bytes_left: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self { compared_bytes_left: COMPARED_BYTES_MAX, report_bytes_left: REPORT_BYTES_MAX }
    }
}

impl Budget {
    fn looks_at(&mut self, bytes: usize) -> bool {
        spend(&mut self.compared_bytes_left, bytes)
    }

    fn report(&mut self, bytes: usize) -> bool {
        spend(&mut self.report_bytes_left, bytes)
    }
}

fn spend(left: &mut usize, bytes: usize) -> bool {
    let rest = left.checked_sub(bytes);
    *left = rest.unwrap_or(*left);
    rest.is_some()
}

/// Accepts everything: what a keyword means that is not there.
static ANYTHING: Value = Value::Bool(true);

/// How a subschema's accepted values affect those that the whole accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum SchemaPosition {
    /// Whatever it accepts more, the whole accepts more.
    Positive,
    /// Under `not`: whatever it accepts more, the whole accepts less.
    Negative,
    /// Under `oneOf`, `if` and beside `unevaluated…`: either may cost something.
    Fixed,
}

impl SchemaPosition {
    fn under_not(self) -> Self {
        match self {
            Self::Positive => Self::Negative,
            Self::Negative => Self::Positive,
            Self::Fixed => Self::Fixed,
        }
    }

    fn breaks(self, effect: Effect) -> bool {
        match effect {
            Effect::Breaks => true,
            Effect::Narrows => self != Self::Negative,
            Effect::Widens => self != Self::Positive,
            Effect::Notes => false,
        }
    }
}

/// The location of a pair of subschemas, in the old manifest and in the new one.
#[derive(Clone, Copy)]
struct Spot<'p> {
    old: Pointer<'p>,
    new: Pointer<'p>,
}

impl Spot<'_> {
    fn key<'b>(&'b self, key: &'b str) -> Spot<'b> {
        Spot { old: self.old.key(key), new: self.new.key(key) }
    }

    fn indices(&self, old: usize, new: usize) -> Spot<'_> {
        Spot { old: self.old.index(old), new: self.new.index(new) }
    }

    /// In the new manifest, or in the old one if there is nothing now.
    fn place(&self, now: Option<&Value>) -> &Pointer<'_> {
        if now.is_some() { &self.new } else { &self.old }
    }
}

/// Two schemas that are objects, side by side.
#[derive(Clone, Copy)]
struct SchemaPair<'a, 'p> {
    old: &'a Map<String, Value>,
    new: &'a Map<String, Value>,
    spot: &'p Spot<'p>,
    position: SchemaPosition,
}

impl<'a> SchemaPair<'a, '_> {
    fn get(&self, keyword: &str) -> (Option<&'a Value>, Option<&'a Value>) {
        (self.old.get(keyword), self.new.get(keyword))
    }

    /// Both values of a keyword, where leaving it out means to accept anything.
    fn schemas(&self, keyword: &str) -> (&'a Value, &'a Value) {
        let (old, new) = self.get(keyword);
        (old.unwrap_or(&ANYTHING), new.unwrap_or(&ANYTHING))
    }

    /// A keyword's place: in the new manifest, or in the old one if it is gone.
    fn place<'b>(&'b self, keyword: &'b str) -> Pointer<'b> {
        let is_gone = !self.new.contains_key(keyword);
        if is_gone { self.spot.old.key(keyword) } else { self.spot.new.key(keyword) }
    }
}

pub(super) struct Comparison<'a, 'c> {
    old: Outline<'a>,
    new: Outline<'a>,
    /// The scope that the tool needs.
    scope: &'a str,
    seen: HashSet<(*const Value, *const Value, SchemaPosition)>,
    depth: usize,
    /// The budget is used up, and that has been reported.
    gave_up: bool,
    budget: &'c mut Budget,
    changes: &'c mut Vec<Change>,
}

/// One tool's schema: itself, its location, and the scope the tool needs.
pub(super) struct ToolSchema<'a> {
    pub root: &'a Value,
    pub at: String,
    pub scope: &'a str,
}

/// Adds what changed from one schema to the other.
pub(super) fn compare<'a>(old: &ToolSchema<'a>, new: &ToolSchema<'a>, budget: &mut Budget, changes: &mut Vec<Change>) {
    if old.root == new.root {
        return;
    }
    let mut comparison = Comparison {
        old: Outline::of(old.root, old.at.clone()),
        new: Outline::of(new.root, new.at.clone()),
        scope: new.scope,
        seen: HashSet::new(),
        depth: 0,
        gave_up: false,
        budget,
        changes,
    };
    let spot = Spot { old: Pointer::from(&old.at), new: Pointer::from(&new.at) };
    comparison.schemas(old.root, new.root, &spot, SchemaPosition::Positive);
}

impl<'a> Comparison<'a, '_> {
    fn schemas(&mut self, old: &'a Value, new: &'a Value, spot: &Spot<'_>, position: SchemaPosition) {
        if self.gave_up {
            return;
        }
        if self.depth == COMPARED_DEPTH_MAX || !self.budget.looks_at(PAIR_BYTES) {
            return self.give_up(&spot.new);
        }
        let (before, now) = (self.old.part(old), self.new.part(new));
        // A schema that only refers to another is that other one, whichever side does so.
        let (found_old, found_new) = match (before.only_reference, now.only_reference) {
            (Some(from), None) => (self.old.find(from), None),
            (None, Some(to)) => (None, self.new.find(to)),
            _ => (None, None),
        };
        self.depth += 1;
        match (found_old, found_new) {
            (Some((target, at)), _) => {
                self.schemas(target, new, &Spot { old: Pointer::from(&at), new: spot.new }, position);
            }
            (_, Some((target, at))) => {
                self.schemas(old, target, &Spot { old: spot.old, new: Pointer::from(&at) }, position);
            }
            // A pair that leads back to itself applies to a smaller value, so it holds if the rest does.
            (None, None) if self.seen.insert((old, new, position)) => {
                if self.budget.looks_at(before.weight + now.weight) {
                    self.resolved((old, before), (new, now), spot, position);
                } else {
                    self.give_up(&spot.new);
                }
            }
            (None, None) => {}
        }
        self.depth -= 1;
    }

    fn resolved(
        &mut self,
        (old, before): (&'a Value, SchemaPart<'a>),
        (new, now): (&'a Value, SchemaPart<'a>),
        spot: &Spot<'_>,
        position: SchemaPosition,
    ) {
        static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        if !before.refers && !now.refers && old == new {
            return;
        }
        match (refuses_all(old), refuses_all(new)) {
            (true, true) => {}
            (true, false) => self.report(DiffRule::SchemaOpened, position, &spot.new, Some(old), Some(new)),
            (false, true) => self.report(DiffRule::SchemaClosed, position, &spot.new, Some(old), Some(new)),
            (false, false) => {
                let (old, new) = (old.as_object().unwrap_or(&EMPTY), new.as_object().unwrap_or(&EMPTY));
                let speaks_of = |group| before.speaks_of(group) || now.speaks_of(group);
                self.keywords(SchemaPair { old, new, spot, position }, speaks_of);
            }
        }
    }

    fn keywords(&mut self, whole: SchemaPair<'a, '_>, speaks_of: impl Fn(Group) -> bool) {
        // What is left unevaluated depends on all the keywords beside it.
        let position = if speaks_of(Group::Unevaluated) { SchemaPosition::Fixed } else { whole.position };
        let pair = SchemaPair { position, ..whole };
        if speaks_of(Group::Values) {
            self.values(pair);
        }
        if speaks_of(Group::Objects) {
            self.objects(pair);
        }
        if speaks_of(Group::Arrays) {
            self.arrays(pair);
        }
        if speaks_of(Group::Branches) {
            self.branches(pair);
        }
        if speaks_of(Group::References) {
            self.references(pair);
        }
        if speaks_of(Group::Unevaluated) {
            self.unevaluated(whole);
        }
        if speaks_of(Group::Annotations) {
            self.annotations(pair);
        }
    }

    fn references(&mut self, pair: SchemaPair<'a, '_>) {
        for keyword in REFERENCES {
            let (old, new) = pair.get(keyword);
            let (Some(from), Some(to)) = (old.and_then(Value::as_str), new.and_then(Value::as_str)) else {
                self.report_presence(pair, keyword, DiffRule::ReferenceAdded, DiffRule::ReferenceDropped);
                continue;
            };
            let (Some((old, at_old)), Some((new, at_new))) = (self.old.find(from), self.new.find(to)) else {
                self.report(DiffRule::Undecided, pair.position, &pair.place(keyword), old, new);
                continue;
            };
            let spot = Spot { old: Pointer::from(&at_old), new: Pointer::from(&at_new) };
            self.schemas(old, new, &spot, pair.position);
        }
    }

    fn unevaluated(&mut self, pair: SchemaPair<'a, '_>) {
        for keyword in UNEVALUATED {
            match pair.get(keyword) {
                (Some(old), Some(new)) => self.schemas(old, new, &pair.spot.key(keyword), pair.position),
                _ => self.report_presence(pair, keyword, DiffRule::UnevaluatedAdded, DiffRule::UnevaluatedDropped),
            }
        }
    }

    fn annotations(&mut self, pair: SchemaPair<'a, '_>) {
        let keywords: BTreeSet<_> = pair.old.keys().chain(pair.new.keys()).collect();
        for keyword in keywords.into_iter().filter(|keyword| group(keyword) == Group::Annotations) {
            let (old, new) = pair.get(keyword);
            if old != new {
                self.report(DiffRule::AnnotationChanged, pair.position, &pair.place(keyword), old, new);
            }
        }
    }

    /// Reports a keyword that is on one side only.
    fn report_presence(&mut self, pair: SchemaPair<'a, '_>, keyword: &str, added: DiffRule, dropped: DiffRule) {
        let rule = match pair.get(keyword) {
            (None, Some(_)) => added,
            (Some(_), None) => dropped,
            _ => return,
        };
        let (old, new) = pair.get(keyword);
        self.report(rule, pair.position, &pair.place(keyword), old, new);
    }

    fn report(
        &mut self,
        rule: DiffRule,
        position: SchemaPosition,
        place: &Pointer<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        if self.gave_up {
            return;
        }
        let change = Change {
            rule,
            pointer: place.to_string(),
            old: old.cloned().unwrap_or_default(),
            new: new.cloned().unwrap_or_default(),
            breaking: position.breaks(rule.row().effect),
            scope: Some(self.scope.to_owned()),
            tool: None,
        };
        if self.budget.report(change.bytes()) {
            self.changes.push(change);
        } else {
            self.give_up(place);
        }
    }

    /// The last change reported of a tool.
    fn give_up(&mut self, place: &Pointer<'_>) {
        if std::mem::replace(&mut self.gave_up, true) {
            return;
        }
        let (old, new, scope) = (Value::Null, Value::Null, Some(self.scope.to_owned()));
        self.changes.push(Change {
            rule: DiffRule::Undecided,
            pointer: place.to_string(),
            old,
            new,
            breaking: true,
            scope,
            tool: None,
        });
    }
}

const UNEVALUATED: [&str; 2] = ["unevaluatedProperties", "unevaluatedItems"];

fn refuses_all(schema: &Value) -> bool {
    *schema == Value::Bool(false)
}
