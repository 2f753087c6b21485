//! Extensions of a coding agent: packages of commands, skills, agents and MCP servers. Changes are queued, one runs at a time, and
//! a client polls each by its id.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::{
    agent_status::{AgentEntry, entries},
    workspace::SNAPSHOT_VERSION,
};
use crate::{Failure, Rule};

const SOURCE_BYTES_MAX: usize = 4_096;
const REF_BYTES_MAX: usize = 256;
const NAME_CHARS_MAX: usize = 128;

/// `GET /workspace/extensions`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkspaceExtensions {
    pub v: u32,
    pub workspace_cwd: String,
    /// False while no process of the agent runs: its extensions are not known then.
    pub initialized: bool,
    /// Each extension: its name, version, source, what it brings, and whether it is active.
    #[schema(value_type = Vec<Object>)]
    pub extensions: Vec<AgentEntry>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Object>)]
    pub errors: Vec<AgentEntry>,
}

impl WorkspaceExtensions {
    /// `None`: no process of the agent runs.
    pub fn of(workspace_cwd: String, reply: Option<&Value>) -> Self {
        let nothing = Value::Null;
        let (initialized, reply) = (reply.is_some(), reply.unwrap_or(&nothing));
        let (extensions, errors) = (entries(reply, "extensions"), entries(reply, "errors"));
        Self { v: SNAPSHOT_VERSION, workspace_cwd, initialized, extensions, errors }
    }
}

/// `POST /workspace/extensions/install`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstallExtension {
    /// A Git or GitHub address, an npm package, or an absolute path on the server.
    #[schema(value_type = String)]
    pub source: Option<Value>,
    /// The branch, tag or commit of a repository.
    #[serde(rename = "ref", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String)]
    pub git_ref: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = bool)]
    pub auto_update: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = bool)]
    pub allow_pre_release: Option<Value>,
    /// Must be true: an extension can run programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = bool)]
    pub consent: Option<Value>,
}

impl InstallExtension {
    /// The source, and the arguments of the agent's own command.
    pub fn read(&self) -> Result<(String, Vec<String>), Failure> {
        let source =
            text("source", self.source.as_ref(), SOURCE_BYTES_MAX)?.ok_or_else(|| invalid("source is required"))?;
        let git_ref = text("ref", self.git_ref.as_ref(), REF_BYTES_MAX)?;
        let auto_update = flag("autoUpdate", self.auto_update.as_ref())?;
        let pre_release = flag("allowPreRelease", self.allow_pre_release.as_ref())?;
        if self.consent != Some(Value::Bool(true)) {
            let message = "consent must be true: an extension can run programs on the server";
            return Err(Failure::invalid(Rule::ConsentRequired, message));
        }
        // Credentials would be stored in the agent's home, and shown as the extension's source.
        let has_user =
            source.split_once("://").is_some_and(|(_, rest)| rest.split('/').next().is_some_and(|at| at.contains('@')));
        if has_user {
            return Err(invalid("source must not contain a user or password"));
        }
        let mut arguments = vec!["extensions".to_owned(), "install".to_owned(), source.clone(), "--consent".to_owned()];
        if let Some(git_ref) = git_ref {
            arguments.push(format!("--ref={git_ref}"));
        }
        arguments.extend(auto_update.then(|| "--auto-update".to_owned()));
        arguments.extend(pre_release.then(|| "--pre-release".to_owned()));
        Ok((source, arguments))
    }
}

/// `POST /workspace/extensions/{name}/enable` and `/disable`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExtensionScope {
    /// `user`: in every workspace; `workspace`: in this one.
    #[schema(value_type = String)]
    pub scope: Option<Value>,
}

impl ExtensionScope {
    pub fn read(&self) -> Result<&'static str, Failure> {
        match self.scope.as_ref().map(Value::as_str) {
            None | Some(Some("user")) => Ok("user"),
            Some(Some("workspace")) => Ok("workspace"),
            Some(_) => Err(Failure::invalid(Rule::InvalidScope, "scope must be user or workspace")),
        }
    }
}

/// A change that waits or runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionAccepted {
    pub accepted: bool,
    /// Poll it at `/workspace/extensions/operations/{operationId}`.
    pub operation_id: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    Queued,
    Running,
    Succeeded,
    /// Done, but the agent could not be started with it.
    SucceededWithRefreshError,
    Failed,
}

/// `GET /workspace/extensions/operations/{operationId}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionOperation {
    pub v: u32,
    pub operation_id: String,
    /// `install`, `enable`, `disable`, `update` or `uninstall`.
    pub operation: String,
    pub status: OperationState,
    /// Milliseconds since 1970.
    pub created_at: i64,
    pub updated_at: i64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub result: Option<ExtensionResult>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub error: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExtensionResult {
    /// `installed`, `enabled`, `disabled`, `updated` or `uninstalled`.
    pub status: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub source: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub name: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub version: Option<String>,
    /// Processes of the agent that were started with the change.
    pub refreshed: u64,
    pub failed: u64,
}

/// `POST /workspace/extensions/refresh`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExtensionsRefreshed {
    pub refreshed: u64,
    pub failed: u64,
}

/// `POST /workspace/extensions/check-updates`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ExtensionUpdates {
    /// By name: `up to date`, `update available`, `not updatable` or `unknown`.
    pub states: std::collections::BTreeMap<String, String>,
}

/// The name of an extension, which is an argument of the agent's own command.
pub fn check_extension_name(name: &str) -> Result<&str, Failure> {
    let is_plain = |c: char| c.is_alphanumeric() || "._-@/".contains(c);
    let is_short = (1..=NAME_CHARS_MAX).contains(&name.chars().count());
    // The agent makes a path of it.
    let is_inside = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    if is_short && is_inside && name.chars().all(is_plain) && !name.starts_with('-') {
        return Ok(name);
    }
    Err(invalid("the name of an extension is 1 to 128 letters, digits or ._-@/, without the parts . and .."))
}

fn invalid(message: &str) -> Failure {
    Failure::invalid(Rule::InvalidExtension, message)
}

fn text(name: &str, value: Option<&Value>, bytes_max: usize) -> Result<Option<String>, Failure> {
    let Some(value) = value else { return Ok(None) };
    let text = value.as_str().map(str::trim).unwrap_or_default();
    let is_safe = !text.starts_with('-') && !text.chars().any(char::is_control);
    match (1..=bytes_max).contains(&text.len()) && is_safe {
        true => Ok(Some(text.to_owned())),
        false => Err(invalid(&format!("{name} must be text of at most {bytes_max} bytes, and not begin with -"))),
    }
}

fn flag(name: &str, value: Option<&Value>) -> Result<bool, Failure> {
    match value {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(invalid(&format!("{name} must be true or false"))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: Value) -> Result<Vec<String>, Rule> {
        let request: InstallExtension = serde_json::from_value(body).unwrap();
        request.read().map(|(_, arguments)| arguments).map_err(|failure| failure.broken_rule().unwrap())
    }

    #[test]
    fn what_a_client_sends_is_never_an_option_of_the_command() {
        let arguments =
            read(json!({"source": " /ext/demo ", "consent": true, "ref": "v1", "autoUpdate": true})).unwrap();
        assert_eq!(arguments, ["extensions", "install", "/ext/demo", "--consent", "--ref=v1", "--auto-update"]);
        for source in [
            json!("--scope=x"),
            json!(""),
            json!(7),
            json!("a\nb"),
            json!("x".repeat(5_000)),
            json!("https://u:p@git.example/x"),
        ] {
            assert_eq!(read(json!({"source": source, "consent": true})), Err(Rule::InvalidExtension), "{source}");
        }
        assert_eq!(read(json!({"source": "/x", "ref": "-x", "consent": true})), Err(Rule::InvalidExtension));
        for consent in [json!(null), json!(false), json!("true")] {
            assert_eq!(read(json!({"source": "/x", "consent": consent})), Err(Rule::ConsentRequired));
        }
    }

    #[test]
    fn names_of_extensions_are_plain() {
        for name in ["demo", "@scope/name", "a.b-c_d", "a..b", ".hidden"] {
            assert!(check_extension_name(name).is_ok(), "{name}");
        }
        for name in [
            "",
            "-x",
            "--all",
            "a b",
            "a;b",
            "..",
            ".",
            "../x",
            "a/../b",
            "@a/..",
            "/etc",
            "a//b",
            "a/",
            &"x".repeat(129),
        ] {
            assert!(check_extension_name(name).is_err(), "{name}");
        }
    }
}
