//! The schemas of tools' arguments: valid JSON Schema 2020-12 that refers to nothing outside itself, and that cannot cost
//! a reader more than a named budget. A manifest comes from a stranger, and so does every schema and pattern in it.

use std::collections::HashMap;

use jsonschema::{Draft, PatternOptions};
use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::pointer::Pointer;

/// How deep subschemas stand in each other.
pub const SCHEMA_DEPTH_MAX: usize = 32;
/// How many subschemas look at one and the same value, every `$ref` followed.
pub const SCHEMA_UNFOLDED_MAX: usize = 1_000;
pub const PATTERN_BYTES_MAX: usize = 512;
/// Patterns in a manifest.
pub const PATTERNS_MAX: usize = 256;
/// A pattern's program, once compiled; what it costs to make grows with it.
pub const PATTERN_PROGRAM_BYTES_MAX: usize = 64 * 1024;

const DIALECT: &str = "https://json-schema.org/draft/2020-12/schema";
/// Keywords that 2020-12 replaced and that some readers still obey.
const OUTDATED: [&str; 4] = ["dependencies", "additionalItems", "$recursiveRef", "$recursiveAnchor"];
pub(super) const REFERENCES: [&str; 2] = ["$ref", "$dynamicRef"];

/// What a keyword's value holds.
#[derive(Clone, Copy)]
enum Holds {
    Schema,
    List,
    Map,
}

/// Whether a subschema is about the same value as the schema it stands in.
#[derive(Clone, Copy, PartialEq)]
enum About {
    Same,
    Part,
    /// It is only kept for others to refer to.
    Nothing,
}

/// Every keyword with subschemas.
const APPLICATORS: [(&str, Holds, About); 20] = [
    ("allOf", Holds::List, About::Same),
    ("anyOf", Holds::List, About::Same),
    ("oneOf", Holds::List, About::Same),
    ("not", Holds::Schema, About::Same),
    ("if", Holds::Schema, About::Same),
    ("then", Holds::Schema, About::Same),
    ("else", Holds::Schema, About::Same),
    ("dependentSchemas", Holds::Map, About::Same),
    ("properties", Holds::Map, About::Part),
    ("patternProperties", Holds::Map, About::Part),
    ("additionalProperties", Holds::Schema, About::Part),
    ("unevaluatedProperties", Holds::Schema, About::Part),
    ("propertyNames", Holds::Schema, About::Part),
    ("prefixItems", Holds::List, About::Part),
    ("items", Holds::Schema, About::Part),
    ("unevaluatedItems", Holds::Schema, About::Part),
    ("contains", Holds::Schema, About::Part),
    ("contentSchema", Holds::Schema, About::Part),
    ("$defs", Holds::Map, About::Nothing),
    ("definitions", Holds::Map, About::Nothing),
];

/// What is wrong with a schema, and where.
#[derive(Debug)]
pub(super) struct Fault {
    pub pointer: String,
    pub message: String,
}

impl Fault {
    fn at(at: &Pointer<'_>, message: impl Into<String>) -> Self {
        Self { pointer: at.to_string(), message: message.into() }
    }
}

/// Checks one schema. `patterns_left` is what the manifest may still spend on patterns.
pub(super) fn check(root: &Value, at: &Pointer<'_>, patterns_left: &mut usize) -> Result<(), Fault> {
    let mut survey = Survey { patterns_left, places: vec![], by_address: HashMap::new(), references: vec![] };
    survey.visit(root, at, 0)?;
    survey.follow_references(root, at)?;
    survey.check_cost(at)?;
    let patterns = PatternOptions::regex().size_limit(PATTERN_PROGRAM_BYTES_MAX);
    let options = jsonschema::options().with_draft(Draft::Draft202012).should_validate_formats(false);
    match options.with_pattern_options(patterns).offline().build(root) {
        Ok(_) => Ok(()),
        // Masked: what stands there is as long as a stranger likes.
        Err(error) => {
            Err(Fault { pointer: format!("{at}{}", error.instance_path()), message: error.masked().to_string() })
        }
    }
}

/// Every subschema of a schema, and what each hands its value on to.
struct Survey<'a, 'b> {
    patterns_left: &'b mut usize,
    /// For each subschema, the others that look at the same value.
    places: Vec<Vec<usize>>,
    by_address: HashMap<*const Value, usize>,
    references: Vec<(usize, &'a str)>,
}

impl<'a> Survey<'a, '_> {
    fn visit(&mut self, schema: &'a Value, at: &Pointer<'_>, depth: usize) -> Result<usize, Fault> {
        if depth > SCHEMA_DEPTH_MAX {
            return Err(Fault::at(at, format!("schemas stand at most {SCHEMA_DEPTH_MAX} deep in each other")));
        }
        let place = self.places.len();
        self.places.push(vec![]);
        self.by_address.insert(schema, place);
        let object = match schema {
            Value::Bool(_) => return Ok(place),
            Value::Object(object) => object,
            _ => return Err(Fault::at(at, "a schema is an object or a boolean")),
        };
        self.check_keywords(object, at, depth == 0)?;
        for keyword in REFERENCES {
            match object.get(keyword) {
                Some(Value::String(reference)) if reference.starts_with('#') => {
                    self.references.push((place, reference));
                }
                Some(_) => return Err(Fault::at(&at.key(keyword), "a reference stays inside its schema: `#…`")),
                None => {}
            }
        }
        each_subschema(object, at, &mut |about, child, at| {
            let child = self.visit(child, at, depth + 1)?;
            if about == About::Same {
                self.places[place].push(child);
            }
            Ok(())
        })?;
        Ok(place)
    }

    fn check_keywords(&mut self, object: &Map<String, Value>, at: &Pointer<'_>, is_root: bool) -> Result<(), Fault> {
        if let Some(keyword) = OUTDATED.into_iter().find(|keyword| object.contains_key(*keyword)) {
            return Err(Fault::at(&at.key(keyword), "this keyword is not of draft 2020-12"));
        }
        for keyword in ["$id", "$schema"] {
            if !is_root && object.contains_key(keyword) {
                return Err(Fault::at(&at.key(keyword), "a schema has no schemas of their own inside"));
            }
        }
        if object
            .get("$schema")
            .is_some_and(|dialect| dialect.as_str().map(|d| d.trim_end_matches('#')) != Some(DIALECT))
        {
            return Err(Fault::at(&at.key("$schema"), format!("the dialect is {DIALECT}")));
        }
        let named = object
            .get("patternProperties")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
            .map(|(name, _)| name.as_str());
        for pattern in object.get("pattern").and_then(Value::as_str).into_iter().chain(named) {
            if pattern.len() > PATTERN_BYTES_MAX {
                return Err(Fault::at(at, format!("a pattern has at most {PATTERN_BYTES_MAX} bytes")));
            }
            *self.patterns_left = self
                .patterns_left
                .checked_sub(1)
                .ok_or_else(|| Fault::at(at, format!("a manifest has at most {PATTERNS_MAX} patterns")))?;
        }
        Ok(())
    }

    fn follow_references(&mut self, root: &'a Value, at: &Pointer<'_>) -> Result<(), Fault> {
        let targets = References::of(root, at.to_string());
        for (place, reference) in &self.references {
            let found = targets.find(reference).and_then(|(target, _)| self.by_address.get(&(target as *const Value)));
            let target = *found.ok_or_else(|| Fault::at(at, format!("{reference:?} leads to no schema")))?;
            self.places[*place].push(target);
        }
        Ok(())
    }

    /// How much work one value can make. A schema that leads back to itself for the same value would never end.
    fn check_cost(&self, at: &Pointer<'_>) -> Result<(), Fault> {
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
                                    return Err(Fault::at(at, "a reference leads back to itself for the same value"));
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
                            return Err(Fault::at(at, message));
                        }
                    }
                    _ => drop(path.pop()),
                }
            }
        }
        Ok(())
    }
}

/// What to do with a subschema: how it relates to the schema around it, itself, and where it stands.
type Visit<'a, 'v> = dyn FnMut(About, &'a Value, &Pointer<'_>) -> Result<(), Fault> + 'v;

fn each_subschema<'a>(
    object: &'a Map<String, Value>,
    at: &Pointer<'_>,
    visit: &mut Visit<'a, '_>,
) -> Result<(), Fault> {
    for (keyword, holds, about) in APPLICATORS {
        let Some(value) = object.get(keyword) else { continue };
        let at = at.key(keyword);
        match (holds, value) {
            (Holds::Schema, schema) => visit(about, schema, &at)?,
            (Holds::List, Value::Array(list)) => {
                list.iter().enumerate().try_for_each(|(index, schema)| visit(about, schema, &at.index(index)))?;
            }
            (Holds::Map, Value::Object(map)) => {
                map.iter().try_for_each(|(name, schema)| visit(about, schema, &at.key(name)))?;
            }
            (Holds::List, _) => return Err(Fault::at(&at, "this keyword holds an array of schemas")),
            (Holds::Map, _) => return Err(Fault::at(&at, "this keyword holds an object of schemas")),
        }
    }
    Ok(())
}

/// What the references of a schema lead to. Within one schema a dynamic reference is an ordinary one.
pub(super) struct References<'a> {
    root: &'a Value,
    /// Where the schema stands in its manifest.
    at: String,
    anchors: HashMap<&'a str, (&'a Value, String)>,
}

impl<'a> References<'a> {
    pub fn of(root: &'a Value, at: String) -> Self {
        let mut anchors = HashMap::new();
        collect_anchors(root, &Pointer::from(&at), &mut anchors);
        Self { root, at, anchors }
    }

    /// The schema a reference leads to, and where that stands in the manifest.
    pub fn find(&self, reference: &str) -> Option<(&'a Value, String)> {
        let fragment = percent_decode_str(reference.strip_prefix('#')?).decode_utf8().ok()?;
        if fragment.is_empty() || fragment.starts_with('/') {
            return Some((self.root.pointer(&fragment)?, format!("{}{fragment}", self.at)));
        }
        self.anchors.get(&*fragment).cloned()
    }
}

fn collect_anchors<'a>(schema: &'a Value, at: &Pointer<'_>, anchors: &mut HashMap<&'a str, (&'a Value, String)>) {
    let Value::Object(object) = schema else { return };
    for keyword in ["$anchor", "$dynamicAnchor"] {
        if let Some(name) = object.get(keyword).and_then(Value::as_str) {
            anchors.entry(name).or_insert_with(|| (schema, at.to_string()));
        }
    }
    let _ = each_subschema(object, at, &mut |_, child, at| {
        collect_anchors(child, at, anchors);
        Ok(())
    });
}
