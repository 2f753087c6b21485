//! The schemas of tools' arguments: valid JSON Schema 2020-12 that refers to nothing outside itself, and that cannot
//! cost a reader more than a named budget. A manifest is untrusted input, and so is every schema and pattern in it.

use std::collections::{HashMap, HashSet};

use jsonschema::{Draft, PatternOptions};
use regex::{Regex, RegexBuilder};
use serde_json::{Map, Value, json};

use super::{
    keywords::{ANCHORS, About, REFERENCES, SubschemaShape, applicator},
    outline::Outline,
    pointer::Pointer,
};
use crate::failures::PROBLEMS_MAX;

/// How deep subschemas may be nested.
pub(super) const SCHEMA_DEPTH_MAX: usize = 32;
/// How many subschemas look at one and the same value, every `$ref` followed.
pub(super) const SCHEMA_UNFOLDED_MAX: usize = 1_000;
pub(super) const PATTERN_BYTES_MAX: usize = 512;
/// Different patterns in a manifest, and …
pub(super) const PATTERNS_MAX: usize = 64;
/// … how long they are together. What a pattern costs to compile grows with its text, in the worst case by microseconds for
/// each byte.
pub(super) const PATTERNS_BYTES_MAX: usize = 4 * 1024;
/// A pattern's program, once compiled; what it costs to make grows with it.
pub(super) const PATTERN_PROGRAM_BYTES_MAX: usize = 64 * 1024;

/// The places of all subschemas of a manifest, written out. Readers do, so a long name costs once for each schema inside.
pub(super) const PLACES_BYTES_MAX: usize = 4 * 1024 * 1024;

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// Keywords that 2020-12 replaced and that some readers still obey.
const OUTDATED: [&str; 4] = ["dependencies", "additionalItems", "$recursiveRef", "$recursiveAnchor"];

/// What is wrong with a schema, and where.
#[derive(Debug)]
pub(super) struct SchemaFault {
    pub pointer: String,
    pub message: String,
}

impl SchemaFault {
    fn at(at: &Pointer<'_>, message: impl Into<String>) -> Self {
        Self { pointer: at.to_string(), message: message.into() }
    }
}

/// What the schemas of a manifest may have together.
pub(super) struct SchemaAllowance<'a> {
    patterns: usize,
    pattern_bytes: usize,
    place_bytes: usize,
    /// Those that were found to be good.
    known: HashSet<&'a str>,
}

impl Default for SchemaAllowance<'_> {
    fn default() -> Self {
        Self {
            patterns: PATTERNS_MAX,
            pattern_bytes: PATTERNS_BYTES_MAX,
            place_bytes: PLACES_BYTES_MAX,
            known: HashSet::new(),
        }
    }
}

/// Checks one schema. `left` is what the manifest may still have. Returns the faults that were found, at most [`PROBLEMS_MAX`] of
/// them.
pub(super) fn check<'a>(
    root: &'a Value,
    at: &Pointer<'_>,
    left: &mut SchemaAllowance<'a>,
) -> Result<(), Vec<SchemaFault>> {
    let mut survey = Survey {
        left,
        places: vec![],
        by_address: HashMap::new(),
        anchors: HashSet::new(),
        references: vec![],
        named: vec![],
        faults: vec![],
    };
    let visited = survey.visit(root, at, 0).map(drop);
    survey.note(visited);
    if survey.faults.is_empty() {
        survey.follow_references(root, at);
    }
    let faults = std::mem::take(&mut survey.faults);
    if !faults.is_empty() {
        return Err(with_dialect_faults(faults, root, at));
    }
    survey.check_cost(at).map_err(|fault| vec![fault])?;
    // Every pattern was compiled once, however often it occurs.
    let mut root = root.clone();
    forget_patterns(&mut root);
    build(&root, at).map_err(|fault| {
        // If the fault is in one of the patterns that stayed, it can be reported more precisely.
        let refused = survey.named.into_iter().find_map(|(pattern, place)| build_pattern(pattern, place).err());
        with_dialect_faults(vec![refused.unwrap_or(fault)], &root, at)
    })
}

/// These faults of a schema, and what else in it the dialect does not allow.
fn with_dialect_faults(mut faults: Vec<SchemaFault>, schema: &Value, at: &Pointer<'_>) -> Vec<SchemaFault> {
    let mut known: HashSet<_> = faults.iter().map(|fault| fault.pointer.clone()).collect();
    let validator = jsonschema::draft202012::meta::validator();
    let others = validator.iter_errors(schema).take(PROBLEMS_MAX).map(|error| SchemaFault {
        pointer: format!("{at}{}", error.instance_path()),
        message: error.masked().to_string(),
    });
    faults.extend(others.filter(|fault| known.insert(fault.pointer.clone())));
    faults.truncate(PROBLEMS_MAX);
    faults
}

/// Whether this is a schema as the dialect has it.
fn build(schema: &Value, at: &Pointer<'_>) -> Result<(), SchemaFault> {
    let patterns = PatternOptions::regex().size_limit(PATTERN_PROGRAM_BYTES_MAX);
    let options = jsonschema::options().with_draft(Draft::Draft202012).should_validate_formats(false);
    match options.with_pattern_options(patterns).offline().build(schema) {
        Ok(_) => Ok(()),
        // Masked: the text there may be of any length.
        Err(error) => {
            Err(SchemaFault { pointer: format!("{at}{}", error.instance_path()), message: error.masked().to_string() })
        }
    }
}

/// Whether this is a pattern as the dialect has it, that is read without backtracking.
fn build_pattern(pattern: &str, place: String) -> Result<(), SchemaFault> {
    build(&json!({"pattern": pattern}), &Pointer::from(""))
        .map_err(|_| SchemaFault { pointer: place, message: unread(pattern) })
}

fn compiled(pattern: &str) -> Result<Regex, regex::Error> {
    RegexBuilder::new(pattern).size_limit(PATTERN_PROGRAM_BYTES_MAX).build()
}

/// Why a pattern is not read.
fn unread(pattern: &str) -> String {
    if needs_backtracking(pattern) {
        return "a pattern works without backtracking: look-around and backreferences are refused".to_owned();
    }
    match compiled(pattern) {
        Err(regex::Error::CompiledTooBig(_)) => {
            format!("a pattern has at most {PATTERN_PROGRAM_BYTES_MAX} bytes once compiled")
        }
        _ => "this is no regular expression".to_owned(),
    }
}

/// Whether a pattern that is not read looks ahead or behind, or refers back to a group.
fn needs_backtracking(pattern: &str) -> bool {
    let (mut rest, mut in_class) = (pattern, false);
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => match rest.chars().next() {
                Some('1'..='9' | 'k') if !in_class => return true,
                escaped => rest = &rest[escaped.map_or(0, char::len_utf8)..],
            },
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class && ["?=", "?!", "?<=", "?<!"].iter().any(|look| rest.starts_with(look)) => return true,
            _ => {}
        }
    }
    false
}

/// Leaves patterns that cost nothing. Where a value only looks like a schema, it is no less valid for it.
fn forget_patterns(value: &mut Value) {
    match value {
        Value::Object(object) => {
            if let Some(Value::String(pattern)) = object.get_mut("pattern") {
                pattern.clear();
            }
            object.values_mut().for_each(forget_patterns);
        }
        Value::Array(list) => list.iter_mut().for_each(forget_patterns),
        _ => {}
    }
}

/// Whether a pattern has `(?i)` or the like. ECMA-262 knew no such thing when the dialect was made, so readers differ;
/// and to fold the case of a large class takes milliseconds for each occurrence.
fn sets_flags(pattern: &str) -> bool {
    let (mut rest, mut in_class) = (pattern, false);
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        match c {
            '\\' => rest = rest.chars().next().map_or("", |escaped| &rest[escaped.len_utf8()..]),
            '[' => in_class = true,
            // The one reader ends an empty class here and the other does not: then it is refused.
            ']' => in_class = false,
            '(' if !in_class && rest.starts_with('?') && !rest[1..].starts_with([':', '<', '=', '!']) => return true,
            _ => {}
        }
    }
    false
}

/// Every subschema of a schema, and what each hands its value on to.
struct Survey<'a, 'b> {
    left: &'b mut SchemaAllowance<'a>,
    /// For each subschema, the others that look at the same value.
    places: Vec<Vec<usize>>,
    by_address: HashMap<*const Value, usize>,
    anchors: HashSet<&'a str>,
    references: Vec<(usize, &'a str)>,
    /// Patterns that are names, and their locations.
    named: Vec<(&'a str, String)>,
    faults: Vec<SchemaFault>,
}

impl<'a> Survey<'a, '_> {
    /// Records a fault, so that the rest of the schema is checked as well.
    fn note(&mut self, checked: Result<(), SchemaFault>) {
        self.faults.extend(checked.err());
    }

    /// Visits a schema and everything in it. The visit ends when more faults were found than are reported.
    fn visit(&mut self, schema: &'a Value, at: &Pointer<'_>, depth: usize) -> Result<usize, SchemaFault> {
        if depth > SCHEMA_DEPTH_MAX {
            return Err(SchemaFault::at(at, format!("schemas are nested at most {SCHEMA_DEPTH_MAX} deep")));
        }
        take(&mut self.left.place_bytes, at.len()).ok_or_else(|| {
            SchemaFault::at(at, format!("the places of schemas have at most {PLACES_BYTES_MAX} bytes"))
        })?;
        let place = self.places.len();
        self.places.push(vec![]);
        self.by_address.insert(schema, place);
        let object = match schema {
            Value::Bool(_) => return Ok(place),
            Value::Object(object) => object,
            _ => return Err(SchemaFault::at(at, "a schema is an object or a boolean")),
        };
        let keywords = self.check_keywords(object, at, depth == 0);
        self.note(keywords);
        let anchors = self.check_anchors(object, at);
        self.note(anchors);
        for keyword in REFERENCES {
            match object.get(keyword) {
                Some(Value::String(reference)) if reference.starts_with('#') => {
                    self.references.push((place, reference));
                }
                Some(_) => {
                    let message = "a reference stays inside its schema: `#…`";
                    self.note(Err(SchemaFault::at(&at.key(keyword), message)));
                }
                None => {}
            }
        }
        each_subschema(object, at, &mut |about, child, at| {
            match self.visit(child, at, depth + 1) {
                Ok(child) if about == About::Same => self.places[place].push(child),
                Ok(_) => {}
                Err(fault) if self.faults.len() >= PROBLEMS_MAX => return Err(fault),
                Err(fault) => self.note(Err(fault)),
            }
            Ok(())
        })?;
        Ok(place)
    }

    fn check_keywords(
        &mut self,
        object: &'a Map<String, Value>,
        at: &Pointer<'_>,
        is_root: bool,
    ) -> Result<(), SchemaFault> {
        if let Some(keyword) = OUTDATED.into_iter().find(|keyword| object.contains_key(*keyword)) {
            return Err(SchemaFault::at(&at.key(keyword), "this keyword is not of draft 2020-12"));
        }
        for keyword in ["$id", "$schema"] {
            if !is_root && object.contains_key(keyword) {
                return Err(SchemaFault::at(&at.key(keyword), "a schema has no schemas of their own inside"));
            }
        }
        let text = |keyword: &str| object.get(keyword).map(|value| value.as_str().unwrap_or_default());
        if text("$schema").is_some_and(|dialect| dialect.strip_suffix('#').unwrap_or(dialect) != DIALECT) {
            return Err(SchemaFault::at(&at.key("$schema"), format!("the dialect is {DIALECT}")));
        }
        if text("$id").is_some_and(is_anothers) {
            return Err(SchemaFault::at(&at.key("$id"), "this name is another schema's"));
        }
        let named = object.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
        // These are compiled in every position: references may lead through them, so their names stay.
        for (pattern, _) in named {
            let at = at.key("patternProperties");
            self.take_pattern(pattern, &at)?;
            self.named.push((pattern, at.to_string()));
        }
        let Some(pattern) = object.get("pattern").and_then(Value::as_str) else { return Ok(()) };
        if self.left.known.contains(pattern) {
            return Ok(());
        }
        self.take_pattern(pattern, &at.key("pattern"))?;
        build_pattern(pattern, at.key("pattern").to_string())?;
        self.left.known.insert(pattern);
        Ok(())
    }

    fn take_pattern(&mut self, pattern: &str, at: &Pointer<'_>) -> Result<(), SchemaFault> {
        if pattern.len() > PATTERN_BYTES_MAX {
            return Err(SchemaFault::at(at, format!("a pattern has at most {PATTERN_BYTES_MAX} bytes")));
        }
        if sets_flags(pattern) {
            return Err(SchemaFault::at(at, "a pattern sets no flags: `(?i)` and the like are not read by all"));
        }
        take(&mut self.left.patterns, 1)
            .ok_or_else(|| SchemaFault::at(at, format!("a manifest has at most {PATTERNS_MAX} different patterns")))?;
        take(&mut self.left.pattern_bytes, pattern.len()).ok_or_else(|| {
            SchemaFault::at(at, format!("the patterns of a manifest have at most {PATTERNS_BYTES_MAX} bytes"))
        })
    }

    /// Of two anchors with one name, one reader takes the first and another the last.
    fn check_anchors(&mut self, object: &'a Map<String, Value>, at: &Pointer<'_>) -> Result<(), SchemaFault> {
        for keyword in ANCHORS {
            let Some(name) = object.get(keyword).and_then(Value::as_str) else { continue };
            if !self.anchors.insert(name) {
                return Err(SchemaFault::at(&at.key(keyword), "the schema already has this anchor"));
            }
        }
        Ok(())
    }

    fn follow_references(&mut self, root: &'a Value, at: &Pointer<'_>) {
        let targets = Outline::of(root, at.to_string());
        for (place, reference) in &self.references {
            let found = targets.find(reference).and_then(|(target, _)| self.by_address.get(&(target as *const Value)));
            match found {
                Some(target) => self.places[*place].push(*target),
                None if self.faults.len() < PROBLEMS_MAX => {
                    self.faults.push(SchemaFault::at(at, format!("{reference:?} leads to no schema")));
                }
                None => return,
            }
        }
    }

    /// How much work one value can make. A schema that leads back to itself for the same value would never end.
    fn check_cost(&self, at: &Pointer<'_>) -> Result<(), SchemaFault> {
        const OPEN: usize = usize::MAX;
        // Zero: not looked at yet. Otherwise how many subschemas look at a value that this one is given.
        let mut costs = vec![0_usize; self.places.len()];
        for start in 0..self.places.len() {
            let mut path = vec![start];
            while let Some(&place) = path.last() {
                match costs[place] {
                    0 => {
                        costs[place] = OPEN;
                        for &next in &self.places[place] {
                            match costs[next] {
                                OPEN => {
                                    return Err(SchemaFault::at(
                                        at,
                                        "a reference leads back to itself for the same value",
                                    ));
                                }
                                0 => path.push(next),
                                _ => {}
                            }
                        }
                    }
                    OPEN => {
                        path.pop();
                        let below = self.places[place].iter().map(|next| costs[*next]);
                        costs[place] = below.fold(1, usize::saturating_add);
                        if costs[place] > SCHEMA_UNFOLDED_MAX {
                            let message = format!("more than {SCHEMA_UNFOLDED_MAX} schemas look at one value");
                            return Err(SchemaFault::at(at, message));
                        }
                    }
                    _ => drop(path.pop()),
                }
            }
        }
        Ok(())
    }
}

/// What to do with a subschema: how it relates to the schema around it, itself, and its location.
type Visit<'a, 'v> = dyn FnMut(About, &'a Value, &Pointer<'_>) -> Result<(), SchemaFault> + 'v;

fn each_subschema<'a>(
    object: &'a Map<String, Value>,
    at: &Pointer<'_>,
    visit: &mut Visit<'a, '_>,
) -> Result<(), SchemaFault> {
    for (keyword, value) in object {
        let Some((holds, about)) = applicator(keyword) else { continue };
        let at = at.key(keyword);
        match (holds, value) {
            (SubschemaShape::Schema, schema) => visit(about, schema, &at)?,
            (SubschemaShape::List, Value::Array(list)) => {
                list.iter().enumerate().try_for_each(|(index, schema)| visit(about, schema, &at.index(index)))?;
            }
            (SubschemaShape::Map, Value::Object(map)) => {
                map.iter().try_for_each(|(name, schema)| visit(about, schema, &at.key(name)))?;
            }
            (SubschemaShape::List, _) => return Err(SchemaFault::at(&at, "this keyword holds an array of schemas")),
            (SubschemaShape::Map, _) => return Err(SchemaFault::at(&at, "this keyword holds an object of schemas")),
        }
    }
    Ok(())
}

fn take(left: &mut usize, taken: usize) -> Option<()> {
    *left = left.checked_sub(taken)?;
    Some(())
}

/// Names of schemas that every reader has in store. A reference inside a schema of such a name may lead there. Whether
/// two spellings are one name depends on the reader, so those that could be are refused as well.
fn is_anothers(id: &str) -> bool {
    id.contains('%') || id.to_ascii_lowercase().contains("json-schema.org")
}
