//! Facts that a comparison needs of a schema again and again, computed once: where its references lead, and for each
//! subschema its size and the keywords in it.

use std::{collections::HashMap, rc::Rc};

use percent_encoding::percent_decode_str;
use serde_json::{Map, Value};

use super::{
    compare::groups::{Group, group},
    keywords::{ANCHORS, REFERENCES, SubschemaShape, applicator},
    pointer::Pointer,
};

/// A schema's references and subschemas. Within one schema a dynamic reference is an ordinary one.
pub(super) struct Outline<'a> {
    root: &'a Value,
    /// The location of the schema in its manifest.
    at: String,
    anchors: HashMap<&'a str, (&'a Value, Rc<str>)>,
    parts: HashMap<*const Value, SchemaPart<'a>>,
}

/// One subschema. By default: one without constraints.
#[derive(Clone, Copy, Default)]
pub(super) struct SchemaPart<'a> {
    /// About how many bytes it takes in memory, with everything in it.
    pub weight: usize,
    /// Something in it refers to something else.
    pub refers: bool,
    /// Its only constraint on values is this reference.
    pub only_reference: Option<&'a str>,
    /// One bit for each [`Group`] it has keywords of.
    pub groups: u8,
}

impl SchemaPart<'_> {
    pub(super) fn speaks_of(&self, group: Group) -> bool {
        self.groups & (1 << group as u8) != 0
    }
}

impl<'a> Outline<'a> {
    pub(super) fn of(root: &'a Value, at: String) -> Self {
        let mut outline = Self { root, at: String::new(), anchors: HashMap::new(), parts: HashMap::new() };
        outline.add(root, &Pointer::from(&at));
        Self { at, ..outline }
    }

    fn add(&mut self, schema: &'a Value, at: &Pointer<'_>) -> SchemaPart<'a> {
        let Value::Object(object) = schema else {
            return SchemaPart { weight: weight(schema), ..SchemaPart::default() };
        };
        for name in ANCHORS.iter().filter_map(|keyword| object.get(*keyword)?.as_str()) {
            self.anchors.insert(name, (schema, at.to_string().into()));
        }
        let mut part = SchemaPart { weight: size_of::<Value>(), ..SchemaPart::default() };
        for (keyword, value) in object {
            part.groups |= 1 << group(keyword) as u8;
            part.refers |= REFERENCES.contains(&keyword.as_str());
            part.weight += size_of::<String>() + keyword.len();
            self.add_keyword(keyword, value, at, &mut part);
        }
        part.only_reference = only_reference(object);
        self.parts.insert(schema, part);
        part
    }

    fn add_keyword(&mut self, keyword: &str, value: &'a Value, at: &Pointer<'_>, part: &mut SchemaPart<'a>) {
        let at = at.key(keyword);
        let mut add = |schema: &'a Value, at: &Pointer<'_>| {
            let inner = self.add(schema, at);
            part.weight += inner.weight;
            part.refers |= inner.refers;
        };
        match (applicator(keyword).map(|(holds, _)| holds), value) {
            (Some(SubschemaShape::Schema), schema) => add(schema, &at),
            (Some(SubschemaShape::List), Value::Array(list)) => {
                list.iter().enumerate().for_each(|(index, schema)| add(schema, &at.index(index)));
            }
            (Some(SubschemaShape::Map), Value::Object(map)) => {
                map.iter().for_each(|(name, schema)| add(schema, &at.key(name)));
                part.weight += map.keys().map(|name| size_of::<String>() + name.len()).sum::<usize>();
            }
            _ => part.weight += weight(value),
        }
    }

    pub(super) fn part(&self, schema: &Value) -> SchemaPart<'a> {
        self.parts.get(&(schema as *const Value)).copied().unwrap_or_default()
    }

    /// The schema a reference leads to, and its location in the manifest.
    pub(super) fn find(&self, reference: &str) -> Option<(&'a Value, Rc<str>)> {
        let fragment = reference.strip_prefix('#')?;
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return self.anchors.get(fragment).cloned();
        }
        let pointer = percent_decode_str(fragment).decode_utf8().ok()?;
        // What follows a tilde is 0 or 1. Readers make different things of anything else.
        if !pointer.split('~').skip(1).all(|rest| rest.starts_with(['0', '1'])) {
            return None;
        }
        Some((self.root.pointer(&pointer)?, format!("{}{pointer}", self.at).into()))
    }
}

/// The reference of a schema that has no other constraints.
fn only_reference(object: &Map<String, Value>) -> Option<&str> {
    let mut refusing = object.iter().filter(|(keyword, _)| group(keyword).refuses());
    match (refusing.next(), refusing.next()) {
        (Some((keyword, Value::String(reference))), None) if REFERENCES.contains(&keyword.as_str()) => Some(reference),
        _ => None,
    }
}

/// About how many bytes a value takes in memory.
pub(super) fn weight(value: &Value) -> usize {
    let inside = match value {
        Value::String(text) => text.len(),
        Value::Array(list) => list.iter().map(weight).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| size_of::<String>() + key.len() + weight(value)).sum(),
        _ => 0,
    };
    size_of::<Value>() + inside
}
