//! Two schemas of a tool's arguments: what changed, and whether a value that was accepted may be refused now.
//!
//! A schema is a conjunction of keywords, so the comparison goes keyword by keyword, each in its own group with those it
//! works together with. A change is silent only if the rule it falls under proves that nothing is lost where it stands;
//! whatever is not understood breaks. The property test in `tests/soundness.rs` holds this against an outside judge.

mod arrays;
mod branches;
mod objects;
mod values;

use std::{
    collections::{BTreeSet, HashSet},
    sync::LazyLock,
};

use serde_json::{Map, Value};

use super::{
    diff::Change,
    pointer::Pointer,
    rules::{Effect, Rule},
    schema::{REFERENCES, References},
};

/// Pairs of subschemas that one manifest's comparison looks at.
pub const COMPARED_PAIRS_MAX: usize = 200_000;
/// How deep the comparison goes, references followed.
pub const COMPARED_DEPTH_MAX: usize = 96;

/// Accepts everything: what a keyword means that is not there.
static ANYTHING: Value = Value::Bool(true);

/// How the values that a subschema accepts bear on those that the whole accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Position {
    /// Whatever it accepts more, the whole accepts more.
    Positive,
    /// Under `not`: whatever it accepts more, the whole accepts less.
    Negative,
    /// Under `oneOf`, `if` and beside `unevaluated…`: either may cost something.
    Fixed,
}

impl Position {
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

/// Where a pair of subschemas stands, in the old manifest and in the new one.
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
}

/// Two schemas that are objects, side by side.
#[derive(Clone, Copy)]
struct Pair<'a, 'p> {
    old: &'a Map<String, Value>,
    new: &'a Map<String, Value>,
    spot: &'p Spot<'p>,
    position: Position,
}

impl<'a> Pair<'a, '_> {
    fn get(&self, keyword: &str) -> (Option<&'a Value>, Option<&'a Value>) {
        (self.old.get(keyword), self.new.get(keyword))
    }

    /// Both values of a keyword, where leaving it out means to accept anything.
    fn schemas(&self, keyword: &str) -> (&'a Value, &'a Value) {
        let (old, new) = self.get(keyword);
        (old.unwrap_or(&ANYTHING), new.unwrap_or(&ANYTHING))
    }

    /// A keyword's place: in the new manifest, or in the old one if it is gone.
    fn place(&self, keyword: &str) -> String {
        let is_gone = !self.new.contains_key(keyword);
        if is_gone { self.spot.old.key(keyword).to_string() } else { self.spot.new.key(keyword).to_string() }
    }
}

pub(super) struct Comparison<'a, 'c> {
    old: References<'a>,
    new: References<'a>,
    /// The scope that the tool needs.
    scope: &'a str,
    seen: HashSet<(*const Value, *const Value, Position)>,
    depth: usize,
    /// The budget is used up, and that has been said.
    gave_up: bool,
    pairs_left: &'c mut usize,
    changes: &'c mut Vec<Change>,
}

/// One tool's schema: itself, where it stands, and the scope the tool needs.
pub(super) struct ToolSchema<'a> {
    pub root: &'a Value,
    pub at: String,
    pub scope: &'a str,
}

/// Adds what changed from one schema to the other.
pub(super) fn compare<'a>(
    old: &ToolSchema<'a>,
    new: &ToolSchema<'a>,
    pairs_left: &mut usize,
    changes: &mut Vec<Change>,
) {
    let mut comparison = Comparison {
        old: References::of(old.root, old.at.clone()),
        new: References::of(new.root, new.at.clone()),
        scope: new.scope,
        seen: HashSet::new(),
        depth: 0,
        gave_up: false,
        pairs_left,
        changes,
    };
    let spot = Spot { old: Pointer::from(&old.at), new: Pointer::from(&new.at) };
    comparison.schemas(old.root, new.root, &spot, Position::Positive);
}

impl<'a> Comparison<'a, '_> {
    fn schemas(&mut self, old: &'a Value, new: &'a Value, spot: &Spot<'_>, position: Position) {
        if self.depth == COMPARED_DEPTH_MAX || *self.pairs_left == 0 {
            if !std::mem::replace(&mut self.gave_up, true) {
                self.report(Rule::Undecided, position, spot.new.to_string(), None, None);
            }
            return;
        }
        // A schema that only refers to another is that other one, whichever side does so.
        let (from, to) = (only_reference(old), only_reference(new));
        let (found_old, found_new) = match (from, to) {
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
            // A pair that leads back to itself was asked of a smaller value, so it holds if the rest does.
            (None, None) if self.seen.insert((old, new, position)) => {
                *self.pairs_left -= 1;
                self.resolved(old, new, spot, position);
            }
            (None, None) => {}
        }
        self.depth -= 1;
    }

    fn resolved(&mut self, old: &'a Value, new: &'a Value, spot: &Spot<'_>, position: Position) {
        static EMPTY: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        let refuses_all = |schema: &Value| *schema == Value::Bool(false);
        match (refuses_all(old), refuses_all(new)) {
            (true, true) => {}
            (true, false) => self.report(Rule::SchemaOpened, position, spot.new.to_string(), Some(old), Some(new)),
            (false, true) => self.report(Rule::SchemaClosed, position, spot.new.to_string(), Some(old), Some(new)),
            (false, false) => {
                let (old, new) = (old.as_object().unwrap_or(&EMPTY), new.as_object().unwrap_or(&EMPTY));
                self.keywords(Pair { old, new, spot, position });
            }
        }
    }

    fn keywords(&mut self, whole: Pair<'a, '_>) {
        let looks_around = UNEVALUATED.iter().any(|k| whole.old.contains_key(*k) || whole.new.contains_key(*k));
        // What is left unevaluated depends on everything that stands beside it.
        let position = if looks_around { Position::Fixed } else { whole.position };
        let pair = Pair { position, ..whole };
        self.values(pair);
        self.objects(pair);
        self.arrays(pair);
        self.branches(pair);
        self.references(pair);
        self.unevaluated(whole);
        self.annotations(pair);
    }

    fn references(&mut self, pair: Pair<'a, '_>) {
        for keyword in REFERENCES {
            let (old, new) = pair.get(keyword);
            let (Some(from), Some(to)) = (old.and_then(Value::as_str), new.and_then(Value::as_str)) else {
                self.report_presence(pair, keyword, Rule::ReferenceAdded, Rule::ReferenceDropped);
                continue;
            };
            let (Some((old, at_old)), Some((new, at_new))) = (self.old.find(from), self.new.find(to)) else {
                self.report(Rule::Undecided, pair.position, pair.place(keyword), old, new);
                continue;
            };
            let spot = Spot { old: Pointer::from(&at_old), new: Pointer::from(&at_new) };
            self.schemas(old, new, &spot, pair.position);
        }
    }

    fn unevaluated(&mut self, pair: Pair<'a, '_>) {
        for keyword in UNEVALUATED {
            match pair.get(keyword) {
                (Some(old), Some(new)) => self.schemas(old, new, &pair.spot.key(keyword), pair.position),
                _ => self.report_presence(pair, keyword, Rule::UnevaluatedAdded, Rule::UnevaluatedDropped),
            }
        }
    }

    fn annotations(&mut self, pair: Pair<'a, '_>) {
        let keywords: BTreeSet<_> = pair.old.keys().chain(pair.new.keys()).collect();
        for keyword in
            keywords.into_iter().filter(|keyword| !refuses(keyword) && !DEFINITIONS.contains(&keyword.as_str()))
        {
            let (old, new) = pair.get(keyword);
            if old != new {
                self.report(Rule::AnnotationChanged, pair.position, pair.place(keyword), old, new);
            }
        }
    }

    /// Reports a keyword that stands on one side only.
    fn report_presence(&mut self, pair: Pair<'a, '_>, keyword: &str, added: Rule, dropped: Rule) {
        let rule = match pair.get(keyword) {
            (None, Some(_)) => added,
            (Some(_), None) => dropped,
            _ => return,
        };
        let (old, new) = pair.get(keyword);
        self.report(rule, pair.position, pair.place(keyword), old, new);
    }

    fn report(&mut self, rule: Rule, position: Position, pointer: String, old: Option<&Value>, new: Option<&Value>) {
        let breaking = position.breaks(rule.row().effect);
        let (old, new) = (old.cloned().unwrap_or_default(), new.cloned().unwrap_or_default());
        self.changes.push(Change { rule, pointer, old, new, breaking, scope: Some(self.scope.to_owned()) });
    }
}

const UNEVALUATED: [&str; 2] = ["unevaluatedProperties", "unevaluatedItems"];
/// Looked at only where something refers to them.
const DEFINITIONS: [&str; 2] = ["$defs", "definitions"];

/// The reference of a schema that says nothing else about values.
fn only_reference(schema: &Value) -> Option<&str> {
    let object = schema.as_object()?;
    let mut refusing = object.iter().filter(|(keyword, _)| refuses(keyword));
    match (refusing.next(), refusing.next()) {
        (Some((keyword, Value::String(reference))), None) if REFERENCES.contains(&keyword.as_str()) => Some(reference),
        _ => None,
    }
}

/// The keywords that can make a schema refuse a value. Each is compared by its own rule; all others are annotations.
#[rustfmt::skip]
pub(super) const REFUSING: &[&str] = &[
    "type", "enum", "const", "multipleOf", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum",
    "minLength", "maxLength", "pattern", "format", "contentEncoding", "contentMediaType", "contentSchema",
    "minItems", "maxItems", "uniqueItems", "prefixItems", "items", "unevaluatedItems",
    "contains", "minContains", "maxContains",
    "minProperties", "maxProperties", "required", "dependentRequired", "dependentSchemas",
    "properties", "patternProperties", "additionalProperties", "propertyNames", "unevaluatedProperties",
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$dynamicRef",
];

fn refuses(keyword: &str) -> bool {
    REFUSING.contains(&keyword)
}
