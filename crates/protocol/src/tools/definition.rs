//! The definition of a tool.

use std::fmt;

use serde_json::{Map, Value};

use super::schema::{ArgumentRules, SchemaProblem, SchemaSize};
use crate::mcp::tools::DESCRIPTION_BYTES_MAX;

/// Most bytes of a tool's name. Model providers accept no longer ones.
pub const OFFERED_NAME_BYTES_MAX: usize = 64;
/// How long a call may take, unless its tool sets another time.
pub const DEADLINE_MS_DEFAULT: u64 = 60_000;
/// The longest deadline of a tool.
pub const DEADLINE_MS_MAX: u64 = 1_800_000;
/// Bytes of a result, unless its tool sets another limit. The rest is cut off.
pub const OUTPUT_BYTES_DEFAULT: usize = 32 * 1024;
/// Most bytes of a result. With its other fields, the event that records it stays within its own limit.
pub const OUTPUT_BYTES_MAX: usize = 64 * 1024;

/// Where a tool comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ToolOrigin {
    /// The server itself.
    BuiltIn,
    /// A dialect of the server, by its name.
    Dialect(&'static str),
    /// An MCP server, by its name.
    Mcp(String),
}

impl fmt::Display for ToolOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BuiltIn => f.write_str("built-in"),
            Self::Dialect(name) => write!(f, "dialect:{name}"),
            Self::Mcp(name) => write!(f, "mcp:{name}"),
        }
    }
}

/// A tool that agents can call.
#[derive(Debug)]
pub struct ToolDefinition {
    /// The name under which agents call it.
    pub name: String,
    pub description: String,
    /// The JSON schema of its parameters: an object's.
    pub parameters: Map<String, Value>,
    /// The scope that the person must have granted to the run's agent, if the run has one.
    pub scope: Option<String>,
    /// Whether a call changes anything outside of the run.
    pub changes: bool,
    /// Whether a call may be executed again if its outcome is not known.
    pub is_idempotent: bool,
    /// Whether a repeated request of the same call finds what the call has started. Another call with the same arguments does not.
    pub is_resumable: bool,
    /// Whether a call connects to other machines.
    pub uses_network: bool,
    /// Whether `changes` and `uses_network` can be relied on. Not so for tools of MCP servers, unless the operator trusts the server.
    pub is_trusted: bool,
    pub deadline_ms: u64,
    pub output_bytes_max: usize,
    pub origin: ToolOrigin,
    /// Of the configuration of the MCP server that offers the tool. Another server may get the same name, and must not execute calls
    /// that were authorised for this one. `None` for tools of other origins.
    pub server_fingerprint: Option<String>,
    rules: ArgumentRules,
}

/// Why a tool cannot be defined.
#[derive(Clone, Debug, PartialEq)]
pub enum DefinitionProblem {
    Name,
    Schema(SchemaProblem),
}

impl fmt::Display for DefinitionProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name => {
                write!(f, "its name is not 1 to {OFFERED_NAME_BYTES_MAX} letters, digits, _ or -")
            }
            Self::Schema(problem) => write!(f, "the schema of its parameters {problem}"),
        }
    }
}

/// Whether model providers accept the name of a tool.
pub fn is_offered_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    (1..=OFFERED_NAME_BYTES_MAX).contains(&name.len()) && name.bytes().all(is_plain)
}

impl ToolDefinition {
    /// A tool that changes something, is not idempotent and uses no network, unless the caller sets it otherwise. Fails if its name
    /// or schema cannot be used. The schema is not compiled before [`ToolDefinition::compile_schema`] or the first call.
    pub fn new(
        origin: ToolOrigin,
        name: &str,
        description: &str,
        parameters: Map<String, Value>,
    ) -> Result<Self, DefinitionProblem> {
        if !is_offered_name(name) {
            return Err(DefinitionProblem::Name);
        }
        let is_own = !matches!(origin, ToolOrigin::Mcp(_));
        let rules = ArgumentRules::read(&parameters).map_err(DefinitionProblem::Schema)?;
        let mut description = description.to_owned();
        description.truncate(description.floor_char_boundary(DESCRIPTION_BYTES_MAX));
        Ok(Self {
            name: name.to_owned(),
            description,
            parameters,
            scope: None,
            changes: true,
            is_idempotent: false,
            is_resumable: false,
            uses_network: false,
            is_trusted: is_own,
            deadline_ms: DEADLINE_MS_DEFAULT,
            output_bytes_max: OUTPUT_BYTES_DEFAULT,
            origin,
            server_fingerprint: None,
            rules,
        })
    }

    /// The tool changes nothing, so that it may be called again.
    #[must_use]
    pub fn reads_only(mut self) -> Self {
        (self.changes, self.is_idempotent) = (false, true);
        self
    }

    #[must_use]
    pub fn resumable(mut self) -> Self {
        self.is_resumable = true;
        self
    }

    #[must_use]
    pub fn networked(mut self) -> Self {
        self.uses_network = true;
        self
    }

    #[must_use]
    pub fn scope(mut self, scope: &str) -> Self {
        self.scope = Some(scope.to_owned());
        self
    }

    #[must_use]
    pub fn deadline_ms(mut self, ms: u64) -> Self {
        self.deadline_ms = ms.clamp(1, DEADLINE_MS_MAX);
        self
    }

    #[must_use]
    pub fn output_bytes_max(mut self, bytes: usize) -> Self {
        self.output_bytes_max = bytes.min(OUTPUT_BYTES_MAX);
        self
    }

    /// Whether a call certainly has no effect, here or on other machines, so that it does not matter whether it was executed.
    pub fn has_no_effect(&self) -> bool {
        self.is_trusted && !self.changes && self.is_idempotent && !self.uses_network
    }

    /// How large the schema of the parameters is, with what its references refer to.
    pub fn schema_size(&self) -> SchemaSize {
        self.rules.size()
    }

    /// Compiles the schema of the parameters. Fails if it is not a JSON schema.
    pub fn compile_schema(&self) -> Result<(), DefinitionProblem> {
        self.rules.compile().map_err(DefinitionProblem::Schema)
    }

    /// Checks arguments, as text, against the schema. The error is for the model that made the call.
    pub fn check_arguments(&self, arguments: &str) -> Result<Map<String, Value>, String> {
        self.rules.check(arguments)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn define(name: &str, schema: Value) -> Result<ToolDefinition, DefinitionProblem> {
        ToolDefinition::new(ToolOrigin::BuiltIn, name, "d", schema.as_object().cloned().unwrap())
    }

    #[test]
    fn names_are_those_that_providers_accept() {
        for good in ["a", "time_now", "mcp__git-hub__log", &"x".repeat(OFFERED_NAME_BYTES_MAX)] {
            assert!(define(good, json!({})).is_ok(), "{good}");
        }
        for bad in ["", "a b", "a.b", "ü", &"x".repeat(OFFERED_NAME_BYTES_MAX + 1)] {
            assert_eq!(define(bad, json!({})).unwrap_err(), DefinitionProblem::Name, "{bad}");
        }
    }

    #[test]
    fn limits_of_a_tool_stay_within_those_of_all_tools() {
        let tool = define("a", json!({})).unwrap().deadline_ms(0).output_bytes_max(usize::MAX);
        assert_eq!((tool.deadline_ms, tool.output_bytes_max), (1, OUTPUT_BYTES_MAX));
        assert_eq!(tool.deadline_ms(u64::MAX).deadline_ms, DEADLINE_MS_MAX);
        let tool = define("a", json!({})).unwrap().reads_only();
        assert!(tool.is_idempotent && !tool.changes);
    }

    #[test]
    fn only_a_trusted_tool_that_reads_on_this_machine_has_no_effect() {
        let tool = || define("a", json!({})).unwrap();
        assert!(tool().reads_only().has_no_effect());
        assert!(!tool().has_no_effect() && !tool().reads_only().networked().has_no_effect());
        let mut untrusted = tool().reads_only();
        untrusted.is_trusted = false;
        assert!(!untrusted.has_no_effect());
    }
}
