//! How much work a check of a value is at most, counted before it is done. The validator has no limit of its own, and a schema of
//! bounded size still applies all its parts to every item of a large array.
//!
//! The count follows the schemas of a copy into the value as the validator does, but assumes that every keyword is reached: a check
//! that finds a problem stops earlier. It has no references to follow, so it ends; it stops as soon as a limit is exceeded.

use serde_json::{Map, Value};

use super::keywords::{
    AppliesTo,
    KeywordValue::{Data, NamedSchemas, Schema, Schemas},
    keyword_value,
};

/// Most steps of a check. Each takes a few nanoseconds.
pub(super) const STEPS_MAX: u64 = 10_000_000;
/// Most bytes that the patterns of a schema are matched with, all together. The time that a byte takes is bounded by the size of a
/// compiled pattern, and is much longer than that of a step.
pub(super) const MATCHED_BYTES_MAX: u64 = 256 * 1024;
/// Steps of a division by a fraction, which may need large numbers.
const DIVISION_STEPS: u64 = 2_000;
/// Bytes of a text that are read in one step.
const STEP_BYTES: u64 = 64;

/// A check would be more work than is allowed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManySteps;

type Counted = Result<(), TooManySteps>;

/// The steps that checking the value takes at most. The schema is a copy, which has no references.
pub(super) fn steps_of(schema: &Value, value: &Value) -> Result<u64, TooManySteps> {
    let mut counter = Counter { steps: 0, matched_bytes: 0 };
    counter.check(schema, value)?;
    Ok(counter.steps)
}

struct Counter {
    steps: u64,
    matched_bytes: u64,
}

impl Counter {
    fn add(&mut self, steps: u64) -> Counted {
        self.steps += steps;
        if self.steps <= STEPS_MAX { Ok(()) } else { Err(TooManySteps) }
    }

    /// A text that a pattern is matched with.
    fn add_matched(&mut self, text: &str) -> Counted {
        self.matched_bytes += bytes_of(text);
        self.add(1)?;
        if self.matched_bytes <= MATCHED_BYTES_MAX { Ok(()) } else { Err(TooManySteps) }
    }

    /// A value that is read as a whole.
    fn add_read(&mut self, value: &Value) -> Counted {
        self.add(1)?;
        match value {
            Value::String(text) => self.add(bytes_of(text) / STEP_BYTES),
            Value::Array(items) => items.iter().try_for_each(|item| self.add_read(item)),
            Value::Object(members) => members.iter().try_for_each(|(name, member)| {
                self.add(bytes_of(name) / STEP_BYTES)?;
                self.add_read(member)
            }),
            Value::Null | Value::Bool(_) | Value::Number(_) => Ok(()),
        }
    }

    fn check(&mut self, schema: &Value, value: &Value) -> Counted {
        self.add(1)?;
        for (keyword, rule) in schema.as_object().into_iter().flatten() {
            self.keyword(keyword, rule, value)?;
            if keyword.starts_with("unevaluated") {
                self.evaluated(schema, value)?;
            }
        }
        Ok(())
    }

    fn keyword(&mut self, keyword: &str, rule: &Value, value: &Value) -> Counted {
        self.add(1)?;
        match (keyword_value(keyword), value) {
            (Some(Data), value) => self.data(keyword, rule, value),
            (Some(Schema(AppliesTo::Value)), value) => self.check(rule, value),
            (Some(Schemas(AppliesTo::Value)), value) => schemas(rule).try_for_each(|schema| self.check(schema, value)),
            (Some(NamedSchemas(AppliesTo::Value)), value) => {
                named(rule).try_for_each(|(_, schema)| self.check(schema, value))
            }
            (Some(Schema(AppliesTo::Items)), Value::Array(items)) => {
                items.iter().try_for_each(|item| self.check(rule, item))
            }
            (Some(Schemas(AppliesTo::Items)), Value::Array(items)) => {
                schemas(rule).zip(items).try_for_each(|(schema, item)| self.check(schema, item))
            }
            (Some(Schema(AppliesTo::Members)), Value::Object(members)) => {
                members.values().try_for_each(|member| self.check(rule, member))
            }
            (Some(Schema(AppliesTo::MemberNames)), Value::Object(members)) => {
                members.keys().try_for_each(|name| self.check(rule, &Value::from(name.as_str())))
            }
            (Some(NamedSchemas(AppliesTo::Members)), Value::Object(members)) => {
                named(rule).try_for_each(|(name, schema)| self.members(keyword, name, schema, members))
            }
            _ => Ok(()),
        }
    }

    /// The schema of a name in `properties`, or of a pattern in `patternProperties`.
    fn members(&mut self, keyword: &str, name: &str, schema: &Value, members: &Map<String, Value>) -> Counted {
        self.add(1)?;
        if keyword == "properties" {
            return members.get(name).map_or(Ok(()), |member| self.check(schema, member));
        }
        members.iter().try_for_each(|(name, member)| {
            self.add_matched(name)?;
            self.check(schema, member)
        })
    }

    fn data(&mut self, keyword: &str, rule: &Value, value: &Value) -> Counted {
        match (keyword, value) {
            ("pattern", Value::String(text)) => self.add_matched(text),
            ("multipleOf", Value::Number(_)) => self.add(DIVISION_STEPS),
            ("maxLength" | "minLength" | "uniqueItems", value) => self.add_read(value),
            ("const" | "dependentRequired" | "enum" | "required" | "type", _) => self.add_read(rule),
            _ => Ok(()),
        }
    }

    /// What `unevaluatedItems` and `unevaluatedProperties` add to a check: the validator finds out what the other keywords of the
    /// schema have evaluated by checking once more the schemas that apply to the same value, and does the same within each. Where
    /// such keywords nest, the work multiplies. Whatever a schema says, the validator goes through all items or members for it.
    fn evaluated(&mut self, schema: &Value, value: &Value) -> Counted {
        self.add(1 + parts_of(value))?;
        for (keyword, rule) in schema.as_object().into_iter().flatten() {
            match (keyword_value(keyword), keyword.as_str()) {
                (Some(Schema(AppliesTo::Value)), _) => self.evaluated_by(rule, value)?,
                (Some(Schemas(AppliesTo::Value)), _) => {
                    schemas(rule).try_for_each(|schema| self.evaluated_by(schema, value))?;
                }
                (Some(NamedSchemas(AppliesTo::Value)), _) => {
                    named(rule).try_for_each(|(_, schema)| self.evaluated_by(schema, value))?;
                }
                (_, "contains" | "patternProperties" | "unevaluatedItems" | "unevaluatedProperties") => {
                    self.keyword(keyword, rule, value)?;
                }
                _ => self.add(1 + parts_of(value))?,
            }
        }
        Ok(())
    }

    fn evaluated_by(&mut self, schema: &Value, value: &Value) -> Counted {
        self.check(schema, value)?;
        self.evaluated(schema, value)
    }
}

fn schemas(rule: &Value) -> impl Iterator<Item = &Value> {
    rule.as_array().into_iter().flatten()
}

fn named(rule: &Value) -> impl Iterator<Item = (&String, &Value)> {
    rule.as_object().into_iter().flatten()
}

/// How many items or members the value has.
fn parts_of(value: &Value) -> u64 {
    let parts = match value {
        Value::Array(items) => items.len(),
        Value::Object(members) => members.len(),
        _ => 0,
    };
    parts.try_into().unwrap_or(u64::MAX)
}

fn bytes_of(text: &str) -> u64 {
    text.len().try_into().unwrap_or(u64::MAX)
}
