//! Copies of schemas that have no references, and only the keywords that a check reads.

use std::fmt;

use serde_json::{Map, Value};

use super::keywords::{KeywordValue, keyword_value};
use crate::{json::text_of, mcp::tools::SCHEMA_BYTES_MAX};

/// How deeply schemas may nest. What a recursive schema says below that is not checked.
const SCHEMA_DEPTH_MAX: usize = 24;
/// Most schemas in a copy.
pub(super) const SCHEMA_NODES_MAX: usize = 2_000;
/// Most bytes in a copy, which has what several references refer to as often as they do.
const SCHEMA_COPY_BYTES_MAX: usize = 4 * SCHEMA_BYTES_MAX;
/// Most patterns in a copy.
pub(super) const PATTERNS_MAX: usize = 32;

/// Keywords that would make a reference mean something else than a place in the same document, or that cannot be copied.
const REFUSED: &[&str] = &["$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"];

/// Why the schema of a tool cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemaProblem {
    TooLarge,
    NotAnObject,
    Reference,
    Invalid,
}

impl fmt::Display for SchemaProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::TooLarge => "is too large",
            Self::NotAnObject => "is not that of an object",
            Self::Reference => "refers to something outside of it",
            Self::Invalid => "is not a JSON schema",
        })
    }
}

/// How large the copy of a schema is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchemaSize {
    /// The schemas in it, with itself.
    pub nodes: usize,
    pub bytes: usize,
    pub patterns: usize,
}

/// What the schemas of several tools may add up to.
#[derive(Debug)]
pub struct SchemaBudget(SchemaSize);

impl SchemaBudget {
    pub fn new(size: SchemaSize) -> Self {
        Self(size)
    }

    /// Subtracts the size of a schema. Returns `false`, and subtracts nothing, if it is larger than what is left.
    pub fn take(&mut self, size: SchemaSize) -> bool {
        let Self(left) = self;
        let fits = size.nodes <= left.nodes && size.bytes <= left.bytes && size.patterns <= left.patterns;
        if fits {
            left.nodes -= size.nodes;
            left.bytes -= size.bytes;
            left.patterns -= size.patterns;
        }
        fits
    }
}

/// A copy of a schema without references, of bounded size.
pub(super) fn copy_bounded(schema: &Value) -> Result<(Value, SchemaSize), SchemaProblem> {
    if text_of(schema).len() > SCHEMA_BYTES_MAX {
        return Err(SchemaProblem::TooLarge);
    }
    let mut copier = Copier { whole: schema, size: SchemaSize::default() };
    let copy = copier.schema(schema, 0)?;
    Ok((copy, copier.size))
}

/// Copies a schema without its references.
struct Copier<'a> {
    whole: &'a Value,
    size: SchemaSize,
}

impl<'a> Copier<'a> {
    fn schema(&mut self, schema: &Value, depth: usize) -> Result<Value, SchemaProblem> {
        self.count_node()?;
        let Value::Object(members) = schema else {
            return if schema.is_boolean() { Ok(schema.clone()) } else { Err(SchemaProblem::Invalid) };
        };
        if depth > SCHEMA_DEPTH_MAX {
            return Ok(Value::Bool(true));
        }
        let mut copy = Map::new();
        // What applies as well, in other words than those of the schema.
        let mut also = vec![];
        for (keyword, value) in members {
            match keyword.as_str() {
                name if REFUSED.contains(&name) => return Err(SchemaProblem::Reference),
                "$ref" => also.push(self.schema(self.target(value)?, depth + 1)?),
                "dependencies" => also.push(self.dependencies(value, depth + 1)?),
                name => {
                    let Some(holds) = keyword_value(name) else { continue };
                    self.count(name.len(), usize::from(name == "pattern"))?;
                    copy.insert(keyword.clone(), self.value(name, holds, value, depth + 1)?);
                }
            }
        }
        if !also.is_empty() {
            let all_of = copy.remove("allOf").and_then(|list| list.as_array().cloned());
            also.extend(all_of.unwrap_or_default());
            copy.insert("allOf".into(), also.into());
        }
        Ok(Value::Object(copy))
    }

    fn count_node(&mut self) -> Result<(), SchemaProblem> {
        self.size.nodes += 1;
        if self.size.nodes <= SCHEMA_NODES_MAX { Ok(()) } else { Err(SchemaProblem::TooLarge) }
    }

    /// Counts what is added to the copy.
    fn count(&mut self, bytes: usize, patterns: usize) -> Result<(), SchemaProblem> {
        self.size.bytes += bytes;
        self.size.patterns += patterns;
        let fits = self.size.bytes <= SCHEMA_COPY_BYTES_MAX && self.size.patterns <= PATTERNS_MAX;
        if fits { Ok(()) } else { Err(SchemaProblem::TooLarge) }
    }

    fn data(&mut self, value: &Value) -> Result<Value, SchemaProblem> {
        self.count(text_of(value).len(), 0)?;
        Ok(value.clone())
    }

    /// The value of a keyword. One that is not what the keyword holds is refused: it would be copied without being counted.
    fn value(
        &mut self,
        keyword: &str,
        holds: KeywordValue,
        value: &Value,
        depth: usize,
    ) -> Result<Value, SchemaProblem> {
        match (holds, value) {
            (KeywordValue::Data, value) => self.data(value),
            (KeywordValue::Schema(_), value) => self.schema(value, depth),
            (KeywordValue::Schemas(_), Value::Array(list)) => {
                list.iter().map(|item| self.schema(item, depth)).collect::<Result<Vec<_>, _>>().map(Value::from)
            }
            (KeywordValue::NamedSchemas(_), Value::Object(named)) => {
                let is_pattern = usize::from(keyword == "patternProperties");
                let copied = named.iter().map(|(name, schema)| {
                    self.count(name.len(), is_pattern)?;
                    Ok((name.clone(), self.schema(schema, depth)?))
                });
                copied.collect::<Result<Map<_, _>, _>>().map(Value::Object)
            }
            (KeywordValue::Schemas(_) | KeywordValue::NamedSchemas(_), _) => Err(SchemaProblem::Invalid),
        }
    }

    /// The `dependencies` of drafts before 2019-09, in the keywords that have replaced it.
    fn dependencies(&mut self, value: &Value, depth: usize) -> Result<Value, SchemaProblem> {
        self.count_node()?;
        let (mut required, mut schemas) = (Map::new(), Map::new());
        for (name, dependency) in value.as_object().ok_or(SchemaProblem::Invalid)? {
            self.count(name.len(), 0)?;
            match dependency {
                Value::Array(_) => required.insert(name.clone(), self.data(dependency)?),
                schema => schemas.insert(name.clone(), self.schema(schema, depth + 1)?),
            };
        }
        let members = [("dependentRequired", required), ("dependentSchemas", schemas)];
        Ok(members.into_iter().map(|(keyword, named)| (keyword.to_owned(), Value::Object(named))).collect())
    }

    /// What a reference within the document refers to.
    fn target(&self, reference: &Value) -> Result<&'a Value, SchemaProblem> {
        let place = reference.as_str().and_then(|text| text.strip_prefix('#')).ok_or(SchemaProblem::Reference)?;
        self.whole.pointer(place).ok_or(SchemaProblem::Reference)
    }
}
