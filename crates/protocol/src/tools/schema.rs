//! Arguments of a call against the schema of its tool. A schema may come from a server that is not trusted, so it is copied first:
//! references within it are replaced by what they refer to, up to a number of nodes and bytes and a depth, references to other
//! documents are refused, and keywords that a check does not read are left out. How much work a check is depends on the copy and on
//! the arguments. It is counted before, and a check that would be too much is not made.

mod copy;
mod keywords;
mod steps;
#[cfg(test)]
mod tests;

use std::{fmt, sync::LazyLock};

use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::{Map, Value};

pub use self::copy::{SchemaBudget, SchemaProblem, SchemaSize};
use self::{copy::copy_bounded, steps::steps_of};
use crate::text::clip;

/// Most bytes of a call's arguments.
pub const ARGUMENTS_BYTES_MAX: usize = 64 * 1024;
/// How deeply arguments may nest.
pub const ARGUMENTS_DEPTH_MAX: usize = 32;
/// Most bytes of a pattern when it is compiled, and of the cache that matching it uses.
const PATTERN_BYTES_MAX: usize = 256 * 1024;
/// Most steps of a check whose problems are described. The validator collects all of them, up to one for each step, and those of
/// all alternatives of `anyOf`, before the first can be read.
const DESCRIBED_STEPS_MAX: u64 = 100_000;
/// How many problems of one call are described to the model.
const PROBLEMS_MAX: usize = 5;
const PROBLEM_CHARS_MAX: usize = 300;

/// Why a value does not fit a schema.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Misfit {
    /// It was not checked.
    TooManySteps,
    /// Finding out what is wrong would be too much work.
    NotDescribed,
    /// Descriptions of some problems, at least of one.
    Problems(Vec<String>),
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManySteps => f.write_str("the arguments are too large to be checked against the tool's schema"),
            Self::NotDescribed => f.write_str("the arguments do not fit the tool's schema"),
            Self::Problems(problems) => f.write_str(&problems.join("; ")),
        }
    }
}

/// A compiled schema.
pub(crate) struct CompiledSchema {
    copy: Value,
    validator: Validator,
}

impl CompiledSchema {
    /// Compiles a schema that may come from elsewhere.
    pub(crate) fn new(schema: &Value) -> Result<Self, SchemaProblem> {
        Self::of_copy(copy_bounded(schema)?.0).ok_or(SchemaProblem::Invalid)
    }

    /// As [`CompiledSchema::new`], of one of several schemas. It is not compiled if they are too large together.
    pub(crate) fn within(schema: &Value, budget: &mut SchemaBudget) -> Result<Self, SchemaProblem> {
        let (copy, size) = copy_bounded(schema)?;
        if !budget.take(size) {
            return Err(SchemaProblem::TooLarge);
        }
        Self::of_copy(copy).ok_or(SchemaProblem::Invalid)
    }

    /// `None` if the schema is not a JSON schema.
    fn of_copy(copy: Value) -> Option<Self> {
        // Expressions that can go back would let a schema take any amount of time.
        let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES_MAX).dfa_size_limit(PATTERN_BYTES_MAX);
        let options = jsonschema::draft202012::options().with_pattern_options(patterns);
        let validator = options.should_validate_formats(false).offline().build(&copy).ok()?;
        Some(Self { copy, validator })
    }

    /// Checks a value. The work is bounded by what [`steps_of`] allows, and the memory by [`DESCRIBED_STEPS_MAX`].
    pub(crate) fn check(&self, value: &Value, describe: impl Fn(&ValidationError<'_>) -> String) -> Result<(), Misfit> {
        let steps = steps_of(&self.copy, value).map_err(|_| Misfit::TooManySteps)?;
        // Stops at the first problem, and stores none.
        if self.validator.is_valid(value) {
            return Ok(());
        }
        if steps > DESCRIBED_STEPS_MAX {
            return Err(Misfit::NotDescribed);
        }
        let problems: Vec<_> =
            self.validator.iter_errors(value).take(PROBLEMS_MAX).map(|error| describe(&error)).collect();
        Err(if problems.is_empty() { Misfit::NotDescribed } else { Misfit::Problems(problems) })
    }
}

/// The rules for the arguments of one tool.
pub struct ArgumentRules {
    size: SchemaSize,
    /// `None`: the schema is not a JSON schema.
    compiled: LazyLock<Option<CompiledSchema>, Compile>,
}

/// Compiles a schema when it is first needed, and is dropped then.
type Compile = Box<dyn FnOnce() -> Option<CompiledSchema> + Send + Sync>;

impl fmt::Debug for ArgumentRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ArgumentRules")
    }
}

impl ArgumentRules {
    /// The rules of a schema that may come from elsewhere. It is compiled when a call is first checked: a process knows many tools of
    /// which few are called, and the first schema that it compiles takes half a megabyte, because it is checked itself.
    pub fn read(schema: &Map<String, Value>) -> Result<Self, SchemaProblem> {
        if schema.get("type").is_some_and(|kind| kind != "object") {
            return Err(SchemaProblem::NotAnObject);
        }
        let (copy, size) = copy_bounded(&Value::Object(schema.clone()))?;
        let compile: Compile = Box::new(move || CompiledSchema::of_copy(copy));
        Ok(Self { size, compiled: LazyLock::new(compile) })
    }

    /// How large the schema is, with what its references refer to.
    pub fn size(&self) -> SchemaSize {
        self.size
    }

    /// Compiles the schema now. Fails if it is not a JSON schema.
    pub fn compile(&self) -> Result<(), SchemaProblem> {
        if self.compiled.is_some() { Ok(()) } else { Err(SchemaProblem::Invalid) }
    }

    /// The arguments, if they are an object that the schema allows. Empty arguments are an empty object, as some models send them.
    /// The error is for the model.
    pub fn check(&self, arguments: &str) -> Result<Map<String, Value>, String> {
        if arguments.len() > ARGUMENTS_BYTES_MAX {
            return Err(format!("the arguments are longer than {ARGUMENTS_BYTES_MAX} bytes"));
        }
        let text = if arguments.trim().is_empty() { "{}" } else { arguments };
        let value: Value =
            serde_json::from_str(text).map_err(|error| format!("the arguments are not JSON: {error}"))?;
        if depth(&value) > ARGUMENTS_DEPTH_MAX {
            return Err(format!("the arguments nest more than {ARGUMENTS_DEPTH_MAX} levels deep"));
        }
        let compiled = self.compiled.as_ref().ok_or("the tool's parameters are not a valid JSON Schema")?;
        if value.is_object() {
            compiled.check(&value, described).map_err(|misfit| misfit.to_string())?;
        }
        match value {
            Value::Object(members) => Ok(members),
            _ => Err("the arguments are not a JSON object".into()),
        }
    }
}

fn described(error: &ValidationError<'_>) -> String {
    let (place, message) = (error.instance_path().to_string(), clip(&error.to_string(), PROBLEM_CHARS_MAX));
    if place.is_empty() { message } else { format!("{}: {message}", clip(&place, PROBLEM_CHARS_MAX)) }
}

/// How deeply arrays and objects nest.
pub(crate) fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
